"""The guard of one agent in frameworks that keep no state of their own for it: verdicts go to a `VerdictStore`.

`CallReviews` reads and writes the store: which calls may run, what people are asked, and what they decided.
`FrameworkGuard` judges a model's requests, and gives decided answers out. An adapter converts its framework's messages
to LangChain's and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTAINED, worded
from guardrail.guard.assess import Assessment
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.structured import form_of
from guardrail.plain_json import canonical_json
from guardrail.sampling.call_settings import check_settings
from guardrail.sampling.effects import arun
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, SamplingPlan
from guardrail.verdict import AbstainedError, Verdict

from .artifact_set import ANY_TOOL, ArtifactSet, Given
from .calls import (
    ANSWER_TOOL,
    CHOSEN,
    answer_key,
    arguments_of,
    call_subject,
    conversation_digest,
    is_of_call,
)
from .collecting import RECORDS
from .decisions import (
    ALL_DECISIONS,
    DecisionType,
    answered,
    check_decision_types,
    checked,
    order_for,
    review_request,
)
from .gates import AgentGate, AgentStep, GateSettings, Judgement
from .held import Conversation, HeldMessage, ToolCallOrder
from .verdicts import VerdictStore

__all__ = ["APPROVED", "NOT_RUN", "Answer", "CallReviews", "Decided", "FrameworkGuard", "Ruling"]

NOT_RUN = "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
APPROVED = "A person let this answer go out."
"""Result of an approved call of `ANSWER_TOOL`."""
APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}
REFUSED = ("reject", "lapse")
"""Decisions after which a held-back answer does not go out."""
GIVEN = "edit:"
"""Prefix of the key of a person's arguments for a call, or of the decision about an answer; the call's id follows."""
Ruling = Literal["run", "run_edited", "ask", "refuse"]
"""Whether a call runs, runs as a person edited it, waits for a person, or is refused."""


# -- The store: calls that wait, and decisions about them --------------------------------------------------------------


class CallReviews:
    """Verdicts on the calls of a run, and people's decisions about those that are held back.

    A held-back answer is kept only in the store of verdicts, under the id of a call of `ANSWER_TOOL`, which stands for
    it in the conversation. The argument of that call is a digest of the conversation that the answer belongs to.

    Args:
        verdicts: Store of the verdicts on the calls.
        allowed: Decisions that a person may take.

    Raises:
        UsageError: An unknown decision, or none.
    """

    def __init__(self, verdicts: VerdictStore, allowed: Sequence[DecisionType]) -> None:
        self.verdicts, self._allowed = verdicts, check_decision_types(allowed)

    async def ruling(
        self,
        call_id: str | None,
        name: str | None,
        arguments: Mapping[str, Any],
        *,
        approved: bool = False,
        proposed: Mapping[str, Any] | None = None,
    ) -> Ruling:
        """Decide whether a call runs: it was accepted, or a person approved it, and nothing changed it since.

        Args:
            call_id: Id of the call.
            name: The tool; None where the framework does not say which.
            arguments: Arguments with which the call would run.
            approved: Whether the framework says that a person approved the call.
            proposed: Arguments of the call in the history, where a person may have edited an approved call.
        """
        row = None if call_id is None else await asyncio.to_thread(self.verdicts.find, call_id)
        if row is None:
            # A store in memory may have forgotten the verdict, or another process had it. A complete store would know
            # it, and a person's edit, which expires with it: without the edit the call would run as proposed.
            return "run" if approved and not self.verdicts.is_complete else "refuse"
        subject, verdict = row
        same = is_of_call(subject, name, arguments)
        if same and (verdict is None or verdict.passes or subject.startswith(CHOSEN)):
            return "run"
        if approved:
            edited = proposed is not None and is_of_call(subject, name, proposed)
            return "run" if same else "run_edited" if edited else "refuse"
        return "ask" if same else "refuse"

    async def held(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> HeldMessage | None:
        """The held-back message of this very call; None for a call that this guard does not hold back."""
        row = await asyncio.to_thread(self.verdicts.find, call_id)
        if row is None or row[1] is None or row[1].passes or not is_of_call(row[0], name, arguments):
            return None
        verdict: Verdict = row[1]
        conversation = await asyncio.to_thread(self.verdicts.conversation, call_id)
        if name == ANSWER_TOOL:
            message = candidate_message(verdict.candidate or Sample(text=""), "")
            by_name = {call["name"]: verdict for call in message.tool_calls}
            return HeldMessage.of(message, verdict, conversation=conversation, verdicts=by_name, answers=by_name)
        call: Any = {"name": name, "args": dict(arguments), "id": call_id, "type": "tool_call"}
        message = AIMessage(content="", tool_calls=[call])
        return HeldMessage.of(message, verdict, conversation=conversation, verdicts={name: verdict})

    async def review_request(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The request that a person sees about a held-back call or answer; None for a call that is not held back.

        Plain JSON in the form of the interrupts of `integrations.langgraph_review`, with the ``call_id`` on top.
        """
        pending = await self.held(call_id, name, arguments)
        return None if pending is None else {**review_request(pending, self._allowed), "call_id": call_id}

    def orders(
        self, waiting: Mapping[str, Mapping[str, Any] | None], decisions: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, ToolCallOrder]:
        """Orders about held-back calls, and about the calls that stand for answers, by call id.

        Args:
            waiting: The request about each waiting call, by its id; None for a call that is not held back.
            decisions: The decisions, by call id.

        Raises:
            pydantic.ValidationError: A decision that is not allowed, has another format, or cannot be carried out.
            UsageError: A call that is not held back.
        """
        orders = {}
        for call_id, decision in decisions.items():
            request = waiting.get(call_id)
            if request is None:
                raise UsageError(f"no held-back call {call_id!r} waits in this run; there are {sorted(waiting)}.")
            orders[call_id] = _order(request, decision)
        return orders

    async def note(self, call_id: str, content: Mapping[str, Any] | None) -> None:
        """Store the arguments with which a person lets a call run (None: its own), or the decision on an answer."""
        if content is None:
            await asyncio.to_thread(self.verdicts.delete, f"{GIVEN}{call_id}")
        else:
            await asyncio.to_thread(self.verdicts.put, f"{GIVEN}{call_id}", canonical_json(dict(content)), None)

    async def noted(self, call_id: str) -> dict[str, Any] | None:
        """The arguments or the decision that `note` stored for a call, if any."""
        row = await asyncio.to_thread(self.verdicts.find, f"{GIVEN}{call_id}")
        return None if row is None else arguments_of(row[0])

    async def give(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """Result of an approved call of `ANSWER_TOOL`: not the answer, which `FrameworkGuard.released` gives out."""
        pending = await self.held(call_id, ANSWER_TOOL, arguments)
        decision: Any = await self.noted(call_id) or APPROVE
        # A rejection stands although the framework says that the call is approved: of two people who decided at once
        # one may have edited the answer and the other rejected it, and neither approved the answer unchanged.
        if pending is None or decision["type"] in REFUSED or (pending.empty and decision == APPROVE):
            return NOT_RUN
        await self.note(call_id, decision)
        return APPROVED


def _order(request: Mapping[str, Any], decision: Mapping[str, Any]) -> ToolCallOrder:
    (action,) = request["action_requests"]
    (valid,) = checked({"decisions": [decision]}, request)["decisions"]
    if request["kind"] == "answer":
        return ToolCallOrder(digest="", decision="reject" if valid["type"] in REFUSED else "approve")
    return order_for({"name": action["name"], "args": action["args"]}, valid)


# -- The guard ---------------------------------------------------------------------------------------------------------


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


class FrameworkGuard:
    """The guard of one agent, for frameworks that bring their own agents; arguments as of `AgentGate`.

    Without ``tools`` the artifact also judges every call that is not exempt. Under "review" a held-back call is
    proposed and runs once a person approves; in place of a held-back answer a call of `ANSWER_TOOL` is proposed, and
    the answer goes out once a person approves.

    Raises:
        UsageError: `ANSWER_TOOL` is gated or exempt; or see `AgentGate`.
        ArtifactMismatchError: The artifact was made for another model.
    """

    def __init__(
        self,
        model: BaseChatModel,
        artifact: Given | None,
        *,
        tools: Mapping[str, Given] | None = None,
        exempt: Sequence[str] = (),
        on_abstain: Any,
        verdicts: VerdictStore | None = None,
        settings: Mapping[str, Any] | None = None,
        allowed_decisions: Sequence[DecisionType] = ALL_DECISIONS,
        records: str | Path = RECORDS,
        plan: SamplingPlan | None = None,
    ) -> None:
        if ANSWER_TOOL in {*exempt, *(tools or {})}:
            raise UsageError(f"{ANSWER_TOOL!r} is the guard's own tool. Leave it out of tools= and exempt=.")
        if tools is None and artifact is not None:
            tools = {ANY_TOOL: artifact}
        self._model, self._running = model, identify(model)
        # An agent's conversation grows with every tool it calls, so it is marked where a plain guard would refuse it.
        own = GateSettings.of({"turns": "mark", **(settings or {})})
        self._gate = AgentGate(artifact, tools, exempt, on_abstain=on_abstain, settings=own, records=records, plan=plan)
        if self.artifacts.stand_ins is None:
            self.artifacts.check_model(self._running)
            check_settings(model, self.artifacts.plan)
        self._gate.share(model)
        self.reviews = CallReviews(verdicts or VerdictStore(), allowed_decisions)

    @property
    def artifacts(self) -> ArtifactSet:
        """The artifacts of the agent."""
        return self._gate.artifacts

    @property
    def on_abstain(self) -> Any:
        """The abstention path."""
        return self._gate.on_abstain

    @property
    def holds(self) -> bool:
        """Whether a person decides about held-back calls and answers."""
        return self._gate.reviewed

    @property
    def verdicts(self) -> VerdictStore:
        """The store of verdicts."""
        return self.reviews.verdicts

    @property
    def model_name(self) -> str:
        """Name of the model that the artifacts were made for."""
        return self._running.model

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
        gate = self._gate.gate_for(step, self._running)
        plan = gate.artifacts.plan
        _check_nothing_lacks(plan.bindings or Bindings(), asked)
        form = form_of(plan, None, asked.model_dump(exclude_defaults=True))
        gate.artifacts.check_tools(step.tools)
        hold = partial(_held, messages, {*holdable, *self.artifacts.exempt}, answers, waits)
        judgement = await arun(gate.judge_steps(step, hold=hold, form="format" if parsed and form == "text" else form))
        message = judgement.held or judgement.fallback
        if message is None:
            assert judgement.accepted is not None, "the gate accepts candidates only"
            message = candidate_message(judgement.accepted.judged_part, self.model_name)
        conversation = None if judgement.held is None else Conversation.of(messages, asked)
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
        verdict = None if name in self.artifacts.exempt else assessment.by_name.get(name, whole)
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
        verdict = pending.verdict
        decision: Any = await self.reviews.noted(decided.call_id) or REJECT
        if decided.output != APPROVED and decision["type"] not in REFUSED:  # it was rejected after that decision
            decision = REJECT
        frozen = answered(pending, decision, lambda verdict: worded(self._gate.settings.abstain_message, verdict))
        refused = decision["type"] in REFUSED
        reviewed = {**verdict.to_metadata(), "review": [{"name": "answer", "decision": decision["type"]}]}
        metadata = {**frozen.metadata, "model_name": self.model_name, "guardrail": reviewed}
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

    def given_out(self, asked: Sequence[BaseMessage], content: Any) -> tuple[bool, Verdict | None]:
        """Whether an answer with this content went out as an answer in this conversation, and the verdict on it.

        True for accepted answers and for those of an abstention path (a person, another model). False for abstentions
        and for answers that this guard did not give in this conversation: the same words may be wrong here.
        """
        abstention = self.verdicts.find(answer_key(asked, content, abstention=True))
        answer = self.verdicts.find(answer_key(asked, content, abstention=False))
        row = abstention or answer
        return answer is not None and abstention is None, None if row is None else row[1]


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
