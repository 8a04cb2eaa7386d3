"""The gate: the one comparison that calibration, evaluation and run time share, and the questions that it is about.

The error rate behind a threshold t <= cut does not depend on what lies above the cut, so a rule that is fitted on
labels from below a cut that was fixed without labels keeps its promise (`Scope`). Nothing above the cut is answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .types import Frozen

__all__ = ["EVERY_QUESTION", "RiskCoverage", "Scope", "accepts", "risk_coverage"]


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


class Scope(Frozen):
    """The questions of a promise, and how those to label were drawn among them; without values: all questions."""

    score: str = ""
    """Key of the score that the cut is on."""
    share: float = 1.0
    """Share of the measured questions to draw from, in (0, 1]."""
    cut: float | None = None
    """Largest score of the scope; None for all questions."""
    n_asked: int = 0
    """Questions of the scored file, none of them labelled."""
    n_failed: int = 0
    """Questions among them without a score because a server, a rate limit or a time-out failed."""
    n_pool: int = 0
    """Questions among them with a score."""
    n_within: int = 0
    """Questions among them with a score of at most the cut."""
    n: int = 0
    """Questions drawn from them to be labelled, uniformly and without replacement."""
    seed: int = 0
    """Seed of the draw."""
    fixed_beforehand: bool = False
    """Whether the share was fixed before the scores were looked at; if not, the pool below the cut is at least three
    times the number of questions drawn."""
    drawn_sha256: str = ""
    """Digest of the drawn questions' ids and scores, in the order of the draw."""

    @property
    def is_drawn(self) -> bool:
        """Whether the labelled questions were drawn by a score."""
        return self.cut is not None

    @property
    def leaves_out(self) -> bool:
        """Whether some of the measured questions lie above the cut."""
        return self.n_within < self.n_pool

    def covers(self, scores: Any) -> Any:
        """Whether scores lie in the scope.

        Args:
            scores: A number, or an array of any shape.

        Returns:
            A boolean, or an array of booleans of the same shape.
        """
        return accepts(scores, math.inf if self.cut is None else self.cut)

    def of_measured(self, share: float) -> float:
        """A share of the questions within the scope as a share of the measured questions."""
        return share * self.n_within / self.n_pool if self.is_drawn else share

    @property
    def measured(self) -> float:
        """Share of the questions asked that had a score when the draw was made."""
        return self.n_pool / self.n_asked if self.n_asked else 1.0

    @property
    def failed(self) -> float:
        """Share of the questions asked that failed (server, rate limit, time-out) when the draw was made."""
        return self.n_failed / self.n_asked if self.n_asked else 0.0


EVERY_QUESTION: Final = Scope()
"""The scope of a promise about all questions."""


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
