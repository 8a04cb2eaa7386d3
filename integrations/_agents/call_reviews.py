"""Which calls of a run may go on, and what people decide about the others: notes in a `VerdictStore`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from guardrail.errors import UsageError

from .calls import ANSWER_TOOL, is_of_call
from .decisions import REFUSED, checked, order_for, review_request
from .held import MessageNote, ToolCallOrder
from .verdicts import VerdictStore

NOT_RUN = "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
APPROVED = "A person let this answer go out."
"""Result of an approved call of `ANSWER_TOOL`."""
APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}
Ruling = Literal["run", "run_edited", "ask", "refuse"]
"""The ruling about a call: it runs, runs as a person edited it, waits for a person, or is refused."""
SAME_STORE = "its verdict was deleted, or another process keeps it: give both the same VerdictStore(path)."
_log = logging.getLogger(__name__)


class CallReviews:
    """The notes about a run's calls, and people's decisions about those that are held back.

    A held-back answer is kept in the store only, under the id of a call of `ANSWER_TOOL`, which stands for it in the
    conversation. The argument of that call is a digest of the conversation that the answer belongs to.
    """

    def __init__(self, verdicts: VerdictStore) -> None:
        self.verdicts = verdicts

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
        note = None if call_id is None else await asyncio.to_thread(self.verdicts.find, call_id)
        order = None if note is None else note.orders.get(str(call_id))
        if order is None:
            if approved:  # a person's edit, which nobody else knows, would be lost with the note
                _log.error("the approved call %s of %r does not run: %s", call_id, name, SAME_STORE)
            return "refuse"
        same = is_of_call(order.digest, name, arguments)
        if same and order.decision != "held":
            return "run"
        if approved:
            if ends_turn(note):  # the user has got a person's text in place of the call
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
        note = await asyncio.to_thread(self.verdicts.find, call_id)
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
        note = await asyncio.to_thread(self.verdicts.find, call_id)
        decision = None if note is None else note.decision
        edited = decision is not None and decision["type"] == "edit"
        return dict(decision["edited_action"]["args"]) if decision is not None and edited else None

    async def give(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """Result of an approved call of `ANSWER_TOOL`: not the answer, which `FrameworkGuard.released` gives out next.

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


def ends_turn(note: MessageNote | None) -> bool:
    """True if a person decided that the user gets a text in place of this call."""
    return note is not None and note.decision is not None and note.decision["type"] == "answer"
