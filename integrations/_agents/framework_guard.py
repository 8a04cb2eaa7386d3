"""The guard of one agent in frameworks that keep no state of their own for it: notes go to a `VerdictStore`.

It judges a model's requests, says which calls of a run may go on, and takes people's decisions about the others. An
adapter converts its framework's messages to LangChain's and back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from typing_extensions import Unpack

from guardrail.artifact import RouterArtifact
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTAINED, worded
from guardrail.guard.assess import Assessment
from guardrail.guard.messages import candidate_message, tool_calls_of, with_verdict
from guardrail.guard.structured import form_of
from guardrail.sampling.effects import arun
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, ToolCall
from guardrail.verdict import AbstainedError, Verdict

from .artifact_set import ArtifactSet
from .calls import ANSWER_TOOL, answer_key, conversation_digest, is_of_call
from .decisions import REFUSED, checked, order_for, review_request
from .decisions import released as decided_message
from .gates import AgentGate, AgentStep, Judgement
from .held import Conversation, HeldMessage, MessageNote, ToolCallOrder
from .options import ArtifactLike, GateOptions
from .verdicts import VerdictStore

NOT_RUN = "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
APPROVED = "A person let this answer go out."
"""Result of an approved call of `ANSWER_TOOL`."""
APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}
Ruling = Literal["run", "run_edited", "ask", "refuse"]
"""The ruling about a call: it runs, runs as a person edited it, waits for a person, or is refused."""
SAME_STORE = "its verdict was deleted, or another process keeps it: give both the same VerdictStore(path)."
_log = logging.getLogger(__name__)


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
        """True if the message is the text of an abstention: no answer of the model, of a person or another model."""
        return bool(self.message.response_metadata.get(ABSTAINED))


class FrameworkGuard:
    """The guard of one agent, for frameworks that bring their own agents.

    Without ``tools`` the artifact also judges every call that is not exempt. Under "review" a held-back call is
    proposed and runs once a person approves. In place of a held-back answer a call of `ANSWER_TOOL` is proposed, whose
    argument is a digest of the conversation; the answer itself is in the store only, under the id of that call, and
    goes out once a person approves.

    Args:
        model: The agent's model; None if each request brings its own.
        artifact: Judges final answers: an artifact or its file; None lets answers pass.
        verdicts: Store of verdicts, decisions and held-back answers; default: this process's memory.
        **options: See `GateOptions`.

    Raises:
        UsageError: `ANSWER_TOOL` is gated or exempt; or see `AgentGate`.
        ArtifactMismatchError: The artifact was made for another model.
    """

    def __init__(
        self,
        model: BaseChatModel | None,
        artifact: ArtifactLike | RouterArtifact | None,
        *,
        verdicts: VerdictStore | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        if ANSWER_TOOL in {*options.get("exempt", ()), *(options.get("tools") or {})}:
            raise UsageError(f"{ANSWER_TOOL!r} is the guard's own tool. Leave it out of tools= and exempt=.")
        self._model = model
        self.gate = AgentGate(artifact, options, per_run=True)
        self.asks = self.gate.reviewed
        self.verdicts = verdicts or VerdictStore()
        if model is not None and not self.artifacts.stand_in:
            self.artifacts.check_model(identify(model))

    @property
    def artifacts(self) -> ArtifactSet:
        """The artifacts of the agent; of a router those of its first group."""
        return self.gate.artifacts

    async def ask(
        self,
        messages: Sequence[BaseMessage],
        asked: Bindings,
        *,
        holdable: Collection[str] = (),
        answers: Collection[str] = (),
        parsed: bool = False,
        waits: bool = False,
        model: BaseChatModel | None = None,
    ) -> Answer:
        """Judge one request and act on the verdict.

        Args:
            messages: The conversation.
            asked: Tools and answer format of the request; exactly the artifact's.
            holdable: Names of tools whose calls can wait for a person.
            answers: Names of tools whose call is the answer (structured output).
            parsed: Whether the framework parses a text, so that an abstention in words would be misread.
            waits: Whether an answer can wait for a person: the agent has `ANSWER_TOOL`.
            model: The model of this request, if the guard was made for no model.

        Raises:
            ArtifactMismatchError: Other tools, format or prompt than the artifact's.
            UsageError: A tool that is neither gated nor exempt.
            AbstainedError: Under "raise", and where a text would be taken for an answer.
        """
        model = model or self._model
        assert model is not None, "the guard or the request has a model"
        step = AgentStep(model, tuple(messages), answers=tuple(answers), bindings=asked)
        gate = self.gate.admit(step)
        gate.artifacts.check_nothing_lacks(asked)
        form = form_of(gate.artifacts.plan, None, asked.model_dump(exclude_defaults=True))
        hold = partial(_held, messages, {*holdable, *gate.artifacts.exempt}, answers, waits)
        judgement = await arun(gate.judge_steps(step, hold=hold, form="format" if parsed and form == "text" else form))
        conversation = Conversation.of(messages, asked) if judgement.outcome == "held" else None
        for call in judgement.message.tool_calls:
            note = self._note(call, judgement, conversation, answers, gate.model_name)
            note = note.model_copy(update={"ends": not parsed})
            await asyncio.to_thread(self.verdicts.put, str(call["id"]), note)
        verdict = judgement.verdict
        message = judgement.message
        cost = judgement.assessment.drawn.cost if verdict is None else verdict.cost
        update: dict[str, Any] = {"response_metadata": {"guardrail": None, **message.response_metadata}}
        if judgement.outcome == "accepted" and message.tool_calls:
            update["content"] = ""  # the calls are judged, not the text beside them
        return Answer(message.model_copy(update=update), verdict, cost.calls)

    def _note(
        self,
        call: Mapping[str, Any],
        judgement: Judgement,
        conversation: Conversation | None,
        answers: Collection[str],
        model: str,
    ) -> MessageNote:
        """The note about a call of a judged message; without a ``conversation`` nothing of it waits."""
        call_id = str(call["id"])
        name = call["name"]
        assessment = judgement.assessment
        if name in self.artifacts.exempt:
            return MessageNote(orders={call_id: ToolCallOrder.of(call, "exempt")})
        order = judgement.order(call)
        verdict = assessment.by_name.get(name, judgement.verdict)
        if conversation is None or verdict is None:
            return MessageNote(orders={call_id: order})
        if verdict.accepted and judgement.verdict is not None:
            verdict = judgement.verdict  # the strictest gate holds all calls of the message
        if name == ANSWER_TOOL:
            candidate = _answer_of(assessment.drawn.primary, answers)
            verdict = verdict.model_copy(update={"candidate": candidate})
            message = candidate_message(candidate or Sample(text=""), model)
            gated = structured = {answer_call["name"] for answer_call in message.tool_calls}
        else:
            message = AIMessage(content="", tool_calls=[cast(Any, dict(call))])
            gated, structured = {name}, set()
        metadata = {**message.response_metadata, "model_name": model, "guardrail": verdict.to_metadata()}
        message = message.model_copy(update={"response_metadata": metadata})
        held = HeldMessage.of(message, verdict, conversation=conversation, gated=gated, answers=structured)
        return MessageNote(held=held, orders={call_id: order})

    async def released(
        self,
        results: Mapping[str, str],
        messages: Sequence[BaseMessage],
        *,
        prompted: bool = False,
        parsed: bool = False,
        fits: Callable[[str], bool] = lambda text: False,
    ) -> Answer | None:
        """The answer after a person's decision, without a draw: a held-back answer, or a text that ends the turn.

        The store says what was decided. The texts of results do not: any tool can return any text.

        Args:
            results: Names of the tools whose calls have a result at the end of the conversation, by call id.
            messages: The conversation before these calls.
            prompted: Whether the user has written since, so that an answer that was not approved is left behind.
            parsed: As in `ask`.
            fits: Whether a text is an answer of the format, where the framework parses it.

        Returns:
            None if the results are those of tools, so that the model is asked.

        Raises:
            UsageError: Nothing waits under such a call in this conversation; or a prompt came with an approved answer.
            AbstainedError: The person gave no answer, and a text would be taken for one.
        """
        notes = {call_id: await self._find(call_id) for call_id in results}
        answered = [call_id for call_id, note in notes.items() if _ends_turn(note)]
        standing = [call_id for call_id, name in results.items() if name == ANSWER_TOOL]
        call_id = next(iter([*answered, *standing]), None)
        if call_id is None:
            return None
        note = notes[call_id]
        stands = results[call_id] == ANSWER_TOOL
        goes_out = note is not None and note.given
        if note is not None and goes_out:  # one run of the call gives the answer out once
            await asyncio.to_thread(self.verdicts.decide, call_id, note.decision)
        if prompted and not (stands and goes_out):
            return None
        if prompted:
            raise UsageError("a prompt came with the approval of a held-back answer. Give it after the answer.")
        held = None if note is None else note.held
        if note is None or held is None or not _is_of(note, conversation_digest(messages), call_id if stands else None):
            raise UsageError(
                f"no answer to this conversation waits under the call {call_id!r}, so nothing is given out. "
                f"The conversation was changed, {SAME_STORE} Otherwise ask again without that call."
            )
        decision: Any = note.decision or REJECT
        if stands and not goes_out and decision["type"] not in REFUSED:
            decision = REJECT  # the framework rejected it after that decision
        frozen, _ = decided_message(held, [decision], partial(worded, self.gate.options["abstain_message"]))
        message = frozen.to_message()
        answer = Answer(message, held.verdict, 0)
        if parsed and not message.tool_calls and (answer.abstained or not fits(frozen.text)):
            raise AbstainedError(held.verdict, frozen.text)
        for call in message.tool_calls:
            runs = MessageNote(orders={str(call["id"]): ToolCallOrder.of(call, "given")})
            await asyncio.to_thread(self.verdicts.put, str(call["id"]), runs)
        return answer

    async def _find(self, key: str) -> MessageNote | None:
        return await asyncio.to_thread(self.verdicts.find, key)

    async def note_answer(self, asked: Sequence[BaseMessage], content: Any, answer: Answer) -> None:
        """Remember an answer, or the text of an abstention, that went out: its text, or the object made of it."""
        note = MessageNote(verdict=answer.verdict, given=not answer.abstained)
        # An abstention in the same words counts, whichever came first.
        put = partial(self.verdicts.put, answer_key(asked, content), note, first=note.given)
        await asyncio.to_thread(put)

    def given_out(self, asked: Sequence[BaseMessage], content: Any) -> tuple[bool, Verdict | None]:
        """Find out if an answer with this content went out in this conversation as an answer, and the verdict on it.

        True for accepted answers and for those of an abstention path (a person, another model). False for abstentions
        and for answers that this guard did not give in this conversation: the same words may be wrong here.
        """
        note = self.verdicts.find(answer_key(asked, content))
        return (False, None) if note is None else (note.given, note.verdict)

    # -- which calls go on, and what people decide about the others ----------------------------------------------------

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
        note = None if call_id is None else await self._find(call_id)
        order = None if note is None else note.orders.get(str(call_id))
        if order is None:
            if approved:  # a person's edit, which nobody else knows, would be lost with the note
                _log.error("the approved call %s of %r does not run: %s", call_id, name, SAME_STORE)
            return "refuse"
        same = is_of_call(order.digest, name, arguments)
        if same and order.decision != "held":
            return "run"
        if approved:
            if _ends_turn(note):  # the user has got a person's text in place of the call
                return "refuse"
            edited = proposed is not None and is_of_call(order.digest, name, proposed)
            return "run" if same else "run_edited" if edited else "refuse"
        return "ask" if same else "refuse"

    async def review_request(
        self, call_id: str, name: str, arguments: Mapping[str, Any], *, ends: bool = True
    ) -> dict[str, Any] | None:
        """The request that a person sees about a held-back call or answer; None for a call that is not held back.

        Plain JSON in the form of the interrupts of `integrations.langgraph_review`, with the ``call_id`` on top.
        ``ends``: whether the agent can end its turn with a person's text in place of the call.
        """
        note = await self._held(call_id, name, arguments)
        if note is None or note.held is None:
            return None
        return {**review_request(note.held, ends=ends and note.ends), "call_id": call_id}

    async def _held(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> MessageNote | None:
        """The note about a held-back call; None for a call that this guard does not hold back."""
        note = await self._find(call_id)
        order = None if note is None else note.orders.get(call_id)
        if note is None or note.held is None or order is None or not is_of_call(order.digest, name, arguments):
            return None
        return note

    async def decide(
        self, waiting: Sequence[Mapping[str, Any]], decisions: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, ToolCallOrder]:
        """Note decisions by call id, and return the orders about these calls; ``waiting`` has the requests.

        Raises:
            pydantic.ValidationError: A decision that is not allowed, has another format, or cannot be carried out.
            UsageError: A call that is not held back; or "answer" beside a decision that lets something else go out.
        """
        requests = {request["call_id"]: request for request in waiting}
        orders = {}
        for call_id, decision in decisions.items():
            if call_id not in requests:
                raise UsageError(f"no held-back call {call_id!r} waits in this run; there are {sorted(requests)}.")
            orders[call_id] = _order(requests[call_id], decision)
        answer = next((decision for decision in decisions.values() if decision["type"] == "answer"), None)
        asked = [decisions.get(call_id, {}) for call_id in requests]
        if answer is not None and any(one != answer and one.get("type") not in REFUSED for one in asked):
            raise UsageError(
                '"answer" ends the turn, so nothing else of the run may go out: give the same answer, or "reject", as '
                "the decision about everything that waits."
            )
        for call_id, order in orders.items():
            decision = decisions[call_id]
            if requests[call_id]["kind"] == "answer" or order.decision in ("answer", "edit"):
                await asyncio.to_thread(self.verdicts.decide, call_id, decision)
            elif order.decision == "approve":  # a rejection does not undo the edit of another copy of the run
                await asyncio.to_thread(self.verdicts.decide, call_id, None)
        return orders

    async def edit(self, call_id: str) -> dict[str, Any] | None:
        """The arguments with which a person lets a call run; None for its own."""
        note = await self._find(call_id)
        decision = None if note is None else note.decision
        edited = decision is not None and decision["type"] == "edit"
        return dict(decision["edited_action"]["args"]) if decision is not None and edited else None

    async def give(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """Result of an approved call of `ANSWER_TOOL`: not the answer, which `released` gives out next.

        The store notes that the call has run: a result with the same words, from elsewhere, gives nothing out.
        """
        note = await self._held(call_id, ANSWER_TOOL, arguments)
        decision = APPROVE if note is None else note.decision or APPROVE
        # A rejection stands although the framework says that the call is approved: of two people who decided at once
        # one may have edited the answer and the other rejected it, and neither approved the answer unchanged.
        if note is None or note.held is None or decision["type"] in REFUSED:
            return NOT_RUN
        if note.held.empty and decision == APPROVE:
            return NOT_RUN
        await asyncio.to_thread(partial(self.verdicts.decide, call_id, decision, given=True))
        return APPROVED


def _order(request: Mapping[str, Any], decision: Mapping[str, Any]) -> ToolCallOrder:
    (action,) = request["action_requests"]
    (valid,) = checked({"decisions": [decision]}, request)["decisions"]
    if request["kind"] == "answer":
        return ToolCallOrder(digest="", decision="reject" if valid["type"] in REFUSED else "approve")
    return order_for({"name": action["name"], "args": action["args"]}, valid)


def _ends_turn(note: MessageNote | None) -> bool:
    """True if a person decided that the user gets a text in place of this call."""
    return note is not None and note.decision is not None and note.decision["type"] == "answer"


def _is_of(note: MessageNote, conversation: str, standing: str | None) -> bool:
    """True if a note is about the conversation with this digest; ``standing``: the call that stands for its answer."""
    if standing is None:
        return note.held is not None and note.held.conversation.digest == conversation
    order = note.orders.get(standing)
    return order is not None and is_of_call(order.digest, ANSWER_TOOL, {"conversation": conversation})


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
    calls = [call for call in proposed if call.name not in answers]
    if any(call.name not in holdable for call in calls):
        return None
    if len(calls) < len(proposed) or not proposed:
        if not waits:
            return None
        calls.append(ToolCall(name=ANSWER_TOOL, arguments={"conversation": conversation_digest(messages)}))
    # The text beside the calls stays out: a person decides about the calls only.
    held = AIMessage(content="", tool_calls=tool_calls_of(calls), response_metadata={"finish_reason": "tool_calls"})
    return held if assessment.verdict is None else with_verdict(held, assessment.verdict)


def _answer_of(candidate: Sample | None, answers: Collection[str]) -> Sample | None:
    """The answer in a candidate: its text, or its calls that are the structured answer."""
    if candidate is None or not candidate.tool_calls:
        return candidate
    calls = tuple(call for call in candidate.tool_calls if call.name in answers)
    return candidate.judged_part.model_copy(update={"tool_calls": calls})
