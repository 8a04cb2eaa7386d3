"""The API for other systems: who may decide what, and requests that are sent again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from guardrail.items.item import ItemVerdict
from guardrail.review import Candidate, Content, Decision, ReviewStore
from guardrail.review.web.app import review_app
from tests.review_pages import accounts, claim, decision_of, held_back, in_process

APPROVE = {"action": "approve", "reviewer": "Dora"}


@pytest.fixture
def system(store: ReviewStore) -> TestClient:
    client = in_process(review_app(store, accounts()))
    client.headers["Authorization"] = "Bearer zendesk-token-0123456789ab"
    return client


def decide(system: TestClient, ticket: str, body: dict[str, Any] = APPROVE) -> Any:
    return system.post(f"/api/items/{ticket}/decide", json=body)


def test_a_ticket_system_reads_an_item_and_decides_it(store: ReviewStore, system: TestClient) -> None:
    item = store.enqueue(held_back(metadata={"thread": 7}), key="k", callback="https://example.org/decided")
    shown = system.get(f"/api/items/{item.id}")
    item_fields = shown.json()
    assert (item_fields["ticket"], item_fields["state"], item_fields["key"]) == (item.id, "pending", "k")
    assert Content.model_validate(item_fields["content"]) == item.content
    assert "callback" not in item_fields, "it may hold a secret"
    body = {"action": "edit", "text": "V. Woolf", "note": "checked", "reviewer": "Dora"}
    decided = decide(system, item.id, body)
    assert decided.status_code == 200
    assert decided.json()["decision"]["candidate"]["text"] == "V. Woolf"
    for shown in (decided, system.get(f"/api/items/{item.id}"), decide(system, item.id, {**body, "text": "Woolf"})):
        assert "checked" not in shown.text, "the page says that only reviewers see a note"
    decision = decision_of(store, item.id)
    assert (decision.action, decision.reviewer, decision.note) == ("edit", "Dora via zendesk", "checked")
    assert [event.what for event in store.trail(item.id)] == ["enqueued", "decided", "refused"]
    assert store.stats().undelivered == 1, "the caller's callback is queued as after a decision on the page"


def test_an_answer_to_label_is_blind_until_it_is_decided(store: ReviewStore, system: TestClient) -> None:
    shares = (("4", 0.6), ("5", 0.4))
    items = (ItemVerdict(path="/a", text="1", uncertainty=0.75, detail="the field's judge failed", kept=False),)
    to_label = Content(
        question="2 + 2?",
        kind="audit",
        candidate=Candidate(text="5"),
        alternatives=shares,
        allowed=("approve", "edit", "reject"),
        items=items,
    )
    item = store.enqueue(to_label)
    shown = system.get(f"/api/items/{item.id}")
    assert "/a" in shown.text
    assert "0.75" not in shown.text
    assert "judge failed" not in shown.text
    assert shown.json()["content"]["alternatives"] == []
    decided = decide(system, item.id, {"action": "reject", "reviewer": "Dora"})
    assert decided.status_code == 200
    assert decided.json()["content"]["alternatives"] == [list(pair) for pair in shares]


def test_only_systems_use_the_api_and_only_people_the_page(store: ReviewStore, system: TestClient) -> None:
    item = store.enqueue(held_back())
    path = f"/api/items/{item.id}/decide"
    for token, status in (("wrong", 401), ("ann-token-0123456789ab", 403), ("eve-token-0123456789ab", 403)):
        answer = system.post(path, json=APPROVE, headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, "error" in answer.json()) == (status, True), token
    assert system.post(path, json=APPROVE, headers={"Authorization": "Basic x"}).status_code == 401
    assert system.get(f"/api/items/{item.id}", headers={"Authorization": ""}).headers["www-authenticate"] == "Bearer"
    assert store.item(item.id).state == "pending"
    answer = system.post("/sign-in", data={"token": "zendesk-token-0123456789ab"})
    assert (answer.status_code, "not valid here" in answer.text) == (403, True)
    assert system.get("/history").status_code == 303
    assert system.get(f"/api/items/{item.id}").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"action": "approve"}, 422),
        ({"action": "maybe", "reviewer": "Dora"}, 422),
        ({"action": "respond", "reviewer": "Dora"}, 422),
        ({"action": "approve", "reviewer": "Dora", "text": "b"}, 422),
        ({"action": "approve", "reviewer": "Dora", "unknown": 1}, 422),
        ({"action": "approve", "reviewer": "D\x1b[2J"}, 422),
        ({"action": "approve", "reviewer": "D" * 256}, 422),
        ({"action": "edit", "reviewer": "Dora", "text": ""}, 422),
        ({"action": "reject", "reviewer": "Dora", "tool_calls": []}, 400),
        ({"action": "edit", "reviewer": "Dora", "tool_calls": [{"name": "f", "arguments": {"x": float("nan")}}]}, 422),
        ({"action": "respond", "reviewer": "Dora", "text": "not allowed here"}, 400),
    ],
)
def test_a_decision_that_cannot_be_is_refused_and_leaves_the_item_free(
    store: ReviewStore, system: TestClient, body: dict[str, Any], status: int
) -> None:
    item = store.enqueue(held_back(allowed=("approve", "edit", "reject")))
    headers = {"Content-Type": "application/json"}
    answer = system.post(f"/api/items/{item.id}/decide", content=json.dumps(body), headers=headers)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "detail"})
    assert store.item(item.id).state == "pending"


def test_bodies_that_are_not_json_or_too_large(store: ReviewStore, system: TestClient) -> None:
    path = f"/api/items/{store.enqueue(held_back()).id}/decide"
    assert system.post(path, data={"action": "approve"}).status_code == 415
    assert system.post(path, content=b"x" * 16_000_001, headers={"Content-Type": "application/json"}).status_code == 413
    chunks = system.post(path, content=iter([b"{}"]), headers={"Content-Type": "application/json"})
    assert chunks.status_code == 411
    assert system.post(path, content=b"{", headers={"Content-Type": "application/json"}).status_code == 422
    assert decide(system, "unknown").status_code == 404


def test_a_reviewer_who_holds_the_item_keeps_it(store: ReviewStore, system: TestClient) -> None:
    item = store.enqueue(held_back())
    lease = claim(store, "ann", item=item.id)
    answer = decide(system, item.id)
    assert (answer.status_code, answer.json()["error"]) == (409, "Held by a reviewer")
    store.release(lease)
    assert decide(system, item.id).status_code == 200, "what was refused can be sent again"


def test_a_decision_is_final(store: ReviewStore, system: TestClient) -> None:
    item = store.enqueue(held_back())
    first, again = decide(system, item.id), decide(system, item.id)
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    assert (first.json()["decision"]["reviewer"], first.json()["left_undone"]) == ("Dora via zendesk", None)
    other = decide(system, item.id, {"action": "reject", "reviewer": "Dora"})
    assert (other.status_code, other.json()["decision"]["action"]) == (409, "approve")
    assert len([event for event in store.trail(item.id) if event.what == "decided"]) == 1
    store.note_event("not_carried_out", {"reason": "The conversation went on."}, item=item.id)
    assert system.get(f"/api/items/{item.id}").json()["left_undone"] == "The conversation went on."


def test_an_item_nobody_waits_for_is_gone(store: ReviewStore, system: TestClient, now: list[float]) -> None:
    item = store.enqueue(held_back(), expires_in=10)
    now[0] += 10
    assert decide(system, item.id).status_code == 410
    store.expire()
    assert decide(system, item.id).status_code == 410


def test_a_request_that_met_a_broken_database_can_be_sent_again(
    store: ReviewStore, system: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = store.enqueue(held_back())

    def fails(*_: object) -> None:
        raise OperationalError("UPDATE ...", {}, Exception("server closed the connection"))

    with monkeypatch.context() as broken:
        broken.setattr(store, "decide_free", fails)
        answer = decide(system, item.id)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert decide(system, item.id).status_code == 200


def test_two_decisions_at_the_same_time_are_one(store: ReviewStore, system: TestClient) -> None:
    item = store.enqueue(held_back())
    bodies = [{"action": action, "reviewer": name} for action in ("approve", "reject") for name in ("Dora", "Emil")] * 3
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: decide(system, item.id, body), bodies))
    decision = store.item(item.id).decision
    assert isinstance(decision, Decision)
    for body, answer in zip(bodies, answers, strict=True):
        if answer.status_code == 200:
            assert (decision.action, decision.reviewer) == (body["action"], f"{body['reviewer']} via zendesk")
        else:
            assert answer.status_code == 409, answer.text
    assert len([event for event in store.trail(item.id) if event.what == "decided"]) == 1
    assert Candidate(text="Virginia Woolf") == item.content.candidate


def test_a_system_decides_part_by_part(store: ReviewStore, system: TestClient) -> None:
    items = (
        {"path": "/number", "text": '"A-1"', "uncertainty": 0.0, "kept": True},
        {"path": "/total", "text": "12.50", "uncertainty": 0.5, "kept": False},
    )
    item = store.enqueue(held_back("Invoice?", '{"number": "A-1", "total": 12.50}', items=items))
    shown = system.get(f"/api/items/{item.id}").json()["content"]["items"]
    assert [item["kept"] for item in shown] == [True, False]
    total = {"path": "/total", "action": "edit", "text": "13.75"}
    refused: list[dict[str, Any]] = [
        {"items": []},
        {"action": "approve", "items": [total]},
        {"items": [{**total, "path": "/number"}]},
    ]
    for wrong in refused:
        assert decide(system, item.id, {"reviewer": "Dora", **wrong}).status_code == 400
    decided = decide(system, item.id, {"reviewer": "Dora", "items": [total]})
    assert decided.status_code == 200
    assert decided.json()["decision"]["action"] == "edit"
    assert decided.json()["decision"]["candidate"]["text"] == '{"number": "A-1", "total": 13.75}'
