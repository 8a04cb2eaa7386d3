"""Rows of files: JSONL, JSON, tables, Excel, Parquet, or a folder of a Hugging Face dataset.

Every iterator here yields rows and, in the place of a row that cannot be read, the error: the reader decides whether it
stops the work or is counted.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError, require

from .row import RawRow, search, short, whole_json

KINDS = ("csv", "json", "jsonl", "parquet")
"""Kinds of files with one row a question; csv stands for every table in a text file."""
_ENDINGS = {**{kind: kind for kind in KINDS}, "ndjson": "jsonl", "tsv": "csv"}
"""Kinds by how the name of a file ends."""

Found = RawRow | RecordError
"""A row, or why there is none."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows, in file order, and cautions about how the file was read."""

    rows: Iterator[Found]
    notes: tuple[str, ...] = ()


def open_rows(path: Path, kind: str | None = None, rows: str | None = None) -> RowSource:
    """Open a file by its kind, or by how its name ends.

    Args:
        path: A file or a folder.
        kind: One of `KINDS`.
        rows: The path (JMESPath) of the list of rows in a JSON document; of other files a filter, [?name == 'value'].

    Raises:
        UsageError: The file is missing, or of no known kind.
        MissingDependencyError: Parquet, Arrow or Excel without the extra "data".
        RecordError: The file as a whole cannot be read.
    """
    if path.is_dir():
        return RowSource(_folder(path))
    if not path.is_file():
        raise UsageError(f"no file at {path}. Give a .jsonl, .json, .csv, .xlsx or .parquet file, or a data folder.")
    with path.open("rb") as file:
        begin = file.read(4)
    # The zip of .xlsx, and the older compound file of .xls, under any name: no text file begins so.
    if begin in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):
        return RowSource(_excel(path))
    kind = kind or _ENDINGS.get(path.suffix.lower().removeprefix("."))
    if kind == "json" and not _has_lines(path):
        return RowSource(_json_rows(path, rows))
    if kind == "csv":
        opened = _table(path)
    elif kind in KINDS:
        opened = RowSource(_arrow(path) if kind == "parquet" else _jsonl(path))
    else:
        raise UsageError(
            f"{path} is not a .jsonl, .json, .csv, .tsv, .xlsx or .parquet file. Name its kind: --format "
            f"{'|'.join(KINDS)}."
        )
    return opened if rows is None else replace(opened, rows=_chosen(opened.rows, rows))


def _chosen(rows: Iterator[Found], where: str) -> Iterator[Found]:
    """The rows that a filter of the list of all rows keeps, and the errors of those that cannot be read."""
    read = list(rows)
    kept = search(where, [row.values for row in read if isinstance(row, RawRow)], "--rows")
    if not isinstance(kept, list) or not kept:
        raise UsageError(f"--rows {where!r} keeps no row. Write a filter such as [?name == 'value'] (JMESPath).")
    chosen = {id(values) for values in kept}
    return (row for row in read if isinstance(row, RecordError) or id(row.values) in chosen)


def read_rows(path: Path, kind: str | None = None) -> Iterator[RawRow]:
    """The rows of a file (`open_rows`); the first that cannot be read stops.

    Raises:
        RecordError: Of that row; file and line are named.
        UsageError: As `open_rows`.
    """
    for row in open_rows(path, kind).rows:
        if isinstance(row, RecordError):
            raise row
        yield row


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(content: bytes, path: Path, line: int | None = None) -> Any:
    """The value that a file holds, or a line of it.

    Raises:
        RecordError: It is not UTF-8, not JSON, or has half of a character; the place is named.
    """
    where = f"{path}:{line or 1}"
    way_out = "The file is truncated, or not a JSON document." if line is None else "Each line must be one JSON object."
    try:
        return whole_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecordError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from error
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise RecordError(f"{where}: a text has half of a character, {half}. Write it whole, or remove it.") from error
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at column {error.colno}, near {short(error.doc.splitlines()[error.lineno - 1 :][:1])}"
        raise RecordError(f"{path}:{line or error.lineno}: not JSON: {problem}. {way_out}") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
        raise RecordError(f"{where}: cannot be read as JSON ({error}). {way_out}") from error


def _has_lines(path: Path) -> bool:
    """Whether a file named .json holds an object in each line, as the published files of MedMCQA do."""
    with path.open("rb") as stream:
        first, second = stream.readline().strip(), stream.readline().strip()
    return first.startswith(b"{") and first.endswith(b"}") and second.startswith(b"{")


def _jsonl(path: Path) -> Iterator[Found]:
    """The rows of the lines of a file; an empty line has none."""
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            content = raw.removeprefix(codecs.BOM_UTF8).strip()
            if content:
                try:
                    yield _object(_json(content, path, number), f"{path}:{number}")
                except RecordError as error:
                    yield error


def _object(value: Any, where: str) -> Found:
    """The row of a JSON object."""
    if isinstance(value, dict):
        return RawRow(where, value)
    return RecordError(f"{where}: got {short(value)}; each row must be one JSON object, {{...}}")


def _json_rows(path: Path, where: str | None) -> Iterator[Found]:
    """Rows of a JSON document: its objects, those at a path in it or under "data", or a table of columns and data."""
    document = _json(path.read_bytes(), path)
    if where is not None and isinstance(document, dict):
        document = search(where, document, "--rows")
    if (
        isinstance(document, dict)
        and isinstance(document.get("columns"), list)
        and isinstance(document.get("data"), list)
    ):
        names = [str(name) for name in document["columns"]]
        document = [dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in document["data"]]
    elif isinstance(document, dict) and isinstance(document.get("data"), list) and where is None:
        document = document["data"]
        where = "data"
    if not isinstance(document, list):
        lists = list(_lists(document)) if isinstance(document, dict) else []
        name = "the value there" if where is not None else "the document"
        way_out = (
            f"Name the list of rows (of `import`): --rows {' or --rows '.join(lists)}; or save that list as a file."
            if lists
            else 'From pandas: df.to_json(path, orient="records").'
        )
        raise RecordError(f"{path}: {name} must be a list of objects, [{{...}}, ...], not {short(document)}. {way_out}")
    for i, value in enumerate(document):
        yield _object(value, f"{path}[{i}]" if where is None else f"{path}:{where}[{i}]")


def _lists(document: Mapping[str, Any], above: str = "", depth: int = 2) -> Iterator[str]:
    """Paths of the lists of objects in a document, two levels down."""
    for name, value in document.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield f"{above}{name}"
        elif isinstance(value, dict) and depth > 1:
            yield from _lists(value, f"{above}{name}.", depth - 1)


# -- Tables ------------------------------------------------------------------------------------------------------------

_SEPARATORS = ",;\t|"


def _table(path: Path) -> RowSource:
    """Rows of a table in a text file. The separator is the sign that its header has most often, or as ``sep=`` says."""
    text, note = _decoded(path)
    lines = io.StringIO(text, newline="")
    header = next(lines, "")
    skipped = header.lower().startswith("sep=")
    if skipped:  # Excel writes and reads such a line
        separator = header.strip()[4:] or "\t"
        if len(separator) > 1:
            raise RecordError(f"{path}:1: {header.strip()!r} must name one sign, such as sep=; or sep=,")
    else:
        unquoted = re.sub(r'"[^"]*"', "", header)
        separator = max(_SEPARATORS, key=unquoted.count)
        lines.seek(0)
    csv.field_size_limit(2**31 - 1)  # a cell may be a whole conversation
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise RecordError(f"{path}:1: not readable as CSV: {error}. The first line must name the columns.") from error
    rows = _cells(path, reader, _checked(path, names), separator, int(skipped))
    return RowSource(rows, (note,) if note else ())


def _decoded(path: Path) -> tuple[str, str]:
    """The text of a file, and a note if it is not UTF-8."""
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return content.decode("utf-16"), ""
        except UnicodeDecodeError as error:
            raise RecordError(
                f"{path}: not UTF-16 ({error.reason} at byte {error.start}). Save it as UTF-8."
            ) from error
    try:
        return content.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        # What Excel writes in western Europe; the few bytes that it leaves out are control characters in Latin-1.
        text = content.decode("cp1252", errors="replace")
        text = content.decode("latin-1") if "\ufffd" in text else text
        return text, "The file is not UTF-8 and was read as Windows-1252 (Latin-1): look at accented letters."


def _checked(path: Path, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecordError(f"{path}:1: column {twice[0]!r} appears twice; rename or remove one")
    return names


def _cells(path: Path, reader: Any, names: list[str], separator: str, skipped: int) -> Iterator[Found]:
    while True:
        first = reader.line_num + 1 + skipped
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield RecordError(f"{path}:{first}: not readable as CSV: {error}. Quote cells, and double inner quotes.")
            continue
        if not cells:
            continue
        if len(cells) != len(names):
            yield RecordError(
                f"{path}:{first}: the row has {len(cells)} cells, the header {len(names)} ({', '.join(names)}). "
                f"Quote cells that contain {separator!r}."
            )
            continue
        values = {name: _value(cell) for name, cell in zip(names, cells, strict=True) if cell.strip()}
        yield RawRow(f"{path}:{first}", values, textual=True, decimal_comma=separator == ";")


_MISSING = frozenset(("null", "NULL", "None", "nan", "NaN", "NAN", "<NA>"))
"""What databases, Python, NumPy and pandas write into a CSV cell without a value. "none" and "N/A" may be answers."""


def _value(cell: str) -> str | None:
    return None if cell.strip() in _MISSING else cell


def _excel(path: Path) -> Iterator[Found]:
    """Rows of the first sheet of an Excel file; numbers and truths are texts, as in CSV."""
    calamine = require("python_calamine", extra="data")
    try:
        sheet = calamine.CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python(skip_empty_area=True)
    except (calamine.CalamineError, OSError) as error:
        raise RecordError(f"{path}: not a readable Excel file ({error}). Save it again, or as CSV.") from error
    header, *rows = sheet or [[]]
    names = _checked(path, [str(name).strip() for name in header])
    for number, cells in enumerate(rows, start=2):
        texts = [_written(cell) for cell in cells]
        if any(texts):
            values = {name: _value(cell) for name, cell in zip(names, texts, strict=True) if cell.strip()}
            yield RawRow(f"{path}:{number}", values, textual=True)


def _written(cell: Any) -> str:
    """A cell as a text; a whole number without its ".0", which Excel adds."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


# -- Parquet files, and folders of Hugging Face `datasets`, through pyarrow (the extra "data") -------------------------
# A folder is what `save_to_disk` wrote (``state.json`` and Arrow stream files; of several splits a folder each), or has
# Parquet files as on the hub. Splits are never mixed: calibrating on training questions of the model is a mistake that
# must be asked for.

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def _arrow(path: Path) -> Iterator[RawRow]:
    """Rows of a Parquet file, or of an Arrow stream."""
    lib = require("pyarrow.lib", extra="data")
    kind = "an Arrow stream" if path.suffix == ".arrow" else "a Parquet file"
    try:
        batches = _batches(path)
    except (lib.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path}: not {kind} ({error}). Is it a Git LFS pointer? Download it again.") from error
    rows = chain.from_iterable(batch.to_pylist() for batch in batches)
    return (RawRow(f"{path}:{number}", values) for number, values in enumerate(rows, start=1))


def _batches(path: Path) -> Iterable[Any]:
    if path.suffix == ".arrow":
        with path.open("rb") as stream, require("pyarrow.ipc", extra="data").open_stream(stream) as reader:
            return list(reader)
    batches: Iterable[Any] = require("pyarrow.parquet", extra="data").ParquetFile(path).iter_batches()
    return batches


def _folder(path: Path) -> Iterator[RawRow]:
    """Rows of a dataset folder; several splits are refused."""
    saved = sorted(path.rglob("state.json"))
    shards = sorted(path.rglob("*.parquet"))
    splits = {state.parent.relative_to(path).as_posix() for state in saved}
    splits |= {_SHARD.sub("", shard.relative_to(path).with_suffix("").as_posix()) for shard in shards}
    if len(splits) > 1:
        raise UsageError(
            f"{path} holds several splits ({', '.join(sorted(splits))}). Give the folder or the Parquet file of one."
        )
    if saved:
        return _saved(saved[0])
    if not shards:
        raise UsageError(
            f"{path} holds no dataset: no state.json and no *.parquet. Give the folder that `save_to_disk` wrote, or "
            "one with Parquet files."
        )
    return (row for shard in shards for row in _arrow(shard))


def _saved(path: Path) -> Iterator[RawRow]:
    """Rows of the folder of a state file that `save_to_disk` wrote, in the order that it lists."""
    state = _json(path.read_bytes(), path)
    if not isinstance(state, dict) or not state.get("_data_files"):
        raise UsageError(f"{path} lists no data file. Save the dataset again with `save_to_disk`.")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UsageError(f"{path} stores a selection of rows. Save it again after `dataset.flatten_indices()`.")
    return (row for entry in state["_data_files"] for row in _arrow(path.with_name(str(entry["filename"]))))
