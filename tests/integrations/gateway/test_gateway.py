"""`guardrail serve` on a real socket: what clients send and get."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from guardrail import scorer
from guardrail.bindings import bindings_for, json_format
from guardrail.describe import promises
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.prompting import PromptWrapping
from guardrail.review.item import Candidate, Content, Decision
from guardrail.review.store import ReviewStore
from guardrail.testing import make_artifact
from guardrail.types import ToolCall
from integrations._gateway import metrics
from integrations._gateway.config import new_key
from integrations.telemetry import Telemetry
from tests.integrations.gateway.conftest import ANSWERS, MODEL, SURE, UNSURE, Held, Serve, cascade
from tests.integrations.openai.faulty_endpoint import serving

PLAN = make_artifact(MODEL, threshold=0.1, n=4).plan
TICKETS = "/guardrail/v1/tickets/"
PASSED = {"upstream": {"url": "http://127.0.0.1:1", "model": "m", "key": "k"}, "mode": "observe"}
NULLS: dict[str, Any] = {"temperature": None, "tools": None, "stop": None}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def request_fields(question: str) -> Any:
    return {"model": "support", "messages": [{"role": "user", "content": question}]}


def key_named(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    key, line = new_key(name)
    return key, {"name": name, "sha256": line.partition("sha256: ")[2].rstrip("}"), **more}


# -- answers, abstentions, streams, through the clients ----------------------------------------------------------------


def test_openai_gets_answer_and_abstention(serve: Serve, endpoint: Held) -> None:
    served = serve()
    client = served.openai()
    answer = client.chat.completions.with_raw_response.create(**request_fields(SURE), **NULLS, user="ann", seed=None)
    parsed: Any = answer.parse()
    assert (parsed.choices[0].message.content, parsed.choices[0].finish_reason) == ("Paris", "stop")
    assert (parsed.usage.prompt_tokens, parsed.usage.total_tokens) == (35, 40)  # of all five calls
    assert parsed.guardrail["accepted"]
    assert parsed.guardrail["request"] == answer.headers["x-request-id"]
    assert answer.headers["x-guardrail-uncertainty"] == "0"
    abstained = client.chat.completions.with_raw_response.create(**request_fields(UNSURE))
    parsed = abstained.parse()
    assert (parsed.choices[0].message.content, parsed.choices[0].finish_reason) == (ABSTENTION, "content_filter")
    assert (parsed.guardrail["reason"], parsed.guardrail["abstained"]) == ("above_threshold", True)
    why = parsed.guardrail["explanation"]
    assert re.fullmatch(r"The uncertainty [\d.]+ is above the calibrated threshold 0\.1\. Hand the question .*", why)
    assert abstained.headers["x-guardrail-accepted"] == "false"
    assert "Rome" not in abstained.text
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-upstream"}


def test_openai_gets_streams(serve: Serve, endpoint: Held) -> None:
    client = serve().openai()
    for question, text, finish in ((SURE, "Paris", "stop"), (UNSURE, ABSTENTION, "content_filter")):
        events: Any = list(
            client.chat.completions.create(
                **request_fields(question), stream=True, stream_options={"include_usage": True}
            )
        )
        assert events[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in events if chunk.choices) == text
        assert [chunk.choices[0].finish_reason for chunk in events if chunk.choices][-1] == finish
        assert [chunk.usage is None for chunk in events] == [True] * (len(events) - 1) + [False]
        assert events[-2].guardrail["accepted"] == (question == SURE)
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in events}) == 1
    assert len(endpoint.bodies) == 10
    assert not any(body.get("stream") for body in endpoint.bodies)


def test_the_final_completion_of_a_streaming_helper_keeps_the_verdict(serve: Serve) -> None:
    """As docs/start/app.md reads it; the helper keeps the fields of the first event alone."""
    client = serve({"finish_reason": "stop"}).openai()
    for question, abstained in ((SURE, False), (UNSURE, True)):
        with client.chat.completions.stream(**request_fields(question)) as stream:
            streamed = stream.get_final_completion()
        for reply in (streamed, client.chat.completions.parse(**request_fields(question))):
            assert (reply.model_extra or {})["guardrail"]["abstained"] is abstained


def test_langchain_gets_answer_abstention_and_stream(serve: Serve, endpoint: Held) -> None:
    url = f"{serve().url}/v1"
    chat = ChatOpenAI(
        base_url=url, api_key="any", model="support", max_retries=0, include_response_headers=True, stream_usage=True
    )
    answer, abstention = chat.invoke(SURE), chat.invoke(UNSURE)
    assert (answer.content, answer.response_metadata["finish_reason"]) == ("Paris", "stop")
    assert (abstention.content, abstention.response_metadata["finish_reason"]) == (ABSTENTION, "content_filter")
    assert abstention.response_metadata["headers"]["x-guardrail-reason"] == "above_threshold"
    chunks = list(chat.stream(UNSURE))
    assert "".join(str(chunk.content) for chunk in chunks) == ABSTENTION
    endpoint.mode = "500"
    with pytest.raises(openai.InternalServerError):
        chat.invoke("another?")


def test_what_is_sent_is_what_openai_describes(serve: Serve) -> None:
    served = serve()
    for question in (SURE, UNSURE):
        ChatCompletion.model_validate(served.ask(question).json(), strict=True)
        lines = [
            event.removeprefix("data: ") for event in served.ask(question, stream=True).text.split("\n\n") if event
        ]
        assert lines.pop() == "[DONE]"
        for line in lines:
            ChatCompletionChunk.model_validate(json.loads(line), strict=True)


def test_a_conversation_is_judged_as_it_is(serve: Serve, endpoint: Held) -> None:
    artifact = make_artifact(MODEL, threshold=0.1, n=4, turns=("human,ai,human",))
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "Hi", "refusal": None},
        {"role": "user", "content": SURE},
    ]
    served = serve(artifact=artifact)
    assert served.ask(messages=turns).json()["choices"][0]["message"]["content"] == "Paris"
    assert [message["content"] for message in endpoint.bodies[0]["messages"]] == ["hello", "Hi", SURE]
    refused = served.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_as_calibrated")


class Sum(BaseModel):
    total: int


def test_tools_and_formats_are_exactly_the_calibrated_ones(serve: Serve, endpoint: Held) -> None:
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([ADD])))
    endpoint.mode = "tool"
    reply = served.ask(tools=[ADD], tool_choice="auto", parallel_tool_calls=True).json()
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    with served.openai().chat.completions.stream(**request_fields(SURE), tools=[ADD]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
    other = {**ADD, "function": {**ADD["function"], "name": "subtract"}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "tools"),
        ({"tools": [other]}, "tools"),
        ({"tools": [ADD], "tool_choice": "none"}, "tool_choice"),
    ]
    for fields, param in wrong:
        refused = served.ask(**fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_an_abstention_is_a_refusal_to_whom_parses(serve: Serve, endpoint: Held) -> None:
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for((), response_format=Sum)))
    message = (
        served.openai()
        .chat.completions.parse(**request_fields(UNSURE), response_format=cast(Any, json_format(Sum)))
        .choices[0]
    )
    assert (message.message.content, message.message.refusal, message.finish_reason) == (None, ABSTENTION, "stop")
    events = served.ask(UNSURE, response_format=json_format(Sum), stream=True).text
    assert f'"refusal": "{ABSTENTION}"' in events
    assert served.ask(UNSURE).json()["error"]["param"] == "response_format"


def test_log_probabilities_are_given_or_refused(serve: Serve) -> None:
    served = serve(artifact=make_artifact(MODEL, threshold=9, n=4, estimator="length_normalised_entropy"))
    (token,) = served.ask(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert token == {"token": "Paris", "logprob": -1.5, "bytes": list(b"Paris"), "top_logprobs": []}
    assert served.ask(logprobs=True, top_logprobs=2).json()["error"]["param"] == "top_logprobs"
    assert serve().ask(logprobs=True).json()["error"]["param"] == "logprobs"


# -- what is refused ---------------------------------------------------------------------------------------------------


HABITS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.5, "seed": 1, "max_tokens": 4096}


def test_settings_that_clients_send_by_habit_are_replaced_and_named(serve: Serve, endpoint: Held) -> None:
    """An application changes its base URL alone; its answer is drawn as calibrated, and the reply says so."""
    reply = serve().ask(**HABITS)
    assert (reply.status_code, reply.json()["guardrail"]["accepted"]) == (200, True)
    assert reply.headers["x-guardrail-replaced"] == "max_tokens, seed, temperature, top_p"
    greedy = endpoint.bodies[0]
    assert (greedy["temperature"], greedy["max_tokens"], "top_p" in greedy) == (0.0, PLAN.max_tokens, False)
    strict = serve({"settings": "refuse"})
    for name, value in HABITS.items():
        refused = strict.ask(**{name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert "--set settings=replace (in its file: 'settings: replace'" in refused.json()["error"]["message"]


def test_calibrated_settings_pass_and_others_may_be_replaced(serve: Serve, endpoint: Held) -> None:
    same: dict[str, Any] = {
        "temperature": 0,
        "top_p": 1,
        "max_tokens": PLAN.max_tokens,
        "n": 1,
        "frequency_penalty": 0,
        "store": False,
        "stop": [],
    }
    served = serve()
    assert served.ask(**same, metadata={"a": "b"}, response_format={"type": "text"}).status_code == 200
    served = serve({"settings": "replace", "ignore": ["top_k"]})
    reply = served.ask(temperature=0.3, seed=4, top_k=5)
    assert (reply.status_code, reply.headers["x-guardrail-replaced"]) == (200, "seed, temperature")
    assert "top_k" not in endpoint.bodies[-1]
    assert served.ask(n=2).status_code == 400  # never replaced


MALFORMED = [
    (b"", 400), (b"{", 400), (b"[1]", 400), (b'{"model": 1}', 400), (b'{"model": "support"}', 400),
    (b'{"model": "support", "x": NaN}', 400), (b'{"model": "support", "x": 1e999}', 400),
    (b'{"model": "support", "seed": ' + b"9" * 30 + b"}", 400), (b'{"model": "support", "x": "\\ud800"}', 400),
    (b'{"model": "support", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400), (b'{"model": "\xff"}', 400),
    (b'{"model": "support", "messages": [{"role": "robot", "content": "x"}]}', 400),
    (b'{"model": "support", "messages": []}', 400), (b'{"model": "other"}', 404), (b"x" * 30_000, 413),
    *((json.dumps({**request_fields(SURE), **more}).encode(), 400) for more in (
        {"messages": [{"role": "user", "content": 0}]},
        {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]},
        {"tools": [{"type": 5}]}, {"tools": [{"toolSpec": {"name": "a"}}]}, {"tool_choice": {"function": 5}},
        {"response_format": {"type": "json_schema", "json_schema": 5}},
    )),
    (b'{"model": "other", ' + json.dumps(request_fields(SURE)).encode()[1:], 400),  # which of the two is it?
]  # fmt: skip


def test_malformed_bodies_are_refused_in_openais_shape(serve: Serve) -> None:
    served, head = serve(max_body=20_000), {"content-type": "application/json"}
    for content, status in MALFORMED:
        for body in (content, iter([content])):  # with a Content-Length, and in chunks without
            reply = served.http.post("/v1/chat/completions", content=body, headers=head)
            assert reply.status_code == status
            assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


def test_everything_else_is_404_and_names_the_setting(serve: Serve) -> None:
    served = serve()
    assert "pass_through" in served.http.post("/v1/embeddings", json={}).json()["error"]["message"]
    for method, path in (
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("GET", "/"),
        ("PUT", "/v1/models"),
        ("GET", f"{TICKETS}1"),  # without a review store
    ):
        reply = served.http.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_endpoint")
    assert [listed.id for listed in served.openai().models.list()] == ["support"]
    assert served.openai().models.retrieve("support").object == "model"
    assert served.http.get("/v1/models/none").status_code == 404
    assert (served.http.get("/healthz").status_code, served.http.get("/readyz").json()["ready"]) == (200, True)
    wrong = served.http.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert wrong.status_code == 415
    for host, status in (
        ("localhost:1", 200),
        ("[::1]:8700", 200),
        ("evil.example", 403),
        ("e{vil.example", 403),
        ("[::1", 403),
    ):
        assert served.http.get("/v1/models", headers={"host": host}).status_code == status


# -- errors and their retries ------------------------------------------------------------------------------------------


def test_a_measured_abstention_as_an_error_is_never_retried(serve: Serve, endpoint: Held) -> None:
    client = serve({"on_abstain": "error"}).openai(max_retries=2)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**request_fields(UNSURE))
    assert (error.value.type, error.value.code) == ("guardrail_abstained", "above_threshold")
    assert error.value.response.headers["x-guardrail-reason"] == "above_threshold"
    assert error.value.request_id
    assert endpoint.requests == 5


def test_an_outage_is_an_error_that_is_retried_and_then_drawn_again(serve: Serve, endpoint: Held) -> None:
    served = serve()
    endpoint.mode = "500"
    reply = served.ask()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_failed")
    assert reply.headers["retry-after"] == "5"
    assert endpoint.url not in reply.text
    with pytest.raises(openai.InternalServerError):  # in time, so a stream has a status of its own
        served.openai().chat.completions.create(**request_fields(SURE), stream=True)
    endpoint.mode, before = "ok", endpoint.requests
    assert served.ask(headers={"x-stainless-retry-count": "1"}).json()["guardrail"]["accepted"]
    assert endpoint.requests == before + 5  # what had failed, and nothing else
    endpoint.mode = "echo_401"
    wrong = served.ask("other?")
    assert (wrong.status_code, wrong.headers["x-should-retry"]) == (502, "false")
    assert "sk-upstream" not in wrong.text


def test_where_nothing_is_feasible_no_client_retries(serve: Serve, endpoint: Held) -> None:
    served = serve({"on_abstain": "error"}, artifact=make_artifact(MODEL, threshold=None, n=4))
    with pytest.raises(openai.InternalServerError) as error:
        served.openai(max_retries=2).chat.completions.create(**request_fields(SURE))
    assert error.value.code == "infeasible"
    assert endpoint.requests == 1


def test_a_repeated_request_gets_the_remembered_verdict(serve: Serve, endpoint: Held) -> None:
    served = serve()
    again = {"x-stainless-retry-count": "1"}
    first, repeated = served.ask().json(), served.ask(headers=again).json()
    assert repeated["choices"] == first["choices"]
    assert repeated["guardrail"]["request"] != first["guardrail"]["request"]
    assert (first["usage"]["total_tokens"] > 0, repeated["usage"]["total_tokens"]) == (True, 0)  # nothing was drawn
    # Whoever asks and however: one draw for one prompt.
    for headers in ({}, {"idempotency-key": "k1"}, {"idempotency-key": "k2"}):
        assert served.ask(headers=headers, user="another body").json()["choices"] == first["choices"]
    assert endpoint.requests == 5
    forgetful = serve(remember=0)  # the control: without the memory a repetition draws again
    for _ in range(2):
        forgetful.ask(headers=again)
    assert endpoint.requests == 15


def test_a_draw_that_failed_goes_on_under_another_clock(serve: Serve, endpoint: Held) -> None:
    prompt = PromptWrapping(template="{question} (asked at {clock})", slots=("clock",), question_slots=())
    served = serve({}, make_artifact(MODEL, threshold=0.1, n=4, prompt=prompt))
    endpoint.mode, endpoint.faults = "500", 2
    assert served.ask("sure? (asked at 1)").status_code == 503
    assert [served.ask(f"sure? (asked at {clock})").status_code for clock in "23"] == [200, 200]


def test_another_alias_of_the_same_upstream_and_artifact_is_no_other_question(serve: Serve, endpoint: Held) -> None:
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream", "timeout": 10, "max_retries": 0}
    same: dict[str, Any] = {"upstream": upstream, "artifact": True, "probe": "off"}
    elsewhere = {**same, "upstream": {**upstream, "extra_body": {"top_k": 1}}}
    served = serve({"on_abstain": "error"}, more={"same": same, "elsewhere": elsewhere})
    assert served.ask(UNSURE).status_code == 400
    made = endpoint.requests
    endpoint.answers = {UNSURE: ["Paris"]}  # drawn again, it would be accepted
    assert ABSTENTION in served.ask(UNSURE, model="same").text
    assert endpoint.requests == made
    assert "Paris" in served.ask(UNSURE, model="elsewhere").text  # other calls, so another draw


def test_draws_that_make_room_are_counted(serve: Serve, endpoint: Held) -> None:
    served = serve(remember_bytes=1)
    first = served.ask().json()
    assert served.ask().json()["choices"] == first["choices"]
    assert endpoint.requests == 10
    page = served.http.get("/metrics").text
    (evicted,) = re.findall(r"^guardrail_draws_evicted_total (\S+)", page, flags=re.MULTILINE)
    assert float(evicted) > 0
    roomy = serve()
    roomy.ask()
    assert "guardrail_draws_evicted_total 0.0" in roomy.http.get("/metrics").text


def test_a_client_that_gives_up_and_asks_again_joins(serve: Serve, endpoint: Held) -> None:
    endpoint.holding = True
    served = serve()
    served.leave(SURE, lambda: endpoint.wait_for(5))
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(served.ask)  # without any header: the first one is gone
        endpoint.released.set()
        assert reply.result(20).json()["guardrail"]["accepted"]
    assert endpoint.requests == 5


# -- streams that wait -------------------------------------------------------------------------------------------------


def test_a_stream_that_waits_is_kept_alive(serve: Serve, endpoint: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.holding = True
    monkeypatch.setattr("integrations._gateway.replies.KEEP_ALIVE", 0.05)
    served = serve(stream_hold=0)
    assert served.url
    body = {**request_fields(UNSURE), "stream": True}
    with served.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        assert [next(lines), next(lines), next(lines)] == [": keep-alive", "", ": keep-alive"]
        endpoint.released.set()
        rest = [line for line in lines if line and not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    finish = json.loads(rest[-2].removeprefix("data: "))
    assert (finish["guardrail"]["accepted"], finish["choices"][0]["finish_reason"]) == (False, "content_filter")
    endpoint.mode = "500"
    with pytest.raises(openai.APIError, match="could not be measured"):
        list(served.openai().chat.completions.create(**request_fields("other?"), stream=True))
    chat = ChatOpenAI(base_url=f"{served.url}/v1", api_key="any", model="support", max_retries=0)
    with pytest.raises(openai.APIError, match="could not be measured"):
        list(chat.stream("third?"))


# -- keys and limits ---------------------------------------------------------------------------------------------------


def test_readiness_states_the_promises_to_callers_that_may_use_the_model(serve: Serve) -> None:
    promised = list(promises(make_artifact(MODEL, n=4, threshold=0.1)))
    stated = serve().http.get("/readyz").json()["promises"]["support"]
    assert stated[0].startswith("This gate stops nothing")  # it accepts its one calibration question
    assert stated[1:] == promised
    key, row = key_named("a", models=["support"])
    http = serve(keys=[row]).http
    # A probe needs no key, and learns no model's name.
    assert http.get("/readyz").json() == {"ready": True, "reasons": [], "stale": False, "promises": {}, "warnings": {}}
    assert http.get("/readyz", headers={"x-guardrail-key": key}).json()["promises"] == {"support": stated}


def test_keys_models_and_limits(serve: Serve, endpoint: Held) -> None:
    ann, row = key_named("ann", models=["support"])
    bob, other = key_named("bob", models=[], upstream_key="sk-of-bob")
    cat, third = key_named("cat", upstream_key="sk-of-cat")
    observed = {"seen": {"upstream": {"url": endpoint.url, "model": "m"}, "mode": "observe"}}
    served = serve(keys=[row, other, third], more=observed)
    assert served.ask(SURE, {"api-key": cat}, model="seen").status_code == 200
    for key, names in ((cat, ["seen"]), (bob, [])):
        assert list(served.http.get("/guardrail/v1/observed", headers={"api-key": key}).json()) == names
        page = served.http.get("/metrics", headers={"api-key": key}).text
        for path in ("/metrics", "/readyz"):
            assert served.http.get(path, headers={"api-key": ann}).status_code == 200
        assert ('model="seen"' in page) == bool(names)
        assert "guardrail_http_requests_total{" in page  # of no model
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {ann}"}):
        for path in ("/v1/models", "/metrics", "/anything"):
            assert served.http.get(path, headers=headers).status_code == 401
    assert served.http.get("/healthz").status_code == 200
    with pytest.raises(openai.PermissionDeniedError):
        served.openai(bob).chat.completions.create(**request_fields(SURE))
    assert not list(served.openai(bob).models.list())
    served.openai(cat).chat.completions.create(**request_fields(SURE))
    assert endpoint.headers[-1]["authorization"] == "Bearer sk-of-cat"
    for header in ({"api-key": ann}, {"x-guardrail-key": ann}, {"authorization": f"Bearer {ann}"}):
        assert served.ask(headers=header).status_code == 200
        assert endpoint.headers[-1]["authorization"] == "Bearer sk-upstream"


def test_a_forwarded_key_goes_upstream_and_the_gateways_own_never_does(serve: Serve, endpoint: Held) -> None:
    ann, row = key_named("ann")
    upstream = {"url": endpoint.url, "model": "m", "forward_key": True}
    served = serve({"upstream": upstream}, keys=[row])
    assert served.ask(headers={"authorization": f"Bearer {ann}"}).status_code == 401
    assert endpoint.requests == 0
    both = {"x-guardrail-key": ann, "authorization": "Bearer sk-client"}
    assert served.ask(headers={**both, "idempotency-key": "k"}).status_code == 200
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-client"}
    served.ask(headers={**both, "authorization": "Bearer sk-other", "idempotency-key": "k"})
    assert endpoint.requests == 10  # what is remembered belongs to a credential
    assert served.ask(headers={"x-guardrail-key": "", "authorization": f"Bearer {ann}"}).status_code == 401
    assert served.ask(headers={**both, "authorization": b"Bearer caf\xe9"}).status_code == 401
    assert endpoint.requests == 10


def test_a_redirect_is_not_followed(serve: Serve, endpoint: Held) -> None:
    """It would send the question to an address that nobody configured, and serve what comes from there."""
    endpoint.mode, endpoint.faults = "redirect", 5
    assert serve().ask().status_code == 503
    assert endpoint.requests == 5


@pytest.mark.parametrize("mode", ["ok", "bomb"])
def test_a_reply_that_is_too_long_is_not_read_to_its_end(serve: Serve, endpoint: Held, mode: str) -> None:
    """Nor is a reply that is short before it is unpacked. It is not asked for again: the question may be the cause."""
    endpoint.mode = mode
    upstream = {"url": endpoint.url, "model": "m", "key": "k", "timeout": 10, "max_retries": 2}
    most = {"ok": 100, "bomb": 2**20}[mode]
    limited = serve({"upstream": {**upstream, "max_reply": most}})
    for _ in range(2):
        reply = limited.ask(headers={"idempotency-key": "k"}).json()
        assert (reply["guardrail"]["accepted"], reply["guardrail"]["unmeasured"]) == (False, "unreadable")
    assert endpoint.requests == 5
    endpoint.mode = "ok"
    assert serve({"upstream": {**upstream, "max_reply": 2**20}}).ask().json()["guardrail"]["accepted"]  # the control


def test_what_fails_after_the_verdict_is_not_taken_for_a_fallback(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the mail server is gone")

    served = serve({"on_abstain": "ticket"}, reviews=str(tmp_path / "reviews.db"))
    monkeypatch.setattr(ReviewStore, "enqueue", broken)
    reply = served.ask(UNSURE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert served.ask().json()["guardrail"]["accepted"]


def test_more_questions_than_the_limits_are_refused(serve: Serve, endpoint: Held) -> None:
    ann, row = key_named("ann", max_concurrency=1)
    bob, other = key_named("bob")
    endpoint.holding = True
    served = serve(keys=[row, other], max_concurrency=2)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(served.ask, SURE, {"api-key": ann})]
        endpoint.wait_for(5)
        assert served.ask(UNSURE, {"api-key": ann}).status_code == 429
        waiting.append(pool.submit(served.ask, SURE, {"api-key": bob}))
        endpoint.wait_for(5)
        full = served.ask(UNSURE, {"api-key": bob})
        assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
        endpoint.released.set()
        assert [pending.result(20).status_code for pending in waiting] == [200, 200]


# -- what follows an abstention, artifacts, metrics --------------------------------------------------------------------


def test_another_alias_may_answer_instead(serve: Serve, endpoint: Held) -> None:
    large = {"upstream": {"url": endpoint.url, "model": "large", "key": "k"}, "mode": "observe"}
    reply = serve({"fallback": "large"}, more={"large": large}).ask(UNSURE)
    assert (reply.headers["x-guardrail-fallback"], reply.headers["x-guardrail-abstained"]) == ("large", "false")
    shown, (choice,) = reply.json()["guardrail"], reply.json()["choices"]
    assert (shown["fallback"], shown["handoff"], shown["accepted"]) == ("large", "unjudged_answer", False)
    assert choice["message"]["content"] in ("Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel")
    assert choice["finish_reason"] == "content_filter", "a program must not take it for an answer of the gate"
    assert endpoint.bodies[-1]["model"] == "large"


def test_an_answer_of_a_fallback_that_its_own_gate_accepted_is_a_judged_one(
    serve: Serve, endpoint: Held, tmp_path: Path
) -> None:
    large = MODEL.model_copy(update={"model": "large"})
    path = make_artifact(large, threshold=9.0, n=4).save(tmp_path / "large.json")
    upstream = {"url": endpoint.url, "model": "large", "key": "k", "max_retries": 0}
    more = {"large": {"upstream": upstream, "artifact": str(path), "probe": "off"}}
    reply = serve({"fallback": "large"}, more=more).ask(UNSURE)
    assert (reply.json()["guardrail"]["handoff"], reply.headers["x-guardrail-handoff"]) == ("judged_answer",) * 2
    assert reply.json()["choices"][0]["finish_reason"] == "stop"


def test_a_gateway_that_runs_late_sheds_load_before_its_clients_wait_for_seconds(serve: Serve) -> None:
    served = serve()
    assert served.ask().status_code == 200
    served.gateway.room.size = 0.0  # as after a time in which the loop ran late
    reply = served.ask()
    assert reply.status_code == 503
    while reply.status_code == 503:  # the loop is in time, so the next looks make room
        assert (reply.json()["error"]["code"], reply.headers["retry-after"]) == ("overloaded", "1")
        reply = served.ask()
    assert reply.json()["guardrail"]["accepted"]


def test_a_cascade_asks_the_next_upstream_only_for_what_the_first_holds_back(serve: Serve, endpoint: Held) -> None:
    lost = "lost?"
    endpoint.answers = {**ANSWERS, lost: ANSWERS[UNSURE]}
    with serving(Held(answers={SURE: ["wrong"], UNSURE: ["Bern"], lost: ANSWERS[UNSURE]})) as second:
        rest: dict[str, Any] = {"key": "sk-upstream", "timeout": 10, "max_retries": 0}
        upstream = [{"url": endpoint.url, "model": "m", **rest}, {"url": second.url, "model": "large", **rest}]
        served = serve({"upstream": upstream}, artifact=cascade())
        assert summary(served.ask(SURE)) == ("Paris", True, "stop")
        assert second.requests == 0
        assert summary(served.ask(UNSURE)) == ("Bern", True, "stop")
        assert second.requests == 5
        assert {chunk["model"] for chunk in second.bodies} == {"large"}
        assert summary(served.ask(lost)) == (ABSTENTION, False, "content_filter")
        assert (endpoint.requests, second.requests) == (15, 10)
        streamed: Any = list(served.openai().chat.completions.create(**request_fields(UNSURE), stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == "Bern"


def summary(reply: Any) -> tuple[str, bool, str]:
    """Text, verdict and finish reason of a reply."""
    choice = reply.json()["choices"][0]
    return choice["message"]["content"], reply.json()["guardrail"]["accepted"], choice["finish_reason"]


def test_a_ticket_for_a_caller_that_parses_the_answer(serve: Serve, tmp_path: Path) -> None:
    form = json_format(Sum)
    artifact = make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for(response_format=form))
    served = serve({"on_abstain": "ticket"}, artifact, reviews=str(tmp_path / "reviews.db"))
    reply = served.ask(UNSURE, response_format=form)
    number, message = reply.headers["x-guardrail-ticket"], reply.json()["choices"][0]["message"]
    assert (message["content"], number in message["refusal"]) == (None, True)
    assert served.http.get(f"{TICKETS}{number}").json()["state"] == "open"


ADDING: dict[str, Any] = {"name": "add", "arguments": {"a": 1}}
SUM = Candidate(tool_calls=(ToolCall(**ADDING),))


def test_a_client_that_leaves_before_its_body_is_here_is_no_fault(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    address = httpx.URL(served.url)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port or 80), timeout=20) as client:
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    left = 'guardrail_http_requests_total{route="/v1/chat/completions",status="4xx"} 1.0'
    assert any(left in served.http.get("/metrics").text for _ in range(500))  # it sees that soon
    assert (endpoint.requests, caplog.text) == (0, "")


def test_what_became_of_a_ticket(serve: Serve, tmp_path: Path) -> None:
    """The whole reply, so that nothing else of the item can be in it."""
    (ann, first), (bob, second) = key_named("ann", models=["support"]), key_named("bob", models=["other"])
    settings = {"reviews": str(tmp_path / "reviews.db"), "keys": [first, second]}
    served, other = (serve({"on_abstain": "ticket"}, more={"other": PASSED}, **settings) for _ in range(2))

    def about(ticket: str, key: str = ann) -> httpx.Response:
        return other.http.get(f"{TICKETS}{ticket}", headers={"x-guardrail-key": key})

    with ReviewStore(str(tmp_path / "reviews.db")) as store:
        for decision, outcome in (
            (Decision(action="approve", note="n"), ...),
            (Decision(action="respond", text="It is Bern."), {"text": "It is Bern.", "tool_calls": []}),
            (Decision(action="edit", candidate=SUM), {"text": "", "tool_calls": [ADDING]}),
            (Decision(action="reject", note="n"), None),
        ):
            asked = served.ask(UNSURE, {"api-key": ann}, user=decision.action).json()
            number, (choice,) = asked["guardrail"]["ticket"], asked["choices"]
            assert (choice["finish_reason"], number in choice["message"]["content"]) == ("content_filter", True)
            item = store.item(number)
            assert item.content.question == UNSURE
            expected = {"ticket": number, "model": "support", "created": int(item.created), "outcome": None}
            assert about(number).json() == {**expected, "state": "open"}
            lease = store.claim("Eve", item=number)
            assert lease is not None
            assert about(number).json() == {**expected, "state": "open"}
            recorded = store.decide(lease, decision).decision
            assert recorded is not None
            if outcome is ...:
                assert item.content.candidate is not None
                outcome = {"text": item.content.candidate.text, "tool_calls": []}
            expected |= {"state": "decided", "action": decision.action, "decided": int(recorded.at), "outcome": outcome}
            reply = about(number)
            assert reply.json() == expected
            assert (reply.headers["cache-control"], len(reply.headers["x-request-id"])) == ("no-store", 32)
    assert other.http.get(f"{TICKETS}{number}").status_code == 401
    assert (about(number, bob).status_code, about(number, bob).headers["cache-control"]) == (404, "no-store")
    page = other.http.get("/metrics", headers={"x-guardrail-key": ann}).text
    assert f'guardrail_http_requests_total{{route="{TICKETS}",status="2xx"}} 12.0' in page


def test_a_decision_that_quotes_our_key_is_masked(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    key, reviews = "sk-of-an-upstream-0123456789", str(tmp_path / "reviews.db")
    upstream = {"url": endpoint.url, "model": "m", "key": key}
    served = serve({"upstream": upstream, "on_abstain": "ticket"}, reviews=reviews)
    number = served.ask(UNSURE).headers["x-guardrail-ticket"]
    with ReviewStore(reviews) as store:
        lease = store.claim("Eve", item=number)
        assert lease is not None
        store.decide(lease, Decision(action="respond", text=f"It is {key}."))
    assert served.http.get(f"{TICKETS}{number}").json()["outcome"]["text"] == f"It is {'*' * len(key)}."


def test_what_is_not_a_ticket_of_the_gateway(serve: Serve, tmp_path: Path) -> None:
    limited, row = key_named("ann")
    served = serve({"on_abstain": "ticket"}, reviews=str(tmp_path / "reviews.db"), keys=[row])

    def about(ticket: str, method: str = "GET") -> tuple[int, str]:
        reply = served.http.request(method, f"{TICKETS}{ticket}", headers={"api-key": limited})
        return reply.status_code, reply.json()["error"]["code"] if reply.content else ""

    number = served.ask(UNSURE, {"api-key": limited}).json()["guardrail"]["ticket"]
    with ReviewStore(str(tmp_path / "reviews.db")) as store:
        foreign = [
            store.enqueue(Content(question="?", allowed=("reject",), metadata=metadata)).id
            for metadata in ({}, {"gateway_model": None}, {"gateway_model": ["support"]}, {"gateway_model": 1})
        ]
    for wrong in (
        *foreign,
        "",
        "0" * 32,
        "a" * 9_000,
        "%00",
        "%ED%A0%80",
        f"{number}/",
        f"{number}%0A",
        f"x%3F{number}",
    ):
        assert about(wrong) == (404, "ticket_not_found")
    assert about(number, "POST") == (404, "unknown_endpoint")
    assert about(number, "HEAD") == (404, "")
    assert about(number, "DELETE") == (404, "unknown_endpoint")


def test_a_ticket_that_nobody_decides_any_more(serve: Serve, tmp_path: Path) -> None:
    served = serve({"on_abstain": "ticket"}, reviews=str(tmp_path / "reviews.db"))
    number = served.ask(UNSURE).json()["guardrail"]["ticket"]
    with ReviewStore(str(tmp_path / "reviews.db")) as store:
        item = store.cancel(number, why="it was answered by phone")
        assert served.http.get(f"{TICKETS}{number}").json()["state"] == "expired"
        store.enqueue(item.content, key=item.key, reopen=True)
        assert served.http.get(f"{TICKETS}{number}").json()["state"] == "open"
        store.cancel(number, why="again")
    with ReviewStore(str(tmp_path / "reviews.db"), clock=lambda: item.created + 100) as store:
        assert store.purge(10).items == 1
    assert served.http.get(f"{TICKETS}{number}").status_code == 404


def test_a_ticket_of_a_fallback_is_of_the_model_that_was_asked(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    (ann, first), (bob, second) = key_named("ann", models=["support"]), key_named("bob", models=["large"])
    large = {"upstream": {"url": endpoint.url, "model": "large", "key": "k"}, "on_abstain": "ticket", "probe": "off"}
    artifact = make_artifact(MODEL.model_copy(update={"model": "large"}), threshold=0.1, n=4)
    more = {"large": {**large, "artifact": artifact.save(tmp_path / "large.json")}}
    served = serve({"fallback": "large"}, more=more, reviews=str(tmp_path / "reviews.db"), keys=[first, second])
    for model, key, other in (("support", ann, bob), ("large", bob, ann)):
        number = served.ask(UNSURE, {"api-key": key}, model=model).json()["guardrail"]["ticket"]
        response = served.http.get(f"{TICKETS}{number}", headers={"api-key": key})
        assert (response.json()["model"], response.json()["state"]) == (model, "open")
        assert served.http.get(f"{TICKETS}{number}", headers={"api-key": other}).status_code == 404


def test_questions_do_not_wait_for_tickets(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, item = serve({"on_abstain": "ticket"}, reviews=str(tmp_path / "reviews.db")), ReviewStore.item
    arrived, released = Counter[str](), threading.Event()
    looking = threading.Semaphore(0)

    def slow(store: ReviewStore, name: str) -> Any:
        arrived[name] += 1
        looking.release()
        assert released.wait(20)
        return item(store, name)

    monkeypatch.setattr(ReviewStore, "item", slow)
    with ThreadPoolExecutor(12) as pool:
        replies = [pool.submit(served.http.get, f"{TICKETS}{number:032}") for number in range(12)]
        assert all(looking.acquire(timeout=20) for _ in range(3))
        try:
            assert served.ask().json()["guardrail"]["accepted"]
            assert arrived.total() == 3
        finally:
            released.set()
        assert {reply.result(20).status_code for reply in replies} == {404}


def test_an_artifact_is_swapped_while_serving(
    serve: Serve, endpoint: Held, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "guardrail.serve")
    served = serve()
    gateway, path = served.gateway, tmp_path / "artifact.json"
    guard = gateway.aliases["support"].guard(None)
    assert gateway.reload()
    assert gateway.aliases["support"].guard(None) is guard  # nothing changed
    endpoint.holding = True
    with ThreadPoolExecutor() as pool:
        before = pool.submit(served.ask, UNSURE)
        endpoint.wait_for(5)
        lenient = make_artifact(MODEL, threshold=9, n=4)
        path.unlink()
        lenient.save(path)
        caplog.clear()
        assert gateway.reload()
        (line,) = caplog.messages
        assert line.startswith(f"guardrail serve: reloaded: support (guard, artifact {lenient.digest:.14}, ")
        assert "Rule none" in line
        endpoint.released.set()
        assert not before.result(20).json()["guardrail"]["accepted"]  # it keeps what it began with
    assert served.ask(UNSURE).json()["guardrail"]["artifact"] == lenient.digest
    path.write_text("{}")
    assert not gateway.reload()
    readiness = served.http.get("/readyz").json()
    assert (readiness["ready"], readiness["reasons"], readiness["stale"]) == (True, [], True)
    assert "guardrail_configuration_stale 1.0" in served.http.get("/metrics").text
    assert served.ask(UNSURE).json()["guardrail"]["artifact"] == lenient.digest


def test_metrics_count_and_name_nothing_of_a_user(serve: Serve, endpoint: Held) -> None:
    served = serve()
    served.ask()
    served.ask(UNSURE, user="marker-of-a-user")
    served.ask(UNSURE, user="another")  # gets the remembered abstention, which is not another decision
    served.http.get("/marker-of-a-user")
    page = served.http.get("/metrics").text
    for outcome, reason in (("accepted", "within_threshold"), ("abstained", "above_threshold")):
        labels = f'mode="guard",model="support",outcome="{outcome}",reason="{reason}",score="discrete_semantic_entropy"'
        assert f"guardrail_decisions_total{{{labels}}} 1.0" in page
    assert 'guardrail_model_calls_total{model="support"} 10.0' in page
    assert 'guardrail_http_requests_total{route="other",status="4xx"} 1.0' in page
    assert "marker" not in page
    assert SURE not in page


def test_a_decision_belongs_to_the_trace_that_a_request_names(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(metrics, "Telemetry", partial(Telemetry, tracer_provider=tracers))
    served = serve()
    served.ask(headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    served.ask(UNSURE, user="marker-of-a-user")
    first, second = exporter.get_finished_spans()
    assert (first.context.trace_id, first.parent and first.parent.span_id) == (int("ab" * 16, 16), int("cd" * 8, 16))
    assert second.parent is None
    outcomes = [(span.attributes or {})["guardrail.outcome"] for span in (first, second)]
    assert outcomes == ["accepted", "abstained"]
    assert "marker" not in first.to_json() + second.to_json()


# -- scorers -----------------------------------------------------------------------------------------------------------


@scorer(version=1, higher="certain")
async def names_paris(answer: str) -> float:
    return float(answer == "Paris")


def test_an_alias_with_a_scorer_of_the_operators_file(serve: Serve, endpoint: Held) -> None:
    named = "tests.integrations.gateway.test_gateway:names_paris"
    served = serve({"scorer": named}, make_artifact(MODEL, estimator=names_paris.estimator))
    assert served.ask(SURE).json()["choices"][0]["message"]["content"] == "Paris"
    assert served.ask(UNSURE).json()["choices"][0]["message"]["content"] == ABSTENTION
    assert served.ask(SURE, scorer=named).status_code == 400  # never from a request


def test_a_scorer_without_an_artifact_and_a_missing_one_are_refused_at_start(serve: Serve, endpoint: Held) -> None:
    scored = make_artifact(MODEL, estimator=names_paris.estimator)
    with pytest.raises(UsageError, match="scorer belongs to the artifact"):
        serve({"scorer": "any:thing", "artifact": None, "mode": "observe"})
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        serve({"scorer": "nowhere:thing"}, scored)
    with pytest.raises(ArtifactMismatchError, match="score:names_paris@1"):
        serve({}, scored)


def test_an_artifact_of_votes_gives_out_the_vote(serve: Serve, endpoint: Held) -> None:
    """The greedy answer is neither asked for nor given out, streamed or not."""
    calibrated = make_artifact(MODEL, threshold=9, n=4)
    voted = calibrated.model_copy(update={"plan": calibrated.plan.model_copy(update={"primary": "majority"})})
    endpoint.answers = {SURE: ["Rome", "Oslo", "Paris", "paris", "Paris."]}
    served = serve(artifact=voted)
    # Which spelling of the vote comes first depends on the order in which the samples arrive.
    given_out = served.ask(SURE).json()["choices"][0]["message"]["content"]
    assert given_out in ("Paris", "paris", "Paris.")
    assert len(endpoint.bodies) == 4
    chunks = served.openai().chat.completions.create(
        model="support", messages=[{"role": "user", "content": SURE}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == given_out
