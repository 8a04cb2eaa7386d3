"""Tools without an artifact: calls wait, samples are recorded, and decisions become labelled steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver

from calibrate.data.records import read_records
from calibrate.reviews.steps import reviews_of_checkpoints
from guardrail import Guardrail
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTENTION
from integrations.langchain_agents import GuardrailMiddleware
from integrations.watcher import Watcher
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, artifact_of, balance, calls, close, sending
from tests.integrations.agents.collecting_agents import (
    APPROVE,
    DECISIONS,
    SENT,
    Greedy,
    Resume,
    agent,
    answer,
    approvals,
    ask,
    by_interrupt,
    chat,
    collecting,
    decide_in_checkpoints,
    edit,
    in_a_batch,
    transfer,
)

pytestmark = pytest.mark.usefixtures("in_a_folder")


# -- collecting --------------------------------------------------------------------------------------------------------


def test_every_call_waits_for_a_person_and_the_approved_call_runs() -> None:
    """Without an artifact nothing is known of a call, so a transfer that ran would be unguarded."""
    model = chat(send=[sending(40), sending(40), sending(4)])
    guarded_agent = agent(model, collecting())
    (waiting,) = ask(guarded_agent, "send")["__interrupt__"]
    assert SENT == []
    assert model.made == 11  # the message and the plan's ten samples
    assert waiting.value["verdict"]["detail"] == (
        "Held back: there is no artifact yet, so a person decides about each one. Decide about it: "
        "`calibrate learn` makes decisions labels, and labels an artifact."
    )
    answer(guarded_agent, APPROVE)
    assert SENT == [40]
    assert model.made == 12  # the answer after the call; nothing was drawn again


def test_the_samples_of_a_call_that_waits_are_recorded() -> None:
    """A decision is a label only with the samples that belong to it, drawn as the agent draws."""
    guarded_agent = agent(chat(send=[sending(40), sending(40), sending(4)]), collecting())
    (waiting,) = ask(guarded_agent, "send")["__interrupt__"]
    file = read_records("agent.records.jsonl")
    (record,) = file.records
    assert (record.id, record.group) == (waiting.value["verdict"]["record"], "1")
    assert record.messages == ({"role": "user", "content": "send"},)
    assert file.header.prompt.system == SYSTEM
    assert file.header.plan.bindings is not None
    assert set(file.header.plan.bindings.tool_names) == {"balance", "close", "transfer"}
    assert record.drawn is not None
    amounts = [sample.tool_calls[0].arguments["amount"] for sample in record.drawn.samples]
    assert sorted(amounts) == [4] * 5 + [40] * 5  # ten samples: 40 and 4 in turn


@pytest.mark.parametrize(("text", "last"), [("hello", "Hi."), ("look", "Done.")])
def test_answers_and_exempt_calls_pass_and_are_not_recorded(text: str, last: str) -> None:
    """A person who is asked about what only reads stops reading, and the samples would be paid for nothing."""
    model = chat(hello=["Hi."], look=[calls(("balance", {"account": "a"}))])
    assert ask(agent(model, collecting()), text)["messages"][-1].text == last
    assert not Path("agent.records.jsonl").exists() or not read_records("agent.records.jsonl").records


def test_records_of_another_prompt_are_not_mixed_in() -> None:
    """One threshold would be fitted to the answers of two agents."""
    model = chat(send=[sending(40)])
    ask(agent(model, collecting()), "send")
    with pytest.raises(UsageError, match="records of another prompt"):
        ask(agent(model, collecting(), system="Another."), "send")


async def test_it_collects_on_an_event_loop_too() -> None:
    """An async agent would lose its samples, or block."""
    guarded_agent = agent(chat(send=[sending(40)]), collecting(records="own.jsonl"))
    result = await guarded_agent.ainvoke({"messages": "send"}, {"configurable": {"thread_id": "1"}})
    assert result["__interrupt__"][0].value["verdict"]["record"] == read_records("own.jsonl").records[0].id


SHUT = ("close", {"account": "a"})


def beside_a_calibrated_tool(model: AgentChat) -> Any:
    """An agent whose transfers have an artifact, and whose closings collect."""
    artifact = artifact_of(model, tools=[balance, transfer, close])
    return agent(model, GuardrailMiddleware(tools={"transfer": artifact, "close": "collect"}, exempt=["balance"]))


def test_a_calibrated_tool_is_judged_beside_one_that_collects() -> None:
    """A second tool must not bring the person back for the first."""
    guarded_agent = beside_a_calibrated_tool(chat(send=[sending(40)]))
    assert ask(guarded_agent, "send")["messages"][2].text == "sent 40 to bob"
    assert len(read_records("agent.records.jsonl").records) == 0


@pytest.mark.parametrize("message", [calls(SHUT), calls(SHUT, ("transfer", {"to": "bob", "amount": 1}))])
def test_a_message_with_a_call_that_collects_waits_as_a_whole(message: Any) -> None:
    """The transfer in it would run without what a person makes of the closing."""
    guarded_agent = beside_a_calibrated_tool(chat(shut=[message]))
    (waiting,) = ask(guarded_agent, "shut")["__interrupt__"]
    assert waiting.value["verdict"]["reason"] == "infeasible"
    proposed = [call["name"] for call in message.tool_calls]
    assert [request["name"] for request in waiting.value["action_requests"]] == proposed
    (record,) = read_records("agent.records.jsonl").records
    assert record.drawn is not None
    assert len(record.drawn.samples) == 4  # of the artifact's plan
    assert SENT == []


def test_it_needs_a_person() -> None:
    """Without one every call would be refused, and no label would ever come."""
    with pytest.raises(UsageError, match='needs on_abstain="review"'):
        collecting(on_abstain="message")


# -- decisions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middleware", "resume", "recorded"),
    [
        (collecting, in_a_batch, True),
        (approvals, in_a_batch, False),
        (lambda: HumanInTheLoopMiddleware({"transfer": True}, interrupt_mode="per_call"), by_interrupt, False),
    ],
    ids=["collecting", "approvals", "approvals per call"],
)
def test_decisions_in_checkpoints_become_labelled_steps(middleware: Any, resume: Resume, recorded: bool) -> None:
    """A decision that is read as another is a wrong label, and a wrong threshold."""
    saver = InMemorySaver()
    decide_in_checkpoints(saver, middleware(), resume)
    items = reviews_of_checkpoints(saver)
    assert [(item.group, item.action, item.correct, item.open) for item in items] == [
        ("send", "approve", True, False),
        ("wrong", "edit", False, False),
        ("spam", "reject", False, False),
        ("cash", "reject", False, False),
        ("late", None, None, True),
    ]
    assert {item.recorded for item in items} == {recorded}
    references = [None if item.reference is None else json.loads(item.reference) for item in items]
    assert [calls and calls[0]["arguments"]["amount"] for calls in references] == [40, 7, None, None, None]
    assert items[0].messages == ({"role": "user", "content": "send"},)


def test_an_answer_to_the_user_says_that_the_call_was_wrong() -> None:
    """Left out, only the calls that a person let run would count."""
    saver = InMemorySaver()
    guarded_agent = agent(chat(send=[sending(40)]), collecting(), saver=saver)
    ask(guarded_agent, "send")
    answer(guarded_agent, {"type": "answer", "message": "It is closed."})
    (item,) = reviews_of_checkpoints(saver)
    assert (item.action, item.correct) == ("reject", False)


def test_the_later_of_two_decisions_about_one_message_counts() -> None:
    """The first person approved what the second changed: the call that ran is the second's."""
    saver = InMemorySaver()
    guarded_agent = agent(chat(send=[sending(40)]), approvals(), collecting(), saver=saver)
    ask(guarded_agent, "send")
    answer(guarded_agent, APPROVE)
    answer(guarded_agent, edit(5))
    assert SENT == [5]
    (item,) = reviews_of_checkpoints(saver)
    assert (item.action, item.correct, item.recorded) == ("edit", False, True)
    assert "5" in str(item.reference)


def test_an_interrupt_that_a_new_message_left_behind_is_not_open() -> None:
    """Nobody can decide about it any more, so learning would wait for it for ever."""
    saver = InMemorySaver()
    guarded_agent = agent(chat(send=[sending(40)], hello=["Hi."]), collecting(), saver=saver)
    ask(guarded_agent, "send")
    ask(guarded_agent, "hello")
    (item,) = reviews_of_checkpoints(saver)
    assert (item.correct, item.open) == (None, False)


# -- calls that cannot be measured -------------------------------------------------------------------------------------


class Constant(AgentChat):
    """An agent's model that a probe gets equal answers from, as from a cache."""

    guardrail_trusted: ClassVar[bool] = False


CUT_OFF = sending(40).model_copy(update={"response_metadata": {"finish_reason": "length"}})
UNMEASURABLE: dict[str, tuple[type[AgentChat], Sequence[Any], str, str]] = {
    "the endpoint": (Constant, [sending(40)], "degenerate_samples", "guardrail doctor"),
    "the answers": (AgentChat, [CUT_OFF], "cut_off", "larger max_tokens"),
    "the model": (AgentChat, [RuntimeError("down")], "model_failed", "guardrail doctor"),
}


@pytest.mark.parametrize("kind", UNMEASURABLE)
def test_nobody_is_asked_about_calls_that_cannot_be_measured(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """People decided about 60 calls before `calibrate learn` said that none of them could be a label."""
    of, replies, reason, way_out = UNMEASURABLE[kind]
    guarded_agent = agent(chat(of, **dict.fromkeys(DECISIONS, replies)), collecting())
    for name in DECISIONS:
        result = ask(guarded_agent, name, name)
        assert "__interrupt__" not in result
        assert result["messages"][-1].text == ABSTENTION
        verdict = result["messages"][-1].response_metadata["guardrail"]
        assert verdict["detail"].startswith(f"Held back, and nobody is asked: it could not be measured ({reason}")
    assert SENT == []
    assert not read_records("agent.records.jsonl").records
    (logged,) = [record.getMessage() for record in caplog.records if "nobody is asked" in record.getMessage()]
    assert reason in logged
    assert way_out in logged


def test_people_are_asked_again_once_calls_can_be_measured() -> None:
    """One bad message must not end the collection."""
    guarded_agent = agent(chat(send=[CUT_OFF], more=[sending(40)]), collecting())
    assert "__interrupt__" not in ask(guarded_agent, "send", "1")
    assert "__interrupt__" in ask(guarded_agent, "more", "2")


# -- observing ---------------------------------------------------------------------------------------------------------


def test_a_watcher_measures_an_agents_messages_and_runs_no_tool_for_it() -> None:
    """Who tries a gate out before it is switched on must not pay a transfer for a measurement."""
    model = chat(Greedy, send=[sending(40)], unsure=[sending(1), sending(2), sending(3), sending(4), sending(5)])
    verdicts: list[Any] = []
    guard = Guardrail(
        model=model,
        artifact=artifact_of(model, tools=[balance, transfer, close]),
        on_verdict=lambda verdict, _: verdicts.append(verdict),
    )
    watcher = Watcher(guard)
    for thread, text in enumerate(("send", "unsure")):
        config: Any = {"configurable": {"thread_id": str(thread)}, "callbacks": [watcher]}
        agent(model).invoke({"messages": text}, config)
    assert watcher.drain(20)
    assert SENT == [40, 1]  # each call once
    moved = {
        verdict.candidate.tool_calls[0].arguments["amount"]: verdict.accepted
        for verdict in verdicts
        if verdict.candidate is not None and verdict.candidate.tool_calls
    }
    assert moved == {40: True, 1: False}
