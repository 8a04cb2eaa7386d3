"""Cutting records or questions in two at random, and what groups of dependent items mean for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .questions import Question
from .record import Record
from .table import Places, RecordTable, table_of

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
    items: Sequence[T],
    *,
    test_fraction: float,
    seed: int = 0,
    groups: Groups = "category",
    kept: NDArray[np.bool_] | None = None,
) -> tuple[Sequence[T], Sequence[T]]:
    """Cut records or questions in two at random: whole clusters when groups are clusters, single items otherwise.

    Equal questions (`Question.asked`), and clusters that share one, stay on one side. The order of the items does not
    matter.

    Args:
        items: Records or questions.
        test_fraction: Share of the units in the test part, in (0, 1).
        seed: Of the cut.
        groups: Whether groups are clusters.
        kept: Items whose units are not for the test part, shape (n,); the share is then of the other units.

    Returns:
        The calibration part and the test part.

    Raises:
        UsageError: A fraction outside (0, 1), missing groups, or too few units to cut.
    """
    if not 0 < test_fraction < 1:
        raise UsageError(f"test fraction must be in (0, 1), got {test_fraction}. Write 0.3 for 30 %.")
    table = table_of(cast(Any, items))  # a cut reads ids and groups only, and questions have these as well
    if groups == "cluster":
        all_grouped(table)
    unit_of, n_units = _units(table, groups)
    free = np.arange(n_units) if kept is None else np.setdiff1d(np.arange(n_units), unit_of[kept])
    n_test = round(test_fraction * free.size)
    if not 0 < n_test < n_units:
        units = "clusters" if groups == "cluster" else "questions"
        of = f"{n_units} {units}" if kept is None else f"{free.size} of {n_units} {units}"
        raise UsageError(f"{of} cannot be cut at {test_fraction}: one part is empty. Use more of them.")
    chosen = np.zeros(n_units, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(free)[:n_test]] = True
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
    return table.take(_one_of_each(table, table.coded("group")[0]))


def one_per_question(records: Sequence[Record]) -> RecordTable:
    """One record of each question, the one whose id has the smallest hash: labels play no part.

    Questions are equal if their text, options, offered tools, slots and conversation are. Without repeated questions
    the records are returned unchanged.
    """
    table = table_of(records)
    positions = _one_of_each(table, _question_codes(table))
    return table if len(positions) == len(table) else table.take(positions)


def _one_of_each(table: RecordTable, codes: NDArray[Any]) -> Places:
    """Positions of one record of each code in order, the one whose id has the smallest hash."""
    order = np.lexsort((table.id_hashes(), codes))
    _, first = np.unique(codes[order], return_index=True)
    return np.sort(order[first])


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
    asked_by: dict[int, int] = {}
    same = zip(code[shared].tolist(), unit_of[shared].tolist(), strict=True)
    joined = _joined(n_units, [(asked_by.setdefault(question, unit), unit) for question, unit in same])
    return joined[unit_of], int(joined.max()) + 1


@dataclass(frozen=True, slots=True)
class Dependence:
    """Questions that are hardly independent draws.

    Attributes:
        n: Questions that share a group, or are nearly equal to another one.
        units: Groups, or kinds of nearly equal questions, that they form.
        example: Ids of two nearly equal ones; None if only their groups are known.
        grouped: Whether every question has a group.
    """

    n: int
    units: int
    example: tuple[str, str] | None = None
    grouped: bool = True


def dependence(records: Sequence[Record]) -> Dependence | None:
    """Nearly equal questions if they are 5 % or more, else groups with several questions; None without either.

    Two questions are nearly equal if they differ in at most one word of six or more and have the same answer.
    """
    table = table_of(records)
    nearly_equal = _nearly_equal(table) if len(table) <= _MOST_COMPARED else None
    if nearly_equal is not None:
        return nearly_equal
    codes, names = table.coded("group")
    counts = np.bincount(codes[np.array([name is not None for name in names], dtype=np.bool_)[codes]])
    several = counts[counts > 1]
    return Dependence(int(several.sum()), several.size) if several.size > 1 else None


_MOST_COMPARED = 20_000
"""Records up to which the texts of questions are compared."""
_WORDS = range(6, 300)
"""Lengths of the questions that are compared: in a shorter one a single word is the question."""


def _nearly_equal(table: RecordTable) -> Dependence | None:
    """Nearly equal questions if they are 5 % or more.

    "what is the capital of france", without word 5, is the same as "what is the capital of spain" without it.
    """
    equal: list[tuple[int, int]] = []
    first: dict[Any, int] = {}
    for index, record in enumerate(table):
        words = record.question.casefold().split()
        if len(words) not in _WORDS or not record.answer:
            continue
        answer = record.answer.strip().casefold()
        hashes = [hash(pair) for pair in enumerate(words)]
        whole = sum(hashes)
        for position, word in enumerate(hashes):
            without_word = (len(words), position, whole - word, answer)
            equal.append((first.setdefault(without_word, index), index))
    kinds = _joined(len(table), equal)
    counts = np.bincount(kinds)
    several = counts > 1
    n, units = int(counts[several].sum()), int(several.sum())
    if n < max(1, 0.05 * len(table)):
        return None
    one, other, *_ = np.flatnonzero(kinds == np.argmax(several)).tolist()
    grouped = None not in table.coded("group")[1]
    return Dependence(n, units, (table[one].id, table[other].id), grouped)


def _joined(n: int, pairs: Sequence[tuple[int, int]]) -> Places:
    """Number of the set that each of n places belongs to, where pairs of places are in one set."""
    from scipy.sparse import coo_array, csgraph  # slow to import

    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(ends.shape[1], dtype=np.int64), (ends[0], ends[1])), shape=(n, n))
    sets: Places = csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    return sets


def all_grouped(records: Sequence[Record]) -> RecordTable:
    """The records, after checking that each has a group.

    Raises:
        UsageError: Some records have no group.
    """
    table = table_of(records)
    if None in table.coded("group")[1]:
        raise UsageError(
            "cluster by group was asked for, but some questions have no group. Give every question a group "
            "(conversation, user, document), or leave it out."
        )
    return table
