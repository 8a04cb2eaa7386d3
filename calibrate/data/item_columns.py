"""The items of answers and their labels as arrays: what fits, evaluations and reports of items read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ItemColumns", "lists_of", "ragged_places"]

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ItemColumns:
    """The items of one key of n records, one list behind the other.

    Attributes:
        size: Items of each answer; -1 where the answer could not be measured. Shape (n,).
        labels: Labels of each answer; -1 without labels. Shape (n,).
        reference: Fields of each answer's reference; -1 where that is not known. Shape (n,).
        uncertainty: NaN for an item that could not be measured. Shape (items,).
        absent: Whether the item is an optional field that the answer leaves out. Shape (items,).
        path: Number of each item's path in ``paths``. Shape (items,).
        right: 1 for a right item, 0 for a wrong one, -1 for an undecided one. Shape (labels,).
        paths: The distinct paths; None is that of the items of a text.
    """

    size: Counts
    labels: Counts
    reference: Counts
    uncertainty: NDArray[np.float64]
    absent: NDArray[np.bool_]
    path: Counts
    right: NDArray[np.int8]
    paths: tuple[str | None, ...]

    @classmethod
    def of(cls, rows: Iterable[Any], key: str) -> ItemColumns:
        """From records, or what `calibrate.data.column_build` decodes of their lines, which has the same fields."""
        pairs = [(row.items.get(key), row.item_labels.get(key)) for row in rows]
        flat = [item for items, _ in pairs if items is not None for item in items]
        right = [label for _, labels in pairs if labels is not None for label in labels.right]
        number: dict[str | None, int] = {}
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
    def joined(cls, some: Sequence[ItemColumns]) -> ItemColumns:
        """The records of several tables in order; none gives no records."""
        some = [cls.of((), ""), *some]
        number: dict[str | None, int] = {}
        codes = [_integers(number.setdefault(path, len(number)) for path in each.paths) for each in some]
        path = [code[each.path] for code, each in zip(codes, some, strict=True)]
        names = ("size", "labels", "reference", "uncertainty", "absent", "right")
        arrays = {name: np.concatenate([getattr(each, name) for each in some]) for name in names}
        return cls(**arrays, path=np.concatenate(path), paths=tuple(number))

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which answers could be measured, shape (n,)."""
        return self.size >= 0

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which answers have both items and labels, shape (n,)."""
        return self.measured & (self.labels >= 0)

    def take(self, places: NDArray[Any]) -> ItemColumns:
        """The records at these positions, or those that a mask selects, in this order."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else places
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

    # -- Parquet -------------------------------------------------------------------------------------------------------

    def to_arrow(self, pa: Any, key: str) -> dict[str, Any]:
        """Columns of pyarrow by name: lists, with null for an answer that was not measured, or has no labels."""

        def lists(size: Counts, values: Any) -> Any:
            offsets = np.append(0, np.cumsum(np.maximum(size, 0)))
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), mask=pa.array(size < 0))

        return {
            f"{key}:uncertainty": lists(self.size, self.uncertainty),
            f"{key}:path": lists(self.size, pa.array(self.paths, pa.string()).take(pa.array(self.path))),
            f"{key}:absent": lists(self.size, self.absent),
            f"{key}:right": lists(self.labels, self.right),
            f"{key}:reference": pa.array(self.reference, pa.int32()),
        }

    @classmethod
    def of_parquet(cls, file: Any, key: str) -> ItemColumns:
        """From the columns of a Parquet file; one that lacks them has no answer with items."""
        n = file.metadata.num_rows
        if f"{key}:uncertainty" not in file.schema_arrow.names:
            none = np.full(n, -1, dtype=np.int64)
            return replace(cls.of((), key), size=none, labels=none, reference=none)

        def read(name: str) -> Any:
            return file.read([f"{key}:{name}"], use_threads=False).column(0).combine_chunks()

        uncertainty, right = read("uncertainty"), read("right")
        path = read("path").flatten().dictionary_encode("encode")
        return cls(
            size=_lengths(uncertainty),
            labels=_lengths(right),
            reference=_array(read("reference"), np.int64),
            uncertainty=_array(uncertainty.flatten(), np.float64),
            absent=_array(read("absent").flatten(), np.bool_),
            path=_array(path.indices, np.int64),
            right=_array(right.flatten(), np.int8),
            paths=tuple(path.dictionary.to_pylist()),
        )


def lists_of(size: Counts, values: NDArray[Any]) -> list[NDArray[Any]]:
    """A flat array as lists of these sizes; a negative size is no entry."""
    return np.split(values, np.cumsum(np.maximum(size, 0))[:-1]) if size.size else []


def ragged_places(size: Counts, chosen: Counts) -> Counts:
    """Places, in a flat array of lists of these sizes, of the entries of the chosen lists, one list after another."""
    taken = size[chosen]
    start = (np.cumsum(size) - size)[chosen] - (np.cumsum(taken) - taken)
    places: Counts = np.repeat(start, taken) + np.arange(taken.sum())
    return places


def _integers(values: Iterable[int]) -> Counts:
    return np.fromiter(values, dtype=np.int64)


def _lengths(lists: Any) -> Counts:
    return _array(lists.value_lengths().fill_null(-1), np.int64)


def _array(values: Any, dtype: Any) -> NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=dtype)
