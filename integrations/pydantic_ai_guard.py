"""The guard for pydantic-ai: a model, or a capability, that answers only when the gate accepts.

agent = Agent(inner, capabilities=[GuardCapability("calibration.json", on_abstain="hold")])
agent = Agent(GuardedModel(inner, "calibration.json"))
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field

from guardrail import AbstainedError, CalibrationArtifact, Guardrail
from guardrail.bindings import bindings_for
from guardrail.errors import UsageError, require
from guardrail.guard.abstention import OnAbstain
from guardrail.guard.base import is_result
from guardrail.specs import ModelIdentity
from guardrail.types import Bindings
from guardrail.verdict import Verdict

from ._frameworks.chat import FrameworkChat, check_call, settings_revision
from ._frameworks.guard import HOLD, FrameworkGuard, VerdictStore, refuse_settings

require("pydantic_ai", extra="pydantic-ai")

from pydantic_ai import Agent, ModelRetry, RunContext  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.exceptions import ApprovalRequired, UnexpectedModelBehavior  # noqa: E402
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse, TextPart, ToolCallPart  # noqa: E402
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse  # noqa: E402
from pydantic_ai.models.wrapper import WrapperModel  # noqa: E402
from pydantic_ai.settings import ModelSettings  # noqa: E402
from pydantic_ai.tools import ToolDefinition  # noqa: E402

from ._frameworks.pydantic_ai_messages import (  # noqa: E402
    as_parameters,
    from_messages,
    read_response,
    request_bindings,
    to_messages,
    to_response,
)

__all__ = ["GuardCapability", "GuardedModel", "PydanticAIChat", "VerdictStore", "agent_bindings"]

HARMLESS = frozenset(
    {
        "cache",
        "extra_headers",
        "first_event_timeout",
        "max_retries",
        "openai_logprobs",
        "openai_top_logprobs",
        "request_timeout",
        "service_tier",
        "timeout",
        "tool_choice",  # compared with the artifact's
    }
)
"""Settings of a request that cannot change an answer."""
PASSED_ON = HARMLESS - {"tool_choice", "openai_logprobs", "openai_top_logprobs"}


@dataclass(frozen=True, slots=True)
class _Request:
    """What an agent asked, beside its messages."""

    parameters: ModelRequestParameters
    settings: Mapping[str, Any]
    bindings: Bindings


_request: ContextVar[_Request | None] = ContextVar("guardrail_pydantic_ai_request", default=None)


class PydanticAIChat(FrameworkChat):
    """A model of pydantic-ai as a LangChain chat model: what calibration and the guard call.

    Calibrate with it (``python:my_module:chat`` on the command line), so that calibration and run time make the same
    calls. Each answer is one call; settings are given with each call and never changed on the model.
    """

    inner: Any
    """The model, e.g. ``OpenAIChatModel("gpt-4o-mini")``."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings every call carries besides the artifact's plan and the model's own ``settings``."""

    @property
    def _llm_type(self) -> str:
        return "pydantic-ai"

    def kept(self) -> dict[str, Any]:
        """Settings of every call, the model's own included.

        Raises:
            UsageError: A fixed seed, with which all samples would be equal.
        """
        found = {**(self.inner.settings or {}), **self.settings}
        if found.get("seed") is not None:
            raise UsageError(f"seed={found['seed']} would make all samples equal; leave it out.")
        return {name: value for name, value in found.items() if value is not None}

    def guardrail_identity(self) -> ModelIdentity:
        """Provider, name, and a digest of the settings that may change answers as revision."""
        kept = {name: value for name, value in self.kept().items() if name not in HARMLESS}
        provider = f"pydantic-ai:{type(self.inner).__name__}:{self.inner.system}"
        revision = settings_revision(self.inner.model_name, kept)
        return ModelIdentity(provider=provider, model=self.inner.model_name, revision=revision)

    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        instructions, history = to_messages(messages)
        bindings = bindings_for(
            call.get("tools") or (),
            tool_choice=call.get("tool_choice"),
            response_format=call.get("response_format"),
        )
        request = _request.get()
        settings = {**self.kept(), **_settings(stop, call)}
        if request is not None:
            settings |= {name: value for name, value in request.settings.items() if name in PASSED_ON}
        if request is not None and request.bindings.digest == bindings.digest:
            parameters = _instructed(request.parameters, instructions)
        else:
            parameters = as_parameters(bindings, instructions)
            if bindings.tool_choice is not None:
                only = bindings.tool_choice
                settings["tool_choice"] = "required" if only == "any" else [only]
        given: Any = settings
        response = await self.inner.request(history, given, parameters)
        return read_response(response)


def _instructed(parameters: ModelRequestParameters, instructions: str | None) -> ModelRequestParameters:
    """Request parameters with these instructions; the very same ones where they say so already."""
    parts = parameters.instruction_parts
    if parts is not None and (InstructionPart.join(parts) or None) == instructions:
        return parameters
    return replace(
        parameters, instruction_parts=[] if instructions is None else [InstructionPart(content=instructions)]
    )


def _settings(stop: list[str] | None, call: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one call."""
    check_call(call, "pydantic-ai's models")
    found: dict[str, Any] = {name: call[name] for name in ("temperature", "top_p", "max_tokens") if name in call}
    if call.get("logprobs"):
        found["openai_logprobs"] = True
    if stop:
        found["stop_sequences"] = list(stop)
    return found


class GuardedModel(WrapperModel):
    """A model of pydantic-ai that returns an answer, or tool calls, only when the gate accepts.

    Each request of an agent draws the artifact's samples from ``wrapped``, with the very history, tools and output type
    that the agent sent, and is judged once. Output tools are tool calls and judged like them.

    Streaming: the events begin after the verdict and carry the accepted candidate only.

    The verdict is in the response's ``metadata["guardrail"]``; usage counts the tokens of all samples.

    A run that abstained in words is not asked again: where an output validator raises ``ModelRetry`` on the abstention,
    the run ends with `AbstainedError`, as drawing again until the gate accepts would void the artifact's promise.

    Args:
        wrapped: A model of pydantic-ai, or its name.
        artifact: The calibration artifact, or the path of its JSON file.
        on_abstain: "message", "raise", a Runnable or a handler, as for `Guardrail`. Calls that wait for a person need
            `GuardCapability`.
        settings: Settings every call was calibrated with besides the plan (`PydanticAIChat`).
        verdicts: Where verdicts on tool calls are kept.
        **options: Further settings of `Guardrail`: abstain_message, judge, similarity, entailment, early_stopping,
            probe, max_concurrency.

    Raises:
        ArtifactError: The artifact was made for another model, estimator or judge. While running: for another prompt,
            other tools, another output type, or other settings.
        UsageError: While running: native tools.
    """

    def __init__(
        self,
        wrapped: Model | str,
        artifact: CalibrationArtifact | str | Path,
        *,
        on_abstain: OnAbstain = "message",
        settings: Mapping[str, Any] | None = None,
        verdicts: VerdictStore | None = None,
        **options: Any,
    ) -> None:
        if isinstance(on_abstain, str) and on_abstain == HOLD:
            raise UsageError('on_abstain="hold" needs GuardCapability, which keeps held-back calls from running.')
        super().__init__(wrapped)
        self._chat = PydanticAIChat(inner=self.wrapped, settings=dict(settings or {}))
        self._gate = FrameworkGuard(self._chat, artifact, on_abstain=on_abstain, verdicts=verdicts, settings=options)

    @property
    def guard(self) -> Guardrail:
        """The guard that draws and judges."""
        return self._gate.guard

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Draw, judge, and return the accepted candidate or what the abstention path gives."""
        self._refuse_asking_again(messages)
        given = dict(model_settings or {})
        refuse_settings(self._chat.kept(), given, HARMLESS, "model_settings")
        asked = request_bindings(model_request_parameters, model_settings, self.wrapped.profile)
        token = _request.set(_Request(model_request_parameters, given, asked))
        conversation = from_messages(messages, model_request_parameters)
        try:
            answer = await self._gate.ask(
                conversation,
                asked,
                holdable={tool.name for tool in model_request_parameters.function_tools},
                parsed=asked.response_format is not None or asked.tool_choice is not None,
            )
        finally:
            _request.reset(token)
        if not answer.message.tool_calls:
            self._gate.note_answer(conversation, str(answer.message.text), answer)
        return to_response(answer.message)

    def _refuse_asking_again(self, messages: list[ModelMessage]) -> None:
        """Let only such requests draw whose run has not abstained in words before.

        Raises:
            AbstainedError: It has; a retry within the run leads here.
        """
        if len(messages) < 2:
            return
        *asked, said, again = messages
        if not isinstance(said, ModelResponse) or said.run_id is None or said.run_id != again.run_id:
            return
        _, verdict = self._gate.given_out(from_messages(asked, ModelRequestParameters()), said.text or "")
        if verdict is not None and is_result(verdict):
            raise AbstainedError(verdict, said.text)

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

    def verdict(self, call_id: str) -> Verdict | None:
        """The verdict on a proposed tool call."""
        return self._gate.verdicts.get(call_id)

    def output_validator(self, ctx: RunContext[Any], output: Any) -> Any:
        """For ``agent.output_validator``: an abstention becomes an `AbstainedError` instead of a text.

        Outputs made by a call of an output tool were judged as calls; an abstention raises there anyway.

        Raises:
            AbstainedError: The text is an abstention.
            UnexpectedModelBehavior: This model did not give the text in this conversation.
        """
        if ctx.partial_output or not isinstance(output, str):
            return output
        conversation = from_messages(ctx.messages, ModelRequestParameters())
        passed, verdict = self._gate.given_out(conversation, output)
        if passed:
            return output
        if verdict is None:
            raise UnexpectedModelBehavior("The output was never judged: another model than the guarded one gave it.")
        raise AbstainedError.of(verdict, output)


@dataclass
class GuardCapability(AbstractCapability[Any]):
    """The guard for an agent: every model request is judged, and no tool call runs that was not accepted or approved.

    Whatever model serves a request is wrapped in a `GuardedModel`, so a model given to ``run()`` cannot go round it:
    the artifact names the model it was made for and refuses others.

    A call held back under ``on_abstain="hold"`` is deferred: the run ends with ``DeferredToolRequests`` (list it in the
    agent's output types), and goes on with ``DeferredToolResults`` and the message history, even in another process.
    The approved call is run as it was judged; nothing is drawn again for it.
    """

    artifact: CalibrationArtifact | str | Path
    """The calibration artifact, or the path of its JSON file."""
    _: KW_ONLY
    on_abstain: Any = "message"
    """As for `GuardedModel`; or "hold"."""
    held: Literal["approve", "retry"] = "approve"
    """Under "hold": "approve" asks a person; "retry" tells the model that the call was not run (`ModelRetry`)."""
    settings: Mapping[str, Any] | None = None
    """Settings every call was calibrated with besides the plan."""
    verdicts: VerdictStore = field(default_factory=VerdictStore)
    """Where verdicts on tool calls are kept; with a path they outlive the process."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `Guardrail`."""
    _wrapped: dict[int, GuardedModel] = field(default_factory=dict, init=False, repr=False)

    def get_wrapper_model(self, model: Model) -> Model | None:
        """The guarded model; one for each model, so that what is known of an endpoint is kept."""
        found = self._wrapped.get(id(model))
        if found is None or found.wrapped is not model:
            holds = isinstance(self.on_abstain, str) and self.on_abstain == HOLD
            found = GuardedModel(
                model,
                self.artifact,
                on_abstain="message" if holds else self.on_abstain,
                settings=self.settings,
                verdicts=self.verdicts,
                **self.options,
            )
            found._gate.holds = holds
            self._wrapped[id(model)] = found
        return found

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        """Let a call run only if it was judged, accepted and not changed since, or if a person approved it."""
        if ctx.tool_call_approved or tool_def.kind == "output":
            return args
        known = self.verdicts.get(call.tool_call_id)
        if any(one._gate.may_run(call.tool_call_id, _arguments(call)) for one in self._wrapped.values()):
            return args
        if known is not None and self.held == "approve" and self.on_abstain == HOLD:
            raise ApprovalRequired(metadata={"guardrail": known.to_metadata()})
        raise ModelRetry(
            "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
        )

    def verdict(self, call_id: str) -> Verdict | None:
        """The verdict on a proposed tool call, e.g. for the person who is to approve it."""
        return self.verdicts.get(call_id)


def _arguments(call: ToolCallPart) -> dict[str, Any]:
    return call.args_as_dict()


async def agent_bindings(agent: Agent[Any, Any], question: str = "?") -> Bindings:
    """An agent's tools and output type as calibration needs them (``tools.json`` of ``calibrate collect``).

    Args:
        agent: The agent, as it will run. It is asked once, with a model that only looks at what it is given.
        question: What it is asked.
    """
    seen: list[Bindings] = []

    class Looking(WrapperModel):
        async def request(
            self,
            messages: list[ModelMessage],
            model_settings: ModelSettings | None,
            model_request_parameters: ModelRequestParameters,
        ) -> ModelResponse:
            seen.append(request_bindings(model_request_parameters, model_settings, self.wrapped.profile))
            return ModelResponse(parts=[TextPart("")])

    model = agent.model
    if model is None:
        raise UsageError("the agent has no model yet; give it the one that will be guarded.")
    inner = model.wrapped if isinstance(model, GuardedModel) else model
    looking: Any = Looking(inner)
    try:
        await agent.run(question, model=looking)
    except UnexpectedModelBehavior:
        if not seen:
            raise
    return seen[0]
