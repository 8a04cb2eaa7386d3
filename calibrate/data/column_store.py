"""Columns beside the log: what large record files are read by, without their texts.

A record file stays the log. Beside ``records.jsonl`` the folder ``records.jsonl.cols`` holds Parquet files, one a range
of its bytes, with ids, labels, groups, scores and digests of the questions (`calibrate.data.column_build`). They are
built in one pass, continued when the log has grown, and built again when it was replaced; deleting the folder costs
time and nothing else.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from guardrail.errors import RecordError, UsageError, require

from .column_build import Shown, current_parts, read_header
from .item_columns import ItemColumns
from .progress import silent
from .questions import rows_fingerprint
from .record import Record, RecordHeader
from .records import RecordFile, line_number, parse_record, pooled, read_records
from .table import DTYPES, FAILED, Codes, Places, RecordsInMemory, RecordTable

__all__ = ["LARGE", "ColumnRecords", "in_memory", "open_each", "open_records"]

LARGE = 16 * 2**20
"""Bytes of record files from which on they are read by columns: about 6,000 records with samples."""
_FEW = 100
"""Of a selection smaller than one record in so many, only the Parquet files that hold some of it are read."""
_PIECE = 2**16
"""Rows that are hashed at once."""


def open_records(
    path: str | Path, *more: str | Path, shown: Shown = lambda title: nullcontext(silent), workers: int = 1
) -> RecordFile:
    """Read record files as `read_records` does; large ones by columns (`ColumnRecords`) where the extra is installed.

    Args:
        path: A record file.
        more: Others, to be read as one with it.
        shown: From a title to a progress bar, for columns that have to be built.
        workers: Processes that build them. Above 1 the caller's main module must be importable.

    Raises:
        RecordError: As `read_records`, of the fields that become columns.
        UsageError: As `read_records`.
    """
    return pooled(open_each([Path(each) for each in (path, *more)], shown=shown, workers=workers))


def open_each(
    paths: Sequence[Path], *, shown: Shown = lambda title: nullcontext(silent), workers: int = 1
) -> list[RecordFile]:
    """Read record files one by one as `open_records` does: all by columns if they are large together."""
    large = sum(path.stat().st_size for path in paths if path.is_file()) >= LARGE
    if not large or find_spec("msgspec") is None or find_spec("pyarrow") is None:
        return [read_records(path) for path in paths]
    return [_open(path, shown, workers) for path in paths]


def in_memory(file: RecordFile) -> RecordFile:
    """The file with its records in memory, for what reads texts more than once."""
    return replace(file, records=RecordsInMemory(file.records))


class ColumnRecords(RecordTable):
    """The records of large files, in file order: columns at once, and whole records one by one, read when asked for.

    A column is read when it is asked for and not kept, so memory is that of the columns in use. The log stays open:
    columns and records belong together even if the file is replaced meanwhile.
    """

    def __init__(self, logs: Sequence[_Log], selected: Places | None = None) -> None:
        self.logs = tuple(logs)
        self._selected = selected
        self._total = sum(log.n for log in logs)

    def __len__(self) -> int:
        return self._total if self._selected is None else self._selected.size

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRecords: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Record | ColumnRecords:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        place = index.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return next(iter(self.take(np.array([place % len(self)]))))

    def __iter__(self) -> Iterator[Record]:
        first = np.cumsum([0, *(log.n for log in self.logs)])[:-1]
        places = range(self._total) if self._selected is None else self._selected.tolist()
        for place, offset in zip(places, self._offsets().tolist(), strict=True):
            yield self.logs[int(np.searchsorted(first, place, side="right")) - 1].record(offset)

    def take(self, places: NDArray[Any]) -> ColumnRecords:
        """The records at these positions, or those that a mask selects."""
        if places.dtype == np.bool_ and places.all():
            return self
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return ColumnRecords(self.logs, chosen if self._selected is None else self._selected[chosen])

    def joined(self, others: Sequence[RecordTable]) -> RecordTable:
        """These records and those of other tables behind them; in memory if one of the tables is, or is a selection."""
        tables = [self, *(other for other in others if isinstance(other, ColumnRecords))]
        if len(tables) <= len(others) or any(table._selected is not None for table in tables):
            return RecordsInMemory(self).joined(others)
        return ColumnRecords([log for table in tables for log in table.logs])

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the records; read when they are looked at."""
        return _Texts(self, "id")

    @property
    def groups(self) -> Sequence[str | None]:
        """Group of each record; read when they are looked at."""
        return _Texts(self, "group")

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of `DTYPES`."""
        return self._read(name, DTYPES[name], 0)

    def scores(self, key: str) -> NDArray[np.float64]:
        """Scores of an estimator; NaN without one."""
        values = self._read(f"score:{key}", np.float64, np.nan)
        values[np.isinf(values)] = np.nan  # a failure of a server
        return values

    def failed(self, key: str | None = None) -> NDArray[np.bool_]:
        """Which records have no score because a server, a rate limit or a time-out failed."""
        failed: NDArray[np.bool_] = (self.flags() & FAILED) != 0
        return failed if key is None else failed | np.isinf(self._read(f"score:{key}", np.float64, np.nan))

    def scored(self, key: str) -> NDArray[np.bool_]:
        """Which records an estimator looked at, whether or not it could measure them."""
        return self._read(f"score:{key}", np.bool_, False, lambda column: column.is_valid().to_numpy())

    def score_keys(self) -> set[str]:
        """Keys of the estimators that looked at some record."""
        names = {name for part in self._parts() for name in part.schema_arrow.names}
        keys = (name.removeprefix("score:") for name in names if name.startswith("score:"))
        return {key for key in keys if self.scored(key).any()}

    def items(self, key: str) -> ItemColumns:
        """The items of answers under a key, and their labels."""
        files, selected = self._needed()
        columns = ItemColumns.joined([ItemColumns.of_parquet(file, key) for file in files])
        return columns if selected is None else columns.take(selected)

    def _offsets(self) -> Places:
        return self._read("offset", np.int64, 0)

    def _read(
        self,
        name: str,
        dtype: DTypeLike,
        absent: float,
        array_of: Callable[[Any], NDArray[Any]] = lambda column: column.to_numpy(),
    ) -> NDArray[Any]:
        """A column, with ``absent`` for the records of files that lack it."""
        parts, selected = self._needed()
        values, at = np.empty(sum(part.metadata.num_rows for part in parts), dtype=dtype), 0
        for part in parts:
            end = at + part.metadata.num_rows
            has_it = name in part.schema_arrow.names
            values[at:end] = array_of(part.read([name], use_threads=False).column(0)) if has_it else absent
            at = end
        return values if selected is None else values[selected]

    def _parts(self) -> Iterator[Any]:
        return (part for log in self.logs for part in log.parts)

    def _needed(self) -> tuple[list[Any], Places | None]:
        """The Parquet files to read, and the places of the records in them together; None for all of theirs."""
        parts, selected = list(self._parts()), self._selected
        if selected is None or selected.size > self._total // _FEW:
            return parts, selected
        sizes = np.array([part.metadata.num_rows for part in parts], dtype=np.int64)
        number = np.searchsorted(np.cumsum(sizes), selected, side="right")
        needed = np.bincount(number, minlength=sizes.size) > 0
        left_out = np.cumsum(np.where(needed, 0, sizes))
        return [part for part, needs in zip(parts, needed.tolist(), strict=True) if needs], selected - left_out[number]

    def _texts(self, name: str) -> Any:
        """A column of texts, as an array of pyarrow."""
        pa = require("pyarrow", extra="data")
        parts, selected = self._needed()
        chunks = [chunk for part in parts for chunk in part.read([name], use_threads=False).column(0).chunks]
        texts = pa.chunked_array(chunks, pa.large_string())
        return texts if selected is None else texts.take(pa.array(selected))

    def coded(self, name: Literal["group", "turns"]) -> tuple[Codes, list[str | None]]:
        """A column whose texts repeat: the number of its text for each record, and the texts in order of appearance."""
        number: dict[str | None, int] = {}
        codes, at = np.empty(self._total, dtype=np.int32), 0
        for part in self._parts():
            column = part.read([name], use_threads=False).column(0).dictionary_encode("encode").combine_chunks()
            place = np.array([number.setdefault(text, len(number)) for text in column.dictionary.to_pylist()], np.int32)
            codes[at : at + len(column)] = place[column.indices.to_numpy()]
            at += len(column)
        names = list(number)
        if self._selected is not None:  # texts of the records left out do not count
            codes = codes[self._selected]
            present = np.bincount(codes, minlength=len(names)) > 0
            codes = (np.cumsum(present, dtype=np.int32) - 1)[codes]
            names = [name for name, is_there in zip(names, present.tolist(), strict=True) if is_there]
        return codes, names

    def units(self, name: Literal["id", "group"]) -> tuple[Places, int]:
        """Number of each record's text among the distinct texts of a column, sorted, and how many there are."""
        if name == "group":
            return super().units(name)
        # Ids are distinct, and pyarrow sorts them without a Python object for each.
        order = require("pyarrow.compute", extra="data").sort_indices(self._texts("id")).to_numpy()
        rank = np.empty(order.size, dtype=np.int64)
        rank[order] = np.arange(order.size)
        return rank, order.size

    def fingerprint(self) -> str:
        """`calibrate.data.questions.rows_fingerprint` of the questions."""
        high, low = (self._read(name, np.uint64, 0) for name in ("row_high", "row_low"))
        order = np.argsort(high)
        ranked = high[order]
        if (ranked[1:] == ranked[:-1]).any():  # the second half decides seldom, and sorting by both takes far longer
            order = np.lexsort((low, high))
        pieces = (order[at : at + _PIECE] for at in range(0, order.size, _PIECE))
        return rows_fingerprint(np.stack((high[rows], low[rows]), axis=1).astype(">u8").tobytes() for rows in pieces)

    def questions_sha256(self) -> str:
        """`fingerprint`: a pool of columns is not stored, so its header need not have that of whole questions."""
        return self.fingerprint()


class _Texts(Sequence[Any]):
    """Ids or groups of records, read when they are looked at."""

    def __init__(self, records: ColumnRecords, name: Literal["id", "group"]) -> None:
        self._records, self._name = records, name

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        places = np.arange(len(self))[index]
        texts: list[Any] = self._records.take(np.atleast_1d(places))._texts(self._name).to_pylist()
        return texts if isinstance(index, slice) else texts[0]

    def __iter__(self) -> Iterator[Any]:
        if self._name == "id":
            return iter(self._records._texts("id").to_pylist())
        codes, names = self._records.coded(self._name)  # one Python object for all equal texts
        return (names[code] for code in codes.tolist())


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Log:
    """An open record file and its columns.

    Attributes:
        path: Where it was read.
        descriptor: The open file.
        parts: Its Parquet files in order.
    """

    path: Path
    descriptor: int
    parts: tuple[Any, ...]

    @property
    def n(self) -> int:
        """Records."""
        return sum(part.metadata.num_rows for part in self.parts)

    def line(self, offset: int) -> bytes:
        """The line that starts at a byte."""
        os.lseek(self.descriptor, offset, os.SEEK_SET)
        line = bytearray()
        while b"\n" not in line and (chunk := os.read(self.descriptor, max(1 << 14, len(line)))):
            line += chunk
        return bytes(line.partition(b"\n")[0])

    def record(self, offset: int) -> Record:
        """The record whose line starts at a byte."""
        return parse_record(self.path, 0, self.line(offset))


def _open(path: Path, shown: Shown, workers: int) -> RecordFile:
    """A record file by its columns, which are built where they are missing; by its records where they cannot be."""
    if not path.is_file():
        raise UsageError(
            f"no record file at {path}. `calibrate collect` makes one, and of people's decisions `calibrate learn`."
        )
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        header, first = read_header(path)
        # A sample that was drawn for people to label is not large, and its draw is checked against whole records.
        columns = None if header.scope.is_drawn else _columns_or_warning(path, first, header, shown, workers)
        if columns is not None and os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise UsageError(f"{path} was replaced while it was being read. Run the command again.")
    except BaseException:
        os.close(descriptor)
        raise
    if columns is None:
        os.close(descriptor)
        return read_records(path)
    parts, covered = columns
    log = _Log(path, descriptor, tuple(parts))
    weakref.finalize(log, os.close, descriptor)
    records = ColumnRecords([log])
    twice = records.repeated()
    if twice is not None:
        lines = [line_number(path, offset) for offset in records.take(np.array(twice))._offsets().tolist()]
        raise RecordError(
            f"{path}:{lines[1]}: field 'id': got {records[twice[1]].id!r}, which is already at line {lines[0]}. Every "
            "question has one record: remove one of the two lines."
        )
    os.lseek(descriptor, covered, os.SEEK_SET)
    return RecordFile(path, header, records, torn=bool(os.read(descriptor, 4_096).strip()))


def _columns_or_warning(
    path: Path, first: bytes, header: RecordHeader, shown: Shown, workers: int
) -> tuple[list[Any], int] | None:
    """`current_parts`; None, and a warning, where the columns cannot be written."""
    try:
        return current_parts(path, first, header, shown, workers)
    except OSError as error:
        warnings.warn(
            f"the columns of {path} cannot be written ({error}), so whole records are read: this takes longer, and "
            "about 30 KiB of memory a record. Free some space, or give a copy in a folder that can be written.",
            stacklevel=2,
        )
        return None
