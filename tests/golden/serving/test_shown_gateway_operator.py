"""Golden texts for the operator of `guardrail serve`: observing, passing through, metrics, reloading, proxies."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from guardrail.bindings import bindings_for
from guardrail.review import Decision, ReviewStore
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan
from integrations._gateway import health
from integrations._gateway.canary import Canary
from integrations._gateway.litellm_api import PATH
from integrations._gateway.observing import Shape, Shapes
from tests.golden.serving.conversation import Conversation, conversation
from tests.golden.serving.test_shown_gateway import ANSWERS, PATHS, asked, strict
from tests.golden.shown import pretty, rounded, same
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE
from tests.integrations.gateway.test_gateway import ADD

COLLECT = {"n": 4, "primary": "sampled", "temperature": 1, "top_p": 1}
METRIC = re.compile(r"^(?:# HELP |# TYPE )?(?:python|process)_|_created(?:\{| )")
DURATION = re.compile(r'("seconds":) [\d.e-]+')
SECONDS = re.compile(r"^(guardrail_\w+_seconds_(?:sum|bucket)(?:\{[^}]*\})?) \S+$")


@pytest.fixture
def told(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Conversation]:
    """A conversation, titled by the first line of the test's docstring."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with conversation(tmp_path, ANSWERS, request.function.__doc__.splitlines()[0]) as begun:
        yield begun


def measured(told: Conversation) -> None:
    """Wait until what was observed is measured."""
    for observing in told.gateways[-1].observing.values():
        assert observing.queue.drain(20)


def tell_metrics(told: Conversation) -> None:
    """The exposition without the client's own lines; durations and their buckets are SECONDS."""
    told.title("GET /metrics")
    for line in told.send("GET", "/metrics").text.splitlines():
        if not METRIC.search(line):
            told.tell(told.words.replace(SECONDS.sub(r"\1 SECONDS", line)))


def test_metrics(told: Conversation) -> None:
    """The page for Prometheus after an answer, an abstention, an outage, observed and passed requests"""
    seen = {"mode": "observe", "observe": {"plan": COLLECT}, "pass_through": ["embeddings"]}
    told.serve({"support": told.guard(strict()), "seen": seen})
    told.log()
    told.endpoint.mode = "ok"
    for question in (SURE, UNSURE, UNSURE):
        told.send("POST", PATHS["chat"], asked("chat", question))
    told.send("POST", PATHS["chat"], asked("chat", model="seen"))
    told.send("POST", PATHS["chat"], asked("chat", model="seen", temperature=0))
    measured(told)
    told.send("POST", "/v1/embeddings", {"model": "seen", "input": "a", "messages": [{"content": "a"}]})
    for path in ("/healthz", "/readyz", "/v1/models", "/secret", "/guardrail/v1/tickets/1"):
        told.send("GET", path)
    told.endpoint.mode = "500"
    told.send("POST", PATHS["chat"], asked("chat", "another?"))
    told.send("POST", PATHS["messages"], asked("messages", "another?"))
    told.send("POST", PATHS["responses"], asked("responses", "another?"))
    tell_metrics(told)
    told.ends_as("gateway/metrics.txt")


def test_observing(told: Conversation) -> None:
    """A model that observes: what passes, what is measured behind it, and why the rest is not"""
    observe = {"plan": COLLECT, "records": {"path": told.folder / "records.jsonl"}}
    watched = told.guard(strict(), mode="observe")
    told.serve({"seen": {"mode": "observe", "observe": observe}, "watched": watched, "blind": {"mode": "observe"}})
    path = PATHS["chat"]
    told.title("A request, its reply, and what went upstream")
    headers = {"openai-project": "p", "x-secret": "s", "idempotency-key": "k1", "traceparent": "00-x", "cookie": "c=1"}
    told.ask("POST", path, asked("chat", UNSURE, model="seen"), headers)
    measured(told)
    told.received(
        "authorization", "openai-project", "x-secret", "idempotency-key", "traceparent", "cookie", "user-agent"
    )
    begin = len(told.endpoint.bodies)
    told.ask("POST", path, asked("chat", model="watched", temperature=0, stream=True))
    measured(told)
    told.received(since=begin)
    told.title("Requests whose answers are not measured, or are lost")
    several: tuple[dict[str, Any], ...] = (
        {"temperature": 0}, {"n": 2}, {"top_k": 5, "unheard_of": 1}, {"tools": [ADD]}, {"max_tokens": 1},
        {"response_format": {"type": "json_object"}}, {"logit_bias": {"1": 1}, "seed": 3, "stop": "x"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": SURE}]},
        {"messages": [{"role": "user", "content": SURE}, {"role": "assistant", "content": "Hi"},
                      {"role": "user", "content": SURE}]},
    )  # fmt: skip
    for fields in several:
        for model in ("seen", "watched", "blind"):
            told.send("POST", path, asked("chat", **{"model": model, **fields}))
            measured(told)
    for mode in ("html", "429", "empty", "one_too_many", "refusal", "content_filter", "thinking", "500"):
        told.endpoint.mode = mode
        told.send("POST", path, asked("chat", f"{mode}?", model="seen"))
        measured(told)
    told.endpoint.mode = "ok"
    told.ask("GET", "/guardrail/v1/observed")
    told.log()
    told.title("Refused")
    told.row("no UTF-8", told.send("POST", path, asked("chat", model="seen"), {"openai-project": b"\xe9"}))
    told.title("The records")
    for line in (told.folder / "records.jsonl").read_text(encoding="utf-8").splitlines():
        told.tell(told.words.replace(pretty({**json.loads(DURATION.sub(r"\1 0", line))})))
    told.ends_as("gateway/observing.txt")


def test_passing_through(told: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that pass through without a verdict"""
    monkeypatch.setattr(told.endpoint, "_canned", lambda mode: None)
    named = {"pass_through": ["embeddings", "files", "audio/speech", "completions"]}
    other = {"mode": "observe", "pass_through": ["files", "responses"], "upstream": told.upstream(model="other")}
    told.serve({"support": told.guard(strict(), **named), "other": other, "third": told.guard(strict())})
    told.log()
    body = {"model": "support", "messages": [{"content": "a"}], "input": "a"}
    told.ask("POST", "/v1/embeddings?x=1", body, {"x-secret": "s", "x-guardrail-segment": "s", "cookie": "c"})
    told.received("x-secret", "x-guardrail-segment", "cookie", "authorization", "host")
    sent: Any
    for path, sent in (
        ("/v1/files", body | {"model": "third"}), ("/v1/files", body | {"model": 5}),
        ("/v1/files", body | {"model": None}), ("/v1/files", "x"), ("/v1/audio/transcriptions", body),
        ("/v1/files/%2e%2e", body), ("/v1/responses/r1", body | {"model": "support"}), ("/v1/files", "{"),
    ):  # fmt: skip
        reply = told.send("POST", path, sent, {} if sent == "x" else {"content-type": "application/json"})
        told.row(f"POST {path} {sent if isinstance(sent, str) else sent['model']}", reply)
    chosen = told.ask("POST", "/v1/files", body, {"x-guardrail-model": "other"})
    assert chosen.headers["x-guardrail-guarded"] == "false"
    told.title("An upstream that is gone, that breaks off, and that quotes the key")
    gone = {"upstream": told.upstream(url="http://127.0.0.1:1/api"), "mode": "observe", "pass_through": ["files"]}
    told.serve({"support": gone})
    told.ask("POST", "/v1/files", body)
    told.ask("POST", PATHS["chat"], asked("chat"))
    told.log()
    told.serve({"support": {**named, "mode": "observe"}})
    told.ask("POST", PATHS["chat"], asked("chat"), quiet=True)
    for mode in ("reset", "echo_401", "echo_200"):
        told.forget_log()
        told.endpoint.mode = mode
        reply = told.send("POST", "/v1/embeddings", body)
        told.tell(f"{mode}: {reply.status_code} {told.words.replace(re.sub('[.]{9,}', '...', reply.text))[:300]}")
        told.log()
    told.tell(told.words.replace(str(told.send("GET", "/readyz").json()["warnings"])))
    told.ends_as("gateway/passing.txt")


def test_litellm(told: Conversation) -> None:
    """The guardrail endpoint for LiteLLM's proxy: the prompt before the call, the answer after it"""
    told.serve({"support": told.guard(strict()), "seen": {"mode": "observe"}}, max_guarded_body=2000)

    def prompt(question: Any, call: Any = "c1", **more: Any) -> dict[str, Any]:
        turn = [{"role": "user", "content": question, "name": None}]
        return {
            "input_type": "request",
            "litellm_call_id": call,
            "model": "support",
            "structured_messages": turn,
            **more,
        }

    def answer(call: Any = "c1", **more: Any) -> dict[str, Any]:
        return {"input_type": "response", "litellm_call_id": call, "model": "m", "texts": ["Paris"], **more}

    told.ask("POST", PATH, prompt(SURE, request_data={"user_api_key_hash": "h"}))
    told.ask("POST", PATH, answer(request_data={"user_api_key_hash": "h"}))
    told.send("POST", PATH, prompt(SURE))
    told.ask("POST", PATH, answer(texts=["Rome"]))
    told.send("POST", PATH, prompt(UNSURE, "c2"))
    told.ask("POST", PATH, answer("c2", texts=["Rome"]))
    told.title("Blocked")
    call = {"function": {"name": "add", "arguments": "{}"}}
    several: tuple[dict[str, Any], ...] = (
        {"texts": []}, {"texts": ["Paris", "Rome"]}, {"tool_calls": [call]}, {"images": ["AA=="]}, {"texts": 5},
        {"tool_calls": [5]}, {"tool_calls": [{"function": 5}]}, {"tool_calls": [{"function": {"arguments": "{"}}]},
    )  # fmt: skip
    for fields in several:
        told.row(json.dumps(fields), told.send("POST", PATH, answer(**fields)))
    for body in (
        answer("unknown"), answer(None), answer(request_data=5), prompt(UNSURE), prompt(SURE, None),
        prompt(SURE, "c4", structured_messages=5), prompt(SURE, "c5", structured_messages=[5]),
        prompt(SURE, "c6", model=None), prompt("why? " * 400, "c7"),
    ):  # fmt: skip
        told.row(json.dumps(body)[:110], told.send("POST", PATH, body))
    for number, (model, fields) in enumerate((("none", {}), ("seen", {}), ("support", {"structured_messages": []}))):
        told.send("POST", PATH, prompt(SURE, f"d{number}", **fields), {"x-guardrail-model": model})
        told.row(f"{model} {fields}", told.send("POST", PATH, answer(f"d{number}")))
    told.title("Tools")
    told.endpoint.mode = "tool"
    told.serve({"support": told.guard(strict(bindings=bindings_for([ADD])))})
    told.send("POST", PATH, prompt(SURE, tools=[ADD]))
    for arguments in ('{"b": 2, "a": 1}', '{"a": 1, "b": 3}', "{"):
        calls = [{"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}]
        reply = told.send("POST", PATH, answer(texts=[], tool_calls=calls)).json()
        told.tell(f"{arguments}: {reply['action']} {reply.get('blocked_reason')}")
    told.endpoint.mode = "500"
    told.send("POST", PATH, prompt("another?", "c8", tools=[ADD]))
    told.ask("POST", PATH, answer("c8"))
    told.ends_as("gateway/litellm.txt")


def test_tickets(told: Conversation) -> None:
    """A ticket until a person decides"""
    reviews = str(told.folder / "reviews.db")
    told.serve({"support": told.guard(strict(), on_abstain="ticket")}, reviews=reviews)
    with ReviewStore(reviews) as store:
        for decision in (
            Decision(action="approve", note="n"),
            Decision(action="respond", text="It is Bern."),
            Decision(action="reject", note="n"),
            None,
        ):
            what = "cancelled" if decision is None else decision.action
            told.title(what)
            number = told.send("POST", PATHS["chat"], asked("chat", UNSURE, user=what)).json()["guardrail"]["ticket"]
            told.ask("GET", f"/guardrail/v1/tickets/{number}", quiet=what != "approve")
            lease = None if decision is None else store.claim("Eve", item=number)
            if decision is None or lease is None:
                store.cancel(number, why="by phone")
            else:
                store.decide(lease, decision)
            told.ask("GET", f"/guardrail/v1/tickets/{number}")
        content = store.item(number).content
        told.title("The content for reviewers")
        told.tell(told.words.replace(pretty(rounded(content.model_dump(mode="json")))))
    told.ask("GET", "/guardrail/v1/tickets/unknown")
    told.ends_as("gateway/tickets.txt")


def test_reload(told: Conversation) -> None:
    """A reload that succeeds, one that fails, draining, and the log"""
    artifact = strict().save(told.folder / "artifact.json")
    upstream = json.dumps({**told.upstream(), "timeout": 10})
    good = (
        f"version: 1\nmodels:\n  support:\n    upstream: {upstream}\n    artifact: {artifact}\n    probe: 'off'\n"
        f"  seen: {{upstream: {upstream}, mode: observe, pass_through: [embeddings, audio/speech]}}\n"
    )
    path = told.folder / "guardrail.yaml"
    path.write_text(good, encoding="utf-8")
    told.serve_file(path)
    gateway = told.gateways[-1]
    told.title("Nothing changed")
    assert gateway.reload()
    told.log()
    told.title("A fault in the file")
    path.write_text(good.replace("probe:", "porbe:"), encoding="utf-8")
    assert not gateway.reload()
    told.ask("GET", "/guardrail/v1/reload")
    told.ask("GET", "/readyz")
    told.log()
    told.title("Another artifact, after which the former guard is forgotten")
    artifact.unlink()
    make_artifact(MODEL, threshold=9, n=4).save(artifact)
    path.write_text(good, encoding="utf-8")
    assert gateway.reload()
    told.ask("GET", "/guardrail/v1/reload")
    told.ask("POST", PATHS["chat"], asked("chat", UNSURE))
    told.log()
    told.title("An artifact that cannot be read, and a file that is gone")
    artifact.write_text("{}", encoding="utf-8")
    assert not gateway.reload()
    path.unlink()
    assert not gateway.reload()
    told.log()
    told.title("Draining")
    gateway.drain()
    told.ask("GET", "/readyz")
    told.ends_as("gateway/reload.txt")


def test_canary(told: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: what it says at the start, when questions fail, when answers change"""
    clock = [1000.0]
    monkeypatch.setattr("secrets.randbits", lambda bits: 28)
    monkeypatch.setattr("integrations._gateway.canary.time", SimpleNamespace(monotonic=lambda: clock[0]))
    questions = told.folder / "known.jsonl"
    known = [f"known {number}?" for number in range(3)]
    questions.write_text("".join(json.dumps({"question": question}) + "\n" for question in known), encoding="utf-8")

    def start(**settings: Any) -> Canary:
        told.serve({"support": told.guard(strict(), canary={"questions": questions, "every": "30m"})}, **settings)
        canary = told.gateways[-1].aliases["support"].canary
        assert canary is not None
        told.log()
        return canary

    def rounds(canary: Canary, number: int) -> None:
        for _ in range(number):
            told.run(canary.round())
        told.log()
        told.tell(*canary.lines, f"due in {canary.due - clock[0]:g} s")

    canary = start()
    told.tell(f"due in {canary.due - clock[0]:g} s")
    told.title("An outage")
    told.endpoint.mode = "500"
    rounds(canary, 2)
    told.endpoint.mode = "ok"
    rounds(canary, 9)
    told.title("Other answers")
    told.endpoint.answers = {question: ANSWERS[UNSURE] for question in known}
    rounds(canary, 6)
    told.ask("GET", "/readyz")
    page = told.send("GET", "/metrics").text.splitlines()
    told.tell(*(line for line in page if "canary" in line and "_created" not in line))
    told.title("The same artifact and questions after a reload that changes another setting during a round")
    canary.due = math.inf
    gateway = told.gateways[-1]
    changed = gateway.config.models["support"].model_copy(update={"abstain_message": "Ask us."})
    gateway.config = gateway.config.model_copy(update={"models": {"support": changed}})
    assert gateway.reload()
    told.log()
    again = told.gateways[-1].aliases["support"].canary
    assert again is not None
    told.tell(*again.lines, f"due in {again.due - clock[0]:g} s after {again.monitor.state.rounds} rounds")
    told.title("Two processes on one store: one of them asks")
    reviews = str(told.folder / "reviews.db")
    rounds(start(reviews=reviews), 1)
    rounds(start(reviews=reviews), 1)
    told.title("A store that cannot be used")
    monkeypatch.setattr(Canary, "_claim", lambda self: 1 / 0)
    rounds(start(reviews=reviews), 2)
    told.ends_as("gateway/canary.txt")


def test_what_health_says(caplog: pytest.LogCaptureFixture) -> None:
    """Its limits, and what it shows and forgets."""
    now = [1000.0]
    state = health.Health(lambda: now[0])
    caplog.set_level("INFO", "guardrail")
    told = []

    def tell(what: str) -> None:
        told.append(f"{what}: ready unless {state.reasons(['a', 'b'])}, fault of a: {state.fault('a')}")
        told.extend(f"  {line}" for model in (None, "a", "b") for line in state.lines(model))
        told.extend(f"  log: {record.levelname} {record.getMessage()}" for record in caplog.records)
        caplog.clear()

    for number in range(3):
        state.fail("a", "model_failed", "it failed", at=" (http://upstream)")
        tell(f"{number + 1} failed questions of a")
    state.fail("b", "misconfigured", "no answer")
    tell("one of b")
    now[0] += 59.9
    state.fail("a", "model_failed", "it failed")
    tell("a minute later, almost")
    now[0] += 0.2
    state.fail("a", "model_failed", "it failed")
    tell("a minute later")
    state.recover("a", "other")
    tell("another cause of a is over")
    state.recover("a")
    tell("a answers again")
    state.warn(None, "connections", "too many", again=10)
    state.warn(None, "connections", "too many", again=10)
    now[0] += 10
    state.warn(None, "connections", "too many", again=10)
    tell("a cause of the gateway, thrice")
    state.fail(None, "store_unavailable", "no store")
    tell("a fault of the gateway")
    now[0] += 60
    tell("a minute later")
    now[0] += 3541
    tell("an hour later")
    for number in range(300):
        state.warn("a", f"cause {number}", "text")
    told.append(f"causes that are kept: {len(state.lines('a'))} of 300")
    state.forget("a")
    told.append(f"after forgetting: {len(state.lines('a'))}")
    same("gateway/health.txt", "\n".join(told))


def test_shapes_of_requests() -> None:
    """What an operator reads of observed requests, and the configuration that would measure most of them."""
    user, plan = {"role": "user", "content": "q"}, SamplingPlan(n=7)
    system = {"role": "system", "content": "Be brief."}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    told = []
    whole = {"messages": [system, user], "tools": [ADD], "response_format": form, "temperature": 0.3, "top_p": 0.5}
    odd = {"messages": [user, 5], "tools": 5, "temperature": "x", "response_format": 5}
    json_object = {"messages": [user], "response_format": {"type": "json_object"}, "max_completion_tokens": 70}
    limited, plain = {"messages": [user], "max_tokens": 50}, {"messages": [user]}
    rows: tuple[tuple[str, list[tuple[dict[str, Any], int | None]]], ...] = (
        ("nothing yet", []),
        ("plain requests", [(plain, 90)] * 3 + [({**plain, "temperature": 0}, 300)]),
        ("a limit that most requests have", [(limited, 20)] * 2 + [(plain, None)]),
        ("a system prompt, tools and a format", [(whole, 20)]),
        ("JSON without a schema", [(json_object, 70)]),
        ("conversations", [({"messages": [user, user]}, 5), (odd, 5)]),
    )
    for name, requests in rows:
        shapes = Shapes()
        for body, tokens in requests:
            shapes.add(Shape.of(body), tokens, comparable=False)
        told.append(f"## {name}\n{json.dumps(shapes.summary(plan), indent=1)}".replace("\\n", "\n  "))
    shapes = Shapes()
    shapes.add(Shape.of({"messages": [user]}), 5, comparable=True)
    told.append(f"## as it is now\n{json.dumps(shapes.summary(plan), indent=1)}".replace("\\n", "\n  "))
    for number in range(1100):
        shapes.add(Shape.of({"messages": [user], "max_tokens": number}), 5, comparable=False)
    told.append(f"## many shapes: {json.dumps(shapes.summary(plan))}")
    same("gateway/shapes.txt", "\n".join(told))
