"""From a run with held-back calls and answers to the review queue and back, as `langgraph_review` does for graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from guardrail.errors import AbstainedError, UnmeasuredError

from .._agents.review_bridge import ENDED, TOO_LATE, BaseBridge

__all__ = ["Reviewed", "RunBridge"]

if TYPE_CHECKING:
    from guardrail.review import Item, WorkLease

DONE = ("carried_out", "lapsed")
"""Lines of the trail after which an item needs no more work."""


class Reviewed(Protocol):
    """A guard about whose held-back calls and answers people decide."""

    async def review_requests(self, result: Any) -> list[dict[str, Any]]:
        """The request that a person sees about each held-back call or answer of a run."""

    async def resume(self, agent: Any, result: Any, decisions: Mapping[str, Mapping[str, Any]], **run: Any) -> Any:
        """Go on with a run after decisions, by call id."""


@dataclass(frozen=True, slots=True)
class _RunWork:
    """Leased work on a run: its decisions by call id, and the outcome of each item by its id."""

    leases: Sequence[WorkLease]
    decisions: Mapping[str, Mapping[str, Any]]
    outcomes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBridge(BaseBridge):
    """Puts held-back calls of a run into a review store, and goes on with the run once every call is decided.

    Each call is one item, whose key is the call's id, so both methods may be called again at any time. An answer is an
    item, too, under the id of the call that stands for it.
    """

    async def enqueue(self, guard: Reviewed, result: Any) -> list[Item]:
        """The items of a run's held-back calls; new ones are added.

        Args:
            guard: The agent's guard.
            result: The run's result, as `guard.review_requests` takes it.
        """
        return [await asyncio.to_thread(self._enqueue, request) for request in await guard.review_requests(result)]

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
            The new result. None while a call is undecided or another `resume` has the lease, and once the run has gone
            on.
        """
        requests = await guard.review_requests(result)
        work = await asyncio.to_thread(self._lease, requests)
        if work is None:
            return None
        try:
            resumed = await guard.resume(agent, result, work.decisions, **run)
        except Exception as error:
            # A rejection of a structured answer raises: that is the result of the run, and another run gives no other.
            ended = isinstance(error, AbstainedError) and not isinstance(error, UnmeasuredError)
            await asyncio.to_thread(self._settle, work, ended=ended)
            raise
        await asyncio.to_thread(self._settle, work, ended=True)
        return resumed

    def _settle(self, work: _RunWork, *, ended: bool) -> None:
        for lease in work.leases:
            if ended:
                self.store.settle(lease, what=work.outcomes[lease.item.id], again=False)
            else:
                self.store.settle(lease, again=True)

    def _enqueue(self, request: Mapping[str, Any]) -> Item:
        return self._item(request, request["call_id"], call_id=request["call_id"])

    def _lease(self, requests: Sequence[Mapping[str, Any]]) -> _RunWork | None:
        """Lease a run whose calls are all decided; None while it cannot go on, and once it has gone on."""
        items = [item for item in map(self._enqueue, requests) if item.state in ENDED]
        if not requests or len(items) < len(requests):
            return None
        if all(any(event.what in DONE for event in self.store.trail(item.id)) for item in items):
            return None
        leases = self.store.lease([item.id for item in items], seconds=self.lease)
        if not leases:
            return None
        decisions, outcomes = {}, {}
        for request, item in zip(requests, items, strict=True):
            answer, why = self._answer(item, request)
            if why == TOO_LATE:
                self.store.note_event("not_carried_out", {"reason": TOO_LATE}, item=item.id)
            decisions[request["call_id"]] = answer["decisions"][0]
            outcomes[item.id] = "carried_out" if why is None else "lapsed"
        return _RunWork(leases, decisions, outcomes)
