"""JSON documents whose parts are named by their path in error messages: ``dev.json:data[3].questions[0]``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError

from ..datasets import Row
from .cells import get_text

__all__ = ["children", "document", "texts", "unique"]


def document(path: Path) -> Row:
    """The JSON object in a file.

    Raises:
        RecordError: It is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}. The file is truncated or is no "
            "JSON document; copy it again."
        ) from error
    if not isinstance(found, dict):
        raise RecordError(f"{path}: got a {type(found).__name__}; the document must be one JSON object, {{...}}")
    return Row(f"{path}:", found)


def children(row: Row, field: str) -> list[Row]:
    """The objects in a list field, each named by its place.

    Raises:
        RecordError: The field is no list of objects.
    """
    found = row.values.get(field)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise row.fail(field, found, "it must be a list of objects, as published")
    start = row.where if row.where.endswith(":") else f"{row.where}."
    return [Row(f"{start}{field}[{i}]", item) for i, item in enumerate(found)]


def texts(row: Row, field: str) -> list[str]:
    """The texts in a list field; none when the field is absent.

    Raises:
        RecordError: It is no list of texts.
    """
    found: Any = row.values.get(field)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise row.fail(field, found, "it must be a list of texts")
    return [get_text(Row(row.where, {field: item}), field) for item in found if item.strip()]


def unique(items: Iterable[str]) -> tuple[str, ...]:
    """Texts without repetitions, in order."""
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))
