"""Answers among which an acceptable one lies with a stated probability: a conformal set over the model's own answers.

A reviewer who sees one candidate has to know the answer; one who sees a short list has to recognise it. The list is as
long as the calibration says it must be (the construction of ConU, Wang et al. 2024, with a score that ranks answers).

Each distinct answer ``j`` of a question gets the score ``s_j``: the mass of the answers with a larger share (0 for the
most frequent; equal shares have equal scores). The nonconformity of a calibration question is the least score among its
*acceptable* answers, and infinite where none is acceptable. With ``q`` the ``ceil((n + 1)(1 - epsilon))``-th smallest
of the ``n`` scores, the set ``{j: s_j <= q}`` misses every acceptable answer with probability at most ``epsilon`` for a
new exchangeable question (over calibration and question together). Where ``q`` is infinite no list of the model's
answers can promise that, and the set says so instead (which counts as no miss: the person is told to write their own).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from ..files import Persisted
from ..types import Frozen
from ..verdict import Verdict

__all__ = ["CandidateRule", "CandidateSet", "conformal_rank", "ranked", "shown_answers"]

Population = Literal["held_back", "all"]


class CandidateSet(Frozen):
    """The answers a reviewer is shown, and what is promised of them."""

    answers: tuple[tuple[str, float], ...]
    """Answers with their share among the samples, most frequent first."""
    epsilon: float
    """The set misses every acceptable answer with at most this probability, where ``attained``."""
    attained: bool
    """Whether calibration supports ``epsilon``; if not, the set is all answers and an answer of one's own is needed."""
    attainable: float
    """Smallest epsilon that could have been promised: all answers of the model miss about this often."""

    @property
    def statement(self) -> str:
        """The promise in words."""
        if self.attained:
            return f"An acceptable answer is among these in at least {1 - self.epsilon:.0%} of such questions."
        return (
            f"These are all of the model's answers. They cannot contain an acceptable one in {1 - self.epsilon:.0%} of "
            f"such questions (at best {1 - self.attainable:.0%}), so consider writing your own."
        )


class CandidateRule(Persisted):
    """How long the list must be; fitted by `calibrate.candidate_sets.fit_candidates`."""

    needs_samples: ClassVar[bool] = True
    """All samples of the plan: a guard that shows this list does not stop early."""

    artifact: str
    """Digest of the calibration artifact whose samples, judge and plan this was fitted with."""
    epsilon: float = Field(gt=0.0, lt=1.0)
    """Largest probability of missing every acceptable answer."""
    quantile: float | None = None
    """Largest score in the set; None where epsilon is not attainable and everything is shown."""
    n: int = Field(ge=1)
    """Calibration questions."""
    n_without: int = Field(ge=0)
    """Of these, questions with no acceptable answer among the model's own."""
    attainable: float
    """Smallest epsilon for which the quantile is finite: ``1 - (n - n_without) / (n + 1)``."""
    population: Population
    """Which questions the promise is about: those the guard holds back, or all."""

    def select(self, verdict: Verdict) -> CandidateSet | None:
        """The set for one question; None where nothing is promised of it.

        So it is where the model gave no answers, where another artifact judged them, and where drawing stopped early:
        the quantile is about the shares among all samples of the plan, and few samples have other shares.
        """
        answers = shown_answers(verdict)
        if not answers or verdict.artifact != self.artifact or _cut_short(verdict):
            return None
        scores = ranked([share for _, share in answers])
        quantile = self.quantile
        kept = tuple(a for a, s in zip(answers, scores, strict=True) if quantile is None or s <= quantile)
        return CandidateSet(
            answers=kept, epsilon=self.epsilon, attained=quantile is not None, attainable=self.attainable
        )


def shown_answers(verdict: Verdict) -> tuple[tuple[str, float], ...]:
    """Distinct answers with their share: the judge's clusters by their commonest wording, else distinct strings."""
    if verdict.meanings:
        return tuple((meaning.text, meaning.share) for meaning in verdict.meanings)
    return verdict.alternatives


def _cut_short(verdict: Verdict) -> bool:
    """Whether the shares are of fewer samples than at calibration.

    An adaptive plan measures the same first samples on both sides, so the clusters that a judge formed of them are the
    calibrated ones; a verdict settled early has no clusters.
    """
    return verdict.uncertainty.is_bound or (verdict.cost.saved > 0 and not verdict.meanings)


def ranked(shares: Sequence[float]) -> list[float]:
    """Score of each answer: the sum of the shares that are larger than its own, in the order given.

    Shares that differ by rounding only (1e-9) count as equal.
    """
    return [math.fsum(other for other in shares if other > share + 1e-9) for share in shares]


def conformal_rank(n: int, epsilon: float) -> int:
    """``ceil((n + 1)(1 - epsilon))``, not pushed up by rounding; above n the quantile is infinite."""
    return math.ceil((n + 1) * (1 - epsilon) - 1e-9)
