"""The drift monitor: run-time scores against the calibration scores. Needs no labels."""

from __future__ import annotations

import hashlib
import logging
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from ..artifact import CalibrationArtifact
from ..describe import CALLS, nouns_of
from ..errors import UsageError
from ..items.spec import mean_uncertainty
from ..outcome import EVERY_QUESTION
from ..types import Frozen, Uncertainty
from ..uncertainty.combine import scale_of
from ..verdict import Verdict
from .state import STAKES, Bet, BettingState, check_unit

__all__ = ["CELLS", "SLOPES", "Drift", "DriftState", "Grid", "gains_of", "uniforms"]

log = logging.getLogger("guardrail")

_STAKES = (*STAKES, 0.9)
"""One larger stake than those of the risk monitor: a new topic moves most p-values far at once, and this finds it after
25 questions where the others need 34, with as few false alarms (docs/results.md)."""
SLOPES = (*(-2 * stake for stake in _STAKES[:0:-1]), *(2 * stake for stake in _STAKES))
"""Slopes of the betting function 1 + s (p - 1/2), which averages 1 over uniform p and is >= 0 for |s| <= 2."""
CELLS = 256
"""Largest number of cells of a grid, which bounds the state of a monitor."""
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

    and a p-value that is uniform within the cell's share, (places above + theta places in the cell) / (n + 1 + t), is
    uniform and independent of all earlier ones. Boundaries
    that depend on calibration scores do no harm here, because the urn starts with the gaps, not with the number of
    calibration scores in a cell: counting those would be wrong.
    """

    bounds: tuple[tuple[float, float], ...]
    """Score and tie-breaker of each boundary, ascending."""
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
        gaps = tuple(later - earlier for earlier, later in pairwise(ranks))
        return cls(bounds=tuple(pairs[rank - 1] for rank in ranks[1:-1]), gaps=gaps)

    def take(self, counts: Sequence[int], score: float, tie: float, theta: float) -> tuple[float, tuple[int, ...]]:
        """The p-value of a score, and the counts after it.

        Args:
            counts: Earlier scores of the stream by cell; empty for none.
            score: The score.
            tie: Its tie-breaker, uniform.
            theta: Uniform.
        """
        counts = counts or (0,) * len(self.gaps)
        cell = bisect_left(self.bounds, (score, tie))
        places = [gap + count for gap, count in zip(self.gaps, counts, strict=True)]
        p = (sum(places[cell + 1 :]) + theta * places[cell]) / sum(places)
        return p, tuple(count + (i == cell) for i, count in enumerate(counts))


def gains_of(p: float) -> Any:
    """What a unit of money in each bet becomes at this p-value, shape (B,)."""
    return 1 + np.array(SLOPES) * (p - 0.5)


class DriftState(BettingState):
    """The state of a test of drift, which `Drift` carries out; its size is bounded."""

    kind = "drift"
    SETTINGS = ("artifact", "delta", "seed")

    artifact: str
    """Digest of the artifact whose calibration scores are the reference."""
    seed: int
    """Seed of the randomiser that breaks ties."""
    shares: tuple[float, ...] = (1 / len(SLOPES),) * len(SLOPES)
    """The share of the wealth in each bet; sums to 1."""
    counts: tuple[NonNegativeInt, ...] = ()
    """Scores seen by cell of the `Grid`; empty before the first."""
    recent: float = 0.5
    """Mean p-value, exponentially weighted towards the latest; below 0.5: less certain than at calibration."""

    def finding(self) -> dict[str, Any]:
        """The direction."""
        return {"less_certain": self.recent < 0.5}


def uniforms(seed: int, name: str) -> tuple[float, float]:
    """Two independent uniform numbers in [0, 1) that depend on seed and name only, on every machine."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    # 53 bits are what a float holds exactly: 64 bits could round up to 1.0.
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53, (int.from_bytes(digest[8:], "big") >> 11) * 2.0**-53


class Drift:
    """Tests "run-time uncertainty scores are exchangeable with the calibration scores" without any label.

    Every new score is ranked among the calibration scores and all scores before it, as far as a `Grid` of the
    calibration scores resolves. While calibration and stream are exchangeable the p-values are independent and uniform
    *exactly*. Small p means less certain than usual. The money bets on p by the functions 1 + s (p - 1/2).
    Only the counts are kept, so that the state stays small and an update costs the same after any number of them.

    For two stages the scores are those of the first call, which every verdict has, and the reference is the scale: new
    questions are exchangeable with it as long as nothing changes. For a gate of items a score is the mean uncertainty
    of an answer's items.

    An alarm says that the questions or the model changed, not that the error rate did: the guarantee of the artifact no
    longer applies, whichever way the scores moved.

    Args:
        artifact: Its stored calibration scores are the reference.
        delta: Probability of ever raising a false alarm, in (0, 1).
        seed: Seed of the randomiser theta and of the tie-breakers.
    """

    def __init__(self, artifact: CalibrationArtifact, *, delta: float = 0.05, seed: int = 0) -> None:
        check_unit("delta", delta)
        self._artifact, self._scale = artifact, scale_of(artifact.estimator)
        # A scope is a cut of the whole score, and the scale was not cut.
        self._scope = artifact.outcome.scope if self._scale is None else EVERY_QUESTION
        self._admitted, self._ignored = {artifact.digest}, set[str]()
        self.grid = Grid.of(artifact.calibration.of_answers if self._scale is None else self._scale, seed)
        calls = nouns_of(artifact) is CALLS
        self.start = DriftState(artifact=artifact.digest, delta=delta, seed=seed, calls=calls)
        """The state before the first score."""

    def take(self, state: DriftState, *scores: float) -> tuple[DriftState, list[Bet]]:
        """The state after the scores of some questions, accepted or not, and their bets.

        If the artifact has a scope, scores above its cut are left out: no calibration score lies
        there. So a change that only moves questions past the cut shows as fewer answers, not as an alarm.

        Raises:
            UsageError: A score is not finite. Leave out questions that could not be measured, and count them.
        """
        bets = list[Bet]()
        for score in map(float, scores):
            if not math.isfinite(score):
                raise UsageError(f"uncertainty must be finite, got {score}. Leave out what could not be measured.")
            if not self._scope.covers(score):
                continue
            # Named by the number of the update, so that a saved and loaded monitor draws the same numbers.
            tie, theta = uniforms(state.seed, str(state.n))
            p, counts = self.grid.take(state.counts, score, tie, theta)
            state = state.bet(gains_of(p), counts=counts, recent=state.recent + _RECENT * (p - state.recent))
            bets.append(Bet(score, p, state.log_wealth))
        return state, bets

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Also take in the verdicts of another artifact: another alpha changes no score.

        Raises:
            UsageError: Its scores cannot be compared with the reference, so the monitor would watch nothing.
        """
        reference = _scoring(self._artifact)
        other = _scoring(artifact)
        differing = [name for name in reference if reference[name] != other[name]]
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
            if verdict.artifact not in self._ignored:
                self._ignored.add(verdict.artifact)
                log.warning(
                    "guardrail: a drift monitor of artifact %s leaves out the verdicts of artifact %s. To watch "
                    "that artifact, give it a separate monitor.",
                    self._artifact.digest,
                    verdict.artifact,
                )
            return None
        if self._scale is None and verdict.by_items:
            return mean_uncertainty([item.uncertainty for item in verdict.items])
        return self.compared(verdict.uncertainty)

    def compared(self, uncertainty: Uncertainty) -> float | None:
        """The number of a measurement that is compared with the reference; None if it was not measured.

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


def _scoring(artifact: CalibrationArtifact) -> dict[str, object]:
    """The parts of an artifact that its scores depend on, and its calibration scores."""
    return {
        "model": artifact.model,
        "plan": artifact.plan,
        "prompt": artifact.prompt,
        "estimator": artifact.estimator,
        "calibration scores": artifact.calibration.of_answers,
    }
