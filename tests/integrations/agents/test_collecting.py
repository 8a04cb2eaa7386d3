"""Tools without an artifact: calls wait, samples are recorded, and decisions become labelled steps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import read_records, write_records
from calibrate.reviews.steps import reviews_of_checkpoints
from guardrail import Guardrail
from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.review import Decision, ReviewStore
from guardrail.types import MAX_TOKENS
from integrations.langchain_agents import GuardrailMiddleware, unsure
from integrations.langgraph_review import ReviewBridge
from integrations.watcher import Watcher
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, artifact_of, balance, calls, close, sending
from tests.integrations.frameworks.cases import decide_in

SENT: list[int] = []


@tool
def transfer(to: str, amount: int) -> str:
    """Send money."""
    SENT.append(amount)
    return f"sent {amount} to {to}"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SENT.clear()


class Greedy(AgentChat):
    """An agent's model that answers as the plan's primary answer is drawn."""

    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS


def chat(kind: type[AgentChat] = AgentChat, /, **steps: Sequence[Any]) -> AgentChat:
    """Answers a request named by its first word, then says "Done."."""
    return kind(
        steps={(name, 0): replies for name, replies in steps.items()} | {(name, 1): ["Done."] for name in steps}
    )


def agent(model: AgentChat, *middleware: Any, saver: Any = None, system: str = SYSTEM) -> Any:
    tools = [balance, transfer, close]
    saver = saver or InMemorySaver()
    return create_agent(model, tools, system_prompt=system, middleware=middleware, checkpointer=saver)


def ask(guarded_agent: Any, text: str, thread: str = "1") -> dict[str, Any]:
    result: dict[str, Any] = guarded_agent.invoke({"messages": text}, {"configurable": {"thread_id": thread}})
    return result


def answer(guarded_agent: Any, *decisions: dict[str, Any], thread: str = "1") -> Any:
    return guarded_agent.invoke(Command(resume={"decisions": list(decisions)}), {"configurable": {"thread_id": thread}})


def edit(amount: int, to: str = "bob") -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "transfer", "args": {"to": to, "amount": amount}}}


APPROVE, REJECT, RESPOND = {"type": "approve"}, {"type": "reject"}, {"type": "respond", "message": "Paid in cash."}


def collecting(**options: Any) -> GuardrailMiddleware:
    return GuardrailMiddleware(tools={"transfer": "collect", "close": "collect"}, exempt=["balance"], **options)


# -- collecting --------------------------------------------------------------------------------------------------------


def test_every_call_waits_for_a_person_and_its_samples_are_recorded() -> None:
    model = chat(
        send=[sending(40), sending(40), sending(4)], hello=["Hi."], look=[calls(("balance", {"account": "a"}))]
    )
    guarded_agent = agent(model, collecting())
    assert (
        ask(guarded_agent, "hello", "0")["messages"][-1].text == "Hi."
    )  # answers pass, as without an artifact for them
    assert ask(guarded_agent, "look", "2")["messages"][-1].text == "Done."  # and so do exempt tools
    assert not Path("agent.records.jsonl").exists() or not read_records("agent.records.jsonl").records
    before = model.made
    (waiting,) = ask(guarded_agent, "send")["__interrupt__"]
    assert (SENT, model.made - before) == ([], 11)
    assert waiting.value["verdict"]["detail"] == (
        "Held back: there is no artifact yet, so a person decides about each one. Decide about it: "
        "`calibrate learn` makes decisions labels, and labels an artifact."
    )
    file = read_records("agent.records.jsonl")
    (record,) = file.records
    assert (record.id, record.group) == (waiting.value["verdict"]["record"], "1")
    assert record.messages == ({"role": "user", "content": "send"},)
    assert file.header.prompt.system == SYSTEM
    assert file.header.plan.bindings is not None
    assert set(file.header.plan.bindings.tool_names) == {"balance", "close", "transfer"}
    assert record.drawn is not None
    amounts = [sample.tool_calls[0].arguments["amount"] for sample in record.drawn.samples]
    assert sorted(amounts) == [4] * 5 + [40] * 5
    answer(guarded_agent, APPROVE)
    assert (SENT, model.made - before) == ([40], 12)  # nothing was drawn again
    with pytest.raises(UsageError, match="records of another prompt"):
        ask(agent(model, collecting(), system="Another."), "send", "3")


async def test_it_collects_on_an_event_loop_too() -> None:
    guarded_agent = agent(chat(send=[sending(40)]), collecting(records="own.jsonl"))
    result = await guarded_agent.ainvoke({"messages": "send"}, {"configurable": {"thread_id": "1"}})
    assert result["__interrupt__"][0].value["verdict"]["record"] == read_records("own.jsonl").records[0].id


def test_a_tool_collects_beside_calibrated_ones() -> None:
    shut = ("close", {"account": "a"})
    model = chat(send=[sending(40)], shut=[calls(shut)], both=[calls(shut, ("transfer", {"to": "bob", "amount": 1}))])
    artifact = artifact_of(model, tools=[balance, transfer, close])
    mixed = GuardrailMiddleware(tools={"transfer": artifact, "close": "collect"}, exempt=["balance"])
    guarded_agent = agent(model, mixed)
    assert ask(guarded_agent, "send")["messages"][2].text == "sent 40 to bob"
    assert len(read_records("agent.records.jsonl").records) == 0
    for thread, text in enumerate(("shut", "both"), start=2):
        value = ask(guarded_agent, text, str(thread))["__interrupt__"][0].value
        assert value["verdict"]["reason"] == "infeasible"
        assert [request["name"] for request in value["action_requests"]] == ["close", "transfer"][: thread - 1]
    file = read_records("agent.records.jsonl")
    assert [len(record.drawn.samples) for record in file.records if record.drawn] == [4, 4]  # the artifact's plan
    assert SENT == [40]


def test_it_needs_a_person() -> None:
    with pytest.raises(UsageError, match='needs on_abstain="review"'):
        collecting(on_abstain="message")


# -- decisions ---------------------------------------------------------------------------------------------------------

ASKED = ("send", "wrong", "spam", "cash")
SAID: dict[str, dict[str, Any]] = {"send": APPROVE, "wrong": edit(7), "spam": REJECT, "cash": RESPOND}
TOLD = {"type": "answer", "message": "It is closed."}


def decided(saver: Any, guard: Callable[[], Any], *, each: bool = False) -> None:
    """Four requests that people decided about and an open one, each in a separate thread."""
    model = chat(**{name: [sending(40)] for name in (*ASKED, "late")})
    guarded_agent = agent(model, guard(), saver=saver)
    for name in (*ASKED, "late"):
        waiting = ask(guarded_agent, name, name)["__interrupt__"]
        if name in SAID and each:
            resume = {waiting[0].id: SAID[name]}
            guarded_agent.invoke(Command(resume=resume), {"configurable": {"thread_id": name}})
        elif name in SAID:
            answer(guarded_agent, SAID[name], thread=name)


GUARDS: dict[str, Callable[[], Any]] = {
    "collect": collecting,
    "batched": lambda: HumanInTheLoopMiddleware({"transfer": True}),
    "per_call": lambda: HumanInTheLoopMiddleware({"transfer": True}, interrupt_mode="per_call"),
}


@pytest.mark.parametrize("kind", GUARDS)
def test_decisions_in_checkpoints_become_labelled_steps(kind: str) -> None:
    saver = InMemorySaver()
    decided(saver, GUARDS[kind], each=kind == "per_call")
    items = reviews_of_checkpoints(saver)
    assert [(item.group, item.action, item.correct, item.open) for item in items] == [
        ("send", "approve", True, False),
        ("wrong", "edit", False, False),
        ("spam", "reject", False, False),
        ("cash", "reject", False, False),
        ("late", None, None, True),
    ]
    assert [item.recorded for item in items] == [kind == "collect"] * 5
    right = [None if item.reference is None else json.loads(item.reference) for item in items]
    assert [calls and calls[0]["arguments"]["amount"] for calls in right] == [40, 7, None, None, None]
    assert items[0].messages == ({"role": "user", "content": "send"},)


def test_an_answer_to_the_user_says_that_the_call_was_wrong() -> None:
    saver = InMemorySaver()
    guarded_agent = agent(chat(send=[sending(40)]), collecting(), saver=saver)
    ask(guarded_agent, "send", "send")
    answer(guarded_agent, TOLD, thread="send")
    (item,) = reviews_of_checkpoints(saver)
    assert (item.action, item.correct) == ("reject", False)


def test_the_later_of_two_decisions_about_one_message_counts() -> None:
    saver = InMemorySaver()
    model = chat(send=[sending(40)])
    guarded_agent = agent(model, HumanInTheLoopMiddleware({"transfer": True}), collecting(), saver=saver)
    ask(guarded_agent, "send")
    answer(guarded_agent, APPROVE)
    answer(guarded_agent, edit(5))
    assert SENT == [5]
    (item,) = reviews_of_checkpoints(saver)
    assert (item.action, item.correct, item.recorded) == ("edit", False, True)
    assert "5" in str(item.reference)


def test_an_interrupt_that_a_new_message_left_behind_is_not_open() -> None:
    saver = InMemorySaver()
    guarded_agent = agent(chat(send=[sending(40)], hello=["Hi."]), collecting(), saver=saver)
    ask(guarded_agent, "send")
    ask(guarded_agent, "hello")
    (item,) = reviews_of_checkpoints(saver)
    assert (item.correct, item.open) == (None, False)


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["learn", *arguments, "--tool", "transfer"])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_command_reads_a_checkpointers_file_and_the_records() -> None:
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decided(saver, collecting)
    output = command("threads.sqlite", "--records", "agent.records.jsonl", "--missing", "leave-out")
    assert "transfer 1 1 2 1 0 5" in output
    assert "calibrate learn threads.sqlite --tool transfer --alpha ALPHA --out transfer.json" in output
    part = read_records("transfer.records.jsonl")
    assert [record.correct for record in part.records] == [True, False, False, False]
    assert [record.group for record in part.records] == list(ASKED)
    assert all(record.scores["primary_disagreement:tool_call"].value == 0.0 for record in part.records)
    for nothing in (["--tool", "transfer"], []):  # neither records nor a model to draw from; neither tool nor artifact
        Path("agent.records.jsonl").unlink(missing_ok=True)
        refused = CliRunner().invoke(app, ["learn", "threads.sqlite", *nothing])
        assert refused.exit_code == 2
        assert ("--model MODEL" if nothing else "--artifact") in refused.output
    sqlite3.connect("other.sqlite").close()
    refused = CliRunner().invoke(app, ["learn", "other.sqlite", "--tool", "transfer"])
    assert refused.exit_code == 2
    assert "Give --records" in " ".join(refused.output.split())


def test_answers_are_collected_and_learned_like_calls() -> None:
    """From an agent without any artifact to a gate on its answers: approved ones were right, all others wrong."""
    wrong = {f"odd {k}": [f"guess {k}", *(f"other {k} {n}" for n in range(9))] for k in range(6)}
    model = chat(**{**{f"plain {k}": [f"word {k}"] for k in range(20)}, **wrong})
    guarded_agent = agent(model, GuardrailMiddleware("collect", exempt=["balance", "transfer", "close"]))
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for (text, _), _ in zip(model.steps, range(26), strict=False):
            (waiting,) = ask(guarded_agent, text, text)["__interrupt__"]
            (item,) = bridge.enqueue(guarded_agent, {"configurable": {"thread_id": text}})
            assert (waiting.value["kind"], item.content.blind) == ("answer", True)
            decide_in(store, item, Decision(action="approve" if text.startswith("plain") else "reject"))
    assert agent_says(guarded_agent, bridge, "plain 1") == "word 1"
    learned = CliRunner().invoke(
        app, ["learn", "reviews.db", "--tool", "answer", "--alpha", "0.3", "--out", "answers.json"]
    )
    assert learned.exit_code == 0, learned.output
    assert "use it in your guard: artifact='answers.json' in place of 'collect'" in learned.output
    (labels,) = [[record.correct for record in read_records("answers.records.jsonl").records]]
    assert (labels.count(True), labels.count(False)) == (20, 6)
    gate = GuardrailMiddleware("answers.json", exempt=["balance", "transfer", "close"], on_abstain="message")
    guarded_agent = agent(model, gate)
    assert ask(guarded_agent, "plain 2", "a")["messages"][-1].text == "word 2"
    assert ask(guarded_agent, "odd 2", "b")["messages"][-1].text == ABSTENTION
    compared = CliRunner().invoke(app, ["learn", "reviews.db", "--tool", "answer", "--compare", "to"])
    assert (compared.exit_code, "--compare and --model are about calls" in compared.output) == (2, True)
    recorded = read_records("agent.records.jsonl")
    plan = recorded.header.plan
    assert plan.bindings is not None
    tools = (*plan.bindings.tools, {"type": "function", "function": {"name": "answer", "parameters": {}}})
    named_alike = plan.model_copy(update={"bindings": plan.bindings.model_copy(update={"tools": tools})})
    header = recorded.header.model_copy(update={"plan": named_alike})
    write_records(recorded.path, header, recorded.records)
    mixed = CliRunner().invoke(app, ["learn", "reviews.db", "--tool", "answer"])
    assert (mixed.exit_code, "the agent has a tool named 'answer'" in mixed.output) == (2, True)


def agent_says(guarded_agent: Any, bridge: ReviewBridge, thread: str) -> str:
    with ReviewStore("reviews.db") as store:
        result = ReviewBridge(store).resume(guarded_agent, {"configurable": {"thread_id": thread}})
    assert result is not None
    return str(result["messages"][-1].text)


def approved(n: int, names: str = "case", overtaken: int = 0, store: str = "reviews.db") -> None:
    """Collect transfers that a person approves; in some threads the user writes again before anybody decides."""
    texts = [f"{names} {k}" for k in range(n + overtaken)]
    model = chat(**{text: [sending(40)] for text in texts}, hello=["Hi."])
    guarded_agent = agent(model, collecting(records=f"{Path(store).stem}.agent.jsonl"))
    with ReviewStore(store) as opened:
        bridge = ReviewBridge(opened)
        for place, text in enumerate(texts):
            ask(guarded_agent, text, text)
            (item,) = bridge.enqueue(guarded_agent, {"configurable": {"thread_id": text}})
            if place < overtaken:
                ask(guarded_agent, "hello", text)
                bridge.enqueue(guarded_agent, {"configurable": {"thread_id": text}})
                continue
            decide_in(opened, item, Decision(action="approve"))


def learn(store: str, *arguments: str, tool: str = "transfer", code: int = 0) -> str:
    records = f"{Path(store).stem}.agent.jsonl"
    done = CliRunner().invoke(app, ["learn", store, "--records", records, "--tool", tool, *arguments])
    assert done.exit_code == code, done.output
    return " ".join(done.output.replace("│", " ").split())


FIT = ("--alpha", "0.2", "--out")


def test_calls_that_nobody_decided_are_named_as_the_cause() -> None:
    """Thirty approvals and ten users who wrote "hello?" read as a bad model, and the table did not show the ten."""
    approved(20, overtaken=6)
    output = learn("reviews.db", *FIT, "transfers.json")
    assert "rejected open undecided all" in output
    assert "transfer 20 0 0 0 6 26" in output
    assert "6 of 26 calls are undecided and count as wrong" in output
    assert "--missing leave-out leaves them out" in output
    assert "better" not in output
    assert "another score" not in output
    assert "use it" not in output, "there is no gate to use"
    part = read_records("transfers.records.jsonl")
    assert [record.is_undecided for record in part.records] == [True] * 6 + [False] * 20
    output = learn("reviews.db", "--missing", "leave-out", *FIT, "transfers.json")
    assert "use it in your guard: tools={'transfer': 'transfers.json', ...} in place of 'collect'" in output


def test_stores_of_two_agents_share_no_file_and_no_ledger() -> None:
    """The second agent's learning overwrote the first one's labels, and halved a confidence that it did not share."""
    approved(20)
    approved(20, "other", store="others.db")
    learn("reviews.db", *FIT, "a.json")
    output = learn("others.db", *FIT, "b.json")
    assert "fits have used these labels" not in output
    assert [len(read_records(f"{name}.records.jsonl").records) for name in "ab"] == [20, 20]
    refused = learn("others.db", *FIT, "a.json", code=2)
    assert "a.records.jsonl holds none of these decisions" in refused
    assert "--out" in refused
    assert read_records("a.records.jsonl").records[0].question == "case 0"
    # Another name of the file does not make the labels new.
    output = learn("reviews.db", "--alpha", "0.3", "--out", "c.json")
    assert "2 fits have used these labels" in output


def test_of_two_people_who_disagree_about_equal_calls_the_stricter_counts() -> None:
    """The fit refused both labels, and a decision is final: nothing could be learned about the tool any more."""
    approved(20)
    model = chat(again=[sending(40)])
    guarded_agent = agent(model, collecting(records="reviews.agent.jsonl"))
    with ReviewStore("reviews.db") as store:
        for thread, action in (("a", "approve"), ("b", "reject")):
            ask(guarded_agent, "again", thread)
            (item,) = ReviewBridge(store).enqueue(guarded_agent, {"configurable": {"thread_id": thread}})
            decide_in(store, item, Decision(action=action))
    output = learn("reviews.db", "--alpha", "0.3", "--out", "gate.json")
    assert "1 approved messages count as wrong: equal ones were rejected or edited." in output
    right = [record.correct for record in read_records("gate.records.jsonl").records]
    assert (right.count(True), right.count(False)) == (20, 2)


def test_without_a_threshold_the_next_step_is_more_decisions() -> None:
    approved(8)
    output = learn("reviews.db", *FIT, "transfers.json")
    assert "Next: decide about more calls" in output


def read_first(n: int) -> AgentChat:
    """A model that reads a balance before each transfer."""
    steps: dict[tuple[str, int], Sequence[Any]] = {}
    for text in [f"case {k}" for k in range(n)]:
        steps |= {(text, 0): [calls(("balance", {"account": "a"}))], (text, 1): [sending(40)], (text, 2): ["Done."]}
    return Greedy(steps=steps)


def test_a_gate_knows_the_turns_after_a_tool_has_run() -> None:
    """The artifact knew turns that no conversation has, so that the predicate asked about every call."""
    model = read_first(20)
    collected = agent(model, collecting())
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for text in {text for text, _ in model.steps}:
            ask(collected, text, text)
            (item,) = bridge.enqueue(collected, {"configurable": {"thread_id": text}})
            decide_in(store, item, Decision(action="approve"))
    done = CliRunner().invoke(app, ["learn", "reviews.db", "--tool", "transfer", *FIT, "g.json"])
    assert done.exit_code == 0, done.output
    gate = GuardrailMiddleware(tools={"transfer": "g.json", "close": "collect"}, exempt=["balance"])
    assert "__interrupt__" not in ask(agent(model, gate), "case 1", "new")
    approvals = HumanInTheLoopMiddleware(
        interrupt_on={"transfer": {"when": unsure("g.json", model), "allowed_decisions": ["approve"]}}
    )
    assert "__interrupt__" not in ask(agent(model, approvals), "case 2", "new")


def test_decisions_whose_samples_lie_elsewhere_name_the_records_that_were_read() -> None:
    """The default file was read, and the message sent people to decide about what they had decided."""
    approved(2)
    approved(2, "other", store="others.db")
    arguments = ["learn", "reviews.db", "--tool", "transfer", "--records", "others.agent.jsonl"]
    refused = CliRunner().invoke(app, arguments)
    shown = " ".join(refused.output.replace("│", " ").split())
    assert "none of the 2 reviews in reviews.db belongs to a record of others.agent.jsonl" in shown
    assert "--records FILE" in shown


def test_a_misspelt_tool_is_told_from_one_that_nobody_decided_about() -> None:
    approved(2)
    refused = learn("reviews.db", tool="transfr", code=2)
    assert "reviews.db has no call of 'transfr'. Did you mean 'transfer'? It has: transfer." in refused


def test_a_free_note_does_not_make_equal_calls_differ() -> None:
    def refund(amount: int, note: str) -> Any:
        return calls(("transfer", {"to": "bob", "amount": amount, "note": note}))

    names = [f"case{i}" for i in range(4)]
    model = chat(**{name: [refund(40, "as agreed"), refund(40, "refund"), refund(40, "sorry")] for name in names})
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        guarded_agent = agent(model, collecting(), saver=saver)
        for name in names:
            ask(guarded_agent, name, name)
            if name != "case1":
                answer(guarded_agent, APPROVE, thread=name)
    common = ("threads.sqlite", "--records", "agent.records.jsonl")
    output = command(*common)
    assert "Which arguments of transfer matter? Samples differ in note (2) of 2 messages" in output
    assert "--compare ARGUMENT,ARGUMENT" in output
    assert "2 decisions wait behind the message in the thread 'case1', open since 20" in output
    assert "--missing leave-out leaves them out" in output
    scores = [record.scores for record in read_records("transfer.records.jsonl").records]
    assert all(score["primary_disagreement:tool_call"].value == 1.0 for score in scores)
    output = command(*common, "--missing", "leave-out", "--compare", "to,amount")
    assert "Which arguments" not in output
    part = read_records("transfer.records.jsonl")
    assert [score.value for record in part.records for score in record.scores.values()] == [0.0] * 3
    assert [record.correct for record in part.records] == [True] * 3


def test_names_in_compare_are_those_of_the_tools() -> None:
    """A misspelt argument would leave the real one out of every label and score."""
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decided(saver, collecting)
    for compare, message in {
        "to,amonut": "name 'amonut', which is not an argument of transfer. Did you mean 'amount'? There are: "
        "amount, to.",
    }.items():
        common = ("learn", "threads.sqlite", "--tool", "transfer", "--missing", "wrong")
        refused = CliRunner().invoke(app, [*common, "--compare", compare])
        assert refused.exit_code == 2
        assert f"the arguments to compare {message}" in " ".join(refused.output.replace("│", "").split())
        assert not Path("transfer.records.jsonl").exists()


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
    guarded_agent = agent(chat(of, **dict.fromkeys(ASKED, replies)), collecting())
    for name in ASKED:
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
    guarded_agent = agent(chat(send=[CUT_OFF], more=[sending(40)]), collecting())
    assert "__interrupt__" not in ask(guarded_agent, "send", "1")
    assert "__interrupt__" in ask(guarded_agent, "more", "2")


def spoil(n: int) -> None:
    """Let a cache have answered the first n recorded messages."""
    header, *lines = Path("agent.records.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[:n]:
        row["drawn"] |= {"problem": "degenerate_samples", "problem_detail": "a cache answers"}
    Path("agent.records.jsonl").write_text("\n".join([header, *map(json.dumps, rows)]), encoding="utf-8")


def test_messages_that_could_not_be_measured_are_counted_and_nothing_is_fitted_on_them_alone() -> None:
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decided(saver, collecting)
    spoil(1)
    shown = command("threads.sqlite")
    assert "1 of 5 messages could not be measured, so nothing is learned from their decisions." in shown
    Path("transfer.records.jsonl").unlink()
    spoil(5)
    refused = CliRunner().invoke(app, ["learn", "threads.sqlite", "--tool", "transfer"])
    assert refused.exit_code == 2
    output = " ".join(refused.output.replace("│", "").split())
    assert "none of 5 records could be measured; 5 of them: degenerate_samples" in output
    assert "guardrail_trusted" in output
    assert not Path("transfer.records.jsonl").exists()


def test_the_item_that_others_wait_for_is_named_with_its_holder() -> None:
    model = chat(**{name: [sending(40)] for name in ASKED})
    guarded_agent = agent(model, collecting())
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for name in ASKED:
            ask(guarded_agent, name, name)
            bridge.enqueue(guarded_agent, {"configurable": {"thread_id": name}})
        first, *others = store.items()
        for item in others:
            decide_in(store, item, Decision(action="approve"))
        store.claim("bob", item=first.id)
    refused = CliRunner().invoke(app, ["learn", "reviews.db", "--tool", "transfer"])
    output = " ".join(refused.output.replace("│", "").split())
    assert "none of the 4 decisions about 'transfer' can be used yet; 1 are open. 3 decisions wait" in output
    assert f"behind item {first.id} (/items/{first.id} on the review page, where bob holds it until 20" in output


MODEL = chat(**{name: [sending(40), sending(40), sending(4)] for name in ASKED})


def test_samples_of_decisions_without_records_are_drawn_from_the_model() -> None:
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decided(saver, GUARDS["batched"])
    tools = [{"type": "function", "function": {"name": "transfer", "parameters": {"type": "object", "properties": {}}}}]
    Path("tools.json").write_text(json.dumps(tools))
    model = f"python:{__name__}:MODEL"
    options = ("--model", model, "--tools", "tools.json", "--system", SYSTEM, "--missing", "leave-out")
    command("threads.sqlite", *options)
    part = read_records("transfer.records.jsonl")
    assert [record.correct for record in part.records] == [True, False, False, False]
    assert [len(record.drawn.samples) for record in part.records if record.drawn] == [10] * 4


USED = chat(
    **{f"case {k}": [sending(40)] for k in range(25)}, **{f"odd {k}": list(map(sending, range(1, 9))) for k in range(5)}
)


def test_langchains_own_approvals_become_the_artifact_of_their_predicate() -> None:
    """Who has these approvals already has decisions, and needs no second way of collecting."""
    with SqliteSaver.from_conn_string("agent.db") as saver:
        approving = agent(USED, GUARDS["batched"](), saver=saver)
        for name, decision in [*((f"case {k}", APPROVE) for k in range(24)), *((f"odd {k}", REJECT) for k in range(4))]:
            ask(approving, name, name)
            answer(approving, decision, thread=name)
    Path("tools.json").write_text(bindings_for([balance, transfer, close]).model_dump_json())
    drawn = ("--model", f"python:{__name__}:USED", "--tools", "tools.json", "--system", SYSTEM)
    assert "{'when': unsure('gate.json', model)}" in command("agent.db", *FIT, "gate.json", *drawn)
    policy: Any = {"when": unsure("gate.json", USED), "allowed_decisions": ["approve", "reject"]}
    gated = agent(USED, HumanInTheLoopMiddleware({"transfer": policy}))
    assert "__interrupt__" not in ask(gated, "case 24", "a")
    assert "__interrupt__" in ask(gated, "odd 4", "b")


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
