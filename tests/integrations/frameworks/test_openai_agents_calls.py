"""Tool calls in the OpenAI Agents SDK: which run, which wait for a person, and what a decision makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

pytest.importorskip("agents", reason="openai-agents is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from agents import Agent, ModelSettings, Runner, RunState

from calibrate.data.records import read_records
from calibrate.reviews.steps import reviews_of_store
from guardrail.errors import UsageError
from guardrail.review import Candidate, Decision, ReviewStore
from integrations._agents.decisions import ANSWERED
from integrations._agents.held import MessageNote, ToolCallOrder
from integrations.openai_agents_guard import Approvals, GuardedModel, ReviewBridge, VerdictStore, agent_bindings
from tests.integrations.frameworks.cases import (
    EDIT,
    OUTCOMES,
    SPELLED,
    SURE,
    TO_THE_USER,
    UNSURE,
    Reply,
    decide_in,
)
from tests.integrations.frameworks.openai_agents_fakes import (
    DRAWN,
    Bank,
    City,
    Scripted,
    Twice,
    agent,
    artifact,
    guarded,
    reloaded,
    run,
    tool_outputs,
)

pytestmark = pytest.mark.usefixtures("no_traces")


APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}


def waiting_bank(inner: Scripted | None = None, **options: Any) -> Bank:
    """A bank whose unsure payment waits for a person."""
    return Bank(inner or Scripted(UNSURE, ["Done"]), on_abstain="review", **options)


# -- which calls run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposals", [SURE, SPELLED])
def test_a_sure_call_runs_and_numbers_are_canonical(proposals: list[Reply]) -> None:
    """Samples that say 5 and 5.0 agree; counted apart, a sure payment would wait."""
    bank = Bank(Scripted(proposals, ["Done"]))
    result = run(bank.agent(), "Pay 5")
    assert (result.final_output, bank.paid, result.interruptions) == ("Done", [5], [])
    assert len(bank.inner.calls) == 2 * DRAWN  # the call, and the answer after it


def test_without_a_person_an_unsure_call_is_not_even_proposed() -> None:
    """A call in the conversation would be run by the application or another agent."""
    bank = Bank(Scripted(UNSURE, ["Done"]), abstain_message="Not sure.")
    result = run(bank.agent(), "Pay 5")
    assert (result.final_output, bank.paid) == ("Not sure.", [])


def test_a_held_call_needs_a_tool_that_waits() -> None:
    """The SDK would run the call of a plain tool at once."""
    bank = waiting_bank()
    with pytest.raises(UsageError, match="would run held-back calls"):
        run(agent(bank.model, tools=[bank.pay_tool(), bank.model.answer_tool]), "Pay 5")
    assert bank.paid == []


def test_a_tool_that_waits_for_another_guard_does_not_wait_for_this_one() -> None:
    """There the tool is exempt, so the call that is held here would run."""
    bank = waiting_bank()
    calibrated = artifact(bank.inner, bindings=bank.bindings)
    other = GuardedModel(bank.inner, calibrated, exempt=["pay"], probe="off", on_abstain="review")
    with pytest.raises(UsageError, match="would run held-back calls"):
        run(agent(bank.model, tools=[other.tool(bank.pay_tool()), bank.model.answer_tool]), "Pay 5")
    assert bank.paid == []


def exempting(bank: Bank, *answers: Any, **tools: Any) -> Any:
    """A guard of the bank's model whose payments are exempt."""
    return GuardedModel(bank.inner, *answers, tools=tools, exempt=["pay"], probe="off", on_abstain="review")


def test_exempt_tools_run_without_a_check_and_answers_without_an_artifact_pass() -> None:
    """Samples behind what needs no verdict would be paid for nothing."""
    bank = Bank(Scripted(UNSURE, ["a", "b", "c", "d", "e"]))
    bank.model = exempting(bank, None, **{"*": artifact(bank.inner, bindings=bank.bindings)})
    result = run(bank.agent(output_guardrails=[bank.model.output_guardrail]), "Pay 5")
    assert (result.final_output, bank.paid, len(bank.inner.calls)) == ("a", [5], 2)


def test_an_answer_after_an_exempt_call_is_judged_where_there_is_an_artifact_for_answers() -> None:
    """The exemption of a tool must not let the unsure answer after it out."""
    bank = Bank(Scripted(UNSURE, ["a", "b", "c", "d", "e"]))
    bank.model = exempting(bank, artifact(bank.inner, bindings=bank.bindings))
    result = run(bank.agent(), "Pay 5")
    assert (result.final_output, bank.paid, len(result.interruptions)) == (None, [5], 1)


def test_a_checked_tool_runs_no_call_whose_verdict_is_not_known() -> None:
    """The tool's own approval can get lost on the way; the check inside the tool stays."""
    bank = waiting_bank(Scripted(SURE, ["Done"]))
    tool = bank.model.tool(bank.pay_tool())
    guarded_agent = agent(bank.model, tools=[tool, bank.model.answer_tool])
    assert run(guarded_agent, "Pay 5").final_output == "Done"
    bank.model._gate.verdicts.find = lambda _: None
    tool.needs_approval = False
    result = run(guarded_agent, "Pay 5")
    assert "was not run" in str(result.new_items[1].output)
    assert bank.paid == [5]


# -- a person's decisions ----------------------------------------------------------------------------------------------


async def decide_about_a_call(bank: Bank, guarded_agent: Agent[Any], result: Any, kind: str) -> None:
    """Decide as `OUTCOMES` says, and check what is paid and what the model reads."""
    decision, paid, begins = OUTCOMES[kind]
    (request,) = await bank.model.review_requests(result)
    assert request["question"] == "Pay what I owe"
    assert request["candidate"]["tool_calls"] == [{"name": "pay", "args": {"amount": 5}}]
    before = len(bank.inner.calls)
    done = await bank.model.resume(guarded_agent, result, {request["call_id"]: decision})
    assert (done.final_output, bank.paid) == ("Done", paid)
    (output,) = tool_outputs(bank.inner.calls[-1]["input"])
    assert output.startswith(begins)
    assert len(bank.inner.calls) - before == DRAWN  # the answer after it; nothing was drawn again for the call


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_person_approves_edits_rejects_or_responds(kind: str) -> None:
    """What the person says must happen to the payment, and the model must read it."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    await decide_about_a_call(bank, guarded_agent, await Runner.run(guarded_agent, "Pay what I owe"), kind)


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_a_person_decides_days_later_in_another_process(kind: str, tmp_path: Path) -> None:
    """The saved state alone does not know the verdict, nor that the call may run."""
    first = waiting_bank(verdicts=VerdictStore(tmp_path / "verdicts.sqlite"))
    written = (await Runner.run(first.agent(), "Pay what I owe")).to_state().to_string()
    bank = waiting_bank(verdicts=VerdictStore(tmp_path / "verdicts.sqlite"))
    guarded_agent = bank.agent()
    await decide_about_a_call(bank, guarded_agent, await RunState.from_string(guarded_agent, written), kind)
    assert first.paid == []


@pytest.mark.parametrize(
    "decision",
    [
        {"type": "lapse"},
        {"type": "edit", "edited_action": {"name": "quote", "args": {}}},
        {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": float("nan")}}},
        {"type": "respond", "message": " "},
    ],
)
async def test_a_decision_that_cannot_be_carried_out_is_refused_and_the_call_still_waits(decision: Any) -> None:
    """A slip of the reviewer's program would lose the payment, or run another."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    result = await Runner.run(guarded_agent, "Pay 5")
    (request,) = await bank.model.review_requests(result)
    with pytest.raises(ValidationError):
        await bank.model.decide(result, {request["call_id"]: decision})
    with pytest.raises(UsageError, match="no held-back call"):
        await bank.model.decide(result, {"another": APPROVE})
    assert (await bank.model.resume(guarded_agent, result, {request["call_id"]: EDIT})).final_output == "Done"
    assert bank.paid == [7]


async def test_the_last_decision_about_a_call_counts() -> None:
    """Who withdraws an edit by an approval must get the call as it was proposed."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    result = await Runner.run(guarded_agent, "Pay 5")
    (request,) = await bank.model.review_requests(result)
    await bank.model.decide(await reloaded(guarded_agent, result), {request["call_id"]: EDIT})
    approved = await bank.model.decide(await reloaded(guarded_agent, result), {request["call_id"]: APPROVE})
    assert (await Runner.run(guarded_agent, approved)).final_output == "Done"
    assert bank.paid == [5]


@pytest.mark.parametrize("decisions", [[EDIT, REJECT], [REJECT, EDIT]])
async def test_of_an_edit_and_a_rejection_at_once_the_proposed_call_does_not_run(decisions: list[Any]) -> None:
    """Two people decide about two copies of a saved state; neither approved the payment of 5."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    result = await Runner.run(guarded_agent, "Pay what I owe")
    (request,) = await bank.model.review_requests(result)
    states = [await reloaded(guarded_agent, result) for _ in decisions]
    for state, decision in zip(states, decisions, strict=True):
        await bank.model.decide(state, {request["call_id"]: decision})
    for state in states:
        await Runner.run(guarded_agent, state)
    assert bank.paid == [7]


async def test_another_process_without_the_store_runs_no_approved_call(caplog: pytest.LogCaptureFixture) -> None:
    """The state says that the call is approved, not how a person edited it: only the store knows that."""
    bank = waiting_bank()
    result = await Runner.run(bank.agent(), "Pay what I owe")
    (request,) = await bank.model.review_requests(result)
    written = (await bank.model.decide(result, {request["call_id"]: EDIT})).to_string()
    other = waiting_bank(Scripted(["Done"]))
    state = await RunState.from_string(other.agent(), written)
    assert ((await Runner.run(other.agent(), state)).final_output, other.paid) == ("Done", [])
    assert "give both the same VerdictStore(path)" in caplog.text


# -- the review queue --------------------------------------------------------------------------------------------------

PAY_SEVEN = Candidate.from_stored({"text": "", "tool_calls": [{"name": "pay", "arguments": {"amount": 7}}]})
DECIDED: dict[str, dict[str, Any]] = {
    "approve": {"action": "approve"},
    "edit": {"action": "edit", "candidate": PAY_SEVEN},
    "reject": {"action": "reject"},
    "respond": {"action": "respond", "text": OUTCOMES["respond"][0]["message"]},
}
"""The decisions of `OUTCOMES` in the words of the queue, whose reviewers write no reason for the model."""


class Clock:
    """The time of a review store."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> Iterator[ReviewStore]:
    with ReviewStore(tmp_path / "reviews.db", clock=clock) as store:
        yield store


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_people_decide_in_the_review_queue(kind: str, queue: ReviewStore) -> None:
    """A decision in the queue must be carried out once, as it was made, without the reviewer's note."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    bridge = ReviewBridge(queue)
    result = await Runner.run(guarded_agent, "Pay what I owe")
    (item,) = await bridge.enqueue(bank.model, result)
    assert [again.id for again in await bridge.enqueue(bank.model, result)] == [item.id]
    assert (item.content.question, item.content.kind) == ("Pay what I owe", "tool_call")
    assert await bridge.resume(bank.model, guarded_agent, result) is None  # nobody has decided
    decide_in(queue, item, Decision(note="Bob lies.", **DECIDED[kind]))
    done = await bridge.resume(bank.model, guarded_agent, result)
    _, paid, begins = OUTCOMES[kind]
    assert (done.final_output, bank.paid) == ("Done", paid)
    (output,) = tool_outputs(bank.inner.calls[-1]["input"])
    assert output.startswith(begins.removesuffix(" The reason: too much"))
    assert "Bob lies." not in repr(bank.inner.calls) + repr(done.to_input_list())
    assert await bridge.resume(bank.model, guarded_agent, result) is None  # it is carried out once
    assert "carried_out" in [event.what for event in queue.trail(item.id)]


async def test_a_call_that_nobody_decided_about_in_time_does_not_run(queue: ReviewStore, clock: Clock) -> None:
    """The run would wait for ever, or pay what nobody approved."""
    bank = waiting_bank()
    guarded_agent = bank.agent()
    bridge = ReviewBridge(queue, expires_in=60)
    result = await Runner.run(guarded_agent, "Pay what I owe")
    (item,) = await bridge.enqueue(bank.model, result)
    clock.now += 61
    done = await bridge.resume(bank.model, guarded_agent, result)
    assert (done.final_output, bank.paid) == ("Done", [])
    (output,) = tool_outputs(bank.inner.calls[-1]["input"])
    assert output.startswith("This call of pay was not run: Nobody decided in time.")
    assert await bridge.resume(bank.model, guarded_agent, result) is None
    assert "lapsed" in [event.what for event in queue.trail(item.id)]


async def test_calls_of_a_tool_without_an_artifact_wait_and_are_recorded(queue: ReviewStore, tmp_path: Path) -> None:
    """Who starts without labels gets them from the decisions: each must find its samples."""
    bank = Bank(Scripted(SURE, ["Done"]))
    records = tmp_path / "records.jsonl"
    bank.model = GuardedModel(bank.inner, tools={"pay": "collect"}, records=records, probe="off")
    guarded_agent = agent(bank.model, tools=[bank.model.tool(bank.pay_tool())])
    bridge = ReviewBridge(queue)
    result = await Runner.run(guarded_agent, "Pay what I owe")
    (item,) = await bridge.enqueue(bank.model, result)
    assert bank.paid == []
    decide_in(queue, item, Decision(action="edit", candidate=PAY_SEVEN))
    assert (await bridge.resume(bank.model, guarded_agent, result)).final_output == "Done"
    assert bank.paid == [7]
    file = read_records(records)
    (record,) = file.records
    assert item.content.verdict is not None
    assert (record.id, record.group) == (item.content.verdict.record, "Pay what I owe")
    assert (file.header.plan.bindings, file.header.prompt.system) == (bank.bindings, "Be brief.")
    (step,), others = reviews_of_store(queue, {record.id: record})
    assert (step.action, step.correct, step.reference) == ("edit", False, '[{"arguments":{"amount":7},"name":"pay"}]')
    assert (step.messages, others) == (({"role": "user", "content": "Pay what I owe"},), 0)


def test_collecting_needs_a_person() -> None:
    """Without one every call would be refused, and no label would ever come."""
    with pytest.raises(UsageError, match='needs on_abstain="review"'):
        GuardedModel(Scripted(SURE), tools={"pay": "collect"}, on_abstain="message")


# -- the person answers the user, and the turn ends --------------------------------------------------------------------


async def check_answered(bank: Bank, guarded_agent: Agent[Any], done: Any, before: int) -> None:
    """The user has the person's text, nothing ran or was drawn, and the next turn is the model's again."""
    assert (done.final_output, bank.paid, len(bank.inner.calls)) == ("Please call us.", [], before)
    next_turn: Any = [*done.to_input_list(), {"role": "user", "content": "Hello?"}]
    assert (await Runner.run(guarded_agent, next_turn)).final_output == "Done"
    outputs = tool_outputs(bank.inner.calls[-1]["input"])
    assert outputs[0] == ANSWERED
    assert all("a person answered the user" in output for output in outputs)


@pytest.mark.parametrize("proposing", [Scripted, Twice])
async def test_the_user_gets_the_persons_text_and_no_call_runs(proposing: type[Scripted]) -> None:
    """The model would rephrase the text, and could propose the payment again."""
    bank = waiting_bank(proposing(UNSURE, ["Done"]))
    guarded_agent = bank.agent(output_guardrails=[bank.model.output_guardrail])
    result = await Runner.run(guarded_agent, "Pay what I owe")
    before = len(bank.inner.calls)
    waiting = [request["call_id"] for request in await bank.model.review_requests(result)]
    state = await bank.model.decide(result, dict.fromkeys(waiting, TO_THE_USER))
    done = await Runner.run(guarded_agent, await RunState.from_string(guarded_agent, state.to_string()))
    await check_answered(bank, guarded_agent, done, before)


async def test_an_answer_to_the_user_in_the_queue_leaves_an_approval_beside_it_behind(queue: ReviewStore) -> None:
    """The payment would run after the user has read that a person takes over."""
    bank = waiting_bank(Twice(UNSURE, ["Done"]))
    guarded_agent = bank.agent(output_guardrails=[bank.model.output_guardrail])
    bridge = ReviewBridge(queue)
    result = await Runner.run(guarded_agent, "Pay what I owe")
    before = len(bank.inner.calls)
    first, second = await bridge.enqueue(bank.model, result)
    assert "answer" in first.content.allowed
    decide_in(queue, first, Decision(action="answer", text="Please call us."))
    decide_in(queue, second, Decision(action="approve"))
    done = await bridge.resume(bank.model, guarded_agent, result)
    assert [queue.trail(item.id)[-1].what for item in (first, second)] == ["carried_out", "lapsed"]
    await check_answered(bank, guarded_agent, done, before)


async def refuse(bank: Bank, guarded_agent: Agent[Any], *decisions: Any, match: str) -> list[str]:
    """Decisions about two payments are refused, and both still wait; the decisions that the first allows."""
    result = await Runner.run(guarded_agent, "Pay what I owe")
    requests = await bank.model.review_requests(result)
    call_ids = [request["call_id"] for request in requests]
    with pytest.raises((ValidationError, UsageError), match=match):
        await bank.model.decide(result, dict(zip(call_ids, decisions, strict=False)))
    await bank.model.decide(result, {call_id: REJECT for call_id in call_ids})
    assert (len(call_ids), bank.paid) == (2, [])
    allowed: list[str] = requests[0]["review_configs"][0]["allowed_decisions"]
    return allowed


@pytest.mark.parametrize("about_the_second", [[APPROVE], []])
async def test_a_text_for_the_user_is_refused_while_something_else_may_go_out(about_the_second: list[Any]) -> None:
    """The turn ends with the text, so a payment that is approved, or undecided, could not follow it."""
    bank = waiting_bank(Twice(UNSURE, ["Done"]))
    allowed = await refuse(bank, bank.agent(), TO_THE_USER, *about_the_second, match="ends the turn")
    assert "answer" in allowed


NOT_ALLOWED = "'answer' about 'pay' is not allowed"


async def test_an_agent_that_stops_at_a_tool_ends_no_turn_with_a_persons_text() -> None:
    """The run would end with the text that is meant for the model."""
    bank = waiting_bank(Twice(UNSURE, ["Done"]))
    guarded_agent = bank.agent(tool_use_behavior={"stop_at_tool_names": ["pay"]})
    assert "answer" not in await refuse(bank, guarded_agent, TO_THE_USER, APPROVE, match=NOT_ALLOWED)


async def test_an_agent_with_structured_answers_ends_no_turn_with_a_persons_text() -> None:
    """The application reads an object."""
    bank = waiting_bank(Twice(UNSURE, ["Done"]))
    bindings = await agent_bindings(agent(bank.inner, tools=[bank.pay_tool()], output_type=City))
    bank.model = guarded(bank.inner, bindings=bindings, on_abstain="review")
    guarded_agent = bank.agent(output_type=City)
    assert "answer" not in await refuse(bank, guarded_agent, TO_THE_USER, APPROVE, match=NOT_ALLOWED)


async def may_answer(bank: Bank, outer: Agent[Any], result: Any) -> bool:
    """Whether a person can answer the user about the payment that waits, now and after the state was written."""
    (now,) = await bank.model.review_requests(result)
    (later,) = await bank.model.review_requests(await reloaded(outer, result))
    assert later["review_configs"] == now["review_configs"]
    return "answer" in now["review_configs"][0]["allowed_decisions"]


async def test_an_agent_that_was_handed_over_to_answers_the_user() -> None:
    """It talks to the user, so a person can end its turn."""
    bank = waiting_bank(Scripted(["not asked"], UNSURE))  # the handoff is its first turn
    expert = bank.agent()
    expert.name = "bank"
    outer = agent(Scripted([("transfer_to_bank", {})]), handoffs=[expert])
    result = await Runner.run(outer, "Pay what I owe")
    assert await may_answer(bank, outer, result)
    (request,) = await bank.model.review_requests(result)
    done = await bank.model.resume(outer, result, {request["call_id"]: TO_THE_USER})
    assert (done.final_output, bank.paid) == ("Please call us.", [])


async def test_an_agent_that_is_another_agents_tool_does_not_answer_the_user() -> None:
    """The text would be a result for the outer agent, which would rephrase it."""
    bank = waiting_bank()
    nested = bank.agent().as_tool("ask", "Ask.")
    outer = agent(Scripted([("ask", {"input": "Pay"})], ["Paid."]), tools=[nested])
    assert not await may_answer(bank, outer, await Runner.run(outer, "Pay what I owe"))


async def answered_bank() -> tuple[Bank, str]:
    """A bank whose payment a person answered with a text for the user, and the id of that call."""
    bank = waiting_bank()
    result = await Runner.run(bank.agent(), "Pay what I owe")
    (request,) = await bank.model.review_requests(result)
    await bank.model.resume(bank.agent(), result, {request["call_id"]: TO_THE_USER})
    return bank, request["call_id"]


def history(question: str, call_id: str) -> list[Any]:
    """A conversation whose call has the very result that stands for a person's text."""
    call = {"type": "function_call", "name": "pay", "call_id": call_id, "arguments": '{"amount":5}'}
    output = {"type": "function_call_output", "call_id": call_id, "output": ANSWERED}
    return [{"role": "user", "content": question}, call, output]


async def test_a_text_for_the_user_is_not_given_out_in_another_conversation() -> None:
    """Eve would read what was meant for somebody else."""
    bank, call_id = await answered_bank()
    with pytest.raises(UsageError, match="no answer to this conversation"):
        await Runner.run(bank.agent(), history("Pay Eve", call_id))


async def test_the_result_of_an_unknown_call_gives_no_text_out() -> None:
    """Any tool can return the words that stand for a person's text."""
    bank, _ = await answered_bank()
    assert (await Runner.run(bank.agent(), history("Pay what I owe", "x"))).final_output == "Done"


async def test_the_result_of_an_exempt_call_gives_no_text_out() -> None:
    """The store knows the call, but nobody decided about it."""
    bank, _ = await answered_bank()
    order = ToolCallOrder.of({"name": "pay", "args": {"amount": 5}}, "exempt")
    bank.model._gate.verdicts.put("x", MessageNote(orders={"x": order}))
    assert (await Runner.run(bank.agent(), history("Pay what I owe", "x"))).final_output == "Done"


# -- approvals of an unguarded agent -----------------------------------------------------------------------------------


class ApprovingBank:
    """An unguarded agent whose payments need an approval unless the gate accepts them."""

    def __init__(self, amounts: Sequence[int], tmp_path: Path) -> None:
        self.bank = Bank(Scripted([("pay", {"amount": amount}) for amount in amounts], ["Done"]))
        self.approvals = Approvals(self.bank.inner, verdicts=tmp_path / "verdicts.sqlite")
        tool = self.bank.pay_tool()
        calibrated = artifact(self.bank.inner, bindings=self.bank.bindings)
        tool.needs_approval = self.approvals.unsure(calibrated, probe="off")
        self.agent = agent(self.bank.inner, tools=[tool], model_settings=ModelSettings(temperature=0))
        self.agent.hooks = self.approvals


def test_a_call_that_the_gate_accepts_needs_no_approval(tmp_path: Path) -> None:
    """A person who is asked about everything stops reading."""
    approving = ApprovingBank([5], tmp_path)
    result = run(approving.agent, "Pay Ada")
    assert (result.interruptions, approving.bank.paid) == ([], [5])


def test_a_call_that_the_gate_does_not_accept_needs_an_approval(tmp_path: Path) -> None:
    """It would be paid without anybody having seen it."""
    approving = ApprovingBank([1, 2, 3, 4, 5], tmp_path)
    result = run(approving.agent, "Pay Ada")
    (waiting,) = result.interruptions
    assert approving.bank.paid == []
    state = result.to_state()
    state.approve(waiting)
    assert run(approving.agent, state).final_output == "Done"
    assert approving.bank.paid == [1]


def test_without_the_hooks_a_person_is_asked_about_every_call(tmp_path: Path) -> None:
    """Nothing is known of the conversation, so nothing can be judged."""
    approving = ApprovingBank([5], tmp_path)
    approving.agent.hooks = None
    result = run(approving.agent, "Pay Ada")
    assert (len(result.interruptions), approving.bank.paid) == (1, [])
