"""The guard of one agent in frameworks that keep no state of their own for it: verdicts go to a `VerdictStore`.

A framework's adapter converts its messages to LangChain's and back; the gate itself is in `integrations._agents.gates`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import AbstainedError, ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTAINED, worded
from guardrail.guard.assess import Assessment
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.structured import form_of
from guardrail.sampling.effects import arun
from guardrail.sampling.follow_ups import scorer_of
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, SamplingPlan
from guardrail.verdict import Verdict

from .._openai.lru import LRU
from .artifact_set import ANY_TOOL, ArtifactSet, GateSettings, load, load_tools
from .call_reviews import APPROVED, REFUSED, CallReviews
from .calls import ANSWER_TOOL, CHOSEN, answer_key, call_subject, conversation_digest
from .collecting import RECORDS, refuse_unreviewed
from .decisions import ALL_DECISIONS, DecisionType, answered
from .gates import AgentGate, AgentStep, Judgement
from .held import Conversation
from .verdicts import VerdictStore

__all__ = ["SHARED", "Answer", "Decided", "FrameworkGuard", "is_reviewed"]

REJECT = {"type": "reject"}
SHARED = 64
"""Gates that are kept for guards with the same settings that are made later."""


def is_reviewed(on_abstain: object) -> bool:
    """Whether a person decides about held-back tool calls."""
    return isinstance(on_abstain, str) and on_abstain == "review"


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a guarded request.

    Attributes:
        message: The accepted answer, the message of the abstention path, or the held-back calls under "review".
        verdict: The whole verdict; not for end users. None if nothing in the message is gated.
        calls: Number of model calls.
    """

    message: AIMessage
    verdict: Verdict | None
    calls: int

    @property
    def abstained(self) -> bool:
        """Whether the message is the text of an abstention: no answer of the model, of a person or another model."""
        return bool(self.message.response_metadata.get(ABSTAINED))


@dataclass(frozen=True, slots=True)
class Decided:
    """The call that stands for a held-back answer, after a person's decision.

    Attributes:
        call_id: Id of the call.
        output: Result of the call, as the framework's conversation has it.
    """

    call_id: str
    output: str


_shared: LRU[tuple[AgentGate, Guardrail, object]] = LRU(SHARED)
"""Gates that guards with the same model, artifacts and settings share, with what they remember; the guard that checked
the settings; and the objects that the cache knows by their id, which keeps these alive."""


class FrameworkGuard:
    """The guard of one agent, for frameworks that bring their own agents.

    Args:
        model: The chat model to guard.
        artifact: Judges answers, and without ``tools`` every call that is not exempt; an artifact or its file. None
            lets answers pass.
        tools: Judges messages that call a tool: artifact or file by tool name; "*" is every other tool. "collect" for
            a tool without an artifact: a person decides about every call, and its samples are recorded.
        exempt: Tools whose calls pass.
        judge: The judge object, for artifacts whose judge cannot be made by name; or several by name.
        on_abstain: As for `Guardrail`, or "review": a held-back tool call is proposed and runs once a person approves;
            a call of `ANSWER_TOOL` is proposed in place of a held-back answer, which goes out once a person approves.
        verdicts: Store of verdicts on tool calls, and of held-back answers.
        guard_options: Further settings of `Guardrail`.
        allowed_decisions: Decisions that a person may take about held-back calls and answers.
        records: Record file for samples of tools that "collect".
        plan: Sampling plan if no tool has an artifact; default: ten samples at temperature 0.7.

    Attributes:
        holds: Whether a person decides about held-back calls and answers.
        guard: Holds the settings, and the first artifact.
        reviews: `ruling` says whether a call runs, `review_request` is the request that a person sees about a held-back
            call or answer, and `orders` turns decisions into orders; see `CallReviews`.
        verdicts: The store of verdicts.

    Raises:
        UsageError: `ANSWER_TOOL` is gated or exempt, or a tool collects where no person decides.
    """

    def __init__(
        self,
        model: BaseChatModel,
        artifact: CalibrationArtifact | str | Path | None,
        *,
        tools: Mapping[str, CalibrationArtifact | str | Path] | None = None,
        exempt: Sequence[str] = (),
        judge: Any = None,
        on_abstain: Any,
        verdicts: VerdictStore | None = None,
        guard_options: Mapping[str, Any] | None = None,
        allowed_decisions: Sequence[DecisionType] = ALL_DECISIONS,
        records: str | Path = RECORDS,
        plan: SamplingPlan | None = None,
    ) -> None:
        self.holds = is_reviewed(on_abstain)
        gated = load_tools({} if tools is None else tools, exempt)
        if ANSWER_TOOL in {*exempt, *gated}:
            raise UsageError(f"{ANSWER_TOOL!r} is the guard's own tool. Leave it out of tools= and exempt=.")
        self._model = model
        self._running = identify(model)  # raises its own errors, which a validation error of the guard would wrap
        # An agent's conversation grows with every tool it calls, so it is marked where a plain guard would refuse it.
        options = {"turns": "mark", **(guard_options or {}), "on_abstain": "message" if self.holds else on_abstain}
        judge, scorer = options.pop("judge", judge), options.pop("scorer", None)
        answer = None if artifact is None else load(artifact)
        refuse_unreviewed(gated, reviewed=self.holds)
        if tools is None and answer is not None:
            gated = {ANY_TOOL: answer}
        self.exempt = frozenset(exempt)

        def make() -> tuple[AgentGate, Guardrail, object]:
            similarity, entailment = options.get("similarity"), options.get("entailment")
            settings = GateSettings(judge=judge, scorer=scorer, similarity=similarity, entailment=entailment)
            artifacts = ArtifactSet.of(answer, gated, settings, exempt=self.exempt, plan=plan, model=self._running)
            return *_gate_of(model, artifacts, settings, options, records, self.holds), (judge, scorer, options)

        self._gate, self.guard, _ = _shared.get(
            (
                id(model),
                None if answer is None else answer.digest,
                tuple((name, gate if isinstance(gate, str) else gate.digest) for name, gate in sorted(gated.items())),
                (self.exempt, self.holds, str(records), repr(plan)),
                tuple(
                    (name, _token(value))
                    for name, value in sorted({**options, "judge": judge, "scorer": scorer}.items())
                ),
            ),
            make,
        )
        self.verdicts = verdicts or VerdictStore()
        self.reviews = CallReviews(self.verdicts, allowed_decisions)

    @property
    def artifacts(self) -> ArtifactSet:
        """The artifacts of the agent."""
        return self._gate.artifacts

    async def ask(
        self,
        messages: Sequence[BaseMessage],
        asked: Bindings,
        *,
        holdable: Collection[str] = (),
        answers: Collection[str] = (),
        parsed: bool = False,
        waits: bool = False,
    ) -> Answer:
        """Judge one request and act on the verdict.

        Args:
            messages: The conversation.
            asked: Tools and answer format of the request; exactly the artifact's.
            holdable: Names of tools whose calls can wait for a person.
            answers: Names of tools whose call is the answer (structured output).
            parsed: Whether the framework parses a text, so that an abstention in words would be misread.
            waits: Whether an answer can wait for a person: the agent has `ANSWER_TOOL`.

        Raises:
            ArtifactMismatchError: Other tools, format or prompt than the artifact's.
            UsageError: A tool that is neither gated nor exempt.
            AbstainedError: Under "raise", and where a text would be taken for an answer.
        """
        offered = tuple(name for name in asked.tool_names if name not in answers)
        step = AgentStep(self._model, tuple(messages), tools=offered, answers=tuple(answers), bindings=asked)
        gates = self._gate.gates_for(step, self._running)
        plan = gates.artifacts.plan
        _check_nothing_lacks(plan.bindings or Bindings(), asked)
        form = form_of(plan, None, asked.model_dump(exclude_defaults=True))
        gates.artifacts.check_tools(step.tools)
        hold = partial(_held, messages, {*holdable, *self.exempt}, answers, waits)
        judgement = await arun(gates.judge_steps(step, hold=hold, form="format" if parsed and form == "text" else form))
        message = judgement.held or judgement.fallback
        if message is None:
            assert judgement.accepted is not None, "the gate accepts candidates only"
            message = candidate_message(judgement.accepted.judged_part, self.guard.artifact.model.model)
        conversation = None if judgement.held is None else Conversation.of(messages)
        for call in message.tool_calls:
            subject = call_subject(call["name"], call["args"])
            if judgement.fallback is not None:
                subject = CHOSEN + subject
            own = self._verdict_on(call["name"], judgement, answers)
            await asyncio.to_thread(self.verdicts.put, str(call["id"]), subject, own, conversation)
        verdict, cost = judgement.verdict, judgement.assessment.drawn.cost
        if verdict is None:
            metadata = {**message.response_metadata, "guardrail": None}
            update = {"response_metadata": metadata, "usage_metadata": total_usage(cost)}
            return Answer(message.model_copy(update=update), None, cost.calls)
        return Answer(with_verdict(message, verdict), verdict, verdict.cost.calls)

    def _verdict_on(self, name: str, judgement: Judgement, answers: Collection[str]) -> Verdict | None:
        """The verdict to store with a call of a judged message; None for an exempt tool."""
        assessment, whole = judgement.assessment, judgement.verdict
        verdict = None if name in self.exempt else assessment.by_name.get(name, whole)
        if not assessment.accepted and verdict is not None and verdict.passes:
            verdict = whole  # the strictest gate holds all calls of the message
        if judgement.held is not None and verdict is not None and name == ANSWER_TOOL:
            return verdict.model_copy(update={"candidate": _answer_of(assessment.drawn.primary, answers)})
        return verdict

    async def may_run(self, call_id: str | None, name: str | None, arguments: Mapping[str, Any]) -> bool:
        """Whether a tool call was judged and accepted, or given by the abstention path, and not changed since.

        An unknown call may not run.
        """
        return await self.reviews.ruling(call_id, name, arguments) == "run"

    # -- answers -----------------------------------------------------------------------------------------------------

    async def released(
        self,
        decided: Decided,
        messages: Sequence[BaseMessage],
        *,
        parsed: bool = False,
        fits: Callable[[str], bool] = lambda text: False,
    ) -> Answer:
        """A held-back answer after a person's decision. Nothing is drawn.

        Args:
            decided: The call that stands for the answer, and its result.
            messages: The conversation before that call.
            parsed: As in `ask`.
            fits: Whether a text is an answer of the format, where the framework parses it.

        Raises:
            UsageError: This call holds no answer back in this conversation.
            AbstainedError: The person gave no answer, and a text would be taken for one.
        """
        arguments = {"conversation": conversation_digest(messages)}
        pending = await self.reviews.held(decided.call_id, ANSWER_TOOL, arguments)
        if pending is None:
            raise UsageError(
                f"no answer to this conversation waits under the call {decided.call_id!r}, so nothing is given out. "
                "The conversation was changed, its verdict expired, or another process keeps it: give both the same "
                "VerdictStore(path). Otherwise ask again without that call."
            )
        verdict, model = pending.verdict, self.guard.artifact.model.model
        decision: Any = await self.reviews.noted(decided.call_id) or REJECT
        if decided.output != APPROVED and decision["type"] not in REFUSED:  # it was rejected after that decision
            decision = REJECT
        frozen = answered(pending, decision, lambda verdict: worded(self.guard.abstain_message, verdict))
        refused = decision["type"] in REFUSED
        reviewed = {**verdict.to_metadata(), "review": [{"name": "answer", "decision": decision["type"]}]}
        metadata = {**frozen.metadata, "model_name": model, "guardrail": reviewed}
        metadata |= {ABSTAINED: True} if refused else {}
        message = frozen.model_copy(update={"metadata": metadata}).to_message()
        if parsed and not message.tool_calls and (refused or not fits(frozen.text)):
            raise AbstainedError(verdict, frozen.text)
        for call in message.tool_calls:
            subject = CHOSEN + call_subject(call["name"], call["args"])
            await asyncio.to_thread(self.verdicts.put, str(call["id"]), subject, verdict)
        return Answer(message, verdict, 0)

    async def note_answer(self, asked: Sequence[BaseMessage], content: Any, answer: Answer) -> None:
        """Remember an answer, or the text of an abstention, that went out in a conversation.

        Args:
            asked: The conversation so far.
            content: The text, or the object made of it.
            answer: Result of the request.
        """
        key = answer_key(asked, content, abstention=answer.abstained)
        await asyncio.to_thread(self.verdicts.put, key, "", answer.verdict)

    async def given_out(self, asked: Sequence[BaseMessage], content: Any) -> tuple[bool, Verdict | None]:
        """Whether an answer with this content went out as an answer in this conversation, and the verdict on it.

        True for accepted answers and for those of an abstention path (a person, another model). False for abstentions
        and for answers that this guard did not give in this conversation: the same words may be wrong here.
        """
        return await asyncio.to_thread(self.given_out_sync, asked, content)

    def given_out_sync(self, asked: Sequence[BaseMessage], content: Any) -> tuple[bool, Verdict | None]:
        """`given_out` in this thread."""
        abstention = self.verdicts.find(answer_key(asked, content, abstention=True))
        answer = self.verdicts.find(answer_key(asked, content, abstention=False))
        row = abstention or answer
        return answer is not None and abstention is None, None if row is None else row[1]


CHECKED = ("abstain_message", "probe", "switch", "on_verdict", "max_concurrency", "remember", "remember_slots", "turns")
"""Settings that `Guardrail` checks."""


def _token(value: object) -> object:
    """Key of a setting in the cache: a plain value or a list of such itself, any other object by its id."""
    if isinstance(value, list | tuple):
        return tuple(map(_token, value))
    return value if isinstance(value, str | int | float | None) else id(value)


def _gate_of(
    model: BaseChatModel,
    artifacts: ArtifactSet,
    settings: GateSettings,
    options: Mapping[str, Any],
    records: str | Path,
    holds: bool,
) -> tuple[AgentGate, Guardrail]:
    """The gate of an agent, and the guard of its first artifact, which checks the settings of both."""
    first = artifacts.artifacts[0]
    spec, judge = first.estimator.judge, settings.judge
    own = judge.get(spec.name) if spec is not None and isinstance(judge, Mapping) else judge
    scorer = settings.scorers.get(scorer_of(first.plan) or "")
    guard = Guardrail(model=model, artifact=first, scorer=scorer, **({} if own is None else {"judge": own}), **options)
    settings = replace(settings, **{name: getattr(guard, name) for name in CHECKED})
    gate = AgentGate(artifacts, settings, on_abstain=guard.on_abstain, reviewed=holds, records=records)
    artifacts.check_model(identify(model))
    for artifact in artifacts.artifacts:
        gate.observers.admit(artifact)
    return gate, guard


def _held(
    messages: Sequence[BaseMessage],
    holdable: Collection[str],
    answers: Collection[str],
    waits: bool,
    assessment: Assessment,
) -> AIMessage | None:
    """The held-back calls, and a call that stands for a held-back answer; None if one of them cannot wait."""
    candidate = assessment.drawn.primary
    proposed = () if candidate is None else candidate.tool_calls
    calls = [(call.name, call.arguments) for call in proposed if call.name not in answers]
    if any(name not in holdable for name, _ in calls):
        return None
    if len(calls) < len(proposed) or not proposed:
        if not waits:
            return None
        calls.append((ANSWER_TOOL, {"conversation": conversation_digest(messages)}))
    tool_calls: list[Any] = [
        {"name": name, "args": args, "id": f"call_{uuid4().hex[:24]}", "type": "tool_call"} for name, args in calls
    ]
    # The text beside the calls stays out: a person decides about the calls only.
    return AIMessage(content="", tool_calls=tool_calls, response_metadata={"finish_reason": "tool_calls"})


def _answer_of(candidate: Sample | None, answers: Collection[str]) -> Sample | None:
    """The answer in a candidate: its text, or its calls that are the structured answer."""
    if candidate is None or not candidate.tool_calls:
        return candidate
    calls = tuple(call for call in candidate.tool_calls if call.name in answers)
    return candidate.judged_part.model_copy(update={"tool_calls": calls})


def _check_nothing_lacks(known: Bindings, asked: Bindings) -> None:
    """Refuse a request that lacks tools, choice or format of the artifact: the samples would carry them nevertheless.

    `guardrail.bindings.check_bindings` refuses a request with more than the artifact has.
    """
    lacking = sorted(set(known.tool_names) - set(asked.tool_names))
    if lacking:
        raise ArtifactMismatchError(
            f"the artifact was calibrated with the tools {known.tool_names}, but this agent does not offer {lacking}. "
            "Give the agent the same tools, or calibrate again with the agent's."
        )
    if known.tool_choice is not None and asked.tool_choice is None:
        raise ArtifactMismatchError(
            f"the artifact was calibrated with tool_choice {known.tool_choice!r}, this request leaves it to the "
            "model (frameworks do so after a tool has run). Calibrate without a tool_choice."
        )
    if known.response_format is not None and asked.response_format is None:
        raise ArtifactMismatchError(
            "the artifact was calibrated for structured answers, but this agent asks for text. Give the agent the "
            "calibrated output type, or calibrate again without."
        )
