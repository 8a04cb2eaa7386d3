"""The canary: known questions, asked again and again, against their own earlier scores. Needs no labels, no users."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from pydantic import NonNegativeInt

from ..errors import UsageError
from .drift import SLOPES, Grid, gains_of, uniforms
from .state import Bet, BettingState, check_unit

__all__ = ["BASELINE", "CanaryState"]

BASELINE = 8
"""Scores of a question with which its later scores are compared."""
_grid = lru_cache(maxsize=4096)(Grid.of)
"""The grids of the questions, which do not change after the baseline."""


class CanaryState(BettingState):
    """Tests "the known questions are answered as certainly as in their first rounds".

    Known questions are not exchangeable with those of the calibration, so each is compared with itself only. Its first
    `BASELINE` scores are its `Grid`, in which every later score is ranked among all scores of this question
    before it. While nothing changes, the scores of a question are exchangeable over the rounds, so its p-values are
    independent and uniform *exactly* (see `Grid`). Questions are drawn apart from each other, so the p-values of all of
    them, one after another, are independent, too. The money bets on them as for drift, in both directions.

    A score that is missing is left out. That is valid if it is missing for a cause that does not look at the rounds.
    The size of the state does not grow after the baseline.
    """

    kind = "canary"
    SETTINGS = ("questions", "delta")

    questions: int
    """Number of questions."""
    seed: int
    """Seed of the randomiser that breaks ties."""
    shares: tuple[float, ...] = (1 / len(SLOPES),) * len(SLOPES)
    """The share of the wealth in each bet; sums to 1."""
    baseline: tuple[tuple[float, ...], ...]
    """The first scores of each question, at most `BASELINE`."""
    counts: tuple[tuple[NonNegativeInt, ...], ...]
    """Later scores of each question, by cell of the `Grid` of its baseline; empty before the first."""
    rounds: NonNegativeInt = 0
    """Rounds so far."""

    @classmethod
    def start(cls, questions: int, *, delta: float = 0.05, seed: int | None = None) -> Self:
        """The state before the first round; ``seed`` is a fresh one by default.

        Raises:
            UsageError: A delta that is not a probability.
        """
        check_unit("delta", delta)
        empty: tuple[tuple[()], ...] = ((),) * questions
        seed = secrets.randbits(62) if seed is None else seed
        return cls(questions=questions, delta=delta, seed=seed, baseline=empty, counts=empty)

    def take(self, scores: Sequence[float | None]) -> tuple[Self, list[Bet]]:
        """The state after a round, and a bet for each question that was measured and has its baseline.

        Args:
            scores: The score of each question, None where it was not measured.

        Raises:
            UsageError: Another number of scores.
        """
        if len(scores) != self.questions:
            raise UsageError(f"the canary has {self.questions} questions, got {len(scores)} scores.")
        baseline, counts, bets = [*self.baseline], [*self.counts], list[Bet]()
        state = self.model_copy(update={"rounds": self.rounds + 1})
        for i, score in enumerate(scores):
            if score is None:
                continue
            if len(baseline[i]) < BASELINE:
                baseline[i] = (*baseline[i], float(score))
                continue
            # A seed for each question: with common tie-breakers their p-values would depend on each other.
            seed = state.seed + i
            p, counts[i] = _grid(baseline[i], seed).take(counts[i], score, *uniforms(seed, str(sum(counts[i]))))
            state = state.bet(gains_of(p))
            bets.append(Bet(float(score), p, state.log_wealth))
        return state.model_copy(update={"baseline": tuple(baseline), "counts": tuple(counts)}), bets

    def finding(self) -> dict[str, Any]:
        """The rounds."""
        return {"rounds": self.rounds}
