"""The gate of one agent, for every framework: it admits a step, judges it, and holds, answers for or records it.

An adapter translates a request once into an `AgentStep`, makes one `AgentGate` when it is set up, and calls

1. `AgentGate.admit`: the gate for the step's model, after every check of model and tools;
2. `ModelGate.judge_steps`: the verdict and its consequence, as a `Judgement`;

then it translates the `Judgement` back into its framework's messages.

Who owns whom:

    AgentGate             one for each agent: options, observers, abstention path
    ├─ ArtifactSet        one for each group of a router, else one: which artifact judges which message
    ├─ Gate               one for each artifact, by its digest; every `ModelGate` of the agent uses these
    └─ ModelGate          one for each model and `ArtifactSet`; the last `MODELS` are kept
       ├─ ArtifactSet     that of its group; for an agent without artifacts, stand-ins and gates made for the request
       ├─ Draws           the memory of one model and plan, shared by all agents of this process that use them
       └─ StepRecords     where something collects
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from guardrail.artifact import CalibrationArtifact, RouterArtifact
from guardrail.decision import Gate, first_samples
from guardrail.errors import UsageError
from guardrail.guard.abstention import Abstention, Form, take_path
from guardrail.guard.assess import Assessment, Assessor
from guardrail.guard.base import Using, known_path, refuse_same_guard
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.observers import Observers
from guardrail.guard.router import on_route, route_by
from guardrail.items.gate import gate_of, judges_among, undivided
from guardrail.sampling.call_settings import check_settings
from guardrail.sampling.callbacks import child_callbacks, note_verdict
from guardrail.sampling.draws import Draws
from guardrail.sampling.effects import Steps
from guardrail.sampling.follow_ups import Scoring, scorer_of
from guardrail.sampling.native import is_native
from guardrail.sampling.replies.read import only_storable
from guardrail.sampling.sampler import Sampler
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, SamplingPlan
from guardrail.verdict import Verdict

from .._openai.lru import LRU
from .artifact_set import ArtifactSet, is_collecting
from .collecting import StepRecords
from .held import ToolCallOrder
from .options import REVIEW, ArtifactLike, judges_of, options_of, scorers_of

MODELS = 16
"""Model objects whose gates are kept: an agent has one, unless other middleware makes more."""
SHARED = 64
"""Models whose memory of draws is kept for agents that are made later."""
_shared: LRU[tuple[BaseChatModel, Draws]] = LRU(SHARED)
"""Memory of draws by model and plan. The model is kept so that its id stays its own."""


def _gates_of(using: Using, artifacts: Sequence[CalibrationArtifact]) -> dict[str, Gate]:
    """The gate of each artifact by its digest, with those of these objects that it needs."""
    judges = judges_of(using)
    scorers = scorers_of(using)
    return {
        artifact.digest: gate_of(
            artifact,
            judge=judges_among(artifact, judges),
            similarity=using.get("similarity"),
            entailment=using.get("entailment"),
            scorer=scorers.get(scorer_of(artifact.plan) or ""),
        )
        for artifact in artifacts
    }


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One request of an agent to its model, translated once from its framework's form.

    Attributes:
        model: The agent's model.
        messages: The conversation, the system message first.
        answers: Tools whose call is the answer (structured output).
        bindings: Tools, choice and format of the request.
        thread: Name of the conversation; None to tell conversations by their first message.
        settings: Settings that every call carries beside the plan's.
    """

    model: BaseChatModel
    messages: tuple[BaseMessage, ...]
    answers: tuple[str, ...] = ()
    bindings: Bindings = field(default_factory=Bindings)
    thread: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tools(self) -> list[str]:
        """Names of the tools on offer, without those whose call is the answer."""
        return [name for name in self.bindings.tool_names if name not in self.answers]

    @property
    def system(self) -> str | None:
        """Text of the system message."""
        return next((str(message.text) for message in self.messages[:1] if message.type == "system"), None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a judged step.

    Attributes:
        assessment: The draw and the verdicts.
        message: The message with its verdict: the accepted candidate; what the adapter's ``hold`` made of one that
            waits for a person; or that of the abstention path: a text, a person's or another model's answer.
        outcome: Which of the three; "given" by the abstention path.
    """

    assessment: Assessment
    message: AIMessage
    outcome: Literal["accepted", "held", "given"]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that counts; None if no gate judges the candidate."""
        return self.assessment.verdict

    def order(self, call: Mapping[str, Any]) -> ToolCallOrder:
        """The order about a call of the message."""
        judged = self.outcome != "accepted" or call["name"] in self.assessment.by_name
        return ToolCallOrder.of(call, self.outcome if judged else "exempt")


class AgentGate:
    """The gate of one agent: its artifacts, its abstention path and its memory.

    The memory of draws and the probe of a model are shared with gates of this model and plan that are made later: made
    anew for each request, they would draw again until one accepts.

    Args:
        artifact: Judges final answers; with the option ``key`` the artifact of a router.
        options: See `GateOptions`.
        per_run: Whether the guard may be made for each run, as in frameworks whose agents are. Then ``artifact`` judges
            calls, too, if the option ``tools`` is not given.

    Raises:
        UsageError: See `options_of` and `ArtifactSet.by_route`; or the path does not exist, or it asks the same
            model again.
        ArtifactMismatchError: The artifacts cannot judge one agent, or were made with another judge or score.
    """

    def __init__(
        self,
        artifact: ArtifactLike | RouterArtifact | None,
        options: Mapping[str, Any],
        *,
        per_run: bool = False,
    ) -> None:
        self.options = options = options_of(options)
        path = options["on_abstain"]
        self.reviewed = isinstance(path, str) and path == REVIEW
        try:
            self.on_abstain: Any = path if self.reviewed else known_path(path)
        except ValueError as error:
            raise UsageError(f'{error}. In an agent it may also be "review": a person decides.') from error
        self._routes = ArtifactSet.by_route(artifact, options, calls_too=per_run)
        # A router's sets differ in the artifact of answers alone (and of calls, if it judges them, too).
        self.artifacts = next(iter(self._routes.values()))
        of_all_routes = [loaded for artifacts in self._routes.values() for loaded in artifacts.artifacts]
        self.gates = _gates_of(options["using"], of_all_routes)
        self.observers = Observers.of(options["on_verdict"])
        for loaded in of_all_routes:
            self.observers.admit(loaded)
        refuse_same_guard(self.on_abstain, of_all_routes)
        remember = options["remember"]
        self.draws = remember if isinstance(remember, Draws) else Draws(remember)
        self._shares = not isinstance(remember, Draws) and not self.artifacts.stand_in
        self._models: LRU[ModelGate] = LRU(MODELS)

    def memory_of(self, model: BaseChatModel, plan: SamplingPlan) -> Draws:
        """The memory of draws from a model."""
        if not self._shares:
            return self.draws
        seconds = self.draws.seconds
        scorers = sorted(scorers_of(self.options["using"]))
        memory_key = (id(model), plan.model_dump_json(), seconds, self.options["probe"], *scorers)
        _, draws = _shared.get(memory_key, lambda: (model, Draws(seconds)))
        return draws

    def admit(self, step: AgentStep) -> ModelGate:
        """The gate for a step's model, after every check.

        Raises:
            UsageError: The step offers a tool that is neither gated nor exempt; or the key function failed.
            ArtifactMismatchError: The model is not the calibrated one, or the conversation's group has no artifact.
        """
        self.artifacts.check_tools(step.tools)
        route = self._route_of(step)
        of_route = self.artifacts if route is None else self._routes[route]
        running = identify(step.model)
        of_request = of_route.for_request(running, step.system, step.bindings)
        of_request.check_model(running)
        # The gate holds the model, so its id belongs to no other object while it is cached.
        gate_key = (id(step.model), route, *(artifact.digest for artifact in of_request.artifacts))
        return self._models.get(gate_key, lambda: ModelGate.of(self, step.model, of_request, route))

    def _route_of(self, step: AgentStep) -> str | None:
        """The group of a router that the conversation belongs to; None without a router."""
        key = self.options["key"]
        return None if key is None else route_by(key, step.messages, self._routes)


@dataclass(frozen=True, slots=True)
class ModelGate:
    """The gate of an agent for one model.

    Attributes:
        agent: The gate of the agent.
        model: The model.
        artifacts: The artifacts; of an agent without any, what stands for them in this request.
        gates: By the digest of their artifact.
        route: Of a router: the group whose artifact judges answers.
        draws: Remembers draws and verdicts.
        records: Keeps samples of what has no artifact; None if everything has one.
    """

    agent: AgentGate
    model: BaseChatModel
    artifacts: ArtifactSet
    route: str | None
    gates: Mapping[str, Gate]
    draws: Draws
    records: StepRecords | None

    @classmethod
    def of(cls, agent: AgentGate, model: BaseChatModel, artifacts: ArtifactSet, route: str | None) -> ModelGate:
        """Make the gate of an agent for one model, which must take the settings of the plan."""
        check_settings(model, artifacts.plan)
        gates = _gates_of(agent.options["using"], artifacts.artifacts) if artifacts.stand_in else agent.gates
        records = None
        if any(map(is_collecting, artifacts.artifacts)):
            records = StepRecords(Path(agent.options["records"]), artifacts.artifacts, artifacts.plan)
        return cls(agent, model, artifacts, route, gates, agent.memory_of(model, artifacts.plan), records)

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
        return (yield from self.act_steps(assessment, step.messages, hold=hold, form=form, callbacks=callbacks))

    def act_steps(
        self,
        assessment: Assessment,
        messages: Sequence[BaseMessage],
        *,
        hold: Callable[[Assessment], AIMessage | None],
        form: Form = "text",
        callbacks: Any = None,
    ) -> Steps[Judgement]:
        """Act on the verdict on a message; arguments as of `judge_steps`."""
        verdict = assessment.verdict
        candidate = assessment.drawn.primary if verdict is None else verdict.given
        if (verdict is None or verdict.accepted) and candidate is not None:
            message = self._with_verdict(candidate_message(candidate, self.model_name), assessment)
            return Judgement(assessment, message, "accepted")
        # A message that cannot wait takes the abstention path: not being holdable must not let it out.
        person_decides = self.agent.reviewed and (self.records is None or self.records.is_label(verdict))
        held = hold(assessment) if person_decides else None
        if held is not None:
            return Judgement(assessment, self._on_route(held), "held")
        assert verdict is not None, "a message that no gate judges is accepted"
        # Where a person decides, and cannot be asked, the path is the message.
        path: Any = "message" if self.agent.reviewed else self.agent.on_abstain
        wording = self.agent.options["abstain_message"]
        abstention = Abstention(verdict, messages, path, wording, callbacks, self.artifacts.plan.bindings, form)
        message = yield from take_path(abstention)
        return Judgement(assessment, self._with_verdict(message, assessment), "given")

    @property
    def model_name(self) -> str:
        """Name of the model that the artifacts were made for."""
        return self.artifacts.artifacts[0].model.model

    def _with_verdict(self, message: AIMessage, assessment: Assessment) -> AIMessage:
        """The message with the verdict on it, and the usage of everything that was drawn."""
        if assessment.verdict is not None:
            return self._on_route(with_verdict(message, assessment.verdict))
        return self._on_route(message.model_copy(update={"usage_metadata": total_usage(assessment.drawn.cost)}))

    def _on_route(self, message: AIMessage) -> AIMessage:
        return message if self.route is None else cast(AIMessage, on_route(message, self.route))

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
        artifacts = self.artifacts
        plan = artifacts.drawn_plan
        concerned = partial(self._concerned, step.answers)
        # Where some candidates need no verdict, the primary answer alone shows whether samples are needed at all.
        some_need_no_samples = artifacts.passes_something and bool(plan.n) and not plan.follow_ups
        return Assessor(
            sampler=self._sampler(step, plan, concerned),
            gates=concerned,
            probe=self.agent.options["probe"] == "auto",
            observers=self.agent.observers,
            every_gate=tuple(f"{name}={artifact.digest}" for name, artifact in artifacts.by_name.items()),
            first=first_samples(plan, (gate.estimator for gate in self.gates.values())),
            accept_only=self.agent.reviewed,
            primary_first=some_need_no_samples and not is_native(step.model),
            usable=only_storable if storable else lambda drawn: drawn,
            draws=self.draws,
        )

    def _concerned(self, answers: Collection[str], candidate: Sample | None) -> dict[str, Gate]:
        """The gates that judge a candidate, by "answer" or the tool's name; ``answers``: see `AgentStep`."""
        judging = self.artifacts.judging(candidate, answers)
        return {name: self.gates[artifact.digest] for name, artifact in judging.items()}

    def _sampler(
        self, step: AgentStep, plan: SamplingPlan, concerned: Callable[[Sample | None], Mapping[str, Gate]]
    ) -> Sampler:
        """Draws a plan with the step's settings, and of its follow-ups those that the candidate's gates read."""

        def follow_ups(candidate: Sample) -> set[str]:
            return {name for gate in concerned(candidate).values() for name in gate.artifact.plan.follow_ups}

        return Sampler(
            step.model,
            plan,
            max_concurrency=self.agent.options["max_concurrency"],
            transport=step.settings,
            scoring=Scoring(scorers_of(self.agent.options["using"]), self.artifacts.artifacts[0].prompt, follow_ups),
        )
