"""Streams of a chat completion: the data of server-sent events, and their chunks in LangChain's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessageChunk, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from .replies import MalformedReplyError, end_in, text_of, usage_of


async def data_of(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The data of server-sent events, whose lines end with LF, CR or both."""
    line: list[bytes] = []
    async with aclosing(parts):
        async for part in parts:
            part = part.replace(b"\r", b"\n")  # of CR LF an empty line is left, which says nothing
            line.append(part)
            if b"\n" not in part:
                continue
            *lines, rest = b"".join(line).split(b"\n")
            line = [rest]
            for whole in lines:
                if whole.startswith(b"data:"):
                    yield whole.removeprefix(b"data:").strip()
    last = b"".join(line)
    if last.startswith(b"data:"):
        yield last.removeprefix(b"data:").strip()


async def chunks_of(events: AsyncIterable[Any]) -> AsyncGenerator[ChatGenerationChunk, None]:
    """The chunks of a whole answer; the last one has the token counts, if the server reports them.

    Only a ``finish_reason`` shows that an answer is complete: servers that break off may close the connection as usual.
    It comes with the last piece of text or after it. Token counts are totals of the answer, even if every event has
    some. Only the last counts are passed on, in one chunk, because LangChain adds up the counts of all chunks.

    Raises:
        MalformedReplyError: The stream has no event, an event of another kind, or an end without a reason.
    """
    begun, ended = False, False
    usage: UsageMetadata | None = None
    async for event in events:
        begun = True
        try:
            chunk = _chunk(event)
            usage = usage_of(event) if event.get("usage") else usage
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            detail = f"an event of the endpoint's stream is not a chunk of an answer ({error})"
            raise MalformedReplyError(detail) from None
        if chunk is not None:
            ended = ended or "finish_reason" in chunk.message.response_metadata
            yield chunk
    if not begun:
        raise MalformedReplyError("the endpoint's reply is not a stream of events")
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
    if end := end_in(choice, event):
        metadata = {"finish_reason": end, "model_name": event.get("model")}
        if event.get("system_fingerprint"):
            metadata["system_fingerprint"] = event["system_fingerprint"]
        metadata["model_provider"] = "openai-compatible"
    if choice.get("logprobs"):
        metadata["logprobs"] = choice["logprobs"]
    message = AIMessageChunk(
        content=text_of(delta.get("content")),
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
