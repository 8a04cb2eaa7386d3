"""Items that are held back: one item, decided item by item; the released answer is the candidate plus decisions."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from guardrail import Guardrail, Partial
from guardrail.errors import UsageError
from guardrail.items.item import ItemVerdict
from guardrail.review import (
    Candidate,
    Content,
    Decision,
    ItemDecision,
    ReviewStore,
    ask_reviewer,
    audit_sample,
    by_items,
    content_of,
    ticket,
)
from guardrail.review.web.app import review_app
from tests.guardrail.items.test_guard import CALL, SURE, Invoice, Q, answers, as_calls, guard_of
from tests.review_pages import OURS, accounts, claim

DOUBTFUL = answers({"total": 13}, {"total": 14, "tags": ["y"]}, {"tags": []}, {})


def content(**changes: Any) -> Content:
    verdict = guard_of(DOUBTFUL).assess(Q)
    return content_of(verdict, []).model_copy(update=changes)


def decide(total: str | None, tags: str | None, number: str = "") -> tuple[ItemDecision, ...]:
    def one(place: str, what: str | None) -> ItemDecision:
        action = "reject" if what is None else "approve" if what == "right" else "edit"
        return ItemDecision(path=place, action=action, text=what if action == "edit" and what else "")

    return (one("/total", total), one("/tags/0", tags))


def released(decision: Decision, of: Content) -> Any:
    outcome = decision.outcome(of)
    return None if outcome is None else json.loads(outcome.text)


# -- what follows from the decisions


@pytest.mark.parametrize(
    ("total", "tags", "action", "left"),
    [
        ("right", "right", "approve", SURE),
        ("right", None, "edit", {"number": "A-1", "total": 12.5, "due": "2020-01-02"}),
        (None, None, "edit", {"number": "A-1", "due": "2020-01-02"}),
        ("13.75", "right", "edit", {**SURE, "total": 13.75}),
        ("null", '"y"', "edit", {**SURE, "total": None, "tags": ["y"]}),
    ],
)
def test_the_released_object_is_the_candidate_plus_decisions(
    total: str | None, tags: str | None, action: str, left: dict[str, Any]
) -> None:
    item = content()
    assert [each.path for each in item.items if not each.kept] == ["/total", "/tags/0"]
    assert item.candidate is not None
    assert json.loads(item.candidate.text) == SURE, "the frozen candidate is the whole answer"
    decision = by_items(item, decide(total, tags), "a note")
    assert (decision.action, released(decision, item), decision.note) == (action, left, "a note")


def test_each_item_is_decided_exactly_once_and_the_others_never() -> None:
    item, (total, tags) = content(), decide("right", "right")
    other = ItemDecision(path="/number", action="approve")
    for decisions in ((total,), (total, total), (total, tags, other), (), (total, tags, tags)):
        with pytest.raises(UsageError, match="decide about each item that was held back, once"):
            by_items(item, decisions)
    with pytest.raises(UsageError, match="an edited field is JSON"):
        by_items(item, decide("12,50", "right"))


def test_a_field_that_the_answer_left_out_can_be_written() -> None:
    script = [
        json.dumps({"number": "A", "total": 1, "tags": ["x"]}),
        *[json.dumps({**SURE, "number": "A", "total": 1})] * 4,
    ]
    item = content_of(guard_of(script).assess(Q), [])
    assert [(each.path, each.absent, each.kept) for each in item.items][-1] == ("/due", True, False)
    written = by_items(item, [ItemDecision(path="/due", action="edit", text='"2021"')])
    assert released(written, item)["due"] == "2021"
    assert by_items(item, [ItemDecision(path="/due", action="approve")]).action == "approve"


def test_a_rejected_argument_rejects_the_call() -> None:
    guard = guard_of(as_calls(DOUBTFUL), bindings=CALL)
    item = content_of(guard.assess(Q), [])
    assert item.kind == "tool_call"
    assert by_items(item, decide("right", None)).action == "reject"
    edited = by_items(item, decide("13.5", "right"))
    assert edited.candidate is not None
    assert edited.candidate.tool_calls[0].arguments == {**SURE, "total": 13.5}


@pytest.mark.parametrize("written", ["NaN", "1e999", '{"a": 1, "a": 2}', '"\\ud800"'])
def test_a_person_writes_no_argument_that_is_no_json_value(written: str) -> None:
    item = content_of(guard_of(as_calls(DOUBTFUL), bindings=CALL).assess(Q), [])
    with pytest.raises(UsageError, match="an edited field is JSON"):
        by_items(item, decide(written, "right"))


def test_a_person_writes_no_field_that_cannot_be_given_out() -> None:
    with pytest.raises(UsageError, match=r"an edited field is JSON.*surrogate"):
        by_items(content(), decide('"\\ud800"', "right"))


def test_a_decision_that_does_not_follow_from_its_items_is_refused(store: ReviewStore) -> None:
    store.enqueue(content())
    lease = claim(store, "ann")
    forged = Decision(action="edit", candidate=Candidate(text='{"total": 1}'), items=decide("right", None))
    with pytest.raises(UsageError, match="not the one that follows"):
        store.decide(lease, forged)
    whole = Decision(action="edit", candidate=Candidate(text=json.dumps({**SURE, "number": "B-2"})))
    with pytest.raises(UsageError, match="edited item by item"):
        store.decide(lease, whole)  # it would change an item that was kept
    assert store.decide(lease, by_items(lease.item.content, decide("right", None))).state == "decided"


# -- the hooks of a guard


def test_a_ticket_goes_with_the_kept_items(store: ReviewStore) -> None:
    guard = guard_of(DOUBTFUL, on_abstain=ticket(store))
    partial = guard.with_structured_output(Invoice).invoke(Q)
    (item,) = store.items()
    assert isinstance(partial, Partial)
    assert partial.ticket == item.id
    assert partial.held_back == ("/total", "/tags/0")
    assert item.content.verdict is not None
    assert json.loads((item.content.candidate or Candidate()).text) == SURE


def test_a_complete_answer_asks_nobody(store: ReviewStore) -> None:
    guard_of(answers(), on_abstain=ticket(store)).invoke(Q)
    assert store.items() == []


@pytest.mark.parametrize("calls", [False, True])
async def test_waiting_for_the_decision_gives_the_decided_answer(store: ReviewStore, calls: bool) -> None:
    given: dict[str, Any] = {"bindings": CALL} if calls else {}
    script: list[Any] = as_calls(DOUBTFUL) if calls else DOUBTFUL

    def reviewed(decisions: tuple[ItemDecision, ...]) -> Guardrail:
        waiting = ask_reviewer(store, wait=20)
        original = partial(ReviewStore.enqueue, store)

        def enqueue(*args: Any, **kwargs: Any) -> Any:
            item = original(*args, **kwargs)
            lease = claim(store, "ann")
            store.decide(lease, by_items(lease.item.content, decisions))
            return item

        object.__setattr__(store, "enqueue", enqueue)
        return guard_of(script, on_abstain=waiting, **given)

    whole = reviewed(decide("right", '"y"')).with_structured_output(Invoice)
    assert await whole.ainvoke(Q) == Invoice(**{**SURE, "tags": ["y"]})
    if not calls:
        left = reviewed(decide("13", None)).with_structured_output(Invoice).invoke(Q)
        assert (left.kept["total"], left.held_back) == (13, ("/tags/0",))


def test_without_a_decision_in_time_the_kept_items_stand(store: ReviewStore) -> None:
    partial = guard_of(DOUBTFUL, on_abstain=ask_reviewer(store, wait=0.01)).with_structured_output(Invoice).invoke(Q)
    assert partial.held_back == ("/total", "/tags/0")


def test_an_audit_asks_about_every_item_of_the_original_answer(store: ReviewStore) -> None:
    message = guard_of(DOUBTFUL, on_verdict=audit_sample(store, rate=1.0)).invoke(Q)
    assert json.loads(message.text).keys() == {"number", "due"}
    (item,) = store.items()
    assert json.loads((item.content.candidate or Candidate()).text) == SURE
    assert [each.kept for each in item.content.items] == [False] * len(SURE)


# -- the page


@pytest.fixture
def post(store: ReviewStore) -> Callable[..., Any]:
    client = TestClient(review_app(store, accounts()), base_url="http://127.0.0.1", headers=OURS)
    client.post("/sign-in", data={"token": "ann-token-0123456789ab"})

    def posted(fields: dict[str, str]) -> tuple[str, Any]:
        client.post("/next")
        (item,) = store.items()
        page = client.get(f"/items/{item.id}").text
        lease = re.search('name="lease" value="([^"]+)"', page)
        assert lease is not None
        form = {"lease": lease[1], "action": "items", **fields}
        return page, client.post(f"/items/{item.id}/decide", data=form, follow_redirects=False)

    return posted


def test_the_page_decides_item_by_item(store: ReviewStore, post: Callable[..., Any]) -> None:
    store.enqueue(content())
    page, response = post({"item:1": "edit", "value:1": "13.50", "item:3": "approve"})
    assert response.status_code == 303
    (item,) = store.items()
    assert item.decision is not None
    assert [(each.path, each.action, each.text) for each in item.decision.items] == [
        ("/total", "edit", "13.50"), ("/tags/0", "approve", ""),
    ]  # fmt: skip
    outcome = item.decision.outcome(item.content)
    assert outcome is not None
    assert json.loads(outcome.text) == {**SURE, "total": 13.5}
    assert page.count("data-field") == 2
    assert "the model said so in 2 of 4 tries" in page
    assert '<span class="place">tags › 1</span>' in page, "people count entries from 1"
    assert "<q>13</q> (1)" in page


def test_a_text_is_written_without_quotes(store: ReviewStore, post: Callable[..., Any]) -> None:
    store.enqueue(content())
    post({"item:1": "approve", "item:3": "edit", "value:3": 'a "b"'})
    (item,) = store.items()
    assert item.decision is not None
    assert item.decision.items[1].text == '"a \\"b\\""'


def test_a_long_text_or_one_of_several_lines_is_edited_in_as_many_lines(
    store: ReviewStore, post: Callable[..., Any]
) -> None:
    items = [
        ItemVerdict(path=f"/{i}", text=json.dumps(text), uncertainty=0.5, kept=False)
        for i, text in enumerate(("short", "two\nlines", "x" * 150, "\n" * 40))
    ]
    store.enqueue(content().model_copy(update={"items": tuple(items), "candidate": Candidate(text="{}")}))
    page, _ = post({})
    assert re.findall('<textarea name="value:([0-9])" rows="([0-9]+)"', page) == [("1", "2"), ("2", "3"), ("3", "8")]
    assert ">\ntwo\nlines</textarea>" in page
    assert '<input name="value:0" value="short"' in page


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"item:1": "approve"}, 400), ({"item:1": "edit", "value:1": "", "item:3": "approve"}, 422),
     ({"item:1": "edit", "value:1": "12,5", "item:3": "approve"}, 400),
     ({"item:1": "other", "item:3": "approve"}, 422)],
)  # fmt: skip
def test_an_incomplete_form_changes_nothing(
    store: ReviewStore, post: Callable[..., Any], fields: dict[str, str], status: int
) -> None:
    store.enqueue(content())
    assert post(fields)[1].status_code == status
    (item,) = store.items()
    assert item.decision is None


def test_nothing_hints_at_the_support_of_an_item_that_is_audited(store: ReviewStore, post: Callable[..., Any]) -> None:
    guard_of(DOUBTFUL, on_verdict=audit_sample(store, rate=1.0)).invoke(Q)
    page, response = post({f"item:{i}": "approve" if i != 1 else "reject" for i in range(len(SURE))})
    assert "the model said so" not in page
    assert "Why it was" not in page
    assert "Is each item right?" in page
    (item,) = store.items()
    assert response.status_code == 303
    assert item.decision is not None
    actions = [each.action for each in item.decision.items]
    assert actions == ["approve", "reject", "approve", "approve"]
