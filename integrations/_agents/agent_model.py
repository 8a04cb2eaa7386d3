"""The model that a LangChain agent calls in place of the given one: it draws samples, and lets out what is accepted.

Each model call has its own `AgentModel`, so that calls share nothing. It runs where the agent's own model would: after
all other middleware.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from uuid import uuid4

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
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
from .gates import AgentStep, Judgement, ModelGate, check_nothing_lacks
from .held import Conversation, HeldMessage, MessageNote, held_message

require("langgraph.config", extra="agents")
require("langchain.agents", extra="agents")

from langchain.agents.middleware.types import ModelRequest, ModelResponse  # noqa: E402
from langchain.agents.structured_output import (  # noqa: E402
    OutputToolBinding,
    ProviderStrategy,
    ProviderStrategyBinding,
    ToolStrategy,
)
from langgraph.config import get_config  # noqa: E402
from langgraph.errors import GraphBubbleUp  # noqa: E402


class HeldBack(GraphBubbleUp):
    """Signal that a message is held back, raised through the agent's own layers; the message is in the `Outcome`.

    It is one of LangGraph's own signals, so middleware that takes exceptions for failures of the model lets it pass.
    """


@dataclass
class Outcome:
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

    gates: InstanceOf[ModelGate] = Field(repr=False)
    step: InstanceOf[AgentStep] = Field(repr=False)
    """The request, as it was before other middleware and LangChain bound tools and settings."""
    outcome: InstanceOf[Outcome] = Field(repr=False)
    """Filled by the call."""
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
        message = self.outcome.message if self.outcome.held else None
        if message is None:  # else middleware took the hold for a failure and tries again
            judgement = yield from self.gates.judge_steps(
                step,
                hold=partial(self._hold, messages, self.gates.model_name),
                form=form,
                run_manager=run_manager,
                storable=True,
            )
            message = self._noted(judgement)
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
        if self.outcome.held:
            raise HeldBack("held back for review")
        return message

    # -- before the call ---------------------------------------------------------------------------------------------

    def _checked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[AgentStep, Form]:
        """The step as LangChain sends it, and the form the caller can read; refuses settings of no calibration."""
        self.gates.artifacts.check_messages(messages)
        plan = self.gates.artifacts.plan
        call = {name: value for name, value in kwargs.items() if value is not None}
        own = {name: call.pop(name) for name in list(call) if name in TRANSPORT}
        for name in [name for name in call if name in PLANNED and call[name] == getattr(plan, name, None)]:
            del call[name]
        if own and is_native(self.model):
            raise ArtifactMismatchError(
                f"{type(self.model).__name__} takes no call settings such as {sorted(own)}. Leave them out."
            )
        form = form_of(plan, stop, call)
        check_nothing_lacks(plan, Bindings(**{name: call[name] for name in Bindings.model_fields if name in call}))
        return replace(self.step, messages=tuple(messages), settings=own), form

    # -- after the call ----------------------------------------------------------------------------------------------

    def judge_other_steps(self, message: AIMessage) -> Steps[AIMessage]:
        """Hold a message of another model, which middleware asked instead, or take the abstention path in its place."""
        sample: Sample | None = None
        fault: tuple[str, ...] = ()
        try:
            reply = read_reply(message)
            refuse_unstorable(reply)
            sample = reply
        except UnreadableReplyError as error:  # it can be neither shown nor stored
            fault = (str(error),)
        problem, detail = Unmeasured.MODEL_FAILED, "another model answered in its place"
        drawn = SampleSet(question="", primary=sample, problem=problem, problem_detail=detail)
        artifacts = self.gates.artifacts
        verdict = self.gates.gates[artifacts.artifacts[0].digest].decide(drawn)
        # `decide` may name another reason, such as an artifact that accepts nothing; here only the model counts.
        notes = (Note(kind=NoteKind.ANOTHER_MODEL, about=fault),)
        verdict = verdict.model_copy(update={"reason": Reason.UNMEASURED, "notes": notes})
        by_name = dict.fromkeys(artifacts.judging(sample, self.step.answers), verdict)
        hold = partial(self._hold, self.step.messages, str(message.response_metadata.get("model_name", "")))
        assessment = Assessment(drawn, verdict, by_name)
        return self._noted((yield from self.gates.act_steps(assessment, self.step.messages, hold=hold)))

    def _hold(self, messages: Sequence[BaseMessage], model: str, assessment: Assessment) -> AIMessage:
        """Freeze a message that a person decides about; the placeholder that stands for it."""
        assert assessment.verdict is not None, "a message that no gate judges is accepted"
        candidate = assessment.drawn.primary or assessment.drawn.not_offered or Sample(text="")
        gated = set(assessment.by_name)
        if ANSWER in gated:  # a structured answer's call is the answer
            gated |= set(self.step.answers)
        gate = self.gates.gates.get(assessment.verdict.artifact)
        pending = HeldMessage.of(
            with_verdict(candidate_message(candidate, model), assessment.verdict),
            assessment.verdict if gate is None else _merged(assessment.verdict, gate.estimator.judge),
            conversation=Conversation.of(messages, self.gates.artifacts.plan.bindings),
            gated=gated,
            answers=self.step.answers,
        )
        self.outcome.message = message = held_message(pending)
        self.outcome.note = MessageNote(held=pending, placeholder=message.id)
        return message

    def _noted(self, judgement: Judgement) -> AIMessage:
        """The placeholder, or the message that goes out, under an id by which the middleware knows it again."""
        if judgement.outcome == "held":
            return judgement.message
        message = judgement.message.model_copy(update={"id": f"guardrail-{uuid4()}"})
        orders = {str(call["id"]): judgement.order(call) for call in message.tool_calls}
        self.outcome.message, self.outcome.note = message, MessageNote(orders=orders)
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
    own = verdict.candidate.comparable
    # In the candidate's words where it is the same call, so that choosing it approves the candidate.
    wording = {judge.identity(each.text): each.text for each in verdict.meanings} | {judge.identity(own): own}
    merged = tuple(wording.get(judge.identity(sample), sample) for sample in verdict.samples)
    return verdict.model_copy(update={"samples": merged})


# -- LangChain's requests ----------------------------------------------------------------------------------------------


def step_of(request: ModelRequest[Any]) -> AgentStep:
    """A request in the words of the gate."""
    return AgentStep(
        model=request.model,
        messages=(*([] if request.system_message is None else [request.system_message]), *request.messages),
        answers=tuple(_specs(request.response_format)),
        bindings=bindings_for(request.tools, tool_choice=request.tool_choice),
        thread=_this_thread(),
    )


def _configurable() -> Mapping[str, Any] | None:
    """The configuration of the LangGraph run here, or of the one around it; None outside a graph."""
    try:
        return cast("Mapping[str, Any]", get_config().get("configurable", {}))
    except RuntimeError:
        return None


def _this_thread() -> str | None:
    """Id of the LangGraph thread that runs here; None outside a graph, and in one without a checkpointer."""
    name = (_configurable() or {}).get("thread_id")
    return None if name is None else str(name)


def has_checkpointer() -> bool:
    """True if the LangGraph run here, or the one around it, keeps checkpoints, and outside a graph, where none pauses.

    LangGraph has no public way to ask for it from within a node.
    """
    known = _configurable()
    return known is None or bool(known.get("__pregel_checkpointer"))


def _specs(response_format: Any) -> dict[str, Any]:
    """The schemas of a response format, by the name of the tool whose call is such an answer."""
    if response_format is None:
        return {}
    schema = getattr(response_format, "schema", response_format)
    strategy = response_format if isinstance(response_format, ToolStrategy) else ToolStrategy(schema=schema)
    return {spec.name: spec for spec in strategy.schema_specs}


def given_out(response_format: Any, message: AIMessage) -> ModelResponse[Any]:
    """A decided message as the model node gives it, except that LangChain neither raises nor asks the model again.

    A structured answer that no longer fits its schema after an edit becomes text. A person's own words, and a refusal,
    are not JSON of the schema: they go out as text without a structured response.
    """
    specs = _specs(response_format)
    calls = [call for call in message.tool_calls if call["name"] in specs]
    if len(calls) == 1:
        (call,) = calls
        answer = _parsed(OutputToolBinding, specs[call["name"]], call["args"])
        if answer is not None:
            said = getattr(response_format, "tool_message_content", None) or f"Returning structured response: {answer}"
            result = ToolMessage(content=said, tool_call_id=str(call["id"]), name=call["name"])
            return ModelResponse(result=[message, result], structured_response=answer)
    if calls:
        texts = [str(message.text), *(json.dumps(call["args"], ensure_ascii=False) for call in calls)]
        left = [call for call in message.tool_calls if call not in calls]
        message = message.model_copy(update={"content": "\n".join(filter(None, texts)), "tool_calls": left})
    elif response_format is not None and not message.tool_calls and not isinstance(response_format, ToolStrategy):
        spec = ProviderStrategy(schema=getattr(response_format, "schema", response_format)).schema_spec
        return ModelResponse(result=[message], structured_response=_parsed(ProviderStrategyBinding, spec, message))
    return ModelResponse(result=[message])


def _parsed(binding: Any, spec: Any, value: Any) -> Any:
    """The structured answer; None if the value does not fit."""
    try:
        return binding.from_schema_spec(spec).parse(value)
    except Exception:  # any error of the schema's own code
        return None


def name_of(model: BaseChatModel) -> str:
    """The model's name where LangChain looks for it; never empty, or LangChain would look further."""
    names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
    return next((name for name in names if name and isinstance(name, str)), "unnamed")


class Offered(Exception):  # noqa: N818 - a signal, not an error
    """Signal that a model was offered these `Bindings`, its argument, raised in place of an answer."""


class OfferRecorder(BaseChatModel):
    """Raises `Offered` when it is asked; stands for an agent's model, under its name and profile."""

    model_name: str = ""

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Raise what is offered."""
        form = kwargs.get("response_format")
        raise Offered(bindings_for(tools, tool_choice=tool_choice, response_format=form, strict=strict))

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        raise Offered(Bindings())

    @property
    def _llm_type(self) -> str:
        return "guardrail_recorder"
