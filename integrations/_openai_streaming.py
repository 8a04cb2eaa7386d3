"""One event of a chat-completions stream as a LangChain chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from ._openai_replies import MalformedReplyError, usage_of

__all__ = ["chunk_of"]


def chunk_of(event: Any) -> ChatGenerationChunk | None:
    """The chunk of an event; None for events without content (keep-alives, further choices).

    Raises:
        MalformedReplyError: It is no event of a chat completion.
    """
    try:
        return _chunk(event)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedReplyError(f"an event of the endpoint's stream is no chunk of an answer ({error})") from None


def _chunk(event: Mapping[str, Any]) -> ChatGenerationChunk | None:
    usage = usage_of(event) if event.get("usage") else None
    choices = event.get("choices") or []
    if not choices:
        return None if usage is None else ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage))
    choice = choices[0]
    if choice.get("index"):
        return None
    delta = choice.get("delta") or {}
    metadata: dict[str, Any] = {}
    if choice.get("finish_reason"):
        metadata = {"finish_reason": choice["finish_reason"], "model_name": event.get("model")}
        metadata["model_provider"] = "openai-compatible"
    if choice.get("logprobs"):
        metadata["logprobs"] = choice["logprobs"]
    message = AIMessageChunk(
        content=delta.get("content") or "",
        additional_kwargs={"refusal": delta["refusal"]} if delta.get("refusal") else {},
        tool_call_chunks=[
            tool_call_chunk(
                name=(call.get("function") or {}).get("name"),
                args=(call.get("function") or {}).get("arguments"),
                id=call.get("id"),
                index=call.get("index"),
            )
            for call in delta.get("tool_calls") or []
        ],
        response_metadata=metadata,
        usage_metadata=usage,
    )
    return ChatGenerationChunk(message=message, generation_info=metadata or None)
