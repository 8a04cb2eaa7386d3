"""Golden texts of the models behind endpoints: requests and replies of each kind, every fault, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from guardrail.bindings import bindings_for
from guardrail.errors import GuardrailError, UsageError
from guardrail.sampling.batches import BatchReply
from guardrail.sampling.prober import probe
from guardrail.sampling.sampler import draw
from guardrail.types import SampleSet, SamplingPlan, ToolCall
from integrations import scorers
from integrations._openai import replies, requests
from integrations._openai.clients import ReplyBytes, proxy_of
from integrations._openai.endpoint import Endpoint as Address
from integrations._openai.endpoint import ReplyError, _retry_after, _wait
from integrations._openai.pins import Pin
from integrations.openai_chat import OpenAICompatibleChat, from_text
from tests.golden.serving.conversation import Lines, Script
from tests.golden.serving.test_shown_agents import Story
from tests.golden.shown import rounded, same
from tests.integrations.openai.faulty_endpoint import serving

KEY = "sk-very-secret-0123456789"
PLAN = SamplingPlan(n=3, max_tokens=20)
ANSWERS = {"sure?": ["Paris"], "unsure?": ["Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel"]}
FAULTS = (
    "400", "429", "500", "html", "list", "bomb", "empty", "redirect", "no_seed",
    "n_ignored", "one_too_many", "thinking", "refusal", "content_filter", "no_logprobs", "nan", "-inf", "tool",
    "echo_401",
)  # fmt: skip
STREAMS = ("ok", "cut_stream", "ends_with_text", "running_totals", "echo_stream", "500", "html", "tool", "refusal")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    with serving(Script(answers=ANSWERS)) as served:
        yield served  # type: ignore[misc]


UNSEEN: Any = {"samples": True, "primary": True, "cost": {"seconds"}}


def chat(endpoint: Script, **settings: Any) -> OpenAICompatibleChat:
    fields = {"model": "m", "base_url": endpoint.url, "api_key": KEY, "timeout": 60, "max_retries": 0}
    fields |= {"max_concurrency": 1, **settings}  # which of several calls fails first is up to chance
    return OpenAICompatibleChat(**fields)


def drawn_text(sample_set: SampleSet) -> str:
    """A sample set in one line."""
    shown = sample_set.model_dump(mode="json", exclude_defaults=True, exclude={"cost": {"seconds"}})
    return json.dumps(rounded(shown), ensure_ascii=False)


def test_requests_and_sample_sets(endpoint: Script) -> None:
    """The requests of each kind of plan, and the sample sets."""
    story = Story()
    story.words.add(urlsplit(endpoint.url).netloc, "endpoint")
    bound = bindings_for([pay])
    plans: dict[str, tuple[SamplingPlan, dict[str, Any], dict[str, Any]]] = {
        "one request each": (PLAN, {}, {}),
        "all samples together": (PLAN, {"several_per_call": True}, {}),
        "without seeds": (PLAN, {"send_seed": False}, {}),
        "the newer limit": (PLAN, {"token_limit": "max_completion_tokens", "extra_body": {"top_k": 3}}, {}),
        "log-probabilities": (PLAN.model_copy(update={"logprobs": True}), {}, {}),
        "stop strings": (PLAN.model_copy(update={"stop": ("\n",), "primary": "sampled"}), {}, {}),
        "options": (SamplingPlan(n=0, options=("Rome", "Oslo")), {}, {}),
        "options and samples": (SamplingPlan(n=1, options=("Rome", "B"), logprobs=True), {}, {}),
        "tools": (PLAN, {}, {"tools": list(bound.tools), "tool_choice": "required"}),
        "further samples": (PLAN, {}, {"primary": False}),
    }
    for name, (plan, settings, more) in plans.items():
        endpoint.bodies.clear()
        endpoint.options = {"Rome": -0.5, "Oslo": -1.5} if plan.options else {}
        (found,) = chat(endpoint, **settings).draw_samples([[HumanMessage("unsure?")]], plan, seeds=[7], **more)
        story.title(name)
        story.tell(*sorted(json.dumps(body, sort_keys=True) for body in endpoint.bodies), drawn_text(found))
    story.title("batch requests")
    for together in (False, True):
        model = chat(endpoint, several_per_call=together)
        (of_prompt,) = model.batch_requests([[HumanMessage("sure?")]], PLAN, seeds=[7])
        story.tell(*(f"{name}: {json.dumps(body, sort_keys=True)}" for name, body in of_prompt.items()))
        whole = {name: BatchReply(200, json.dumps(endpoint.completion(body, "ok")).encode(), "")
                 for name, body in of_prompt.items()}  # fmt: skip
        failed = {name: BatchReply(429, b"", "slow down") for name in of_prompt}
        for some in (whole, failed):
            story.tell(
                *map(drawn_text, model.batch_sample_sets([[HumanMessage("sure?")]], PLAN, seeds=[7], replies=[some]))
            )
    same("models/requests.txt", "\n".join(story._told))


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def test_faults(endpoint: Script) -> None:
    """Each fault of an endpoint: the sample set, the error of a plain call, the reply to a probe, and the log."""
    told, log = Story(), Lines()
    told.words.add(urlsplit(endpoint.url).netloc, "endpoint")
    endpoint.thought = 999
    for mode in FAULTS:
        told.title(mode)
        model = chat(endpoint, max_reply=2_000_000)
        endpoint.mode = mode
        (found,) = draw(model, [[HumanMessage("unsure?")]], PLAN.model_copy(update={"logprobs": True}))
        shown = found.model_dump(mode="json", exclude=UNSEEN, exclude_defaults=True)
        told.tell(f"{len(found.samples)} samples: {json.dumps(shown)}")
        try:
            message = model.invoke("unsure?", max_tokens=20)
        except GuardrailError as error:
            told.tell(f"{type(error).__name__}: {error}")
        else:
            kept = {k: v for k, v in message.response_metadata.items() if k != "logprobs"}
            told.tell(f"{message.content[:60]!r} {message.tool_calls} {message.additional_kwargs} {kept}")
            told.tell(str(message.usage_metadata))
        report, answers = probe(model, PLAN, again=True)
        told.tell(f"probe: {'none' if report is None else report.model_dump(exclude={'cost'}, exclude_defaults=True)}")
        del answers
    endpoint.mode = "ok"
    told.title("pins")
    import logging

    logging.getLogger("guardrail").addHandler(log)
    for pin in ({"model": "other"}, {"system_fingerprint": "fp_2", "on_change": "warn"}):
        (found,) = draw(chat(endpoint, pin=Pin.model_validate(pin)), [[HumanMessage("sure?")]], PLAN)
        told.tell(f"{pin}: {found.problem} {found.problem_detail}")
    (found,) = draw(chat(endpoint, system_fingerprint="fp_3"), [[HumanMessage("sure?")]], PLAN)
    told.tell(f"bound: {found.problem} {found.problem_detail}")
    logging.getLogger("guardrail").removeHandler(log)
    told.tell(*(f"log: {line}" for line in log.lines))
    same("models/faults.txt", "\n".join(told._told))


def test_streams(endpoint: Script) -> None:
    """Streams: each chunk, and how they fail."""
    told = Story()
    told.words.add(urlsplit(endpoint.url).netloc, "endpoint")
    endpoint.answers = {"q": ["one two"]}
    for mode in STREAMS:
        endpoint.mode = mode
        told.title(mode)
        try:
            for chunk in chat(endpoint).stream("q"):
                shown = {"content": chunk.content, "calls": chunk.tool_call_chunks, "usage": chunk.usage_metadata,
                         **chunk.additional_kwargs, **chunk.response_metadata}  # fmt: skip
                told.tell(json.dumps({name: value for name, value in shown.items() if value}))
        except GuardrailError as error:
            told.tell(f"{type(error).__name__}: {error}")
    told.tell(json.dumps(endpoint.bodies[-1], sort_keys=True))
    chat_without = chat(endpoint, stream_usage=False)
    endpoint.mode = "ok"
    list(chat_without.stream("q"))
    told.tell(json.dumps(endpoint.bodies[-1], sort_keys=True))
    told.failure("several answers", lambda: list(chat_without.stream("q", n=2)))
    same("models/streams.txt", "\n".join(told._told))


class City(BaseModel):
    name: str


def test_tools_and_structured_output(endpoint: Script) -> None:
    """What tools and answer formats send, and objects that are read."""
    told = Story()
    model = chat(endpoint)
    endpoint.answers = {"q": ['{"name": "Paris"}'], "bad": ["Paris"]}

    @tool
    def close(account: str) -> str:
        """Close an account."""
        return account

    for choice in (None, "auto", "none", "any", True, False, "close", {"type": "function", "function": {"name": "x"}}):
        bound: Any = model.bind_tools([close], tool_choice=choice, strict=True if choice is None else None)
        told.tell(f"{choice!r}: {json.dumps(bound.kwargs)}")
    told.failure("another tool", lambda: model.bind_tools([close], tool_choice="open"))
    told.failure("no tools", lambda: model.bind_tools([], tool_choice="open"))
    for method in ("json_schema", "function_calling", "json_mode", "xml"):
        for strict in (None, True):
            try:
                how: Any = method
                reader = model.with_structured_output(City, method=how, strict=strict, include_raw=how == "json_mode")
                endpoint.mode = "ok"
                answer = reader.invoke("q")
                told.tell(f"{method} {strict}: {answer['parsed'] if isinstance(answer, dict) else answer!r}")
                body = {name: value for name, value in endpoint.bodies[-1].items() if name != "messages"}
                told.tell(f"  {json.dumps(body)}")
            except UsageError as error:
                told.tell(f"{method}: {error}")
    for question, mode in (("bad", "ok"), ("q", "thinking")):
        endpoint.mode, endpoint.thought = mode, 999
        try:
            model.with_structured_output(City).invoke(question, max_tokens=20)
        except OutputParserException as error:
            told.tell(f"{question} {mode}: {type(error).__name__} {str(error) if mode == 'thinking' else ''}")
    same("models/structured.txt", "\n".join(told._told))


def test_refused_models(endpoint: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, settings and fields that are refused, and what a model shows of itself."""
    told = Story()
    told.words.add(urlsplit(endpoint.url).netloc, "endpoint")
    rows: list[dict[str, Any]] = [
        {"api_key": None, "base_url": None}, {"base_url": "h/v1"}, {"base_url": "http://u:p@h/v1"}, {"temperature": -1},
        {"top_p": 0}, {"top_p": 1.5}, {"max_tokens": 0}, {"timeout": 0}, {"max_retries": -1}, {"max_reply": 0},
        {"max_concurrency": 0}, {"token_limit": "max"}, {"extra_body": {"seed": 1, "n": 2, "top_k": 1}}, {"pin": {}},
    ]  # fmt: skip
    for row in rows:
        told.failure(str(row), lambda: chat(endpoint, **row))  # noqa: B023
    told.failure("an unknown setting", lambda: chat(endpoint).invoke("q", top_k=3))
    told.failure("no text", lambda: from_text(""))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for text in ("gpt", "a@http://h:1/v1", "a@b@https://h/v1"):
        named = from_text(text)
        told.tell(f"{text}: {named.model} {named.base_url}")
    shown = chat(
        endpoint, default_headers={"x": "secret"}, extra_body={"a": 1}, pin=Pin(model="m"), system_fingerprint="f"
    )
    told.tell(
        re.sub(r"metadata=\{.*?\}\}, ", "", repr(shown)),
        str(shown._identifying_params),
        str(shown.lc_secrets),
        shown._llm_type,
    )
    told.json(shown.guardrail_identity().model_dump())
    own = [name for name in OpenAICompatibleChat.model_fields if name in OpenAICompatibleChat.__annotations__]
    for name in own:
        field = OpenAICompatibleChat.model_fields[name]
        told.tell(f"{name}: {'required' if field.is_required() else field.get_default(call_default_factory=True)}")
    same("models/refused.txt", "\n".join(told._told))


def test_errors_without_secrets() -> None:
    """Descriptions of errors without keys, and the waits before another attempt."""
    address = Address("m", KEY, "http://h:1/v1/path", {"X-Own": "Bearer abcdefgh-1234"}, 5, 2, 10, None)  # type: ignore[arg-type]
    told = []
    body = {"error": {"message": f"no {KEY}", "code": "bad", "type": "auth"}}
    for error in (
        ReplyError(401, body, {}), ReplyError(500, "text", {}), ReplyError(None, {"message": KEY}, {}), None,
        ValueError(f"{KEY} at http://h:1/v1/path with abcdefgh-1234"), ValueError("x" * 500), TimeoutError(),
    ):  # fmt: skip
        told.append(f"{type(error).__name__}: {address.describe_error(error)}")
        failure = address.failure(error)
        told.append(f"  {type(failure).__name__} {failure.status_code}: {failure}"[:300])
    now = datetime.now(UTC)
    for headers in (
        {}, {"retry-after": "3"}, {"retry-after-ms": "250", "retry-after": "9"}, {"retry-after": "-1"},
        {"retry-after": "x"}, {"retry-after": "inf"}, {"retry-after-ms": "x", "retry-after": "2"},
    ):  # fmt: skip
        told.append(f"{headers}: {_retry_after(headers)}")
    later = _retry_after({"retry-after": format_datetime(now + timedelta(seconds=100))})
    past = _retry_after({"retry-after": format_datetime(now - timedelta(hours=1))})
    told.append(f"a date: {later is not None and 90 < later <= 100}, past: {past}")
    for status in (None, 200, 400, 401, 404, 408, 409, 413, 422, 429, 500, 503):
        waits = [
            _wait(ReplyError(status, "", {}), attempt, 5, left) for attempt in (1, 2, 5, 6) for left in (100.0, 0.1)
        ]
        bounds = [None if wait is None else next(top for top in (0.5, 1, 2, 4, 8) if wait <= top) for wait in waits]
        told.append(f"{status}: {bounds}")
    same("models/errors.txt", "\n".join(told))


def test_replies() -> None:
    """Replies as they are read: choices, counts, calls, options."""
    told = Story()
    choice = {"index": 0, "message": {"content": "a"}}
    for content in (
        b"", b"<html>", b"{", b"[1]", b'"x"', b'{"a": "\\ud800"}', b"\xff", b'{"choices": []}', b'{"error": "down"}',
        b'{"choices": [1]}', b'{"choices": [{}]}', '{"choices": [{"message": {"content": "é"}}]}'.encode("utf-16"),
    ):  # fmt: skip
        told.failure(repr(content[:40]), lambda: replies.choices_of(replies.parsed(content)))  # noqa: B023
    long = {"choices": [{"message": {"content": "x" * 2000}}]}
    told.failure("too long", lambda: replies.choices_of(long, max_tokens=10))
    told.failure("long enough", lambda: replies.choices_of(long, max_tokens=16))
    several = {
        "choices": [{**choice, "index": 1}, {"message": {"content": "b"}, "index": 0}, {"message": {}, "index": "x"}]
    }
    told.tell(str([entry.get("index") for entry in replies.choices_of(several)]))
    for usage in ({}, None, 5, {"prompt_tokens": 1, "completion_tokens": 2}, {"prompt_tokens": True},
                  {"prompt_tokens": -1}, {"prompt_tokens": 2**53}, {"prompt_tokens": 1.0}):  # fmt: skip
        told.tell(f"{usage}: {dict(replies.usage_of({'usage': usage}))}")
    raw = [5, {}, {"function": {"name": "f"}}, {"id": "i", "function": {"name": "f", "arguments": '{"a": 1}'}},
           {"function": {"name": "f", "arguments": "[1]"}}, {"function": {"name": "f", "arguments": '{"a": NaN}'}},
           {"function": {"name": "f", "arguments": {"a": 1}}}]  # fmt: skip
    calls, invalid = replies.tool_calls_of(raw)
    told.tell(*map(str, calls), *(f"invalid: {each['name']} {each['args']} {each['id']}" for each in invalid))
    for name, listed in (
        ("A,B", {"A": -0.5, " A": -1.5, "B": -2.0}),
        ("A,AB", {}),
        ("A,C", {"A": -0.1}),
        ("A,B", {"A": 0.5, "B": -1}),
    ):
        tops = [{"token": token, "logprob": value} for token, value in listed.items()]
        scores = replies.option_scores({"logprobs": {"content": [{"top_logprobs": tops}]}}, name.split(","))
        told.tell(f"{name} {listed}: {scores if isinstance(scores, str) else rounded(scores.model_dump())}")
    told.tell(str(replies.option_scores({}, ["A"])))
    message = replies.message_of(
        {"message": {"content": [1], "refusal": "no", "tool_calls": None}, "finish_reason": "stop",
         "logprobs": {"content": []}},
        {"model": "m", "system_fingerprint": "f"}, None,
    )  # fmt: skip
    told.tell(f"{message.content!r} {message.additional_kwargs} {message.response_metadata}")
    result = replies.chat_result(
        json.dumps({"choices": [choice, choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode(), "m"
    )
    generations: list[Any] = list(result.generations)
    told.tell(
        str(result.llm_output), *(f"{each.message.usage_metadata} {each.generation_info}" for each in generations)
    )
    call: Any = {"name": "f", "args": {}, "id": "c"}
    messages = [SystemMessage("s"), AIMessage("", tool_calls=[call]), ToolMessage("t", tool_call_id="c")]
    settings = {"model": "m", "max_completion_tokens": 5, "seed": None, "tools": [], "tool_choice": "x"}
    settings["parallel_tool_calls"] = True
    body = requests.body_of(messages, settings, ["."], limit_name="max_completion_tokens", extra={"k": 1})
    told.json(body)
    room = ReplyBytes(10)
    with room.question() as first, room.question() as second:
        told.tell(f"{first()} {second()}")
    same("models/replies.txt", "\n".join(told._told))


def test_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of an address, by the environment."""
    told = []
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for environment in ({}, {"https_proxy": "http://p:1"}, {"all_proxy": "p:2", "no_proxy": "h.test"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        proxy_of.cache_clear()
        told.append(f"{environment}: {[proxy_of(url) for url in ('https://h.test/v1', 'http://other.test/v1')]}")
    proxy_of.cache_clear()
    same("models/proxies.txt", "\n".join(told))


# -- scorers -----------------------------------------------------------------------------------------------------------


def test_identities_of_scorers(endpoint: Script) -> None:
    """Names, digests and refusals of the ready-made scorers."""
    told = Story()
    told.words.add(urlsplit(endpoint.url).netloc, "endpoint")
    model = chat(endpoint)
    for own in (
        scorers.stated_confidence(model), scorers.stated_confidence(model, instructions="Sure?", timeout=5),
        scorers.p_true(model), scorers.evaluated(lambda inputs, outputs: {"score": 1.0}, params={"a": 1}),
        scorers.evaluated(print, params={}, version=2, higher="uncertain", name="mine", timeout=3),
    ):  # fmt: skip
        told.json(
            {
                "spec": own.estimator.spec.model_dump(mode="json"),
                "params": own.params,
                "reads": own.reads,
                "timeout": own.timeout,
            }
        )
    call = {"name": "pay", "args": {"amount": 2}, "id": "c1", "type": "tool_call"}
    messages = [
        SystemMessage("s"),
        HumanMessage("h"),
        AIMessage("said", tool_calls=[call]),
        ToolMessage("t", tool_call_id="c1"),
        AIMessage(""),
    ]
    told.json(scorers._items(messages, "answer", ()))
    told.json(scorers._items([HumanMessage("h")], "answer", [ToolCall(name="pay", arguments={"amount": 3})]))
    told.failure("another model", lambda: scorers._by("a", "a-2026", 0.5))
    told.tell(str(scorers._by("a", "a", 0.5)))
    same("models/scorers.txt", "\n".join(told._told))
