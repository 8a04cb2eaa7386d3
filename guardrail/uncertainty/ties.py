"""A score whose ties a second score breaks, as one number: u = r (round(a / r) + s(b)), with 0 <= s < 1."""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import Field, ValidationError

from ..errors import ArtifactMismatchError, UsageError
from ..files import problem_of
from ..specs import EstimatorSpec
from ..types import Frozen, Missing, Unmeasured
from .base import Estimator, Evidence
from .ensemble import union_of_needs

__all__ = ["NAME", "RESOLUTION", "TieBreakParams", "from_tie_break_spec", "tie_break"]

NAME = "tie_break"
"""Name of the estimator in specs. `make_estimator` cannot make one: it is made of two others (`tie_break`)."""
RESOLUTION = 1e-3
"""First scores that round to the same multiple of this are ties, by default."""
_MOST = 2**20
"""Multiples beyond which the fraction of a double would no longer keep the second score apart."""
_BELOW_ONE = 1 - 2.0**-30
"""The largest s. A multiple below `_MOST` plus this is an exact double below the next multiple."""


class TieBreakParams(Frozen):
    """The whole ordering; stored in `EstimatorSpec.params`, so that an artifact needs no other file."""

    resolution: float = Field(gt=0, allow_inf_nan=False)
    """r, in the unit of the first score, fixed before any label is read."""
    first: EstimatorSpec
    """The score a, whose order counts."""
    second: EstimatorSpec
    """The score b, which orders questions with equal a."""

    def order(self, first: float, second: float) -> float | Missing:
        """The score r (round(a / r) + s(b)), with s(b) = (1 + b / (1 + |b|)) / 2 in [0, 1).

        A question with a smaller multiple has the smaller score, whatever b is, and among equal multiples the score
        does not fall as b grows. Rounding cannot break either: multiples are whole numbers below 2**20, s is at most
        1 - 2**-30, and multiplication by r is monotone. Where b is so large that s no longer moves, ties stay ties.
        """
        multiple = first / self.resolution
        if not abs(multiple) < _MOST:
            return Missing(
                Unmeasured.NOT_FINITE,
                f"the score {first:.4g} is more than {_MOST:,} times the resolution {self.resolution:g} of its ties",
            )
        share = min((1 + second / (1 + abs(second))) / 2, _BELOW_ONE)
        return self.resolution * (round(multiple) + share)


def tie_break(first: Estimator, second: Estimator, *, resolution: float = RESOLUTION) -> Estimator:
    """The estimator that orders questions by one score, and by another one where the first ties.

    A confidence that a model states in words has few values, so that a threshold accepts or holds back many questions
    at once; the probability of the answer's tokens orders these. No label is read: u is a fixed function of a question
    and its draws, so a threshold on it is certified like one on any other score. The score has the unit of the first
    one, which it exceeds by at most 1.5 resolutions. If either score is unmeasured, so is this one.

    Args:
        first: The score whose order counts.
        second: The score that orders ties.
        resolution: First scores that round to the same multiple of it are ties; below every real step of the first
            score, and above the noise of its arithmetic.

    Raises:
        UsageError: A resolution that is not above 0, a score that is made of others itself, or two scorers.
    """
    if not (math.isfinite(resolution) and resolution > 0):
        raise UsageError(f"resolution must be a number above 0, got {resolution!r}. Leave it out for {RESOLUTION:g}.")
    params = TieBreakParams(resolution=resolution, first=first.spec, second=second.spec)
    composed = [each.name for each in (first, second) if each.members]
    if composed:
        raise UsageError(f"{composed[0]} is made of other scores. Break ties between two that are not.")
    if first.scorer is not None and second.scorer is not None:
        raise UsageError("a guard takes one scorer. Break ties by an estimator, or return one number from one scorer.")
    if first.spec == second.spec:
        raise UsageError(f"{first.name} cannot break its own ties. Name another second score.")

    def formula(evidence: Evidence) -> float | Missing:
        if len(evidence.members) != 2:
            return Missing(Unmeasured.NOT_RECORDED, "the two scores were not measured")
        return params.order(*evidence.members)

    return Estimator(
        NAME,
        1,
        first.unit,
        union_of_needs([first.needs, second.needs]),
        formula,
        members=(first, second),
        params=params.model_dump(mode="json"),
    )


def from_tie_break_spec(spec: EstimatorSpec, remake: Callable[[EstimatorSpec], Estimator]) -> Estimator:
    """The estimator that a spec describes; ``remake`` makes its two scores.

    Raises:
        ArtifactMismatchError: The parameters are not those of such a score, it has another version or unit, or one of
            its scores cannot be remade.
    """
    try:
        params = TieBreakParams.from_stored(spec.params)
        running = tie_break(remake(params.first), remake(params.second), resolution=params.resolution)
    except (ValidationError, UsageError) as error:
        fault = problem_of(error) if isinstance(error, ValidationError) else str(error)
        raise ArtifactMismatchError(f"the spec of a score with broken ties is wrong: {fault}. Fit it again.") from error
    if (spec.version, spec.unit) != (running.version, running.unit):
        raise ArtifactMismatchError(
            f"estimator differs: calibrated with {NAME} version {spec.version} in {spec.unit}, running version "
            f"{running.version} in {running.unit}. Calibrate again."
        )
    return running
