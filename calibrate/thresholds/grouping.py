"""Group ids: items of one conversation, user or document depend on each other. What a rule is given then."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .prefix import ClusterSums, Prefix, prefixes
from .rule import Request, Rule

__all__ = ["Groups", "cluster_sums", "one_of_each", "prepare"]


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
        known: dict[Hashable, int] = {}
        code = np.array([known.setdefault(group, len(known)) for group in ids], dtype=np.int64)
        return cls(code, tuple(str(group) for group in known))

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

    Neither scores nor labels are looked at, so what is picked is a random item of each group whatever they are. The
    order of the groups plays no part; the order of the items within a group does, and decides nothing but which of
    them is picked.
    """
    order = np.argsort(groups.code, kind="stable")
    code, first, size = np.unique(groups.code[order], return_index=True, return_counts=True)
    place = [_hash(seed, groups.ids[c]) % int(m) for c, m in zip(code.tolist(), size.tolist(), strict=True)]
    return np.sort(order[first + np.array(place, dtype=np.int64)])


def _hash(seed: int, name: str) -> int:
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
    before = np.cumsum(x) - x
    e = before - before[begin]
    steps = (m == 0, 2 * e * x + x, e + x * m + x, 2 * m + 1)
    sums = []
    for step in steps:
        by_rank = np.empty(x.size, dtype=np.int64)
        by_rank[member] = step
        sums.append(np.cumsum(by_rank)[k - 1])
    return ClusterSums(*sums)


def prepare(
    rule: Rule,
    request: Request,
    uncertainty: NDArray[np.float64],
    error: NDArray[np.int8],
    groups: Groups | None,
) -> tuple[Prefix, Request]:
    """Block ends as the rule needs them: of one item a group, or with sums over groups, or plain.

    Without groups, or when no group has two items, every item is its own group.

    Returns:
        The block ends, and the request with the number of items and groups among its options.

    Raises:
        UsageError: Groups repeat and the rule takes items to be independent.
    """
    if groups is None or not groups.repeated:
        return prefixes(uncertainty, error), request
    n, distinct = uncertainty.size, groups.distinct
    counted = replace(request, options={**request.options, "items": n, "groups": distinct})
    if rule.grouping == "one_each":
        kept = one_of_each(groups, request.options.get("seed", 0))
        return prefixes(uncertainty[kept], error[kept]), counted
    if rule.grouping == "sums":
        prefix = prefixes(uncertainty, error)
        return replace(prefix, clusters=cluster_sums(uncertainty, error, groups.code, prefix.k)), counted
    raise UsageError(
        f"rule {rule.name!r} takes items to be independent, but {n} items come from {distinct} groups. Use "
        "rule='certified' (one item a group, exact) or 'cluster_fixed_sequence' (all items, asymptotic), keep one item "
        "a group yourself, or pass groups='ignore' to calibrate as if they were independent (the promise of a rule "
        "that makes one then does not hold)."
    )
