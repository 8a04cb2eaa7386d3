"""The default certificate, ``certified``: anchors by error spending over the block ends that occur, then extended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import special

from guardrail.errors import UsageError

from .bounds import zero_error_floor
from .empirical import last
from .rule import TOLERANCE, Prefix, RuleRequest, check_min_accept, default_min_accept
from .simultaneous import Counts, Reals, WalkRule, pointwise_floor, step_weights

__all__ = [
    "Anchored",
    "Certified",
    "OnePerGroup",
    "SpendingLimits",
    "fewest_accepted",
    "spending_limits",
    "spending_share",
]

EXACT_LIMIT = 20_000
"""Largest n at which every block end is a candidate."""
THINNED = 1.005
"""Above it, a block end is kept, from right to left, if it is at or below the last kept one divided by this."""


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Error limits at some block ends; they depend on the block ends, alpha, delta and k_min, never on labels."""

    anchor: Counts
    """c1: most errors with which a block end passes as an anchor; -1 for none."""
    extension: Counts
    """c2: most errors with which an accepted set is extended to a block end; at least c1."""


def spending_share(k: Counts, k_min: int) -> Reals:
    """G(k): the share of delta that anchors at k or more items may spend; falls with k, 1 at k_min."""
    return np.minimum(1.0, np.exp(-(k / k_min - 1.0) / 1.5) + 0.15 * k_min / k)


def spending_limits(k: Counts, alpha: float, delta: float, k_min: int) -> SpendingLimits:
    """The limits at these block ends, solved from right to left.

    With h_i(s) the probability that a flat walk (errors with probability alpha each) at (k_i, s) passes an anchor at
    k_{i+1} or later (h of the last is 0), and Bin the binomial(k_i, alpha) probabilities:

        spent_i(c) = sum_s Bin(s) h_i(s) + sum_{s <= c} Bin(s) (1 - h_i(s))
        c1(k_i) = largest c with spent_i(c) <= delta G(k_i);  of the leftmost block end, <= delta
        c2(k_i) = largest c with spent_i(c) <= delta

    Args:
        k: Block ends at or past k_min, increasing.
        alpha: Target error rate.
        delta: Failure probability.
        k_min: Fewest items that a threshold may accept.
    """
    return _limits(k.tobytes(), alpha, delta, k_min)


@lru_cache(maxsize=256)
def _limits(ends: bytes, alpha: float, delta: float, k_min: int) -> SpendingLimits:
    k = np.frombuffer(ends, dtype=np.int64)
    budget = delta * spending_share(k, k_min)
    # Nothing lies to the left of the leftmost block end, so delta that it does not spend would be lost.
    budget[0] = delta
    # Few block ends are candidates of many items, so a table of all factorials would be most of the work there.
    table = special.gammaln(np.arange(1.0, k[-1] + 2.0)) if k[-1] <= EXACT_LIMIT else None
    log_wrong, log_right = math.log(alpha), math.log1p(-alpha)
    anchor, extension = np.empty_like(k), np.empty_like(k)
    # h is 1 at or below `passed`, `ahead` above it; `spent` is the probability that a walk passes an anchor so far.
    spent, passed, ahead, following = 0.0, -1, np.zeros(1), int(k[-1])
    for i in range(k.size - 1, -1, -1):
        items = int(k[i])
        steps, following = following - items, items
        spread = 8.5 * math.sqrt(items * alpha * (1.0 - alpha)) + 12.0  # outside, Bin is below 1e-16
        # A walk at least `steps` errors below `passed` passes the next anchor for certain: h is 1 there and adds
        # nothing.
        first = max(0, passed - steps + 1 if i + 1 < k.size else math.floor(items * alpha - spread))
        final = max(first, min(items, math.ceil(items * alpha + spread)))
        h = _step_back(ahead, passed, steps, alpha, first, final)
        s = np.arange(first, final + 1)
        if table is None:
            logs = special.gammaln(items + 1.0) - special.gammaln(s + 1.0) - special.gammaln(items - s + 1.0)
        else:
            logs = table[items] - table[s] - table[items - s]
        bin_s = np.exp(logs + s * log_wrong + (items - s) * log_right)
        total = spent + np.cumsum(bin_s * (1.0 - h))
        # `total` is a running sum, so the count of entries within the budget is also the position of the limit.
        within = int(np.searchsorted(total, budget[i], side="right"))
        anchor[i] = passed = first - 1 + within
        extension[i] = first - 1 + int(np.searchsorted(total, delta, side="right"))
        if within:
            spent = float(total[within - 1])
        ahead = h[within:] if within < h.size else np.zeros(1)
    # The cache hands the same arrays to every caller: a write by one of them would change the limits of all.
    for array in (anchor, extension):
        array.flags.writeable = False
    return SpendingLimits(anchor, extension)


def _step_back(ahead: Reals, passed: int, steps: int, alpha: float, first: int, final: int) -> Reals:
    """Values of h at first..final errors, from those at the next block end, ``steps`` items later.

    Past the window the last value stands in, an upper bound.
    """
    shift, weights = step_weights(steps, alpha)
    low, high = first + shift, final + shift + weights.size - 1
    n_certain = max(0, min(high, passed) - low + 1)
    inner = ahead[max(0, low - passed - 1) : max(0, high - passed)]
    reached = np.concatenate((np.ones(n_certain), inner, np.full(high - low + 1 - n_certain - inner.size, ahead[-1])))
    return np.correlate(reached, weights, "valid")


def fewest_accepted(n: int, request: RuleRequest) -> int:
    """k_min of these rules: the fewest items that a threshold may accept, fixed before looking at labels.

    With f = ceil(ln delta / ln(1 - alpha)), the items that suffice without an error: f where n < 3 f, if that is below
    :func:`.rule.default_min_accept`, else the latter. A declared share x of accepted items (``expect``) makes it at
    least ceil(x n). ``min_accept`` replaces all of this.
    """
    options = request.options
    if options["min_accept"] is not None:
        return int(options["min_accept"])
    usual, floor = default_min_accept(n, request.alpha), zero_error_floor(request.alpha, request.level)
    # A cut at 2.2 f in place of 3 f lets acceptance fall where one more label crosses it.
    fewest = floor if floor < usual and n < 3 * floor else usual
    expect = options["expect"]
    return fewest if expect is None else max(fewest, math.ceil(expect * n - TOLERANCE))


def _candidates(k: Counts, n: int, k_min: int) -> Counts:
    """Indices of the block ends that may be chosen. Which ones depends, from right to left, on larger ones alone."""
    first = int(np.searchsorted(k, k_min))
    if n <= EXACT_LIMIT:
        return np.arange(first, k.size)
    # From right to left: the proof needs candidates that depend on larger block ends alone.
    places = [k.size - 1] if first < k.size else []
    while places:
        index = int(np.searchsorted(k, math.floor(k[places[-1]] / THINNED), side="right")) - 1
        if index < first:
            break
        places.append(index)
    return np.array(places[::-1], dtype=np.int64)


class Certified(WalkRule):
    """Anchors that may pass at any block end, extended outward by a fixed sequence: the default certificate.

    Formula: a block end k >= k_min passes as an anchor if e_k <= c1(k). From the last anchor that passes, move to the
    next block end while e_k <= c2(k); stop at the first at which this is not so. See `spending_limits`. With one block
    end this is a single binomial test at delta. Above n = 20,000 about one block end in half a percent is a candidate.

    Guarantee: P(SCER > alpha) <= delta over calibrations, for any n and any ties, if items are independent and the
    error rate does not fall as acceptance grows. Why: let K0 be the number of items at or below the first bad
    threshold. Given K0 and the counts at every larger score, the first K0 items are independent with error rate >=
    alpha, and each later one is wrong with probability >= alpha; so the errors from K0 on dominate a flat walk, and the
    limits from K0 on are constants, as they depend on the block ends to their right alone. Ending at or past K0 needs
    an anchor passed right of K0 or e_K0 <= c2(K0), and ``spent(c2(K0)) <= delta`` bounds exactly that union. If
    K0 < k_min the same holds at the first block end past k_min.

    Ours (docs/guarantees.md has the proof and measurements). Where the rate does fall at the confident end, a search
    over 8,442 shapes found a failure probability of at most 1.3 delta; ``fixed_sequence`` assumes nothing of the kind.

    Groups: with repeated group ids one item of each group is used (as by ``one_per_group`` with seed 0). Certificates
    of groups that use every item make other promises: ``group_mean``, ``group_total``.

    Options:
        min_accept: k_min; None for the default (`fewest_accepted`).
        expect: Share of the calibration items that you expect to be accepted, in (0, 1); no threshold accepts fewer.
            Declare it before labels are seen: where the model is strong it raises acceptance (69 -> 78 % at accuracy
            .9, AUROC .7, alpha .1, 440 labels), where it is weak it costs some.
    """

    name = "certified"
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None, "expect": None}
    grouping: ClassVar[Literal["none", "one_each", "all"]] = "one_each"
    in_report = True
    in_sweep = True
    in_plan = True

    def check(self, request: RuleRequest) -> None:
        """``min_accept`` is a count, ``expect`` a share, and only one of them is given."""
        check_min_accept(self.name, request)
        expect = request.options["expect"]
        if expect is None:
            return
        if isinstance(expect, bool) or not isinstance(expect, int | float) or not 0 < expect < 1:
            raise UsageError(
                f"expect of rule {self.name!r} must be the share of answers that you expect to be accepted, in (0, 1), "
                f"got {expect!r}. Declare it before labels are seen, or leave it out."
            )
        if request.options["min_accept"] is not None:
            raise UsageError("expect and min_accept both set the fewest accepted items. Leave out one of the two.")

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with the k_min that was used, and the version of the procedure."""
        # The version enters the artifact, so that limits of the earlier procedures are not mistaken for these.
        return {**request.options, "min_accept": fewest_accepted(n, request), "version": 3}

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last passing anchor, extended until the first failure."""
        index, limits = self._tested(prefix, request)
        if not index.size:
            return None
        errors = prefix.e[index]
        chosen = last(errors <= limits.anchor)
        if chosen is None:
            return None
        # The first failure ends the extension, even if a later block end passes: the guarantee is that of a fixed
        # sequence.
        failed = np.flatnonzero(errors[chosen + 1 :] > limits.extension[chosen + 1 :])
        return int(index[chosen + int(failed[0]) if failed.size else index.size - 1])

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """Whether an anchor passes."""
        index, limits = self._tested(prefix, request)
        return bool((prefix.e[index] <= limits.anchor).any()) if index.size else False

    def alpha_floor(self, prefix: Prefix, request: RuleRequest) -> float:
        """Target below which even the pointwise test fails everywhere."""
        return pointwise_floor(prefix, request)

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, under two assumptions; with groups, what was used."""
        promise = super().guarantee(request)
        if "items" not in request.options:
            return promise
        return (
            f"{promise} Of {request.options['items']} questions in {request.options['groups']} groups one of each "
            "group was used, picked without looking at scores or labels: groups must be independent of each other, and "
            "the error rate is that of a random question of a random group."
        )

    @staticmethod
    def _tested(prefix: Prefix, request: RuleRequest) -> tuple[Counts, SpendingLimits]:
        k_min = fewest_accepted(prefix.n, request)
        index = _candidates(prefix.k, prefix.n, k_min)
        none = np.empty(0, dtype=np.int64)
        if not index.size:
            return index, SpendingLimits(none, none)
        return index, spending_limits(prefix.k[index].astype(np.int64), request.alpha, request.level, k_min)


class Anchored(Certified):
    """Alias of ``certified`` that artifacts may name; it takes no groups."""

    name = "anchored"
    grouping = "none"
    in_report = False
    in_sweep = False
    in_plan = False


class OnePerGroup(Certified):
    """``certified`` on one item of each group, by name and with a seed.

    Groups are independent of each other, and one item of each makes independent items again, however strongly the
    items of a group depend on each other. So the promise is exact, at the price of all other items.

    Guarantee: as ``certified``, with as many items as there are groups. The error rate it speaks of is that of a random
    question of a random group. Where groups have different sizes and long ones are wrong more (or less) often, that is
    not the rate over all questions; ``group_total`` is about the latter.

    Options:
        min_accept: As for ``certified``.
        expect: As for ``certified``, of the groups.
        seed: Of the pick. Fix it before looking: the best of many seeds certifies nothing.
    """

    name = "one_per_group"
    in_report = False
    in_sweep = False
    in_plan = False
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None, "expect": None, "seed": 0}

    def check(self, request: RuleRequest) -> None:
        """As for ``certified``; ``seed`` is a whole number."""
        super().check(request)
        seed = request.options["seed"]
        # A bool is an int in Python, and True would pass, and pick other items than 1 does.
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"seed of rule 'one_per_group' must be a whole number, got {seed!r}. Leave it out for 0.")
