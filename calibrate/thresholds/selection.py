"""Conformal selection: which questions of a batch to accept, with the false discovery rate under control."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError

from .fit import check_items, check_open_unit
from .rule import TOLERANCE

__all__ = ["Selection", "conformal_selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The accepted questions of one batch."""

    accepted: NDArray[np.bool_]
    """Whether each question of the batch is accepted, in the order given."""
    p_value: NDArray[np.float64]
    """Conformal p-value of "this answer is wrong", in the order given."""
    alpha: float
    """Target false discovery rate."""
    guarantee: str
    """What is promised, in one sentence."""

    @property
    def n_accepted(self) -> int:
        """Accepted questions; 0 is a legitimate result."""
        return int(self.accepted.sum())


def conformal_selection(
    calibration_uncertainty: ArrayLike, calibration_error: ArrayLike, test_uncertainty: ArrayLike, alpha: float
) -> Selection:
    """Accept part of a batch so that the expected share of wrong answers among the accepted is at most alpha.

    Formula: ``p_j = (1 + #{i: E_i = 1, u_i <= u_j}) / (n + 1)``, then Benjamini-Hochberg at alpha over the batch: with
    p sorted, accept the j* smallest, j* the largest j with p_(j) <= alpha j / m.

    Guarantee: E[wrong accepted / accepted] <= alpha over calibration and batch, with 0/0 = 0, exact in finite samples
    for exchangeable items. It is not the error rate *given* that something was accepted, and for a batch of one
    question it is the joint rate of ``crc_joint``. The threshold depends on the batch, so this is not a gate.

    Paper: Jin & Candes, arXiv 2210.01408; conformal alignment, arXiv 2405.10301. Ties count as at most as uncertain,
    which is conservative.

    Args:
        calibration_uncertainty: Scores, shape (n,), finite; higher is less certain.
        calibration_error: 0 or 1, shape (n,).
        test_uncertainty: Scores of the batch, shape (m,), finite; may be empty.
        alpha: Target, in (0, 1).

    Raises:
        UsageError: As :func:`fit`, naming the first offending item.
    """
    check_open_unit("alpha", alpha)
    scores, labels = check_items(calibration_uncertainty, calibration_error)
    batch = np.asarray(test_uncertainty, dtype=np.float64)
    if batch.ndim != 1:
        raise UsageError(f"test_uncertainty must be one-dimensional, got shape {batch.shape}.")
    finite = np.isfinite(batch)
    if not finite.all():
        index = int(np.argmin(finite))
        raise UsageError(f"test_uncertainty[{index}] must be finite, got {batch[index]}. Leave the question out.")
    wrong = np.sort(scores[labels == 1])
    # n + 1 and not the number of wrong items + 1: right items count in the denominator, which bounds the joint rate.
    p_value: NDArray[np.float64] = (1.0 + np.searchsorted(wrong, batch, side="right")) / np.float64(scores.size + 1)
    ranked = np.sort(p_value)
    # The last index that satisfies Benjamini-Hochberg counts, even if smaller ones fail; max(1, m) is for an empty
    # batch.
    fine = np.flatnonzero(ranked <= alpha * np.arange(1, batch.size + 1) / max(1, batch.size) + TOLERANCE)
    # By value and not by rank, so that tied questions are accepted or rejected together.
    accepted = p_value <= ranked[fine[-1]] if fine.size else np.zeros(batch.size, dtype=np.bool_)
    return Selection(
        accepted,
        p_value,
        float(alpha),
        f"The expected share of wrong answers among those accepted from one batch is at most {alpha:g} (0 when nothing "
        "is accepted), in finite samples for exchangeable questions. It says nothing about single batches.",
    )
