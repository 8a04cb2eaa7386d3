"""Labels that people give: a file of them, a session that asks for them key by key, and labels that contradict."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Literal

from guardrail.errors import RecordError, UsageError
from guardrail.files import check_version, create_private
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.specs import CorrectnessSpec

from .formats.truth import WORDS
from .questions import read_rows
from .records import GIVEN, Record, exclusive
from .rows import get_name
from .table import RecordTable, table_of

__all__ = [
    "KEYS",
    "GivenLabels",
    "LabelSession",
    "LabelStore",
    "Order",
    "Pressed",
    "apply_labels",
    "contradictions",
    "open_store",
    "queue_of",
    "read_labels",
    "refuse_contradictions",
]


@dataclass(frozen=True, slots=True)
class GivenLabels:
    """Labels read from a file.

    Attributes:
        path: The file.
        correct: Whether the answer is right, by record id.
        sha256: Hash of the labels, in canonical order.
        skipped: Records a person looked at and could not decide (null, from an interactive session).
        answers: The answer that was judged, by record id, where the file says so.
    """

    path: Path
    correct: dict[str, bool]
    sha256: str
    skipped: frozenset[str] = frozenset()
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> CorrectnessSpec:
        """The specification that the artifact stores in place of a rule."""
        return CorrectnessSpec(name=GIVEN, version=1, params={"file": self.path.name, "sha256": self.sha256})


def read_labels(path: str | Path) -> GivenLabels:
    """Read labels: JSONL or CSV with ``id`` and ``correct`` (true/false, 1/0, yes/no, pass/fail and other usual words).

    A field ``judged`` is the answer that was judged. With it ``correct`` may be null: looked at, and not decided.

    Raises:
        RecordError: A malformed row or a second label for an id; file, line and field are named.
        UsageError: The file is missing, or holds no label.
    """
    path = Path(path)
    correct: dict[str, bool] = {}
    skipped: set[str] = set()
    answers: dict[str, str] = {}
    for row in read_rows(path):
        name = get_name(row, "id")
        if not name:
            raise row.fail("id", row.values.get("id"), "every label needs the id of its record")
        label = row.values.get("format")
        if isinstance(label, int):  # of a labelling session; other files may use the column for anything
            way_out = "write id and correct only"
            check_version(label, 1, f"{path}: the label of {name!r}", way_out, error=RecordError)
        if name in correct or name in skipped:
            raise row.fail("id", name, "it has a label already; remove one of the two")
        label, answer = row.values.get("correct"), row.values.get("judged")
        if isinstance(answer, str):
            answers[name] = answer
        if label is None and "correct" in row.values and name in answers:
            skipped.add(name)
            continue
        if str(label).strip().lower() not in WORDS:
            raise row.fail("correct", label, "write true or false, yes or no, pass or fail")
        correct[name] = WORDS[str(label).strip().lower()]
    if not correct and not skipped:
        raise UsageError(f'{path} holds no label. Write one JSON object a line: {{"id": ..., "correct": true}}')
    digest = sha256_hex("".join(f"{name}\t{correct[name]}\n" for name in sorted(correct)))
    return GivenLabels(path, correct, digest, frozenset(skipped), answers)


def apply_labels(records: Sequence[Record], labels: GivenLabels) -> list[Record]:
    """Label records by id. A skipped record says so; a record without a label in the file still waits for one.

    Raises:
        UsageError: A label for a record that does not exist, or for another answer than the record has: it is
            probably the wrong file.
    """
    unknown = sorted((set(labels.correct) | labels.skipped) - {record.id for record in records})
    if unknown:
        raise UsageError(
            f"{labels.path} labels {len(unknown)} records that are not in the record file, e.g. {unknown[0]!r}. "
            "Give the labels of these records."
        )
    for record in records:
        judged = labels.answers.get(record.id)
        if judged is not None and judged != (record.answer or ""):
            raise UsageError(
                f"{labels.path}: the label of {record.id!r} is for the answer {judged[:80]!r}, but the record's answer "
                f"is {str(record.answer)[:80]!r}. Give the labels of these records."
            )
    return [_labelled(record, labels) for record in records]


def _labelled(record: Record, labels: GivenLabels) -> Record:
    detail = f"skipped in {labels.path.name}" if record.id in labels.skipped else ""
    return record.model_copy(update={"correct": labels.correct.get(record.id), "label_detail": detail})


def contradictions(records: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Pairs of records that label one answer to one question both ways, in file order.

    Questions are the same if their text, options and offered tools are; answers are if their text (surrounding white
    space apart) and tool calls are, even with different references, as where a data set holds a question twice with two
    golds. Records that were imported without answers are compared by their question alone. Each record is in one pair
    at most, with the first record of the other label.
    """
    first: dict[tuple[str, bool], Record] = {}
    pairs = []
    for record in records:
        if record.correct is None:
            continue
        key = _asked_and_answered(record)
        other = first.get((key, not record.correct))
        if other is not None:
            pairs.append((other, record))
        first.setdefault((key, record.correct), record)
    return pairs


def refuse_contradictions(records: Sequence[Record]) -> None:
    """Stop where `contradictions` finds a pair.

    Raises:
        UsageError: Naming both records of the first pair and the number of pairs.
    """
    pair, n = _first_contradiction(table_of(records))
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


def _first_contradiction(records: RecordTable) -> tuple[tuple[Record, Record] | None, int]:
    """The first of `contradictions`, and their number."""
    places, n = records.both_ways()
    pairs = ((records[earlier], records[later]) for earlier, later in places.tolist())
    # Places are found by short hashes, so the records themselves have the last word.
    return next((pair for pair in pairs if len(set(map(_asked_and_answered, pair))) == 1), None), n


def _asked_and_answered(record: Record) -> str:
    primary = record.drawn.primary if record.drawn is not None else None
    calls = [call.model_dump() for call in primary.tool_calls] if primary is not None else []
    answer = None if primary is None else primary.text.strip()
    return canonical_json([record.to_question().asked, answer, calls])


# -- A labelling session without a terminal: which record is next, and what a key does ---------------------------------

Order = Literal["random", "file"]
"""Order of the questions. Random order makes the first n a random sample, so that stopping early biases nothing."""


class Pressed(Enum):
    """Effect of a key."""

    RIGHT = "right"
    WRONG = "wrong"
    SKIPPED = "skipped"
    UNDONE = "taken back"
    NOTHING_TO_UNDO = "there is nothing to take back"
    QUIT = "quit"
    UNKNOWN = "no such key"


KEYS = {"y": "right", "n": "wrong", "s": "skip", "u": "undo", "q": "quit"}
"""What each key means."""


class LabelSession:
    """Goes through records one by one; each decision is saved before the next record is shown.

    Args:
        queue: Records to label, in order; all have an answer.
        store: Where labels go. Records that are in it are done.

    Raises:
        UsageError: A stored label is for another answer than the record has.
    """

    def __init__(self, queue: Sequence[Record], store: LabelStore) -> None:
        self._queue = {record.id: record for record in queue}
        self._store = store
        self._again: Record | None = None
        for name, judged in store.answers.items():
            if name in self._queue and self._queue[name].answer != judged:
                raise UsageError(
                    f"the label of record {name!r} is for the answer {judged[:80]!r}, but the record's answer is "
                    f"{str(self._queue[name].answer)[:80]!r}. Labels belong to other records: save to a fresh --labels "
                    "file."
                )

    @property
    def total(self) -> int:
        """Records to label."""
        return len(self._queue)

    @property
    def done(self) -> int:
        """Number of these records that are labelled or skipped."""
        return sum(name in self._store.labels for name in self._queue)

    @property
    def current(self) -> Record | None:
        """The record to judge now, or None when all are done."""
        if self._again is not None:
            return self._again
        return next((record for name, record in self._queue.items() if name not in self._store.labels), None)

    def press(self, key: str) -> Pressed:
        """Act on a key (see `KEYS`); upper case counts as lower case."""
        key = key.lower()
        if key == "q":
            return Pressed.QUIT
        if key == "u":
            return self._undo()
        record = self.current
        if record is None or key not in ("y", "n", "s"):
            return Pressed.UNKNOWN
        correct = {"y": True, "n": False}.get(key)
        self._store.append(record.id, correct, record.answer or "")
        self._again = None
        return {True: Pressed.RIGHT, False: Pressed.WRONG, None: Pressed.SKIPPED}[correct]

    def _undo(self) -> Pressed:
        name = self._store.pop()
        if name is None:
            return Pressed.NOTHING_TO_UNDO
        self._again = self._queue.get(name)
        return Pressed.UNDONE


def queue_of(
    records: Sequence[Record], *, order: Order = "random", seed: int = 0, limit: int | None = None
) -> list[Record]:
    """Records that have an answer, in the order of labelling; the first ``limit`` of them.

    Random order is by hash of seed and id: the same in every session, also when records are added.

    Raises:
        UsageError: No record has an answer.
    """
    answered = [record for record in records if record.answer is not None]
    if not answered:
        raise UsageError(f"none of {len(records)} records has an answer to judge. Collect or import answers first.")
    if order == "random":
        answered.sort(key=lambda record: hashlib.sha256(f"{seed}:{record.id}".encode()).digest())
    return answered[:limit]


# -- The file a person's labels go to: one JSON object a line, on disk before the next question is shown ---------------
# ``{"id": ..., "correct": true, "judged": ...}``; null for a question that was skipped. The answer that was judged is
# kept with the label, so that labels are never applied to other answers. `calibrate label --labels` reads the same
# file.


class LabelStore:
    """Labels in the order in which they were given. Made by `open_store`.

    Attributes:
        labels: Label by record id, oldest first; None where the question was skipped.
        answers: The answer that was judged, by record id.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.labels: dict[str, bool | None] = {}
        self.answers: dict[str, str] = {}
        self._stream = stream
        self._starts: list[int] = []

    def load(self, path: Path) -> None:
        """Read what is there; a torn last line (the writer was killed) is cut off.

        Raises:
            RecordError: Any other line is not a label.
        """
        start = 0
        for number, line in enumerate(self._stream.readlines(), start=1):
            if not line.endswith(b"\n"):
                break
            if line.strip():
                self._remember(start, *_parse(path, number, line))
            start += len(line)
        self._stream.truncate(start)
        self._stream.seek(start)

    def append(self, name: str, correct: bool | None, answer: str) -> None:
        """Save a label; it is on disk when this returns."""
        line = json.dumps({"id": name, "correct": correct, "judged": answer}, ensure_ascii=False).encode() + b"\n"
        start = self._stream.tell()
        self._stream.write(line)
        self._sync()
        self._remember(start, name, correct, answer)

    def pop(self) -> str | None:
        """Take the last label back, on disk too. Returns its record id, or None if the file holds no label."""
        if not self._starts:
            return None
        start = self._starts.pop()
        name, _ = self.labels.popitem()
        self.answers.pop(name)
        self._stream.seek(start)
        self._stream.truncate()
        self._sync()
        return name

    def _remember(self, start: int, name: str, correct: bool | None, answer: str) -> None:
        self._starts.append(start)
        self.labels[name] = correct
        self.answers[name] = answer

    def _sync(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())


@contextmanager
def open_store(path: Path) -> Iterator[LabelStore]:
    """Open a label file, creating or resuming it, under an exclusive lock.

    Raises:
        UsageError: Another process is writing it.
        RecordError: A line that is not a label of an interactive session, or a second label for a record.
    """
    with exclusive(path):
        create_private(path)
        with path.open("r+b") as stream:
            store = LabelStore(stream)
            store.load(path)
            yield store


_OTHER_FILE = "save to another file with --labels"


def _parse(path: Path, number: int, line: bytes) -> tuple[str, bool | None, str]:
    try:
        values = json.loads(line)
        check_version(values.get("format", 1), 1, f"{path}:{number}: the label", _OTHER_FILE, error=RecordError)
        name, correct, answer = values["id"], values["correct"], values["judged"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(
            f"{path}:{number}: got {line[:120]!r}; a line must be an object with id, correct and judged. Is this file "
            "of an interactive session? Save to another one with --labels."
        ) from error
    if not isinstance(name, str) or not isinstance(answer, str) or not (correct is None or isinstance(correct, bool)):
        raise RecordError(
            f"{path}:{number}: got {line[:120]!r}; id and judged are texts, correct is true, false or null"
        )
    return name, correct, answer
