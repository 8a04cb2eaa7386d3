"""Values of rows: texts, lists, objects and numbers, or an error that names field, value, rule and way out.

Cells of tables are texts, so lists and objects are parsed there: JSON, as Python writes them, or "a | b" for lists.
"""

from __future__ import annotations

import ast
import io
import json
import math
import tokenize
from collections.abc import Collection
from typing import Any

from guardrail.types import is_logprob

from .rows import RawRow

__all__ = [
    "get_list",
    "get_logprob",
    "get_number",
    "get_object",
    "get_text",
    "is_above_one",
    "is_infinite",
    "read_list",
]


def get_text(
    row: RawRow,
    column: str,
    *,
    empty: bool = False,
    way_out: str = "Correct the row, map another column, or pass --skip-bad 0.1.",
) -> str:
    """A text (numbers are written out); ``empty`` allows the empty one."""
    value = row.values.get(column)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and (empty or str(value).strip()):
        return str(value).strip()
    raise row.fail(column, value, f"it must be a text. {_inside(column, value) or way_out}")


def _inside(column: str, value: object) -> str:
    """The way into an object, for an error."""
    names = list(value) if isinstance(value, dict) else []
    return f"Name the path to it: {' or '.join(f'{column}.{name}' for name in names[:4])}." if names else ""


def get_list(row: RawRow, column: str) -> list[Any]:
    """A list; one text counts as a list of one, except in CSV, where it is JSON or separated by "|"."""
    value = row.values.get(column)
    if value is None:
        return []
    if row.textual and isinstance(value, str):
        value = _list_cell(row, column, value) if value.lstrip().startswith("[") else value.split("|")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple):
        raise row.fail(column, value, 'it must be a list, e.g. ["Paris", "Paris, France"]')
    return list(value)


def read_list(text: str) -> list[Any] | None:
    """The list in a text: JSON, or as pandas writes list cells ("['a', 'b']") and arrays ("['a' 'b']"); else None."""
    value = _literal(text)
    return value if isinstance(value, list) and ... not in value else None


def get_object(row: RawRow, column: str, *, keep: Collection[str] = ()) -> dict[str, Any] | None:
    """An object from label to value; None if absent.

    Labels whose value is null are left out, because Parquet pads with them, except those to keep.
    """
    value = row.values.get(column)
    if value is None:
        return None
    if row.textual and isinstance(value, str):
        value = _literal(value)
    if not isinstance(value, dict):
        written = row.values[column]
        raise row.fail(
            column, written, 'it must be an object from label to text or number, e.g. {"A": "red", "B": "blue"}'
        )
    labelled = {str(label).strip(): item for label, item in value.items() if item is not None or label in keep}
    if len(labelled) < 2:
        raise row.fail(column, value, "there must be at least two options")
    return labelled


def get_number(row: RawRow, column: str, value: object) -> float:
    """A finite number, from a number or its text; in a table with semicolons also with a decimal comma."""
    number = _number(row, value)
    if number is None or not math.isfinite(number):
        raise row.fail(column, value, "it must be a finite number. Correct the row, or leave the value out.")
    return number


def is_infinite(row: RawRow, value: object) -> bool:
    """Whether a value is minus or plus infinity, which tools write where they could not measure."""
    number = _number(row, value)
    return number is not None and math.isinf(number)


def is_above_one(row: RawRow, value: object) -> bool:
    """Whether a value is a number above 1, which no confidence is."""
    number = _number(row, value)
    return number is not None and number > 1


def _number(row: RawRow, value: object) -> float | None:
    if isinstance(value, str) and row.decimal_comma and "." not in value:
        value = value.replace(",", ".")
    try:
        return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def get_logprob(row: RawRow, column: str, value: object) -> float | None:
    """A log-probability, from a number or its text; None if it was not measured: null, NaN, -inf or a placeholder."""
    try:
        number = None if value is None or isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.inf
    if isinstance(value, bool) or (number is not None and number > 1e-6):
        raise row.fail(column, value, "a log-probability is a number of at most 0. Is it a probability?")
    return number if number is not None and is_logprob(number) else None


def _list_cell(row: RawRow, column: str, cell: str) -> list[Any]:
    items = read_list(cell)
    if items is None:
        raise row.fail(column, cell, "it is not a list, as JSON or as Python writes it. A long array may be cut (...)")
    return items


def _literal(text: str) -> Any:
    """The value that a text writes, as JSON or as Python's repr or NumPy's str does; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(_with_commas(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError):
        return None


_OPEN, _CLOSE = frozenset("[({"), frozenset("])}")


def _with_commas(text: str) -> str:
    """Python source with a comma between neighbours: "['a' 'b']" of a NumPy array would be read as one text 'ab'."""
    parts: list[str] = []
    ended = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        value = token.type in (tokenize.STRING, tokenize.NUMBER)
        if ended and (value or token.string in _OPEN or token.string == "-"):
            parts.append(",")
        if value or token.type in (tokenize.OP, tokenize.NAME):
            parts.append(token.string)
            ended = value or token.string in _CLOSE
        elif token.type in (tokenize.COMMENT, tokenize.ERRORTOKEN):
            raise ValueError("not a literal")
    return " ".join(parts)
