"""Structured output of which some fields are held back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ValidationError

from ..verdict import Reason
from .item import ItemVerdict

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partial(Generic[T]):
    """An object of which some fields are held back, because the model was not certain enough of them.

    Attributes:
        kept: The kept fields with their values, as plain JSON. A field that is held back is not in it, nor is a
            container of which nothing is left: nothing stands in its place.
        held_back: JSON pointers of the fields that are held back, in the original answer ("/items/2/price"); "*" stands
            for a key that the schema does not name.
        items: The verdict on each field, in the order of the answer; without the value where it is held back.
        model: The object of the schema, if the schema requires none of the fields that are held back;
            such a field then has the schema's default, which says nothing about its value. None otherwise, and for
            schemas that are not pydantic classes.
        verdict: The whole verdict as plain JSON, as in ``response_metadata["guardrail"]``.
        ticket: Ticket of the review item in which a person decides about the rest; None if it was not queued.
    """

    kept: dict[str, Any]
    held_back: tuple[str, ...]
    items: tuple[ItemVerdict, ...]
    model: T | None
    verdict: Mapping[str, Any] = field(repr=False)
    ticket: str | None = None


def is_partial(message: AIMessage) -> bool:
    """Whether a guard's message holds only some items of the answer: by its verdict, or by what a person decided."""
    verdict, review = (message.response_metadata.get(key) for key in ("guardrail", "review"))
    if isinstance(review, Mapping) and "action" in review:  # a person has decided
        return bool(review.get("held_back"))
    if not isinstance(verdict, Mapping):
        return False
    return bool(verdict.get("accepted")) and verdict.get("reason") == Reason.PARTLY_HELD_BACK


def partial_of(message: AIMessage, schema: Any) -> Partial[Any]:
    """The partial object in a guard's message.

    Args:
        message: A message for which `is_partial` holds.
        schema: The schema that the caller asked for.

    Raises:
        OutputParserException: The kept JSON is not an object, or holds a number that Python cannot read as it stands.
    """
    verdict, review = message.response_metadata["guardrail"], message.response_metadata.get("review") or {}
    items = tuple(ItemVerdict.from_stored(item) for item in verdict["items"])
    kept = message.tool_calls[0]["args"] if message.tool_calls else _read_object(message.text)
    held_back = tuple(review.get("held_back") or (item.path for item in items if not item.kept))
    return Partial(
        kept=kept,
        held_back=held_back,
        items=items,
        model=_object_of(schema, kept, held_back),
        verdict=verdict,
        ticket=review.get("ticket"),
    )


def _read_object(text: str) -> dict[str, Any]:
    try:
        kept = json.loads(text, parse_float=_finite)
    except ValueError as error:
        raise _unreadable(text, str(error)) from error
    if not isinstance(kept, dict):
        raise _unreadable(text, f"it is a {type(kept).__name__}, not an object")
    return kept


def _unreadable(text: str, why: str) -> OutputParserException:
    return OutputParserException(f"the kept items of the answer cannot be read as an object ({why}).", llm_output=text)


def _finite(text: str) -> float:
    # float("1e400") is inf, a value that nobody wrote.
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _object_of(schema: Any, kept: dict[str, Any], held_back: tuple[str, ...]) -> Any:
    """The object of a pydantic class, if the kept fields make one; otherwise None."""
    # An entry that is missing from a list would not show in the object, so only fields may be held back.
    lacks_entries = any(step.isdecimal() for path in held_back for step in path.split("/"))
    if lacks_entries or not (isinstance(schema, type) and is_basemodel_subclass(schema)):
        return None
    try:
        return schema(**kept)
    except (ValidationError, TypeError):
        return None


def partial_or(parser: Runnable[Any, Any], schema: Any) -> Runnable[Any, Any]:
    """The parser of whole messages, and a `Partial` for those of which some fields are held back."""
    partial: Runnable[Any, Any] = RunnableLambda(lambda message: partial_of(message, schema))
    return RunnableBranch((is_partial, partial), parser).with_config(run_name="guardrail_items")
