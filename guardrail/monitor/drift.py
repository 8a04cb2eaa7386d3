"""The drift monitor: run-time scores against the calibration scores. Needs no labels."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from langchain_core.messages import BaseMessage
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..gate import EVERY_QUESTION
from ..items.spec import mean_uncertainty
from ..types import Frozen, Uncertainty
from ..verdict import Verdict
from .base import Alarm, Monitor, check_unit, read_state
from .betting import BettingState, even

__all__ = ["CELLS", "DRIFT_BETS", "DriftMonitor", "DriftState", "Grid", "Reference", "drift_detail", "uniforms"]

log = logging.getLogger("guardrail")

DRIFT_BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes of the betting function 1 + s (p - 1/2), which averages 1 over uniform p and is >= 0 for |s| <= 2."""
CELLS = 256
"""Largest number of cells of a grid, which bounds the state of a monitor."""
_AT_ONCE = 256
"""Scores whose p-values are computed together."""
_RECENT = 0.02
"""Weight of the newest p-value in `DriftState.recent`."""


class Grid(Frozen):
    """Cells between calibration scores; fixed before the first score of the stream, so that counts are enough.

    Every calibration score gets a uniform tie-breaker. The boundaries are every k-th of the sorted pairs (score,
    tie-breaker), and a cell reaches from one boundary (exclusive) to the next (inclusive). Cell j spans ``gaps[j]`` of
    the n + 1 gaps between the n calibration pairs.

    Let N_j scores of the stream be in cell j, t in all. The rank of the next pair among the n + t pairs before it is
    uniform over n + t + 1 places, independently of the earlier ranks, because the pairs are exchangeable and never
    equal. Cell j holds exactly gaps[j] + N_j of these places, as each pair in it splits one place into two. So

        P(next score in cell j | all earlier cells) = (gaps[j] + N_j) / (n + 1 + t)    exactly (a Pólya urn),

    and a p-value that is uniform within the cell's share is uniform and independent of all earlier ones. Boundaries
    that depend on calibration scores do no harm here, because the urn starts with the gaps, not with the number of
    calibration scores in a cell: counting those would be wrong.
    """

    scores: tuple[float, ...]
    """Scores of the boundaries, ascending."""
    ties: tuple[float, ...]
    """Their tie-breakers in [0, 1); ascending among equal scores."""
    gaps: tuple[PositiveInt, ...]
    """Gaps between calibration scores in each cell; one more than there are boundaries."""

    @classmethod
    def of(cls, calibration: Sequence[float], seed: int, *, cells: int = CELLS) -> Self:
        """The grid of an artifact's calibration scores.

        Args:
            calibration: The scores.
            seed: Seed of the tie-breakers.
            cells: Largest number of cells.
        """
        n = len(calibration)
        pairs = sorted((float(u), uniforms(seed, f"calibration {i}")[0]) for i, u in enumerate(calibration))
        count = min(cells, n + 1)
        ranks = [round(j * (n + 1) / count) for j in range(count + 1)]  # 0, ..., n + 1; strictly increasing
        chosen = [pairs[rank - 1] for rank in ranks[1:-1]]
        gaps = tuple(later - earlier for earlier, later in pairwise(ranks))
        return cls(scores=tuple(u for u, _ in chosen), ties=tuple(v for _, v in chosen), gaps=gaps)

    def cells(self, scores: Sequence[float], ties: Sequence[float] | NDArray[np.float64]) -> NDArray[np.intp]:
        """The cell of each score, from 0 (most certain) on; of equal scores the tie-breaker decides."""
        bounds, breakers, _ = self._arrays
        # Where left and right differ the score equals a boundary, and only there a tie-breaker is needed.
        first = np.searchsorted(bounds, scores, side="left")
        last = np.searchsorted(bounds, scores, side="right")
        for i in np.flatnonzero(first < last):
            first[i] += np.searchsorted(breakers[first[i] : last[i]], float(ties[int(i)]))
        return first

    def p_values(
        self, counts: Sequence[int], cells: NDArray[np.intp], thetas: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The p-values of scores, one after another, and the counts after them.

        Args:
            counts: Earlier scores by cell; empty for none.
            cells: Cells of the new scores, in order.
            thetas: Uniform numbers, one for each.
        """
        places = self._arrays[2] + np.array(counts or 0)
        # In blocks: the comparison of each score with the earlier ones of its block is quadratic.
        p_values = []
        for first in range(0, len(cells), _AT_ONCE):
            some = cells[first : first + _AT_ONCE]
            earlier = np.tri(len(some), k=-1, dtype=bool)  # in row t: the new scores before t
            above = places.sum() - places.cumsum()[some] + (earlier & (some > some[:, None])).sum(axis=1)
            within = places[some] + (earlier & (some == some[:, None])).sum(axis=1)
            total = places.sum() + np.arange(len(some))
            p_values.append((above + thetas[first : first + _AT_ONCE] * within) / total)
            # Each score splits one place of its cell in two, so the urn gains one place there.
            places = places + np.bincount(some, minlength=len(places))
        return np.concatenate(p_values), places - self._arrays[2]

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        return np.array(self.scores), np.array(self.ties), np.array(self.gaps)


class DriftState(BettingState):
    """The state of a `DriftMonitor`; its size is bounded."""

    BETS = DRIFT_BETS

    seed: int
    """Seed of the randomiser that breaks ties."""
    calibration_digest: str
    """Digest of the artifact whose calibration scores are the reference."""
    counts: tuple[NonNegativeInt, ...] = ()
    """Scores seen by cell of the `Grid`; empty before the first."""
    recent: float = 0.5
    """Mean p-value, exponentially weighted towards the latest; below 0.5: less certain than at calibration."""

    def after(self, grid: Grid, scores: Sequence[float]) -> tuple[DriftState, list[float], list[float]]:
        """The state after more scores, with the p-value and the log-wealth of each; see `DriftMonitor`."""
        if not scores:
            return self, [], []
        # Named by the number of the update, so that a saved and loaded monitor draws the same numbers.
        drawn = np.array([uniforms(self.seed, str(self.n + i)) for i in range(len(scores))])
        cells = grid.cells(scores, drawn[:, 0])
        p_values, counts = grid.p_values(self.counts, cells, drawn[:, 1])
        changed, path = self.bet(1 + np.array(DRIFT_BETS) * (p_values[:, None] - 0.5))
        recent = self.recent
        for p in p_values.tolist():
            recent += _RECENT * (p - recent)
        changed |= {"counts": tuple(counts.tolist()), "recent": recent}
        return self.model_copy(update=changed), p_values.tolist(), path


class DriftMonitor(Monitor):
    """Tests "run-time uncertainty scores are exchangeable with the calibration scores" without any label.

    Every new score is ranked among the calibration scores and all scores before it, as far as a `Grid` of the
    calibration scores resolves: of the n + t places that the t-th score can take among the n + t - 1 before it,
    W_j = gaps[j] + (earlier scores of the stream in cell j) are in cell j. A score in cell j has

        p_t = (sum_{i > j} W_i + theta_t W_j) / (n + t),  theta_t uniform.

    While calibration and stream are exchangeable the p-values are independent and uniform *exactly*; see `Grid`. Small
    p means less certain than usual. The money bets on p by the functions 1 + s (p - 1/2) with jumps between slopes.
    Only the counts are kept, so that the state stays small and an update costs the same after any number of them.

    For two stages the scores are those of the first call, which every verdict has, and the reference is the scale: new
    questions are exchangeable with it as long as nothing changes.

    An alarm says that the questions or the model changed, not that the error rate did: the guarantee of the artifact no
    longer applies, whichever way the scores moved.

    Args:
        artifact: Its stored calibration scores are the reference.
        delta: Probability of ever raising a false alarm, in (0, 1).
        seed: Seed of the randomiser theta and of the tie-breakers.
        on_alarm: Called once with the `Alarm`, immediately if the state already has one; and again at the next update
            while it raises.
        state: Continue from this state; see `load`.
    """

    kind = "drift"
    needs_scores = True
    """A guard has it admit its artifact, and shows it each verdict once."""
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
        # Its counts are of another grid, in which the same cell means other scores.
        if state is not None and state.calibration_digest != artifact.digest:
            raise UsageError(
                f"the saved monitor compares with artifact {state.calibration_digest}, not {artifact.digest}. Start a "
                "new monitor for a new artifact."
            )
        self.state = state or DriftState(
            delta=delta, seed=seed, calibration_digest=artifact.digest, shares=even(len(DRIFT_BETS))
        )
        self._reference = Reference(artifact)
        self.grid = Grid.of(self._reference.scores, self.state.seed)
        if len(self.state.counts) not in (0, len(self.grid.gaps)):
            raise UsageError(
                f"the saved monitor counts {len(self.state.counts)} cells, but the artifact has {len(self.grid.gaps)}. "
                "Copy the file again, or start a new monitor."
            )
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
        scores = sum(state.counts)
        # A count that was lost or added would change every later p-value without a trace.
        if state.n != scores:
            raise UsageError(
                f"{path}: n is {state.n}, but there are {scores} scores. Copy the file again, or start a new monitor."
            )
        return cls(artifact, delta=state.delta, seed=state.seed, on_alarm=on_alarm, state=state)

    def update(self, uncertainty: float) -> DriftState:
        """Take in the score of one question, accepted or not.

        If the artifact has a scope, scores above its cut are left out: no calibration score lies
        there. So a change that only moves questions past the cut shows as fewer answers, not as an alarm.

        Raises:
            UsageError: The score is not finite. Leave out questions that could not be measured, and count them.
        """
        if not self._reference.in_scope(uncertainty):
            return self.state
        with self._lock:
            self.state, _, _ = self.state.after(self.grid, [float(uncertainty)])
            after = self.state
        self._report()
        return after

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

    def _detail(self) -> str:
        return drift_detail(self.state)


def drift_detail(state: DriftState) -> str:
    """Text of the alarm of a drift monitor."""
    way = "less" if state.recent < 0.5 else "more"
    return (
        f"Questions are answered {way} certainly than at calibration: {state.n} scores refute that they are "
        f"alike (false alarm probability {state.delta:g}). The calibrated guarantee no longer applies: look "
        "at recent questions, audit accepted answers, and calibrate again on questions like them."
    )


def uniforms(seed: int, name: str) -> tuple[float, float]:
    """Two independent uniform numbers in [0, 1) that depend on seed and name only, on every machine."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    # 53 bits are what a float holds exactly: 64 bits could round up to 1.0.
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53, (int.from_bytes(digest[8:], "big") >> 11) * 2.0**-53


class Reference:
    """Decides which verdicts a drift monitor takes in: those of its artifact, and of artifacts with the same scores.

    Args:
        artifact: Its calibration scores are the reference.
    """

    def __init__(self, artifact: CalibrationArtifact) -> None:
        self._artifact = artifact
        self._scale = artifact.estimator.scale
        # A scope is a cut of the whole score, and the scale was not cut.
        self._scope = artifact.outcome.scope if self._scale is None else EVERY_QUESTION
        self._admitted = {artifact.digest}
        self._ignored: set[str] = set()

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Also take in the verdicts of another artifact: another alpha changes no score.

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
        """The score of a verdict; None if it has none or another artifact judged it (logged once for each artifact)."""
        if verdict.artifact not in self._admitted:
            self._leave_out(verdict.artifact)
            return None
        if self._scale is not None:
            return self.compared(verdict.uncertainty)
        if self._artifact.items is not None:
            return mean_uncertainty([item.uncertainty for item in verdict.items])
        return verdict.uncertainty.value

    @property
    def scores(self) -> Sequence[float]:
        """The scores that new ones are compared with: those of the calibration, or of two stages the scale.

        For an artifact of items a score is the mean uncertainty of an answer's items.
        """
        return self._artifact.answer_scores if self._scale is None else self._scale

    def compared(self, uncertainty: Uncertainty) -> float | None:
        """The number of a measurement that is compared with `scores`; None if it was not measured.

        Raises:
            UsageError: A score in two stages that was stored without the score of its first call.
        """
        if self._scale is None or uncertainty.value is None:
            return uncertainty.value
        if uncertainty.first is None:
            raise UsageError(
                "a drift monitor of two stages compares the scores of the first call, and this one was stored without "
                "it. Score the records again: calibrate score."
            )
        return uncertainty.first

    def in_scope(self, uncertainty: float) -> bool:
        """Whether a score is compared: not if it lies above the cut of the artifact's scope.

        Raises:
            UsageError: It is not finite.
        """
        if not math.isfinite(float(uncertainty)):
            raise UsageError(f"uncertainty must be finite, got {uncertainty}. Leave out what could not be measured.")
        return bool(self._scope.covers(float(uncertainty)))

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
    """The parts of an artifact that its scores depend on, and its calibration scores."""
    return {
        "model": artifact.model,
        "plan": artifact.plan,
        "prompt": artifact.prompt,
        "estimator": artifact.estimator,
        "calibration scores": artifact.answer_scores,
    }
