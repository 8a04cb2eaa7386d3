"""Approvals of LangChain's own middleware, asked only about calls that the gate does not accept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.prompting import PromptWrapping
from guardrail.testing import ended, make_artifact
from integrations._agents.held import MessageNote, ToolCallOrder
from integrations._agents.verdicts import VerdictStore
from integrations.langchain_agents import unsure
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, calls, sending
from tests.integrations.agents.guarded_agents import thread

SENT: list[str] = []


class Greedy(AgentChat):
    """Drawn greedily by itself, as its artifact's primary answers are."""

    temperature: float = 0.0


def chat() -> Greedy:
    """Sure about 40 euros for bob; five different amounts where it is unsure; a call beside a call."""
    guesses = [sending(k) for k in range(1, 6)]
    both = [calls(("transfer", {"to": "bob", "amount": k}), ("balance", {"account": "a"})) for k in (1, 2, 3, 4, 5)]
    return Greedy(
        steps={
            ("sure", 0): [sending(40)],
            ("unsure", 0): guesses,
            ("both", 0): both,
            **{(text, 1): ["Done."] for text in ("sure", "unsure")},
            ("both", 2): ["Done."],
        }
    )


def agent_of(model: AgentChat, saver: Any, mode: Any = "batched", **options: Any) -> Any:
    policy: Any = {
        "when": unsure(options.pop("artifact", None) or artifact_of(model), model, **options),
        "allowed_decisions": ["approve", "reject"],
    }
    approvals = HumanInTheLoopMiddleware(interrupt_on={"transfer": policy}, interrupt_mode=mode)
    return create_agent(model, TOOLS, system_prompt=SYSTEM, middleware=[approvals], checkpointer=saver)


def results(state: Any) -> list[str]:
    return [message.text for message in state["messages"] if message.type == "tool"]


def decide(state: Any, kind: str, mode: str) -> Any:
    (asked,) = state["__interrupt__"]
    decision: Any = {"type": kind}
    return Command(resume={asked.id: decision if mode == "per_call" else {"decisions": [decision]}})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_a_person_is_asked_about_unsure_calls_alone(mode: str) -> None:
    """A person who is asked about everything stops reading."""
    model, saver = chat(), InMemorySaver()
    agent = agent_of(model, saver, mode)
    assert results(agent.invoke({"messages": "sure"}, thread("sure"))) == ["sent 40 to bob"]
    held = agent.invoke({"messages": "unsure"}, thread())
    assert results(held) == []
    assert results(agent.invoke(decide(held, "approve", mode), thread())) == ["sent 1 to bob"]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_a_rejection_stands_in_another_process_whatever_the_model_would_say_now(mode: str) -> None:
    """LangChain asks the predicate again on resume: on another answer it would run the call that a person rejected."""
    saver = InMemorySaver()
    held = agent_of(chat(), saver, mode).invoke({"messages": "unsure"}, thread())
    certain = Greedy(steps={("unsure", 0): [sending(1)], ("unsure", 1): ["Done."]})
    done = agent_of(certain, saver, mode, artifact=artifact_of(chat())).invoke(decide(held, "reject", mode), thread())
    assert "sent" not in str(results(done))
    assert certain.made == 1  # the answer after the rejection: nothing was drawn again


def test_a_message_is_judged_as_a_whole_and_once() -> None:
    """LangChain asks about each call, and again on resume: another draw could let a rejected call run."""
    model, saver = chat(), InMemorySaver()
    agent = agent_of(model, saver)
    held = agent.invoke({"messages": "both"}, thread())
    assert model.made == 1 + 4  # the agent's own message, and the artifact's samples
    assert results(agent.invoke(decide(held, "approve", "batched"), thread())) == ["sent 1 to bob", "a has 100"]
    assert model.made == 6


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_the_bridge_says_that_langchains_approvals_are_not_on_the_page(mode: str, tmp_path: Path) -> None:
    """It returned no items, as if nothing waited, and nobody learned of the call."""
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    agent = agent_of(chat(), InMemorySaver(), mode)
    held = agent.invoke({"messages": "unsure"}, thread())
    with review.ReviewStore(tmp_path / "reviews.db") as store:
        bridge = ReviewBridge(store)
        for method in (bridge.enqueue, bridge.resume):
            with pytest.raises(UsageError, match=r"HumanInTheLoopMiddleware.*Command\(resume=.*GuardrailMiddleware"):
                method(agent, thread())
        agent.invoke(decide(held, "approve", mode), thread())
        assert (bridge.enqueue(agent, thread()), bridge.resume(agent, thread())) == ([], None)


def test_it_asks_in_async_agents_too() -> None:
    """An async agent would fail, or run everything."""
    agent = agent_of(chat(), InMemorySaver())
    assert "__interrupt__" in asyncio.run(agent.ainvoke({"messages": "unsure"}, thread()))


def when_of(model: AgentChat, **options: Any) -> Any:
    """The predicate, for a call and the messages of the state."""
    predicate: Any = unsure(artifact_of(model), model, **options)
    return lambda call, *messages: predicate(SimpleNamespace(tool_call=call, state={"messages": list(messages)}))


def test_a_call_that_is_not_the_judged_one_is_asked_about() -> None:
    """The verdict is about a call's arguments in its conversation: the same id must not carry it elsewhere."""
    model = chat()
    when = when_of(model)
    said = ended(sending(40))
    call: Any = said.tool_calls[0]
    changed = {**call, "args": {"to": "eve", "amount": 40}}
    unknown = {**call, "id": "other"}
    sure, other = HumanMessage("sure"), HumanMessage("unsure")
    assert when(call, sure, said) is False
    assert when(changed, sure, said) is True
    assert when(unknown, sure, said) is True
    assert when(call, other, said) is True
    assert when(call) is True
    assert when(call, sure, said) is False


def test_what_was_held_first_stays_held_for_processes_that_judge_at_once(tmp_path: Path) -> None:
    """The second process would let run what the first holds."""
    store = VerdictStore(tmp_path / "v.sqlite")
    held = MessageNote(orders={"k": ToolCallOrder(digest="", decision="held")})
    store.put("k", held, first=True)
    store.put("k", MessageNote(orders={"k": ToolCallOrder(digest="", decision="accepted")}), first=True)
    assert store.find("k") == held


def test_what_cannot_be_judged_is_asked_about_and_stays_so() -> None:
    """A server that is down would switch the gate off."""
    model = Greedy(steps={("sure", 0): [sending(40), RuntimeError("down")]})
    when = when_of(model, probe="off")
    said = ended(sending(40))
    assert when(said.tool_calls[0], HumanMessage("sure"), said) is True
    model.steps = {("sure", 0): [sending(40)]}
    assert when(said.tool_calls[0], HumanMessage("sure"), said) is True


def test_artifacts_that_it_cannot_keep_are_refused_at_set_up() -> None:
    """The first customer's call would find it."""
    model = chat()
    slots = make_artifact(model, prompt=PromptWrapping(system="It is {clock}.", slots=("clock",), question_slots=()))
    with pytest.raises(UsageError, match=r"slots \['clock'\]"):
        unsure(slots, model, remember=0)
    with pytest.raises(ArtifactMismatchError):
        unsure(artifact_of(model), AgentChat(name_of_model="another"))
