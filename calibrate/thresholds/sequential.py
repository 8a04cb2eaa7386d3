"""Testing thresholds in an order fixed in advance, stopping at the first failure (Learn then Test)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from guardrail.errors import UsageError
from guardrail.notebook import sure
from guardrail.outcome import InfeasibleReason

from .bounds import zero_error_floor
from .pointwise import last_passing, passes
from .rule import TOLERANCE, Prefix, Rule, RuleRequest

__all__ = ["FixedSequence", "any_curve", "sequence_end"]


def sequence_end(prefix: Prefix, start: int, alpha: float, delta: float, chunk: int = 1_024) -> int | None:
    """Index of the last block end before the first that fails P(Bin(k, alpha) <= e_k) <= delta.

    Args:
        prefix: Block ends.
        start: Items; the sequence begins at the first block end at or past it.
        alpha: Tested error rate.
        delta: Level of every test.
        chunk: Tests evaluated at a time, doubling.
    """
    first = position = prefix.at_least(start)
    while position < prefix.k.size:
        # Chunks double: a sequence that stops at once costs little, a long one few calls.
        stop = min(prefix.k.size, position + chunk)
        failed = np.flatnonzero(~passes(prefix.k[position:stop], prefix.e[position:stop], alpha, delta))
        if failed.size:
            position += int(failed[0])
            break
        position, chunk = stop, 2 * chunk
    return position - 1 if position > first else None


def any_curve(request: RuleRequest) -> str:
    """The promise of rules that assume nothing about the risk curve."""
    return (
        f"With probability at least {sure(request.level)} over calibrations the error rate among accepted answers is "
        f"at most {request.alpha:g}, in finite samples and whatever the shape of the risk curve, if questions are "
        "independent draws from the same source"
    )


class FixedSequence(Rule):
    """Exact binomial tests from a start fixed in advance, outward, until the first failure.

    Formula: block ends k >= k0 in increasing order; accept up to the last before the first with
    ``P(Bin(k, alpha) <= e_k) > delta``. No correction for multiplicity is needed, because to get past the first bad
    threshold its own test at level delta must fail to stop it.

    Guarantee: P(SCER > alpha) <= delta over calibrations, any n, any risk curve, if items are independent and k0 was
    fixed without the labels. Paper: Learn then Test (fixed sequence testing), arXiv 2110.01052. Where we differ: the
    hypotheses are the block ends of the calibration scores themselves, not a grid of score values.

    Options:
        start: k0, a count of items (int) or a share of n (float in (0, 1)); None for ceil(.1 n).
    """

    name = "fixed_sequence"
    uses_delta = True
    certifies = True
    promise = "certificate"
    in_report = True
    in_plan = True
    defaults: ClassVar[Mapping[str, Any]] = {"start": None}

    def check(self, request: RuleRequest) -> None:
        """``start`` is a count or a share."""
        self.check_start(self.name, request.options["start"])

    @staticmethod
    def check_start(rule: str, start: object) -> None:
        """Refuse a start that is neither a count nor a share (None means the default).

        Raises:
            UsageError: Otherwise.
        """
        count = isinstance(start, int) and not isinstance(start, bool) and start >= 1
        share = isinstance(start, float) and 0 < start < 1
        if start is not None and not count and not share:
            raise UsageError(
                f"start of rule {rule!r} must be a count of items (int >= 1) or a share in (0, 1), got "
                f"{start!r}. Leave it out for 0.1, and never choose it by looking at labels."
            )

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with the k0 that was used."""
        return {**request.options, "start": self.start(n, request)}

    @staticmethod
    def start(n: int, request: RuleRequest) -> int:
        """k0 in items."""
        start = request.options["start"]
        # check_start refused booleans, so an int here is a count.
        if isinstance(start, int):
            return start
        return max(1, math.ceil((0.1 if start is None else start) * n - TOLERANCE))

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last block end before the first failure."""
        return sequence_end(prefix, self.start(prefix.n, request), request.alpha, request.level)

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """The first test decides."""
        first = prefix.at_least(self.start(prefix.n, request))
        only = slice(first, first + 1)
        return bool(passes(prefix.k[only], prefix.e[only], request.alpha, request.level).any())

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, any curve."""
        return any_curve(request) + " and the start of the sequence was fixed without looking at labels."

    def explain(self, prefix: Prefix, request: RuleRequest) -> tuple[InfeasibleReason, str] | None:
        """The first test could not pass even without an error, or failed although a later one alone would pass."""
        first = prefix.at_least(self.start(prefix.n, request))
        if first == prefix.k.size:
            return None
        k, e = int(prefix.k[first]), int(prefix.e[first])
        floor = zero_error_floor(request.alpha, request.level)
        # Only where a later start could help: with n below the floor the general diagnosis says that items are too few.
        if k < floor <= prefix.n:
            return InfeasibleReason.TOO_FEW_ITEMS, (
                f"The first test accepts {k} items, and at alpha = {request.alpha:g} and delta = {request.level:g} it "
                f"takes {floor} items to pass even without a single error. Fix a start of {floor} or more, or use rule "
                "certified."
            )
        index = last_passing(prefix, request.alpha, request.level)
        # A later start is worth a word only where it would have passed.
        if index is None or index <= first:
            return None
        return InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG, (
            f"The sequence stops at its first test: {e} of the {k} most certain items are wrong, too many (or too few "
            f"items) to show an error rate of at most {request.alpha:g} at delta = {request.level:g}. A later start "
            f"would pass (for instance at {int(prefix.k[index])} items), but a start chosen after seeing this "
            "would void the guarantee. Use rule certified, which needs no start."
        )
