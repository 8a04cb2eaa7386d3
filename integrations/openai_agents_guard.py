"""The guard for the OpenAI Agents SDK: a `Model` that answers only if the gate accepts.

    guarded = GuardedModel(model, "calibration.json")
    agent = Agent(name="...", model=guarded, tools=[guarded.answer_tool], output_guardrails=[guarded.output_guardrail])

A guardrail of the SDK sees the final output only. So the model is calibrated, and the guardrails here only read its
verdicts.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field
from typing_extensions import Unpack

from guardrail import CalibrationArtifact
from guardrail.artifact import RouterArtifact
from guardrail.errors import UsageError, require
from guardrail.sampling.effects import arun
from guardrail.specs import identify
from guardrail.types import Bindings
from guardrail.verdict import UnmeasuredError, Verdict

from ._agents.calls import ANSWER_TOOL, arguments_of
from ._agents.decisions import edit_note
from ._agents.framework_guard import NOT_RUN, Answer, FrameworkGuard
from ._agents.options import ArtifactLike, GateOptions
from ._agents.review_bridge import RunBridge as ReviewBridge
from ._agents.unsure import VERDICTS, CallCheck
from ._agents.verdicts import MOST_IN_MEMORY, VerdictStore
from ._frameworks.chat import FrameworkChat, refuse_settings, shared_chat

require("agents", extra="openai-agents")

from agents import (  # noqa: E402
    Agent,
    AgentHooks,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    FunctionTool,
    GuardrailFunctionOutput,
    Handoff,
    Model,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    OutputGuardrail,
    RunContextWrapper,
    Runner,
    RunResult,
    RunState,
    Tool,
    custom_span,
    function_tool,
    handoff,
)
from agents.items import ToolApprovalItem, TResponseInputItem, TResponseStreamEvent  # noqa: E402
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest, ModelRetryNormalizedError  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402

from ._frameworks.openai_agents_items import (  # noqa: E402
    Format,
    as_tools,
    events_of,
    from_items,
    last_results,
    read_response,
    request_bindings,
    to_items,
    to_response,
)

__all__ = ["AgentsModelChat", "Approvals", "GuardedModel", "ReviewBridge", "VerdictStore", "agent_bindings"]

PASSED_ON = frozenset({
    "extra_headers", "include_usage", "metadata", "preserve_raw_usage", "prompt_cache_options",
    "prompt_cache_retention", "response_include", "retry", "store", "timeout",
})  # fmt: skip
"""Settings of a request that cannot change an answer: each sample's call carries them, too.

``retry`` is among them because `GuardedModel.get_retry_advice` keeps it from drawing again after an abstention.
"""
HARMLESS = PASSED_ON | {"tool_choice", "top_logprobs"}
"""Settings that need no comparison here: the guard compares the tool choice, and the plan sets log-probabilities."""
_log = logging.getLogger(__name__)
Invoke: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]
_request: ContextVar[tuple[ModelSettings, ModelTracing]] = ContextVar("guardrail_openai_agents_request")


class AgentsModelChat(FrameworkChat):
    """A model of the Agents SDK (``OpenAIChatCompletionsModel(...)``) as a LangChain chat model, for calibration."""

    framework: ClassVar[str] = "openai-agents"
    harmless: ClassVar[frozenset[str]] = HARMLESS
    calibrated_settings: Any = Field(default_factory=ModelSettings)
    """Settings of every call in addition to the artifact's plan, e.g. ``ModelSettings(verbosity="low")``."""

    @property
    def model_label(self) -> str:
        """Name of the model: its ``model``, or its class."""
        name = getattr(self.model, "model", None)
        return name if isinstance(name, str) else self.model_kind

    def kept(self) -> dict[str, Any]:
        """The settings of every call that are given."""
        settings = {name: value for name, value in self.calibrated_settings.to_json_dict().items() if value is not None}
        for extra in ("extra_args", "extra_body"):
            if "seed" in (settings.get(extra) or {}):
                raise UsageError(f"{extra} has a seed, which would make all samples equal; leave it out.")
        return settings

    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        sent, tracing = _request.get((ModelSettings(), ModelTracing.DISABLED))
        passed_on = {name: getattr(sent, name) for name in PASSED_ON if getattr(sent, name) is not None}
        settings = replace(self.calibrated_settings, **passed_on)
        settings = settings.resolve(_settings(stop, call))
        schema = call.get("response_format")
        system, items = to_items(messages)
        response = await self.model.get_response(
            system,
            items,
            settings,
            as_tools(call.get("tools") or ()),
            None if schema is None else Format(schema),
            [],
            tracing,
            previous_response_id=None,
            conversation_id=None,
            prompt=None,
        )
        return read_response(response, settings, self.model_label)


def _settings(stop: list[str] | None, call: Mapping[str, Any]) -> ModelSettings:
    """The settings of one call."""
    choice = call.get("tool_choice")
    return ModelSettings(
        temperature=call.get("temperature"),
        top_p=call.get("top_p"),
        max_tokens=call.get("max_tokens"),
        top_logprobs=0 if call.get("logprobs") else None,
        tool_choice="required" if choice == "any" else choice,
        extra_args={"stop": list(stop)} if stop else None,
    )


class GuardedModel(Model):
    """A model of the Agents SDK that returns an answer, or tool calls, only if the gate accepts.

    Each request of the runner draws the artifact's samples from ``model``, with exactly the conversation, tools and
    output type that the agent sent, and is judged once. Handoffs are judged as tool calls.

    Streaming: the events begin after the verdict and carry the accepted candidate only; each item comes in one piece.

    Under "review" a held-back call is proposed nevertheless, and waits, so every tool that is not exempt must be made
    by `tool`. In place of a held-back answer a call of `answer_tool` waits, which the agent must have if answers are
    judged.

    Args:
        model: A model of the SDK, or any LangChain chat model (`OpenAICompatibleChat`, `TransformersChat`, ...).
        artifact: Judges final answers (and structured output), and every call where ``tools`` is not given: an artifact
            or its file. None lets answers pass. With ``key`` the artifact of a router (`calibrate fit --by group`).
        calibrated_settings: Settings of every call at calibration in addition to the plan (see `AgentsModelChat`).
        verdicts: Store of verdicts on tool calls, and of held-back answers. Pass `VerdictStore(path)` if runs are
            resumed elsewhere.
        **options: See `GateOptions`.

    Raises:
        ArtifactError: The artifact was made for another model, estimator or judge. While running: for another prompt,
            other tools, another output type, or other settings.
        UsageError: While running: hosted tools, a conversation that the server keeps, or under "review" a tool that is
            not made by `tool`, or no `answer_tool`.
    """

    def __init__(
        self,
        model: Model | BaseChatModel,
        artifact: ArtifactLike | RouterArtifact | None = None,
        *,
        calibrated_settings: ModelSettings | None = None,
        verdicts: VerdictStore | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        if calibrated_settings is not None and not isinstance(model, Model):
            raise UsageError("calibrated_settings= is for models of the Agents SDK; configure the chat model itself.")
        self._model = model
        self._calibrated = calibrated_settings or ModelSettings()
        chat = shared_chat(AgentsModelChat, model, self._calibrated) if isinstance(model, Model) else model
        self._name = identify(chat).model
        self._gate = FrameworkGuard(chat, artifact, verdicts=verdicts, **options)

    # -- the SDK's interface -------------------------------------------------------------------------------------------

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any = None,
    ) -> ModelResponse:
        """Draw, judge, and return the accepted candidate or the result of the abstention path."""
        if previous_response_id is not None or conversation_id is not None or prompt is not None:
            raise UsageError(
                "a guarded model cannot use previous_response_id, auto_previous_response_id, conversation_id or a "
                "stored prompt: each sample would become part of the conversation that the server keeps. Use a "
                "Session, or pass the items."
            )
        _refuse_fragment(input)
        sent = {field.name: getattr(model_settings, field.name) for field in fields(model_settings)}
        calibrated = {field.name: getattr(self._calibrated, field.name) for field in fields(self._calibrated)}
        refuse_settings(calibrated, sent, HARMLESS, "model_settings")
        bindings = request_bindings(tools, handoffs, output_schema, model_settings.tool_choice)
        waits = self._answers_wait(tools)
        holdable = self._holdable(tools) if self._gate.asks else ()
        results, earlier = last_results(input)
        parsed = bindings.response_format is not None
        token = _request.set((model_settings, tracing))
        try:
            with custom_span("guardrail", disabled=tracing.is_disabled()) as span:
                answer = await self._gate.released(
                    results,
                    from_items(None, earlier) if results else (),
                    parsed=parsed,
                    fits=lambda text: _object(output_schema, text) is not None,
                )
                if answer is None:
                    conversation = from_items(system_instructions, input)
                    answer = await self._gate.ask(conversation, bindings, holdable=holdable, parsed=parsed, waits=waits)
                span.span_data.data.update(_flat(answer.verdict))
        finally:
            _request.reset(token)
        await self._note(input, answer, output_schema)
        return to_response(answer.message, answer.calls)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """The events of `get_response`, after the verdict."""
        response = await self.get_response(*args, **kwargs)
        for event in events_of(response, self._name):
            yield event

    async def close(self) -> None:
        """Close the inner model; the verdicts stay."""
        if isinstance(self._model, Model):
            await self._model.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """The inner model's advice where the transport failed; nothing else is retried.

        A measured abstention is not, nor an error of a Runnable or handler as ``on_abstain``, which may follow one.
        Drawing again until the gate accepts would void the artifact's promise, so the advice is an abort, which no
        retry policy overrules.
        """
        if not isinstance(request.error, UnmeasuredError):
            return ModelRetryAdvice(
                suggested=False,
                replay_safety="unsafe",
                reason="the guard abstained, or its abstention path failed",
                normalized=ModelRetryNormalizedError(is_abort=True),
            )
        return self._model.get_retry_advice(request) if isinstance(self._model, Model) else None

    # -- a person's decisions -----------------------------------------------------------------------------------------

    async def _needs_approval(self, context: RunContextWrapper[Any], params: dict[str, Any], call_id: str) -> bool:
        """True unless the call was judged, accepted and not changed since. Draws nothing."""
        name = getattr(context, "tool_name", None)  # the SDK tells a tool's own needs_approval the arguments only
        return await self._gate.ruling(call_id, name, params) != "run"

    def tool(self, tool: FunctionTool | Callable[..., Any]) -> FunctionTool:
        """A copy of a tool that runs only accepted, approved or edited calls; the others wait for a person.

        Args:
            tool: A function tool, or a function to make one of. It is not changed.
        """
        guarded = copy.copy(tool if isinstance(tool, FunctionTool) else function_tool(tool))
        asks = self._gate.asks and guarded.name not in self._gate.artifacts.exempt
        guarded.needs_approval = self._needs_approval if asks else False
        guarded.on_invoke_tool = partial(self._run_judged, guarded.name, guarded.on_invoke_tool)
        return guarded

    async def _run_judged(self, name: str, invoke: Invoke, context: ToolContext[Any], arguments: str) -> Any:
        """Run a tool's call if it was accepted or approved, with a person's edit if there is one."""
        if name in self._gate.artifacts.exempt:
            return await invoke(context, arguments)
        call_id = context.tool_call_id
        approved = bool(context.is_tool_approved(name, call_id))
        if await self._gate.ruling(call_id, name, arguments_of(arguments), approved=approved) != "run":
            return NOT_RUN
        edit = await self._gate.edit(call_id) if approved else None
        if edit is None:
            return await invoke(context, arguments)
        return f"{edit_note(edit)}\n{await invoke(context, json.dumps(edit, ensure_ascii=False))}"

    @property
    def answer_tool(self) -> FunctionTool:
        """For an agent's tools: its call waits for a person in place of a held-back answer. No model is offered it."""
        return FunctionTool(
            name=ANSWER_TOOL,
            description="Give out the answer that waits for a person.",
            params_json_schema={"type": "object", "properties": {"conversation": {"type": "string"}}},
            on_invoke_tool=self._give,
            strict_json_schema=False,
            is_enabled=_goes_on,
            needs_approval=True,
        )

    async def _give(self, context: ToolContext[Any], arguments: str) -> str:
        """Run the call that stands for a held-back answer once a person approved it; the model gives the answer out."""
        if not context.is_tool_approved(ANSWER_TOOL, context.tool_call_id):
            return NOT_RUN
        return await self._gate.give(context.tool_call_id, arguments_of(arguments))

    async def review_requests(self, result: Any) -> list[dict[str, Any]]:
        """The request that a person sees about each held-back call or answer, in the form of LangGraph's interrupts.

        Args:
            result: A run's result, or its `RunState`.
        """
        state = _state(result)
        requests = [await self._request(state, item) for item in state.get_interruptions()]
        return [value for value in requests if value is not None]

    async def decide(self, result: Any, decisions: Mapping[str, Mapping[str, Any]]) -> RunState[Any]:
        """The state with which the runner goes on after decisions about held-back calls and answers.

        Args:
            result: A run's result, or its `RunState`.
            decisions: Decisions by call id, such as ``{"type": "approve"}``; see `langgraph_review.Decision`. The edit
                of an answer has the name "answer" and the arguments ``{"text": ...}``.

        Raises:
            pydantic.ValidationError: A decision that is not allowed, has another format, or cannot be carried out.
            UsageError: A call that is not held back; or "answer" beside a decision that lets something else go out.
        """
        state = _state(result)
        waiting = {str(item.call_id): item for item in state.get_interruptions()}
        for call_id, order in (await self._gate.decide(await self.review_requests(state), decisions)).items():
            if order.decision in ("approve", "edit"):
                state.approve(waiting[call_id])
            else:
                state.reject(waiting[call_id], rejection_message=order.message)
        return state

    async def resume(
        self, agent: Agent[Any], result: Any, decisions: Mapping[str, Mapping[str, Any]], **run: Any
    ) -> RunResult:
        """Go on with a run after decisions, see `decide`."""
        return await Runner.run(agent, await self.decide(result, decisions), **run)

    async def _request(self, state: RunState[Any], item: ToolApprovalItem) -> dict[str, Any] | None:
        try:
            arguments = arguments_of(item.arguments)
        except ValueError:
            return None
        behavior = getattr(item.agent, "tool_use_behavior", None)
        stops = behavior.get("stop_at_tool_names", ()) if isinstance(behavior, dict) else ()
        ends = behavior == "run_llm_again" or (isinstance(behavior, dict) and item.tool_name not in stops)
        # For the agent around a nested one, the text would be the result of a tool.
        ends = ends and item.agent is state._current_agent
        return await self._gate.review_request(str(item.call_id), str(item.tool_name), arguments, ends=ends)

    @property
    def output_guardrail(self) -> OutputGuardrail[Any]:
        """For ``output_guardrails``: trips on an abstention, and on an output that this model did not give here."""
        return OutputGuardrail(guardrail_function=self._check_output, name="guardrail")

    async def _check_output(
        self, context: RunContextWrapper[Any], _agent: Agent[Any], output: Any
    ) -> GuardrailFunctionOutput:
        try:
            conversation = from_items(None, context.turn_input)
            passed, verdict = await asyncio.to_thread(self._gate.given_out, conversation, output)
        except UsageError:  # items that this model would refuse to judge
            passed, verdict = False, None
        info = _flat(verdict) if passed or verdict is not None else {"guardrail_accepted": False, **NOT_JUDGED}
        return GuardrailFunctionOutput(output_info=info, tripwire_triggered=not passed)

    async def _note(
        self, input: str | list[TResponseInputItem], answer: Answer, schema: AgentOutputSchemaBase | None
    ) -> None:
        if answer.message.tool_calls:
            return
        content = _object(schema, str(answer.message.text))
        if content is not None:  # the runner reports what is wrong
            await self._gate.note_answer(from_items(None, input), content, answer)

    def _answers_wait(self, tools: Sequence[Tool]) -> bool:
        """True if a held-back answer can wait for a person; refuses an agent that lacks `answer_tool` and needs it."""
        listed = [tool for tool in tools if tool.name == ANSWER_TOOL]
        mine = any(getattr(tool, "on_invoke_tool", None) == self._give for tool in listed)
        if mine != bool(listed) or (self._gate.asks and self._gate.artifacts.answer is not None and not mine):
            raise UsageError(
                'on_abstain="review", the default, needs guarded.answer_tool of this very model among the agent\'s '
                f"tools ({ANSWER_TOOL!r}): its call waits for a person in place of an answer that is held back. "
                'Without a person, give on_abstain="message" or "raise", and no such tool of another model.'
            )
        return mine

    def _holdable(self, tools: Sequence[Tool]) -> frozenset[str]:
        """Function tools whose held-back calls cannot run; refuses a tool that could run them."""
        for tool in tools:
            assert isinstance(tool, FunctionTool)  # request_bindings refused all others
            passes = tool.name in (*self._gate.artifacts.exempt, ANSWER_TOOL)
            judged = getattr(tool.on_invoke_tool, "func", None) == self._run_judged  # of this guard, and no other's
            if not passes and not judged:
                raise UsageError(
                    f'tool {tool.name!r} would run held-back calls: under on_abstain="review" make every tool that is '
                    "not exempt with guarded.tool(...)."
                )
        return frozenset(tool.name for tool in tools if tool.name != ANSWER_TOOL)


def _goes_on(_context: RunContextWrapper[Any], agent: Any) -> bool:
    """For ``FunctionTool.is_enabled``: True; refuses an agent that would end with the result of that call."""
    if agent.tool_use_behavior == "stop_on_first_tool":
        raise UsageError(
            'with tool_use_behavior="stop_on_first_tool" a run would end before an approved answer goes out. Name the '
            'tools: tool_use_behavior={"stop_at_tool_names": [...]}.'
        )
    return True


def _object(schema: AgentOutputSchemaBase | None, text: str) -> Any:
    """The object that the runner makes of an answer's text; None if the text does not fit the schema."""
    if schema is None or schema.is_plain_text():
        return text
    try:
        return schema.validate_json(text)
    except Exception:  # any error of the schema's own code
        return None


def _state(result: Any) -> RunState[Any]:
    return result if isinstance(result, RunState) else result.to_state()


def _refuse_fragment(input: str | list[TResponseInputItem]) -> None:
    """Refuse a fragment of a conversation that a server keeps: it has results of calls, but not the calls.

    With ``auto_previous_response_id`` the runner takes the response for the server's and sends only what is new.
    """
    if isinstance(input, str):
        return
    items: Any = input
    call_ids = {item.get("call_id") for item in items if item.get("type") == "function_call"}
    lost = [
        item.get("call_id")
        for item in items
        if item.get("type") == "function_call_output" and item.get("call_id") not in call_ids
    ]
    if lost:
        raise UsageError(
            f"the results of the calls {lost} came without these calls, so this is a part of a conversation, and the "
            "verdict would be about that part. A guarded model cannot use auto_previous_response_id, which leaves the "
            "rest to the server. Use a Session, or pass all items."
        )


NOT_JUDGED = {"guardrail_reason": "not_judged"}


def _flat(verdict: Verdict | None) -> dict[str, Any]:
    """A verdict without any text of an answer; None for a message that passes without a gate."""
    if verdict is None:
        return {"guardrail_accepted": True, **NOT_JUDGED}
    return {**verdict.trace_fields(), "guardrail_detail": verdict.detail}


class Approvals(AgentHooks[Any]):
    """For an unguarded agent: a person approves a tool's calls unless the gate accepts them.

        approvals = Approvals(model)
        pay = function_tool(send, needs_approval=approvals.unsure("payments.json"))
        agent = Agent("bank", model=model, tools=[pay], hooks=approvals)

    The predicate reads what the hooks saw in this process: without ``hooks=``, and for a call that another process
    proposed, a person is asked. What it does not cover: see `integrations.langchain_agents.unsure`.

    Args:
        model: The agent's model: one of the SDK, or a LangChain chat model.
        verdicts: File of the verdicts, or a store.
    """

    def __init__(self, model: Model | BaseChatModel, *, verdicts: VerdictStore | str | Path = VERDICTS) -> None:
        self._chat = shared_chat(AgentsModelChat, model, ModelSettings()) if isinstance(model, Model) else model
        self._verdicts = verdicts
        self._read: WeakKeyDictionary[RunContextWrapper[Any], list[BaseMessage]] = WeakKeyDictionary()
        self._proposed: OrderedDict[str, list[BaseMessage]] = OrderedDict()

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Any, system_prompt: str | None, input_items: list[Any]
    ) -> None:
        """Note what the model reads."""
        self._read.pop(context, None)
        with suppress(UsageError):  # items that could not be drawn again the same way
            self._read[context] = from_items(system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Any, response: ModelResponse) -> None:
        """Note the calls that it proposes."""
        with suppress(KeyError, UsageError, ValueError):
            before = self._read.pop(context)
            message = read_response(response, ModelSettings(), "")
            self._proposed |= {str(call["id"]): [*before, message] for call in message.tool_calls}
        while len(self._proposed) > MOST_IN_MEMORY:
            self._proposed.popitem(last=False)

    def unsure(
        self, artifact: CalibrationArtifact | str | Path, **guard_options: Any
    ) -> Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]:
        """For ``needs_approval``: True unless the gate of the artifact (or its file) accepts this very call."""
        check = CallCheck(self._chat, artifact, self._verdicts, guard_options)

        async def needs_approval(_context: RunContextWrapper[Any], params: dict[str, Any], call_id: str) -> bool:
            messages = self._proposed.get(call_id, [])
            calls = messages[-1].tool_calls if messages and isinstance(messages[-1], AIMessage) else []
            call = next((call for call in calls if call["id"] == call_id), None)
            return call is None or await arun(check.steps(messages, {**call, "args": params}))

        return needs_approval


async def agent_bindings(agent: Agent[Any]) -> Bindings:
    """An agent's tools, handoffs and output type as calibration needs them (``tools.json`` of ``calibrate collect``).

    Args:
        agent: The agent, as it will run.
    """
    tools = await agent.get_all_tools(RunContextWrapper(context=None))
    handoffs = [target if isinstance(target, Handoff) else handoff(target) for target in agent.handoffs]
    output_type = agent.output_type
    if output_type is None or output_type is str:
        schema: AgentOutputSchemaBase | None = None
    else:
        schema = output_type if isinstance(output_type, AgentOutputSchemaBase) else AgentOutputSchema(output_type)
    return request_bindings(tools, handoffs, schema, agent.model_settings.tool_choice)
