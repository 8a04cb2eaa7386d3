"""The monitor that needs no label: run-time scores against the calibration scores."""

from __future__ import annotations

import bisect
import logging
import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from langchain_core.messages import BaseMessage

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..stopping import is_bound
from ..types import Verdict
from .base import Alarm, Monitor, check_unit, read_state
from .betting import BettingState, even

__all__ = ["DRIFT_BETS", "DriftMonitor", "DriftState", "score_of"]

log = logging.getLogger("guardrail")

DRIFT_BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes of the betting function 1 + s (p - 1/2), which averages 1 over uniform p and is >= 0 for |s| <= 2."""


class DriftState(BettingState):
    """What a `DriftMonitor` remembers."""

    BETS = DRIFT_BETS

    seed: int
    """Of the randomiser that breaks ties."""
    calibration_digest: str
    """Artifact whose calibration scores the stream is compared with."""
    stream: tuple[float, ...] = ()
    """Scores seen, in order."""
    p_values: tuple[float, ...] = ()
    """Their conformal p-values, in order; uniform and independent while nothing has changed."""


class DriftMonitor(Monitor):
    """Tests "run-time uncertainty scores are exchangeable with the calibration scores" without any label.

    Every new score u_t is ranked among the calibration scores and all scores before it:

        p_t = (#{i < t: u_i > u_t} + theta_t (1 + #{i < t: u_i = u_t})) / (n_calibration + t),  theta_t uniform.

    While calibration and stream are exchangeable the p-values are independent and uniform *exactly*, because each new
    score joins those it will be compared with; ranking against the calibration scores alone would not give that. Small
    p means less certain than usual. The money bets on p by the functions 1 + s (p - 1/2) with jumps between slopes.

    An alarm says that questions (or the model) changed, not that errors did: the promise of the artifact has lost its
    ground, whichever way the scores moved.

    Args:
        artifact: Its stored calibration scores are the reference.
        delta: Probability of ever raising a false alarm, in (0, 1).
        seed: Of the randomiser theta.
        on_alarm: Called once, with an `Alarm`; at once where the state has one.
        state: Continue from this state instead (`load`).
    """

    kind = "drift"
    needs_scores = True
    """Bounds, as early stopping gives them, are no scores."""
    state: DriftState

    def __init__(
        self,
        artifact: CalibrationArtifact,
        *,
        delta: float = 0.05,
        seed: int = 0,
        on_alarm: Callable[[Alarm], object] | None = None,
        state: DriftState | None = None,
    ) -> None:
        super().__init__(on_alarm)
        check_unit("delta", delta)
        if state is not None and state.calibration_digest != artifact.digest:
            raise UsageError(
                f"the saved monitor compares with artifact {state.calibration_digest}, not {artifact.digest}. Start a "
                "new monitor for a new artifact."
            )
        self.state = state or DriftState(
            delta=delta, seed=seed, calibration_digest=artifact.digest, shares=even(len(DRIFT_BETS))
        )
        self._known = sorted((*artifact.calibration.uncertainty, *self.state.stream))
        self._strangers: set[str] = set()
        self._report()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        artifact: CalibrationArtifact,
        *,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> Self:
        """Continue from a saved state; an alarm that stands in it is told to ``on_alarm`` at once.

        Raises:
            UsageError: The file cannot be read, is damaged, or is of another monitor or artifact.
        """
        state = read_state(path, DriftState)
        if not state.n == len(state.stream) == len(state.p_values):
            raise UsageError(
                f"{path}: n is {state.n}, but there are {len(state.stream)} scores and {len(state.p_values)} p-values. "
                "Copy the file again, or start a new monitor."
            )
        return cls(artifact, delta=state.delta, seed=state.seed, on_alarm=on_alarm, state=state)

    def update(self, uncertainty: float) -> DriftState:
        """Take in the score of one question, accepted or not.

        Raises:
            UsageError: A score that is not finite. Questions that could not be measured are left out: count them.
        """
        score = float(uncertainty)
        if not math.isfinite(score):
            raise UsageError(f"uncertainty must be finite, got {uncertainty}. Leave out what could not be measured.")
        with self._lock:
            before = self.state
            p = self._p_value(score)
            bisect.insort(self._known, score)
            gains = 1 + np.array(DRIFT_BETS) * (p - 0.5)
            self.state = before.model_copy(
                update={**before.bet(gains), "stream": (*before.stream, score), "p_values": (*before.p_values, p)}
            )
            after = self.state
        if after.alarmed and not before.alarmed:
            self._report()
        return after

    def follow(self, state: DriftState) -> None:
        """Take over a later state of this same monitor, e.g. one that another process has written."""
        with self._lock:
            for score in state.stream[self.state.n :]:
                bisect.insort(self._known, score)
            self.state = state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, accepted or not: ``Guardrail(on_verdict=monitor.watch)``.

        What is left out, and what is refused: see `score_of`.
        """
        score = score_of(verdict, self.state.calibration_digest, self._strangers)
        if score is not None:
            self.update(score)

    def _p_value(self, score: float) -> float:
        below, up_to = bisect.bisect_left(self._known, score), bisect.bisect_right(self._known, score)
        theta = random.Random(f"{self.state.seed}:{self.state.n}").random()
        return (len(self._known) - up_to + theta * (1 + up_to - below)) / (len(self._known) + 1)

    def _detail(self) -> str:
        recent = self.state.p_values[-100:]
        way = "less" if sum(recent) / len(recent) < 0.5 else "more"
        return (
            f"Questions are answered {way} certainly than at calibration: {self.state.n} scores refute that they are "
            f"alike (false alarm probability {self.state.delta:g}). The calibrated promise has lost its ground; look "
            "at recent questions, audit accepted answers, and calibrate again on questions like them."
        )


def score_of(verdict: Verdict, artifact: str, strangers: set[str]) -> float | None:
    """What a drift monitor takes in of a verdict.

    Args:
        verdict: Any verdict.
        artifact: Digest of the artifact whose calibration scores the stream is compared with.
        strangers: Other artifacts that were met; each is logged once.

    Returns:
        The score; None where there is none, or where another artifact judged.

    Raises:
        UsageError: A bound from early stopping. Leaving bounds out would keep the hard questions only.
    """
    if verdict.artifact != artifact:
        if verdict.artifact not in strangers:
            strangers.add(verdict.artifact)
            log.warning(
                "guardrail: a drift monitor of artifact %s leaves out the verdicts of artifact %s. Where that one is "
                "to be watched, give it a monitor of its own.",
                artifact,
                verdict.artifact,
            )
        return None
    if is_bound(verdict.uncertainty):
        raise UsageError(
            "a drift monitor compares scores, but this verdict was settled early and has a bound instead of a score "
            f'({verdict.uncertainty.detail}). Give early_stopping="off" to the guard.'
        )
    return verdict.uncertainty.value
