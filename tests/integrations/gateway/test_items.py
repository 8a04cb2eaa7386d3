"""`guardrail serve` with an artifact for items: the kept fields, or all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guardrail.items.json_fields import json_spec
from guardrail.testing import make_artifact
from integrations._gateway.answers import INCOMPLETE
from tests.integrations.gateway.conftest import MODEL, Held, Serve

FIRST = {"city": "Rome", "zip": "00100"}
ASKED = "extract"
ARTIFACT = make_artifact(MODEL, threshold=0.1, n=4, items=json_spec(cap=4, optional=["/city", "/zip"]))


def scripted(endpoint: Held) -> None:
    others = [json.dumps({**FIRST, "zip": str(i)}) for i in range(4)]
    endpoint.answers = {ASKED: [json.dumps(FIRST), *others], "sure": [json.dumps(FIRST)]}


def test_a_client_gets_the_kept_fields_and_the_places_of_the_others(serve: Serve, endpoint: Held) -> None:
    scripted(endpoint)
    response = serve(artifact=ARTIFACT).ask(ASKED)
    reply = response.json()
    assert (reply["choices"][0]["finish_reason"], response.headers["x-guardrail-reason"]) == (
        "stop",
        "partly_held_back",
    )
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"city": "Rome"}
    assert (reply["guardrail"]["accepted"], reply["guardrail"]["abstained"]) == (True, False)
    assert reply["guardrail"]["held_back"] == ["/zip"]
    items = {item["path"]: item["kept"] for item in reply["guardrail"]["items"]}
    assert items == {"/city": True, "/zip": False}
    assert "00100" not in response.text


def test_a_strict_client_gets_all_or_nothing(serve: Serve, endpoint: Held) -> None:
    scripted(endpoint)
    served = serve(artifact=ARTIFACT)
    partly = served.ask(ASKED)
    strict = served.ask(ASKED, headers={"x-guardrail-items": "all"})
    choice = strict.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (INCOMPLETE, "content_filter")
    assert (strict.json()["guardrail"]["accepted"], strict.headers["x-guardrail-abstained"]) == (False, "true")
    assert "Rome" not in strict.text
    # It is the verdict on the same draw: asking for all draws nothing again.
    assert partly.json()["guardrail"]["items"] == strict.json()["guardrail"]["items"]
    whole = served.ask("sure", headers={"x-guardrail-items": "all"}).json()
    assert json.loads(whole["choices"][0]["message"]["content"]) == FIRST


@pytest.mark.parametrize("value", ["ALL", "everything", ""])
def test_a_client_that_asks_for_something_else_gets_no_item(serve: Serve, endpoint: Held, value: str) -> None:
    scripted(endpoint)
    response = serve(artifact=ARTIFACT).ask(ASKED, headers={"x-guardrail-items": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-guardrail-items")
    assert "Rome" not in response.text


def test_a_ticket_about_the_rest_does_not_make_an_abstention(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    scripted(endpoint)
    served = serve({"on_abstain": "ticket"}, artifact=ARTIFACT, reviews=str(tmp_path / "reviews.db"))
    reply = served.ask(ASKED).json()
    assert (reply["guardrail"]["accepted"], reply["guardrail"]["abstained"]) == (True, False)
    assert reply["guardrail"]["ticket"]


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("beside", [{}, {"city": "Rome"}])
@pytest.mark.parametrize("strict", [True, False])
def test_a_held_back_key_does_not_leave_in_any_protocol(
    serve: Serve, endpoint: Held, path: str, beside: dict[str, str], strict: bool
) -> None:
    """The key of {"lung cancer": true} is the answer; its path stood in held_back, beside an empty answer."""
    answers = [{**beside, "lung cancer": True}, *({**beside, f"word {i}": True} for i in range(4))]
    endpoint.answers = {ASKED: [json.dumps(answer) for answer in answers]}
    body: dict[str, Any] = {"model": "support", **({"max_tokens": 256} if path == "messages" else {})}
    body |= {"input": ASKED} if path == "responses" else {"messages": [{"role": "user", "content": ASKED}]}
    headers = {"x-guardrail-items": "all"} if strict else {}
    response = serve(artifact=ARTIFACT).http.post(f"/v1/{path}", json=body, headers=headers)
    assert response.status_code == 200
    assert "lung cancer" not in response.text + str(response.headers)
    assert "/*" in response.json()["guardrail"]["held_back"]
