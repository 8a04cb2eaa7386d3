"""Losses that only grow with the threshold: counting is enough, and nothing is paid for choosing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError

from .certificate import most_errors
from .counts import TOLERANCE, Infeasible, Result, check_share, counts


def count_threshold(s: ArrayLike, alpha: float, delta: float | None = None) -> float | None:
    """The limit below which every threshold t has P(s <= t) <= alpha.

    The (c + 1)-th smallest s: thresholds strictly below it lose at most c of the n units. With probability 1 - delta
    over calibrations, c is the largest number with P(Bin(n, alpha) <= c) <= delta; on average (delta None; conformal
    risk control, arXiv 2208.02814), c = floor(alpha (n + 1)) - 1. Both are exact at any n, with ties. Uses:
    `crc_joint`; answers without any wrong item (s: the smallest score of a wrong item).

    ``s`` is the smallest threshold at which each unit is lost, shape (n,), n >= 1; +inf if never. The limit is +inf if
    no threshold loses too many, and None if n is too small: at alpha = delta = .1 it takes 22 units, on average 9.
    """
    lost = np.sort(np.asarray(s, dtype=np.float64))
    if lost.ndim != 1 or not lost.size or np.isnan(lost[-1]):
        raise UsageError("s must be n >= 1 numbers, inf where a unit is never lost, and not NaN.")
    n = lost.size
    if delta is None:
        check_share("alpha", alpha)
        c = math.floor(alpha * (n + 1) + TOLERANCE) - 1
    else:
        c = int(most_errors(n, alpha, delta)[n])
    return None if c < 0 else float(lost[c])


def crc_joint(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1) -> Result:
    """The largest threshold at which P(accepted and wrong) <= alpha: a share of all questions, not of the accepted.

    `count_threshold`, on average over calibrations, of s = u where the answer is wrong, else +inf; reads no delta.
    """
    at = counts(u, wrong)
    limit = count_threshold(np.where(np.asarray(wrong) == 1, u, np.inf), alpha)
    if limit is None or not at.measured:
        return Infeasible(at.n, "too_few_items")
    good = int(np.searchsorted(at.threshold, limit))
    return at.at(good - 1) if good else Infeasible(at.n, "risk_never_low_enough")
