"""Interrupts that outlive the process: plain graphs, killed processes, other checkpointers, and the review queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="the `agents` extra is not installed")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from guardrail import Guardrail
from guardrail.errors import UsageError
from guardrail.types import ToolCall
from integrations._held import unpack
from integrations.langgraph_review import GuardedState, ReviewBridge, guarded_nodes
from tests import postgres

from .agent_fakes import AgentChat, Counter, artifact_of, sending

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG: Any = {"configurable": {"thread_id": "1"}}
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


def graph_of(model: AgentChat, **more: Any) -> Any:
    made = artifact_of(model, tools=[])
    made = made.model_copy(update={"prompt": made.prompt.model_copy(update={"system": None})})
    nodes = guarded_nodes(Guardrail(model=model, artifact=made), **more)
    builder = StateGraph(GuardedState)
    entry, leave = nodes.add_to(builder)
    builder.add_edge(START, entry)
    builder.add_edge(leave, END)
    return builder.compile(checkpointer=InMemorySaver())


def shown(result: dict[str, Any]) -> dict[str, Any]:
    (found,) = result["__interrupt__"]
    value: dict[str, Any] = found.value
    return value


# -- plain graphs --------------------------------------------------------------------------------------------------


def test_a_plain_graph_releases_the_candidate_that_was_shown() -> None:
    model = Counter()
    graph = graph_of(model)
    candidate = shown(graph.invoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    result = graph.invoke(APPROVE, CONFIG)
    assert result["messages"][-1].text == candidate
    assert result["messages"][-1].response_metadata["guardrail"]["review"] == [
        {"name": "answer", "decision": "approve"}
    ]
    assert model.made == 5
    assert result["guardrail"] is None


async def test_a_plain_graph_works_async() -> None:
    model = Counter()
    graph = graph_of(model)
    candidate = shown(await graph.ainvoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    assert (await graph.ainvoke(APPROVE, CONFIG))["messages"][-1].text == candidate
    assert model.made == 5


def test_an_accepted_answer_passes_a_plain_graph() -> None:
    model = AgentChat(steps={("q", 0): ["Paris"]})
    result = graph_of(model).invoke({"messages": ["q"]}, CONFIG)
    assert "__interrupt__" not in result
    assert result["messages"][-1].text == "Paris"


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ({"type": "respond", "message": "mine"}, "mine"),
        ({"type": "edit", "edited_action": {"name": "answer", "args": {"text": "mended"}}}, "mended"),
        ({"type": "reject"}, "I am not sure enough to answer this, so I would rather not guess."),
    ],
)
def test_a_rejected_or_changed_message_keeps_no_tool_call(decision: dict[str, Any], text: str) -> None:
    """A plain graph's own nodes run calls: only an approval may let them out."""
    model = AgentChat(steps={("pay bob", 0): [sending(5), *(sending(k) for k in range(4))]})
    graph = graph_of(model)
    assert shown(graph.invoke({"messages": ["pay bob"]}, CONFIG))["candidate"]["tool_calls"]
    last = graph.invoke(Command(resume={"decisions": [decision]}), CONFIG)["messages"][-1]
    assert (last.text, last.tool_calls) == (text, [])


def test_a_failed_model_has_nothing_to_approve_but_a_person_may_answer() -> None:
    model = AgentChat(steps={("q", 0): [RuntimeError("down")]})
    graph = graph_of(model)
    value = shown(graph.invoke({"messages": ["q"]}, CONFIG))
    assert (value["verdict"]["reason"], value["candidate"]["text"]) == ("unmeasured", "")
    assert value["review_configs"][0]["allowed_decisions"] == ["reject", "respond"]
    answer: Any = Command(resume={"decisions": [{"type": "respond", "message": "mine"}]})
    assert graph.invoke(answer, CONFIG)["messages"][-1].text == "mine"


# -- across processes ----------------------------------------------------------------------------------------------


def run_process(what: str, url: str, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-m", "tests.unit_integrations.review_process", what, url, str(out)]
    # Strict: a checkpoint with anything but plain types would not load.
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    for _ in range(1200):
        if path.exists() and path.read_text(encoding="utf-8").endswith("}"):
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        if process.poll() not in (None, 0):
            break
        time.sleep(0.05)
    raise AssertionError(f"no result; exit status {process.poll()}")


@dataclass(frozen=True)
class Seen:
    """What the two processes of `kill_and_resume` left behind.

    Attributes:
        killed: Exit status of the first, which waited for a person.
        asked: What it had shown and how many answers it had drawn.
        resumed: Exit status of the second, in which the person approved.
        done: The conversation it ended with and how many answers it drew.
    """

    killed: int
    asked: dict[str, Any]
    resumed: int
    done: dict[str, Any]


def kill_and_resume(url: str, folder: Path) -> Seen:
    """Kill a process whose graph waits for a person, and let another one go on from the same checkpointer."""
    asking = run_process("ask", url, folder / "asked.json")
    try:
        asked = wait_for(folder / "asked.json", asking)
    finally:
        asking.send_signal(signal.SIGKILL)
        killed = asking.wait()
    resuming = run_process("resume", url, folder / "done.json")
    resumed = resuming.wait(timeout=60)
    done = json.loads((folder / "done.json").read_text(encoding="utf-8")) if resumed == 0 else {}
    return Seen(killed, asked, resumed, done)


def test_a_killed_process_resumes_on_sqlite(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.sqlite", reason="langgraph-checkpoint-sqlite is not installed")
    seen = kill_and_resume(str(tmp_path / "checkpoints.db"), tmp_path)
    assert (seen.killed, seen.resumed) == (-signal.SIGKILL, 0)
    assert seen.asked["value"]["candidate"]["tool_calls"] == [{"name": "transfer", "args": {"to": "bob", "amount": 5}}]
    assert seen.done["calls"] == [{"to": "bob", "amount": 5}]
    assert seen.done["texts"] == ["pay bob", "", "sent 5 to bob", "Done."]
    assert (seen.asked["made"], seen.done["made"]) == (5, 5)  # the second: of the last answer; no transfer drawn again


def test_a_killed_process_resumes_on_postgresql(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.postgres", reason="langgraph-checkpoint-postgres is not installed")
    reason = postgres.missing()
    if reason:
        pytest.skip(reason)
    with postgres.server() as url:
        seen = kill_and_resume(url.replace("postgresql+psycopg://", "postgresql://"), tmp_path)
    assert (seen.killed, seen.resumed) == (-signal.SIGKILL, 0)
    assert seen.asked["value"]["candidate"]["tool_calls"] == [{"name": "transfer", "args": {"to": "bob", "amount": 5}}]
    assert seen.done["calls"] == [{"to": "bob", "amount": 5}]
    assert seen.done["texts"] == ["pay bob", "", "sent 5 to bob", "Done."]
    assert (seen.asked["made"], seen.done["made"]) == (5, 5)  # the second: of the last answer; no transfer drawn again


# -- the review queue ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    with review.ReviewStore(tmp_path / "reviews.db") as made:
        yield made


def decide(store: Any, **decision: Any) -> None:
    from guardrail.review import Decision

    lease = store.claim("ann")
    store.decide(lease, Decision(**decision))


def test_the_queue_is_where_the_person_answers(store: Any) -> None:
    model = Counter()
    graph = graph_of(model)
    bridge = ReviewBridge(store, metadata={"tenant": "t"})
    candidate = shown(graph.invoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    (item,) = bridge.enqueue(graph, CONFIG)
    assert item.content.candidate is not None
    assert item.content.candidate.text == candidate
    assert item.content.question == "anything"
    assert item.content.metadata["tenant"] == "t"
    assert item.content.metadata["thread_id"] == "1"
    assert len(item.content.alternatives) == 4
    verdict = item.content.parsed_verdict()
    assert verdict is not None
    assert verdict.accepted is False
    assert [one.id for one in bridge.enqueue(graph, CONFIG)] == [item.id]  # again: nothing new
    assert bridge.resume(graph, CONFIG) is None
    decide(store, action="approve")
    result = bridge.resume(graph, CONFIG)
    assert result is not None
    assert result["messages"][-1].text == candidate
    assert model.made == 5
    assert bridge.resume(graph, CONFIG) is None  # nothing is open any more
    assert bridge.enqueue(graph, CONFIG) == []


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ({"action": "respond", "text": "mine"}, "mine"),
        ({"action": "edit", "candidate": {"text": "mended"}}, "mended"),
        ({"action": "reject", "note": "no"}, "no"),
    ],
)
async def test_every_decision_of_the_queue_comes_back(store: Any, decision: dict[str, Any], text: str) -> None:
    graph = graph_of(Counter())
    bridge = ReviewBridge(store)
    await graph.ainvoke({"messages": ["anything"]}, CONFIG)
    await bridge.aenqueue(graph, CONFIG)
    assert await bridge.aresume(graph, CONFIG) is None
    decide(store, **decision)
    result = await bridge.aresume(graph, CONFIG)
    assert result is not None
    assert result["messages"][-1].text == text


def test_an_edit_in_the_queue_changes_arguments_and_nothing_else(store: Any) -> None:
    from .agent_fakes import TOOLS
    from .test_langchain_agents import UNSURE, agent_of, fresh, gate

    model = fresh(UNSURE)
    agent = agent_of(model, gate(model), tools=TOOLS)
    bridge = ReviewBridge(store)
    agent.invoke({"messages": "pay bob"}, CONFIG)
    bridge.enqueue(agent, CONFIG)
    decide(store, action="edit", candidate={"tool_calls": [ToolCall(name="close", arguments={})]})
    with pytest.raises(UsageError, match="an edit changes arguments"):
        bridge.resume(agent, CONFIG)
    other: Any = {"configurable": {"thread_id": "2"}}
    agent.invoke({"messages": "pay bob"}, other)
    bridge.enqueue(agent, other)
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    decide(store, action="edit", candidate={"tool_calls": [mended]})
    result = bridge.resume(agent, other)
    assert result is not None
    assert result["messages"][2].text.endswith("sent 7 to bob")


def test_what_nobody_decides_in_time_is_rejected(tmp_path: Path) -> None:
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    now = 1000.0
    with review.ReviewStore(tmp_path / "reviews.db", clock=lambda: now) as store:
        graph = graph_of(Counter())
        bridge = ReviewBridge(store, expires_in=60)
        graph.invoke({"messages": ["anything"]}, CONFIG)
        bridge.enqueue(graph, CONFIG)
        now = 1061.0
        store.expire()
        result = bridge.resume(graph, CONFIG)
        assert result is not None
        assert result["messages"][-1].text == "Nobody decided in time."


def test_the_state_of_a_plain_graph_is_one_plain_string() -> None:
    graph = graph_of(Counter())
    graph.invoke({"messages": ["anything"]}, CONFIG)
    packed = graph.get_state(CONFIG).values["guardrail"]
    assert isinstance(packed, str)
    assert "ans" not in packed
    note = unpack(packed)
    assert note is not None
    assert note.held is not None
