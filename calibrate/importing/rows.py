"""Raw rows of a file that somebody else wrote: JSONL, CSV, Parquet, or a folder of a Hugging Face dataset.

Every iterator here yields rows and, in the place of a row that cannot be read, the error: whoever reads decides whether
an error stops the work or is counted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guardrail.errors import RecordError, UsageError

from ..datasets import Row, jsonl_row
from .arrow import folder_rows, parquet_rows

__all__ = ["KINDS", "Found", "RowSource", "open_rows"]

KINDS = ("csv", "jsonl", "parquet")
"""Kinds of files with one row a question."""

Found = Row | RecordError
"""A row, or why there is none."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows, and how their values are to be read.

    Attributes:
        path: File or folder.
        rows: The rows, in file order.
        textual: Whether every value is a text (CSV), so that lists and numbers have to be parsed.
    """

    path: Path
    rows: Iterator[Found]
    textual: bool = False


def open_rows(path: Path, kind: str | None = None) -> RowSource:
    """Open a file by its kind, or by how its name ends.

    Raises:
        UsageError: No such file, or of no known kind.
        MissingDependencyError: Parquet or Arrow without pyarrow.
        RecordError: The file as a whole cannot be read.
    """
    if path.is_dir():
        return RowSource(path, iter(folder_rows(path)))
    if not path.is_file():
        raise UsageError(f"no file at {path}. Give the path of a .jsonl, .csv or .parquet file, or of a data folder.")
    kind = kind or {".ndjson": "jsonl"}.get(path.suffix.lower(), path.suffix.lower().removeprefix("."))
    if kind == "jsonl":
        return RowSource(path, _jsonl(path))
    if kind == "csv":
        return RowSource(path, _csv(path), textual=True)
    if kind == "parquet":
        return RowSource(path, iter(parquet_rows(path)))
    raise UsageError(f"{path} is neither .jsonl, .csv nor .parquet. Name its kind with --format {'|'.join(KINDS)}.")


def _jsonl(path: Path) -> Iterator[Found]:
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            try:
                row = jsonl_row(f"{path}:{number}", raw)
            except RecordError as error:
                yield error
                continue
            if row is not None:
                yield row


def _csv(path: Path) -> Iterator[Found]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        names = _header(path, reader)
        while True:
            first = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield RecordError(
                    f"{path}:{first}: not readable as CSV: {error}. Quote cells, and double inner quotes."
                )
                continue
            except UnicodeDecodeError as error:  # the decoder cannot go on after it
                raise RecordError(f"{path}:{first}: not UTF-8 ({error.reason}). Save it as UTF-8.") from error
            if not cells:
                continue
            if len(cells) != len(names):
                yield RecordError(
                    f"{path}:{first}: the row has {len(cells)} cells, the header {len(names)} ({', '.join(names)}). "
                    "Quote cells that contain commas."
                )
                continue
            values = {name: cell for name, cell in zip(names, cells, strict=True) if cell.strip()}
            yield Row(f"{path}:{first}", values)


def _header(path: Path, reader: Iterator[list[str]]) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{path}:1: not readable as CSV: {error}. Save it as UTF-8 with a header line.") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecordError(f"{path}:1: column {twice[0]!r} appears twice; rename or remove one")
    return names
