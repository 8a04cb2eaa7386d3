"""Several models as one system: matching of records, the joint rules, the command line, and the system at run time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cascade import fit_cascade, matched
from calibrate.cli import app
from calibrate.data.records import Record, RecordFile, read_records
from calibrate.rules.certificate import fewest_accepted, tail
from calibrate.scoring.apart import training_of
from calibrate.thresholds.stages import _start, _walked, fit_stages, path_of
from guardrail.artifact import CascadeArtifact
from guardrail.errors import ArtifactFormatError, ArtifactTamperedError, UsageError
from guardrail.guard.cascade import GOES_ON, Cascade
from guardrail.outcome import InfeasibleReason
from guardrail.specs import EstimatorSpec
from guardrail.types import Unmeasured
from tests.calibrate import fakes

NAME = "discrete_semantic_entropy"
INF = float("inf")


def population(n: int, seed: int, gap: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Two models on the same questions: the second errs less; both are more often wrong where they are uncertain."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=n)
    u = hard[:, None] + rng.normal(size=(n, 2))
    wrong = rng.random((n, 2)) < 1 / (1 + np.exp(np.array([1.0, 1.0 + gap]) - 1.5 * hard[:, None]))
    return u, wrong.astype(np.int64)


def by_thresholds(u: np.ndarray, error: np.ndarray, thresholds: list[float | None]) -> tuple[int, int, int]:
    """Answers, wrong ones, and the calls of later stages that they save, one question at a time."""
    answers = wrong = saved = 0
    for scores, errors in zip(u, error, strict=True):
        for stage, threshold in enumerate(thresholds):
            if threshold is not None and scores[stage] <= threshold:
                answers += 1
                wrong += int(errors[stage])
                saved += len(thresholds) - 1 - stage
                break
    return answers, wrong, saved


def test_lec_joint_keeps_its_inequality_on_the_questions_that_did_not_choose_the_path() -> None:
    u, error = population(600, 1)
    outcome = fit_stages(u, error, alpha=0.15)
    fitted = np.random.default_rng(0).permutation(600)[60:]
    answers, wrong, first = by_thresholds(u[fitted], error[fitted], [stage.threshold for stage in outcome.stages])
    assert (outcome.n_accepted, outcome.n_errors, outcome.stages[0].n_accepted) == (answers, wrong, first)
    assert wrong - 0.15 * answers <= -1 + 1e-9
    assert (outcome.n, outcome.options["design"], outcome.options["version"]) == (540, 60, 4)


def test_a_price_buys_calls_with_answers() -> None:
    u, error = population(600, 2)
    free, dear = (fit_stages(u, error, alpha=0.15, price=price) for price in (0.0, 2.0))
    assert dear.stages[0].n_accepted > free.stages[0].n_accepted
    assert dear.n_accepted <= free.n_accepted
    assert dear.n_errors - 0.15 * dear.n_accepted <= -1 + 1e-9


def test_certified_counts_the_tested_part_and_states_its_path() -> None:
    u, error = population(1_000, 3)
    outcome = fit_stages(u, error, alpha=0.15, rule="certified")
    assert outcome.feasible
    assert outcome.n == 900
    assert outcome.options["design"] == 100
    assert outcome.delta == 0.1
    tested = np.random.default_rng(0).permutation(1_000)[100:]
    answers, wrong, _ = by_thresholds(u[tested], error[tested], [stage.threshold for stage in outcome.stages])
    assert (outcome.n_accepted, outcome.n_errors) == (answers, wrong)


def test_paths_are_set_by_scores_and_grow() -> None:
    u, _ = population(200, 4)
    for ratio in (0.0, 0.5, 1.0):
        table = np.array(path_of(u, u[:, 1].max(), ratio))
        assert (table[1:] >= table[:-1]).all()
        assert table[-1, 1] == u[:, 1].max()
        # quantiles by hand: the ratio-th share of the sorted scores of the first model
        last = -INF if ratio == 0 else np.sort(u[:, 0])[int(ratio * 200) - 1]
        assert table[-1, 0] == last
        assert table[49, 1] == np.sort(u[:, 1])[49]


def test_a_path_is_counted_as_one_question_at_a_time() -> None:
    u, error = population(80, 8)
    three, errors = np.column_stack([u, u[:, 0].round(1)]), np.column_stack([error, 1 - error[:, 0]])
    three[:9, 1], three[5:12, 2], three[20:25, 0] = INF, INF, INF
    largest = float(three[:, 2].max(initial=-INF, where=np.isfinite(three[:, 2])))
    for ratio in (0.0, 0.5, 1.0):
        path = path_of(three[40:], largest, ratio)
        walk = _walked(three, errors, path)
        expected = [by_thresholds(three, errors, [None if t == -INF else t for t in point]) for point in path]
        assert list(zip(walk.answered, walk.wrong, walk.saved, strict=True)) == expected


def test_three_stages() -> None:
    u, error = population(1_000, 5)
    three, errors = np.column_stack([u, u[:, 1]]), np.column_stack([error, error[:, 1]])
    for rule in ("certified", "lec_joint"):
        outcome = fit_stages(three, errors, alpha=0.2, rule=rule)
        assert (len(outcome.stages), outcome.feasible) == (3, True)


@pytest.mark.parametrize(
    ("n", "alpha", "delta"),
    [(100, 0.05, 0.05), (100, 0.1, 0.001), (250, 0.01, 0.1), (300, 0.02, 0.01), (500, 0.01, 0.05)],
)
def test_models_without_errors_are_certified(n: int, alpha: float, delta: float) -> None:
    """An error-free run of ln delta / ln(1 - alpha) questions is enough; 59, 66, 230, 228 and 299 here."""
    u, error = population(n, 9)
    outcome = fit_stages(u, 0 * error, alpha=alpha, delta=delta, rule="certified")
    assert outcome.feasible
    assert outcome.n_accepted == outcome.n


@pytest.mark.parametrize(("alpha", "delta"), [(0.15, 0.1), (0.1, 0.1), (0.1, 0.05), (0.05, 0.1), (0.02, 0.05)])
@pytest.mark.parametrize("n", [350, 900, 4_000])
def test_the_first_test_uses_more_than_half_of_delta(n: int, alpha: float, delta: float) -> None:
    """Exactly: at an error rate of alpha everywhere, whether anything is accepted is decided by the first test."""
    start = _start(n, alpha, delta)
    levels = np.atleast_1d(tail(np.arange(start), np.full(start, start), alpha))
    assert delta / 2 < max(level for level in levels if level <= delta)
    assert start <= max(0.1 * n, int(fewest_accepted(0, alpha, delta))) + 1 + 1.5 / alpha


def test_infeasible_says_why() -> None:
    u, error = population(30, 6)
    few = fit_stages(u, error * 0, alpha=0.01, rule="certified")
    assert few.reason is InfeasibleReason.TOO_FEW_ITEMS
    bad = fit_stages(*population(500, 6, gap=-3.0), alpha=0.01)
    assert (bad.reason, bad.n_accepted, bad.interval) == (InfeasibleReason.RISK_NEVER_LOW_ENOUGH, 0, None)
    assert "by themselves err on 0." in bad.detail


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u, e: (u[:, :1], e[:, :1]), "at least one question and two"),
        (lambda u, e: (u * np.nan, e), r"uncertainty\[0, 0\] is nan"),
        (lambda u, e: (u, e + 2), "must be 0"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(change: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_stages(*change(*population(20, 0)), alpha=0.1)


def test_misuse_of_the_rules_is_refused() -> None:
    u, error = population(60, 0)
    with pytest.raises(UsageError, match="makes no statement with a delta"):
        fit_stages(u, error, alpha=0.1, delta=0.1)
    with pytest.raises(UsageError, match="unknown rule 'lec'"):
        fit_stages(u, error, alpha=0.1, rule="lec")
    with pytest.raises(UsageError, match="price must be"):
        fit_stages(u, error, alpha=0.1, price=-1)
    with pytest.raises(UsageError, match=r"Write 0\.1 for 10 %"):
        fit_stages(u, error, alpha=10)


# -- records -----------------------------------------------------------------------------------------------------------


def better(file: RecordFile) -> RecordFile:
    """The same questions asked of a better model: half of the wrong answers are put right, with little doubt."""

    def change(i: int, record: Record) -> Record:
        if record.correct or i % 2:
            return record
        assert record.drawn is not None
        assert record.drawn.primary is not None
        right = record.drawn.primary.model_copy(update={"text": record.references[0]})
        drawn = record.drawn.model_copy(update={"primary": right, "samples": (right,) * len(record.drawn.samples)})
        score = record.scores[NAME].model_copy(update={"value": 0.0})
        return record.model_copy(update={"drawn": drawn, "scores": {**record.scores, NAME: score}, "correct": True})

    model = file.header.model.model_copy(update={"model": "better"})
    header = file.header.model_copy(update={"model": model})
    return RecordFile(file.path, header, tuple(change(i, record) for i, record in enumerate(file.records)))


def test_records_are_matched_by_id_whatever_their_order(labelled: RecordFile) -> None:
    large = better(labelled)
    turned = RecordFile(large.path, large.header, large.records[::-1])
    turned_first = RecordFile(labelled.path, labelled.header, labelled.records[::-1])
    in_order = matched([labelled, large], [NAME, NAME])
    for files in ([labelled, turned], [turned_first, large], [turned_first, turned]):
        reordered = matched(files, [NAME, NAME])
        assert in_order.ids == reordered.ids
        assert (in_order.uncertainty == reordered.uncertainty).all()
        assert (in_order.error == reordered.error).all()
    assert in_order.uncertainty.shape == (240, 2)


@pytest.mark.parametrize("groups", ["category", "cluster"])
def test_the_same_answers_give_the_same_cascade_in_whatever_order_they_arrived(
    labelled: RecordFile, groups: Literal["category", "cluster"]
) -> None:
    grouped = tuple(
        record.model_copy(update={"group": f"g{number // 2}"}) for number, record in enumerate(labelled.records)
    )
    small = RecordFile(labelled.path, labelled.header, grouped)
    large = better(small)
    places = np.random.default_rng(5).permutation(len(grouped))
    arrived = [
        RecordFile(file.path, file.header, tuple(file.records[int(i)] for i in places)) for file in (small, large)
    ]
    outcomes = [
        fit_cascade(files, alpha=0.2, estimators=[NAME, NAME], groups=groups).outcome
        for files in ([small, large], arrived)
    ]
    assert outcomes[0].feasible
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("reason", Unmeasured)
def test_unmeasured_and_unlabelled_questions(labelled: RecordFile, reason: Unmeasured) -> None:
    large = better(labelled)
    estimator = labelled.records[0].scores[NAME].model_copy(update={"value": None, "reason": reason, "detail": "down"})
    changed = [
        labelled.records[0].model_copy(update={"scores": {NAME: estimator}}),
        labelled.records[1].model_copy(update={"correct": None}),
        *labelled.records[2:],
    ]
    small = RecordFile(labelled.path, labelled.header, tuple(changed))
    matches = matched([small, large], [NAME, NAME])
    assert "p1" not in matches.ids  # the one without a label is left out
    if reason in GOES_ON:
        assert matches.uncertainty[0, 0] == INF  # the one without a score goes to the second stage, as at run time
        assert np.isfinite(matches.uncertainty[0, 1])
        return
    assert (
        "p0" not in matches.ids
    )  # the one that the first stage could not decide is answered by nobody, as at run time
    turned = matched([large, small], [NAME, NAME])
    assert np.isfinite(turned.uncertainty[0, 0])
    assert turned.uncertainty[0, 1] == INF


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": slice(0, 239)}, "different questions .1 only in"),
        ({"question": "another?"}, "question 'p0' has question"),
        ({"prompt": "Answer briefly."}, "questions were asked differently"),
    ],
)
def test_records_of_other_questions_are_refused(labelled: RecordFile, change: dict[str, Any], message: str) -> None:
    large = better(labelled)
    if "records" in change:
        large = RecordFile(large.path, large.header, large.records[change["records"]])
    elif "question" in change:
        first = large.records[0].model_copy(update=change)
        large = RecordFile(large.path, large.header, (first, *large.records[1:]))
    else:
        prompt = large.header.prompt.model_copy(update={"system": change["prompt"]})
        large = RecordFile(large.path, large.header.model_copy(update={"prompt": prompt}), large.records)
    with pytest.raises(UsageError, match=message):
        fit_cascade([labelled, large], alpha=0.1, estimators=[NAME, NAME])


@pytest.mark.parametrize("groups", ["category", "cluster"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_is_not_fitted_on_what_its_score_was_trained_on(
    labelled: RecordFile, stage: int, groups: Literal["category", "cluster"]
) -> None:
    """A training question itself, and with clusters another question of its cluster."""
    records = [record.model_copy(update={"group": f"g{i}"}) for i, record in enumerate(labelled.records)]
    trained = records[7] if groups == "category" else records[7].model_copy(update={"id": "t", "question": "another?"})
    params = {"reads": [], "training": training_of([trained]).model_dump(mode="json")}
    spec = labelled.header.estimators[NAME].model_copy(update={"name": "score:ours", "params": params})
    file = RecordFile(labelled.path, labelled.header, tuple(records))
    header = file.header.model_copy(update={"estimators": {**file.header.estimators, NAME: spec}})
    files = [file, file]
    files[stage] = RecordFile(file.path, header, file.records)
    with pytest.raises(UsageError, match=r"1 of 240 calibration records are among the 1 questions the scorer.*p7"):
        fit_cascade(files, alpha=0.15, estimators=[NAME, NAME], groups=groups)


def test_the_artifact_round_trips_and_is_refused_when_edited(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_cascade([labelled, better(labelled)], alpha=0.15, estimators=[NAME, NAME])
    assert artifact.outcome.feasible
    assert [stage.threshold for stage in artifact.stages] == [stage.threshold for stage in artifact.outcome.stages]
    path = artifact.save(tmp_path / "cascade.json")
    again = CascadeArtifact.load(path)
    assert again == artifact
    assert again.digest == artifact.digest
    content = json.loads(path.read_text())
    content["outcome"]["alpha"] = 0.5
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactTamperedError):
        CascadeArtifact.load(path)
    with pytest.raises(ArtifactFormatError):
        CascadeArtifact.load(artifact.stages[0].save(tmp_path / "single.json"))


def test_the_system_does_at_run_time_what_the_records_say(labelled: RecordFile) -> None:
    """One scripted model plays both stages: it answers as recorded, so decisions can be foretold."""
    artifact = fit_cascade([labelled, labelled], alpha=0.2, estimators=[NAME, NAME])
    model = fakes.model()
    system = Cascade(models=[model, model], artifact=artifact)
    thresholds = [stage.threshold for stage in artifact.stages]
    for record in labelled.records[:25]:
        score = record.scores[NAME].value
        assert score is not None
        answering = next((i for i, t in enumerate(thresholds) if t is not None and score <= t), None)
        verdict = system.assess(record.question)
        assert verdict.accepted == (answering is not None)
        if answering is not None:
            assert verdict.stage == answering + 1


def test_three_stages_with_a_score_each_do_at_run_time_what_the_records_say(labelled: RecordFile) -> None:
    names = [NAME, "sequence_nll", "semantic_entropy"]
    artifact = fit_cascade([labelled] * 3, alpha=0.2, estimators=names, price=2.0)
    model = fakes.model()
    system = Cascade([model] * 3, artifact=artifact)
    thresholds = [stage.threshold for stage in artifact.stages]
    assert [stage.estimator.name for stage in artifact.stages] == names
    answered = set()
    for record in labelled.records[:60]:
        scores = [record.scores[name].value for name in names]
        rated = list(enumerate(zip(scores, thresholds, strict=True), 1))
        answering = next((i for i, (u, t) in rated if t is not None and u is not None and u <= t), None)
        verdict = system.assess(record.question)
        assert (verdict.stage if verdict.accepted else None) == answering
        answered.add(answering)
    assert answered == {3, None}  # the last stage answers, and where it is not certain nobody does


def test_on_the_command_line(records_path: Path, tmp_path: Path, labelled: RecordFile) -> None:
    from calibrate.data.records import write_records

    large, out = tmp_path / "large.jsonl", tmp_path / "cascade.json"
    improved = better(labelled)
    write_records(large, improved.header, improved.records)
    arguments = ["fit-cascade", str(records_path), str(large), "-a", "0.15", "-e", NAME, "-o", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "better" in result.output
    loaded = CascadeArtifact.load(out)
    assert loaded.outcome.rule == "lec_joint"
    assert read_records(large).header.model == loaded.stages[1].model
    refused = CliRunner().invoke(app, [*arguments, "-e", NAME, "-e", NAME])
    assert refused.exit_code == 2


def test_the_command_counts_fits_on_the_labels(records_path: Path, tmp_path: Path, labelled: RecordFile) -> None:
    from calibrate.data.records import write_records

    small, large, out = tmp_path / "small.jsonl", tmp_path / "large.jsonl", tmp_path / "cascade.json"
    small.write_bytes(records_path.read_bytes())
    write_records(large, better(labelled).header, better(labelled).records)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*arguments, "-e", NAME, "-o", str(out)], env={"COLUMNS": "400"})
        assert result.exit_code == code, result.output
        return result.output

    both = ("fit-cascade", str(small), str(large))
    assert "have used" not in run(*both, "-a", "0.15")
    shown = run(*both, "-a", "0.15", "--rule", "certified", "--delta", "0.2")
    assert "2 fits have used these labels; whichever of them you use, its promise holds with 80 %" in shown
    loaded = CascadeArtifact.load(out)
    assert loaded.spent is not None
    assert loaded.spent.delta == pytest.approx(0.2)
    assert "with 80 % confidence" in " ".join(loaded.promises)
    # A threshold of one stage's model is another fit on these labels, and the cascade counts for it.
    assert "3 fits have used these labels" in run("fit", "--rule", "acrc", str(large), "-a", "0.15")


def test_a_stage_prints_its_condition_in_the_direction_of_its_own_score() -> None:
    # A confidence is stored as 1 - value: "conf <= 0.0859" was printed for answers from 0.9141 on.
    def spec(**params: str) -> EstimatorSpec:
        return EstimatorSpec(name="imported:conf", version=1, unit="probability", params={"column": "conf", **params})

    assert spec(stored="1 - value").condition(0.25) == "conf >= 0.75"
    assert spec(stored="- value").condition(-3.5) == "conf >= 3.5"
    assert spec(stored="value").condition(0.25) == "conf <= 0.25"
    entropy = EstimatorSpec(name="semantic_entropy", version=1, unit="nats")
    assert entropy.condition(0.5) == "semantic_entropy <= 0.5 nats"
    sure = EstimatorSpec(name="score:sure@1", version=1, unit="probability", params={"higher": "certain"})
    assert sure.condition(0.25) == "score:sure@1 >= 0.75"
