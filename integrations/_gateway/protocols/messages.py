"""Anthropic's Messages API at the edge: requests become chat completions, and completions become messages. No I/O.

Blocks that a chat completion cannot carry are refused with their place; thinking is left out, as chat completions leave
it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guardrail.types import SamplingPlan

from ..errors import ApiError, invalid
from .dialect import (
    Dialect,
    content_of,
    function_call,
    image,
    inner_fields,
    need,
    need_texts,
    objects_in,
    observed_completion,
    text_of,
    tools_of,
)

OWN = frozenset({
    "cache_control", "max_tokens", "metadata", "messages", "output_config", "output_format", "stop_sequences", "system",
})  # fmt: skip
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of a chat completion, by the names of this API."""
UNKNOWN = NAMES.keys() | {"n", "logprobs", "max_completion_tokens", "stream_options", "user"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""Reasons to stop, by those of a chat completion."""
KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
"""Types of errors by HTTP status."""


def _translated(fields: Mapping[str, Any], plan: SamplingPlan | None) -> dict[str, Any]:
    """The translation of a request.

    Every request must have ``max_tokens``, and clients send large defaults. The calibrated limit keeps a larger one, so
    the larger one is left out.
    """
    system, thinking = fields.get("system"), fields.get("thinking")
    messages = [] if system is None else [{"role": "system", "content": content_of(system, "system", _part)}]
    for where, entry in objects_in(fields.get("messages"), "messages"):
        messages += _turn(entry, where)
    limit = need(fields.get("max_tokens"), int, "max_tokens")
    output = inner_fields(fields, "output_config", {"effort", "format"})
    form = output.get("format", fields.get("output_format"))
    tools = tools_of(fields["tools"], "custom", "custom") if "tools" in fields else None
    for at, tool in enumerate(tools or ()):
        function = tool["function"]
        function.pop("cache_control", None)
        function["parameters"] = need(function.pop("input_schema", None), dict, f"tools[{at}].input_schema")
    return {
        "messages": messages,
        "max_tokens": limit if plan is None or limit < plan.max_tokens else None,
        "stop": fields.get("stop_sequences"),
        "user": need(fields.get("metadata", {}), dict, "metadata").get("user_id"),
        "reasoning_effort": output.get("effort"),
        "response_format": None if form is None else _format(need(form, dict, "output_config.format"), plan),
        "thinking": None if thinking == {"type": "disabled"} else thinking,
        "tools": tools,
        **_choice(need(fields.get("tool_choice", {}), dict, "tool_choice")),
    }


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind: Any = choice.get("type")
    if choice and kind not in ["tool", *CHOICES]:  # a list, since the value may be anything
        raise invalid("tool_choice.type", "must be auto, any, tool or none.")
    function = {"type": "function", "function": {"name": choice.get("name")}}
    several = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": CHOICES.get(kind, function), **several} if choice else {}


def _format(form: Mapping[str, Any], plan: SamplingPlan | None) -> dict[str, Any]:
    """An answer format. This API gives it no name, so it gets the name of the calibrated one."""
    calibrated = plan.bindings.response_format if plan is not None and plan.bindings is not None else None
    named = (calibrated or {}).get("json_schema") or {"name": "answer"}
    return {"type": form.get("type"), "json_schema": {**named, "schema": form.get("schema")}}


def _turn(entry: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """A turn as messages: results of tools are messages of their own, before the rest of the turn."""
    role, content = entry.get("role"), entry.get("content")
    if role not in ("user", "assistant"):
        raise invalid(f"{where}.role", "must be user or assistant.")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    rest: list[Any] = []
    for at, block in objects_in(content, f"{where}.content"):
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            (call_id,) = need_texts(block, at, "tool_use_id")
            output = content_of(block.get("content") or "", f"{at}.content", _part)
            results.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif kind == "tool_use" and role == "assistant":
            arguments = json.dumps(need(block.get("input"), dict, f"{at}.input"), ensure_ascii=False)
            call_id, name = need_texts(block, at, "id", "name")
            calls.append(function_call(call_id, name, arguments))
        elif kind not in ("thinking", "redacted_thinking") or role == "user":
            rest.append(block)
    parts = content_of(rest, f"{where}.content", _part) if rest else None
    if role == "assistant":
        text = None if parts is None else text_of(parts)
        return [{"role": role, "content": text, **({"tool_calls": calls} if calls else {})}]
    if parts is None and results:
        return results
    return [*results, {"role": role, "content": parts}]


def _part(kind: Any, block: Mapping[str, Any], at: str) -> dict[str, Any] | None:
    if kind == "text":
        return {"type": "text", "text": need(block.get("text"), str, f"{at}.text")}
    if kind != "image":
        return None
    at = f"{at}.source"
    source = need(block.get("source"), dict, at)
    if source.get("type") == "url":
        return image(need(source.get("url"), str, f"{at}.url"))
    if source.get("type") != "base64":
        return None
    return image("data:{};base64,{}".format(*need_texts(source, at, "media_type", "data")))


# -- replies ----------------------------------------------------------------------------------------------------------


def reply(completion: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    """A completion as a message.

    A refusal of a formatted answer has no content, which the SDK would parse, and its text is in ``stop_details``.
    """
    (choice,), usage = completion["choices"], completion["usage"]
    message, refusal = choice["message"], choice["message"]["refusal"]
    content: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        content.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
    stop = STOPS.get(choice["finish_reason"], "end_turn") if refusal is None else "refusal"
    details = {"type": "refusal", "category": None, "explanation": refusal or message["content"]}
    return {
        "id": f"msg_{completion['id'].removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": details if stop == "refusal" else None,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
        "guardrail": completion["guardrail"],
    }


def events(message: Mapping[str, Any], _: bool) -> Iterator[dict[str, Any]]:
    usage = message["usage"]
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    begun = {**message, **dict.fromkeys(ended), "content": [], "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            spelled = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": spelled}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": ended, "usage": usage, "guardrail": message["guardrail"]}
    yield {"type": "message_stop"}


def error(fault: ApiError) -> dict[str, Any]:
    kind = KINDS.get(fault.status, "api_error" if fault.status >= 500 else "invalid_request_error")
    more = {"code": fault.code, "param": fault.param}
    return {"type": "error", "error": {"type": kind, "message": fault.message, **more}}


# -- observed replies -------------------------------------------------------------------------------------------------


def observed(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = dict(listed[0].get("message", listed[0]))
    blocks: dict[int, dict[str, Any]] = dict(enumerate(message["content"]))
    for event in listed:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["json"] += delta.get("partial_json", "")
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": {**message["usage"], **event.get("usage", {})}}
    texts, calls = list[str](), list[dict[str, Any]]()
    for block in blocks.values():
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "tool_use":
            arguments = block.get("json") or json.dumps(block["input"])
            calls.append(function_call(block["id"], block["name"], arguments))
        elif block["type"] not in ("thinking", "redacted_thinking"):
            raise ValueError(f"a {block['type']} is not part of an answer that a guard would give")
    finish = {ours: reason for reason, ours in STOPS.items()}.get(message["stop_reason"], message["stop_reason"])
    return observed_completion(message, texts, calls, finish)


MESSAGES = Dialect("messages", _translated, reply, events, error, observed, NAMES, OWN, UNKNOWN, mandatory="max_tokens")
