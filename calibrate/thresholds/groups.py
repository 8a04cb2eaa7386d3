"""Items that come in groups (conversations, users, documents): which of them a rule is given."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .rule import GroupedItems, Prefix, Rule, RuleRequest, prefixes

__all__ = ["Groups", "one_of_each", "prepare"]


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


def _items_of(groups: Groups, uncertainty: NDArray[np.float64], error: NDArray[np.int8], seed: int) -> GroupedItems:
    """The items with their groups, groups numbered in the order in which a betting rule reads them."""
    # By a hash, never by score, size or time: a bettor who reads the largest groups last wins too often.
    present = np.unique(groups.code)
    hashed = sorted(present.tolist(), key=lambda code: (_hash(seed, groups.ids[code]), code))
    position = np.empty(len(groups.ids), dtype=np.int64)
    position[hashed] = np.arange(len(hashed))
    order = np.argsort(uncertainty, kind="stable")
    return GroupedItems(position[groups.code[order]], error[order].astype(np.int64))


def prepare(
    rule: Rule,
    request: RuleRequest,
    uncertainty: NDArray[np.float64],
    error: NDArray[np.int8],
    groups: Groups | None,
) -> tuple[Prefix, RuleRequest]:
    """Block ends as the rule needs them: of one item a group, or with the items of every group, or plain.

    Without groups, or when no group has two items, every item is its own group.

    Returns:
        The block ends, and the request with the number of items and groups among its options.

    Raises:
        UsageError: Groups repeat and the rule takes items to be independent.
    """
    # Groups of one item each are independent items, so any rule may read them and none has to give up data.
    if groups is None or not groups.repeated:
        return prefixes(uncertainty, error), request
    seed = request.options.get("seed", 0)
    n, distinct = uncertainty.size, groups.distinct
    # The original counts go into the options: after the pick the prefix knows the number of groups only.
    counted = replace(request, options={**request.options, "items": n, "groups": distinct})
    if rule.grouping == "one_each":
        sampled = one_of_each(groups, seed)
        return prefixes(uncertainty[sampled], error[sampled]), counted
    if rule.grouping == "all":
        prefix = prefixes(uncertainty, error)
        return replace(prefix, grouped=_items_of(groups, uncertainty, error, seed)), counted
    raise UsageError(
        f"rule {rule.name!r} takes items to be independent, but {n} items come from {distinct} groups. Use "
        "rule='certified' (one item a group) or 'certified_groups' (all items), keep one item a group yourself, "
        "or pass groups='ignore' to calibrate as if they were independent (the promise of a rule that makes "
        "one then does not hold)."
    )
