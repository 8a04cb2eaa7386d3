"""Calibration items sorted by uncertainty and cut into blocks of equal scores: what every threshold rule reads.

Only the end of a block is a candidate for a threshold: ties are accepted or rejected together, and labels never break
ties. Counts are integers throughout; a rule divides last, if at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["TOLERANCE", "ClusterSums", "Prefix", "prefixes"]

TOLERANCE = 1e-9
"""Counts closer than this are equal: alpha is a decimal, and alpha * k must not miss an integer by a rounding error."""


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Sums over groups, at every block end: group g has m_g accepted items, e_g of them wrong."""

    number: NDArray[np.int64]
    """Groups with an accepted item."""
    ee: NDArray[np.int64]
    """Sum of e_g^2."""
    em: NDArray[np.int64]
    """Sum of e_g m_g."""
    mm: NDArray[np.int64]
    """Sum of m_g^2."""


@dataclass(frozen=True, slots=False)
class Prefix:
    """The block ends of a calibration set, in order of increasing uncertainty.

    Arrays have one entry a block and must not be written to.
    """

    n: int
    """Calibration items."""
    score: NDArray[np.float64]
    """Uncertainty of each block, strictly increasing."""
    k: NDArray[np.int64]
    """Items accepted by a threshold at this block: strictly increasing, the last is n."""
    e: NDArray[np.int64]
    """Errors among those k."""
    clusters: ClusterSums | None = None
    """Sums over groups, for rules that read them; None when every item is its own group."""

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """Items in each block."""
        return np.diff(self.k, prepend=0)

    @property
    def errors(self) -> int:
        """Errors in the whole calibration set."""
        return int(self.e[-1])

    def at_least(self, k: int) -> int:
        """Index of the first block end at or past k items; the number of blocks if there is none."""
        return int(np.searchsorted(self.k, k, side="left"))

    def excess(self, alpha: float) -> NDArray[np.float64]:
        """C_k = e_k - alpha k at every block end, in items."""
        return self.e - alpha * self.k

    @cached_property
    def auroc(self) -> float | None:
        """P(a wrong answer is less certain than a correct one), ties counting half; None if only one class exists."""
        wrong, right = self.errors, self.n - self.errors
        if wrong == 0 or right == 0:
            return None
        if self.k.size == self.n:  # untied: count the pairs from the errors below each item
            return (self.n * wrong - int(self.e.sum()) - wrong * (wrong - 1) // 2) / (wrong * right)
        wrong_here = np.diff(self.e, prepend=0)
        right_here = self.size - wrong_here
        right_below = (self.k - self.e) - right_here
        return float(wrong_here @ (right_below + 0.5 * right_here)) / (wrong * right)


def prefixes(uncertainty: NDArray[np.float64], error: NDArray[np.int8]) -> Prefix:
    """Sort items by uncertainty (low first) and count errors at every block end.

    Args:
        uncertainty: Finite scores, shape (n,), n >= 1. ``0.0`` and ``-0.0`` are equal.
        error: 0 or 1, shape (n,).
    """
    # Scores and the scores of wrong answers are sorted apart: sorting values takes a quarter of the time of sorting
    # indices, and only a block's count of errors matters, not which of its items is wrong.
    ranked, wrong = np.sort(uncertainty), np.sort(uncertainty[error.astype(np.bool_)])
    is_end = np.empty(ranked.size, dtype=np.bool_)
    np.not_equal(ranked[1:], ranked[:-1], out=is_end[:-1])
    is_end[-1] = True
    if is_end.all():  # untied: mark the wrong items among the ranked and count along
        counted = np.zeros(ranked.size, dtype=np.int64)
        counted[np.searchsorted(ranked, wrong)] = 1
        return Prefix(ranked.size, ranked, np.arange(1, ranked.size + 1), np.cumsum(counted, out=counted))
    end = np.flatnonzero(is_end)
    return Prefix(ranked.size, ranked[end], end + 1, np.searchsorted(wrong, ranked[end], side="right"))
