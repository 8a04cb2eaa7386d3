"""Replies of an OpenAI-compatible endpoint: raw JSON in, messages and option scores out, nothing guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from guardrail.sampling.native import llm_output

LONGEST_TOKEN = 64
"""Characters a token may have on average before a text cannot come from ``max_tokens`` tokens."""

HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""One half of a surrogate pair; servers that cut an answer may send it without the other half."""
TEXTS, THOUGHTS = frozenset({"text", "output_text"}), frozenset({"thinking", "redacted_thinking", "reasoning"})
"""Types of the parts of a content that a user sees, and of those that nobody answers with."""
MANY = 2**53
"""No reply has so many tokens; a count this large is read as 0."""


class MalformedReplyError(ValueError):
    """The endpoint's reply is not a chat completion."""


class ForeignReplyError(MalformedReplyError):
    """The reply does not even begin as a JSON object: a page of a proxy or of another server."""


def parsed(content: bytes) -> dict[str, Any]:
    """The reply as a JSON object.

    Raises:
        ForeignReplyError: It does not begin as JSON.
        MalformedReplyError: It is truncated, nested too deeply, has half of a surrogate pair, or is not an
            object.
    """
    try:
        text = content.decode(json.detect_encoding(content))
        reply = json.loads(text)
        if HALF.search(text):
            json.dumps(reply, ensure_ascii=False).encode()  # fails on half of a surrogate pair
    except (ValueError, RecursionError) as error:
        foreign = not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
        kind = ForeignReplyError if foreign else MalformedReplyError
        raise kind(f"the endpoint's reply of {len(content)} bytes is not JSON ({error})") from None
    if not isinstance(reply, dict):
        raise MalformedReplyError(f"the endpoint's reply is a JSON {type(reply).__name__}, not an object")
    return reply


def choices_of(reply: Mapping[str, Any], *, max_tokens: int | None = None) -> list[dict[str, Any]]:
    """The choices of a reply, in order of their index.

    Args:
        reply: The reply.
        max_tokens: The longest answer that was asked for. A longer text is refused, since the server ignored the limit.

    Raises:
        MalformedReplyError: The reply has no choice, or a choice has no message.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        detail = str(reply["error"]) if reply.get("error") else f"fields {sorted(map(str, reply))[:8]}"
        raise MalformedReplyError(f"the endpoint's reply has no choices ({detail})")
    for choice in choices:
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise MalformedReplyError("a choice of the endpoint's reply has no message")
        text = text_of(choice["message"].get("content"))
        if max_tokens is not None and len(text) > LONGEST_TOKEN * max_tokens + 1024:
            raise MalformedReplyError(
                f"an answer has {len(text)} characters for at most {max_tokens} tokens: the server ignores max_tokens"
            )
    return sorted(choices, key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)


def usage_of(reply: Mapping[str, Any]) -> UsageMetadata:
    """The server's token counts; 0 if it reports none."""
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    prompt, completion = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    return UsageMetadata(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < MANY else 0


def message_of(choice: Mapping[str, Any], reply: Mapping[str, Any], usage: UsageMetadata | None) -> AIMessage:
    """A choice as a LangChain message; its log-probabilities stay in OpenAI's form in the metadata."""
    message = choice["message"]
    calls, invalid = tool_calls_of(message.get("tool_calls"))
    metadata: dict[str, Any] = {
        "finish_reason": end_in(choice, reply),
        "model_name": reply.get("model"),
        "model_provider": "openai-compatible",
    }
    if reply.get("system_fingerprint"):
        metadata["system_fingerprint"] = reply["system_fingerprint"]
    if isinstance(choice.get("logprobs"), dict):
        metadata["logprobs"] = choice["logprobs"]
    return AIMessage(
        content=text_of(message.get("content")),
        additional_kwargs={name: message[name] for name in ("refusal", "function_call") if message.get(name)},
        tool_calls=calls,
        invalid_tool_calls=invalid,
        response_metadata=metadata,
        usage_metadata=usage,
    )


def end_in(choice: Mapping[str, Any], reply: Mapping[str, Any]) -> Any:
    """The stated end of a choice; "error" where an error stands beside it, because its answer may be a part."""
    return "error" if choice.get("error") or reply.get("error") else choice.get("finish_reason")


def text_of(content: Any) -> str:
    """The text that a user sees in a content, which may be a list of parts; parts of thought are left out.

    Raises:
        MalformedReplyError: A part is of a kind that no text can stand for.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind not in THOUGHTS:
            raise MalformedReplyError(f"the answer has a part of type {str(kind)[:60]!r}, which is not text")
    return "".join(texts)


def chat_result(content: bytes, model: str) -> ChatResult:
    """A whole reply as a LangChain result, one generation for each choice.

    The usage of a reply is that of all its choices. The first generation has it, so that a sum counts it once.

    Raises:
        MalformedReplyError: It is not a chat completion.
    """
    reply = parsed(content)
    usage = usage_of(reply)
    messages = [message_of(c, reply, usage if i == 0 else None) for i, c in enumerate(choices_of(reply))]
    generations = [
        ChatGeneration(message=message, generation_info=dict(message.response_metadata)) for message in messages
    ]
    return ChatResult(generations=generations, llm_output=llm_output(usage, model))


def tool_calls_of(raw: Any) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Tool calls with parsed arguments, and invalid calls: of no function, or with arguments that are not an object."""
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for index, call in enumerate(raw if isinstance(raw, list) else [raw] if raw else []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):  # left out, the text beside it would pass for the whole answer
            error = "not a call of a function"
            invalid.append(
                InvalidToolCall(name=None, args=str(call), id=f"call_{index}", error=error, type="invalid_tool_call")
            )
            continue
        name = str(function.get("name"))
        text = function.get("arguments") or "{}"
        call_id = str(call.get("id") or f"call_{index}")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are not a JSON object")
            json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()  # a verdict must be able to hold them
        except (ValueError, RecursionError) as error:
            invalid.append(
                InvalidToolCall(name=name, args=str(text), id=call_id, error=str(error), type="invalid_tool_call")
            )
        else:
            calls.append(ToolCall(name=name, args=arguments, id=call_id, type="tool_call"))
    return calls, invalid
