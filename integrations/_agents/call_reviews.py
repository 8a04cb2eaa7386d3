"""Held-back calls and answers of a run: which calls may run, what people are asked, and their decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage

from guardrail.errors import UsageError
from guardrail.guard.messages import candidate_message
from guardrail.plain_json import canonical_json
from guardrail.types import Sample
from guardrail.verdict import Verdict

from .calls import ANSWER_TOOL, CHOSEN, arguments_of, is_of_call
from .decisions import DecisionType, check_decision_types, checked, order_for, review_request, tools_of
from .held import HeldMessage, ToolCallOrder
from .verdicts import VerdictStore

__all__ = ["APPROVED", "NOT_RUN", "REFUSED", "CallReviews", "Ruling"]

NOT_RUN = "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
APPROVED = "A person let this answer go out."
"""Result of an approved call of `ANSWER_TOOL`."""
APPROVE = {"type": "approve"}
REFUSED = ("reject", "lapse")
"""Decisions after which a held-back answer does not go out."""
GIVEN = "edit:"
"""Prefix of the key of a person's arguments for a call, or of the decision about an answer; the call's id follows."""

Ruling = Literal["run", "run_edited", "ask", "refuse"]
"""Whether a call runs, runs as a person edited it, waits for a person, or is refused."""


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

    # -- which calls may run -----------------------------------------------------------------------------------------

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

    # -- what people are asked ---------------------------------------------------------------------------------------

    async def held(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> HeldMessage | None:
        """The held-back message of this very call; None for a call that this guard does not hold back."""
        row = await asyncio.to_thread(self.verdicts.find, call_id)
        if row is None or row[1] is None or row[1].passes or not is_of_call(row[0], name, arguments):
            return None
        verdict: Verdict = row[1].model_copy(update={"samples": ()})
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

    # -- people's decisions ------------------------------------------------------------------------------------------

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
    (action,), (config,) = request["action_requests"], request["review_configs"]
    (valid,) = checked({"decisions": [decision]}, config["allowed_decisions"], tools_of(request))["decisions"]
    if request["kind"] == "answer":
        return ToolCallOrder(digest="", decision="reject" if valid["type"] in REFUSED else "approve")
    return order_for({"name": action["name"], "args": action["args"]}, valid)
