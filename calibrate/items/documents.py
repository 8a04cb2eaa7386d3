"""JSON documents of other tools as rows that `import` reads: one row an answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from guardrail.judges.json_value import read_json

from ..data.formats.field_map import ColumnMap, ImportSettings
from ..data.formats.read import Imported, import_file, import_rows
from ..data.row import RawRow, is_missing, read_list
from ..data.rows import Found

_DOCUMENTS = ("references", "samples", "answer")
"""Fields that hold documents."""
_FIELDS = ("id", "question", "group", "model", *_DOCUMENTS)
"""Fields that a map may name."""


def import_documents(source: Path | Iterable[Found], settings: ImportSettings, *, name: str = "") -> Imported:
    """Records of rows whose references, samples and answer are whole documents: objects, or their JSON as text.

    An empty sample is left out and counted; a sample that is not JSON stays what it is, and supports nothing.

    Args:
        source: A file, or rows.
        settings: As `import_file`.
        name: Name of the questions, of rows.

    Raises:
        RecordError: A reference that is not JSON, or NaN or an infinity in a document; file and row are named.
        UsageError: As `import_file`.
    """
    empty = Counter[str]()
    mapped = {name: columns for name, columns in settings.columns.columns.items() if name in _FIELDS}
    settings = replace(settings, columns=ColumnMap(mapped))

    def change(row: RawRow) -> RawRow:
        return _with_documents(row, empty)

    if isinstance(source, Path):
        imported = import_file(source, settings, change=change)
    else:
        imported = import_rows(source, settings, name=name, change=change)
    if not empty:
        return imported
    note = (
        f"Empty samples were left out: {empty.total()} (in {len(empty)} of {imported.n_rows} rows). Where the model "
        "answered nothing, write {}, which supports no item."
    )
    return replace(imported, notes=(note, *imported.notes))


def _with_documents(row: RawRow, empty: Counter[str]) -> RawRow:
    """The row with documents as JSON texts."""
    values = dict(row.values)
    for name in _DOCUMENTS:
        cell = row.values.get(name)
        if isinstance(cell, str) and name == "samples" and cell.startswith("["):
            cell = read_list(cell)
            if cell is None:
                raise row.fail(name, values[name], "it is not a list of documents, as JSON or as Python writes it")
        cells = cell if isinstance(cell, list) and name != "answer" else [cell]
        documents = [_document(row, name, each) for each in cells if not is_missing(each) and each != ""]
        if name == "samples" and documents and len(documents) < len(cells):
            empty[row.where] = len(cells) - len(documents)
        if documents:
            values[name] = documents[0] if name == "answer" else documents
        elif name in values and all(map(is_missing, cells)):
            values[name] = None
    return replace(row, values=values, textual=False)


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
