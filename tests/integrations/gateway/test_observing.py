"""An alias that observes: what passes, what is measured behind it, and what the estimate is worth."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import convert_to_openai_messages

from calibrate.data.records import read_records, write_records
from calibrate.scoring.compute import score_records
from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactError, UsageError
from guardrail.judges import normalise
from guardrail.prompting import PromptWrapping
from guardrail.review.hooks import chosen
from guardrail.testing import make_artifact
from guardrail.types import Unmeasured
from guardrail.uncertainty import make_estimator
from integrations._gateway.config import Config
from integrations._gateway.protocols.chat import CHAT
from integrations._gateway.requests import Question
from integrations.gateway import Gateway
from integrations.watcher import Observed, ObserveQueue
from tests.integrations.gateway.conftest import ANSWERS, MODEL, SURE, UNSURE, Held, Serve, Served, cascade
from tests.integrations.gateway.test_gateway import ADD

GREEDY: dict[str, Any] = {"model": "m", "temperature": 0}
RECORDED = Path(__file__).parents[3] / "examples" / "recorded" / "triviaqa-500.jsonl"
COLLECT = {"n": 4, "primary": "sampled", "temperature": 1, "top_p": 1}


def observing(serve: Serve, endpoint: Held, *, artifact: bool = True, probe: str = "off", **observe: Any) -> Served:
    """A gateway that observes "m" under its upstream name, so that requests pass unchanged."""
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream", "timeout": 10, "max_retries": 0}
    alias = {"upstream": upstream, "mode": "observe", "observe": observe, "probe": probe, "artifact": artifact}
    return serve({"probe": probe}, more={"m": alias})


def counts(served: Served) -> Observed:
    served.http.get("/healthz")  # its connection takes it when the gateway is done with the answer before
    queue = served.gateway.observing["m"].queue
    assert queue.drain(20)
    return queue.observed


def test_bytes_pass_unchanged_and_the_verdict_is_on_the_answer_that_was_served(serve: Serve, endpoint: Held) -> None:
    served = observing(serve, endpoint)
    body = json.dumps({"messages": [{"role": "user", "content": UNSURE}], **GREEDY, "user": "ann"}, indent=3)
    head = {
        "content-type": "application/json",
        "authorization": "Bearer any",
        "x-secret": "s",
        "accept-encoding": "gzip",
    }
    through = served.http.post("/v1/chat/completions", content=body, headers=head)
    headers = endpoint.headers[0]
    direct = httpx.post(f"{endpoint.url}/chat/completions", content=body, headers=head)
    assert (through.content, through.status_code) == (direct.content, direct.status_code)
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert endpoint.bodies[0] == json.loads(body)
    assert (headers["authorization"], "x-secret" in headers) == ("Bearer sk-upstream", False)
    assert headers["accept-encoding"] == "identity", "a compressed answer could not be judged"
    assert counts(served) == Observed(served=1, chosen=1, abstained=1)
    samples = [body for body in endpoint.bodies if body.get("temperature")]
    assert len(samples) == 4  # the served answer was not drawn again
    shown = served.http.get("/guardrail/v1/observed").json()["m"]
    assert (shown["abstained"], shown["acceptance"]) == (1, 0.0)
    page = served.http.get("/metrics").text
    assert 'guardrail_observations_total{fate="abstained",model="m"} 1.0' in page
    assert 'mode="observe"' in page


def test_streams_errors_and_what_cannot_be_judged_pass(serve: Serve, endpoint: Held) -> None:
    served = observing(serve, endpoint)
    client = served.openai()
    request: Any = {"messages": [{"role": "user", "content": SURE}], **GREEDY}
    events: Any = list(client.chat.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in events if chunk.choices) == "Paris"
    counts(served)  # its samples are drawn before the endpoint changes
    endpoint.mode = "tool"
    assert client.chat.completions.create(**request).choices[0].message.tool_calls
    endpoint.mode = "429"
    with pytest.raises(openai.RateLimitError, match="slow down"):
        client.chat.completions.create(**request)
    endpoint.mode = "html"
    assert served.http.post("/v1/chat/completions", json=request).text == "<html>It works!</html>"
    endpoint.mode = "ok"
    several: tuple[dict[str, Any], ...] = ({"temperature": 1}, {"n": 2}, {"top_k": 5}, {"max_tokens": 0}, {"tools": []})
    for fields in several:
        client.post("/chat/completions", body={**request, **fields}, cast_to=object)
    observed = counts(served)
    assert (observed.served, observed.chosen, observed.accepted) == (
        9,
        9,
        3,
    )  # also no tools, and a limit that was not reached
    assert observed.not_comparable == 4  # with them the tool call, whose length the upstream does not say
    assert observed.dropped == {"upstream_error": 1, "unreadable": 1}


def test_an_answer_without_room_in_the_queue_passes_is_counted_and_holds_no_bytes(serve: Serve, endpoint: Held) -> None:
    served = observing(serve, endpoint)
    served.gateway.observing["m"].queue = ObserveQueue(most_bytes=200)
    watching, sent = served.gateway.observing["m"], [b"a" * 150, b"b" * 100, b"c"]

    async def upstream() -> AsyncIterator[bytes]:
        for part in sent:
            yield part

    async def through() -> list[bytes]:
        passed = Question("number", {}, 2, CHAT, None, None, {})
        return [part async for part in watching._watched(passed, 200, upstream())]

    assert asyncio.run(through()) == sent
    assert counts(served) == Observed(served=1, chosen=1, dropped={"queue_full": 1})
    assert watching.queue._bytes == 0


def test_answers_that_wait_when_their_model_changes_are_counted_at_the_end(serve: Serve, endpoint: Held) -> None:
    """An operator who reloads and then stops would miss answers in the counts that the estimate rests on."""
    served = observing(serve, endpoint)
    gateway, former = served.gateway, served.gateway.observing["m"]
    former.queue = ObserveQueue(at_once=0)  # nobody measures: what is offered waits
    assert former.queue.offer(lambda: "accepted", 10)
    changed = gateway.config.models["m"].model_copy(update={"abstain_message": "No."})
    gateway.config = gateway.config.model_copy(update={"models": {**gateway.config.models, "m": changed}})
    assert gateway.reload()
    assert gateway.observing["m"] is not former
    asyncio.run(gateway.aclose())
    assert former.queue.observed == Observed(dropped={"stopping": 1})


def test_an_upstream_without_a_key_and_headers_beyond_ascii(
    serve: Serve, endpoint: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    alias = {"upstream": {"url": endpoint.url, "model": "m"}, "mode": "observe"}
    served = serve({"artifact": None, **alias})
    assert served.url  # bytes of headers need a socket
    reply = served.ask(headers={"openai-project": "Café".encode()})
    assert reply.status_code == 200
    assert "authorization" not in endpoint.headers[0]
    assert endpoint.headers[0]["openai-project"].encode("latin-1").decode() == "Café"
    assert served.ask(headers={"openai-project": b"Caf\xe9"}).json()["error"]["code"] == "invalid_header"
    endpoint.mode = "cookies"
    assert served.ask().headers.get_list("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("mode", ["400", "echo_401"])
def test_an_error_that_echoes_our_key_reaches_no_client(serve: Serve, endpoint: Held, mode: str) -> None:
    served = observing(serve, endpoint)
    endpoint.mode = mode
    body = {"messages": [{"role": "user", "content": SURE}], **GREEDY}
    reply = served.http.post("/v1/chat/completions", json=body)
    assert "*" * len("sk-upstream") in reply.text
    assert "sk-upstream" not in reply.text


def test_a_reply_that_breaks_off_does_so_for_the_client_and_takes_one_line_of_log(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = observing(serve, endpoint)
    assert served.url  # only a connection can break off
    endpoint.mode = "cut"
    with pytest.raises(httpx.RemoteProtocolError):
        served.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": SURE}], **GREEDY})
    assert counts(served).dropped == {"incomplete": 1}
    ours = [record for record in caplog.records if record.name == "guardrail"]
    assert [record.getMessage() for record in ours] == ["guardrail serve: a reply of m broke off (ClientPayloadError)"]
    assert not any(record.exc_info for record in caplog.records)


def test_without_an_artifact_it_collects_records_that_calibrate_reads(
    serve: Serve, endpoint: Held, tmp_path: Path
) -> None:
    path = tmp_path / "observed.jsonl"
    prompt = {"system": "Be brief.", "template": "Q: {question}"}
    settings: dict[str, Any] = {"plan": COLLECT, "prompt": prompt, "records": {"path": path, "rate": 0.5}}
    served = observing(serve, endpoint, artifact=False, **settings)
    wrapped = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Q: {UNSURE}"}]
    keys, chosen_by_hash = [f"request-{number}" for number in (*range(11), 9)], set[str]()  # a client repeats one
    for key in keys:
        reply = served.http.post(
            "/v1/chat/completions", json={"model": "m", "messages": wrapped}, headers={"idempotency-key": key}
        )
        if chosen(key, 0.5, salt="label"):
            chosen_by_hash.add(reply.headers["x-request-id"])
    served.http.post("/v1/chat/completions", json={"model": "m", "messages": wrapped[1:]})  # another prompt
    assert counts(served) == Observed(served=13, chosen=13, collected=12, not_comparable=1)
    file = read_records(path)
    assert chosen("request-9", 0.5, salt="label")
    assert {record.id for record in file.records} == chosen_by_hash
    for record in file.records:
        assert (record.question, record.turns) == (UNSURE, "human")
        assert record.drawn is not None
        assert len(record.drawn.samples) == 4
    scored = score_records(file, [make_estimator("discrete_semantic_entropy")])
    assert all(record.scores for record in scored.records)
    assert path.stat().st_mode & 0o077 == 0
    with path.open("a") as stream:
        stream.write('{"id": "torn')
    alias = served.gateway.config.models["m"]
    again = Gateway(served.gateway.config)
    again.observing["m"]._records.append("more", UNSURE, file.records[0].drawn, {})  # type: ignore[union-attr, arg-type]
    assert len(read_records(path).records) == len(file.records) + 1
    other = alias.model_copy(
        update={"observe": alias.observe.model_copy(update={"prompt": type(alias.observe.prompt)()})}
    )
    with pytest.raises(UsageError, match="another prompt"):
        Gateway(Config(version=1, models={"m": other}))


def test_second_turns_are_collected_with_what_was_said_before(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    """Without it nobody could label "And there?", and each turn would count as independent of the others."""
    path = tmp_path / "observed.jsonl"
    prompt = {"system": "Be brief.", "template": "Q: {question}"}
    served = observing(serve, endpoint, artifact=False, plan=COLLECT, prompt=prompt, records={"path": path})
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Q: {SURE}"}]
    second = [*opening, {"role": "assistant", "content": "Paris"}, {"role": "user", "content": f"Q: {UNSURE}"}]
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    for messages in (opening, second, [*second, {"role": "user", "content": picture}]):
        served.http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    observed = counts(served)
    assert (observed.collected, observed.not_comparable) == (2, 1)
    first, later = sorted(read_records(path).records, key=lambda record: record.turns or "")
    assert (first.turns, first.messages, later.turns) == ("human", None, "human,ai,human")
    assert (later.question, first.group) == (UNSURE, later.group)
    said = [("user", f"Q: {SURE}"), ("assistant", "Paris"), ("user", UNSURE)]  # the form of a question file
    assert [(each["role"], each["content"]) for each in later.to_question().messages or ()] == said


def test_steps_of_tools_are_no_turns_of_a_recorded_question(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    """A guard counts none: an artifact that did would refuse every answer that needs another number of steps."""
    path = tmp_path / "observed.jsonl"
    plan = {**COLLECT, "bindings": bindings_for([ADD]).model_dump(mode="json")}
    served = observing(serve, endpoint, artifact=False, plan=plan, records={"path": path})
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    steps = [
        {"role": "user", "content": SURE},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    later = [*steps, {"role": "assistant", "content": "Paris"}, {"role": "user", "content": UNSURE}]
    for messages in (steps, later):
        served.http.post("/v1/chat/completions", json={"model": "m", "messages": messages, "tools": [ADD]})
        assert counts(served).not_comparable == 0
    first, second = read_records(path).records
    assert (first.turns, first.question, second.turns, second.question) == ("human", SURE, "human,ai,human", UNSURE)
    for record, sent in ((first, steps), (second, later)):  # whoever labels it reads what the model read
        assert convert_to_openai_messages(record.messages_in(PromptWrapping())) == sent
        assert record.group == first.group


def test_collecting_believes_no_endpoint_before_a_probe(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    """An endpoint that ignores n or answers from a cache would make every question look certain."""
    settings = {"plan": COLLECT, "records": {"path": tmp_path / "honest.jsonl"}}
    question: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": UNSURE}]}
    honest = observing(serve, endpoint, artifact=False, probe="auto", **settings)
    for _ in range(3):
        honest.http.post("/v1/chat/completions", json=question)
    assert counts(honest) == Observed(served=3, chosen=3, collected=3)
    samples = [body for body in endpoint.bodies if body["messages"] == question["messages"] and body.get("n", 1) > 1]
    assert [body["n"] for body in samples] == [4, 4, 4]  # one call for all samples, as the probe allows
    settings["records"] = {"path": tmp_path / "cached.jsonl"}
    cached = observing(serve, endpoint, artifact=False, probe="auto", **settings)
    endpoint.mode, before = "cached_but_seed", len(endpoint.bodies)
    cached.http.post("/v1/chat/completions", json=question)
    assert counts(cached) == Observed(served=1, chosen=1, unmeasured=1)
    assert sum(body["messages"] == question["messages"] for body in endpoint.bodies[before:]) == 1  # nothing was drawn
    (record,) = read_records(tmp_path / "cached.jsonl").records
    assert record.drawn is not None
    assert (record.drawn.problem, record.drawn.samples) == (Unmeasured.DEGENERATE_SAMPLES, ())
    assert record.answer in ANSWERS[UNSURE]


def test_the_estimate_agrees_with_later_enforcement(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    """Observing predicts exactly which answers the guard then accepts, and how many of them are wrong.

    90 questions of TriviaQA, answered with what a large model said.
    """
    with RECORDED.open(encoding="utf-8") as lines:
        rows = {row["question"]: row for row in map(json.loads, itertools.islice(lines, 90))}
    endpoint.answers = {question: row["samples"] for question, row in rows.items()}
    questions, path = list(rows), tmp_path / "observed.jsonl"

    def wrong(question: str, answer: str | None) -> bool:
        return normalise(answer or "") not in map(normalise, rows[question]["references"])

    records = {"path": path}
    half = observing(serve, endpoint, probe="auto", records=records, rate=0.5)
    for question in questions:
        half.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": question}], **GREEDY})
    watched = counts(half)
    file = read_records(path)
    judged = score_records(file, [make_estimator("discrete_semantic_entropy")])
    scored = judged.records
    scores = [next(iter(record.scores.values())).value for record in scored]  # None, not measured, is not accepted
    passed = [record for record, score in zip(scored, scores, strict=True) if score is not None and score <= 0.1]
    estimate = (
        len(passed) / len(scored),
        sum(wrong(record.question, record.answer) for record in passed) / len(passed),
    )
    assert watched.acceptance == estimate[0]
    assert watched.chosen == len(file.records) < 90

    enforced = {question: half.ask(question).json() for question in questions}
    accepted = {
        question: reply["choices"][0]["message"]["content"]
        for question, reply in enforced.items()
        if reply["guardrail"]["accepted"]
    }
    # The same requests, the same verdicts: exactly. And the sample, chosen by hash, speaks for all of them.
    assert {record.question for record in passed} == accepted.keys() & {record.question for record in scored}
    rates = (len(accepted) / 90, sum(wrong(*pair) for pair in accepted.items()) / len(accepted))
    for guess, truth, size in zip(estimate, rates, (len(scored), len(passed)), strict=True):
        assert abs(guess - truth) <= 4.5 * (truth * (1 - truth) / size) ** 0.5  # fails once in 100,000 runs
    write_records(path, file.header, file.records)  # what it wrote is what `calibrate` writes
    assert read_records(path).records == file.records


def test_a_cascades_artifact_cannot_observe(serve: Serve) -> None:
    """A served answer is one model's; two upstreams are refused as well (below)."""
    with pytest.raises(ArtifactError, match="cascade"):
        serve({"mode": "observe"}, artifact=cascade())


def test_an_artifact_of_votes_cannot_observe(serve: Serve, endpoint: Held) -> None:
    """The served answer is one draw, and what was calibrated is the vote of several."""
    voted = make_artifact(MODEL, n=4)
    voted = voted.model_copy(update={"plan": voted.plan.model_copy(update={"primary": "majority"})})
    with pytest.raises(UsageError, match="cannot observe the answers of models"):
        serve({"mode": "observe"}, artifact=voted)
    with pytest.raises(UsageError, match="cannot observe the answers of models"):
        observing(serve, endpoint, artifact=False, plan={"n": 4, "primary": "majority"})


def test_a_configuration_that_cannot_observe_is_refused(tmp_path: Path) -> None:
    upstream = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"upstream": [upstream, upstream]}, "cascade"),
        ({"upstream": upstream, "observe": {"records": {"path": tmp_path / "x"}}}, "observe.plan"),
        ({"upstream": upstream, "observe": {"rate": 0}}, "greater than 0"),
    ]
    for alias, why in wrong:
        with pytest.raises(UsageError, match=why):
            Config.checked({"version": 1, "models": {"m": {"mode": "observe", **alias}}}, "test")
