"""JSON documents of other tools as rows that `import` reads: one row an answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError
from guardrail.judges.json_value import read_json

from ..data.formats.field_map import ColumnMap, ImportSettings
from ..data.formats.read import Imported, import_rows
from ..data.row import RawRow, is_missing, read_list
from ..data.rows import Found, open_rows

_PLAIN = ("id", "question", "group", "model")
"""Fields that are read as everywhere."""
_DOCUMENTS = ("references", "samples", "answer")
"""Fields that hold documents."""


def import_documents(path: Path, settings: ImportSettings) -> Imported:
    """Read a file of JSON documents; see `import_document_rows`.

    Raises:
        UsageError: As `calibrate.data.formats.import_file`.
    """
    return import_document_rows(open_rows(path, settings.format).rows, settings, name=path.name)


def import_document_rows(rows: Iterable[Found], settings: ImportSettings, *, name: str) -> Imported:
    """Records of rows whose references, samples and answer are whole documents: objects, or their JSON as text.

    An empty sample is left out and counted; a sample that is not JSON stays what it is, and supports nothing.

    Raises:
        RecordError: A reference that is not JSON, or NaN or an infinity in a document; file and row are named.
    """
    columns, empty = settings.columns, Counter[str]()
    mapped = {name: columns.of(name)[:1] for name in (*_PLAIN, *_DOCUMENTS) if columns.mapped(name)}
    whole = (_with_documents(row, columns, empty) for row in _sound(rows))
    imported = import_rows(whole, replace(settings, columns=ColumnMap(mapped)), name=name)
    if not empty:
        return imported
    note = (
        f"Empty samples were left out: {empty.total()} (in {len(empty)} of {imported.n_rows} rows). Where the model "
        "answered nothing, write {}, which supports no item."
    )
    return replace(imported, notes=(note, *imported.notes))


def _sound(rows: Iterable[Found]) -> Iterator[RawRow]:
    for row in rows:
        if isinstance(row, RecordError):
            raise row
        yield row


def _with_documents(row: RawRow, columns: ColumnMap, empty: Counter[str]) -> RawRow:
    """The row with documents as JSON texts, those of a field in its first column."""
    row = row.with_paths(sorted(columns.named))
    values = dict(row.values)
    for name in _DOCUMENTS:
        cells = [row.values.get(column) for column in columns.of(name)]
        if len(cells) == 1 and isinstance(cells[0], list) and name != "answer":
            cells = cells[0]
        elif len(cells) == 1 and isinstance(cells[0], str) and name == "samples" and cells[0].startswith("["):
            cells = _list(row, columns.of(name)[0], cells[0])
        documents = [_document(row, name, cell) for cell in cells if not is_missing(cell) and cell != ""]
        if name == "samples" and documents and len(documents) < len(cells):
            empty[row.where] = len(cells) - len(documents)
        if documents:
            values[columns.column(name)] = documents[0] if name == "answer" else documents
    return RawRow(row.where, values)


def _list(row: RawRow, column: str, cell: str) -> list[Any]:
    value = read_list(cell)
    if value is None:
        raise row.fail(column, cell, "it is not a list of documents, as JSON or as Python writes it")
    return value


def _document(row: RawRow, name: str, cell: Any) -> str:
    """A document as JSON text. A sample that is not JSON stays what it is: it supports nothing."""
    if not isinstance(cell, str):
        return _written(row, name, cell)
    if name == "references":
        try:
            read_json(cell)
        except ValueError as error:
            raise row.fail(
                name, cell, f"a reference must be a JSON document, null where there is no value ({error})"
            ) from error
    return cell


def _written(row: RawRow, name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        rule = (
            f"JSON cannot hold it ({error}). Write it as the model does, as a text or a number, and null where there "
            "is no value"
        )
        raise row.fail(name, value, rule) from error
