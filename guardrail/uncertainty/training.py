"""The questions that a score was made from, as short hashes: a threshold must be fitted on others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..plain_json import sha256_hex
from ..prompting import normal_form
from ..types import Frozen

__all__ = ["Training", "hash_of", "question_hash"]


class Training(Frozen):
    """The questions that a scorer was trained on, or that the ranks of a combination come from."""

    ids: tuple[str, ...]
    """Hashes of the question ids."""
    questions: tuple[str, ...]
    """Hashes of the questions with their options, in normal form."""
    groups: tuple[str, ...] = ()
    """Hashes of the groups of questions that have one. They count if groups are clusters."""

    @classmethod
    def of(cls, source: str | Path | Iterable[str]) -> Training:
        """The questions that a file or texts name; see `guardrail.scorer`.

        Raises:
            UsageError: The file cannot be read, or names no question.
        """
        if isinstance(source, str | Path):
            try:
                lines = Path(source).read_text(encoding="utf-8").splitlines()
                texts = [line.strip() for line in lines if line.strip()]
                rows = [json.loads(text) for text in texts] if Path(source).suffix == ".jsonl" else texts
            except (OSError, ValueError) as error:  # JSON's error is a ValueError
                raise UsageError(f"trained_on: {source} cannot be read ({error}).") from error
        else:
            rows = list(source)
        ids, questions, groups = set[str](), set[str](), set[str]()
        for row in rows:
            # A bare text may be any of the three; a question refused by mistake costs less than one let through.
            fields: dict[str, Any] = row if isinstance(row, dict) else {"id": row, "question": row, "group": row}
            if fields.get("id"):
                ids.add(hash_of(str(fields["id"])))
            if fields.get("group"):
                groups.add(hash_of(str(fields["group"])))
            if fields.get("question"):
                questions.add(question_hash(str(fields["question"]), fields.get("options")))
        if not (ids or questions):
            raise UsageError(f"trained_on names no question, got {source!r:.100}. Leave it out for an untrained score.")
        return cls(ids=tuple(sorted(ids)), questions=tuple(sorted(questions)), groups=tuple(sorted(groups)))


def question_hash(question: str, options: Mapping[str, str] | None) -> str:
    """Hash of text and options, without regard to case, white space and what nobody sees."""
    # The NUL keeps labels and texts apart: without it (A, Bc) and (AB, c) would have the same hash.
    listed = "".join(f"\0{label.casefold()}\0{_seen(text)}" for label, text in sorted((options or {}).items()))
    return hash_of(f"{_seen(question)}{listed}")


def _seen(text: str) -> str:
    return " ".join(normal_form(text).casefold().split())


def hash_of(text: str) -> str:
    """Short hash of an id, a group or a question."""
    return sha256_hex(text, 16)
