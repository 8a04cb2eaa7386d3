"""Files: written atomically, SQLite opened safely, and JSON that is refused if it was modified after it was written."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args
from uuid import uuid4

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from .errors import ArtifactFormatError, ArtifactTamperedError, GuardrailError, UsageError
from .plain_json import canonical_json, json_fault, sha256_hex, spelled
from .types import Frozen

PRIVATE = 0o600
"""Permissions of a new file that holds prompts or answers: only its owner reads it."""
SQLITE_PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""
SCHEMA_VERSION: Final = 1
"""Version of every file that is a `Persisted`."""
_WAY_OUT = "Copy it again or run `calibrate fit`."
_KINDS = {
    "threshold": "the artifact of one model",
    "items": "the artifact of one model that gates items",
    "router": "a router of several artifacts (Router.of(model, artifact, key=...); one: "
    "RouterArtifact.load(FILE).artifacts[NAME])",
    "cascade": "the artifact of a cascade, which has one model a stage",
}
"""What the ``kind`` of a file says."""
_STORED = {"stored": True}
"""Validation context of content whose digest was verified."""


def atomic_write(
    path: Path, content: str | bytes | Iterable[bytes], *, mode: int | None = None, private: bool = False
) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part, also after a kill.

    The content goes to a temporary file beside the target (``.NAME.X.part``), is flushed to disk, and takes the
    target's name; then the folder is flushed, so that the name survives a power failure. A kill leaves the temporary
    file, which `remove_partial_writes` removes.

    Args:
        path: The target; its folder must exist. A link is replaced, not followed.
        content: Text (written as UTF-8), bytes, or chunks of bytes.
        mode: Permissions of the file, regardless of the umask; default: those of the file that is replaced, or as any
            new file.
        private: The content holds prompts or answers: without a file to replace, only the owner reads it (`PRIVATE`).

    Raises:
        UsageError: The target is a special file; see `refuse_special`.
        OSError: The folder does not exist or is not writable; on Windows, a reader keeps the target open.
    """
    refuse_special(path)
    whole = content.encode() if isinstance(content, str) else content
    if mode is None and (private or path.is_file()):
        mode = mode_of(path)
    # Eight random characters: a name of up to 240 bytes still fits a file system that takes 255.
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
    # Created with the final permissions, so that nobody can open a secret while it is being written.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            for chunk in (whole,) if isinstance(whole, bytes) else whole:
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            os.chmod(temporary, mode)  # the umask may have taken some away
        _take_name(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _take_name(temporary: Path, path: Path) -> None:
    """Rename a file over another. Windows refuses this while the other is open, so it is tried for a second."""
    end = time.monotonic() + 1.0
    while True:
        try:
            os.replace(temporary, path)
            return
        except PermissionError:  # elsewhere this is final: the folder cannot be written
            if os.name != "nt" or time.monotonic() > end:
                raise
        time.sleep(0.02)


def _flush_folder(folder: Path) -> None:
    """Write a folder's names to disk, where the system can; the file in it is complete either way."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    with suppress(OSError):  # some network file systems refuse it
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def mode_of(*paths: Path) -> int:
    """Permissions of the first of these files that exists, or `PRIVATE` if none does."""
    for path in paths:
        with suppress(FileNotFoundError):
            return stat.S_IMODE(path.stat().st_mode)
    return PRIVATE


def create_private(path: Path) -> None:
    """Make an empty file that only its owner reads, unless the file exists.

    Raises:
        OSError: The folder does not exist or is not writable.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))


def remove_partial_writes(path: Path) -> None:
    """Remove what killed calls of `atomic_write` left beside this file; the caller is its only writer."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
        left.unlink(missing_ok=True)


def refuse_special(path: Path) -> None:
    """Refuse to write to a device, a pipe or another special file: replacing it would put a plain file in its place.

    Raises:
        UsageError: What is there, links followed, is not a regular file; or it is a link of the system in /dev.
    """
    if path.exists() and (not path.is_file() or path.absolute().parent == Path("/dev")):
        raise UsageError(
            f"{path} is not a regular file; refusing to overwrite it. Name a file, new or old, e.g. ./{path.name}.out."
        )


def open_sqlite(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """A connection to an SQLite file, set up by `prepare_sqlite`.

    Open one for each operation and close it after. A connection that lives through a fork makes the child lose what it
    writes, because SQLite keeps its file locks by process.

    Args:
        path: The file, made if it is missing, readable by its owner only; or ":memory:".
    """
    if os.fspath(path) != ":memory:":
        with suppress(OSError):  # SQLite says below what is wrong
            create_private(Path(path))
    connection = sqlite3.connect(path, timeout=SQLITE_PATIENCE, check_same_thread=False)
    try:
        prepare_sqlite(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_sqlite(connection: sqlite3.Connection, *, patience: float = SQLITE_PATIENCE) -> None:
    """Make a connection wait for other processes, use WAL, and reach the disk with each transaction."""
    connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")
    end = time.monotonic() + patience
    while True:  # SQLite does not wait by itself while another process switches the journal
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=FULL")


def sqlite_path(url: str) -> Path | None:
    """The file of ``sqlite:///FILE`` or of a bare path; None for the URL of another database."""
    name = url.removeprefix("sqlite:///")
    return None if "://" in name else Path(name)


def check_version(
    stored: object, reads: int | str, what: str, way_out: str, *, error: type[GuardrailError] = UsageError
) -> None:
    """Refuse content of another format version, and content without one.

    Args:
        stored: The version that the content has; None for none.
        reads: The version that this library reads.
        what: The content with this version, e.g. its path.
        way_out: The alternative to upgrading.
        error: The class of the error.
    """
    if type(stored) is not type(reads) or stored != reads:  # True equals 1 in Python and is not a version
        raise error(
            f"{what} has format version {str(stored)[:80]!r}; this version of acrc-guardrail reads {str(reads)!r}. "
            f"Upgrade acrc-guardrail to the version that wrote it, or {way_out}."
        )


def problem_of(error: ValidationError) -> str:
    """The first problem of stored content: field and rule. Values are left out, they may be answers held back."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    rule = str(first["msg"]).removeprefix("Value error, ")
    return f"field {field!r}: {rule}" if field else rule


class Persisted(Frozen):
    """Base of what `calibrate` writes for run time to read."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this file format. Another one is refused."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """The JSON object that is stored; of a file that was read, what the file holds."""
        return self.model_dump(mode="json")

    @cached_property
    def digest(self) -> str:
        """``sha256:`` over the canonical JSON of `content` (sorted keys, no white space, UTF-8)."""
        return _digest(self.content)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_content(cls, data: Any, make: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        # The digest names the artifact in verdicts, monitors and candidate rules. Made again, packed numbers could have
        # other bytes (another zlib), and the content another digest.
        persisted = make(data)
        if info.context is _STORED and isinstance(data, dict):
            persisted.__dict__["content"] = data
        return persisted

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; it gets a new digest."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            for name in ("content", "digest"):  # cached properties, which pydantic copies with the fields
                copied.__dict__.pop(name, None)
        return copied

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact with its digest, atomically: a reader sees the old file or the new one, never half.

        Raises:
            OSError: The folder does not exist or is not writable.
            UsageError: ``path`` is a folder, a device or another special file.
        """
        target = Path(path)
        encoder = json.JSONEncoder(indent=1, ensure_ascii=False, allow_nan=False)
        pieces = encoder.iterencode({"digest": self.digest, **self.content})  # the whole text may be 100 MiB
        atomic_write(target, (piece.encode() for piece in chain(pieces, ["\n"])))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an artifact, and refuse it if it cannot be trusted.

        Raises:
            ArtifactFormatError: Missing, truncated, not JSON, with values that JSON does not have, with a field that
                is wrong or unknown, or of another version.
            ArtifactTamperedError: The content does not match its digest.
        """
        return cls._from_content(cls._read(path), str(path))

    @staticmethod
    def _read(path: str | os.PathLike[str]) -> Any:
        """The JSON of a file.

        Raises:
            ArtifactFormatError: It cannot be read, or is not JSON.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactFormatError(f"{path}: cannot be read ({error}). Make one with `calibrate fit`.") from error
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ArtifactFormatError(
                f"{path}: not complete JSON (line {error.lineno}, column {error.colno}: {error.msg}). "
                f"The file is truncated or is not an artifact. {_WAY_OUT}"
            ) from error
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
            raise ArtifactFormatError(
                f"{path}: cannot be read as JSON ({error}). The file was modified or is not an artifact. {_WAY_OUT}"
            ) from error

    @classmethod
    def _from_content(cls, content: Any, path: str) -> Self:
        if not isinstance(content, dict) or "schema_version" not in content:
            raise ArtifactFormatError(f"{path}: has no schema_version, so it is not a calibration artifact.")
        fault = _fault(content)
        if fault is not None:
            raise ArtifactFormatError(f"{path}: {fault}. The file was modified after it was written. {_WAY_OUT}")
        if "kind" in cls.model_fields:
            wanted, kind = get_args(cls.model_fields["kind"].annotation), content.get("kind")
            if kind not in wanted and kind in _KINDS:
                raise ArtifactFormatError(f"{path}: is {_KINDS[kind]}; here goes {_KINDS[wanted[0]]}.")
        version, way_out = content["schema_version"], "calibrate again with this version"
        check_version(version, SCHEMA_VERSION, path, way_out, error=ArtifactFormatError)
        stored = content.pop("digest", None)
        if stored is None:
            raise ArtifactTamperedError(f"{path}: has no digest. Write artifacts with `save()` or `calibrate fit`.")
        if stored != _digest(content):
            raise ArtifactTamperedError(
                f"{path}: the content gives {_digest(content)}, but the file says {stored}: the file was modified "
                "after it was written. Make another artifact with `calibrate fit`."
            )
        try:
            return cls.model_validate_json(json.dumps(content), context=_STORED)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            where = f"field {field!r}" if field else "the content"
            raise ArtifactFormatError(
                f"{path}: {where} is wrong: {first['msg']} ({error.error_count()} errors). {_WAY_OUT}"
            ) from error


def _fault(content: dict[str, Any]) -> str | None:
    """The first value that has no digest, with its field, or None."""
    fault, path, inner = json_fault(content), "", content
    while fault is not None and isinstance(inner, dict):
        name = next((name for name in inner if json_fault(inner[name]) is not None), None)
        if name is None:  # it is one of the names
            break
        path, inner = f"{path}.{name}".lstrip("."), inner[name]
        fault = json_fault(inner)
    if fault is None:
        return None
    return f"field {spelled(path)[:80]!r} holds {fault}" if path else f"it holds {fault}"


def _digest(content: dict[str, Any]) -> str:
    return "sha256:" + sha256_hex(canonical_json(content, allow_nan=False))
