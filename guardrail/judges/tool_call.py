"""Tool calls as answers: their canonical text, and a judge that compares it exactly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..errors import UsageError, refuse_unknown
from ..plain_json import canonical_json, too_deep
from ..specs import JudgeSpec
from ..types import Bindings, ToolCall, canonical_calls, plain_json
from .base import EqualityJudge
from .dates import point_in_time
from .json_value import unique_fields
from .words import normalise

__all__ = ["ToolCallJudge", "is_canonical_call", "read_calls"]

_START = '[{"arguments":'
_NUMBER = re.compile(r"-?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,399}|0)(?:\.[0-9]{1,400})?")
"""A text that is only a number: without a leading zero or plus, which ids and telephone numbers have."""
_AROUND_MARKS = re.compile(r"\s*([^\w\s])\s*")
_FIELDS = {"name", "arguments", "id", "type"}


def is_canonical_call(text: str) -> bool:
    """Return whether a text is in the form that `canonical_calls` writes."""
    calls = read_calls(text) if text.startswith(_START) else None
    return calls is not None and canonical_calls(calls) == text


def read_calls(text: str) -> list[ToolCall] | None:
    """The calls of a text that holds one call or a list of calls as JSON, each field once; None otherwise."""
    if text.lstrip()[:1] not in ("[", "{"):  # most texts, which are then not parsed
        return None
    try:
        content = json.loads(text, object_pairs_hook=unique_fields)
    except (ValueError, RecursionError):
        return None
    if too_deep(content):
        return None
    calls = content if isinstance(content, list) else [content]
    if not calls or not all(_is_call(call) for call in calls):
        return None
    return [ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls]


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= _FIELDS
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments"), dict)
    )


@dataclass(frozen=True, slots=True)
class ToolCallJudge(EqualityJudge):
    """Two answers are the same iff their tool calls have the same canonical JSON; see `canonical_calls`.

    Proposed calls reach a judge as canonical JSON already. Text that spells a call as JSON (``{"name": ...,
    "arguments": {...}}``, or a list of these; "id" and "type" do not count) is converted to that form; any other text
    is compared unchanged.

    Without options nothing else counts as the same; each option allows more. Options are part of the spec, so a
    threshold made with one set of options loads with that set only. A value that an option cannot read stays unchanged,
    and differs. "The same" is always equality of one form, so it is symmetric and transitive.

    Attributes:
        numbers: A text that is a number and nothing else is read as that number, exactly: "5.00", "5" and 5 are the
            same, "1,000" is 1000. A leading zero or plus ("007", "+49170") marks an id or a telephone number, which
            stays a text.
        decimals: Numbers with decimals are rounded to that many; whole numbers stay unchanged.
        dates: Formats of ``strptime`` in which a text is read as a point in time, e.g. ("%Y-%m-%d", "%d.%m.%Y"). A text
            that fits several with different meanings stays a text, so 03/04 is never guessed.
        text: Case, kind of quotes, white space and a final full stop or semicolon of texts do not count, and in prose
            neither do punctuation and articles (`normalise`). Not for commands in which case matters.
        unordered: Names of list arguments whose order means nothing, at any depth.
        arguments: Arguments that are compared, by tool ("*" for every other tool), or for all tools. None: all. A tool
            that is not listed keeps all.
        any_order: The order of several calls means nothing.

    Example:
        >>> judge = ToolCallJudge(numbers=True, arguments={"transfer": ["to", "amount"]})
        >>> a = '{"name": "transfer", "arguments": {"to": "bob", "amount": "5.00", "memo": "rent"}}'
        >>> judge.equivalent("", [(a, '{"name": "transfer", "arguments": {"to": "bob", "amount": 5}}')])
        [True]

    Raises:
        UsageError: An option is invalid.
    """

    numbers: bool = False
    decimals: int | None = None
    dates: Sequence[str] = ()
    text: bool = False
    unordered: Sequence[str] = ()
    arguments: Mapping[str, Sequence[str]] | Sequence[str] | None = None
    any_order: bool = False

    is_slow = False

    def __post_init__(self) -> None:
        for name in ("dates", "unordered", "arguments"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is a collection of names, got {getattr(self, name)!r}. Write it in a list.")
        if self.decimals is not None and not 0 <= self.decimals <= 12:
            raise UsageError(f"decimals must be in 0 ... 12, got {self.decimals}")
        for form in self.dates:
            if "%" not in form:
                raise UsageError(f"a date format is one of strptime, such as '%d.%m.%Y', got {form!r}")

    def check(self, bindings: Bindings | None) -> None:
        """Refuse names in ``arguments`` that the tools do not have: a misspelt argument would not be compared.

        Args:
            bindings: The tools. Nothing is refused without tools, nor for a tool whose schema lists no arguments.

        Raises:
            UsageError: An unknown tool or argument.
        """
        if self.arguments is None or bindings is None or not bindings.tools:
            return
        where = "the arguments to compare"
        known = {tool["function"]["name"]: _listed(tool) for tool in bindings.tools}
        chosen = self.arguments if isinstance(self.arguments, Mapping) else {"*": self.arguments}
        for tool, names in chosen.items():
            refuse_unknown(tool, ("*", *known), where, "a tool")
            schemas = (
                [known[tool]] if tool != "*" else [arguments for name, arguments in known.items() if name not in chosen]
            )
            every = {argument for arguments in schemas for argument in arguments or ()}
            for name in names if schemas and None not in schemas else ():
                refuse_unknown(name, every, where, f"an argument of {'the other tools' if tool == '*' else tool}")

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters: the options that are set."""
        chosen = self.arguments
        options: dict[str, Any] = {
            "numbers": self.numbers,
            "decimals": self.decimals,
            "dates": list(self.dates),
            "text": self.text,
            "unordered": sorted(self.unordered),
            "arguments": None if chosen is None else _sorted_names(chosen),
            "any_order": self.any_order,
        }
        params = {
            name: value for name, value in options.items() if value is not None and value is not False and value != []
        }
        return JudgeSpec(name="tool_call", version=5, params=params)

    @property
    def judges_tool_calls(self) -> bool:
        """True if calls with different canonical JSON may be the same."""
        return bool(self.spec.params)

    def identity(self, text: str) -> str:
        """Canonical JSON of the calls as the options read them, or the text itself."""
        text = text.strip()
        calls = read_calls(text)
        if calls is None:
            return text
        read = [ToolCall(name=call.name, arguments=self._arguments(call)) for call in calls]
        return canonical_calls(sorted(read, key=lambda call: canonical_calls([call])) if self.any_order else read)

    def left_out(self, answer: str) -> tuple[str, ...]:
        """Arguments of the calls in an answer that are not compared, as "TOOL: ARGUMENT, ARGUMENT"."""
        names: dict[str, dict[str, None]] = {}
        for call in read_calls(answer) or () if self.arguments is not None else ():
            arguments = [name for name in call.arguments if name not in self._arguments(call)]
            names.setdefault(call.name, {}).update(dict.fromkeys(arguments))
        return tuple(f"{tool}: {', '.join(arguments)}" for tool, arguments in names.items() if arguments)

    def _arguments(self, call: ToolCall) -> dict[str, Any]:
        chosen = self.arguments
        if isinstance(chosen, Mapping):
            chosen = chosen.get(call.name, chosen.get("*"))
        compared = call.arguments if chosen is None else {k: v for k, v in call.arguments.items() if k in chosen}
        return {name: self._value(value, name) for name, value in compared.items()}

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: self._value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            read = [self._value(item, name) for item in value]
            # By canonical text, because values of different types do not compare in Python.
            return sorted(read, key=_canonical) if name in self.unordered else read
        if isinstance(value, str):
            return self._text(value)
        return self._number(value)

    def _text(self, value: str) -> Any:
        if self.numbers and _NUMBER.fullmatch(value.strip()):
            return self._number(_exact(value.strip().replace(",", "")))
        if (moment := point_in_time(value.strip(), self.dates)) is not None:
            return moment
        if not self.text:
            return value
        return _AROUND_MARKS.sub(r"\1", normalise(value.casefold().replace('"', "'").rstrip(" .;")))

    def _number(self, value: Any) -> Any:
        if self.decimals is None or not isinstance(value, float) or not math.isfinite(value):
            return value
        # Plus 0.0, so that -0.0 becomes 0.0: they are equal but written differently.
        return round(value, self.decimals) + 0.0


def _sorted_names(chosen: Mapping[str, Sequence[str]] | Sequence[str]) -> dict[str, list[str]] | list[str]:
    if isinstance(chosen, Mapping):
        return {tool: sorted(names) for tool, names in sorted(chosen.items())}
    return sorted(chosen)


def _listed(tool: Mapping[str, Any]) -> Collection[str] | None:
    """Names of a tool's arguments; None if its schema does not list all of them."""
    schema = tool["function"].get("parameters") or {}
    names: Collection[str] | None = schema.get("properties")
    return None if schema.get("additionalProperties") else names


def _exact(text: str) -> int | float | str:
    """A number as JSON has it: whole, or a float if that is exact; otherwise the text, without zeros at the end."""
    value = Decimal(text)
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else text.rstrip("0")


def _canonical(value: Any) -> str:
    return canonical_json(plain_json(value), compact=False, ascii_only=True, default=repr)
