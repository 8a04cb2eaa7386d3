"""Items with a caller's key: they outlive a waiter that leaves, and a retry gets the same item; on both databases."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from guardrail.guard.abstention import Abstention
from guardrail.review import (
    Candidate,
    Content,
    Decision,
    Item,
    ItemExpiredError,
    LeaseLostError,
    ReviewStore,
    ask_reviewer,
    ticket,
)
from guardrail.review.hooks import AskReviewer
from guardrail.sampling.effects import Effect, arun, run
from tests.guardrail.review.test_review_hooks import QUESTION, guarded
from tests.review_pages import claim

CONTENT = Content(question=QUESTION, candidate=Candidate(text="Woolf"))
APPROVE = Decision(action="approve")


@pytest.fixture
def store(store_url: str) -> Iterator[ReviewStore]:
    with ReviewStore(store_url) as opened:
        yield opened


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def timed(store_url: str, now: list[float]) -> Iterator[ReviewStore]:
    """A store whose clock the test moves."""
    with ReviewStore(store_url, clock=lambda: now[0]) as opened:
        yield opened


def asking(store: ReviewStore, wait: float) -> tuple[AskReviewer, Abstention]:
    hook = ask_reviewer(store, wait=wait, key=lambda verdict, messages: "request-1")
    return hook, Abstention(guarded("message").assess(QUESTION), [HumanMessage(QUESTION)], hook, "")


def words(store: ReviewStore, item: Item) -> list[str]:
    return [event.what for event in store.trail(item.id)]


def decide(store: ReviewStore, item: Item) -> None:
    lease = claim(store, "ann", item=item.id)
    store.decide(lease, APPROVE)


def text(reply: AIMessage | None) -> str:
    assert reply is not None
    return str(reply.content)


async def event_seen(store: ReviewStore, event: str) -> Item:
    """The only item, once its trail has this word."""
    async with asyncio.timeout(200):
        while not (items := store.items()) or event not in words(store, items[0]):
            await asyncio.sleep(0.01)
    (item,) = items
    return item


async def test_a_cancelled_waiter_leaves_the_item_to_the_other(store: ReviewStore) -> None:
    hook, abstention = asking(store, 300)
    first = asyncio.create_task(arun(hook.steps(abstention)))
    await event_seen(store, "enqueued")
    second = asyncio.create_task(arun(hook.steps(abstention)))
    item = await event_seen(store, "extended")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert store.item(item.id).state == "pending"
    decide(store, item)
    assert text(await second) == "Woolf"


async def test_the_retry_of_a_cancelled_call_gets_the_decision_made_meanwhile(store: ReviewStore) -> None:
    hook, abstention = asking(store, 300)
    call = asyncio.create_task(arun(hook.steps(abstention)))
    item = await event_seen(store, "enqueued")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    decide(store, item)
    assert text(await arun(hook.steps(abstention))) == "Woolf"
    assert len(store.items()) == 1


@pytest.mark.parametrize("short_first", [True, False])
async def test_a_waiter_that_times_out_leaves_the_item_to_the_other(
    timed: ReviewStore, now: list[float], short_first: bool
) -> None:
    (short, abstention), (long, _) = asking(timed, 1), asking(timed, 300)
    order = [short, long] if short_first else [long, short]
    first = asyncio.create_task(arun(order[0].steps(abstention)))
    item = await event_seen(timed, "enqueued")
    second = asyncio.create_task(arun(order[1].steps(abstention)))
    if short_first:
        await event_seen(timed, "extended")
    now[0] += 1  # the deadline of the first alone would be over
    brief, patient = (first, second) if short_first else (second, first)
    assert await brief is None
    assert timed.item(item.id).state == "pending"
    decide(timed, item)
    assert text(await patient) == "Woolf"
    assert "expired" not in words(timed, item)


def test_the_retry_of_a_call_that_timed_out_opens_the_item_again(timed: ReviewStore, now: list[float]) -> None:
    store = timed
    hook, abstention = asking(store, 60)

    def in_vain(*_: object) -> Iterator[Effect]:
        now[0] += 61
        return iter(())

    with pytest.MonkeyPatch.context() as late:
        late.setattr(ReviewStore, "waiting", in_vain)
        assert run(hook.steps(abstention)) is None
    (item,) = store.items()
    assert item.state == "expired"
    patient, _ = asking(store, 300)
    replies: list[AIMessage | None] = []
    retry = threading.Thread(target=lambda: replies.append(run(patient.steps(abstention))))
    retry.start()
    asyncio.run(event_seen(store, "reopened"))
    decide(store, item)
    retry.join()
    assert text(replies[0]) == "Woolf"
    assert words(store, item) == ["enqueued", "expired", "reopened", "claimed", "decided"]


@pytest.mark.parametrize("key", [None, lambda verdict, messages: messages[-1].id])
def test_without_a_key_nobody_else_waits_so_the_item_is_closed(store: ReviewStore, key: Any) -> None:
    hook = ask_reviewer(store, wait=300, key=key)
    abstention = Abstention(guarded("message").assess(QUESTION), [HumanMessage(QUESTION)], hook, "")
    for _ in range(2):
        with pytest.MonkeyPatch.context() as interrupted:
            interrupted.setattr(ReviewStore, "waiting", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                run(hook.steps(abstention))
    assert [item.state for item in store.items()] == ["expired", "expired"]


def test_an_interrupt_between_two_steps_closes_the_item(store: ReviewStore) -> None:
    """Ctrl-C may arrive where no effect is under way."""
    hook = ask_reviewer(store, wait=300)
    steps = hook.steps(Abstention(guarded("message").assess(QUESTION), [HumanMessage(QUESTION)], hook, ""))
    steps.send(next(steps).run())
    steps.close()
    assert [item.state for item in store.items()] == ["expired"]


def test_an_expired_ticket_is_open_again_for_the_same_request(timed: ReviewStore, now: list[float]) -> None:
    hook = ticket(timed, expires_in=10, key=lambda verdict, messages: "request-1")
    abstention = Abstention(guarded("message").assess(QUESTION), [HumanMessage(QUESTION)], hook, "")
    first = text(run(hook.steps(abstention)))
    now[0] += 10
    assert timed.expire() == 1
    assert text(run(hook.steps(abstention))) == first
    (item,) = timed.items()
    assert (item.state, item.deadline) == ("pending", 1020.0)


def test_asking_again_keeps_the_latest_deadline(timed: ReviewStore, now: list[float]) -> None:
    def again(expires_in: float | None) -> float | None:
        return timed.enqueue(CONTENT, key="k", expires_in=expires_in, reopen=True).deadline

    item = timed.enqueue(CONTENT, key="k", expires_in=100)
    now[0] += 50
    assert again(10) == 1100.0
    assert again(90) == 1140.0
    assert again(None) is None
    assert again(10) is None
    assert timed.enqueue(CONTENT, key="k", expires_in=10).deadline is None
    assert words(timed, item) == ["enqueued", "extended", "extended"]


def test_without_reopen_a_deadline_never_moves(timed: ReviewStore, now: list[float]) -> None:
    """A caller that polls with `enqueue` (a graph's bridge) must not keep an item open by polling."""
    item = timed.enqueue(CONTENT, key="k", expires_in=100)
    now[0] += 50
    assert timed.enqueue(CONTENT, key="k", expires_in=100).deadline == 1100.0
    now[0] += 50
    assert timed.enqueue(CONTENT, key="k", expires_in=100).state == "expired", "also if nobody swept the queue"
    assert words(timed, item) == ["enqueued", "expired"]


def test_a_reviewer_who_holds_it_keeps_it_unless_it_was_closed(timed: ReviewStore, now: list[float]) -> None:
    item = timed.enqueue(CONTENT, key="k", expires_in=100)
    lease = claim(timed, "ann", seconds=600)
    now[0] += 100
    with pytest.raises(ItemExpiredError):
        timed.renew(lease)
    assert timed.enqueue(CONTENT, key="k", expires_in=100, reopen=True).state == "claimed"
    timed.renew(lease, seconds=600)
    now[0] += 100
    timed.expire()
    reopened = timed.enqueue(CONTENT, key="k", expires_in=100, reopen=True)
    assert (reopened.state, reopened.holder, reopened.deadline) == ("pending", None, 1300.0)
    with pytest.raises(LeaseLostError):
        timed.decide(lease, APPROVE)
    decide(timed, item)
    decided = timed.enqueue(CONTENT, key="k", expires_in=100, reopen=True)
    assert (decided.state, decided.decision is not None) == ("decided", True)
    changes = [word for word in words(timed, item) if word in ("expired", "reopened")]
    assert changes == ["reopened", "expired", "reopened"]


def test_leaving_closes_only_what_is_late(timed: ReviewStore, now: list[float]) -> None:
    item, endless = timed.enqueue(CONTENT, expires_in=100), timed.enqueue(CONTENT)
    now[0] += 99
    for late in (item, endless):
        assert timed.cancel(late.id, only_if_late=True).decision is None
        assert timed.item(late.id).state == "pending"
    now[0] += 1
    timed.cancel(item.id, only_if_late=True)
    assert timed.item(item.id).state == "expired"
