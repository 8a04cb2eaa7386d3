"""Fit how long a reviewer's list of candidates must be; see `guardrail.review.candidates` for the construction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from guardrail.artifact import CalibrationArtifact
from guardrail.decision import ThresholdGate
from guardrail.errors import UsageError
from guardrail.review.candidates import CandidateRule, Population, ranked, shown_answers
from guardrail.uncertainty import from_spec
from guardrail.verdict import Verdict

from .correctness import CorrectnessRule
from .data.records import RecordFile
from .fitting import DEFAULT_DELTA
from .rules.certificate import upper_bound
from .rules.count import count_threshold
from .rules.counts import check_share

__all__ = ["Judged", "fit_candidates", "judge_candidates", "quantile"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One question, as a reviewer would see it.

    Attributes:
        id: Id of the record.
        accepted: Whether the guard accepted the answer, so that no reviewer sees it.
        verdict: The verdict, as run time makes it.
        acceptable: For each shown answer, in order, whether it is right.
    """

    id: str
    accepted: bool
    verdict: Verdict
    acceptable: tuple[bool, ...]

    @property
    def score(self) -> float:
        """Least score among the acceptable answers; infinite without an acceptable answer."""
        scores = ranked([share for _, share in shown_answers(self.verdict)])
        return min((s for s, good in zip(scores, self.acceptable, strict=True) if good), default=math.inf)


def judge_candidates(
    file: RecordFile, artifact: CalibrationArtifact, rule: CorrectnessRule
) -> tuple[list[Judged], int]:
    """Each record as run time would judge it, with the correctness of every answer a reviewer would be shown.

    Args:
        file: Records drawn by the artifact's plan. For an exact promise about held-back questions they must not be
            those the artifact's threshold was fitted on: `calibrate.evaluation.audit.prepared` refuses both.
        artifact: Whose estimator, judge and threshold.
        rule: The artifact's correctness rule.

    Returns:
        The questions, and how many were left out because they have no reference or no list would be shown. An answer
        that the rule cannot decide is not acceptable.

    Raises:
        UsageError: The rule is not the artifact's, or the questions were drawn from the lowest scores.
    """
    if file.header.scope.leaves_out:
        raise UsageError(
            f"the questions of {file.path} are those with the lowest scores, and reviewers see the others, too. Label "
            "questions from all scores: calibrate sample --scope 1."
        )
    records = file.records
    if rule.spec != artifact.correctness:
        raise UsageError(
            f"the artifact counts answers as correct by {artifact.correctness!r}, but the rule is {rule.spec!r}. "
            "Use the same rule, or a reviewer's list and the threshold mean different things by correct."
        )
    gate = ThresholdGate(artifact, from_spec(artifact.estimator))
    drawn = [
        (record, gate.decide(record.drawn)) for record in records if record.drawn is not None and record.references
    ]
    items = [(text, record.to_question()) for record, verdict in drawn for text, _ in shown_answers(verdict)]
    answers = iter(rule.label_all(items))
    judged: list[Judged] = []
    for record, verdict in drawn:
        # An undecided answer is not acceptable: leaving out its question would leave out the lists that miss most.
        acceptable = tuple(next(answers).correct is True for _ in shown_answers(verdict))
        if acceptable:
            judged.append(Judged(record.id, verdict.accepted, verdict, acceptable))
    return judged, len(records) - len(judged)


def fit_candidates(
    judged: Sequence[Judged],
    artifact: CalibrationArtifact,
    *,
    epsilon: float,
    delta: float = DEFAULT_DELTA,
    population: Population = "held_back",
) -> CandidateRule:
    """The shortest lists that miss every acceptable answer in at most the share ``epsilon`` of questions.

    Args:
        judged: Calibration questions; see `judge_candidates`.
        artifact: The artifact they were judged with.
        epsilon: Largest share of misses among the lists that are shown.
        delta: Probability, over calibrations, with which that may fail.
        population: Which questions the promise is about. "held_back": those that reach a reviewer.

    Raises:
        UsageError: ``epsilon`` or ``delta`` outside (0, 1), or no question of the population.
    """
    check_share("epsilon", epsilon)
    check_share("delta", delta)
    scores = [question.score for question in judged if population == "all" or not question.accepted]
    if not scores:
        raise UsageError(f"no {population.replace('_', ' ')} question among {len(judged)}: nothing to calibrate on.")
    missing = scores.count(math.inf)
    limit = quantile(scores, epsilon, delta)
    return CandidateRule(
        artifact=artifact.digest,
        epsilon=epsilon,
        quantile=None if math.isinf(limit) else limit,
        n=len(scores),
        n_without=missing,
        attainable=upper_bound(missing, len(scores), delta),
        population=population,
        delta=delta,
    )


def quantile(scores: Sequence[float], epsilon: float, delta: float) -> float:
    """The tolerance limit: with probability 1 - delta at most the share epsilon of new scores lies above it.

    `count_threshold` from above: the (m + 1)-th largest score, m the largest number with P(Bin(n, epsilon) <= m) <=
    delta; infinite without a bound.
    """
    limit = count_threshold([-score for score in scores], epsilon, delta)
    return math.inf if limit is None else -limit
