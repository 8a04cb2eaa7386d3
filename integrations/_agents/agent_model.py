"""The model that a LangChain agent calls in place of the given one: it draws samples, and lets out what is accepted.

Each model call has its own `AgentModel`, so that calls share nothing. It runs where the agent's own model would: after
all other middleware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field, InstanceOf

from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError, UnreadableReplyError, require
from guardrail.guard.abstention import Form
from guardrail.guard.assess import Assessment
from guardrail.guard.base import SteppedChatModel
from guardrail.guard.messages import candidate_message, with_verdict
from guardrail.guard.structured import form_of
from guardrail.judges import ToolCallJudge
from guardrail.sampling.call_settings import PLANNED, TRANSPORT
from guardrail.sampling.effects import Steps
from guardrail.sampling.native import is_native
from guardrail.sampling.replies.read import read_reply, refuse_unstorable
from guardrail.types import Bindings, Note, NoteKind, Sample, SampleSet, Unmeasured
from guardrail.verdict import Reason, Verdict

from .artifact_set import ANSWER
from .gates import AgentStep, Judgement, ModelGate
from .held import Conversation, HeldMessage, MessageNote, held_message
from .langchain_requests import name_of

require("langgraph.errors", extra="agents")

from langgraph.errors import GraphBubbleUp  # noqa: E402


class HeldBack(GraphBubbleUp):
    """Signal that a message is held back, raised through the agent's own layers; the message is in the `CallResult`.

    It is one of LangGraph's own signals, so middleware that takes exceptions for failures of the model lets it pass.
    """


@dataclass
class CallResult:
    """The message that a gated model let out last, or the placeholder of a held one, and the note about it."""

    message: AIMessage | None = None
    note: MessageNote = field(default_factory=MessageNote)

    @property
    def held(self) -> bool:
        """True if the message waits for a person."""
        return self.note.held is not None

    def judged(self, message: AIMessage) -> bool:
        """True if the gated model let this message out."""
        return self.message is not None and message.id == self.message.id


class AgentModel(SteppedChatModel):
    """One model call of an agent, judged.

    It returns the accepted candidate, or takes the abstention path, or raises `HeldBack`. The signal is raised after
    the model's run has ended with the placeholder: a message that waits for a person is not an error in traces.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    gate: InstanceOf[ModelGate] = Field(repr=False)
    step: InstanceOf[AgentStep] = Field(repr=False)
    """The request, as it was before other middleware and LangChain bound tools and settings."""
    result: InstanceOf[CallResult] = Field(repr=False)
    """Filled by the call."""
    disable_streaming: bool = True
    cache: Any = False

    @property
    def model(self) -> BaseChatModel:
        """The agent's model. Not changed."""
        return self.step.model

    def _answer(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        run_manager: Any,
        arguments: Mapping[str, Any],
    ) -> Steps[ChatResult]:
        step, form = self._checked(messages, stop, arguments)
        message = self.result.message if self.result.held else None
        if message is None:  # else middleware took the hold for a failure and tries again
            judgement = yield from self.gate.judge_steps(
                step,
                hold=partial(self._hold, messages, self.gate.model_name),
                form=form,
                run_manager=run_manager,
                storable=True,
            )
            message = self._keep_result(judgement)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def invoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """The message that goes out.

        Raises:
            HeldBack: A person decides about the message.
        """
        return self._unless_held(super().invoke(*args, **kwargs))

    async def ainvoke(self, *args: Any, **kwargs: Any) -> AIMessage:
        """`invoke` without blocking the event loop."""
        return self._unless_held(await super().ainvoke(*args, **kwargs))

    def _unless_held(self, message: AIMessage) -> AIMessage:
        if self.result.held:
            raise HeldBack("held back for review")
        return message

    # -- before the call ---------------------------------------------------------------------------------------------

    def _checked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[AgentStep, Form]:
        """The step as LangChain sends it, and the form the caller can read; refuses settings of no calibration."""
        self.gate.artifacts.check_messages(messages)
        plan = self.gate.artifacts.plan
        sent = {name: value for name, value in kwargs.items() if value is not None}
        transport = {name: value for name, value in sent.items() if name in TRANSPORT}
        if transport and is_native(self.model):
            raise ArtifactMismatchError(
                f"{type(self.model).__name__} takes no call settings such as {sorted(transport)}. Leave them out."
            )
        as_planned = {name for name in PLANNED if name in sent and sent[name] == getattr(plan, name, None)}
        others = {name: value for name, value in sent.items() if name not in transport.keys() | as_planned}
        form = form_of(plan, stop, others)
        requested = Bindings(**{name: others[name] for name in Bindings.model_fields if name in others})
        self.gate.artifacts.check_nothing_lacks(requested)
        return replace(self.step, messages=tuple(messages), settings=transport), form

    # -- after the call ----------------------------------------------------------------------------------------------

    def judge_other_steps(self, message: AIMessage) -> Steps[AIMessage]:
        """Hold a message of another model, which middleware asked instead, or take the abstention path in its place."""
        sample: Sample | None = None
        faults: tuple[str, ...] = ()
        try:
            reply = read_reply(message)
            refuse_unstorable(reply)
            sample = reply
        except UnreadableReplyError as error:  # it can be neither shown nor stored
            faults = (str(error),)
        cause = "another model answered in its place"
        drawn = SampleSet(question="", primary=sample, problem=Unmeasured.MODEL_FAILED, problem_detail=cause)
        artifacts = self.gate.artifacts
        first_gate = self.gate.gates[artifacts.artifacts[0].digest]
        verdict = first_gate.decide(drawn)
        # `decide` may name another reason, such as an artifact that accepts nothing; here only the model counts.
        notes = (Note(kind=NoteKind.ANOTHER_MODEL, about=faults),)
        verdict = verdict.model_copy(update={"reason": Reason.UNMEASURED, "notes": notes})
        by_name = dict.fromkeys(artifacts.judging(sample, self.step.answers), verdict)
        hold = partial(self._hold, self.step.messages, str(message.response_metadata.get("model_name", "")))
        assessment = Assessment(drawn, verdict, by_name)
        judgement = yield from self.gate.act_steps(assessment, self.step.messages, hold=hold)
        return self._keep_result(judgement)

    def _hold(self, messages: Sequence[BaseMessage], model: str, assessment: Assessment) -> AIMessage:
        """Freeze a message that a person decides about; the placeholder that stands for it."""
        assert assessment.verdict is not None, "a message that no gate judges is accepted"
        candidate = assessment.drawn.primary or assessment.drawn.not_offered or Sample(text="")
        gated = set(assessment.by_name)
        if ANSWER in gated:  # a structured answer's call is the answer
            gated |= set(self.step.answers)
        gate = self.gate.gates.get(assessment.verdict.artifact)
        pending = HeldMessage.of(
            with_verdict(candidate_message(candidate, model), assessment.verdict),
            assessment.verdict if gate is None else _merged(assessment.verdict, gate.estimator.judge),
            conversation=Conversation.of(messages, self.gate.artifacts.plan.bindings),
            gated=gated,
            answers=self.step.answers,
        )
        self.result.message = message = held_message(pending)
        self.result.note = MessageNote(held=pending, placeholder=message.id)
        return message

    def _keep_result(self, judgement: Judgement) -> AIMessage:
        """Keep a judgement in `result`, and return its message under an id by which the middleware recognises it.

        The placeholder of a held message is kept already, by `_hold`.
        """
        if judgement.outcome == "held":
            return judgement.message
        message = judgement.message.model_copy(update={"id": f"guardrail-{uuid4()}"})
        orders = {str(call["id"]): judgement.order(call) for call in message.tool_calls}
        self.result.message = message
        self.result.note = MessageNote(orders=orders)
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
    candidate = verdict.candidate.comparable
    wording = {judge.identity(meaning.text): meaning.text for meaning in verdict.meanings}
    # In the candidate's words where it is the same call, so that choosing it approves the candidate.
    wording[judge.identity(candidate)] = candidate
    merged = tuple(wording.get(judge.identity(sample), sample) for sample in verdict.samples)
    return verdict.model_copy(update={"samples": merged})
