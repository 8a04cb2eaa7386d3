"""OpenAI's chat completions on the server's side: requests in; completions, streams and errors out. No I/O.

The tables follow OpenAI's ``openapi.yaml`` 2.3.0 and the behaviour of its clients: the statuses that they retry, and
the shape of an abstention in which all of them show the text (docs/gateway.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages

from guardrail.bindings import bindings_for, check_bindings
from guardrail.errors import ArtifactMismatchError, UsageError, require
from guardrail.explain import without_quotes
from guardrail.guard.abstention import ABSTAINED
from guardrail.guard.comparability import unlike_plan
from guardrail.plain_json import json_fault
from guardrail.sampling.call_settings import SettingRole, setting_names
from guardrail.sampling.replies import end_of, is_refusal, is_whole
from guardrail.types import Bindings, SamplingPlan, Unmeasured
from guardrail.verdict import Reason, Verdict

from .._openai.requests import CHAT_COMPLETIONS
from .config import Alias

jiter = require("jiter", extra="serve")

APART = setting_names(SettingRole.TRANSPORT, SettingRole.BINDING, allowed_in=CHAT_COMPLETIONS) | {
    "logprobs", "messages", "model", "n", "prompt_cache_options", "top_logprobs",
}  # fmt: skip
"""Fields that cannot change how an answer is drawn, or that have their own check."""
DRAWING = setting_names(SettingRole.PLAN, SettingRole.SHAPING, allowed_in=CHAT_COMPLETIONS) | {
    "audio", "modalities", "moderation", "prediction", "verbosity", "web_search_options",
}  # fmt: skip
"""Fields that change how an answer is drawn: they must equal the calibrated ones."""
HABITS = frozenset({"temperature", "top_p", "seed"})
"""Settings that clients send by habit, without a wish for another answer."""
MOST = {"messages": 2048, "input": 2048, "tools": 128, "functions": 128, "metadata": 16}
"""Entries that OpenAI's API takes: reading more of them would take seconds."""
SHOWN = (
    "accepted",
    "abstained",
    "reason",
    "uncertainty",
    "threshold",
    "artifact",
    "fallback",
    "handoff",
    "ticket",
    "replaced",
)
"""Fields of a verdict that are sent as headers."""
INCOMPLETE = "Fields of the answer are not certain enough, and the request asked for all or nothing."
"""Text of an abstention for `all_or_nothing`."""
AGAIN = {"Retry-After": "5"}
"""Header of errors after which clients try again."""


@dataclass(eq=False)
class ApiError(Exception):
    """An error reply in OpenAI's shape. Clients retry 408, 409, 429 and every 5xx; never 400, 401, 403, 404 or 413."""

    status: int
    message: str
    """Text for the caller; it names no address and no key."""
    code: str
    param: str | None = None
    """Field of the request that is wrong."""
    kind: str = "invalid_request_error"
    """OpenAI's ``type``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    verdict: Mapping[str, Any] | None = None
    """The abstention that it reports."""

    @property
    def body(self) -> dict[str, Any]:
        """The reply's body, with all four keys."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(where: str, rule: str, code: str = "invalid_field") -> ApiError:
    """The error for a field that breaks a rule."""
    return ApiError(400, f"'{where[:100]}' {rule}", code, where[:100])


def unavailable(message: str, code: str) -> ApiError:
    """An error after which clients try again."""
    return ApiError(503, message, code, kind="server_error", headers=AGAIN)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that the guard may answer."""

    messages: tuple[BaseMessage, ...]
    call: Mapping[str, Any]
    """Tools and answer format, as keywords for the guard."""
    stream: bool
    include_usage: bool
    logprobs: bool
    replaced: tuple[str, ...]
    """Settings of the client that were replaced by the calibrated values."""


@dataclass(frozen=True, slots=True)
class GuardReply:
    """The guard's reply to a request: an answer, or the text of an abstention."""

    message: AIMessage
    verdict: Mapping[str, Any]
    """``Verdict.to_metadata()``."""
    shape: Literal["content_filter", "stop"] = "content_filter"
    """``finish_reason`` of an abstention's text, and of an answer that no gate judged."""
    fallback: str | None = None
    """Name of the model that answered in place of the guarded one."""

    @property
    def abstained(self) -> bool:
        """Whether the message is the text of an abstention, which answers nothing."""
        # A ticket beside an accepted answer is about the items of it that are held back.
        waits = self.ticket is not None and not passes(self.verdict)
        return ABSTAINED in self.message.response_metadata or waits

    @property
    def ticket(self) -> str | None:
        """Ticket under which a person decides."""
        ticket: str | None = (self.message.response_metadata.get("review") or {}).get("ticket")
        return ticket


# -- requests ---------------------------------------------------------------------------------------------------------


def read_body(content: bytes, most_values: int, *, model: bool = True) -> dict[str, Any]:
    """A request's body as a JSON object, which must name a model unless ``model`` is false.

    Raises:
        ApiError: It is not JSON, is too deep, repeats a name, has numbers or characters that JSON or UTF-8 lack, or
            more values than ``most_values``, or more messages, tools or metadata than OpenAI's API takes.
    """
    if has_more_values(content, most_values):
        way_out = "Send fewer, or ask the operator for a larger 'max_values' in the configuration."
        raise ApiError(400, f"The body has more than {most_values} JSON values. {way_out}", "too_many")
    try:
        # A repeated name is refused: the upstream could read its other value and answer that.
        body = jiter.from_json(content, allow_inf_nan=False, catch_duplicate_keys=True)
        for name, most in MOST.items() if isinstance(body, dict) else ():
            value = body.get(name)
            if isinstance(value, list | dict) and len(value) > most:
                raise invalid(name, f"has {len(value)} entries; at most {most} are served.", "too_many")
        fault = json_fault(body, packed=True)
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise ApiError(400, f"The body cannot be read as JSON: {fault}.", "invalid_json")
    if not isinstance(body, dict) or (model and not isinstance(body.get("model"), str)):
        raise ApiError(400, "The body must be a JSON object with a text 'model'.", "missing_field", "model")
    return body


def has_more_values(content: bytes, most: int) -> bool:
    """Whether a body has more JSON values than ``most``, or as many texts as only such a body has.

    It counts bytes before anything is parsed: a parser does not let other threads run until it has made all values.
    Each value but the first follows a comma or a bracket. Commas in texts count only if the exact count is needed.
    """

    def separators(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    if separators(content) < most:
        return False
    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * most:  # two quotes a text, and each value may have a name
        return True
    return separators(b"".join(unescaped.split(b'"')[::2])) >= most


def messages_of(body: Mapping[str, Any]) -> tuple[BaseMessage, ...]:
    """The messages of a request; an `ApiError` if none are given, or a message cannot be read."""
    unreadable, listed = partial(invalid, "messages", code="invalid_messages"), body.get("messages")
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise unreadable("must be a list of at least one message.")
    if not all(isinstance(entry.get("content"), str | list | None) for entry in listed):
        raise unreadable("has a 'content' that is not a text or a list of parts.")
    try:
        messages = convert_to_messages([{**entry, "content": entry.get("content") or ""} for entry in listed])
    except Exception as error:  # LangChain documents no error for malformed messages
        raise unreadable(
            "cannot be read: each needs a known 'role' (system, developer, user, assistant, tool) and the fields of "
            "that role, e.g. 'tool_call_id'."
        ) from error
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    if not all(isinstance(part, str) or isinstance(part.get("type"), str) for part in parts):
        raise unreadable("has a part without a text 'type'.")
    return tuple(messages)


def read_request(body: Mapping[str, Any], plan: SamplingPlan, config: Alias, *, mandatory: str = "") -> ChatRequest:
    """Read a request for the guard; refuse fields that would make run time differ from calibration.

    A field that is null counts as absent, since some clients send nulls. ``mandatory`` is the token limit, if every
    request of the client's protocol must have it.

    Raises:
        ApiError: Status 400 with the field in ``param``.
    """
    fields = {name: value for name, value in body.items() if value is not None and name not in config.ignore}
    drawing = {name: value for name, value in drawing_fields(fields).items() if name != "n"}
    # The answer of such a plan is a vote of several samples, which no setting of one call draws.
    wrong = sorted(drawing) if plan.primary == "majority" else unlike_plan(drawing, plan, config.upstream[0].extra_body)
    _check_fields(
        fields, drawing, plan, [name for name in wrong if not _replaced(name, fields, plan, config)], mandatory
    )
    options = fields.get("stream_options")
    return ChatRequest(
        messages=messages_of(fields),
        call=bindings_of(fields, plan),
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        logprobs=fields.get("logprobs") is True,
        replaced=tuple(wrong),
    )


def _replaced(name: str, fields: Mapping[str, Any], plan: SamplingPlan, config: Alias) -> bool:
    """Whether a setting that differs from the calibrated one is replaced, not refused."""
    if config.settings != "usual":
        return config.settings == "replace"
    value = fields[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return name in HABITS or (name in ("max_tokens", "max_completion_tokens") and value > plan.max_tokens)


def _check_fields(
    fields: Mapping[str, Any], drawing: Mapping[str, Any], plan: SamplingPlan, wrong: Sequence[str], mandatory: str
) -> None:
    for name in sorted(drawing.keys() - DRAWING):
        raise invalid(
            name,
            "may change how the answer is drawn, so it is refused. Leave it out; the operator may accept it "
            f"(--set ignore=[{name[:40]}], or in the gateway's file 'ignore: [{name[:40]}]' of this model).",
            "unknown_field",
        )
    if fields.get("n", 1) != 1:
        raise invalid("n", "must be 1 or absent: a guarded model gives one answer.", "setting_not_calibrated")
    if fields.get("store"):
        raise invalid("store", "must be false: the samples must not be kept.", "setting_not_calibrated")
    for name in wrong:
        value = fields[name]  # another protocol may say a boolean the other way round
        shown = "" if isinstance(value, bool) else f" ({str(value)[:60]})"
        way_out = f"Send at least {plan.max_tokens}" if name == mandatory else "Leave it out"
        raise invalid(
            name,
            f"would change how the answer is drawn{shown}; calibration fixed it. {way_out} (the calibrated settings "
            "are used), or ask the operator to start the gateway with --settings replace (in its file: "
            f"'settings: replace' of this model).",
            "setting_not_calibrated",
        )
    for name in ("top_logprobs", "logprobs"):  # sent back if they were measured; never silently left out
        if fields.get(name) and (name == "top_logprobs" or not plan.logprobs):
            raise invalid(name, "is not measured for this model. Leave it out.", "logprobs_not_measured")


def drawing_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that may change how its answer is drawn, apart from tools and answer format."""
    return {name: value for name, value in fields.items() if name == "n" or name not in APART}


def bindings_of(fields: Mapping[str, Any], plan: SamplingPlan) -> dict[str, Any]:
    """Tools and answer format of the request as keywords of the guard; an `ApiError` unless the artifact has them."""
    calibrated, sent = plan.bindings or Bindings(), dict[str, Any]()
    for name in ("tools", "tool_choice", "response_format"):
        value = fields.get(name)
        # Without tools, "none" is what the model does anyway.
        left = name == "tool_choice" and (value == "auto" or (value == "none" and "tools" not in sent))
        if not value or value == {"type": "text"} or left:
            continue
        sent[name] = value
        try:
            check_bindings(plan.bindings, bindings_for(**sent))
        except UsageError as error:
            raise invalid(name, "is malformed, or asks for what a guarded model cannot do.") from error
        except ArtifactMismatchError as error:
            way_out = f"Send the {name} of the calibration; the operator must calibrate again for others."
            raise ApiError(400, f"{error.fault} {way_out}", "binding_not_calibrated", name) from error
    for name in ("tools", "response_format"):
        if getattr(calibrated, name) and name not in sent:
            why = "was calibrated, and the request has none: every answer would be drawn with it."
            raise invalid(name, f"{why} Send the calibrated {name}.", "binding_not_calibrated")
    return sent


# -- replies ----------------------------------------------------------------------------------------------------------


_NEEDED = ("accepted", "reason", "uncertainty", "threshold", "alpha", "outcome", "basis", "artifact")


def explanation(verdict: Mapping[str, Any]) -> str:
    """The reason of a verdict and the next step, in a sentence that quotes neither prompt nor answer."""
    return without_quotes(_read(verdict))


def _read(verdict: Mapping[str, Any]) -> Verdict:
    return Verdict.from_stored({"candidate": None, **{name: verdict[name] for name in _NEEDED}})


def passes(verdict: Mapping[str, Any]) -> bool:
    """`Verdict.passes` of a verdict as plain JSON."""
    return _read(verdict).passes


def verdict_object(answer: GuardReply) -> dict[str, Any]:
    """The ``guardrail`` object of a reply; it quotes no answer."""
    verdict, measured = answer.verdict, answer.verdict["uncertainty"]
    more = {"unmeasured": measured["reason"], "fallback": answer.fallback}
    more["explanation"] = explanation(verdict) if answer.abstained or not verdict["accepted"] else None
    more |= {name: verdict.get(name) for name in ("handoff", "route", "turns", "stage", "held_back")}
    if "items" in verdict:
        more["items"] = [_part(item, shown=not answer.abstained) for item in verdict["items"]]
    return {
        **{name: verdict[name] for name in ("accepted", "reason", "threshold", "alpha", "artifact")},
        **{name: value for name, value in more.items() if value is not None},
        "abstained": answer.abstained, "uncertainty": measured["value"], "ticket": answer.ticket,
    }  # fmt: skip


def _part(item: Mapping[str, Any], *, shown: bool) -> dict[str, Any]:
    """An item without its words; its path has none of the model's words unless the answer is ``shown``."""
    content = {name: value for name, value in item.items() if name not in ("text", "named")}
    return content if shown or "named" not in item else {**content, "path": item["named"]}


def all_or_nothing(answer: GuardReply) -> GuardReply:
    """The reply for a client that takes no part of an answer: an abstention unless everything is kept."""
    if answer.verdict["reason"] != Reason.PARTLY_HELD_BACK or answer.abstained:
        return answer
    metadata = {**answer.message.response_metadata, ABSTAINED: True}
    message = answer.message.model_copy(update={"content": INCOMPLETE, "tool_calls": [], "response_metadata": metadata})
    verdict = {name: value for name, value in answer.verdict.items() if name != "candidate"}
    return replace(answer, message=message, verdict={**verdict, "accepted": False})


def headers_of(shown: Mapping[str, Any], replaced: Sequence[str] = ()) -> dict[str, str]:
    """The ``guardrail`` object of a reply as headers; a number that was not measured is an empty header."""
    values = {**shown, "replaced": ", ".join(replaced) or None}

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    names = [name for name in SHOWN if values.get(name) is not None or name in ("uncertainty", "threshold")]
    return {f"x-guardrail-{name}": text(values[name]) for name in names}


def completion(answer: GuardReply, request: ChatRequest, *, request_id: str, model: str) -> dict[str, Any]:
    """The reply to a request: a ``chat.completion``.

    An abstention is a text with ``finish_reason: content_filter``, which every client shows and recognises. For a
    caller that parses the answer it is OpenAI's refusal, since a text would look like a malformed answer.
    """
    message, finish = answer.message, _finish_of(answer)
    content: str | None = str(message.text)
    reply: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.abstained and "response_format" in request.call:
        reply, finish = {**reply, "content": None, "refusal": content}, "stop"
    elif answer.abstained or answer.verdict.get("handoff") == "unjudged_answer":
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
        "logprobs": _logprobs(answer) if request.logprobs and answer.verdict["accepted"] else None,
    }
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completed, "total_tokens": prompt + completed},
        "guardrail": {**verdict_object(answer), "request": request_id},
    }


def _finish_of(answer: GuardReply) -> str:
    """The finish reason of an answer: "length", which clients know as that of a part, unless it is known to be whole.

    An accepted answer of a model that never says why it ended is whole: such an artifact counts parts as answers.
    """
    end, calls = end_of(answer.message), bool(answer.message.tool_calls)
    if is_refusal(end):
        return "content_filter"
    if is_whole(end, calls=calls) or (end is None and passes(answer.verdict)):
        return "tool_calls" if calls else "stop"
    return "length"


def _logprobs(answer: GuardReply) -> dict[str, Any] | None:
    candidate = answer.verdict.get("candidate") or {}
    if not candidate.get("tokens"):
        return None
    spelled = candidate.get("token_bytes") or [token.encode().hex() for token in candidate["tokens"]]
    listed = [
        {"token": token, "logprob": value, "bytes": list(bytes.fromhex(raw)), "top_logprobs": []}
        for token, value, raw in zip(candidate["tokens"], candidate["logprobs"], spelled, strict=True)
    ]
    return {"content": listed, "refusal": None}


def chunks(reply: Mapping[str, Any], request: ChatRequest) -> Iterator[dict[str, Any]]:
    """A completion as the chunks of a stream: role, content, reason and verdict, and the token counts if wanted.

    The verdict stands in the first chunk as well, because openai-python's final completion keeps the further fields of
    that one alone.
    """
    (choice,) = reply["choices"]
    message = choice["message"]
    common = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    common |= {"usage": None} if request.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**common, "choices": [choice]}

    verdict = {"guardrail": reply["guardrail"]}
    yield {**chunk({"role": "assistant", "content": ""}), **verdict}
    for name in ("content", "refusal"):
        if message[name]:
            yield chunk({name: message[name]}, logprobs=choice["logprobs"] if name == "content" else None)
    for place, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": place, "function": {**function, "arguments": ""}}]})
        yield chunk({"tool_calls": [{"index": place, "function": {"arguments": function["arguments"]}}]})
    yield {**chunk({}, choice["finish_reason"]), **verdict}
    if request.include_usage:
        yield {**common, "choices": [], "usage": reply["usage"]}


# -- errors -----------------------------------------------------------------------------------------------------------


def is_settled(verdict: Mapping[str, Any]) -> bool:
    """Whether an identical request gets this verdict again: an answer, or an abstention that is a result.

    A failed transport and an alarm do not depend on the question, so another attempt selects nothing.
    """
    return passes(verdict) or any(_read(stage).is_result for stage in verdict.get("stages") or [verdict])


DOWN = "upstream_down"
"""Code of the error while an upstream that had replied no longer does."""
BEHIND: Mapping[str, tuple[int, str, str, str]] = {
    Unmeasured.MISCONFIGURED: (  # never 401: the client would blame its own key
        502, "guardrail_unmeasured", "The model behind the gateway cannot be reached with its configuration.",
        "the upstream answers no call; check its key, model name and url, and that the server runs there{hint}",
    ),
    Unmeasured.DEGENERATE_SAMPLES: (
        503, "guardrail_unavailable",
        "The model behind the gateway does not sample as the guard needs, so nothing is answered.",
        "a probe refused the upstream, so no question is answered ({detail})",
    ),
    Unmeasured.MODEL_CHANGED: (
        503, "guardrail_unavailable",
        "The model behind the gateway is not the one that was calibrated, so its answer is held back.",
        "the upstream answers as another model than the pinned one, so its answers are held back",
    ),
    Unmeasured.MODEL_FAILED: (
        503, "guardrail_unmeasured",
        "The model behind the gateway failed, so the answer could not be measured. Try again.",
        "the upstream failed or sent no JSON, so a question could not be measured",
    ),
    DOWN: (
        503, "server_error", "The model behind the gateway is down (since {since}). Try again.",
        "the upstream is down (since {since})",
    ),
}  # fmt: skip
"""Faults for which questions get errors: status, type and text of the error, and the sentence for operators."""


def upstream_down(since: str) -> ApiError:
    """The error for an upstream that had replied and no longer does, after which clients try again."""
    return unavailable(BEHIND[DOWN][2].format(since=since), DOWN)


def failure(verdict: Mapping[str, Any], message: str, down: str | None = None) -> ApiError:
    """An abstention as an error; ``down`` is the time from which an upstream that had replied no longer does.

    A measured abstention has a status that no client retries: retries would draw until a wrong answer looks certain.
    Only a failed transport is worth another attempt.
    """
    reason, code = verdict["reason"], verdict["uncertainty"]["reason"] or verdict["reason"]
    abstention = GuardReply(AIMessage(content="", response_metadata={ABSTAINED: True}), verdict)
    headers, more = headers_of(verdict_object(abstention)), {"x-should-retry": "false"}
    if down is not None and code in (Unmeasured.MISCONFIGURED, Unmeasured.MODEL_FAILED):
        outage = upstream_down(down)
        return replace(outage, headers={**headers, **outage.headers}, verdict=verdict)
    if reason == "infeasible":
        status, kind, code = 500, "guardrail_unavailable", reason
    elif reason != "unmeasured" or is_settled(verdict):
        status, kind, more = 400, "guardrail_abstained", {}
    else:
        failed = BEHIND[Unmeasured.MODEL_FAILED]
        status, kind, message, _ = cause = BEHIND.get(code, failed)
        more = AGAIN if cause is failed else more
    return ApiError(status, message, code, kind=kind, headers={**headers, **more}, verdict=verdict)
