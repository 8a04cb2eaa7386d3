"""The note frozen in a graph's state: plain JSON in every checkpointer, and nothing readable in any stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyChannelError, InvalidUpdateError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from guardrail.errors import UsageError
from guardrail.guard.chat_model import Guardrail
from integrations._agents.held import FrozenMessage, GuardState, from_json, pack, to_json, unpack
from integrations._agents.state import NoteChannel
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import GuardedState, guarded_nodes
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, calls

CONFIG: Any = {"configurable": {"thread_id": "1"}}
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})
SECRETS = [f"secret-{k}" for k in range(5)]
MODES: Any = ["values", "updates", "messages", "custom", "tasks", "debug", "checkpoints"]


def unsure() -> AgentChat:
    """Five different answers to "what?", five different transfers to "pay bob"."""
    transfers = [calls(("transfer", {"to": f"secret-{k}", "amount": k}), text=f"secret-{k} gets it") for k in range(5)]
    return AgentChat(steps={("what?", 0): SECRETS, ("pay bob", 0): transfers, ("pay bob", 1): ["Done."]})


def agent_on(saver: Any, model: AgentChat) -> Any:
    artifact = artifact_of(model)
    middleware = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])
    return create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=[middleware], checkpointer=saver)


def plain_graph_on(saver: Any, model: AgentChat) -> Any:
    artifact = artifact_of(model, tools=())
    artifact = artifact.model_copy(update={"prompt": artifact.prompt.model_copy(update={"system": None})})
    builder = StateGraph(GuardedState)
    entry, leave = guarded_nodes(Guardrail(model=model, artifact=artifact)).add_to(builder)
    builder.add_edge(START, entry)
    builder.add_edge(leave, END)
    return builder.compile(checkpointer=saver)


GRAPHS = [agent_on, plain_graph_on]


def stored(saver: Any) -> Any:
    """The note that the checkpointer holds under the guard's key."""
    return saver.get_tuple(CONFIG).checkpoint["channel_values"].get("guardrail")


# -- at rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", GRAPHS)
def test_candidate_and_verdict_lie_in_the_checkpoint_as_plain_json(build: Callable[..., Any]) -> None:
    saver = InMemorySaver()
    graph = build(saver, unsure())
    graph.invoke({"messages": "what?"}, CONFIG)
    note = stored(saver)
    assert json.loads(json.dumps(note, allow_nan=False)) == note
    assert note["held"]["conversation"]["question"] == "what?"
    assert note["held"]["message"]["text"] == "secret-0"
    assert (note["held"]["verdict"]["accepted"], note["held"]["verdict"]["reason"]) == (False, "above_threshold")
    assert sorted(text for text, _ in note["held"]["verdict"]["alternatives"]) == SECRETS[1:]
    assert graph.invoke(APPROVE, CONFIG)["messages"][-1].text == "secret-0"
    assert "secret-1" not in json.dumps(stored(saver))


def test_tool_calls_lie_there_as_plain_json_and_so_do_the_orders() -> None:
    saver = InMemorySaver()
    agent = agent_on(saver, unsure())
    agent.invoke({"messages": "pay bob"}, CONFIG)
    (call,) = stored(saver)["held"]["message"]["tool_calls"]
    assert (call["name"], call["args"]) == ("transfer", {"to": "secret-0", "amount": 0})
    agent.update_state(CONFIG, {"guardrail": stored(saver)}, as_node="model")  # as JSON it can be written, too
    result = agent.invoke(APPROVE, CONFIG)
    assert result["messages"][-2].content == "sent 0 to secret-0"


def test_sqlite_gives_the_same_json_to_any_reader(tmp_path: Path) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="langgraph-checkpoint-sqlite is not installed")
    with sqlite.SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        agent_on(saver, unsure()).invoke({"messages": "what?"}, CONFIG)
        here = stored(saver)
    with sqlite.SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        nothing = GuardState(phase="done")
        assert stored(saver) == here == to_json(unpack(pack(from_json(here) or nothing)) or nothing)
        assert here["held"]["message"]["text"] == "secret-0"


@pytest.mark.parametrize("build", GRAPHS)
def test_a_checkpoint_with_a_packed_note_is_still_read(build: Callable[..., Any]) -> None:
    """Notes were stored packed before."""
    saver, model = InMemorySaver(), unsure()
    build(saver, model).invoke({"messages": "what?"}, CONFIG)
    rewrite(saver, lambda note: pack(from_json(note) or GuardState(phase="done")))
    assert isinstance(stored(saver), str)
    drawn_before = model.made
    assert build(saver, model).invoke(APPROVE, CONFIG)["messages"][-1].text == "secret-0"
    assert model.made == drawn_before


@pytest.mark.parametrize("broken", [{"layout": "acrc-guardrail/2"}, {"layout": "acrc-guardrail/1"}])
def test_a_note_that_cannot_be_read_is_refused(broken: Any) -> None:
    saver, model = InMemorySaver(), unsure()
    agent_on(saver, model).invoke({"messages": "pay bob"}, CONFIG)
    rewrite(saver, lambda _: broken)
    drawn_before = model.made
    with pytest.raises(UsageError, match="new thread"):
        agent_on(saver, model).invoke(APPROVE, CONFIG)
    assert (stored(saver), model.made) == (broken, drawn_before)


@pytest.mark.parametrize("broken", [{"a": 1}, "junk"])
def test_what_is_not_a_note_releases_nothing(broken: Any) -> None:
    saver, model = InMemorySaver(), unsure()
    agent_on(saver, model).invoke({"messages": "pay bob"}, CONFIG)
    rewrite(saver, lambda _: broken)
    shown = agent_on(saver, model).invoke(APPROVE, CONFIG)["messages"]
    assert not [message for message in shown if message.type == "tool" or getattr(message, "tool_calls", [])]
    assert "secret" not in str(shown)


@pytest.mark.parametrize("form", [pack, to_json])
def test_a_decision_cannot_be_given_from_outside_and_nothing_of_it_comes_out(form: Callable[[GuardState], Any]) -> None:
    forged = GuardState(phase="released", asked="h", message=FrozenMessage(text="forged"))
    request: Any = {"messages": [HumanMessage("what?", id="h")], "guardrail": form(forged)}
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
    graph = build(InMemorySaver(), unsure())
    chunks = [without_interrupts(chunk) for chunk in graph.stream({"messages": "what?"}, CONFIG, stream_mode=MODES)]
    assert {chunk[0] for chunk in chunks} >= {"values", "updates", "tasks", "debug", "checkpoints"}
    assert leaks(chunks) == []
    assert leaks(without_interrupts(graph.get_state(CONFIG).values)) == []
    after = [without_interrupts(chunk) for chunk in graph.stream(APPROVE, CONFIG, stream_mode=MODES)]
    assert leaks(after) == SECRETS[:1]  # the approved candidate


def test_no_stream_spells_out_other_calls_than_the_one_that_runs() -> None:
    agent = agent_on(InMemorySaver(), unsure())
    chunks = [without_interrupts(c) for c in agent.stream({"messages": "pay bob"}, CONFIG, stream_mode=MODES)]
    assert leaks(chunks) == []
    after = [without_interrupts(c) for c in agent.stream(APPROVE, CONFIG, stream_mode=MODES)]
    assert leaks(after) == SECRETS[:1]


def test_an_agent_inside_a_graph_spells_out_nothing_either() -> None:
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
    assert note.phase == "held"
    assert graph.invoke(APPROVE, CONFIG)["messages"][-1].text == "secret-0"


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol", "ignore:astream_events version='v1'")
@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
@pytest.mark.parametrize("build", GRAPHS)
async def test_no_event_spells_out_what_is_held_back(build: Callable[..., Any], version: Any) -> None:
    graph = build(InMemorySaver(), unsure())
    events = graph.astream_events({"messages": "what?"}, CONFIG, version=version)
    shown = [without_interrupts(event) async for event in (await events if version == "v3" else events)]
    assert len(shown) > 2
    assert leaks(shown) == []


# -- the channel ---------------------------------------------------------------------------------------------------

NOTE = GuardState(phase="done", orders={})


def channel_of(value: Any) -> NoteChannel:
    channel = NoteChannel(str, "guardrail")
    channel.update([value])
    return channel


def test_an_empty_channel_has_nothing_to_give_or_store() -> None:
    empty = NoteChannel(str, "guardrail")
    assert not empty.is_available()
    with pytest.raises(EmptyChannelError):
        empty.get()
    again = empty.from_checkpoint(empty.checkpoint())
    assert not again.is_available()
    assert not empty.copy().is_available()
    assert not empty.update([])


@pytest.mark.parametrize("value", [pack(NOTE), to_json(NOTE), None])
def test_what_it_takes_it_gives_packed_and_stores_plain(value: Any) -> None:
    for channel in (channel_of(value), channel_of(value).copy(), NoteChannel(str, "g").from_checkpoint(value)):
        assert channel.is_available()
        assert unpack(channel.get()) == (None if value is None else NOTE)
        assert channel.checkpoint() == (None if value is None else to_json(NOTE))


def test_a_copy_and_a_dealt_with_note_are_their_own() -> None:
    channel = channel_of(pack(NOTE))
    other = channel.copy()
    assert channel.update([None])
    assert (channel.get(), channel.checkpoint()) == (None, None)
    assert unpack(other.get()) == NOTE
    assert (other.key, other.typ) == (channel.key, channel.typ)


@pytest.mark.parametrize("value", ["junk", {"phase": "done"}, {**to_json(NOTE), "phase": "released?"}, 3])
def test_what_is_no_note_is_refused(value: Any) -> None:
    channel = channel_of(pack(NOTE))
    with pytest.raises(InvalidUpdateError, match=r"'guardrail'.*Give your own data another key"):
        channel.update([value])
    assert unpack(channel.get()) == NOTE


def test_two_notes_in_one_step_are_refused() -> None:
    with pytest.raises(InvalidUpdateError, match="2 nodes wrote the key 'guardrail'"):
        NoteChannel(str, "guardrail").update([None, pack(NOTE)])


def test_the_keys_of_a_graph_share_one_kind_of_channel() -> None:
    class Mine(GuardedState):
        more: NotRequired[Annotated[str, "mine"]]

    builder = StateGraph(Mine, input_schema=GuardedState, output_schema=GuardedState)
    assert isinstance(builder.channels["guardrail"], NoteChannel)
    builder.add_node("only", lambda state: {"messages": [AIMessage("hello")]}).add_edge(START, "only")
    graph: Any = builder.compile()
    assert graph.invoke({"messages": "hi"})["messages"][-1].text == "hello"
    assert "guardrail" in graph.get_output_jsonschema()["properties"]
    assert hash(NoteChannel(str)) == hash(NoteChannel(int))
