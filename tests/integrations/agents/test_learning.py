"""`calibrate learn` on what people decided about an agent's calls and answers: from decisions to a gate."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import read_records, write_records
from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.review import Decision, ReviewStore
from integrations.langchain_agents import GuardrailMiddleware, unsure
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, balance, calls, close, sending
from tests.integrations.agents.collecting_agents import (
    APPROVE,
    DECISIONS,
    REJECT,
    Greedy,
    agent,
    answer,
    approvals,
    approve_transfers,
    ask,
    cases,
    chat,
    collecting,
    counts,
    decide_in_checkpoints,
    learn,
    records_of,
    thread,
    transfer,
)
from tests.integrations.frameworks.cases import decide_in

pytestmark = pytest.mark.usefixtures("in_a_folder")
FIT = ("--alpha", "0.2", "--out")


# -- decisions about calls, in a checkpointer --------------------------------------------------------------------------


@pytest.fixture
def checkpoints(in_a_folder: None) -> str:
    """The file of a checkpointer with the decisions of `DECISIONS`; the samples are in agent.records.jsonl."""
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decide_in_checkpoints(saver, collecting())
    return "threads.sqlite"


RECORDS = ("--records", "agent.records.jsonl")


def test_the_command_reads_a_checkpointers_file_and_the_records(checkpoints: str) -> None:
    """The decisions that an agent has gathered must become labels, each with its samples."""
    output = learn(checkpoints, *RECORDS, "--missing", "leave-out")
    assert counts(output) == {"approved": 1, "edited": 1, "rejected": 2, "open": 1, "undecided": 0, "all": 5}
    again = "calibrate learn threads.sqlite --tool transfer --records agent.records.jsonl --missing leave-out"
    assert f"{again} --alpha ALPHA --out transfer.json" in output
    labelled = read_records("transfer.records.jsonl").records
    assert [record.correct for record in labelled] == [True, False, False, False]
    assert [record.group for record in labelled] == list(DECISIONS)
    # All samples are the call that was judged.
    assert all(record.scores["primary_disagreement:tool_call"].value == 0.0 for record in labelled)


def test_without_records_or_a_model_there_are_no_samples(checkpoints: str) -> None:
    """The user must read which of both to give."""
    Path("agent.records.jsonl").unlink()
    assert "--model MODEL" in learn(checkpoints, code=2)


def test_without_a_tool_or_an_artifact_it_is_not_known_what_to_learn(checkpoints: str) -> None:
    """A threshold for all tools together would promise nothing for one of them."""
    refused = CliRunner().invoke(app, ["learn", checkpoints])
    assert (refused.exit_code, "--artifact" in refused.output) == (2, True)


def test_a_database_without_decisions_is_refused_with_the_way_out() -> None:
    """A wrong path would read as an agent without decisions."""
    sqlite3.connect("other.sqlite").close()
    assert "Give --records" in learn("other.sqlite", code=2)


def test_names_in_compare_are_those_of_the_tools(checkpoints: str) -> None:
    """A misspelt argument would leave the real one out of every label and score."""
    output = learn(checkpoints, "--missing", "wrong", "--compare", "to,amonut", code=2)
    assert (
        "the arguments to compare name 'amonut', which is not an argument of transfer. Did you mean 'amount'? There "
        "are: amount, to."
    ) in output
    assert not Path("transfer.records.jsonl").exists()


NOTES: list[Any] = [
    calls(("transfer", {"to": "bob", "amount": 40, "note": note})) for note in ("as agreed", "refund", "sorry")
]
"""The same transfer with three notes."""


@pytest.fixture
def notes(in_a_folder: None) -> str:
    """A checkpointer with four transfers whose samples differ in their notes; the second is open."""
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        guarded_agent = agent(chat(**dict.fromkeys(cases(4), NOTES)), collecting(), saver=saver)
        for name in cases(4):
            ask(guarded_agent, name, name)
        for name in ("case 0", "case 2", "case 3"):
            answer(guarded_agent, APPROVE, name)
    return "threads.sqlite"


def test_arguments_in_which_samples_differ_are_named(notes: str) -> None:
    """Every transfer seems unsure while a free text is compared, and nobody sees why."""
    output = learn(notes, *RECORDS)
    assert "Which arguments of transfer matter? Samples differ in note (2) of 2 messages" in output
    assert "--compare ARGUMENT,ARGUMENT" in output
    assert "2 decisions wait behind the message in the thread 'case 1', open since 20" in output
    assert "--missing leave-out leaves them out" in output
    scores = [record.scores for record in read_records("transfer.records.jsonl").records]
    assert all(score["primary_disagreement:tool_call"].value == 1.0 for score in scores)


def test_parallel_calls_of_one_answer_are_not_called_different_samples() -> None:
    """Who pays two people at once would be told to leave out to whom and how much, although all samples agree."""
    both = calls(("transfer", {"to": "bob", "amount": 40}), ("transfer", {"to": "eve", "amount": 7}))
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        guarded_agent = agent(chat(pay=[both]), collecting(), saver=saver)
        ask(guarded_agent, "pay", "pay")
        guarded_agent.invoke(Command(resume={"decisions": [APPROVE, APPROVE]}), thread("pay"))
    assert "Which arguments" not in learn("threads.sqlite", *RECORDS)
    (record,) = read_records("transfer.records.jsonl").records
    assert [score.value for score in record.scores.values()] == [0.0]


def test_a_free_note_does_not_make_equal_calls_differ(notes: str) -> None:
    """With the arguments that matter the same transfers are sure."""
    output = learn(notes, *RECORDS, "--missing", "leave-out", "--compare", "to,amount")
    assert "Which arguments" not in output
    # Without the arguments the next command would be refused, or fit a gate for which equal calls differ.
    assert "--tool transfer --records agent.records.jsonl --missing leave-out --compare to,amount --alpha" in output
    labelled = read_records("transfer.records.jsonl").records
    assert [score.value for record in labelled for score in record.scores.values()] == [0.0] * 3
    assert [record.correct for record in labelled] == [True] * 3


def mark_unmeasured(n: int) -> None:
    """Let a cache have answered the first n recorded messages."""
    header, *lines = Path("agent.records.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[:n]:
        row["drawn"] |= {"problem": "degenerate_samples", "problem_detail": "a cache answers"}
    Path("agent.records.jsonl").write_text("\n".join([header, *map(json.dumps, rows)]), encoding="utf-8")


def test_messages_that_could_not_be_measured_are_counted(checkpoints: str) -> None:
    """Labels that silently get lost look like decisions that nobody made."""
    mark_unmeasured(1)
    output = learn(checkpoints, *RECORDS)
    assert "1 of 5 messages could not be measured, so nothing is learned from their decisions." in output


def test_nothing_is_fitted_on_messages_of_which_none_could_be_measured(checkpoints: str) -> None:
    """The cause is the endpoint; more decisions would not help."""
    mark_unmeasured(5)
    output = learn(checkpoints, code=2)
    assert "none of 5 records could be measured; 5 of them: degenerate_samples" in output
    assert "guardrail_trusted" in output
    assert not Path("transfer.records.jsonl").exists()


# -- decisions without records: samples are drawn from the model -------------------------------------------------------

MODEL = chat(**{name: [sending(40), sending(40), sending(4)] for name in DECISIONS})


def test_samples_of_decisions_without_records_are_drawn_from_the_model() -> None:
    """Who has decisions of LangChain's own approvals has no samples beside them."""
    with SqliteSaver.from_conn_string("threads.sqlite") as saver:
        decide_in_checkpoints(saver, approvals())
    tools = [{"type": "function", "function": {"name": "transfer", "parameters": {"type": "object", "properties": {}}}}]
    Path("tools.json").write_text(json.dumps(tools))
    model = ("--model", f"python:{__name__}:MODEL", "--tools", "tools.json", "--system", SYSTEM)
    output = learn("threads.sqlite", *model, "--missing", "leave-out")
    assert f"--model python:{__name__}:MODEL --tools tools.json --system" in output, "without them it is refused"
    labelled = read_records("transfer.records.jsonl").records
    assert [record.correct for record in labelled] == [True, False, False, False]
    assert [len(record.drawn.samples) for record in labelled if record.drawn] == [10] * 4


USED = chat(
    **{name: [sending(40)] for name in cases(25)}, **{name: list(map(sending, range(1, 9))) for name in cases(5, "odd")}
)
"""Sure of the transfers of "case", and of no transfer of "odd"."""


def test_langchains_own_approvals_become_the_artifact_of_their_predicate() -> None:
    """Who has these approvals already has decisions, and needs no second way of collecting."""
    with SqliteSaver.from_conn_string("agent.db") as saver:
        approving = agent(USED, approvals(), saver=saver)
        for name, decision in [*((name, APPROVE) for name in cases(24)), *((name, REJECT) for name in cases(4, "odd"))]:
            ask(approving, name, name)
            answer(approving, decision, name)
    Path("tools.json").write_text(bindings_for([balance, transfer, close]).model_dump_json())
    model = ("--model", f"python:{__name__}:USED", "--tools", "tools.json", "--system", SYSTEM)
    assert "{'when': unsure('gate.json', model)}" in learn("agent.db", *FIT, "gate.json", *model)
    policy: Any = {"when": unsure("gate.json", USED), "allowed_decisions": ["approve", "reject"]}
    gated = agent(USED, HumanInTheLoopMiddleware({"transfer": policy}))
    assert "__interrupt__" not in ask(gated, "case 24", "a")  # neither was decided about before
    assert "__interrupt__" in ask(gated, "odd 4", "b")


# -- decisions about calls, in the review queue ------------------------------------------------------------------------


def abandon_transfers(texts: Sequence[str]) -> None:
    """Transfers that nobody decides about before the user writes again."""
    model = chat(**{text: [sending(40)] for text in texts}, hello=["Hi."])
    guarded_agent = agent(model, collecting(records=records_of("reviews.db")))
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for text in texts:
            for message in (text, "hello"):
                ask(guarded_agent, message, text)
                bridge.enqueue(guarded_agent, thread(text))


OF_REVIEWS = ("--records", records_of("reviews.db"))
OF_OTHERS = ("--records", records_of("others.db"))


def test_calls_that_nobody_decided_are_named_as_the_cause() -> None:
    """Thirty approvals and ten users who wrote "hello?" read as a bad model, and the table did not show the ten."""
    abandon_transfers(cases(6, "left"))
    approve_transfers(cases(20))
    output = learn("reviews.db", *OF_REVIEWS, *FIT, "transfers.json")
    assert counts(output) == {"approved": 20, "edited": 0, "rejected": 0, "open": 0, "undecided": 6, "all": 26}
    assert "6 of 26 calls are undecided and count as wrong" in output
    assert "--missing leave-out leaves them out" in output
    assert "better" not in output
    assert "another score" not in output
    assert "use it" not in output, "there is no gate to use"
    undecided = [record.is_undecided for record in read_records("transfers.records.jsonl").records]
    assert undecided == [True] * 6 + [False] * 20
    output = learn("reviews.db", *OF_REVIEWS, "--missing", "leave-out", *FIT, "transfers.json")
    assert "use it in your guard: tools={'transfer': 'transfers.json', ...} in place of 'collect'" in output


@pytest.fixture
def two_agents(in_a_folder: None) -> None:
    """Stores of two agents, and a gate learned from each."""
    approve_transfers(cases(20))
    approve_transfers(cases(20, "other"), "others.db")
    learn("reviews.db", *OF_REVIEWS, *FIT, "a.json")
    output = learn("others.db", *OF_OTHERS, *FIT, "b.json")
    assert "fits have used these labels" not in output


@pytest.mark.usefixtures("two_agents")
def test_stores_of_two_agents_share_no_file_and_no_ledger() -> None:
    """The second agent's learning overwrote the first one's labels, and halved a confidence that it did not share."""
    assert [len(read_records(f"{name}.records.jsonl").records) for name in "ab"] == [20, 20]
    refused = learn("others.db", *OF_OTHERS, *FIT, "a.json", code=2)
    assert "a.records.jsonl holds none of these decisions" in refused
    assert "--out" in refused
    assert read_records("a.records.jsonl").records[0].question == "case 0"


@pytest.mark.usefixtures("two_agents")
def test_another_name_of_the_file_does_not_make_labels_new() -> None:
    """Fits under new names until one succeeds are a selection, whose promise is weaker."""
    assert "2 fits have used these labels" in learn("reviews.db", *OF_REVIEWS, "--alpha", "0.3", "--out", "c.json")


def test_of_two_people_who_disagree_about_equal_calls_the_stricter_counts() -> None:
    """The fit refused both labels, and a decision is final: nothing could be learned about the tool any more."""
    approve_transfers(cases(20))
    guarded_agent = agent(chat(again=[sending(40)]), collecting(records=records_of("reviews.db")))
    with ReviewStore("reviews.db") as store:
        for name, decision in (("a", Decision(action="approve")), ("b", Decision(action="reject"))):
            ask(guarded_agent, "again", name)
            (item,) = ReviewBridge(store).enqueue(guarded_agent, thread(name))
            decide_in(store, item, decision)
    output = learn("reviews.db", *OF_REVIEWS, "--alpha", "0.3", "--out", "gate.json")
    assert "1 approved messages count as wrong: equal ones were rejected or edited." in output
    labels = [record.correct for record in read_records("gate.records.jsonl").records]
    assert (labels.count(True), labels.count(False)) == (20, 2)


def test_without_a_threshold_the_next_step_is_more_decisions() -> None:
    """Eight right calls prove no error rate below a fifth, however good the model is."""
    approve_transfers(cases(8))
    assert "Next: decide about more calls" in learn("reviews.db", *OF_REVIEWS, *FIT, "transfers.json")


def test_a_gate_knows_the_turns_after_a_tool_has_run() -> None:
    """The artifact knew turns that no conversation has, so that the predicate asked about every call."""
    texts = cases(20)
    steps: dict[tuple[str, int], Sequence[Any]] = {}
    for text in texts:  # it reads a balance before each transfer
        steps |= {(text, 0): [calls(("balance", {"account": "a"}))], (text, 1): [sending(40)], (text, 2): ["Done."]}
    model = Greedy(steps=steps)
    collected = agent(model, collecting())
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for text in texts:
            ask(collected, text, text)
            (item,) = bridge.enqueue(collected, thread(text))
            decide_in(store, item, Decision(action="approve"))
    learn("reviews.db", *FIT, "g.json")
    gate = GuardrailMiddleware(tools={"transfer": "g.json", "close": "collect"}, exempt=["balance"])
    assert "__interrupt__" not in ask(agent(model, gate), "case 1", "new")
    policy: Any = {"when": unsure("g.json", model), "allowed_decisions": ["approve"]}
    assert "__interrupt__" not in ask(agent(model, HumanInTheLoopMiddleware({"transfer": policy})), "case 2", "new")


def test_decisions_whose_samples_lie_elsewhere_name_the_records_that_were_read() -> None:
    """The default file was read, and the message sent people to decide about what they had decided."""
    approve_transfers(cases(2))
    approve_transfers(cases(2, "other"), "others.db")
    refused = learn("reviews.db", *OF_OTHERS, code=2)
    assert "none of the 2 reviews in reviews.db belongs to a record of others.agent.jsonl" in refused
    assert "--records FILE" in refused


def test_a_misspelt_tool_is_told_from_one_that_nobody_decided_about() -> None:
    """The user would wait for decisions that were made."""
    approve_transfers(cases(2))
    refused = learn("reviews.db", *OF_REVIEWS, tool="transfr", code=2)
    assert "reviews.db has no call of 'transfr'. Did you mean 'transfer'? It has: transfer." in refused


def test_the_item_that_others_wait_for_is_named_with_its_holder() -> None:
    """Decisions count in the order of the messages; who holds the first one up must be found."""
    guarded_agent = agent(chat(**{name: [sending(40)] for name in cases(4)}), collecting())
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for name in cases(4):
            ask(guarded_agent, name, name)
            bridge.enqueue(guarded_agent, thread(name))
        first, *others = store.items()
        for item in others:
            decide_in(store, item, Decision(action="approve"))
        store.claim("bob", item=first.id)
    output = learn("reviews.db", code=2)
    assert "none of the 4 decisions about 'transfer' can be used yet; 1 are open. 3 decisions wait" in output
    assert f"behind item {first.id} (/items/{first.id} on the review page, where bob holds it until 20" in output


# -- decisions about answers -------------------------------------------------------------------------------------------

TOOL_NAMES = ["balance", "transfer", "close"]
SURE, UNSURE = cases(20, "plain"), cases(6, "odd")


def answering() -> AgentChat:
    """Says always the same to plain questions, and never the same to odd ones."""
    guesses = {text: [f"guess {text}", *(f"other {text} {number}" for number in range(9))] for text in UNSURE}
    return chat(**{text: [f"word {text}"] for text in SURE}, **guesses)


def collect_answers(model: AgentChat, decisions: dict[str, Any]) -> Any:
    """An agent without any artifact, after people's decisions about its answers to these questions."""
    guarded_agent = agent(model, GuardrailMiddleware("collect", exempt=TOOL_NAMES))
    with ReviewStore("reviews.db") as store:
        bridge = ReviewBridge(store)
        for text, action in decisions.items():
            ask(guarded_agent, text, text)
            (item,) = bridge.enqueue(guarded_agent, thread(text))
            decide_in(store, item, Decision(action=action))
    return guarded_agent


def test_an_answer_that_collects_waits_and_goes_out_when_it_is_approved() -> None:
    """The reviewer must not see the samples, which would sway the label, and the user must get the answer."""
    guarded_agent = collect_answers(answering(), {"plain 1": "approve"})
    with ReviewStore("reviews.db") as store:
        (item,) = store.items()
        assert (item.content.kind, item.content.blind) == ("answer", True)
        result = ReviewBridge(store).resume(guarded_agent, thread("plain 1"))
    assert result is not None
    assert result["messages"][-1].text == "word plain 1"


def test_decisions_about_answers_become_a_gate_on_answers() -> None:
    """From an agent without any artifact to a gate: approved answers were right, all others wrong."""
    model = answering()
    collect_answers(model, dict.fromkeys(SURE, "approve") | dict.fromkeys(UNSURE, "reject"))
    output = learn("reviews.db", "--alpha", "0.3", "--out", "answers.json", tool="answer")
    assert "use it in your guard: artifact='answers.json' in place of 'collect'" in output
    labels = [record.correct for record in read_records("answers.records.jsonl").records]
    assert (labels.count(True), labels.count(False)) == (len(SURE), len(UNSURE))
    gated = agent(model, GuardrailMiddleware("answers.json", exempt=TOOL_NAMES, on_abstain="message"))
    assert ask(gated, "plain 2", "a")["messages"][-1].text == "word plain 2"
    assert ask(gated, "odd 2", "b")["messages"][-1].text == ABSTENTION


def test_answers_have_no_arguments_to_compare() -> None:
    """The flag would be ignored, and the user would trust a comparison that was never made."""
    collect_answers(answering(), {"plain 1": "approve"})
    assert "--compare and --model are about calls" in learn("reviews.db", "--compare", "to", tool="answer", code=2)


def test_answers_of_an_agent_with_a_tool_named_answer_are_refused() -> None:
    """Decisions about its calls would count for its answers."""
    collect_answers(answering(), {"plain 1": "approve"})
    recorded = read_records("agent.records.jsonl")
    bindings = recorded.header.plan.bindings
    assert bindings is not None
    tool = {"type": "function", "function": {"name": "answer", "parameters": {}}}
    with_tool = bindings.model_copy(update={"tools": (*bindings.tools, tool)})
    plan = recorded.header.plan.model_copy(update={"bindings": with_tool})
    write_records(recorded.path, recorded.header.model_copy(update={"plan": plan}), recorded.records)
    assert "the agent has a tool named 'answer'" in learn("reviews.db", tool="answer", code=2)
