"""A person's decision about a held-back message: the request, the shapes of the decision, and its effect.

LangGraph validates an answer against the interrupt's schema before it keeps the answer. So the schema refuses every
decision that could not be carried out: an answer without text, arguments of another tool, a number that JSON does not
have or LangGraph cannot store. The same interrupt can then be answered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import TypedDict

from guardrail.bindings import arguments_fault
from guardrail.guard.abstention import ABSTAINED
from guardrail.plain_json import json_fault, text_fault
from guardrail.verdict import Verdict

from .calls import arguments_of, same_call
from .held import FrozenMessage, HeldMessage, ToolCallOrder

REQUEST_FORMAT = 1
"""Version of the request in an interrupt."""


def _unbroken(text: str) -> str:
    fault = text_fault(text)
    if fault is not None:
        raise ValueError(f"the text holds {fault}")
    return text


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    fault = json_fault(args, packed=True)
    if fault is not None:
        raise ValueError(f"the arguments hold {fault}. Correct them, or reject the call")
    return args


Text = Annotated[str, AfterValidator(_unbroken)]


class Action(TypedDict):
    """A tool call, or ``{"name": "answer", "args": {"text": ...}}``."""

    name: str
    args: Annotated[dict[str, Any], AfterValidator(_plain)]


class Decision(TypedDict):
    """A person's decision about one call or answer, in the shapes of LangChain's ``HumanInTheLoopMiddleware``."""

    type: Literal["approve", "edit", "reject", "respond", "answer", "lapse"]
    """"approve": give out, or run, exactly what was judged. "edit": give out, or run, ``edited_action`` instead.
    "reject": give out, or run, nothing. "respond": the person's own ``message``, to the user or to the model in place
    of the tool's result. "answer" (about calls only): the person answers the user with ``message``, so no call of the
    message runs and the agent's turn ends. "lapse": nobody decided, or the decision cannot be carried out, for the
    reason in ``message``: nothing goes out, or runs. Programs take it, people do not; it is always allowed."""
    edited_action: NotRequired[Action]
    """Of "edit": another text, or the same tool with other arguments."""
    text: NotRequired[Text]
    """Of "edit", beside tool calls: the text that the user reads; without it the model's own text stays."""
    message: NotRequired[Text]
    """See ``type``. Of "reject": the reason why a call was rejected, for the model. The user gets the text of an
    abstention in place of a rejected answer."""


_NEEDED = {"edit": "edited_action", "respond": "message", "answer": "message", "lapse": "message"}
"""The field that a decision must have beside its type."""


def answer_schema(request: Mapping[str, Any]) -> type[dict[str, Any]]:
    """Schema of ``{"decisions": [...]}``: one decision per action, each of an allowed shape that can be carried out.

    ``content`` beside them is an optional digest of the decided message, which `ReviewBridge` adds.
    """
    make: Any = TypedDict  # the check depends on the request, so the type is made here
    several = Annotated[list[Decision], AfterValidator(partial(_fitting, request))]
    schema: type[dict[str, Any]] = make("ReviewResponse", {"decisions": several, "content": NotRequired[str]})
    return schema


def checked(answer: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; pydantic raises where the graph would refuse it."""
    return TypeAdapter(answer_schema(request)).validate_python(dict(answer))


def _fitting(request: Mapping[str, Any], decisions: list[Decision]) -> list[Decision]:
    """Check that there is one allowed decision for each target, and that each edit can be carried out."""
    actions = request["action_requests"]
    allowed = request["review_configs"][0]["allowed_decisions"]
    if len(decisions) != len(actions):
        raise ValueError(f"there are {len(decisions)} decisions about {len(actions)} targets; give one for each")
    for action, decision in zip(actions, decisions, strict=True):
        kind = decision["type"]
        name = action["name"]
        if kind not in (*allowed, "lapse"):
            raise ValueError(f"the decision {kind!r} about {name!r} is not allowed. Allowed are {', '.join(allowed)}")
        needed = _NEEDED.get(kind)
        if needed is not None and needed not in decision:
            raise ValueError(f"the decision {kind!r} about {name!r} has no {needed!r}")
        if needed == "message":
            _check_not_empty(decision["message"])
        elif kind == "edit" and request["kind"] == "answer":
            _check_text(decision["edited_action"])
        elif kind == "edit":
            _check_arguments(decision["edited_action"], action, request["schemas"].get(name))
    texts = {decision["text"] for decision in decisions if decision["type"] == "edit" and "text" in decision}
    if len(texts) > 1:
        raise ValueError(f"the edits give {len(texts)} different texts, but the message has one")
    answers = [decision for decision in decisions if decision["type"] == "answer"]
    if answers and any(decision != answers[0] for decision in decisions):
        raise ValueError('"answer" ends the turn, so it is the one decision about every call of a message')
    return decisions


def _check_text(action: Action) -> None:
    args = action["args"]
    if action["name"] != "answer" or args.keys() != {"text"} or not isinstance(args["text"], str):
        raise ValueError(
            f'the edit of an answer has the name "answer" and the arguments {{"text": "..."}} and no others, got '
            f"{action['name']!r} with {sorted(args)}"
        )
    _check_not_empty(_unbroken(args["text"]))


def _check_not_empty(text: str) -> None:
    if not text.strip():
        raise ValueError('the text is empty; to give nothing, use "reject"')


def _check_arguments(edit: Action, proposed: Mapping[str, Any], schema: Mapping[str, Any] | None) -> None:
    name = proposed["name"]
    if edit["name"] != name:
        raise ValueError(
            f"the edit of {name!r} calls {edit['name']!r}: an edit changes arguments. Reject it to make another call"
        )
    fault = None if schema is None or edit["args"] == proposed["args"] else arguments_fault(schema, edit["args"])
    if fault is not None:
        raise ValueError(f"the arguments do not fit the tool {name}: {fault}. Correct them, or reject the call")


EDITED = "Note: a person changed this call before it ran; it ran with {args}. Do not repeat the original call."
"""Text put before the result of a tool call that a reviewer edited."""
ANSWERED = "This call was not run: a person answered the user instead."
"""Text that the model reads instead of a result, in frameworks that keep the call in the conversation."""
_LETTING = ("approve", "edit")
"""Decisions after which a call runs."""
REFUSED = ("reject", "lapse")
"""Decisions after which a held-back answer does not go out."""


# -- The request that a person sees ------------------------------------------------------------------------------------


def review_request(held: HeldMessage, *, ends: bool = True) -> dict[str, Any]:
    """The request that the person sees: the value of the interrupt, plain JSON.

    ``action_requests`` and ``review_configs`` are those of ``HumanInTheLoopMiddleware``, so its clients can read them;
    question, messages, candidate, verdict, alternatives and the schemas of the called tools come on top. The request
    shows the held-back message: it is for the reviewer, not for the end user.

    Args:
        held: The held-back message.
        ends: Whether a person's text can end the turn of the agent in place of its calls.
    """
    verdict = held.verdict
    text = held.message.text
    calls = [(call["name"], call["args"]) for call in held.message.tool_calls]
    judged = {"text": text, "tool_calls": [{"name": name, "arguments": args} for name, args in calls]}
    meanings = [meaning.model_dump(mode="json") for meaning in verdict.meanings]
    return {
        "type": "guardrail_review",
        "format": REQUEST_FORMAT,
        "kind": held.kind,
        "question": held.conversation.question,
        "messages": list(held.conversation.messages),
        "conversation": held.conversation.digest,
        "candidate": {"text": text, "tool_calls": [{"name": name, "args": args} for name, args in calls]},
        "verdict": {**verdict.without_answers(), "candidate": judged if text or calls else None, "meanings": meanings},
        "alternatives": [{"text": text, "share": share} for text, share in verdict.alternatives],
        "schemas": held.conversation.schemas,
        "action_requests": [
            {"name": target.name, "args": target.args, "description": verdict.detail} for target in held.judged
        ],
        "review_configs": [
            {"action_name": target.name, "allowed_decisions": _possible(held, ends)} for target in held.judged
        ],
    }


def _possible(held: HeldMessage, ends: bool) -> list[str]:
    """Decisions that make sense: an empty message can be neither approved nor edited."""
    possible = [] if held.empty else ["approve", "edit"]
    possible += ["reject", "respond"]
    # About an answer "respond" is the answer to the user.
    return possible if held.kind == "answer" or not ends else [*possible, "answer"]


# -- The effect of a decision ------------------------------------------------------------------------------------------


def order_for(call: Mapping[str, Any], decision: Decision) -> ToolCallOrder:
    """Order about a call after a person's decision."""
    if decision["type"] == "edit":
        edited = {"name": call["name"], "args": decision["edited_action"]["args"]}
        if same_call(call, edited):  # only the text beside it, or another call of the message, was changed
            return ToolCallOrder.of(call, "approve")
        return ToolCallOrder.of(call, "edit", args=edited["args"])
    kind = decision["type"]
    message = decision.get("message")
    if kind in ("approve", "respond"):
        return ToolCallOrder.of(call, kind, message=message if kind == "respond" else None)
    if kind == "answer":
        return ToolCallOrder.of(call, kind, message=ANSWERED)
    if kind == "lapse":
        return ToolCallOrder.of(call, "reject", message=f"This call of {call['name']} was not run: {message}")
    # The person's words stand last: they may end without a full stop.
    reason = f" The reason: {message}" if message else ""
    refusal = (
        f"A person rejected this call of {call['name']}; it was not run. Do not call it again unless the user asks "
        f"for it.{reason}"
    )
    return ToolCallOrder.of(call, "reject", message=refusal)


def _answered(held: HeldMessage, decision: Decision, refusal: Callable[[Verdict], str]) -> FrozenMessage:
    """The message that goes out in place of a held-back answer after a person's decision.

    The edit of a structured answer is JSON; any other text goes out as text.
    """
    if decision["type"] == "approve":
        return held.message
    if decision["type"] == "edit":
        text = decision["edited_action"]["args"]["text"]
        calls = _structured_anew(held.message, text) if held.judged[0].is_answer else ()
        return held.message.model_copy(update={"text": "" if calls else text, "tool_calls": calls})
    if decision["type"] == "respond":
        return held.message.model_copy(update={"text": decision["message"], "tool_calls": ()})
    # The reason of a rejection is not for the user, who would take it for the answer.
    refused = {"text": refusal(held.verdict), "tool_calls": (), "metadata": {**held.message.metadata, ABSTAINED: True}}
    return held.message.model_copy(update=refused)


def _structured_anew(message: FrozenMessage, text: str) -> tuple[dict[str, Any], ...]:
    """The structured answer with the arguments that a person wrote as JSON; none for other text."""
    try:
        args = arguments_of(text)
    except ValueError:
        return ()
    plain = len(message.tool_calls) == 1 and json_fault(args, packed=True) is None
    return ({**message.tool_calls[0], "args": args},) if plain else ()


def edit_note(args: Mapping[str, Any] | None) -> str:
    """Note that the model reads before the result of a call that a person edited."""
    return EDITED.format(args=", ".join(f"{name}={value!r}" for name, value in (args or {}).items()))


def released(
    held: HeldMessage, decisions: Sequence[Decision], refusal: Callable[[Verdict], str]
) -> tuple[FrozenMessage, dict[str, ToolCallOrder]]:
    """The message that goes out after the decisions, and the order about each tool call.

    The message is the very candidate that was judged, with the decision in its metadata. Edit, reject and respond
    change the text of an answer. The text beside tool calls goes out if every call is approved or edited: otherwise no
    person has approved the text. A structured answer beside them goes out if it is approved or edited.

    Args:
        held: The held-back message.
        decisions: One for each of ``held.judged``.
        refusal: Text of an abstention, which goes out after a rejection or a lapse.
    """
    pairs = list(zip(held.judged, decisions, strict=True))
    review = [{"name": target.name, "decision": decision["type"]} for target, decision in pairs]
    guardrail = {**held.message.metadata.get("guardrail", {}), "review": review}
    message = held.message.model_copy(update={"metadata": {**held.message.metadata, "guardrail": guardrail}})
    if held.kind == "answer":
        return _answered(held.model_copy(update={"message": message}), decisions[0], refusal), {}
    if decisions[0]["type"] == "answer":
        return message.model_copy(update={"text": decisions[0]["message"], "tool_calls": ()}), {}
    decided = {target.call_id: (target.is_answer, decision) for target, decision in pairs}
    calls = []
    orders = {}
    for call in held.message.tool_calls:
        is_answer, decision = decided.get(call["id"], (False, None))
        if not is_answer:
            order = ToolCallOrder.of(call, "exempt") if decision is None else order_for(call, decision)
            orders[str(call["id"])] = order
            calls.append(call)
        elif decision is not None and decision["type"] in _LETTING:
            calls.append({**call, "args": decision["edited_action"]["args"]} if decision["type"] == "edit" else call)
    edited = [decision["text"] for decision in decisions if decision["type"] == "edit" and "text" in decision]
    approved = message.text if all(decision["type"] in _LETTING for decision in decisions) else ""
    text = edited[0] if edited else approved
    return message.model_copy(update={"text": text, "tool_calls": tuple(calls)}), orders
