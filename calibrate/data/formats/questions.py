"""Question files of any known format: our own, and published data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError

from ..questions import Question, read_questions, reference_label
from ..rows import RawRow, open_rows
from .benchmarks import (
    is_coqa,
    is_coqa_hub,
    is_medmcqa,
    is_squad,
    is_squad_hub,
    is_triviaqa,
    is_triviaqa_hub,
    medmcqa_questions,
    read_coqa,
    read_coqa_hub,
    read_squad,
    read_squad_hub,
    read_triviaqa,
    read_triviaqa_hub,
)
from .build import Builder
from .field_map import ColumnMap

__all__ = ["QUESTION_FORMATS", "Loaded", "load_questions"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Questions that were read.

    Attributes:
        questions: In file order; at least one, with distinct ids.
        format: Name of the format.
        notes: What was left out, if anything.
    """

    questions: list[Question]
    format: str
    notes: tuple[str, ...] = ()


def load_questions(path: str | Path, format: str | None = None, *, require_references: bool = True) -> Loaded:
    """Read questions.

    Args:
        path: A file, or a folder of a Hugging Face dataset.
        format: One of `QUESTION_FORMATS`; None recognises it.
        require_references: Whether our own format needs references; data sets always have them.

    Raises:
        UsageError: An unknown format, a missing file, a file of no known format, or no question.
        RecordError: A part is malformed; file, place and field are named.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"no file at {path}. Give the path of a question file or data folder.")
    name = format or _detect(path)
    if name == "own":
        return Loaded(read_questions(path, require_references=require_references), name)
    if name not in _READERS:
        raise UsageError(f"no question format named {name!r}. Known: {', '.join(QUESTION_FORMATS)}.")
    questions, left_out = _READERS[name](path)
    if not questions:
        raise UsageError(f"{path} holds no question in format {name} ({left_out} were left out).")
    _check_ids(path, questions)
    notes = (f"{left_out} unanswerable questions were left out (keep them: squad-unanswerable).",) if left_out else ()
    return Loaded(questions, name, notes)


_Read = tuple[list[Question], int]


def _medmcqa(path: Path, base: int | None = None) -> _Read:
    kind = "jsonl" if path.is_file() and path.suffix.lower() == ".json" else None
    return medmcqa_questions(_good(path, kind), base), 0


def _squad(path: Path, unanswerable: bool = False) -> _Read:
    if path.is_dir() or path.suffix.lower() == ".parquet":
        return read_squad_hub(_good(path), unanswerable=unanswerable)
    return read_squad(path, unanswerable=unanswerable)


def _hub(path: Path) -> _Read:
    """A data set folder or Parquet file: one of the known sets by its columns, or our own fields as columns."""
    rows = _good(path)
    values = dict(rows[0].values)
    if is_medmcqa(values):
        return medmcqa_questions(rows), 0
    if is_coqa_hub(values):
        return read_coqa_hub(rows), 0
    if is_triviaqa_hub(values):
        return read_triviaqa_hub(rows), 0
    if is_squad_hub(values):
        return read_squad_hub(rows)
    if {"question", "references"} <= set(values):
        return [_own(row) for row in rows], 0
    raise UsageError(
        f"{path} has columns {', '.join(values)}; those of MedMCQA, CoQA, TriviaQA or SQuAD are known, and question, "
        "references[, options, group, id]. Rename the columns (dataset.rename_column) and save it again."
    )


def _own(row: RawRow) -> Question:
    builder = Builder(ColumnMap({"tools": ()}))
    builder.expect(row)
    question = builder.build(row).to_question()
    if not question.references or (question.options is not None and reference_label(question) is None):
        raise row.fail("references", list(question.references), "there must be one, and with options it must name one")
    return question


_READERS: dict[str, Callable[[Path], _Read]] = {
    "coqa": lambda path: (read_coqa(path), 0),
    "hf": _hub,
    "medmcqa": _medmcqa,
    "medmcqa-0": lambda path: _medmcqa(path, 0),
    "medmcqa-1": lambda path: _medmcqa(path, 1),
    "squad": _squad,
    "squad-unanswerable": lambda path: _squad(path, True),
    "triviaqa": lambda path: (read_triviaqa(path), 0),
}

QUESTION_FORMATS = ("own", *_READERS)
"""Formats by name; "own" is the one of this project, JSONL or CSV."""


def _good(path: Path, kind: str | None = None) -> list[RawRow]:
    """All rows; the first that cannot be read stops."""
    rows = []
    for row in open_rows(path, kind).rows:
        if isinstance(row, RecordError):
            raise row
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} holds no row")
    return rows


def _detect(path: Path) -> str:
    if path.is_dir() or path.suffix.lower() == ".parquet":
        return "hf"
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        first = next(iter(open_rows(path, "jsonl").rows), None)
        return "medmcqa" if isinstance(first, RawRow) and is_medmcqa(dict(first.values)) else "own"
    if path.suffix.lower() != ".json":
        return "own"
    values = _document_or_line(path)
    if isinstance(values, list):
        return "own"
    for name, matches in (("coqa", is_coqa), ("squad", is_squad), ("triviaqa", is_triviaqa), ("medmcqa", is_medmcqa)):
        if matches(values):
            return name
    raise UsageError(
        f"{path} is of no known format. Name it: --questions-format {'|'.join(_READERS)}; or rename it to .jsonl if it "
        "holds one question a line."
    )


def _document_or_line(path: Path) -> dict[str, Any] | list[Any]:
    """A whole JSON document, or the first line of JSON lines."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for part in (text, text.partition("\n")[0]):
        try:
            document = json.loads(part)
        except json.JSONDecodeError:
            continue
        if isinstance(document, dict | list):
            return document
    return {}


def _check_ids(path: Path, questions: Sequence[Question]) -> None:
    twice = _first_twice(question.id for question in questions)
    if twice is not None:
        raise RecordError(f"{path}: field 'id': got {twice!r}, which two questions have. Remove one of them.")


def _first_twice(names: Iterable[str]) -> str | None:
    before: set[str] = set()
    for name in names:
        if name in before:
            return name
        before.add(name)
    return None
