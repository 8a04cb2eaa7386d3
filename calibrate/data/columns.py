"""Columns of large record files, decoded without their texts and kept in a file beside the log.

A record file stays the log. ``records.jsonl.columns.npz`` beside it holds ids, labels, groups, scores and digests of
the questions (`calibrate.data.table`). It belongs to the log as it was read (its size, time and inode), is made again
when the log has changed, and deleting it costs time and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import RecordError, require
from guardrail.files import atomic_write, mode_of
from guardrail.items.spec import ITEMS
from guardrail.types import Unmeasured

from .item_columns import ItemColumns
from .progress import Progress, silent
from .record import Record, RecordHeader, refuse_other_lengths
from .records import (
    RecordFile,
    is_fragment,
    line_number,
    may_have_fragments,
    parse_header,
    parse_record,
    pooled,
    read_records,
    refuse_missing,
    warn_of_fragments,
)
from .table import DIGESTS, NUMBERS, RecordTable, columns_of, table_of

__all__ = ["LARGE", "in_memory", "open_each", "open_records"]

LARGE = 16 * 2**20
"""Bytes of record files from which on they are read by columns: about 6,000 records with samples."""
_LAYOUT = 2
"""Version of the columns; a file of another version is made again."""
_BATCH = 2**16
"""Bytes of the log that are decoded at once: few enough to stay in the cache of a core."""

Shown = Callable[[str], AbstractContextManager[Progress]]
"""From a title to a progress bar."""


def open_records(path: str | Path, *more: str | Path, shown: Shown = lambda title: nullcontext(silent)) -> RecordFile:
    """Read record files as `read_records` does; large ones by columns where the extra "data" is installed.

    Args:
        path: A record file.
        more: Others, to be read as one with it.
        shown: From a title to a progress bar, for columns that have to be made.

    Raises:
        RecordError: As `read_records`, of the fields that become columns.
        UsageError: As `read_records`.
    """
    return pooled(open_each([Path(each) for each in (path, *more)], shown=shown))


def open_each(paths: Sequence[Path], *, shown: Shown = lambda title: nullcontext(silent)) -> list[RecordFile]:
    """Read record files one by one as `open_records` does: all by columns if they are large together."""
    large = sum(path.stat().st_size for path in paths if path.is_file()) >= LARGE
    if not large or find_spec("msgspec") is None:
        return [read_records(path) for path in paths]
    return [_open(path, shown) for path in paths]


def in_memory(file: RecordFile) -> RecordFile:
    """The file with its records in memory, for what reads texts more than once."""
    return replace(file, records=table_of(tuple(file.records)))


class _Log:
    """An open record file and its columns. It stays open: both belong together even if the file is replaced."""

    def __init__(self, path: Path, stream: IO[bytes], columns: Any) -> None:
        self.path, self._stream, self._columns = path, stream, columns
        self._offsets = columns["offset"]
        weakref.finalize(self, stream.close)
        if not isinstance(columns, dict):
            weakref.finalize(self, columns.close)

    def __len__(self) -> int:
        return len(self._offsets)

    def record(self, place: int) -> Record:
        self._stream.seek(int(self._offsets[place]))
        return parse_record(self.path, 0, self._stream.readline())

    def column(self, name: str) -> NDArray[Any]:
        if name.startswith("score:") and name not in self._columns:
            return np.full(len(self), -np.inf)
        column: NDArray[Any] = self._columns[name]
        return column

    def texts(self, name: Literal["id", "group", "turns"]) -> list[str | None]:
        if name == "id":
            return _unpacked(self._columns["ids"], self._columns["id_ends"])
        names = json.loads(str(self._columns[f"{name}:names"]))
        return [names[code] for code in self._columns[name].tolist()]

    def score_keys(self) -> set[str]:
        return {name.removeprefix("score:") for name in self._columns if name.startswith("score:")}

    def items(self) -> ItemColumns:
        if f"{ITEMS}:size" not in self._columns:
            none = np.full(len(self), -1, dtype=np.int64)
            return replace(ItemColumns.of(()), size=none, labels=none, reference=none)
        arrays = {field.name: self._columns[f"{ITEMS}:{field.name}"] for field in fields(ItemColumns)}
        return ItemColumns(**{**arrays, "paths": tuple(json.loads(str(arrays["paths"])))})


def _unpacked(texts: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[str | None]:
    content = texts.tobytes()
    places = [0, *ends.tolist()]
    return [content[start:end].decode() for start, end in pairwise(places)]


def _open(path: Path, shown: Shown) -> RecordFile:
    """A record file by its columns, which are made where they are missing."""
    refuse_missing(path)
    stream = path.open("rb")
    try:
        first = next((line for line in stream if line.strip()), b"")
        if not first:
            raise RecordError(f"{path}:1: the file is empty. `calibrate collect` writes a header line first.")
        header = parse_header(path, first)
        if header.scope.is_drawn:  # a sample for people to label is small, and its draw is checked by whole records
            stream.close()
            return read_records(path)
        columns = _columns(path, stream, header, shown)
    except BaseException:
        stream.close()
        raise
    records = RecordTable([_Log(path, stream, columns)])
    twice = records.repeated()
    if twice is not None:
        lines = [line_number(path, offset) for offset in columns["offset"][list(twice)].tolist()]
        raise RecordError(
            f"{path}:{lines[1]}: field 'id': got {records[twice[1]].id!r}, which is already at line {lines[0]}. Every "
            "question has one record: remove one of the two lines."
        )
    return RecordFile(path, header, records, torn=bool(columns["torn"]))


def _columns(path: Path, stream: IO[bytes], header: RecordHeader, shown: Shown) -> Any:
    """The columns of an open log: those beside it if they are of the same bytes, or new ones, which are then kept."""
    status = os.fstat(stream.fileno())
    stamp = json.dumps([_LAYOUT, status.st_ino, status.st_size, status.st_mtime_ns, sorted(header.estimators)])
    kept = path.with_name(f"{path.name}.columns.npz")
    try:
        columns = np.load(kept)
    except (OSError, ValueError, EOFError):  # none there, or not made by this module
        columns = None
    if columns is not None:
        if str(columns.get("stamp")) == stamp:
            return columns
        columns.close()
    with shown(f"columns of {path.name}") as progress:
        columns = _made(path, stream, header, lambda done: progress(done, max(status.st_size, 1)))
    columns["stamp"] = np.array(stamp)
    try:
        with TemporaryFile(dir=path.parent) as written:
            np.savez(written, allow_pickle=False, **columns)
            written.seek(0)
            atomic_write(kept, iter(lambda: written.read(_BATCH), b""), mode=mode_of(path))
        return np.load(kept)  # from here on in memory only while they are used
    except OSError as error:
        warnings.warn(
            f"the columns of {path} cannot be kept ({error}), so the next command makes them again. Free some space, "
            "or give a copy in a folder that can be written.",
            stacklevel=2,
        )
    return columns


def _made(path: Path, stream: IO[bytes], header: RecordHeader, progress: Callable[[int], None]) -> dict[str, Any]:
    """The columns of the records behind the header of a log."""
    names = [*NUMBERS, *DIGESTS, *(f"score:{key}" for key in sorted(header.estimators))]
    log = _Lines(path, stream, may_have_fragments(header))
    batches: list[dict[str, Any]] = [columns_of((), names)]
    items: list[ItemColumns] = []
    texts, ends, offsets = [b""], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    numbers: dict[str, dict[str | None, int]] = {"group": {}, "turns": {}}
    for at, rows in log:
        batch = columns_of(rows, names)
        for name, number in numbers.items():
            codes = [number.setdefault(getattr(row, name), len(number)) for row in rows]
            batch[name] = np.array(codes, dtype=np.int32)
        batches.append(batch)
        if ITEMS in header.estimators:
            items.append(ItemColumns.of(rows))
        ids = [row.id.encode() for row in rows]
        texts.append(b"".join(ids))
        ends.append(np.fromiter(map(len, ids), np.int64))
        offsets.append(np.array(at, dtype=np.int64))
        progress(log.offset)
    warn_of_fragments(path, log.fragments)
    batches[0] |= {name: np.empty(0, np.int32) for name in numbers}
    columns: dict[str, Any] = {
        "offset": np.concatenate(offsets),
        "ids": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "id_ends": np.cumsum(np.concatenate(ends)),
        "torn": np.array(log.torn),
        **{f"{name}:names": np.array(json.dumps(list(number))) for name, number in numbers.items()},
    }
    for name in list(batches[0]):  # one column after the other, so that only one is there twice
        columns[name] = np.concatenate([batch.pop(name) for batch in batches])
    if ITEMS in header.estimators:
        whole = ItemColumns.joined(items)
        columns |= {f"{ITEMS}:{field.name}": getattr(whole, field.name) for field in fields(whole)}
        columns[f"{ITEMS}:paths"] = np.array(json.dumps(whole.paths))
    return columns


class _Lines:
    """The records behind the header of a log, in batches; a torn last line is left out.

    Attributes:
        offset: Bytes up to the end of the last good line so far.
        torn: Whether a torn last line was left out; known at the end.
        fragments: Torn lines before the last that were left out (`is_fragment`).
    """

    def __init__(self, path: Path, stream: IO[bytes], has_fragments: bool) -> None:
        self._path, self._stream, self._has_fragments = path, stream, has_fragments
        self._number = 0
        self.offset, self.torn, self.fragments = 0, False, 0

    def __iter__(self) -> Iterator[tuple[list[int], list[Any]]]:
        """For each batch the first byte of each record, and what is decoded of it (`_decoder`)."""
        self._stream.seek(0)
        header = True
        while lines := self._stream.readlines(_BATCH):
            offsets = list(accumulate(map(len, lines), initial=self.offset))
            kept = [place for place, line in enumerate(lines) if line.strip()]
            if header and kept:
                del kept[0]
                header = False
            # One try block for all lines: a batch that fails is decoded again line by line, which finds the bad one.
            rows = _decoded([lines[place] for place in kept])
            if rows is None:
                found = [(place, self._one(lines[place], self._number + place + 1)) for place in kept]
                kept = [place for place, row in found if row is not None]
                rows = [row for _, row in found if row is not None]
            self._number += len(lines)
            self.offset = offsets[-1]
            yield [offsets[place] for place in kept], rows

    def _one(self, line: bytes, number: int) -> Any:
        """The row of a line, with the conversions of `Record` (a label may be "false"); None for a torn one."""
        rows = _decoded([line])
        if rows is not None:
            return rows[0]
        try:
            return parse_record(self._path, number, line)
        except RecordError:
            if not line.endswith(b"\n"):  # only the last line can lack its end
                self.torn = True
            elif self._has_fragments and is_fragment(line):
                self.fragments += 1
            else:
                raise
        return None


@cache
def _decoder() -> Any:
    """A decoder of the fields that become columns, several times as fast as `Record`, and its error."""
    msgspec = require("msgspec", extra="data")

    def struct(title: str, /, **fields: Any) -> Any:
        """A field is its type, or its type and its default."""
        listed = [(name, *field) if isinstance(field, tuple) else (name, field) for name, field in fields.items()]
        return msgspec.defstruct(title, listed, gc=False)  # decoded values hold no cycle for a collector to find

    any_call: Any = struct("Call", name=str, arguments=dict[str, Any])
    primary = struct("Primary", text=str, tool_calls=(list[any_call], ()), finish_reason=(str | None, None))
    drawn = struct("Drawn", primary=primary | None, problem=(Unmeasured | None, None))
    any_score: Any = struct("Score", value=float | None, reason=(Unmeasured | None, None))
    share = Annotated[float, msgspec.Meta(ge=0, le=1)]
    any_item: Any = struct("Item", uncertainty=share | None, path=str, absent=(bool, False))
    some_items: Any = Annotated[list[any_item], msgspec.Meta(min_length=1)]
    count = Annotated[int, msgspec.Meta(ge=0)]
    any_labels: Any = struct("Labels", right=list[bool | None], n_reference=(count | None, None))
    row = struct(
        "Row",
        id=str,
        question=str,
        references=(list[str], ()),
        rejected=(list[str], ()),
        options=(dict[str, str] | None, None),
        slots=(dict[str, str] | None, None),
        group=(str | None, None),
        tools=(list[dict[str, Any] | str] | None, None),
        messages=(list[dict[str, Any]] | None, None),
        turns=(str | None, None),
        drawn=(drawn | None, None),
        scores=(dict[str, any_score], msgspec.field(default_factory=dict)),
        items=(some_items | None, None),
        item_labels=(any_labels | None, None),
        correct=(bool | None, None),
        label_detail=(str, ""),
    )
    return msgspec.json.Decoder(row), msgspec.MsgspecError


def _decoded(lines: Sequence[bytes]) -> list[Any] | None:
    """The fields of lines that become columns; None if a line has to be read as a whole record."""
    decoder, refusal = _decoder()
    try:
        rows = [decoder.decode(line) for line in lines]
        for row in rows:
            if row.item_labels is not None:
                refuse_other_lengths(row)
    except (refusal, ValueError):  # among them: not UTF-8
        return None
    # `Uncertainty` demands a finite value or a reason, which types alone cannot say.
    scores = [score for row in rows for score in row.scores.values()]
    whole = all(
        [(score.value is not None and math.isfinite(score.value)) is (score.reason is None) for score in scores]
    )
    return rows if whole else None
