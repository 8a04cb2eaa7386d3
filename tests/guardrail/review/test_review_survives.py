"""The page lives on with what an older store may hold, and answers a reviewer's impossible edit with a reason."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from starlette.testclient import TestClient

from guardrail import UsageError
from guardrail.review import Item, ReviewStore
from guardrail.review.web.app import review_app
from guardrail.review.web.choices import choices_of
from guardrail.review.web.site import ago, when
from tests.review_pages import OURS, accounts, held_back


@pytest.fixture
def either(store_url: str) -> Iterator[ReviewStore]:
    """A store on each of both databases, where that makes a difference."""
    with ReviewStore(store_url) as opened:
        yield opened


@pytest.fixture
def eve(store: ReviewStore) -> Iterator[TestClient]:
    with signed_in(store) as signed_in_client:
        yield signed_in_client


@contextmanager
def signed_in(store: ReviewStore) -> Iterator[TestClient]:
    app = review_app(store, accounts(), hosts=("testserver",))
    with TestClient(app, headers=OURS) as client:
        client.post("/sign-in", data={"token": "eve-token-0123456789ab"})
        yield client


def field(page: str, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert match is not None
    return match[1]


def claimed(eve: TestClient, item: Item) -> dict[str, str]:
    """Claims an item; the hidden fields of its form."""
    eve.post(f"/items/{item.id}/claim")
    return {"lease": field(eve.get(f"/items/{item.id}").text, "lease")}


def test_an_event_with_strange_particulars_does_not_hide_the_others(store: ReviewStore, eve: TestClient) -> None:
    """Programs write events, too; an error would take the whole trail away."""
    for until in (1e15, "tomorrow"):
        store.note_event("claimed", {"until": until})
    assert "tomorrow" in eve.get("/trail").text


def test_messages_of_another_kind(store: ReviewStore, eve: TestClient) -> None:
    item = store.enqueue(held_back(messages=({}, {"role": [1], "content": [{}]}, {"role": "tool", "content": [{}]})))
    claimed(eve, item)
    for path in ("/", f"/items/{item.id}"):
        assert eve.get(path).status_code == 200, path


def test_times_in_words() -> None:
    assert when(0.0) == "1970-01-01 00:00 UTC"
    assert [when(value) for value in (math.inf, 1e15, "soon", None)] == ["never", "never", "soon", "no limit"]
    assert [ago(value) for value in (-5.0, 59.9, 7200.0, 200_000.0)] == ["0 s", "59 s", "2 h", "2 d"]


def test_a_long_question_does_not_fill_the_queue(store: ReviewStore, eve: TestClient) -> None:
    store.enqueue(held_back("word " * 100_000))
    assert len(eve.get("/").text) < 10_000


def deep(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("edited", "status", "why"),
    [
        (deep(300), 422, "nested more than"),
        (deep(900), 422, "nested more than"),
        (deep(50_000), 400, "b must be JSON"),
        ('"\\ud83d"', 422, "half of a surrogate pair"),
        ("NaN", 422, "the number nan, which JSON does not have"),
        ("1e999", 422, "the number inf"),
        ("9" * 5000, 400, "b must be JSON"),
    ],
)
def test_an_edit_that_cannot_be_stored(store: ReviewStore, eve: TestClient, edited: str, status: int, why: str) -> None:
    item = store.enqueue(held_back(kind="tool_call", candidate={"tool_calls": [{"name": "f", "arguments": {"b": {}}}]}))
    fields = {**claimed(eve, item), "action": "edit"}
    answer = eve.post(f"/items/{item.id}/decide", data={**fields, "argument:0:0": edited})
    assert (answer.status_code, why in answer.text) == (status, True), answer.text
    assert store.item(item.id).state == "claimed"
    mended = {**fields, "argument:0:0": '"\U0001f600"'}
    assert eve.post(f"/items/{item.id}/decide", data=mended).status_code == 200
    assert store.item(item.id).state == "decided"


def test_a_candidate_that_could_not_be_stored_is_shown_and_cannot_be_approved(
    store: ReviewStore, eve: TestClient
) -> None:
    item = store.enqueue(held_back("q", "a\ud83d"))
    fields = claimed(eve, item)
    page = eve.get(f"/items/{item.id}").text
    assert "characters that cannot be stored" in page
    assert "a\ufffd" in page
    offered = re.findall(r'name="action" value="(\w+)"', page)
    assert sorted(offered) == ["reject", "respond"]
    for wrong in (
        {"action": "approve"},
        {"action": "edit", "edited": "a\ufffd"},
        {"choice": choices_of(item.content)[0].key},
    ):
        assert eve.post(f"/items/{item.id}/decide", data={**fields, **wrong}).status_code in (400, 422)
    assert store.item(item.id).decision is None
    eve.post(f"/items/{item.id}/decide", data={**fields, "action": "respond", "text": "b"})
    assert store.item(item.id).state == "decided"


def test_an_ordinary_item_says_nothing_of_it(store: ReviewStore, eve: TestClient) -> None:
    """A model may write U+FFFD itself; then it is what was judged, and can be approved."""
    item = store.enqueue(held_back("q", "a\ufffd"))
    page = eve.get(f"/items/{item.id}").text
    assert "characters that cannot be stored" not in page
    fields = claimed(eve, item)
    eve.post(f"/items/{item.id}/decide", data={**fields, "action": "approve"})
    assert store.item(item.id).state == "decided"


def test_ids_and_names_that_cannot_be(either: ReviewStore) -> None:
    with signed_in(either) as eve:
        for path in ("/items/%00", "/items/" + "x" * 5000, "/items/%ED%A0%BD"):
            assert eve.get(path).status_code == 404
        for name in ("\0", "x" * 5000):
            answer = eve.post("/monitor/acknowledge", data={"name": name})
            assert (answer.status_code, "no monitor" in answer.text) == (400, True)


@pytest.mark.parametrize("lease", [0, math.inf, math.nan])
def test_a_lease_that_cannot_be(store: ReviewStore, lease: float) -> None:
    with pytest.raises(UsageError, match="lease must be above 0 seconds"):
        review_app(store, accounts(), lease=lease)
