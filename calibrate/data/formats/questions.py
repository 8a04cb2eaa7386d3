"""Question files of any known format: our own, and published data sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError

from ..questions import Question, question_of, read_questions
from ..rows import RawRow, RowSource, good_rows, open_rows, with_paths
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

__all__ = ["QUESTION_FORMATS", "load_questions"]


def load_questions(
    path: str | Path,
    format: str | None = None,
    *,
    columns: ColumnMap | None = None,
    rows: str | None = None,
    require_references: bool = True,
) -> list[Question]:
    """Read questions.

    Args:
        path: A file, or a folder of a Hugging Face dataset.
        format: One of `QUESTION_FORMATS`; None recognises it.
        columns: Columns, or paths into nested ones, of a file of another form; or None.
        rows: Path of the rows in a JSON document of another form.
        require_references: Whether our own format needs references; data sets always have them.

    Returns:
        The questions in file order; at least one, with distinct ids.

    Raises:
        UsageError: An unknown format, a missing file, a file of no known format, or no question.
        RecordError: A part is malformed; file, place and field are named.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"no file at {path}. Give the path of a question file or data folder.")
    name = format or ("mapped" if columns is not None else _detect(path))
    if columns is not None:
        questions = _mapped(open_rows(path, rows=rows), columns)
    elif name == "own":
        return read_questions(path, require_references=require_references)
    elif name in _READERS:
        questions = _READERS[name](path)
    else:
        raise UsageError(f"no question format named {name!r}. Known: {', '.join(QUESTION_FORMATS)}.")
    if not questions:
        raise UsageError(f"{path} holds no question in format {name}.")
    first: set[str] = set()
    for question in questions:
        if question.id in first:
            raise RecordError(f"{path}: field 'id': got {question.id!r}, which two questions have. Remove one of them.")
        first.add(question.id)
    return questions


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
        return [question_of(row, require_references=True) for row in rows]
    raise UsageError(
        f"{path} has columns {', '.join(values)}; those of MedMCQA and CoQA are known, and question, references[, "
        "options, group, id]. Name the columns: --map question=COLUMN --map references=COLUMN."
    )


def _mapped(source: RowSource, columns: ColumnMap) -> list[Question]:
    """Questions of rows by a map of their columns, or paths into nested ones."""
    plain = ("id", "question", "references", "options", "group")
    mapped = {name: columns.of(name) for name in plain if columns.mapped(name)}
    builder = Builder(ColumnMap({**mapped, "answer": (), "samples": (), "tools": ()}), textual=source.textual)
    paths = sorted({name for names in mapped.values() for name in names})
    questions = []
    for row in good_rows(source):
        found = with_paths(row, paths)
        if not builder.ready:
            builder.expect(found)
        questions.append(builder.build(found).to_question())
    return questions


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
    rows = list(good_rows(open_rows(path, kind)))
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
