"""Certificates of everything that is not one right or wrong answer: a capital that bets against a high error rate.

Units (conversations, users, answers with items, audited answers) are read in an order fixed beforehand. Unit t has a
number Z_t <= most, and the policy is bad iff E[Z] > 0. The capital K_t = prod(1 - f_t Z_t / most), with stakes f_t in
[0, .9] chosen from the units before, does not grow on average where E[Z] >= 0, so P(max K >= 1/delta) <= delta (Ville).
No asymptotics, any dependence inside a unit, every look free. Source: Waudby-Smith & Ramdas, arXiv 2010.09686.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError

from .certificate import SHARE, passes, walk
from .counts import TOLERANCE, Counts, Floats, Infeasible, Ints, Result, check_share, counts

LARGEST_STAKE = 0.9  # of the capital; 1 would lose all of it on the first unit that is wholly wrong
_CELLS = 2_000_000  # units times thresholds that are held in memory at a time


def capital(z: ArrayLike, most: float, delta: float = 0.1, planned: int | None = None) -> Floats:
    """The logarithm of the capital after each unit; a look at which it reaches ln(1/delta) is a certificate.

    f_t = min(.9, sqrt(2 ln(1/delta) / (n v_t))), v_t the variance of Z/most over the units before t, begun with one
    value whose square is .0025.

    ``z`` has shape (units,) or (units, thresholds), units in an order fixed without looking at scores or labels; a Z
    above ``most`` or a NaN raises `UsageError`. n is ``planned``, by default the units given: with units that arrive
    over time the last number planned, so that earlier stakes do not move. Returns shape (units, thresholds).
    """
    check_share("delta", delta)
    values = np.asarray(z, dtype=np.float64)
    gain = -values.reshape(len(values), -1) / most
    if not (gain >= -1 - TOLERANCE).all():
        raise UsageError(f"Z must be at most {most:g} in every unit, and not NaN. Check `most`.")
    before = np.vstack([np.zeros((1, gain.shape[1])), gain[:-1]])
    number = np.arange(1.0, len(gain) + 1)[:, None]
    variance = (0.0025 + np.cumsum(before * before, axis=0)) / number - (np.cumsum(before, axis=0) / number) ** 2
    n = len(gain) if planned is None else planned
    stake = np.sqrt(2 * math.log(1 / delta) / (n * np.maximum(variance, 1e-9)))
    return np.asarray(np.cumsum(np.log1p(np.minimum(LARGEST_STAKE, stake) * gain), axis=0))


def p_capital(z: ArrayLike, most: float, delta: float = 0.1, planned: int | None = None) -> Floats:
    """The p-value of "E[Z] >= 0" at each threshold, shape (thresholds,): 1 / the largest capital, at most 1."""
    return np.asarray(np.exp(-capital(z, most, delta, planned).max(axis=0, initial=0.0)))


def excess_mean(accepted: ArrayLike, wrong: ArrayLike, alpha: float) -> Floats:
    """Z = W/K - alpha of a unit with K accepted items, W of them wrong; 0 without any. At most 1 - alpha.

    The policy is bad iff the mean over units of the share that is wrong is above alpha: every unit counts once.
    """
    k = np.asarray(accepted, dtype=np.float64)
    return np.asarray(np.where(k > 0, np.asarray(wrong) / np.maximum(k, 1.0) - alpha, 0.0))


def excess_total(accepted: ArrayLike, wrong: ArrayLike, alpha: float) -> Floats:
    """Z = W - alpha K: every item counts once. At most (1 - alpha) m, for units of at most m items (declared)."""
    return np.asarray(np.asarray(wrong, dtype=np.float64) - alpha * np.asarray(accepted))


def first_to_test(reach: Floats, units: int, alpha: float, delta: float) -> int:
    """Index of the first threshold at which half of the units would do without an error; else .8 of them, else all.

    Where ``reach`` is r, ln(1/delta) / ln(1 + .9 alpha r / (1 - alpha)) of them would do. r is the mean of K/m, or the
    share of units with anything accepted, at each threshold: of unlabelled units (proved), or of the labelled ones
    (simulated). Returns the number of thresholds if even all units would not do.
    """
    for part in (0.5, 0.8, 1.0):
        needed = math.expm1(math.log(1 / delta) / (part * units)) * (1 - alpha) / (LARGEST_STAKE * alpha)
        first = int(np.searchsorted(reach, needed - TOLERANCE))
        if first < reach.size:
            break
    return first


def certified_groups(
    u: ArrayLike,
    wrong: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    *,
    group: Sequence[Hashable],
    most: int | None = None,
    share: float = SHARE,
    begin: float | None = None,
) -> Result:
    """Certify an error rate of items that come in groups: `walk` over `p_capital`, independent groups of any kind.

    Without ``most`` every group counts once: P(E[W/K | K > 0] > alpha) <= delta, the mean over groups of the share of
    accepted items that is wrong. With it every item counts once: P(E[W]/E[K] > alpha) <= delta. Groups are
    conversations, users or documents of questions, or answers with items (sentences, JSON fields).

    Args:
        u: Uncertainty of each item; a group with nothing measured is one item with +inf.
        wrong: Label of each item.
        alpha: Target.
        delta: Failure probability.
        group: Name of each item's group. Groups are read in the order of a hash of their names.
        most: Most items that any group can have, at calibration and later: declared, never read off the data (with one
            giant group in 200, wholly wrong, 86 % of such certificates are false). A larger one raises `UsageError`.
        share: The walk begins at the first threshold that accepts this share of all items, at or past `first_to_test`.
        begin: Threshold at which the walk begins instead, fixed from unlabelled groups.

    n, k and e of the result count items; its ``start`` is the k at which the walk began.
    """
    for name, value in (("alpha", alpha), ("delta", delta), ("share", share)):
        check_share(name, value)
    at = counts(u, wrong)
    if len(group) != at.n:
        raise UsageError(f"group must name the group of each of the {at.n} items, got {len(group)} names.")
    names = sorted(set(group), key=lambda name: hashlib.sha256(str(name).encode()).digest())
    code_of = {name: number for number, name in enumerate(names)}
    order = np.argsort(np.asarray(u, dtype=np.float64), kind="stable")
    # The group of each item, and its label, in the order of the scores.
    code = np.array([code_of[name] for name in group], dtype=np.int64)[order]
    errors = np.asarray(wrong).astype(np.int64)[order]
    if begin is None:
        reach = _reach(at, code, len(names), most)
        first = max(at.from_share(share), first_to_test(reach, len(names), alpha, delta))
    else:
        first = int(np.searchsorted(at.threshold, begin))
    if first >= at.k.size:
        return Infeasible(at.n, "too_few_items")
    # By stretches of thresholds that double, because most walks are short and a long one must not fill the memory.
    position, columns = first, 16
    while position < at.k.size:
        k = at.k[position : position + columns]
        K, W = _by_group(code, errors, len(names), k)
        if most is None:
            p = p_capital(excess_mean(K, W, alpha), 1 - alpha, delta)
        else:
            p = p_capital(excess_total(K, W, alpha), (1 - alpha) * most, delta)
        reached = walk(passes(p, delta), 0)
        passed = 0 if reached is None else reached + 1
        position += passed
        if passed < k.size:
            break
        columns = max(1, min(2 * columns, _CELLS // len(names)))
    start = int(at.k[first])
    if position == first:
        return Infeasible(at.n, "risk_never_low_enough", start)
    return at.at(position - 1, start=start, bound=alpha)


def _reach(at: Counts, code: Ints, groups: int, most: int | None) -> Floats:
    """What `first_to_test` asks for: the mean of K / most, or the share of groups with anything accepted."""
    if most is None:
        _, first = np.unique(code, return_index=True)
        return np.asarray(np.searchsorted(np.sort(first), at.k) / groups)
    if (largest := np.bincount(code[: at.measured], minlength=1).max()) > most:
        raise UsageError(
            f"a group has {largest} measured items, more than most = {most}, and the promise rests on that number. "
            "Declare the most that can ever occur, or leave it out: then every group counts once."
        )
    return np.asarray(at.k / (most * groups))


def _by_group(code: Ints, errors: Ints, groups: int, k: Ints) -> tuple[Floats, Floats]:
    """K and W of each group where the first k items are accepted, shape (groups, k.size)."""
    # Each item is counted at the first of these thresholds that accepts it, then summed along them.
    cell = code[: k[-1]] * k.size + np.searchsorted(k, np.arange(1, k[-1] + 1))
    counted = [np.bincount(cell, weights, groups * k.size) for weights in (None, errors[: k[-1]])]
    K, W = (each.reshape(groups, k.size).cumsum(axis=1).astype(np.float64) for each in counted)
    return K, W
