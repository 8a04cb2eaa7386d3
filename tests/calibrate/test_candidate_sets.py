"""Reviewers' lists: the quantile by hand, the coverage exactly and by simulation, and the whole way from records."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibrate.candidate_sets import Judged, evaluate_candidates, fit_candidates, judge_candidates, quantile
from calibrate.correctness import make_rule
from calibrate.data.records import Record
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactTamperedError, UsageError
from guardrail.review import CandidateRule, ReviewStore, ask_reviewer, conformal_rank, ticket
from guardrail.review.candidates import ranked
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, Sample, SampleSet, Uncertainty
from guardrail.verdict import Meaning, Reason, Verdict


def artifact(threshold: float = 0.5) -> CalibrationArtifact:
    made = make_artifact(ScriptedChat(), threshold=threshold)
    return made.model_copy(update={"correctness": make_rule("exact").spec})


def judged(shares: list[float], acceptable: list[bool], *, accepted: bool = False, digest: str = "") -> Judged:
    verdict = Verdict(
        accepted=accepted,
        reason=Reason.ABOVE_THRESHOLD,
        detail="",
        uncertainty=Uncertainty(value=1.0, unit="nats", estimator="x"),
        threshold=0.5,
        alpha=0.1,
        guarantee="",
        artifact=digest or artifact().digest,
        candidate=None,
        alternatives=tuple((f"a{i}", share) for i, share in enumerate(shares)),
    )
    return Judged("id", accepted, verdict, tuple(acceptable))


def test_scores_by_hand() -> None:
    assert ranked([0.5, 0.3, 0.2]) == pytest.approx([0.0, 0.5, 0.8])
    assert ranked([0.4, 0.2, 0.2, 0.2]) == pytest.approx([0.0, 0.4, 0.4, 0.4])
    assert ranked([0.1 + 0.2, 0.3]) == [0.0, 0.0]  # equal but for rounding
    assert judged([0.5, 0.3, 0.2], [False, True, True]).score == 0.5
    assert judged([0.5, 0.5], [False, False]).score == math.inf


def test_ranks_by_hand() -> None:
    # ceil((n + 1)(1 - eps)); 10 * 0.9 = 9 must not become 10 by rounding.
    assert [conformal_rank(9, e) for e in (0.1, 0.2, 0.5)] == [9, 8, 5]
    assert conformal_rank(8, 0.1) == 9  # above n: infinite
    assert conformal_rank(99, 0.05) == 95
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.2) == math.inf
    assert quantile([1.0, math.inf, 2.0], 0.25) == math.inf


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, math.inf]), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_coverage_is_exact_for_every_population(scores: list[float], epsilon: float) -> None:
    """Over n + 1 exchangeable scores, the share of leave-one-out fits that cover the left-out one is >= 1 - epsilon.

    That is the promise itself, with no simulation: given the multiset, the new score is each of them equally often.
    """
    covered = sum(score <= quantile(scores[:i] + scores[i + 1 :], epsilon) for i, score in enumerate(scores))
    assert covered / len(scores) >= 1 - epsilon - 1e-9


def test_a_rank_without_the_new_question_fails_the_same_check() -> None:
    """Negative control: ceil(n (1 - eps)) forgets the new question, and covers too rarely."""
    scores = [float(i) for i in range(5)]

    def naive(rest: list[float]) -> float:
        return sorted(rest)[math.ceil(len(rest) * 0.5) - 1]

    covered = sum(score <= naive(scores[:i] + scores[i + 1 :]) for i, score in enumerate(scores))
    assert covered / len(scores) < 0.5


def population(rng: random.Random, n: int, digest: str) -> list[Judged]:
    """Questions whose right answer is often not the most frequent one, and sometimes not there at all."""
    found = []
    for _ in range(n):
        counts = [rng.randint(1, 6) for _ in range(rng.randint(1, 6))]
        shares = sorted((count / sum(counts) for count in counts), reverse=True)
        right = rng.choices([*range(len(shares)), None], [*shares, 0.08])[0]
        found.append(judged(shares, [i == right for i in range(len(shares))], digest=digest))
    return found


@pytest.mark.parametrize("epsilon", [0.15, 0.3])
def test_coverage_end_to_end(epsilon: float) -> None:
    """400 seeded fits on 60 questions; the mean coverage on fresh ones is at least 1 - epsilon.

    The standard error of the mean is below 0.004 (each fit's coverage varies by 0.06 or so); four of them are allowed.
    """
    rng, digest = random.Random(7), artifact().digest
    covered = []
    for _ in range(400):
        rule = fit_candidates(population(rng, 60, digest), artifact(), epsilon=epsilon)
        if rule.quantile is not None:  # otherwise everything is shown and nothing is promised
            covered.append(evaluate_candidates(population(rng, 60, digest), rule).covered)
    assert len(covered) > 300
    assert fmean(covered) >= 1 - epsilon - 0.016


def test_the_fit_says_what_is_attainable() -> None:
    digest = artifact().digest
    questions = [judged([1.0], [i >= 4], digest=digest) for i in range(19)]  # 4 of 19 without an acceptable answer
    rule = fit_candidates(questions, artifact(), epsilon=0.2)
    assert (rule.n, rule.n_without, rule.quantile) == (19, 4, None)
    assert rule.attainable == pytest.approx(0.25)  # 1 - 15/20
    assert fit_candidates(questions, artifact(), epsilon=rule.attainable).quantile == 0.0
    chosen = rule.select(questions[0].verdict)
    assert chosen is not None
    assert not chosen.attained
    assert "at best 75%" in chosen.statement


def test_the_populations() -> None:
    easy = [judged([1.0], [True], accepted=True) for _ in range(10)]
    hard = [judged([0.6, 0.4], [False, True]) for _ in range(10)]
    assert fit_candidates([*easy, *hard], artifact(), epsilon=0.6).quantile == 0.6
    assert fit_candidates([*easy, *hard], artifact(), epsilon=0.6, population="all").quantile == 0.0
    with pytest.raises(UsageError, match="no held back question"):
        fit_candidates(easy, artifact(), epsilon=0.1)
    with pytest.raises(UsageError, match="no question"):
        evaluate_candidates(easy, fit_candidates(hard, artifact(), epsilon=0.6))
    for wrong in (0.0, 1.0, 15.0):
        with pytest.raises(UsageError, match="epsilon"):
            fit_candidates(hard, artifact(), epsilon=wrong)


def test_select_and_evaluate_agree() -> None:
    rng, made = random.Random(3), artifact()
    rule = fit_candidates(population(rng, 80, made.digest), made, epsilon=0.3)
    fresh = population(rng, 50, made.digest)
    found = evaluate_candidates(fresh, rule)
    sets = [rule.select(one.verdict) for one in fresh]
    assert fmean(len(chosen.answers) for chosen in sets if chosen) == pytest.approx(found.mean_size)
    hits = sum(
        any(one.acceptable[int(text[1:])] for text, _ in chosen.answers)
        for one, chosen in zip(fresh, sets, strict=True)
        if chosen
    )
    assert hits / len(fresh) == pytest.approx(found.covered)


def record(answers: list[str], reference: str) -> Record:
    samples = tuple(Sample(text=answer) for answer in answers)
    drawn = SampleSet(question="q?", primary=samples[0], samples=samples)
    return Record(id="1", question="q?", references=(reference,), drawn=drawn)


def test_from_records_as_run_time_judges_them(tmp_path: Path) -> None:
    made = artifact(threshold=0.5)
    rows: list[tuple[list[str], str]] = [
        (["Rome"] * 10, "Rome"),
        (["Rome"] * 6 + ["Oslo"] * 4, "Oslo"),
        (["Rome"] * 4 + ["Oslo"] * 6, "Paris"),
    ]
    found, left_out = judge_candidates([record(*row) for row in rows], made, make_rule("exact"))
    assert left_out == 0
    assert [(one.accepted, one.score) for one in found] == [
        (True, 0.0),
        (False, pytest.approx(0.6)),
        (False, math.inf),
    ]
    rule = fit_candidates(found, made, epsilon=0.5)
    path = rule.save(tmp_path / "candidates.json")
    assert CandidateRule.load(path) == rule
    path.write_text(path.read_text().replace('"epsilon": 0.5', '"epsilon": 0.1'))
    with pytest.raises(ArtifactTamperedError):
        CandidateRule.load(path)


def test_a_question_without_references_is_left_out_and_does_not_count_as_a_miss() -> None:
    known = record(["Rome"] * 6 + ["Oslo"] * 4, "Oslo")
    unknown = known.model_copy(update={"id": "2", "references": ()})
    found, left_out = judge_candidates([unknown, known], artifact(), make_rule("exact"))
    assert ([one.id for one in found], left_out) == (["1"], 1)
    assert found[0].acceptable == (False, True)


def test_another_correctness_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="correct"):
        judge_candidates([], artifact(), make_rule("numeric"))


def test_another_artifacts_verdict_gets_no_list() -> None:
    rule = fit_candidates([judged([1.0], [True])] * 9, artifact(), epsilon=0.2)
    other: dict[str, Any] = {"artifact": "sha256:other"}
    assert rule.select(judged([1.0], [True]).verdict.model_copy(update=other)) is None
    assert rule.select(judged([], []).verdict) is None


MANY = ScriptedChat(script={"q?": [f"190{i}" for i in (1, 2, 3, 4, 1, 5, 1, 2, 3, 6, 7)]})


def test_a_verdict_settled_early_gets_no_list() -> None:
    """It has fewer samples than the quantile is about; the same question in full gets one.

    Three samples that differ: with ten the entropy is at least that of 8, 1 and 1, which is .64.
    """
    made = make_artifact(MANY, threshold=0.5)
    rule = fit_candidates([judged([1.0], [True], digest=made.digest)] * 9, made, epsilon=0.2)
    early = Guardrail(model=MANY, artifact=made, early_stopping="on").assess("q?")
    full = Guardrail(model=MANY, artifact=made, early_stopping="off").assess("q?")
    assert not early.accepted
    assert early.alternatives
    assert early.cost.saved > 0
    assert rule.select(early) is None
    assert rule.select(full) is not None


def test_fewer_samples_are_no_matter_where_calibration_had_as_few() -> None:
    """An adaptive plan: the clusters are of the same first samples on both sides. Without clusters they are not."""
    whole = judged([0.5, 0.5], [True, False]).verdict
    rule = fit_candidates([judged([1.0], [True])] * 9, artifact(), epsilon=0.2)
    short = whole.model_copy(update={"cost": Cost(saved=5)})
    assert rule.select(whole) is not None
    assert rule.select(short) is None
    assert rule.select(short.model_copy(update={"meanings": (Meaning(text="Rome", size=5, share=1.0),)})) is not None


def test_a_guard_that_shows_a_calibrated_list_does_not_stop_early(tmp_path: Path) -> None:
    made = make_artifact(MANY, threshold=0.5)
    rule = fit_candidates([judged([1.0], [True], digest=made.digest)] * 9, made, epsilon=0.2)
    with ReviewStore(tmp_path / "reviews.db") as store:
        for hook in (ask_reviewer(store, wait=1, candidates=rule), ticket(store, candidates=rule)):
            with pytest.raises(ValidationError, match='early_stopping="off"'):
                Guardrail(model=MANY, artifact=made, on_abstain=hook, early_stopping="on")
            Guardrail(model=MANY, artifact=made, on_abstain=hook, early_stopping="off").invoke("q?")
        Guardrail(model=MANY, artifact=made, on_abstain=ticket(store), early_stopping="on").invoke("q?")
        shown = [item.content.candidate_set for item in store.items()]
    assert [one is not None for one in shown] == [True, True, False]
