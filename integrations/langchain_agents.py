"""`GuardrailMiddleware`: an agent built by LangChain's ``create_agent`` that acts only when its gates accept.

    agent = create_agent(model, tools=[balance, transfer_funds], system_prompt=..., checkpointer=...,
        middleware=[GuardrailMiddleware(artifact="answers.json", tools={"transfer_funds": "transfers.json"},
                                        exempt=["balance"], on_abstain="review")])

How it works, in the order of a step:

1. ``wrap_model_call`` puts an `AgentModel` in the place of the agent's model. It draws the artifact's samples
   with the request's very messages, system prompt, tools and settings, judges the message, and lets it out or not.
2. A message that is held for a person is frozen in the state (`_agents.held`): plain JSON in checkpoints, packed where
   streams show the state (`_agents.state`). The conversation shows a line that says so.
3. ``after_model``, another node, interrupts with the frozen candidate. A resumed run draws nothing again.
4. What was decided goes back through the model node, so that every other middleware sees the real message.
5. ``wrap_tool_call`` runs a gated call only if this very call was accepted or approved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage

from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.errors import UnreadableReplyError, UsageError, require
from guardrail.guard.abstention import ABSTENTION, Abstention, OnAbstain, Wording, take_path, worded
from guardrail.guard.assess import Abstentions
from guardrail.guard.comparability import unlike_calls
from guardrail.guard.decide import Gate, decide
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.messages import with_verdict
from guardrail.guard.observe import Observed, ObserveQueue
from guardrail.guard.observers import Observer, Observers, as_observers, early_stopping_conflict
from guardrail.monitor import SafetySwitch
from guardrail.prompting import question_text
from guardrail.sampling.effects import Effect, Steps, arun, run
from guardrail.sampling.replies import read_reply, refuse_unstorable
from guardrail.specs import ModelIdentity, identify
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.verdict import Reason, Verdict

from ._agents.agent_model import AgentModel, DecidedModel, HeldBack, Outcome, carrying, this_step, this_thread
from ._agents.artifact_set import ArtifactSet, EarlyStopping, highest_agreement, load, load_gated
from ._agents.collecting import (
    RECORDS,
    StepRecords,
    collecting_artifact,
    collects_only,
    is_collecting,
    refuse_unreviewed,
    with_collected,
)
from ._agents.held import (
    FrozenMessage,
    GuardState,
    HeldMessage,
    ToolCallOrder,
    call_digest,
    pack,
    targets_of,
    unpack,
)
from ._agents.state import NoteChannel
from ._agents.structured_answers import fits, readable, structured_names
from ._agents.tool_node import edited, order_of, with_edit_note
from .langgraph_review import ALL_DECISIONS, HOLDING, DecisionType, ask, held_message, lean, released

if TYPE_CHECKING:
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
        PrivateStateAttr,
        ToolCallRequest,
        hook_config,
    )
    from langgraph.channels import UntrackedValue
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command, TracePolicy, omit_payload
else:
    _types = require("langchain.agents.middleware.types", extra="agents")
    AgentMiddleware, AgentState, PrivateStateAttr = _types.AgentMiddleware, _types.AgentState, _types.PrivateStateAttr
    ExtendedModelResponse, ModelRequest, ModelResponse = (
        _types.ExtendedModelResponse,
        _types.ModelRequest,
        _types.ModelResponse,
    )
    ToolCallRequest, hook_config = _types.ToolCallRequest, _types.hook_config
    from langgraph.channels import UntrackedValue
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command, TracePolicy, omit_payload

__all__ = ["GuardrailMiddleware", "GuardrailState"]

REVIEW: Literal["review"] = "review"
"""``on_abstain``: a person decides."""
MODELS = 16
"""Model objects whose probes are remembered: an agent has one, unless another middleware makes them anew."""


class GuardrailState(AgentState[Any]):
    """State of a guarded agent: one more key, in no input and no output."""

    guardrail: NotRequired[Annotated[str | None, NoteChannel, PrivateStateAttr]]
    """What was judged of the last message; see `integrations._agents.state`."""
    guardrail_decided: NotRequired[Annotated[bool, UntrackedValue, PrivateStateAttr]]
    """Whether a person has decided in this very run; never stored."""


class _Held(HeldBack, GraphBubbleUp):
    """Held back: passes every middleware that takes exceptions for failures of the model."""


class GuardrailMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gates an agent's final answers and tool calls, each by its own calibrated artifact.

    The message with its tool calls is one candidate. Parallel calls are judged together and by the strictest rule: the
    message goes out only if the artifact of every gated call in it accepts; otherwise all its gated calls are held
    together. A message with text and calls is judged by its calls; the text goes out, or is held, with them.

    The agent's model has to be the calibrated one, with the same system prompt and tools (in any order), which is
    checked at every call. What cannot be checked: that conversations and tool results are like those of calibration.

    List one in an agent, and list it last: a call that middleware before it changes is not run, one that middleware
    after it changes is (it cannot be seen here). ``HumanInTheLoopMiddleware`` may stand before or after it, and both
    have their say; in ``per_call`` mode it belongs after it, or its edits are not run.

    Args:
        artifact: Judges final answers (and structured output): an artifact or its file. None lets answers pass.
        tools: Judges messages that call a tool: artifact or file by tool name; "*" is every other tool. "collect" in
            its place, where there is none yet: a person decides about every call, and its samples are recorded for
            `calibrate steps`.
        exempt: Tools whose calls pass: those that only read.
        on_abstain: "review" (formerly "interrupt"): a person decides (needs a checkpointer). "message": the agent ends
            with ``abstain_message``. "raise": `AbstainedError`, which ``ModelFallbackMiddleware`` takes for a failure;
            a retry of the same step gets it again, without another draw, unless nothing could be measured.
            A Runnable (a stronger model) gets the messages and the tools and answers in place. Any other callable gets
            the `Verdict` and returns a text, an AIMessage, or None for the message.
        abstain_message: Text of an abstention; see `Guardrail`.
        unjudged: What happens to a message from another model than the guarded one (a fallback took over): "hold" it
            like one that could not be measured, or "pass" it.
        allowed_decisions: What a person may decide.
        holding_message: What the conversation shows while a person decides.
        judge: The judge object, for artifacts whose judge cannot be made by name; several as a mapping by name.
        judges: Former name of ``judge``, a list.
        similarity: The similarity object, for artifacts whose similarity cannot be made by name.
        entailment: The entailment model object, for artifacts whose entailment model cannot be made by name.
        calibrated_settings: Call settings the artifacts' answers were collected with, e.g. {"reasoning_effort": "low"}.
            Settings that only concern transport pass anyway; any other is refused.
        settings: Former name of ``calibrated_settings``.
        early_stopping: "auto", "on" or "off"; see `Guardrail`. Under "auto" with "review" only acceptances stop the
            drawing, so that a person sees what all samples say. Beside an observer that compares scores, or a
            calibrated list of answers (candidates), "auto" is "off" and "on" is refused.
        probe: "auto" or "off"; see `Guardrail`.
        switch: Holds accepted messages back after a monitor's alarm; see `Guardrail`.
        on_verdict: Called with every verdict and its messages; see `Guardrail`.
        max_concurrency: Calls in flight at once for models without a native sampler.
        records: Record file for samples of tools that "collect".
        plan: How these are drawn, if there is no artifact at all; default: ten at temperature 0.7. Tools that it does
            not name are the agent's.
        mode: "guard", or "observe": the agent acts as it would without this middleware; verdicts on gated messages are
            computed in the background, for ``on_verdict`` and `observed`. Measuring draws messages; it runs no tool.
        observe_rate: Under "observe", the probability with which a gated message is measured; a hash of its id chooses.

    Raises:
        UsageError: Nothing is gated, or a tool is gated and exempt at once; or a tool collects where no person decides.
        ArtifactError: An artifact cannot be read, or they were not collected together.
    """

    state_schema = GuardrailState
    trace_policy = TracePolicy(process_inputs=omit_payload, process_outputs=omit_payload)

    def __init__(
        self,
        artifact: CalibrationArtifact | str | Path | None = None,
        *,
        tools: Mapping[str, CalibrationArtifact | str | Path] | None = None,  # a path, or "collect"
        exempt: Sequence[str] = (),
        on_abstain: Literal["review", "interrupt"] | OnAbstain = REVIEW,
        abstain_message: Wording = ABSTENTION,
        unjudged: Literal["hold", "pass"] = "hold",
        allowed_decisions: Sequence[DecisionType] = ALL_DECISIONS,
        holding_message: str = HOLDING,
        judge: Any = None,
        judges: Sequence[Any] = (),
        similarity: Any = None,
        entailment: Any = None,
        calibrated_settings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        early_stopping: EarlyStopping = "auto",
        probe: Literal["auto", "off"] = "auto",
        switch: SafetySwitch | None = None,
        on_verdict: Observer | Sequence[Observer] | None = None,
        max_concurrency: int | None = None,
        records: str | Path = RECORDS,
        plan: SamplingPlan | None = None,
        mode: Literal["guard", "observe"] = "guard",
        observe_rate: float = 1.0,
    ) -> None:
        super().__init__()
        self.tools = []
        if judge is not None and judges:
            raise UsageError("judge and judges are two names of one argument. Give judge=.")
        if calibrated_settings is not None and settings is not None:
            raise UsageError(
                "calibrated_settings and settings are two names of one argument. Give calibrated_settings=."
            )
        if mode not in ("guard", "observe") or not 0 < observe_rate <= 1:
            raise UsageError(
                f'mode must be "guard" or "observe" and observe_rate in (0, 1], got {mode!r} and {observe_rate!r}'
            )
        gated = {name: load_gated(one) for name, one in (tools or {}).items()}
        refuse_unreviewed(gated, reviewed=on_abstain in (REVIEW, "interrupt") and mode == "guard")
        answer = None if artifact is None else load(artifact)
        self._collects_only = collects_only(answer, gated)
        unknown_model = ModelIdentity(provider="unknown", model="unknown")  # until the first request tells
        empty = partial(collecting_artifact, unknown_model, plan=plan, system=None, bindings=Bindings())
        self._artifacts = ArtifactSet(
            answer=answer,
            tools=with_collected(answer, gated, empty),
            exempt=frozenset(exempt),
            judges=_by_name(judges if judge is None else judge),
            similarity=similarity,
            entailment=entailment,
        )
        self._records_path, self._plan = Path(records), plan
        self._mode, self._observe_rate, self._queue = mode, observe_rate, ObserveQueue()
        if isinstance(on_abstain, str) and on_abstain not in (REVIEW, "interrupt", "message", "raise"):
            raise UsageError(
                f'on_abstain must be "review", "message", "raise", a Runnable or a callable, got {on_abstain!r}'
            )
        unknown = sorted(set(allowed_decisions) - set(ALL_DECISIONS))
        if unknown or not allowed_decisions:
            raise UsageError(f"allowed_decisions are some of {ALL_DECISIONS}, got {tuple(allowed_decisions)!r}")
        if early_stopping not in ("auto", "on", "off"):
            raise UsageError(f'early_stopping must be "auto", "on" or "off", got {early_stopping!r}')
        if isinstance(switch, SafetySwitch):
            for one in self._artifacts.artifacts:
                switch.check(one.threshold)
        self._observers = Observers(switch, as_observers(on_verdict))
        conflict = early_stopping_conflict(self._observers, on_abstain)
        if early_stopping == "on" and conflict is not None:
            raise UsageError(f'{conflict} Give early_stopping="off" to this middleware.')
        self._on_abstain: Any = REVIEW if on_abstain == "interrupt" else on_abstain
        self._abstain_message = abstain_message
        self._unjudged = unjudged
        self._allowed = tuple(allowed_decisions)
        self._holding = holding_message
        self._settings = dict(calibrated_settings or settings or {})
        self._early_stopping: EarlyStopping = early_stopping if conflict is None else "off"
        self._probe = probe
        self._max_concurrency = max_concurrency
        self._known: dict[tuple[Any, ...], _Gates] = {}
        self._abstentions = Abstentions()

    # -- the model call ----------------------------------------------------------------------------------------------

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Draw and judge in place of the model, or give out what a person has decided."""
        return run(self._model_call(request, handler))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """`wrap_model_call` without blocking the event loop."""
        return await arun(self._model_call(request, handler))

    def _model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]
    ) -> Steps[ModelResponse[Any] | ExtendedModelResponse[Any]]:
        """Either way of the model call; the handler is sync in one and async in the other."""
        note = _released(request.state)
        if note is not None and note.message is not None:
            decided = readable(request.response_format, _decided(note.message))
            call = partial(handler, _replaying(request, decided))
            return _given_out((yield Effect(call, call)), decided, note)
        if self._mode == "observe":
            return (yield from self._pass_through(request, handler))
        outcome = Outcome()
        model = self._agent_model(request, outcome)
        call = partial(handler, request if model is None else request.override(model=model))
        try:
            response = yield Effect(call, call)
        except _Held:
            assert outcome.held is not None, "it is raised for what is held"
            return self._holding_back(outcome.held, outcome.placeholder)
        if outcome.held is not None:  # middleware below took the signal for a failure
            return self._holding_back(outcome.held, outcome.placeholder)
        stray = self._stray(response, outcome)
        if stray is None or self._unjudged == "pass":
            return self._let_out(response, outcome if stray is None else None)
        if self._on_abstain == REVIEW:
            return self._holding_back(self._unjudged_held(request, stray))
        verdict = self._unjudged_verdict(stray)
        message = yield from take_path(self._abstention(request, verdict))
        return self._let_out(ModelResponse(result=[with_verdict(message, verdict)]), None)

    def _agent_model(self, request: ModelRequest[Any], outcome: Outcome) -> AgentModel | None:
        """The model for one request; None for a model that is not the calibrated one and may pass."""
        running = identify(request.model)
        artifacts = self._artifacts_for(request, running)
        artifacts.check_tools([_tool_name(tool) for tool in request.tools])
        if self._unjudged == "pass" and any(a.model.differences(running) for a in artifacts.artifacts):
            return None
        for artifact in artifacts.artifacts:
            artifact.check_model(running)
        known = self._gates_for(request.model, artifacts)
        return AgentModel(
            model=request.model,
            artifacts=artifacts,
            gates=known.gates,
            trust=known.trust,
            records=known.records,
            observers=self._observers,
            outcome=outcome,
            held_back=_Held if self._on_abstain == REVIEW else None,
            holding_message=self._holding,
            on_abstain=self._on_abstain,
            abstain_message=self._abstain_message,
            answers=structured_names(request.response_format),
            settings=self._settings,
            max_concurrency=self._max_concurrency,
            profile=request.model.profile,
            abstentions=self._abstentions,
            step=this_step(),
            thread=this_thread(),
        )

    def _artifacts_for(self, request: ModelRequest[Any], running: ModelIdentity) -> ArtifactSet:
        """The artifacts; of an agent that has none, what collects with the request's model, system prompt and tools."""
        if not self._collects_only:
            return self._artifacts
        system = None if request.system_message is None else str(request.system_message.text)
        bindings = bindings_for(request.tools, tool_choice=request.tool_choice)
        own = collecting_artifact(running, plan=self._plan, system=system, bindings=bindings)
        return replace(self._artifacts, tools=dict.fromkeys(self._artifacts.tools, own))

    def _gates_for(self, model: BaseChatModel, artifacts: ArtifactSet) -> _Gates:
        key = (id(model), *(artifact.digest for artifact in artifacts.artifacts))
        known = self._known.get(key)
        if known is None:
            gates = artifacts.gates(model, self._early_stopping, shown=self._on_abstain == REVIEW)
            rate = highest_agreement(gates.values())
            trust = EndpointTrust(model, artifacts.plan, rate=rate, enabled=self._probe == "auto")
            records = None
            if any(map(is_collecting, artifacts.artifacts)):
                records = StepRecords(self._records_path, artifacts.artifacts, artifacts.plan)
            known = _Gates(model, gates, trust, records)
            while len(self._known) >= MODELS:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = known
        return known

    def _stray(self, response: ModelResponse[Any], outcome: Outcome) -> AIMessage | None:
        """The message, if it is not the one the gated model let out."""
        message = next((one for one in response.result if isinstance(one, AIMessage)), None)
        return None if message is None or (message.id is not None and message.id == outcome.message_id) else message

    def _let_out(self, response: ModelResponse[Any], outcome: Outcome | None) -> ExtendedModelResponse[Any]:
        if outcome is not None:
            return _extended(response, GuardState(phase="done", orders=outcome.orders))
        calls = [call for one in response.result if isinstance(one, AIMessage) for call in one.tool_calls]
        orders = {str(call["id"]): ToolCallOrder(digest=call_digest(call), decision="not_gated") for call in calls}
        return _extended(response, GuardState(phase="done", orders=orders))

    def _holding_back(self, held: HeldMessage, placeholder: AIMessage | None = None) -> ExtendedModelResponse[Any]:
        placeholder = placeholder or held_message(held, self._holding)
        return _extended(
            ModelResponse(result=[placeholder]), GuardState(phase="held", placeholder=placeholder.id, held=held)
        )

    # -- observing ---------------------------------------------------------------------------------------------------

    @property
    def observed(self) -> Observed:
        """Under "observe": what became of the messages that a gate judges so far."""
        return self._queue.observed

    def drain(self, seconds: float) -> bool:
        """Wait until what was observed is measured; what still waits after that time is dropped, and counted.

        Returns:
            Whether everything was measured.
        """
        return self._queue.drain(seconds)

    def _pass_through(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]
    ) -> Steps[ModelResponse[Any] | ExtendedModelResponse[Any]]:
        """The model's own response, unchanged."""
        call = partial(handler, request)
        response: ModelResponse[Any] = yield Effect(call, call)
        for message in response.result:
            if isinstance(message, AIMessage):
                self._observe(request, message)
        state: Mapping[str, Any] = request.state
        if state.get("guardrail") is None:
            return response
        # What was decided in an earlier turn, under "guard", is not about this message.
        return ExtendedModelResponse(model_response=response, command=Command(update={"guardrail": None}))

    def _observe(self, request: ModelRequest[Any], message: AIMessage) -> None:
        """Have a message that a gate judges measured in the background: its samples are drawn, and no tool is run."""
        artifacts = self._artifacts
        calls = [str(call["name"]) for call in (*message.tool_calls, *message.invalid_tool_calls)]
        if not artifacts.judging_calls(calls, structured_names(request.response_format)):
            return
        system = [] if request.system_message is None else [request.system_message]
        messages: list[BaseMessage] = [*system, *request.messages]
        given = {**request.model_settings, "tools": request.tools, "tool_choice": request.tool_choice}

        def prepared(answer: Sample) -> Callable[[], Verdict] | None:
            artifacts.check_tools([_tool_name(tool) for tool in request.tools])
            for artifact in artifacts.artifacts:
                artifact.check_model(identify(request.model))
            artifacts.check_messages(messages)
            known = self._gates_for(request.model, artifacts)
            other = request.response_format is not None  # its form depends on the model
            other |= any(given.pop(name, None) != value for name, value in self._settings.items())
            if other or unlike_calls(request.model, artifacts.plan, None, given, message):
                return None
            assessor = artifacts.assessor(
                carrying(request.model, self._settings),
                known.gates,
                known.trust,
                self._observers,
                self._abstentions,
                max_concurrency=self._max_concurrency,
            )
            question = artifacts.artifacts[0].prompt.question_of(messages)
            return partial(assessor.served_verdict, messages, answer, question)

        self._queue.observe(message, prepared, key=message.id or str(uuid4()), rate=self._observe_rate)

    # -- messages of other models ------------------------------------------------------------------------------------

    def _unjudged_verdict(self, message: AIMessage) -> Verdict:
        artifact = self._artifacts.artifacts[0]
        detail = "Held back: the message did not come from the guarded model, so its uncertainty could not be measured."
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
        verdict = decide(drawn, artifact, self._artifacts.estimators[artifact.digest])
        return verdict.model_copy(update={"reason": Reason.UNMEASURED, "detail": detail})

    def _unjudged_held(self, request: ModelRequest[Any], message: AIMessage) -> HeldMessage:
        verdict = lean(self._unjudged_verdict(message))
        if verdict.candidate is None:  # nothing of it can be shown or stored as it is
            message = AIMessage(content="")
        calls: list[Any] = [{**call, "id": f"call_{uuid4().hex}"} for call in message.tool_calls]  # two may share an id
        message = message.model_copy(update={"tool_calls": calls})
        verdicts = {call["name"]: verdict for call in calls if call["name"] not in self._artifacts.exempt}
        return HeldMessage(
            question=question_text(request.messages),
            message=FrozenMessage.of(with_verdict(message, verdict)),
            judged=targets_of(message, verdicts, structured_names(request.response_format), verdict),
            verdict=verdict,
        )

    def _abstention(self, request: ModelRequest[Any], verdict: Verdict) -> Abstention:
        system = [] if request.system_message is None else [request.system_message]
        messages: list[BaseMessage] = [*system, *request.messages]
        bound = self._artifacts.plan.bindings
        return Abstention(verdict, messages, self._on_abstain, self._abstain_message, None, bound)

    # -- the person --------------------------------------------------------------------------------------------------

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """A new turn: what was held in an earlier one, or decided and not given out, is dropped."""
        note = unpack(state.get("guardrail"))
        return None if note is None or note.phase == "done" else {"guardrail": None}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """`before_agent` for async agents."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Ask about what was held back; the decided message goes out through the model node."""
        note = unpack(state.get("guardrail"))
        if note is None or note.phase != "held" or note.held is None:
            return None
        decisions = ask(note.held, self._allowed)
        message, orders = released(note.held, decisions, lambda verdict: worded(self._abstain_message, verdict))
        decided = GuardState(phase="released", asked=_last_question(state), message=message, orders=orders)
        update: dict[str, Any] = {"guardrail": pack(decided), "guardrail_decided": True, "jump_to": "model"}
        if any(one.id == note.placeholder for one in state["messages"]):  # an application may have removed it
            update["messages"] = [RemoveMessage(id=str(note.placeholder))]
        return update

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """`after_model` for async agents; it only waits for a person."""
        return self.after_model(state, runtime)

    # -- the tools ---------------------------------------------------------------------------------------------------

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Run the call if this very call may run; otherwise tell the model why not.

        What is compared is the request that arrives here. Middleware that stands after this one in the list can still
        change it, unseen.
        """
        order = self._order(request)
        if isinstance(order, ToolMessage):
            return order
        return with_edit_note(handler(edited(request, order)), order, request.tool_call["id"])

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """`wrap_tool_call` without blocking the event loop."""
        order = self._order(request)
        if isinstance(order, ToolMessage):
            return order
        return with_edit_note(await handler(edited(request, order)), order, request.tool_call["id"])

    def _order(self, request: ToolCallRequest) -> ToolCallOrder | ToolMessage:
        """What is done with a call. Under "observe" it runs as it is, unless a person decided about it before."""
        if self._mode == "observe":
            note = unpack(request.state.get("guardrail"))
            if note is None or str(request.tool_call["id"]) not in note.orders:
                return ToolCallOrder(digest="", decision="not_gated")
        return order_of(request, self._artifacts.exempt)


@dataclass(frozen=True, slots=True)
class _Gates:
    """What belongs to one model object: it is kept here, so that its id stays its own."""

    model: BaseChatModel
    gates: dict[str, Gate]
    trust: EndpointTrust
    records: StepRecords | None


def _by_name(judge: Any) -> dict[str, Any]:
    """Judge objects by name, from one, a list, or a mapping by name."""
    if isinstance(judge, Mapping):
        return dict(judge)
    return {one.spec.name: one for one in (judge if isinstance(judge, list | tuple) else (judge,))}


def _extended(response: ModelResponse[Any], note: GuardState) -> ExtendedModelResponse[Any]:
    return ExtendedModelResponse(model_response=response, command=Command(update={"guardrail": pack(note)}))


def _released(state: Mapping[str, Any]) -> GuardState | None:
    """What a person has decided in this turn and did not go out yet, if anything.

    Usually `before_agent` drops what is left of an earlier turn; other middleware may jump over it. So in another run
    than that of the decision (which went on after an error) the last question must be the same.
    """
    note = unpack(state.get("guardrail"))
    if note is None or note.phase != "released":
        return None
    return note if state.get("guardrail_decided") or note.asked == _last_question(state) else None


def _last_question(state: Mapping[str, Any]) -> str | None:
    """Id of the last human message."""
    return next((one.id for one in reversed(state["messages"]) if one.type == "human"), None)


def _decided(message: FrozenMessage) -> AIMessage:
    """A decided message under an id by which it is known again."""
    return message.to_message().model_copy(update={"id": f"guardrail-{uuid4()}"})


def _replaying(request: ModelRequest[Any], decided: AIMessage) -> ModelRequest[Any]:
    """The request to a model that gives out a decided message."""
    request = request.override(model=DecidedModel.in_place_of(request.model, decided))
    return request if fits(request.response_format, decided) else request.override(response_format=None)


def _given_out(response: ModelResponse[Any], decided: AIMessage, note: GuardState) -> ExtendedModelResponse[Any]:
    """The decided message as other middleware saw it; itself, where one of them asked another model instead."""
    if not any(one.id == decided.id for one in response.result):
        response = ModelResponse(result=[decided])
    return _extended(response, GuardState(phase="done", orders=note.orders))


def _tool_name(tool: Any) -> str:
    if isinstance(tool, dict):
        return str(tool.get("function", tool).get("name", tool.get("type")))
    return str(tool.name)
