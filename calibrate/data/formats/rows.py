"""Raw rows of a file from another tool: JSONL, JSON arrays, CSV, Parquet, or a folder of a Hugging Face dataset.

Every iterator here yields rows and, in the place of a row that cannot be read, the error: the reader decides whether it
stops the work or is counted.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError, require

from ..questions import RawRow, check_separator, json_rows, jsonl_row, refuse_spreadsheet

__all__ = ["KINDS", "Found", "RowSource", "folder_rows", "open_rows", "parquet_rows"]

KINDS = ("csv", "json", "jsonl", "parquet")
"""Kinds of files with one row a question."""

Found = RawRow | RecordError
"""A row, or why there is none."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows, and how to read their values.

    Attributes:
        path: File or folder.
        rows: The rows, in file order.
        textual: Whether every value is a text (CSV), so that lists and numbers have to be parsed; None for a cell that
            says that it has no value.
    """

    path: Path
    rows: Iterator[Found]
    textual: bool = False


def open_rows(path: Path, kind: str | None = None) -> RowSource:
    """Open a file by its kind, or by how its name ends.

    Raises:
        UsageError: The file is missing, or of no known kind.
        MissingDependencyError: Parquet or Arrow without pyarrow.
        RecordError: The file as a whole cannot be read.
    """
    if path.is_dir():
        return RowSource(path, iter(folder_rows(path)))
    if not path.is_file():
        raise UsageError(f"no file at {path}. Give a .jsonl, .json, .csv or .parquet file, or a data folder.")
    if path.suffix.lower() != ".parquet" and kind != "parquet":
        refuse_spreadsheet(path)
    kind = kind or {".ndjson": "jsonl"}.get(path.suffix.lower(), path.suffix.lower().removeprefix("."))
    if kind == "jsonl":
        return RowSource(path, _jsonl(path))
    if kind == "json":
        return RowSource(path, json_rows(path))
    if kind == "csv":
        return RowSource(path, _csv(path), textual=True)
    if kind == "parquet":
        return RowSource(path, iter(parquet_rows(path)))
    raise UsageError(
        f"{path} is not a .jsonl, .json, .csv or .parquet file. Name its kind: --format {'|'.join(KINDS)}."
    )


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
            values = {name: _value(cell) for name, cell in zip(names, cells, strict=True) if cell.strip()}
            yield RawRow(f"{path}:{first}", values)


_MISSING = frozenset(("null", "NULL", "None", "nan", "NaN", "NAN", "<NA>"))
"""What databases, Python, NumPy and pandas write into a CSV cell without a value. "none" and "N/A" may be answers."""


def _value(cell: str) -> str | None:
    return None if cell.strip() in _MISSING else cell


def _header(path: Path, reader: Iterator[list[str]]) -> list[str]:
    try:
        names = [name.strip() for name in next(reader, [])]
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{path}:1: not readable as CSV: {error}. Save it as UTF-8 with a header line.") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecordError(f"{path}:1: column {twice[0]!r} appears twice; rename or remove one")
    check_separator(path, names)
    return names


# -- Parquet files, and folders of Hugging Face `datasets`, through pyarrow (the extra "data") -------------------------
# A folder is either what ``Dataset.save_to_disk`` wrote (``state.json`` and Arrow stream files), what
# ``DatasetDict.save_to_disk`` wrote (``dataset_dict.json`` and one such folder a split), or a folder of Parquet files
# as on the hub. Splits are never mixed: calibrating on training questions of the model is a mistake that must be
# asked for.

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def parquet_rows(path: Path) -> Iterator[RawRow]:
    """Rows of one Parquet file.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        RecordError: The file is not a Parquet file.
    """
    parquet = require("pyarrow.parquet", extra="data")
    lib = require("pyarrow.lib", extra="data")
    try:
        file = parquet.ParquetFile(path)
    except (lib.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{path}: not a Parquet file ({error}). Is it a Git LFS pointer? Download it again."
        ) from error
    return _rows(path, (batch.to_pylist() for batch in file.iter_batches()))


def folder_rows(path: Path) -> Iterator[RawRow]:
    """Rows of a dataset folder.

    Raises:
        UsageError: Several splits, or no dataset there.
        MissingDependencyError: pyarrow is not installed.
        RecordError: A file cannot be read.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits") or []
        return folder_rows(path / _only(path, splits))
    if (path / "state.json").is_file():
        return _saved(path)
    shards = sorted(path.rglob("*.parquet"))
    if not shards:
        raise UsageError(
            f"{path} holds no dataset: no state.json, dataset_dict.json or *.parquet. Give the folder that "
            "`save_to_disk` wrote, or one with Parquet files."
        )
    names = sorted({_SHARD.sub("", shard.relative_to(path).with_suffix("").as_posix()) for shard in shards})
    if len(names) > 1:
        raise UsageError(f"{path} holds several splits ({', '.join(names)}). Give the Parquet file of one of them.")
    return (row for shard in shards for row in parquet_rows(shard))


def _only(path: Path, splits: Sequence[str]) -> str:
    if len(splits) != 1:
        raise UsageError(f"{path} holds splits {', '.join(splits) or 'none'}. Give the folder of one, e.g. {path}/test")
    return splits[0]


def _saved(path: Path) -> Iterator[RawRow]:
    """Rows of a folder that `save_to_disk` wrote, in the order its state file lists."""
    state = _json(path / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UsageError(f"{path} stores a selection of rows. Save it again after `dataset.flatten_indices()`.")
    names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    if not names:
        raise UsageError(f"{path}/state.json lists no data file. Save the dataset again with `save_to_disk`.")
    return (row for name in names for row in _stream(path / name))


def _stream(path: Path) -> Iterator[RawRow]:
    ipc = require("pyarrow.ipc", extra="data")
    lib = require("pyarrow.lib", extra="data")
    try:
        with path.open("rb") as stream, ipc.open_stream(stream) as reader:
            batches = [batch.to_pylist() for batch in reader]
    except (lib.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{path}: not an Arrow stream ({error}). Save the dataset again, or copy it again."
        ) from error
    return _rows(path, iter(batches))


def _rows(path: Path, batches: Iterator[list[dict[str, Any]]]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        for values in batch:
            number += 1
            yield RawRow(f"{path}:{number}", values)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}. Save the dataset again.") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path}: got {type(document).__name__}; it must be a JSON object. Save the dataset again.")
    return document
