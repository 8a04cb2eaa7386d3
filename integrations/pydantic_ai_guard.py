"""The guard for pydantic-ai: a capability with which an agent answers, and calls tools, only if the gate accepts.

agent = Agent(model, capabilities=[GuardCapability("calibration.json", on_abstain="message")])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from typing_extensions import Unpack

from guardrail import CalibrationArtifact
from guardrail.artifact import RouterArtifact
from guardrail.errors import UsageError, require
from guardrail.types import Bindings

from ._agents.framework_guard import NOT_RUN, FrameworkGuard
from ._agents.gates import MODELS
from ._agents.options import ArtifactLike, GateOptions
from ._agents.review_bridge import RunBridge as ReviewBridge
from ._agents.unsure import VERDICTS, CallCheck
from ._agents.verdicts import VerdictStore
from ._frameworks.chat import shared_chat
from ._openai.lru import LRU

require("pydantic_ai", extra="pydantic-ai")

from pydantic_ai import (  # noqa: E402
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.agent import AbstractAgent  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering  # noqa: E402
from pydantic_ai.exceptions import UnexpectedModelBehavior  # noqa: E402
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart  # noqa: E402
from pydantic_ai.models import Model, ModelRequestContext, infer_model  # noqa: E402
from pydantic_ai.tools import ToolDefinition  # noqa: E402
from pydantic_ai.toolsets import AbstractToolset  # noqa: E402

from ._frameworks.pydantic_ai_calls import JudgedToolset, UnsureToolset, check_call, running_call  # noqa: E402
from ._frameworks.pydantic_ai_model import GuardedModel, PydanticAIChat, RecordingModel  # noqa: E402

__all__ = ["GuardCapability", "PydanticAIChat", "ReviewBridge", "VerdictStore", "agent_bindings", "unsure"]


class GuardCapability(AbstractCapability[Any]):
    """The guard for an agent: every model request is judged, and no tool call runs that was not accepted or approved.

    The model of each request is wrapped in a `GuardedModel`, also a model that is passed to ``run()``: the artifact
    names the model it was made for and refuses others.

    A call held back under ``on_abstain="review"`` is deferred: the run ends with ``DeferredToolRequests`` (list it in
    the agent's output types) and continues with ``DeferredToolResults`` and the message history, also in another
    process. The approved call runs as it was judged; nothing is drawn again for it. In place of a held-back answer a
    call of ``guardrail_answer`` is deferred; the answer goes out after the decision, and is in no history before.

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
        artifact: ArtifactLike | RouterArtifact | None = None,
        *,
        calibrated_settings: Mapping[str, Any] | None = None,
        verdicts: VerdictStore | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self._gate = FrameworkGuard(None, artifact, verdicts=verdicts, **options)
        self._settings = calibrated_settings or {}
        self._wrapped: LRU[GuardedModel] = LRU(MODELS)  # each holds its model, so its id stays its own

    def for_agent(self, agent: AbstractAgent[Any, Any]) -> AbstractCapability[Any]:
        """Return this capability, for an agent whose runs can end with a call that waits for a person.

        Raises:
            UsageError: They cannot, so a run would fail at the first call or answer that is held back.
        """
        capabilities: list[AbstractCapability[Any]] = []
        agent.root_capability.apply(capabilities.append)
        # A capability of one run sees the agent's output types, not those of the run.
        of_agent = any(capability is self for capability in capabilities)
        can_wait = _defers(agent.output_type) or any(map(_handles_deferred, capabilities))
        if self._gate.asks and of_agent and not can_wait:
            raise UsageError(
                'with on_abstain="review", the default, a held-back call or answer waits for a person, and the run '
                "ends with DeferredToolRequests, which is not among the agent's output types. Give the agent "
                "output_type=[str, DeferredToolRequests]; or without a person, give the guard "
                'on_abstain="message" or "raise".'
            )
        return self

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Return the guarded model, with the memory of what it was asked, of the models used last."""
        wrapped = partial(GuardedModel, model, self._gate, calibrated_settings=self._settings)
        return self._wrapped.get(id(model), wrapped)

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
        await check_call(self._gate, ctx, call, tool_def)
        return args

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Run a call; the toolset of `get_wrapper_toolset` compares the call that reaches the tool with this call."""
        token = running_call.set(call)
        try:
            return await handler(args)
        finally:
            running_call.reset(token)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """The agent's tools, which run only the very calls that may run, and the call that stands for an answer."""
        return JudgedToolset(toolset, self._gate)

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
    last = max((index for index, message in enumerate(messages) if isinstance(message, ModelResponse)), default=None)
    if last is None:
        return []
    done = {getattr(part, "tool_call_id", None) for message in messages[last + 1 :] for part in message.parts}
    return [part for part in messages[last].parts if isinstance(part, ToolCallPart) and part.tool_call_id not in done]


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
    return UnsureToolset(toolset, CallCheck(chat, artifact, verdicts, guard_options))


async def agent_bindings(agent: Agent[Any, Any], question: str = "?") -> Bindings:
    """An agent's tools and output type as calibration needs them (``tools.json`` of ``calibrate collect``).

    Args:
        agent: The agent, as it will run. It runs once, with a model that only records its request.
        question: The question of that run.
    """
    if agent.model is None:
        raise UsageError("the agent has no model yet; give it the model that will be guarded.")
    recorder = RecordingModel(agent.model)
    try:
        await agent.run(question, model=recorder)
    except UnexpectedModelBehavior:
        if not recorder.recorded:
            raise
    return recorder.recorded[0]
