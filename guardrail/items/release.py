"""The kept items of an answer: its own words and values, and those that a person wrote in place of an item."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..judges.json_value import read_json
from ..plain_json import text_fault
from ..types import Sample, ToolCall
from .item import ItemVerdict
from .json_fields import ABSENT, Document, json_text, kept_value, placed

__all__ = ["GAP", "release"]

GAP = "[held back]"
"""The mark in place of sentences that are held back."""
_NO_TOKENS: dict[str, Any] = {"tokens": None, "logprobs": None, "token_bytes": None}
"""The tokens of the original answer spell what is held back."""


def release(answer: Sample, items: Sequence[ItemVerdict], edits: Mapping[str, str] | None = None) -> Sample:
    """The kept items of an answer.

    JSON fields: the object without the others; sentences: verbatim, with one mark for each gap. Text around a JSON
    object or a tool call has no items and is left out. An answer of which everything is kept is otherwise unchanged.

    Args:
        answer: The original answer.
        items: The verdict on each of its items, in order.
        edits: What a person wrote in place of an item, by its place: JSON for a field, words for a sentence. Such a
            item is kept.

    Raises:
        ValueError: An edit of a field is not JSON, or a value that cannot be given out.
    """
    edits = edits or {}
    if answer.tool_calls:
        judged = answer.judged_part
        if all(item.kept for item in items) and not edits:
            return judged
        (call,) = judged.tool_calls
        values = {path: _argument(text) for path, text in edits.items()}
        left = _left(call.arguments, items, values)
        own = ToolCall(name=call.name, arguments=left if isinstance(left, dict) else {})
        return judged.model_copy(update={"tool_calls": (own,), **_NO_TOKENS})
    text = _text(answer.comparable, items, edits) if items[0].span is not None else _json(answer, items, edits)
    if text == answer.text:
        return answer
    return answer.model_copy(update={"text": text, **_NO_TOKENS})


def _json(answer: Sample, items: Sequence[ItemVerdict], edits: Mapping[str, str]) -> str:
    document = read_json(answer.comparable)
    if all(item.kept for item in items) and not edits:
        # Words before a code fence are no part, so nothing has measured them.
        return json_text(document) if _is_fenced(answer.comparable) else answer.text
    left = _left(document, items, {path: _field(text) for path, text in edits.items()})
    return "{}" if left is ABSENT else json_text(left)


def _field(text: str) -> Document:
    """A field that a person wrote, with exact numbers."""
    value = read_json(text)
    if (fault := text_fault(json_text(value))) is not None:
        raise ValueError(f"it holds {fault}")
    return value


def _argument(text: str) -> Any:
    """An argument that a person wrote, as a tool gets it."""
    _field(text)  # json.loads takes the last of two fields with one name
    value = json.loads(text)
    json.dumps(value, allow_nan=False)  # and makes infinity of 1e999
    return value


def _is_fenced(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _left(document: Document, items: Sequence[ItemVerdict], values: Mapping[str, Document]) -> Document:
    flags = {item.path: item.kept for item in items if item.path is not None and not item.absent}
    for path, value in values.items():
        document = placed(document, path, value)
    return kept_value(document, {**flags, **dict.fromkeys(values, True)})


def _text(text: str, items: Sequence[ItemVerdict], edits: Mapping[str, str]) -> str:
    """The kept sentences with the white space before them, and one mark for each gap."""
    left, at, in_gap = "", 0, False
    for item in items:
        assert item.span is not None, "the items of a text are spans"
        start, end = item.span
        edit = edits.get(item.place)
        if item.kept or edit is not None:
            left += text[at:start] + (text[start:end] if edit is None else edit)
        elif not in_gap:
            left += text[at:start] + GAP
        at, in_gap = end, not item.kept and edit is None
    return left + text[at:]
