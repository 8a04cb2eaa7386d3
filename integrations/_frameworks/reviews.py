"""From a run with held-back calls and answers to the review queue and back, as `ReviewBridge` does for graphs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from guardrail.errors import AbstainedError, UnmeasuredError
from guardrail.verdict import Verdict

from .._agents.decisions import checked, tools_of
from .._agents.review_bridge import TOO_LATE, content_of, lapsed, refusal_of, response_of

__all__ = ["ReviewBridge", "Reviewed"]

if TYPE_CHECKING:
    from guardrail.review import CandidateRule, Item, ReviewStore

ENDED = ("decided", "expired")
DONE = ("carried_out", "lapsed")
"""Lines of the trail after which nothing is left to do."""
_log = logging.getLogger(__name__)


class Reviewed(Protocol):
    """A guard about whose held-back calls and answers people decide."""

    async def review_requests(self, result: Any) -> list[dict[str, Any]]:
        """What a person is shown about each held-back call or answer of a run."""

    async def resume(self, agent: Any, result: Any, decisions: Mapping[str, Mapping[str, Any]], **run: Any) -> Any:
        """Go on with a run after decisions, by call id."""


@dataclass(frozen=True, slots=True)
class ReviewBridge:
    """Puts what a run holds back into a review store, and goes on with the run when all of it is decided.

    Each call is one item, whose key is the call's id, so both methods may be called again at any time. So is an answer,
    under the id of the call that stands for it.

    Attributes:
        store: The queue.
        expires_in: Seconds in which a decision is wanted; afterwards nothing runs or goes out. None: no limit.
        callback: URL that the decision is posted to.
        metadata: Stored with each item.
        candidates: Calibrated list of answers to show, or one for each artifact; see `CandidateRule`.
        lease: Seconds for which one `resume` has a run for itself. Let it be longer than the longest run of the agent.
    """

    store: ReviewStore
    expires_in: float | None = None
    callback: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    candidates: CandidateRule | Sequence[CandidateRule] | None = None
    lease: float = 600.0

    async def enqueue(self, guard: Reviewed, result: Any) -> list[Item]:
        """The items of a run's held-back calls; those that are new are added.

        Args:
            guard: The agent's guard.
            result: The run's result, as `guard.review_requests` takes it.
        """
        return [await asyncio.to_thread(self._enqueue, value) for value in await guard.review_requests(result)]

    async def resume(self, guard: Reviewed, agent: Any, result: Any, **run: Any) -> Any:
        """Go on with a run whose held-back calls are all decided.

        A run that fails can be resumed again, also after the ``lease`` of a process that died. It has no checkpoints:
        approved calls run again, so tools should recognise a repeated call by its id.

        Args:
            guard: The agent's guard.
            agent: The agent.
            result: The run's result, as `guard.review_requests` takes it.
            **run: Further arguments of the agent's run.

        Returns:
            The new result. None while a call is undecided or another `resume` is at it, and once the run has gone on.
        """
        values = await guard.review_requests(result)
        decided = await asyncio.to_thread(self._taken, values)
        if decided is None:
            return None
        work_leases, decisions, what = decided
        try:
            found = await guard.resume(agent, result, decisions, **run)
        except Exception as error:
            # What an agent of structured answers raises after a rejection is its result; another run gives no other.
            ended = isinstance(error, AbstainedError) and not isinstance(error, UnmeasuredError)
            await asyncio.to_thread(self._put_down, work_leases, what if ended else None)
            raise
        await asyncio.to_thread(self._put_down, work_leases, what)
        return found

    def _put_down(self, work_leases: Any, what: Mapping[str, str] | None) -> None:
        for work_lease in work_leases:
            outcome = {} if what is None else {"what": what[work_lease.item.id]}
            self.store.settle(work_lease, **outcome, again=what is None)

    def _enqueue(self, value: Mapping[str, Any]) -> Item:
        content = content_of(value).model_copy(
            update={"metadata": {**self.metadata, "call_id": value["call_id"]}, "candidate_set": self._shown(value)}
        )
        return self.store.enqueue(content, key=value["call_id"], expires_in=self.expires_in, callback=self.callback)

    def _shown(self, value: Mapping[str, Any]) -> Any:
        if self.candidates is None:
            return None
        given = self.candidates if isinstance(self.candidates, Sequence) else [self.candidates]
        verdict = Verdict.from_stored({**value["verdict"], "candidate": None, "meanings": value["meanings"]})
        return next((found for rule in given if (found := rule.select(verdict)) is not None), None)

    def _taken(self, values: Sequence[Mapping[str, Any]]) -> Any:
        """Charges, decisions by call id, and what becomes of each item; None if there is nothing to do now."""
        there = [item for item in map(self._enqueue, values) if item.state in ENDED]
        if not values or len(there) < len(values):
            return None
        if all(any(event.what in DONE for event in self.store.trail(item.id)) for item in there):
            return None
        work_leases = self.store.lease([item.id for item in there], seconds=self.lease)
        if not work_leases:
            return None
        decisions, what = {}, {}
        for value, item in zip(values, there, strict=True):
            decision, why = self._decision(item, value)
            decisions[value["call_id"]] = decision
            what[item.id] = "lapsed" if why else "carried_out"
            self.store.note_event(
                "not_carried_out" if why else "handed_over", {"reason": why} if why else {}, item=item.id
            )
        return work_leases, decisions, what

    def _decision(self, item: Item, value: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """The decision about a call, and why it is another one than the reviewer's."""
        if item.decision is None:
            return lapsed(value, TOO_LATE)["decisions"][0], TOO_LATE
        why = refusal_of(item, value) or ""
        if not why:
            (decision,) = response_of(item.decision, value)
            allowed = value["review_configs"][0]["allowed_decisions"]
            try:
                checked({"decisions": [decision]}, allowed, tools_of(value))
                return decision, ""
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        _log.warning("the decision about review item %s cannot be carried out, so nothing runs: %s", item.id, why)
        said = f"The reviewer's {item.decision.action} could not be carried out: {why}"
        return lapsed(value, said)["decisions"][0], why
