"""The default certificate: ``anchored``, and ``certified``, which chooses it by the kind of score.

``anchored``: simultaneous anchors with decaying levels, extended by a fixed sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy import special

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .bounds import binomial_tail
from .empirical import last
from .rule import Prefix, Request, Rule, check_min_accept, min_accept_of
from .sequential import FixedSequence
from .simultaneous import Counts, Reals, WalkRule, candidates, grid, largest_scale, limits, step_weights

__all__ = ["DECAY", "Anchored", "AnchoredLimits", "Certified", "OnePerGroup", "anchored_limits", "extension_limits"]

DECAY = 1.5
"""Levels of the anchors fall like k to the minus this power."""


@dataclass(frozen=True, slots=True)
class AnchoredLimits:
    """Error limits at fixed numbers of accepted items; depends on n, alpha, delta and k_min alone."""

    k: Counts
    """Grid points, increasing."""
    anchor: Counts
    """c1: most errors with which k passes as an anchor; -1 for none."""
    extension: Counts
    """c2: most errors with which an accepted set is extended to k; at least c1."""
    scale: float
    """d, in b(k) = min(delta, d (k_min / k)^1.5)."""


@lru_cache(maxsize=256)
def anchored_limits(n: int, alpha: float, delta: float, k_min: int) -> AnchoredLimits:
    """Solve for the anchors' scale, then for the extension limits."""
    points = grid(n, k_min)
    decay = (k_min / points) ** DECAY
    scale, anchor = largest_scale(
        points, alpha, delta, lambda d: np.minimum(delta, d * decay), delta / points.size, delta / float(decay[-1])
    )
    extension = extension_limits(points, anchor, alpha, delta)
    for array in (points, anchor, extension):
        array.flags.writeable = False
    return AnchoredLimits(points, anchor, extension, scale)


def extension_limits(points: Counts, anchor: Counts, alpha: float, delta: float) -> Counts:
    """c2(k): the largest c with ``sum_{s<=c} Bin(s; k) + sum_{s>c} Bin(s; k) h_k(s) <= delta`` at every grid point.

    h_k(s) is the probability that a flat walk at (k, s) passes an anchor at k or later: 1 for s <= c1(k), else the
    mean of h at the next grid point. It falls with s and is kept on a window above c1(k); beyond the window, where
    Bin(s; k) is below 1e-16, the last value stands in (an upper bound).
    """
    reach = points * alpha + 8.5 * np.sqrt(points * alpha * (1.0 - alpha)) + 12.0
    pointwise = limits(points, alpha, delta)
    top = np.minimum(np.maximum(int(anchor.max()), pointwise) + 1, np.minimum(reach.astype(np.int64), points))
    log_factorial = special.gammaln(np.arange(1.0, points[-1] + 2.0))
    below = np.asarray(binomial_tail(anchor, points, alpha))
    result = anchor.copy()
    later, bottom = np.zeros(1), int(points[-1]) + 1  # no anchor after the last point: h = 0, and nothing below it
    for i in range(points.size - 1, -1, -1):
        k, first, final = int(points[i]), int(anchor[i]) + 1, int(top[i])
        if i + 1 < points.size:
            steps = int(points[i + 1]) - k
            h = _step_back(later, bottom, steps, alpha, first, max(first, final))
        else:
            h = np.zeros(max(first, final) - first + 1)
        weights = _binomial_window(k, first, first + h.size, alpha, log_factorial)
        spare = delta - (float(below[i]) + float(weights @ h))
        result[i] += int(np.searchsorted(np.cumsum(weights * (1.0 - h)), spare, side="right"))
        later, bottom = h, first
    return result


def _step_back(later: Reals, bottom: int, steps: int, alpha: float, first: int, final: int) -> Reals:
    """The values of h at s in first..final, from h at the next point: 1 below ``bottom``, ``later``, its last value."""
    shift, weights = step_weights(steps, alpha)
    low, high = first + shift, final + shift + weights.size - 1
    ones = max(0, min(high + 1, bottom) - low)
    inner = later[max(0, low - bottom) : max(0, high + 1 - bottom)]
    beyond = high - low + 1 - ones - inner.size
    reached = np.concatenate((np.ones(ones), inner, np.full(beyond, later[-1])))
    return np.correlate(reached, weights, "valid")


def _binomial_window(k: int, first: int, stop: int, alpha: float, log_factorial: Reals) -> Reals:
    """Bin(s; k, alpha) for s in first..stop-1; 0 past k."""
    s = np.arange(first, min(stop, k + 1))
    logs = log_factorial[k] - log_factorial[s] - log_factorial[k - s]
    weights = np.exp(logs + s * math.log(alpha) + (k - s) * math.log1p(-alpha))
    return np.concatenate((weights, np.zeros(stop - first - s.size)))


class Anchored(WalkRule):
    """Anchors that hold simultaneously, extended outward by a fixed sequence.

    Formula. Anchors: k in [k_min, n] passes with e_k <= c1(k), the largest c with
    ``P(Bin(k, alpha) <= c) <= min(delta, d (k_min/k)^1.5)``; d is the largest scale at which a flat walk passes any
    anchor with probability at most delta. Extension: from the last block end that passes as an anchor, move to the
    next block end while e_k <= c2(k) (see :func:`extension_limits`); stop at the first that has not.

    Guarantee: P(SCER > alpha) <= delta over calibrations, for any n, if items are independent and the error rate does
    not fall as acceptance grows. Why: let K0 be the first bad block end. Ending at or past K0 needs an anchor passed at
    some k >= K0, or an extension through K0, that is e_K0 <= c2(K0). The errors from K0 on dominate a flat walk, and c2
    bounds exactly this union by delta for every K0. Ties only remove candidates; c1 and c2 never see scores.

    Ours. One anchor at k_min with level delta is ``fixed_sequence`` (LTT, arXiv 2110.01052); constant levels are
    ``cp_simultaneous`` plus extension. Above n = 20,000 both limits live on a geometric grid; candidates are the last
    block ends before each grid point, and the items up to that point count as errors.

    Options:
        min_accept: k_min; None for the default.
    """

    name = "anchored"
    decay = DECAY

    def resolve(self, n: int, request: Request) -> dict[str, Any]:
        """Options with the k_min and the scale d that were used."""
        k_min = min_accept_of(n, request)
        scale = anchored_limits(n, request.alpha, request.level, k_min).scale if k_min <= n else None
        return {**request.options, "min_accept": k_min, "scale": scale}

    def select(self, prefix: Prefix, request: Request) -> int | None:
        """Last passing anchor, extended until the first failure."""
        k_min = min_accept_of(prefix.n, request)
        if k_min > prefix.n:
            return None
        table = anchored_limits(prefix.n, request.alpha, request.level, k_min)
        found = candidates(prefix, table.k)
        index = last(found.errors <= table.anchor[found.point])
        if index is None:
            return None
        extended = found.errors[index + 1 :] <= table.extension[found.point[index + 1 :]]
        failed = np.flatnonzero(~extended)
        index += int(failed[0]) if failed.size else extended.size
        return int(found.block[index])


# -- ``certified``: the certificate that suits the kind of score, chosen by declaration, never by looking at the data --


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
    reads_support = True
    certifies = True
    promise = "certificate"
    in_report = True
    in_sweep = True
    in_plan = True
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
    """``certified`` on one item of each group, by name and with a seed.

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
    in_report = False
    in_sweep = False
    in_plan = False
    defaults: ClassVar[Mapping[str, Any]] = {"min_accept": None, "seed": 0}

    def check(self, request: Request) -> None:
        """``min_accept`` is a count, ``seed`` a whole number."""
        super().check(request)
        seed = request.options["seed"]
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"seed of rule 'one_per_group' must be a whole number, got {seed!r}. Leave it out for 0.")
