"""Cutting records or questions in two at random, and what groups of dependent items mean for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .questions import Question
from .record import Record
from .table import Places, RecordTable, table_of

__all__ = ["Groups", "Repeats", "all_grouped", "one_per_cluster", "one_per_question", "split"]

T = TypeVar("T", Record, Question)

Groups = Literal["category", "cluster"]
"""What the question file's ``group`` means.

* category: a topic such as "arithmetic", for reports. The questions are still independent draws (default).
* cluster: a conversation, user or document whose questions depend on each other. Splits keep clusters whole, and a fit
  uses one question of each, picked at random without looking at answers: that makes the items independent again.
"""

Repeats = Literal["once", "all"]
"""Whether a fit uses one record of each question, or all records of a question that is in the file several times."""


def split(
    items: Sequence[T], *, test_fraction: float, seed: int = 0, groups: Groups = "category"
) -> tuple[Sequence[T], Sequence[T]]:
    """Cut records or questions in two at random: whole clusters when groups are clusters, single items otherwise.

    Equal questions (`Question.asked`), and clusters that share one, stay on one side. The order of the items does not
    matter.

    Returns:
        The calibration part and the test part.

    Raises:
        UsageError: A fraction outside (0, 1), missing groups, or too few units to cut.
    """
    if not 0 < test_fraction < 1:
        raise UsageError(f"test fraction must be in (0, 1), got {test_fraction}. Write 0.3 for 30 %.")
    table = table_of(cast(Any, items))  # a cut reads ids and groups only, and questions have these as well
    if groups == "cluster":
        _need_groups(table)
    unit_of, n_units = _units(table, groups)
    n_test = round(test_fraction * n_units)
    if not 0 < n_test < n_units:
        units = "clusters" if groups == "cluster" else "questions"
        raise UsageError(f"{n_units} {units} cannot be cut at {test_fraction}: one part is empty. Use more of them.")
    chosen = np.zeros(n_units, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(n_units)[:n_test]] = True
    in_test = chosen[unit_of]
    parts: list[Any] = [table.take(~in_test), table.take(in_test)]
    calibration, test = parts if table is items else map(list, parts)  # a plain sequence gives lists
    return calibration, test


def one_per_cluster(records: Sequence[Record]) -> RecordTable:
    """One record of each group, the one whose id has the smallest hash: random, yet the same in every run.

    Raises:
        UsageError: Some records have no group.
    """
    table = all_grouped(records)
    return table.take(table.first_of_groups())


def one_per_question(records: Sequence[Record]) -> RecordTable:
    """One record of each question, the one whose id has the smallest hash: labels play no part.

    Questions are equal if their text, options, offered tools, slots and conversation are. Without repeated questions
    the records are returned unchanged.
    """
    table = table_of(records)
    code = _question_codes(table)
    order = np.lexsort((table.id_hashes(), code))
    ranked = code[order]
    is_first = np.append(True, ranked[1:] != ranked[:-1])[: len(order)]
    return table if is_first.all() else table.take(np.sort(order[is_first]))


def _question_codes(table: RecordTable) -> NDArray[np.int64]:
    """Number of each record's question among the distinct ones; equal questions have equal numbers."""
    return np.unique(table.asked_hashes(), return_inverse=True)[1].astype(np.int64)


def _units(table: RecordTable, groups: Groups) -> tuple[Places, int]:
    """Number of the unit that each item belongs to, and how many there are: items, or clusters, joined by questions."""
    unit_of, n_units = table.units("group" if groups == "cluster" else "id")
    _, code, count = np.unique(_question_codes(table), return_inverse=True, return_counts=True)
    shared = np.flatnonzero(count[code] > 1)
    if not shared.size:
        return unit_of, n_units
    joined = list(range(n_units))  # a unit's first one with the same question, and so on; its own place ends the chain

    def first_of(unit: int) -> int:
        while joined[unit] != unit:
            joined[unit] = joined[joined[unit]]  # shorter for the next search
            unit = joined[unit]
        return unit

    asked_by: dict[int, int] = {}
    for question, unit in zip(code[shared].tolist(), unit_of[shared].tolist(), strict=True):
        one, other = first_of(asked_by.setdefault(question, unit)), first_of(unit)
        joined[max(one, other)] = min(one, other)
    units, unit_of = np.unique([first_of(unit) for unit in unit_of.tolist()], return_inverse=True)
    return unit_of, units.size


def all_grouped(records: Sequence[Record]) -> RecordTable:
    """The records, after checking that each has a group.

    Raises:
        UsageError: Some records have no group.
    """
    table = table_of(records)
    _need_groups(table)
    return table


def _need_groups(table: RecordTable) -> None:
    if None in table.coded("group")[1]:
        raise UsageError(
            "cluster by group was asked for, but some questions have no group. Give every question a group "
            "(conversation, user, document), or leave it out."
        )
