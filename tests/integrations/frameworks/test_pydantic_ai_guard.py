"""The guard in pydantic-ai, on real agents with a scripted model."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from openai import AsyncOpenAI
from pydantic_ai import (
    Agent,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    NativeOutput,
    RetryModelRequest,
    RunContext,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
    ToolOutput,
    UnexpectedModelBehavior,
    UserError,
    WebSearchTool,
)
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls, NativeTool
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset, WrapperToolset
from pydantic_ai.usage import RequestUsage

from guardrail import AbstainedError, Bindings, PromptWrapping
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.review import Decision, ReviewStore
from guardrail.sampling.sampler import Sampler
from guardrail.testing import make_artifact
from guardrail.verdict import Reason
from integrations._agents.decisions import ANSWERED
from integrations._agents.framework_guard import APPROVED
from integrations._frameworks.pydantic_ai_calls import same_json
from integrations._frameworks.pydantic_ai_model import GuardedModel
from integrations._openai.lru import LRU
from integrations.pydantic_ai_guard import (
    GuardCapability,
    PydanticAIChat,
    ReviewBridge,
    VerdictStore,
    agent_bindings,
    unsure,
)
from tests.integrations.frameworks.cases import (
    ANSWER_EDIT,
    JSON_EDIT,
    OUTCOMES,
    REVIEWED,
    SPELLED,
    SURE,
    SURE_TEXT,
    TO_THE_USER,
    UNSURE,
    UNSURE_TEXT,
    Reply,
    decide_in,
)
from tests.integrations.openai.scripted_server import SURE as SURE_QUESTION
from tests.integrations.openai.scripted_server import Served

N = 4


class Scripted(Model):
    """Answers turn by turn: greedy calls the first of a turn's answers, sampled calls the others in order."""

    guardrail_trusted = True

    def __init__(self, *turns: Sequence[Reply], settings: ModelSettings | None = None) -> None:
        super().__init__(settings=settings)
        self.turns = turns
        self.calls: list[dict[str, Any]] = []
        self._drawn: dict[int, int] = {}

    @property
    def model_name(self) -> str:
        return "scripted"

    @property
    def system(self) -> str:
        return "test"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        settings: Any = dict(model_settings or {})
        parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
        turn = sum(part.part_kind in ("tool-return", "retry-prompt") for part in parts)
        answers = self.turns[min(turn, len(self.turns) - 1)]
        self.calls.append({"messages": messages, "settings": settings, "parameters": model_request_parameters})
        if settings.get("temperature") == 0:
            reply = answers[0]
        else:
            place = self._drawn[turn] = self._drawn.get(turn, -1) + 1
            others = answers[1:] or answers
            reply = others[place % len(others)]
        part = TextPart(reply) if isinstance(reply, str) else ToolCallPart(*reply)
        usage = RequestUsage(input_tokens=10, output_tokens=2)
        return ModelResponse(parts=[part], usage=usage, model_name="scripted", finish_reason="stop")


TURNS = ("human", "human,human", "human,ai,human", "human,ai,human,ai,human")


def artifact_for(inner: Model, **options: Any) -> Any:
    options = {"prompt": PromptWrapping(system="Be brief."), "turns": TURNS, **options}
    return make_artifact(PydanticAIChat(model=inner), n=N, **options)


def model_behind(artifact: Any, inner: Model, **options: Any) -> GuardedModel:
    """The model that the capability of an agent puts in the place of its own."""
    capability = GuardCapability(artifact, **{"on_abstain": "message", "probe": "off", **options})
    model = capability.get_wrapper_model(inner)
    assert isinstance(model, GuardedModel)
    return model


def guarded(inner: Model, *, fitted: dict[str, Any] | None = None, **options: Any) -> GuardedModel:
    return model_behind(artifact_for(inner, **(fitted or {})), inner, **options)


def agent(model: Model, **options: Any) -> Agent[Any, Any]:
    return Agent(model, instructions="Be brief.", **options)


async def test_a_sure_answer_is_given_out_and_all_tokens_are_counted() -> None:
    """Who pays for the samples must see them in the run's usage."""
    inner = Scripted(SURE_TEXT)
    result = await agent(guarded(inner)).run("Capital of France?")
    assert result.output == "Paris"
    assert len(inner.calls) == N + 1
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10 * (N + 1), 2 * (N + 1))
    last = result.all_messages()[-1]
    assert last.metadata is not None
    assert last.metadata["guardrail"]["accepted"] is True


async def test_what_the_inner_model_is_asked_is_the_request_with_the_plans_settings() -> None:
    """A sample of another request would measure another answer."""
    inner = Scripted(SURE_TEXT)
    settings = ModelSettings(timeout=5.0)
    before = copy.deepcopy(settings)
    picture = BinaryContent(b"png", media_type="image/png")
    await agent(guarded(inner), model_settings=settings).run(["What is it?", picture])
    assert sorted(call["settings"]["temperature"] for call in inner.calls) == [0.0, 0.7, 0.7, 0.7, 0.7]
    assert {call["settings"]["max_tokens"] for call in inner.calls} == {256}
    assert all(call["settings"]["timeout"] == 5.0 for call in inner.calls)
    for call in inner.calls:
        ((request,), parameters) = (call["messages"], call["parameters"])
        (part,) = request.parts
        assert isinstance(part, UserPromptPart)
        assert list(part.content) == ["What is it?", picture]
        assert [instruction.content for instruction in parameters.instruction_parts] == ["Be brief."]
    assert settings == before


async def test_an_unsure_answer_abstains_and_the_candidate_is_nowhere() -> None:
    """The user, and every later turn, would read the answer that was held back."""
    result = await agent(guarded(Scripted(UNSURE_TEXT), abstain_message="Not sure.")).run("Capital of Atlantis?")
    assert result.output == "Not sure."
    assert b"Rome" not in result.all_messages_json()


def refusing(guarded_agent: Agent[Any, Any], text: str) -> Agent[Any, Any]:
    """An agent whose validator asks again for as long as it gets this text."""

    @guarded_agent.output_validator
    def check(output: str) -> str:
        if output == text:
            raise ModelRetry("Answer the question.")
        return output

    return guarded_agent


@pytest.mark.parametrize("inline", [True, False])
async def test_a_retry_asks_nothing_again_that_was_abstained_on(inline: bool) -> None:
    """A validator that is not content with the abstention would draw until the gate accepts."""

    class Profiled(Scripted):
        @property
        def profile(self) -> Any:
            return {**super().profile, "supports_inline_system_prompts": inline}

    inner = Profiled(UNSURE_TEXT, ["Rome"])
    with pytest.raises(AbstainedError) as caught:
        await refusing(agent(guarded(inner, abstain_message="Not sure."), retries=5), "Not sure.").run("?")
    assert (caught.value.message, caught.value.verdict.reason) == ("Not sure.", Reason.ABOVE_THRESHOLD)
    assert len(inner.calls) == N + 1
    person = guarded(inner := Profiled(UNSURE_TEXT, ["Rome"]), on_abstain=lambda verdict: "a person says Bern")
    with pytest.raises(AbstainedError):
        await refusing(agent(person, retries=5), "a person says Bern").run("?")
    assert len(inner.calls) == N + 1


async def test_a_retry_after_anything_else_is_a_request_with_another_prompt() -> None:
    """The note that asks again was in no calibration prompt."""
    guarded_agent = refusing(agent(guarded(Scripted(SURE_TEXT), abstain_message="Not sure."), retries=5), "Paris")
    with pytest.raises(ArtifactMismatchError, match="system message differs"):  # pydantic-ai adds a note about it
        await guarded_agent.run("?")


async def test_a_retry_after_an_empty_answer_draws_nothing() -> None:
    """An empty answer is an abstention like any other."""
    inner = Scripted(["", "a"])
    guarded_agent = refusing(agent(guarded(inner, abstain_message="Not sure."), retries=5), "Not sure.")
    with pytest.raises(AbstainedError):
        await guarded_agent.run("?")
    assert len(inner.calls) <= N + 1


async def test_an_abstention_that_is_raised_is_not_retried() -> None:
    """The agent's own retries would draw until the gate accepts."""
    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])
    with pytest.raises(AbstainedError):
        await agent(guarded(inner, on_abstain="raise"), retries=5).run("?")
    assert len(inner.calls) == N + 1


class Insisting(AbstractCapability[Any]):
    """Asks again until an answer is accepted, without a word in the history."""

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        assert response.metadata is not None
        if not response.metadata["guardrail"]["accepted"] and request_context.attempt < 3:
            raise RetryModelRequest
        return response


def certain_when_asked_again() -> Scripted:
    return Scripted([*UNSURE_TEXT, *["Rome"] * 20])


async def test_asking_again_within_a_run_gets_the_abstention_again() -> None:
    """Drawing until the gate accepts would void the artifact's promise."""
    inner = certain_when_asked_again()
    guard = GuardCapability(artifact_for(inner), on_abstain="message", **OPTIONS)
    result = await agent(inner, capabilities=[guard, Insisting()]).run("?")
    assert (result.output, len(inner.calls)) == ("Not sure.", N + 1)


@pytest.mark.parametrize("how_many", [1, 2])
async def test_asking_again_in_another_run_gets_the_abstention_again(how_many: int) -> None:
    """Applications make an agent for each request, and a client that is not content asks again."""
    inner = certain_when_asked_again()
    calibrated = artifact_for(inner)
    guards = [GuardCapability(calibrated, on_abstain="message", **OPTIONS) for _ in range(how_many)]
    agents = [agent(inner, capabilities=[guard]) for guard in guards]
    for asked in (agents[0], agents[-1]):
        result = await asked.run("?")
    assert (result.output, len(inner.calls)) == ("Not sure.", N + 1)


async def test_a_question_is_drawn_once_however_many_models_other_agents_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a busy process would draw a held-back question again, which selects."""
    monkeypatch.setattr("integrations._frameworks.chat._chats", LRU[Any](1))
    monkeypatch.setattr("integrations._agents.gates._shared", LRU[Any](1))
    inner, other = Scripted([*UNSURE_TEXT, *["Rome"] * 20]), Scripted(SURE_TEXT)
    asked = agent(inner, capabilities=[GuardCapability(artifact_for(inner), on_abstain="message", **OPTIONS)])
    elsewhere = agent(other, capabilities=[GuardCapability(artifact_for(other), on_abstain="message", **OPTIONS)])
    outputs = [(await each.run("?")).output for each in (asked, elsewhere, asked)]
    assert (outputs[0], outputs[2], len(inner.calls)) == ("Not sure.", "Not sure.", N + 1)


async def test_a_later_question_is_asked_after_an_abstention() -> None:
    """One abstention must not silence the rest of the conversation."""
    inner = Scripted([*UNSURE_TEXT, *["Rome"] * 20])
    guarded_agent = agent(guarded(inner, abstain_message="Not sure."))
    earlier = await guarded_agent.run("?")
    assert earlier.output == "Not sure."
    assert (await guarded_agent.run("And now?", message_history=earlier.all_messages())).output == "Rome"


@pytest.mark.parametrize("sure", [True, False])
async def test_a_stream_begins_after_the_verdict_and_holds_the_accepted_candidate_only(sure: bool) -> None:
    """The user would read an answer that is then held back."""
    inner = Scripted(["Paris is it"] if sure else UNSURE_TEXT)
    guarded_agent = agent(guarded(inner, abstain_message="Not sure."))
    deltas, calls_at_first = [], None
    async with guarded_agent.run_stream("?") as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            calls_at_first = calls_at_first or len(inner.calls)
            deltas.append(text)
    assert calls_at_first == N + 1
    assert "".join(deltas) == ("Paris is it" if sure else "Not sure.")
    events = [repr(event) async for event in _events(guarded_agent)]
    assert sure or not any("Rome" in event for event in events)


async def _events(guarded_agent: Agent[Any, Any]) -> Any:
    async with guarded_agent.run_stream_events("?") as stream:
        async for event in stream:
            yield event


# -- tools -------------------------------------------------------------------------------------------------------------


class Bank:
    """An agent with one tool that cannot be undone, guarded by the capability."""

    def __init__(
        self, inner: Scripted, *others: AbstractCapability[Any], defers: bool = False, **capability_options: Any
    ) -> None:
        self.inner = inner
        self.defers = defers
        self.paid: list[int] = []
        self.bindings = asyncio.run(agent_bindings(self._agent(inner)))
        options: Any = {"probe": "off", **capability_options}
        self.guard = GuardCapability(artifact_for(inner, bindings=self.bindings), **options)
        self.agent = self._agent(inner, capabilities=[self.guard, *others])

    def _agent(self, inner: Model, **options: Any) -> Agent[Any, Any]:
        banker = agent(inner, output_type=[str, DeferredToolRequests], **options)

        def not_now(ctx: RunContext[Any], amount: int, on: date = date(2026, 1, 1)) -> None:
            if self.defers and not ctx.tool_call_approved:
                raise CallDeferred

        @banker.tool_plain(args_validator=not_now)
        def pay(amount: int, on: date = date(2026, 1, 1)) -> str:
            """Pay an amount."""
            self.paid.append(amount)
            return f"paid {amount}"

        @banker.tool_plain
        def quote(amount: int) -> str:
            """Say what a payment costs."""
            return "1"

        return banker

    def run(self, *prompts: Any, **options: Any) -> Any:
        return asyncio.run(self.agent.run(*prompts, **options))


def test_a_sure_call_runs_and_numbers_are_canonical() -> None:
    """Samples that say 5 and 5.0 agree; counted apart, a sure payment would wait."""
    for proposals in (SURE, SPELLED):
        bank = Bank(Scripted(proposals, ["Done"]), on_abstain="review")
        assert (bank.run("Pay 5").output, bank.paid) == ("Done", [5])
        assert len(bank.inner.calls) == 2 * (N + 1)


def test_without_a_person_an_unsure_call_is_not_even_proposed() -> None:
    """A call in the conversation would be run by the application or another agent."""
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="message", abstain_message="Not sure.")
    assert (bank.run("Pay 5").output, bank.paid) == ("Not sure.", [])


def test_exempt_tools_run_and_others_are_judged_by_their_own_artifacts() -> None:
    """A threshold for one tool promises nothing for another."""
    for proposals, paid in ((SURE, [5]), (UNSURE, []), ([("quote", {"amount": n}) for n in (5, 50, 500, 55, 505)], [])):
        inner = Scripted(proposals, ["Done"])
        bank = Bank(inner, on_abstain="review")
        own = artifact_for(inner, bindings=bank.bindings)
        options: Any = {"probe": "off"}
        guard = GuardCapability(tools={"pay": own}, exempt=["quote"], on_abstain="review", **options)
        bank.agent = bank._agent(inner, capabilities=[guard])
        output = bank.run("Pay 5").output
        assert bank.paid == paid
        assert (output == "Done") is (proposals is not UNSURE)  # an answer passes: it has no artifact


# -- what runs is what was judged --------------------------------------------------------------------------------------


class AtTheTool(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {**args, "amount": 5000}


class AtTheWrap(AbstractCapability[Any]):
    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return await handler({**args, "amount": 5000})


class AtTheArguments(AbstractCapability[Any]):
    async def after_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {**args, "amount": 5000}


class BeforeTheArguments(AbstractCapability[Any]):
    async def before_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {"amount": 5000}


class InTheResponse(AbstractCapability[Any]):
    def __init__(self, **changed: Any) -> None:
        self.changed = changed

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        parts = [replace(part, **self.changed) if isinstance(part, ToolCallPart) else part for part in response.parts]
        return replace(response, parts=parts)


class AtTheToolset(AbstractCapability[Any]):
    """`quote` becomes `pay`."""

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        class Swapped(WrapperToolset[Any]):
            async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
                tools = await self.get_tools(ctx)
                return await super().call_tool("pay", tool_args, ctx, tools["pay"])

        return Swapped(toolset)


class ByItsToolAlone(AtTheToolset):
    """The name stays, the tool behind it does not."""

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        class Swapped(WrapperToolset[Any]):
            async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
                tools = await self.get_tools(ctx)
                return await super().call_tool(name, tool_args, ctx, tools["pay"])

        return Swapped(toolset)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("other", "proposals"),
    [
        (AtTheTool(), SURE),
        (AtTheWrap(), SURE),
        (AtTheArguments(), SURE),
        (BeforeTheArguments(), SURE),
        (InTheResponse(args={"amount": 5000}), SURE),
        (InTheResponse(tool_name="pay"), [("quote", {"amount": 5})]),
        (AtTheToolset(), [("quote", {"amount": 5})]),
        (ByItsToolAlone(), [("quote", {"amount": 5})]),
    ],
)
def test_a_call_that_was_changed_after_the_verdict_does_not_run(
    other: Any, proposals: list[Reply], first: bool
) -> None:
    """A person or a gate accepted another payment. The order in the list does not matter."""
    bank = Bank(Scripted(proposals, ["Done"]), other, on_abstain="review")
    capabilities = [other, bank.guard] if first else [bank.guard, other]
    bank.agent = bank._agent(bank.inner, capabilities=capabilities)
    assert (bank.run("Pay 5").output, bank.paid) == ("Done", [])


def test_arguments_are_compared_strictly() -> None:
    """True is 1 to Python, at any depth: a hook could send another value to the tool than the judged one."""
    assert same_json({"a": [1], "b": {"c": "x"}}, {"b": {"c": "x"}, "a": [1]})
    for other in ({"a": [1.0]}, {"a": [True]}, {"a": [1, 1]}, {"a": ["1"]}):
        assert not same_json({"a": [1]}, other)


def test_a_capability_that_changes_nothing_lets_a_judged_call_run() -> None:
    """Hooks that only watch would stop every payment."""

    class Watching(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            return dict(args)

    bank = Bank(Scripted([("pay", {"amount": 5, "on": "2026-02-03"})], ["Done"]), Watching(), on_abstain="review")
    assert (bank.run("Pay 5").output, bank.paid) == ("Done", [5])


def resumed_with(bank: Bank, result: Any, decision: Any, amount: int = 5) -> Any:
    (waiting,) = result.output.approvals
    history = result.all_messages()
    history[-1] = replace(history[-1], parts=[replace(waiting, args={"amount": amount})])
    return bank.run(
        message_history=history, deferred_tool_results=DeferredToolResults(approvals={waiting.tool_call_id: decision})
    )


def tool_return(bank: Bank) -> str:
    (content,) = [
        str(part.content)
        for message in bank.inner.calls[-1]["messages"]
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    return content


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_person_approves_edits_rejects_or_responds(kind: str, tmp_path: Path) -> None:
    """What the person says must happen to the payment, and the model must read it."""
    decision, paid, expected_start = OUTCOMES[kind]
    store = tmp_path / "verdicts.sqlite"
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review", verdicts=VerdictStore(store))
    written = bank.run("Pay what I owe").all_messages_json()
    later = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review", verdicts=VerdictStore(store))  # another process
    history = ModelMessagesTypeAdapter.validate_json(written)
    (value,) = asyncio.run(later.guard.review_requests(history))
    assert (value["question"], value["candidate"]["tool_calls"]) == (
        "Pay what I owe",
        [{"name": "pay", "args": {"amount": 5}}],
    )
    done = asyncio.run(later.guard.resume(later.agent, history, {value["call_id"]: decision}))
    assert (done.output, later.paid) == ("Done", paid)
    assert tool_return(later).startswith(expected_start)
    assert len(later.inner.calls) == N + 1  # the answer after it; nothing was drawn again for the call


async def test_a_run_that_fails_after_the_decision_can_be_resumed_again(tmp_path: Path) -> None:
    """A tool that was down would lose the decision."""
    store = ReviewStore(tmp_path / "reviews.db")
    bank = await asyncio.to_thread(Bank, Scripted(UNSURE, ["Done"]), on_abstain="review")
    bridge, result = ReviewBridge(store), await bank.agent.run("Pay 5")
    (item,) = await bridge.enqueue(bank.guard, result)
    decide_in(store, item, Decision(action="approve"))
    with pytest.raises(ArtifactMismatchError):
        await bridge.resume(bank.guard, bank.agent, result, model_settings={"temperature": 1})
    assert (await bridge.resume(bank.guard, bank.agent, result)).output == "Done"


@pytest.mark.parametrize(
    ("amount", "decision", "paid"),
    [(5, True, [5]), (5, ToolApproved(override_args={"amount": 7}), [7]), (5000, True, []), (5, False, [])],
)
def test_an_approved_call_runs_as_it_was_judged_or_as_the_person_edited_it(
    amount: int, decision: Any, paid: list[int]
) -> None:
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    assert resumed_with(bank, bank.run("Pay 5"), decision, amount).output == "Done"
    assert bank.paid == paid


def test_an_approved_call_is_not_changed_on_its_way_to_the_tool() -> None:
    """The person approved another payment."""
    bank = Bank(Scripted(UNSURE, ["Done"]), AtTheTool(), on_abstain="review")
    for decision in (True, ToolApproved(override_args={"amount": 7})):
        assert resumed_with(bank, bank.run("Pay 5"), decision).output == "Done"
    assert bank.paid == []


def test_a_held_call_that_its_tool_defers_waits_for_approval_not_for_its_result() -> None:
    """A deferred call comes out in `DeferredToolRequests.calls`, and the application runs those."""
    bank = Bank(Scripted(UNSURE, ["Done"]), defers=True, on_abstain="review")
    output = bank.run("Pay 5").output
    assert (output.calls, [call.args for call in output.approvals]) == ([], [{"amount": 5}])
    bank = Bank(Scripted(SURE, ["Done"]), defers=True, on_abstain="review")
    assert [call.args for call in bank.run("Pay 5").output.calls] == [{"amount": 5}]


class Outside:
    """An agent whose tool is run by the application."""

    def __init__(self, inner: Scripted, *others: AbstractCapability[Any]) -> None:
        tool = ToolDefinition(name="pay", parameters_json_schema={"type": "object", "properties": {"amount": {}}})

        def agent_with(*capabilities: Any) -> Agent[Any, Any]:
            output_type: Any = [str, DeferredToolRequests]
            return agent(inner, output_type=output_type, toolsets=[ExternalToolset([tool])], capabilities=capabilities)

        bindings = asyncio.run(agent_bindings(agent_with()))
        options: Any = {"probe": "off", "abstain_message": "Not sure."}
        guard = GuardCapability(artifact_for(inner, bindings=bindings), on_abstain="review", **options)
        self.agent = agent_with(guard, *others)


def test_a_held_call_of_an_external_tool_is_not_given_to_the_application() -> None:
    """The application runs what it is given, without a verdict."""
    assert asyncio.run(Outside(Scripted(UNSURE)).agent.run("Pay 5")).output == "Not sure."
    accepted = asyncio.run(Outside(Scripted(SURE)).agent.run("Pay 5")).output
    assert [call.args for call in accepted.calls] == [{"amount": 5}]


def test_nor_is_one_that_was_changed_after_the_verdict() -> None:
    """The judged call was another one."""
    with pytest.raises(UnexpectedModelBehavior):
        asyncio.run(Outside(Scripted(SURE), InTheResponse(args={"amount": 5000})).agent.run("Pay 5"))


def test_another_model_cannot_go_round_the_capability() -> None:
    """A model that is passed to one run was never calibrated."""
    bank = Bank(Scripted(SURE, ["Done"]))

    class Other(Scripted):
        @property
        def model_name(self) -> str:
            return "other"

    with pytest.raises(ArtifactMismatchError, match="other"):
        bank.run("Pay 5", model=Other(SURE))
    assert bank.paid == []


async def test_a_capability_that_answers_in_place_of_the_guard_is_refused() -> None:
    """Its answer would go out without a verdict."""

    class Answering(AbstractCapability[Any]):
        def get_wrapper_model(self, model: Model) -> Model:
            return Scripted(["Unjudged"])

    inner = Scripted(SURE_TEXT)
    options: Any = {"probe": "off"}
    guard = GuardCapability(artifact_for(inner), on_abstain="message", **options)
    with pytest.raises(UsageError, match="in place of the guarded model"):
        await agent(inner, capabilities=[Answering(), guard]).run("?")
    async with agent(inner, capabilities=[guard]).run_stream(
        "?"
    ) as result:  # the verdict is in a stream's response, too
        assert await result.get_output() == "Paris"


# -- a held-back answer ------------------------------------------------------------------------------------------------


def test_the_user_gets_the_persons_text_and_the_call_does_not_run() -> None:
    """The model would rephrase the text, and could propose the payment again."""
    bank = Bank(Scripted(UNSURE, ["Done"]), on_abstain="review")
    result = bank.run("Pay what I owe")
    (value,) = asyncio.run(bank.guard.review_requests(result))
    done = asyncio.run(bank.guard.resume(bank.agent, result, {value["call_id"]: TO_THE_USER}))
    assert (done.output, bank.paid, len(bank.inner.calls)) == ("Please call us.", [], N + 1)
    again = bank.run("Hello?", message_history=done.all_messages())
    assert (again.output, tool_return(bank)) == ("Done", ANSWERED)  # the next turn is the model's again


def test_where_the_output_is_no_text_a_person_cannot_answer_the_user() -> None:
    """The application reads an object."""

    def pay(amount: int) -> str:
        raise AssertionError("nothing runs")

    inner = Scripted(UNSURE)
    options: Any = {"output_type": [City, DeferredToolRequests], "tools": [pay]}
    bindings = asyncio.run(agent_bindings(agent(Scripted(["x"]), **options)))
    guard = GuardCapability(artifact_for(inner, bindings=bindings), **OPTIONS)
    result = asyncio.run(agent(inner, capabilities=[guard], **options).run("?"))
    (value,) = asyncio.run(guard.review_requests(result))
    assert value["review_configs"][0]["allowed_decisions"] == ["approve", "edit", "reject", "respond"]
    with pytest.raises(ValidationError, match="'answer' about 'pay' is not allowed"):
        asyncio.run(guard.decide(result, {value["call_id"]: TO_THE_USER}))


OPTIONS: dict[str, Any] = {"probe": "off", "abstain_message": "Not sure."}


def answering(inner: Model, *, output: Any = str, fitted: Any = None, **options: Any) -> tuple[GuardCapability, Any]:
    """A guard and its agent, which gives out answers only."""
    guard = GuardCapability(artifact_for(inner, **(fitted or {})), **OPTIONS, **options)
    return guard, agent(inner, output_type=[output, DeferredToolRequests], capabilities=[guard])


async def ask_agent(guarded_agent: Any, *prompts: Any, streamed: bool, **options: Any) -> tuple[Any, Any, str]:
    """A run's output, its messages, and everything that its stream showed."""
    if not streamed:
        result = await guarded_agent.run(*prompts, **options)
        return result.output, result.all_messages(), ""
    async with guarded_agent.run_stream_events(*prompts, **options) as events:
        shown = [event async for event in events]
    assert shown[-1].event_kind == "agent_run_result"
    return shown[-1].result.output, shown[-1].result.all_messages(), "".join(map(repr, shown))


def picture(data: bytes) -> BinaryContent:
    return BinaryContent(data, media_type="image/png")


async def test_the_reviewer_sees_results_of_tools_and_that_there_is_a_picture() -> None:
    """Without what the agent read, a person could not tell whether the answer is right."""
    inner = Scripted([("look", {"city": "Oslo"})], UNSURE_TEXT)

    def looking(model: Model, **options: Any) -> Agent[Any, Any]:
        made = agent(model, output_type=[str, DeferredToolRequests], **options)

        @made.tool_plain
        def look(city: str) -> list[Any]:
            return [f"{city}: 9 degrees", picture(b"map")]

        return made

    calibrated = artifact_for(inner, bindings=await agent_bindings(looking(inner)))
    guard = GuardCapability(calibrated, tools={}, exempt=["look"], **OPTIONS)
    (value,) = await guard.review_requests(await looking(inner, capabilities=[guard]).run(["Here?", picture(b"png")]))
    assert [(turn["role"], turn["content"], turn.get("tool_calls")) for turn in value["messages"]] == [
        ("human", "Here?\n[binary]", None),
        ("ai", "", [{"name": "look", "arguments": {"city": "Oslo"}}]),
        ("tool", "Oslo: 9 degrees\n[binary]", None),
    ]


async def test_another_picture_is_another_question() -> None:
    """The answer about the first picture was given out for the second."""
    inner = Scripted(["cat"])
    guarded_agent = agent(guarded(inner, fitted={"turns": ["human+binary"]}))
    answers = []
    for answer, data in (("cat", b"A"), ("dog", b"B"), ("cow", b"B")):
        inner.turns = ([answer],)
        answers.append((await guarded_agent.run(["What is it?", picture(data)])).output)
    assert answers == ["cat", "dog", "dog"]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kind", REVIEWED)
async def test_a_person_decides_about_a_held_back_answer(kind: str, streamed: bool, tmp_path: Path) -> None:
    """Nothing of a held-back answer may be seen before the decision, and nothing is drawn after it."""
    decision, expected = REVIEWED[kind]
    store, picture = tmp_path / "verdicts.sqlite", BinaryContent(b"png", media_type="image/png")
    guard, guarded_agent = answering(inner := Scripted(UNSURE_TEXT), verdicts=VerdictStore(store))
    output, messages, shown = await ask_agent(guarded_agent, ["Capital of Atlantis?", picture], streamed=streamed)
    written = ModelMessagesTypeAdapter.dump_json(messages)
    assert (output.calls, [call.tool_name for call in output.approvals]) == ([], ["guardrail_answer"])
    assert not any(word in shown + written.decode() + repr(output) for word in ("Rome", "Oslo"))  # it is nowhere
    # Days later, in another process:
    guard, guarded_agent = answering(Scripted(["Paris"]), verdicts=VerdictStore(store))
    history = ModelMessagesTypeAdapter.validate_json(written)
    (value,) = await guard.review_requests(history)
    assert (value["kind"], value["question"], value["candidate"]["text"]) == ("answer", "Capital of Atlantis?", "Rome")
    results = await guard.decide(history, {value["call_id"]: decision})
    output, messages, _ = await ask_agent(
        guarded_agent, streamed=streamed, message_history=history, deferred_tool_results=results
    )
    assert output == expected
    assert messages[-1].usage.total_tokens == 0  # nothing was drawn again
    assert messages[-1].metadata["guardrail"]["review"] == [{"name": "answer", "decision": decision["type"]}]
    assert bool(messages[-1].metadata.get("guardrail_abstained")) is (decision["type"] == "reject")
    assert len(inner.calls) == N + 1


async def test_the_model_reads_no_call_that_stood_for_an_answer_in_later_turns() -> None:
    """A model that saw such a call would imitate it."""
    guard, guarded_agent = answering(inner := Scripted(UNSURE_TEXT))
    result = await guarded_agent.run("Capital of Atlantis?")
    (waiting,) = result.output.approvals
    done = await guard.resume(guarded_agent, result, {waiting.tool_call_id: {"type": "approve"}})
    inner.turns = (SURE_TEXT,)
    assert (await guarded_agent.run("And of France?", message_history=done.all_messages())).output == "Paris"
    parts = [part for message in inner.calls[-1]["messages"] for part in message.parts]
    assert [part.content for part in parts] == ["Capital of Atlantis?", "Rome", "And of France?"]
    assert all(call["parameters"].function_tools == [] for call in inner.calls)  # nor is it offered the tool
    inner.turns = (UNSURE_TEXT,)
    again = await guarded_agent.run("And of Mu?", message_history=done.all_messages())  # the second answer that waits
    (waiting,) = again.output.approvals
    assert (await guard.resume(guarded_agent, again, {waiting.tool_call_id: ANSWER_EDIT})).output == "Poseidonis"


async def test_what_the_framework_itself_approves_or_denies_counts() -> None:
    """An application with its own approvals decides without `decide`."""
    _, guarded_agent = answering(inner := Scripted(UNSURE_TEXT))
    result = await guarded_agent.run("?")
    (waiting,) = result.output.approvals

    async def resumed(decision: Any, *prompts: Any) -> Any:
        results = DeferredToolResults(approvals={waiting.tool_call_id: decision})
        return (
            await guarded_agent.run(*prompts, message_history=result.all_messages(), deferred_tool_results=results)
        ).output

    for _ in range(2):
        assert await resumed(False) == "Not sure."
        assert await resumed(True) == "Rome"  # and again: the same answer
    assert await resumed(ToolDenied("Oslo, surely.")) == "Not sure."
    changed = ToolApproved(override_args={"conversation": "another"})
    assert await resumed(changed) == "Not sure."
    with pytest.raises(UsageError, match="Give it after the answer"):
        await resumed(True, "And of France?")
    assert len(inner.calls) == N + 1
    inner.turns = (SURE_TEXT,)
    assert await resumed(False, "And of France?") == "Paris"  # the answer is left behind, the question is new
    texts = [part.content for message in inner.calls[-1]["messages"] for part in message.parts]
    assert texts == ["?", "And of France?"]


async def test_a_handler_approves_within_the_run_and_the_call_cannot_be_exempt() -> None:
    """Applications that decide by a program have no second run."""
    with pytest.raises(UsageError, match="the guard's own tool"):
        answering(Scripted(UNSURE_TEXT), exempt=["guardrail_answer"])

    class Approving(AbstractCapability[Any]):
        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: Any) -> Any:
            return requests.build_results(approve_all=True)

    guard, _ = answering(inner := Scripted(UNSURE_TEXT))
    assert (await agent(inner, capabilities=[guard, Approving()]).run("?")).output == "Rome"  # within the run


async def test_a_changed_history_gives_nothing_out() -> None:
    """Who can write the history could approve in a person's place."""
    _, guarded_agent = answering(inner := Scripted(UNSURE_TEXT))
    result = await guarded_agent.run("Capital of Atlantis?")
    (waiting,) = result.output.approvals
    (other,) = (await guarded_agent.run("Capital of Mu?")).output.approvals
    question, held_message = result.all_messages()
    done = ModelRequest(parts=[ToolReturnPart("guardrail_answer", APPROVED, waiting.tool_call_id)])

    async def run(*messages: Any, approved: str | None = None) -> Any:
        results = None if approved is None else DeferredToolResults(approvals={approved: True})
        return (await guarded_agent.run(message_history=list(messages), deferred_tool_results=results)).output

    assert await run(question, held_message, done) == "Not sure."  # nobody decided
    france = replace(question, parts=[UserPromptPart("Capital of France?")])
    for changed in (
        [france, held_message],
        [question, replace(held_message, parts=[replace(waiting, tool_call_id=other.tool_call_id)])],
        [question, replace(held_message, parts=[other])],
    ):
        approved = changed[-1].parts[0].tool_call_id
        with pytest.raises(UsageError, match="no answer to this conversation"):
            await run(*changed, approved=approved)
    changed_call = replace(held_message, parts=[replace(waiting, args=other.args)])
    assert await run(question, changed_call, approved=waiting.tool_call_id) == "Not sure."
    assert await run(question, held_message, approved=waiting.tool_call_id) == "Rome"
    with pytest.raises(UsageError, match="no answer to this conversation"):
        await run(france, held_message, done)  # what was approved there
    assert len(inner.calls) == 2 * (N + 1)


async def test_an_answer_whose_verdict_is_lost_is_not_given_out() -> None:
    """Without its note nobody knows which answer was approved, or to which question."""
    guard, guarded_agent = answering(Scripted(UNSURE_TEXT))
    result = await guarded_agent.run("?")
    (waiting,) = result.output.approvals
    guard._gate.verdicts.purge(-1.0)  # as a process does that kept its verdicts in memory
    assert await guard.review_requests(result) == []
    with pytest.raises(UsageError, match=r"VerdictStore\(path\)"):
        await guarded_agent.run(
            message_history=result.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals={waiting.tool_call_id: True}),
        )


async def test_a_validator_that_rejects_a_decided_answer_draws_nothing() -> None:
    """The person's decision stands; a new answer would be unseen by anybody."""
    guard, guarded_agent = answering(inner := Scripted(UNSURE_TEXT, ["Bern"]))
    result = await refusing(guarded_agent, "Rome").run("?")
    (waiting,) = result.output.approvals
    with pytest.raises(AbstainedError):
        await guard.resume(guarded_agent, result, {waiting.tool_call_id: {"type": "approve"}})
    assert len(inner.calls) == N + 1


def test_a_tool_with_the_name_of_the_guards_own_is_refused() -> None:
    """Its calls would be taken for answers."""
    _, guarded_agent = answering(inner := Scripted(UNSURE_TEXT))
    guarded_agent.tool_plain(name="guardrail_answer")(lambda: "x")
    with pytest.raises(UsageError, match="Rename it"):
        asyncio.run(guarded_agent.run("?"))
    assert inner.calls == []


def test_without_deferred_requests_in_its_output_types_an_agent_is_refused_when_it_is_made() -> None:
    """It would fail at the first call that is held back, in production."""
    guard, _ = answering(inner := Scripted(UNSURE_TEXT))
    refused: list[Any] = [str, [str, City], str | int, (str,)]
    allowed: list[Any] = [[str, DeferredToolRequests], str | DeferredToolRequests]
    for output in refused:
        with pytest.raises(UsageError, match=r"output_type=\[str, DeferredToolRequests\]"):
            agent(inner, output_type=output, capabilities=[guard])
    for output in allowed:
        agent(inner, output_type=output, capabilities=[guard])
    inline = HandleDeferredToolCalls(handler=lambda ctx, requests: requests.build_results(approve_all=True))
    agent(inner, capabilities=[guard, inline])
    agent(inner, capabilities=[GuardCapability(artifact_for(inner), on_abstain="message")])
    assert inner.calls == []


def test_a_run_with_output_types_of_its_own_takes_the_guard_as_its_capability() -> None:
    """The agent's output types say nothing about this run's."""
    guard, _ = answering(inner := Scripted(UNSURE_TEXT))
    result: Any = asyncio.run(agent(inner).run("?", output_type=[str, DeferredToolRequests], capabilities=[guard]))
    assert isinstance(result.output, DeferredToolRequests)
    with pytest.raises(UserError, match="DeferredToolRequests"):
        asyncio.run(agent(inner).run("?", capabilities=[guard]))


def test_an_agent_whose_capability_removes_the_guards_tool_is_refused() -> None:
    """A held-back answer would have no call that stands for it."""

    class Removing(AbstractCapability[Any]):
        def get_wrapper_toolset(self, toolset: Any) -> Any:
            return toolset.filtered(lambda ctx, tool: tool.name != "guardrail_answer")

    guard, _ = answering(inner := Scripted(SURE_TEXT))
    guarded_agent = agent(inner, output_type=[str, DeferredToolRequests], capabilities=[Removing(), guard])
    with pytest.raises(UsageError, match="removed or renamed"):
        asyncio.run(guarded_agent.run("?"))
    assert inner.calls == []


# -- structured answers ------------------------------------------------------------------------------------------------


class City(BaseModel):
    name: str


class Able(Scripted):
    @property
    def profile(self) -> Any:
        return {**super().profile, "supports_json_schema_output": True}


FITTED: dict[str, Any] = {"estimator": "lexical_similarity", "threshold": 0.01}


@dataclass
class Form:
    """A form of structured answers.

    Attributes:
        output: What an agent is given for it.
        reply: A model's answer in this form that names a city.
        choice: The tool choice of its requests.
    """

    output: Any
    reply: Callable[[str], Reply]
    choice: str | None

    def answers(self, names: Sequence[Any]) -> list[Reply]:
        return [self.reply(name) for name in names]


NATIVE = Form(NativeOutput(City), lambda name: json.dumps({"name": name}), None)
BY_TOOL = Form(City, lambda name: ("final_result", {"name": name}), "any")
in_both_forms = pytest.mark.parametrize("form", [NATIVE, BY_TOOL], ids=["native", "by tool"])


async def giving_cities(form: Form, names: Sequence[Any]) -> Agent[Any, Any]:
    """A guarded agent whose model names these cities."""
    inner = Able(form.answers(names))
    bindings = await agent_bindings(agent(inner, output_type=form.output))
    assert (bindings.tool_choice, bindings.response_format is None) == (form.choice, form is BY_TOOL)
    return agent(guarded(inner, fitted={"bindings": bindings, **FITTED}), output_type=form.output)


@in_both_forms
async def test_a_sure_structured_answer_is_an_object(form: Form) -> None:
    """The application reads fields, so a text would break it."""
    assert (await (await giving_cities(form, ["Paris"])).run("?")).output == City(name="Paris")


@in_both_forms
async def test_in_place_of_an_unsure_structured_answer_an_error_is_raised(form: Form) -> None:
    """A text in its place would be parsed, and asked for again."""
    guarded_agent = await giving_cities(form, UNSURE_TEXT)
    with pytest.raises(AbstainedError):
        await guarded_agent.run("?")


async def output_after(decision: Any, form: Form) -> Any:
    """The output of a run whose structured answer, Rome, was held back, after a decision; nothing is drawn for it."""
    inner = Able(form.answers(UNSURE_TEXT))
    bindings = await agent_bindings(agent(inner, output_type=[form.output, DeferredToolRequests]))
    guard, guarded_agent = answering(inner, output=form.output, fitted={"bindings": bindings, **FITTED})
    result = await guarded_agent.run("?")
    assert b"Rome" not in result.all_messages_json()
    (request,) = await guard.review_requests(result)
    assert request["action_requests"][0]["args"] == {"text": '{"name": "Rome"}'}
    try:
        return (await guard.resume(guarded_agent, result, {request["call_id"]: decision})).output
    finally:
        assert len(inner.calls) == N + 1


@in_both_forms
@pytest.mark.parametrize(
    ("decision", "city"), [({"type": "approve"}, City(name="Rome")), (JSON_EDIT, City(name="Roma"))]
)
async def test_a_structured_answer_that_a_person_lets_out_is_an_object(decision: Any, city: City, form: Form) -> None:
    """The application reads fields, whoever has written them."""
    assert await output_after(decision, form) == city


@in_both_forms
@pytest.mark.parametrize(
    "decision",
    [
        {"type": "edit", "edited_action": {"name": "answer", "args": {"text": '{"town": "Roma"}'}}},
        {"type": "respond", "message": "It sank."},
        {"type": "reject", "message": "Nobody knows."},
    ],
)
async def test_what_is_no_object_of_the_type_ends_the_run(decision: Any, form: Form) -> None:
    """It would be parsed, and the model would be asked again."""
    with pytest.raises(AbstainedError):
        await output_after(decision, form)


def test_a_rejected_structured_answer_is_carried_out_once(tmp_path: Path) -> None:
    """The error is the result of the run; another run would give no other."""
    store = ReviewStore(tmp_path / "reviews.db")
    inner = Scripted([("final_result", {"name": name}) for name in ("Rome", "Oslo", "Bern", "Riga", "Kiev")])
    bindings = asyncio.run(agent_bindings(agent(inner, output_type=[City, DeferredToolRequests])))
    guard, guarded_agent = answering(inner, output=City, fitted={"bindings": bindings, **FITTED})
    bridge, result = ReviewBridge(store), asyncio.run(guarded_agent.run("?"))
    (item,) = asyncio.run(bridge.enqueue(guard, result))
    decide_in(store, item, Decision(action="reject", note="Bob lies."))
    with pytest.raises(AbstainedError) as caught:
        asyncio.run(bridge.resume(guard, guarded_agent, result))
    assert caught.value.message == "Not sure."  # the note is for reviewers alone
    assert asyncio.run(bridge.resume(guard, guarded_agent, result)) is None


class Both(Scripted):
    """Calls a tool and gives a structured answer in one message, each time with another amount."""

    async def request(self, *args: Any, **named: Any) -> ModelResponse:
        response = await super().request(*args, **named)
        parts = [ToolCallPart("pay", {"amount": len(self.calls)}), ToolCallPart("final_result", {"name": "Rome"})]
        return replace(response, parts=parts)


@pytest.mark.parametrize("sentence", [ANSWERED, APPROVED])
async def test_no_tool_can_say_what_the_guard_says_and_hide_an_approved_answer(sentence: str) -> None:
    """The exempt tool runs beside the answer that waits, and its result is the guard's own sentence."""

    def pay(amount: int) -> str:
        return sentence

    inner = Both(["x"])
    agent_options: Any = {"output_type": [City, DeferredToolRequests], "tools": [pay]}
    bindings = await agent_bindings(agent(Scripted(["x"]), **agent_options))
    guard = GuardCapability(artifact_for(inner, bindings=bindings), exempt=["pay"], **OPTIONS)
    guarded_agent = agent(inner, capabilities=[guard], **agent_options)
    result = await guarded_agent.run("?")
    (value,) = await guard.review_requests(result)
    done = await guard.resume(guarded_agent, result, {value["call_id"]: {"type": "approve"}})
    assert (done.output, len(inner.calls)) == (City(name="Rome"), N + 1)


class CallAndAnswer:
    """A payment and a structured answer, Rome, that wait at once."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.inner = Both(["x"])

    async def output_after(self, call: str, answer: str) -> Any:
        """The output of the run after these decisions about the payment and the answer."""

        def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        agent_options: Any = {"output_type": [City, DeferredToolRequests], "tools": [pay]}
        bindings = await agent_bindings(agent(Scripted(["x"]), **agent_options))
        artifact = artifact_for(self.inner, bindings=bindings)
        guard = GuardCapability(artifact, tools={"pay": artifact}, **OPTIONS)
        guarded_agent = agent(self.inner, capabilities=[guard], **agent_options)
        result = await guarded_agent.run("?")
        assert [part.tool_name for part in result.output.approvals] == ["pay", "guardrail_answer"]
        assert b"Rome" not in result.all_messages_json()
        requests = {request["kind"]: request["call_id"] for request in await guard.review_requests(result)}
        decisions = {requests["tool_call"]: {"type": call}, requests["answer"]: {"type": answer}}
        return (await guard.resume(guarded_agent, result, decisions)).output


in_both_fates = pytest.mark.parametrize(("call", "payments"), [("approve", 1), ("reject", 0)])


@in_both_fates
async def test_an_approved_answer_goes_out_beside_a_decided_call(call: str, payments: int) -> None:
    """The decision about the payment must not be taken for that about the answer."""
    waiting = CallAndAnswer()
    assert await waiting.output_after(call, "approve") == City(name="Rome")
    assert (len(waiting.paid), len(waiting.inner.calls)) == (payments, N + 1)


@in_both_fates
async def test_a_rejected_answer_is_an_error_beside_a_decided_call(call: str, payments: int) -> None:
    """The payment that a person approved runs nevertheless, and one that was rejected does not."""
    waiting = CallAndAnswer()
    with pytest.raises(AbstainedError):
        await waiting.output_after(call, "reject")
    assert (len(waiting.paid), len(waiting.inner.calls)) == (payments, N + 1)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["temperature", "top_p", "seed", "frequency_penalty", "max_tokens"])
async def test_settings_that_would_change_the_answers_are_refused(name: str) -> None:
    """The threshold holds for answers as they were drawn at calibration."""
    inner = Scripted(SURE_TEXT)
    setting: Any = {name: 1}
    with pytest.raises(ArtifactMismatchError, match=name):
        await agent(guarded(inner), model_settings=setting).run("?")
    assert inner.calls == []


async def test_the_models_own_settings_are_kept_and_bound_and_a_seed_is_refused() -> None:
    """With a seed all samples are equal, so that every answer seems sure."""
    plain = artifact_for(Scripted(SURE_TEXT))
    inner = Scripted(SURE_TEXT, settings=ModelSettings(frequency_penalty=0.5))
    with pytest.raises(ArtifactMismatchError, match="revision"):
        await agent(model_behind(plain, inner)).run("?")
    await agent(guarded(inner)).run("?")
    assert {call["settings"]["frequency_penalty"] for call in inner.calls} == {0.5}
    with pytest.raises(UsageError, match="seed"):
        guarded(Scripted(SURE_TEXT, settings=ModelSettings(seed=1)))


async def test_another_prompt_and_other_tools_are_refused() -> None:
    """Its answers may be wrong more often than those that were labelled."""
    inner = Scripted(SURE_TEXT)
    model = guarded(inner)
    with pytest.raises(ArtifactMismatchError, match="system message"):
        await Agent(model, instructions="Ramble.").run("?")
    with pytest.raises(ArtifactMismatchError, match="without tools"):
        await agent(model, tools=[lambda: "x"]).run("?")
    tools = Bindings(tools=({"type": "function", "function": {"name": "pay", "parameters": {}}},))
    with pytest.raises(ArtifactMismatchError, match="does not offer"):
        await agent(guarded(inner, fitted={"bindings": tools})).run("?")
    assert inner.calls == []


async def test_native_tools_are_refused() -> None:
    """Their calls run at the provider, before any verdict."""

    class Able(Scripted):
        @classmethod
        def supported_native_tools(cls) -> Any:
            return frozenset({WebSearchTool})

    guarded_agent = agent(guarded(Able(SURE_TEXT)), capabilities=[NativeTool(WebSearchTool())])
    with pytest.raises(UsageError, match="native tools"):
        await guarded_agent.run("?")


def test_a_long_conversation_goes_to_the_model_as_it_was() -> None:
    """Converted and back, a turn could lose what the model needs."""
    bank = Bank(Scripted(SURE, ["Done"]))
    bank.run("Pay 5")
    history = bank.inner.calls[-1]["messages"]
    assert all(call["messages"] == history for call in bank.inner.calls[N + 1 :])
    kinds = [type(part) for message in history for part in message.parts]
    assert kinds == [UserPromptPart, ToolCallPart, ToolReturnPart]


# -- pydantic-ai's own model on the wire -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "structured"),
    [("discrete_semantic_entropy", True), ("discrete_semantic_entropy", False), ("sequence_nll", False)],
)
async def test_the_openai_model_on_the_wire(estimator: str, structured: bool) -> None:
    """A server receives the same at run time as at calibration, and log-probabilities come back."""

    class Pay(BaseModel):
        """Pay an amount."""

        amount: int

    served = Served()
    output_type: Any = ToolOutput(Pay, name="pay") if structured else str
    try:
        async with AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            inner = OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client))
            bindings = await agent_bindings(agent(inner, output_type=output_type))
            fitted = {"bindings": bindings, "estimator": estimator, "threshold": 0.5}
            model = guarded(inner, fitted=fitted)
            result = await agent(model, output_type=output_type).run("Pay 5" if structured else SURE_QUESTION)
            assert result.output == (Pay(amount=5) if structured else "Paris is it")
            plan = model._gate.artifacts.plan
            messages = PromptWrapping(system="Be brief.").messages("Pay 5" if structured else SURE_QUESTION)
            before = len(served.upstream.calls)
            await Sampler(PydanticAIChat(model=inner), plan).adraw([messages])
    finally:
        served.close()
    at_run_time, at_calibration = served.upstream.calls[:before], served.upstream.calls[before:]
    assert len(at_run_time) == (N + 1 if estimator == "discrete_semantic_entropy" else 1)
    assert sorted(map(json.dumps, at_run_time)) == sorted(map(json.dumps, at_calibration))
    assert all(call.get("logprobs") is (True if estimator == "sequence_nll" else None) for call in at_run_time)


# -- approvals of an unguarded agent -----------------------------------------------------------------------------------


async def approving(amounts: Sequence[int], paid: list[int], tmp_path: Path) -> Agent[Any, Any]:
    """An unguarded agent whose payments need an approval unless the gate accepts them."""

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    inner = Scripted([("pay", {"amount": amount}) for amount in amounts], ["Done"])
    plain: Any = {
        "instructions": "Be brief.",
        "model_settings": {"temperature": 0},
        "output_type": [str, DeferredToolRequests],
    }
    calibrated = artifact_for(inner, bindings=await agent_bindings(Agent(inner, tools=[pay], **plain)))
    tools = unsure(FunctionToolset([pay]), calibrated, inner, verdicts=tmp_path / "v.sqlite", probe="off")
    return Agent(inner, toolsets=[tools], **plain)


async def test_a_call_that_the_gate_accepts_needs_no_approval(tmp_path: Path) -> None:
    """A person who is asked about everything stops reading."""
    paid: list[int] = []
    bank = await approving([5], paid, tmp_path)
    assert ((await bank.run("Pay Ada")).output, paid) == ("Done", [5])


async def test_a_call_that_the_gate_does_not_accept_needs_an_approval(tmp_path: Path) -> None:
    """It would be paid without anybody having seen it."""
    paid: list[int] = []
    bank = await approving([1, 2, 3, 4, 5], paid, tmp_path)
    result = await bank.run("Pay Ada")
    assert isinstance(result.output, DeferredToolRequests)
    (waiting,) = result.output.approvals
    assert paid == []
    denied = DeferredToolResults(approvals={waiting.tool_call_id: False})
    done = await bank.run(message_history=result.all_messages(), deferred_tool_results=denied)
    assert (done.output, paid) == ("Done", [])
