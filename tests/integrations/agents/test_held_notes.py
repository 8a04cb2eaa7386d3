"""The note frozen in a graph's state: only a whole one releases something, and no stream shows what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel

from guardrail.errors import UsageError
from integrations._agents.held import FrozenMessage, MessageNote, pack, unpack
from tests.integrations.agents.agent_fakes import AgentChat, calls
from tests.integrations.agents.guarded_agents import APPROVE, CONFIG, agent_of, gate, graph_of

SECRETS = [f"secret-{k}" for k in range(5)]
MODES: Any = ["values", "updates", "messages", "custom", "tasks", "debug", "checkpoints"]


def unsure() -> AgentChat:
    """Five different answers to "what?", five different transfers to "pay bob"."""
    transfers = [calls(("transfer", {"to": f"secret-{k}", "amount": k}), text=f"secret-{k} gets it") for k in range(5)]
    return AgentChat(steps={("what?", 0): SECRETS, ("pay bob", 0): transfers, ("pay bob", 1): ["Done."]})


def agent_on(saver: Any, model: AgentChat) -> Any:
    return agent_of(model, gate(model), checkpointer=saver)


def plain_graph_on(saver: Any, model: AgentChat) -> Any:
    return graph_of(model, saver)


GRAPHS = [agent_on, plain_graph_on]


def stored(saver: Any) -> Any:
    """The note that the checkpointer holds under the guard's key."""
    return saver.get_tuple(CONFIG).checkpoint["channel_values"].get("guardrail")


# -- at rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["acrc-guardrail/2:e30=", "acrc-guardrail/1:e30=", "acrc-guardrail/1"])
def test_a_note_that_cannot_be_read_is_refused(broken: Any) -> None:
    """To ignore it would lose a message that waits."""
    saver, model = InMemorySaver(), unsure()
    agent_on(saver, model).invoke({"messages": "pay bob"}, CONFIG)
    rewrite(saver, lambda _: broken)
    drawn_before = model.made
    with pytest.raises(UsageError, match="new thread"):
        agent_on(saver, model).invoke(APPROVE, CONFIG)
    assert (stored(saver), model.made) == (broken, drawn_before)


@pytest.mark.parametrize("broken", [{"a": 1}, "junk"])
def test_what_is_not_a_note_releases_nothing(broken: Any) -> None:
    """A client could write the state, and so run any call."""
    saver, model = InMemorySaver(), unsure()
    agent_on(saver, model).invoke({"messages": "pay bob"}, CONFIG)
    rewrite(saver, lambda _: broken)
    shown = agent_on(saver, model).invoke(APPROVE, CONFIG)["messages"]
    assert not [message for message in shown if message.type == "tool" or getattr(message, "tool_calls", [])]
    assert "secret" not in str(shown)


def test_a_decision_cannot_be_given_from_outside_and_nothing_of_it_comes_out() -> None:
    """A client could approve in a person's place."""
    saver: Any = InMemorySaver()
    agent_on(saver, unsure()).invoke({"messages": "what?"}, CONFIG)
    note = unpack(stored(saver))
    assert note is not None
    assert note.held is not None
    held = note.held.model_copy(update={"message": FrozenMessage(text="forged")})
    forged = MessageNote(held=held, decisions=({"type": "approve"},), asked="h")
    request: Any = {"messages": [HumanMessage("what?", id="h")], "guardrail": pack(forged)}
    result = agent_on(InMemorySaver(), unsure()).invoke(request, CONFIG)
    assert "forged" not in str(result)
    assert "guardrail" not in result
    assert result["__interrupt__"][0].value["candidate"]["text"] == "secret-0"


def rewrite(saver: InMemorySaver, change: Callable[[Any], Any]) -> None:
    """Change the stored note of the last checkpoint."""
    last = saver.get_tuple(CONFIG)
    assert last is not None
    version = last.checkpoint["channel_versions"]["guardrail"]
    saver.blobs["1", "", "guardrail", version] = saver.serde.dumps_typed(change(stored(saver)))


# -- in streams ----------------------------------------------------------------------------------------------------


def without_interrupts(value: Any) -> Any:
    """A streamed value without the interrupt that is meant for the reviewer."""
    if isinstance(value, dict):
        return {k: without_interrupts(v) for k, v in value.items() if k not in ("__interrupt__", "interrupts")}
    return [without_interrupts(v) for v in value] if isinstance(value, list | tuple) else value


def leaks(streamed: Any, secrets: Any = SECRETS) -> list[str]:
    """Secrets in a value, both in its printed and in its sent form."""

    def spelt(value: Any) -> Any:
        return value.model_dump() if isinstance(value, BaseModel) else repr(value)

    text = repr(streamed) + json.dumps(streamed, default=spelt)
    return [secret for secret in secrets if secret in text]


@pytest.mark.parametrize("build", GRAPHS)
def test_no_stream_spells_out_what_is_held_back(build: Callable[..., Any]) -> None:
    """The user would read the answer before the person."""
    graph = build(InMemorySaver(), unsure())
    chunks = [without_interrupts(chunk) for chunk in graph.stream({"messages": "what?"}, CONFIG, stream_mode=MODES)]
    assert {chunk[0] for chunk in chunks} >= {"values", "updates", "tasks", "debug", "checkpoints"}
    assert leaks(chunks) == []
    assert leaks(without_interrupts(graph.get_state(CONFIG).values)) == []
    after = [without_interrupts(chunk) for chunk in graph.stream(APPROVE, CONFIG, stream_mode=MODES)]
    assert leaks(after) == SECRETS[:1]  # the approved candidate


def test_no_stream_spells_out_other_calls_than_the_one_that_runs() -> None:
    """The user would see the call that a person has changed."""
    agent = agent_on(InMemorySaver(), unsure())
    chunks = [without_interrupts(c) for c in agent.stream({"messages": "pay bob"}, CONFIG, stream_mode=MODES)]
    assert leaks(chunks) == []
    after = [without_interrupts(c) for c in agent.stream(APPROVE, CONFIG, stream_mode=MODES)]
    assert leaks(after) == SECRETS[:1]


def test_an_agent_inside_a_graph_spells_out_nothing_either() -> None:
    """Streams of subgraphs show their state, too."""
    builder = StateGraph(MessagesState)
    builder.add_node("bank", agent_on(None, unsure()))
    builder.add_edge(START, "bank")
    builder.add_edge("bank", END)
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    request: Any = {"messages": "what?"}
    chunks = [without_interrupts(c) for c in graph.stream(request, CONFIG, stream_mode=MODES, subgraphs=True)]
    assert {len(chunk[0]) for chunk in chunks} == {0, 1}  # of the graph, and of the agent in it
    assert leaks(chunks) == []
    inner = graph.get_state(CONFIG, subgraphs=True).tasks[0].state.values
    assert leaks(inner) == []
    note = unpack(inner["guardrail"])
    assert note is not None
    assert note.held is not None
    assert note.decisions == ()
    assert graph.invoke(APPROVE, CONFIG)["messages"][-1].text == "secret-0"


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol", "ignore:astream_events version='v1'")
@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
@pytest.mark.parametrize("build", GRAPHS)
async def test_no_event_spells_out_what_is_held_back(build: Callable[..., Any], version: Any) -> None:
    """The user would read the answer before the person."""
    graph = build(InMemorySaver(), unsure())
    events = graph.astream_events({"messages": "what?"}, CONFIG, version=version)
    shown = [without_interrupts(event) async for event in (await events if version == "v3" else events)]
    assert len(shown) > 2
    assert leaks(shown) == []
