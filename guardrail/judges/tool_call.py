"""Tool calls as answers: their canonical text, and a judge that compares it exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import ToolCall
from .base import JudgeSpec

__all__ = ["ToolCallJudge", "canonical_calls", "is_canonical_call", "plain_json", "read_calls"]

_START = '[{"arguments":'
_FIELDS = {"name", "arguments", "id", "type"}


def canonical_calls(calls: Iterable[ToolCall]) -> str:
    """Canonical JSON of tool calls: a list of {"arguments", "name"} in the order of the calls.

    Keys are sorted, white space is dropped, and a whole number is written without decimals (1.0 is 1). Strings stay as
    they are: "1" is not 1, and two ways to write a date differ. The order of calls and of list elements counts.
    """
    listed = [{"name": call.name, "arguments": plain_json(call.arguments)} for call in calls]
    return json.dumps(listed, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)


def is_canonical_call(text: str) -> bool:
    """Whether a text is what `canonical_calls` writes."""
    return text.startswith(_START) and _read(text) == text


def plain_json(value: Any) -> Any:
    """A value with text keys, lists for tuples, and whole numbers without decimals."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_calls(text: str) -> list[ToolCall] | None:
    """The calls of a text that holds one call or a list of calls as JSON; None when it does not."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(_is_call(call) for call in calls):
        return None
    return [ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls]


def _read(text: str) -> str | None:
    """Canonical form of a text that holds calls as JSON; None when it does not."""
    calls = read_calls(text) if text[:1] in ("[", "{") else None
    return None if calls is None else canonical_calls(calls)


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= _FIELDS
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments"), dict)
    )


@dataclass(frozen=True, slots=True)
class ToolCallJudge:
    """Two answers are the same iff their tool calls have the same canonical JSON; see `canonical_calls`.

    Proposed calls reach a judge as canonical JSON already. Text that spells a call as JSON (``{"name": ...,
    "arguments": {...}}``, or a list of such; "id" and "type" are left out) is brought to that form; any other text is
    compared as it is.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="tool_call", version=1, params={})

    def identity(self, text: str) -> str:
        """Canonical JSON of the calls, or the text itself."""
        text = text.strip()
        return _read(text) or text

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of canonical forms; the question plays no part."""
        return [self.identity(a) == self.identity(b) for a, b in pairs]
