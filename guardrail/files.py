"""Files that can be trusted: JSON with a schema version and a digest, written atomically and refused when edited."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from .errors import ArtifactFormatError, ArtifactTamperedError, GuardrailError, UsageError
from .plain_json import json_fault, spelled
from .types import Frozen

__all__ = ["Persisted", "check_version", "problem_of"]

MEND = "copy it again or run `calibrate fit`."
_STORED = {"stored": True}
"""Validation context of content whose digest was verified."""


def check_version(
    found: object, reads: int | str, what: str, way_out: str, *, error: type[GuardrailError] = UsageError
) -> None:
    """Refuse what another version of this library stored. None, which is no version, is the first one.

    Args:
        found: The version that is stored.
        reads: The version that this library reads.
        what: What it is the version of, e.g. the path.
        way_out: What to do instead of upgrading.
        error: What to raise.
    """
    if found is not None and (type(found) is not type(reads) or found != reads):
        raise error(
            f"{what} has format version {str(found)[:80]!r}; this version of acrc-guardrail reads {str(reads)!r}. "
            f"Upgrade acrc-guardrail to the version that wrote it, or {way_out}."
        )


def problem_of(error: ValidationError) -> str:
    """The first problem of stored content: field and rule. Values are left out, they may be answers held back."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"field {field!r}: {first['msg']}" if field else first["msg"]


class Persisted(Frozen):
    """Base of what `calibrate` writes for run time to read."""

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int = 1
    """Version of this file format."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """The JSON object that is stored; of a file that was read, with the fields this version does not know."""
        return self.model_dump(mode="json")

    @cached_property
    def digest(self) -> str:
        """``sha256:`` over the canonical JSON of `content` (sorted keys, no white space, UTF-8)."""
        return _digest(self.content)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_content(cls, given: Any, make: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        # The digest names the artifact in verdicts, monitors and candidate rules. A field that is new in this version,
        # or that only a newer one knows, must not change the digest of a file that exists.
        made = make(given)
        if info.context is _STORED and isinstance(given, dict):
            made.__dict__["content"] = given
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; it has a digest of its own and no fields this version does not know."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            for name in ("content", "digest"):  # cached properties, which pydantic copies with the fields
                copied.__dict__.pop(name, None)
        return copied

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact with its digest, atomically: a reader sees the old file or the new one, never half.

        Raises:
            OSError: The folder does not exist or is not writable.
        """
        target = Path(path)
        text = json.dumps({"digest": self.digest, **self.content}, indent=1, ensure_ascii=False, allow_nan=False)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.part")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an artifact and refuse what cannot be trusted.

        Raises:
            ArtifactFormatError: Missing, truncated, not JSON, with values that JSON does not have, wrong schema, or
                from a future version.
            ArtifactTamperedError: The content does not match its digest.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactFormatError(f"{path}: cannot be read ({error}). Make one with `calibrate fit`.") from error
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArtifactFormatError(
                f"{path}: not complete JSON (line {error.lineno}, column {error.colno}: {error.msg}). "
                f"The file is truncated or is no artifact; {MEND}"
            ) from error
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
            raise ArtifactFormatError(
                f"{path}: cannot be read as JSON ({error}). The file was edited or is no artifact; {MEND}"
            ) from error
        return cls._from_content(content, str(path))

    @classmethod
    def _from_content(cls, content: Any, path: str) -> Self:
        if not isinstance(content, dict) or "schema_version" not in content:
            raise ArtifactFormatError(f"{path}: has no schema_version, so it is no calibration artifact.")
        fault = _fault(content)
        if fault is not None:
            raise ArtifactFormatError(f"{path}: {fault}. Somebody edited it; {MEND}")
        version, supported = content["schema_version"], cls.SCHEMA_VERSION
        if version != supported:
            raise ArtifactFormatError(
                f"{path}: schema version {version!r}; this library reads version {supported}. "
                "Upgrade acrc-guardrail, or calibrate again with this version."
            )
        stored = content.pop("digest", None)
        if stored is None:
            raise ArtifactTamperedError(f"{path}: has no digest. Write artifacts with `save()` or `calibrate fit`.")
        if stored != _digest(content):
            raise ArtifactTamperedError(
                f"{path}: the content gives {_digest(content)}, but the file says {stored}. Somebody edited it. "
                "Do not edit artifacts; use `artifact.at(alpha=...)` or `calibrate fit` to make another one."
            )
        try:
            return cls.from_stored(json.dumps(content), context=_STORED)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ArtifactFormatError(
                f"{path}: field {field!r} is wrong: {first['msg']} ({error.error_count()} errors)."
            ) from error


def _fault(content: dict[str, Any]) -> str | None:
    """The first value of which no digest can be made, with its field, or None."""
    fault, place, inner = json_fault(content), "", content
    while fault is not None and isinstance(inner, dict):
        name = next((name for name in inner if json_fault(inner[name]) is not None), None)
        if name is None:  # it is one of the names
            break
        place, inner = f"{place}.{name}".lstrip("."), inner[name]
        fault = json_fault(inner)
    if fault is None:
        return None
    return f"field {spelled(place)[:80]!r} holds {fault}" if place else f"it holds {fault}"


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
