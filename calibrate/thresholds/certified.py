"""``certified``: the certificate that suits the kind of score, chosen by declaration, never by looking at the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .anchored import Anchored
from .prefix import Prefix
from .rule import Request, Rule, check_min_accept, min_accept_of
from .sequential import FixedSequence

__all__ = ["Certified", "OnePerGroup"]


class Certified(Rule):
    """``fixed_sequence`` over block ends from k_min for discrete scores, ``anchored`` for continuous ones.

    A score that can take few values has few thresholds, and ``anchored`` would pay for thousands that cannot occur
    (measured at n = 1,000, alpha = .1 on stated confidences: 3 % accepted, against 28 % by the sequence).

    Guarantee: that of the rule it stands for. The outcome's options name it under ``procedure``.

    Groups: with repeated group ids one item of each group is used (as by ``one_per_group`` with seed 0). A certificate
    is never asymptotic; ``cluster_fixed_sequence`` uses every item and is asymptotic, so it has to be asked for by
    name.

    Options:
        min_accept: k_min (the start of the sequence); None for the default.
        support: "discrete" or "continuous", set from the argument of ``fit``.
    """

    name = "certified"
    uses_delta = True
    grouping = "one_each"
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
        promise = rule.guarantee(own)
        if "items" not in request.options:
            return promise
        return (
            f"{promise} Of {request.options['items']} questions in {request.options['groups']} groups one of each "
            "group was used, picked without looking at scores or labels: groups must be independent of each other, and "
            "the error rate is that of a random question of a random group."
        )

    def explain(self, prefix: Prefix, request: Request) -> tuple[InfeasibleReason, str] | None:
        """As the rule it stands for."""
        rule, own = self.delegate(prefix.n, request)
        return rule.explain(prefix, own)


class OnePerGroup(Certified):
    """``certified`` on one item of each group, by name and with a seed of one's own.

    Groups are independent of each other, and one item of each makes independent items again, however strongly the
    items of a group depend on each other. So the promise is exact, at the price of all other items.

    Guarantee: as ``certified``, with as many items as there are groups. The error rate it speaks of is that of a random
    question of a random group. Where groups have different sizes and long ones are wrong more (or less) often, that is
    not the rate over all questions; ``cluster_fixed_sequence`` is about the latter.

    Options:
        min_accept: As for ``certified``.
        seed: Of the pick. Fix it before looking: the best of many seeds certifies nothing.
    """

    name = "one_per_group"
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None, "seed": 0}

    def check(self, request: Request) -> None:
        """``min_accept`` is a count, ``seed`` a whole number."""
        super().check(request)
        seed = request.options["seed"]
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"seed of rule 'one_per_group' must be a whole number, got {seed!r}. Leave it out for 0.")
