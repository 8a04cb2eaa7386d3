"""A list of answers that contains an acceptable one with a stated probability: a conformal set of the model's answers.

A reviewer who sees one candidate has to know the answer; a reviewer who sees a short list has to recognise it. The
calibration says how long the list must be (ConU's construction, Wang et al. 2024, with a score that ranks answers).

Each distinct answer ``j`` of a question gets the score ``s_j``: the mass of the answers with a larger share (0 for the
most frequent; equal shares have equal scores). The nonconformity of a calibration question is the least score among its
*acceptable* answers, and infinite where none is acceptable. With ``q`` the ``ceil((n + 1)(1 - epsilon))``-th smallest
of the ``n`` scores, the set ``{j: s_j <= q}`` misses every acceptable answer with probability at most ``epsilon`` for a
new exchangeable question (over calibration and question together). If ``q`` is infinite, no list of the model's
answers can guarantee that, and the set says so (this does not count as a miss: the person is asked to write an answer).
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
    """The answers a reviewer sees, and what is guaranteed about them."""

    answers: tuple[tuple[str, float], ...]
    """Answers with their share among the samples, most frequent first."""
    epsilon: float
    """The set misses every acceptable answer with at most this probability, where ``attained``."""
    attained: bool
    """Whether calibration supports ``epsilon``; if not, the set holds all answers and the reviewer must write one."""
    attainable: float
    """Smallest epsilon that can be guaranteed: all answers of the model together miss about this often."""

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        if self.attained:
            return f"An acceptable answer is among these in at least {1 - self.epsilon:.0%} of such questions."
        return (
            f"These are all of the model's answers. They cannot contain an acceptable one in {1 - self.epsilon:.0%} of "
            f"such questions (at best {1 - self.attainable:.0%}), so consider writing your own."
        )


class CandidateRule(Persisted):
    """The rule that sets the length of the list; fitted by `calibrate.candidate_sets.fit_candidates`."""

    needs_samples: ClassVar[bool] = True
    """A guard that shows this list does not stop early: the rule is about all samples of the plan."""

    artifact: str
    """Digest of the calibration artifact whose samples, judge and plan the rule was fitted with."""
    epsilon: float = Field(gt=0.0, lt=1.0)
    """Largest probability of missing every acceptable answer."""
    quantile: float | None = None
    """Largest score in the set; None if epsilon is not attainable, and then all answers are shown."""
    n: int = Field(ge=1)
    """Number of calibration questions."""
    n_without: int = Field(ge=0)
    """Number of these for which the model gave no acceptable answer."""
    attainable: float
    """Smallest epsilon for which the quantile is finite: ``1 - (n - n_without) / (n + 1)``."""
    population: Population
    """Which questions the guarantee covers: those the guard holds back, or all."""

    def select(self, verdict: Verdict) -> CandidateSet | None:
        """The set for one question; None if nothing is guaranteed about it.

        That is so if the model gave no answers, if another artifact judged them, or if drawing stopped early: the
        quantile is about the shares among all samples of the plan, and fewer samples have other shares.
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
    """Distinct answers with their share: the judge's clusters by their most frequent wording, else distinct strings."""
    if verdict.meanings:
        return tuple((meaning.text, meaning.share) for meaning in verdict.meanings)
    return verdict.alternatives


def _cut_short(verdict: Verdict) -> bool:
    """Whether the shares come from fewer samples than at calibration.

    An adaptive plan measures the same first samples on both sides, so its clusters are those of the calibration. A
    verdict that was decided early has no clusters.
    """
    return verdict.uncertainty.is_bound or (verdict.cost.saved > 0 and not verdict.meanings)


def ranked(shares: Sequence[float]) -> list[float]:
    """Score of each answer: the sum of the shares that are larger than its own, in the order given.

    Shares that differ by less than 1e-9 count as equal.
    """
    return [math.fsum(other for other in shares if other > share + 1e-9) for share in shares]


def conformal_rank(n: int, epsilon: float) -> int:
    """``ceil((n + 1)(1 - epsilon))``, protected against rounding up; above n the quantile is infinite."""
    return math.ceil((n + 1) * (1 - epsilon) - 1e-9)
