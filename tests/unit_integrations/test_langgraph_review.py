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
    assert seen.asked["frozen"]["held"]["message"]["tool_calls"][0]["args"] == {"to": "bob", "amount": 5}
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
    assert seen.asked["frozen"]["held"]["message"]["tool_calls"][0]["args"] == {"to": "bob", "amount": 5}
    assert seen.done["calls"] == [{"to": "bob", "amount": 5}]
    assert seen.done["texts"] == ["pay bob", "", "sent 5 to bob", "Done."]
    assert (seen.asked["made"], seen.done["made"]) == (5, 5)  # the second: of the last answer; no transfer drawn again


# -- the review queue ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    with review.ReviewStore(tmp_path / "reviews.db") as made:
        yield made


def decide(store: Any, which: Any = None, **decision: Any) -> None:
    from guardrail.review import Decision

    lease = store.claim("ann", item=None if which is None else which.id)
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


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def transferring(*amounts: int, text: str = "", more: Any = ()) -> Any:
    """An agent that is unsure about a transfer; with other steps, if wanted."""
    from .agent_fakes import calls
    from .test_langchain_agents import agent_of, gate

    def one(amount: int) -> Any:
        return calls(("balance", {"account": "x"}), ("transfer", {"to": "bob", "amount": amount}), text=text)

    make = one if text else sending
    steps = {("pay bob", 0): [make(k) for k in amounts], **dict(more)}
    for done in (1, 2):
        steps.setdefault(("pay bob", done), ["Done."])
    model = AgentChat(steps=steps)
    return agent_of(model, gate(model))


def queued(store: Any, agent: Any, config: Any = CONFIG, **more: Any) -> tuple[ReviewBridge, Any]:
    bridge = ReviewBridge(store, **more)
    agent.invoke({"messages": "pay bob"}, config)
    (item,) = bridge.enqueue(agent, config)
    return bridge, item


def said(result: Any) -> list[str]:
    return [str(message.text) for message in result["messages"]]


OTHER_CALLS = {
    "another tool": [ToolCall(name="close", arguments={"account": "a"})],
    "a call more": [ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})] * 2,
    "no call": [],
}


@pytest.mark.parametrize("made", list(OTHER_CALLS.values()), ids=list(OTHER_CALLS))
def test_an_edit_in_the_queue_changes_arguments_and_nothing_else(store: Any, made: list[ToolCall]) -> None:
    """Refused when the reviewer makes it, so the item stays open."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    with pytest.raises(UsageError, match="an edit changes arguments"):
        decide(store, action="edit", candidate={"text": "x", "tool_calls": made})
    assert store.item(item.id).state == "claimed"
    assert bridge.resume(agent, CONFIG) is None
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    decide(store, item, action="edit", candidate={"tool_calls": [mended]})
    assert said(bridge.resume(agent, CONFIG))[2].endswith("sent 7 to bob")


def test_an_answer_is_not_edited_into_a_call(store: Any) -> None:
    """It went out as an empty answer."""
    graph = graph_of(Counter())
    bridge = ReviewBridge(store)
    graph.invoke({"messages": ["anything"]}, CONFIG)
    bridge.enqueue(graph, CONFIG)
    call = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    with pytest.raises(UsageError, match="an edit gives another text"):
        decide(store, action="edit", candidate={"text": "x", "tool_calls": [call]})
    assert bridge.resume(graph, CONFIG) is None


def test_a_plain_graphs_message_with_calls_is_not_edited(store: Any) -> None:
    model = AgentChat(steps={("pay bob", 0): [sending(5), *(sending(k) for k in range(4))]})
    graph = graph_of(model)
    graph.invoke({"messages": ["pay bob"]}, CONFIG)
    (item,) = ReviewBridge(store).enqueue(graph, CONFIG)
    assert item.content.allowed == ("approve", "reject", "respond")


def test_an_edited_text_goes_out_and_a_call_that_is_not_decided_about_stays(store: Any) -> None:
    """The model's own text went out, whatever the reviewer had written."""
    agent = transferring(5, 0, 1, 2, 3, text="I will send 5.")
    bridge, item = queued(store, agent)
    assert item.content.fixed == (0,)
    read = ToolCall(name="balance", arguments={"account": "x"})
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    other = read.model_copy(update={"arguments": {"account": "y"}})
    with pytest.raises(UsageError, match="balance passes without a decision"):
        decide(store, action="edit", candidate={"text": "I will send 7.", "tool_calls": [other, mended]})
    decide(store, item, action="edit", candidate={"text": "I will send 7.", "tool_calls": [read, mended]})
    result = said(bridge.resume(agent, CONFIG))
    assert result[1:3] == ["I will send 7.", "x has 100"]
    assert result[3].endswith("sent 7 to bob")


@pytest.mark.parametrize("made", list(OTHER_CALLS.values()), ids=list(OTHER_CALLS))
def test_a_decision_that_cannot_be_carried_out_runs_nothing_and_ends(
    store: Any, made: list[ToolCall], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store of an older version may hold one. It raised at every resume, for ever."""
    from guardrail.review import Content

    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    with monkeypatch.context() as older:
        older.setattr(Content, "why_not", lambda *_: None)
        decide(store, action="edit", candidate={"text": "x", "tool_calls": made})
    result = bridge.resume(agent, CONFIG)
    assert result is not None
    answer = result["messages"][2]
    assert answer.status == "error"
    assert "The reviewer's edit could not be carried out: an edit changes arguments" in answer.text
    assert said(result)[-1] == "Done."
    assert [event.what for event in store.trail(item.id)][-1] == "not_carried_out"
    assert "cannot be carried out" in caplog.text
    assert bridge.resume(agent, CONFIG) is None


def test_what_expires_ends_even_where_the_person_may_not_reject(tmp_path: Path) -> None:
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    now = 1000.0
    with review.ReviewStore(tmp_path / "reviews.db", clock=lambda: now) as store:
        graph = graph_of(Counter(), allowed=["approve"])
        bridge = ReviewBridge(store, expires_in=60)
        graph.invoke({"messages": ["anything"]}, CONFIG)
        bridge.enqueue(graph, CONFIG)
        now = 1061.0
        store.expire()
        assert said(bridge.resume(graph, CONFIG))[-1] == "Nobody decided in time."


def test_labels_do_not_leak_between_candidates_or_conversations(store: Any) -> None:
    """The queue's verdicts had no candidate, so approving "transfer 5" marked "transfer 5000" right."""
    reviews = pytest.importorskip("calibrate.reviews")
    agents = [transferring(amount, 0, 1, 2, 3) for amount in (5, 5000, 5)]
    found = [queued(store, agent, thread(str(i)))[1] for i, agent in enumerate(agents)]
    made = artifact_of(AgentChat())
    decide(store, action="approve")

    def labels() -> list[tuple[bool | None, bool]]:
        return [(one.correct, one.open) for one in reviews.read_reviews(store, [made]).items]

    # The third is the same call for the same words, but in a conversation of its own.
    assert labels() == [(True, False), (None, True), (None, True)]
    decide(store, action="reject")
    assert labels() == [(True, False), (False, False), (None, True)]
    assert reviews.read_reviews(store, [made]).both_ways == 0
    pool = reviews.read_reviews(store, [made])
    judged = [one.verdict.candidate for one in pool.items]
    assert [one.tool_calls[0].arguments["amount"] for one in judged if one is not None] == [5, 5000, 5]
    assert len(found) == 3


def test_the_stored_verdict_says_what_was_judged(store: Any) -> None:
    _, item = queued(store, transferring(5, 0, 1, 2, 3))
    verdict = item.content.parsed_verdict()
    assert verdict is not None
    assert verdict.candidate is not None
    assert verdict.candidate.tool_calls == item.content.candidate.tool_calls
    assert verdict.alternatives == item.content.alternatives
    assert sum(meaning.size for meaning in verdict.meanings) == 4


# -- a new message while something waits ---------------------------------------------------------------------------

NEVER_MIND = {("never mind", 0): ["As you like."]}


@pytest.mark.parametrize("by", ["enqueue", "resume", "drop_stale"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_new_message_closes_the_item(store: Any, by: str, is_async: bool) -> None:
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    told: list[Any] = []
    bridge, item = queued(store, agent, on_stale=told.append)
    agent.invoke({"messages": "never mind"}, CONFIG)
    found = getattr(bridge, f"a{by}" if is_async else by)(agent, CONFIG)
    found = await found if is_async else found
    closed = store.item(item.id)
    assert found == {"enqueue": [], "resume": None, "drop_stale": [closed]}[by]
    assert told == [closed]
    assert closed.state == "expired"
    trail = store.trail(item.id)
    assert [event.what for event in trail] == ["enqueued", "cancelled", "expired"]
    assert "a new message came" in trail[1].detail["reason"]
    assert store.claim("ann") is None
    assert bridge.drop_stale(agent, CONFIG) == []


def test_a_decision_that_came_after_the_new_message_is_noted_and_told_once(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    told: list[Any] = []
    bridge, item = queued(store, agent, on_stale=told.append)
    agent.invoke({"messages": "never mind"}, CONFIG)
    decide(store, action="approve")
    assert bridge.resume(agent, CONFIG) is None
    assert [one.id for one in told] == [item.id]
    assert store.trail(item.id)[-1].what == "not_carried_out"
    assert item.id in caplog.text
    assert bridge.resume(agent, CONFIG) is None
    assert len(told) == 1


def test_what_was_carried_out_is_not_called_stale(store: Any) -> None:
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    bridge, item = queued(store, agent)
    decide(store, action="approve")
    bridge.resume(agent, CONFIG)
    agent.invoke({"messages": "never mind"}, CONFIG)
    assert bridge.drop_stale(agent, CONFIG) == []
    assert [event.what for event in store.trail(item.id)][-2:] == ["decided", "handed_over"]


def test_only_the_threads_own_items_are_closed(store: Any) -> None:
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    other = transferring(5, 0, 1, 2, 3)  # another graph with the same thread's name
    bridge, first = queued(store, agent)
    _, elsewhere = queued(store, agent, thread("2"))
    _, others = queued(store, other)
    agent.invoke({"messages": "never mind"}, CONFIG)
    agent.invoke({"messages": "pay bob"}, CONFIG)
    (again,) = bridge.enqueue(agent, CONFIG)
    states = {name: store.item(one.id).state for name, one in
              {"first": first, "elsewhere": elsewhere, "others": others, "again": again}.items()}  # fmt: skip
    assert states == {"first": "expired", "elsewhere": "pending", "others": "pending", "again": "pending"}


# -- calibrated lists ----------------------------------------------------------------------------------------------


def test_the_queue_shows_the_calibrated_list(store: Any) -> None:
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    made = artifact_of(AgentChat())
    fields: Any = {"epsilon": 0.3, "n": 50, "n_without": 5, "attainable": 0.12, "population": "held_back"}
    other = review.CandidateRule(artifact="sha256:other", quantile=0.0, **fields)
    rule = review.CandidateRule(artifact=made.digest, quantile=0.5, **fields)
    agent = transferring(5, 5, 5, 7, 9)  # samples 5, 5, 7, 9: shares .5, .25, .25; scores 0, .5, .5
    _, item = queued(store, agent, candidates=[other, rule])
    assert [share for _, share in item.content.candidate_set.answers] == [0.5, 0.25, 0.25]
    short = rule.model_copy(update={"quantile": 0.4})
    _, item = queued(store, transferring(5, 5, 5, 7, 9), candidates=short)
    (only,) = item.content.candidate_set.answers
    assert (json.loads(only[0])[0]["arguments"]["amount"], only[1]) == (5, 0.5)
    _, item = queued(store, transferring(5, 5, 5, 7, 9), candidates=other)
    assert item.content.candidate_set is None


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
