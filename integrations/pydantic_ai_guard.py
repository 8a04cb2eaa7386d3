"""The guard for pydantic-ai: a capability with which an agent answers, and calls tools, only if the gate accepts.

agent = Agent(model, capabilities=[GuardCapability("calibration.json", on_abstain="message")])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field
from pydantic_core import to_jsonable_python
from typing_extensions import Unpack

from guardrail import AbstainedError, CalibrationArtifact
from guardrail.artifact import RouterArtifact
from guardrail.bindings import bindings_for
from guardrail.errors import UsageError, require
from guardrail.plain_json import canonical_json
from guardrail.sampling.effects import arun
from guardrail.types import Bindings

from ._agents.calls import ANSWER_TOOL, arguments_of
from ._agents.decisions import edit_note
from ._agents.framework_guard import NOT_RUN, FrameworkGuard
from ._agents.options import GateOptions, Given
from ._agents.review_bridge import RunBridge as ReviewBridge
from ._agents.unsure import VERDICTS, CallCheck
from ._agents.verdicts import VerdictStore
from ._frameworks.chat import FrameworkChat, refuse_settings, shared_chat

require("pydantic_ai", extra="pydantic-ai")

from pydantic_ai import (  # noqa: E402
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    Tool,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.agent import AbstractAgent  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering  # noqa: E402
from pydantic_ai.exceptions import ApprovalRequired, UnexpectedModelBehavior  # noqa: E402
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart  # noqa: E402
from pydantic_ai.models import (  # noqa: E402
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
    infer_model,
)
from pydantic_ai.models.wrapper import WrapperModel  # noqa: E402
from pydantic_ai.settings import ModelSettings  # noqa: E402
from pydantic_ai.tools import ToolDefinition  # noqa: E402
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset  # noqa: E402

from ._frameworks.pydantic_ai_messages import (  # noqa: E402
    as_parameters,
    from_messages,
    last_results,
    read_response,
    request_bindings,
    to_messages,
    to_response,
)

__all__ = [
    "GuardCapability",
    "PydanticAIChat",
    "ReviewBridge",
    "VerdictStore",
    "agent_bindings",
    "unsure",
]

PASSED_ON = frozenset({
    "cache", "extra_headers", "first_event_timeout", "max_retries", "request_timeout", "service_tier",
    "timeout",
})  # fmt: skip
"""Settings of a request that cannot change an answer: each sample's call carries them, too."""
HARMLESS = PASSED_ON | {"openai_logprobs", "openai_top_logprobs", "tool_choice"}
"""Settings that need no comparison here: the guard compares the tool choice, and the plan sets log-probabilities."""


_passed_on: ContextVar[Mapping[str, Any]] = ContextVar("guardrail_pydantic_ai_settings")
"""The settings of the agent's request that each sample's call carries, too."""


class PydanticAIChat(FrameworkChat):
    """A model of pydantic-ai (``OpenAIChatModel("gpt-4o-mini")``) as a LangChain chat model, for calibration."""

    framework: ClassVar[str] = "pydantic-ai"
    harmless: ClassVar[frozenset[str]] = HARMLESS
    calibrated_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every call in addition to the artifact's plan and to the model's own ``settings``."""

    @property
    def model_label(self) -> str:
        """Name of the model."""
        return str(self.model.model_name)

    @property
    def model_kind(self) -> str:
        """Its class, and its provider."""
        return f"{super().model_kind}:{self.model.system}"

    def kept(self) -> dict[str, Any]:
        """The settings of every call that are given, including the model's own."""
        settings = {**(self.model.settings or {}), **self.calibrated_settings}
        if settings.get("seed") is not None:
            raise UsageError(f"seed={settings['seed']} would make all samples equal; leave it out.")
        return {name: value for name, value in settings.items() if value is not None}

    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        instructions, history = to_messages(messages)
        bindings = bindings_for(
            call.get("tools") or (),
            tool_choice=call.get("tool_choice"),
            response_format=call.get("response_format"),
        )
        settings: Any = {**self.kept(), **_passed_on.get({})}
        settings |= {name: call[name] for name in ("temperature", "top_p", "max_tokens") if name in call}
        if call.get("logprobs"):
            settings["openai_logprobs"] = True
        if stop:
            settings["stop_sequences"] = list(stop)
        if (only := bindings.tool_choice) is not None:
            settings["tool_choice"] = "required" if only == "any" else [only]
        return read_response(await self.model.request(history, settings, as_parameters(bindings, instructions)))


class GuardedModel(WrapperModel):
    """An agent's model that returns an answer, or tool calls, only if the gate accepts; `GuardCapability` wraps it so.

    Each request draws the artifact's samples with exactly the history, tools and output type that the agent sent, and
    is judged once. Output tools are judged as tool calls. A stream begins after the verdict.

    A run that abstained in words draws no second time: if an output validator raises ``ModelRetry`` on the abstention,
    the run ends with `AbstainedError`. Drawing again until the gate accepts would void the artifact's promise.

    Args:
        model: The model.
        gate: The guard of the agent.
        calibrated_settings: Settings of every call at calibration in addition to the plan.
    """

    def __init__(self, model: Model | str, gate: FrameworkGuard, *, calibrated_settings: Mapping[str, Any]) -> None:
        super().__init__(model)
        self._gate = gate
        self._chat = shared_chat(PydanticAIChat, self.wrapped, dict(calibrated_settings))

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Draw, judge, and return the accepted candidate or the result of the abstention path."""
        await self._refuse_asking_again(messages)
        settings = dict(model_settings or {})
        refuse_settings(self._chat.kept(), settings, HARMLESS, "model_settings")
        tools = [tool for tool in model_request_parameters.function_tools if tool.name != ANSWER_TOOL]
        waits = len(tools) < len(model_request_parameters.function_tools)
        if self._gate.asks and self._gate.artifacts.answer is not None and not waits:
            raise UsageError(
                f"another capability or toolset removed or renamed the guard's tool {ANSWER_TOOL!r}, whose call waits "
                'for a person in place of a held-back answer. Leave it as it is, or give on_abstain="message".'
            )
        model_request_parameters = replace(model_request_parameters, function_tools=tools)
        bindings = request_bindings(model_request_parameters, model_settings, self.wrapped.profile)
        token = _passed_on.set({name: value for name, value in settings.items() if name in PASSED_ON})
        conversation = from_messages(messages, model_request_parameters)
        results, earlier, prompted = last_results(messages)
        parsed = bindings.response_format is not None or bindings.tool_choice is not None
        # A text of a format is pydantic-ai's to check; that it asks again is refused.
        fits = bindings.tool_choice is None
        try:
            before = from_messages(earlier, model_request_parameters) if results else ()
            given = await self._gate.released(results, before, prompted=prompted, parsed=parsed, fits=lambda text: fits)
            answer = given or await self._gate.ask(
                conversation,
                bindings,
                # Calls of external tools come out in `DeferredToolRequests.calls`, which the application runs.
                holdable={tool.name for tool in tools if tool.kind != "external"},
                answers={tool.name for tool in model_request_parameters.output_tools},
                parsed=parsed,
                waits=waits,
                model=self._chat,
            )
        finally:
            _passed_on.reset(token)
        response = to_response(answer.message)
        if given is not None or not response.tool_calls:
            await self._gate.note_answer(conversation, _content(response), answer)
        return response

    async def _refuse_asking_again(self, messages: list[ModelMessage]) -> None:
        """Refuse the retry of a run that has abstained in words, or given out a decided answer."""
        if len(messages) < 2:
            return
        *earlier, response, request = messages
        if not isinstance(response, ModelResponse) or response.run_id is None or response.run_id != request.run_id:
            return
        conversation = from_messages(earlier, ModelRequestParameters())
        _, verdict = await asyncio.to_thread(self._gate.given_out, conversation, _content(response))
        if verdict is not None and verdict.is_result:
            raise AbstainedError(verdict, response.text)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The events of `request`, after the verdict."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)


def _content(response: ModelResponse) -> Any:
    """Content of a response: its text, or its calls."""
    calls = [[call.tool_name, call.args_as_dict()] for call in response.tool_calls]
    return calls or response.text or ""


class GuardCapability(AbstractCapability[Any]):
    """The guard for an agent: every model request is judged, and no tool call runs that was not accepted or approved.

    The model of each request is wrapped in a `GuardedModel`, also a model that is passed to ``run()``: the artifact
    names the model it was made for and refuses others.

    A call held back under ``on_abstain="review"`` is deferred: the run ends with ``DeferredToolRequests`` (list it in
    the agent's output types) and continues with ``DeferredToolResults`` and the message history, also in another
    process. The approved call runs as it was judged; nothing is drawn again for it. So is a call of
    ``guardrail_answer`` in place of a held-back answer, which goes out after the decision: no history has it before.

    The verdict is in the response's ``metadata["guardrail"]``; usage counts the tokens of all samples.

    Args:
        artifact: Judges final answers (and structured output), and every call where ``tools`` is not given: an artifact
            or its file. None lets answers pass; "collect" stands for none yet. With ``key`` the artifact of a router
            (`calibrate fit --by group`).
        calibrated_settings: Settings of every call at calibration in addition to the plan (see `PydanticAIChat`).
        verdicts: Store of verdicts, decisions and held-back answers; with a path they outlive the process.
        **options: See `GateOptions`.

    Raises:
        ArtifactError: While running: the artifact was made for another model, score, prompt, output type, tools or
            settings.
        UsageError: Something collects where no person decides. While running: native tools.
    """

    def __init__(
        self,
        artifact: Given | RouterArtifact | None = None,
        *,
        calibrated_settings: Mapping[str, Any] | None = None,
        verdicts: VerdictStore | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self._gate = FrameworkGuard(None, artifact, verdicts=verdicts, **options)
        self._exempt = self._gate.artifacts.exempt
        self._settings = calibrated_settings or {}

    def for_agent(self, agent: AbstractAgent[Any, Any]) -> AbstractCapability[Any]:
        """Return this capability, for an agent whose runs can end with a call that waits for a person.

        Raises:
            UsageError: They cannot, so a run would fail at the first call or answer that is held back.
        """
        capabilities: list[AbstractCapability[Any]] = []
        agent.root_capability.apply(capabilities.append)
        # A capability of one run sees the agent's output types, not those of the run.
        own = any(capability is self for capability in capabilities)
        if self._gate.asks and own and not _defers(agent.output_type) and not any(map(_handles_deferred, capabilities)):
            raise UsageError(
                'with on_abstain="review", the default, a held-back call or answer waits for a person, and the run '
                "ends with DeferredToolRequests, which is not among the agent's output types. Give the agent "
                "output_type=[str, DeferredToolRequests]; or without a person, give the guard "
                'on_abstain="message" or "raise".'
            )
        return self

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Return the guarded model."""
        return GuardedModel(model, self._gate, calibrated_settings=self._settings)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Refuse a response of any other than the guarded model.

        Raises:
            UsageError: Another capability's model answered in its place (``BatchModelRequests`` does).
        """
        if "guardrail" not in (response.metadata or {}):
            raise UsageError(
                "another capability answered in place of the guarded model, so nothing judged this response. Remove "
                "that capability (such as BatchModelRequests) from the agent."
            )
        return response

    # -- the tools -----------------------------------------------------------------------------------------------------

    def get_ordering(self) -> CapabilityOrdering:
        """Innermost, so that a call arrives here after every other capability has changed it."""
        return CapabilityOrdering(position="innermost")

    async def after_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Hold a call that may not run before anything else can run it or hand it to the application."""
        await self._check(ctx, call, tool_def)
        return args

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Run a call; the toolset of `get_wrapper_toolset` compares the call that reaches the tool with this call."""
        token = _running.set(call)
        try:
            return await handler(args)
        finally:
            _running.reset(token)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """The agent's tools, which run only the very calls that may run, and the call that stands for an answer."""
        return _JudgedToolset(toolset, self)

    async def _give(self, ctx: RunContext[Any], conversation: str) -> str:
        """Give out the answer that waits for a person."""
        if not ctx.tool_call_approved:
            raise _not_run()
        return await self._gate.give(str(ctx.tool_call_id), {"conversation": conversation})

    async def _check(self, ctx: RunContext[Any], call: ToolCallPart, tool_def: ToolDefinition) -> dict[str, Any] | None:
        """Let a call go on that was judged, accepted and not changed since, or that a person approved.

        Returns its arguments, if a person edited it. `ApprovalRequired` asks a person, `ModelRetry` informs the model.
        """
        if tool_def.kind == "output" or call.tool_name in self._exempt:
            return None
        call_id, arguments, approved = call.tool_call_id, _arguments(call), ctx.tool_call_approved
        ruling = await self._gate.ruling(
            call_id, call.tool_name, arguments, approved=approved, proposed=_proposed(ctx, call) if approved else None
        )
        if ruling in ("run", "run_edited"):
            return arguments if ruling == "run_edited" else None
        if ruling == "ask" and self._gate.asks:
            raise ApprovalRequired
        raise _not_run()

    # -- a person's decisions -----------------------------------------------------------------------------------------

    async def review_requests(self, result: Any) -> list[dict[str, Any]]:
        """The request that a person sees about each held-back call of a run, in the form of LangGraph's interrupts.

        Args:
            result: A run's result, or its messages.
        """
        requests = [
            await self._gate.review_request(call.tool_call_id, call.tool_name, call.args_as_dict())
            for call in _pending(_history(result))
        ]
        return [request for request in requests if request is not None]

    async def decide(self, result: Any, decisions: Mapping[str, Mapping[str, Any]]) -> DeferredToolResults:
        """The results with which a run goes on, beside its messages, after decisions about held-back calls and answers.

        Args:
            result: A run's result, or its messages.
            decisions: Decisions by call id, such as ``{"type": "approve"}``; see `langgraph_review.Decision`. The edit
                of an answer has the name "answer" and the arguments ``{"text": ...}``.

        Raises:
            pydantic.ValidationError: A decision that is not allowed, has another format, or cannot be carried out.
            UsageError: A call that is not held back; or "answer" beside a decision that lets something else go out.
        """
        results = DeferredToolResults()
        for call_id, order in (await self._gate.decide(await self.review_requests(result), decisions)).items():
            if order.decision == "respond":
                results.calls[call_id] = order.message
            elif order.decision in ("reject", "answer"):
                results.approvals[call_id] = ToolDenied(order.message or NOT_RUN)
            else:
                results.approvals[call_id] = ToolApproved(override_args=order.args)
        return results

    async def resume(
        self, agent: Agent[Any, Any], result: Any, decisions: Mapping[str, Mapping[str, Any]], **run: Any
    ) -> Any:
        """Go on with a run after decisions, see `decide`."""
        results = await self.decide(result, decisions)
        return await agent.run(message_history=_history(result), deferred_tool_results=results, **run)


def _defers(output_type: Any) -> bool:
    """True if an agent's output types include `DeferredToolRequests`."""
    outputs = output_type if isinstance(output_type, list | tuple) else get_args(output_type) or (output_type,)
    return any(output is DeferredToolRequests or (output is not output_type and _defers(output)) for output in outputs)


def _handles_deferred(capability: AbstractCapability[Any]) -> bool:
    """True if a capability may decide about deferred calls within the run, as ``HandleDeferredToolCalls`` does."""
    return type(capability).handle_deferred_tool_calls is not AbstractCapability.handle_deferred_tool_calls


def _history(result: Any) -> list[ModelMessage]:
    return list(result) if isinstance(result, Sequence) else result.all_messages()


def _pending(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """The calls of the last response that have no result yet."""
    last = max((place for place, message in enumerate(messages) if isinstance(message, ModelResponse)), default=None)
    if last is None:
        return []
    done = {getattr(part, "tool_call_id", None) for message in messages[last + 1 :] for part in message.parts}
    return [part for part in messages[last].parts if isinstance(part, ToolCallPart) and part.tool_call_id not in done]


_running: ContextVar[ToolCallPart] = ContextVar("guardrail_pydantic_ai_call")
"""The call that runs now, as the model proposed it or a person edited it."""


@dataclass
class _JudgedToolset(WrapperToolset[Any]):
    """Tools that run a call only if no hook and no other toolset changed it after the verdict."""

    capability: GuardCapability

    def __post_init__(self) -> None:
        asks = self.capability._gate.asks
        self._own = FunctionToolset([Tool(self.capability._give, name=ANSWER_TOOL)] if asks else [])

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The agent's tools, and the one whose call stands for a held-back answer; no model is offered it."""
        tools, own = await super().get_tools(ctx), await self._own.get_tools(ctx)
        if set(tools) & set(own):
            raise UsageError(f"the agent's tool {ANSWER_TOOL!r} has the name of the guard's own. Rename it.")
        return {**tools, **own}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Compare the tool and its arguments with the call that may run, then run it."""
        call = _running.get(None)
        if call is None or not name == tool.tool_def.name == call.tool_name:
            raise _not_run()
        edit = await self.capability._check(ctx, call, tool.tool_def)
        expected = tool.args_validator.validate_python(_arguments(call), context=ctx.validation_context)
        if not _equal(expected, tool_args):
            raise _not_run()
        if name == ANSWER_TOOL:
            return await self._own.call_tool(name, tool_args, ctx, tool)
        result = await super().call_tool(name, tool_args, ctx, tool)
        if edit is None:
            return result
        note = edit_note(edit)
        return f"{note}\n{result}" if isinstance(result, str) else {"note": note, "result": result}


def _proposed(ctx: RunContext[Any], call: ToolCallPart) -> dict[str, Any] | None:
    """Arguments of a call as the model proposed it: the history keeps them when a person edits the call."""
    parts = (part for message in reversed(ctx.messages) if isinstance(message, ModelResponse) for part in message.parts)
    proposed = next(
        (part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id == call.tool_call_id), None
    )
    return None if proposed is None or proposed.tool_name != call.tool_name else _arguments(proposed)


def _arguments(call: ToolCallPart) -> dict[str, Any]:
    """The arguments of a call; one whose arguments cannot be read in one way does not run."""
    try:
        return arguments_of(call.args)
    except ValueError:
        raise _not_run() from None


def _equal(expected: Any, actual: Any) -> bool:
    """True if two validated arguments are the same JSON. To Python, 1, 1.0 and True are equal, at any depth."""
    left, right = (to_jsonable_python(value, bytes_mode="base64", fallback=repr) for value in (expected, actual))
    return canonical_json(left) == canonical_json(right)


def _not_run() -> ModelRetry:
    return ModelRetry(NOT_RUN)


def unsure(
    toolset: AbstractToolset[Any],
    artifact: CalibrationArtifact | str | Path,
    model: Model | str,
    *,
    verdicts: VerdictStore | str | Path = VERDICTS,
    **guard_options: Any,
) -> AbstractToolset[Any]:
    """For an unguarded agent: tools whose calls need an approval unless the gate accepts them.

        agent = Agent(model, toolsets=[unsure(FunctionToolset([pay]), "payments.json", model)],
                      output_type=[str, DeferredToolRequests])

    As pydantic-ai's ``toolset.approval_required(...)``. What it does not cover: see
    `integrations.langchain_agents.unsure`.

    Args:
        toolset: The tools; others stay outside.
        artifact: Judges messages that call them: an artifact or its file.
        model: The agent's model.
        verdicts: File of the verdicts, or a store.
        **guard_options: Further settings of `Guardrail`.
    """
    chat = shared_chat(PydanticAIChat, infer_model(model), {})
    return _UnsureToolset(toolset, CallCheck(chat, artifact, verdicts, guard_options))


@dataclass
class _UnsureToolset(WrapperToolset[Any]):
    check: CallCheck

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if not ctx.tool_call_approved and await self._asks(name, tool_args, ctx, tool):
            raise ApprovalRequired
        return await super().call_tool(name, tool_args, ctx, tool)

    async def _asks(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> bool:
        messages: list[Any] = list(ctx.messages)
        while messages and not isinstance(messages[-1], ModelResponse):
            messages.pop()
        try:
            *earlier, response = messages
            message = read_response(response)
            before = from_messages(earlier, ModelRequestParameters())
            (call,) = (call for call in message.tool_calls if call["id"] == ctx.tool_call_id)
        except (UsageError, ValueError):  # no message with this call, or one that could not be judged
            return True
        expected = tool.args_validator.validate_python(call["args"], context=ctx.validation_context)
        return not _equal(expected, tool_args) or await arun(
            self.check.steps([*before, message], {**call, "name": name})
        )


async def agent_bindings(agent: Agent[Any, Any], question: str = "?") -> Bindings:
    """An agent's tools and output type as calibration needs them (``tools.json`` of ``calibrate collect``).

    Args:
        agent: The agent, as it will run. It runs once, with a model that only records its request.
        question: The question of that run.
    """
    recorded: list[Bindings] = []

    class Recording(WrapperModel):
        async def request(
            self,
            messages: list[ModelMessage],
            model_settings: ModelSettings | None,
            model_request_parameters: ModelRequestParameters,
        ) -> ModelResponse:
            recorded.append(request_bindings(model_request_parameters, model_settings, self.wrapped.profile))
            return ModelResponse(parts=[TextPart("")])

    model = agent.model
    if model is None:
        raise UsageError("the agent has no model yet; give it the model that will be guarded.")
    recording: Any = Recording(model)
    try:
        await agent.run(question, model=recording)
    except UnexpectedModelBehavior:
        if not recorded:
            raise
    return recorded[0]
