"""The rest of an answer, of which some items are held back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..judges.json_value import read_json
from ..plain_json import text_fault
from ..types import Sample, ToolCall
from .item import ItemVerdict
from .json_fields import ABSENT, Document, json_text, kept_value, placed

_NO_TOKENS: dict[str, Any] = {"tokens": None, "logprobs": None, "token_bytes": None}
"""The tokens of the original answer spell what is held back."""


def release(answer: Sample, items: Sequence[ItemVerdict], edits: Mapping[str, str] | None = None) -> Sample:
    """The kept items of an answer: its own values, and those that a person wrote in place of an item.

    Text around a JSON object or a tool call has no items and is left out. An answer of which everything is kept is
    otherwise unchanged.

    Args:
        answer: The original answer.
        items: The verdict on each of its items, in order.
        edits: JSON that a person wrote in place of an item, by its path. Such an item is kept.

    Raises:
        ValueError: An edit is not JSON, or a value that cannot be given out.
    """
    edits = edits or {}
    whole = all(item.kept for item in items) and not edits
    if answer.tool_calls:
        judged = answer.judged_part
        if whole:
            return judged
        (call,) = judged.tool_calls
        left = _left(call.arguments, items, {path: _argument(text) for path, text in edits.items()})
        released_call = ToolCall(name=call.name, arguments=left if isinstance(left, dict) else {})
        return judged.model_copy(update={"tool_calls": (released_call,), **_NO_TOKENS})
    document = read_json(answer.comparable)
    if whole:
        # Words before a code fence are no item, so nothing has measured them.
        text = json_text(document) if _is_fenced(answer.comparable) else answer.text
    else:
        left = _left(document, items, {path: _field(text) for path, text in edits.items()})
        text = "{}" if left is ABSENT else json_text(left)
    return answer if text == answer.text else answer.model_copy(update={"text": text, **_NO_TOKENS})


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
    flags = {item.path: item.kept for item in items if not item.absent}
    for path, value in values.items():
        document = placed(document, path, value)
    return kept_value(document, {**flags, **dict.fromkeys(values, True)})
