"""OpenAI's Responses API at the edge: requests become chat completions, and completions become responses. No I/O.

The gateway keeps no responses, so fields that continue a stored one are refused. Items that a chat completion cannot
carry are refused with their place; reasoning items are left out, as chat completions leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guardrail.types import SamplingPlan

from ..._openai.responses import call_item, message_item, stream_events, text_part, usage_of
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
    present,
    text_of,
    tools_of,
)

STORED = {
    "store": "Send store: false, and the whole conversation in 'input'",
    "previous_response_id": "Send the whole conversation in 'input'",
    "conversation": "Send the whole conversation in 'input'",
    "background": "Leave it out and wait for the reply, or stream it",
    "prompt": "Send the text of the prompt in 'instructions' and 'input'",
}
"""Fields that need an endpoint that keeps state, and the way out."""
OWN = STORED.keys() | {"include", "input", "instructions", "max_output_tokens", "reasoning", "text"}
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""Fields of a chat completion, by the names of this API."""
UNKNOWN = NAMES.keys() | {"n", "max_completion_tokens"}
LOGPROBS = "message.output_text.logprobs"
TEXT, REASONING = frozenset({"format", "verbosity"}), frozenset({"effort", "summary", "generate_summary"})
ROLES = ["assistant", "developer", "system", "user"]
ECHOED: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None, "service_tier": "default", "temperature": None, "tool_choice": "auto", "top_logprobs": 0,
    "top_p": None, "truncation": "disabled", "user": None,
}  # fmt: skip
"""Fields of a request that its response repeats, with the values that stand for leaving them out."""


def _translated(fields: Mapping[str, Any], _: SamplingPlan | None) -> dict[str, Any]:
    for name, way_out in STORED.items():
        if fields.get(name):
            observe = "or ask the operator for 'mode: observe' in front of an endpoint that keeps them."
            raise invalid(name, f"is refused: the gateway keeps no responses. {way_out}; {observe}", "not_kept")
    system, choice, truncation = (fields.get(name) for name in ("instructions", "tool_choice", "truncation"))
    first = [] if system is None else [{"role": "system", "content": need(system, str, "instructions")}]
    messages = [*first, *_messages(fields.get("input"))]
    text, reasoning = inner_fields(fields, "text", TEXT), inner_fields(fields, "reasoning", REASONING)
    form = present(need(text.get("format", {}), dict, "text.format"))
    schema = {name: value for name, value in form.items() if name != "type"}
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise invalid("tool_choice", "must be a text or name a function.")
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {
        "messages": messages,
        "max_tokens": fields.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "verbosity": text.get("verbosity"),
        "logprobs": LOGPROBS in need(fields.get("include", []), list, "include") or None,
        "response_format": {"type": form.get("type"), **({"json_schema": schema} if schema else {})} if form else None,
        "tools": tools_of(fields["tools"], "function") if "tools" in fields else None,
        "tool_choice": choice,
        "truncation": None if truncation == "disabled" else truncation,
    }


def _messages(value: Any) -> list[dict[str, Any]]:
    """The items of ``input`` as messages. Calls belong to the assistant's message before them."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid("input", "must be a text or a list of items.")
    messages: list[dict[str, Any]] = []
    for where, item in objects_in(value, "input"):
        kind = item.get("type") or "message"
        if kind == "message":
            if (role := item.get("role")) not in ROLES:
                raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}.")
            content = content_of(item.get("content"), f"{where}.content", _part)
            messages.append({"role": role, "content": text_of(content) if role == "assistant" else content})
        elif kind == "function_call":
            call = function_call(*need_texts(item, where, "call_id", "name", "arguments"))
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            (call_id,) = need_texts(item, where, "call_id")
            output = content_of(item.get("output"), f"{where}.output", _part)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif kind == "item_reference":
            raise invalid(where, "refers to an item that is not kept. Send it (AI SDK: store: false).", "not_kept")
        elif kind != "reasoning":
            raise invalid(f"{where}.type", f"{str(kind)[:60]!r} cannot be guarded.", "unsupported_item")
    if not messages:
        raise invalid("input", "must have at least one message.")
    return messages


def _part(kind: Any, fields: Mapping[str, Any], at: str) -> dict[str, Any] | None:
    if kind in ("input_text", "output_text", "text", "refusal"):
        (text,) = need_texts(fields, at, "refusal" if kind == "refusal" else "text")
        return {"type": "text", "text": text}
    if kind == "input_image" and fields.get("file_id") is None:
        return image(need(fields.get("image_url"), str, f"{at}.image_url"), fields.get("detail"))
    return None


# -- replies ----------------------------------------------------------------------------------------------------------


def reply(completion: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """A completion as a response.

    An abstention is a completed response: the Agents SDK raises on ``response.incomplete`` and shows no text. The
    object ``guardrail`` tells it from an answer.
    """
    (choice,), usage, number = completion["choices"], completion["usage"], completion["id"].removeprefix("chatcmpl-")
    message, finish = choice["message"], choice["finish_reason"]
    output: list[dict[str, Any]] = []
    if message["refusal"] is not None:
        output.append(message_item(number, {"type": "refusal", "refusal": message["refusal"]}))
    elif message["content"] is not None:
        logprobs = (choice["logprobs"] or {}).get("content") or []
        output.append(message_item(number, text_part(message["content"], logprobs)))
    for place, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        output.append(call_item(f"{number}_{place}", call["id"], function["name"], function["arguments"]))
    stands_in = completion["guardrail"]["abstained"] or "handoff" in completion["guardrail"]
    cut = None if stands_in and finish != "length" else CUT.get(finish)
    fields, text = present(body), present(body.get("text") or {})
    return {
        **ECHOED,
        **{name: fields[name] for name in ECHOED if name in fields},
        "id": f"resp_{number}",
        "object": "response",
        "created_at": completion["created"],
        "completed_at": completion["created"],
        "status": "completed" if cut is None else "incomplete",
        "background": False,
        "error": None,
        "incomplete_details": None if cut is None else {"reason": cut},
        "model": completion["model"],
        "output": output,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}, **text},
        "tools": [{"strict": False, "parameters": None, **tool} for tool in fields.get("tools") or ()],
        "usage": usage_of(usage["prompt_tokens"], usage["completion_tokens"]),
        "guardrail": completion["guardrail"],
    }


CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of an incomplete response, by those of a chat completion."""


def events(response: Mapping[str, Any], _: bool) -> Iterator[dict[str, Any]]:
    return stream_events(response)


def error(fault: ApiError) -> dict[str, Any]:
    """The body of an error; as an event of a stream it has the fields of both forms that clients read."""
    inner = fault.body["error"]
    event = {"type": "error", "sequence_number": 0, **{name: inner[name] for name in ("code", "message", "param")}}
    return {**event, "error": inner}


# -- observed replies -------------------------------------------------------------------------------------------------


def observed(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = listed[-1]
    response = last.get("response", last)
    texts, refusals, calls = list[str](), list[str](), list[dict[str, Any]]()
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append(function_call(item["call_id"], item["name"], item["arguments"]))
        elif item["type"] == "message":
            for part in item["content"]:
                texts += [part["text"]] if part["type"] == "output_text" else ()
                refusals += [part["refusal"]] if part["type"] == "refusal" else ()
        elif item["type"] != "reasoning":
            raise ValueError(f"a {item['type']} is not part of an answer that a guard would give")
    ended = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}
    finish = ended.get(response["status"], response["status"])
    return observed_completion(response, texts, calls, finish, "".join(refusals) or None)


RESPONSES = Dialect("responses", _translated, reply, events, error, observed, NAMES, OWN, UNKNOWN)
