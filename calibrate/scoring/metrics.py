"""Metrics of selective prediction: what was accepted, how often it was wrong, and how well a score ranks errors.

Conventions. Uncertainty is higher = less certain; error is 1 for wrong. Equal scores are accepted or rejected together,
so curves and areas have one point a block of ties and do not depend on the order of the items. Where a ratio has no
denominator (nothing accepted, no correct answer, one class only) the metric is None, never 0 and never NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.errors import UsageError
from guardrail.gate import RiskCoverage, risk_coverage

from ..rules.counts import Counts, counts, items

__all__ = [
    "RiskCoverage",
    "acceptance",
    "aurc",
    "auroc",
    "excess_aurc",
    "fisher_exact",
    "ks_two_sample",
    "power",
    "ranking_of",
    "risk_coverage_curve",
    "scer",
]


def scer(error: ArrayLike, accepted: ArrayLike) -> float | None:
    """Selection-conditioned error rate: errors among the accepted / accepted. None when nothing was accepted.

    Args:
        error: 0 or 1, shape (n,).
        accepted: Booleans, shape (n,), as :func:`guardrail.gate.accepts` returns them.
    """
    wrong, accepted_mask = _labels(error, accepted)
    return float(wrong[accepted_mask].mean()) if accepted_mask.any() else None


def acceptance(accepted: ArrayLike) -> float | None:
    """Accepted share of all questions (AR, coverage). None without questions."""
    accepted_mask = np.asarray(accepted, dtype=np.bool_)
    return float(accepted_mask.mean()) if accepted_mask.size else None


def power(error: ArrayLike, accepted: ArrayLike) -> float | None:
    """Share of the correct answers that are accepted. None when no answer is correct."""
    wrong, accepted_mask = _labels(error, accepted)
    right = ~wrong
    return float(accepted_mask[right].mean()) if right.any() else None


def auroc(uncertainty: ArrayLike, error: ArrayLike) -> float | None:
    """P(a wrong answer is less certain than a correct one), ties counting half. None if there is only one class.

    The Mann-Whitney statistic; .5 is chance, below .5 the score points the wrong way.
    """
    return counts(uncertainty, error).auroc


def risk_coverage_curve(uncertainty: ArrayLike, error: ArrayLike) -> RiskCoverage:
    """Risk against coverage at every distinct score. Nothing is interpolated and no point stands for zero coverage."""
    return risk_coverage(*items(uncertainty, error))


def aurc(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean over items of the risk at the threshold that just accepts the item.

    Formula: ``1/n sum_i e(u_i) / k(u_i)``, with e and k counted up to the end of item i's block of ties. Without ties
    this is the usual mean of prefix error rates (Geifman, Uziel & El-Yaniv, ICLR 2019). Lower is better.
    """
    return _aurc(counts(uncertainty, error))


def excess_aurc(uncertainty: ArrayLike, error: ArrayLike) -> float:
    """AURC minus the AURC of a perfect ranking, all correct answers first (E-AURC). 0 is perfect.

    The perfect ranking has the same accuracy and no ties. Where we differ: the paper (Geifman, Uziel & El-Yaniv, 2019)
    approximates its area by ``mu + (1 - mu) ln(1 - mu)``; this is the exact sum.
    """
    return ranking_of(counts(uncertainty, error))[2]


def ranking_of(at: Counts) -> tuple[float | None, float, float]:
    """`auroc`, `aurc` and `excess_aurc` of the measured among items that are counted already.

    Raises:
        UsageError: Not one of them is measured.
    """
    if not at.measured:
        raise UsageError(f"none of {at.n} items could be measured, so nothing is ranked.")
    wrong, area = np.arange(1, at.errors + 1), _aurc(at)
    perfect = float((wrong / (at.measured - at.errors + wrong)).sum()) / at.measured
    # A perfect ranking gives 0 up to rounding, which must not show as a negative excess.
    return at.auroc, area, max(0.0, area - perfect)


def _aurc(at: Counts) -> float:
    return float((at.e / at.k) @ at.ties) / at.measured


def _labels(error: ArrayLike, accepted: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    wrong, accepted_mask = np.asarray(error), np.asarray(accepted, dtype=np.bool_)
    if wrong.shape != accepted_mask.shape:
        raise UsageError(
            f"error has shape {wrong.shape} and accepted has {accepted_mask.shape}. Pass one of each an item."
        )
    # Not a cast to bool: a label other than 0 and 1 must not count as wrong.
    return wrong == 1, accepted_mask


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
