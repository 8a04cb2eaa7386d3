"""The tool node of an agent: whether this very call may run, with which arguments, and the text the model reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from guardrail.errors import require

from .calls import call_digest, same_call
from .decisions import edit_note
from .held import ToolCallOrder, unpack

__all__ = ["edited", "order_of", "with_edit_note"]

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ToolCallRequest
    from langgraph.types import Command
else:
    ToolCallRequest = require("langchain.agents.middleware.types", extra="agents").ToolCallRequest
    from langgraph.types import Command


def order_of(request: ToolCallRequest, exempt: Collection[str]) -> ToolCallOrder | ToolMessage:
    """The order about a call, or the message that takes the place of its result."""
    call = _running(request)
    judged = _call_in(request.state["messages"], call["id"]) or call
    if judged["name"] in exempt and call["name"] in exempt:
        return ToolCallOrder(digest="", decision="exempt")
    note = unpack(request.state.get("guardrail"))
    order = None if note is None or note.phase != "done" else note.orders.get(str(call["id"]))
    if order is None or not order.digest or order.digest != call_digest(judged):
        refusal = (
            f"The call of {call['name']} was not run: no gate has judged it. It was changed after it was judged, "
            "or did not come from the guarded model."
        )
        return _tool_message(call, refusal, "error")
    if not same_call(call, judged):
        if same_call(call, _policy_edit(request)):  # a person's edit, made after any decision in this order
            return ToolCallOrder(digest=order.digest, decision="approve")
        refusal = f"The call of {call['name']} was not run: other middleware changed it after it was judged."
        return _tool_message(call, refusal, "error")
    if order.decision == "reject":
        return _tool_message(call, str(order.message), "error")
    if order.decision == "respond":
        return _tool_message(call, str(order.message), "success")
    return order


def edited(request: ToolCallRequest, order: ToolCallOrder) -> ToolCallRequest:
    """The request, with a person's edit of the call if there is one."""
    if order.decision != "edit" or order.args is None:
        return request
    return request.override(tool_call={**request.tool_call, "args": order.args})


def with_edit_note(
    result: ToolMessage | Command[Any], order: ToolCallOrder, call_id: Any
) -> ToolMessage | Command[Any]:
    """The result, preceded by a note if a person changed the call."""
    if order.decision != "edit":
        return result
    note = edit_note(order.args)
    if isinstance(result, ToolMessage):
        return _noted(result, note)
    update = result.update
    if isinstance(update, Mapping):
        return replace(result, update={key: _among(value, note, call_id) for key, value in update.items()})
    if isinstance(update, list | tuple):
        return replace(result, update=[(key, _among(value, note, call_id)) for key, value in update])
    return result


def _among(values: Any, note: str, call_id: Any) -> Any:
    """Messages of a tool's command, with the note in the message that answers the call."""
    if not isinstance(values, list | tuple):
        return values
    return [
        _noted(message, note) if isinstance(message, ToolMessage) and message.tool_call_id == call_id else message
        for message in values
    ]


def _noted(result: ToolMessage, note: str) -> ToolMessage:
    content: Any = result.content
    text = f"{note}\n{content}" if isinstance(content, str) else [{"type": "text", "text": note}, *content]
    return result.model_copy(update={"content": text})


def _call_in(messages: Sequence[BaseMessage], call_id: Any) -> Mapping[str, Any] | None:
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return next((cast("Mapping[str, Any]", c) for c in message.tool_calls if c["id"] == call_id), None)
    return None


def _running(request: ToolCallRequest) -> Mapping[str, Any]:
    """The call of a request, under the name of the tool that would run."""
    call = cast("Mapping[str, Any]", request.tool_call)
    return call if request.tool is None else {**call, "name": request.tool.name}


def _policy_edit(request: ToolCallRequest) -> Mapping[str, Any]:
    """A person's edit of the call in ``HumanInTheLoopMiddleware`` (batched); empty without one."""
    edits = request.state.get("hitl_edited_tool_calls") or {}
    return cast("Mapping[str, Any]", edits.get(request.tool_call["id"], {}))


def _tool_message(call: Mapping[str, Any], said: str, status: Literal["success", "error"]) -> ToolMessage:
    return ToolMessage(content=said, name=call["name"], tool_call_id=call["id"], status=status)
