"""Decisions item by item on the page: the rows it shows, and the form it sends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...items.item import ItemVerdict
from ...judges.json_value import read_json
from ..item import Content, Decision, ItemDecision, by_items

__all__ = ["FieldRow", "decision_by_items", "rows_of"]

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
        return min(MOST_LINES, sum(1 + len(line) // LINE for line in self.before.split("\n")))

    @property
    def support(self) -> str:
        """Number of samples that support it, in words."""
        if self.item.uncertainty is None:
            return f"not measured: {self.item.detail}"
        if not self.samples:
            return f"{1 - self.item.uncertainty:.0%} of the samples agree"
        return f"{round((1 - self.item.uncertainty) * self.samples)} of {self.samples} samples agree"


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
