"""From a verdict to the message a guard returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from ..types import Cost, Sample, ToolCall
from ..verdict import Verdict

HANDOFF = "guardrail_handoff"
"""Key in the ``response_metadata`` of a message from an abstention path, until the verdict stands beside it."""


def accepted_answer(verdict: Verdict, model: str) -> AIMessage:
    """The part of the judged candidate that is given out, with the name of the model that gave it.

    A reply with tool calls is judged by these, so a text beside them is left out.
    """
    assert verdict.given is not None, "the gate accepts only what was measured"
    return candidate_message(verdict.given.judged_part, model)


def candidate_message(candidate: Sample, model: str) -> AIMessage:
    """A candidate as a message: its text and its tool calls.

    Args:
        candidate: What the model said.
        model: Name of the model.
    """
    metadata = {"finish_reason": candidate.finish_reason, "model_name": model}
    return AIMessage(content=candidate.text, tool_calls=tool_calls_of(candidate.tool_calls), response_metadata=metadata)


def tool_calls_of(calls: Iterable[ToolCall]) -> list[Any]:
    """Calls as LangChain writes them, under new ids, so that no two turns share one."""
    return [
        {"name": call.name, "args": call.arguments, "id": f"call_{uuid4().hex[:24]}", "type": "tool_call"}
        for call in calls
    ]


def chat_result(message: AIMessage, verdict: Verdict) -> ChatResult:
    """`with_verdict` as a chat result."""
    return ChatResult(generations=[ChatGeneration(message=with_verdict(message, verdict))])


def with_verdict(message: AIMessage, verdict: Verdict) -> AIMessage:
    """The message with the verdict in its metadata and the usage of everything that was drawn.

    The verdict of a message from an abstention path says under ``handoff`` what the message stands for.
    """
    usage = total_usage(verdict.cost, message.usage_metadata)
    metadata = {**message.response_metadata, "guardrail": verdict.to_metadata()}
    if (handoff := metadata.pop(HANDOFF, None)) is not None:
        metadata["guardrail"]["handoff"] = handoff
    return message.model_copy(update={"response_metadata": metadata, "usage_metadata": usage})


def total_usage(cost: Cost, more: UsageMetadata | None = None) -> UsageMetadata:
    """Tokens of everything that was drawn, plus those the abstention path reported."""
    read = cost.input_tokens + (more.get("input_tokens", 0) if more else 0)
    written = cost.output_tokens + (more.get("output_tokens", 0) if more else 0)
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def as_chunk(message: BaseMessage) -> AIMessageChunk:
    """The whole message as the one chunk of a stream."""
    fields = message.model_dump(exclude={"type"})
    return AIMessageChunk(**fields, chunk_position="last")
