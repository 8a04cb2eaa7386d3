"""Values as lines of a golden file: numbers to six digits, errors with their type, nothing that a machine decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from tests.golden.shown import pretty

__all__ = ["error_of", "json_lines", "listed", "number", "plain"]


def number(value: float) -> str:
    """A number to six significant digits."""
    return f"{value:.6g}"


def plain(value: Any) -> Any:
    """A value as plain JSON, with floats to six significant digits and without run times."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return float(number(value))
    if isinstance(value, Mapping):
        return {str(name): "..." if name == "seconds" else plain(inner) for name, inner in value.items()}
    if isinstance(value, Iterable):
        return [plain(inner) for inner in value]
    return repr(value)


def json_lines(value: Any) -> str:
    """A value as JSON: short containers on one line, others with one entry a line."""
    return pretty(plain(value))


def error_of(call: Callable[[], object]) -> str:
    """Type and message of the error that a call raises, or what it returns instead."""
    try:
        returned = call()
    except Exception as error:
        errors = getattr(error, "errors", None)
        if isinstance(error, ValueError) and callable(errors):  # pydantic's message has a URL with its version
            first = errors()[0]
            return f"{type(error).__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        return f"{type(error).__name__}: {error}"
    return f"no error: {returned!r}"


def listed(rows: Iterable[tuple[str, str]]) -> str:
    """Names and texts, one pair a line; a text of several lines is indented below its name."""
    return "\n".join(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}" for name, text in rows)
