"""The drift monitor: run-time scores against the calibration scores. Needs no labels."""

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
    """Seed of the randomiser that breaks ties."""
    calibration_digest: str
    """Digest of the artifact whose calibration scores are the reference."""
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

    An alarm says that the questions or the model changed, not that the error rate did: the guarantee of the artifact no
    longer applies, whichever way the scores moved.

    Args:
        artifact: Its stored calibration scores are the reference.
        delta: Probability of ever raising a false alarm, in (0, 1).
        seed: Seed of the randomiser theta.
        on_alarm: Called once with the `Alarm`, immediately if the state already has one; and again at the next update
            while it raises.
        state: Continue from this state; see `load`.
    """

    kind = "drift"
    needs_scores = True
    """A guard with this monitor does not stop early: a bound is not a score."""
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
        self._cut = None if artifact.reach is None else artifact.reach.cut
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
        """Continue from a saved state; if it has an alarm, ``on_alarm`` is called immediately.

        Raises:
            UsageError: The file cannot be read, is damaged, or belongs to another monitor or artifact.
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

        If the artifact was calibrated within a reach, scores above its cut are left out: no calibration score lies
        there. So a change that only moves questions past the cut shows as fewer answers, not as an alarm.

        Raises:
            UsageError: The score is not finite. Leave out questions that could not be measured, and count them.
        """
        score = float(uncertainty)
        if not math.isfinite(score):
            raise UsageError(f"uncertainty must be finite, got {uncertainty}. Leave out what could not be measured.")
        if self._cut is not None and score > self._cut:
            return self.state
        with self._lock:
            before = self.state
            p = self._p_value(score)
            bisect.insort(self._known, score)
            gains = 1 + np.array(DRIFT_BETS) * (p - 0.5)
            self.state = before.model_copy(
                update={**before.bet(gains), "stream": (*before.stream, score), "p_values": (*before.p_values, p)}
            )
            after = self.state
        self._report()
        return after

    def follow(self, state: DriftState) -> None:
        """Replace the state by a later one of the same monitor, e.g. one that another process has written."""
        with self._lock:
            for score in state.stream[self.state.n :]:
                bisect.insort(self._known, score)
            self.state = state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, accepted or not: ``Guardrail(on_verdict=monitor.watch)``.

        `Reference.score` says which verdicts are left out and which are refused.
        """
        score = self._reference.score(verdict)
        if score is not None:
            self.update(score)

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Accept a guard of this artifact or refuse it; called by `Guardrail`. See `Reference.admit`."""
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
            f"alike (false alarm probability {self.state.delta:g}). The calibrated guarantee no longer applies: look "
            "at recent questions, audit accepted answers, and calibrate again on questions like them."
        )


class Reference:
    """Decides which verdicts a drift monitor takes in: those of its artifact, and of artifacts with the same scores.

    Args:
        artifact: Its calibration scores are the reference.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        self._artifact = artifact
        self._admitted = {artifact.digest}
        self._ignored: set[str] = set()

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Also take in the verdicts of another artifact: ``artifact.at(alpha=...)`` changes no score.

        Raises:
            UsageError: Its scores cannot be compared with the reference, so the monitor would watch nothing.
        """
        own, other = _scoring(self._artifact), _scoring(artifact)
        differing = [name for name in own if own[name] != other[name]]
        if differing:
            raise UsageError(
                f"on_verdict has a drift monitor of artifact {self._artifact.digest}, but this guard's is "
                f"{artifact.digest}, with another {', '.join(differing)}: it would watch nothing. Give the guard a "
                "monitor for its artifact."
            )
        self._admitted.add(artifact.digest)

    def score(self, verdict: Verdict) -> float | None:
        """The score of a verdict; None if it has none or another artifact judged it (logged once for each artifact).

        Raises:
            UsageError: The verdict has a bound from early stopping. Leaving bounds out would keep only hard questions.
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
        if artifact in self._ignored:
            return
        self._ignored.add(artifact)
        log.warning(
            "guardrail: a drift monitor of artifact %s leaves out the verdicts of artifact %s. To watch "
            "that artifact, give it a separate monitor.",
            self._artifact.digest,
            artifact,
        )


def _scoring(artifact: CalibrationArtifact) -> dict[str, object]:
    """What the scores of an artifact depend on, and its calibration scores."""
    return {
        "model": artifact.model,
        "plan": artifact.plan,
        "prompt": artifact.prompt,
        "estimator": artifact.estimator,
        "calibration scores": artifact.calibration.uncertainty,
    }
