"""Exact probabilities of a Bernoulli(alpha) walk, by dynamic programming: how often errors fall below a limit.

A calibration whose error rate sits at alpha everywhere draws e_k as a walk: e_k = e_{k-1} + Bernoulli(alpha). A rule
with one limit c(k) for each number of accepted items is fooled iff the walk meets a limit, e_k <= c(k), at any k.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .bounds import binomial_tail

__all__ = ["EXACT_LIMIT", "GRID_RATIO", "crossing_probability", "grid", "limits", "step_weights"]

EXACT_LIMIT = 20_000
"""Largest n at which every number of accepted items is a grid point."""
GRID_RATIO = 1.002
"""Ratio of consecutive grid points above that."""
_NEGLIGIBLE = 1e-18

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


def grid(n: int, k_min: int) -> Counts:
    """Numbers of accepted items at which limits are set: all of k_min..n, or a geometric grid for large n.

    Depends on n and k_min only, never on scores or labels. Empty when k_min > n.
    """
    if k_min > n or n <= EXACT_LIMIT:
        return np.arange(k_min, n + 1, dtype=np.int64)
    steps = math.ceil(math.log(n / k_min) / math.log(GRID_RATIO))
    points = np.floor(k_min * GRID_RATIO ** np.arange(steps + 1)).astype(np.int64)
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
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
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
    low[np.asarray(binomial_tail(low, k, alpha)) > level] = -1
    wrong = np.asarray(binomial_tail(high + 1, k, alpha)) <= level
    high[wrong] = k[wrong] - 1
    return low, high


@lru_cache(maxsize=4_096)
def step_weights(steps: int, alpha: float) -> tuple[int, Reals]:
    """Bin(steps, alpha) without its negligible ends: the first count kept, and the probabilities from there on."""
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
    kept = np.flatnonzero(weights > _NEGLIGIBLE)
    weights = weights[kept[0] : kept[-1] + 1]
    weights.flags.writeable = False
    return first + int(kept[0]), weights


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
    return min(1.0, max(0.0, 1.0 - float(alive.sum())))
