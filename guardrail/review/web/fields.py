"""Fields of an answer or of a call on the page: the rows it shows, and what the form that it sends decides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...items.item import ItemVerdict
from ...judges.json_value import read_json
from ...types import ToolCall
from ..item import Content, Decision, ItemDecision, by_items

__all__ = ["ArgumentRow", "FieldRow", "arguments_of", "decision_by_items", "edited_calls", "rows_of"]

ALTERNATIVES = 3
"""Most other values of the samples that a row shows."""
LINE, MOST_LINES = 60, 8
"""Characters in a line of the field that an edit is written in, and its most lines. A field of one line would drop line
breaks."""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One item as the page shows it.

    Attributes:
        number: Its number in the form.
        label: The path in words.
        text: The value; a text without its quotes.
        before: What an edit starts from.
        item: The item itself.
        others: Other values that samples have in its place, each with the number of samples.
        samples: Number of samples.
    """

    number: int
    label: str
    text: str
    before: str
    item: ItemVerdict
    others: tuple[tuple[str, int], ...]
    samples: int

    @property
    def lines(self) -> int:
        """Lines of the field that an edit is written in."""
        return _lines(self.before)

    @property
    def support(self) -> str:
        """Number of samples that support it, in words."""
        if self.item.uncertainty is None:
            return f"not measured: {self.item.detail}"
        if not self.samples:
            return f"{1 - self.item.uncertainty:.0%} of the samples agree"
        return f"{round((1 - self.item.uncertainty) * self.samples)} of {self.samples} samples agree"


@dataclass(frozen=True, slots=True)
class ArgumentRow:
    """One argument of a tool call as the page shows it for an edit.

    Attributes:
        field: Name of its field in the form.
        name: Name of the argument.
        text: What an edit starts from: a text without quotes; JSON for any other value, and for a text with characters
            that a person cannot see.
    """

    field: str
    name: str
    text: str

    @property
    def lines(self) -> int:
        """Lines of the field."""
        return _lines(self.text)


def arguments_of(content: Content) -> list[tuple[ToolCall, list[ArgumentRow]]]:
    """The candidate's tool calls that an edit may change, each with its arguments."""
    calls = () if content.candidate is None else content.candidate.tool_calls
    return [
        (call, [ArgumentRow(f"argument:{place}:{i}", name, _as_text(call.arguments[name]))
                for i, name in enumerate(call.arguments)])
        for place, call in enumerate(calls)
        if place not in content.fixed
    ]  # fmt: skip


def edited_calls(content: Content, sent: Callable[[str], str | None]) -> tuple[ToolCall, ...]:
    """The candidate's tool calls with the arguments of a form.

    Args:
        content: The content of the item.
        sent: The text of a form field; None if it is missing, and then the argument keeps its value. An empty field
            leaves an argument out that is not a text.

    Raises:
        UsageError: A field that is not JSON although its argument is not a text.
    """
    calls = () if content.candidate is None else content.candidate.tool_calls
    edited = []
    for place, call in enumerate(calls):
        arguments = {}
        for i, (name, value) in enumerate(call.arguments.items()):
            text = sent(f"argument:{place}:{i}")
            if text is None or text == _as_text(value):
                arguments[name] = value
            elif _is_plain(value):
                arguments[name] = text
            elif text.strip():
                arguments[name] = _value_in(text, name)
        edited.append(ToolCall(name=call.name, arguments=arguments))
    return tuple(edited)


def _value_in(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f'the argument {name} must be JSON, such as 5, true or "a text", got {text[:60]!r} ({error}). Go back and '
            "correct it; nothing was changed."
        ) from error


def _is_plain(value: Any) -> bool:
    """Whether a value is a text that a text field shows and returns unchanged."""
    return isinstance(value, str) and all(letter.isprintable() or letter == "\n" for letter in value)


def _as_text(value: Any) -> str:
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=isinstance(value, str))


def _lines(text: str) -> int:
    return min(MOST_LINES, sum(1 + len(line) // LINE for line in text.split("\n")))


def rows_of(content: Content) -> list[FieldRow]:
    """The items of an item's candidate, in order; nothing that hints at their scores if the decision is a label."""
    samples = [] if content.blind or content.verdict is None else list(content.verdict.get("samples", ()))
    documents = [_document(text) for text in samples]
    return [_row(i, item, documents) for i, item in enumerate(content.items)]


def _row(number: int, item: ItemVerdict, documents: list[Any]) -> FieldRow:
    text = "(the answer leaves this field out)" if item.absent else _shown(item.text)
    seen = Counter(_value_at(document, item.path) for document in documents)
    seen.pop(_MISSING if item.absent else _canonical(item.text), None)
    others = tuple((_shown(value), n) for value, n in seen.most_common(ALTERNATIVES))
    label = " › ".join(step.replace("~1", "/").replace("~0", "~") for step in (item.path).split("/")[1:])
    return FieldRow(
        number, label or "the value", text, "" if item.absent else _shown(item.text), item, others, len(documents)
    )


_MISSING, _UNREADABLE = "(left out)", "(unreadable)"


def _document(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _UNREADABLE
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and "arguments" in value[0]:
        return value[0]["arguments"]  # a tool call, as samples are stored
    return value


def _value_at(document: Any, path: str) -> str:
    """The value at a path as text. Lists are compared item by item, so their items have no value of their own here."""
    if document == _UNREADABLE:
        return _UNREADABLE
    for step in path.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return _MISSING
    return json.dumps(document, ensure_ascii=False, sort_keys=True)


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True)


def _shown(text: str) -> str:
    """A JSON value as people read it: a text without quotes."""
    return str(json.loads(text)) if text.startswith('"') else text


def decision_by_items(content: Content, field: Callable[[str], str], note: str) -> Decision:
    """The decision in a form that has ``item:N`` and ``value:N`` for each item that was held back.

    Args:
        content: The content of the item.
        field: The text of a form field; empty if it is missing.
        note: The reviewer's remark.

    Raises:
        UsageError: The items are not all decided, or an edit is not of the item's kind.
        ValidationError: A decision is incomplete.
    """
    decisions = []
    for row in rows_of(content):
        if row.item.kept or not (action := field(f"item:{row.number}")):
            continue
        text = _written(row.item, field(f"value:{row.number}").strip()) if action == "edit" else ""
        fields: Mapping[str, Any] = {"path": row.item.path, "action": action, "text": text}
        decisions.append(ItemDecision.model_validate(fields))
    return by_items(content, decisions, note)


def _written(item: ItemVerdict, text: str) -> str:
    """Text of a reviewer, as an item has it: a field whose value is a text takes any words."""
    if not text:
        return text
    if item.text.startswith('"'):
        return json.dumps(text, ensure_ascii=False)
    if item.absent:
        try:
            read_json(text)
        except ValueError:
            return json.dumps(text, ensure_ascii=False)
    return text
