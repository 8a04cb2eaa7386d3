"""Golden conversations with `guardrail serve`: each protocol, plain and streamed, and everything it refuses."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from guardrail.bindings import bindings_for, json_format
from guardrail.parts.json_fields import json_spec
from guardrail.testing import make_artifact
from integrations._gateway.messages import MESSAGES
from integrations._gateway.responses import RESPONSES
from tests.golden.serving.conversation import Conversation, conversation
from tests.golden.shown import pretty, same
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE, cascade
from tests.integrations.gateway.test_gateway import ADD, MALFORMED, OTHER
from tests.integrations.gateway.test_messages import REFUSED as NOT_MESSAGES
from tests.integrations.gateway.test_messages import TOOL
from tests.integrations.gateway.test_responses import FUNCTION
from tests.integrations.gateway.test_responses import REFUSED as NOT_RESPONSES
from tests.integrations.gateway.test_texts import CHAT as NOT_CHAT

CITY = json_format({"title": "City", "type": "object", "properties": {"name": {"type": "string"}}})
ANSWERS = {
    SURE: ["Paris"],
    UNSURE: ["Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel"],
    "city?": ['{"name": "Paris"}'],
    "which city?": [json.dumps({"name": name}) for name in "ABCDEF"],
}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@pytest.fixture
def told(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Conversation]:
    """A conversation, titled by the first line of the test's docstring."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with conversation(tmp_path, ANSWERS, request.function.__doc__.splitlines()[0]) as begun:
        yield begun


def asked(protocol: str, question: str = SURE, **fields: Any) -> dict[str, Any]:
    """A request of a protocol."""
    turn = [{"role": "user", "content": question}]
    if protocol == "responses":
        return {"model": "support", "input": question, **fields}
    return {"model": "support", "messages": turn, **({"max_tokens": 4096} if protocol == "messages" else {}), **fields}


def strict(**more: Any) -> Any:
    return make_artifact(MODEL, threshold=0.1, n=4, **more)


# -- answers -----------------------------------------------------------------------------------------------------------

TOOLS: Mapping[str, Any] = {"chat": ADD, "responses": FUNCTION, "messages": TOOL}
FORMATS: Mapping[str, dict[str, Any]] = {
    "chat": {"response_format": CITY},
    "responses": {"text": {"format": {"type": "json_schema", **CITY["json_schema"]}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": CITY["json_schema"]["schema"]}}},
}
LOGPROBS: Mapping[str, dict[str, Any]] = {
    "chat": {"logprobs": True},
    "responses": {"include": ["message.output_text.logprobs"]},
}


@pytest.mark.parametrize("protocol", PATHS)
def test_answers(told: Conversation, protocol: str) -> None:
    """Answers and abstentions, plain and streamed"""
    path = PATHS[protocol]
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if protocol == "chat" else {}
    told.serve({"support": told.guard(strict(), settings="replace", ignore=["top_k"])})
    told.title("An answer that the gate accepts")
    told.ask("POST", path, asked(protocol))
    told.ask("POST", path, asked(protocol, stream=True, **more))
    told.title("An answer that it holds back; a setting of the client is replaced, another ignored")
    settings = {"temperature": 0.3, "top_k": 5}
    told.ask("POST", path, asked(protocol, UNSURE, **settings))
    told.ask("POST", path, asked(protocol, UNSURE, stream=True, **settings))
    told.log()
    told.title("An outage")
    told.endpoint.mode = "500"
    told.ask("POST", path, asked(protocol, "another?"))
    told.ask("POST", path, asked(protocol, "another?", stream=True))
    told.title("A stream that has begun before the verdict")
    told.serve({"support": told.guard(strict())}, stream_hold=0)
    told.ask("POST", path, asked(protocol, "another?", stream=True))
    told.endpoint.mode = "ok"
    told.ask("POST", path, asked(protocol, stream=True))
    told.log()
    told.title("Abstentions as errors")
    told.serve({"support": told.guard(strict(), on_abstain="error")})
    told.ask("POST", path, asked(protocol, UNSURE))
    told.ask("POST", path, asked(protocol, UNSURE, stream=True))
    told.log()
    told.ends_as(f"gateway/answers-{protocol}.txt")


@pytest.mark.parametrize("protocol", PATHS)
def test_tools_and_formats(told: Conversation, protocol: str) -> None:
    """Tool calls, answer formats and log-probabilities"""
    path, tools = PATHS[protocol], [TOOLS[protocol]]
    told.serve({"support": told.guard(strict(bindings=bindings_for([ADD])))})
    told.endpoint.mode = "tool"
    told.title("A call of a tool")
    told.ask("POST", path, asked(protocol, tools=tools))
    told.ask("POST", path, asked(protocol, tools=tools, stream=True))
    told.title("Its result, in a conversation that goes on")
    told.endpoint.mode, begin = "ok", len(told.endpoint.bodies)
    told.serve(
        {
            "support": told.guard(
                strict(bindings=bindings_for([ADD]), turns=("human,ai:1,tool", "human,ai,tool")), turns="mark"
            )
        }
    )
    told.endpoint.answers = {**ANSWERS, "3": ["Three"]}
    told.ask("POST", path, {**asked(protocol, tools=tools), **AFTER_TOOL[protocol]})
    told.received(since=begin)
    told.title("An answer in a format, and an abstention: a caller that parses it gets a refusal")
    told.serve({"support": told.guard(strict(bindings=bindings_for(response_format=CITY)))})
    told.ask("POST", path, asked(protocol, "city?", **FORMATS[protocol]))
    told.ask("POST", path, asked(protocol, "which city?", **FORMATS[protocol]))
    told.ask("POST", path, asked(protocol, "which city?", stream=True, **FORMATS[protocol]))
    if protocol in LOGPROBS:
        told.title("Log-probabilities, where they were measured")
        told.serve(
            {"support": told.guard(make_artifact(MODEL, threshold=9, n=4, estimator="length_normalised_entropy"))}
        )
        told.ask("POST", path, asked(protocol, **LOGPROBS[protocol]))
        told.ask("POST", path, asked(protocol, stream=True, **LOGPROBS[protocol]))
    told.ends_as(f"gateway/tools-{protocol}.txt")


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
AFTER_TOOL: Mapping[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    },
    "responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ]
    },
    "messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "1 + 2?", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "?", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
        ]
    },
}
"""The same conversation in each protocol."""


def test_other_ways_to_answer(told: Conversation) -> None:
    """Parts, fallbacks, tickets, cascades, infeasible artifacts and their explanations"""
    path = PATHS["chat"]
    first = {"city": "Rome", "zip": "00100"}
    others = [json.dumps({**first, "zip": str(number)}) for number in range(4)]
    told.endpoint.answers = {**ANSWERS, "extract": [json.dumps(first), *others]}
    told.title("Parts of an answer: the kept ones, or all or nothing")
    told.serve({"support": told.guard(make_artifact(MODEL, threshold=0.1, n=4, parts=json_spec(cap=4)))})
    told.ask("POST", path, asked("chat", "extract"))
    told.ask("POST", path, asked("chat", "extract"), {"x-guardrail-parts": "all"})
    told.ask("POST", path, asked("chat", "extract"), {"x-guardrail-parts": "some"})
    told.log()
    told.title("A fallback, which is guarded, or is not, or fails")
    large = told.guard(make_artifact(MODEL.model_copy(update={"model": "large"}), threshold=9, n=4))
    plain = {"upstream": told.upstream(model="plain"), "mode": "observe"}
    gone = {"upstream": told.upstream(url="http://127.0.0.1:1/v1", model="gone"), "mode": "observe"}
    support, large = told.guard(strict()), {**large, "upstream": told.upstream(model="large")}
    for name, fallback in (("large", large), ("plain", plain), ("gone", gone)):
        told.serve({"support": {**support, "fallback": name}, name: fallback})
        told.ask("POST", path, asked("chat", UNSURE))
        told.log()
    told.title("A ticket, under which a person decides")
    told.serve({"support": {**support, "on_abstain": "ticket"}}, reviews=str(told.folder / "reviews.db"))
    told.ask("POST", path, asked("chat", UNSURE))
    told.log()
    told.title("A ticket for a caller that parses the answer")
    formatted = told.guard(strict(bindings=bindings_for(response_format=CITY)), on_abstain="ticket")
    told.serve({"support": formatted}, reviews=str(told.folder / "reviews.db"))
    told.ask("POST", path, asked("chat", "which city?", response_format=CITY))
    told.log()
    told.title("A fault of the gateway")
    told.serve({"support": support})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(told.gateways[-1].aliases["support"], "guard", lambda credential: 1 / 0)
        told.ask("POST", path, asked("chat"))
    told.log()
    told.title("A cascade")
    cheap, dear = told.upstream(), told.upstream(model="large")
    told.serve({"support": told.guard(cascade(), upstream=[cheap, dear])})
    told.ask("POST", path, asked("chat"))
    told.ask("POST", path, asked("chat", UNSURE))
    told.log()
    told.title("An artifact that accepts nothing")
    infeasible = told.guard(make_artifact(MODEL, threshold=None, n=4))
    told.serve({"support": infeasible})
    told.ask("POST", path, asked("chat"))
    told.serve({"support": {**infeasible, "on_abstain": "error"}})
    told.ask("POST", path, asked("chat"))
    told.log()
    told.title("A text and a finish reason of the operator")
    told.serve({"support": {**support, "abstain_message": "Ask us by phone.", "finish_reason": "stop"}})
    told.ask("POST", path, asked("chat", UNSURE))
    told.title("Other turns than the calibrated ones")
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": SURE},
    ]
    told.ask("POST", path, asked("chat", messages=turns))
    told.serve({"support": {**support, "turns": "mark"}})
    told.ask("POST", path, asked("chat", messages=turns))
    told.log()
    told.ends_as("gateway/other-ways.txt")


FAULTS = (
    "echo_401", "html", "429", "400", "content_filter", "thinking", "refusal", "truncated", "reset", "n_ignored",
    "empty", "deep", "redirect", "no_seed", "n_capped", "list", "cut",
)  # fmt: skip


def test_faults_of_the_upstream(told: Conversation) -> None:
    """Faults of the upstream: the reply, the log and the warnings of /readyz"""
    guarded = told.guard(strict())
    for number, mode in enumerate(FAULTS):
        told.title(mode)
        told.serve({"support": guarded})
        told.endpoint.mode, told.endpoint.thought = mode, 999
        reply = told.send("POST", PATHS["chat"], asked("chat", f"question {number}?"))
        if reply.status_code == 200:
            choice, verdict = reply.json()["choices"][0], reply.json()["guardrail"]
            told.tell(f"200 {choice['finish_reason']} {choice['message']['content']}")
            told.tell(*(f"  {name}: {verdict[name]}" for name in ("unmeasured", "explanation") if name in verdict))
        else:
            told.row(mode, reply)
        told.tell(*(f"  {name}: {reply.headers[name]}" for name in AGAIN if name in reply.headers))
        told.log()
        ready = told.send("GET", "/readyz").json()
        told.tell(told.words.replace(f"readyz: {ready['ready']} {ready['reasons']} {ready['warnings']}"))
    told.ends_as("gateway/faults.txt")


AGAIN = ("retry-after", "x-should-retry")


PICTURES: Mapping[str, list[dict[str, Any]]] = {
    "responses": [
        {"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_image", "image_url": "https://h/a.png", "detail": "low"},
    ],
    "messages": [
        {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}},
    ],
}  # fmt: skip
CALLING = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": "é"}}
ASKED: Mapping[str, list[dict[str, Any]]] = {
    "responses": [
        {"input": "q", "instructions": "Be brief.", "user": "ann", "metadata": {"a": "b"}, "top_p": None},
        {"input": [{"role": "user", "content": PICTURES["responses"]},
                   {"role": "assistant", "content": [{"type": "output_text", "text": "A "},
                                                     {"type": "refusal", "refusal": "no"}]},
                   {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                   {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
                   {"type": "message", "role": "developer", "content": [{"type": "text", "text": "d"}]}]},
        {"input": "q", "tools": [{**FUNCTION, "strict": False}, {**FUNCTION, "name": "other", "strict": True}],
         "tool_choice": {"type": "function", "name": "add"}, "parallel_tool_calls": True, "stream": True},
        {"input": "q", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True},
                                "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"}},
        {"input": "q", "text": {"format": {"type": "json_object"}}, "max_output_tokens": 5,
         "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "truncation": "disabled"},
        {"input": "q", "text": {"format": {"type": "text"}}, "tool_choice": "none", "reasoning": {}},
    ],
    "messages": [
        {"system": "Be brief.", "metadata": {"user_id": "ann"}, "thinking": {"type": "disabled"}},
        {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}], "max_tokens": 5},
        {"messages": [{"role": "user", "content": PICTURES["messages"]},
                      {"role": "assistant", "content": [{"type": "text", "text": "A "}, {"type": "text", "text": "B"},
                                                        CALLING, {"type": "redacted_thinking", "data": "x"}]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"},
                                                   {"type": "text", "text": "And?"}]},
                      {"role": "assistant", "content": [{"type": "thinking", "thinking": "?", "signature": "s"}]},
                      {"role": "user", "content": []}]},
        *({"tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}], "tool_choice": choice}
          for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}, {"type": "none"},
                         {"type": "tool", "name": "add"}, {})),
        {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"output_format": {"type": "json_schema", "schema": {}}, "stop_sequences": ["x"], "stream": True},
    ],
}  # fmt: skip


def test_translations() -> None:
    """Requests of each protocol as chat completions, and replies of upstreams that are observed."""
    plan, told = strict(bindings=bindings_for(response_format=CITY)).plan, list[str]()
    for protocol, dialect in (("responses", RESPONSES), ("messages", MESSAGES)):
        for fields in ASKED[protocol]:
            translated = dialect.read({**asked(protocol, "q"), **fields}, plan)
            told.append(f"{protocol} {pretty(fields)}\n-> {pretty(translated)}\n")
    whole = {"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "A "},
                         {"type": "output_text", "text": "B"}]}], "status": "completed", "model": "m",
             "usage": {"input_tokens": 3, "output_tokens": 2}}  # fmt: skip
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    refusing = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    begun: dict[str, Any] = {
        "content": [],
        "stop_reason": None,
        "model": "m",
        "usage": {"input_tokens": 3, "output_tokens": 0},
    }
    block = {"type": "text", "text": ""}
    streamed: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun}, {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in ("A ", "B")),
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "c1", "name": "add", "input": {}}},
        *({"type": "content_block_delta", "index": 1, "delta": {"partial_json": t}} for t in ('{"a"', ": 1}")),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]  # fmt: skip
    message = {"type": "message", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 2}}
    thought = [{"type": "thinking"}, {"type": "text", "text": "A"}]
    answers: list[tuple[Any, list[dict[str, Any]]]] = [
        (RESPONSES, [whole]), (RESPONSES, [{"type": "x"}, {"type": "response.completed", "response": whole}]),
        (RESPONSES, [{**whole, "output": [call]}]), (RESPONSES, [{**whole, "output": [refusing]}]),
        (RESPONSES, [{**whole, "status": "incomplete", "usage": None}]), (RESPONSES, [{**whole, "status": "failed"}]),
        (MESSAGES, streamed),
        *((MESSAGES, [{**message, "content": thought, "stop_reason": stop}])
          for stop in ("end_turn", "max_tokens", "refusal", "stop_sequence")),
        (MESSAGES, [{**message, "content": [{"type": "tool_use", "id": "c", "name": "n", "input": {"a": 1}}],
                     "stop_reason": "tool_use"}]),
    ]  # fmt: skip
    for dialect, listed_events in answers:
        told.append(f"observed {dialect.path}: {pretty(dialect.observed(listed_events))}")
    same("gateway/translations.txt", "\n".join(told))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refused_requests(told: Conversation) -> None:
    """Requests that are refused: the request, the status, type, code and field of the error, and its text"""
    told.serve({"support": told.guard(strict())}, max_guarded_body=4000, max_body=9000, max_values=300)
    told.title("Bodies")
    head = {"content-type": "application/json"}
    for content, _ in MALFORMED:
        name = content.decode("latin-1")
        told.row(f"{name[:70]}{'...' * (len(name) > 70)}", told.send("POST", PATHS["chat"], content, head))
    for count, field in ((2049, "messages"), (129, "tools"), (17, "metadata")):
        entries: Any = {str(n): "" for n in range(count)} if field == "metadata" else [{}] * count
        told.serve({"support": told.guard(strict())})
        told.row(f"{count} {field}", told.send("POST", PATHS["chat"], {**asked("chat"), field: entries}))
    listed: tuple[tuple[str, list[dict[str, Any]]], ...] = (
        ("chat", [*({name: value} for name, value in OTHER.items()), *NOT_CHAT, {"logprobs": True, "top_logprobs": 2}]),
        ("responses", [fields for fields, _ in NOT_RESPONSES]),
        ("messages", [*(fields for fields, _ in NOT_MESSAGES), {"max_tokens": 10},
                      {"tool_choice": {"type": "tool", "name": "add"}}]),
    )  # fmt: skip
    told.row("400 values", told.send("POST", PATHS["chat"], json.dumps({"x": [0] * 400}), head))
    for protocol, wrong in listed:
        told.title(PATHS[protocol])
        for fields in wrong:
            told.row(json.dumps(fields), told.send("POST", PATHS[protocol], asked(protocol, **fields)))
    told.title("Requests that a configuration with tools and a format refuses")
    bound: tuple[tuple[Any, list[dict[str, Any]]], ...] = (
        (bindings_for([ADD]), [{}, {"tools": [ADD, ADD]}, {"tools": [ADD], "tool_choice": "none"}]),
        (bindings_for(response_format=CITY), [{}, {"response_format": {"type": "json_object"}}]),
    )
    for bindings, rows in bound:
        told.serve({"support": told.guard(strict(bindings=bindings))})
        for fields in rows:
            told.row(json.dumps(fields), told.send("POST", PATHS["chat"], asked("chat", **fields)))
    told.ends_as("gateway/refused.txt")


def test_refused_clients(told: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients, paths and limits"""
    path, head = PATHS["chat"], {"content-type": "application/json"}
    told.serve({"support": told.guard(strict())}, allowed_hosts=["gateway.example"])
    told.title("Paths and hosts, without keys")
    for method, url in (
        ("GET", "/"), ("GET", path), ("PUT", "/v1/models"), ("POST", "/v1/embeddings"), ("GET", "/v1/models/none"),
        ("GET", "/guardrail/v1/tickets/1"), ("POST", "/metrics"), ("GET", "/v1/" + "x" * 200),
    ):  # fmt: skip
        told.row(f"{method} {url[:40]}", told.send(method, url))
    for host in ("evil.example", "[::1", "127.0.0.2:8700"):
        told.row(f"host: {host}", told.send("GET", "/v1/models", None, {"host": host}))
    for host in ("localhost:1", "[::1]:8700", "gateway.example"):
        told.ask("GET", "/v1/models", None, {"host": host}, quiet=True).raise_for_status()
    told.row("content-type: text/plain", told.send("POST", path, "{}", {"content-type": "text/plain"}))
    told.row("content-length: x", told.send("POST", path, "{}", {**head, "content-length": "x"}))
    both = {**head, "content-length": "2", "transfer-encoding": "chunked"}
    reply = told.send("POST", path, "{}", both)
    told.row(f"content-length and transfer-encoding (connection: {reply.headers['connection']})", reply)
    told.ask("GET", "/v1/models")
    told.ask("GET", "/v1/models/support")
    told.ask("GET", "/healthz")

    told.title("Keys")
    key, other, slow = ("gr-" + letter * 43 for letter in "abc")
    rows = [
        {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), **more}
        for name, text, more in (
            ("ann", key, {"models": ["support"], "upstream_key": "sk-of-ann"}),
            ("bob", other, {"models": ["second"]}),
            ("eve", slow, {"requests_per_minute": 2}),
        )
    ]
    second = {"upstream": told.upstream(forward_key=True), "mode": "observe"}
    told.serve({"support": told.guard(strict()), "second": second}, keys=rows, host="0.0.0.0")
    told.words.add(key, "KEY-OF-ANN")
    told.words.add(other, "KEY-OF-BOB")
    told.words.add(slow, "KEY-OF-EVE")
    body = asked("chat")
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {key}"}, {"x-api-key": "é"}):
        shown = {name: value.encode() for name, value in headers.items()}
        told.row(json.dumps(headers), told.send("POST", path, body, shown))
    for headers in ({"authorization": f"bearer {key}"}, {"x-api-key": key}, {"api-key": key}, {"x-guardrail-key": key}):
        told.send("POST", path, body, headers).raise_for_status()
    told.received("authorization", since=len(told.endpoint.bodies) - 1)
    told.row("the key of bob", told.send("POST", path, body, {"api-key": other}))
    told.row("the key of ann, another model", told.send("POST", path, {**body, "model": "none"}, {"api-key": key}))
    second_body = {**body, "model": "second"}
    told.row("a model that needs the client's own key", told.send("POST", path, second_body, {"api-key": other}))
    told.row("the gateway's key alone", told.send("POST", path, second_body, {"authorization": f"Bearer {other}"}))
    told.send(
        "POST", path, second_body, {"x-guardrail-key": other, "authorization": "Bearer sk-own"}
    ).raise_for_status()
    told.received("authorization", since=len(told.endpoint.bodies) - 1)
    told.ask("GET", "/v1/models", None, {"api-key": other})
    told.ask("GET", "/readyz", None, {"api-key": other})
    told.ask("GET", "/readyz")
    clock = [1000.0]
    monkeypatch.setattr("integrations._gateway.app.time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    for _ in range(2):
        told.send("GET", "/v1/models", None, {"api-key": slow}).raise_for_status()
    told.ask("GET", "/v1/models", None, {"api-key": slow})
    told.send("GET", "/readyz", None, {"api-key": slow}).raise_for_status()
    clock[0] += 60
    told.send("GET", "/v1/models", None, {"api-key": slow}).raise_for_status()

    told.title("Limits")
    told.serve({"support": told.guard(strict()), "seen": {"mode": "observe"}}, max_guarded_body=200, max_body=300)
    told.row("a guarded request of 250 bytes", told.send("POST", path, asked("chat", "x" * 180)))
    told.row("301 bytes", told.send("POST", path, asked("chat", "x" * 300)))
    told.serve({"support": told.guard(strict()), "seen": {"mode": "observe"}}, max_concurrency=1, max_passing=1)
    gateway = told.gateways[-1]
    for counter, model in ((gateway._busy, "support"), (gateway._replies, "seen")):
        counter["another"] = 1
        told.ask("POST", path, {**body, "model": model})
        counter.clear()
    told.serve({"support": told.guard(strict())}, reply_bytes=10)
    told.ask("POST", path, body)
    told.ends_as("gateway/clients.txt")
