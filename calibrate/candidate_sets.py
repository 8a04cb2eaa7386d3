"""Fit how long a reviewer's list of candidates must be; see `guardrail.review.candidates` for the construction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.guard.decide import decide
from guardrail.review.candidates import CandidateRule, conformal_rank, ranked, shown_answers
from guardrail.uncertainty import from_spec
from guardrail.verdict import Verdict

from .correctness import BatchRule, CorrectnessRule
from .data.progress import silent
from .data.records import Record

__all__ = ["Coverage", "Judged", "evaluate_candidates", "fit_candidates", "judge_candidates", "quantile"]

Population = Literal["held_back", "all"]


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
        """Least score among the acceptable answers; infinite where there is none."""
        scores = ranked([share for _, share in shown_answers(self.verdict)])
        return min((s for s, good in zip(scores, self.acceptable, strict=True) if good), default=math.inf)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a rule did on questions.

    Attributes:
        n: Questions.
        covered: Share whose set holds an acceptable answer.
        mean_size: Answers in the set, on average.
        mean_all: Answers there were to show, on average.
    """

    n: int
    covered: float
    mean_size: float
    mean_all: float


def judge_candidates(
    records: Sequence[Record], artifact: CalibrationArtifact, rule: CorrectnessRule
) -> tuple[list[Judged], int]:
    """Each record as run time would judge it, with the correctness of every answer a reviewer would be shown.

    Args:
        records: Records drawn by the artifact's plan. For an exact promise about held-back questions they must not be
            those the artifact's threshold was fitted on.
        artifact: Whose estimator, judge and threshold.
        rule: The artifact's correctness rule.

    Returns:
        The questions, and how many were left out because no answer could be shown or labelled.

    Raises:
        UsageError: The rule is not the artifact's.
    """
    if rule.spec != artifact.correctness:
        raise UsageError(
            f"the artifact counts answers as correct by {artifact.correctness!r}, but the rule is {rule.spec!r}. "
            "Use the same rule, or a reviewer's list and the threshold mean different things by correct."
        )
    estimator = from_spec(artifact.estimator)
    drawn = [
        (record, decide(record.drawn, artifact, estimator))
        for record in records
        if record.drawn is not None and record.references
    ]
    items = [(text, record.to_question()) for record, verdict in drawn for text, _ in shown_answers(verdict)]
    # A judge that is a model is asked about many answers at once.
    found = rule.label_all(items, silent) if isinstance(rule, BatchRule) else [rule.label(*item) for item in items]
    answers = iter(found)
    judged: list[Judged] = []
    for record, verdict in drawn:
        labels = [next(answers).correct for _ in shown_answers(verdict)]
        if labels and None not in labels:
            judged.append(Judged(record.id, verdict.accepted, verdict, tuple(label is True for label in labels)))
    return judged, len(records) - len(judged)


def fit_candidates(
    judged: Sequence[Judged], artifact: CalibrationArtifact, *, epsilon: float, population: Population = "held_back"
) -> CandidateRule:
    """The shortest lists whose probability of missing every acceptable answer is at most ``epsilon``.

    Args:
        judged: Calibration questions; see `judge_candidates`.
        artifact: The artifact they were judged with.
        epsilon: Probability of a miss, over the draw of calibration questions and the new one together.
        population: Which questions the promise is about. "held_back": those that reach a reviewer.

    Raises:
        UsageError: ``epsilon`` outside (0, 1), or no question of the population.
    """
    if not 0 < epsilon < 1:
        raise UsageError(f"epsilon must be in (0, 1), got {epsilon}. Write 0.1 for 10 %.")
    scores = [one.score for one in judged if population == "all" or not one.accepted]
    if not scores:
        raise UsageError(f"no {population.replace('_', ' ')} question among {len(judged)}: nothing to calibrate on.")
    missing = scores.count(math.inf)
    found = quantile(scores, epsilon)
    return CandidateRule(
        artifact=artifact.digest,
        epsilon=epsilon,
        quantile=None if math.isinf(found) else found,
        n=len(scores),
        n_without=missing,
        attainable=1 - (len(scores) - missing) / (len(scores) + 1),
        population=population,
    )


def quantile(scores: Sequence[float], epsilon: float) -> float:
    """The ``ceil((n + 1)(1 - epsilon))``-th smallest score; infinite where that exceeds n."""
    rank = conformal_rank(len(scores), epsilon)
    return math.inf if rank > len(scores) else sorted(scores)[rank - 1]


def evaluate_candidates(judged: Sequence[Judged], rule: CandidateRule) -> Coverage:
    """Coverage and size on other questions than the rule was fitted on.

    Raises:
        UsageError: No question of the rule's population.
    """
    chosen = [one for one in judged if rule.population == "all" or not one.accepted]
    if not chosen:
        raise UsageError(f"no question of the rule's population ({rule.population}) among {len(judged)}.")
    limit = math.inf if rule.quantile is None else rule.quantile
    sizes = [sum(s <= limit for s in ranked([share for _, share in shown_answers(one.verdict)])) for one in chosen]
    every = sum(len(one.acceptable) for one in chosen)
    # Everything is shown where the quantile is infinite; a question without an acceptable answer is missed even then.
    covered = sum(not math.isinf(one.score) and one.score <= limit for one in chosen)
    return Coverage(len(chosen), covered / len(chosen), sum(sizes) / len(chosen), every / len(chosen))
