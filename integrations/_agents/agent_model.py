"""The model an agent calls in place of its own: draws, judges the message, and lets out only what may go out.

It is made anew for each model call, so that calls share nothing, and runs where the agent's own model would: after all
other middleware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field, InstanceOf

from guardrail.bindings import bindings_for
from guardrail.call_settings import SettingRole, setting_names
from guardrail.errors import ArtifactMismatchError, require
from guardrail.guard.abstention import Abstention, Form, OnAbstain, Wording, take_path
from guardrail.guard.assess import Abstentions, Assessment, Assessor
from guardrail.guard.base import SteppedChatModel
from guardrail.guard.decide import Gate
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.observers import Observers
from guardrail.guard.structured import form_of
from guardrail.prompting import question_text
from guardrail.sampling.callbacks import child_callbacks, note_verdict
from guardrail.sampling.effects import Steps
from guardrail.sampling.native import is_native
from guardrail.sampling.replies import only_storable
from guardrail.specs import ModelIdentity, identify
from guardrail.types import Sample
from guardrail.verdict import Verdict

from ..langgraph_review import HOLDING, held_message, lean
from .artifact_set import ANSWER, ArtifactSet
from .collecting import StepRecords
from .held import FrozenMessage, HeldMessage, ToolCallOrder, call_digest, targets_of

if TYPE_CHECKING:
    from langgraph.config import get_config
else:
    get_config = require("langgraph.config", extra="agents").get_config

__all__ = ["AgentModel", "DecidedModel", "HeldBack", "Outcome", "carrying", "name_of", "this_step", "this_thread"]

TRANSPORT = setting_names(SettingRole.TRANSPORT, allowed_in="langchain")
"""Call settings that say how a request travels, not how an answer is drawn: passed on as they are."""
PLANNED = setting_names(SettingRole.PLAN)
"""Call settings that the artifact's plan fixes; those with the plan's value pass."""


def this_step() -> str | None:
    """Name of the LangGraph task that runs here, the same for every retry within it; None outside a graph."""
    try:
        name = get_config().get("metadata", {}).get("langgraph_checkpoint_ns")
    except RuntimeError:
        return None
    return name if isinstance(name, str) and name else None


def this_thread() -> str | None:
    """Id of the LangGraph thread that runs here; None outside a graph, and in one without a checkpointer."""
    try:
        name = get_config().get("configurable", {}).get("thread_id")
    except RuntimeError:
        return None
    return None if name is None else str(name)


class HeldBack(Exception):  # noqa: N818 - a signal, raised through the agent's own layers and caught above them
    """Passes everything between the gated model and the middleware; what was held back is in the `Outcome`."""


@dataclass
class Outcome:
    """What a gated model let out last: its message's id, its verdict, and its calls."""

    message_id: str | None = None
    verdict: Verdict | None = None
    orders: dict[str, ToolCallOrder] = field(default_factory=dict)
    held: HeldMessage | None = None
    placeholder: AIMessage | None = None
    """What stands in the conversation while it is held."""


class AgentModel(SteppedChatModel):
    """One model call of an agent, judged.

    It returns the accepted candidate, or takes the abstention path, or raises `held_back`. That is raised after the
    model's run has ended with the placeholder: a message that waits for a person is not an error in traces.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: BaseChatModel
    """The agent's model. Not changed."""
    artifacts: InstanceOf[ArtifactSet] = Field(repr=False)
    gates: Mapping[str, InstanceOf[Gate]] = Field(repr=False)
    """By the digest of their artifact."""
    trust: InstanceOf[EndpointTrust] = Field(repr=False)
    """In this model."""
    observers: InstanceOf[Observers] = Field(repr=False)
    outcome: Any = Field(repr=False)
    """`Outcome`, filled by the call."""
    abstentions: InstanceOf[Abstentions] = Field(repr=False)
    """Of the middleware: a retry of a step gets the abstention again, not another draw."""
    step: str | None = None
    """The step of the agent that calls; see `this_step`."""
    thread: str | None = None
    """The conversation; see `this_thread`."""
    records: InstanceOf[StepRecords] | None = Field(default=None, repr=False)
    """Where samples for tools without an artifact are kept."""
    held_back: type[HeldBack] | None = Field(repr=False)
    """What is raised if a person decides; None takes ``on_abstain``."""
    holding_message: str = HOLDING
    """Text of the placeholder."""
    on_abstain: Any = "message"
    abstain_message: Any = Field(repr=False)
    answers: tuple[str, ...] = ()
    """Tools whose call is the answer (structured output)."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Call settings the artifact's answers were collected with."""
    max_concurrency: int | None = None
    disable_streaming: bool = True
    cache: Any = False

    def _answer(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, run_manager: Any, given: Mapping[str, Any]
    ) -> Steps[ChatResult]:
        form, model = self._checked(messages, stop, given)
        if self._outcome.placeholder is not None:  # middleware took the hold for a failure and tries again
            return ChatResult(generations=[ChatGeneration(message=self._outcome.placeholder)])
        callbacks = child_callbacks(run_manager)
        question = self.artifacts.artifacts[0].prompt.question_of(messages)
        assessment = yield from self._assessor(model).assess_steps(messages, callbacks, question=question)
        if self.records is not None:
            assessment = yield from self.records.noted(assessment, messages, self.thread)
        if assessment.verdict is not None:
            note_verdict(run_manager, assessment.verdict)
        message = self._settled(assessment, messages)
        if message is None:
            assert assessment.verdict is not None, "a message that no gate judges is accepted"
            message = yield from take_path(self._abstention(assessment.verdict, messages, callbacks, form))
            message = self._noted(message, assessment)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _assessor(self, model: BaseChatModel) -> Assessor:
        return self.artifacts.assessor(
            model,
            self.gates,
            self.trust,
            self.observers,
            self.abstentions,
            answers=self.answers,
            step=self.step or "",
            max_concurrency=self.max_concurrency,
            usable=only_storable,
        )

    def invoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """The message that goes out.

        Raises:
            HeldBack: ``held_back``, where a person decides.
        """
        return self._past_others(super().invoke(*args, **kwargs))

    async def ainvoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """`invoke` without blocking the event loop."""
        return self._past_others(await super().ainvoke(*args, **kwargs))

    def _past_others(self, message: AIMessage) -> AIMessage:
        if self.held_back is not None and self._outcome.held is not None:
            raise self.held_back("held back for review")
        return message

    # -- before the call ---------------------------------------------------------------------------------------------

    def _checked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[Form, BaseChatModel]:
        """What the caller can read, and the model with the request's settings; refuses what was not calibrated."""
        self.artifacts.check_messages(messages)
        plan = self.artifacts.plan
        given = {name: value for name, value in kwargs.items() if value is not None}
        own = {name: given.pop(name) for name in list(given) if name in TRANSPORT}
        for name in list(given):
            if name in self.settings and given[name] == self.settings[name]:
                own[name] = given.pop(name)
            elif name in PLANNED and given[name] == getattr(plan, name, None):
                del given[name]
        missing = sorted(name for name in self.settings if name not in own)
        if missing:
            raise ArtifactMismatchError(
                f"the artifact's answers were collected with the settings {dict(self.settings)}, but the agent's call "
                f"has no {', '.join(missing)}. Set them in the request, or leave them out of calibrated_settings=."
            )
        known = plan.bindings
        if known is not None and known.tools and not given.get("tools"):
            raise ArtifactMismatchError(
                f"this agent has no tools, but its artifacts were calibrated with the tools {known.tool_names}. "
                "Give it these tools, or calibrate it without."
            )
        return form_of(plan, stop, given), carrying(self.model, own)

    # -- after the call ----------------------------------------------------------------------------------------------

    def _settled(self, assessment: Assessment, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """The message that goes out, or the placeholder of one that is held; None where the abstention path decides."""
        candidate = assessment.drawn.primary
        if assessment.accepted and candidate is not None:
            return self._noted(self._message(candidate, assessment), assessment)
        if self.held_back is None:
            return None
        assert assessment.verdict is not None, "a message that no gate judges is accepted"
        message = self._message(candidate or Sample(text=""), assessment)
        held = HeldMessage(
            question=question_text(messages),
            message=FrozenMessage.of(message),
            judged=targets_of(message, self._verdicts(assessment), self.answers, lean(assessment.verdict)),
            verdict=lean(assessment.verdict),
        )
        self._outcome.held, self._outcome.placeholder = held, held_message(held, self.holding_message)
        return self._outcome.placeholder

    def _verdicts(self, assessment: Assessment) -> dict[str, Verdict]:
        """What the gates say about each call, by the tool's name; a structured answer's call is the answer."""
        lean_ones = {name: lean(verdict) for name, verdict in assessment.by_name.items()}
        answer = lean_ones.pop(ANSWER, None)
        return lean_ones if answer is None else {**lean_ones, **dict.fromkeys(self.answers, answer)}

    def _message(self, candidate: Sample, assessment: Assessment) -> AIMessage:
        """A candidate as a message with its verdict (without its content, where it was held back) and the usage."""
        verdict = assessment.verdict
        message = candidate_message(candidate, self.artifacts.artifacts[0].model.model)
        if verdict is not None:
            return with_verdict(message, verdict)
        cost = assessment.drawn.cost
        usage = total_usage(cost)
        return message.model_copy(update={"usage_metadata": usage})

    @property
    def _outcome(self) -> Outcome:
        outcome: Outcome = self.outcome
        return outcome

    def _abstention(
        self, verdict: Verdict, messages: Sequence[BaseMessage], callbacks: Callbacks, form: Form
    ) -> Abstention:
        path: OnAbstain = self.on_abstain
        wording: Wording = self.abstain_message
        bound = self.artifacts.plan.bindings
        return Abstention(verdict, messages, path, wording, callbacks, bound, form)

    def _noted(self, message: AIMessage, assessment: Assessment) -> AIMessage:
        """The message under an id by which the middleware knows it again."""
        if assessment.verdict is not None and not assessment.accepted:
            message = with_verdict(message, assessment.verdict)
        message = message.model_copy(update={"id": f"guardrail-{uuid4()}"})
        outcome = self._outcome
        outcome.message_id, outcome.verdict = message.id, assessment.verdict
        outcome.held = outcome.placeholder = None
        outcome.orders = {
            str(call["id"]): ToolCallOrder(
                digest=call_digest(call),
                decision="accepted" if call["name"] in assessment.by_name else "exempt",
            )
            for call in message.tool_calls
        }
        return message

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
        """The request's tools, to be compared with the artifacts'; its settings go along."""
        asked = bindings_for(tools, tool_choice=tool_choice, response_format=response_format, strict=strict)
        bound: Runnable[LanguageModelInput, AIMessage] = self.bind(**asked.model_dump(exclude_defaults=True), **kwargs)
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


def name_of(model: BaseChatModel) -> str:
    """The model's name where LangChain looks for it; never empty, or it would look further."""
    names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
    return next((name for name in names if name and isinstance(name, str)), "unnamed")


class DecidedModel(BaseChatModel):
    """Gives out one message that was decided about before; draws nothing."""

    message: AIMessage
    model_name: str = ""
    """Name of the model in whose place it stands, see `name_of`."""
    cache: Any = False
    """No cache: it knows messages by the prompt, and people decide differently about the same prompt."""

    @classmethod
    def in_place_of(cls, model: BaseChatModel, message: AIMessage) -> DecidedModel:
        """One that LangChain treats as it treats the model."""
        return cls(message=message, model_name=name_of(model), profile=model.profile)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Itself: the message is decided, so bound tools change nothing."""
        return self

    @property
    def _llm_type(self) -> str:
        return "guardrail_frozen"


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


def carrying(model: BaseChatModel, settings: Mapping[str, Any]) -> BaseChatModel:
    """The model, or one whose calls also carry these settings; the model itself is never changed.

    Raises:
        ArtifactMismatchError: A local sampler has no use for them.
    """
    if not settings:
        return model
    if is_native(model):
        raise ArtifactMismatchError(
            f"{type(model).__name__} takes no call settings such as {sorted(settings)}. Leave them out."
        )
    return _Carrying(model=model, settings=dict(settings), rate_limiter=model.rate_limiter)
