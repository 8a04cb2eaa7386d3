"""The rule of the base paper, repaired and as printed, its baselines and its ablations. None is a certificate.

Base paper: "Asymptotic Risk Calibration for Selective Question Answering" (A-CRC). With k units accepted at a threshold
and e of them wrong, C = e - alpha k is n times the paper's empirical linear risk. Each rule accepts the largest
threshold that satisfies a condition; a bound that is scanned in this way picks the luckiest of n tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError

from .certificate import most_errors
from .counts import TOLERANCE, Bools, Counts, Infeasible, Result, check_share, counts


def fixed_quantile(
    u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1, *, quantile: float = 0.5
) -> Result:
    """Accept a fixed share: the largest k <= quantile n (Fixed-50). Reads no label; alpha and delta play no part."""
    if not 0 < quantile <= 1:
        raise UsageError(f"quantile must be in (0, 1], got {quantile:g}. Write 0.5 for half.")
    return _largest(u, wrong, alpha, lambda at: at.k <= quantile * at.n + TOLERANCE)


def empirical(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1) -> Result:
    """The plug-in rule: the largest threshold with e <= alpha k. About half of its gates end above alpha."""
    return _largest(u, wrong, alpha, lambda at: at.e <= alpha * at.k + TOLERANCE)


def lec(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1) -> Result:
    """LEC-Direct (arXiv 2512.01556): the largest threshold with e - alpha k <= -1.

    Where we differ: its authors state P(wrong | accepted) <= alpha in finite samples, which no rule that ever accepts
    can keep for any data. Measured at alpha = .15, the rate is .1675 and .1520 at n = 100 and 1,000.
    """
    return _largest(u, wrong, alpha, lambda at: at.e - alpha * at.k <= TOLERANCE - 1)


def hoeffding(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.05) -> Result:
    """UCB-HFD: the largest threshold with e/k + sqrt(ln(1/delta) / (2 k)) <= alpha."""
    check_share("delta", delta)
    return _largest(u, wrong, alpha, lambda at: at.e / at.k + np.sqrt(math.log(1 / delta) / (2 * at.k)) <= alpha)


def clopper_pearson(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.05) -> Result:
    """UCB-CLP (COIN, arXiv 2506.20178): the largest threshold with P(Bin(k, alpha) <= e) <= delta.

    Each bound is exact for one threshold; the scan is not. Where the error rate is alpha at every threshold it accepts
    with probability .14 to .29 at delta = .05 (alpha .15, n = 100 to 1,000).
    """
    return _largest(u, wrong, alpha, lambda at: at.e <= most_errors(at.n, alpha, delta)[at.k])


def acrc(
    u: ArrayLike,
    wrong: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    *,
    k_min: int | None = None,
    monotone: bool = True,
    correction: bool = True,
    envelope: bool = False,
) -> Result:
    """A-CRC: the largest k >= k_min with max over thresholds j from k_min to k of C_j + (1 - alpha) n/(n + 1) <= 0.

    Promise: for independent units E[accepted and wrong] / E[accepted] tends to at most alpha as n grows. About 40 % of
    its gates end above alpha; delta plays no part. Source: equations 9 to 15 of the base paper.

    Where we differ: the paper has k_min = 1, and then nothing is ever accepted on untied scores at alpha < 1/2: the
    first threshold has C_1 >= -alpha > -(1 - alpha) n/(n + 1), and the maximum keeps that value. Here k_min =
    max(ceil(ln .05 / ln(1 - alpha)), ceil(.05 n)): the right answers that reject a rate of alpha at 5 %, and a share
    that keeps the family of thresholds fixed as n grows.

    ``k_min=1`` is the rule as printed. Ablations: ``monotone=False`` tests each threshold from
    k_min on by itself; ``correction=False`` leaves (1 - alpha) n/(n + 1) out; ``envelope=True`` has the instance-wise
    envelope (1 - alpha) e instead of C, and with the correction never accepts.
    """
    if k_min is not None and k_min < 1:
        raise UsageError(f"k_min must be a number of accepted units, at least 1, got {k_min}. Leave it out.")

    def condition(at: Counts) -> Bools:
        allowed = at.k >= (default_k_min(at.n, alpha) if k_min is None else k_min)
        loss = (1 - alpha) * at.e if envelope else at.e - alpha * at.k
        fine = loss + ((1 - alpha) * at.n / (at.n + 1) if correction else 0.0) <= TOLERANCE
        return np.asarray(allowed & (~np.logical_or.accumulate(allowed & ~fine) if monotone else fine))

    return _largest(u, wrong, alpha, condition)


def default_k_min(n: int, alpha: float) -> int:
    """The fewest of n units that rule acrc may accept, see there."""
    # The tolerance keeps a quotient that is a whole number but for its last bit from being rounded up to the next one.
    return max(math.ceil(max(math.log(0.05) / math.log1p(-alpha), 0.05 * n) - TOLERANCE), 1)


def _largest(u: ArrayLike, wrong: ArrayLike, alpha: float, condition: Callable[[Counts], Bools]) -> Result:
    """The largest threshold that satisfies a condition, or why none does."""
    check_share("alpha", alpha)
    at = counts(u, wrong)
    good = np.flatnonzero(condition(at))
    if good.size:
        return at.at(int(good[-1]))
    possible = condition(replace(at, e=np.zeros_like(at.e))).any()
    return Infeasible(at.n, "risk_never_low_enough" if possible else "too_few_items")
