"""The canary: known questions, asked again and again, against their own earlier scores. Needs no labels, no users."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache

from pydantic import NonNegativeInt

from ..errors import UsageError
from .base import Alarm, Bet, BettingState, Keeper, Monitor, check_unit
from .drift import SLOPES, Grid, gains_of, uniforms

__all__ = ["BASELINE", "CanaryMonitor", "CanaryState"]

BASELINE = 8
"""Scores of a question with which its later scores are compared."""
_grid = lru_cache(maxsize=4096)(Grid.of)
"""The grids of the questions, which do not change after the baseline."""


class CanaryState(BettingState):
    """The state of a `CanaryMonitor`; its size does not grow after the baseline."""

    BETS = len(SLOPES)

    seed: int
    """Seed of the randomiser that breaks ties."""
    baseline: tuple[tuple[float, ...], ...]
    """The first scores of each question, at most `BASELINE`."""
    counts: tuple[tuple[NonNegativeInt, ...], ...]
    """Later scores of each question, by cell of the `Grid` of its baseline; empty before the first."""
    rounds: NonNegativeInt = 0
    """Rounds so far."""


class CanaryMonitor(Monitor[CanaryState]):
    """Tests "the known questions are answered as certainly as in their first rounds".

    Known questions are not exchangeable with those of the calibration, so each is compared with itself only. Its first
    `BASELINE` scores are its `Grid`, in which every later score is ranked among all scores of this question
    before it. While nothing changes, the scores of a question are exchangeable over the rounds, so its p-values are
    independent and uniform *exactly* (see `Grid`). Questions are drawn apart from each other, so the p-values of all of
    them, one after another, are independent, too. The money bets on them as a `DriftMonitor` does, in both directions.

    A score that is missing is left out. That is valid if it is missing for a cause that does not look at the rounds.

    Args:
        questions: Number of questions.
        delta: Probability of ever raising a false alarm, over all rounds, in (0, 1).
        seed: Seed of the randomiser; None for a fresh one.
        on_alarm: As for `DriftMonitor`.
        keeper: Keeps the state; default: this process. ``Keeper(state)`` continues from a state.
    """

    kind = "drift"

    def __init__(
        self,
        questions: int,
        *,
        delta: float = 0.05,
        seed: int | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
        keeper: Keeper[CanaryState] | None = None,
    ) -> None:
        check_unit("delta", delta)
        seed = secrets.randbits(62) if seed is None else seed
        empty: tuple[tuple[()], ...] = ((),) * questions
        start = CanaryState(delta=delta, seed=seed, shares=CanaryState.even(), baseline=empty, counts=empty)
        super().__init__(start, keeper or Keeper(), on_alarm)

    def update(self, scores: Sequence[float | None]) -> CanaryState:
        """Take in a round: the score of each question, None where it was not measured."""
        return self._update(lambda state: self.take(state, scores))

    def take(self, state: CanaryState, scores: Sequence[float | None]) -> tuple[CanaryState, list[Bet]]:
        """The state after a round, and a bet for each question that was measured and has its baseline."""
        bets = list[Bet]()
        if len(scores) != len(state.baseline):
            raise UsageError(f"the canary has {len(state.baseline)} questions, got {len(scores)} scores.")
        baseline, counts = [*state.baseline], [*state.counts]
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
        changed = {"baseline": tuple(baseline), "counts": tuple(counts), "rounds": state.rounds + 1}
        return state.model_copy(update=changed), bets

    def _adopted(self, state: CanaryState) -> CanaryState:
        if len(state.baseline) != len(self._start.baseline):
            raise UsageError(f"the saved canary has {len(state.baseline)} questions, not {len(self._start.baseline)}.")
        return state

    def _detail(self, state: CanaryState) -> str:
        return (
            f"The canary's questions are no longer answered as certainly as in their first {BASELINE} rounds: "
            f"{state.n} scores in {state.rounds} rounds refute it (false alarm probability "
            f"{state.delta:g}). The model or its server changed, so the calibrated guarantee may no longer "
            "apply: look at the provider's notices, audit accepted answers, and calibrate again."
        )
