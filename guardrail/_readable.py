"""What a model may write and nobody can judge, store and give out as it is.

JSON has no NaN and no infinity, UTF-8 no half of a surrogate pair, and every reader of nested values stops at some
depth. A reply with one of these would be shown, stored or run as something else than what was judged. So would the text
of a reply whose tool calls nobody can read. Such a reply counts as one that did not come: a missing measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import AIMessage

from .types import Sample, SampleSet, Unmeasured

__all__ = [
    "DEEPEST",
    "PACKED",
    "UnreadableReplyError",
    "json_fault",
    "only_readable",
    "only_storable",
    "refuse_unreadable",
    "refuse_unstorable",
    "spelled",
    "text_fault",
    "too_deep",
]

DEEPEST = 100
"""Levels to which arguments may be nested. pydantic's writer stops at 255, the interpreter's recursion at about 500."""
PACKED = range(-(2**63), 2**64)
"""Integers that MessagePack has, in which LangGraph stores a graph's state."""


class UnreadableReplyError(ValueError):
    """A model's reply holds what cannot be judged and given out as it is."""


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


def refuse_unreadable(message: AIMessage, text: str) -> None:
    """Refuse a reply that cannot be judged and given out as it is.

    Args:
        message: The reply.
        text: Its text.

    Raises:
        UnreadableReplyError: Broken text, arguments that are no plain JSON, or a tool call that could not be parsed.
    """
    for bad in message.invalid_tool_calls:
        raise UnreadableReplyError(
            f"a call of the tool {spelled(str(bad.get('name')))!r} has arguments that are no JSON object "
            f"({len(str(bad.get('args')))} characters)"
        )
    _refuse(text, ((call["name"], call["args"]) for call in message.tool_calls))


def only_readable(drawn: SampleSet) -> SampleSet:
    """The set without replies that cannot be judged and given out as they are; its ``problem`` says how many."""
    primary_fault = None if drawn.primary is None else _fault(drawn.primary)
    found = [_fault(sample) for sample in drawn.samples]
    faults = [fault for fault in (primary_fault, *found) if fault is not None]
    if not faults:
        return drawn
    detail = f"{len(faults)} of {len(drawn.samples) + (drawn.primary is not None)} replies are unreadable: {faults[0]}"
    problem = drawn.problem or Unmeasured.MODEL_FAILED
    told = detail if drawn.problem is None else f"{drawn.problem_detail}; {detail}"
    return drawn.model_copy(
        update={
            "primary": drawn.primary if primary_fault is None else None,
            "samples": tuple(one for one, fault in zip(drawn.samples, found, strict=True) if fault is None),
            "problem": problem,
            "problem_detail": told,
        }
    )


def only_storable(drawn: SampleSet) -> SampleSet:
    """The set without a primary answer that a LangGraph state cannot hold; its ``problem`` says so.

    The samples stay as they are: they are only measured, and shown as texts.
    """
    try:
        if drawn.primary is not None:
            refuse_unstorable(drawn.primary)
    except UnreadableReplyError as error:
        told = str(error) if drawn.problem is None else f"{drawn.problem_detail}; {error}"
        problem = drawn.problem or Unmeasured.MODEL_FAILED
        return drawn.model_copy(update={"primary": None, "problem": problem, "problem_detail": told})
    return drawn


def refuse_unstorable(sample: Sample) -> None:
    """Refuse a readable reply that a LangGraph state cannot hold.

    Raises:
        UnreadableReplyError: A call has an integer outside `PACKED`.
    """
    for call in sample.tool_calls:
        fault = json_fault(call.arguments, packed=True)
        if fault is not None:
            raise UnreadableReplyError(f"the call of {spelled(call.name)!r} holds {fault}")


def _fault(sample: Sample) -> str | None:
    try:
        _refuse(sample.text, ((call.name, call.arguments) for call in sample.tool_calls))
    except UnreadableReplyError as error:
        return str(error)
    return None


def _refuse(text: str, calls: Iterable[tuple[str, Any]]) -> None:
    fault = text_fault(text)
    if fault is not None:
        raise UnreadableReplyError(f"the answer holds {fault}")
    for name, arguments in calls:
        fault = json_fault([name, arguments])
        if fault is not None:
            raise UnreadableReplyError(f"the call of {spelled(name)!r} holds {fault}")
