"""Metrics of selective prediction: what was accepted, how often it was wrong, and how well a score ranks errors.

Conventions. Uncertainty is higher = less certain; error is 1 for wrong. Equal scores are accepted or rejected together,
so curves and areas have one point a block of ties and do not depend on the order of the items. Where there is one class
only the AUROC is None, never 0 and never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.errors import UsageError
from guardrail.types import Frozen

from ..rules.counts import Counts, counts, items

__all__ = ["AurocInterval", "auroc", "auroc_interval", "fisher_exact", "ks_two_sample", "ranking_of"]

_Z = float(special.ndtri(0.975))


class AurocInterval(Frozen):
    """AUROC of a score for errors, with its 95 % confidence interval."""

    value: float
    """P(a wrong answer is less certain than a right one), ties counting half."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @property
    def verdict(self) -> Literal["ranks", "unclear", "reversed"]:
        """The ranking of errors: "unclear" when the interval contains .5, "reversed" when it lies below."""
        if self.high < 0.5:
            return "reversed"
        return "ranks" if self.low > 0.5 else "unclear"


def auroc(uncertainty: ArrayLike, error: ArrayLike) -> float | None:
    """P(a wrong answer is less certain than a correct one), ties counting half. None if there is only one class.

    The Mann-Whitney statistic; .5 is chance, below .5 the score points the wrong way.
    """
    return counts(uncertainty, error).auroc


def auroc_interval(uncertainty: ArrayLike, error: ArrayLike) -> AurocInterval | None:
    """AUROC with a 95 % DeLong interval on the logit scale; None if there is only one class.

    DeLong, DeLong & Clarke-Pearson (1988): each wrong answer has the share of right answers it is less certain than
    (ties half), each right answer the share of wrong ones; the variance of the AUROC is the sum of the sample variances
    of those shares over their numbers. The interval is taken on the logit scale, which keeps it inside (0, 1). Where
    that variance is 0 or cannot be had (a perfect ranking, a single error), Newcombe's (2006) score interval stands in:
    the AUROCs whose own variance, by the exponential model with balanced sizes, does not rule out what was seen.

    Args:
        uncertainty: Scores, shape (n,), finite; higher is less certain.
        error: 0 or 1, shape (n,).

    Raises:
        UsageError: As :func:`calibrate.fit`.
    """
    scores, labels = items(uncertainty, error)
    wrong, right = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    if not wrong.size or not right.size:
        return None
    of_wrong, of_right = _share_below(wrong, right), 1.0 - _share_below(right, wrong)
    value = float(of_wrong.mean())
    variance = _variance_of_mean(of_wrong) + _variance_of_mean(of_right)
    if 0 < value < 1 and 0 < variance < math.inf:
        # The derivative of the logit carries the standard error over to its scale.
        reach = _Z * math.sqrt(variance) / (value * (1 - value))
        centre = math.log(value / (1 - value))
        low, high = float(special.expit(centre - reach)), float(special.expit(centre + reach))
    else:
        low, high = _newcombe(value, wrong.size, right.size)
    return AurocInterval(value=value, low=low, high=high)


def _share_below(of: NDArray[np.float64], among: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of ``among`` (sorted) below each of ``of``, ties counting half."""
    below = np.searchsorted(among, of, side="left")
    # A score past all others has no place in the array; the last one differs from it, so it counts as untied.
    up_to, tied = below.copy(), among[np.minimum(below, among.size - 1)] == of  # a second search for these alone
    up_to[tied] = np.searchsorted(among, of[tied], side="right")
    shares: NDArray[np.float64] = (below + up_to) / (2.0 * among.size)
    return shares


def _variance_of_mean(shares: NDArray[np.float64]) -> float:
    # One answer has no spread to estimate; 0 would make the interval look exact.
    return float(shares.var(ddof=1)) / shares.size if shares.size > 1 else math.inf


def _newcombe(value: float, wrong: int, right: int) -> tuple[float, float]:
    """The AUROCs A with (A - value)^2 <= 1.96^2 V(A), by bisection on either side of the value."""
    balanced = (wrong + right) / 2 - 1

    def consistent(area: float) -> bool:
        spread = area * (1 - area) * (1 + balanced * ((1 - area) / (2 - area) + area / (1 + area)))
        return (area - value) ** 2 <= _Z * _Z * spread / (wrong * right)

    return _edge(consistent, value, 0.0), _edge(consistent, value, 1.0)


def _edge(consistent: Callable[[float], bool], inside: float, outside: float) -> float:
    """The end of ``consistent`` between ``inside``, which is consistent, and ``outside``, by bisection."""
    if inside == outside:
        return inside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if consistent(middle) else (inside, middle)
    return outside


def ranking_of(at: Counts) -> tuple[float | None, float, float]:
    """`auroc`, the area under the risk-coverage curve (AURC), and its excess over that of a perfect ranking (E-AURC).

    AURC is the mean over items of the risk at the threshold that just accepts the item: ``1/n sum_i e(u_i) / k(u_i)``,
    with e and k counted up to the end of item i's block of ties. Without ties this is the usual mean of prefix error
    rates (Geifman, Uziel & El-Yaniv, ICLR 2019). Lower is better, and an excess of 0 is perfect. The perfect ranking
    has the same accuracy and no ties. Where we differ: the paper approximates its area by
    ``mu + (1 - mu) ln(1 - mu)``; this is the exact sum.

    Args:
        at: Items that are counted already; the unmeasured among them play no part.

    Raises:
        UsageError: Not one of them is measured.
    """
    if not at.measured:
        raise UsageError(f"none of {at.n} items could be measured, so nothing is ranked.")
    area = float((at.e / at.k) @ at.ties) / at.measured
    wrong = np.arange(1, at.errors + 1)
    perfect = float((wrong / (at.measured - at.errors + wrong)).sum()) / at.measured
    # A perfect ranking gives 0 up to rounding, which must not show as a negative excess.
    return at.auroc, area, max(0.0, area - perfect)


def ks_two_sample(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Kolmogorov-Smirnov: largest distance of two distributions, and its asymptotic p-value (too large with ties)."""
    first, second = np.sort(first), np.sort(second)
    # Two step functions differ most at one of their own steps, so the samples themselves are all the places to look at.
    below = [
        [np.searchsorted(sample, at, side="right") / sample.size for sample in (first, second)]
        for at in (first, second)
    ]
    distance = max(float(np.abs(ours - theirs).max()) for ours, theirs in below)
    # The limit distribution, as in every audit written so far; scipy's "asymp" takes a finite-sample one.
    effective = first.size * second.size / (first.size + second.size)
    return distance, float(special.kolmogorov(math.sqrt(effective) * distance))


def fisher_exact(a: int, n: int, b: int, m: int) -> float:
    """p-value of "a of n and b of m have one probability": Fisher's exact test, two-sided, as in scipy and R.

    The sum of the hypergeometric probabilities of the tables that are at most as probable as the table found.
    `scipy.stats` has the same, and takes as long to import as all else that a fit does.
    """
    total = a + b
    found = np.arange(max(0, total - m), min(n, total) + 1)

    def log_choose(size: int, some: NDArray[np.int64]) -> NDArray[np.float64]:
        ways: NDArray[np.float64] = (
            special.gammaln(size + 1.0) - special.gammaln(some + 1.0) - special.gammaln(size - some + 1.0)
        )
        return ways

    log_p = log_choose(n, found) + log_choose(m, total - found)
    p = np.exp(log_p - log_p.max())
    at_most = p <= p[a - found[0]] * (1 + 1e-7)  # equal probabilities differ by rounding
    return min(1.0, float(p[at_most].sum() / p.sum()))
