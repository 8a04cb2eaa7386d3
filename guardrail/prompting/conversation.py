"""Conversations: who speaks, the turns of a prompt, its question, and the whole as text for people."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from ..types import Bindings, ToolCall, canonical_calls

ONE_QUESTION = "human"
"""Turns of a prompt that is one question; see `turns_of`."""
_ROLES = {"user": "human", "assistant": "ai", "model": "ai", "developer": "system", "function": "tool"}
_CLASSES = (
    (SystemMessage, "system"),
    (HumanMessage, "human"),
    (AIMessage, "ai"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
)


def role_of(message: BaseMessage) -> str:
    """The speaker: "system", "human", "ai" or "tool" for each class of message; another role by its own name."""
    if isinstance(message, ChatMessage):
        name = message.role.strip().casefold()
        return _ROLES.get(name, name)
    return next((role for kind, role in _CLASSES if isinstance(message, kind)), message.type)


def not_text(message: BaseMessage) -> list[str]:
    """Types of a message's content other than text and cache points, each once: "image_url", "document"."""
    blocks = message.content if isinstance(message.content, list) else []
    others = (block for block in blocks if isinstance(block, dict) and block.keys() - {"cachePoint"})
    kinds = {str(block.get("type") or next(iter(block))) for block in others if not is_text(block)}
    return sorted(kinds)


def is_text(block: Mapping[str, Any]) -> bool:
    """Whether ``message.text`` has all the content of a block."""
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def turns_of(messages: Sequence[BaseMessage], bindings: Bindings | None = None) -> str:
    """The speakers of a prompt, in order, without the system message: "human" or "human,ai,human".

    A human message that holds more than text names the types: "human+image_url".

    Args:
        messages: The prompt.
        bindings: Bindings of the plan. If it has tools, calls of tools and their results do not count: they are steps
            to the answer of one question, and their number varies.
    """
    tools = bindings is not None and bool(bindings.tools)
    listed = []
    for message in messages:
        role = role_of(message)
        step = role == "tool" or (role == "ai" and bool(getattr(message, "tool_calls", ())))
        if role != "system" and not (tools and step):
            listed.append("+".join([role, *(not_text(message) if role == "human" else ())]))
    return ",".join(listed)


def question_text(messages: Sequence[BaseMessage]) -> str:
    """The question for judges: text of the last human message, or of the last message if no human speaks."""
    human = [message for message in messages if role_of(message) == "human"]
    chosen = human[-1] if human else messages[-1]
    return str(chosen.text)


def copies_of(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Deep copies, for functions of the user's: what these change reaches neither the model nor the conversation.

    The ``artifact`` of a tool's message is shared: no model reads it, and it may be a large table or a connection.
    """
    artifacts = [getattr(message, "artifact", None) for message in messages]
    return copy.deepcopy(list(messages), {id(artifact): artifact for artifact in artifacts})


def plain_turns(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """A conversation for people, as ``{"role": ..., "content": ..., "tool_calls": ...}``, the last if any.

    Pictures and documents are named in brackets: ``[image_url]``.
    """
    return [_plain_turn(message) for message in messages]


def _plain_turn(message: BaseMessage) -> dict[str, Any]:
    others = [f"[{kind}]" for kind in not_text(message) if message.type != "ai"]
    turn = {"role": message.type, "content": "\n".join(filter(None, (str(message.text), *others)))}
    calls = [{"name": call["name"], "arguments": call["args"]} for call in getattr(message, "tool_calls", ())]
    return {**turn, "tool_calls": calls} if calls else turn


def conversation_text(messages: Sequence[BaseMessage]) -> str:
    """A conversation as the text of a question: one line a message; `question_text` for a single message."""
    if len(messages) == 1:
        return question_text(messages)
    return "\n".join(_spoken(message) for message in messages)


def _spoken(message: BaseMessage) -> str:
    calls = getattr(message, "tool_calls", [])
    calls_text = canonical_calls(ToolCall(name=call["name"], arguments=call["args"]) for call in calls) if calls else ""
    return f"{message.type}: {' '.join(part for part in (str(message.text), calls_text) if part)}"
