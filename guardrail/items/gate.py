"""The gate of items: the one comparison that calibration, evaluation and run time share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["kept", "mean_uncertainty", "measured"]


def measured(uncertainties: Sequence[float | None] | NDArray[np.float64], cap: int) -> NDArray[np.float64]:
    """The uncertainties of one answer's items as the gate compares them; infinity is never kept.

    An item that could not be measured (None, NaN or an infinity) becomes infinity. Beyond the ``cap`` most certain ones
    all others do, too; of equal ones the first in the text are among the most certain. The certificate needs the cap:
    with more items than that, one answer could be wrong in more places than calibration allowed for.

    Args:
        uncertainties: One for each item, in the order of the text; higher is less certain.
        cap: Most items of an answer that can be kept, at least 1. Fixed without labels and stored with the threshold.

    Returns:
        A new array, shape (items,).

    Raises:
        ValueError: The cap is below 1.
    """
    if cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}. Give the most items of an answer that can be kept.")
    values = np.array(uncertainties, dtype=np.float64)  # None becomes NaN
    values[~np.isfinite(values)] = math.inf
    if values.size > cap:
        values[np.argsort(values, kind="stable")[cap:]] = math.inf
    return values


def mean_uncertainty(uncertainties: Sequence[float | None]) -> float | None:
    """The one number of an answer that a drift monitor compares: the mean over its items, an unmeasured item as 1.

    It moves with every item, while the most certain one is often at 0. Any fixed function of an answer's items keeps
    answers exchangeable, so the monitor's test stays exact.

    Returns:
        A number in [0, 1]; None if no part was measured.
    """
    if all(value is None for value in uncertainties):
        return None
    return sum(1.0 if value is None else value for value in uncertainties) / len(uncertainties)


def kept(
    uncertainties: Sequence[float | None] | NDArray[np.float64], threshold: float | None, cap: int
) -> NDArray[np.bool_]:
    """Which items are kept: those with ``uncertainty <= threshold`` after `measured`.

    Equal uncertainties are kept together, except at the cap.

    Args:
        uncertainties: One for each item, in the order of the text.
        threshold: The largest uncertainty that is kept; None keeps nothing.
        cap: As in `measured`.

    Returns:
        A boolean array, shape (items,).
    """
    values = measured(uncertainties, cap)
    if threshold is None:
        return np.zeros(values.size, dtype=np.bool_)
    return (values <= threshold) & np.isfinite(values)
