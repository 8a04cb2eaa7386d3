"""Columns of a record file: Parquet files beside the log, built where they are missing.

Only the fields that become columns are validated, by a decoder that is several times as fast as `Record`. A line that
it refuses is read as a whole record, so the error is that of `read_records`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import cache
from hashlib import blake2b, sha256
from json.encoder import encode_basestring
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from filelock import FileLock

from guardrail.errors import RecordError, require
from guardrail.files import atomic_write, mode_of
from guardrail.types import Unmeasured

from .item_columns import ItemColumns
from .progress import Progress
from .questions import Question, question_digest, row_digest
from .record import RecordHeader, refuse_other_lengths
from .records import is_fragment, line_number, may_have_fragments, parse_header, parse_record, warn_of_fragments
from .table import answered_text, asked_text, failed_score, flags_of, kind_of

__all__ = ["Shown", "current_parts", "read_header"]

RANGE = 128 * 2**20
"""Bytes of the log behind one file of columns."""
_LAYOUT = "1"
"""Version of the columns; files of another version are built again."""
_BATCH = 2**16
"""Bytes of the log that are decoded at once: few enough to stay in the cache of a core, which halves the time."""
_AHEAD = 2**24
"""Bytes that the disk reads ahead meanwhile."""
_TAIL = 4_096
"""Bytes before the end of a range that are compared with the log."""
_MOST_PARTS = 500
"""Files of columns of one log: a command keeps all of them open, and systems allow 1,024 open files or fewer."""

Shown = Callable[[str], AbstractContextManager[Progress]]
"""From a title to a progress bar."""


def read_header(path: Path) -> tuple[RecordHeader, bytes]:
    """The header, and the bytes up to the end of its line."""
    with path.open("rb") as stream:
        before = b""
        for line in stream:
            before += line
            if line.strip():
                return parse_header(path, line), before
    raise RecordError(f"{path}:1: the file is empty. `calibrate collect` writes a header line first.")


def current_parts(path: Path, first: bytes, header: RecordHeader, shown: Shown, workers: int) -> tuple[list[Any], int]:
    """The Parquet files of a log, built where they are missing, and the byte at which they end.

    Args:
        path: The log.
        first: Its bytes up to the end of the header.
        header: Its header.
        shown: From a title to a progress bar.
        workers: Processes that build.

    Raises:
        OSError: The files cannot be written.
        RecordError: As `read_records`.
    """
    folder = path.with_name(f"{path.name}.cols")
    folder.mkdir(exist_ok=True)
    with FileLock(folder / ".lock", thread_local=False):
        stamp, identity = _stamp(path), sha256(first).hexdigest()
        parts = _valid(path, folder, stamp, identity, len(first))
        begin = int(_facts(parts[-1])["stop"]) if parts else len(first)
        # A last part that was read to the end of the log, and ends before it, stops at a torn line: nothing is left to
        # build. Any other part that ends before the log does was the last that a killed build wrote.
        if begin < stamp["size"] and (not parts or _facts(parts[-1]).get("until") != str(stamp["size"])):
            if parts and begin - int(_facts(parts[-1])["start"]) < RANGE // 8:
                short = parts.pop()  # many small appends must not leave many small files
                begin = int(_facts(short)["start"])
                short.close()  # Windows replaces no open file
            _build(path, folder, _ranges(path, begin, stamp["size"]), stamp, identity, header, shown, workers)
            parts = _valid(path, folder, stamp, identity, len(first))
        return parts, int(_facts(parts[-1])["stop"]) if parts else len(first)


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"inode": status.st_ino, "size": status.st_size, "modified": status.st_mtime_ns}


def _facts(part: Any) -> dict[str, str]:
    stored = part.schema_arrow.metadata or {}
    return {name.decode(): value.decode() for name, value in stored.items()}


def _valid(path: Path, folder: Path, stamp: dict[str, int], identity: str, begin: int) -> list[Any]:
    """The leading Parquet files that belong to the present log; others are deleted."""
    parquet, lib = require("pyarrow.parquet", extra="data"), require("pyarrow.lib", extra="data")
    parts: list[Any] = []
    opened: list[Any] = []
    names = sorted(folder.glob("*.parquet"))
    with path.open("rb") as stream:
        for name in names:
            try:
                part = parquet.ParquetFile(name)  # not mapped: what was read once would stay in memory
                opened.append(part)
                facts = _facts(part)
                start, stop = int(facts["start"]), int(facts["stop"])
            except (lib.ArrowInvalid, OSError, KeyError, ValueError):
                break
            same = facts.get("layout") == _LAYOUT and facts.get("header") == identity and start == begin
            if not same or stop > stamp["size"] or facts.get("tail") != _tail(stream, start, stop):
                break
            parts.append(part)
            begin = stop
    if parts:
        old = json.loads(_facts(parts[-1])["stamp"])
        # A writer appends to the file that is there; any other change counts as a rewrite.
        if old["inode"] != stamp["inode"] or (old != stamp and old["size"] >= stamp["size"]):
            parts = []
    for part in opened[len(parts) :]:
        part.close()  # Windows deletes no open file
    for name in names[len(parts) :]:
        name.unlink()
    return parts


def _tail(stream: Any, start: int, stop: int) -> str:
    stream.seek(max(start, stop - _TAIL))
    return sha256(stream.read(stop - max(start, stop - _TAIL))).hexdigest()


def _ranges(path: Path, begin: int, size: int) -> list[tuple[int, int]]:
    """Ranges of about `RANGE` bytes that end with a line."""
    ranges, step = [], max(RANGE, (size - begin) // _MOST_PARTS)
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
    shown: Shown,
    workers: int,
) -> None:
    common = sorted(header.estimators), header.item_keys, may_have_fragments(header)
    jobs = [(path, folder, start, stop, stamp, identity, *common) for start, stop in ranges]
    with shown(f"columns of {path.name}") as progress:
        if min(workers, len(jobs)) < 2:
            for done, job in enumerate(jobs, start=1):
                build_part(*job)
                progress(done, len(jobs))
            return
        # Spawned and not forked: a fork copies the locks that threads of pyarrow hold, and nobody releases them.
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
    path: Path,
    folder: Path,
    start: int,
    stop: int,
    stamp: dict[str, int],
    identity: str,
    keys: Sequence[str],
    item_keys: Sequence[str],
    fragments: bool,
) -> None:
    """Write the columns of one range of a log's bytes, without a torn last line; with ``fragments`` without others."""
    pa, parquet = require("pyarrow", extra="data"), require("pyarrow.parquet", extra="data")
    rows = _Rows(keys, item_keys, fragments=fragments)
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
    warn_of_fragments(path, rows.fragments)
    table = rows.table(pa).replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    # Statistics would be read by nobody, and ids and hashes hardly repeat, so a dictionary would only cost space.
    repeating = ["group", "turns", *(f"{key}:path.list.element" for key in item_keys)]
    parquet.write_table(table, sink, compression="zstd", use_dictionary=repeating, write_statistics=False)
    atomic_write(folder / f"{start:015d}.parquet", memoryview(sink.getvalue()).tobytes(), mode=mode_of(path))


class _Rows:
    """Columns of one range while they grow."""

    def __init__(self, keys: Sequence[str], item_keys: Sequence[str], *, fragments: bool) -> None:
        self._skip, self.fragments = fragments, 0
        self.offset: list[int] = []
        self.id: list[str] = []
        self.group: list[str | None] = []
        self.turns: list[str | None] = []
        self.label, self.flags, self.kind = bytearray(), bytearray(), bytearray()
        self.id_hash, self.question, self.row = bytearray(), bytearray(), bytearray()
        self.asked, self.key = bytearray(), bytearray()
        self.scores: dict[str, list[float | None]] = {key: [] for key in keys}
        self.items: dict[str, list[ItemColumns]] = {key: [] for key in item_keys}

    def extend(self, path: Path, offset: int, lines: Sequence[bytes]) -> int:
        """Append the records of lines that start at a byte; the last line lacks its end.

        Returns:
            The byte after these lines; the last one counts only if it is a record.
        """
        *whole, last = lines
        offsets: list[int] = []
        written: list[bytes] = []
        for line in whole:
            if line.strip():
                offsets.append(offset)
                written.append(line)
            offset += len(line) + 1
        # One try block for all lines: a list that fails is decoded again line by line, which finds the bad one.
        rows = _decoded_together(written)
        if rows is None:
            kept = [(at, row) for at, line in zip(offsets, written, strict=True) if (row := self._row(path, at, line))]
            offsets, rows = [at for at, _ in kept], [row for _, row in kept]
        self._add(offsets, rows)
        if last.strip():
            try:
                row = _decoded(path, offset, last)
            except RecordError:
                return offset  # torn: a writer was killed, or is still writing
            self._add([offset], [row])
        return offset + len(last)

    def _row(self, path: Path, offset: int, line: bytes) -> Any:
        """The fields of a line; None for a torn one that is left out."""
        try:
            return _decoded(path, offset, line)
        except RecordError:
            if not (self._skip and is_fragment(line)):
                raise
            self.fragments += 1
            return None

    def _add(self, offsets: list[int], rows: list[Any]) -> None:
        """Append rows, column by column; numbers as bytes, which take less memory than lists."""
        self.offset += offsets
        self.id += [row.id for row in rows]
        self.group += [row.group for row in rows]
        self.turns += [row.turns for row in rows]
        # A byte has no sign: 2 stands for a missing label until `table`.
        self.label += bytes([2 if row.correct is None else row.correct for row in rows])
        self.id_hash += b"".join([sha256(row.id.encode()).digest()[:8] for row in rows])
        digests = [_digests(row) for row in rows]
        self.row += b"".join([row for row, _ in digests])
        self.question += b"".join([question for _, question in digests])
        hashes = [blake2b(asked_text(row).encode(), digest_size=8) for row in rows]
        self.asked += b"".join([running.digest() for running in hashes])
        primaries = [None if row.drawn is None else row.drawn.primary for row in rows]
        # The key continues the hash of the question, so that question and answer are hashed once.
        for running, primary in zip(hashes, primaries, strict=True):
            if primary is not None:
                running.update(answered_text(primary).encode())
        self.key += b"".join([running.digest() for running in hashes])
        self.flags += bytes(map(flags_of, rows))
        self.kind += bytes(map(kind_of, rows))
        for key, column in self.scores.items():
            column += [_stored(row.scores.get(key)) for row in rows]
        for key, pieces in self.items.items():
            pieces.append(ItemColumns.of(rows, key))

    def table(self, pa: Any) -> Any:
        """The columns as a table of pyarrow."""
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
        # Null marks a record that the estimator did not look at; see `_stored`.
        for key, values in self.scores.items():
            columns[f"score:{key}"] = pa.array(values, pa.float64(), from_pandas=False)
        for key, pieces in self.items.items():
            columns |= ItemColumns.joined(pieces).to_arrow(pa, key)
        return pa.table(columns)


def _stored(score: Any) -> float | None:
    """A score as its column has it: NaN if it could not be measured, infinity if that was a failure of a server."""
    if score is None or score.value is not None:
        return None if score is None else score.value
    return math.inf if failed_score(score) else math.nan


@cache
def _decoder() -> Any:
    """A decoder of the fields that become columns, and the error that it raises on another type."""
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
    any_item: Any = struct("Item", uncertainty=share | None, path=(str | None, None), absent=(bool, False))
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
        turns=(str | None, None),
        drawn=(drawn | None, None),
        scores=(dict[str, any_score], msgspec.field(default_factory=dict)),
        items=(dict[str, list[any_item]], msgspec.field(default_factory=dict)),
        item_labels=(dict[str, any_labels], msgspec.field(default_factory=dict)),
        correct=(bool | None, None),
        label_detail=(str, ""),
    )
    return msgspec.json.Decoder(row), msgspec.MsgspecError


def _decoded_together(lines: Sequence[bytes]) -> list[Any] | None:
    """The fields of lines that become columns; None if a line has to be decoded alone."""
    decoder, refusal = _decoder()
    try:
        rows = [decoder.decode(line) for line in lines]
    except (refusal, UnicodeDecodeError):
        return None
    try:
        for row in rows:
            if row.item_labels:
                refuse_other_lengths(row)
    except ValueError:
        return None
    # `Uncertainty` demands a finite value or a reason, which types alone cannot say.
    scores = [score for row in rows for score in row.scores.values()]
    whole = all(
        [(score.value is not None and math.isfinite(score.value)) is (score.reason is None) for score in scores]
    )
    return rows if whole else None


def _decoded(path: Path, offset: int, line: bytes) -> Any:
    """The fields of one line that become columns, with the conversions of `Record` (a label may be "false")."""
    rows = _decoded_together([line])
    if rows is not None:
        return rows[0]
    try:
        record = parse_record(path, 0, line)
    except RecordError:  # only an error needs the number of the line, which takes a pass over the log
        record = parse_record(path, line_number(path, offset), line)
    return _decoder()[0].decode(record.model_dump_json())


def _digests(row: Any) -> tuple[bytes, bytes]:
    """`row_digest` and `question_digest`.

    A question with text and references alone is spelled here, without building a `Question` for each line.
    """
    if row.options is None and row.slots is None and row.tools is None and not row.rejected:
        quoted = encode_basestring  # what canonical_json spells texts with
        group = "null" if row.group is None else quoted(row.group)
        references = ",".join(map(quoted, row.references))
        name = quoted(row.id)
        spelled = (
            f'{{"group":{group},"id":{name},"options":null,"question":{quoted(row.question)},'
            f'"references":[{references}]}}'
        )
        spelled_asked = f"[{name},{quoted(f'[{quoted(row.question.strip())},null,null]')}]"
        return sha256(spelled.encode()).digest()[:16], sha256(spelled_asked.encode()).digest()[:8]
    question = Question(**{name: getattr(row, name) for name in Question.model_fields})
    return row_digest(question), question_digest(question)
