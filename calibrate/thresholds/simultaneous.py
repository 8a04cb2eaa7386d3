"""``cp_simultaneous``: the exact binomial test at every k, at one level that accounts for all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from guardrail.notebook import sure

from .bounds import binomial_tail
from .empirical import last
from .rule import Prefix, Rule, RuleRequest, check_min_accept, min_accept_of

__all__ = [
    "Candidates",
    "Counts",
    "CpSimultaneous",
    "ErrorLimits",
    "Reals",
    "WalkRule",
    "candidates",
    "crossing_probability",
    "grid",
    "limits",
    "simultaneous_limits",
    "step_weights",
]

EXACT_LIMIT = 20_000
"""Largest n at which every number of accepted items is a grid point."""
GRID_RATIO = 1.002
"""Ratio of consecutive grid points above that."""
_NEGLIGIBLE = 1e-18

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """Error limits at fixed numbers of accepted items; depends on n, alpha, delta and k_min alone."""

    k: Counts
    """Grid points, increasing."""
    c: Counts
    """Most errors with which k passes; -1 for none."""
    level: float
    """The level d' that was solved for."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Block ends that can be chosen on a grid, and what is tested for each."""

    block: NDArray[np.int64]
    """Index of the block end among all blocks."""
    point: NDArray[np.int64]
    """Index of the grid point it is tested at: the first at or past k."""
    errors: NDArray[np.int64]
    """Errors counted against the limit there: e_k, plus one for each item between k and the grid point."""


def candidates(prefix: Prefix, points: Counts) -> Candidates:
    """The last block end at or before each grid point (at or past the first point).

    Between two grid points e_k - k never grows, so the last block end there is both the largest and the likeliest to
    pass. Which block ends are candidates depends on the scores only.
    """
    # -1 means that no block ends before the grid point; the next line drops it.
    block = np.unique(np.searchsorted(prefix.k, points, side="right")) - 1
    block = block[block >= 0]
    block = block[prefix.k[block] >= points[0]]
    k = prefix.k[block]
    point = np.searchsorted(points, k, side="left")
    return Candidates(block, point, prefix.e[block] + points[point] - k)


@lru_cache(maxsize=256)
def simultaneous_limits(n: int, alpha: float, delta: float, k_min: int) -> ErrorLimits:
    """ErrorLimits c(k) at the largest level d' whose flat walk meets any of them with probability at most delta.

    By bisection in the logarithm of the level, from delta over the number of points (the union bound) up to delta.
    """
    points = grid(n, k_min)
    low, level = delta / points.size, delta
    fine, c = limits(points, alpha, low), limits(points, alpha, level)
    if crossing_probability(points, c, alpha) > delta:
        broken, high = c, level
        # Limits are integers: once both ends give the same ones, a finer level changes nothing.
        while high > low * (1.0 + 1e-6) and not np.array_equal(fine, broken):
            middle = math.sqrt(low * high)
            tried = limits(points, alpha, middle, fine, broken)
            # Known limits need no new dynamic programme, which is the costly part of a step.
            if np.array_equal(tried, fine):
                low = middle
            elif not np.array_equal(tried, broken) and crossing_probability(points, tried, alpha) <= delta:
                low, fine = middle, tried
            else:
                high, broken = middle, tried
        # The lower end, whose crossing probability was shown to be within delta, never the midpoint.
        level, c = low, fine
    # The cache hands the same arrays to every caller: a write by one would change the limits of all.
    c.flags.writeable = points.flags.writeable = False
    return ErrorLimits(points, c, level)


class WalkRule(Rule):
    """A rule whose error limits come from a flat walk: one option, one promise, one test of feasibility."""

    uses_delta = True
    certifies = True
    promise = "certificate"
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None}

    def check(self, request: RuleRequest) -> None:
        """``min_accept`` is a count."""
        check_min_accept(self.name, request)

    def alpha_floor(self, prefix: Prefix, request: RuleRequest) -> float:
        """Target below which even the pointwise test fails everywhere."""
        return pointwise_floor(prefix, request)

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, under two assumptions."""
        return (
            f"With probability at least {sure(request.level)} over calibrations the error rate among accepted answers "
            f"is at most {request.alpha:g}, in finite samples, if questions are independent draws from the same source "
            "and the error rate among accepted answers does not fall as more are accepted."
        )


class CpSimultaneous(WalkRule):
    """Exact binomial tests at all thresholds, simultaneously valid.

    Formula: the largest block end k >= k_min with P(Bin(k, alpha) <= e_k) <= d', where d' is the largest level at
    which a Bernoulli(alpha) walk satisfies this at *some* k in [k_min, n] with probability at most delta.

    Guarantee: P(SCER > alpha) <= delta over calibrations, for any n, if items are independent and the error rate does
    not fall as acceptance grows. Why: let K0 be the first bad k. Given K0 the items below are i.i.d. with error at
    least alpha, and past it the marginal error is at least SCER >= alpha, so e_k dominates the walk at every bad k.

    Ours; the test is that of LTT (arXiv 2110.01052). Above n = 20,000 limits are set on a geometric grid, and the items
    between a block end and the next grid point count as errors, which keeps the guarantee.

    Options:
        min_accept: k_min; None for the default.
    """

    name = "cp_simultaneous"
    in_report = True
    in_plan = True

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with the k_min and the level d' that were used."""
        k_min = min_accept_of(n, request)
        level = simultaneous_limits(n, request.alpha, request.level, k_min).level if k_min <= n else None
        return {**request.options, "min_accept": k_min, "level": level}

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end within its limit."""
        k_min = min_accept_of(prefix.n, request)
        if k_min > prefix.n:
            return None
        table = simultaneous_limits(prefix.n, request.alpha, request.level, k_min)
        ends = candidates(prefix, table.k)
        index = last(ends.errors <= table.c[ends.point])
        return None if index is None else int(ends.block[index])

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """One dynamic programme instead of a search: the smallest level at which a block end passes is affordable."""
        alpha, delta, k_min = request.alpha, request.level, min_accept_of(prefix.n, request)
        if k_min > prefix.n:
            return False
        points = grid(prefix.n, k_min)
        ends = candidates(prefix, points)
        if not ends.block.size:
            return False
        level = float(np.min(np.asarray(binomial_tail(ends.errors, points[ends.point], alpha))))
        if level > delta:
            return False
        # A hair above the smallest level, so that rounding does not shut out the very block end that defines it.
        needed = min(delta, max(level, 1e-300) * (1.0 + 1e-12))
        return crossing_probability(points, limits(points, alpha, needed), alpha) <= delta


def pointwise_floor(prefix: Prefix, request: RuleRequest) -> float:
    """Smallest alpha, to three decimals from below, at which one block end passes the test at level delta alone."""
    k, e = prefix.k, prefix.e
    # In thousandths, as integers: halving a float bracket could stop between two thousandths.
    low, high = 0, 1_000
    while high - low > 1:
        middle = (low + high) // 2
        if (np.asarray(binomial_tail(e, k, middle / 1_000)) <= request.level).any():
            high = middle
        else:
            low = middle
    return low / 1_000


# -- Exact probabilities of a Bernoulli(alpha) walk, by dynamic programming: how often errors fall below a limit -------
# A calibration whose error rate sits at alpha everywhere draws e_k as a walk: e_k = e_{k-1} + Bernoulli(alpha). A rule
# with one limit c(k) for each number of accepted items is fooled iff the walk meets a limit, e_k <= c(k), at any k.


def grid(n: int, k_min: int) -> Counts:
    """Numbers of accepted items at which limits are set: all of k_min..n, or a geometric grid for large n.

    Depends on n and k_min only, never on scores or labels. Empty when k_min > n.
    """
    if k_min > n or n <= EXACT_LIMIT:
        return np.arange(k_min, n + 1, dtype=np.int64)
    steps = math.ceil(math.log(n / k_min) / math.log(GRID_RATIO))
    points = np.floor(k_min * GRID_RATIO ** np.arange(steps + 1)).astype(np.int64)
    # n is always a point, so that accepting everything can be tested too; rounding may merge small points.
    return np.unique(np.append(points[points < n], n))


def limits(
    k: Counts, alpha: float, level: Reals | float, low: Counts | None = None, high: Counts | None = None
) -> Counts:
    """c(k): the largest c with P(Bin(k, alpha) <= c) <= level, -1 where even c = 0 exceeds it.

    Args:
        k: Numbers of items.
        alpha: Error rate of the walk.
        level: One level, or one for each k, below 1.
        low: Known lower bound of the answer, if any.
        high: Known upper bound of the answer, if any.
    """
    level = np.broadcast_to(np.asarray(level, dtype=np.float64), k.shape)
    if low is None or high is None:
        low, high = _bracket(k, alpha, level)
    # Callers keep their brackets for the next step of the bisection, and the loop below writes into these.
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        # Rounded up: the answer may be `high`, and a rounded-down middle equal to `low` would never move.
        middle = (low[open_] + high[open_] + 1) // 2
        fine = np.asarray(binomial_tail(middle, k[open_], alpha)) <= level[open_]
        low[open_[fine]] = middle[fine]
        high[open_[~fine]] = middle[~fine] - 1
    return low


def _bracket(k: Counts, alpha: float, level: Reals) -> tuple[Counts, Counts]:
    """A bracket of ``limits`` by the normal approximation, widened wherever it turns out wrong."""
    center = alpha * k + special.ndtri(level) * np.sqrt(alpha * (1.0 - alpha) * k)
    low = np.clip(np.floor(center - 3.0), -1, k - 1).astype(np.int64)
    high = np.clip(np.floor(center + 3.0), -1, k - 1).astype(np.int64)
    # The normal approximation is poor for few items; a bracket that misses the answer would end the search at a wrong
    # one.
    low[np.asarray(binomial_tail(low, k, alpha)) > level] = -1
    wrong = np.asarray(binomial_tail(high + 1, k, alpha)) <= level
    high[wrong] = k[wrong] - 1
    return low, high


@lru_cache(maxsize=4_096)
def step_weights(steps: int, alpha: float) -> tuple[int, Reals]:
    """Bin(steps, alpha) without its negligible ends: the first count kept, and the probabilities from there on."""
    # 9.5 standard deviations and 45 counts lie beyond the negligible 1e-18 also where the law is skewed.
    spread = 9.5 * math.sqrt(steps * alpha * (1.0 - alpha)) + 45.0
    first = max(0, math.floor(steps * alpha - spread))
    final = min(steps, math.ceil(steps * alpha + spread))
    j = np.arange(first, final + 1, dtype=np.float64)
    weights = np.exp(
        special.gammaln(steps + 1.0)
        - special.gammaln(j + 1.0)
        - special.gammaln(steps - j + 1.0)
        + special.xlogy(j, alpha)
        + special.xlog1py(steps - j, -alpha)
    )
    likely = np.flatnonzero(weights > _NEGLIGIBLE)
    weights = weights[likely[0] : likely[-1] + 1]
    weights.flags.writeable = False
    return first + int(likely[0]), weights


def crossing_probability(k: Counts, limit: Counts, alpha: float) -> float:
    """P(S_k <= limit(k) at some of the given k) for a Bernoulli(alpha) walk S.

    Only points where the limit exceeds all earlier limits can absorb a walk that has survived so far, so the
    distribution of survivors is carried from one such point to the next by a convolution. Mass trimmed from the far
    tails (below 1e-12 in total) counts as crossing.

    Args:
        k: Increasing numbers of items.
        limit: c(k), -1 for none.
        alpha: Step probability.
    """
    # A walk never falls, so a limit that does not exceed an earlier one meets no walk that has survived that one.
    highest = np.maximum.accumulate(np.concatenate(([-1], limit)))
    events = np.flatnonzero(limit > highest[:-1])
    position, bottom, alive = 0, 0, np.ones(1)
    for point, barrier in zip(k[events].tolist(), limit[events].tolist(), strict=True):
        shift, weights = step_weights(point - position, alpha)
        alive = np.convolve(alive, weights)
        position, bottom = point, bottom + shift
        alive = alive[max(0, barrier + 1 - bottom) :]
        bottom = max(bottom, barrier + 1)
        if alive.size == 0:
            return 1.0
        if alive[-1] < _NEGLIGIBLE:
            alive = alive[: int(np.flatnonzero(alive >= _NEGLIGIBLE)[-1]) + 1] if alive.max() >= _NEGLIGIBLE else alive
    # From survivors, not from the mass absorbed: trimmed mass then counts as crossing, the safe side.
    return min(1.0, max(0.0, 1.0 - float(alive.sum())))
