"""Tables of answers that have their scores and labels already: the columns are recognised by their names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from guardrail.errors import RecordError, UsageError

from ..records import LONGEST_HEADER
from ..rows import RawRow, open_rows
from ..values import is_above_one
from .exports import export_like
from .field_map import FIELDS, LABELS, SCORES, ColumnMap, ScoreColumn, taken, usual_field
from .read import Imported, ImportSettings, import_found

__all__ = ["column_names", "graded_file", "is_table", "read_as", "recognised"]

_RECOGNISED = ("id", "question", "references", "answer", "correct", "error", "group")
"""Fields that are recognised beside scores."""


def is_table(path: Path) -> bool:
    """Whether a file holds rows of another tool, and no records: a table by its name, or lines without a header.

    What is neither is read as records, whose reader says what is wrong with it.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind in ("csv", "tsv", "xlsx", "xls", "parquet", "json"):
        return True
    if kind not in ("jsonl", "ndjson") or not path.is_file():
        return False
    with path.open("rb") as stream:
        line = stream.readline(LONGEST_HEADER)
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and "header" not in first and "drawn" not in first


def graded_file(path: Path, settings: ImportSettings | None = None) -> tuple[Imported, str]:
    """Records of a table with a score and a label in each row, and which column was taken for what, in one sentence.

    Args:
        path: JSON, JSONL, CSV, Excel or Parquet.
        settings: What is not recognised: columns, and the words or the grade that say right.

    Raises:
        UsageError: No column is recognised as the score, or none as the label; the way out names the columns.
        RecordError: A row cannot be read.
    """
    settings = settings or ImportSettings()
    source = open_rows(path)
    rows = list(source.rows)
    for row in rows[:1]:
        if isinstance(row, RecordError):
            raise row
    good = [row for row in rows if isinstance(row, RawRow)]
    names = column_names(good)
    columns = recognised(good, settings.columns)
    _refuse_ungraded(path, good, names, columns)
    mapped = replace(settings, columns=columns)
    imported = import_found(rows, mapped, path, "table", source.notes)
    return imported, read_as(columns, names)


def column_names(rows: Iterable[RawRow]) -> list[str]:
    """Names of the columns, in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def recognised(rows: Sequence[RawRow], columns: ColumnMap) -> ColumnMap:
    """The map with the columns that are not mapped and have a usual name, such as "confidence" or "is_correct".

    A confidence above 1, as a percentage, is read as a number that is higher for certain answers.
    """
    names = column_names(rows)
    fields, scores = dict(columns.columns), list(columns.scores)
    read, known = taken(columns, names)
    for name in names:
        field = usual_field(name)
        if field is None or name in read or field in known:
            continue
        if field in SCORES:
            large = field == "confidence" and any(is_above_one(row, row.values.get(name)) for row in rows)
            kind = "certainty" if large else field
            key = "_".join(name.split())
            scores.append(ScoreColumn(key, name, kind == "confidence", certain=kind == "certainty"))
        elif field in _RECOGNISED:
            fields[field] = (name,)
            known |= set(LABELS) if field in LABELS else {field}
    return ColumnMap(fields, tuple(scores))


def read_as(columns: ColumnMap, names: Sequence[str]) -> str:
    """Which column was taken for what, in one sentence.

    Args:
        columns: The map with the recognised columns.
        names: All columns of the file.
    """
    said: list[str] = []
    used: set[str] = set()
    for score in columns.scores:
        direction = "lower" if not score.confidence and not score.certain else "higher"
        said.append(f"score {score.column} ({direction} is more certain)")
        used.add(score.column)
    for field in FIELDS:
        for name in columns.of(field):
            if name in names or columns.mapped(field):
                said.append(name if name == field else f"{field} {name}")
                used.add(name)
    unread = [name for name in names if name and name not in used]
    return f"Read as {', '.join(said)}" + (f"; not read: {', '.join(unread)}." if unread else ".")


def _refuse_ungraded(path: Path, rows: Sequence[RawRow], names: Sequence[str], columns: ColumnMap) -> None:
    """Refuse a table without scores or without labels.

    Raises:
        UsageError: With the option that names the columns.
    """
    if not rows:
        raise UsageError(f"{path} holds no row. Each row must be one question.")
    labels = {name for field in ("correct", "error") for name in columns.of(field)}
    both = [score.column for score in columns.scores if score.column in labels]
    if both:
        raise UsageError(
            f"column {both[0]!r} is the label, so it cannot be the score: nothing says it of a new answer. Map another "
            "column, e.g. --map confidence=COLUMN."
        )
    has_labels = bool(labels & set(names)) or columns.mapped("correct") or columns.mapped("error")
    if columns.scores and has_labels:
        return
    listed = ", ".join(names)
    if (name := export_like(rows[0].values)) is not None:
        source = shlex.quote(str(path))
        raise UsageError(
            f"{path} is an export of {name}. Make records of it: calibrate import {source} --format {name}"
        )
    if columns.scores:
        raise UsageError(
            f"{path} has no column that says which answers are right, among {listed}. Name it: --map correct=COLUMN; "
            "compare answers with references by a rule: `calibrate import`, then `calibrate label`; or join labels of "
            "another file by id: `calibrate import`, then `calibrate label --labels FILE`."
        )
    raise UsageError(
        f"{path} has no column with a score, among {listed}. Name it: --map confidence=COLUMN (in [0, 1]), --map "
        "certainty=COLUMN (higher is more certain) or --map score=COLUMN (higher is less certain). Answers without a "
        "score go to `calibrate import`, questions to `calibrate collect`."
    )
