"""The gate: the one comparison that calibration, evaluation and run time share."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["accepts"]


@overload
def accepts(uncertainty: float, threshold: float) -> bool: ...
@overload
def accepts(uncertainty: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]: ...
def accepts(uncertainty: float | NDArray[np.float64], threshold: float) -> bool | NDArray[np.bool_]:
    """Accept iff ``uncertainty <= threshold``. Ties with the threshold are accepted, all of them.

    Args:
        uncertainty: A score or an array of scores; higher is less certain. NaN is never accepted.
        threshold: The largest accepted uncertainty, in the same unit.

    Returns:
        A bool for a float, a boolean array of the same shape for an array.
    """
    if isinstance(uncertainty, np.ndarray):
        return uncertainty <= threshold
    return bool(uncertainty <= threshold)
