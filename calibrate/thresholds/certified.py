"""``certified``: the certificate that suits the kind of score, chosen by declaration, never by looking at the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from guardrail.outcome import InfeasibleReason

from .anchored import Anchored
from .prefix import Prefix
from .rule import Request, Rule, check_min_accept, min_accept_of
from .sequential import FixedSequence

__all__ = ["Certified"]


class Certified(Rule):
    """``fixed_sequence`` over block ends from k_min for discrete scores, ``anchored`` for continuous ones.

    A score that can take few values has few thresholds, and ``anchored`` would pay for thousands that cannot occur
    (measured at n = 1,000, alpha = .1 on stated confidences: 3 % accepted, against 28 % by the sequence).

    Guarantee: that of the rule it stands for. The outcome's options name it under ``procedure``.

    Options:
        min_accept: k_min (the start of the sequence); None for the default.
        support: "discrete" or "continuous", set from the argument of ``fit``.
    """

    name = "certified"
    uses_delta = True
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None}

    def check(self, request: Request) -> None:
        """``min_accept`` is a count."""
        check_min_accept(self.name, request)

    @staticmethod
    def delegate(n: int, request: Request) -> tuple[Rule, Request]:
        """The rule it stands for, and the request in that rule's terms."""
        min_accept = min_accept_of(n, request)
        if request.options["support"] == "discrete":
            return FixedSequence(), Request(request.alpha, request.delta, {"start": min_accept})
        return Anchored(), Request(request.alpha, request.delta, {"min_accept": min_accept})

    def resolve(self, n: int, request: Request) -> dict[str, Any]:
        """Options of the rule it stands for, and that rule's name."""
        rule, own = self.delegate(n, request)
        resolved = rule.resolve(n, own)
        return {**request.options, **resolved, "min_accept": min_accept_of(n, request), "procedure": rule.name}

    def select(self, prefix: Prefix, request: Request) -> int | None:
        """As the rule it stands for."""
        rule, own = self.delegate(prefix.n, request)
        return rule.select(prefix, own)

    def feasible(self, prefix: Prefix, request: Request) -> bool:
        """As the rule it stands for."""
        rule, own = self.delegate(prefix.n, request)
        return rule.feasible(prefix, own)

    def alpha_floor(self, prefix: Prefix, request: Request) -> float:
        """As the rule it stands for."""
        rule, own = self.delegate(prefix.n, request)
        return rule.alpha_floor(prefix, own)

    def guarantee(self, request: Request) -> str:
        """As the rule it stands for."""
        rule, own = self.delegate(1, request)
        return rule.guarantee(own)

    def explain(self, prefix: Prefix, request: Request) -> tuple[InfeasibleReason, str] | None:
        """As the rule it stands for."""
        rule, own = self.delegate(prefix.n, request)
        return rule.explain(prefix, own)
