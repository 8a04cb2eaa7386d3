"""Record files: what `collect` wrote for each question, with scores and labels added later.

A record file is JSONL. Its first line is ``{"header": {...}}``: who was asked, how, and with which questions. Every
other line is one record. Lines are appended and flushed to disk; a kill can tear the last line only, and the next
writer removes it. A rewrite (scores, labels) writes a new file next to it and swaps it in.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import ValidationError

from guardrail.errors import RecordError, UsageError
from guardrail.files import atomic_write, check_version, mode_of, refuse_special, remove_partial_writes
from guardrail.notebook import BLUE, RED, Table, as_html, axis, percent
from guardrail.plain_json import sha256_hex
from guardrail.specs import CorrectnessSpec

from .record import Record as Record
from .record import RecordHeader as RecordHeader
from .table import RecordTable, among, table_of

GIVEN = "given"
"""Name in the place of a label rule where people gave the labels."""


@dataclass(frozen=True, slots=True, init=False)
class RecordFile:
    """A record file.

    Attributes:
        path: Where it was read. Of several files that were pooled: their paths, as on a command line.
        header: Its first line.
        records: One record a question, in file order; any sequence of records becomes a table.
        repeated: Of several files: pairs of ids of one question (text, options, tools and slots) in two of them.
    """

    path: Path
    header: RecordHeader
    records: RecordTable
    repeated: tuple[tuple[str, str], ...]

    def __init__(
        self, path: Path, header: RecordHeader, records: Sequence[Record], repeated: tuple[tuple[str, str], ...] = ()
    ) -> None:
        values = {"path": path, "header": header, "records": table_of(records), "repeated": repeated}
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the class is frozen

    @property
    def typed(self) -> str:
        """The file as a command line takes it: a path with spaces is quoted."""
        return shlex.quote(str(self.path)) if self.path.is_file() else str(self.path)

    def __repr__(self) -> str:
        """The short form, without the records."""
        scores = sorted(self.header.estimators)
        labels = None if self.header.correctness is None else self.header.correctness.name
        return f"RecordFile({str(self.path)!r}, n={len(self.records)}, scores={scores}, labels={labels!r})"

    def _repr_html_(self) -> str:
        header = self.header
        labels = self.records.labels()
        right = int((labels == 1).sum())
        n_labelled = int((labels >= 0).sum())
        total = len(self.records)
        by = "" if header.correctness is None else f", by rule {header.correctness.name}"
        share = percent(right / n_labelled if n_labelled else None)
        labelled = f"{right} of {n_labelled} labelled answers{by} ({share})"
        undecided = int(self.records.undecided().sum())
        if undecided:
            labelled += f"; {undecided} undecided answers count as wrong"
        measured = {key: np.isfinite(self.records.scores(key)).sum() for key in sorted(header.estimators)}
        facts = [
            ("model", f"{header.model.provider}, {header.model.model}"),
            ("drawn", f"{header.plan.n} samples a question at temperature {header.plan.temperature:g}"),
            ("right", labelled if n_labelled else "not labelled yet"),
            ("scores", ", ".join(f"{key} ({n} of {total})" for key, n in measured.items()) or "none yet"),
        ]
        words = {True: "right", False: "wrong", None: "-"}
        rows = [
            [record.question[:160], (record.answer or "-")[:80], words[record.correct]] for record in self.records[:3]
        ]
        return as_html(f"{total} records in {self.path}", facts, Table(("question", "answer", "label"), rows))

    def plot(self, estimator: str | None = None, ax: Any = None) -> Any:
        """Plot the scores of right and of wrong answers; of records without labels, all scores.

        Args:
            estimator: Key of the scores; default: the first.
            ax: matplotlib axis to draw on; a new figure's if left out.

        Returns:
            The axis.

        Raises:
            UsageError: The file lacks these scores.
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        keys = sorted(self.header.estimators)
        key = estimator if estimator is not None else next(iter(keys), "")
        if key not in keys:
            named = f"no {key!r} scores (it has {', '.join(keys) or 'none'})" if key else "no scores"
            raise UsageError(f"{self.path} has {named}. Score it first.")
        values = self.records.scores(key)
        labels = self.records.labels()
        kinds = [("right", labels == 1, BLUE), ("wrong", labels == 0, RED), ("not labelled", labels < 0, "#9aa3ad")]
        drawn = [(name, values[mask & ~np.isnan(values)], colour) for name, mask, colour in kinds]
        names, parts, colours = zip(*(part for part in drawn if part[1].size), strict=True)
        ax = axis(ax)
        ax.hist(parts, bins=30, stacked=True, color=colours, label=names)
        ax.set(xlabel=f"{key} ({self.header.estimators[key].unit}; further right: less certain)", ylabel="questions")
        ax.legend(frameon=False)
        return ax


def read_records(path: str | Path, *more: str | Path) -> RecordFile:
    """Read a record file, or several as one (`pooled`). A torn last line, of a writer that was killed, is left out.

    Raises:
        RecordError: A malformed line or a second record with the same id; file, line and field are named.
        UsageError: A missing file, or files that cannot be pooled.
    """
    paths = [Path(record_path) for record_path in (path, *more)]
    for record_path in paths:
        refuse_missing(record_path)
    return pooled([_scan(record_path)[0] for record_path in paths])


def refuse_missing(path: Path) -> None:
    """Refuse a record file that does not exist.

    Raises:
        UsageError: With the commands that make one.
    """
    if not path.is_file():
        raise UsageError(
            f"no record file at {path}. `calibrate collect` makes one, and of people's decisions `calibrate learn`."
        )


def pooled(files: Sequence[RecordFile]) -> RecordFile:
    """Record files of one model, plan, prompt and label rule as one, in the order given; a single file unchanged.

    Only scores that all files have are kept. Labels that people gave may come from a file each. A question that is in
    two files under other ids stays, and `RecordFile.repeated` says so.

    Args:
        files: At least one.

    Raises:
        UsageError: Files that differ (both sides are named), a question that is in two of them, or a file that
            `sample` drew: the pool would not be a random part of the scored questions.
    """
    first, *others = files
    if not others:
        return first
    for file in files:
        _refuse_mixture(first, file)
    records = first.records.joined([file.records for file in others])
    twice = records.repeated()
    if twice is not None:
        ends = np.cumsum([len(file.records) for file in files])
        earlier, later = (files[int(np.searchsorted(ends, position, side="right"))].path for position in twice)
        raise UsageError(
            f"record {records[twice[1]].id!r} is in two of the files, {earlier} and {later}. If it is the same "
            "question, leave it out of one. Other questions that are numbered alike need other ids: change the field "
            '"id" in each line of one file.'
        )
    return RecordFile(*_pool_header(files, records.questions_sha256()), records, _asked_twice(files))


def _pool_header(files: Sequence[RecordFile], questions_sha256: str) -> tuple[Path, RecordHeader]:
    """Name and header of a pool of files that pass `_refuse_mixture`; refuses files with scores and none in common."""
    first = files[0]
    headers = [file.header for file in files]
    estimators = {
        key: spec
        for key, spec in first.header.estimators.items()
        if all(header.estimators.get(key) == spec for header in headers)
    }
    if not estimators and any(header.estimators for header in headers):
        keys = "; ".join(f"{file.path}: {', '.join(sorted(file.header.estimators)) or 'none'}" for file in files)
        raise UsageError(f"the files have no scores in common ({keys}). Run: calibrate score {_named(files)}")
    header = first.header.model_copy(
        update={
            "questions_name": " + ".join(dict.fromkeys(header.questions_name for header in headers)),
            "questions_sha256": questions_sha256,
            "n_questions": sum({header.questions_sha256: header.n_questions for header in headers}.values()),
            "correctness": _correctness([header.correctness for header in headers]),
            "estimators": estimators,
        }
    )
    return Path(_named(files)), header


def _asked_twice(files: Sequence[RecordFile]) -> tuple[tuple[str, str], ...]:
    """Ids of the questions that are in two files under different ids; a file may repeat its own questions."""
    hashes = [file.records.asked_hashes() for file in files]
    distinct, times = np.unique(np.concatenate([np.unique(some) for some in hashes]), return_counts=True)
    shared = distinct[times > 1]
    first: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for file, some in zip(files, hashes, strict=True):
        here = {record.asked: record.id for record in file.records.take(among(some, shared))}
        pairs += [(first[question], name) for question, name in here.items() if question in first]
        first = here | first
    return tuple(pairs)


def _named(files: Sequence[RecordFile]) -> str:
    return shlex.join(str(file.path) for file in files)


def _refuse_mixture(first: RecordFile, other: RecordFile) -> None:
    """Refuse files that cannot be one, and name both sides."""
    differences = _differences(first.header, other.header)
    ours, theirs = first.header.correctness, other.header.correctness
    if (ours is None) != (theirs is None):
        bare = first if ours is None else other
        differences.append(f"{bare.path} has no labels. Run: calibrate label {bare.typed}")
    elif ours is not None and theirs is not None and ours != theirs and not ours.name == theirs.name == GIVEN:
        differences.append(f"correctness: {ours!r} and {theirs!r}")
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(
            f"{first.path} and {other.path} cannot be one pool:\n  {listed}\nCollect and label both alike, or use each "
            "by itself (calibrate evaluate, a file at a time)."
        )
    drawn = next((file for file in (first, other) if file.header.scope.is_drawn), None)
    if drawn is not None:
        raise UsageError(
            f"the questions of {drawn.path} were drawn by `calibrate sample`, and together with others they are not a "
            "random part of what was scored. Draw once from all scored questions: calibrate sample --records takes "
            "several files."
        )


def _differences(one: RecordHeader, other: RecordHeader) -> list[str]:
    """Differences in how the records of two files were drawn, field by field."""
    differences = one.model.differences(other.model)
    for part in ("plan", "prompt"):
        ours, theirs = getattr(one, part), getattr(other, part)
        for name in type(ours).model_fields:
            if getattr(ours, name) != getattr(theirs, name):
                differences.append(f"{part}.{name}: {getattr(ours, name)!r} and {getattr(theirs, name)!r}")
    return differences


def _correctness(specs: Sequence[CorrectnessSpec | None]) -> CorrectnessSpec | None:
    """The label rule of a pool; of labels that people gave in several files, the names of all and one hash."""
    first = specs[0]
    if first is None or all(spec == first for spec in specs):
        return first
    params_of = [spec.params for spec in specs if spec is not None]
    names = " + ".join(str(params.get("file")) for params in params_of)
    digest = sha256_hex("".join(f"{params.get('sha256')}\n" for params in params_of))
    return CorrectnessSpec(name=GIVEN, version=first.version, params={"file": names, "sha256": digest})


def rewrite_records(source: str | Path, target: str | Path, change: Callable[[RecordFile], RecordFile]) -> RecordFile:
    """Write a changed version of a record file, atomically, with no other writer of the target in between.

    Args:
        source: The record file that is read.
        target: The record file that is written; it may be the source.
        change: From the present file to the file to write.

    Returns:
        What the target holds now.

    Raises:
        UsageError: The file is missing, or another process is writing the target.
        RecordError: As `read_records`.
    """
    source, target = Path(source), Path(target)
    with exclusive(target):
        changed = change(read_records(source))
        _replace(target, changed.header, changed.records, mode_of(target, source))
    return changed


def write_records(path: str | Path, header: RecordHeader, records: Iterable[Record]) -> None:
    """Write a complete record file, atomically: a kill leaves the old file or the new one, never a part.

    Raises:
        UsageError: Another process is writing the file.
    """
    path = Path(path)
    with exclusive(path):
        _replace(path, header, records)


log = logging.getLogger("guardrail")
BEGIN = b'{"id": "'
"""First bytes of a record that `guardrail.guard.record_lines` wrote."""
OBSERVED = "observed: "
"""Begin of the name of a set that a gateway collected, whose disk may have been full for a while."""


class RecordReader:
    """Reads a record file line by line, and closes it at its end. Remembers only the ids that it has seen.

    Args:
        path: Where it is read.
        stream: The open file.
        read: From a line to its row; a line that is not a record raises a `ValidationError`.

    Attributes:
        path: Where it is read.
        header: Its first line.
        skips: Whether a gateway wrote the file, so that torn lines before the last (`is_torn`) are left out.
        good: Bytes up to the end of the last good line so far.
    """

    def __init__(self, path: Path, stream: IO[bytes], read: Callable[[bytes], Any] = Record.from_stored) -> None:
        self.path = path
        self.good = 0
        self._stream = stream
        self._read = read
        for line in stream:
            self.good += len(line)
            if line.strip():
                self.header = parse_header(path, line)
                self.skips = self.header.questions_name.startswith(OBSERVED)
                return
        raise RecordError(f"{path}:1: the file is empty. `calibrate collect` writes a header line first.")

    def __iter__(self) -> Iterator[Record]:
        start_of: dict[str, int] = {}
        with self._stream:
            for start, record in self.rows():
                if start_of.setdefault(record.id, start) != start:
                    raise self.repeated(record.id, start_of[record.id], start)
                yield record

    def rows(self, start: int | None = None, stop: float = math.inf) -> Iterator[tuple[int, Any]]:
        """First byte and row of each line; at the end of the file, torn lines that were left out are logged.

        Args:
            start: First byte of the first line; default: the line behind the last that was read.
            stop: Byte before which the last line begins.

        Raises:
            RecordError: A malformed line, unless it is the torn last one or a gateway's fragment.
        """
        if start is not None:
            self._stream.seek(start)
            self.good = start
        fragments = 0
        for line in self._stream if self.good < stop else ():
            start = self.good
            self.good += len(line)
            try:
                if line.strip():
                    yield start, self._read(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):  # only the last line can lack its end
                    self.good = start
                elif self.skips and is_torn(line):
                    fragments += 1
                else:
                    raise _problem(self.path, self._number(start), error) from error
            if self.good >= stop:
                return
        self.warn_of(fragments)

    def warn_of(self, fragments: int) -> None:
        """Log how many torn lines were left out, if any."""
        if fragments:
            torn = "torn lines were left out: the disk was full as they were written"
            log.warning("calibrate: %s: %d %s", self.path, fragments, torn)

    def record(self, start: int) -> Record:
        """The record in the line that begins at a byte.

        Raises:
            RecordError: It is malformed.
        """
        self._stream.seek(start)
        line = self._stream.readline()
        try:
            return Record.from_stored(line)
        except ValidationError as error:
            raise _problem(self.path, self._number(start), error) from error

    def repeated(self, name: str, first: int, second: int) -> RecordError:
        """The error of an id that two lines have, which begin at these bytes."""
        return RecordError(
            f"{self.path}:{self._number(second)}: field 'id': got {name!r}, which is already at line "
            f"{self._number(first)}. Every question has one record: remove one of the two lines."
        )

    def _number(self, start: int) -> int:
        """Number of the line that begins at a byte."""
        self._stream.seek(0)
        return 1 + sum(self._stream.read(min(1 << 20, start - at)).count(b"\n") for at in range(0, start, 1 << 20))


def is_torn(line: bytes, begin: bytes = BEGIN) -> bool:
    """Whether a line is what a write that failed leaves, alone or before a later row: it begins as all rows do.

    Such a line is not JSON. JSON with a wrong field was written whole, and is a fault of another kind.
    """
    if not line.startswith(begin):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def stream_records(
    source: str | Path, target: str | Path, change: Callable[[RecordReader], tuple[RecordHeader, Iterable[Record]]]
) -> None:
    """Write a changed version of a record file, record by record, so that memory does not grow with the file.

    The target (which may be the source) is replaced at the end, atomically, with no other writer in between.

    Args:
        source: The record file that is read.
        target: The record file that is written.
        change: From a reader to a header and an iterator over records, which it must read to the end.

    Raises:
        UsageError: The file is missing, or another process is writing the target.
        RecordError: As `read_records`. The target stays unchanged.
    """
    source, target = Path(source), Path(target)
    refuse_missing(source)
    with exclusive(target), source.open("rb") as stream:
        header, records = change(RecordReader(source, stream))
        _replace(target, header, records, mode_of(target, source))


def read_spans(path: Path, spans: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """The records of parts of a record file, without reading the rest; a torn last line is left out.

    Args:
        path: The record file.
        spans: First byte and end of each span; both stand at the beginning of a line.

    Raises:
        RecordError: A malformed line.
    """
    with path.open("rb") as stream:
        reader = RecordReader(path, stream)
        for start, stop in spans:
            yield from (record for _, record in reader.rows(start, stop))


def spans_of(path: Path, start: int, size: int) -> list[tuple[int, int]]:
    """First byte and end of parts of about ``size`` bytes, for `read_spans`: from ``start`` on, each of whole lines."""
    spans: list[tuple[int, int]] = []
    end = path.stat().st_size
    with path.open("rb") as stream:
        while start < end:
            stream.seek(min(start + size, end) - 1)
            stream.readline()
            spans.append((start, start := stream.tell()))
    return spans


@contextmanager
def open_writer(
    path: str | Path, header: RecordHeader
) -> Iterator[tuple[Callable[[Sequence[Record]], None], RecordFile]]:
    """Open a record file for appending, creating it or resuming it, under an exclusive lock.

    A torn last line is removed, and so are records whose drawing failed for a cause that does not depend on the
    question, so that they are drawn again. Resuming needs the same model, plan, prompt and questions.

    Args:
        path: The record file.
        header: The header of a fresh file; what a file that exists is compared with.

    Yields:
        A function that appends records, which are on disk when it returns; and what is already in the file.

    Raises:
        UsageError: Another process is writing the file, or the file is of another collection (both sides are named).
        RecordError: A malformed line that is not the last.
    """
    path = Path(path)
    with exclusive(path):
        if not path.exists() or path.stat().st_size == 0:
            _replace(path, header, ())
        existing, good = _scan(path)
        there = existing.header
        if there.prompt.wraps_like(header.prompt):  # another declaration about slots and turns changes no answer
            there = there.model_copy(update={"prompt": header.prompt})
        refuse_other_collection(path, there, header)
        kept = [record for record in existing.records if not record.may_be_drawn_again]
        if there != existing.header or len(kept) < len(existing.records):
            existing = RecordFile(path, there, kept)
            _replace(path, there, kept)
            good = path.stat().st_size
        with path.open("r+b") as stream:
            stream.truncate(good)
            stream.seek(good - 1)
            if stream.read() != b"\n":
                stream.write(b"\n")

            def append(records: Sequence[Record]) -> None:
                stream.write(b"".join(map(record_line, records)))
                stream.flush()
                os.fsync(stream.fileno())

            yield append, existing


def _scan(path: Path) -> tuple[RecordFile, int]:
    """Read a record file; also the number of bytes up to the end of the last good line."""
    with path.open("rb") as stream:
        reader = RecordReader(path, stream)
        records = tuple(reader)
    return RecordFile(path, reader.header, records), reader.good


def parse_header(path: Path, line: bytes) -> RecordHeader:
    """The header in the first line of a record file.

    Raises:
        RecordError: The line holds no header, or one of another version.
    """
    if path.suffix.lower() in (".csv", ".tsv", ".xlsx", ".xls", ".parquet"):
        text = path.suffix.lower() in (".csv", ".tsv")
        columns = f" with the columns {line.decode(errors='replace').strip()}" if text else ""
        raise RecordError(
            f"{path} is a table{columns}, not a record file. Make one of it: calibrate import {shlex.quote(str(path))} "
            "--map question=COLUMN --map correct=COLUMN --map confidence=NAME:COLUMN (or --map samples=COLUMN,COLUMN)."
        )
    try:
        values = json.loads(line)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise RecordError(f"{path}:1: not JSON: {error}. Restore the line, or collect again.") from error
    header = values.get("header") if isinstance(values, dict) else None
    if not isinstance(header, dict):
        raise RecordError(
            f'{path}:1: got {line[:80]!r}; the first line of a record file is {{"header": {{...}}}}. '
            "Is this a question file? `calibrate collect` turns one into records. With answers: `calibrate import`."
        )
    check_version(header.get("format"), 1, f"{path}:1: the file", "collect again", error=RecordError)
    try:
        return RecordHeader.from_stored(json.dumps(header))
    except ValidationError as error:
        raise _problem(path, 1, error, prefix="header.") from error


def header_of(path: Path) -> RecordHeader | None:
    """The header of a record file; None of any other file, which its reader says more about."""
    try:
        with path.open("rb") as stream:
            return parse_header(path, stream.readline(LONGEST_HEADER))
    except (RecordError, OSError):
        return None


LONGEST_HEADER = 2**22
"""Bytes of a first line beyond which a file is not read on: not a record file."""


def _problem(path: Path, number: int, error: ValidationError, prefix: str = "") -> RecordError:
    """The error of a line that is not what it must be."""
    first = error.errors(include_url=False)[0]
    where = f"{path}:{number}"
    problem = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return RecordError(f"{where}: not JSON: {problem}. Restore the line or delete it and collect again.")
    if not first["loc"]:  # two fields contradict each other, which the message names, or it is no object
        return RecordError(f"{where}: {problem}")
    field = prefix + ".".join(str(part) for part in first["loc"])
    return RecordError(f"{where}: field {field!r}: got {first['input']!r:.120}; {problem}")


def refuse_other_collection(path: Path, there: RecordHeader, here: RecordHeader) -> None:
    """Refuse to go on with records that were drawn otherwise, or with other questions.

    Raises:
        UsageError: Naming what differs.
    """
    differences = _differences(there, here)
    if there.questions_sha256 != here.questions_sha256:
        differences.append(
            f"questions: file {there.questions_name} ({there.n_questions} questions, {there.questions_sha256[:12]}), "
            f"now {here.questions_name} ({here.n_questions} questions, {here.questions_sha256[:12]})"
        )
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(
            f"{path} holds another collection and cannot be resumed with these settings (in the file, and now):\n"
            f"  {listed}\n"
            f"Use the settings of the file, or write to another file with --out: {here.n_questions:,} questions x "
            f"{here.plan.calls} calls. Labels of equal answers are kept (`calibrate label --interactive` with the "
            "--labels file of before asks about new answers only)."
        )


def _replace(path: Path, header: RecordHeader, records: Iterable[Record], mode: int | None = None) -> None:
    """Write a record file atomically, with these permissions, or those of the file there; the caller is its writer."""
    refuse_special(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"header": header.model_dump(mode="json")}, ensure_ascii=False).encode() + b"\n"
    atomic_write(path, chain([first], map(record_line, records)), mode=mode, private=True)


def record_line(record: Record) -> bytes:
    """A record as a line of its file."""
    return record.model_dump_json().encode() + b"\n"


# -- One writer at a time: an exclusive lock on a file beside the record file ------------------------------------------

_PATIENCE = 0.1
"""Seconds to retry: a holder that is just finishing removes its lock file, which looks like a held lock."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the only lock on ``path`` (a hidden ``.name.lock`` next to it). The system releases it if the process dies.

    Copies that killed writers left beside the file are removed: they may be as large as the file.

    Raises:
        UsageError: Another process holds it; nothing was read or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.parent / f".{path.name}.lock", thread_local=False)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise UsageError(
            f"{path} is being written by another process. Two writers would interleave their records: wait for it, "
            "stop it, or write to another file."
        ) from error
    try:
        remove_partial_writes(path)
        yield
    finally:
        if sys.platform != "win32":  # an open file cannot be removed there
            Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: the next holder makes a new one
        lock.release()
