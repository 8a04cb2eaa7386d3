"""The file a person's labels go to: one JSON object a line, on disk before the next question is shown.

``{"id": ..., "correct": true, "judged": ...}``; null for a question that was skipped. The answer that was judged is
kept with the label, so that labels are never applied to other answers. `calibrate label --labels` reads the same file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from guardrail.errors import RecordError

from .._locking import exclusive

__all__ = ["LabelStore", "open_store"]


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
            RecordError: Any other line is no label.
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
        """Take the last label back, on disk too; its record id, or None when there is none."""
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
        RecordError: A line that is no label of an interactive session, or a second label for a record.
    """
    with exclusive(path):
        path.touch()
        with path.open("r+b") as stream:
            store = LabelStore(stream)
            store.load(path)
            yield store


def _parse(path: Path, number: int, line: bytes) -> tuple[str, bool | None, str]:
    try:
        values = json.loads(line)
        name, correct, answer = values["id"], values["correct"], values["judged"]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"{path}:{number}: got {line[:120]!r}; a line must be an object with id, correct and judged. Is this file "
            "of an interactive session? Save to another one with --labels."
        ) from error
    if not isinstance(name, str) or not isinstance(answer, str) or not (correct is None or isinstance(correct, bool)):
        raise RecordError(
            f"{path}:{number}: got {line[:120]!r}; id and judged are texts, correct is true, false or null"
        )
    return name, correct, answer
