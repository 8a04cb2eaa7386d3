"""Record files that a running program writes, which `calibrate` reads."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..prompting import PromptWrapping
from ..specs import ModelIdentity
from ..types import SampleSet, SamplingPlan

_HEADER = b'{"header": '
"""First bytes of a record file."""


class RecordLines:
    """Appends to a record file, in the form that `calibrate.data.records` reads; shared by threads and processes.

    Args:
        path: The file; made with its header if it does not exist. A torn last line is removed.
        name: Name of the set, for the header.
        model: The model that gives the answers.
        plan: How they are drawn.
        prompt: How questions are wrapped.

    Raises:
        UsageError: The file holds answers of another model, plan or prompt, or cannot be written.
    """

    def __init__(
        self, path: Path, *, name: str, model: ModelIdentity, plan: SamplingPlan, prompt: PromptWrapping
    ) -> None:
        self._path, self._lock = path, threading.Lock()
        parts = {"model": model, "plan": plan, "prompt": prompt}
        described = {name: part.model_dump(mode="json") for name, part in parts.items()}
        created = datetime.now(UTC).isoformat(timespec="seconds")
        questions = {"questions_name": name, "questions_sha256": "", "n_questions": 0}
        try:
            with self._opened() as descriptor:
                self._begin(descriptor, {"header": {"format": 1, "created": created, **described, **questions}})
        except OSError as error:
            raise UsageError(
                f"{path}: records cannot be written here ({error.strerror}). Make room, or give another path."
            ) from error

    def append(self, key: str, question: str, drawn: SampleSet, more: Mapping[str, Any]) -> None:
        """Write one record; it is on disk when this returns.

        Args:
            key: The record's id.
            question: The question.
            drawn: The answers.
            more: Further fields of a record.
        """
        with self._opened() as descriptor:
            _write(descriptor, {"id": key, "question": question, **more, "drawn": drawn.model_dump(mode="json")})

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, open for appending and locked: what it holds stays as it is read until it is closed."""
        with self._lock:
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                _lock_file(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)

    def _begin(self, descriptor: int, header: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the header of a new file; of an old one compare it, and cut off a last line that a kill tore."""
        content = self._path.read_bytes()
        if b"\n" not in content and (not content or content.startswith(_HEADER)):  # new, or killed in its first line
            os.ftruncate(descriptor, 0)
            _write(descriptor, header)
            return
        try:
            stored = json.loads(content.partition(b"\n")[0])["header"]
            differ = [part for part in ("model", "plan", "prompt") if stored.get(part) != header["header"][part]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path} is not a record file. Give another path for the records.") from error
        if differ:
            raise UsageError(f"{self._path} holds records of another {differ[0]}. Give another path for the records.")
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def _write(descriptor: int, row: Mapping[str, Any]) -> None:
    """Append a line and wait until it is on disk; without room for all of it, leave the file as it was."""
    line = f"{json.dumps(row, ensure_ascii=False)}\n".encode("utf-8", "replace")  # half a pair would break the file
    written = os.write(descriptor, line)
    if written < len(line):  # a full disk takes a part: it would tear the file in the middle
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise OSError(errno.ENOSPC, f"the disk is full: only {written} of {len(line)} bytes could be written")
    os.fsync(descriptor)


def _lock_file(descriptor: int) -> None:
    """Wait for other processes that write the file, and lock them out until the descriptor is closed."""
    if os.name == "posix":  # on Windows one process writes a file
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
