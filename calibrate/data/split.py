"""Cutting records or questions in two at random, and what groups of dependent items mean for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import numpy as np

from guardrail.errors import UsageError

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
) -> tuple[list[T], list[T]]:
    """Cut records or questions in two at random: whole clusters when groups are clusters, single items otherwise.

    The order of the items does not matter.

    Returns:
        The calibration part and the test part.

    Raises:
        UsageError: A fraction outside (0, 1), missing groups, or too few units to cut.
    """
    if not 0 < test_fraction < 1:
        raise UsageError(f"test fraction must be in (0, 1), got {test_fraction}. Write 0.3 for 30 %.")
    if groups == "cluster":
        _need_groups(item.group for item in items)
    unit_of = [str(item.group) if groups == "cluster" else item.id for item in items]
    units = sorted(set(unit_of))
    n_test = round(test_fraction * len(units))
    if not 0 < n_test < len(units):
        what = "clusters" if groups == "cluster" else "questions"
        raise UsageError(f"{len(units)} {what} cannot be cut at {test_fraction}: one part is empty. Use more of them.")
    shuffled = np.random.default_rng(seed).permutation(len(units))
    chosen = {units[i] for i in shuffled[:n_test]}
    kept = [item for item, unit in zip(items, unit_of, strict=True) if unit not in chosen]
    return kept, [item for item, unit in zip(items, unit_of, strict=True) if unit in chosen]


def one_per_cluster(records: Sequence[Record]) -> tuple[Record, ...]:
    """One record of each group, the one whose id has the smallest hash: random, yet the same in every run.

    Raises:
        UsageError: Some records have no group.
    """
    _need_groups(record.group for record in records)
    first: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: hashlib.sha256(record.id.encode()).hexdigest()):
        first.setdefault(str(record.group), record)
    kept = {record.id for record in first.values()}
    return tuple(record for record in records if record.id in kept)


def all_grouped(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records, after checking that each has a group.

    Raises:
        UsageError: Some records have no group.
    """
    _need_groups(record.group for record in records)
    return tuple(records)


def _need_groups(groups: Iterable[str | None]) -> None:
    if any(group is None for group in groups):
        raise UsageError(
            "cluster by group was asked for, but some questions have no group. Give every question a group "
            "(conversation, user, document), or leave it out."
        )
