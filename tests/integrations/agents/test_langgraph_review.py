"""Interrupts that outlive the process: plain graphs, killed processes, other checkpointers, and the review queue."""

from __future__ import annotations

import json
import math
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from pydantic import ValidationError
from typing_extensions import TypedDict

from calibrate.reviews import read_reviews
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.plain_json import json_fault
from guardrail.review import Candidate, Content, Decision, ReviewStore
from guardrail.types import ToolCall
from integrations._agents.held import Conversation, MessageNote, pack, unpack
from integrations._agents.review_bridge import content_digest
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import (
    SYSTEM,
    TOOLS,
    UNSURE,
    AgentChat,
    Counter,
    artifact_of,
    balance,
    calls,
    close,
    sending,
)
from tests.integrations.agents.guarded_agents import (
    APPROVE,
    CONFIG,
    agent_of,
    gate,
    graph_of,
    interrupt_of,
    texts,
    thread,
)

ROOT = Path(__file__).resolve().parent.parent.parent.parent
APPROVAL = {"action": "approve"}


# -- plain graphs --------------------------------------------------------------------------------------------------


def test_a_plain_graph_releases_the_candidate_that_was_shown() -> None:
    """The person approved that answer, and no other."""
    model = Counter()
    graph = graph_of(model)
    candidate = interrupt_of(graph.invoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    result = graph.invoke(APPROVE, CONFIG)
    assert result["messages"][-1].text == candidate
    assert result["messages"][-1].response_metadata["guardrail"]["review"] == [
        {"name": "answer", "decision": "approve"}
    ]
    assert model.made == 5
    assert result["guardrail"] is None


async def test_a_plain_graph_works_async() -> None:
    """An async graph would block or fail."""
    model = Counter()
    graph = graph_of(model)
    candidate = interrupt_of(await graph.ainvoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    assert (await graph.ainvoke(APPROVE, CONFIG))["messages"][-1].text == candidate
    assert model.made == 5


def test_an_accepted_answer_passes_a_plain_graph() -> None:
    """A person who is asked about everything stops reading."""
    model = AgentChat(steps={("q", 0): ["Paris"]})
    result = graph_of(model).invoke({"messages": ["q"]}, CONFIG)
    assert "__interrupt__" not in result
    assert result["messages"][-1].text == "Paris"


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ({"type": "respond", "message": "mine"}, "mine"),
        ({"type": "edit", "edited_action": {"name": "answer", "args": {"text": "mended"}}}, "mended"),
        ({"type": "reject"}, ABSTENTION),
    ],
)
def test_a_rejected_or_changed_message_keeps_no_tool_call(decision: dict[str, Any], text: str) -> None:
    """A plain graph's own nodes run calls: only an approval may let them out."""
    model = AgentChat(steps=UNSURE.steps)
    graph = graph_of(model)
    assert interrupt_of(graph.invoke({"messages": ["pay bob"]}, CONFIG))["candidate"]["tool_calls"]
    last = graph.invoke(Command(resume={"decisions": [decision]}), CONFIG)["messages"][-1]
    assert (last.text, last.tool_calls) == (text, [])


def test_a_failed_model_has_nothing_to_approve_but_a_person_may_answer() -> None:
    """An approval would give out an empty answer."""
    model = AgentChat(steps={("q", 0): [RuntimeError("down")]})
    graph = graph_of(model)
    value = interrupt_of(graph.invoke({"messages": ["q"]}, CONFIG))
    assert (value["verdict"]["reason"], value["candidate"]["text"]) == ("unmeasured", "")
    assert value["review_configs"][0]["allowed_decisions"] == ["reject", "respond"]
    answer: Any = Command(resume={"decisions": [{"type": "respond", "message": "mine"}]})
    assert graph.invoke(answer, CONFIG)["messages"][-1].text == "mine"


# -- across processes ----------------------------------------------------------------------------------------------


def run_process(step: str, url: str, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-m", "tests.integrations.agents.review_process", step, url, str(out)]
    # Strict: a checkpoint with anything but plain types would not load.
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


# -- the review queue ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with ReviewStore(tmp_path / "reviews.db") as opened:
        yield opened


def decide(store: Any, which: Any = None, **decision: Any) -> None:
    lease = store.claim("ann", item=None if which is None else which.id)
    store.decide(lease, Decision(**decision))


def test_the_queue_is_where_the_person_answers(store: Any) -> None:
    """From the pause to the answer, without the application's own code."""
    model = Counter()
    graph = graph_of(model)
    bridge = ReviewBridge(store)
    candidate = interrupt_of(graph.invoke({"messages": ["anything"]}, CONFIG))["candidate"]["text"]
    (item,) = bridge.enqueue(graph, CONFIG)
    assert item.content.candidate is not None
    assert item.content.candidate.text == candidate
    assert item.content.question == "anything"
    assert item.content.metadata["thread_id"] == "1"
    assert len(item.content.alternatives) == 4
    verdict = item.content.verdict
    assert verdict is not None
    assert verdict.accepted is False
    assert [queued_item.id for queued_item in bridge.enqueue(graph, CONFIG)] == [item.id]  # again: nothing new
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
        ({"action": "reject", "note": "Bob lies."}, ABSTENTION),  # the note is for reviewers alone
    ],
)
async def test_every_decision_of_the_queue_comes_back(store: Any, decision: dict[str, Any], text: str) -> None:
    """What the reviewer says must happen to the call."""
    graph = graph_of(Counter())
    bridge = ReviewBridge(store)
    await graph.ainvoke({"messages": ["anything"]}, CONFIG)
    await bridge.aenqueue(graph, CONFIG)
    assert await bridge.aresume(graph, CONFIG) is None
    decide(store, **decision)
    result = await bridge.aresume(graph, CONFIG)
    assert result is not None
    assert result["messages"][-1].text == text


def transferring(*amounts: int, text: str = "", more: Any = ()) -> Any:
    """An agent that is unsure about a transfer; with other steps, if wanted."""

    def two_calls(amount: int) -> Any:
        return calls(("balance", {"account": "x"}), ("transfer", {"to": "bob", "amount": amount}), text=text)

    make = two_calls if text else sending
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


OTHER_CALLS = {
    "another tool": [ToolCall(name="close", arguments={"account": "a"})],
    "a call more": [ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})] * 2,
    "no call": [],
}


@pytest.mark.parametrize("other_calls", list(OTHER_CALLS.values()), ids=list(OTHER_CALLS))
def test_an_edit_in_the_queue_changes_arguments_and_nothing_else(store: Any, other_calls: list[ToolCall]) -> None:
    """Refused when the reviewer makes it, so the item stays open."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    with pytest.raises(UsageError, match="an edit keeps the tools that are called"):
        decide(store, action="edit", candidate={"text": "x", "tool_calls": other_calls})
    assert store.item(item.id).state == "claimed"
    assert bridge.resume(agent, CONFIG) is None
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    decide(store, item, action="edit", candidate={"tool_calls": [mended]})
    assert texts(bridge.resume(agent, CONFIG))[2].endswith("sent 7 to bob")


def test_an_answer_to_the_user_in_the_queue_ends_the_turn(store: Any) -> None:
    """The model would rephrase the text, and could propose the call again."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    assert "answer" in item.content.allowed
    decide(store, action="answer", text="Bob's account is closed.")
    assert texts(bridge.resume(agent, CONFIG)) == ["pay bob", "Bob's account is closed."]
    assert "answer" not in queued(store, graph_of(Counter()), thread("plain"))[1].content.allowed


def test_an_answer_is_not_edited_into_a_call(store: Any) -> None:
    """It went out as an empty answer."""
    graph = graph_of(Counter())
    bridge = ReviewBridge(store)
    graph.invoke({"messages": ["anything"]}, CONFIG)
    bridge.enqueue(graph, CONFIG)
    call = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    with pytest.raises(UsageError, match="an edit keeps the tools that are called"):
        decide(store, action="edit", candidate={"text": "x", "tool_calls": [call]})
    assert bridge.resume(graph, CONFIG) is None


def test_a_plain_graphs_message_with_calls_is_not_edited(store: Any) -> None:
    """The graph runs the calls as they were held, so an edit would be lost."""
    model = AgentChat(steps=UNSURE.steps)
    graph = graph_of(model)
    graph.invoke({"messages": ["pay bob"]}, CONFIG)
    (item,) = ReviewBridge(store).enqueue(graph, CONFIG)
    assert item.content.allowed == ("approve", "reject", "respond")


def test_an_edited_text_goes_out_and_a_call_that_is_not_decided_about_stays(store: Any) -> None:
    """The model's own text went out, and the text that the reviewer had written was lost."""
    agent = transferring(5, 0, 1, 2, 3, text="I will send 5.")
    bridge, item = queued(store, agent)
    assert item.content.fixed == (0,)
    read = ToolCall(name="balance", arguments={"account": "x"})
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    other = read.model_copy(update={"arguments": {"account": "y"}})
    with pytest.raises(UsageError, match="the call of balance needs no decision"):
        decide(store, action="edit", candidate={"text": "I will send 7.", "tool_calls": [other, mended]})
    decide(store, item, action="edit", candidate={"text": "I will send 7.", "tool_calls": [read, mended]})
    result = texts(bridge.resume(agent, CONFIG))
    assert result[1:3] == ["I will send 7.", "x has 100"]
    assert result[3].endswith("sent 7 to bob")


def test_a_decision_that_cannot_be_carried_out_runs_nothing_and_ends(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It raised at every resume, for ever."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    monkeypatch.setattr(Content, "why_not", lambda *_: None)
    decide(store, action="edit", candidate={"text": "x", "tool_calls": OTHER_CALLS["another tool"]})
    result = bridge.resume(agent, CONFIG)
    assert result is not None
    answer = result["messages"][2]
    assert answer.status == "error"
    assert "could not be carried out: the edit of 'transfer' calls 'close'" in answer.text
    assert texts(result)[-1] == "Done."
    assert [event.what for event in store.trail(item.id)][-2:] == ["not_carried_out", "lapsed"]
    assert "cannot be carried out" in caplog.text
    assert bridge.resume(agent, CONFIG) is None


def tamper_note(saver: Any) -> None:
    """Somebody who can write to the checkpoints sends the money to eve, in the message that waits."""
    (key,) = [key for key in saver.blobs if key[2] == "guardrail" and unpack(saver.serde.loads_typed(saver.blobs[key]))]
    note = unpack(saver.serde.loads_typed(saver.blobs[key]))
    assert note is not None
    other = MessageNote.from_stored(json.loads(note.model_dump_json().replace("bob", "eve")))
    assert other != note
    saver.blobs[key] = saver.serde.dumps_typed(pack(other))


def tamper_interrupt(saver: Any) -> None:
    """Somebody who can write to the checkpoints sends the money to eve, in what the person is asked."""
    asking = [(writes, key) for writes in saver.writes.values() for key in writes if writes[key][1] == "__interrupt__"]
    ((writes, key),) = asking
    task, channel, (kind, data), path = writes[key]
    assert b"bob" in data
    writes[key] = (task, channel, (kind, data.replace(b"bob", b"eve")), path)


def tamper_both(saver: Any) -> None:
    tamper_note(saver)
    tamper_interrupt(saver)


@pytest.mark.parametrize("tamper", [tamper_note, tamper_interrupt, tamper_both])
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_approval_of_something_else_than_what_waits_lapses(
    store: Any, tamper: Callable[[Any], None], edited: bool, is_async: bool
) -> None:
    """It sent the money to somebody else under the approval."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    mended = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    decide(store, item, **({"action": "edit", "candidate": {"tool_calls": [mended]}} if edited else APPROVAL))
    tamper(agent.checkpointer)
    result = await bridge.aresume(agent, CONFIG) if is_async else bridge.resume(agent, CONFIG)
    shown = texts(result)
    assert not any("sent" in text for text in shown)
    assert "What waits is not what was decided about" in shown[2]
    trail = store.trail(item.id)
    assert [event.what for event in trail][-2:] == ["not_carried_out", "lapsed"]
    assert "changed after the reviewer saw it" in trail[-2].detail["reason"]
    assert bridge.resume(agent, CONFIG) is None


def test_every_part_of_what_an_approval_gives_out_is_compared() -> None:
    """The reviewer approved another message than the one that waits."""
    transfer, read = (ToolCall(name=name, arguments={"to": "bob"}) for name in ("transfer", "read"))
    to_eve = transfer.model_copy(update={"arguments": {"to": "eve"}})
    contents = [
        Content(question="", kind=kind, candidate=Candidate(text=text, tool_calls=tuple(calls)), fixed=fixed)
        for kind, text, calls, fixed in (
            ("tool_call", "Now.", (transfer, read), ()),
            ("answer", "Now.", (transfer, read), ()),
            ("tool_call", "Later.", (transfer, read), ()),
            ("tool_call", "Now.", (transfer,), ()),
            ("tool_call", "Now.", (to_eve, read), ()),
            ("tool_call", "Now.", (transfer, read), (1,)),  # the other would run without a decision
        )
    ]
    assert len({content_digest(content) for content in contents}) == len(contents)


def test_a_rejection_of_what_was_changed_stands(store: Any) -> None:
    """A call that nobody wants would wait for ever."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    decide(store, item, action="reject", note="not to him")
    tamper_both(agent.checkpointer)
    assert "A person rejected this call" in texts(bridge.resume(agent, CONFIG))[2]
    assert happened(store, item)[-2:] == ["handed_over", "carried_out"]


def test_the_model_reads_the_reason_for_it_and_not_the_reviewers_note(store: Any) -> None:
    """The page says that only reviewers see it, and what a model reads it may tell the user."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    decide(store, item, action="reject", text="Bob has moved.", note="Bob lies.")
    result = bridge.resume(agent, CONFIG)
    assert texts(result)[2].startswith("A person rejected this call of transfer; it was not run.")
    assert texts(result)[2].endswith("The reason: Bob has moved.")
    assert "Bob lies." not in repr(result)


def test_labels_do_not_leak_between_candidates_or_conversations(store: Any) -> None:
    """The queue's verdicts had no candidate, so approving "transfer 5" marked "transfer 5000" right."""
    agents = [transferring(amount, 0, 1, 2, 3) for amount in (5, 5000, 5)]
    items = [queued(store, agent, thread(str(i)))[1] for i, agent in enumerate(agents)]
    artifact = artifact_of(AgentChat())
    decide(store, action="approve")

    def labels() -> list[tuple[bool | None, bool]]:
        return [(step.correct, step.open) for step in read_reviews(store, [artifact]).items]

    # The third is the same call for the same words, but in another conversation.
    assert labels() == [(True, False), (None, True), (None, True)]
    decide(store, action="reject")
    assert labels() == [(True, False), (False, False), (None, True)]
    assert read_reviews(store, [artifact]).both_ways == 0
    pool = read_reviews(store, [artifact])
    judged = [step.verdict.candidate for step in pool.items]
    assert [answer.tool_calls[0].arguments["amount"] for answer in judged if answer is not None] == [5, 5000, 5]
    assert len(items) == 3


def test_the_reviewer_sees_what_came_before(store: Any) -> None:
    """ "The second one" was decided blind, and the decision became a label."""
    asks = [calls(("transfer", {"to": name, "amount": 5})) for name in ("bob", "eve", "bob", "ann", "kim")]
    read = calls(("balance", {"account": "Bob and Eve"}))
    model = AgentChat(steps={("who?", 0): [read], ("who?", 1): ["Bob or Eve?"], ("the second one", 0): asks})
    agent = agent_of(model, gate(model))
    agent.invoke({"messages": "who?"}, CONFIG)
    value = interrupt_of(agent.invoke({"messages": "the second one"}, CONFIG))
    (item,) = ReviewBridge(store).enqueue(agent, CONFIG)
    assert (
        value["messages"]
        == list(item.content.messages)
        == [
            {"role": "human", "content": "who?"},
            {
                "role": "ai",
                "content": "",
                "tool_calls": [{"name": "balance", "arguments": {"account": "Bob and Eve"}}],
            },
            {"role": "tool", "content": balance.invoke({"account": "Bob and Eve"})},
            {"role": "ai", "content": "Bob or Eve?"},
            {"role": "human", "content": "the second one"},
        ]
    )


def test_of_a_long_conversation_the_newest_is_shown_and_the_rest_named() -> None:
    """A checkpoint would hold megabytes for each decision; the label is still of this conversation and no other."""
    page = [HumanMessage("Read."), AIMessage("x" * 19_000), ToolMessage("y" * 30_000, tool_call_id="1")]
    talk = [SystemMessage("S"), *page * 8, HumanMessage("the \ud83d one"), calls(("balance", {"account": math.nan}))]
    shown = Conversation.of(talk)
    assert (shown.question, shown.messages[-2]) == ("the \\ud83d one", {"role": "human", "content": "the \\ud83d one"})
    assert shown.messages[-1]["tool_calls"][0]["arguments"] == {"not plain JSON": "{'account': nan}"}
    assert shown.messages[-3]["content"] == "y" * 20_000 + "\n[10000 more characters are left out]"
    # 5 times 19,000 and 20,000 characters fit into 200,000; the two short questions of the sixth do not count.
    assert shown.messages[0] == {
        "role": "",
        "content": f"[{8 * 3 + 2 - len(shown.messages) + 1} earlier messages are left out]",
    }
    assert 180_000 < len(shown.model_dump_json()) < 205_000
    talk[2] = AIMessage("z" * 19_000)
    assert Conversation.of(talk).messages == shown.messages
    assert Conversation.of(talk).digest != shown.digest


def test_the_stored_verdict_says_what_was_judged(store: Any) -> None:
    """A label without its verdict teaches nothing."""
    _, item = queued(store, transferring(5, 0, 1, 2, 3))
    verdict = item.content.verdict
    assert verdict is not None
    assert verdict.candidate is not None
    assert verdict.candidate.tool_calls == item.content.candidate.tool_calls
    assert verdict.alternatives == item.content.alternatives
    assert sum(meaning.size for meaning in verdict.meanings) == 4


# -- a new message while something waits ---------------------------------------------------------------------------

NEVER_MIND = {("never mind", 0): ["As you like."]}


@pytest.mark.parametrize("by", ["enqueue", "resume"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_new_message_closes_the_item(store: Any, by: str, is_async: bool) -> None:
    """A reviewer would decide about what nobody waits for."""
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    bridge, item = queued(store, agent)
    agent.invoke({"messages": "never mind"}, CONFIG)
    outcome = getattr(bridge, f"a{by}" if is_async else by)(agent, CONFIG)
    outcome = await outcome if is_async else outcome
    closed = store.item(item.id)
    assert outcome == {"enqueue": [], "resume": None}[by]
    assert closed.state == "expired"
    trail = store.trail(item.id)
    assert [event.what for event in trail] == ["enqueued", "cancelled", "expired"]
    assert "a new message came" in trail[1].detail["reason"]
    assert store.claim("ann") is None


def test_a_decision_that_came_after_the_new_message_is_noted_and_told_once(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The reviewer would believe that the call has run."""
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    bridge, item = queued(store, agent)
    agent.invoke({"messages": "never mind"}, CONFIG)
    decide(store, action="approve")
    assert bridge.resume(agent, CONFIG) is None
    assert store.trail(item.id)[-1].what == "not_carried_out"
    assert item.id in caplog.text
    lines = len(store.trail(item.id))
    assert bridge.resume(agent, CONFIG) is None
    assert len(store.trail(item.id)) == lines


def test_a_decision_that_was_left_behind_is_noted_though_the_next_call_waits_already(store: Any) -> None:
    """Nobody learned that the approved transfer was not made, as long as another one waited."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    agent.invoke({"messages": "pay bob"}, CONFIG)
    decide(store, item, action="approve")
    assert bridge.resume(agent, CONFIG) is None, "a worker that polls does not call enqueue"
    assert "a new message came" in store.left_undone([item.id])[item.id]


def test_a_run_that_went_on_without_the_queue_is_noted(store: Any) -> None:
    """The program approved by itself what a person rejected: History must not say that the rejection was followed."""
    agent = transferring(5, 0, 1, 2, 3)
    bridge, item = queued(store, agent)
    decide(store, item, action="reject")
    assert "sent 5 to bob" in texts(agent.invoke(APPROVE, CONFIG))
    assert bridge.resume(agent, CONFIG) is None
    assert "its run was resumed elsewhere" in store.left_undone([item.id])[item.id]


def test_what_was_carried_out_is_not_called_stale(store: Any) -> None:
    """The trail would say that an executed call did not run."""
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    bridge, item = queued(store, agent)
    decide(store, action="approve")
    bridge.resume(agent, CONFIG)
    agent.invoke({"messages": "never mind"}, CONFIG)
    assert bridge.enqueue(agent, CONFIG) == []
    assert [event.what for event in store.trail(item.id)][-2:] == ["handed_over", "carried_out"]


@pytest.mark.parametrize("first", [0, 1])
def test_one_of_two_that_wait_side_by_side_is_closed_when_it_is_left_behind(store: Any, first: int) -> None:
    """The other one must stay open."""

    class Parallel(TypedDict):
        who: list[int]
        said: Annotated[list[str], operator.add]

    model = AgentChat(steps=UNSURE.steps)
    artifact = artifact_of(model)
    middleware = [GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])]
    inner: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=middleware)

    def pay(state: Any) -> dict[str, Any]:
        return {"said": [inner.invoke({"messages": "pay bob"})["messages"][-1].text]}

    builder = StateGraph(Parallel)
    builder.add_node("pay", pay)
    builder.add_conditional_edges(START, lambda state: [Send("pay", {"who": [k]}) for k in state["who"]], ["pay"])
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    bridge = ReviewBridge(store)
    graph.invoke({"who": [1, 2], "said": []}, CONFIG)
    items = bridge.enqueue(graph, CONFIG)
    decide(store, items[first], action="approve")
    bridge.resume(graph, CONFIG)
    graph.invoke({"who": [], "said": []}, CONFIG)
    bridge.enqueue(graph, CONFIG)
    left, done = items[1 - first], items[first]
    assert [event.what for event in store.trail(left.id)] == ["enqueued", "cancelled", "expired"]
    assert [event.what for event in store.trail(done.id)][-1] == "carried_out"


def test_only_the_threads_own_items_are_closed(store: Any) -> None:
    """Another customer's question would be closed."""
    agent = transferring(5, 0, 1, 2, 3, more=NEVER_MIND)
    other = transferring(5, 0, 1, 2, 3)  # another graph with the same thread's name
    bridge, first = queued(store, agent)
    _, elsewhere = queued(store, agent, thread("2"))
    _, others = queued(store, other)
    agent.invoke({"messages": "never mind"}, CONFIG)
    agent.invoke({"messages": "pay bob"}, CONFIG)
    (again,) = bridge.enqueue(agent, CONFIG)
    states = {name: store.item(item.id).state for name, item in
              {"first": first, "elsewhere": elsewhere, "others": others, "again": again}.items()}  # fmt: skip
    assert states == {"first": "expired", "elsewhere": "pending", "others": "pending", "again": "pending"}


# -- runs that end early -------------------------------------------------------------------------------------------


def flaky(fails: list[BaseException], ran: list[int], also: Any = None) -> Any:
    """The tools, with a transfer that fails while there is an error left, and runs ``also`` before it returns."""

    @tool
    def transfer(to: str, amount: int) -> str:
        """Send money."""
        if fails:
            raise fails.pop()
        ran.append(amount)
        if also is not None:
            also()
        return f"sent {amount} to {to}"

    return [balance, transfer, close]


def approved(store: Any, tools: Any, **bridging: Any) -> tuple[Any, ReviewBridge, Any]:
    """An agent, a bridge, and the item of its approved transfer of 5."""
    model = AgentChat(steps=UNSURE.steps)
    agent = agent_of(model, gate(model), tools=tools)
    bridge, item = queued(store, agent, **bridging)
    decide(store, item, action="approve")
    return agent, bridge, item


def happened(store: Any, item: Any) -> list[str]:
    return [event.what for event in store.trail(item.id)][3:]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_approved_call_outlives_an_error_of_its_tool(store: Any, is_async: bool) -> None:
    """Its interrupt was answered, so every later resume found nothing open, and the call was lost."""
    ran: list[int] = []
    agent, bridge, item = approved(store, flaky([ConnectionError("bank is down")], ran))

    async def resume() -> Any:
        return await bridge.aresume(agent, CONFIG) if is_async else bridge.resume(agent, CONFIG)

    with pytest.raises(ConnectionError):
        await resume()
    assert happened(store, item) == ["taken_up", "handed_over", "put_down"]
    result = await resume()
    assert (texts(result)[-1], ran) == ("Done.", [5])
    assert happened(store, item)[3:] == ["taken_up", "carried_out"]
    assert (await resume(), ran) == (None, [5])
    assert happened(store, item)[5:] == []


def stumbling(fails: list[BaseException], after: str = "tool") -> Any:
    """A step before each model call that follows such a message; it fails while there is an error left."""

    @before_model
    def stumble(state: Any, runtime: Any) -> None:
        if fails and state["messages"][-1].type == after:
            raise fails.pop()

    return stumble


def test_what_fails_after_the_call_is_repeated_without_the_call(store: Any) -> None:
    """The customer would pay twice."""
    ran: list[int] = []
    model = AgentChat(steps=UNSURE.steps)
    agent = agent_of(model, [stumbling([RuntimeError("down")]), gate(model)], tools=flaky([], ran))
    bridge, item = queued(store, agent)
    decide(store, item, action="approve")
    with pytest.raises(RuntimeError):
        bridge.resume(agent, CONFIG)
    assert texts(bridge.resume(agent, CONFIG))[-1] == "Done."
    assert ran == [5]


def test_a_killed_process_loses_no_approved_call(tmp_path: Path) -> None:
    """What waits here is approved in another process, which is killed in the tool; a third one goes on."""
    url = str(tmp_path / "checkpoints.db")
    with SqliteSaver.from_conn_string(url) as saver, ReviewStore(f"{url}.reviews", clock=lambda: 1000.0) as store:
        agent = transferring(5, 0, 1, 2, 3)
        agent.checkpointer = saver
        queued(store, agent)
    assert run_process("die", url, tmp_path / "died.json").wait(timeout=300) == -signal.SIGKILL
    assert run_process("again", url, tmp_path / "again.json").wait(timeout=300) == 0
    report = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert report["at_once"] is None  # the dead process still has the item
    assert report["texts"] == ["pay bob", "", "sent 5 to bob", "Done."]
    assert report["afterwards"] is None
    assert report["made"] == 5  # of the last answer; no transfer drawn again
    assert report["trail"][3:] == ["taken_up", "handed_over", "taken_up", "carried_out"]


def send_a_message(agent: Any, stumbles: list[BaseException]) -> None:
    agent.invoke({"messages": "never mind"}, CONFIG)


def send_a_message_whose_turn_fails(agent: Any, stumbles: list[BaseException]) -> None:
    stumbles.append(RuntimeError("down"))
    with pytest.raises(RuntimeError):
        agent.invoke({"messages": "never mind"}, CONFIG)


def update_the_state(agent: Any, stumbles: list[BaseException]) -> None:
    agent.update_state(CONFIG, {"messages": []}, as_node="model")


@pytest.mark.parametrize(
    ("move_on", "unfinished"),
    [(send_a_message, False), (send_a_message_whose_turn_fails, True), (update_the_state, True)],
)
def test_a_thread_that_has_moved_on_is_not_run_again(store: Any, move_on: Any, unfinished: bool) -> None:
    """A newer message took the place of the approved call, whether its own turn has ended or not."""
    ran: list[int] = []
    model = AgentChat(steps={**UNSURE.steps, **NEVER_MIND})
    fails: list[BaseException] = [ConnectionError("bank is down")]
    stumbles: list[BaseException] = []
    agent = agent_of(model, [stumbling(stumbles, after="human"), gate(model)], tools=flaky(fails, ran))
    bridge, item = queued(store, agent)
    decide(store, item, action="approve")
    with pytest.raises(ConnectionError):
        bridge.resume(agent, CONFIG)
    move_on(agent, stumbles)
    before = agent.get_state(CONFIG)
    assert bool(before.tasks) is unfinished
    assert bridge.resume(agent, CONFIG) is None
    assert (agent.get_state(CONFIG).config, ran) == (before.config, [])
    assert happened(store, item)[2:] == ["put_down"]


def test_a_graph_that_stops_where_it_should_is_left_there(store: Any) -> None:
    """It has work left, but the run that was given the decision returned."""
    ran: list[int] = []
    model = AgentChat(steps=UNSURE.steps)
    agent: Any = create_agent(
        model,
        tools=flaky([], ran),
        system_prompt=SYSTEM,
        middleware=[gate(model)],
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    bridge, item = queued(store, agent)
    decide(store, item, action="approve")
    assert bridge.resume(agent, CONFIG) is not None
    assert agent.get_state(CONFIG).next == ("tools",)
    assert bridge.resume(agent, CONFIG) is None
    assert ran == []
    assert happened(store, item) == ["taken_up", "handed_over", "carried_out"]


def test_what_lapsed_and_failed_is_carried_on_as_well(tmp_path: Path) -> None:
    """The run would be stuck after a failure."""
    model = AgentChat(steps=UNSURE.steps)
    agent = agent_of(model, [stumbling([RuntimeError("down")]), gate(model)])
    now = 1000.0
    with ReviewStore(tmp_path / "reviews.db", clock=lambda: now) as store:
        bridge, item = queued(store, agent, expires_in=60)
        now = 1061.0
        with pytest.raises(RuntimeError):
            bridge.resume(agent, CONFIG)
        assert texts(bridge.resume(agent, CONFIG))[-1] == "Done."
        assert [event.what for event in store.trail(item.id)][2:] == ["taken_up", "put_down", "taken_up", "lapsed"]
        assert bridge.resume(agent, CONFIG) is None


# -- two at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_who_comes_while_another_resumes_gets_none(store: Any, is_async: bool) -> None:
    """Both ran the approved call."""
    ran: list[int] = []
    others: list[Any] = []

    def comes() -> None:
        if len(ran) > 1:  # that would be its own run
            return
        others.append(bridge.resume(agent, CONFIG))

    agent, bridge, _ = approved(store, flaky([], ran, also=comes))
    result = await bridge.aresume(agent, CONFIG) if is_async else bridge.resume(agent, CONFIG)
    assert texts(result)[-1] == "Done."
    assert (ran, others) == ([5], [None])


def test_who_read_the_interrupt_before_another_answered_it_gets_none(store: Any) -> None:
    """Two programs would both go on with one thread."""
    ran: list[int] = []
    agent, bridge, item = approved(store, flaky([], ran))

    class Slow:
        """The agent; between the reading of its state and what follows another call resumes it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(agent, name)

        def get_state_history(self, *args: Any, **options: Any) -> Any:
            history = list(agent.get_state_history(*args, **options))
            assert bridge.resume(agent, CONFIG) is not None
            return history

    assert bridge.resume(Slow(), CONFIG) is None
    assert ran == [5]
    assert happened(store, item) == ["taken_up", "handed_over", "carried_out", "taken_up", "put_down"]
    assert bridge.resume(agent, CONFIG) is None


def test_a_run_that_was_broken_off_keeps_its_lease(tmp_path: Path) -> None:
    """After Ctrl-C a tool may still be running, so nobody goes on before the lease is over."""
    now = 1000.0
    with ReviewStore(tmp_path / "reviews.db", clock=lambda: now) as store:
        ran: list[int] = []
        agent, bridge, _ = approved(store, flaky([KeyboardInterrupt()], ran), lease=60)
        with pytest.raises(KeyboardInterrupt):
            bridge.resume(agent, CONFIG)
        now = 1059.9
        assert bridge.resume(agent, CONFIG) is None
        assert ran == []
        now = 1060.0
        assert texts(bridge.resume(agent, CONFIG))[-1] == "Done."
        assert ran == [5]


# -- what the graph is run with ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Who:
    """A graph's context."""

    user: str


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_resumed_run_gets_the_callers_arguments(store: Any, is_async: bool) -> None:
    """Without its context a tool failed, and nobody could give it one."""

    @tool
    def transfer(to: str, amount: int, runtime: ToolRuntime[Who, Any]) -> str:
        """Send money."""
        return f"sent {amount} to {to} for {runtime.context.user}"

    model = AgentChat(steps=UNSURE.steps)
    agent = agent_of(model, gate(model), tools=[balance, transfer, close], context_schema=Who)
    bridge = ReviewBridge(store)
    agent.invoke({"messages": "pay bob"}, CONFIG, context=Who("ann"))
    bridge.enqueue(agent, CONFIG)
    decide(store, action="approve")
    with pytest.raises(AttributeError, match="user"):
        bridge.resume(agent, CONFIG)
    arguments: Any = {"context": Who("ann"), "durability": "sync"}
    result = await bridge.aresume(agent, CONFIG, **arguments) if is_async else bridge.resume(agent, CONFIG, **arguments)
    assert texts(result)[2] == "sent 5 to bob for ann"


WEI = ToolCall(name="transfer", arguments={"to": "bob", "amount": 25 * 10**18})


@pytest.mark.parametrize("number", [-(2**63) - 1, -(2**63), 2**64 - 1, 2**64])
def test_a_number_is_storable_if_langgraph_stores_it(number: int) -> None:
    """A number that the checkpointer refuses would lose the thread."""
    try:
        JsonPlusSerializer().dumps_typed({"amount": number})
    except TypeError:
        assert json_fault({"amount": number}, packed=True) is not None
    else:
        assert json_fault({"amount": number}, packed=True) is None


def test_an_edit_with_a_number_that_langgraph_cannot_store_is_refused_and_can_be_made_again() -> None:
    """It was kept, and stopped the graph at every resume."""
    agent = transferring(5, 0, 1, 2, 3)
    agent.invoke({"messages": "pay bob"}, CONFIG)
    edit = {"type": "edit", "edited_action": {"name": "transfer", "args": dict(WEI.arguments)}}
    with pytest.raises(ValidationError, match=r"an integer of 65 bits.*Correct them, or reject the call"):
        agent.invoke(Command(resume={"decisions": [edit]}), CONFIG)
    assert texts(agent.invoke(APPROVE, CONFIG))[-1] == "Done."


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_approval_whose_thread_is_gone_is_named(
    store: Any, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """The agent paused with a checkpointer in memory, and another process resumes: the decision cannot run."""
    bridge, item = queued(store, transferring(5, 6, 7))
    after_restart = transferring(5, 6, 7)

    async def resume(config: Any) -> Any:
        return await bridge.aresume(after_restart, config) if is_async else bridge.resume(after_restart, config)

    assert await resume(CONFIG) is None
    assert not caplog.records, "nobody has decided yet"
    decide(store, action="approve")
    assert await resume(thread("another")) is None
    assert not caplog.records
    for _ in range(2):  # reported once
        assert await resume(CONFIG) is None
        (logged,) = caplog.messages
        assert f"review item {item.id}" in logged
        assert "thread '1': The checkpointer has no thread of this name" in logged
        assert store.trail(item.id)[-1].what == "not_carried_out"
    assert [event.what for event in store.trail(item.id)][-1] == "not_carried_out"
