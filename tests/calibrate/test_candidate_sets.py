"""Reviewers' lists: the quantile by hand, the coverage exactly and by simulation, and the whole way from records."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from calibrate.candidate_sets import Judged, fit_candidates, judge_candidates, quantile
from calibrate.correctness import make_rule
from calibrate.data.records import Record, RecordFile, RecordHeader
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactTamperedError, UsageError
from guardrail.review import CandidateRule
from guardrail.review.candidates import ranked
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, SampleSet, Uncertainty
from guardrail.verdict import Meaning, Reason, Verdict


def artifact(threshold: float = 0.5) -> CalibrationArtifact:
    base = make_artifact(ScriptedChat(), threshold=threshold)
    return base.model_copy(update={"correctness": make_rule("exact").spec})


def judged(shares: list[float], acceptable: list[bool], *, accepted: bool = False, digest: str = "") -> Judged:
    verdict = Verdict(
        accepted=accepted,
        reason=Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=1.0, unit="nats", estimator="x"),
        threshold=0.5,
        alpha=0.1,
        outcome=artifact().outcome,
        basis=Basis.SAMPLES,
        artifact=digest or artifact().digest,
        candidate=None,
        meanings=tuple(Meaning(text=f"a{i}", share=share) for i, share in enumerate(shares)),
    )
    return Judged("id", accepted, verdict, tuple(acceptable))


def test_scores_by_hand() -> None:
    assert ranked([0.5, 0.3, 0.2]) == pytest.approx([0.0, 0.5, 0.8])
    assert ranked([0.4, 0.2, 0.2, 0.2]) == pytest.approx([0.0, 0.4, 0.4, 0.4])
    assert ranked([0.1 + 0.2, 0.3]) == [0.0, 0.0]  # equal but for rounding
    assert judged([0.5, 0.3, 0.2], [False, True, True]).score == 0.5
    assert judged([0.5, 0.5], [False, False]).score == math.inf


def test_limits_by_hand() -> None:
    # At epsilon = delta = .1: .9^22 = .098 allows no miss of 22; .9^38 + 38 * .1 * .9^37 = .095 allows one of 38.
    def limit(n: int) -> float:
        return quantile([float(i) for i in range(n)], 0.1, 0.1)

    assert [limit(n) for n in (21, 22, 37, 38)] == [math.inf, 21.0, 36.0, 36.0]
    assert quantile([math.inf, *range(37)], 0.1, 0.1) == 36.0
    assert quantile([math.inf, math.inf, *range(36)], 0.1, 0.1) == math.inf


def conformal(scores: list[float], epsilon: float, delta: float) -> float:
    """The former rule, for which a calibration that cannot promise anything counts as no miss."""
    rank = math.ceil((len(scores) + 1) * (1 - epsilon) - 1e-9)
    return math.inf if rank > len(scores) else sorted(scores)[rank - 1]


def broken(
    rule: Callable[..., float], n: int, shares: tuple[float, float, float], epsilon: float
) -> tuple[float, float]:
    """Exactly: P(a promise that is not true), and the share missed among lists that are shown with a promise.

    A question's score is 0, .5 or infinite with these probabilities; all numbers of each among n are summed over.
    """
    failed = shown = missed = 0.0
    for low in range(n + 1):
        for middle in range(n + 1 - low):
            counts = (low, middle, n - low - middle)
            limit = rule([0.0] * counts[0] + [0.5] * counts[1] + [math.inf] * counts[2], epsilon, 0.1)
            if math.isinf(limit):
                continue
            chance = float(stats.multinomial.pmf(counts, n, shares))
            miss = shares[2] + (shares[1] if limit == 0.0 else 0.0)
            failed += chance * (miss > epsilon)
            shown += chance
            missed += chance * miss
    return failed, missed / shown if shown else 0.0


POPULATIONS = [(0.5, 0.29, 0.21), (0.3, 0.35, 0.35), (0.79, 0.0, 0.21), (0.6, 0.22, 0.18), (0.7, 0.25, 0.05)]


@pytest.mark.parametrize("n", [9, 20, 40])
@pytest.mark.parametrize("shares", POPULATIONS)
def test_a_promise_that_is_shown_is_true(n: int, shares: tuple[float, float, float]) -> None:
    assert broken(quantile, n, shares, 0.2)[0] <= 0.1


def test_negative_control_the_conformal_quantile_promises_what_is_not_true() -> None:
    failed, missed = broken(conformal, 9, (0.3, 0.35, 0.35), 0.2)
    assert failed > 0.12
    assert missed >= 0.35
    assert broken(conformal, 20, (0.5, 0.29, 0.21), 0.2)[0] > 0.3


def test_the_fit_says_what_is_attainable() -> None:
    digest = artifact().digest
    questions = [judged([1.0], [i >= 4], digest=digest) for i in range(19)]  # 4 of 19 without an acceptable answer
    rule = fit_candidates(questions, artifact(), epsilon=0.2)
    assert (rule.n, rule.n_without, rule.quantile, rule.delta) == (19, 4, None, 0.1)
    assert stats.binom.cdf(4, 19, rule.attainable) == pytest.approx(0.1)
    assert fit_candidates(questions, artifact(), epsilon=rule.attainable).quantile == 0.0
    chosen = rule.select(questions[0].verdict)
    assert chosen is not None
    assert not chosen.attained
    assert f"at most in {1 - rule.attainable:.0%}" in chosen.statement
    promised = fit_candidates(questions, artifact(), epsilon=0.5, delta=0.05).select(questions[0].verdict)
    assert promised is not None
    assert (
        promised.statement == "An acceptable answer is among these in at least 50% of such questions (95% confidence)."
    )


def test_the_populations() -> None:
    easy = [judged([1.0], [True], accepted=True) for _ in range(20)]
    hard = [judged([0.6, 0.4], [False, True]) for _ in range(10)]
    assert fit_candidates([*easy, *hard], artifact(), epsilon=0.6).quantile == 0.6
    assert fit_candidates([*easy, *hard], artifact(), epsilon=0.6, population="all").quantile == 0.0
    with pytest.raises(UsageError, match="no held back question"):
        fit_candidates(easy, artifact(), epsilon=0.1)
    for wrong in (0.0, 1.0, 15.0):
        with pytest.raises(UsageError, match="epsilon"):
            fit_candidates(hard, artifact(), epsilon=wrong)


def record(answers: list[str], reference: str) -> Record:
    samples = tuple(Sample(text=answer) for answer in answers)
    drawn = SampleSet(question="q?", primary=samples[0], samples=samples)
    return Record(id="1", question="q?", references=(reference,), drawn=drawn)


def of(*records: Record) -> RecordFile:
    in_force = artifact()
    header = RecordHeader(
        created="2026-01-01",
        model=in_force.model,
        plan=in_force.plan,
        prompt=in_force.prompt,
        questions_name="q",
        questions_sha256="",
        n_questions=len(records),
        packages={},
    )
    return RecordFile(Path("fresh.jsonl"), header, records)


def test_from_records_as_run_time_judges_them(tmp_path: Path) -> None:
    in_force = artifact(threshold=0.5)
    rows: list[tuple[list[str], str]] = [
        (["Rome"] * 10, "Rome"),
        (["Rome"] * 6 + ["Oslo"] * 4, "Oslo"),
        (["Rome"] * 4 + ["Oslo"] * 6, "Paris"),
    ]
    questions, left_out = judge_candidates(of(*(record(*row) for row in rows)), in_force, make_rule("exact"))
    assert left_out == 0
    assert [(question.accepted, question.score) for question in questions] == [
        (True, 0.0),
        (False, pytest.approx(0.6)),
        (False, math.inf),
    ]
    rule = fit_candidates(questions, in_force, epsilon=0.9)
    path = rule.save(tmp_path / "candidates.json")
    assert CandidateRule.load(path) == rule
    path.write_text(path.read_text().replace('"epsilon": 0.9', '"epsilon": 0.1'))
    with pytest.raises(ArtifactTamperedError):
        CandidateRule.load(path)


def test_a_question_without_references_is_left_out_and_does_not_count_as_a_miss() -> None:
    with_reference = record(["Rome"] * 6 + ["Oslo"] * 4, "Oslo")
    unknown = with_reference.model_copy(update={"id": "2", "references": ()})
    questions, left_out = judge_candidates(of(unknown, with_reference), artifact(), make_rule("exact"))
    assert ([question.id for question in questions], left_out) == (["1"], 1)
    assert questions[0].acceptable == (False, True)


def test_an_answer_that_the_rule_cannot_decide_is_not_acceptable() -> None:
    """A list without its undecided questions would promise what the easy ones keep."""
    fitted = artifact().model_copy(update={"correctness": make_rule("stated").spec})
    questions, left_out = judge_candidates(
        of(record(["Rome"] * 6 + ["near Oslo"] * 4, "Oslo")), fitted, make_rule("stated")
    )
    assert (left_out, questions[0].acceptable) == (0, (False, False))


def test_another_correctness_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="correct"):
        judge_candidates(of(), artifact(), make_rule("numeric"))


def test_another_artifacts_verdict_gets_no_list() -> None:
    rule = fit_candidates([judged([1.0], [True])] * 9, artifact(), epsilon=0.2)
    other: dict[str, Any] = {"artifact": "sha256:other"}
    assert rule.select(judged([1.0], [True]).verdict.model_copy(update=other)) is None
    assert rule.select(judged([], []).verdict) is None
