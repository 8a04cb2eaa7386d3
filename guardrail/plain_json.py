"""What JSON and UTF-8 cannot hold: values that would be stored or run as something else than what was judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["DEEPEST", "PACKED", "json_fault", "spelled", "text_fault", "too_deep"]

DEEPEST = 100
"""Levels to which arguments may be nested. pydantic's writer stops at 255, the interpreter's recursion at about 500."""
PACKED = range(-(2**63), 2**64)
"""Integers that MessagePack has, in which LangGraph stores a graph's state."""


def spelled(text: str) -> str:
    r"""The text as UTF-8 can write it: half of a surrogate pair becomes the six characters that name it (\ud83d)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_fault(text: str) -> str | None:
    """Why a text cannot be written, or None."""
    if text.isascii() or spelled(text) == text:
        return None
    place = next(i for i, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    return f"half of a surrogate pair ({spelled(text[place])}), which is no character"


def json_fault(value: Any, *, packed: bool = False) -> str | None:
    """Why a value is not plain JSON that is read back as it was written, or None. Never recurses.

    Args:
        value: Any value.
        packed: Whether it has to fit into a LangGraph state, too: JSON's integers have no limit, `PACKED` has.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        found = None
        if isinstance(one, str):
            found = text_fault(one)
        elif isinstance(one, float) and not math.isfinite(one):
            found = f"the number {one}, which JSON does not have"
        elif packed and isinstance(one, int) and one not in PACKED:
            found = (
                f"an integer of {one.bit_length()} bits; LangGraph stores -2**63 to 2**64 - 1, and texts of any length"
            )
        elif isinstance(one, Mapping | list | tuple):
            if depth >= DEEPEST:
                return f"values nested more than {DEEPEST} deep"
            inner: Iterable[Any] = one
            if isinstance(one, Mapping):
                inner = [*(str(key) for key in one), *one.values()]
            waiting.extend((part, depth + 1) for part in inner)
        elif one is not None and not isinstance(one, bool | int | float):
            found = f"a {type(one).__name__}, which JSON does not have"
        if found is not None:
            return found
    return None


def too_deep(value: Any) -> bool:
    """Whether values are nested deeper than `DEEPEST`. Never recurses."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return False
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)
