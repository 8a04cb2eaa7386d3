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
from ..verdict import Verdict
from .base import Alarm, Monitor, check_unit, read_state
from .betting import BettingState, even

__all__ = ["DRIFT_BETS", "DriftMonitor", "DriftState", "Reference"]

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
        self._reference = Reference(artifact)
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

        What is left out, and what is refused: see `Reference.score`.
        """
        score = self._reference.score(verdict)
        if score is not None:
            self.update(score)

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Watch a guard of this artifact, or refuse it; a `Guardrail` calls it. See `Reference.admit`."""
        self._reference.admit(artifact)

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


class Reference:
    """Of which artifacts a drift monitor takes in verdicts: its own, and those that score alike.

    Args:
        artifact: Its calibration scores are what the stream is compared with.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        self._artifact = artifact
        self._admitted = {artifact.digest}
        self._strangers: set[str] = set()

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Take in another artifact's verdicts as well: ``artifact.at(alpha=...)`` changes no score.

        Raises:
            UsageError: Its scores are not to be compared with these, so a guard with it would go unwatched.
        """
        own, other = _scoring(self._artifact), _scoring(artifact)
        differing = [name for name in own if own[name] != other[name]]
        if differing:
            raise UsageError(
                f"on_verdict has a drift monitor of artifact {self._artifact.digest}, but this guard's is "
                f"{artifact.digest}, with another {', '.join(differing)}: it would watch nothing. Give the guard a "
                "monitor of its own artifact."
            )
        self._admitted.add(artifact.digest)

    def score(self, verdict: Verdict) -> float | None:
        """The score of a verdict; None where there is none, or where another artifact judged, which is logged once.

        Raises:
            UsageError: A bound from early stopping. Leaving bounds out would keep the hard questions only.
        """
        if verdict.artifact not in self._admitted:
            self._leave_out(verdict.artifact)
            return None
        if verdict.uncertainty.is_bound:
            raise UsageError(
                "a drift monitor compares scores, but this verdict was settled early and has a bound instead of a "
                f'score ({verdict.uncertainty.detail}). Give early_stopping="off" to the guard.'
            )
        return verdict.uncertainty.value

    def _leave_out(self, artifact: str) -> None:
        if artifact in self._strangers:
            return
        self._strangers.add(artifact)
        log.warning(
            "guardrail: a drift monitor of artifact %s leaves out the verdicts of artifact %s. Where that one is to be "
            "watched, give it a monitor of its own.",
            self._artifact.digest,
            artifact,
        )


def _scoring(artifact: CalibrationArtifact) -> dict[str, object]:
    """What the scores of an artifact depend on, and those of its calibration."""
    return {
        "model": artifact.model,
        "plan": artifact.plan,
        "prompt": artifact.prompt,
        "estimator": artifact.estimator,
        "calibration scores": artifact.calibration.uncertainty,
    }
