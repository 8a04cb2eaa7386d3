"""Items that come in groups: what a rule is given then, and ``cluster_fixed_sequence``, which uses all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .bounds import zero_error_floor
from .pointwise import passes
from .rule import TOLERANCE, ClusterSums, Prefix, Rule, RuleRequest, prefixes
from .sequential import FixedSequence

__all__ = ["FEWEST_CLUSTERS", "ClusterFixedSequence", "Groups", "cluster_sums", "one_of_each", "prepare", "t_statistic"]

FEWEST_CLUSTERS = 20
"""Fewest groups with an accepted item at which a t-test over groups is looked at by default."""


def t_statistic(prefix: Prefix, alpha: float) -> NDArray[np.float64]:
    """The one-sample t statistic of the accepted groups' sums ``Z_g = e_g - alpha m_g``, at every block end.

    ``sum Z / sqrt(G/(G-1) (sum Z^2 - (sum Z)^2/G))`` over the G groups with an accepted item. Where all Z_g are equal
    it is minus or plus infinity, by the sign of their sum; 0 if that is 0 too, or if G = 1.
    """
    sums = prefix.clusters or _singletons(prefix)
    number = sums.number.astype(np.float64)
    total = prefix.e - alpha * prefix.k
    squares = sums.ee - 2.0 * alpha * sums.em + alpha * alpha * sums.mm
    # The sums are whole numbers up to here, so this difference loses digits only once.
    around = squares - total * total / number
    # Relative to the squares: a rounding error of this difference grows with them and must not pass for a spread.
    spread = around > TOLERANCE * np.maximum(squares, TOLERANCE)
    # The 1 and the maximum only keep numpy from dividing by zero; both entries are replaced below.
    scale = np.sqrt(np.where(spread, around, 1.0) * number / np.maximum(number - 1.0, 1.0))
    flat = np.where(np.abs(total) > TOLERANCE, np.copysign(np.inf, total), 0.0)
    return np.where(number < 2, 0.0, np.where(spread, total / scale, flat))


def _singletons(prefix: Prefix) -> ClusterSums:
    return ClusterSums(prefix.k, prefix.e, prefix.e, prefix.k)


def _part(prefix: Prefix, start: int, stop: int) -> Prefix:
    """Some of the block ends."""
    cut, sums = slice(start, stop), prefix.clusters or _singletons(prefix)
    own = ClusterSums(sums.number[cut], sums.ee[cut], sums.em[cut], sums.mm[cut])
    return Prefix(prefix.n, prefix.score[cut], prefix.k[cut], prefix.e[cut], own)


class ClusterFixedSequence(Rule):
    """One-sided cluster-robust t-tests from a start fixed in advance, outward, until the first failure.

    Formula: at block end k let group g have m_g accepted items, e_g of them wrong, and ``Z_g = e_g - alpha m_g``. The
    block end passes if the t statistic of the Z_g (:func:`t_statistic`) is at most the delta quantile of Student's t
    with G - 1 degrees of freedom, G the number of groups with an accepted item, *and* the exact binomial test for
    independent items passes, ``P(Bin(k, alpha) <= e_k) <= delta``. The sequence begins at the first block end with
    k >= k0 and G >= ``min_clusters``; both are known without labels.

    Guarantee: P(SCER > alpha) tends to at most delta as the number of *groups* grows, any risk curve, for groups that
    are independent of each other; items within a group may depend in any way. Asymptotic: with few groups, or few
    errors in them, the t-test is only approximate, and where groups are wholly right or wrong or a few are giants, more
    than delta of calibrations fail (docs/guarantees.md). Error rate over all questions, so long groups count for more.

    Sources: fixed sequence, Learn then Test, arXiv 2110.01052; cluster-robust t with G - 1 degrees of freedom, Liang &
    Zeger 1986, Cameron & Miller 2015. Ours: the second condition, without which a stretch without errors has no spread
    and would pass at once, and the default of ``min_clusters``: enough groups that delta is kept when every group is
    wholly right or wholly wrong and none of the accepted ones is wrong.

    Options:
        start: k0, a count of items (int) or a share of n (float in (0, 1)); None for ceil(.1 n).
        min_clusters: Fewest accepted groups; None for max(20, ceil(ln delta / ln(1 - alpha))).
    """

    name = "cluster_fixed_sequence"
    uses_delta = True
    grouping = "sums"
    promise = "in the limit of many groups"
    defaults: ClassVar[Mapping[str, Any]] = {"start": None, "min_clusters": None}

    def check(self, request: RuleRequest) -> None:
        """``start`` as for ``fixed_sequence``, ``min_clusters`` is a count."""
        FixedSequence.check_start(self.name, request.options["start"])
        fewest = request.options["min_clusters"]
        if fewest is not None and (isinstance(fewest, bool) or not isinstance(fewest, int) or fewest < 2):
            raise UsageError(
                f"min_clusters of rule {self.name!r} must be a whole number of groups, at least 2, got {fewest!r}. "
                "Leave it out for max(20, ceil(ln delta / ln(1 - alpha)))."
            )

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with the k0 and the fewest groups that were used."""
        fewest = self._fewest(request)
        return {**request.options, "start": FixedSequence.start(n, request), "min_clusters": fewest}

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last block end before the first failure; tests are evaluated in growing chunks."""
        # Chunks double because most sequences stop early, and a long one must not pay for many small calls.
        first = position = self._first(prefix, request)
        chunk = 1_024
        while position < prefix.k.size:
            failed = np.flatnonzero(~self._passes(_part(prefix, position, position + chunk), request))
            if failed.size:
                position += int(failed[0])
                break
            position, chunk = min(prefix.k.size, position + chunk), 2 * chunk
        return position - 1 if position > first else None

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """The first test decides."""
        first = self._first(prefix, request)
        return first < prefix.k.size and bool(self._passes(_part(prefix, first, first + 1), request)[0])

    def guarantee(self, request: RuleRequest) -> str:
        """Asymptotic in the number of groups."""
        groups = request.options.get("groups")
        of = "every question as a group of its own" if groups is None else f"{groups} groups here"
        return (
            f"Asymptotic in the number of groups ({of}), not exact: the probability over calibrations that the error "
            f"rate among accepted answers exceeds {request.alpha:g} tends to {request.level:g} or less as groups are "
            "added, if groups are independent draws from the same source and the start of the sequence was fixed "
            "without looking at labels. Questions within a group may depend on each other."
        )

    def explain(self, prefix: Prefix, request: RuleRequest) -> tuple[InfeasibleReason, str] | None:
        """Too few groups, or a first test that fails although a later one alone would pass."""
        number = (prefix.clusters or _singletons(prefix)).number
        fewest, first = self._fewest(request), self._first(prefix, request)
        if number[-1] < fewest:
            return InfeasibleReason.TOO_FEW_ITEMS, (
                f"The items come from {int(number[-1])} groups; a cluster-robust test at alpha = {request.alpha:g} and "
                f"delta = {request.level:g} needs at least {fewest} with an accepted item, even without a single "
                "error. Label questions from more groups; more questions of the same groups do not help."
            )
        if first == prefix.k.size:
            return None
        later = np.flatnonzero(self._passes(_part(prefix, first, prefix.k.size), request))
        if not later.size:
            return None
        k, e, index = int(prefix.k[first]), int(prefix.e[first]), first + int(later[-1])
        return InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG, (
            f"The sequence stops at its first test: {e} of the {k} most certain items, from {int(number[first])} "
            f"groups, are wrong, too many to show an error rate of at most {request.alpha:g} at delta = "
            f"{request.level:g}. A later start would pass (for instance at {int(prefix.k[index])} items), but a start "
            "chosen after seeing this would void the guarantee. Fix a later start for the next calibration set."
        )

    @staticmethod
    def _fewest(request: RuleRequest) -> int:
        min_clusters = request.options["min_clusters"]
        return (
            int(min_clusters)
            if min_clusters is not None
            else max(FEWEST_CLUSTERS, zero_error_floor(request.alpha, request.level))
        )

    def _first(self, prefix: Prefix, request: RuleRequest) -> int:
        number = (prefix.clusters or _singletons(prefix)).number
        # The number of groups never falls as more is accepted, so it can be searched as a sorted array.
        enough = int(np.searchsorted(number, self._fewest(request), side="left"))
        return max(prefix.at_least(FixedSequence.start(prefix.n, request)), enough)

    def _passes(self, prefix: Prefix, request: RuleRequest) -> NDArray[np.bool_]:
        """Whether each block end passes both tests."""
        number = (prefix.clusters or _singletons(prefix)).number
        t = t_statistic(prefix, request.alpha)
        robust = _within_quantile(t, np.maximum(number - 1, 1), request.level)
        return robust & passes(prefix.k, prefix.e, request.alpha, request.level)


def _within_quantile(t: NDArray[np.float64], df: NDArray[np.int64], level: float) -> NDArray[np.bool_]:
    """Whether t is at most the quantile of Student's t, with few quantiles computed.

    Degrees of freedom never fall along the sequence and the lower quantile rises with them, so the first and the last
    decide most cases.
    """
    low, high = (float(special.stdtrit(float(df[end]), level)) for end in (0, -1))
    # min and max rather than low and high: for a level above 1/2 the quantile falls with the degrees of freedom.
    result: NDArray[np.bool_] = t <= min(low, high)
    open_ = np.flatnonzero(~result & (t <= max(low, high)))
    result[open_] = t[open_] <= special.stdtrit(df[open_].astype(np.float64), level)
    return result


# -- Group ids: items of one conversation, user or document depend on each other. What a rule is given then ------------


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each item belongs to."""

    code: NDArray[np.int64]
    """Index into ``ids``, one an item, shape (n,)."""
    ids: tuple[str, ...]
    """The distinct ids, as text."""

    @classmethod
    def of(cls, ids: Sequence[Hashable], n: int) -> Groups:
        """From one id an item.

        Raises:
            UsageError: Text other than one id an item, or another number of ids than items.
        """
        if isinstance(ids, str):
            raise UsageError(f"groups must be one id an item or 'ignore', got {ids!r}.")
        if len(ids) != n:
            raise UsageError(f"groups has {len(ids)} ids and uncertainty has {n} items. Pass one id an item.")
        # Keyed by the id itself, not by its text: 1 and "1" are different groups.
        code_of: dict[Hashable, int] = {}
        code = np.array([code_of.setdefault(group, len(code_of)) for group in ids], dtype=np.int64)
        return cls(code, tuple(str(group) for group in code_of))

    @property
    def repeated(self) -> bool:
        """Whether any group has more than one item."""
        return self.distinct < self.code.size

    @property
    def distinct(self) -> int:
        """Groups that have an item."""
        return int(np.unique(self.code).size)

    def take(self, index: NDArray[np.int64]) -> Groups:
        """The groups of some of the items."""
        return Groups(self.code[index], self.ids)


def one_of_each(groups: Groups, seed: int = 0) -> NDArray[np.int64]:
    """Indices of one item of each group, in order: the position is a hash of the seed and the group's id.

    Neither scores nor labels are looked at, so what is picked is a random item of each group. The
    order of the groups plays no part; the order of the items within a group does, and decides nothing but which of
    them is picked.
    """
    # Stable: which item of a group a position means depends on the items' order, and must be the same in every run.
    order = np.argsort(groups.code, kind="stable")
    code, first, size = np.unique(groups.code[order], return_index=True, return_counts=True)
    place = [_hash(seed, groups.ids[c]) % int(m) for c, m in zip(code.tolist(), size.tolist(), strict=True)]
    return np.sort(order[first + np.array(place, dtype=np.int64)])


def _hash(seed: int, name: str) -> int:
    # Not hash(): Python salts it per process, and the pick must be the same in every run.
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")


def cluster_sums(
    uncertainty: NDArray[np.float64], error: NDArray[np.int8], code: NDArray[np.int64], k: NDArray[np.int64]
) -> ClusterSums:
    """Sums over groups of what is accepted of each, at every block end. O(n log n), in whole numbers.

    An item with error x that joins a group with m accepted items, e of them wrong, adds ``2ex + x`` to the sum of
    squared errors, ``e + xm + x`` to that of errors times items, and ``2m + 1`` to that of squared items.

    Args:
        uncertainty: Scores, shape (n,).
        error: 0 or 1, shape (n,).
        code: Group of each item, shape (n,).
        k: Items accepted at each block end.
    """
    order = np.argsort(uncertainty)
    member = np.argsort(code[order], kind="stable")  # by group, and within a group by uncertainty
    x = error[order][member].astype(np.int64)
    _, first, size = np.unique(code[order][member], return_index=True, return_counts=True)
    begin = np.repeat(first, size)
    m = np.arange(x.size) - begin
    # Subtracting the total at the group's first item turns one cumulative sum over all items into one for each group.
    before = np.cumsum(x) - x
    e = before - before[begin]
    steps = (m == 0, 2 * e * x + x, e + x * m + x, 2 * m + 1)
    sums = []
    for step in steps:
        by_rank = np.empty(x.size, dtype=np.int64)
        # Back from the order by group to the order by score: only there do cumulative sums belong to a threshold.
        by_rank[member] = step
        sums.append(np.cumsum(by_rank)[k - 1])
    return ClusterSums(*sums)


def prepare(
    rule: Rule,
    request: RuleRequest,
    uncertainty: NDArray[np.float64],
    error: NDArray[np.int8],
    groups: Groups | None,
) -> tuple[Prefix, RuleRequest]:
    """Block ends as the rule needs them: of one item a group, or with sums over groups, or plain.

    Without groups, or when no group has two items, every item is its own group.

    Returns:
        The block ends, and the request with the number of items and groups among its options.

    Raises:
        UsageError: Groups repeat and the rule takes items to be independent.
    """
    # Groups of one item each are independent items, so any rule may read them and none has to give up data.
    if groups is None or not groups.repeated:
        return prefixes(uncertainty, error), request
    n, distinct = uncertainty.size, groups.distinct
    # The original counts go into the options: after the pick the prefix knows the number of groups only.
    counted = replace(request, options={**request.options, "items": n, "groups": distinct})
    if rule.grouping == "one_each":
        sampled = one_of_each(groups, request.options.get("seed", 0))
        return prefixes(uncertainty[sampled], error[sampled]), counted
    if rule.grouping == "sums":
        prefix = prefixes(uncertainty, error)
        return replace(prefix, clusters=cluster_sums(uncertainty, error, groups.code, prefix.k)), counted
    raise UsageError(
        f"rule {rule.name!r} takes items to be independent, but {n} items come from {distinct} groups. Use "
        "rule='certified' (one item a group, exact) or 'cluster_fixed_sequence' (all items, asymptotic), keep one item "
        "a group yourself, or pass groups='ignore' to calibrate as if they were independent (the promise of a rule "
        "that makes one then does not hold)."
    )
