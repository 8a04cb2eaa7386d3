"""The gate: the one comparison that calibration, evaluation and run time share, and what it gives at each threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["RiskCoverage", "accepts", "risk_coverage"]


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


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """The risk-coverage curve: one entry a distinct score, by increasing uncertainty."""

    threshold: NDArray[np.float64]
    """Accept iff uncertainty <= this."""
    coverage: NDArray[np.float64]
    """Share accepted; the last is 1."""
    risk: NDArray[np.float64]
    """Error rate among the accepted; the last is the base error."""


def risk_coverage(uncertainty: ArrayLike, error: ArrayLike) -> RiskCoverage:
    """Risk against coverage at every distinct score. Nothing is interpolated and no point stands for zero coverage.

    Args:
        uncertainty: Finite scores, shape (n,).
        error: 0 or 1, shape (n,).
    """
    scores, wrong = np.asarray(uncertainty, dtype=np.float64), np.asarray(error)
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)  # ties are accepted together
    n_accepted = np.arange(1, scores.size + 1)[last_of_ties]
    n_errors = np.cumsum(wrong[order], dtype=np.int64)[last_of_ties]
    return RiskCoverage(ranked[last_of_ties], n_accepted / scores.size, n_errors / n_accepted)
