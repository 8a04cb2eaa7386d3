"""The model an agent calls in place of its own: it draws samples, judges the message, and lets out accepted ones only.

Each model call has its own `AgentModel`, so that calls share nothing. It runs where the agent's own model would: after
all other middleware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field, InstanceOf

from guardrail.bindings import bindings_for
from guardrail.call_settings import SettingRole, setting_names
from guardrail.errors import ArtifactMismatchError, require
from guardrail.guard.abstention import Form
from guardrail.guard.assess import Assessment
from guardrail.guard.base import SteppedChatModel
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.structured import form_of
from guardrail.judges import ToolCallJudge
from guardrail.sampling.effects import Steps
from guardrail.sampling.native import is_native
from guardrail.specs import ModelIdentity, identify
from guardrail.types import Sample
from guardrail.verdict import Verdict

from .artifact_set import ANSWER
from .calls import call_digest
from .gates import AgentStep, Judgement, ModelGates
from .held import Conversation, HeldMessage, Outcome, ToolCallOrder
from .model_requests import name_of

if TYPE_CHECKING:
    from langgraph.errors import GraphBubbleUp
else:
    GraphBubbleUp = require("langgraph.errors", extra="agents").GraphBubbleUp

__all__ = ["AgentModel", "HeldBack"]

TRANSPORT = setting_names(SettingRole.TRANSPORT, allowed_in="langchain")
"""Call settings that say how a request travels, not how an answer is drawn: they pass unchanged."""
PLANNED = setting_names(SettingRole.PLAN)
"""Call settings that the artifact's plan fixes; the plan's own values pass."""


class HeldBack(GraphBubbleUp):
    """Signal that a message is held back, raised through the agent's own layers; the message is in the `Outcome`.

    It is one of LangGraph's own signals, so middleware that takes exceptions for failures of the model lets it pass.
    """


class AgentModel(SteppedChatModel):
    """One model call of an agent, judged.

    It returns the accepted candidate, or takes the abstention path, or raises `HeldBack`. The signal is raised after
    the model's run has ended with the placeholder: a message that waits for a person is not an error in traces.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    gates: InstanceOf[ModelGates] = Field(repr=False)
    step: InstanceOf[AgentStep] = Field(repr=False)
    """The request, as it was before other middleware and LangChain bound tools and settings."""
    outcome: Any = Field(repr=False)
    """`Outcome`, filled by the call."""
    disable_streaming: bool = True
    cache: Any = False

    @property
    def model(self) -> BaseChatModel:
        """The agent's model. Not changed."""
        return self.step.model

    def _answer(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, run_manager: Any, given: Mapping[str, Any]
    ) -> Steps[ChatResult]:
        step, form = self._checked(messages, stop, given)
        message = self._outcome.placeholder
        if message is None:  # else middleware took the hold for a failure and tries again
            judgement = yield from self.gates.judge_steps(
                step, hold=partial(self._hold, messages), form=form, run_manager=run_manager, storable=True
            )
            message = self._outcome.placeholder or self._released(judgement)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def invoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """The message that goes out.

        Raises:
            HeldBack: A person decides about the message.
        """
        return self._past_others(super().invoke(*args, **kwargs))

    async def ainvoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """`invoke` without blocking the event loop."""
        return self._past_others(await super().ainvoke(*args, **kwargs))

    def _past_others(self, message: AIMessage) -> AIMessage:
        if self._outcome.held is not None:
            raise HeldBack("held back for review")
        return message

    # -- before the call ---------------------------------------------------------------------------------------------

    def _checked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[AgentStep, Form]:
        """The step as LangChain sends it, and the form the caller can read; refuses settings of no calibration."""
        self.gates.artifacts.check_messages(messages)
        plan, settings = self.gates.artifacts.plan, self.gates.agent.settings
        call = {name: value for name, value in kwargs.items() if value is not None}
        own = {name: call.pop(name) for name in list(call) if name in TRANSPORT}
        for name in list(call):
            if name in settings and call[name] == settings[name]:
                own[name] = call.pop(name)
            elif name in PLANNED and call[name] == getattr(plan, name, None):
                del call[name]
        missing = sorted(name for name in settings if name not in own)
        if missing:
            raise ArtifactMismatchError(
                f"the artifact's answers were collected with the settings {settings}, but the agent's call has no "
                f"{', '.join(missing)}. Set them in the request, or leave them out of calibrated_settings=."
            )
        bindings = plan.bindings
        if bindings is not None and bindings.tools and not call.get("tools"):
            raise ArtifactMismatchError(
                f"this agent has no tools, but its artifacts were calibrated with the tools {bindings.tool_names}. "
                "Give it these tools, or calibrate it without."
            )
        form = form_of(plan, stop, call)
        return replace(self.step, model=_carrying(self.model, own), messages=tuple(messages)), form

    # -- after the call ----------------------------------------------------------------------------------------------

    def _hold(self, messages: Sequence[BaseMessage], assessment: Assessment) -> AIMessage:
        """Freeze a message that a person decides about; the placeholder that stands for it."""
        assert assessment.verdict is not None, "a message that no gate judges is accepted"
        candidate = assessment.drawn.primary or assessment.drawn.not_offered or Sample(text="")
        verdicts = dict(assessment.by_name)
        answer = verdicts.pop(ANSWER, None)  # a structured answer's call is the answer
        if answer is not None:
            verdicts |= dict.fromkeys(self.step.answers, answer)
        gate = self.gates.gates.get(assessment.verdict.artifact)
        pending = HeldMessage.of(
            self._message(candidate, assessment),
            assessment.verdict if gate is None else _merged(assessment.verdict, gate.estimator.judge),
            conversation=Conversation.of(messages),
            verdicts=verdicts,
            answers=self.step.answers,
        )
        return self._outcome.hold(pending)

    def _released(self, judgement: Judgement) -> AIMessage:
        """The message that goes out, under an id by which the middleware knows it again."""
        assessment, candidate = judgement.assessment, judgement.accepted
        if judgement.fallback is not None and assessment.verdict is not None:
            message = with_verdict(judgement.fallback, assessment.verdict)
        else:
            assert candidate is not None, "the gate accepts candidates only"
            message = self._message(candidate, assessment)
        message = message.model_copy(update={"id": f"guardrail-{uuid4()}"})
        outcome = self._outcome
        outcome.message_id, outcome.held, outcome.placeholder = message.id, None, None
        outcome.orders = {
            str(call["id"]): ToolCallOrder(
                digest=call_digest(call),
                decision="accepted" if call["name"] in assessment.by_name else "exempt",
            )
            for call in message.tool_calls
        }
        return message

    def _message(self, candidate: Sample, assessment: Assessment) -> AIMessage:
        """A candidate as a message, with its verdict and the usage of everything that was drawn."""
        message = candidate_message(candidate, self.gates.artifacts.artifacts[0].model.model)
        if assessment.verdict is not None:
            return with_verdict(message, assessment.verdict)
        return message.model_copy(update={"usage_metadata": total_usage(assessment.drawn.cost)})

    @property
    def _outcome(self) -> Outcome:
        outcome: Outcome = self.outcome
        return outcome

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        response_format: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind the request's tools, to be compared with the artifacts'; its settings go along."""
        bindings = bindings_for(tools, tool_choice=tool_choice, response_format=response_format, strict=strict)
        bound: Runnable[LanguageModelInput, AIMessage] = self.bind(
            **bindings.model_dump(exclude_defaults=True), **kwargs
        )
        return bound

    @property
    def model_name(self) -> str:
        """Name of the agent's model: LangChain chooses by it how structured output is asked for."""
        return name_of(self.model)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop)

    @property
    def _llm_type(self) -> str:
        return "guardrail_agent"


def _merged(verdict: Verdict, judge: object) -> Verdict:
    """The verdict with one alternative for all calls that differ only in arguments that are not compared."""
    if verdict.candidate is None or not isinstance(judge, ToolCallJudge) or judge.arguments is None:
        return verdict
    own = verdict.candidate.comparable
    same = judge.identity(own)
    # In the candidate's words where it is the same call, so that choosing it approves the candidate.
    merged = [(own if judge.identity(each.text) == same else each.text, each.share) for each in verdict.meanings]
    return verdict.model_copy(update={"alternatives": tuple(merged) or verdict.alternatives})


def _carrying(model: BaseChatModel, settings: Mapping[str, Any]) -> BaseChatModel:
    """The model, or a wrapper whose calls also carry these settings; the model itself is never changed.

    Raises:
        ArtifactMismatchError: A local sampler cannot take them.
    """
    if not settings:
        return model
    if is_native(model):
        raise ArtifactMismatchError(
            f"{type(model).__name__} takes no call settings such as {sorted(settings)}. Leave them out."
        )
    return _Carrying(model=model, settings=dict(settings), rate_limiter=model.rate_limiter)


class _Carrying(BaseChatModel):
    """A model whose every call carries more settings."""

    model: BaseChatModel
    settings: Mapping[str, Any]
    cache: Any = False

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self.model._generate(messages, stop, run_manager, **{**self.settings, **kwargs})

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await self.model._agenerate(messages, stop, run_manager, **{**self.settings, **kwargs})

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        bound: Any = self.model.bind_tools(tools, **kwargs)
        return self.bind(**bound.kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop)

    def guardrail_identity(self) -> ModelIdentity:
        return identify(self.model)

    @property
    def _llm_type(self) -> str:
        return self.model._llm_type
