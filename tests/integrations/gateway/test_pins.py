"""A silent change of the upstream's model: reported, and held back where the pin says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guardrail.errors import UsageError
from guardrail.testing import make_artifact
from integrations._gateway.config import Config
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.gateway.conftest import SURE, Held, Serve, Served
from tests.integrations.gateway.test_health import warnings_in
from tests.integrations.gateway.test_observing import COLLECT, counts


def pinned(serve: Serve, endpoint: Held, *, on_change: str, **settings: Any) -> Served:
    pin = {"system_fingerprint": "fp_1", "on_change": on_change}
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream", "timeout": 10, "max_retries": 0, "pin": pin}
    return serve({"upstream": upstream}, **settings)


def test_a_changed_upstream_is_held_back_until_it_is_the_pinned_one_again(
    serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture
) -> None:
    served = pinned(serve, endpoint, on_change="abstain", remember=0)
    assert served.ask(SURE).status_code == 200  # control
    assert warnings_in(caplog) == []
    endpoint.identity = lambda _: {"system_fingerprint": "fp_2"}
    replies = [served.ask(SURE) for _ in range(3)]
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "model_changed")}
    assert "is not the one that was calibrated" in replies[0].json()["error"]["message"]
    lines = [line for line in warnings_in(caplog) if "fp_2" in line]
    assert len(lines) == 1
    assert "the upstream's system_fingerprint is 'fp_2', but 'fp_1' is pinned" in lines[0]
    ready = served.http.get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["model_changed"])
    assert any("'fp_2'" in line for line in ready.json()["warnings"]["support"])
    page = served.http.get("/metrics").text
    assert 'guardrail_upstream_changed_total{field="system_fingerprint",model="support"} 15.0' in page
    endpoint.identity = lambda _: {}
    assert served.ask(SURE).status_code == 200
    assert served.http.get("/readyz").json()["ready"]


def test_samples_of_two_fingerprints_are_not_one_measurement(serve: Serve, endpoint: Held) -> None:
    served = pinned(serve, endpoint, on_change="abstain")
    endpoint.identity = lambda number: {"system_fingerprint": "fp_1" if number < 4 else "fp_2"}
    reply = served.ask(SURE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_changed")
    endpoint.identity = lambda _: {}
    assert served.ask(SURE).status_code == 200
    assert endpoint.requests == 7  # the draw goes on: the answers of the pinned one are not drawn again


def test_a_warning_lets_answers_pass(serve: Serve, endpoint: Held, caplog: pytest.LogCaptureFixture) -> None:
    served = pinned(serve, endpoint, on_change="warn", remember=0)
    endpoint.identity = lambda number: {"system_fingerprint": "fp_2" if number % 2 else None}
    assert [served.ask(SURE).status_code for _ in range(3)] == [200] * 3
    lines = warnings_in(caplog)
    assert sorted("is None" in line for line in lines) == [False, True]  # one line for each value
    ready = served.http.get("/readyz").json()
    assert (ready["ready"], len(ready["warnings"]["support"])) == (True, 2)


@pytest.mark.parametrize("on_change", ["warn", "abstain"])
def test_observing_warns_and_records_nothing_of_a_model_that_must_be_held_back(
    serve: Serve, endpoint: Held, tmp_path: Path, on_change: str
) -> None:
    upstream = {"url": endpoint.url, "model": "m", "key": "k", "max_retries": 0}
    upstream["pin"] = {"model": "m", "system_fingerprint": "fp_1", "on_change": on_change}
    observe = {"plan": COLLECT, "records": {"path": str(tmp_path / "observed.jsonl")}}
    served = serve(more={"m": {"upstream": upstream, "mode": "observe", "observe": observe, "probe": "off"}})
    body = {"model": "m", "messages": [{"role": "user", "content": SURE}], "temperature": 1}
    for identity, stream in (({}, False), ({}, True), ({"model": "m-2"}, False)):
        endpoint.identity = lambda _, identity=identity: identity  # type: ignore[misc]
        served.http.post("/v1/chat/completions", json={**body, "stream": stream})
        counts(served)
    rows = [json.loads(line) for line in (tmp_path / "observed.jsonl").read_text().splitlines()[1:]]
    change = "model is 'm-2', but 'm' is pinned"
    row = served.http.get("/guardrail/v1/observed").json()["m"]
    assert any(change in line for line in row["warnings"])
    assert len(rows) == (3 if on_change == "warn" else 2)
    assert row["reasons"] == ({} if on_change == "warn" else {"unmeasured": {"model_changed": 1}})


def test_an_artifact_bound_to_a_fingerprint_is_served_and_pinned(serve: Serve, endpoint: Held) -> None:
    model = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:1/v1", system_fingerprint="fp_1")
    served = serve(artifact=make_artifact(model, threshold=0.1, n=4), remember=0)
    assert served.ask(SURE).status_code == 200
    endpoint.identity = lambda _: {"system_fingerprint": None}
    assert served.ask(SURE).json()["error"]["code"] == "model_changed"


def test_a_pin_without_a_value_is_refused() -> None:
    upstream = {"url": "http://127.0.0.1:1/v1", "model": "m", "pin": {"on_change": "warn"}}
    alias = {"upstream": upstream, "mode": "observe"}
    with pytest.raises(UsageError, match="a pin needs model, system_fingerprint or both"):
        Config.checked({"version": 1, "models": {"m": alias}}, "test")
