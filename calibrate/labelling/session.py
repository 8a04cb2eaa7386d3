"""A labelling session without a terminal: which record is next, and what a key does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Literal

from guardrail.errors import UsageError

from ..records import Record
from .store import LabelStore

__all__ = ["KEYS", "Order", "Pressed", "Session", "queue_of"]

Order = Literal["random", "file"]
"""Order of the questions. Random order makes the first n a random sample, so that stopping early biases nothing."""


class Pressed(Enum):
    """What a key did."""

    RIGHT = "right"
    WRONG = "wrong"
    SKIPPED = "skipped"
    UNDONE = "taken back"
    NOTHING_TO_UNDO = "there is nothing to take back"
    QUIT = "quit"
    UNKNOWN = "no such key"


KEYS = {"y": "right", "n": "wrong", "s": "skip", "u": "undo", "q": "quit"}
"""What each key means."""


class Session:
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
        """How many of them are labelled or skipped."""
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
