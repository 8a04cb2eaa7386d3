"""From decoded tokens to LangChain's chat results, with log-probabilities in OpenAI's format."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from ._native_chat import llm_output
from ._tokens import Answer
from ._tool_calls import parse_tool_calls

__all__ = ["as_chunk", "chat_result", "last_chunk", "openai_logprobs", "usage"]


def openai_logprobs(answer: Answer) -> dict[str, Any] | None:
    """``{"content": [{"token", "bytes", "logprob", "top_logprobs"}, ...]}``, or None when they were not asked for."""
    if answer.tokens is None or answer.logprobs is None:
        return None
    spelled = [bytes.fromhex(raw) for raw in answer.token_bytes or ()] or [token.encode() for token in answer.tokens]
    return {
        "content": [
            {"token": token, "bytes": list(raw), "logprob": logprob, "top_logprobs": []}
            for token, raw, logprob in zip(answer.tokens, spelled, answer.logprobs, strict=True)
        ]
    }


def usage(prompt: int, generated: int) -> UsageMetadata:
    """Token counts of one message."""
    return UsageMetadata(input_tokens=prompt, output_tokens=generated, total_tokens=prompt + generated)


def chat_result(
    answers: Sequence[Answer], *, prompt: int, generated: Sequence[int], tools: Collection[str], model: str
) -> ChatResult:
    """One generation for each answer.

    Args:
        answers: Finished sequences.
        prompt: Tokens of the prompt, which was read once: counted in the first message only.
        generated: Tokens generated for each answer.
        tools: Names of the tools the model was offered; empty for none.
        model: Name of the model.
    """
    generations = [
        _generation(answer, usage(0 if place else prompt, count), tools, model)
        for place, (answer, count) in enumerate(zip(answers, generated, strict=True))
    ]
    return ChatResult(generations=generations, llm_output=llm_output(usage(prompt, sum(generated)), model))


def _generation(answer: Answer, tokens: UsageMetadata, tools: Collection[str], model: str) -> ChatGeneration:
    parsed = parse_tool_calls(answer.text, tools) if tools else None
    calls = parsed.calls if parsed else ()
    invalid = parsed.invalid if parsed else ()
    info: dict[str, Any] = {"finish_reason": "tool_calls" if calls else answer.finish_reason}
    logprobs = openai_logprobs(answer)
    if logprobs is not None:
        info["logprobs"] = logprobs
    message = AIMessage(
        content=(parsed.text if parsed else answer.text).strip(),
        tool_calls=[ToolCall(name=name, args=args, id=_call_id(), type="tool_call") for name, args in calls],
        invalid_tool_calls=[
            InvalidToolCall(name=None, args=raw, id=_call_id(), error=error, type="invalid_tool_call")
            for raw, error in invalid
        ],
        usage_metadata=tokens,
        response_metadata={**info, "model_name": model, "model_provider": "transformers"},
    )
    return ChatGeneration(message=message, generation_info=info)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def as_chunk(generation: ChatGeneration) -> ChatGenerationChunk:
    """A whole answer as a single chunk."""
    message = generation.message
    assert isinstance(message, AIMessage)
    chunk = AIMessageChunk(
        content=message.content,
        tool_calls=message.tool_calls,
        invalid_tool_calls=message.invalid_tool_calls,
        usage_metadata=message.usage_metadata,
        response_metadata=message.response_metadata,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)


def last_chunk(text: str, answer: Answer, *, prompt: int, generated: int, model: str) -> ChatGenerationChunk:
    """The chunk that ends a stream: the rest of the text, the finish reason, log-probabilities and token counts."""
    generation = _generation(answer, usage(prompt, generated), (), model)
    chunk = as_chunk(generation)
    return ChatGenerationChunk(
        message=chunk.message.model_copy(update={"content": text}), generation_info=chunk.generation_info
    )
