"""From a paused graph to the review queue and back: the queue is where the person answers.

Nothing happens inside a node: the graph pauses; the program that runs it calls `enqueue`, and `resume` after the
decision. Both may be called again at any time, also by another process, at once or after a crash: an item's key is its
interrupt's id, and only one call of `resume` at a time carries out an item.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from guardrail.files import check_version

from .decisions import REQUEST_FORMAT
from .review_bridge import CHANGED, ENDED, BaseBridge, content_digest, request_digest

__all__ = ["GraphBridge", "unchanged"]

if TYPE_CHECKING:
    from guardrail.review import Item, WorkLease


LEFT = "The interrupt is not open any more: a new message came in its conversation, or it was answered elsewhere."
"""Why an item is closed without a decision, or its decision is not carried out."""
LOST = (
    "The checkpointer has no thread of this name, so the decision is not carried out. Resume with the checkpointer "
    "with which the agent paused, and use one that survives a restart (SqliteSaver)."
)
"""Why a decision is not carried out whose thread is gone."""
LOOK_BACK = 50
"""Checkpoints of a thread that are searched for interrupts that were left behind."""
NEWEST = 1000
"""Decided items that are searched for those of a thread that the checkpointer does not have."""

_Open: TypeAlias = "tuple[str, dict[str, Any], Item]"
"""An open interrupt: its id, its value, its item."""
_changed: ContextVar[set[str] | None] = ContextVar("guardrail_changed", default=None)
"""Digests of approved messages that differ from the message that a node of this run holds."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """Progress of one run of a graph: whether it was started and returned, and which messages had changed."""

    started: bool = False
    done: bool = False
    changed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Input:
    """Input of a graph's run: a command with answers, or None to go on from where it stopped."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBridge(BaseBridge):
    """Puts a graph's guardrail interrupts into a review store, and takes the decisions back.

    An interrupt about several calls is one item: approve, reject and respond concern every call, and an edit gives
    every call, in order, with the text beside them. An edit that the graph could not carry out (another tool, a call
    more or less, a change to a call that passes without a gate, a tool call in place of an answer) is refused when the
    reviewer makes it. If a store holds such an edit nevertheless, it lapses: nothing runs, and the model reads why. An
    approval or edit lapses, too, if the message in the checkpoint differs from the decided one.

    A new message in the thread leaves an interrupt behind. Its item is then closed ("cancelled" in the trail), or, if a
    decision came first, the trail says that it was not carried out; see `drop_stale`.

    Example:
        >>> bridge = GraphBridge(ReviewStore("reviews.db"))        # doctest: +SKIP
        >>> agent.invoke({"messages": "..."}, config)               # doctest: +SKIP
        >>> bridge.enqueue(agent, config)                           # doctest: +SKIP
        >>> bridge.resume(agent, config)   # None until decided     # doctest: +SKIP

    Attributes:
        store: The queue.
        expires_in: Seconds in which a decision is wanted; afterwards nothing goes out, or runs. None: no limit.
        callback: URL that the decision is posted to.
        metadata: Stored with each item.
        candidates: Calibrated list of answers to show, or one for each artifact; see `CandidateRule`.
        on_stale: Called with every item that `drop_stale` finds, also from `enqueue` and `resume`.
        lease: Seconds for which one `resume` has a thread for itself. Let it be longer than the longest run of the
            graph: after it another call takes the run for dead and goes on, and a tool that still runs is run again.
    """

    on_stale: Callable[[Item], object] | None = None

    def enqueue(self, graph: Any, config: Any) -> list[Item]:
        """The items of the thread's open guardrail interrupts; those that are new are added, stale ones are closed."""
        waiting = self._open(graph.get_state(config), config)
        self._drop(_ids(graph.get_state_history(config, limit=LOOK_BACK)), waiting)
        return [item for _, _, item in waiting]

    async def aenqueue(self, graph: Any, config: Any) -> list[Item]:
        """`enqueue` for async checkpointers."""
        waiting = self._open(await graph.aget_state(config), config)
        self._drop(_ids([snapshot async for snapshot in graph.aget_state_history(config, limit=LOOK_BACK)]), waiting)
        return [item for _, _, item in waiting]

    def resume(self, graph: Any, config: Any, **run: Any) -> dict[str, Any] | None:
        """Go on after decisions. The graph's result may hold the next interrupt.

        If a run with a decision ended early (its process died, or a tool or a model failed), the graph goes on from
        where it stopped. One call at a time does so in a thread, for ``lease`` seconds.

        Args:
            graph: The graph.
            config: Its configuration, with the thread's id.
            **run: Further arguments of the graph's ``invoke``, e.g. ``context=``.

        Returns:
            The graph's result. None while nothing is decided or another call holds the lease, and also if the thread no
            longer waits: the items of interrupts that were left behind are then closed, logged, and passed to
            ``on_stale``.
        """
        state = graph.get_state(config)
        waiting = self._open(state, config)
        if _undecided(waiting) or self._is_lost(state, config):
            return None
        past = list(graph.get_state_history(config, limit=LOOK_BACK))
        leases = self._lease(state, waiting, past)
        if leases:
            with self._work(leases) as work:
                run_with = self._input(graph.get_state(config), config, leases)
                if run_with is not None:
                    work.started = True
                    result: dict[str, Any] = graph.invoke(run_with.value, config, **run)
                    work.done = True
                    return result
        elif not waiting:
            self._drop(_ids(past), waiting)
        return None

    async def aresume(self, graph: Any, config: Any, **run: Any) -> dict[str, Any] | None:
        """`resume` for async checkpointers."""
        state = await graph.aget_state(config)
        waiting = self._open(state, config)
        if _undecided(waiting) or self._is_lost(state, config):
            return None
        past = [snapshot async for snapshot in graph.aget_state_history(config, limit=LOOK_BACK)]
        leases = self._lease(state, waiting, past)
        if leases:
            with self._work(leases) as work:
                run_with = self._input(await graph.aget_state(config), config, leases)
                if run_with is not None:
                    work.started = True
                    result: dict[str, Any] = await graph.ainvoke(run_with.value, config, **run)
                    work.done = True
                    return result
        elif not waiting:
            self._drop(_ids(past), waiting)
        return None

    def drop_stale(self, graph: Any, config: Any) -> list[Item]:
        """Close the items of the thread's interrupts that were left behind. `enqueue` and `resume` do so, too.

        Searches the last 50 checkpoints.

        Returns:
            The items closed now: undecided ones, and decided ones whose decision is not carried out.
        """
        waiting = self._open(graph.get_state(config), config)
        return self._drop(_ids(graph.get_state_history(config, limit=LOOK_BACK)), waiting)

    async def adrop_stale(self, graph: Any, config: Any) -> list[Item]:
        """`drop_stale` for async checkpointers."""
        waiting = self._open(await graph.aget_state(config), config)
        return self._drop(
            _ids([snapshot async for snapshot in graph.aget_state_history(config, limit=LOOK_BACK)]), waiting
        )

    def _lease(self, state: Any, waiting: Sequence[_Open], past: Sequence[Any]) -> list[WorkLease]:
        """Lease the thread; empty if it cannot go on, or another call has the lease.

        The lease covers all decided items of the step that waits, or that was not finished, so that no two calls run
        one thread at once.
        """
        if not waiting and not _unfinished(state):
            return []
        names = dict.fromkeys([*(name for name, _, _ in waiting), *_newest_step(past)])
        items = [item for name in names if (item := self.store.find(name)) is not None]
        ended = [item for item in items if item.state in ENDED]
        if not waiting and all(item.lease_until is None for item in ended):
            return []
        return self.store.lease([item.id for item in ended], seconds=self.lease)

    @contextmanager
    def _work(self, leases: Sequence[WorkLease]) -> Iterator[_Work]:
        """One run of the graph: when it returns its items are settled; after an error they can be leased again.

        If the run is broken off (Ctrl-C, a cancelled task, a kill) tools may still be running: the lease runs out.
        """
        work = _Work()
        token = _changed.set(work.changed)
        try:
            yield work
        except Exception:
            self._settle(leases, work)
            raise
        finally:
            _changed.reset(token)
        self._settle(leases, work)

    def _settle(self, leases: Sequence[WorkLease], work: _Work) -> None:
        for lease in leases:
            changed = content_digest(lease.item.content) in work.changed
            if changed:
                self._not_carried_out(lease.item, CHANGED)
            if work.done:
                self.store.settle(lease, what="lapsed" if changed else self._outcome(lease.item), again=False)
            else:
                self.store.settle(lease, again=work.started or lease.item.lease_until is not None)

    def _outcome(self, item: Item) -> str:
        handed = any(event.what == "handed_over" for event in self.store.trail(item.id))
        return "carried_out" if handed else "lapsed"

    def _input(self, state: Any, config: Any, leases: Sequence[WorkLease]) -> _Input | None:
        """Input of the next run, read under the lease; None if another call went on in the meantime."""
        ours = {lease.item.id for lease in leases}
        waiting = [interrupt for interrupt in self._open(state, config) if interrupt[2].id in ours]
        answers = {name: self._answer(item, request)[0] for name, request, item in waiting if item.state in ENDED}
        if answers:
            return _Input(_command(answers))
        left_off = any(lease.item.lease_until is not None for lease in leases)
        return _Input(None) if left_off and _unfinished(state) else None

    def _drop(self, past: Sequence[str], waiting: Sequence[_Open]) -> list[Item]:
        """Settle the items of past interrupts, newest first; several may be of one step."""
        still_open = {name for name, _, _ in waiting}
        dropped = []
        for name in past:
            item = None if name in still_open else self.store.find(name)
            if item is None:
                continue
            if item.state in ("pending", "claimed"):
                item = self.store.cancel(item.id, why=LEFT)
            elif item.decision is None or self._noted(item):
                continue
            if item.decision is not None:
                self.store.note_event("not_carried_out", {"reason": LEFT}, item=item.id)
            _log.warning("review item %s: %s", item.id, LEFT)
            dropped.append(item)
            if self.on_stale is not None:
                self.on_stale(item)
        return dropped

    def _is_lost(self, state: Any, config: Any) -> bool:
        """Whether the checkpointer does not have the thread; its decided items are then logged, once each."""
        if state.created_at is not None:
            return False
        thread = str(config["configurable"]["thread_id"])
        for item in self.store.items(["decided"], limit=NEWEST, newest=True):
            if item.content.metadata.get("thread_id") == thread and not self._noted(item):
                self._not_carried_out(item, f"thread {thread!r}: {LOST}")
                if self.on_stale is not None:
                    self.on_stale(item)
        return True

    def _noted(self, item: Item) -> bool:
        """Whether the trail has the fate of its decision, or the item is of a version that did not write it."""
        fates = {"handed_over", "not_carried_out"}
        return item.content.edits == "any" or any(event.what in fates for event in self.store.trail(item.id))

    def _open(self, state: Any, config: Any) -> list[_Open]:
        thread = config["configurable"]["thread_id"]
        waiting = []
        for interrupt in state.interrupts:
            request = interrupt.value
            if not isinstance(request, dict) or request.get("type") != "guardrail_review":
                continue
            way_out = "resume the graph with the version that paused it"
            check_version(request.get("format"), REQUEST_FORMAT, f"the interrupt {interrupt.id}", way_out)
            item = self._item(request, interrupt.id, thread_id=str(thread), interrupt=interrupt.id)
            waiting.append((interrupt.id, request, item))
        return waiting


def unchanged(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether a node holds the message that its answer is about; if not, the bridge of this run is told.

    An answer without a digest, such as a program's own, is about the message that waits.
    """
    digest = answer.get("content")
    if digest in (None, request_digest(request)):
        return True
    changed = _changed.get()
    if changed is not None:
        changed.add(str(digest))
    return False


def _undecided(waiting: Sequence[_Open]) -> bool:
    """Whether interrupts are open and none is decided, as at most calls of `resume`."""
    return bool(waiting) and not any(item.state in ENDED for _, _, item in waiting)


def _unfinished(state: Any) -> bool:
    """Whether a run ended early: its step has tasks (perhaps done, but not applied), and no task waits for a person."""
    return bool(state.tasks) and not state.interrupts


def _newest_step(past: Iterable[Any]) -> list[str]:
    """Ids of the interrupts of the newest step that had some; empty if a new message, or an update, came after it."""
    for snapshot in past:
        if snapshot.interrupts:
            return _ids([snapshot])
        if (snapshot.metadata or {}).get("source") != "loop":
            break
    return []


def _ids(history: Iterable[Any]) -> list[str]:
    """Ids of the interrupts of some snapshots, newest first, each once."""
    return list(dict.fromkeys(interrupt.id for snapshot in history for interrupt in snapshot.interrupts))


def _command(answers: dict[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=answers)
