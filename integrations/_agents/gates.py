"""The gate of one agent, for every framework: it admits a step, judges it, and holds, answers for or records it.

An adapter translates a request once into an `AgentStep`, makes one `AgentGate` when it is set up, and calls

1. `AgentGate.admit`: the gates for the step's model, after every check of model and tools;
2. `ModelGates.judge_steps`: the verdict and its consequence, as a `Judgement`;

then it translates the `Judgement` back into its framework's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from guardrail.decision import Gate, in_two_stages
from guardrail.errors import UnreadableReplyError
from guardrail.guard.abstention import Abstention, Form, take_path
from guardrail.guard.assess import Assessment, Assessor, check_slots
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.messages import with_verdict
from guardrail.guard.observers import Observers, as_observers
from guardrail.items.gate import undivided
from guardrail.monitor import SafetySwitch
from guardrail.sampling.callbacks import child_callbacks, note_verdict
from guardrail.sampling.draws import Draws
from guardrail.sampling.effects import Steps
from guardrail.sampling.follow_ups import Scoring
from guardrail.sampling.native import is_native
from guardrail.sampling.replies import only_storable, read_reply, refuse_unstorable
from guardrail.sampling.sampler import Sampler
from guardrail.specs import ModelIdentity, identify
from guardrail.types import Bindings, Sample, SampleSet, Unmeasured
from guardrail.verdict import Reason, Verdict

from .._openai.lru import LRU
from .artifact_set import ArtifactSet, GateSettings
from .collecting import RECORDS, StepRecords, ask_which_arguments_matter
from .held import Conversation, HeldMessage, lean

__all__ = ["AgentGate", "AgentStep", "Judgement", "ModelGates"]

MODELS = 16
"""Model objects whose probes are remembered: an agent has one, unless other middleware makes more."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One request of an agent to its model, translated once from its framework's form.

    Attributes:
        model: The agent's model.
        messages: The conversation, the system message first.
        tools: Names of the tools on offer, without those whose call is the answer.
        answers: Tools whose call is the answer (structured output).
        bindings: Tools, choice and format of the request; read for an agent that only collects.
        thread: Name of the conversation; None to tell conversations by their first message.
    """

    model: BaseChatModel
    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    bindings: Bindings = field(default_factory=Bindings)
    thread: str | None = None

    @property
    def system(self) -> str | None:
        """Text of the system message."""
        return next((str(message.text) for message in self.messages[:1] if message.type == "system"), None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a judged step. Exactly one of "accepted", ``held`` and ``fallback`` applies.

    Attributes:
        assessment: The draw and the verdicts.
        held: The message that waits for a person, as the adapter's ``hold`` made it.
        fallback: The message of the abstention path: a text, a person's or another model's answer.
    """

    assessment: Assessment
    held: AIMessage | None = None
    fallback: AIMessage | None = None

    @property
    def accepted(self) -> Sample | None:
        """The candidate, if it may go out; of an answer in items those that are kept."""
        if self.held is not None or self.fallback is not None:
            return None
        return self.assessment.drawn.primary if self.verdict is None else self.verdict.candidate

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that counts; None if no gate judges the candidate."""
        return self.assessment.verdict


class AgentGate:
    """The gate of one agent: its artifacts, its abstention path and its memory.

    Args:
        artifacts: The artifacts of the agent.
        settings: Settings of the guard.
        on_abstain: The abstention path, as for `Guardrail`; "review" where a person decides.
        reviewed: Whether a person decides about held-back messages.
        calibrated_settings: Call settings that the artifacts' answers were collected with.
        records: Record file for samples of tools that collect.

    Raises:
        UsageError: A tool that collects where no person decides.
    """

    def __init__(
        self,
        artifacts: ArtifactSet,
        settings: GateSettings,
        *,
        on_abstain: Any,
        reviewed: bool,
        calibrated_settings: Mapping[str, Any] | None = None,
        records: str | Path = RECORDS,
    ) -> None:
        # At set-up: nobody may learn only after an alarm that the switch is not stricter than an artifact.
        if isinstance(settings.switch, SafetySwitch):
            for artifact in artifacts.artifacts:
                settings.switch.check(artifact.threshold)
        self.observers = Observers(settings.switch, as_observers(settings.on_verdict))
        self.artifacts = artifacts
        self.settings = settings
        self.on_abstain: Any = on_abstain
        self.reviewed = reviewed
        self.calibrated_settings = dict(calibrated_settings or {})
        self.records = Path(records)
        remember = settings.remember
        self.draws = remember if isinstance(remember, Draws) else Draws() if remember is None else Draws(remember)
        named = [name for artifact in artifacts.artifacts for name in artifact.prompt.slots]
        self.slots = check_slots(settings.remember_slots, named) if self.draws.seconds > 0 else ()
        self._gates: LRU[ModelGates] = LRU(MODELS)

    def admit(self, step: AgentStep, *, pass_others: bool = False) -> ModelGates | None:
        """The gates for a step's model; None for another model than the calibrated one, if such models may pass.

        Raises:
            UsageError: The step offers a tool that is neither gated nor exempt.
            ArtifactMismatchError: The model is not the calibrated one.
        """
        running = identify(step.model)
        # Before a model may pass: a tool that is neither gated nor exempt is refused for every model.
        self.artifacts.check_tools(step.tools)
        if pass_others and self.artifacts.is_other_model(running):
            return None
        gates = self.gates_for(step, running)
        # After the gates are made, since an agent that only collects takes its artifacts from the request.
        gates.artifacts.check_model(running)
        return gates

    def gates_for(self, step: AgentStep, running: ModelIdentity) -> ModelGates:
        """The gates for a step's model, without any check.

        Args:
            step: The step.
            running: Identity of its model.
        """
        artifacts = self.artifacts.for_request(running, step.system, step.bindings)
        # The gates hold the model, so its id belongs to no other object while they are cached.
        key = (id(step.model), *(artifact.digest for artifact in artifacts.artifacts))
        return self._gates.get(key, lambda: ModelGates.of(self, step.model, artifacts))

    def unjudged_steps(self, step: AgentStep, message: AIMessage) -> Steps[AIMessage | HeldMessage]:
        """Hold a message of another model than the guarded one, or take the abstention path in its place."""
        verdict = self._unjudged_verdict(message)
        if not self.reviewed:
            fallback = yield from self.fall_back(verdict, list(step.messages))
            return with_verdict(fallback, verdict)
        if verdict.candidate is None:  # its content can be neither shown nor stored
            message = AIMessage(content="")
        calls: list[Any] = [{**call, "id": f"call_{uuid4().hex}"} for call in message.tool_calls]  # two may share an id
        message = message.model_copy(update={"tool_calls": calls})
        gated = {call["name"]: verdict for call in calls if call["name"] not in self.artifacts.exempt}
        message = with_verdict(message, lean(verdict))
        conversation = Conversation.of(step.messages)
        return HeldMessage.of(message, verdict, conversation=conversation, verdicts=gated, answers=step.answers)

    def _unjudged_verdict(self, message: AIMessage) -> Verdict:
        artifact = self.artifacts.artifacts[0]
        detail = (
            "Held back: the message did not come from the guarded model, so its uncertainty could not be measured. "
            "Hand it to a person."
        )
        sample: Sample | None = None
        try:
            reply = read_reply(message)
            refuse_unstorable(reply)
            sample = reply
        except UnreadableReplyError as error:
            detail = f"{detail} It cannot be given out either: {error}."
        drawn = SampleSet(
            question="",
            primary=sample,
            problem=Unmeasured.MODEL_FAILED,
            problem_detail="another model answered in its place",
        )
        verdict = self.artifacts.gates[artifact.digest].decide(drawn)
        # `decide` may name another reason, such as an artifact that accepts nothing; here only the model counts.
        return verdict.model_copy(update={"reason": Reason.UNMEASURED, "detail": detail})

    def fall_back(
        self, verdict: Verdict, messages: Sequence[BaseMessage], *, callbacks: Any = None, form: Form = "text"
    ) -> Steps[AIMessage]:
        """Take this agent's abstention path."""
        bound = self.artifacts.plan.bindings
        abstention = Abstention(
            verdict, messages, self.on_abstain, self.settings.abstain_message, callbacks, bound, form
        )
        return (yield from take_path(abstention))


@dataclass(frozen=True, slots=True)
class ModelGates:
    """The gates of an agent for one model.

    Attributes:
        agent: The gate of the agent.
        model: The model.
        artifacts: The artifacts, those of the request where the agent only collects.
        gates: By the digest of their artifact.
        trust: Trust in the model's endpoint.
        records: Keeps samples for tools without an artifact; None if every tool has one.
    """

    agent: AgentGate
    model: BaseChatModel
    artifacts: ArtifactSet
    gates: Mapping[str, Gate]
    trust: EndpointTrust
    records: StepRecords | None

    @classmethod
    def of(cls, agent: AgentGate, model: BaseChatModel, artifacts: ArtifactSet) -> ModelGates:
        """Make the gates of an agent for one model.

        Raises:
            UsageError: The record file holds records of another model, plan or prompt.
        """
        trust = EndpointTrust(model, artifacts.plan, enabled=agent.settings.probe == "auto")
        records = None
        if artifacts.collects:
            if not agent.records.exists():  # once: later processes go on with this file
                ask_which_arguments_matter(artifacts.plan.bindings, artifacts.tools, artifacts.exempt)
            records = StepRecords(agent.records, artifacts.artifacts, artifacts.plan)
        return cls(agent, model, artifacts, artifacts.gates, trust, records)

    def judge_steps(
        self,
        step: AgentStep,
        *,
        hold: Callable[[Assessment], AIMessage | None],
        form: Form = "text",
        run_manager: Any = None,
        storable: bool = False,
    ) -> Steps[Judgement]:
        """Judge one step, and act on the verdict: accept, hold, or take the abstention path.

        Args:
            step: The step.
            hold: Freezes a message that a person decides about; None if this message cannot wait.
            form: The form that the caller can read; see `Abstention`.
            run_manager: The run of the caller, for tracers.
            storable: Whether the answer has to be one that a state can store.

        Raises:
            AbstainedError: On the path "raise", and where a text would be taken for an answer.
        """
        callbacks = child_callbacks(run_manager)
        assessment = yield from self._assess(step, callbacks, storable=storable, whole=form == "format")
        if assessment.verdict is not None:
            note_verdict(run_manager, assessment.verdict)
        if assessment.accepted and assessment.drawn.primary is not None:
            return Judgement(assessment)
        # A message that cannot wait takes the abstention path: not being holdable must not let it out.
        asks = self.agent.reviewed and (self.records is None or self.records.is_label(assessment.verdict))
        waiting = hold(assessment) if asks else None
        if waiting is not None:
            return Judgement(assessment, held=waiting)
        assert assessment.verdict is not None, "a message that no gate judges is accepted"
        message = yield from self.agent.fall_back(assessment.verdict, step.messages, callbacks=callbacks, form=form)
        return Judgement(assessment, fallback=message)

    def _assess(self, step: AgentStep, callbacks: Any, *, storable: bool, whole: bool) -> Steps[Assessment]:
        self.artifacts.check_messages(step.messages)
        turns = None
        if self.agent.settings.turns is not None:
            turns = self.artifacts.unknown_turns(step.messages, refuse=self.agent.settings.turns == "refuse")
        question = self.artifacts.artifacts[0].prompt.question_of(step.messages)
        assessor = self.assessor(step, storable=storable)
        if whole:
            # The framework parses the text and asks the model again if a field is missing, which would be another draw.
            assessor = replace(assessor, usable_items=undivided)
        assessment = yield from assessor.assess_steps(step.messages, callbacks, question=question, turns=turns)
        if self.records is None:
            return assessment
        return (yield from self.records.noted(assessment, step.messages, step.thread))

    def assessor(self, step: AgentStep, *, storable: bool = False) -> Assessor:
        """Judges a step with the gates that its candidate concerns; a candidate that concerns none needs no samples."""
        artifacts = self.artifacts

        def concerned(candidate: Sample | None) -> dict[str, Gate]:
            judging = artifacts.judging(candidate, step.answers)
            return {name: self.gates[artifact.digest] for name, artifact in judging.items()}

        def asked(candidate: Sample) -> set[str]:
            return {name for gate in concerned(candidate).values() for name in gate.artifact.plan.follow_ups}

        plan = artifacts.drawn_plan
        # Where some candidates need no verdict, the primary answer alone shows whether samples are needed at all.
        passes = artifacts.passes_something and bool(plan.n) and not plan.follow_ups
        return Assessor(
            sampler=Sampler(
                step.model,
                plan,
                max_concurrency=self.agent.settings.max_concurrency,
                scoring=Scoring(artifacts.settings.scorers, artifacts.artifacts[0].prompt, asked),
            ),
            gates=concerned,
            trust=self.trust,
            observers=self.agent.observers,
            staged=any(in_two_stages(plan, gate.estimator) for gate in self.gates.values()),
            accept_only=self.agent.reviewed,
            primary_first=passes and not is_native(step.model),
            usable=only_storable if storable else lambda drawn: drawn,
            draws=self.agent.draws,
            slots=self.agent.slots,
        )
