"""The items of answers and their labels as arrays: what fits, evaluations and reports of items read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ItemColumns:
    """The items of n records, one list behind the other.

    Attributes:
        size: Items of each answer; -1 where the answer could not be measured. Shape (n,).
        labels: Labels of each answer; -1 without labels. Shape (n,).
        reference: Fields of each answer's reference; -1 where that is not known. Shape (n,).
        uncertainty: NaN for an item that could not be measured. Shape (items,).
        absent: Whether the item is an optional field that the answer leaves out. Shape (items,).
        path: Number of each item's path in ``paths``. Shape (items,).
        right: 1 for a right item, 0 for a wrong one, -1 for an undecided one. Shape (labels,).
        paths: The distinct paths.
    """

    size: Counts
    labels: Counts
    reference: Counts
    uncertainty: NDArray[np.float64]
    absent: NDArray[np.bool_]
    path: Counts
    right: NDArray[np.int8]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Any]) -> ItemColumns:
        """From records, or what `calibrate.data.columns` decodes of their lines, which has the same fields."""
        pairs = [(row.items, row.item_labels) for row in rows]
        flat = [item for items, _ in pairs if items is not None for item in items]
        right = [label for _, labels in pairs if labels is not None for label in labels.right]
        number: dict[str, int] = {}
        counts = (None if labels is None else labels.n_reference for _, labels in pairs)
        return cls(
            size=_integers(-1 if items is None else len(items) for items, _ in pairs),
            labels=_integers(-1 if labels is None else len(labels.right) for _, labels in pairs),
            reference=_integers(-1 if count is None else count for count in counts),
            uncertainty=np.array([item.uncertainty for item in flat], dtype=np.float64),  # None becomes NaN
            absent=np.array([item.absent for item in flat], dtype=np.bool_),
            path=_integers(number.setdefault(item.path, len(number)) for item in flat),
            right=np.array([-1 if label is None else label for label in right], dtype=np.int8),
            paths=tuple(number),
        )

    @classmethod
    def joined(cls, tables: Sequence[ItemColumns]) -> ItemColumns:
        """The records of several tables in order; none gives no records."""
        tables = [cls.of(()), *tables]
        number: dict[str, int] = {}
        codes = [_integers(number.setdefault(path, len(number)) for path in columns.paths) for columns in tables]
        path = [code[columns.path] for code, columns in zip(codes, tables, strict=True)]
        names = ("size", "labels", "reference", "uncertainty", "absent", "right")
        arrays = {name: np.concatenate([getattr(columns, name) for columns in tables]) for name in names}
        return cls(**arrays, path=np.concatenate(path), paths=tuple(number))

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Return which answers could be measured, shape (n,)."""
        return self.size >= 0

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Return which answers have both items and labels, shape (n,)."""
        return self.measured & (self.labels >= 0)

    def take(self, positions: NDArray[Any]) -> ItemColumns:
        """The records at these positions, or those that a mask selects, in this order."""
        chosen = np.flatnonzero(positions) if positions.dtype == np.bool_ else positions
        item = ragged_places(np.maximum(self.size, 0), chosen)
        return ItemColumns(
            size=self.size[chosen],
            labels=self.labels[chosen],
            reference=self.reference[chosen],
            uncertainty=self.uncertainty[item],
            absent=self.absent[item],
            path=self.path[item],
            right=self.right[ragged_places(np.maximum(self.labels, 0), chosen)],
            paths=self.paths,
        )


def lists_of(size: Counts, values: NDArray[Any]) -> list[NDArray[Any]]:
    """A flat array as lists of these sizes; a negative size is no entry."""
    return np.split(values, np.cumsum(np.maximum(size, 0))[:-1]) if size.size else []


def ragged_places(size: Counts, chosen: Counts) -> Counts:
    """Places, in a flat array of lists of these sizes, of the entries of the chosen lists, one list after another."""
    taken = size[chosen]
    start = (np.cumsum(size) - size)[chosen] - (np.cumsum(taken) - taken)
    positions: Counts = np.repeat(start, taken) + np.arange(taken.sum())
    return positions


def _integers(values: Iterable[int]) -> Counts:
    return np.fromiter(values, dtype=np.int64)
