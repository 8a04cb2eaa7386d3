"""Questions of clients: who asks what, and what a guard may answer. No I/O.

The tables of settings follow OpenAI's ``openapi.yaml`` 2.3.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages

from guardrail.bindings import bindings_for, check_bindings
from guardrail.errors import ArtifactMismatchError, UsageError, require
from guardrail.guard.comparability import unlike_plan
from guardrail.plain_json import sha256_hex
from guardrail.types import Bindings, SamplingPlan

from .._openai.requests import BOUND, PLANNED, SHAPING, TRANSPORT
from .config import Alias, Key
from .errors import ApiError, invalid
from .protocols.dialect import Dialect

orjson = require("orjson", extra="serve")

APART = TRANSPORT | BOUND | {
    "logprobs", "messages", "model", "n", "prompt_cache_options", "top_logprobs",
}  # fmt: skip
"""Fields that cannot change how an answer is drawn, or that have their own check."""
DRAWING = PLANNED | SHAPING | {
    "audio", "modalities", "moderation", "prediction", "verbosity", "web_search_options",
}  # fmt: skip
"""Fields that change how an answer is drawn: they must equal the calibrated ones."""
HABITS = frozenset({"temperature", "top_p", "seed"})
"""Settings that clients send by habit, without a wish for another answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A client's request for an answer, and who sends it."""

    number: str
    """The request's id."""
    body: Mapping[str, Any]
    size: int
    """Bytes of the body."""
    dialect: Dialect
    key: Key | None
    credential: str | None
    """Key for the upstream; None for the key in the configuration."""
    headers: Mapping[str, str]

    @property
    def model(self) -> str:
        """The alias that the client asked for."""
        return str(self.body["model"])

    @property
    def route(self) -> str | None:
        """Route of the client's key."""
        return None if self.key is None else self.key.route


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that the guard may answer."""

    question: Question
    digest: str
    """Digest of request and client, equal when the client repeats it."""
    messages: tuple[BaseMessage, ...]
    call: Mapping[str, Any]
    """Tools and answer format, as keywords for the guard."""
    whole: bool
    """Whether the client takes no part of an answer: all of it or an abstention."""
    stream: bool
    include_usage: bool
    logprobs: bool
    replaced: tuple[str, ...]
    """Settings of the client that were replaced by the calibrated values."""


def read_request(question: Question, plan: SamplingPlan, config: Alias) -> Asked:
    """Read a question for the guard; refuse fields that would make run time differ from calibration.

    Raises:
        ApiError: Status 400 with the field in ``param``.
    """
    dialect, ignored = question.dialect, config.ignore
    body = dialect.read({name: value for name, value in question.body.items() if name not in ignored}, plan)
    fields = {name: value for name, value in body.items() if name not in ignored}
    try:
        replaced = _replaced_settings(fields, plan, config, dialect.mandatory)
        messages, call = messages_of(fields), bindings_of(fields, plan)
    except ApiError as error:
        raise dialect.spelled(error) from error
    items = question.headers.get("x-guardrail-items")
    if items not in (None, "all"):  # a client that misspells it must not get a part of an answer
        rule = f"The header x-guardrail-items is 'all' or absent, got {items!r}."
        raise ApiError(400, rule, "unknown_items", "x-guardrail-items")
    options = fields.get("stream_options")
    meaning = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
    # An answer belongs to one client, credential and upstream: no other request may join.
    upstreams = [(upstream.url, upstream.model) for upstream in config.upstream]
    client = None if question.key is None else question.key.name
    who = (client, question.credential, question.route, items, meaning, upstreams)
    return Asked(
        question,
        digest=sha256_hex(repr(who).encode("utf-8", "surrogatepass")),
        messages=messages,
        call=call,
        whole=items == "all",
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        logprobs=fields.get("logprobs") is True,
        replaced=replaced,
    )


def _replaced_settings(fields: Mapping[str, Any], plan: SamplingPlan, config: Alias, mandatory: str) -> tuple[str, ...]:
    """The settings that the calibrated ones replace; an `ApiError` for any other that differs from these."""
    drawing = {name: value for name, value in drawing_fields(fields).items() if name != "n"}
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
    # The answer of such a plan is a vote of several samples, which no setting of one call draws.
    wrong = sorted(drawing) if plan.primary == "majority" else unlike_plan(drawing, plan, config.upstream[0].extra_body)
    for name in wrong:
        if not _is_replaced(name, fields[name], plan, config):
            raise _not_calibrated(name, fields[name], plan, mandatory)
    for name in ("top_logprobs", "logprobs"):  # sent back if they were measured; never silently left out
        if fields.get(name) and (name == "top_logprobs" or not plan.logprobs):
            raise invalid(name, "is not measured for this model. Leave it out.", "logprobs_not_measured")
    return tuple(wrong)


def _is_replaced(name: str, value: Any, plan: SamplingPlan, config: Alias) -> bool:
    """Whether a setting that differs from the calibrated one is replaced, not refused."""
    if config.settings != "usual":
        return config.settings == "replace"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return name in HABITS or (name in ("max_tokens", "max_completion_tokens") and value > plan.max_tokens)


def _not_calibrated(name: str, value: Any, plan: SamplingPlan, mandatory: str) -> ApiError:
    shown = "" if isinstance(value, bool) else f" ({str(value)[:60]})"  # another protocol may negate a boolean
    way_out = f"Send at least {plan.max_tokens}" if name == mandatory else "Leave it out"
    return invalid(
        name,
        f"would change how the answer is drawn{shown}; calibration fixed it. {way_out} (the calibrated settings are "
        "used), or ask the operator to start the gateway with --set settings=replace (in its file: 'settings: replace' "
        "of this model).",
        "setting_not_calibrated",
    )


def drawing_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that may change how its answer is drawn, apart from tools and answer format."""
    return {name: value for name, value in fields.items() if name == "n" or name not in APART}


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
