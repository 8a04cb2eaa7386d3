"""Abstentions to people: through a real guard, sync and async."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from guardrail import AbstainedError, Guardrail, PromptWrapping, UnmeasuredError, UsageError, Verdict
from guardrail.guard.abstention import ABSTENTION, Abstention, take_path
from guardrail.review import Candidate, CandidateRule, Decision, ReviewStore, ask_reviewer, content_of, ticket
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Sample
from tests.review_pages import reviewer

QUESTION = "Who wrote The Waves?"
ANSWERS = ["Woolf", "Woolf", "Forster", "James", "Mansfield", "Woolf", "Stein", "Joyce", "Eliot", "Hardy", "Wells"]


def guarded(on_abstain: Any, prompt: PromptWrapping | None = None) -> Guardrail:
    """A guard over a model that disagrees with itself, so that it holds everything back."""
    model = ScriptedChat(script={QUESTION: ANSWERS})
    return Guardrail(
        model=model, artifact=make_artifact(model, prompt=prompt or PromptWrapping()), on_abstain=on_abstain
    )


DECISIONS = [
    (Decision(action="approve"), "Woolf"),
    (Decision(action="edit", candidate=Candidate(text="Virginia Woolf")), "Virginia Woolf"),
    (Decision(action="respond", text="Woolf, in 1931."), "Woolf, in 1931."),
    (Decision(action="reject"), ABSTENTION),
]


@pytest.mark.parametrize(("decision", "answer"), DECISIONS)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_goes_out(store: ReviewStore, decision: Decision, answer: str, is_async: bool) -> None:
    guard = guarded(ask_reviewer(store, wait=60))
    with reviewer(store, lambda _: decision) as reviewed:
        reply = asyncio.run(guard.ainvoke(QUESTION)) if is_async else guard.invoke(QUESTION)
    assert reply.content == answer
    (item,) = reviewed
    if decision.action != "reject":
        assert reply.response_metadata["review"] == {"ticket": item.id, "action": decision.action}
    assert reply.response_metadata["guardrail"]["accepted"] is False


def test_the_reviewer_sees_what_was_judged_and_nothing_is_sampled_again(store: ReviewStore) -> None:
    guard = guarded(ask_reviewer(store, wait=60, metadata={"tenant": "a"}), PromptWrapping(other_turns="mark"))
    with reviewer(store, lambda _: Decision(action="approve")) as reviewed:
        reply = guard.invoke([HumanMessage("Hello"), AIMessage("Hi"), HumanMessage(QUESTION)])
    content = reviewed[0].content
    assert content.question == QUESTION
    assert [message["role"] for message in content.messages] == ["human", "ai", "human"]
    verdict = content.verdict
    assert verdict is not None
    assert verdict.candidate is not None
    assert content.candidate == Candidate(text=verdict.candidate.text) == Candidate(text=str(reply.content))
    assert content.alternatives == verdict.alternatives
    assert content.metadata == {"tenant": "a"}


def test_the_reviewer_sees_the_tool_calls_before_the_question() -> None:
    call = {"name": "search", "args": {"author": "Woolf"}, "id": "1", "type": "tool_call"}
    before = [HumanMessage("Hello"), AIMessage("", tool_calls=[call]), ToolMessage("9 novels", tool_call_id="1")]
    verdict = guarded("message").assess(QUESTION)
    assert content_of(verdict, [*before, HumanMessage(QUESTION)]).messages == (
        {"role": "human", "content": "Hello"},
        {"role": "ai", "content": "", "tool_calls": [{"name": "search", "arguments": {"author": "Woolf"}}]},
        {"role": "tool", "content": "9 novels"},
        {"role": "human", "content": QUESTION},
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_nobody_decides_in_time(store: ReviewStore, is_async: bool) -> None:
    guard = guarded(ask_reviewer(store, wait=1))
    reply = asyncio.run(guard.ainvoke(QUESTION)) if is_async else guard.invoke(QUESTION)
    assert reply.content == ABSTENTION
    assert [item.state for item in store.items()] == ["expired"]
    assert store.claim("ann") is None


async def test_a_cancelled_call_closes_its_item(store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, waiting = asyncio.Event(), ReviewStore.waiting

    def noted(self: ReviewStore, item: str, seconds: float) -> Any:
        waits.set()
        return waiting(self, item, seconds)

    monkeypatch.setattr(ReviewStore, "waiting", noted)
    call = asyncio.create_task(guarded(ask_reviewer(store, wait=600)).ainvoke(QUESTION))
    async with asyncio.timeout(60):
        await waits.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [item.state for item in store.items()] == ["expired"]


async def test_many_wait_at_once_and_each_gets_its_own(store: ReviewStore) -> None:
    questions = [f"{QUESTION} ({i})" for i in range(8)]
    model = ScriptedChat(script={question: ANSWERS for question in questions})
    guard = Guardrail(model=model, artifact=make_artifact(model), on_abstain=ask_reviewer(store, wait=120))
    calls = [asyncio.create_task(guard.ainvoke(question)) for question in questions]
    done = 0
    async with asyncio.timeout(100):
        while done < 8:
            lease = await asyncio.to_thread(store.claim, "ann")
            if lease is None:
                await asyncio.sleep(0.01)
                continue
            answer = Decision(action="respond", text=f"to {lease.item.content.question}")
            await asyncio.to_thread(store.decide, lease, answer)
            done += 1
    assert [reply.content for reply in await asyncio.gather(*calls)] == [f"to {q}" for q in questions]


def test_a_key_makes_a_retry_wait_for_the_same_item(store: ReviewStore) -> None:
    hook = ask_reviewer(store, wait=60, key=lambda verdict, messages: str(messages[-1].content))
    with reviewer(store, lambda _: Decision(action="approve")):
        first = guarded(hook).invoke(QUESTION)
    assert guarded(hook).invoke(QUESTION).content == first.content
    assert len(store.items()) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_ticket_at_once(store: ReviewStore, is_async: bool) -> None:
    guard = guarded(ticket(store, reply="Look at {ticket}", callback="https://example.org/hook", expires_in=60))
    reply = asyncio.run(guard.ainvoke(QUESTION)) if is_async else guard.invoke(QUESTION)
    (item,) = store.items()
    assert reply.content == f"Look at {item.id}"
    assert reply.response_metadata["review"] == {"ticket": item.id}
    assert (item.state, item.callback) == ("pending", "https://example.org/hook")
    assert item.deadline is not None


def test_metadata_may_depend_on_the_call(store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReviewStore, "waiting", lambda *_: iter(()))
    hook = ticket(
        store, metadata=lambda verdict, messages: {"asked": messages[-1].content, "why": verdict.reason.value}
    )
    guarded(hook).invoke(QUESTION)
    assert store.items()[0].content.metadata == {"asked": QUESTION, "why": "above_threshold"}
    guarded(ask_reviewer(store, wait=60, metadata=lambda *_: None)).invoke(QUESTION)
    assert store.items()[1].content.metadata == {}
    with pytest.raises(UsageError, match="metadata must be plain JSON"):
        guarded(ticket(store, metadata=lambda *_: {"x": object()})).invoke(QUESTION)
    assert len(store.items()) == 2


def test_a_ticket_is_no_answer_where_a_text_would_be_parsed(store: ReviewStore) -> None:
    guard = guarded("message")
    verdict = guard.assess(QUESTION)
    for form in ("calls", "format"):
        hook = ticket(store)
        abstention = Abstention(verdict, [HumanMessage(QUESTION)], hook, "", form=form)
        with pytest.raises(AbstainedError) as raised:
            abstention.answer(run(hook.steps(abstention)))
        error = pickle.loads(pickle.dumps(raised.value))
        assert error.ticket == store.items(newest=True)[0].id
        assert error.ticket in error.message
    assert len(store.items(["pending"])) == 2


def test_the_ticket_of_a_guard_that_took_over_is_kept() -> None:
    verdict = guarded("message").assess(QUESTION)

    def unmeasured(_: object) -> None:
        raise UnmeasuredError(verdict, "Later.", "ticket-7")

    with pytest.raises(AbstainedError) as raised:
        run(take_path(Abstention(verdict, [HumanMessage(QUESTION)], RunnableLambda(unmeasured), "")))
    assert (type(raised.value), raised.value.ticket) == (AbstainedError, "ticket-7")


def test_where_only_a_call_is_an_answer_nobody_can_respond_with_a_text(
    store: ReviewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReviewStore, "waiting", lambda *_: iter(()))
    verdict = guarded("message").assess(QUESTION)
    hook = ask_reviewer(store, wait=60)
    run(hook.steps(Abstention(verdict, [HumanMessage(QUESTION)], hook, "", form="calls")))
    assert store.items()[0].content.allowed == ("approve", "edit", "reject")


def test_a_tool_that_the_call_bound_has_its_schema_with_the_item(
    store: ReviewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page makes its form of it, and no edit that the tool would refuse goes back to the caller."""
    monkeypatch.setattr(ReviewStore, "waiting", lambda *_: iter(()))
    called = {"text": "", "tool_calls": [{"name": "refund", "arguments": {"amount": 4}}]}
    verdict = guarded("message").assess(QUESTION).model_copy(update={"candidate": Sample.model_validate(called)})
    amount = {"type": "object", "properties": {"amount": {"type": "number"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": amount}} for name in ("refund", "mail")]
    hook = ask_reviewer(store, wait=60)
    asked = Abstention(verdict, [HumanMessage(QUESTION)], hook, "", bound=Bindings(tools=tuple(tools)))
    run(hook.steps(asked))
    (item,) = store.items()
    assert item.content.schemas == {"refund": amount}
    (call,) = Candidate.model_validate(called).tool_calls
    wrong = Candidate(tool_calls=(call.model_copy(update={"arguments": {"amount": "4"}}),))
    assert "amount: '4' is not of type 'number'" in str(item.content.why_not(wrong))


def test_without_a_candidate_one_can_only_respond_or_reject() -> None:
    verdict = guarded("message").assess(QUESTION)
    failed: Verdict = verdict.model_copy(update={"candidate": None})
    assert content_of(failed, [HumanMessage(QUESTION)]).allowed == ("reject", "respond")


def test_the_calibrated_list_is_stored_with_the_item(store: ReviewStore) -> None:
    verdict = guarded("message").assess(QUESTION)
    values: dict[str, Any] = {"epsilon": 0.2, "quantile": 0.0, "n": 9, "n_without": 0, "attainable": 0.1, "delta": 0.1}
    rule = CandidateRule(artifact=verdict.artifact, population="held_back", **values)
    shown = content_of(verdict, [HumanMessage(QUESTION)], candidates=rule).candidate_set
    assert shown is not None
    assert [text for text, _ in shown.answers] == ["Woolf"]
    other = rule.model_copy(update={"artifact": "sha256:other"})
    assert content_of(verdict, [HumanMessage(QUESTION)], candidates=other).candidate_set is None
