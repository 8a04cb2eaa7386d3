"""The certificate: exact binomial tests from a start that is fixed without labels, outward to the first that fails."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from .counts import Bools, Feasible, Floats, Infeasible, Ints, Result, check_share, counts

SHARE = 0.25  # default share of the units that the first tested threshold accepts
LATEST_START = 10  # the walk begins at most where this many errors pass: later, it would lose answers for nothing


def tail(e: ArrayLike, k: ArrayLike, alpha: float) -> Floats:
    """The p-value of "the error rate is above alpha" from e wrong among k independent answers: P(Bin(k, alpha) <= e).

    Exact, and most powerful for one threshold that is fixed without labels; the best of many is no p-value. 1 where all
    are wrong, or k = 0. ``tail(e, k, alpha) <= delta`` iff ``upper_bound(e, k, delta) <= alpha``. e and k broadcast.
    """
    wrong, accepted = np.broadcast_arrays(np.asarray(e, dtype=np.float64), np.asarray(k, dtype=np.float64))
    some = wrong < accepted  # betainc has no value elsewhere
    p = special.betainc(np.where(some, accepted - wrong, 1.0), np.where(some, wrong + 1.0, 1.0), 1.0 - alpha)
    return np.asarray(np.where(some, p, 1.0))


def passes(p: ArrayLike, delta: float) -> Bools:
    """Whether p-values are at most delta, up to the rounding of the last digits."""
    return np.asarray(np.asarray(p) <= delta * (1 + 1e-9))


def fewest_accepted(errors: ArrayLike, alpha: float, delta: float) -> Ints:
    """The fewest accepted answers with which so many errors pass: the least k with P(Bin(k, alpha) <= errors) <= delta.

    Without an error that is ceil(ln delta / ln(1 - alpha)): 22 at alpha = delta = .1, 45 at alpha = .05.
    """
    check_share("alpha", alpha)
    check_share("delta", delta)
    wrong = np.asarray(errors, dtype=np.int64)
    k = np.maximum(np.ceil(special.bdtrin(wrong.astype(np.float64), delta, alpha)).astype(np.int64), wrong + 1)
    # The inverse is a real number whose last digits may end at a neighbour of the whole number.
    k -= passes(tail(wrong, k - 1, alpha), delta)
    k += ~passes(tail(wrong, k, alpha), delta)
    return np.asarray(k)


@lru_cache(maxsize=256)
def most_errors(n: int, alpha: float, delta: float) -> Ints:
    """The most errors with which k accepted answers pass, for k = 0..n, not falling; -1 where not even none passes.

    ``e <= most_errors(n, alpha, delta)[k]`` iff ``tail(e, k, alpha) <= delta``; read-only.
    """
    enough = min(n, math.ceil(alpha * n + 6 * math.sqrt(n)))
    fewest = fewest_accepted(np.arange(enough + 1), alpha, delta)
    limits = np.searchsorted(fewest, np.arange(n + 1), side="right") - 1
    limits.flags.writeable = False  # the cache returns one array to all callers
    return limits


def upper_bound(e: int, k: int, delta: float) -> float:
    """Clopper and Pearson's upper bound of an error rate: P(rate <= bound) >= 1 - delta for a k that is fixed.

    The 1 - delta quantile of Beta(e + 1, k - e); 1 where all are wrong, or k = 0.
    """
    check_share("delta", delta)
    return 1.0 if e >= k else float(special.betaincinv(e + 1.0, float(k - e), 1.0 - delta))


def interval(e: int, k: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's two-sided interval of an error rate, with equal tails; (0, 1) where k = 0."""
    check_share("confidence", confidence)
    delta = (1.0 - confidence) / 2.0
    return 1.0 - upper_bound(k - e, k, delta), upper_bound(e, k, delta)


@lru_cache(maxsize=256)
def start(n: int, alpha: float, delta: float = 0.1, share: float = SHARE) -> int:
    """Accepted units at which the walk begins; reads no label and no score.

    From the least k at which no error passes, the next count at which one error more passes, until it reaches
    min(share n, the count at which ten errors pass). Just before such a count the exact test has a quarter of its
    level: of 37 answers at alpha = delta = .1 none may be wrong (.020), of 38 one may be (.095).

    Returns:
        A count, which may be more than n. 38, 78 and 152 at alpha = delta = .1 and n = 100, 300 and 1,000.
    """
    check_share("share", share)
    fewest = fewest_accepted(np.arange(LATEST_START + 1), alpha, delta)
    return int(fewest[np.searchsorted(fewest, min(share * n, fewest[-1]))])


def walk(passed: Bools, first: int) -> int | None:
    """The last index from ``first`` on before the first test that fails; None if that is ``first``, or nothing is left.

    A fixed sequence of tests, each at delta (Learn then Test, arXiv 2110.01052): to end on a bad one, the first bad one
    at or past the start must have passed its own test. So ``passed`` runs from strict to loose, and ``first`` is fixed
    without labels.
    """
    ahead = passed[first:]
    if not ahead.size or not ahead[0]:
        return None
    return first + (ahead.size if ahead.all() else int(np.argmin(ahead))) - 1


def walk_of_tests(n: int, k: Ints, e: Ints, alpha: float, delta: float, share: float) -> tuple[int, int] | Infeasible:
    """`walk` of `tail` at delta over k accepted and e wrong of n: the index it reaches and the start, or why none."""
    begin = start(n, alpha, delta, share)
    first = int(np.searchsorted(k, begin))
    index = walk(e <= most_errors(n, alpha, delta)[k], first)
    if index is not None:
        return index, begin
    return Infeasible(n, "too_few_items" if first == k.size else "risk_never_low_enough", begin)


def certified(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1, *, share: float = SHARE) -> Result:
    """The largest threshold that `walk` reaches by exact tests: P(SCER > alpha) <= delta at the n given.

    SCER(t) = P(wrong | u <= t) is the error rate of the accepted answers; the probability is over calibrations. Needs
    independent units from the source that is served later, and no shape of the risk.

    Fine print (proofs: docs/guarantees.md): thresholds are scores of labelled units, and the unit on the first is not a
    random one of those below. The level is at most delta if risk does not fall with acceptance; for any risk without
    ties at most delta / (1 - alpha); for any risk with ties no proof is known, and an exact adversarial search stays
    below delta (tests/calibrate/rules/test_adversarial.py).

    ``share`` is that of all units which the first tested threshold accepts, see `start`: about half of what you expect
    to be answered. ``bound`` of the result is alpha; an infeasible one carries what `smallest` returns.
    """
    at = counts(u, wrong)
    reached = walk_of_tests(at.n, at.k, at.e, alpha, delta, share)
    if isinstance(reached, Infeasible):
        hint = smallest(u, wrong, delta, share=share)
        return replace(reached, first=hint if isinstance(hint, Feasible) else None)
    return at.at(reached[0], start=reached[1], bound=alpha)


def smallest(u: ArrayLike, wrong: ArrayLike, delta: float = 0.1, *, share: float = SHARE) -> Result:
    """The first threshold with k >= share n, and the exact upper bound of its error rate (``--alpha smallest``).

    One test at a place that depends neither on labels nor on alpha, so nothing is chosen: P(SCER > bound) <= delta,
    with the fine print of `certified`. Beside an infeasible fit it is a hint; used, it is another fit. Infeasible
    where fewer than share n units are measured, or all that are accepted are wrong: then no bound below 1 exists.
    """
    check_share("share", share)
    at = counts(u, wrong)
    index = at.from_share(share)
    if index == at.k.size or at.e[index] == at.k[index]:
        return Infeasible(at.n, "too_few_items" if index == at.k.size else "risk_never_low_enough")
    k, e = int(at.k[index]), int(at.e[index])
    return at.at(index, start=k, bound=upper_bound(e, k, delta))
