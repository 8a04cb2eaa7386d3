"""Exact failure probabilities of threshold rules, written without any code of the rules.

Flat risk: every item is wrong with probability alpha at any score. Then every threshold at or past the first bad
number of items K0 is a failure, and e_k is a Bernoulli(alpha) walk. These are plain one-step recursions over (k, e).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


def _step(mass: Reals, alpha: float) -> Reals:
    moved = (1.0 - alpha) * mass
    moved[1:] += alpha * mass[:-1]
    return moved


def crossing(points: Counts, limit: Counts, alpha: float) -> float:
    """Return P(e_k <= limit(k) at some point k), by killing the walk where it crosses."""
    top = int(limit.max()) + 2  # states past every limit can never cross: they pile up in the last one
    mass, crossed, k = np.zeros(top), 0.0, 0
    mass[0] = 1.0
    for point, c in zip(points.tolist(), limit.tolist(), strict=True):
        while k < point:
            last = mass[-1]
            mass = _step(mass, alpha)
            mass[-1] += alpha * last
            k += 1
        if c >= 0:
            crossed += float(mass[: c + 1].sum())
            mass[: c + 1] = 0.0
    return crossed


def anchored_failures(points: Counts, anchor: Counts, extension: Counts, alpha: float) -> Reals:
    """Return, for every first bad point K0, the largest P(the chosen point is at or past K0).

    Only e at K0 and the steps after it are known to be flat; below K0 the score may have put all errors last, so that
    the accepted set always reaches K0. The rule then fails iff e is within either limit at K0, or it is not and an
    anchor is passed later.
    """
    size = int(max(anchor.max(), extension.max())) + 2
    later = _anchor_ahead(points, anchor, alpha, size)
    mass, failures, k = np.zeros(size), np.zeros(points.size), 0
    mass[0] = 1.0
    for i, point in enumerate(points.tolist()):
        while k < point:
            last = mass[-1]
            mass = _step(mass, alpha)
            mass[-1] += alpha * last  # more errors than any limit: never an anchor, never an extension
            k += 1
        reached = max(int(anchor[i]), int(extension[i])) + 1
        failures[i] = mass[:reached].sum() + mass[reached:] @ later[i][reached:]
    return failures


def _anchor_ahead(points: Counts, anchor: Counts, alpha: float, size: int) -> Reals:
    """Return P(a walk at (k, e) passes an anchor at k or later), one row per point."""
    table = np.zeros((points.size, size))
    ahead = np.zeros(size)
    for i in range(points.size - 1, -1, -1):
        if i + 1 < points.size:
            for _ in range(int(points[i + 1] - points[i])):
                ahead[:-1] = (1.0 - alpha) * ahead[:-1] + alpha * ahead[1:]
        ahead[: int(anchor[i]) + 1] = 1.0
        table[i] = ahead
    return table
