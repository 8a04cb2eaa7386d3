"""Faults that an operator must see: the log, ``/readyz``, the reasons and the shapes of requests."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from guardrail.review.errors import StoreUnavailableError
from guardrail.types import SamplingPlan
from integrations._gateway.health import AGAIN, IN_A_ROW, LASTS, MOST, Health
from integrations._gateway.observing import plan_for
from integrations._openai.clients import EndpointState
from tests.integrations.gateway.conftest import SURE, UNSURE, Held, Serve
from tests.integrations.gateway.test_gateway import key_named
from tests.integrations.gateway.test_observing import COLLECT, GREEDY, counts, observing
from tests.integrations.openai.faulty_endpoint import serving


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
    assert warnings_in(caplog) == ["guardrail serve: m: the text (1 times)"]
    clock.now += AGAIN
    health.warn("m", "cause", "the text")
    assert "(401 times)" in warnings_in(caplog)[-1]
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


def test_a_cause_that_is_over_is_shown_no_longer_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A cause that comes and goes within a minute has one line, and so has its end."""
    caplog.set_level(logging.INFO, "guardrail.serve")
    clock = Clock()
    health = Health(clock)
    health.warn("m", "not_comparable:tools", "text")
    for _ in range(3):
        health.fail("m", "misconfigured", "no answer")
        assert len(health.lines("m")) == 2
        health.recover("m")
        assert health.lines("m") == ["not_comparable:tools (1 times): text"]  # an answer says nothing about it
    health.fail("m", "model_failed", "text")
    health.recover("m", "upstream_down")
    assert len(health.lines("m")) == 2
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == ["guardrail serve: m: answers again; over: misconfigured"]
    health.forget("m")
    assert health.lines("m") == []


def test_a_warning_of_the_same_name_does_not_outlast_an_answer() -> None:
    """Otherwise a model that answers again stays out of the load balancer, and its next failure counts as three."""
    health = Health(Clock())
    for _ in range(IN_A_ROW):
        health.fail("m", "model_failed", "text")
    health.warn("m", "model_failed", "text")
    health.recover("m")
    assert health.reasons(["m"]) == []
    health.fail("m", "model_failed", "text")
    assert health.reasons(["m"]) == []


def test_a_failure_during_a_reload_is_noted_and_raises_nothing() -> None:
    """Otherwise the client gets an error of the gateway (500) in place of the upstream's, which says when to ask again.

    The reload comes as soon as the log has the line, which other threads may use.
    """
    health = Health(Clock())

    class Reload(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            health.forget("m")

    logger, handler = logging.getLogger("guardrail"), Reload()
    logger.addHandler(handler)
    try:
        health.fail("m", "model_failed", "text")
    finally:
        logger.removeHandler(handler)
    assert health.lines("m") == []


def test_no_number_of_warnings_hides_a_fault() -> None:
    """Otherwise odd requests of clients make a gateway ready that answers nothing. The oldest warning goes instead."""
    clock = Clock()
    health = Health(clock)
    health.fail("m", "misconfigured", "text")
    for number in range(MOST):
        clock.now += 0.1
        health.warn("m", f"cause {number}", "text")
    assert health.reasons(["m"]) == ["misconfigured"]
    names = {line.split(" (")[0] for line in health.lines("m")}
    assert names == {"misconfigured", *(f"cause {number}" for number in range(1, MOST))}


def test_a_failure_under_a_clients_own_key_leaves_the_faults_of_others_alone(serve: Serve, endpoint: Held) -> None:
    """Otherwise a gateway that answers again is not ready for a minute."""
    ann, row = key_named("ann")
    bob, other = key_named("bob", upstream_key="sk-of-bob")
    served = serve(keys=[row, other])
    endpoint.mode = "html"
    for number in range(IN_A_ROW):
        assert served.ask(f"question {number}", {"api-key": ann}).status_code == 503
    assert served.ask("of bob", {"api-key": bob}).status_code == 503
    ready = served.http.get("/readyz", headers={"api-key": ann}).json()
    assert ready["reasons"] == ["model_failed"]
    endpoint.mode = "ok"
    assert served.ask(SURE, {"api-key": ann}).status_code == 200
    assert served.http.get("/readyz", headers={"api-key": ann}).json()["ready"]
    names = [line.split(" (")[0] for line in ready["warnings"]["support"]]
    assert names == ["model_failed", "model_failed:own_key"]


SILENT = {"url": "http://127.0.0.1:1/api", "model": "m", "key": "k", "max_retries": 0}


@pytest.mark.parametrize("mode", ["reset", "stall", "refused"])
def test_an_upstream_that_had_answered_and_no_longer_does_is_down(
    serve: Serve, endpoint: Held, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guardrail.serve")
    with serving(Held()) as gone:
        url = gone.url if mode == "refused" else endpoint.url
        upstream = {"url": url, "model": "m", "key": "k", "timeout": 1, "max_retries": 0}
        served = serve({"upstream": upstream})
        assert served.ask("first").status_code == 200
    endpoint.mode = mode
    for number in range(IN_A_ROW):
        reply = served.ask("second")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], reply.headers["retry-after"]) == (503, "upstream_down", "5")
        assert "is down (since 20" in error["message"]
        assert "x-should-retry" not in reply.headers
        ready = served.http.get("/readyz")
        assert ready.json()["reasons"] == ["upstream_down"] * (number == IN_A_ROW - 1)
        assert "the upstream is down (since 20" in ready.json()["warnings"]["support"][0]
    assert served.gateway.reload()  # what did not change keeps its state: no outage turns into a wrong address
    assert served.ask("second").json()["error"]["code"] == "upstream_down"
    (line,) = [line for line in warnings_in(caplog) if "the upstream is down" in line]
    assert url in line
    if mode == "refused":
        return
    endpoint.mode = "ok"
    assert served.ask("second").status_code == 200
    ready = served.http.get("/readyz")
    assert (ready.status_code, ready.json()["warnings"]) == (200, {})
    assert "guardrail serve: support: answers again; over: upstream_down" in caplog.messages


def test_an_upstream_that_never_answered_is_misconfigured(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    reply = serve({"upstream": SILENT}).ask()
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "misconfigured")
    (line,) = [line for line in warnings_in(caplog) if "support: the upstream answers no call" in line]
    assert "that the server runs there; does its url end in /v1? (http://127.0.0.1:1/api)" in line
    served = serve()
    assert served.ask("first").status_code == 200
    endpoint.mode = "echo_401"  # a key that was withdrawn is no outage
    reply = served.ask("second")
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "misconfigured")


def test_one_slow_reply_among_others_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10, 20))
    monkeypatch.setattr("integrations._openai.clients.time.time", lambda: next(now))
    clients, late = EndpointState(), TimeoutError()

    def down(began: float, error: Exception | None) -> bool:
        clients.note(began, error)
        return clients.down_since is not None

    assert not down(0, late)  # it never replied
    assert not down(1, None)
    assert not down(9, late)  # another request was answered after this one began
    assert down(11, late)
    assert not down(12, ValueError("an error reply is a reply"))


def test_an_observed_upstream_that_is_down_is_named_in_the_log_and_shown_until_it_replies(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    silent = {"silent": {"upstream": SILENT, "mode": "observe"}}
    served = serve({"mode": "observe", "artifact": None}, more=silent)
    assert served.ask().status_code == 200
    endpoint.mode = "reset"
    reply = served.ask()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "upstream_down")
    assert reply.headers["retry-after"] == "5"
    reply = served.ask(model="silent")
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")
    for url, text in ((endpoint.url, "is down (since 20"), (SILENT["url"], "cannot be reached")):
        (line,) = [line for line in warnings_in(caplog) if f" at {url}" in line]
        assert text in line
    warnings = served.http.get("/readyz").json()["warnings"]
    assert "is down (since 20" in warnings["support"][0]
    assert "cannot be reached" in warnings["silent"][0]
    assert "127.0.0.1" not in str(warnings)
    endpoint.mode = "ok"
    assert served.ask().status_code == 200
    assert list(served.http.get("/readyz").json()["warnings"]) == ["silent"]


def test_a_404_asks_whether_the_url_is_whole(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_canned", lambda mode: b"HTTP/1.1 404 X\r\nContent-Length: 2\r\n\r\n{}")
    for url, asked in ((endpoint.url, False), (endpoint.url.removesuffix("/v1"), True)):
        caplog.clear()
        upstream = {"url": url, "model": "m", "key": "k", "max_retries": 0}
        served = serve({"upstream": upstream}, more={"seen": {"upstream": upstream, "mode": "observe"}})
        assert served.ask().status_code == 502
        assert served.ask(model="seen").status_code == 404
        assert sum("does its url end in /v1?" in line for line in warnings_in(caplog)) == 2 * asked


def test_a_reload_that_changes_a_model_forgets_its_warnings(serve: Serve, endpoint: Held, tmp_path: Any) -> None:
    guarded = serve().gateway.config
    served = observing(serve, endpoint, artifact=False, plan=COLLECT)
    served.http.post("/v1/chat/completions", json={**GREEDY, "messages": [{"role": "user", "content": SURE}]})
    assert counts(served).not_comparable == 1
    assert served.gateway.reload()
    assert list(served.http.get("/readyz").json()["warnings"]) == ["m"]  # nothing changed
    served.gateway.config = guarded.model_copy(update={"models": {"m": guarded.models["support"]}})
    assert served.gateway.reload()
    assert served.http.get("/readyz").json()["warnings"] == {}


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


def test_questions_that_waited_for_a_slow_probe_have_a_line_in_the_log(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an operator looks for the seconds of the first question in the gateway."""
    took = "guardrail: the probe of the endpoint took 0 s, and questions waited for it"
    assert serve({"probe": "auto"}).ask(SURE).status_code == 200
    assert warnings_in(caplog) == []  # the control: it was fast
    monkeypatch.setattr("guardrail.sampling.prober.SLOW_PROBE", 0.0)
    served = serve({"probe": "auto"})
    assert [served.ask(question).status_code for question in (SURE, UNSURE)] == [200, 200]
    assert warnings_in(caplog)[0] == took
    assert warnings_in(caplog).count(took) == 1  # no later question waits for it


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


@pytest.mark.parametrize("fault", ["cannot be used", "cannot be written"])
def test_a_store_that_fails_is_a_503_and_not_ready(
    serve: Serve, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """Other processes do not learn of a draw that was not written, so nothing of it is given out."""
    served = serve(reviews=str(tmp_path / "reviews.db"))

    async def unusable(*_: object) -> None:
        raise StoreUnavailableError("database or disk is full")

    def unwritable(*_: object) -> None:
        raise StoreUnavailableError("database or disk is full")

    with monkeypatch.context() as patched:
        if fault == "cannot be used":
            patched.setattr(served.gateway.aliases["support"], "answer", unusable)
        else:
            patched.setattr("guardrail.review.keys.ExpiringKeys.add", unwritable)
        replies = [served.ask(f"question {number}") for number in range(3)]
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "store_unavailable")}
    text = f"guardrail serve: gateway: the store {fault}: database or disk is full (1 times)"
    assert [line for line in warnings_in(caplog) if "disk is full" in line] == [text]
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
    greedy, formatted = row["plans"]
    assert (greedy["share"], greedy["plan"]["primary"], formatted["share"]) == (0.75, "greedy", 0.25)
    assert formatted["plan"]["bindings"] == {"response_format": {"type": "json_object"}}
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


def test_with_the_proposed_plan_an_ordinary_app_is_measured(serve: Serve, endpoint: Held) -> None:
    """The loop of an operator: requests do not match, the plan is pasted with the system prompt, and they do."""
    system, question = {"role": "system", "content": "You are a support agent."}, {"role": "user", "content": SURE}
    ordinary: dict[str, Any] = {"model": "m", "messages": [system, question], "temperature": 0.7, "max_tokens": 50}
    conversation = [*ordinary["messages"], {"role": "assistant", "content": "a"}, question]
    others = [{**ordinary, "messages": conversation}, {**ordinary, "temperature": 0.2}]

    def asked(**observe: Any) -> Any:
        served = observing(serve, endpoint, artifact=False, **observe)
        for body in (*[ordinary] * 3, *others):
            assert served.http.post("/v1/chat/completions", json=body).status_code == 200
        return counts(served), served.http.get("/guardrail/v1/observed").json()["m"]

    before, shown = asked(plan=COLLECT)
    assert (before.not_comparable, before.collected) == (5, 0)
    most = shown["plans"][0]
    plan = {"n": 4, "primary": "sampled", "temperature": 0.7, "top_p": 1.0, "max_tokens": 50}
    assert most == {"share": 0.8, "plan": plan}
    assert shown["reasons"] == {"not_comparable": {"temperature": 5}}
    assert system["content"] not in str(shown)
    after, _ = asked(plan=plan, prompt={"system": system["content"]})
    assert (after.not_comparable, after.collected) == (1, 4)


def test_the_proposed_plan_of_greedy_and_of_formatted_answers() -> None:
    greedy = plan_for({"temperature": 0, "response_format": {"type": "json_object"}}, 7)
    assert SamplingPlan(**greedy).primary == "greedy"
    assert greedy["bindings"] == {"response_format": {"type": "json_object"}}
    assert "max_tokens" not in greedy, "the plan's own limit"


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
