"""Threshold rules, and the sorted calibration items that they read.

A rule reads calibration items sorted by uncertainty and cut into blocks of equal scores (`Prefix`). Only the end of a
block is a candidate for a threshold: ties are accepted or rejected together, and labels never break ties. Counts are
integers throughout; a rule divides last, if at all.

A rule (`Rule`) is a name, options, one selection, and what it states about itself: its promise in one sentence, whether
it certifies, and where it is shown.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TOLERANCE",
    "GroupedItems",
    "Prefix",
    "Rule",
    "RuleRequest",
    "default_k_min",
    "k_min_of",
    "prefixes",
    "ranked_prefixes",
]


TOLERANCE = 1e-9
"""Counts closer than this are equal: alpha is a decimal, and alpha * k must not miss an integer by a rounding error."""


@dataclass(frozen=True, slots=True)
class GroupedItems:
    """Every item with its group, in order of increasing uncertainty, so that the first k are those accepted at k."""

    code: NDArray[np.int64]
    """Group of each item, from 0, in the order in which groups are read; shape (n,)."""
    error: NDArray[np.int64]
    """0 or 1, shape (n,)."""


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
    grouped: GroupedItems | None = None
    """The items by group, for rules that read them; None when every item is its own group."""

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """Items in each block."""
        return np.diff(self.k, prepend=0)

    @property
    def errors(self) -> int:
        """Errors in the whole calibration set."""
        return int(self.e[-1])

    def at_least(self, k: int) -> int:
        """Index of the first block end at or past k items; the number of blocks if no block reaches so far."""
        return int(np.searchsorted(self.k, k, side="left"))

    def accepted(self, threshold: float) -> tuple[int, int]:
        """Items that a threshold accepts, and errors among them."""
        # side="right", because the gate accepts a score equal to the threshold.
        blocks = int(np.searchsorted(self.score, threshold, side="right"))
        return (int(self.k[blocks - 1]), int(self.e[blocks - 1])) if blocks else (0, 0)

    def excess(self, alpha: float) -> NDArray[np.float64]:
        """C_k = e_k - alpha k at every block end, in items."""
        return self.e - alpha * self.k

    def items(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Scores and labels of the items, least uncertain first; labels in an order of their own within a block."""
        if self.grouped is not None:
            return np.repeat(self.score, self.size), self.grouped.error
        wrong = np.diff(self.e, prepend=0)
        labels = np.zeros(self.n, dtype=np.int64)
        place = np.arange(self.n) - np.repeat(self.k - self.size, self.size)
        labels[place < np.repeat(wrong, self.size)] = 1
        return np.repeat(self.score, self.size), labels

    @cached_property
    def auroc(self) -> float | None:
        """P(a wrong answer is less certain than a correct one), ties counting half; None if only one class exists."""
        wrong, right = self.errors, self.n - self.errors
        if wrong == 0 or right == 0:
            return None
        if self.k.size == self.n:  # untied: count the pairs from the errors below each item
            return (self.n * wrong - int(self.e.sum()) - wrong * (wrong - 1) // 2) / (wrong * right)
        # With ties whole blocks are compared, in whole and half counts, so that the order within a block plays no part.
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


def ranked_prefixes(ranked: NDArray[np.float64], error: NDArray[np.int8]) -> Prefix:
    """`prefixes` of items that are sorted already: no sort, for one pool that is cut many times."""
    is_end = np.append(ranked[1:] != ranked[:-1], True)
    counted = np.cumsum(error, dtype=np.int64)
    if is_end.all():
        return Prefix(ranked.size, ranked, np.arange(1, ranked.size + 1), counted)
    end = np.flatnonzero(is_end)
    return Prefix(ranked.size, ranked[end], end + 1, counted[end])


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """Target, failure probability and options of one fit."""

    alpha: float
    """Target error rate among accepted answers, in (0, 1)."""
    delta: float | None = None
    """Failure probability, in (0, 1); None for rules that have none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the rule, with defaults filled in but not resolved (``min_accept`` may still be None)."""

    def at(self, alpha: float) -> RuleRequest:
        """The same request at another alpha."""
        return replace(self, alpha=alpha)

    @property
    def level(self) -> float:
        """delta, for rules that have one."""
        assert self.delta is not None
        return self.delta


class Rule(ABC):
    """A threshold rule: a pure function of the block ends to one of them, or to None."""

    name: str
    """As the user writes it."""
    uses_delta: bool = False
    """Whether the rule takes a failure probability."""
    uses_alpha: bool = True
    """Whether the choice depends on alpha at all."""
    grouping: Literal["none", "one_each", "all"] = "none"
    """What the rule does with items that share a group: nothing (then they are refused), use one item of each group,
    or read all items by group (``Prefix.grouped``)."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Options and their defaults."""
    certifies: bool = False
    """Whether the rule keeps the error rate among accepted answers at alpha with probability 1 - delta, at finite n."""
    population: Literal["accepted", "all"] = "accepted"
    """What alpha is a share of: accepted answers, or all questions."""
    promise: str = "see its documentation"
    """What the rule promises, in a few words, for tables; the whole sentence is `guarantee`."""
    in_report: bool = False
    """Whether reports and ``calibrate evaluate`` compare the rule when no rules are named."""
    in_sweep: bool = False
    """Whether the report's figure over several alphas shows the rule when it is not the artifact's."""
    in_plan: bool = False
    """Whether ``calibrate plan`` simulates the rule when no rules are named."""

    @abstractmethod
    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Index of the chosen block end, or None when no block end satisfies the rule."""

    @abstractmethod
    def guarantee(self, request: RuleRequest) -> str:
        """The promise of the rule, in one sentence, with its assumptions."""

    def check(self, request: RuleRequest) -> None:  # noqa: B027 - most rules have nothing to check
        """Refuse option values that make no sense.

        Raises:
            UsageError: Naming the option, the value and the way out.
        """

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with their defaults for n items, for the record."""
        return dict(request.options)

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """Whether some block end satisfies the rule; overridden where that is cheaper than selecting one."""
        return self.select(prefix, request) is not None


def default_k_min(n: int, alpha: float) -> int:
    """k_min = max(ceil(ln .05 / ln(1 - alpha)), ceil(.05 n)): the fewest items that rule acrc may accept.

    Fixed before looking at labels. The first term is the number of error-free items that would reject "the error
    rate is alpha" at 5 %; the second keeps the family fixed as n grows.
    """
    # The 1e-9 keeps a quotient that is a whole number but for its last bit from being rounded up to the next one.
    return max(math.ceil(math.log(0.05) / math.log1p(-alpha) - 1e-9), math.ceil(0.05 * n - 1e-9), 1)


def k_min_of(n: int, request: RuleRequest) -> int:
    """The ``k_min`` of a request: as given, or the default for n and alpha."""
    given = request.options["k_min"]
    return default_k_min(n, request.alpha) if given is None else int(given)
