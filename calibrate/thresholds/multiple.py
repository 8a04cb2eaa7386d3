"""Corrections for testing several thresholds without an order: SGR's binary search, Bonferroni and Holm on a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .bounds import binomial_tail, zero_error_floor
from .empirical import last
from .pointwise import last_passing
from .rule import Prefix, Rule, RuleRequest
from .sequential import any_curve
from .simultaneous import Counts

__all__ = ["Bonferroni", "Sgr", "bonferroni_grid"]


class Sgr(Rule):
    """Selection with guaranteed risk: a binary search for coverage, each step tested at delta / ceil(log2 n).

    Formula: low = 1, high = n; ceil(log2 n) times: mid = ceil((low + high)/2); test the block that holds item mid with
    ``P(Bin(k, alpha) <= e_k) <= delta / ceil(log2 n)``; if it passes, low = mid, else high = mid. The result is the
    last block end that passed.

    Guarantee: P(SCER > alpha) <= delta over calibrations by a union bound over the steps, any risk curve.
    Paper: Geifman & El-Yaniv, NeurIPS 2017. Where we differ: ties are tested whole; a search in which no step passed
    is infeasible, where theirs returns its last threshold with a bound above the target.
    """

    name = "sgr"
    uses_delta = True
    certifies = True
    promise = "certificate"
    in_plan = True

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """The number of steps and the level of each."""
        steps = _steps(n)
        return {**request.options, "steps": steps, "level": request.level / steps}

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last block end that passed a step of the search."""
        low, high, chosen = 1, prefix.n, None
        steps = _steps(prefix.n)
        for _ in range(steps):
            # Rounded up: from low = high - 1 a rounded-down middle would be low itself, and the search would not move.
            middle = (low + high + 1) // 2
            block = prefix.at_least(middle)
            tail = binomial_tail(int(prefix.e[block]), int(prefix.k[block]), request.alpha)
            if tail <= request.level / steps:
                chosen, low = block, middle
            else:
                high = middle
        return chosen

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, any curve."""
        return any_curve(request) + " (a union bound over the steps of a binary search)."

    def explain(self, prefix: Prefix, request: RuleRequest) -> tuple[InfeasibleReason, str] | None:
        """The search path missed a block end that would pass."""
        steps = _steps(prefix.n)
        index = last_passing(prefix, request.alpha, request.level / steps)
        if index is None:
            return None
        return InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG, (
            f"The binary search moved to ever fewer items and found too many errors each time, though the "
            f"{int(prefix.k[index])} most certain items ({int(prefix.e[index])} wrong) would pass a step. "
            "Use rule certified, which looks at all of them."
        )


def _steps(n: int) -> int:
    # At n = 1 the logarithm is 0, and delta is divided by this.
    return max(1, math.ceil(math.log2(n)))


def bonferroni_grid(n: int, alpha: float, delta: float, points: int) -> Counts:
    """At most ``points`` numbers of items, spaced geometrically from the zero-error floor at delta/points to n.

    Depends on n, alpha and delta only. Empty when even n error-free items are not enough.
    """
    # Below this floor a grid point could not pass even without an error, and would only cost its share of delta.
    floor = zero_error_floor(alpha, delta / points)
    if floor > n:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.rint(np.geomspace(floor, n, points)).astype(np.int64))


class Bonferroni(Rule):
    """A fixed geometric grid of m numbers of items, each tested at delta / m; the largest that passes.

    Formula: for each grid point g test the block that holds item g: ``P(Bin(k, alpha) <= e_k) <= delta / m``. With
    ``holm=True`` the p-values are stepped through in increasing order at delta/m, delta/(m - 1), ... instead, which
    accepts at least as much.

    Guarantee: P(SCER > alpha) <= delta over calibrations, any risk curve (union bound). Paper: Learn then Test,
    arXiv 2110.01052.

    Options:
        points: m, the size of the grid (fewer if numbers coincide).
        holm: Step down (Holm 1979) instead of plain Bonferroni.
    """

    name = "bonferroni"
    uses_delta = True
    certifies = True
    promise = "certificate"
    defaults: ClassVar[Mapping[str, Any]] = {"points": 20, "holm": False}

    def check(self, request: RuleRequest) -> None:
        """``points`` is a count, ``holm`` a flag."""
        points, holm = request.options["points"], request.options["holm"]
        if isinstance(points, bool) or not isinstance(points, int) or points < 1:
            raise UsageError(f"points of rule 'bonferroni' must be a whole number, at least 1, got {points!r}. Try 20.")
        if not isinstance(holm, bool):
            raise UsageError(f"holm of rule 'bonferroni' must be True or False, got {holm!r}. Leave it out.")

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest tested block end that is rejected as bad."""
        grid = bonferroni_grid(prefix.n, request.alpha, request.level, request.options["points"])
        block = np.searchsorted(prefix.k, grid, side="left")
        tail = np.asarray(binomial_tail(prefix.e[block], prefix.k[block], request.alpha))
        # Rounding may merge grid points: delta is shared among those that remain.
        level = np.full(grid.size, request.level / max(1, grid.size))
        if request.options["holm"]:
            order = np.argsort(tail, kind="stable")
            within = tail[order] <= request.level / (grid.size - np.arange(grid.size))
            # Once a p-value fails, Holm rejects none of the larger ones; level 1 or 0 makes the common test below say
            # the same.
            level[order] = np.where(np.logical_and.accumulate(within), 1.0, 0.0)
        index = last(tail <= level)
        return None if index is None else int(block[index])

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, any curve."""
        return any_curve(request) + f" (a union bound over {request.options['points']} thresholds fixed in advance)."
