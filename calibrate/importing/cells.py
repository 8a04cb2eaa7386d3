"""Values of foreign rows: texts, lists, truths and numbers, or an error that names field, value, rule and way out.

CSV cells are texts, so lists and objects are parsed there: JSON, or "a | b" for lists.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ..datasets import Row

__all__ = ["get_list", "get_name", "get_number", "get_object", "get_text", "get_truth"]

_WORDS = {
    **{word: True for word in ("true", "1", "1.0", "yes", "right", "correct")},
    **{word: False for word in ("false", "0", "0.0", "no", "wrong", "incorrect")},
}


def get_text(row: Row, column: str, *, empty: bool = False) -> str:
    """A text (numbers are written out); ``empty`` allows the empty one."""
    value = row.values.get(column)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and (empty or str(value).strip()):
        return str(value).strip()
    raise row.fail(column, value, "it must be a text. Correct the row, map another column, or pass --skip-bad.")


def get_name(row: Row, column: str) -> str | None:
    """A short text or whole number; None when it is absent."""
    value = row.values.get(column)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise row.fail(column, value, "it must be a text or a whole number; leave it out if there is none")
    return str(value).strip() or None


def get_list(row: Row, column: str, *, textual: bool) -> list[Any]:
    """A list; one text counts as a list of one, except in CSV, where it is JSON or separated by "|"."""
    value = row.values.get(column)
    if value is None:
        return []
    if textual and isinstance(value, str):
        value = _json(row, column, value) if value.lstrip().startswith("[") else value.split("|")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list):
        raise row.fail(column, value, 'it must be a list, e.g. ["Paris", "Paris, France"]')
    return value


def get_object(row: Row, column: str, *, textual: bool) -> dict[str, Any] | None:
    """An object from label to value, without labels whose value is null (Parquet pads with them); None if absent."""
    value = row.values.get(column)
    if value is None:
        return None
    if textual and isinstance(value, str):
        value = _json(row, column, value)
    if not isinstance(value, dict):
        raise row.fail(column, value, 'it must be an object from option label to value, e.g. {"A": 0.7, "B": 0.3}')
    kept = {str(label).strip(): item for label, item in value.items() if item is not None}
    if len(kept) < 2:
        raise row.fail(column, value, "there must be at least two options")
    return kept


def get_truth(row: Row, column: str) -> bool | None:
    """True or false in any usual spelling; None when it is absent."""
    value = row.values.get(column)
    if value is None:
        return None
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise row.fail(column, value, "write true or false (also 1/0, yes/no, right/wrong), or leave it out")
    return _WORDS[word]


def get_number(row: Row, column: str, value: object) -> float:
    """A finite number, from a number or its text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise row.fail(column, value, "it must be a finite number. Correct the row, or leave the value out.")
    return number


def _json(row: Row, column: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except json.JSONDecodeError as error:
        raise row.fail(column, cell, f"it is not JSON ({error.msg} at column {error.colno})") from error
