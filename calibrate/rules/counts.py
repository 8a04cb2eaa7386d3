"""Labelled units as counts at the thresholds that occur, and the two results that a rule can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

TOLERANCE = 1e-9  # counts closer than this are equal: alpha k must not miss a whole number by a rounding error

# No threshold would pass even without an error; or some would, and none does.
Reason: TypeAlias = Literal["too_few_items", "risk_never_low_enough"]


@dataclass(frozen=True, slots=True)
class Feasible:
    """A threshold, one of the finite scores: accept iff u <= threshold.

    It accepts k of the n labelled units (the unmeasured are among the n), e of the k wrongly. ``start``: accepted units
    from which thresholds are tested; None for a rule that looks at all. ``bound``: the error rate that holds with
    probability 1 - delta; None for a rule that certifies nothing.
    """

    threshold: float
    n: int
    k: int
    e: int
    start: int | None = None
    bound: float | None = None

    @property
    def acceptance(self) -> float:
        """Share of all units that is accepted, k / n."""
        return self.k / self.n


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No threshold: nothing is accepted.

    ``first``: of `certified` what `smallest` returns for these units, a hint; of `prediction_powered` what was tested
    first.
    """

    n: int
    reason: Reason
    start: int | None = None
    first: Feasible | None = None


Result: TypeAlias = Feasible | Infeasible


@dataclass(frozen=True, slots=True)
class Counts:
    """k accepted and e wrong among them at each finite score that occurs (increasing), of n units in all."""

    n: int
    threshold: Floats
    k: Ints
    e: Ints

    def at(self, index: int, *, start: int | None = None, bound: float | None = None) -> Feasible:
        """The result that accepts up to one of the thresholds."""
        return Feasible(float(self.threshold[index]), self.n, int(self.k[index]), int(self.e[index]), start, bound)

    @property
    def measured(self) -> int:
        """Units with a finite score."""
        return int(self.k[-1]) if self.k.size else 0

    @property
    def errors(self) -> int:
        """Wrong units among the measured."""
        return int(self.e[-1]) if self.e.size else 0

    @property
    def ties(self) -> Ints:
        """Units with exactly the score of each threshold."""
        return np.diff(self.k, prepend=0)

    @property
    def auroc(self) -> float | None:
        """P(a wrong unit is less certain than a right one) of the measured, ties counting half; None for one class."""
        wrong, right = self.errors, self.measured - self.errors
        if not wrong or not right:
            return None
        # In whole and half counts of whole blocks, so that the order within a block plays no part.
        wrong_here = np.diff(self.e, prepend=0)
        right_here = self.ties - wrong_here
        right_below = (self.k - self.e) - right_here
        return float(wrong_here @ (right_below + 0.5 * right_here)) / (wrong * right)

    def accepted(self, threshold: float) -> tuple[int, int]:
        """Units that a threshold accepts, and errors among them."""
        # side="right", because the gate accepts a score equal to the threshold.
        thresholds = int(np.searchsorted(self.threshold, threshold, side="right"))
        return (int(self.k[thresholds - 1]), int(self.e[thresholds - 1])) if thresholds else (0, 0)

    def from_share(self, share: float) -> int:
        """Index of the first threshold that accepts this share of all units; the number of thresholds if none does."""
        return int(np.searchsorted(self.k, share * self.n - TOLERANCE))


def counts(u: ArrayLike, wrong: ArrayLike) -> Counts:
    """Count accepted and wrong units at the thresholds that occur.

    Ties are one block: labels never order them. A unit with score +inf was not measured: it is one of the n, and no
    threshold accepts it.
    """
    scores, labels = items(u, wrong)
    order = np.argsort(scores, kind="stable")
    ranked, errors = scores[order], np.cumsum(labels[order], dtype=np.int64)
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True) & (ranked < np.inf))
    return Counts(scores.size, ranked[ends], ends + 1, errors[ends])


def items(u: ArrayLike, wrong: ArrayLike) -> tuple[Floats, Ints]:
    """Return scores and labels as arrays of one shape (n,), checked.

    Raises:
        UsageError: Arrays that are empty or differ in shape, a score that is NaN or -inf, a label that is not 0 or 1.
    """
    try:
        scores, labels = np.asarray(u, dtype=np.float64), np.asarray(wrong)
    except (TypeError, ValueError) as error:
        raise UsageError(f"u and wrong must be numbers: {error}.") from error
    if scores.ndim != 1 or scores.shape != labels.shape or not scores.size:
        raise UsageError(f"u and wrong must have one shape (n,) with n >= 1, got {scores.shape} and {labels.shape}.")
    if not (above := scores > -np.inf).all():
        at = int(np.argmin(above))
        raise UsageError(f"u[{at}] is {scores[at]}. Write inf where the uncertainty was not measured.")
    if not (known := (labels == 0) | (labels == 1)).all():
        at = int(np.argmin(known))
        raise UsageError(f"wrong[{at}] must be 0 (right) or 1 (wrong or undecided), got {labels[at]}.")
    return scores, labels.astype(np.int64)


def check_share(name: str, value: float) -> None:
    """Raise `UsageError` unless the value is a number in (0, 1); of a likely percentage it says what was meant."""
    # A bool is an int in Python, and True would pass for the number 1.
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UsageError(f"{name} must be a number in (0, 1), got {value!r}.")
    if not 0 < value < 1:
        hint = f" Write {value / 100:g} for {value:g} %." if 1 < value < 100 else ""
        raise UsageError(f"{name} must be in (0, 1), got {value}.{hint}")
