"""Tables of answers that have their scores and labels already: the columns are recognised by their names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from guardrail.errors import RecordError, UsageError

from ..records import LONGEST_HEADER
from ..row import RawRow
from ..rows import open_rows
from .exports import export_like
from .field_map import ColumnMap, ImportSettings
from .names import column_names, read_as, recognised
from .read import Imported, import_rows

__all__ = ["graded_file", "is_table"]


def is_table(path: Path) -> bool:
    """Return whether a file holds rows of another tool, and no records: a table by its name, or lines without a header.

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
    if rows and isinstance(rows[0], RecordError):
        raise rows[0]
    good = [row for row in rows if isinstance(row, RawRow)]
    if not good:
        raise UsageError(f"{path} holds no row. Each row must be one question.")
    names, columns = column_names(good), recognised(good, settings.columns)
    _refuse_ungraded(path, good[0], names, columns)
    imported = import_rows(rows, replace(settings, columns=columns), name=path)
    return replace(imported, notes=(*source.notes, *imported.notes)), read_as(columns, names)


def _refuse_ungraded(path: Path, first: RawRow, names: Sequence[str], columns: ColumnMap) -> None:
    """Refuse a table without scores or without labels.

    Raises:
        UsageError: With the option that names the columns.
    """
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
    if (name := export_like(first.values)) is not None:
        source = shlex.quote(str(path))
        raise UsageError(
            f"{path} is an export of {name}. Make records of it: calibrate import {source} --format {name}"
        )
    lacks, way_out = (
        "score",
        "--map confidence=COLUMN (in [0, 1]), --map certainty=COLUMN (higher is more certain) or --map score=COLUMN "
        "(higher is less certain). Answers without a score go to `calibrate import`, questions to `calibrate collect`.",
    )
    if columns.scores:
        lacks, way_out = (
            "label that says which answers are right",
            "--map correct=COLUMN; compare answers with references by a rule: `calibrate import`, then `calibrate "
            "label`; or join labels of another file by id: `calibrate import`, then `calibrate label --labels FILE`.",
        )
    raise UsageError(f"{path} has no column with a {lacks}, among {', '.join(names)}. Name it: {way_out}")
