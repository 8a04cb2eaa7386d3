"""The gate of one agent, for every framework: it admits a step, judges it, and holds, answers for or records it.

An adapter translates a request once into an `AgentStep`, makes one `AgentGate` when it is set up, and calls

1. `AgentGate.admit`: the gate for the step's model, after every check of model and tools;
2. `ModelGate.judge_steps`: the verdict and its consequence, as a `Judgement`;

then it translates the `Judgement` back into its framework's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from guardrail.artifact import CalibrationArtifact, RouterArtifact
from guardrail.decision import Gate, in_two_stages
from guardrail.errors import UsageError, refuse_unknown
from guardrail.guard.abstention import ABSTENTION, Abstention, Form, take_path
from guardrail.guard.assess import Assessment, Assessor
from guardrail.guard.base import Using, known_path, refuse_same_guard
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.observers import Observers
from guardrail.guard.router import route_by
from guardrail.items.gate import gate_of, judges_among, undivided
from guardrail.sampling.callbacks import child_callbacks, note_verdict
from guardrail.sampling.draws import REMEMBERED, Draws
from guardrail.sampling.effects import Steps
from guardrail.sampling.follow_ups import Scoring, scorer_of
from guardrail.sampling.native import is_native
from guardrail.sampling.replies import only_storable
from guardrail.sampling.sampler import Sampler
from guardrail.specs import identify
from guardrail.types import Bindings, Probing, Sample, SamplingPlan
from guardrail.uncertainty import Scorer
from guardrail.verdict import Verdict

from .._openai.lru import LRU
from .artifact_set import ANY_TOOL, ArtifactSet, Given, Key, is_collecting, routes
from .collecting import RECORDS, StepRecords

__all__ = ["REVIEW", "AgentGate", "AgentStep", "GateSettings", "Judgement", "ModelGate"]

REVIEW = "review"
"""``on_abstain``: a person decides about what is held back."""
MODELS = 16
"""Model objects whose gates are kept: an agent has one, unless other middleware makes more."""
SHARED = 64
"""Models whose memory of draws and probes is kept for agents that are made later."""
_shared: LRU[tuple[BaseChatModel, Draws, EndpointTrust]] = LRU(SHARED)
"""Memory of draws and probes, which agents with the same model and plan share: an agent that is made for each request
would otherwise draw again until the gate accepts, and probe each time. The model is kept so that its id stays its own.
"""


@validated(frozen=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))
class GateSettings:
    """Settings of `Guardrail` that the gate of an agent takes under the same names; see there."""

    abstain_message: Any = ABSTENTION
    using: Using = field(default_factory=lambda: Using())
    """As in `Guardrail`; the judge may be several by name, and the scorer several: each artifact finds its own."""
    probe: Probing = "auto"
    on_verdict: Any = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    remember: Draws | Annotated[float, Field(ge=0, allow_inf_nan=False)] = REMEMBERED

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GateSettings:
        """The settings that a caller gave as keywords; an unknown one, or a wrong value, is refused."""
        for name in given:
            refuse_unknown(name, [each.name for each in fields(cls)], "the keywords of an agent's guard", "a setting")
        return cls(**given)

    @property
    def judges(self) -> dict[str, Any]:
        """The judge objects by name."""
        judge = self.using.get("judge")
        return dict(judge) if isinstance(judge, Mapping) else {} if judge is None else {judge.spec.name: judge}

    @property
    def scorers(self) -> dict[str, Scorer]:
        """The scorers by the name of their estimator."""
        scorer = self.using.get("scorer")
        listed = [] if scorer is None else [scorer] if isinstance(scorer, Scorer) else list(scorer)
        return {each.follow_up: each for each in listed}

    def gates_of(self, artifacts: Sequence[CalibrationArtifact]) -> dict[str, Gate]:
        """The gate of each artifact by its digest, with those of these objects that it needs."""
        return {
            artifact.digest: gate_of(
                artifact,
                judge=judges_among(artifact, self.judges),
                similarity=self.using.get("similarity"),
                entailment=self.using.get("entailment"),
                scorer=self.scorers.get(scorer_of(artifact.plan) or ""),
            )
            for artifact in artifacts
        }


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One request of an agent to its model, translated once from its framework's form.

    Attributes:
        model: The agent's model.
        messages: The conversation, the system message first.
        tools: Names of the tools on offer, without those whose call is the answer.
        answers: Tools whose call is the answer (structured output).
        bindings: Tools, choice and format of the request; read for an agent without any artifact.
        thread: Name of the conversation; None to tell conversations by their first message.
        settings: Settings that every call carries beside the plan's.
    """

    model: BaseChatModel
    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    bindings: Bindings = field(default_factory=Bindings)
    thread: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

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
        return self.assessment.drawn.primary if self.verdict is None else self.verdict.given

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that counts; None if no gate judges the candidate."""
        return self.assessment.verdict


class AgentGate:
    """The gate of one agent: its artifacts, its abstention path and its memory.

    Args:
        artifact: Judges final answers, see `ArtifactSet.of`; with ``key`` the artifact of a router.
        tools: Judges calls, by tool name.
        exempt: Tools whose calls pass.
        key: Of a router: names the group of a conversation.
        calls_too: Whether ``artifact`` judges calls, too, where ``tools`` is None.
        on_abstain: The abstention path, as for `Guardrail`; or "review": a person decides about what is held back.
        settings: Settings of the guard.
        calibrated_settings: Call settings that the artifacts' answers were collected with.
        records: Record file for samples of what collects.
        plan: How samples are drawn for an agent without any artifact.

    Raises:
        UsageError: See `ArtifactSet.of` and `routes`; or the path does not exist, or it asks the same model again.
        ArtifactMismatchError: The artifacts cannot judge one agent, or were made with another judge or score.
    """

    def __init__(
        self,
        artifact: Given | RouterArtifact | None,
        tools: Mapping[str, Given] | None,
        exempt: Collection[str],
        *,
        key: Key | None = None,
        calls_too: bool = False,
        on_abstain: Any,
        settings: GateSettings,
        calibrated_settings: Mapping[str, Any] | None = None,
        records: str | Path = RECORDS,
        plan: SamplingPlan | None = None,
    ) -> None:
        self.reviewed = isinstance(on_abstain, str) and on_abstain == REVIEW
        try:
            self.on_abstain: Any = on_abstain if self.reviewed else known_path(on_abstain)
        except ValueError as error:
            raise UsageError(f'{error}. In an agent it may also be "review": a person decides.') from error
        same_call = settings.judges.get("tool_call")
        self._key = key
        self._routes = {}
        for name, given in routes(artifact, key).items():
            gated = {ANY_TOOL: given} if calls_too and tools is None and given is not None else tools
            self._routes[name] = ArtifactSet.of(
                given, gated, exempt, reviewed=self.reviewed, plan=plan, judge=same_call
            )
        # A router's sets differ in the artifact of answers alone (and of calls, if it judges them, too).
        self.artifacts = next(iter(self._routes.values()))
        listed = [each for artifacts in self._routes.values() for each in artifacts.artifacts]
        self.settings = settings
        self.calibrated_settings = dict(calibrated_settings or {})
        self.records = Path(records)
        self.gates = settings.gates_of(listed)
        self.observers = Observers.of(settings.on_verdict)
        for each in listed:
            self.observers.admit(each)
        refuse_same_guard(self.on_abstain, listed)
        remember = settings.remember
        self.draws = remember if isinstance(remember, Draws) else Draws(remember)
        self.trust: EndpointTrust | None = None
        self._models: LRU[ModelGate] = LRU(MODELS)

    def share(self, model: BaseChatModel) -> None:
        """Share the memory of draws, and the probe, with agents of this model and plan that are made later."""
        if isinstance(self.settings.remember, Draws) or self.artifacts.stand_ins is not None:
            return
        plan, probes = self.artifacts.plan, self.settings.probe == "auto"
        mine = (model, self.draws, EndpointTrust(model, plan, enabled=probes))
        key = (id(model), plan.model_dump_json(), self.draws.seconds, probes, *sorted(self.settings.scorers))
        _, self.draws, self.trust = _shared.get(key, lambda: mine)

    def admit(self, step: AgentStep, *, pass_others: bool = False) -> ModelGate | None:
        """The gate for a step's model, after every check; None for another model, if such models may pass.

        Raises:
            UsageError: The step offers a tool that is neither gated nor exempt; or the key function failed.
            ArtifactMismatchError: The model is not the calibrated one, or the conversation's group has no artifact.
        """
        running = identify(step.model)
        # Before a model may pass: a tool that is neither gated nor exempt is refused for every model.
        self.artifacts.check_tools(step.tools)
        if pass_others and self.artifacts.is_other_model(running):
            return None
        route = None if self._key is None else route_by(self._key, step.messages, self._routes)
        artifacts = self.artifacts if route is None else self._routes[route]
        artifacts = artifacts.for_request(running, step.system, step.bindings)
        artifacts.check_model(running)
        # The gate holds the model, so its id belongs to no other object while it is cached.
        key = (id(step.model), route, *(artifact.digest for artifact in artifacts.artifacts))
        return self._models.get(key, lambda: ModelGate.of(self, step.model, artifacts, route))

    def fall_back(
        self, verdict: Verdict, messages: Sequence[BaseMessage], *, callbacks: Any = None, form: Form = "text"
    ) -> Steps[AIMessage]:
        """Take this agent's abstention path; where a person decides, and cannot be asked, it is the message."""
        path: Any = "message" if self.reviewed else self.on_abstain
        bound, wording = self.artifacts.plan.bindings, self.settings.abstain_message
        return (yield from take_path(Abstention(verdict, messages, path, wording, callbacks, bound, form)))


@dataclass(frozen=True, slots=True)
class ModelGate:
    """The gate of an agent for one model.

    Attributes:
        agent: The gate of the agent.
        model: The model.
        artifacts: The artifacts; of an agent without any, what stands for them in this request.
        gates: By the digest of their artifact.
        route: Of a router: the group whose artifact judges answers.
        trust: Trust in the model's endpoint.
        records: Keeps samples of what has no artifact; None if everything has one.
    """

    agent: AgentGate
    model: BaseChatModel
    artifacts: ArtifactSet
    route: str | None
    gates: Mapping[str, Gate]
    trust: EndpointTrust
    records: StepRecords | None

    @classmethod
    def of(cls, agent: AgentGate, model: BaseChatModel, artifacts: ArtifactSet, route: str | None) -> ModelGate:
        """Make the gate of an agent for one model."""
        trust = agent.trust or EndpointTrust(model, artifacts.plan, enabled=agent.settings.probe == "auto")
        made = artifacts.stand_ins is not None
        gates = agent.settings.gates_of(artifacts.artifacts) if made else agent.gates
        records = None
        if any(map(is_collecting, artifacts.artifacts)):
            records = StepRecords(agent.records, artifacts.artifacts, artifacts.plan)
        return cls(agent, model, artifacts, route, gates, trust, records)

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
            storable: Whether a state must be able to store the answer.

        Raises:
            AbstainedError: On the path "raise", and where a text would be taken for an answer.
        """
        callbacks = child_callbacks(run_manager)
        assessment = yield from self._assess(step, callbacks, storable=storable, whole=form == "format")
        if assessment.verdict is not None:
            note_verdict(run_manager, assessment.verdict.trace_fields())
        accepted = assessment.verdict is None or assessment.verdict.accepted
        if accepted and assessment.drawn.primary is not None:
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
        turns = self.artifacts.unknown_turns(step.messages)
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
        agent, artifacts = self.agent, self.artifacts

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
                max_concurrency=agent.settings.max_concurrency,
                transport=step.settings,
                scoring=Scoring(agent.settings.scorers, artifacts.artifacts[0].prompt, asked),
            ),
            gates=concerned,
            trust=self.trust,
            observers=agent.observers,
            every_gate=tuple(f"{name}={each.digest}" for name, each in artifacts.by_name.items()),
            staged=any(in_two_stages(plan, gate.estimator) for gate in self.gates.values()),
            accept_only=agent.reviewed,
            primary_first=passes and not is_native(step.model),
            usable=only_storable if storable else lambda drawn: drawn,
            draws=agent.draws,
        )
