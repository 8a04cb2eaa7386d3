"""A list of answers that contains an acceptable one in a promised share of questions: a set of the model's answers.

A reviewer who sees one candidate has to know the answer; a reviewer who sees a short list has to recognise it. The
calibration says how long the list must be (ConU's construction, Wang et al. 2024, with a score that ranks answers).

Each distinct answer ``j`` of a question gets the score ``s_j``: the mass of the answers with a larger share (0 for the
most frequent; equal shares have equal scores). The nonconformity of a calibration question is the least score among its
*acceptable* answers, and infinite where none is acceptable. Let ``m`` be the largest number of misses with
``P(Bin(n, epsilon) <= m) <= delta`` and ``q`` the ``(n - m)``-th smallest of the ``n`` scores (a tolerance limit, Wilks
1941). The sets ``{j: s_j <= q}`` miss every acceptable answer in at most the share ``epsilon`` of questions, with
probability at least ``1 - delta`` over calibrations. If ``m`` does not exist or ``q`` is infinite nothing is promised,
and the set says so.

The conformal quantile, the ``ceil((n + 1)(1 - epsilon))``-th smallest, gives shorter lists, but its promise counts a
calibration that ends with an infinite ``q`` as no miss, so among the lists that *are* shown with a promise more may
be missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ..files import Persisted
from ..types import Frozen
from ..verdict import Verdict

__all__ = ["CandidateRule", "CandidateSet", "Population", "ranked", "shown_answers"]

Population = Literal["held_back", "all"]


class CandidateSet(Frozen):
    """The answers a reviewer sees, with their guarantee."""

    answers: tuple[tuple[str, float], ...]
    """Answers with their share among the samples, most frequent first."""
    epsilon: float
    """If ``attained``, such sets miss every acceptable answer in at most this share of questions."""
    attained: bool
    """Whether calibration supports ``epsilon``; if not, the set holds all answers and the reviewer must write one."""
    attainable: float
    """Smallest epsilon that can be promised: an upper bound of how often all answers of the model together miss."""
    delta: float
    """Failure probability of the promise."""

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        if self.attained:
            return (
                f"An acceptable answer is among these in at least {1 - self.epsilon:.0%} of such questions "
                f"({1 - self.delta:.0%} confidence)."
            )
        return (
            "These are all of the model's answers. It cannot be promised that an acceptable one is among them in "
            f"{1 - self.epsilon:.0%} of such questions (at most in {1 - self.attainable:.0%}), so consider writing "
            "your own."
        )


class CandidateRule(Persisted):
    """The rule that sets the length of the list; fitted by `calibrate.candidate_sets.fit_candidates`."""

    artifact: str
    """Digest of the calibration artifact whose samples, judge and plan the rule was fitted with."""
    epsilon: float = Field(gt=0.0, lt=1.0)
    """Largest share of questions for which the list misses every acceptable answer."""
    quantile: float | None = None
    """Largest score in the set; None if epsilon is not attainable, and then all answers are shown."""
    n: int = Field(ge=1)
    """Number of calibration questions."""
    n_without: int = Field(ge=0)
    """Number of these for which the model gave no acceptable answer."""
    attainable: float
    """Smallest epsilon for which the quantile is finite: the Clopper-Pearson upper bound of n_without among n."""
    population: Population
    """Which questions the guarantee covers: those the guard holds back, or all."""
    delta: float = Field(gt=0.0, lt=1.0)
    """Failure probability of the promise, over calibrations."""

    def select(self, verdict: Verdict) -> CandidateSet | None:
        """The set for one question; None if nothing is guaranteed about it.

        Nothing is guaranteed if no samples were drawn or another artifact judged them.
        """
        answers = shown_answers(verdict)
        if not answers or verdict.artifact != self.artifact:
            return None
        scores = ranked([share for _, share in answers])
        quantile = self.quantile
        shortlist = tuple(a for a, s in zip(answers, scores, strict=True) if quantile is None or s <= quantile)
        return CandidateSet(
            answers=shortlist,
            epsilon=self.epsilon,
            attained=quantile is not None,
            attainable=self.attainable,
            delta=self.delta,
        )


def shown_answers(verdict: Verdict) -> tuple[tuple[str, float], ...]:
    """Distinct answers with their share: the judge's clusters by their most frequent wording, else distinct strings."""
    return tuple((meaning.text, meaning.share) for meaning in verdict.meanings) or verdict.alternatives


def ranked(shares: Sequence[float]) -> list[float]:
    """Score of each answer: the sum of the shares that are larger than its own, in the order given.

    Shares that differ by less than 1e-9 count as equal.
    """
    # Shares are quotients of counts, so different ones differ by far more than rounding.
    return [math.fsum(other for other in shares if other > share + 1e-9) for share in shares]
