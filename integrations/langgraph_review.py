"""Abstentions as LangGraph interrupts: a person approves, edits, rejects or responds, and nothing is sampled twice.

A LangGraph node runs again from its start when it is resumed. So no node here both samples and interrupts: one node
draws, judges and freezes the candidate in the state, another asks the person about what was frozen.

    graph.add_node("answer", nodes.sample)      # draws, judges; holds back, or answers
    graph.add_node("review", nodes.review)      # asks about a held-back message; passes everything else

Needs a checkpointer and a thread id, as every interrupt does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeAlias, cast

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableLambda
from typing_extensions import TypedDict

from guardrail.errors import UnreadableReplyError, UsageError, require
from guardrail.files import check_version
from guardrail.guard.abstention import worded
from guardrail.guard.chat_model import Guardrail
from guardrail.guard.messages import accepted_answer, candidate_message, with_verdict
from guardrail.sampling.effects import Effect, Steps, arun, run
from guardrail.sampling.replies.read import refuse_unstorable
from guardrail.types import Unmeasured
from guardrail.verdict import Reason, Verdict

from ._agents.decisions import (
    REQUEST_FORMAT,
    Decision,
    answer_schema,
    released,
    review_request,
)
from ._agents.held import Conversation, HeldMessage, MessageNote, pack, unpack
from ._agents.review_bridge import CHANGED, ENDED, BaseBridge, content_digest, content_of, lapsed

require("langgraph.types", extra="agents")

from langgraph.graph.message import add_messages  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402

if TYPE_CHECKING:
    from guardrail.review import Item, WorkLease

__all__ = [
    "Decision",
    "GuardedNodes",
    "GuardedState",
    "ReviewBridge",
]


LEFT = "The conversation went on without this decision: a new message came in it, or its run was resumed elsewhere."
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


def ask(held: HeldMessage) -> list[Decision]:
    """Interrupt, and return one decision for each target. Resume with ``{"decisions": [...]}``.

    LangGraph checks the answer against the schema before it keeps it: a bad one raises ``pydantic.ValidationError``
    and the same interrupt can be answered again.
    """
    request = review_request(held)
    answer = interrupt(request, response_schema=answer_schema(request))
    if not unchanged(answer, request):
        answer = lapsed(request, CHANGED)
    return cast(list[Decision], answer["decisions"])


# -- plain graphs ------------------------------------------------------------------------------------------------------


class GuardedState(TypedDict):
    """State of a graph with guarded nodes; add your own keys by inheriting from it."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation."""
    guardrail: NotRequired[str | None]
    """The candidate and its verdict, packed, while one is held back; see `integrations._agents.held`."""


@dataclass(frozen=True, slots=True)
class GuardedNodes:
    """The two nodes that put a person behind a guard in a plain LangGraph graph.

    Tool calls that a guard of a plain graph holds back are shown and released as a whole message: the caller's graph
    runs them, so edit and respond are for answers. In an agent use `integrations.langchain_agents`.

    Attributes:
        guard: Judges. Its ``on_abstain`` plays no part here: abstentions are held for the review node.
    """

    guard: Guardrail

    def sample(self, state: GuardedState) -> dict[str, Any]:
        """Draw, judge once, and answer or freeze the candidate."""
        return self._answer_or_hold(state, self.guard.assess(state["messages"]))

    async def asample(self, state: GuardedState) -> dict[str, Any]:
        """`sample` without blocking the event loop."""
        return self._answer_or_hold(state, await self.guard.aassess(state["messages"]))

    def review(self, state: GuardedState) -> dict[str, Any]:
        """Ask a person about a held-back message; the decided message joins the conversation."""
        note = unpack(state.get("guardrail"))
        if note is None or note.held is None:
            return {}
        message, _ = released(note.held, ask(note.held), self._refusal)
        return {"messages": [message.to_message()], "guardrail": None}

    def add_to(self, graph: Any, *, name: str = "guard") -> tuple[str, str]:
        """Add both nodes and the edge between them to a ``StateGraph``.

        Returns:
            Names of the entry and of the exit node: ``graph.add_edge(START, entry)``, ``graph.add_edge(exit, ...)``.
        """
        entry = f"{name}_sample"
        leave = f"{name}_review"
        graph.add_node(entry, RunnableLambda(self.sample, afunc=self.asample))
        graph.add_node(leave, self.review)
        graph.add_edge(entry, leave)
        return entry, leave

    def _answer_or_hold(self, state: GuardedState, verdict: Verdict) -> dict[str, Any]:
        verdict = _storable(verdict)
        model = self.guard.artifact.model.model
        candidate = verdict.candidate
        if verdict.passes:
            return {"messages": [with_verdict(accepted_answer(verdict, model), verdict)], "guardrail": None}
        message = AIMessage(content="") if candidate is None else candidate_message(candidate, model)
        conversation = Conversation.of(state["messages"])
        held = HeldMessage.of(with_verdict(message, verdict), verdict, conversation=conversation)
        return {"guardrail": pack(MessageNote(held=held))}

    def _refusal(self, verdict: Verdict) -> str:
        return worded(self.guard.abstain_message, verdict)


def _storable(verdict: Verdict) -> Verdict:
    """The verdict; unmeasured and without its candidate if a state could not store the candidate."""
    try:
        if verdict.candidate is not None:
            refuse_unstorable(verdict.candidate)
    except UnreadableReplyError as error:
        why = {"value": None, "is_bound": False, "reason": Unmeasured.MODEL_FAILED, "detail": str(error)}
        uncertainty = verdict.uncertainty.model_copy(update=why)
        unmeasured = {"accepted": False, "reason": Reason.UNMEASURED, "uncertainty": uncertainty}
        return verdict.model_copy(update={**unmeasured, "candidate": None, "items": ()})
    return verdict


# -- the review queue --------------------------------------------------------------------------------------------------
# Nothing happens inside a node: the graph pauses; the program that runs it calls `enqueue`, and `resume` after the
# decision. Both may be called again at any time, also by another process, at once or after a crash: an item's key is
# its interrupt's id, and only one call of `resume` at a time carries out an item.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewBridge(BaseBridge):
    """Puts a graph's guardrail interrupts into a review store, and takes the decisions back.

    An interrupt about several calls is one item: approve, reject and respond concern every call, and an edit gives
    every call, in order, with the text beside them. An edit that the graph could not carry out (another tool, a call
    more or less, a change to a call that passes without a gate, a tool call in place of an answer) is refused when the
    reviewer makes it. If a store holds such an edit nevertheless, it lapses: nothing runs, and the model reads why. An
    approval or edit lapses, too, if the message in the checkpoint differs from the decided one.

    A new message in the thread leaves an interrupt behind. Its item is then closed ("cancelled" in the trail), or, if a
    decision came first, the trail says that it was not carried out.

    Example:
        >>> bridge = ReviewBridge(ReviewStore("reviews.db"))        # doctest: +SKIP
        >>> agent.invoke({"messages": "..."}, config)               # doctest: +SKIP
        >>> bridge.enqueue(agent, config)                           # doctest: +SKIP
        >>> bridge.resume(agent, config)   # None until decided     # doctest: +SKIP

    Attributes:
        store: The queue.
        expires_in: Seconds in which a decision is wanted; afterwards nothing goes out, or runs. None: no limit.
        lease: Seconds for which one `resume` has a thread for itself. Let it be longer than the longest run of the
            graph: after it another call takes the run for dead and goes on, and a tool that still runs is run again.
    """

    def enqueue(self, graph: Any, config: Any) -> list[Item]:
        """The items of the thread's open guardrail interrupts; those that are new are added, stale ones are closed.

        Raises:
            UsageError: The thread waits for an answer to ``HumanInTheLoopMiddleware`` alone, which no item shows.
        """
        return run(self._enqueue(graph, config))

    async def aenqueue(self, graph: Any, config: Any) -> list[Item]:
        """`enqueue` for async checkpointers."""
        return await arun(self._enqueue(graph, config))

    def resume(self, graph: Any, config: Any, **run_with: Any) -> dict[str, Any] | None:
        """Go on after decisions. The graph's result may hold the next interrupt.

        If a run with a decision ended early (its process died, or a tool or a model failed), the graph goes on from
        where it stopped. One call at a time does so in a thread, for ``lease`` seconds.

        Args:
            graph: The graph.
            config: Its configuration, with the thread's id.
            **run_with: Further arguments of the graph's ``invoke``, e.g. ``context=``.

        Returns:
            The graph's result. None while nothing is decided or another call holds the lease, and also if the thread no
            longer waits: the items of interrupts that were left behind are then closed and logged.

        Raises:
            UsageError: The thread waits for an answer to ``HumanInTheLoopMiddleware`` alone, which no item shows.
        """
        return run(self._resume(graph, config, run_with))

    async def aresume(self, graph: Any, config: Any, **run_with: Any) -> dict[str, Any] | None:
        """`resume` for async checkpointers."""
        return await arun(self._resume(graph, config, run_with))

    def _enqueue(self, graph: Any, config: Any) -> Steps[list[Item]]:
        state = yield _state(graph, config)
        waiting = self._open(state, config)
        self._drop(_ids((yield _past(graph, config))), waiting)
        _refuse_approvals(state, waiting)
        return [item for _, _, item in waiting]

    def _resume(self, graph: Any, config: Any, run_with: Mapping[str, Any]) -> Steps[dict[str, Any] | None]:
        state = yield _state(graph, config)
        waiting = self._open(state, config)
        if self._is_lost(state, config):
            return None
        past = yield _past(graph, config)
        undecided = bool(waiting) and not any(item.state in ENDED for _, _, item in waiting)  # as at most calls
        leases = [] if undecided else self._lease(state, waiting, past)
        if not leases:
            if undecided or not waiting:
                self._drop(_ids(past), waiting)
            _refuse_approvals(state, waiting)
            return None
        changed: set[str] = set()
        graph_input: tuple[Any] | None = None  # not started
        token = _changed.set(changed)
        try:
            graph_input = self._input((yield _state(graph, config)), config, leases)
            if graph_input is None:  # another call went on
                self._settle(leases, changed, started=False)
                return None
            invoke = partial(graph.invoke, *graph_input, config, **run_with)
            result = yield Effect(invoke, partial(graph.ainvoke, *graph_input, config, **run_with))
        except Exception:
            # If the run is broken off otherwise (Ctrl-C, a cancelled task, a kill), tools may still be running: the
            # lease runs out.
            self._settle(leases, changed, started=graph_input is not None)
            raise
        finally:
            _changed.reset(token)
        self._settle(leases, changed)
        return cast("dict[str, Any]", result)

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

    def _settle(self, leases: Sequence[WorkLease], changed: Collection[str], started: bool | None = None) -> None:
        """Note what became of items; ``started``: of a run without a result, which can be resumed if it was started."""
        for lease in leases:
            is_changed = content_digest(lease.item.content) in changed
            if is_changed:
                self._not_carried_out(lease.item, CHANGED)
            if started is not None:
                self.store.settle(lease, again=started or lease.item.lease_until is not None)
                continue
            handed = any(event.what == "handed_over" for event in self.store.trail(lease.item.id))
            self.store.settle(lease, what="carried_out" if handed and not is_changed else "lapsed", again=False)

    def _input(self, state: Any, config: Any, leases: Sequence[WorkLease]) -> tuple[Any] | None:
        """Input of the next run: answers, or None to go on from where it stopped. No input if another call went on."""
        ours = {lease.item.id for lease in leases}
        waiting = [interrupt for interrupt in self._open(state, config) if interrupt[2].id in ours]
        answers = {name: self._answer(item, request)[0] for name, request, item in waiting if item.state in ENDED}
        if answers:
            return (Command(resume=answers),)
        left_off = any(lease.item.lease_until is not None for lease in leases)
        return (None,) if left_off and _unfinished(state) else None

    def _drop(self, past: Sequence[str], waiting: Sequence[_Open]) -> None:
        """Settle the items of past interrupts, newest first; several may be of one step."""
        still_open = {name for name, _, _ in waiting}
        for name in past:
            item = None if name in still_open else self.store.find(name)
            if item is None:
                continue
            if item.state in ("pending", "claimed"):
                item = self.store.cancel(item.id, why=LEFT)
            elif item.decision is None or self._has_fate(item):
                continue
            if item.decision is not None:
                self.store.note_event("not_carried_out", {"reason": LEFT}, item=item.id)
            _log.warning("review item %s: %s", item.id, LEFT)

    def _is_lost(self, state: Any, config: Any) -> bool:
        """Whether the checkpointer does not have the thread; its decided items are then logged, once each."""
        if state.created_at is not None:
            return False
        thread = str(config["configurable"]["thread_id"])
        for item in self.store.items(["decided"], limit=NEWEST, newest=True):
            if item.content.metadata.get("thread_id") == thread and not self._has_fate(item):
                self._not_carried_out(item, f"thread {thread!r}: {LOST}")
        return True

    def _has_fate(self, item: Item) -> bool:
        """Whether the trail has the fate of its decision."""
        return any(event.what in ("handed_over", "not_carried_out") for event in self.store.trail(item.id))

    def _open(self, state: Any, config: Any) -> list[_Open]:
        thread = config["configurable"]["thread_id"]
        waiting = []
        for paused in state.interrupts:
            request = paused.value
            if not isinstance(request, dict) or request.get("type") != "guardrail_review":
                continue
            way_out = "resume the graph with the version that paused it"
            check_version(request.get("format"), REQUEST_FORMAT, f"the interrupt {paused.id}", way_out)
            item = self._item(request, paused.id, thread_id=str(thread), interrupt=paused.id)
            waiting.append((paused.id, request, item))
        return waiting


def _refuse_approvals(state: Any, waiting: Sequence[_Open]) -> None:
    """Refuse a thread that waits for LangChain's own approvals: nobody would see them on the page."""
    values = [interrupt.value for interrupt in state.interrupts if isinstance(interrupt.value, dict)]
    if not waiting and any("action_requests" in value or value.get("type") == "tool_approval" for value in values):
        raise UsageError(
            "this thread waits for an answer to LangChain's own HumanInTheLoopMiddleware, which the review page does "
            'not show. Resume it with agent.invoke(Command(resume={"decisions": [...]}), config), or gate the tool '
            "with GuardrailMiddleware, whose held calls go to the page."
        )


def unchanged(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether a node holds the message that its answer is about; if not, the bridge of this run learns it.

    An answer without a digest, such as a program's own, is about the message that waits.
    """
    digest = answer.get("content")
    if digest is None or digest == content_digest(content_of(request)):
        return True
    changed = _changed.get()
    if changed is not None:
        changed.add(str(digest))
    return False


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


def _state(graph: Any, config: Any) -> Effect:
    return Effect(lambda: graph.get_state(config), lambda: graph.aget_state(config))


def _past(graph: Any, config: Any) -> Effect:
    """The newest checkpoints of a thread, newest first."""

    async def apast() -> list[Any]:
        return [snapshot async for snapshot in graph.aget_state_history(config, limit=LOOK_BACK)]

    return Effect(lambda: list(graph.get_state_history(config, limit=LOOK_BACK)), apast)
