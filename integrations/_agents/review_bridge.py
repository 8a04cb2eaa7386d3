"""Between an agent that waits for people and the review queue, where they answer: what all frameworks share.

Graphs (`integrations.langgraph_review`) and runs of other frameworks (`RunBridge`) add how they find the requests that
wait and how they go on. An item's key is the id of its interrupt or call, so that adding it twice changes nothing, also
by another process after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.verdict import AbstainedError, UnmeasuredError, Verdict

from .calls import call_subject
from .decisions import checked

if TYPE_CHECKING:
    from guardrail.review import Content, Decision, Item, ReviewStore, WorkLease


TOO_LATE = "Nobody decided in time."
"""Why an expired call does not run."""
CHANGED = "What waits is not what was decided about: it was changed after the reviewer saw it."
"""Why a decision is not carried out although its interrupt is open."""
TURN_ENDED = "Another decision about this run ended the turn: a person answered the user."
"""Why a decision is not carried out beside another one."""
ENDED = ("decided", "expired")
"""States of an item that needs no further decision."""
DONE = ("carried_out", "lapsed")
"""Lines of the trail after which an item needs no more work."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBridge:
    """The queue's side of every bridge; attributes as of `integrations.langgraph_review.ReviewBridge`."""

    store: ReviewStore = field(kw_only=False)
    expires_in: float | None = None
    lease: float = 600.0

    def _item(self, request: Mapping[str, Any], key: str, **metadata: str) -> Item:
        """The item of a request, added if it is new."""
        content = content_of(request)
        metadata["conversation"] = request["conversation"]  # labels are told apart by it
        return self.store.enqueue(
            content.model_copy(update={"metadata": metadata}), key=key, expires_in=self.expires_in
        )

    def _answer(
        self, item: Item, request: Mapping[str, Any], why: str | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """The answer to a request whose item ended, and the reason if the answer is not the reviewer's.

        An answer that the agent would refuse becomes a lapse, so that no decision can stop it.

        Args:
            item: The item.
            request: The request.
            why: The reason, if the decision cannot be carried out beside another one.
        """
        if item.decision is None:
            return lapsed(request, TOO_LATE), TOO_LATE
        lets_out = item.decision.action in ("approve", "edit")
        if lets_out and content_digest(item.content) != content_digest(content_of(request)):
            why = why or CHANGED
        answer: dict[str, Any] = {}
        if why is None:
            answer = {"decisions": _response_of(item.decision, request)}
            if lets_out:  # a node compares it with the message that it holds
                answer["content"] = content_digest(item.content)
            try:
                checked(answer, request)
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        if why is None:
            self.store.note_event("handed_over", {}, item=item.id)
            return answer, None
        self._not_carried_out(item, why)
        return lapsed(request, f"The reviewer's {item.decision.action} could not be carried out: {why}"), why

    def _not_carried_out(self, item: Item, why: str) -> None:
        self.store.note_event("not_carried_out", {"reason": why}, item=item.id)
        _log.warning("the decision about review item %s cannot be carried out, so nothing runs: %s", item.id, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBridge(BaseBridge):
    """Puts held-back calls of a run into a review store, and goes on with the run once every call is decided.

    Each call is one item, whose key is the call's id, so both methods may be called again at any time. An answer is an
    item, too, under the id of the call that stands for it.
    """

    async def enqueue(self, guard: Any, result: Any) -> list[Item]:
        """The items of a run's held-back calls; new ones are added.

        Args:
            guard: The agent's guard.
            result: The run's result, as `guard.review_requests` takes it.
        """
        return [await asyncio.to_thread(self._enqueue, request) for request in await guard.review_requests(result)]

    async def resume(self, guard: Any, agent: Any, result: Any, **run: Any) -> Any:
        """Go on with a run whose held-back calls are all decided.

        A run that fails can be resumed again, also after the ``lease`` of a process that died. It has no checkpoints:
        approved calls run again, so tools should recognise a repeated call by its id.

        Args:
            guard: The agent's guard.
            agent: The agent.
            result: The run's result, as `guard.review_requests` takes it.
            **run: Further arguments of the agent's run.

        Returns:
            The new result. None while a call is undecided or another `resume` has the lease, and once the run has gone
            on.
        """
        requests = await guard.review_requests(result)
        leases = await asyncio.to_thread(self._lease, requests)
        if not leases:
            return None
        answers = await asyncio.to_thread(self._answers, requests)
        decisions = {call_id: answer["decisions"][0] for call_id, (answer, _) in answers.items()}
        try:
            resumed = await guard.resume(agent, result, decisions, **run)
        except Exception as error:
            # A rejection of a structured answer raises: that is the result of the run, and another run gives no other.
            ended = isinstance(error, AbstainedError) and not isinstance(error, UnmeasuredError)
            await asyncio.to_thread(self._settle, leases, answers if ended else None)
            raise
        await asyncio.to_thread(self._settle, leases, answers)
        return resumed

    def _settle(self, leases: Sequence[WorkLease], answers: Mapping[str, tuple[Any, str | None]] | None) -> None:
        """Note what became of each item; without ``answers`` the run failed, and can be resumed again."""
        for lease in leases:
            if answers is None:
                self.store.settle(lease, again=True)
            else:
                _, why = answers[lease.item.content.metadata["call_id"]]
                self.store.settle(lease, what="carried_out" if why is None else "lapsed", again=False)

    def _enqueue(self, request: Mapping[str, Any]) -> Item:
        return self._item(request, request["call_id"], call_id=request["call_id"])

    def _lease(self, requests: Sequence[Mapping[str, Any]]) -> Sequence[WorkLease]:
        """Lease a run whose calls are all decided; empty while it cannot go on, and once it has gone on."""
        items = [item for item in map(self._enqueue, requests) if item.state in ENDED]
        if not requests or len(items) < len(requests):
            return ()
        if all(any(event.what in DONE for event in self.store.trail(item.id)) for item in items):
            return ()
        return self.store.lease([item.id for item in items], seconds=self.lease)

    def _answers(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, tuple[dict[str, Any], str | None]]:
        """The answer to each request by call id, and the reason if it is not the reviewer's."""
        items = {request["call_id"]: self._enqueue(request) for request in requests}
        decided = [item.decision for item in items.values() if item.decision is not None]
        texts = [decision.text for decision in decided if decision.action == "answer"]
        answers = {}
        for request in requests:
            item = items[request["call_id"]]
            decision = item.decision
            other = texts and decision is not None and decision.action != "reject" and decision.text != texts[0]
            answers[request["call_id"]] = self._answer(item, request, TURN_ENDED if other else None)
            if decision is None:
                self.store.note_event("not_carried_out", {"reason": TOO_LATE}, item=item.id)
        return answers


def _response_of(decision: Decision, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A reviewer's decision as the decisions of a request, one for each action; the note stays in the store."""
    n = len(request["action_requests"])
    if decision.action in ("respond", "answer"):
        return [{"type": decision.action, "message": decision.text}] * n
    if decision.action == "reject":
        return [{"type": "reject", "message": decision.text} if decision.text else {"type": "reject"}] * n
    if decision.action == "approve" or decision.candidate is None:
        return [{"type": "approve"}] * n
    edited = decision.candidate
    if request["kind"] == "answer":
        return [{"type": "edit", "edited_action": {"name": "answer", "args": {"text": edited.text}}}]
    # The candidate shows every call of the message; a person does not decide about calls that pass without a gate.
    fixed = _fixed(request)
    gated = [call for index, call in enumerate(edited.tool_calls) if index not in fixed]
    text = {"text": edited.text} if edited.text != request["candidate"]["text"] else {}
    actions = [{"name": call.name, "args": dict(call.arguments)} for call in gated]
    return [{"type": "edit", "edited_action": action, **text} for action in actions]


def content_of(request: Mapping[str, Any]) -> Content:
    """A request as the content of an item."""
    from guardrail.review import Candidate, Content

    kind = request["kind"]
    verdict = request["verdict"]
    shown = None if verdict["candidate"] is None else Candidate.from_stored(verdict["candidate"])
    allowed = tuple(request["review_configs"][0]["allowed_decisions"])
    if kind == "answer" and request["candidate"]["tool_calls"]:  # a plain graph releases it as a whole, or not at all
        allowed = tuple(name for name in allowed if name != "edit")
    return Content(
        question=request["question"],
        messages=tuple(request["messages"]),
        kind=kind,
        candidate=shown,
        verdict=Verdict.from_stored(verdict),
        alternatives=tuple((answer["text"], answer["share"]) for answer in request["alternatives"]),
        allowed=allowed,
        agent=True,
        schemas=request["schemas"],
        fixed=_fixed(request),
    )


def content_digest(content: Content) -> str:
    """Digest of everything that an approval of this item gives out or runs: text, calls, and the undecided calls."""
    text = "" if content.candidate is None else content.candidate.text
    calls = () if content.candidate is None else content.candidate.tool_calls
    subjects = [call_subject(call.name, call.arguments) for call in calls]
    return sha256_hex(canonical_json([content.kind, text, subjects, list(content.fixed)]))


def _fixed(request: Mapping[str, Any]) -> tuple[int, ...]:
    """Places of the candidate's calls about which a person does not decide."""
    if request["kind"] == "answer":
        return ()
    gated = {action["name"] for action in request["action_requests"]}
    return tuple(index for index, call in enumerate(request["candidate"]["tool_calls"]) if call["name"] not in gated)


def lapsed(request: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The answer to a request about which nobody decided, or whose decision cannot be carried out."""
    return {"decisions": [{"type": "lapse", "message": why}] * len(request["action_requests"])}
