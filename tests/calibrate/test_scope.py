"""Labels from within the scope: what is drawn, what is refused, and that the certificate holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.candidate_sets import judge_candidates
from calibrate.cascade import matched
from calibrate.correctness import make_rule
from calibrate.data.records import Record, RecordFile, RecordHeader, read_records, write_records
from calibrate.evaluation.audit import shift_of
from calibrate.evaluation.planning import plan_scope
from calibrate.evaluation.populations import Population
from calibrate.fitting import fit
from calibrate.pipeline import fit_artifact, part_header
from calibrate.scope import cut_at, draw_to_label
from calibrate.scoring.compute import score_records
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactFormatError, UsageError
from guardrail.monitor import Drift
from guardrail.outcome import EVERY_QUESTION, Feasible, Scope
from guardrail.prompting import PromptWrapping
from guardrail.review import Monitors, ReviewStore
from guardrail.specs import CorrectnessSpec, ModelIdentity
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import SamplingPlan, Uncertainty
from guardrail.uncertainty import EstimatorSpec, make_estimator

KEY = "imported:u"


def scored(values: list[float], labels: list[bool | None] | None = None, **header: Any) -> RecordFile:
    """Records with these scores; a label of None is none."""
    all_labels = labels or [None] * len(values)
    records = tuple(
        Record(
            id=f"q{i:04}",
            question=f"Question {i}?",
            scores={KEY: Uncertainty(value=value, unit="nats", estimator=KEY)},
            correct=label,
        )
        for i, (value, label) in enumerate(zip(values, all_labels, strict=True))
    )
    record_header = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="imported", model="m"),
        plan=SamplingPlan(),
        prompt=PromptWrapping(),
        questions_name="questions.jsonl",
        questions_sha256="00",
        n_questions=len(values),
        estimators={KEY: EstimatorSpec(name=KEY, version=1, unit="nats")},
        **header,
    )
    return RecordFile(Path("scored.jsonl"), record_header, records)


def labelled(file: RecordFile, wrong: dict[str, bool]) -> RecordFile:
    """The same records with labels."""
    header = file.header.model_copy(update={"correctness": CorrectnessSpec(name="given", version=1, params={})})
    records = tuple(record.model_copy(update={"correct": not wrong[record.id]}) for record in file.records)
    return RecordFile(file.path, header, records)


def half(n: int = 300) -> RecordFile:
    """n labelled questions, drawn from the lower half of 2,000 scores; the error rate is .3 of the score."""
    rng = np.random.default_rng(0)
    u = rng.random(2000)
    wrong = {f"q{i:04}": bool(rng.random() < 0.3 * value) for i, value in enumerate(u)}
    return labelled(draw_to_label(scored(u.tolist()), KEY, share=0.5, n=n, seed=1), wrong)


def test_the_cut_keeps_ties_together() -> None:
    values = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0])
    assert [cut_at(values, share) for share in (0.3, 0.49, 0.5, 0.6, 0.99, 1.0)] == [0.0, 0.0, 1.0, 2.0, 2.0, 3.0]
    with pytest.raises(UsageError, match=r"30\.0% of the questions share the lowest score.*Take at least 0\.3"):
        cut_at(values, 0.29)


def scoped(artifact: CalibrationArtifact, scope: Scope) -> CalibrationArtifact:
    """The artifact with a promise about the questions of a scope."""
    return artifact.model_copy(update={"outcome": artifact.outcome.model_copy(update={"scope": scope})})


def test_a_draw_is_uniform_within_scope_and_says_how_it_was_made() -> None:
    file = scored([i / 1000 for i in range(1000)])
    drawn = draw_to_label(file, KEY, share=0.5, n=100, seed=3)
    scope = drawn.header.scope
    assert scope.is_drawn
    assert (scope.cut, scope.n_pool, scope.n_within, scope.n) == (0.499, 1000, 500, 100)
    assert drawn.header.n_questions == len(drawn.records) == len({record.id for record in drawn.records}) == 100
    assert all(record in file.records[:500] for record in drawn.records)
    assert draw_to_label(file, KEY, share=0.5, n=100, seed=3) == drawn
    assert draw_to_label(file, KEY, share=0.5, n=100, seed=4) != drawn
    # Each of 500 questions is drawn with probability .2: 200 draws of 100, counts Bin(200, .2); a chi-square with 499
    # degrees of freedom (a little less, as the draws have no repeats) is above 640 in one run of 50,000.
    counts = np.zeros(500)
    for seed in range(200):
        for record in draw_to_label(file, KEY, share=0.5, n=100, seed=seed).records:
            counts[int(record.id[1:])] += 1
    assert ((counts - 40) ** 2 / 40 / 0.8).sum() < 640


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"share": 0.5, "n": 200},
            r"500 questions are within scope 0\.5.* 3 x 200 = 600\. Draw 166 or fewer, .*1200 in all; there are 1000",
        ),
        ({"share": 50, "n": 10}, r"the scope must be a share in \(0, 1\], got 50"),
        ({"share": 0.5, "n": 501}, "only 500 questions are within scope"),
        ({"share": 0.5, "n": 0}, "must be at least 1, got 0"),
    ],
)
def test_refused_draws(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        draw_to_label(scored([i / 1000 for i in range(1000)]), KEY, **given)


def test_a_draw_from_all_questions_needs_no_larger_pool() -> None:
    file = scored([i / 1000 for i in range(1000)])
    assert len(draw_to_label(file, KEY, share=1, n=900).records) == 900  # all questions: no cut to choose


def test_labels_must_not_be_there_already() -> None:
    with pytest.raises(UsageError, match="has labels on 1 of 3 records"):
        draw_to_label(scored([1.0, 2.0, 3.0], [None, True, None]), KEY, share=1, n=2)


def test_the_artifact_binds_the_scope_and_counts_over_all_questions(tmp_path: Path) -> None:
    drawn = half()
    write_records(tmp_path / "labelled.jsonl", drawn.header, drawn.records)
    fitted = fit_artifact(read_records(tmp_path / "labelled.jsonl"), score=KEY, alpha=0.15, rule="certified")
    assert isinstance(fitted.outcome, Feasible)
    assert fitted.outcome.scope.is_drawn
    assert fitted.outcome.scope.covers(fitted.outcome.threshold)
    assert fitted.acceptance == pytest.approx(fitted.outcome.n_accepted / 300 * fitted.outcome.scope.n_within / 2000)
    fitted.save(tmp_path / "artifact.json")
    assert CalibrationArtifact.load(tmp_path / "artifact.json").outcome.scope == fitted.outcome.scope


def test_a_fit_refuses_what_was_not_drawn_so() -> None:
    """Other questions, another order (right ones first) or other scores than those of the draw choose the labels."""
    drawn = half(100)
    first, *others = drawn.records

    def at(record: Record, value: float) -> Record:
        return record.model_copy(update={"scores": {KEY: Uncertainty(value=value, unit="nats", estimator=KEY)}})

    changed: list[tuple[Sequence[Record], str]] = [
        ([at(first, 0.9), *others], "another order or other"),
        ([*drawn.records, first.model_copy(update={"id": "another"})], "101 questions .* are not the 100 that were"),
        (sorted(drawn.records, key=lambda record: not record.correct), "another order or other"),
        ([at(record, 0.0) if record.correct else record for record in drawn.records], "another order or other"),
    ]
    for records, message in changed:
        with pytest.raises(UsageError, match=message):
            fit_artifact(RecordFile(drawn.path, drawn.header, tuple(records)), score=KEY, alpha=0.1, rule="acrc")
    other = drawn.header.model_copy(update={"scope": drawn.header.scope.model_copy(update={"score": "perplexity"})})
    with pytest.raises(UsageError, match="drawn by their 'perplexity' scores"):
        fit_artifact(RecordFile(drawn.path, other, drawn.records), score=KEY, alpha=0.1, rule="acrc")
    part = drawn.records[40:]
    kept_out = RecordFile(drawn.path, part_header(drawn.header, part), part)
    assert fit_artifact(kept_out, score=KEY, alpha=0.1, rule="acrc").outcome.scope == kept_out.header.scope


@pytest.mark.parametrize("detail", ["", "there is no reference"])
def test_labels_on_the_certain_questions_only_are_refused_without_a_scope(detail: str) -> None:
    """Whoever labels the surest answers certifies a rate that the others do not have."""
    u = np.random.default_rng(1).random(400)
    file = scored(u.tolist(), correctness=CorrectnessSpec(name="given", version=1, params={}))

    def fitted(keep: np.ndarray[Any, Any]) -> CalibrationArtifact:
        records = tuple(
            record.model_copy(update={"correct": True} if is_labelled else {"label_detail": detail})
            for record, is_labelled in zip(file.records, keep, strict=True)
        )
        return fit_artifact(RecordFile(file.path, file.header, records), score=KEY, alpha=0.2, rule="acrc")

    with pytest.raises(UsageError, match=r"170 labelled questions .* differ in imported:u from the 230 without"):
        fitted(u < 0.4)
    assert isinstance(fitted(np.random.default_rng(2).random(400) < 0.4).outcome, Feasible)  # a random part is fine


def test_a_guard_never_accepts_above_the_cut(tmp_path: Path) -> None:
    # Three of four samples agree: .562 nats. All four: 0.
    model = ScriptedChat(script={"sure?": ["a"] * 5, "less?": ["a", "a", "a", "a", "b"]})
    scope = Scope(score="discrete_semantic_entropy", share=0.5, cut=0.5, n_asked=100, n_pool=100, n_within=50, n=10)
    artifact = scoped(make_artifact(model, threshold=0.5, n=4), scope)
    guard = Guardrail(model=model, artifact=artifact)
    assert [guard.assess(question).accepted for question in ("sure?", "less?")] == [True, False]
    # Without the scope this threshold would accept the second question. With the scope, that artifact can be neither
    # made nor loaded.
    above = make_artifact(model, threshold=0.6, n=4)
    assert Guardrail(model=model, artifact=above).assess("less?").accepted
    with pytest.raises(ValueError, match=r"threshold 0\.6 is above the cut 0\.5 of the scope"):
        CalibrationArtifact.model_validate(scoped(above, scope).model_dump())
    scoped(above, scope).save(tmp_path / "above.json")
    with pytest.raises(ArtifactFormatError, match="above the cut"):
        CalibrationArtifact.load(tmp_path / "above.json")


def test_monitor_and_audit_compare_what_lies_within_scope(tmp_path: Path) -> None:
    artifact = fit_artifact(half(), score=KEY, alpha=0.15, rule="certified")
    fresh = np.random.default_rng(3).random(300).tolist()
    test = Drift(artifact)
    state, _ = test.take(test.start, *fresh)
    shared = Monitors(ReviewStore(tmp_path / "reviews.db")).drift("d", artifact)
    for score in fresh[:20]:
        shared.update(score)
    assert artifact.outcome.scope.is_drawn
    below = [artifact.outcome.scope.covers(score) for score in fresh]
    assert state.n == sum(below)
    assert shared.state.n == sum(below[:20])
    assert state.alarm is None
    # Negative control: without the scope every second score is above all calibration scores, and the monitor alarms.
    blind = Drift(scoped(artifact, EVERY_QUESTION))
    assert blind.take(blind.start, *fresh)[0].alarm is not None
    values = np.array(fresh)
    assert shift_of(artifact, values, sum(score <= (artifact.threshold or 0) for score in fresh)).ks_p > 0.01
    assert shift_of(scoped(artifact, EVERY_QUESTION), values, 100).ks_p < 1e-6


def test_promises_about_all_questions_are_not_made_within_scope() -> None:
    drawn = draw_to_label(scored([i / 1000 for i in range(1000)]), KEY, share=0.5, n=100)
    with pytest.raises(UsageError, match="a cascade asks the next model about the others"):
        matched([drawn, drawn], [KEY, KEY])
    artifact = fit_artifact(half(), score=KEY, alpha=0.15, rule="certified")
    with pytest.raises(UsageError, match="reviewers see the others, too"):
        judge_candidates(drawn, artifact, make_rule("exact"))


def test_scores_that_decided_the_draw_are_not_replaced_by_others() -> None:
    estimator = make_estimator("perplexity")
    scope = draw_to_label(scored([1.0, 2.0, 3.0]), KEY, share=1, n=2).header.scope
    assert scope.is_drawn
    specs = {"perplexity": estimator.spec}
    header = scored([1.0]).header.model_copy(
        update={"scope": scope.model_copy(update={"score": "perplexity"}), "estimators": specs}
    )
    drawn = RecordFile(Path("drawn.jsonl"), header, ())
    assert score_records(drawn, [estimator]).header == header  # the same procedure gives the same scores
    older = {"perplexity": estimator.spec.model_copy(update={"version": 0})}
    with pytest.raises(UsageError, match="drawn by their 'perplexity' scores"):
        score_records(RecordFile(drawn.path, header.model_copy(update={"estimators": older}), ()), [estimator])


MU, GAP, ALPHA, DELTA, RUNS = 0.3, 1.0, 0.15, 0.1, 1_500
LIMIT = int(stats.binom.ppf(1 - 1e-4, RUNS, DELTA))


def _failures(label: str) -> tuple[int, float]:
    """Calibrations with a true error rate of alpha or more, and mean acceptance over all questions, of 300 labels."""
    rng, failed, accepted = np.random.default_rng(5), 0, 0.0
    for _ in range(RUNS):
        error = rng.random(3000) < MU
        u = rng.normal(size=3000) + GAP * error
        places = np.flatnonzero(u <= cut_at(u, 0.5)) if label == "within the scope" else np.arange(3000)
        if label == "right answers first":  # the negative control: labels that depend on the labels
            places = places[np.argsort(error[places] + 0.8 * rng.random(places.size), kind="stable")]
            chosen = places[:300]
        else:
            chosen = rng.choice(places, 300, replace=False)
        outcome = fit(u[chosen], error[chosen].astype(int), alpha=ALPHA, rule="certified", delta=DELTA)
        if isinstance(outcome, Feasible):
            t = outcome.threshold
            bad, good = MU * stats.norm.cdf(t - GAP), (1 - MU) * stats.norm.cdf(t)
            failed += bad / (bad + good) > ALPHA
            accepted += (bad + good) / RUNS
    return failed, accepted


@pytest.mark.slow
def test_the_certificate_holds_within_scope_and_accepts_more() -> None:
    failed, accepted = _failures("within the scope")
    assert failed <= LIMIT
    spread, plain = _failures("all")
    assert spread <= LIMIT
    assert accepted > 1.25 * plain


def test_negative_control_choosing_what_to_label_by_the_answers_fails() -> None:
    assert _failures("right answers first")[0] > LIMIT


def test_planning_prefers_a_scope_where_labels_are_few() -> None:
    rng = np.random.default_rng(0)
    u, e = Population.binormal(0.7, 0.76).draw(rng, 4000)
    guessed = Population.binormal(0.7, 0.76).with_ranks_of(np.exp(u))  # scores of another scale, in the same order
    assert guessed.probability.mean() == pytest.approx(0.3, abs=0.01)
    assert np.all(np.diff(guessed.probability) >= 0)
    pilot = Population.of_pilot(u[:200], e[:200].astype(np.int64), at=u)
    assert np.abs(pilot.probability - guessed.probability).mean() < 0.12
    found = plan_scope(guessed, alpha=0.15, labels=[300], repetitions=100)
    assert found[0.5, 300][0] > 1.2 * found[1.0, 300][0]
    small = guessed.with_ranks_of(u[:1000])
    few = plan_scope(small, alpha=0.15, labels=[300], scopes=(1.0, 0.7), repetitions=2)
    assert list(few) == [(1.0, 300)]  # 700 questions are fewer than three times the labels
