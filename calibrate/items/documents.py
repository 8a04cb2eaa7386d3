"""JSON documents of other tools as rows that `import` reads: one row an answer, or one row a field."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from guardrail.errors import RecordError, UsageError
from guardrail.judges.json_value import read_json

from ..data.formats import ColumnMap, Imported, ImportSettings, import_rows
from ..data.formats.rows import Found, open_rows
from ..data.questions import RawRow

__all__ = ["document_rows", "import_document_rows", "import_documents"]

_PLAIN = ("id", "question", "group", "model")


def document_rows(
    rows: Iterable[RawRow],
    columns: ColumnMap,
    *,
    field: str | None = None,
    textual: bool = False,
    empty: Counter[str] | None = None,
) -> Iterator[RawRow]:
    """Rows whose references, samples and answer are JSON texts of whole documents.

    Args:
        rows: One row an answer, with a document (an object, or its JSON) in the columns of references, samples and
            answer; or, with ``field``, one row a field with its value in these columns.
        columns: Columns by field.
        field: Column with the name of the field, or its path (``/buyer/name``), of rows that are one field each. Rows
            with the same id make an answer. Steps 0, 1, ... (``/tags/0``) are items of a list, if no number is left
            out among the rows of the answer.
        textual: Whether all cells are texts (CSV): a cell of one field that is JSON is read, others are texts.
        empty: Receives the number of empty samples that are left out, by the place of their row. With ``field`` none
            is left out: a sample without values is an empty object.

    Raises:
        RecordError: A row without id, with a document that is not JSON, or with NaN or an infinity in one; file and
            row are named. A sample that is a text may be anything.
    """
    if field is None:
        return _whole(rows, columns, Counter() if empty is None else empty)
    return _from_fields(rows, columns, field, textual=textual)


def import_documents(path: Path, settings: ImportSettings, field: str | None = None) -> Imported:
    """Read a file of JSON documents; see `document_rows`.

    Raises:
        RecordError: As `document_rows`.
        UsageError: As `calibrate.data.formats.import_file`.
    """
    source = open_rows(path, settings.format)
    return import_document_rows(source.rows, settings, field, name=path.name, textual=source.textual)


def import_document_rows(
    rows: Iterable[Found], settings: ImportSettings, field: str | None = None, *, name: str, textual: bool = False
) -> Imported:
    """As `import_documents`, of rows in memory."""
    empty: Counter[str] = Counter()
    composed = document_rows(_sound(rows), settings.columns, field=field, textual=textual, empty=empty)
    known = ("id", "question", "group", "model", "references", "samples", "answer")
    mapped = {field_name: (field_name,) for field_name in known if settings.columns.of(field_name)}
    if field is not None:
        mapped["question"] = ("question",)
    present = replace(settings, columns=ColumnMap({k: v for k, v in mapped.items() if settings.columns.mapped(k)}))
    imported = import_rows(composed, present, name=name)
    if not empty:
        return imported
    note = (
        f"Empty samples were left out: {empty.total()} (in {len(empty)} of {imported.n_rows} rows). Where the model "
        "answered nothing, write {}, which supports no part."
    )
    return replace(imported, notes=(note, *imported.notes))


def _sound(rows: Iterable[Found]) -> Iterator[RawRow]:
    for row in rows:
        if isinstance(row, RecordError):
            raise row
        yield row


def _whole(rows: Iterable[RawRow], columns: ColumnMap, empty: Counter[str]) -> Iterator[RawRow]:
    for row in rows:
        values = _plain(row, columns)
        for name in ("references", "samples", "answer"):
            cells = [row.values.get(column) for column in columns.of(name)]
            if len(cells) == 1 and isinstance(cells[0], list) and name != "answer":
                cells = cells[0]
            elif len(cells) == 1 and isinstance(cells[0], str) and name == "samples" and cells[0].startswith("["):
                cells = _list(row, columns.of(name)[0], cells[0])
            documents = [_document(row, name, cell) for cell in cells if not _is_missing(cell) and cell != ""]
            if name == "samples" and documents and len(documents) < len(cells):
                empty[row.where] = len(cells) - len(documents)
            if documents:
                values[name] = documents[0] if name == "answer" else documents
        yield RawRow(row.where, {**row.values, **values})


def _plain(row: RawRow, columns: ColumnMap) -> dict[str, Any]:
    return {name: row.values.get(column) for name in _PLAIN for column in columns.of(name)[:1] if column in row.values}


def _list(row: RawRow, column: str, cell: str) -> list[Any]:
    try:
        value = json.loads(cell)
    except ValueError as error:
        raise row.fail(column, cell, f"it is not a list of documents as JSON ({error})") from error
    return value if isinstance(value, list) else [value]


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


def _from_fields(rows: Iterable[RawRow], columns: ColumnMap, field: str, *, textual: bool) -> Iterator[RawRow]:
    answers: dict[str, list[RawRow]] = {}
    (ident,) = columns.of("id")[:1] or ("id",)
    for row in rows:
        name, path = row.values.get(ident), row.values.get(field)
        if name in (None, ""):
            raise row.fail(ident, name, "a row of one field needs the id of its answer: --map id=COLUMN")
        if not isinstance(path, str) or not path:
            raise row.fail(field, path, "a row of one field needs the field's name or path")
        answers.setdefault(str(name), []).append(row)
    sources = columns.of("samples")
    for name, own in answers.items():
        first = own[0]
        values: dict[str, Any] = {**_plain(first, columns), "id": name}
        values.setdefault("question", name)
        listed = len(sources) == 1 and any(isinstance(row.values.get(sources[0]), list) for row in own)
        number = max((len(row.values.get(sources[0]) or ()) for row in own), default=0) if listed else len(sources)
        values["samples"] = [_composed(own, field, _sample(sources, j, listed=listed), textual) for j in range(number)]
        for target in ("references", "answer"):
            column = columns.of(target)[0] if columns.of(target) else ""
            if any(row.values.get(column) is not None for row in own):
                document = _composed(own, field, lambda row, at=column: row.values.get(at), textual)
                values[target] = document if target == "answer" else [document]
        yield RawRow(first.where, values)


def _sample(sources: Sequence[str], j: int, *, listed: bool) -> Any:
    def of(row: RawRow) -> Any:
        if not listed:
            return row.values.get(sources[j])
        cells = row.values.get(sources[0]) or []
        return cells[j] if j < len(cells) else None

    return of


def _composed(rows: Sequence[RawRow], field: str, value_of: Any, textual: bool) -> str:
    """The document of one value per row; a missing value leaves its field out."""
    document: dict[str, Any] = {}
    seen: set[str] = set()
    for row in rows:
        value = value_of(row)
        if _is_missing(value) or (textual and value == ""):
            continue
        if textual and isinstance(value, str):
            value = _read(value)
        path = str(row.values[field])
        _written(row, path, value)
        if path in seen:
            raise UsageError(f"{row.where}: the field {path!r} is there twice for one answer. Which value counts?")
        seen.add(path)
        steps = _steps(path)
        at = document
        for step in steps[:-1]:
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                raise UsageError(f"{row.where}: the field {path!r} lies within another field that has a value.")
        if isinstance(at.get(steps[-1]), dict):
            raise UsageError(f"{row.where}: the field {path!r} has fields of its own, so it cannot have a value.")
        at[steps[-1]] = value
    lists = _lists([str(row.values[field]) for row in rows])
    return json.dumps(_with_lists(document, (), lists), ensure_ascii=False)


def _steps(path: str) -> list[str]:
    """The names in a path; a name without a slash before it is one step."""
    if path[0] != "/":
        return [path]
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _lists(paths: Sequence[str]) -> frozenset[tuple[str, ...]]:
    """Places whose steps are 0, 1, ... without a gap in the rows of an answer: lists, as at run time."""
    # A name without a slash is that of a field, even if it is a number.
    below: dict[tuple[str, ...], set[str]] = {(): {"field"}} if any(path[0] != "/" for path in paths) else {}
    for steps in map(_steps, paths):
        for depth, step in enumerate(steps):
            below.setdefault(tuple(steps[:depth]), set()).add(step)
    return frozenset(place for place, names in below.items() if names == {str(k) for k in range(len(names))})


def _with_lists(value: Any, place: tuple[str, ...], lists: frozenset[tuple[str, ...]]) -> Any:
    """The document with lists at these places; an item without a value is left out."""
    if not isinstance(value, dict) or not any(there[: len(place)] == place for there in lists):
        return value
    inner = {name: _with_lists(item, (*place, name), lists) for name, item in value.items()}
    return [inner[name] for name in sorted(inner, key=int)] if place in lists else inner


def _read(cell: str) -> Any:
    try:
        return json.loads(cell, parse_constant=_refuse)
    except ValueError:
        return cell


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_missing(cell: Any) -> bool:
    """Whether a cell, or an item of a list of samples, has no value: NaN is a missing one, as in data frames."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
