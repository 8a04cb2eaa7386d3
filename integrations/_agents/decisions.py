"""What a person may answer to an interrupt: the shapes, checked before any of it is kept.

LangGraph validates an answer against the interrupt's schema and keeps it only then. So the schema refuses everything
that could not be carried out: an answer without text, arguments of another tool, a number that JSON does not have or
LangGraph cannot store. The same interrupt can then be answered again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, Union

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, TypeAdapter
from typing_extensions import TypedDict

from guardrail.plain_json import json_fault, text_fault

__all__ = ["ALL_DECISIONS", "Action", "Decision", "DecisionType", "Lapse", "answer_schema", "checked"]

DecisionType = Literal["approve", "edit", "reject", "respond"]
ALL_DECISIONS: tuple[DecisionType, ...] = ("approve", "edit", "reject", "respond")


def _unbroken(text: str) -> str:
    fault = text_fault(text)
    if fault is not None:
        raise ValueError(f"the text holds {fault}")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError('the text is empty; to give nothing, use "reject"')
    return _unbroken(text)


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    fault = json_fault(args, packed=True)
    if fault is not None:
        raise ValueError(f"the arguments hold {fault}. Correct them, or reject the call")
    return args


Text = Annotated[str, AfterValidator(_unbroken)]
Said = Annotated[str, AfterValidator(_said)]
Args = Annotated[dict[str, Any], AfterValidator(_plain)]


class Approve(TypedDict):
    """Give out, or run, exactly what was judged."""

    type: Literal["approve"]


class Action(TypedDict):
    """A tool call, or ``{"name": "answer", "args": {"text": ...}}``."""

    name: str
    args: Args


class Edit(TypedDict):
    """Give out, or run, this instead."""

    type: Literal["edit"]
    edited_action: Action
    text: NotRequired[Text]
    """About a tool call: what the user reads beside the calls; without it the model's own text stays."""


class Reject(TypedDict):
    """Do not; the message says why."""

    type: Literal["reject"]
    message: NotRequired[Text]


class Respond(TypedDict):
    """The person's own answer: to the user, or to the model in place of the tool's result."""

    type: Literal["respond"]
    message: Said


class Lapse(TypedDict):
    """No decision, or one that cannot be carried out: nothing goes out, or runs.

    Always possible, also if it is not among the allowed decisions: it is for the program, not for the person.
    """

    type: Literal["lapse"]
    message: Said


Decision = Approve | Edit | Reject | Respond | Lapse
"""The shapes of LangChain's ``HumanInTheLoopMiddleware``, and one more for a missing decision."""
_SHAPES: dict[str, type] = {"approve": Approve, "reject": Reject, "respond": Respond}


def answer_schema(allowed: Sequence[DecisionType], tools: Sequence[str]) -> type[dict[str, Any]]:
    """``{"decisions": [one an action]}``, each of an allowed shape that can be carried out.

    ``content`` beside them may say, by a digest, what they are about: `ReviewBridge` gives it.

    Args:
        allowed: Decisions the person may take.
        tools: Names of the tools whose calls are decided about, in order; none: it is about an answer.
    """
    make: Any = TypedDict  # the types depend on the request, so they are made here
    shapes = {**_SHAPES, "edit": _edit(tools)}
    members = (*(shapes[one] for one in dict.fromkeys(allowed)), Lapse)
    decision: Any = Annotated[Union[members], Discriminator("type")]  # noqa: UP007
    n = len(tools) or 1
    length = Field(min_length=n, max_length=n)
    several = Annotated[list[decision], length, AfterValidator(partial(_in_place, tuple(tools)))]
    made: type[dict[str, Any]] = make("ReviewResponse", {"decisions": several, "content": NotRequired[str]})
    return made


def checked(answer: Mapping[str, Any], allowed: Sequence[DecisionType], tools: Sequence[str]) -> dict[str, Any]:
    """The answer, if the graph will take it.

    Raises:
        pydantic.ValidationError: It will not.
    """
    return TypeAdapter(answer_schema(allowed, tools)).validate_python(dict(answer))


def _edit(tools: Sequence[str]) -> Any:
    make: Any = TypedDict
    if not tools:
        args = make("answer_args", {"text": Said})
        args.__pydantic_config__ = ConfigDict(extra="forbid")
        action = make("answer_action", {"name": Literal["answer"], "args": args})
        return make("edit", {"type": Literal["edit"], "edited_action": action})
    action = make("action", {"name": Literal[tuple(sorted(set(tools)))], "args": Args})
    return make("edit", {"type": Literal["edit"], "edited_action": action, "text": NotRequired[Text]})


def _in_place(tools: tuple[str, ...], decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An edit changes arguments, not the tool; and there is one text beside the calls."""
    edits = [(name, one) for name, one in zip(tools, decisions, strict=False) if one["type"] == "edit"]
    for name, one in edits:
        if one["edited_action"]["name"] != name:
            raise ValueError(
                f"the edit of {name!r} calls {one['edited_action']['name']!r}: an edit changes arguments. Reject it to "
                "make another call"
            )
    said = {one["text"] for _, one in edits if "text" in one}
    if len(said) > 1:
        raise ValueError(f"the edits give {len(said)} different texts, but the message has one")
    return decisions
