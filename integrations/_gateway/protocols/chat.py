"""OpenAI's chat completions: a guard's answers as completions and streams. No I/O.

An abstention has the shape in which all clients show its text (docs/gateway.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import convert_to_openai_messages

from guardrail.sampling.replies.ends import end_of, is_refusal, is_whole

from ..answers import GuardReply
from .dialect import Dialect


def completion(answer: GuardReply, *, formatted: bool, logprobs: bool, request_id: str, model: str) -> dict[str, Any]:
    """The reply to a request: a ``chat.completion``.

    An abstention is a text with ``finish_reason: content_filter``, which every client shows and recognises. For a
    caller that parses the answer (``formatted``) it is OpenAI's refusal: a text would look like a malformed answer.
    """
    message, finish, shown = answer.message, _finish_of(answer), answer.shown
    content: str | None = str(message.text)
    reply: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.abstained and formatted:
        reply, finish = {**reply, "content": None, "refusal": content}, "stop"
    elif answer.abstained or shown.get("handoff") == "unjudged_answer":
        # Programs that read no verdict must not take it for an answer of the gate, nor a part for a whole answer.
        finish = answer.shape if answer.abstained or answer.shape != "stop" or finish == "tool_calls" else finish
    elif message.tool_calls:
        spelled: Any = convert_to_openai_messages(message)
        reply = {**reply, "content": content or None, "tool_calls": spelled["tool_calls"]}
    usage = message.usage_metadata
    prompt, completed = (usage["input_tokens"], usage["output_tokens"]) if usage else (0, 0)
    choice = {
        "index": 0,
        "message": reply,
        "finish_reason": finish,
        "logprobs": _logprobs(answer) if logprobs and answer.verdict.accepted else None,
    }
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completed, "total_tokens": prompt + completed},
        "guardrail": {**shown, "request": request_id},
    }


def _finish_of(answer: GuardReply) -> str:
    """The finish reason of an answer: "length", which clients know as that of a part, unless it is known to be whole.

    An accepted answer of a model that never says why it ended is whole: such an artifact counts parts as answers.
    """
    end, calls = end_of(answer.message), bool(answer.message.tool_calls)
    if is_refusal(end):
        return "content_filter"
    if is_whole(end, calls=calls) or (end is None and answer.verdict.passes):
        return "tool_calls" if calls else "stop"
    return "length"


def _logprobs(answer: GuardReply) -> dict[str, Any] | None:
    candidate = answer.metadata.get("candidate") or {}
    if not candidate.get("tokens"):
        return None
    spelled = candidate.get("token_bytes") or [token.encode().hex() for token in candidate["tokens"]]
    listed = [
        {"token": token, "logprob": value, "bytes": list(bytes.fromhex(raw)), "top_logprobs": []}
        for token, value, raw in zip(candidate["tokens"], candidate["logprobs"], spelled, strict=True)
    ]
    return {"content": listed, "refusal": None}


def chunks(reply: Mapping[str, Any], include_usage: bool) -> Iterator[dict[str, Any]]:
    """A completion as the chunks of a stream: role, content, reason and verdict, and the token counts if wanted.

    The verdict stands in the first chunk as well, because openai-python's final completion keeps the further fields of
    that one alone.
    """
    (choice,) = reply["choices"]
    message = choice["message"]
    common = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    common |= {"usage": None} if include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**common, "choices": [choice]}

    verdict = {"guardrail": reply["guardrail"]}
    yield {**chunk({"role": "assistant", "content": ""}), **verdict}
    for name in ("content", "refusal"):
        if message[name]:
            yield chunk({name: message[name]}, logprobs=choice["logprobs"] if name == "content" else None)
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]})
    yield {**chunk({}, choice["finish_reason"]), **verdict}
    if include_usage:
        yield {**common, "choices": [], "usage": reply["usage"]}


CHAT = Dialect(
    "chat/completions",
    translate=lambda fields, plan: {},
    reply=lambda completion, body: dict(completion),
    events=chunks,
    error=lambda error: error.body,
)
"""OpenAI's chat completions."""
