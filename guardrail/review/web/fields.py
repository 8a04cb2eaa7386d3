"""Fields of an answer or of a call on the page: the rows it shows, and what the form that it sends decides."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import UsageError
from ...items.item import ItemVerdict
from ...items.paths import unescaped
from ...judges.json_value import read_json
from ...types import ToolCall
from ..item import Content, ItemDecision, plain_number

__all__ = ["ArgumentRow", "FieldRow", "arguments_of", "decisions_of", "edited_calls", "named_arguments"]
__all__ += ["purpose_of", "rows_of"]

Widget = Literal["text", "number", "choice", "lines", "json"]
ALTERNATIVES = 3
"""Most other values of the samples that a row shows."""
LONGEST_PURPOSE = 300
"""Characters of a tool's description on the page."""
LINE, MOST_LINES = 60, 8
"""Characters in a line of the field that an edit is written in, and its most lines. A field of one line would drop line
breaks."""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One item as the page shows it.

    Attributes:
        label: The path in words.
        before: The value, a text without its quotes; empty if the answer leaves it out.
        item: The item itself.
        support: The number of samples that support it, in words.
        others: Other values that samples have in its place, each with the number of samples.
    """

    label: str
    before: str
    item: ItemVerdict
    support: str
    others: tuple[tuple[str, int], ...]

    @property
    def lines(self) -> int:
        """Lines of the field that an edit is written in."""
        return _lines(self.before)


@dataclass(frozen=True, slots=True)
class ArgumentRow:
    """One argument of a tool call in the form of an edit.

    Attributes:
        field: Name of its field in the form.
        name: Name of the argument.
        label: Its title in the tool's schema, otherwise the name in words.
        hint: Its description in the schema.
        widget: The field: a text, a number, one of several values, a list with a text on each line; JSON for any other
            value, and for a text with characters that a person cannot see.
        text: What an edit starts from; empty for null, and for an argument that the call leaves out.
        options: Of a choice: each value as JSON, and in words.
        optional: Whether the tool can do without it.
    """

    field: str
    name: str
    label: str
    hint: str
    widget: Widget
    text: str
    options: tuple[tuple[str, str], ...]
    optional: bool

    @property
    def lines(self) -> int:
        """Lines of the field."""
        return _lines(self.text)

    def read(self, text: str) -> Any:
        """The value that a person wrote.

        Raises:
            UsageError: It is not of the widget's kind.
        """
        if self.widget == "text":
            return text
        if self.widget == "lines":
            return [line.strip() for line in text.splitlines() if line.strip()]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            is_right = False
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_right = {"number": is_number, "choice": text in dict(self.options)}.get(self.widget, True)
        if not is_right:
            must = {"number": "a number, such as 40 or 12.5", "choice": "one of its choices"}.get(
                self.widget, 'JSON, such as 5, true or "a text"'
            )
            raise UsageError(f"{self.label} must be {must}, got {text[:60]!r}. Correct it; nothing was changed.")
        return value


def purpose_of(content: Content, tool: str) -> str:
    """The first sentence of a tool's own description; empty if it is not known."""
    text = content.schemas.get(tool, {}).get("description")
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0][:LONGEST_PURPOSE] if isinstance(text, str) else ""


def named_arguments(content: Content, call: ToolCall) -> dict[str, Any]:
    """The arguments of a call by the names that its tool's schema has for people, such as "Amount (in euros)"."""
    schema = content.schemas.get(call.name, {})
    named = {}
    for name, value in call.arguments.items():
        described = _resolved(schema, _mapping(schema.get("properties")).get(name))
        label = _label(name, described)
        hint = str(described.get("description") or "")
        named[f"{label} ({hint})" if hint and len(hint) <= LINE else label] = value
    return named if len(named) == len(call.arguments) else call.arguments


def _label(name: str, described: Mapping[str, Any]) -> str:
    return str(described.get("title") or name.replace("_", " "))


def arguments_of(content: Content) -> list[tuple[ToolCall, list[ArgumentRow]]]:
    """The candidate's tool calls that an edit may change, each with its arguments and those that its tool knows."""
    calls = () if content.candidate is None else content.candidate.tool_calls
    return [(call, _arguments(content, index, call)) for index, call in enumerate(calls) if index not in content.fixed]


def _arguments(content: Content, index: int, call: ToolCall) -> list[ArgumentRow]:
    schema = content.schemas.get(call.name, {})
    properties, required = _mapping(schema.get("properties")), _list(schema.get("required"))
    rows = []
    for i, name in enumerate(dict.fromkeys([*call.arguments, *properties])):
        described = _resolved(schema, properties.get(name))
        is_set = name in call.arguments
        value = call.arguments.get(name)
        boolean = isinstance(value, bool) or described.get("type") == "boolean"
        allowed = [True, False] if boolean else _list(described.get("enum"))
        options = {json.dumps(option): option for option in allowed}
        if options and is_set:
            options.setdefault(json.dumps(value), value)  # the model's own value is shown, though it is none of these
        widget: Widget = "choice" if options else _widget(described, value)
        rows.append(
            ArgumentRow(
                field=f"argument:{index}:{i}",
                name=name,
                label=_label(name, described),
                hint=str(described.get("description") or ""),
                optional=bool(schema) and name not in required,
                widget=widget,
                text=_as_text(value, widget) if is_set and (value is not None or options) else "",
                options=tuple((text, _option(option)) for text, option in options.items()),
            )
        )
    return rows


def _widget(described: Mapping[str, Any], value: Any) -> Widget:
    """The field for an argument: by its value, and by the schema if the call leaves it out."""
    kind = described.get("type")
    if isinstance(value, list) or (value is None and kind == "array"):
        texts = all(_is_plain(line) and "\n" not in line and line.strip() == line != "" for line in value or ())
        return "lines" if texts and (value or _mapping(described.get("items")).get("type") == "string") else "json"
    if isinstance(value, int | float) or (value is None and kind in ("number", "integer")):
        return "number"
    return "text" if _is_plain(value) or (value is None and kind == "string") else "json"


def _resolved(schema: Mapping[str, Any], described: Any, depth: int = 3) -> Mapping[str, Any]:
    """The description of a property, with what it refers to, and without the null of an optional one."""
    described = _mapping(described)
    place = str(described.get("$ref", "")).removeprefix("#/$defs/")
    found = {**_mapping(_mapping(schema.get("$defs")).get(place)), **described}
    others = [each for each in _list(found.get("anyOf")) if _mapping(each).get("type") != "null"]
    return {**_resolved(schema, others[0], depth - 1), **found} if len(others) == 1 and depth else found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _option(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "(empty)"}[value]
    return _as_text(value, "text")


def edited_calls(content: Content, sent: Callable[[str], str | None]) -> tuple[ToolCall, ...]:
    """The candidate's tool calls with the arguments of a form.

    Args:
        content: The content of the item.
        sent: The text of a form field; None if it is missing, and then the argument keeps its value. An empty field
            leaves an argument out that is not a text.

    Raises:
        UsageError: A field that does not hold a value of its kind.
    """
    calls = () if content.candidate is None else content.candidate.tool_calls
    edited = []
    for place, call in enumerate(calls):
        arguments = {}
        for row in () if place in content.fixed else _arguments(content, place, call):
            text = sent(row.field)
            given = row.name in call.arguments
            if text is None or text == row.text:
                if given:
                    arguments[row.name] = call.arguments[row.name]
            elif text.strip() or (given and row.widget == "text"):
                arguments[row.name] = row.read(text)
        edited.append(call if place in content.fixed else ToolCall(name=call.name, arguments=arguments))
    return tuple(edited)


def _is_plain(value: Any) -> bool:
    """Whether a value is a text that a text field shows and returns unchanged."""
    return isinstance(value, str) and all(letter.isprintable() or letter == "\n" for letter in value)


def _as_text(value: Any, widget: Widget) -> str:
    if widget == "lines":
        return "\n".join(value)
    if widget != "choice" and _is_plain(value):
        return str(value)
    value = plain_number(value)
    return json.dumps(value, ensure_ascii=isinstance(value, str) or widget == "choice")


def _lines(text: str) -> int:
    return min(MOST_LINES, sum(1 + len(line) // LINE for line in text.split("\n")))


def rows_of(content: Content) -> list[FieldRow]:
    """The items of an item's candidate, in order. Of a label the page hides their support and the other values."""
    samples = () if content.verdict is None else content.verdict.samples
    documents = [_document(text) for text in samples]
    candidate, judged = content.candidate, None
    if candidate is not None:
        judged = candidate.tool_calls[0].arguments if candidate.tool_calls else _document(candidate.text)
    rows = []
    for item in content.items:
        seen = Counter(_followed(document, item.path)[1] for document in documents)
        seen.pop(_MISSING if item.absent else _as_json(json.loads(item.text)), None)
        rows.append(
            FieldRow(
                label=_followed(judged, item.path)[0] or "the value",
                before="" if item.absent else _shown(item.text),
                item=item,
                support=_support(item, len(samples)),
                others=tuple((_shown(value), n) for value, n in seen.most_common(ALTERNATIVES)),
            )
        )
    return rows


def _support(item: ItemVerdict, samples: int) -> str:
    if item.uncertainty is None:
        return f"not measured: {item.detail}"
    share = 1 - item.uncertainty
    tries = f"{round(share * samples)} of {samples}" if samples else f"{share:.0%} of its"
    return f"the model said so in {tries} tries"


_MISSING = "(left out)"


def _document(text: str) -> Any:
    """A sample's answer, or the arguments of its call; None if it cannot be read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and "arguments" in value[0]:
        return value[0]["arguments"]  # a tool call, as samples are stored
    return value


def _followed(document: Any, path: str) -> tuple[str, str]:
    """A path in words, entries of a list counted from 1, and the value there as JSON; `_MISSING` if there is none."""
    words, missing = [], False
    for name in map(unescaped, path.split("/")[1:]):
        if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document, name = document[int(name)], f"{int(name) + 1}"
        elif isinstance(document, dict) and name in document:
            document = document[name]
        else:
            document, missing = None, True
        words.append(name)
    return " › ".join(words), _MISSING if missing else _as_json(document)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _shown(text: str) -> str:
    """A JSON value as people read it: a text without quotes."""
    return str(json.loads(text)) if text.startswith('"') else text


def decisions_of(content: Content, field: Callable[[str], str]) -> list[ItemDecision]:
    """The decisions in a form that has ``item:N`` and ``value:N`` for each item that was held back.

    Args:
        content: The content of the item.
        field: The text of a form field; empty if it is missing.

    Raises:
        ValidationError: A decision is incomplete.
    """
    decisions = []
    for number, item in enumerate(content.items):
        if not item.kept and (action := field(f"item:{number}")):
            text = _written(item, field(f"value:{number}").strip()) if action == "edit" else ""
            fields: Mapping[str, Any] = {"path": item.path, "action": action, "text": text}
            decisions.append(ItemDecision.model_validate(fields))
    return decisions


def _written(item: ItemVerdict, text: str) -> str:
    """Text of a reviewer, as an item has it: a field whose value is a text takes any words."""
    is_words = item.text.startswith('"')
    if item.absent:
        try:
            read_json(text)
        except ValueError:
            is_words = True
    return json.dumps(text, ensure_ascii=False) if text and is_words else text
