"""What a threshold rule is: a name, its options, one selection, and the sentence that says what it promises."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .prefix import Prefix

__all__ = ["Request", "Rule", "check_min_accept", "default_min_accept", "min_accept_of"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a rule is asked for."""

    alpha: float
    """Target error rate among accepted answers, in (0, 1)."""
    delta: float | None = None
    """Failure probability, in (0, 1); None for rules that have none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the rule, with defaults filled in but not resolved (``min_accept`` may still be None)."""

    def at(self, alpha: float) -> Request:
        """The same request at another alpha."""
        return replace(self, alpha=alpha)

    @property
    def level(self) -> float:
        """delta, for rules that have one."""
        assert self.delta is not None
        return self.delta


class Rule(ABC):
    """A threshold rule: a pure function of the block ends to one of them, or to None."""

    name: ClassVar[str]
    """As the user writes it."""
    uses_delta: ClassVar[bool] = False
    """Whether the rule takes a failure probability."""
    uses_alpha: ClassVar[bool] = True
    """Whether the choice depends on alpha at all."""
    grouping: ClassVar[Literal["none", "one_each", "sums"]] = "none"
    """What the rule does with items that share a group: nothing (then they are refused), use one item of each group,
    or read the sums over groups (``Prefix.clusters``)."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Options and their defaults."""

    @abstractmethod
    def select(self, prefix: Prefix, request: Request) -> int | None:
        """Index of the chosen block end, or None when no block end satisfies the rule."""

    @abstractmethod
    def guarantee(self, request: Request) -> str:
        """What the rule promises, in one sentence, including what it assumes."""

    def check(self, request: Request) -> None:  # noqa: B027 - most rules have nothing to check
        """Refuse option values that make no sense.

        Raises:
            UsageError: Naming the option, the value and the way out.
        """

    def resolve(self, n: int, request: Request) -> dict[str, Any]:
        """Options as they are applied to n items, for the record."""
        return dict(request.options)

    def feasible(self, prefix: Prefix, request: Request) -> bool:
        """Whether some block end satisfies the rule; overridden where that is cheaper than selecting one."""
        return self.select(prefix, request) is not None

    def alpha_floor(self, prefix: Prefix, request: Request) -> float:
        """An alpha below which the rule is certainly infeasible on these items; 0 when nothing cheap is known."""
        return 0.0

    def explain(self, prefix: Prefix, request: Request) -> tuple[InfeasibleReason, str] | None:
        """Why this rule failed where it knows better than the general diagnosis; None to leave it to that."""
        return None


def default_min_accept(n: int, alpha: float) -> int:
    """k_min = max(ceil(ln .05 / ln(1 - alpha)), ceil(.05 n)): the fewest items a threshold may accept.

    Fixed before looking at labels. The first term is the number of error-free items that would reject "the error
    rate is alpha" at 5 %; the second keeps the family fixed as n grows.
    """
    return max(math.ceil(math.log(0.05) / math.log1p(-alpha) - 1e-9), math.ceil(0.05 * n - 1e-9), 1)


def min_accept_of(n: int, request: Request) -> int:
    """The ``min_accept`` of a request: as given, or the default for n and alpha."""
    given = request.options["min_accept"]
    return default_min_accept(n, request.alpha) if given is None else int(given)


def check_min_accept(rule: str, request: Request) -> None:
    """Refuse a ``min_accept`` that is not a positive whole number (None means the default).

    Raises:
        UsageError: Otherwise.
    """
    given = request.options["min_accept"]
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise UsageError(
            f"min_accept of rule {rule!r} must be a whole number of items, at least 1, got {given!r}. "
            "Leave it out for max(ceil(ln .05 / ln(1 - alpha)), ceil(.05 n))."
        )
