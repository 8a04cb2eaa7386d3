"""The guard in the OpenAI Agents SDK, on the real runner with a scripted model: answers, retries, streams, refusals."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage

pytest.importorskip("agents", reason="openai-agents is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from agents import (
    Agent,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
)
from agents.retry import ModelRetrySettings, RetryDecision, retry_policies
from openai import AsyncOpenAI

from guardrail import AbstainedError, UnmeasuredError
from guardrail.artifact import ALL_OTHERS, RouterArtifact
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.sampling.sampler import Sampler
from guardrail.testing import make_artifact
from integrations._frameworks.openai_agents_items import events_of, to_response
from integrations.openai_agents_guard import AgentsModelChat, GuardedModel, agent_bindings
from tests.integrations.frameworks.cases import SURE, SURE_TEXT, UNSURE_TEXT, Reply
from tests.integrations.frameworks.openai_agents_fakes import (
    DRAWN,
    PROMPT,
    Bank,
    City,
    N,
    RunAgent,
    Scripted,
    agent,
    artifact,
    guarded,
    run,
    run_streamed,
    run_whole,
)
from tests.integrations.openai.scripted_server import SURE as SURE_QUESTION
from tests.integrations.openai.scripted_server import Served

pytestmark = pytest.mark.usefixtures("no_traces")
in_both_ways = pytest.mark.parametrize("run_agent", [run_whole, run_streamed])


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_a_sure_answer_is_given_out_and_all_calls_are_counted() -> None:
    """Who pays for the samples must see them in the run's usage."""
    inner = Scripted(SURE_TEXT)
    result = await Runner.run(agent(guarded(inner)), "Capital of France?")
    assert result.final_output == "Paris"
    assert len(inner.calls) == DRAWN
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (DRAWN, 10 * DRAWN, 2 * DRAWN)


async def test_what_the_inner_model_is_asked_is_the_request_with_the_plans_settings() -> None:
    """A sample of another request, or without the application's headers, would measure another answer."""
    inner = Scripted(["Paris"])
    settings = ModelSettings(metadata={"who": "me"}, timeout=5.0)
    before = copy.deepcopy(settings)
    conversation: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, picture("AA==")]}]
    await Runner.run(agent(guarded(inner), model_settings=settings), copy.deepcopy(conversation))
    temperatures = sorted(call["settings"].temperature for call in inner.calls)
    assert temperatures == [0.0, 0.7, 0.7, 0.7, 0.7]
    assert {call["settings"].top_p for call in inner.calls if call["settings"].temperature} == {0.9}
    assert {call["settings"].max_tokens for call in inner.calls} == {256}
    assert all(call["settings"].metadata == {"who": "me"} for call in inner.calls)
    assert all(call["input"] == conversation and call["system"] == "Be brief." for call in inner.calls)
    assert settings == before


async def test_an_unsure_answer_abstains_and_the_candidate_is_nowhere() -> None:
    """The user, and every later turn, would read the answer that was held back."""
    model = guarded(Scripted(UNSURE_TEXT), abstain_message="Not sure.")
    result = await Runner.run(agent(model), "Capital of Atlantis?")
    assert result.final_output == "Not sure."
    assert "Rome" not in json.dumps(result.to_input_list())


def picture(data: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"}


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


async def test_a_router_judges_each_conversation_by_its_group() -> None:
    """German conversations have a lax threshold, all others accept nothing."""
    inner = Scripted(["Rome", "Oslo", "Rome", "Rome", "Rome"])
    router = RouterArtifact(
        artifacts={"de": artifact(inner, threshold=1.0), ALL_OTHERS: artifact(inner, threshold=0.0)}
    )
    options: Any = {"probe": "off", "on_abstain": "message", "abstain_message": "Not sure."}
    model = GuardedModel(inner, router, key=lambda messages: "de" if "Haupt" in messages[-1].text else None, **options)
    assert (await Runner.run(agent(model), "Hauptstadt von Italien?")).final_output == "Rome"
    assert (await Runner.run(agent(model), "Capital of Italy?")).final_output == "Not sure."
    with pytest.raises(UsageError, match="Give key="):
        GuardedModel(inner, router, **options)


CITIES: list[Reply] = [json.dumps({"name": name, "country": "X"}) for name in UNSURE_TEXT]


async def structured(inner: Scripted) -> Agent[Any]:
    """A guarded agent whose answers are cities."""
    bindings = await agent_bindings(agent(inner, output_type=City))
    model = guarded(inner, bindings=bindings, estimator="lexical_similarity", threshold=0.01)
    return agent(model, output_type=City, output_guardrails=[model.output_guardrail])


async def test_a_sure_structured_answer_is_an_object() -> None:
    """The application reads fields, so a text would break it."""
    guarded_agent = await structured(Scripted([json.dumps({"name": "Paris", "country": "X"})]))
    assert (await Runner.run(guarded_agent, "?")).final_output == City(name="Paris", country="X")


async def test_in_place_of_an_unsure_structured_answer_an_error_is_raised() -> None:
    """A text in place of the object would be parsed, and asked for again."""
    guarded_agent = await structured(Scripted(CITIES))
    with pytest.raises(AbstainedError):
        await Runner.run(guarded_agent, "?")


# -- retries of the runner ---------------------------------------------------------------------------------------------

RETRIES: dict[str, Any] = {
    "always": lambda context: True,
    "unsafe, too": lambda context: RetryDecision(retry=True, approve_unsafe_replay=True),
    "of the SDK": retry_policies.any(retry_policies.provider_suggested(), lambda context: True),
}


def retrying(policy: Any) -> ModelSettings:
    return ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=policy, backoff={"initial_delay": 0.0}))


@in_both_ways
@pytest.mark.parametrize("policy", RETRIES)
async def test_the_runner_does_not_retry_a_measured_abstention(policy: str, run_agent: RunAgent) -> None:
    """Drawing again until the gate accepts would void the artifact's promise."""
    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])  # certain of Rome when asked again
    model = guarded(inner, on_abstain="raise")
    with pytest.raises(AbstainedError) as caught:
        await run_agent(agent(model, model_settings=retrying(RETRIES[policy])), "Capital of Atlantis?")
    assert not isinstance(caught.value, UnmeasuredError)
    assert len(inner.calls) == DRAWN


async def test_the_runner_may_retry_what_could_not_be_measured() -> None:
    """An outage of a second would end the run of a user who asked for retries."""

    class Back(Scripted):
        """Is down for all calls of the first request."""

        async def get_response(self, *options: Any, **named: Any) -> ModelResponse:
            response = await super().get_response(*options, **named)
            if len(self.calls) <= DRAWN:
                raise ConnectionError("down")
            return response

    inner = Back(["Paris"])
    guarded_agent = agent(guarded(inner, on_abstain="raise"), model_settings=retrying(RETRIES["always"]))
    assert (await Runner.run(guarded_agent, "Capital of France?")).final_output == "Paris"
    assert len(inner.calls) == 2 * DRAWN


async def test_the_runner_does_not_draw_again_when_the_abstention_path_fails() -> None:
    """The verdict stands, so a second draw would only select."""

    def unreachable(_: Any) -> str:
        raise ConnectionError("nobody there")

    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])
    guarded_agent = agent(guarded(inner, on_abstain=unreachable), model_settings=retrying(RETRIES["always"]))
    with pytest.raises(ConnectionError):
        await Runner.run(guarded_agent, "Capital of Atlantis?")
    assert len(inner.calls) == DRAWN


# -- the output guardrail ----------------------------------------------------------------------------------------------


async def test_the_output_guardrail_passes_an_accepted_answer() -> None:
    """A guardrail that trips on everything would be switched off."""
    model = guarded(Scripted(["Paris"]))
    guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
    assert (await Runner.run(guarded_agent, "?")).final_output == "Paris"


async def test_the_output_guardrail_trips_on_an_abstention_without_its_candidate() -> None:
    """Applications log the guardrail's information, which must not hold the answer that was held back."""
    model = guarded(Scripted(UNSURE_TEXT))
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await Runner.run(agent(model, output_guardrails=[model.output_guardrail]), "?")
    assert caught.value.guardrail_result.guardrail.get_name() == "guardrail"
    info = caught.value.guardrail_result.output.output_info
    assert info["guardrail_accepted"] is False
    assert "Rome" not in json.dumps(info)


async def test_the_output_guardrail_trips_on_what_was_never_judged() -> None:
    """A run configuration can put another model in the place of the guarded one."""
    model = guarded(Scripted(["Paris"]))
    bypassed = RunConfig(model=Scripted(["Unjudged"]))
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent(model, output_guardrails=[model.output_guardrail]), "?", run_config=bypassed)


@in_both_ways
async def test_an_accepted_answer_to_one_question_lets_nobody_answer_another(run_agent: RunAgent) -> None:
    """ "Yes" was right about Paris, and another guard's "Yes" about Rome passed for it."""
    model = guarded(Scripted(["Yes"]))
    guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
    of_another_guard = RunConfig(model=guarded(Scripted(["Yes"])))
    accepted, _ = await run_agent(guarded_agent, "Is it Paris?")
    assert accepted.final_output == "Yes"
    earlier: Any = [{"role": "user", "content": "Is it Paris?"}, {"role": "assistant", "content": "Yes"}]
    second_turn: Any = [*earlier, {"role": "user", "content": "Is it Rome?"}]
    for prompt in ("Is it Rome?", second_turn):
        with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
            await run_agent(guarded_agent, prompt, run_config=of_another_guard)
        assert caught.value.guardrail_result.output.output_info["guardrail_reason"] == "not_judged"
    judged, _ = await run_agent(guarded_agent, second_turn)
    assert judged.final_output == "Yes"


async def test_the_output_guardrail_knows_answers_of_a_session() -> None:
    """In a session the guardrail sees a turn, not the conversation: its own answers must pass, and no others."""
    model = guarded(Scripted(["Yes"]))
    guarded_agent = agent(model, output_guardrails=[model.output_guardrail])
    bypassed = RunConfig(model=Scripted(["Yes"]))
    session = SQLiteSession("one")
    try:
        for question in ("Is it Paris?", "Is it Rome?"):
            assert (await Runner.run(guarded_agent, question, session=session)).final_output == "Yes"
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await Runner.run(guarded_agent, "Is it Oslo?", session=session, run_config=bypassed)
    finally:
        session.close()


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "shown"), [(["Paris is it"], "Paris is it"), (UNSURE_TEXT, "Not sure.")])
async def test_a_stream_begins_after_the_verdict_and_holds_only_what_goes_out(answers: list[Reply], shown: str) -> None:
    """A stream that began earlier would show the user an answer that is then held back."""
    inner = Scripted(answers)
    result = Runner.run_streamed(agent(guarded(inner, abstain_message="Not sure.")), "?")
    deltas: list[str] = []
    calls_at_events: list[int] = []
    events = ""
    async for event in result.stream_events():
        events += repr(event)
        if event.type == "raw_response_event":
            calls_at_events.append(len(inner.calls))
            if event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
    assert calls_at_events[0] == DRAWN
    assert "".join(deltas) == result.final_output == shown
    assert not any(str(answer) in events for answer in answers if answer != shown)
    assert result.context_wrapper.usage.output_tokens == 2 * DRAWN


def test_every_event_of_a_stream_is_as_the_sdk_describes() -> None:
    """An application that reads events by the SDK's types would fail on others."""
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


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["temperature", "top_p", "frequency_penalty", "max_tokens"])
def test_settings_that_would_change_the_answers_are_refused(name: str) -> None:
    """The threshold holds for answers as they were drawn at calibration."""
    setting: Any = {name: 1}
    inner = Scripted(["Paris"])
    with pytest.raises(ArtifactMismatchError, match=name):
        run(agent(guarded(inner), model_settings=ModelSettings(**setting)), "?")
    assert inner.calls == []


def test_settings_calibrated_with_are_kept_and_bound() -> None:
    """Who calibrates with a setting must run with it, in the answer and in every sample."""
    inner = Scripted(["Paris"])
    settings = ModelSettings(frequency_penalty=0.5)
    chat = AgentsModelChat(model=inner, calibrated_settings=settings)
    calibrated = make_artifact(chat, n=N, prompt=PROMPT)
    with pytest.raises(ArtifactMismatchError, match="revision"):
        GuardedModel(inner, calibrated)
    model = GuardedModel(inner, calibrated, calibrated_settings=settings, probe="off", on_abstain="message")
    run(agent(model, model_settings=settings), "?")
    assert {call["settings"].frequency_penalty for call in inner.calls} == {0.5}


def test_a_seed_is_refused() -> None:
    """All samples would be equal, so that every answer would seem sure."""
    inner = Scripted(["Paris"])
    with pytest.raises(UsageError, match="seed"):
        GuardedModel(inner, artifact(inner), calibrated_settings=ModelSettings(extra_args={"seed": 1}))


def test_another_prompt_is_refused() -> None:
    """Its answers may be wrong more often than those that were labelled."""
    inner = Scripted(["Paris"])
    with pytest.raises(ArtifactMismatchError, match="system message"):
        run(Agent(name="x", instructions="Ramble.", model=guarded(inner)), "?")
    assert inner.calls == []


def test_other_tools_than_the_calibrated_ones_are_refused() -> None:
    """With another tool the model answers otherwise, or calls what no artifact judges."""

    def clock() -> str:
        """Tell the time."""
        return "noon"

    inner = Scripted(["Paris"])
    with pytest.raises(ArtifactMismatchError, match="without tools"):
        run(agent(guarded(inner), tools=[function_tool(clock)]), "?")
    assert inner.calls == []


def test_an_agent_that_lacks_calibrated_tools_is_refused() -> None:
    """The samples would be offered tools that the answer was not."""
    bank = Bank(Scripted(SURE, ["Done"]))
    with pytest.raises(ArtifactMismatchError, match="does not offer"):
        run(agent(bank.model), "?")
    assert bank.inner.calls == []


def test_tools_that_run_at_the_provider_are_refused() -> None:
    """Their calls run before any verdict."""
    inner = Scripted(["Paris"])
    with pytest.raises(UsageError, match="runs at the provider"):
        run(agent(guarded(inner), tools=[WebSearchTool()]), "?")
    assert inner.calls == []


@in_both_ways
async def test_a_run_that_leaves_its_first_turn_to_the_server_is_refused(run_agent: RunAgent) -> None:
    """The second turn would hold the tool's result alone, and its verdict would be about that fragment."""
    bank = Bank(Scripted(SURE, ["Done"]))
    with pytest.raises(UsageError, match="auto_previous_response_id"):
        await run_agent(bank.agent(), "Pay 5", auto_previous_response_id=True)
    assert len(bank.inner.calls) == DRAWN  # of the first turn
    assert (await Runner.run(bank.agent(), "Pay 5")).final_output == "Done"


@pytest.mark.parametrize("name", ["conversation_id", "previous_response_id"])
def test_conversations_that_a_server_keeps_are_refused(name: str) -> None:
    """Each sample would become a turn of the user's conversation."""
    options: Any = {name: "one"}
    with pytest.raises(UsageError, match=name):
        run(agent(guarded(Scripted(["Paris"]))), "?", **options)


@pytest.mark.parametrize("arguments", ['{"amount": 5', "[5]"])
def test_a_history_with_malformed_arguments_is_refused_with_the_way_out(arguments: str) -> None:
    """A conversation that a model broke once would fail for ever, and nobody would know which call to remove."""
    bank = Bank(Scripted(["Done"]))
    history: list[Any] = [
        {"role": "user", "content": "Pay 5"},
        {"type": "function_call", "name": "pay", "call_id": "call_7", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_7", "output": "invalid JSON"},
        {"role": "user", "content": "Once more"},
    ]
    with pytest.raises(UsageError, match=r"call of 'pay' \(id 'call_7'\) whose arguments are not a JSON .*Remove"):
        run(bank.agent(), history)
    assert bank.inner.calls == []


def test_by_default_an_agent_whose_answers_cannot_wait_is_refused() -> None:
    """A held-back answer would go out, or be lost, where no call can stand for it."""
    inner = Scripted(UNSURE_TEXT)
    model = GuardedModel(inner, artifact(inner), probe="off")
    tool_of_another_guard = guarded(inner).answer_tool
    for tools in ([], [tool_of_another_guard]):
        with pytest.raises(UsageError, match=r'needs guarded\.answer_tool .* on_abstain="message"'):
            run(agent(model, tools=tools), "?")
    assert inner.calls == []


def test_by_default_a_person_decides() -> None:
    """Without the option nothing may go out that nobody has approved."""
    inner = Scripted(UNSURE_TEXT)
    model = GuardedModel(inner, artifact(inner), probe="off")
    result = run(agent(model, tools=[model.answer_tool]), "?")
    assert (result.final_output, len(result.interruptions)) == (None, 1)


def test_without_a_person_the_user_reads_an_abstention() -> None:
    """An empty answer would look like a fault of the application."""
    assert run(agent(guarded(Scripted(UNSURE_TEXT))), "?").final_output == ABSTENTION


# -- the items and the wire --------------------------------------------------------------------------------------------


def test_a_long_conversation_goes_to_the_model_as_it_was() -> None:
    """The second turn holds the call, its result and the answer; the inner model gets the very items."""
    bank = Bank(Scripted(SURE, ["Done"]))
    run(bank.agent(), "Pay 5")
    items = bank.inner.calls[-1]["input"]
    assert [item.get("type", item.get("role")) for item in items] == ["user", "function_call", "function_call_output"]
    assert all(call["input"] == items for call in bank.inner.calls[DRAWN:])


@pytest.fixture
def served() -> Any:
    """A server that answers as a scripted model."""
    server = Served()
    yield server
    server.close()


async def calls_on_the_wire(served: Any, estimator: str) -> list[dict[str, Any]]:
    """The calls of a guarded run of the SDK's own model, after comparing them with those of calibration."""

    def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    tools: Any = [function_tool(pay)]
    async with AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
        inner = OpenAIChatCompletionsModel(model="small", openai_client=client)
        bindings = await agent_bindings(agent(inner, tools=tools))
        model = guarded(inner, bindings=bindings, estimator=estimator, threshold=0.5)
        result = await Runner.run(agent(model, tools=tools), SURE_QUESTION)
        calls = list(served.upstream.calls)
        plan = model._gate.artifacts.plan
        await Sampler(AgentsModelChat(model=inner), plan).adraw([PROMPT.messages(SURE_QUESTION)])
    assert result.final_output == "Paris is it"
    at_calibration = served.upstream.calls[len(calls) :]
    assert sorted(map(json.dumps, calls)) == sorted(map(json.dumps, at_calibration))
    assert all(call["messages"][0] == {"role": "system", "content": "Be brief."} for call in calls)
    assert all(call["tools"][0]["function"]["name"] == "pay" and call["max_tokens"] == 256 for call in calls)
    return calls


async def test_the_sdks_model_sends_the_calls_of_calibration(served: Any) -> None:
    """A setting or tool that is lost on the way to the server would move the scores unnoticed."""
    calls = await calls_on_the_wire(served, "discrete_semantic_entropy")
    assert sorted(call["temperature"] > 0 for call in calls) == [False] + [True] * N
    assert not any("logprobs" in call for call in calls)


async def test_the_sdks_model_asks_for_log_probabilities_where_the_score_reads_them(served: Any) -> None:
    """Without them the score could not be computed, and every answer would be held back."""
    (call,) = await calls_on_the_wire(served, "sequence_nll")
    assert (call["temperature"], call["logprobs"]) == (0, True)
