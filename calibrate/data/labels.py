"""Labels that people give: a file of them, a session that asks for them key by key, and labels that contradict."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from guardrail.errors import RecordError, UsageError
from guardrail.files import check_version, create_private
from guardrail.items.item import Item
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.specs import CorrectnessSpec

from .formats.truth import WORDS
from .records import GIVEN, Record, exclusive, is_torn
from .rows import read_rows
from .table import table_of

Labelled: TypeAlias = tuple[str, str]
"""Id of a record, and the answer that was judged."""


@dataclass(frozen=True, slots=True)
class GivenLabels:
    """Labels read from a file. A label belongs to an answer: a model that answers otherwise needs another one.

    Attributes:
        path: The file.
        given: Whether an answer is right, by record id and the answer that was judged (None where the file does not
            say which); None for an answer that a person looked at and could not decide.
    """

    path: Path
    given: dict[tuple[str, str | None], bool | None]

    @property
    def spec(self) -> CorrectnessSpec:
        """The specification that the artifact stores in place of a rule: the file and the hash of its labels."""
        lines = sorted(f"{name}\t{correct}\n" for (name, _), correct in self.given.items() if correct is not None)
        return CorrectnessSpec(
            name=GIVEN, version=1, params={"file": self.path.name, "sha256": sha256_hex("".join(lines))}
        )

    def key(self, record: Record) -> tuple[str, str | None] | None:
        """The place in `given` of the record's answer; None if it has no label."""
        keys: tuple[tuple[str, str | None], ...] = ((record.id, record.answer or ""), (record.id, None))
        return next((key for key in keys if key in self.given), None)


def read_labels(path: str | Path, kind: str | None = None) -> GivenLabels:
    """Read labels: JSONL or CSV (by its name, or of this kind) with ``id`` and ``correct``.

    A label is true/false, 1/0, yes/no, pass/fail or another usual word.
    A field ``judged`` is the answer that was judged. With it ``correct`` may be null: looked at, and not decided.

    Raises:
        RecordError: A malformed row or a second label for an answer; file, line and field are named.
        UsageError: The file is missing, or holds no label.
    """
    path = Path(path)
    given: dict[tuple[str, str | None], bool | None] = {}
    for row in read_rows(path, kind):
        name = row.name("id")
        if not name:
            raise row.fail("id", row.values.get("id"), "every label needs the id of its record")
        label = row.values.get("format")
        if isinstance(label, int):  # of a labelling session; other files may use the column for anything
            way_out = "write id and correct only"
            check_version(label, 1, f"{path}: the label of {name!r}", way_out, error=RecordError)
        label = row.values.get("correct")
        judged = row.values.get("judged")
        key = (name, judged if isinstance(judged, str) else None)
        if key in given:
            raise row.fail("id", name, "it has a label already; remove one of the two")
        word = str(label).strip().lower()
        skipped = label is None and "correct" in row.values and key[1] is not None
        if not skipped and word not in WORDS:
            raise row.fail("correct", label, "write true or false, yes or no, pass or fail")
        given[key] = None if skipped else WORDS[word]
    if not given:
        raise UsageError(f'{path} holds no label. Write one JSON object a line: {{"id": ..., "correct": true}}')
    return GivenLabels(path, given)


def apply_labels(records: Sequence[Record], labels: GivenLabels) -> list[Record]:
    """Label answers. A skipped one says so; an answer without a label in the file still waits for one.

    Raises:
        UsageError: A label for a record that does not exist, or no label for any answer of these records: it is
            probably the wrong file.
    """
    names = {record.id for record in records}
    unknown = sorted({name for name, _ in labels.given} - names)
    if unknown:
        raise UsageError(
            f"{labels.path} labels {len(unknown)} records that are not in the record file, e.g. {unknown[0]!r}. "
            "Give the labels of these records."
        )
    keys = [labels.key(record) for record in records]
    if not any(keys):
        (name, judged), *_ = labels.given
        answer = next(record.answer for record in records if record.id == name)
        raise UsageError(
            f"{labels.path}: no label is for an answer of these records. That of {name!r} is for {str(judged)[:80]!r}, "
            f"but the record's answer is {str(answer)[:80]!r}. Give the labels of these records."
        )
    return [_labelled(record, labels, key) for record, key in zip(records, keys, strict=True)]


def _labelled(record: Record, labels: GivenLabels, key: tuple[str, str | None] | None) -> Record:
    correct = None if key is None else labels.given[key]
    detail = f"skipped in {labels.path.name}" if key is not None and correct is None else ""
    return record.model_copy(update={"correct": correct, "label_detail": detail})


def refuse_contradictions(records: Sequence[Record]) -> None:
    """Refuse records that label one answer to one question both ways.

    Questions are the same if their text, options and offered tools are; answers are if their text (surrounding white
    space apart) and tool calls are, even with different references, as where a data set holds a question twice with two
    golds. Records that were imported without answers are compared by their question alone.

    Raises:
        UsageError: Naming both records of the first pair in file order, and the number of pairs: each record is in one
            at most, with the first record of the other label.
    """
    table = table_of(records)
    places, n = table.both_ways()
    pairs = ((table[earlier], table[later]) for earlier, later in places.tolist())
    # Places are found by short hashes, so the records themselves have the last word.
    pair = next((pair for pair in pairs if len(set(map(_asked_and_answered, pair))) == 1), None)
    if pair is None:
        return
    right, wrong = sorted(pair, key=lambda record: not record.correct)
    more = f" ({n} such pairs in all)" if n > 1 else ""
    shown = right.shown_answer
    answer = "" if shown is None else f" and the same answer {shown[:200]!r}"
    raise UsageError(
        f"records {right.id!r} and {wrong.id!r} have the same question {right.question[:80]!r}{answer}, but the first "
        f"is labelled right and the second wrong{more}. One of the labels (or its reference) is a mistake: correct it "
        "and label again, or remove one of the two from the file that was imported."
    )


def stricter(records: Sequence[Record]) -> tuple[list[Record], int]:
    """The records with an answer that one of them labels wrong wrong in all of them, and how many labels that changed.

    For labels of people who cannot be asked again: a fit refuses two labels of one answer (`refuse_contradictions`).
    """
    wrong = {_asked_and_answered(record) for record in records if record.correct is False}
    too_good = [bool(record.correct) and _asked_and_answered(record) in wrong for record in records]
    changed = [
        record.model_copy(update={"correct": False}) if is_too_good else record
        for record, is_too_good in zip(records, too_good, strict=True)
    ]
    return changed, sum(too_good)


def _asked_and_answered(record: Record) -> str:
    primary = record.drawn.primary if record.drawn is not None else None
    calls = [call.model_dump() for call in primary.tool_calls] if primary is not None else []
    answer = None if primary is None else primary.text.strip()
    return canonical_json([record.asked, answer, calls])


# -- A labelling session: which record is next, and labels on disk -----------------------------------------------------


class LabelSession:
    """Goes through answers one by one; the labels of one are on disk before the next is shown. See `open_session`.

    The file has one JSON object a line, ``{"id": ..., "correct": true, "judged": ...}``, or of items
    ``{"id": ..., "items": {"/total": true}, "judged": ...}``; null for what was skipped. Labels count for the answer
    that was judged, so after a new collection only new answers are asked about.

    Args:
        queue: Records to label, in order; all have an answer.
        stream: The file, open for reading and writing.
        labelled: Record id and judged answer of each row of the file, oldest first.
        by_items: Whether each item of an answer is labelled, and not the answer as a whole.
    """

    def __init__(
        self, queue: Sequence[Record], stream: IO[bytes], labelled: Iterable[Labelled], *, by_items: bool = False
    ) -> None:
        self.by_items = by_items
        self._queue = {_key(record): record for record in queue}
        self._labelled = dict.fromkeys(labelled)
        self._stream = stream
        self._again: Record | None = None
        self._given: list[bool | None] = []  # of the items of the first answer left
        for record in self.left:
            if by_items and not record.items:
                self.give_items(record, {})

    @property
    def total(self) -> int:
        """Records to label."""
        return len(self._queue)

    @property
    def done(self) -> int:
        """Number of these records that are labelled or skipped."""
        return sum(key in self._labelled for key in self._queue)

    @property
    def outdated(self) -> int:
        """Number of these records that have a label for another answer only."""
        names = {name for name, _ in self._labelled}
        return sum(key not in self._labelled and key[0] in names for key in self._queue)

    @property
    def left(self) -> list[Record]:
        """The records that have neither a label nor were skipped; a record whose label was taken back comes first."""
        left = [record for key, record in self._queue.items() if key not in self._labelled]
        return sorted(left, key=lambda record: record is not self._again)

    @property
    def item(self) -> Item | None:
        """The item of the first answer left that is labelled next; None where answers are labelled as a whole."""
        return (self.left[0].items or ())[len(self._given)] if self.by_items else None

    def give(self, record: Record, correct: bool | None) -> None:
        """Label the first answer left, or its next item; None skips it. An answer with all its labels is on disk."""
        if not self.by_items:
            self._save(record, {"correct": correct})
            return
        self._given.append(correct)
        paths = [item.path for item in record.items or ()]
        if len(self._given) == len(paths):
            self.give_items(record, dict(zip(paths, self._given, strict=True)))

    def give_items(self, record: Record, right: Mapping[str, bool | None]) -> None:
        """Label all items of an answer by path; those without a label are skipped. They are on disk on return."""
        self._save(record, {"items": {item.path: right.get(item.path) for item in record.items or ()}})

    def _save(self, record: Record, labels: Mapping[str, Any]) -> None:
        stream = self._stream
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # people type files without an end of the last line
                stream.write(b"\n")
        row = {"id": record.id, **labels, "judged": record.answer or ""}
        stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._sync()
        self._labelled[_key(record)] = None
        self._given = []

    def undo(self) -> bool:
        """Take the last label back, or with its last item an answer, on disk too; False without labels."""
        if self._given:
            self._given.pop()
            return True
        if not self._labelled:
            return False
        key, _ = self._labelled.popitem()
        self._stream.seek(0)
        content = self._stream.read().rstrip()
        self._stream.truncate(content.rfind(b"\n") + 1)
        self._sync()
        self._again = self._queue.get(key)
        return True

    def _sync(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())


def _key(record: Record) -> Labelled:
    return record.id, record.answer or ""


TORN = b'{"id": '
"""First bytes of the rows that a session writes, and so of what a kill leaves of one."""


@contextmanager
def open_session(path: Path, queue: Sequence[Record] = (), *, by_items: bool = False) -> Iterator[LabelSession]:
    """Open a file of labels for a session, creating or resuming it, under an exclusive lock; a torn last row is cut.

    Args:
        path: The file.
        queue: Records to label, in order.
        by_items: Whether each item of an answer is labelled.

    Raises:
        RecordError: A line that is not a label of a session.
        UsageError: Another process is writing it, its name says that it holds something else than JSON lines, or it
            holds labels of whole answers where items are labelled.
    """
    if path.suffix.lower() != ".jsonl":
        raise UsageError(f"{path}: a session saves JSON lines. Name a .jsonl file: --labels {path.stem}.jsonl.")
    with exclusive(path):
        create_private(path)
        with path.open("r+b") as stream:
            before, _, last = stream.read().rpartition(b"\n")
            if last and (is_torn(last, TORN) or TORN.startswith(last)):  # the writer was killed
                stream.truncate(len(before) and len(before) + 1)
                stream.flush()
            yield LabelSession(queue, stream, _labelled_in(path, by_items=by_items), by_items=by_items)


def _labelled_in(path: Path, *, by_items: bool) -> list[Labelled]:
    """Record id and judged answer of each row of a file of a session."""
    if not path.read_bytes().strip():
        return []
    if by_items:
        rows = [row.values for row in read_rows(path)]
        if any("items" not in row for row in rows):
            raise UsageError(
                f"{path} holds labels of whole answers. Name another file for those of items: --labels FILE."
            )
        labelled = [(str(row.get("id")), row.get("judged")) for row in rows]
    else:
        labelled = list(read_labels(path, "jsonl").given)
    known = [(name, judged) for name, judged in labelled if judged is not None]
    if len(known) < len(labelled):
        raise RecordError(
            f"{path}: labels of a session say which answer was judged, and these do not. Save to another file "
            "with --labels."
        )
    return known


def queue_of(records: Sequence[Record], *, shuffled: bool = True, limit: int | None = None) -> list[Record]:
    """Records that have an answer, in the order of labelling; the first ``limit`` of them.

    Shuffled by a hash of the id, so that the first n are a random sample and stopping early biases nothing. The order
    is the same in every session, also when records are added.

    Raises:
        UsageError: No record has an answer.
    """
    answered = [record for record in records if record.answer is not None]
    if not answered:
        raise UsageError(f"none of {len(records)} records has an answer to judge. Collect or import answers first.")
    if shuffled:
        answered.sort(key=lambda record: hashlib.sha256(f"0:{record.id}".encode()).digest())
    return answered[:limit]
