"""The guard in the OpenAI Agents SDK, on the real runner with a scripted model."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel, ValidationError

pytest.importorskip("agents", reason="openai-agents is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from agents import (
    Agent,
    Model,
    ModelBehaviorError,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from agents.retry import ModelRetrySettings, RetryDecision, retry_policies
from agents.testing import assistant_message, function_call
from openai import AsyncOpenAI

from calibrate.data.records import read_records
from calibrate.reviews.steps import reviews_of_store
from guardrail import AbstainedError, Bindings, PromptWrapping, UnmeasuredError
from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, RouterArtifact
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.review import Candidate, Decision, ReviewStore
from guardrail.sampling.sampler import Sampler
from guardrail.testing import make_artifact
from integrations._agents.decisions import ANSWERED
from integrations._agents.framework_guard import APPROVED
from integrations._agents.held import MessageNote, ToolCallOrder
from integrations._frameworks.openai_agents_items import events_of, to_response
from integrations.openai_agents_guard import (
    AgentsModelChat,
    Approvals,
    GuardedModel,
    ReviewBridge,
    VerdictStore,
    agent_bindings,
)
from tests.integrations.frameworks.cases import (
    ANSWER_EDIT,
    EDIT,
    JSON_EDIT,
    OUTCOMES,
    REVIEWED,
    SPELLED,
    SURE,
    TO_THE_USER,
    UNSURE,
    UNSURE_TEXT,
    Reply,
    decide_in,
)
from tests.integrations.openai.scripted_server import SURE as SURE_QUESTION
from tests.integrations.openai.scripted_server import Served

N = 4


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


class Scripted(Model):
    """Answers turn by turn: greedy calls the first of a turn's answers, sampled calls the others in order."""

    model = "scripted"
    guardrail_trusted = True

    def __init__(self, *turns: Sequence[Reply]) -> None:
        self.turns = turns
        self.calls: list[dict[str, Any]] = []
        self._drawn: dict[int, int] = {}

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *rest: Any, **named: Any
    ) -> ModelResponse:
        turn = sum(isinstance(item, dict) and item.get("type") == "function_call_output" for item in input)
        answers = self.turns[min(turn, len(self.turns) - 1)]
        settings = copy.deepcopy(model_settings)
        self.calls.append({"system": system_instructions, "input": input, "settings": settings, "tools": tools})
        if model_settings.temperature == 0:
            reply = answers[0]
        else:
            place = self._drawn[turn] = self._drawn.get(turn, -1) + 1
            others = answers[1:] or answers
            reply = others[place % len(others)]
        item = (
            assistant_message(reply) if isinstance(reply, str) else function_call(*reply, call_id=f"inner{place_of()}")
        )
        usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
        return ModelResponse(output=[item], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise AssertionError("a guard never streams from the inner model")


def run(starting_agent: Agent[Any], prompt: Any, **options: Any) -> Any:
    """`Runner.run_sync`, which leaves its event loop open, without that."""
    return asyncio.run(Runner.run(starting_agent, prompt, **options))


_places = iter(range(10**6))


def place_of() -> int:
    return next(_places)


TURNS = ("human", "human,ai,human", "human,ai,human,ai,human")


def artifact(inner: Model, **options: Any) -> CalibrationArtifact:
    return make_artifact(AgentsModelChat(model=inner), n=N, **{"turns": TURNS, **options})


def guarded(inner: Model, *, bindings: Bindings | None = None, system: str | None = "Be brief.", **options: Any) -> Any:
    fitted = {name: options.pop(name) for name in ("estimator", "threshold", "turns") if name in options}
    calibrated = artifact(inner, bindings=bindings, prompt=PromptWrapping(system=system), **fitted)
    options = {"on_abstain": "message", **options}
    return GuardedModel(inner, calibrated, probe="off", **options)


def agent(model: Model, **options: Any) -> Agent[Any]:
    return Agent(name="one", instructions="Be brief.", model=model, **options)


async def test_a_sure_answer_is_given_out_and_all_calls_are_counted() -> None:
    inner = Scripted(["Paris", "Paris", "paris", "Paris.", "Paris"])
    result = await Runner.run(agent(guarded(inner)), "Capital of France?")
    assert result.final_output == "Paris"
    assert len(inner.calls) == N + 1
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (N + 1, 10 * (N + 1), 2 * (N + 1))


async def test_what_the_inner_model_is_asked_is_the_request_with_the_plans_settings() -> None:
    inner = Scripted(["Paris"])
    settings = ModelSettings(metadata={"who": "me"}, timeout=5.0)
    before = copy.deepcopy(settings)
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    conversation: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}]
    await Runner.run(agent(guarded(inner), model_settings=settings), copy.deepcopy(conversation))
    temperatures = sorted(call["settings"].temperature for call in inner.calls)
    assert temperatures == [0.0, 0.7, 0.7, 0.7, 0.7]
    assert {call["settings"].top_p for call in inner.calls if call["settings"].temperature} == {0.9}
    assert {call["settings"].max_tokens for call in inner.calls} == {256}
    assert all(call["settings"].metadata == {"who": "me"} for call in inner.calls)
    assert all(call["input"] == conversation and call["system"] == "Be brief." for call in inner.calls)
    assert settings == before


async def test_an_unsure_answer_abstains_and_the_candidate_is_nowhere() -> None:
    model = guarded(Scripted(["Rome", "Oslo", "Bern", "Riga", "Kiev"]), abstain_message="Not sure.")
    result = await Runner.run(agent(model), "Capital of Atlantis?")
    assert result.final_output == "Not sure."
    assert "Rome" not in json.dumps(result.to_input_list())


RETRIES: dict[str, Any] = {
    "always": lambda context: True,
    "unsafe, too": lambda context: RetryDecision(retry=True, approve_unsafe_replay=True),
    "of the SDK": retry_policies.any(retry_policies.provider_suggested(), lambda context: True),
}


def retrying(policy: Any) -> ModelSettings:
    return ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=policy, backoff={"initial_delay": 0.0}))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("policy", RETRIES)
async def test_the_runner_does_not_retry_a_measured_abstention(policy: str, streamed: bool) -> None:
    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])  # certain of Rome when asked again
    model = guarded(inner, on_abstain="raise")
    guarded_agent = agent(model, model_settings=retrying(RETRIES[policy]))

    async def ask() -> None:
        if streamed:
            [event async for event in Runner.run_streamed(guarded_agent, "Capital of Atlantis?").stream_events()]
        else:
            await Runner.run(guarded_agent, "Capital of Atlantis?")

    with pytest.raises(AbstainedError) as caught:
        await ask()
    assert not isinstance(caught.value, UnmeasuredError)
    assert len(inner.calls) == N + 1


async def test_the_runner_may_retry_what_could_not_be_measured() -> None:
    class Back(Scripted):
        async def get_response(self, *options: Any, **named: Any) -> ModelResponse:
            response = await super().get_response(*options, **named)
            if len(self.calls) <= N + 1:
                raise ConnectionError("down")
            return response

    inner = Back(["Paris"])
    guarded_agent = agent(guarded(inner, on_abstain="raise"), model_settings=retrying(RETRIES["always"]))
    assert (await Runner.run(guarded_agent, "Capital of France?")).final_output == "Paris"
    assert len(inner.calls) == 2 * (N + 1)


async def test_the_runner_does_not_draw_again_when_the_abstention_path_fails() -> None:
    def unreachable(_: Any) -> str:
        raise ConnectionError("nobody there")

    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])
    guarded_agent = agent(guarded(inner, on_abstain=unreachable), model_settings=retrying(RETRIES["always"]))
    with pytest.raises(ConnectionError):
        await Runner.run(guarded_agent, "Capital of Atlantis?")
    assert len(inner.calls) == N + 1


async def test_the_output_guardrail_trips_on_an_abstention_and_on_what_was_never_judged() -> None:
    sure, unsure = ["Paris"], ["Rome", "Oslo", "Bern", "Riga", "Kiev"]
    for answers, trips in ((sure, False), (unsure, True)):
        model = guarded(Scripted(answers))
        guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
        if not trips:
            assert (await Runner.run(guarded_agent, "?")).final_output == "Paris"
            continue
        with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
            await Runner.run(guarded_agent, "?")
        assert caught.value.guardrail_result.guardrail.get_name() == "guardrail"
        info = caught.value.guardrail_result.output.output_info
        assert info["guardrail_accepted"] is False
        assert "Rome" not in json.dumps(info)
    model = guarded(Scripted(sure))
    bypassed = RunConfig(model=Scripted(["Unjudged"]))
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent(model, output_guardrails=[model.output_guardrail]), "?", run_config=bypassed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_accepted_answer_to_one_question_lets_nobody_answer_another(streamed: bool) -> None:
    model = guarded(Scripted(["Yes"]))
    guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
    other = RunConfig(model=guarded(Scripted(["Yes"])))

    async def ask(prompt: Any, **options: Any) -> Any:
        if not streamed:
            return (await Runner.run(guarded_agent, prompt, **options)).final_output
        result = Runner.run_streamed(guarded_agent, prompt, **options)
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert await ask("Is it Paris?") == "Yes"
    earlier: Any = [{"role": "user", "content": "Is it Paris?"}, {"role": "assistant", "content": "Yes"}]
    again: Any = [*earlier, {"role": "user", "content": "Is it Rome?"}]
    for prompt in ("Is it Rome?", again):
        with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
            await ask(prompt, run_config=other)
        assert caught.value.guardrail_result.output.output_info["guardrail_reason"] == "not_judged"
    assert await ask(again) == "Yes"


async def test_the_output_guardrail_knows_answers_of_a_session() -> None:
    model = guarded(Scripted(["Yes"]))
    guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
    session = SQLiteSession("one")
    try:
        for question in ("Is it Paris?", "Is it Rome?"):
            assert (await Runner.run(guarded_agent, question, session=session)).final_output == "Yes"
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await Runner.run(
                guarded_agent, "Is it Oslo?", session=session, run_config=RunConfig(model=Scripted(["Yes"]))
            )
    finally:
        session.close()


@pytest.mark.parametrize("sure", [True, False])
async def test_a_stream_begins_after_the_verdict_and_holds_the_accepted_candidate_only(sure: bool) -> None:
    answers: list[Reply] = ["Paris is it"] if sure else ["Rome", "Oslo", "Bern", "Riga", "Kiev"]
    inner = Scripted(answers)
    result = Runner.run_streamed(agent(guarded(inner, abstain_message="Not sure.")), "?")
    deltas, calls_at_first = [], None
    events = ""
    async for event in result.stream_events():
        events += repr(event)
        if event.type == "raw_response_event":
            calls_at_first = calls_at_first or len(inner.calls)
            if event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
    assert calls_at_first == N + 1
    assert "".join(deltas) == result.final_output == ("Paris is it" if sure else "Not sure.")
    assert sure or "Rome" not in events
    assert result.context_wrapper.usage.output_tokens == 2 * (N + 1)


def test_every_event_of_a_stream_is_as_the_sdk_describes() -> None:
    message = AIMessage("Paris", tool_calls=[{"name": "pay", "args": {"amount": 5}, "id": "c1"}])
    events = list(events_of(to_response(message, 1), "m"))
    assert [event.type for event in events][:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    for event in events:
        type(event).model_validate(event.model_dump())
    begun = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.status for item in begun if item.type in ("message", "function_call")] == ["in_progress"] * 2


# -- tools -------------------------------------------------------------------------------------------------------------


class Bank:
    """An agent with one tool that cannot be undone."""

    def __init__(self, inner: Scripted, **options: Any) -> None:
        self.inner = inner
        self.paid: list[int] = []
        blank = self._tool()
        self.bindings = asyncio.run(agent_bindings(agent(inner, tools=[blank])))
        self.model = guarded(inner, bindings=self.bindings, **options)

    def _tool(self) -> Any:
        def pay(amount: int) -> str:
            """Pay an amount."""
            self.paid.append(amount)
            return f"paid {amount}"

        return function_tool(pay)

    def agent(self) -> Agent[Any]:
        return agent(self.model, tools=[self.model.tool(self._tool()), self.model.answer_tool])


def test_a_sure_call_runs_and_numbers_are_canonical() -> None:
    for proposals in (SURE, SPELLED):
        bank = Bank(Scripted(proposals, ["Done"]))
        result = run(bank.agent(), "Pay 5")
        assert (result.final_output, bank.paid, result.interruptions) == ("Done", [5], [])
        assert len(bank.inner.calls) == 2 * (N + 1)


def test_by_default_an_unsure_call_is_not_even_proposed() -> None:
    bank = Bank(Scripted(UNSURE, ["Done"]), abstain_message="Not sure.")
    result = run(bank.agent(), "Pay 5")
    assert (result.final_output, bank.paid) == ("Not sure.", [])


def test_a_held_call_needs_a_tool_that_waits() -> None:
    bank = Bank(Scripted(UNSURE), on_abstain="review")
    with pytest.raises(UsageError, match="would run held-back calls"):
        run(agent(bank.model, tools=[bank._tool(), bank.model.answer_tool]), "Pay 5")
    assert bank.paid == []


def test_a_tool_that_waits_for_another_guard_does_not_wait_for_this_one() -> None:
    """There the tool is exempt, so the call that is held here would run."""
    bank = Bank(Scripted(UNSURE), on_abstain="review")
    fitted = artifact(bank.inner, bindings=bank.bindings, prompt=PromptWrapping(system="Be brief."))
    other = GuardedModel(bank.inner, fitted, exempt=["pay"], probe="off", on_abstain="review")
    with pytest.raises(UsageError, match="would run held-back calls"):
        run(agent(bank.model, tools=[other.tool(bank._tool()), bank.model.answer_tool]), "Pay 5")
    assert bank.paid == []


def test_exempt_tools_run_without_a_check_and_answers_without_an_artifact_pass() -> None:
    proposals: list[Reply] = [("pay", {"amount": n}) for n in (5, 50, 500, 55, 505)]
    bank = Bank(Scripted(proposals, ["a", "b", "c", "d", "e"]), on_abstain="review")
    calibrated = artifact(bank.inner, bindings=bank.bindings, prompt=PromptWrapping(system="Be brief."))
    options: Any = {"probe": "off", "on_abstain": "review"}
    bank.model = GuardedModel(bank.inner, tools={"*": calibrated}, exempt=["pay"], **options)
    guarded_agent = bank.agent()
    guarded_agent.output_guardrails = [bank.model.output_guardrail]
    assert (run(guarded_agent, "Pay 5").final_output, bank.paid) == ("a", [5])
    assert len(bank.inner.calls) == 2
    bank.model = GuardedModel(bank.inner, calibrated, tools={}, exempt=["pay"], **options)
    assert run(bank.agent(), "Pay 5").final_output != "a"  # now answers are judged


# -- a person's decisions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_person_approves_edits_rejects_or_responds(kind: str, saved: bool, tmp_path: Path) -> None:
    decision, paid, expected_start = OUTCOMES[kind]
    store = tmp_path / "verdicts.sqlite"
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review", verdicts=VerdictStore(store))
    guarded_agent = bank.agent()
    result: Any = run(guarded_agent, "Pay what I owe")
    if saved:  # days later, in another process
        written = result.to_state().to_string()
        bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review", verdicts=VerdictStore(store))
        guarded_agent = bank.agent()
        result = asyncio.run(RunState.from_string(guarded_agent, written))
    (value,) = asyncio.run(bank.model.review_requests(result))
    assert (value["question"], value["candidate"]["tool_calls"]) == (
        "Pay what I owe",
        [{"name": "pay", "args": {"amount": 5}}],
    )
    drawn = len(bank.inner.calls)
    done = asyncio.run(bank.model.resume(guarded_agent, result, {value["call_id"]: decision}))
    assert (done.final_output, bank.paid) == ("Done", paid)
    (tool_output,) = [i["output"] for i in bank.inner.calls[-1]["input"] if i.get("type") == "function_call_output"]
    assert tool_output.startswith(expected_start)
    assert len(bank.inner.calls) - drawn == N + 1  # the answer after it; nothing was drawn again for the call


@pytest.mark.parametrize(
    "decision",
    [
        {"type": "lapse"},
        {"type": "edit", "edited_action": {"name": "quote", "args": {}}},
        {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": float("nan")}}},
        {"type": "respond", "message": " "},
    ],
)
def test_a_decision_that_cannot_be_carried_out_is_refused_and_the_call_still_waits(decision: dict[str, Any]) -> None:
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    guarded_agent = bank.agent()
    result = run(guarded_agent, "Pay 5")
    (value,) = asyncio.run(bank.model.review_requests(result))
    with pytest.raises(ValidationError):
        asyncio.run(bank.model.decide(result, {value["call_id"]: decision}))
    with pytest.raises(UsageError, match="no held-back call"):
        asyncio.run(bank.model.decide(result, {"another": {"type": "approve"}}))
    assert asyncio.run(bank.model.resume(guarded_agent, result, {value["call_id"]: EDIT})).final_output == "Done"
    assert bank.paid == [7]


def test_the_last_decision_about_a_call_counts() -> None:
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    guarded_agent = bank.agent()
    written = run(guarded_agent, "Pay 5").to_state().to_string()

    async def decided(decision: dict[str, Any]) -> Any:
        state = await RunState.from_string(guarded_agent, written)
        (value,) = await bank.model.review_requests(state)
        return await bank.model.decide(state, {value["call_id"]: decision})

    asyncio.run(decided(EDIT))
    assert run(guarded_agent, asyncio.run(decided({"type": "approve"}))).final_output == "Done"
    assert bank.paid == [5]


def test_a_checked_tool_runs_accepted_calls_and_no_others() -> None:
    bank = Bank(Scripted(SURE, ["Done"]), on_abstain="review")
    tool = bank.model.tool(bank._tool())
    assert run(agent(bank.model, tools=[tool, bank.model.answer_tool]), "Pay 5").final_output == "Done"
    bank.model._gate.verdicts.find = lambda _: None
    tool.needs_approval = False  # as a tool that lost its approval would be
    result = run(agent(bank.model, tools=[tool, bank.model.answer_tool]), "Pay 5")
    assert "was not run" in str(result.new_items[1].output)
    assert bank.paid == [5]


@pytest.mark.parametrize("kind", [*OUTCOMES, "expired"])
def test_people_decide_in_the_review_queue(kind: str, tmp_path: Path) -> None:
    now = [1000.0]
    store = ReviewStore(tmp_path / "reviews.db", clock=lambda: now[0])
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    guarded_agent, bridge = bank.agent(), ReviewBridge(store, expires_in=60)
    result = run(guarded_agent, "Pay what I owe")
    for _ in range(2):
        (item,) = asyncio.run(bridge.enqueue(bank.model, result))  # the second time nothing is added
    assert (item.content.question, item.content.kind) == ("Pay what I owe", "tool_call")
    if kind != "expired":
        assert asyncio.run(bridge.resume(bank.model, guarded_agent, result)) is None
        decision, paid, expected_start = OUTCOMES[kind]
        call = Candidate.from_stored({"text": "", "tool_calls": [{"name": "pay", "arguments": {"amount": 7}}]})
        more: Any = {"edit": {"candidate": call}, "respond": {"text": decision.get("message")}}.get(kind, {})
        decide_in(store, item, Decision(action=kind, note="Bob lies.", **more))
    else:
        now[0] = 1061.0
        paid, expected_start = [], "This call of pay was not run: Nobody decided in time."
    done = asyncio.run(bridge.resume(bank.model, guarded_agent, result))
    assert (done.final_output, bank.paid) == ("Done", paid)
    (tool_output,) = [i["output"] for i in bank.inner.calls[-1]["input"] if i.get("type") == "function_call_output"]
    assert tool_output.startswith(expected_start.removesuffix(" The reason: too much"))
    assert "Bob lies." not in repr(bank.inner.calls) + repr(done.to_input_list())  # the note is for reviewers alone
    assert asyncio.run(bridge.resume(bank.model, guarded_agent, result)) is None  # it is carried out once
    assert ("lapsed" if kind == "expired" else "carried_out") in [event.what for event in store.trail(item.id)]


def test_calls_of_a_tool_without_an_artifact_wait_and_are_recorded(tmp_path: Path) -> None:
    inner, bank, store = Scripted(SURE, ["Done"]), Bank(Scripted(SURE)), ReviewStore(tmp_path / "reviews.db")
    records = tmp_path / "records.jsonl"
    model = GuardedModel(inner, tools={"pay": "collect"}, records=records, probe="off")
    guarded_agent, bridge = agent(model, tools=[model.tool(bank._tool())]), ReviewBridge(store)
    result = run(guarded_agent, "Pay what I owe")
    (item,) = asyncio.run(bridge.enqueue(model, result))
    call = Candidate.from_stored({"text": "", "tool_calls": [{"name": "pay", "arguments": {"amount": 7}}]})
    decide_in(store, item, Decision(action="edit", candidate=call))
    assert bank.paid == []
    assert asyncio.run(bridge.resume(model, guarded_agent, result)).final_output == "Done"
    assert bank.paid == [7]
    file = read_records(records)
    (record,) = file.records
    assert item.content.verdict is not None
    assert (record.id, record.group) == (item.content.verdict.record, "Pay what I owe")
    assert (file.header.plan.bindings, file.header.prompt.system) == (bank.bindings, "Be brief.")
    (step,), others = reviews_of_store(store, {record.id: record})
    assert (step.action, step.correct, step.reference) == ("edit", False, '[{"arguments":{"amount":7},"name":"pay"}]')
    assert (step.messages, others) == (({"role": "user", "content": "Pay what I owe"},), 0)
    with pytest.raises(UsageError, match='needs on_abstain="review"'):
        GuardedModel(inner, tools={"pay": "collect"}, on_abstain="message")
    store.close()


# -- the person answers the user, and the turn ends --------------------------------------------------------------------


class Twice(Scripted):
    """Proposes two payments in one message."""

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        response = await super().get_response(*args, **named)
        if getattr(response.output[0], "name", "") == "pay":
            response.output.append(function_call("pay", {"amount": place_of()}, call_id=f"second{place_of()}"))
        return response


@pytest.mark.parametrize("inner", [Scripted, Twice])
@pytest.mark.parametrize("way", ["direct", "queue", "saved"])
async def test_the_user_gets_the_persons_text_and_no_call_runs(inner: Any, way: str, tmp_path: Path) -> None:
    store = tmp_path / "verdicts.sqlite"
    made = partial(Bank, inner(UNSURE, ["Done"]), on_abstain="review", verdicts=VerdictStore(store))
    bank = await asyncio.to_thread(made)
    bank_agent = bank.agent()
    bank_agent.output_guardrails = [bank.model.output_guardrail]
    result: Any = await Runner.run(bank_agent, "Pay what I owe")
    drawn = len(bank.inner.calls)
    if way == "queue":
        queue = ReviewStore(tmp_path / "reviews.db")
        bridge = ReviewBridge(queue)
        for number, item in enumerate(await bridge.enqueue(bank.model, result)):
            assert "answer" in item.content.allowed
            text = {"action": "answer", "text": "Please call us."} if number == 0 else {"action": "approve"}
            decide_in(queue, item, Decision.from_stored(text))
        done = await bridge.resume(bank.model, bank_agent, result)
        fates = [[event.what for event in queue.trail(item.id)][-1] for item in queue.items()]
        assert fates == ["carried_out", "lapsed"][: len(fates)]  # an approval beside it is not carried out
        queue.close()
    else:
        waiting = [one["call_id"] for one in await bank.model.review_requests(result)]
        state = await bank.model.decide(result, dict.fromkeys(waiting, TO_THE_USER))
        done = await Runner.run(bank_agent, await RunState.from_string(bank_agent, state.to_string()))
    assert (done.final_output, bank.paid, len(bank.inner.calls)) == ("Please call us.", [], drawn)
    later: Any = [*done.to_input_list(), {"role": "user", "content": "Hello?"}]
    assert (await Runner.run(bank_agent, later)).final_output == "Done"  # the next turn is the model's again
    read = [item["output"] for item in bank.inner.calls[-1]["input"] if item.get("type") == "function_call_output"]
    assert read[0] == ANSWERED
    assert all("a person answered the user" in output for output in read)


@pytest.mark.parametrize("how", ["structured", "stops", "beside an approval", "partly"])
async def test_where_no_text_can_end_the_turn_it_is_refused_before_the_decision_counts(how: str) -> None:
    bank = await asyncio.to_thread(partial(Bank, Twice(UNSURE, ["Done"]), on_abstain="review"))
    bank_agent = bank.agent()
    if how == "stops":  # the run would end with the text that the model reads
        bank_agent.tool_use_behavior = {"stop_at_tool_names": ["pay"]}
    if how == "structured":
        bindings = await agent_bindings(agent(bank.inner, tools=[bank._tool()], output_type=City))
        bank.model = guarded(bank.inner, bindings=bindings, on_abstain="review")
        bank_agent = bank.agent()
        bank_agent.output_type = City
    result = await Runner.run(bank_agent, "Pay what I owe")
    first, second = await bank.model.review_requests(result)
    allowed = first["review_configs"][0]["allowed_decisions"]
    assert ("answer" in allowed) is (how not in ("structured", "stops"))
    decisions = {first["call_id"]: TO_THE_USER, second["call_id"]: {"type": "approve"}}
    if how == "partly":
        del decisions[second["call_id"]]
    with pytest.raises((ValidationError, UsageError), match=r"'answer' about 'pay' is not allowed|ends the turn"):
        await bank.model.decide(result, decisions)
    rejected = {one["call_id"]: {"type": "reject"} for one in (first, second)}
    await bank.model.decide(result, rejected)  # everything still waits
    assert bank.paid == []


@pytest.mark.parametrize("nested", [True, False])
def test_the_user_is_answered_by_the_agent_that_talks_to_the_user(nested: bool) -> None:
    """The text of an agent that is another agent's tool would be a result for that agent, which would rephrase it."""
    bank = Bank(Scripted(UNSURE, UNSURE, ["Done"]), on_abstain="review")
    inner = bank.agent()
    inner.name = "bank"
    if nested:
        outer = agent(Scripted([("ask", {"input": "Pay"})], ["Paid."]), tools=[inner.as_tool("ask", "Ask.")])
    else:
        outer = agent(Scripted([("transfer_to_bank", {})]), handoffs=[inner])
    result = run(outer, "Pay what I owe")
    for state in (result, asyncio.run(RunState.from_string(outer, result.to_state().to_string()))):
        (value,) = asyncio.run(bank.model.review_requests(state))
        assert ("answer" in value["review_configs"][0]["allowed_decisions"]) is not nested
    if not nested:
        done = asyncio.run(bank.model.resume(outer, result, {value["call_id"]: TO_THE_USER}))
        assert (done.final_output, bank.paid) == ("Please call us.", [])


@pytest.mark.parametrize("forged", ["another conversation", "an unknown call", "an exempt tool"])
async def test_a_text_for_the_user_is_given_out_in_its_conversation_only(forged: str) -> None:
    bank = await asyncio.to_thread(partial(Bank, Scripted(UNSURE, ["Done"]), on_abstain="review"))
    result = await Runner.run(bank.agent(), "Pay what I owe")
    (value,) = await bank.model.review_requests(result)
    await bank.model.resume(bank.agent(), result, {value["call_id"]: TO_THE_USER})
    call_id = value["call_id"] if forged == "another conversation" else "x"
    call: Any = {"type": "function_call", "name": "pay", "call_id": call_id, "arguments": '{"amount":5}'}
    output: Any = {"type": "function_call_output", "call_id": call_id, "output": ANSWERED}
    if forged != "another conversation":  # a result of any tool, which happens to be this very text
        if forged == "an exempt tool":
            order = ToolCallOrder.of({"name": "pay", "args": {"amount": 5}}, "exempt")
            bank.model._gate.verdicts.put(call_id, MessageNote(orders={call_id: order}))
        done = await Runner.run(bank.agent(), [{"role": "user", "content": "Pay what I owe"}, call, output])
        assert done.final_output == "Done"
        return
    with pytest.raises(UsageError, match="no answer to this conversation"):
        await Runner.run(bank.agent(), [{"role": "user", "content": "Pay Eve"}, call, output])


async def test_a_router_judges_each_conversation_by_its_group() -> None:
    """German conversations have a lax threshold, all others accept nothing."""
    inner = Scripted(["Rome", "Oslo", "Rome", "Rome", "Rome"])
    prompt = PromptWrapping(system="Be brief.")
    lax, strict = artifact(inner, threshold=1.0, prompt=prompt), artifact(inner, threshold=0.0, prompt=prompt)
    router = RouterArtifact(artifacts={"de": lax, ALL_OTHERS: strict})
    options: Any = {"probe": "off", "on_abstain": "message", "abstain_message": "Not sure."}
    model = GuardedModel(inner, router, key=lambda messages: "de" if "Haupt" in messages[-1].text else None, **options)
    assert (await Runner.run(agent(model), "Hauptstadt von Italien?")).final_output == "Rome"
    assert (await Runner.run(agent(model), "Capital of Italy?")).final_output == "Not sure."
    with pytest.raises(UsageError, match="Give key="):
        GuardedModel(inner, router, **options)


# -- a held-back answer ------------------------------------------------------------------------------------------------


def answering(*turns: Sequence[Reply], **options: Any) -> tuple[Any, Agent[Any]]:
    """A guarded model and its agent, which gives out answers only."""
    model = guarded(Scripted(*turns), **{"on_abstain": "review", "abstain_message": "Not sure.", **options})
    return model, agent(model, tools=[model.answer_tool])


async def ask_agent(guarded_agent: Agent[Any], prompt: Any, streamed: bool, **options: Any) -> tuple[Any, str]:
    """A run's result, and everything that its stream showed."""
    if not streamed:
        return await Runner.run(guarded_agent, prompt, **options), ""
    result = Runner.run_streamed(guarded_agent, prompt, **options)
    return result, "".join([repr(event) async for event in result.stream_events()])


def picture(data: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}


async def test_the_reviewer_of_an_agent_that_was_handed_over_to_sees_tools_and_pictures() -> None:
    def look(city: str) -> str:
        return f"{city}: 9 degrees"

    expert, expert_agent = answering([], [], UNSURE_TEXT)
    expert_agent.name = "expert"
    inner = Scripted([("look", {"city": "Oslo"})], [("transfer_to_expert", {})])
    tool = function_tool(look)
    bindings = await agent_bindings(agent(inner, handoffs=[expert_agent], tools=[tool]))
    calibrated = artifact(inner, bindings=bindings, prompt=PromptWrapping(system="Be brief."))
    model = GuardedModel(inner, calibrated, tools={}, exempt=["look", "transfer_to_expert"], probe="off")
    first = agent(model, handoffs=[expert_agent], tools=[tool, model.answer_tool])
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Here?"}, picture("AA==")]}]
    (value,) = await expert.review_requests(await Runner.run(first, asked))
    shown = [(turn["role"], turn["content"], turn.get("tool_calls")) for turn in value["messages"]]
    assert shown[:3] == [
        ("human", "Here?\n[input_image]", None),
        ("ai", "", [{"name": "look", "arguments": {"city": "Oslo"}}]),
        ("tool", "Oslo: 9 degrees", None),
    ]
    assert shown[3][2] == [{"name": "transfer_to_expert", "arguments": {}}]


async def test_another_picture_is_another_question() -> None:
    """The answer about the first picture was given out for the second."""
    inner = Scripted(["cat"])
    guarded_agent = agent(guarded(inner, turns=["human+input_image"]))
    answers = []
    for answer, data in (("cat", "AAAA"), ("dog", "BBBB"), ("cow", "BBBB")):
        inner.turns = ([answer],)
        asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, picture(data)]}]
        answers.append((await Runner.run(guarded_agent, asked)).final_output)
    assert answers == ["cat", "dog", "dog"]


@pytest.mark.parametrize("way", ["streamed", "saved", "in a session"])
@pytest.mark.parametrize("kind", REVIEWED)
async def test_a_person_decides_about_a_held_back_answer(kind: str, way: str, tmp_path: Path) -> None:
    decision, expected = REVIEWED[kind]
    store, session = tmp_path / "verdicts.sqlite", SQLiteSession("one") if way == "in a session" else None
    model, guarded_agent = answering(UNSURE_TEXT, verdicts=VerdictStore(store))
    result, shown = await ask_agent(guarded_agent, "Capital of Atlantis?", way == "streamed", session=session)
    written = result.to_state().to_string()
    assert result.final_output is None
    assert not any(word in shown + written for word in ("Rome", "Oslo"))  # before the decision it is nowhere
    calls = model._gate._model.model.calls
    if way == "saved":  # days later, in another process
        model, guarded_agent = answering(UNSURE_TEXT, verdicts=VerdictStore(store))
        result = await RunState.from_string(guarded_agent, written)
    (value,) = await model.review_requests(result)
    assert (value["kind"], value["question"], value["candidate"]["text"]) == ("answer", "Capital of Atlantis?", "Rome")
    guarded_agent.output_guardrails = [model.output_guardrail]
    state = await model.decide(result, {value["call_id"]: decision})
    if decision["type"] == "reject":  # the text of an abstention, as everywhere
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await ask_agent(guarded_agent, state, way == "streamed", session=session)
        guarded_agent.output_guardrails = []
    done, _ = await ask_agent(guarded_agent, state, way == "streamed", session=session)
    assert done.final_output == expected
    assert len(calls) == N + 1
    assert way != "saved" or model._gate._model.model.calls == []  # nothing was drawn again


async def test_the_model_reads_no_call_that_stood_for_an_answer_in_later_turns() -> None:
    model, guarded_agent = answering(UNSURE_TEXT)
    result = await Runner.run(guarded_agent, "Capital of Atlantis?")
    (waiting,) = result.interruptions
    done = await model.resume(guarded_agent, result, {waiting.call_id: {"type": "approve"}})
    inner = model._gate._model.model
    inner.turns = (["Paris"],)
    conversation = [*done.to_input_list(), {"role": "user", "content": "And of France?"}]
    assert (await Runner.run(guarded_agent, conversation)).final_output == "Paris"
    texts = [item.get("content", item.get("type")) for item in inner.calls[-1]["input"]]
    assert [text if isinstance(text, str) else text[0]["text"] for text in texts] == [
        *("Capital of Atlantis?", "Rome", "And of France?")
    ]
    assert all(call["tools"] == [] for call in inner.calls)  # nor is it offered the tool
    inner.turns = (UNSURE_TEXT,)
    again = await Runner.run(guarded_agent, [*done.to_input_list(), {"role": "user", "content": "And of Mu?"}])
    (waiting,) = again.interruptions  # the second answer that waits
    assert (await model.resume(guarded_agent, again, {waiting.call_id: ANSWER_EDIT})).final_output == "Poseidonis"


def test_by_default_a_person_decides_and_an_agent_that_cannot_wait_is_refused() -> None:
    inner = Scripted(UNSURE_TEXT)
    calibrated = artifact(inner, prompt=PromptWrapping(system="Be brief."))
    model = GuardedModel(inner, calibrated, probe="off")
    other = GuardedModel(inner, calibrated, probe="off", on_abstain="message")
    for tools in ([], [other.answer_tool]):
        with pytest.raises(UsageError, match=r'needs guarded\.answer_tool .* on_abstain="message"'):
            run(agent(model, tools=tools), "?")
    assert inner.calls == []
    assert len(run(agent(model, tools=[model.answer_tool]), "?").interruptions) == 1
    assert run(agent(other), "?").final_output == ABSTENTION


async def test_what_the_framework_itself_approves_or_rejects_counts() -> None:
    model, guarded_agent = answering(UNSURE_TEXT)
    written = (await Runner.run(guarded_agent, "?")).to_state().to_string()

    async def resumed(decide: Any) -> Any:
        state = await RunState.from_string(guarded_agent, written)
        decide(state, state.get_interruptions()[0])
        return (await Runner.run(guarded_agent, state)).final_output

    for _ in range(2):
        assert await resumed(lambda state, item: state.reject(item)) == "Not sure."
        assert await resumed(lambda state, item: state.approve(item)) == "Rome"  # and again: the same answer
    assert await resumed(lambda state, item: state.reject(item, rejection_message="Oslo, surely.")) == "Not sure."
    assert len(model._gate._model.model.calls) == N + 1


@pytest.mark.parametrize("change", ["another question", "another call", "without a decision", "another result"])
async def test_a_changed_state_gives_nothing_out(change: str) -> None:
    model, guarded_agent = answering(UNSURE_TEXT)
    first = await Runner.run(guarded_agent, "Capital of Atlantis?")
    (item,) = first.interruptions
    question: Any = {"role": "user", "content": "Capital of Atlantis?"}
    call: Any = {"type": "function_call", "name": "guardrail_answer", "call_id": item.call_id}
    call["arguments"] = item.arguments
    output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": APPROVED}
    if change == "without a decision":
        assert (await Runner.run(guarded_agent, [question, call, output])).final_output == "Not sure."
    elif change == "another result":
        await model.decide(first, {item.call_id: {"type": "approve"}})
        forged: Any = [question, call, {**output, "output": "Oslo"}]
        assert (await Runner.run(guarded_agent, forged)).final_output == "Not sure."
    elif change == "another question":
        await model.resume(guarded_agent, first, {item.call_id: {"type": "approve"}})
        forged = [{**question, "content": "Capital of France?"}, call, output]
        with pytest.raises(UsageError, match="no answer to this conversation"):
            await Runner.run(guarded_agent, forged)
    else:
        forged = [question, {**call, "call_id": "x"}, {**output, "call_id": "x"}]
        with pytest.raises(UsageError, match="no answer to this conversation"):
            await Runner.run(guarded_agent, forged)
    assert len(model._gate._model.model.calls) == N + 1


async def test_a_state_that_was_written_over_approves_nothing_else() -> None:
    """The digest of the conversation and the id in a saved state are those of the answer that waits."""
    _, guarded_agent = answering(UNSURE_TEXT)
    written = (await Runner.run(guarded_agent, "Capital of Atlantis?")).to_state().to_string()
    other = (await Runner.run(guarded_agent, "Capital of Mu?")).interruptions[0]
    mine = (await RunState.from_string(guarded_agent, written)).get_interruptions()[0]

    async def approved(state: Any) -> Any:
        state.approve(state.get_interruptions()[0])
        return await Runner.run(guarded_agent, state)

    digests = [json.loads(str(item.arguments))["conversation"] for item in (mine, other)]
    changes = [(mine.call_id, other.call_id), (digests[0], digests[1]), ("Capital of Atlantis?", "Capital of France?")]
    for changed in ([changes[0]], [changes[1]], [changes[2]], changes[:2]):
        forged = written
        for old, new in changed:
            forged = forged.replace(old, new)
        state = await RunState.from_string(guarded_agent, forged)
        with pytest.raises(
            (UsageError, ModelBehaviorError), match=r"no answer to this conversation|reused a tool call"
        ):
            await approved(state)
        assert "Rome" not in state.to_string()


@pytest.mark.parametrize("first", [True, False])
def test_of_an_edit_and_a_rejection_neither_lets_out_what_was_proposed(first: bool) -> None:
    """Two people decide about two copies of a saved state at once."""

    async def decided(model: Any, guarded_agent: Agent[Any], question: str, edit: dict[str, Any]) -> Any:
        result = await Runner.run(guarded_agent, question)
        written, (item,) = result.to_state().to_string(), result.interruptions
        states = [await RunState.from_string(guarded_agent, written) for _ in range(2)]
        decisions = [edit, {"type": "reject"}] if first else [{"type": "reject"}, edit]
        for state, decision in zip(states, decisions, strict=True):
            await model.decide(state, {item.call_id: decision})
        return [(await Runner.run(guarded_agent, state)).final_output for state in states]

    model, guarded_agent = answering(UNSURE_TEXT)
    assert set(asyncio.run(decided(model, guarded_agent, "Capital of Atlantis?", ANSWER_EDIT))) <= {
        "Poseidonis",
        "Not sure.",
    }
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    asyncio.run(decided(bank.model, bank.agent(), "Pay what I owe", EDIT))
    assert bank.paid == [7]


def test_another_process_without_the_store_runs_no_approved_call(caplog: pytest.LogCaptureFixture) -> None:
    """The state says that the call is approved, not how a person edited it: only the store knows that."""
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    result: Any = run(bank.agent(), "Pay what I owe")
    written = asyncio.run(bank.model.decide(result, {result.interruptions[0].call_id: EDIT})).to_string()
    other = Bank(Scripted(["Done"]), on_abstain="review")
    state = asyncio.run(RunState.from_string(other.agent(), written))
    assert (run(other.agent(), state).final_output, other.paid) == ("Done", [])
    assert "give both the same VerdictStore(path)" in caplog.text


@pytest.mark.parametrize("arguments", ['{"amount": 5', "[5]"])
def test_a_history_with_malformed_arguments_is_refused_with_the_way_out(arguments: str) -> None:
    bank = Bank(Scripted(["Done"]), on_abstain="message")
    history: list[Any] = [
        {"role": "user", "content": "Pay 5"},
        {"type": "function_call", "name": "pay", "call_id": "call_7", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_7", "output": "invalid JSON"},
        {"role": "user", "content": "Once more"},
    ]
    with pytest.raises(UsageError, match=r"call of 'pay' \(id 'call_7'\) whose arguments are not a JSON .*Remove"):
        run(bank.agent(), history)
    assert bank.inner.calls == []


def test_an_agent_that_stops_at_every_tool_is_refused() -> None:
    model, guarded_agent = answering(UNSURE_TEXT)
    guarded_agent.tool_use_behavior = "stop_on_first_tool"
    with pytest.raises(UsageError, match="stop_at_tool_names"):
        run(guarded_agent, "?")
    assert model._gate._model.model.calls == []


async def test_an_answer_whose_verdict_is_lost_is_not_given_out(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    model, guarded_agent = answering(UNSURE_TEXT, verdicts=store)
    result = await Runner.run(guarded_agent, "?")
    (item,) = result.interruptions
    store.purge(-1.0)
    assert await model.review_requests(result) == []
    with pytest.raises(UsageError, match="no held-back call"):
        await model.decide(result, {item.call_id: {"type": "approve"}})
    state = result.to_state()
    state.approve(item)
    with pytest.raises(UsageError, match="its verdict was deleted"):
        await Runner.run(guarded_agent, state)


async def test_an_answer_that_is_not_there_can_be_rejected_or_given_by_a_person() -> None:
    class Broken(Scripted):
        async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
            raise ConnectionError("down")

    model = guarded(Broken(), on_abstain="review", abstain_message="Not sure.")
    guarded_agent = agent(model, tools=[model.answer_tool])
    result = await Runner.run(guarded_agent, "?")
    (value,) = await model.review_requests(result)
    assert value["review_configs"][0]["allowed_decisions"] == ["reject", "respond"]
    with pytest.raises(ValidationError):
        await model.decide(result, {value["call_id"]: {"type": "approve"}})
    state = await RunState.from_string(guarded_agent, result.to_state().to_string())
    state.approve(state.get_interruptions()[0])
    assert (await Runner.run(guarded_agent, state)).final_output == "Not sure."
    done = await model.resume(guarded_agent, result, {value["call_id"]: {"type": "respond", "message": "Riga"}})
    assert done.final_output == "Riga"


def test_an_answer_and_a_call_of_two_agents_wait_at_once() -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    class Both(Scripted):
        async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
            response = await super().get_response(*args, **named)
            if not any(isinstance(item, dict) and "output" in item for item in args[1]):
                ask = function_call("ask", {"input": "Where?"}, call_id=f"ask{place_of()}")
                response.output[:] = [function_call("pay", {"amount": place_of()}, call_id=f"pay{place_of()}"), ask]
            return response

    expert, expert_agent = answering(UNSURE_TEXT)
    ask = expert_agent.as_tool("ask", "Ask.")
    inner = Both(["x"], ["Done"])
    bindings = asyncio.run(agent_bindings(agent(inner, tools=[function_tool(pay), ask])))
    calibrated = artifact(inner, bindings=bindings, prompt=PromptWrapping(system="Be brief."))
    model = GuardedModel(inner, tools={"pay": calibrated}, exempt=["ask"], probe="off")
    guarded_agent = agent(model, tools=[model.tool(pay), ask])
    result = run(guarded_agent, "Pay and ask")
    assert [item.tool_name for item in result.interruptions] == ["pay", "guardrail_answer"]
    assert "Rome" not in result.to_state().to_string()

    async def decided() -> Any:
        (call,), (answer,) = await model.review_requests(result), await expert.review_requests(result)
        state = await model.decide(result, {call["call_id"]: {"type": "reject"}})
        return await Runner.run(guarded_agent, await expert.decide(state, {answer["call_id"]: ANSWER_EDIT}))

    done = asyncio.run(decided())
    assert (done.final_output, paid) == ("Done", [])
    outputs = [item["output"] for item in done.to_input_list() if item.get("type") == "function_call_output"]
    assert "Poseidonis" in outputs
    assert len(expert._gate._model.model.calls) == N + 1


async def test_the_answer_of_an_agent_that_was_handed_over_to_waits() -> None:
    expert, expert_agent = answering(UNSURE_TEXT)
    expert_agent.name = "expert"
    inner = Scripted([("transfer_to_expert", {})])
    bindings = await agent_bindings(agent(inner, handoffs=[expert_agent]))
    model = guarded(inner, bindings=bindings, on_abstain="review")
    first = agent(model, handoffs=[expert_agent], tools=[model.answer_tool])
    result = await Runner.run(first, "?")
    state = await RunState.from_string(first, result.to_state().to_string())
    assert await model.review_requests(state) == []  # it is not this model's
    (value,) = await expert.review_requests(state)
    assert (await expert.resume(first, state, {value["call_id"]: {"type": "approve"}})).final_output == "Rome"
    assert len(inner.calls) == len(expert._gate._model.model.calls) == N + 1


@pytest.mark.parametrize("kind", [*REVIEWED, "expired"])
def test_people_decide_about_answers_in_the_review_queue(kind: str, tmp_path: Path) -> None:
    now = [1000.0]
    store = ReviewStore(tmp_path / "reviews.db", clock=lambda: now[0])
    model, guarded_agent = answering(UNSURE_TEXT)
    bridge, result = ReviewBridge(store, expires_in=60), run(guarded_agent, "?")
    (item,) = asyncio.run(bridge.enqueue(model, result))
    assert item.content.candidate is not None
    assert (item.content.kind, item.content.candidate.text) == ("answer", "Rome")
    if kind == "expired":
        now[0] = 1061.0
        expected = "Not sure."
    else:
        decision, expected = REVIEWED[kind]
        action = decision["type"]
        edited = {"candidate": Candidate(text=expected)} if action == "edit" else {}
        more = {"text": expected} if action == "respond" else {}
        decided = Decision(action=action, note="Bob lies.", **edited, **more)  # the user does not see the note
        decide_in(store, item, decided)
    assert asyncio.run(bridge.resume(model, guarded_agent, result)).final_output == expected
    assert asyncio.run(bridge.resume(model, guarded_agent, result)) is None  # it is given out once
    assert ("lapsed" if kind == "expired" else "carried_out") in [event.what for event in store.trail(item.id)]


# -- structured answers ------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    country: str = "unknown"


@pytest.mark.parametrize("sure", [True, False])
def test_structured_answers_are_objects_or_errors(sure: bool) -> None:
    names = ["Paris"] * 5 if sure else ["Rome", "Oslo", "Bern", "Riga", "Kiev"]
    answers: list[Reply] = [json.dumps({"name": name, "country": "X"}) for name in names]
    inner = Scripted(answers)
    bindings = asyncio.run(agent_bindings(agent(inner, output_type=City)))
    model = guarded(inner, bindings=bindings, estimator="lexical_similarity", threshold=0.01)
    guarded_agent = agent(model, output_type=City, output_guardrails=[model.output_guardrail])
    if sure:
        assert run(guarded_agent, "?").final_output == City(name="Paris", country="X")
    else:
        with pytest.raises(AbstainedError):
            run(guarded_agent, "?")


@pytest.mark.parametrize(
    ("decision", "outcome"),
    [
        ({"type": "approve"}, City(name="Rome")),
        (JSON_EDIT, City(name="Roma")),
        ({"type": "respond", "message": '{"name": "Roma"}'}, City(name="Roma")),
        ({"type": "respond", "message": "It sank."}, "It sank."),
        ({"type": "reject", "message": "Ask Bob."}, ABSTENTION),
    ],
)
def test_a_person_decides_about_a_held_back_structured_answer(decision: dict[str, Any], outcome: Any) -> None:
    answers: list[Reply] = [json.dumps({"name": name}) for name in ("Rome", "Oslo", "Bern", "Riga", "Kiev")]
    inner = Scripted(answers)
    bindings = asyncio.run(agent_bindings(agent(inner, output_type=City)))
    fitted: dict[str, Any] = {"estimator": "lexical_similarity", "threshold": 0.01}
    model = guarded(inner, bindings=bindings, on_abstain="review", **fitted)
    guarded_agent = agent(
        model, output_type=City, tools=[model.answer_tool], output_guardrails=[model.output_guardrail]
    )
    result = run(guarded_agent, "?")
    (value,) = asyncio.run(model.review_requests(result))
    resumed = model.resume(guarded_agent, result, {value["call_id"]: decision})
    if isinstance(outcome, City):
        assert asyncio.run(resumed).final_output == outcome
    else:  # a text would be taken for an object
        with pytest.raises(AbstainedError) as caught:
            asyncio.run(resumed)
        assert caught.value.message == outcome
    assert len(inner.calls) == N + 1


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["temperature", "top_p", "frequency_penalty", "max_tokens"])
def test_settings_that_would_change_the_answers_are_refused(name: str) -> None:
    setting: Any = {name: 1}
    inner = Scripted(["Paris"])
    with pytest.raises(ArtifactMismatchError, match=name):
        run(agent(guarded(inner), model_settings=ModelSettings(**setting)), "?")
    assert inner.calls == []


def test_settings_calibrated_with_are_kept_and_bound() -> None:
    inner, settings = Scripted(["Paris"]), ModelSettings(frequency_penalty=0.5)
    calibrated = make_artifact(
        AgentsModelChat(model=inner, calibrated_settings=settings), n=N, prompt=PromptWrapping(system="Be brief.")
    )
    with pytest.raises(ArtifactMismatchError, match="revision"):
        GuardedModel(inner, calibrated)
    model = GuardedModel(inner, calibrated, calibrated_settings=settings, probe="off", on_abstain="message")
    run(agent(model, model_settings=ModelSettings(frequency_penalty=0.5)), "?")
    assert {call["settings"].frequency_penalty for call in inner.calls} == {0.5}
    with pytest.raises(UsageError, match="seed"):
        GuardedModel(inner, calibrated, calibrated_settings=ModelSettings(extra_args={"seed": 1}))


def test_another_prompt_other_tools_hosted_tools_and_server_side_conversations_are_refused() -> None:
    inner = Scripted(["Paris"])
    model = guarded(inner)
    with pytest.raises(ArtifactMismatchError, match="system message"):
        run(Agent(name="x", instructions="Ramble.", model=model), "?")
    with pytest.raises(ArtifactMismatchError, match="without tools"):
        run(agent(model, tools=[function_tool(place_of, name_override="t", description_override="")]), "?")
    with pytest.raises(UsageError, match="runs at the provider"):
        run(agent(model, tools=[WebSearchTool()]), "?")
    bank = Bank(Scripted(SURE, ["Done"]))
    with pytest.raises(ArtifactMismatchError, match="does not offer"):
        run(agent(bank.model), "?")
    assert inner.calls == []


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_run_that_leaves_its_first_turn_to_the_server_is_refused(streamed: bool) -> None:
    """The second turn would hold the tool's result alone, and its verdict would be about that fragment."""
    bank = await asyncio.to_thread(Bank, Scripted(SURE, ["Done"]))

    async def ask() -> None:
        if streamed:
            result = Runner.run_streamed(bank.agent(), "Pay 5", auto_previous_response_id=True)
            [event async for event in result.stream_events()]
        else:
            await Runner.run(bank.agent(), "Pay 5", auto_previous_response_id=True)

    with pytest.raises(UsageError, match="auto_previous_response_id"):
        await ask()
    assert len(bank.inner.calls) == N + 1
    assert (await Runner.run(bank.agent(), "Pay 5")).final_output == "Done"


@pytest.mark.parametrize("name", ["conversation_id", "previous_response_id"])
def test_conversations_that_a_server_keeps_are_refused(name: str) -> None:
    options: Any = {name: "one"}
    with pytest.raises(UsageError, match=name):
        run(agent(guarded(Scripted(["Paris"]))), "?", **options)


# -- the adapters ------------------------------------------------------------------------------------------------------


def test_a_long_conversation_goes_to_the_model_as_it_was() -> None:
    """The second turn holds the call, its result and the answer; the inner model gets the very items."""
    bank = Bank(Scripted(SURE, ["Done"]))
    run(bank.agent(), "Pay 5")
    items = bank.inner.calls[-1]["input"]
    assert [item.get("type", item.get("role")) for item in items] == ["user", "function_call", "function_call_output"]
    assert all(call["input"] == items for call in bank.inner.calls[N + 1 :])


# -- the SDK's own model on the wire -----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["discrete_semantic_entropy", "sequence_nll"])
async def test_the_sdks_chat_completions_model_on_the_wire(estimator: str) -> None:
    """Settings, tools and log-probabilities arrive at a server and come back."""
    served = Served()
    try:
        async with AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            inner = OpenAIChatCompletionsModel(model="small", openai_client=client)
            bindings = await agent_bindings(agent(inner, tools=[_pay_tool()]))
            model = guarded(inner, bindings=bindings, estimator=estimator, threshold=0.5)
            result = await Runner.run(agent(model, tools=[_pay_tool()]), SURE_QUESTION)
            before = len(served.upstream.calls)
            messages = PromptWrapping(system="Be brief.").messages(SURE_QUESTION)
            await Sampler(AgentsModelChat(model=inner), model._gate.artifacts.plan).adraw([messages])
        assert result.final_output == "Paris is it"
    finally:
        served.close()
    calls, at_calibration = served.upstream.calls[:before], served.upstream.calls[before:]
    assert sorted(map(json.dumps, calls)) == sorted(map(json.dumps, at_calibration))
    greedy = [call for call in calls if call["temperature"] == 0]
    assert (len(greedy), len(calls)) == ((1, N + 1) if estimator == "discrete_semantic_entropy" else (1, 1))
    assert all(call["messages"][0] == {"role": "system", "content": "Be brief."} for call in calls)
    assert all(call["tools"][0]["function"]["name"] == "pay" and call["max_tokens"] == 256 for call in calls)
    assert all(call.get("logprobs") is (True if estimator == "sequence_nll" else None) for call in calls)


def _pay_tool() -> Any:
    def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    return function_tool(pay)


# -- approvals of an unguarded agent -----------------------------------------------------------------------------------


def paying(amounts: Sequence[int]) -> Scripted:
    return Scripted([("pay", {"amount": amount}) for amount in amounts], ["Done"])


@pytest.mark.parametrize("hooked", [True, False])
def test_needs_approval_asks_about_calls_that_the_gate_does_not_accept(hooked: bool, tmp_path: Path) -> None:
    """Without the hooks nothing is known of the conversation, so a person is asked about every call."""
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    def result(inner: Scripted) -> Any:
        bindings = asyncio.run(agent_bindings(Agent("bank", tools=[function_tool(pay)])))
        calibrated = artifact(inner, bindings=bindings, prompt=PromptWrapping(system="Be brief."))
        approvals = Approvals(inner, verdicts=tmp_path / "verdicts.sqlite")
        tool = function_tool(pay, needs_approval=approvals.unsure(calibrated, probe="off"))
        bank = agent(inner, tools=[tool], model_settings=ModelSettings(temperature=0))
        bank.hooks = approvals if hooked else None
        return bank, run(bank, "Pay Ada")

    _, sure = result(paying([5]))
    assert (len(sure.interruptions), paid) == ((0, [5]) if hooked else (1, []))
    paid.clear()
    bank, unsure = result(paying([1, 2, 3, 4, 5]))
    (waiting,) = unsure.interruptions
    assert paid == []
    state = unsure.to_state()
    state.approve(waiting)
    assert run(bank, state).final_output == "Done"
    assert paid == [1]
