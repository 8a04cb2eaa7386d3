"""The canary of a gateway: it asks by itself, alarms when answers change, and touches nothing of the users."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest

from guardrail.errors import UsageError
from guardrail.monitor.canary import BASELINE
from guardrail.review import ReviewStore
from guardrail.review.monitors import Monitors
from integrations._gateway.canary import Canary
from integrations._gateway.config import Config
from tests.integrations.gateway.conftest import ANSWERS, SURE, UNSURE, Held, Serve, Served

KNOWN = {f"known {i}?": ANSWERS[UNSURE] for i in range(3)}
CALLS = len(KNOWN) * 5
"""Calls of a round: the primary answer and four samples of each question."""


@pytest.fixture
def questions(tmp_path: Path, endpoint: Held) -> Path:
    """Known questions on each of which the model's samples agree at first."""
    endpoint.answers = {SURE: ["Paris"], **{question: ["Paris"] for question in KNOWN}}
    path = tmp_path / "known.jsonl"
    path.write_text("".join(json.dumps({"id": q, "question": q, "references": ["x"]}) + "\n" for q in KNOWN))
    return path


@pytest.fixture(autouse=True)
def _same_tie_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fresh ones, one canary in a hundred needs a sixth round for its alarm."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 28)


def start(serve: Serve, questions: Path, **more: Any) -> tuple[Served, Canary]:
    """A gateway whose canary has asked its first round by itself and then only asks when it is told to."""
    alias = {"canary": {"questions": questions, "every": "1h"}, **more.pop("alias", {})}
    served = serve(alias, **{"reviews": str(questions.with_name("reviews.db")), **more})
    assert served.http  # it serves
    canary = canary_of(served)
    end = time.monotonic() + 20
    while not (canary.due > time.monotonic() and canary.due < math.inf) and time.monotonic() < end:
        time.sleep(0.01)
    canary.due = math.inf
    return served, canary


def canary_of(served: Served) -> Canary:
    canary = served.gateway.aliases["support"].canary
    assert canary is not None
    return canary


def ask(canary: Canary, rounds: int) -> None:
    canary._claim = lambda: True  # type: ignore[method-assign]  # also where a round of this hour was asked

    async def several() -> None:
        for _ in range(rounds):
            await canary.round()

    asyncio.run(several())
    canary.due = math.inf


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and part in r.getMessage()]


def test_a_changed_model_alarms_before_a_user_asks(
    serve: Serve, endpoint: Held, questions: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, canary = start(serve, questions)
    assert said(caplog, "asks 3 canary questions every 3600 s, up to 15 calls an hour. The first 8 rounds")
    assert said(caplog, "0 rounds are in the store")
    assert endpoint.requests == CALLS
    ask(canary, BASELINE + 2)
    assert endpoint.requests == (BASELINE + 3) * CALLS  # no answer is remembered
    assert canary.monitor.alarm is None  # control
    assert served.http.get("/readyz").json()["warnings"] == {}
    page = served.http.get("/metrics").text
    of_users = [line for line in page.splitlines() if 'model="support"' in line and "guardrail_canary" not in line]
    assert of_users == []  # no verdict of a user
    assert f'guardrail_canary_questions_total{{model="support",outcome="measured"}} {3.0 * (BASELINE + 3)}' in page
    assert served.gateway.reload()  # the state goes on, if other settings change or not
    canary = canary_of(served)
    assert canary.monitor.state.rounds == BASELINE + 3
    endpoint.answers = {SURE: ["Paris"], **KNOWN}
    ask(canary, 6)
    assert canary.monitor.alarm is not None
    assert len(said(caplog, "no longer answered as certainly")) == 1
    ready = served.http.get("/readyz").json()
    assert ready["ready"]
    assert "canary: The canary's questions are no longer answered" in ready["warnings"]["support"][0]
    assert 'guardrail_canary_alarm{model="support"} 1.0' in served.http.get("/metrics").text
    assert served.ask(SURE).status_code == 200  # without `monitor` it only warns


def test_with_a_store_it_goes_on_after_a_restart_and_holds_answers_back(
    serve: Serve, endpoint: Held, questions: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = str(tmp_path / "reviews.db")
    settings: dict[str, Any] = {"reviews": database, "alias": {"monitor": True}}
    _, canary = start(serve, questions, **settings)
    claims = canary._claim
    ask(canary, BASELINE)
    assert not claims()  # another process on the store would not ask again within the hour
    served, canary = start(serve, questions, **settings)
    assert said(caplog, f"{BASELINE + 1} rounds are in the store")
    assert canary.monitor.state.rounds == BASELINE + 1  # the first round of this hour was asked before the restart
    served.ask(SURE)
    endpoint.answers = {SURE: ["Paris"], **KNOWN}
    ask(canary, 5)
    served.gateway.aliases["support"].guard(None)
    served, canary = start(serve, questions, **settings)  # a restart: the alarm stands, for users, too
    assert said(caplog, "no longer answered as certainly")
    reply = served.ask(SURE).json()
    assert (reply["guardrail"]["reason"], reply["choices"][0]["finish_reason"]) == ("suspended", "content_filter")
    with ReviewStore(database) as store:
        monitors = Monitors(store)
        drift, known = sorted(monitors.all(), key=lambda view: view.state.kind, reverse=True)
        assert (drift.state.kind, drift.state.n <= 2, known.state.kind, known.state.n) == ("drift", True, "canary", 18)
        assert store.items() == []  # nothing for reviewers
        monitors.acknowledge(known.name, who="ann")
        assert canary.monitor.alarm is None


def test_a_canary_whose_calls_fail_says_so_once(
    serve: Serve, endpoint: Held, questions: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, canary = start(serve, questions)
    endpoint.mode = "500"
    ask(canary, 3)
    assert len(said(caplog, "3 of 3 questions could not be measured (3 model_failed)")) == 1
    ready = served.http.get("/readyz").json()
    assert (ready["ready"], len(ready["warnings"]["support"])) == (True, 1)
    assert canary.monitor.state.rounds == 1  # a round without a measurement is none
    assert (
        'guardrail_canary_questions_total{model="support",outcome="unmeasured"} 9.0' in served.http.get("/metrics").text
    )
    endpoint.mode = "ok"
    ask(canary, 1)
    assert len(said(caplog, "all questions could be measured again")) == 1
    assert served.http.get("/readyz").json()["warnings"] == {}


def test_a_question_that_is_given_nine_times_is_drawn_nine_times(serve: Serve, endpoint: Held, questions: Path) -> None:
    """Otherwise they would share a score, and their bets would depend on each other."""
    questions.write_text((json.dumps({"question": SURE}) + "\n") * 9)
    start(serve, questions)
    assert endpoint.requests == 45


def test_other_questions_are_another_canary(
    serve: Serve, endpoint: Held, questions: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, canary = start(serve, questions)
    questions.write_text(questions.read_text() + json.dumps({"question": SURE}) + "\n")
    assert served.gateway.reload()
    assert canary_of(served).name != canary.name
    questions.write_text('{"text": "no question"}\n')
    assert not served.gateway.reload()  # the former one stays
    assert said(caplog, "canary needs a JSON object")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"every": "10s"}, "greater than or equal to 60"),
        ({"every": "soon"}, "valid number"),
        ({"evry": "1h"}, "did you mean 'every'"),
    ],
)
def test_a_wrong_section_is_refused(change: dict[str, Any], part: str) -> None:
    upstream = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    alias = {"upstream": upstream, "artifact": "a.json", "canary": {"questions": "known.jsonl", **change}}
    with pytest.raises(UsageError, match=part):
        Config.checked({"version": 1, "models": {"m": alias}}, "test")
