"""Columns of large record files, decoded without their texts: ids, labels, groups, scores, digests of the questions."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import require
from guardrail.types import Unmeasured

from .item_columns import ItemColumns
from .progress import Progress, silent
from .record import Record, refuse_other_lengths
from .records import RecordFile, RecordReader, pooled, read_records, refuse_missing, warn_of_fragments
from .table import DIGESTS, NUMBERS, RecordTable, columns_of, table_of

__all__ = ["LARGE", "in_memory", "open_each", "open_records"]

LARGE = 16 * 2**20
"""Bytes of record files from which on they are read by columns: about 6,000 records with samples."""
_BATCH = 64
"""Records that are decoded at once: few enough to stay in the cache of a core."""

Shown = Callable[[str], AbstractContextManager[Progress]]
"""From a title to a progress bar."""


def open_records(path: str | Path, *more: str | Path, shown: Shown = lambda title: nullcontext(silent)) -> RecordFile:
    """Read record files as `read_records` does; large ones by columns where the extra "data" is installed.

    Args:
        path: A record file.
        more: Others, to be read as one with it.
        shown: From a title to a progress bar.

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

    def __init__(self, reader: RecordReader, stream: IO[bytes], columns: _Columns) -> None:
        self._reader, self._columns = reader, columns
        weakref.finalize(self, stream.close)

    def __len__(self) -> int:
        return len(self._columns.starts)

    def record(self, place: int) -> Record:
        return self._reader.record(self._columns.starts[place])

    def column(self, name: str) -> NDArray[Any]:
        if name.startswith("score:") and name not in self._columns.arrays:
            return np.full(len(self), -np.inf)
        return self._columns.arrays[name]

    def texts(self, name: Literal["id", "group", "turns"]) -> list[str | None]:
        return self._columns.texts[name]

    def score_keys(self) -> set[str]:
        return {name.removeprefix("score:") for name in self._columns.arrays if name.startswith("score:")}

    def items(self) -> ItemColumns:
        return self._columns.items


@dataclass(frozen=True)
class _Columns:
    """What is read of a log: the first byte of each record, arrays and texts by name, and the items of answers."""

    starts: list[int]
    arrays: dict[str, NDArray[Any]]
    texts: dict[str, list[str | None]]
    items: ItemColumns


def _open(path: Path, shown: Shown) -> RecordFile:
    """A record file by its columns."""
    refuse_missing(path)
    stream = path.open("rb")
    try:
        reader = RecordReader(path, stream, _row)
        if reader.header.scope.is_drawn:  # a sample to label is small, and its draw is checked by whole records
            stream.close()
            return read_records(path)
        size = max(os.fstat(stream.fileno()).st_size, 1)
        with shown(f"columns of {path.name}") as progress:
            columns = _read(reader, lambda done: progress(done, size))
    except BaseException:
        stream.close()
        raise
    warn_of_fragments(path, reader.fragments)
    records = RecordTable([_Log(reader, stream, columns)])
    twice = records.repeated()
    if twice is not None:
        raise reader.repeated(records[twice[1]].id, *(columns.starts[place] for place in twice))
    return RecordFile(path, reader.header, records, torn=reader.torn)


def _read(reader: RecordReader, progress: Callable[[int], None]) -> _Columns:
    """The columns of the records of a log."""
    names = [*NUMBERS, *DIGESTS, *(f"score:{key}" for key in sorted(reader.header.estimators))]
    batches, items, starts = [columns_of((), names)], [ItemColumns.of(())], list[int]()
    texts: dict[str, list[str | None]] = {"id": [], "group": [], "turns": []}
    placed = reader.rows()
    while some := list(islice(placed, _BATCH)):
        rows = [row for _, row in some]
        starts += [start for start, _ in some]
        batches.append(columns_of(rows, names))
        items.append(ItemColumns.of(rows))
        for name, read in texts.items():
            read += [getattr(row, name) for row in rows]
        progress(reader.good)
    # One column after the other, so that only one is there twice.
    arrays = {name: np.concatenate([batch.pop(name) for batch in batches]) for name in names}
    return _Columns(starts, arrays, texts, ItemColumns.joined(items))


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
    """What becomes columns of a line; the whole record where types are converted (a label may be "false")."""
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
