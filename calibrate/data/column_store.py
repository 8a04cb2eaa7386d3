"""Columns beside the log: what large record files are read by, without their texts.

A record file stays the log. Beside ``records.jsonl`` the folder ``records.jsonl.cols`` holds Parquet files, one a range
of its bytes, with ids, labels, groups, scores and digests of the questions. They are built in one pass, continued when
the log has grown, and built again when it was replaced; deleting the folder costs time and nothing else.

Only the fields that become columns are validated. A line that they cannot be read from is read as a whole record, so it
is refused as `read_records` refuses it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b, sha256
from importlib.util import find_spec
from json.encoder import encode_basestring
from multiprocessing import get_context
from pathlib import Path
from typing import Any, overload

import numpy as np
from filelock import FileLock
from numpy.typing import DTypeLike, NDArray

from guardrail.errors import RecordError, UsageError, require
from guardrail.files import atomic_write
from guardrail.judges.json_value import read_json
from guardrail.plain_json import canonical_json
from guardrail.sampling.replies import is_cut
from guardrail.types import Unmeasured

from .progress import Progress, silent
from .questions import Question, question_digest, row_digest, rows_fingerprint
from .records import (
    Record,
    RecordFile,
    RecordHeader,
    in_two_files,
    parse_header,
    parse_record,
    pool_header,
    pooled,
    read_records,
    refuse_mixture,
    repeated,
)

__all__ = ["LARGE", "ColumnRecords", "among", "in_memory", "open_each", "open_records", "pool"]

LARGE = 16 * 2**20
"""Bytes of record files from which on they are read by columns: about 6,000 records with samples."""
RANGE = 128 * 2**20
"""Bytes of the log behind one file of columns."""
_LAYOUT = "2"
"""Version of the columns; files of another are built again."""
_BATCH = 2**16
"""Bytes of the log that are decoded at once: few enough to stay in the cache of a core, which halves the time."""
_AHEAD = 2**24
"""Bytes that the disk reads ahead meanwhile."""
_FEW = 100
"""One record in so many is few: only the Parquet files that they are in are read."""
_PIECE = 2**16
"""Rows that are hashed at once."""
_TAIL = 4_096
"""Bytes before the end of a range that are compared with the log."""
_KINDS = ("", "texts", "JSON objects", "tool calls")
"""What a primary answer is, by its code; the first: there is none."""

DRAWN, SOUND, ENDED, CUT, DETAIL, REFERENCES = (1 << bit for bit in range(6))
"""Bits of the column ``flags``: answers were drawn, without a problem; the primary answer says how it ended, and that
it was cut off; the label has a detail; the question has references."""

Places = NDArray[np.int64]
Codes = NDArray[np.int32]


def open_records(
    path: str | Path,
    *more: str | Path,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda title: nullcontext(silent),
    workers: int = 1,
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
    return pool(open_each([Path(one) for one in (path, *more)], shown=shown, workers=workers))


def open_each(
    paths: Sequence[Path],
    *,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda title: nullcontext(silent),
    workers: int = 1,
) -> list[RecordFile]:
    """Read record files one by one as `open_records` does: all by columns if they are large together."""
    large = sum(path.stat().st_size for path in paths if path.is_file()) >= LARGE
    if not large or find_spec("msgspec") is None or find_spec("pyarrow") is None:
        return [read_records(path) for path in paths]
    return [_open(path, shown, workers) for path in paths]


def in_memory(file: RecordFile) -> RecordFile:
    """The file with its records in memory, for what reads texts more than once."""
    return replace(file, records=tuple(file.records))


def share_ids(paths: Sequence[Path]) -> bool:
    """Whether an id is in two of the record files."""
    files = open_each(paths)
    parts = [file.records for file in files if isinstance(file.records, ColumnRecords)]
    if len(parts) == len(files):
        return ColumnRecords([log for part in parts for log in part.logs]).repeated() is not None
    names = [record.id for file in files for record in file.records]
    return len(set(names)) < len(names)


def pool(files: Sequence[RecordFile]) -> RecordFile:
    """`calibrate.data.records.pooled`, also of files that were read by columns."""
    first, *others = files
    parts = [file.records for file in files if isinstance(file.records, ColumnRecords)]
    if not others or not parts:
        return pooled(files)
    if len(parts) < len(files):
        return pooled([in_memory(file) for file in files])
    for file in files:
        refuse_mixture(first, file)
    records = ColumnRecords([log for part in parts for log in part.logs])
    twice = records.repeated()
    if twice is not None:
        earlier, later = (records.log_of(place).path for place in twice)
        raise UsageError(in_two_files(records[twice[1]].id, earlier, later))
    # A pool is not stored, so its fingerprint need not be that of questions in memory.
    torn = any(file.torn for file in files)
    return RecordFile(*pool_header(files, records.fingerprint()), records, torn, repeated(_asked_elsewhere(files)))


def _asked_elsewhere(files: Sequence[RecordFile]) -> list[RecordFile]:
    """The files with the questions that another one seems to ask as well, by the short hashes that columns hold."""
    parts = [file.records for file in files if isinstance(file.records, ColumnRecords)]
    hashes = [records.numbers("asked", np.uint64) for records in parts]
    seen, times = np.unique(np.concatenate([np.unique(one) for one in hashes]), return_counts=True)
    twice = seen[times > 1]
    return [
        replace(file, records=records.take(among(one, twice)))
        for file, records, one in zip(files, parts, hashes, strict=True)
    ]


class ColumnRecords(Sequence[Record]):
    """The records of large files, in file order: columns at once, and whole records one by one, read when asked for.

    A column is read when it is asked for and not kept, so memory is that of the columns in use. The log stays open:
    what is read belongs together even if the file is replaced meanwhile.
    """

    def __init__(self, logs: Sequence[_Log], kept: Places | None = None) -> None:
        self.logs = tuple(logs)
        self._kept = kept
        self._total = sum(log.n for log in logs)

    def __len__(self) -> int:
        return self._total if self._kept is None else self._kept.size

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRecords: ...
    def __getitem__(self, index: int | slice) -> Record | ColumnRecords:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return next(iter(self.take(np.array([index % len(self)]))))

    def __iter__(self) -> Iterator[Record]:
        offset, first = self.numbers("offset", np.int64), self._first()
        places = range(self._total) if self._kept is None else self._kept.tolist()
        for place, at in zip(places, offset.tolist(), strict=True):
            yield self.logs[int(np.searchsorted(first, place, side="right")) - 1].record(at)

    def _first(self) -> Places:
        """Place of the first record of each log."""
        return np.cumsum([0, *(log.n for log in self.logs)])[:-1]

    def log_of(self, place: int) -> _Log:
        """The log that a record is in."""
        at = place if self._kept is None else int(self._kept[place])
        return self.logs[int(np.searchsorted(self._first(), at, side="right")) - 1]

    def take(self, places: NDArray[Any]) -> ColumnRecords:
        """Some of the records: their places, or a mask."""
        if places.dtype == np.bool_ and places.all():
            return self
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return ColumnRecords(self.logs, chosen if self._kept is None else self._kept[chosen])

    def numbers(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """A column without gaps."""
        parts, kept = self._needed()
        found, at = np.empty(sum(part.metadata.num_rows for part in parts), dtype=dtype), 0
        for part in parts:
            column = part.read([name], use_threads=False).column(0).to_numpy()
            found[at : at + column.size] = column
            at += column.size
        return found if kept is None else found[kept]

    def _parts(self) -> Iterator[Any]:
        return (part for log in self.logs for part in log.parts)

    def _needed(self) -> tuple[list[Any], Places | None]:
        """The Parquet files to read, and the places of the records in them together; None for all of theirs.

        A few records are in few of the files.
        """
        parts, kept = list(self._parts()), self._kept
        if kept is None or kept.size > self._total // _FEW:
            return parts, kept
        sizes = np.array([part.metadata.num_rows for part in parts], dtype=np.int64)
        number = np.searchsorted(np.cumsum(sizes), kept, side="right")
        needed = np.bincount(number, minlength=sizes.size) > 0
        left_out = np.cumsum(np.where(needed, 0, sizes))
        return [part for part, needs in zip(parts, needed.tolist(), strict=True) if needs], kept - left_out[number]

    def texts(self, name: str) -> Any:
        """A column of texts, as an array of pyarrow."""
        pa = require("pyarrow", extra="data")
        parts, kept = self._needed()
        chunks = [chunk for part in parts for chunk in part.read([name], use_threads=False).column(0).chunks]
        found = pa.chunked_array(chunks, pa.large_string())
        return found if kept is None else found.take(pa.array(kept))

    def coded(self, name: str) -> tuple[Codes, list[str | None]]:
        """A column whose texts repeat: the number of its text for each record, and the texts."""
        number: dict[str | None, int] = {}
        codes, at = np.empty(self._total, dtype=np.int32), 0
        for part in self._parts():
            found = part.read([name], use_threads=False).column(0).dictionary_encode("encode").combine_chunks()
            place = np.array([number.setdefault(one, len(number)) for one in found.dictionary.to_pylist()], np.int32)
            codes[at : at + len(found)] = place[found.indices.to_numpy()]
            at += len(found)
        names = list(number)
        if self._kept is not None:  # those of the records left out do not count
            codes = codes[self._kept]
            present = np.bincount(codes, minlength=len(names)) > 0
            codes = (np.cumsum(present, dtype=np.int32) - 1)[codes]
            names = [name for name, there in zip(names, present.tolist(), strict=True) if there]
        return codes, names

    def units(self, name: str) -> tuple[Places, int]:
        """Number of each record's text among the distinct texts of a column, sorted, and how many there are."""
        if name == "id":  # all distinct
            order = require("pyarrow.compute", extra="data").sort_indices(self.texts("id")).to_numpy()
            number = np.empty(order.size, dtype=np.int64)
            number[order] = np.arange(order.size)
            return number, order.size
        codes, names = self.coded(name)
        place = np.empty(len(names), dtype=np.int64)
        place[sorted(range(len(names)), key=lambda i: str(names[i]))] = np.arange(len(names))
        return place[codes], len(names)

    def first_of_groups(self) -> Places:
        """Places of one record of each group in file order, the one whose id has the smallest hash."""
        codes, _ = self.coded("group")
        order = np.lexsort((self.numbers("id_hash", np.uint64), codes))
        is_first = np.concatenate(([True], np.diff(codes[order]) != 0)) if order.size else order
        return np.sort(order[is_first])

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the records; read when they are looked at."""
        return _Texts(self, "id")

    @property
    def groups(self) -> Sequence[Any]:
        """Group of each record; read when they are looked at."""
        return _Texts(self, "group")

    def labels(self) -> NDArray[np.int8]:
        """1 for a right answer, 0 for a wrong one, -1 without a label."""
        return self.numbers("label", np.int8)

    def values(self, key: str) -> NDArray[np.float64]:
        """Scores of an estimator; NaN where there is none."""
        if not any(f"score:{key}" in part.schema_arrow.names for part in self._parts()):
            return np.full(len(self), np.nan)
        return self.numbers(f"score:{key}", np.float64)

    @property
    def scores(self) -> set[str]:
        """Keys of the estimators that some record of the logs has a score by."""
        columns = ((name, part) for part in self._parts() for name in part.schema_arrow.names if name[:6] == "score:")
        return {name[6:] for name, part in columns if part.read([name]).column(0).null_count < part.metadata.num_rows}

    def unscored(self, key: str) -> int:
        """Records with sound answers that an estimator did not look at."""
        sound = (self.flags() & SOUND) != 0
        missing, at = np.ones(self._total, dtype=np.bool_), 0
        for part in self._parts():
            n = part.metadata.num_rows
            if f"score:{key}" in part.schema_arrow.names:
                missing[at : at + n] = part.read([f"score:{key}"]).column(0).is_null().to_numpy()
            at += n
        return int(np.count_nonzero(sound & (missing if self._kept is None else missing[self._kept])))

    def usable(self, key: str) -> NDArray[np.bool_]:
        """Which records have a score and a label."""
        found: NDArray[np.bool_] = ~np.isnan(self.values(key)) & (self.labels() >= 0)
        return found

    def flags(self) -> NDArray[np.uint8]:
        """The bits `DRAWN` to `REFERENCES`."""
        return self.numbers("flags", np.uint8)

    def kinds(self) -> dict[str, int]:
        """Numbers of primary answers that are texts, JSON objects and tool calls; the kind that comes first leads."""
        kind, first, count = np.unique(self.numbers("kind", np.uint8), return_index=True, return_counts=True)
        order = np.argsort(first)
        return {_KINDS[kind[i]]: int(count[i]) for i in order.tolist() if kind[i]}

    def fingerprint(self) -> str:
        """`calibrate.data.questions.rows_fingerprint` of the questions."""
        high, low = self.numbers("row_high", np.uint64), self.numbers("row_low", np.uint64)
        order = np.argsort(high)
        ranked = high[order]
        if (ranked[1:] == ranked[:-1]).any():
            order = np.lexsort((low, high))
        pieces = (order[at : at + _PIECE] for at in range(0, order.size, _PIECE))
        return rows_fingerprint(np.stack((high[one], low[one]), axis=1).astype(">u8").tobytes() for one in pieces)

    def repeated(self) -> tuple[int, int] | None:
        """Places of the first record whose id an earlier one has, the earlier one first; None if all ids differ."""
        found = self._equal_hashes()
        ids = self.take(np.unique(found)).ids if found.size else ()
        name_of = dict(zip(np.unique(found).tolist(), ids, strict=True))
        return next(((a, b) for a, b in found.tolist() if name_of[a] == name_of[b]), None)

    def _equal_hashes(self) -> Places:
        """Pairs of places with equal hashes of ids, shape (pairs, 2), by the later place."""
        hashes = self.numbers("id_hash", np.uint64)
        places = _with_equals(hashes)
        first: dict[int, int] = {}
        pairs = [
            (first.setdefault(one, place), place)
            for one, place in zip(hashes[places].tolist(), places.tolist(), strict=True)
        ]
        return np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)

    def both_ways(self) -> tuple[Places, int]:
        """Pairs of records with equal keys (question and answer) and different labels, as `contradictions` finds them.

        Returns:
            Places of up to a thousand pairs by the later record, shape (pairs, 2), and the number of all.
        """
        key = self.numbers("key", np.uint64)
        known = _with_equals(key)
        right = self.labels()[known]
        known, right = known[right >= 0], right[right >= 0]
        if not known.size:
            return np.empty((0, 2), dtype=np.int64), 0
        order = np.argsort(key[known], kind="stable")
        key = key[known][order]
        start = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
        run = np.repeat(np.arange(start.size), np.diff(np.append(start, key.size)))
        ranked, far = right[order], key.size
        # Places within `known` of the first wrong and the first right record of each run; `far` where there is none.
        firsts = np.stack([np.minimum.reduceat(np.where(ranked == one, order, far), start) for one in (0, 1)])
        other = firsts[1 - ranked.astype(np.int64), run]
        later = np.flatnonzero(other < order)
        found = later[np.argsort(order[later])][:1_000]
        return np.stack([known[other[found]], known[order[found]]], axis=1), later.size


class _Texts(Sequence[Any]):
    """Ids or groups of records, read when they are looked at."""

    def __init__(self, records: ColumnRecords, name: str) -> None:
        self._records, self._name = records, name

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        places = np.arange(len(self))[index]
        found: list[Any] = self._records.take(np.atleast_1d(places)).texts(self._name).to_pylist()
        return found if isinstance(index, slice) else found[0]

    def __iter__(self) -> Iterator[Any]:
        if self._name == "id":  # all distinct
            return iter(self._records.texts("id").to_pylist())
        codes, names = self._records.coded(self._name)
        return (names[code] for code in codes.tolist())


def among(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the values are among the sorted known ones: `numpy.isin`, in a tenth of its time for millions."""
    found = np.zeros(values.size, dtype=np.bool_)
    if known.size:
        order = np.argsort(values)  # values in order find their places without a cache miss for each
        ranked = values[order]
        place = np.searchsorted(known, ranked)
        found[order] = known[np.minimum(place, known.size - 1, out=place)] == ranked
    return found


def _with_equals(values: NDArray[np.uint64]) -> Places:
    """Places of the values that occur more than once."""
    ranked = np.sort(values)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    return np.flatnonzero(among(values, twice)) if twice.size else np.empty(0, dtype=np.int64)


# -- One log and its columns -------------------------------------------------------------------------------------------


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
        found = bytearray()
        while b"\n" not in found and (chunk := os.read(self.descriptor, max(1 << 14, len(found)))):
            found += chunk
        return bytes(found.partition(b"\n")[0])

    def record(self, offset: int) -> Record:
        """The record whose line starts at a byte."""
        return parse_record(self.path, 0, self.line(offset))


def _open(path: Path, shown: Callable[[str], AbstractContextManager[Progress]], workers: int) -> RecordFile:
    """A record file by its columns, which are built where they are missing; by its records where they cannot be."""
    if not path.is_file():
        raise UsageError(f"no record file at {path}. `calibrate collect` makes one.")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        header, first = _header(path)
        # What was drawn to be labelled by people is not large.
        found = None if header.reach is not None else _current_or_warn(path, first, header, shown, workers)
        if found is not None and os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise UsageError(f"{path} was replaced while it was being read. Run the command again.")
    except BaseException:
        os.close(descriptor)
        raise
    if found is None:
        os.close(descriptor)
        return read_records(path)
    parts, covered = found
    log = _Log(path, descriptor, tuple(parts))
    weakref.finalize(log, os.close, descriptor)
    records = ColumnRecords([log])
    twice = records.repeated()
    if twice is not None:
        lines = [_line_number(path, int(one)) for one in records.take(np.array(twice)).numbers("offset", np.int64)]
        raise RecordError(
            f"{path}:{lines[1]}: field 'id': got {records[twice[1]].id!r}, which is already at line {lines[0]}. Every "
            "question has one record: remove one of the two lines."
        )
    os.lseek(descriptor, covered, os.SEEK_SET)
    return RecordFile(path, header, records, bool(os.read(descriptor, _TAIL).strip()))


def _header(path: Path) -> tuple[RecordHeader, bytes]:
    """The header and its line, with what stands before it."""
    with path.open("rb") as stream:
        before = b""
        for line in stream:
            before += line
            if line.strip():
                return parse_header(path, line), before
    raise RecordError(f"{path}:1: the file is empty. `calibrate collect` writes a header line first.")


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"inode": found.st_ino, "size": found.st_size, "modified": found.st_mtime_ns}


def _current_or_warn(
    path: Path,
    first: bytes,
    header: RecordHeader,
    shown: Callable[[str], AbstractContextManager[Progress]],
    workers: int,
) -> tuple[list[Any], int] | None:
    """`_current` under a lock; None, and a warning, where the columns cannot be written."""
    folder = path.with_name(f"{path.name}.cols")
    try:
        folder.mkdir(exist_ok=True)
        with FileLock(folder / ".lock", thread_local=False):
            return _current(path, folder, first, header, shown, workers)
    except OSError as error:
        warnings.warn(
            f"the columns of {path} cannot be written ({error}), so whole records are read: this takes longer, and "
            "about 30 KiB of memory a record. Free some space, or give a copy in a folder that can be written.",
            stacklevel=2,
        )
        return None


def _current(
    path: Path,
    folder: Path,
    first: bytes,
    header: RecordHeader,
    shown: Callable[[str], AbstractContextManager[Progress]],
    workers: int,
) -> tuple[list[Any], int]:
    """The Parquet files of the log as it is, built where they are missing, and the bytes that they cover."""
    stamp, identity = _stamp(path), sha256(first).hexdigest()
    parts = _valid(path, folder, stamp, identity, len(first))
    begin = int(_facts(parts[-1])["stop"]) if parts else len(first)
    # What was read up to the end of the log and stops before it stops at a torn line; otherwise a build was killed.
    if begin < stamp["size"] and (not parts or _facts(parts[-1]).get("until") != str(stamp["size"])):
        if parts and begin - int(_facts(parts[-1])["start"]) < RANGE // 8:
            begin = int(_facts(parts.pop())["start"])  # many small appends must not leave many small files
        _build(path, folder, _ranges(path, begin, stamp["size"]), stamp, identity, header, shown, workers)
        parts = _valid(path, folder, stamp, identity, len(first))
    return parts, int(_facts(parts[-1])["stop"]) if parts else len(first)


def _facts(part: Any) -> dict[str, str]:
    stored = part.schema_arrow.metadata or {}
    return {name.decode(): value.decode() for name, value in stored.items()}


def _valid(path: Path, folder: Path, stamp: dict[str, int], identity: str, begin: int) -> list[Any]:
    """The leading Parquet files that belong to the log as it is; others are deleted."""
    parquet, lib = require("pyarrow.parquet", extra="data"), require("pyarrow.lib", extra="data")
    found: list[Any] = []
    names = sorted(folder.glob("*.parquet"))
    with path.open("rb") as stream:
        for name in names:
            try:
                part = parquet.ParquetFile(name)  # not mapped: what was read once would stay in memory
                facts = _facts(part)
                start, stop = int(facts["start"]), int(facts["stop"])
            except (lib.ArrowInvalid, OSError, KeyError, ValueError):
                break
            same = facts.get("layout") == _LAYOUT and facts.get("header") == identity and start == begin
            if not same or stop > stamp["size"] or facts.get("tail") != _tail(stream, start, stop):
                break
            found.append(part)
            begin = stop
    if found:
        old = json.loads(_facts(found[-1])["stamp"])
        # A writer appends to the file that is there; any other change counts as a rewrite.
        if old["inode"] != stamp["inode"] or (old != stamp and old["size"] >= stamp["size"]):
            found = []
    for name in names[len(found) :]:
        name.unlink()
    return found


def _tail(stream: Any, start: int, stop: int) -> str:
    stream.seek(max(start, stop - _TAIL))
    return sha256(stream.read(stop - max(start, stop - _TAIL))).hexdigest()


def _ranges(path: Path, begin: int, size: int) -> list[tuple[int, int]]:
    """Ranges of about `RANGE` bytes that end with a line."""
    ranges, step = [], max(RANGE, (size - begin) // 500)  # a command keeps all files open
    with path.open("rb") as stream:
        while begin < size:
            stream.seek(min(size, begin + step))
            stream.readline()
            stop = min(size, stream.tell())
            ranges.append((begin, stop))
            begin = stop
    return ranges


def _build(
    path: Path,
    folder: Path,
    ranges: Sequence[tuple[int, int]],
    stamp: dict[str, int],
    identity: str,
    header: RecordHeader,
    shown: Callable[[str], AbstractContextManager[Progress]],
    workers: int,
) -> None:
    jobs = [(path, folder, start, stop, stamp, identity, sorted(header.estimators)) for start, stop in ranges]
    with shown(f"columns of {path.name}") as progress:
        if min(workers, len(jobs)) < 2:
            for done, job in enumerate(jobs, start=1):
                build_part(*job)
                progress(done, len(jobs))
            return
        # Spawned and not forked: pyarrow has threads.
        with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as executor:
            futures = [executor.submit(build_part, *job) for job in jobs]
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    progress(done, len(jobs))
            except BaseException:
                executor.shutdown(cancel_futures=True)
                raise


def build_part(
    path: Path, folder: Path, start: int, stop: int, stamp: dict[str, int], identity: str, keys: Sequence[str]
) -> None:
    """Write the columns of one range of a log's bytes. Only the last line of the log can be torn; it is left out."""
    pa, parquet = require("pyarrow", extra="data"), require("pyarrow.parquet", extra="data")
    rows = _Rows(keys)
    with path.open("rb") as stream:
        stream.seek(start)
        offset = start
        while offset < stop:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), offset + _AHEAD, _BATCH, os.POSIX_FADV_WILLNEED)
            read = stream.read(min(_BATCH, stop - offset))
            if offset + len(read) < stop:
                read += stream.readline()
            offset = rows.extend(path, offset, read.split(b"\n"))
            if offset < stream.tell() or not read:
                break  # torn, or cut off meanwhile
        facts = {
            "layout": _LAYOUT,
            "start": str(start),
            "stop": str(offset),
            "until": str(stop),
            "header": identity,
            "tail": _tail(stream, start, offset),
            "stamp": json.dumps(stamp),
        }
    table = rows.table(pa).replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=["group", "turns"], write_statistics=False)
    atomic_write(folder / f"{start:015d}.parquet", memoryview(sink.getvalue()).tobytes())


def _line_number(path: Path, offset: int) -> int:
    """Number of the line that starts at a byte."""
    number, left = 1, offset
    with path.open("rb") as stream:
        while left and (chunk := stream.read(min(left, 1 << 20))):
            number += chunk.count(b"\n")
            left -= len(chunk)
    return number


class _Rows:
    """Columns of one range while they grow."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.offset: list[int] = []
        self.id: list[str] = []
        self.group: list[str | None] = []
        self.turns: list[str | None] = []
        self.label, self.flags, self.kind = bytearray(), bytearray(), bytearray()
        self.id_hash, self.question, self.row = bytearray(), bytearray(), bytearray()
        self.asked, self.key = bytearray(), bytearray()
        self.scores: dict[str, list[float | None]] = {key: [] for key in keys}

    def extend(self, path: Path, offset: int, lines: Sequence[bytes]) -> int:
        """Append the records of lines that start at a byte, the last of them without its end.

        Returns:
            The byte after them: of the last, only if it is a record.
        """
        *whole, last = lines
        found: list[tuple[int, bytes]] = []
        for line in whole:
            if line.strip():
                found.append((offset, line))
            offset += len(line) + 1
        rows = _decoded_together([line for _, line in found]) or [_decoded(path, *one) for one in found]
        self._add([at for at, _ in found], rows)
        if last.strip():
            try:
                row = _decoded(path, offset, last)
            except RecordError:
                return offset  # torn: a writer was killed, or is still writing
            self._add([offset], [row])
        return offset + len(last)

    def _add(self, offsets: list[int], rows: list[Any]) -> None:
        """Append rows, column by column."""
        self.offset += offsets
        self.id += [row.id for row in rows]
        self.group += [row.group for row in rows]
        self.turns += [row.turns for row in rows]
        self.label += bytes([2 if row.correct is None else row.correct for row in rows])
        self.id_hash += b"".join([sha256(row.id.encode()).digest()[:8] for row in rows])
        digests = [_digests(row) for row in rows]
        self.row += b"".join([row for row, _ in digests])
        self.question += b"".join([question for _, question in digests])
        hashes = [blake2b(_asked(row).encode(), digest_size=8) for row in rows]
        self.asked += b"".join([one.digest() for one in hashes])
        primaries = [None if row.drawn is None else row.drawn.primary for row in rows]
        for one, primary in zip(hashes, primaries, strict=True):
            if primary is not None:
                one.update(_answered(primary).encode())
        self.key += b"".join([one.digest() for one in hashes])
        self.flags += bytes(map(_flags, rows))
        self.kind += bytes(map(_kind, primaries))
        for key, column in self.scores.items():
            scores = [row.scores.get(key) for row in rows]
            column += [None if one is None else math.nan if one.value is None else one.value for one in scores]

    def table(self, pa: Any) -> Any:
        """As a table of pyarrow."""
        text = pa.large_string()
        label = np.frombuffer(self.label, dtype=np.int8)
        row = np.frombuffer(self.row, dtype=">u8").astype(np.uint64).reshape(-1, 2)
        columns = {
            "offset": pa.array(self.offset, pa.int64()),
            "id": pa.array(self.id, text),
            "group": pa.array(self.group, text),
            "turns": pa.array(self.turns, text),
            "label": pa.array(np.where(label == 2, np.int8(-1), label)),
            "flags": pa.array(np.frombuffer(self.flags, dtype=np.uint8)),
            "kind": pa.array(np.frombuffer(self.kind, dtype=np.uint8)),
            "row_high": pa.array(row[:, 0]),
            "row_low": pa.array(row[:, 1]),
        }
        for name in ("id_hash", "question", "asked", "key"):
            columns[name] = pa.array(np.frombuffer(getattr(self, name), dtype=">u8").astype(np.uint64))
        for key, values in self.scores.items():
            columns[f"score:{key}"] = pa.array(values, pa.float64(), from_pandas=False)
        return pa.table(columns)


@cache
def _decoder() -> Any:
    """Reads from a line what becomes columns; and its error, where a field of those has another type."""
    msgspec = require("msgspec", extra="data")

    def struct(title: str, /, **fields: Any) -> Any:
        """A field is its type, or its type and its default."""
        spelled = [(one, *given) if isinstance(given, tuple) else (one, given) for one, given in fields.items()]
        return msgspec.defstruct(title, spelled, gc=False)

    any_call: Any = struct("Call", name=str, arguments=dict[str, Any])
    primary = struct("Primary", text=str, tool_calls=(list[any_call], ()), finish_reason=(str | None, None))
    drawn = struct("Drawn", primary=primary | None, problem=(Unmeasured | None, None))
    any_score: Any = struct("Score", value=float | None, reason=(Unmeasured | None, None))
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
        turns=(str | None, None),
        drawn=(drawn | None, None),
        scores=(dict[str, any_score], msgspec.field(default_factory=dict)),
        correct=(bool | None, None),
        label_detail=(str, ""),
    )
    return msgspec.json.Decoder(row), msgspec.MsgspecError


def _decoded_together(lines: Sequence[bytes]) -> list[Any] | None:
    """The fields of lines that become columns; None if one of them has to be looked at by itself."""
    decoder, refusal = _decoder()
    try:
        rows = [decoder.decode(line) for line in lines]
    except (refusal, UnicodeDecodeError):
        return None
    # A score has a finite value, or the reason why it has none.
    scores = [score for row in rows for score in row.scores.values()]
    whole = all([(one.value is not None and math.isfinite(one.value)) is (one.reason is None) for one in scores])
    return rows if whole else None


def _decoded(path: Path, offset: int, line: bytes) -> Any:
    """The fields of a line that become columns, as `Record` reads them."""
    rows = _decoded_together([line])
    if rows is not None:
        return rows[0]
    try:
        record = parse_record(path, 0, line)
    except RecordError:
        record = parse_record(path, _line_number(path, offset), line)
    return _decoder()[0].decode(record.model_dump_json())


def _digests(row: Any) -> tuple[bytes, bytes]:
    """`row_digest` and `question_digest`; a question with nothing but text and references is spelled here."""
    if row.options is None and row.slots is None and row.tools is None and not row.rejected:
        quoted = encode_basestring  # what canonical_json spells texts with
        group = "null" if row.group is None else quoted(row.group)
        references = ",".join(map(quoted, row.references))
        name = quoted(row.id)
        spelled = (
            f'{{"group":{group},"id":{name},"options":null,"question":{quoted(row.question)},'
            f'"references":[{references}]}}'
        )
        asked = f"[{name},{quoted(f'[{quoted(row.question.strip())},null,null]')}]"
        return sha256(spelled.encode()).digest()[:16], sha256(asked.encode()).digest()[:8]
    question = Question(**{name: getattr(row, name) for name in Question.model_fields})
    return row_digest(question), question_digest(question)


def _asked(row: Any) -> str:
    """One text for equal `Question.asked`."""
    if row.options is None and row.tools is None:
        return str(row.question.strip())
    tools = None if row.tools is None else sorted(map(canonical_json, row.tools))
    return "\0" + canonical_json([row.question.strip(), row.options, tools])


def _answered(primary: Any) -> str:
    """One text for equal answers, as contradictions compare them."""
    if not primary.tool_calls:
        return f"\0{primary.text.strip()}\0"
    calls = [{"name": call.name, "arguments": call.arguments} for call in primary.tool_calls]
    return f"\0{primary.text.strip()}\0{canonical_json(calls)}"


def _flags(row: Any) -> int:
    """The bits of the column ``flags``."""
    found = (DETAIL if row.label_detail else 0) | (REFERENCES if row.references else 0)
    if row.drawn is None:
        return found
    found |= DRAWN if row.drawn.problem is not None else DRAWN | SOUND
    return found if row.drawn.primary is None else found | _ending(row.drawn.primary.finish_reason)


@lru_cache(maxsize=1_024)
def _ending(reason: str | None) -> int:
    """What a finish reason, of which there are few, says about the answer."""
    return 0 if reason is None else ENDED | CUT if is_cut(reason) else ENDED


def _kind(primary: Any) -> int:
    if primary is None:
        return 0
    if primary.tool_calls:
        return 3
    try:
        return 2 if "{" in primary.text and isinstance(read_json(primary.text), dict) else 1
    except ValueError:
        return 1


def coded_groups(records: Sequence[Record]) -> tuple[Codes, list[str | None]]:
    """The number of each record's group, and the groups."""
    if isinstance(records, ColumnRecords):
        return records.coded("group")
    number: dict[str | None, int] = {}
    codes = [number.setdefault(record.group, len(number)) for record in records]
    return np.array(codes, dtype=np.int32), list(number)


def records_fingerprint(records: Iterable[Record]) -> str:
    """`calibrate.data.questions.rows_fingerprint` of records, by columns where there are some."""
    if isinstance(records, ColumnRecords):
        return records.fingerprint()
    return rows_fingerprint(sorted(row_digest(record.to_question()) for record in records))
