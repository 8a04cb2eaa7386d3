"""Columns of large record files, decoded without their texts and kept in a file beside the log.

A record file stays the log. ``records.jsonl.columns.npz`` beside it holds ids, labels, groups, scores and digests of
the questions (`calibrate.data.table`). It belongs to the log that was read (its size, time and inode), is made again
when the log has changed, and deleting it costs time and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import cache
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import require
from guardrail.files import atomic_write, mode_of
from guardrail.items.spec import ITEMS
from guardrail.types import Unmeasured

from .item_columns import ItemColumns
from .progress import Progress, silent
from .record import Record, refuse_other_lengths
from .records import RecordFile, RecordReader, pooled, read_records, refuse_missing
from .table import DIGESTS, NUMBERS, RecordTable, Source, columns_of, table_of

LARGE = 16 * 2**20
"""Bytes of record files from which on they are read by columns: about 6,000 records with samples."""
_LAYOUT = 2
"""Version of the columns; a file of another version is made again."""
_BATCH = 64
"""Records that are decoded at once: few enough to stay in the cache of a core."""

Shown = Callable[[str], AbstractContextManager[Progress]]
"""From a title to a progress bar."""


def open_records(path: str | Path, *more: str | Path) -> RecordFile:
    """Read record files as `read_records` does; large ones by columns where the extra "data" is installed.

    Raises:
        RecordError: As `read_records`, of the fields that become columns.
        UsageError: As `read_records`.
    """
    return pooled(open_each([Path(each) for each in (path, *more)]))


def open_each(paths: Sequence[Path], *, shown: Shown = lambda title: nullcontext(silent)) -> list[RecordFile]:
    """Read record files one by one as `open_records` does: all by columns if they are large together.

    Args:
        paths: The files.
        shown: From a title to a progress bar, for columns that have to be made.
    """
    large = sum(path.stat().st_size for path in paths if path.is_file()) >= LARGE
    if not large or find_spec("msgspec") is None:
        return [read_records(path) for path in paths]
    return [_open(path, shown) for path in paths]


def in_memory(file: RecordFile) -> RecordFile:
    """The file with its records in memory, for what reads texts more than once."""
    return replace(file, records=table_of(tuple(file.records)))


class _Log(Source):
    """An open record file and its columns. It stays open: both belong together even if the file is replaced."""

    def __init__(self, reader: RecordReader, stream: IO[bytes], columns: Any) -> None:
        super().__init__()
        self._reader = reader
        self._arrays = columns
        self._offsets = columns["offset"]
        weakref.finalize(self, stream.close)
        if not isinstance(columns, dict):
            weakref.finalize(self, columns.close)

    def __len__(self) -> int:
        return len(self._offsets)

    def record(self, index: int) -> Record:
        return self._reader.record(int(self._offsets[index]))

    def column(self, name: str) -> NDArray[Any]:
        if name.startswith("score:") and name not in self._arrays:
            return np.full(len(self), -np.inf)
        column: NDArray[Any] = self._arrays[name]
        return column

    def texts(self, name: Literal["id", "group", "turns"]) -> list[str | None]:
        if name == "id":
            return _unpacked(self._arrays["ids"], self._arrays["id_ends"])
        names = json.loads(str(self._arrays[f"{name}:names"]))
        return [names[code] for code in self._arrays[name].tolist()]

    def score_keys(self) -> set[str]:
        return {name.removeprefix("score:") for name in self._arrays if name.startswith("score:")}

    def items(self) -> ItemColumns:
        if f"{ITEMS}:size" not in self._arrays:
            none = np.full(len(self), -1, dtype=np.int64)
            return replace(ItemColumns.of(()), size=none, labels=none, reference=none)
        arrays = {field.name: self._arrays[f"{ITEMS}:{field.name}"] for field in fields(ItemColumns)}
        return ItemColumns(**{**arrays, "paths": tuple(json.loads(str(arrays["paths"])))})


def _unpacked(texts: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[str | None]:
    content = texts.tobytes()
    bounds = [0, *ends.tolist()]
    return [content[start:end].decode() for start, end in pairwise(bounds)]


def _open(path: Path, shown: Shown) -> RecordFile:
    """A record file by its columns, which are made where they are missing."""
    refuse_missing(path)
    stream = path.open("rb")
    try:
        reader = RecordReader(path, stream, _row)
        if reader.header.scope.is_drawn:  # a sample to label is small, and its draw is checked by whole records
            stream.close()
            return read_records(path)
        columns = _columns(reader, os.fstat(stream.fileno()), shown)
    except BaseException:
        stream.close()
        raise
    records = RecordTable([_Log(reader, stream, columns)])
    twice = records.repeated()
    if twice is not None:
        raise reader.repeated(records[twice[1]].id, *columns["offset"][list(twice)].tolist())
    return RecordFile(path, reader.header, records)


def _columns(reader: RecordReader, status: os.stat_result, shown: Shown) -> Any:
    """The columns of a log: those beside it if they are of the same bytes, or new ones, which are then kept."""
    path = reader.path
    stamp = json.dumps([_LAYOUT, status.st_ino, status.st_size, status.st_mtime_ns, sorted(reader.header.estimators)])
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
        columns = _made(reader, lambda done: progress(done, max(status.st_size, 1)))
    columns["stamp"] = np.array(stamp)
    try:
        with TemporaryFile(dir=path.parent) as written:
            np.savez(written, allow_pickle=False, **columns)
            written.seek(0)
            atomic_write(kept, iter(lambda: written.read(2**20), b""), mode=mode_of(path))
        return np.load(kept)  # from here on in memory only while they are used
    except OSError as error:
        warnings.warn(
            f"the columns of {path} cannot be kept ({error}), so the next command makes them again. Free some space, "
            "or give a copy in a folder that can be written.",
            stacklevel=2,
        )
    return columns


def _made(reader: RecordReader, progress: Callable[[int], None]) -> dict[str, Any]:
    """The columns of the records of a log."""
    header = reader.header
    names = [*NUMBERS, *DIGESTS, *(f"score:{key}" for key in sorted(header.estimators))]
    batches: list[dict[str, Any]] = [columns_of((), names)]
    items: list[ItemColumns] = []
    texts, ends, offsets = [b""], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    numbers: dict[str, dict[str | None, int]] = {"group": {}, "turns": {}}
    placed = reader.rows()
    while batch_of_rows := list(islice(placed, _BATCH)):
        rows = [row for _, row in batch_of_rows]
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
        offsets.append(np.array([start for start, _ in batch_of_rows], dtype=np.int64))
        progress(reader.good)
    batches[0] |= {name: np.empty(0, np.int32) for name in numbers}
    columns: dict[str, Any] = {
        "offset": np.concatenate(offsets),
        "ids": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "id_ends": np.cumsum(np.concatenate(ends)),
        **{f"{name}:names": np.array(json.dumps(list(number))) for name, number in numbers.items()},
    }
    for name in list(batches[0]):  # one column after the other, so that only one is there twice
        columns[name] = np.concatenate([batch.pop(name) for batch in batches])
    if ITEMS in header.estimators:
        whole = ItemColumns.joined(items)
        columns |= {f"{ITEMS}:{field.name}": getattr(whole, field.name) for field in fields(whole)}
        columns[f"{ITEMS}:paths"] = np.array(json.dumps(whole.paths))
    return columns


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


def _row(line: bytes) -> Any:
    """The fields of a line that become columns; the whole record where types are converted (a label may be "false")."""
    decoder, refusal = _decoder()
    try:
        row = decoder.decode(line)
        if row.item_labels is not None:
            refuse_other_lengths(row)
    except (refusal, ValueError):  # among them: not UTF-8
        return Record.from_stored(line)
    # `Uncertainty` demands a finite value or a reason, which types alone cannot say.
    for score in row.scores.values():
        if (score.value is not None and math.isfinite(score.value)) is not (score.reason is None):
            return Record.from_stored(line)
    return row
