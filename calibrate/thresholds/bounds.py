"""Exact bounds for a proportion: Clopper-Pearson, the binomial tail as a p-value, and Hoeffding.

All take counts (errors ``e`` among ``k`` items), not rates, so nothing is rounded on the way. They are *pointwise*:
each holds for one ``k`` fixed before looking at the labels, and none for the best of many.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.errors import UsageError

__all__ = ["binomial_tail", "clopper_pearson_interval", "clopper_pearson_upper", "hoeffding_upper", "zero_error_floor"]


def _check_counts(errors: int, items: int) -> None:
    if items < 1 or not 0 <= errors <= items:
        raise UsageError(
            f"errors must be between 0 and items, and items at least 1, got {errors} of {items}. "
            "Pass counts, not rates."
        )


def _check_probability(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")


@overload
def binomial_tail(errors: int, items: int, alpha: float) -> float: ...
@overload
def binomial_tail(errors: ArrayLike, items: ArrayLike, alpha: float) -> float | NDArray[np.float64]: ...
def binomial_tail(errors: ArrayLike, items: ArrayLike, alpha: float) -> float | NDArray[np.float64]:
    """P(Bin(items, alpha) <= errors): the p-value of "the error rate is at least alpha".

    Formula: the regularised incomplete beta function ``I_{1-alpha}(k - e, e + 1)``. It is 0 for ``e < 0`` and 1 for
    ``e >= k``. ``binomial_tail(e, k, alpha) <= delta`` is the same statement as
    ``clopper_pearson_upper(e, k, delta) <= alpha``.

    Args:
        errors: e, integer-valued, a number or an array.
        items: k, integer-valued, broadcast against ``errors``.
        alpha: The error rate to test, in (0, 1).

    Returns:
        A float for numbers, an array for arrays.
    """
    e = np.asarray(errors, dtype=np.float64)
    k = np.asarray(items, dtype=np.float64)
    # betainc is undefined at 0 parameters, so entries outside get harmless ones here and their limits below.
    inside = (e >= 0) & (e < k)
    tail = special.betainc(np.where(inside, k - e, 1.0), np.where(inside, e + 1.0, 1.0), 1.0 - alpha)
    result = np.where(inside, tail, np.where(e < 0, 0.0, 1.0))
    return float(result) if result.ndim == 0 else result


def clopper_pearson_upper(errors: int, items: int, delta: float) -> float:
    """Upper confidence bound of an error rate: P(rate <= bound) >= 1 - delta for a fixed number of items.

    Formula: the ``1 - delta`` quantile of Beta(e + 1, k - e); 1 when every item is an error.

    Raises:
        UsageError: Impossible counts, or delta outside (0, 1).
    """
    _check_counts(errors, items)
    _check_probability("delta", delta)
    # Beta(k + 1, 0) does not exist: with every item wrong no bound below 1 holds.
    if errors == items:
        return 1.0
    return float(special.betaincinv(errors + 1.0, float(items - errors), 1.0 - delta))


def clopper_pearson_interval(errors: int, items: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided exact (Clopper & Pearson 1934) interval of an error rate, equal tails.

    Args:
        errors: e.
        items: k, at least 1.
        confidence: Coverage, in (0, 1).

    Returns:
        ``(low, high)``; low is 0 without errors, high is 1 when every item is an error.

    Raises:
        UsageError: Impossible counts, or confidence outside (0, 1).
    """
    _check_counts(errors, items)
    _check_probability("confidence", confidence)
    tail = (1.0 - confidence) / 2.0
    # Beta(0, k + 1) does not exist: without an error no lower bound above 0 holds.
    low = 0.0 if errors == 0 else float(special.betaincinv(float(errors), items - errors + 1.0, tail))
    return low, clopper_pearson_upper(errors, items, tail)


def hoeffding_upper(errors: int, items: int, delta: float) -> float:
    """Hoeffding's upper bound ``e/k + sqrt(ln(1/delta) / (2 k))``, capped at 1. Looser than Clopper-Pearson.

    Raises:
        UsageError: Impossible counts, or delta outside (0, 1).
    """
    _check_counts(errors, items)
    _check_probability("delta", delta)
    return min(1.0, errors / items + math.sqrt(math.log(1.0 / delta) / (2.0 * items)))


def zero_error_floor(alpha: float, delta: float) -> int:
    """Fewest error-free items that support (alpha, delta): ``ceil(ln delta / ln(1 - alpha))``.

    19 at alpha .15, 59 at .05 and 299 at .01, for delta = .05.

    Raises:
        UsageError: alpha or delta outside (0, 1).
    """
    _check_probability("alpha", alpha)
    _check_probability("delta", delta)
    # log1p keeps the digits of a small alpha; 1e-9 keeps a whole quotient from being rounded up to the next number.
    return max(1, math.ceil(math.log(delta) / math.log1p(-alpha) - 1e-9))
