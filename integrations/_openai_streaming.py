"""The events of a chat-completions stream as LangChain chunks, and whether they are a whole answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from ._openai_replies import MalformedReplyError, usage_of

__all__ = ["chunks_of"]


async def chunks_of(events: AsyncIterable[Any]) -> AsyncGenerator[ChatGenerationChunk, None]:
    """The chunks of a whole answer; the last one says what it used, where the server tells.

    Only a ``finish_reason`` shows that an answer is whole: servers that break off may close the connection as if all
    were well. It comes with the last piece of text or after it. Token counts are totals of the answer, also where every
    event has some, so the last ones hold and are given once: LangChain adds up those of all chunks.

    Raises:
        MalformedReplyError: No events, one that is none of a chat completion, or an end without a reason.
    """
    came, ended = False, False
    usage: UsageMetadata | None = None
    async for event in events:
        came = True
        try:
            chunk = _chunk(event)
            usage = usage_of(event) if event.get("usage") else usage
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MalformedReplyError(f"an event of the endpoint's stream is no chunk of an answer ({error})") from None
        if chunk is not None:
            ended = ended or "finish_reason" in chunk.message.response_metadata
            yield chunk
    if not came:
        raise MalformedReplyError("the endpoint's reply is no stream of events")
    if not ended:
        raise MalformedReplyError(
            "the endpoint's stream ended without a finish_reason, so the answer is cut off. Ask again; if it happens "
            "often, look for time limits and limits on requests at once of the server and of proxies before it"
        )
    if usage is not None:
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage))


def _chunk(event: Mapping[str, Any]) -> ChatGenerationChunk | None:
    """The chunk of an event; None for events without content (keep-alives, token counts, further choices)."""
    choices = event.get("choices") or []
    if not choices:
        return None
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
    )
    return ChatGenerationChunk(message=message, generation_info=metadata or None)
