"""Record files that a running program writes, which `calibrate` reads."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..errors import UsageError
from ..prompting import PromptWrapping
from ..specs import ModelIdentity
from ..types import SampleSet, SamplingPlan


class RecordLines:
    """Appends to a record file, in the form that `calibrate.data.records` reads; shared by threads.

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
        try:
            if not path.exists() or not path.stat().st_size:
                created = datetime.now(UTC).isoformat(timespec="seconds")
                questions = {"questions_name": name, "questions_sha256": "", "n_questions": 0}
                self._begin({"header": {"format": 1, "created": created, **described, **questions}})
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{path}: records cannot be written here ({error.strerror}). Make room, or give another path."
            ) from error
        try:
            header = json.loads(content.partition(b"\n")[0])["header"]
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path} is not a record file. Give another path for the records.") from error
        differ = [part for part, value in described.items() if header.get(part) != value]
        if differ:
            raise UsageError(f"{path} holds records of another {differ[0]}. Give another path for the records.")
        os.truncate(path, content.rfind(b"\n") + 1)

    def append(self, key: str, question: str, drawn: SampleSet, more: Mapping[str, Any]) -> None:
        """Write one record; it is on disk when this returns.

        Args:
            key: The record's id.
            question: The question.
            drawn: The answers.
            more: Further fields of a record.
        """
        self._write({"id": key, "question": question, **more, "drawn": drawn.model_dump(mode="json")})

    def _begin(self, header: Mapping[str, Any]) -> None:
        """Make the file with its header, unless another process does so at the same time."""
        self._path.unlink(missing_ok=True)  # an empty file would keep the link from being made
        part = self._path.with_name(f".{self._path.name}.{uuid4().hex}.part")
        try:
            self._write(header, part)
            os.link(part, self._path)  # unlike a rename, a link never replaces a file that another process began
        except FileExistsError:
            pass
        finally:
            part.unlink(missing_ok=True)

    def _write(self, row: Mapping[str, Any], path: Path | None = None) -> None:
        line = f"{json.dumps(row, ensure_ascii=False)}\n".encode("utf-8", "replace")  # half a pair would break the file
        opened = os.open(path or self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with self._lock, open(opened, "wb", buffering=0) as stream:
            written = os.write(stream.fileno(), line)
            if written < len(line):  # a full disk takes a part: it would tear the file in the middle
                size = os.fstat(stream.fileno()).st_size
                os.ftruncate(stream.fileno(), size - written)
                raise OSError(errno.ENOSPC, f"the disk is full: only {written} of {len(line)} bytes could be written")
            os.fsync(stream.fileno())
