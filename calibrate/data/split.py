"""Cutting records or questions in two at random, and what groups of dependent items mean for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .column_store import ColumnRecords
from .questions import Question
from .records import Record

__all__ = ["Groups", "all_grouped", "one_per_cluster", "split"]

T = TypeVar("T", Record, Question)

Groups = Literal["category", "cluster"]
"""What the question file's ``group`` means.

* category: a topic such as "arithmetic", for reports. The questions are still independent draws (default).
* cluster: a conversation, user or document whose questions depend on each other. Splits keep clusters whole, and a fit
  uses one question of each, picked at random without looking at answers: that makes the items independent again.
"""


def split(
    items: Sequence[T], *, test_fraction: float, seed: int = 0, groups: Groups = "category"
) -> tuple[Sequence[T], Sequence[T]]:
    """Cut records or questions in two at random: whole clusters when groups are clusters, single items otherwise.

    The order of the items does not matter.

    Returns:
        The calibration part and the test part.

    Raises:
        UsageError: A fraction outside (0, 1), missing groups, or too few units to cut.
    """
    if not 0 < test_fraction < 1:
        raise UsageError(f"test fraction must be in (0, 1), got {test_fraction}. Write 0.3 for 30 %.")
    unit_of, n_units = _units(items, groups)
    n_test = round(test_fraction * n_units)
    if not 0 < n_test < n_units:
        what = "clusters" if groups == "cluster" else "questions"
        raise UsageError(f"{n_units} {what} cannot be cut at {test_fraction}: one part is empty. Use more of them.")
    chosen = np.zeros(n_units, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(n_units)[:n_test]] = True
    in_test = chosen[unit_of]
    if isinstance(items, ColumnRecords):
        return items.take(~in_test), items.take(in_test)
    kept = [item for item, out in zip(items, in_test.tolist(), strict=True) if not out]
    return kept, [item for item, out in zip(items, in_test.tolist(), strict=True) if out]


def _units(items: Sequence[Record] | Sequence[Question], groups: Groups) -> tuple[NDArray[np.int64], int]:
    """Number of each item's cluster or id among all of them, sorted; and how many there are."""
    if groups == "cluster":
        _need_groups(items)
    if isinstance(items, ColumnRecords):
        return items.units("group" if groups == "cluster" else "id")
    name_of = [str(item.group) if groups == "cluster" else item.id for item in items]
    number = {name: i for i, name in enumerate(sorted(set(name_of)))}
    return np.array([number[name] for name in name_of], dtype=np.int64), len(number)


def one_per_cluster(records: Sequence[Record]) -> Sequence[Record]:
    """One record of each group, the one whose id has the smallest hash: random, yet the same in every run.

    Raises:
        UsageError: Some records have no group.
    """
    _need_groups(records)
    if isinstance(records, ColumnRecords):
        return records.take(records.first_of_groups())
    first: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: hashlib.sha256(record.id.encode()).hexdigest()):
        first.setdefault(str(record.group), record)
    kept = {record.id for record in first.values()}
    return tuple(record for record in records if record.id in kept)


def all_grouped(records: Sequence[Record]) -> Sequence[Record]:
    """The records, after checking that each has a group.

    Raises:
        UsageError: Some records have no group.
    """
    _need_groups(records)
    return records


def _need_groups(items: Sequence[Record] | Sequence[Question]) -> None:
    bare = (
        None in items.coded("group")[1] if isinstance(items, ColumnRecords) else any(one.group is None for one in items)
    )
    if bare:
        raise UsageError(
            "cluster by group was asked for, but some questions have no group. Give every question a group "
            "(conversation, user, document), or leave it out."
        )
