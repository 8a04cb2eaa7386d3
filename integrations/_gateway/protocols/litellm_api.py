"""LiteLLM's Generic Guardrail API: its proxy asks before an answer goes out. No I/O but the memory of prompts.

The proxy sends the prompt before the call and the answer after it, without the settings of the call. So the gate draws
and judges its answer, as for any client, and the proxy's answer leaves only if it is the judged one. Every
other answer is blocked: in a stream, the proxy ignores texts that replace others. Errors block with status 200, since a
proxy with ``fail_open`` passes an answer after a 503.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from guardrail.plain_json import canonical_json
from guardrail.sampling.draws import Draws

from ..._agents.calls import arguments_of
from ..errors import ApiError
from .dialect import Dialect, need, present

FIELDS = frozenset({
    "additional_provider_specific_params", "images", "input_type", "litellm_call_id", "litellm_trace_id",
    "litellm_version", "model", "request_data", "request_headers", "structured_messages", "texts", "tool_calls",
    "tools",
})  # fmt: skip
"""Fields of the API. Any other may be a part of the answer that nobody has judged, so an answer with one is blocked."""
CALL_FIELDS = frozenset({"id", "type", "index", "function", "name", "arguments"})
"""Fields of a tool call and of its function. As above, a call with any other is blocked."""
PATH = "/beta/litellm_basic_guardrail_api"
SENT = "sent"
"""Field of a question's body that holds what the proxy sent with its answer; no prompt has it."""
OTHER = (
    "The answer is not the one that was judged. The proxy must call the model with the calibrated settings, not with "
    "those of the client."
)


def question_of(payload: Mapping[str, Any], key: str | None, model: str | None, memory: Draws) -> dict[str, Any] | None:
    """The question behind the proxy's answer, or None for a prompt, which is remembered until its answer comes.

    Args:
        payload: What the proxy sends.
        key: The name of the gateway's key.
        model: The alias to ask; None for the model that the proxy names.
        memory: Keeps the prompts.

    Returns:
        The body of a chat completion, and the payload under `SENT`, with which `reply` compares the judged answer.

    Raises:
        ApiError: A field is malformed, the prompt of an answer is unknown, or two prompts have the same call id.
    """
    name = _memory_name(payload, key)
    if _is_answer(payload):
        remembered = memory.get(name)
        if remembered is None:
            why = "The prompt of this answer is unknown. The proxy's guardrail needs mode: [pre_call, post_call]."
            raise ApiError(400, why, "unknown_call")
        return {**json.loads(remembered), SENT: payload}
    prompt = canonical_json(_prompt_of(payload, model))
    if memory.add(name, prompt) != prompt:
        raise ApiError(400, "Another prompt has this litellm_call_id.", "call_not_unique", "litellm_call_id")
    return None


def _memory_name(payload: Mapping[str, Any], key: str | None) -> str:
    """The name of the proxy's call, which only the gateway's key and the proxy's key that made it share."""
    call = need(payload.get("litellm_call_id"), str, "litellm_call_id")
    owner = need(payload.get("request_data") or {}, dict, "request_data").get("user_api_key_hash")
    return canonical_json(["litellm call", key, owner, call])


def _is_answer(payload: Mapping[str, Any]) -> bool:
    """Whether the proxy asks about an answer, not about a prompt; an `ApiError` for all else, as it may be one."""
    kind = payload.get("input_type")
    if kind not in ("request", "response"):
        why = f'input_type must be "request" or "response", got {str(kind)[:40]!r}. Nothing else was judged.'
        raise ApiError(400, why, "unknown_input_type", "input_type")
    return bool(kind == "response")


def _prompt_of(payload: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The prompt of a call, as the body of a chat completion; without messages if the call has none."""
    messages = need(payload.get("structured_messages") or [], list, "structured_messages")
    listed = [present(need(message, dict, "structured_messages")) for message in messages]
    tools = {"tools": payload["tools"]} if payload.get("tools") else {}
    return {"model": model or need(payload.get("model"), str, "model"), "messages": listed, **tools}


def reply(completion: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The action for the proxy's answer (``texts`` and ``tool_calls``): it passes if it is the judged completion."""
    message = completion["choices"][0]["message"]
    verdict = completion["guardrail"]
    text = message["content"] or message["refusal"] or ""
    same = _is_judged(body[SENT], text, message.get("tool_calls", ()))
    if same and not verdict["abstained"]:
        return {"action": "NONE", "guardrail": verdict}
    reason = text if verdict["abstained"] else OTHER
    return {"action": "BLOCKED", "blocked_reason": reason, "guardrail": verdict}


def _is_judged(sent: Mapping[str, Any], text: str, calls: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the proxy's answer has the judged text and calls, and nothing that nobody has judged."""
    texts = [need(entry, str, "texts") for entry in need(sent.get("texts") or [], list, "texts")]
    sent_calls = [_call(need(call, dict, "tool_calls")) for call in sent.get("tool_calls") or ()]
    judged_texts = [text] if text else []
    unknown = [name for name, value in sent.items() if name not in FIELDS and value is not None]
    return (
        [entry for entry in texts if entry] == judged_texts
        and sent_calls == [_call(call) for call in calls]
        and not sent.get("images")
        and not unknown
    )


def _call(call: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Name and arguments, to be compared; None for what cannot be read or has other fields, as no judged call has."""
    fields = need(call.get("function"), dict, "tool_calls")
    more = {name for name, value in (*call.items(), *fields.items()) if value is not None} - CALL_FIELDS
    if call.get("type") not in (None, "function") or more:
        return fields.get("name"), None
    try:
        return fields.get("name"), canonical_json(arguments_of(fields.get("arguments")))
    except ValueError:
        return fields.get("name"), None


def error(fault: ApiError) -> dict[str, Any]:
    """An error as a reply that makes the proxy raise an error."""
    return {"action": "BLOCKED", "blocked_reason": fault.message, "code": fault.code}


LITELLM = Dialect(
    path="",  # `PATH` is not below the root of an API
    translate=lambda fields, plan: {SENT: None},
    reply=reply,
    events=lambda reply, include_usage: iter([reply]),
    error=error,
    error_status=200,
)
