"""Question files of any known format: our own, and published data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError

from ..questions import Question, read_questions, reference_label
from ..rows import RawRow, good_rows, open_rows, with_paths
from .benchmarks import (
    is_coqa,
    is_coqa_hub,
    is_medmcqa,
    medmcqa_questions,
    read_coqa,
    read_coqa_hub,
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
    """

    questions: list[Question]
    format: str


def load_questions(
    path: str | Path,
    format: str | None = None,
    *,
    columns: ColumnMap | None = None,
    rows: str | None = None,
    require_references: bool = True,
) -> Loaded:
    """Read questions.

    Args:
        path: A file, or a folder of a Hugging Face dataset.
        format: One of `QUESTION_FORMATS`; None recognises it.
        columns: Columns, or paths into nested ones, of a file of another form; or None.
        rows: Path of the rows in a JSON document of another form.
        require_references: Whether our own format needs references; data sets always have them.

    Raises:
        UsageError: An unknown format, a missing file, a file of no known format, or no question.
        RecordError: A part is malformed; file, place and field are named.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"no file at {path}. Give the path of a question file or data folder.")
    if columns is not None:
        source = open_rows(path, rows=rows)
        names = sorted({name for mapped in columns.columns.values() for name in mapped})
        questions = _mapped((with_paths(row, names) for row in good_rows(source)), columns, textual=source.textual)
        _check_ids(path, questions)
        return Loaded(questions, "mapped")
    name = format or _detect(path)
    if name == "own":
        return Loaded(read_questions(path, require_references=require_references), name)
    if name not in _READERS:
        raise UsageError(f"no question format named {name!r}. Known: {', '.join(QUESTION_FORMATS)}.")
    questions = _READERS[name](path)
    if not questions:
        raise UsageError(f"{path} holds no question in format {name}.")
    _check_ids(path, questions)
    return Loaded(questions, name)


def _medmcqa(path: Path, base: int | None = None) -> list[Question]:
    kind = "jsonl" if path.is_file() and path.suffix.lower() == ".json" else None
    return medmcqa_questions(_good(path, kind), base)


def _hub(path: Path) -> list[Question]:
    """A data set folder or Parquet file: one of the known sets by its columns, or our own fields as columns."""
    rows = _good(path)
    values = dict(rows[0].values)
    if is_medmcqa(values):
        return medmcqa_questions(rows)
    if is_coqa_hub(values):
        return read_coqa_hub(rows)
    if {"question", "references"} <= set(values):
        return [_own(row) for row in rows]
    raise UsageError(
        f"{path} has columns {', '.join(values)}; those of MedMCQA and CoQA are known, and question, references[, "
        "options, group, id]. Name the columns: --map question=COLUMN --map references=COLUMN."
    )


def _mapped(rows: Iterable[RawRow], columns: ColumnMap, *, textual: bool) -> list[Question]:
    """Questions of rows by a map of their columns."""
    plain = ("id", "question", "references", "options", "group")
    mapped = {name: columns.of(name) for name in plain if columns.mapped(name)}
    builder = Builder(ColumnMap({**mapped, "answer": (), "samples": (), "tools": ()}), textual=textual)
    questions = []
    for row in rows:
        if not builder.ready:
            builder.expect(row)
        questions.append(builder.build(row).to_question())
    return questions


def _own(row: RawRow) -> Question:
    (question,) = _mapped([row], ColumnMap(), textual=False)
    if not question.references or (question.options is not None and reference_label(question) is None):
        raise row.fail("references", list(question.references), "there must be one, and with options it must name one")
    return question


_READERS: dict[str, Callable[[Path], list[Question]]] = {
    "coqa": read_coqa,
    "hf": _hub,
    "medmcqa": _medmcqa,
    "medmcqa-0": lambda path: _medmcqa(path, 0),
    "medmcqa-1": lambda path: _medmcqa(path, 1),
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
    for name, matches in (("coqa", is_coqa), ("medmcqa", is_medmcqa)):
        if matches(values):
            return name
    raise UsageError(
        f"{path} is of no known format. Name it: --set questions_format={'|'.join(_READERS)}; or rename it to .jsonl "
        "if it holds one question a line."
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
