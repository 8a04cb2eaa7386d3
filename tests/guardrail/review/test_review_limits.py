"""Values that the store refuses, the same on both databases, and replacements for values that no database can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from sqlalchemy.exc import DBAPIError

from guardrail import AbstainedError, UsageError
from guardrail.guard.abstention import ABSTENTION, Abstention
from guardrail.review import (
    Candidate,
    CandidateSet,
    Content,
    Decision,
    Monitors,
    ReviewStore,
    UnknownItemError,
    UnstorableError,
    ask_reviewer,
    audit_sample,
    ticket,
)
from guardrail.review.errors import StoreUnavailableError
from guardrail.review.item import frozen
from guardrail.review.limits import LONGEST, storable, without_surrogates
from guardrail.review.web.choices import choices_of
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import ToolCall
from tests.guardrail.review.test_review_hooks import QUESTION, guarded
from tests.review_pages import claim

HALF, ARTIFACT = "\ud83d", make_artifact(ScriptedChat())
CONTENT = Content(question="q", candidate=Candidate(text="a"))
TOO_LONG = (0.0, -1.0, math.inf, math.nan, 1e15, LONGEST * 1.001)


@pytest.fixture
def store(store_url: str) -> Iterator[ReviewStore]:
    with ReviewStore(store_url) as opened:
        yield opened


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


# -- lengths of time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", TOO_LONG)
def test_times_that_no_calendar_holds(store: ReviewStore, seconds: float) -> None:
    item = store.enqueue(CONTENT, expires_in=LONGEST)
    lease = claim(store, "ann", seconds=LONGEST)
    attempts: list[Callable[[], object]] = [
        lambda: store.enqueue(CONTENT, expires_in=seconds),
        lambda: store.claim("bob", seconds=seconds, item=item.id),
        lambda: store.renew(lease, seconds=seconds),
        lambda: store.lease([item.id], seconds=seconds),
        lambda: store.purge(seconds),
        lambda: ask_reviewer(store, wait=seconds),
        lambda: ticket(store, expires_in=seconds),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="above 0 seconds and at most ten years, got"):
            attempt()
    assert len(store.items()) == 1


# -- names and keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", 7, "k" * 513, "k\0x", f"k{HALF}"])
def test_keys_that_no_database_holds(store: ReviewStore, key: Any) -> None:
    with pytest.raises(UsageError, match="key "):
        store.enqueue(CONTENT, key=key)
    monitors = Monitors(store)
    with pytest.raises(UsageError, match="key "):
        monitors.risk("risk", ARTIFACT).update(False, key=key)
    assert monitors.risk("risk", ARTIFACT).state.n == 0
    verdict = guarded("message").assess(QUESTION).model_copy(update={"accepted": True})
    if key and key != 7:
        with pytest.raises(UsageError, match="key "):
            audit_sample(store, 1.0, key=lambda *_: key)(verdict, [])
    assert store.items() == []
    assert store.enqueue(CONTENT, key="\U0001f600" * 512).state == "pending"


@pytest.mark.parametrize("name", ["r" * 257, "r\0", HALF])
def test_names_that_no_database_holds(store: ReviewStore, name: str) -> None:
    item = store.enqueue(CONTENT)
    claim(store, "r" * 256)
    for attempt in (
        lambda: store.claim(name),
        lambda: store.take_back(item.id, who=name),
        lambda: store.purge(1.0, who=name),
    ):
        with pytest.raises(UsageError, match=r"characters|NUL"):
            attempt()
    for name_or_word in (name, "w" * 33):
        with pytest.raises(UsageError, match="what "):
            store.note_event(name_or_word, {})
    with pytest.raises(UsageError, match="a monitor's name"):
        Monitors(store).risk(name if len(name) < 257 else "m" * 129, ARTIFACT)


@pytest.mark.parametrize("name", ["\0", HALF, "x" * 5000])
def test_what_cannot_be_there_is_not_there(store: ReviewStore, name: str) -> None:
    for ask in (store.item, store.cancel, lambda key: store.claim("ann", item=key)):
        with pytest.raises(UnknownItemError):
            ask(name)
    assert store.trail(name) == []
    assert store.find(name) is None
    monitors = Monitors(store)
    assert monitors.known_risk(name, ARTIFACT) is None
    assert monitors.history(name) == []
    with pytest.raises(UsageError, match="no monitor"):
        monitors.acknowledge(name, who="ann")


def test_a_callback_is_a_url_that_can_be_stored(store: ReviewStore) -> None:
    broken = ("http://x/\0", f"http://x/{HALF}", "http://x/y\r\nX: y", "http://x/\ty", "http://x/ y")
    for callback in (*broken, "ftp://x", "http://[x", "https:///path", ""):
        with pytest.raises(UsageError, match="callback must be an http"):
            store.enqueue(CONTENT, callback=callback)
    for callback in ("http://127.0.0.1:9", "https://x/decided/7"):
        assert store.enqueue(CONTENT, callback=callback).callback == callback


@pytest.mark.parametrize("place", ["ann:{}@x/", "{}@x/", "x/?a=1&Token={}", "x/?sig={}", "x/?code={}", "x/#{}"])
def test_a_callback_holds_no_secret_and_the_refusal_quotes_none(store: ReviewStore, place: str) -> None:
    with pytest.raises(UsageError, match="stored in plain text") as caught:
        store.enqueue(CONTENT, callback="https://" + place.format("hunter2"))
    assert "hunter2" not in f"{caught.value}"
    assert store.items() == []


def test_an_error_of_the_database_quotes_no_question(store: ReviewStore) -> None:
    with store.database.write() as transaction:
        transaction.connection.exec_driver_sql("ALTER TABLE review_items RENAME COLUMN content TO other")
    with pytest.raises((DBAPIError, StoreUnavailableError)) as caught:
        store.enqueue(CONTENT.model_copy(update={"question": "the patient is called Erna"}), key="Erna")
    assert "content" in f"{caught.value}"
    assert "Erna" not in f"{caught.value}{caught.value.__cause__}"


@given(st.text())
def test_mending_changes_nothing_that_can_be_written(text: str) -> None:
    assert without_surrogates(text) == text
    assert storable(text) == ("\0" not in text)


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_mending_gives_what_can_be_written(text: str) -> None:
    assert without_surrogates(text).encode().decode() == without_surrogates(text)


# -- contents ----------------------------------------------------------------------------------------------------------


def test_a_candidate_that_cannot_be_stored_can_be_answered_but_not_approved(store: ReviewStore) -> None:
    item = store.enqueue(Content(question=f"q{HALF}", candidate=Candidate(text=f"a{HALF}b")))
    assert item.content.question == "q\ufffd"
    assert item.content.candidate == Candidate(text="a\ufffdb")
    assert item.content.allowed == ("reject", "respond")
    lease = claim(store, "ann")
    for wrong in (Decision(action="approve"), Decision(action="edit", candidate=Candidate(text="b"))):
        with pytest.raises(UsageError, match="does not allow"):
            store.decide(lease, wrong)
    decided = store.decide(lease, Decision(action="respond", text="b"))
    assert decided == store.item(item.id)


@pytest.mark.parametrize("argument", [None, HALF, math.nan])
def test_an_audit_of_such_an_answer_can_still_call_it_right(store: ReviewStore, argument: Any) -> None:
    calls = () if argument is None else (ToolCall(name="pay", arguments={"amount": argument}),)
    candidate = Candidate(text=f"a{HALF}b", tool_calls=calls)
    store.enqueue(Content(question="q", kind="audit", candidate=candidate, allowed=("approve", "edit", "reject")))
    lease = claim(store, "ann")
    assert lease.item.content.candidate is not None
    assert lease.item.content.candidate.text == "a\ufffdb"
    decided = store.decide(lease, Decision(action="approve"))
    assert decided.decision is not None
    assert decided.decision.action == "approve"


def test_what_is_broken_beside_the_candidate_takes_nothing_away(store: ReviewStore) -> None:
    content = Content(
        question=HALF,
        candidate=Candidate(text="a"),
        messages=({"role": "human", "content": HALF},),
        alternatives=(("a", 0.5), (f"b{HALF}", 0.3), ("c", 0.2)),
        candidate_set=CandidateSet(answers=((f"b{HALF}", 0.3),), epsilon=0.1, attained=True, attainable=0.1, delta=0.1),
        metadata={HALF: HALF, "nan": math.nan},
    )
    stored = store.item(store.enqueue(content).id).content
    assert stored.allowed == content.allowed
    assert stored.candidate == content.candidate
    assert stored.metadata == {"\ufffd": "\ufffd", "nan": None}
    # Nothing that the model did not say can be given out by a click.
    assert [(choice.text, choice.decision and choice.decision.action) for choice in choices_of(stored)] == [
        ("b\ufffd", None),
        ("a", "approve"),
        ("c", "edit"),
    ]


@pytest.mark.parametrize("argument", [math.nan, math.inf, [1, {"x": -math.inf}], HALF, {HALF: 1}])
def test_arguments_that_change_when_they_are_stored_cannot_be_approved(argument: Any) -> None:
    call = ToolCall(name="pay", arguments={"amount": argument})
    content = Content(question="q", kind="tool_call", candidate=Candidate(tool_calls=(call,)))
    assert frozen(content).allowed == ("reject", "respond")
    only_approve = content.model_copy(update={"allowed": ("approve", "edit")})
    with pytest.raises(UnstorableError, match="only be rejected or answered; but allowed is approve, edit"):
        frozen(only_approve)


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats(-1e300, 1e300)


@given(
    st.recursive(LEAVES, lambda values: st.lists(values) | st.dictionaries(st.text(), values), max_leaves=8),
    st.text(),
)
def test_what_json_holds_is_stored_as_it_is(argument: Any, text: str) -> None:
    call = ToolCall(name="f", arguments={"x": argument})
    content = Content(question=text, candidate=Candidate(text=text, tool_calls=(call,)), metadata={"m": argument})
    assert frozen(content) == content


@pytest.mark.parametrize("depth", [199, 400, 5000])
def test_what_is_nested_too_deeply_is_refused(store: ReviewStore, depth: int) -> None:
    deep = Content(question="q", candidate=Candidate(tool_calls=(ToolCall(name="f", arguments=nested(depth)),)))
    with pytest.raises(UnstorableError, match="nested too deeply"):
        store.enqueue(deep)
    lease = claim(store, "ann", item=store.enqueue(CONTENT).id)
    with pytest.raises(UnstorableError, match="nested more than"):
        store.decide(lease, Decision(action="edit", candidate=deep.candidate))
    assert store.item(lease.item.id).state == "claimed"


def test_only_nested_values_are_called_nested(store: ReviewStore) -> None:
    """A developer would look for nesting, and not for the value of a class that happens to be called so."""
    image = type("depth_image", (), {})()
    with pytest.raises(UnstorableError, match=r"unknown type: .*depth_image"):
        store.enqueue(Content(question="q", candidate=Candidate(text="a"), metadata={"x": image}))


@pytest.mark.parametrize(("text", "argument"), [("b", math.nan), ("b", HALF), (HALF, 1)])
def test_a_decision_is_stored_as_it_was_made_or_refused(store: ReviewStore, text: str, argument: Any) -> None:
    item = store.enqueue(CONTENT)
    lease = claim(store, "ann")
    wrong = Candidate(text=text, tool_calls=(ToolCall(name="f", arguments={"x": argument}),))
    with pytest.raises(UnstorableError, match="cannot be stored"):
        store.decide(lease, Decision(action="edit", candidate=wrong))
    assert store.item(item.id).decision is None
    assert store.decide(lease, Decision(action="respond", text="b\0", note="n\0")).state == "decided"


def test_what_is_no_json_is_refused(store: ReviewStore) -> None:
    with pytest.raises(UnstorableError, match="this content cannot be stored"):
        store.enqueue(Content(question="q", candidate=Candidate(text="a"), metadata={"x": object()}))
    with pytest.raises(UnstorableError, match=r"alternatives\.0\.1"):
        store.enqueue(Content(question="q", candidate=Candidate(text="a"), alternatives=(("x", math.nan),)))
    for metadata in ({"x": object()}, {"x": math.inf}, {"x": HALF}):
        for make in (lambda m: ask_reviewer(store, wait=1, metadata=m), lambda m: ticket(store, metadata=m)):
            with pytest.raises(UsageError, match="metadata must be plain JSON"):
                make(metadata)
    assert store.items() == []


def test_a_guard_abstains_where_its_answer_cannot_be_queued(store: ReviewStore) -> None:
    verdict = guarded("message").assess(QUESTION)
    assert verdict.candidate is not None
    deep = verdict.candidate.model_copy(update={"tool_calls": (ToolCall(name="f", arguments=nested(300)),)})
    for hook in (ask_reviewer(store, wait=60), ticket(store)):
        abstention = Abstention(
            verdict.model_copy(update={"candidate": deep}), [HumanMessage(QUESTION)], hook, ABSTENTION
        )
        assert abstention.answer(run(hook.steps(abstention))).content == ABSTENTION
        call = Abstention(abstention.verdict, abstention.messages, hook, ABSTENTION, form="calls")
        given_out = run(hook.steps(call))
        with pytest.raises(AbstainedError):
            call.answer(given_out)
    assert store.items() == []
    assert {(event.what, event.detail["reason"]) for event in store.trail()} == {
        ("not_queued", "this content cannot be stored: it is nested too deeply.")
    }
