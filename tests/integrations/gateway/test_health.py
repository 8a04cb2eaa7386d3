"""Faults that an operator must see: the log, ``/readyz``, the reasons and the shapes of requests."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from guardrail.review.errors import StoreUnavailableError
from guardrail.types import SamplingPlan
from integrations._gateway.config import Config
from integrations._gateway.health import AGAIN, IN_A_ROW, LASTS, Health
from integrations._gateway.shapes import Shape, Shapes
from tests.integrations.gateway.conftest import SURE, UNSURE, Held, Serve
from tests.integrations.gateway.test_observing import COLLECT, GREEDY, counts, observing


class Clock:
    """A time that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_cause_is_logged_at_once_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(400):
        health.warn("m", "cause", "the text")
    assert warnings_in(caplog) == ["guardrail serve: m: the text (1 times since the last line)"]
    clock.now += AGAIN
    health.warn("m", "cause", "the text")
    assert "(400 times" in warnings_in(caplog)[-1]
    assert health.lines("m") == ["cause (401 times): the text"]
    assert health.lines("other") == []
    clock.now += 3601
    assert health.lines("m") == []


def test_a_fault_ends_with_an_answer_or_with_time() -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(IN_A_ROW - 1):
        health.fail("m", "model_failed", "text")
    assert health.reasons(["m"]) == []
    health.fail("m", "model_failed", "text")
    assert health.reasons(["m"]) == ["model_failed"]
    assert health.reasons(["m", "well"]) == []  # others can still be asked
    health.recover("m")
    assert health.reasons(["m"]) == []
    health.fail(None, "store_unavailable", "text")
    assert health.reasons(["m", "well"]) == ["store_unavailable"]
    clock.now += LASTS
    assert health.reasons(["m", "well"]) == []


def test_a_refused_probe_is_a_503_with_a_log_line_and_not_ready(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve({"probe": "auto"})
    endpoint.mode = "temperature_ignored"
    replies = [served.ask(UNSURE), served.ask(SURE)]
    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in replies] == [
        (503, "degenerate_samples")
    ] * 2
    refused = [line for line in warnings_in(caplog) if "a probe refused the upstream" in line]
    assert len(refused) == 1
    ready = served.http.get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["degenerate_samples"])
    assert "probe refused" in ready.json()["warnings"]["support"][0]
    endpoint.mode = "ok"
    assert served.gateway.reload()  # probes again
    assert served.ask(SURE).status_code == 200
    assert served.http.get("/readyz").status_code == 200


def test_an_upstream_without_json_is_a_503_and_not_ready(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    endpoint.mode = "html"
    replies = [served.ask(f"question {number}") for number in range(IN_A_ROW)]
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "model_failed")}
    assert sum("sent no JSON" in line for line in warnings_in(caplog)) == 1
    assert served.http.get("/readyz").json()["reasons"] == ["model_failed"]
    endpoint.mode = "ok"
    assert served.ask(SURE).status_code == 200
    assert served.http.get("/readyz").json()["ready"]


def test_a_full_store_is_a_503_and_not_ready(
    serve: Serve, endpoint: Held, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(reviews=str(tmp_path / "reviews.db"))

    async def full(*_: object) -> None:
        raise StoreUnavailableError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(served.gateway.aliases["support"], "answer", full)
        replies = [served.ask(f"question {number}") for number in range(3)]
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "store_unavailable")}
    assert sum("disk is full" in line for line in warnings_in(caplog)) == 1
    assert served.http.get("/readyz").json()["reasons"] == ["store_unavailable"]
    assert served.ask(SURE).status_code == 200
    assert served.http.get("/readyz").json()["ready"]


def test_a_store_that_cannot_be_written_makes_the_gateway_unready(
    serve: Serve, endpoint: Held, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk can still be read, so questions are answered; but other processes do not learn of their draws."""
    served = serve(reviews=str(tmp_path / "reviews.db"))

    def full(*_: object) -> None:
        raise StoreUnavailableError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("guardrail.review.queue.expiring_keys.ExpiringKeys.add", full)
        assert [served.ask(f"question {number}").status_code for number in range(3)] == [200] * 3
    assert [line for line in warnings_in(caplog) if "disk is full" in line] == [
        "guardrail serve: gateway: the store cannot be written: database or disk is full (1 times since the last line)"
    ]
    ready = served.http.get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["store_unavailable"])
    assert served.ask(SURE).status_code == 200
    assert served.http.get("/readyz").json()["ready"]


def test_observing_says_why_nothing_is_measured(serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture) -> None:
    served = observing(serve, endpoint, artifact=False, plan=COLLECT)
    body: dict[str, Any] = {**GREEDY, "messages": [{"role": "user", "content": SURE}]}
    for _ in range(3):
        served.http.post("/v1/chat/completions", json={**body, "unheard_of": 1})
    served.http.post(
        "/v1/chat/completions", json={**body, "temperature": 1, "response_format": {"type": "json_object"}}
    )
    assert counts(served).not_comparable == 4
    row = served.http.get("/guardrail/v1/observed").json()["m"]
    assert row["reasons"] == {"not_comparable": {"other_field+temperature": 3, "response_format": 1}}
    assert (row["shapes"]["json"], row["shapes"]["temperature"]["0"]) == (0.25, 0.75)
    page = served.http.get("/metrics").text
    assert 'fate="not_comparable",model="m",reason="other_field+temperature"} 3.0' in page
    assert "unheard_of" not in page
    assert sum("differ from the plan in other_field+temperature" in line for line in warnings_in(caplog)) == 1
    ready = served.http.get("/readyz").json()
    assert ready["ready"]
    assert "not_comparable:other_field+temperature (3 times)" in ready["warnings"]["m"][0]


def test_unmeasured_answers_have_their_reason(serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture) -> None:
    served = observing(serve, endpoint, artifact=False, plan={**COLLECT, "max_tokens": 256}, probe="auto")
    endpoint.mode = "temperature_ignored"
    served.http.post("/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": UNSURE}]})
    assert counts(served).unmeasured == 1
    row = served.http.get("/guardrail/v1/observed").json()["m"]
    assert row["reasons"] == {"unmeasured": {"degenerate_samples": 1}}
    assert any("could not be measured (degenerate_samples)" in line for line in warnings_in(caplog))


def test_the_proposed_configuration_is_valid_and_matches() -> None:
    shapes, secret = Shapes(), "the secret prompt"
    common: dict[str, Any] = {
        "messages": [{"role": "system", "content": secret}, {"role": "user", "content": "q"}],
        "temperature": 0.3,
        "response_format": {"type": "json_object"},
    }
    for _ in range(3):
        shapes.add(Shape.of(common), 90)
    shapes.add(Shape.of({**common, "messages": [*common["messages"], {"role": "user", "content": "more"}]}), 90)
    summary = shapes.summary(SamplingPlan(n=7))
    assert (summary["requests"], summary["system_prompt"], summary["history"], summary["json"]) == (4, 1.0, 0.25, 1.0)
    assert summary["matching"]["share"] == 0.75
    proposed = summary["matching"]["yaml"]
    assert secret not in proposed
    import yaml

    alias = {"upstream": {"url": "http://127.0.0.1:1/v1", "model": "m"}, "mode": "observe", **yaml.safe_load(proposed)}
    plan = Config.checked({"version": 1, "models": {"m": alias}}, "test").models["m"].observe.plan
    assert plan is not None
    assert plan.bindings is not None
    assert (plan.n, plan.temperature, plan.max_tokens) == (7, 0.3, 128)
    assert plan.bindings.response_format == {"type": "json_object"}


def test_after_the_proposed_configuration_an_ordinary_app_is_measured(serve: Serve, endpoint: Held) -> None:
    """The loop of an operator: requests do not match, the YAML is pasted with the system prompt, and they do."""
    import yaml

    system, question = {"role": "system", "content": "You are a support agent."}, {"role": "user", "content": SURE}
    ordinary = {"model": "m", "messages": [system, question], "temperature": 0.7}
    others: list[dict[str, Any]] = [
        {**ordinary, "response_format": {"type": "json_object"}},
        {
            **ordinary,
            "messages": [*ordinary["messages"], {"role": "assistant", "content": "a"}, ordinary["messages"][1]],
        },
        {**ordinary, "temperature": 0.2},
    ]

    def asked(**observe: Any) -> Any:
        served = observing(serve, endpoint, artifact=False, **observe)
        for body in (*[ordinary] * 3, *others):
            assert served.http.post("/v1/chat/completions", json=body).status_code == 200
        return counts(served), served.http.get("/guardrail/v1/observed").json()["m"]["shapes"]["matching"]

    before, matching = asked(plan=COLLECT)
    assert (before.not_comparable, before.collected, matching["share"]) == (6, 0, 0.5)
    proposed = yaml.safe_load(matching["yaml"])["observe"]
    assert "prompt: {system: the system prompt of 24 characters" in matching["yaml"]
    after, _ = asked(**proposed, prompt={"system": system["content"]})
    assert (after.not_comparable, after.collected) == (3, 3)


def test_a_held_answer_is_one_line_in_the_log_without_a_prompt(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    served.ask(SURE)
    assert warnings_in(caplog) == []
    reply = served.ask(UNSURE)
    (line,) = warnings_in(caplog)
    assert reply.headers["x-request-id"] in line
    assert "is above the calibrated threshold 0.1. Hand the question to a person" in line
    assert UNSURE not in line


def test_an_explanation_does_not_repeat_the_text_of_a_server(serve: Serve, endpoint: Held) -> None:
    endpoint.mode = "400"
    shown = serve().ask("marker of a prompt").json()["guardrail"]
    assert shown["explanation"].startswith("The uncertainty could not be measured (rejected). ")
    assert "bad request" not in shown["explanation"]


def test_records_that_cannot_be_written_are_said_to_be_lost(
    serve: Serve, endpoint: Held, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "observed.jsonl"
    served = observing(serve, endpoint, artifact=False, plan=COLLECT, records={"path": str(path)})
    path.rename(tmp_path / "moved.jsonl")
    path.mkdir()  # nothing can be appended to it
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": SURE}], "temperature": 1}
    for _ in range(3):
        assert served.http.post("/v1/chat/completions", json=body).status_code == 200
    observed = counts(served)
    assert (observed.chosen, observed.collected, observed.dropped) == (3, 0, {"unwritten": 3})
    assert sum("records cannot be written to" in line for line in warnings_in(caplog)) == 1
    assert "(Is a directory)" in served.http.get("/readyz").json()["warnings"]["m"][0]
