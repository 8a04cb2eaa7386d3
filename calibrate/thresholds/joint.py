"""Conformal risk control of the joint error "accepted and wrong": monotone, so exact in finite samples."""

from __future__ import annotations

import numpy as np

from .prefix import TOLERANCE, Prefix
from .rule import Request, Rule

__all__ = ["CrcJoint"]


class CrcJoint(Rule):
    """The largest block end with ``(e_k + 1) / (n + 1) <= alpha``.

    Guarantee: P(accepted and wrong) <= alpha for the next question, over calibration and question, exact for
    exchangeable items and any n. It is a share of *all* questions, not of the accepted ones: the error rate among
    accepted answers is that divided by the acceptance. Paper: Angelopoulos et al., ICLR 2024, arXiv 2208.02814.
    """

    name = "crc_joint"

    def select(self, prefix: Prefix, request: Request) -> int | None:
        """Largest block end with e_k + 1 <= alpha (n + 1); e_k never falls with k."""
        limit = request.alpha * (prefix.n + 1) - 1.0 + TOLERANCE
        index = int(np.searchsorted(prefix.e, limit, side="right")) - 1
        return index if index >= 0 else None

    def guarantee(self, request: Request) -> str:
        """Exact, of a joint rate."""
        return (
            f"P(accepted and wrong) <= {request.alpha:g} per question, on average over calibrations, exact in finite "
            "samples for exchangeable items. This is a share of all questions, not of the accepted ones."
        )
