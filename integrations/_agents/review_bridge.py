"""From a paused graph to the review queue and back: the queue is where the person answers.

Nothing happens inside a node: the graph pauses; the program that runs it calls `enqueue`, and `resume` after the
decision.
Both may be called again at any time, also by another process, at once or after a crash: an item's key is its
interrupt's id, and an item is carried out by one call of `resume` at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from guardrail.files import check_version
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.verdict import Verdict

from .calls import call_digest
from .decisions import REQUEST_FORMAT, checked, tools_of

__all__ = [
    "CHANGED",
    "TOO_LATE",
    "ReviewBridge",
    "content_of",
    "lapsed",
    "refusal_of",
    "response_of",
    "tools_of",
    "unchanged",
]

if TYPE_CHECKING:
    from guardrail.review import CandidateRule, Content, Decision, Item, ReviewStore, WorkLease


TOO_LATE = "Nobody decided in time."
"""Message returned for an expired item."""
LEFT = "The interrupt is not open any more: a new message came in its conversation, or it was answered elsewhere."
"""Why an item is closed without a decision, or its decision is not carried out."""
CHANGED = "What waits is not what was decided about: it was changed after the reviewer saw it."
"""Why a decision is not carried out although its interrupt is open."""
LOOK_BACK = 50
"""Checkpoints of a thread that are searched for interrupts that were left behind."""

ENDED = ("decided", "expired")
"""States of an item about which nothing is left to decide."""

_Open: TypeAlias = "tuple[str, dict[str, Any], Item]"
"""An open interrupt: its id, its value, its item."""
_changed: ContextVar[set[str] | None] = ContextVar("guardrail_changed", default=None)
"""Digests of what was approved and is not what a node of this run holds."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """How far one run of a graph came: whether it was started and returned, and what its nodes found changed."""

    started: bool = False
    done: bool = False
    changed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a graph is run with: a command with answers, or None to go on from where it stopped."""

    input: Any


@dataclass(frozen=True, slots=True)
class ReviewBridge:
    """Puts a graph's guardrail interrupts into a review store, and takes the decisions back.

    An interrupt about several calls is one item: approve, reject and respond are about all of them, and an edit gives
    all of them, in order, with the text beside them. An edit that the graph could not carry out (another tool, a call
    more or less, a change to a call that passes without a gate, a tool call in place of an answer) is refused when the
    reviewer makes it; one that a store holds nevertheless lapses: nothing runs, and the model reads why. So does an
    approval or edit of something else than what waits in the checkpoint (its text, calls, or which are decided about).

    A new message in the thread leaves an interrupt behind. Its item is then closed ("cancelled" in the trail), or, if a
    decision came first, the trail says that it was not carried out; see `drop_stale`.

    Example:
        >>> bridge = ReviewBridge(ReviewStore("reviews.db"))        # doctest: +SKIP
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

    store: ReviewStore
    expires_in: float | None = None
    callback: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    candidates: CandidateRule | Sequence[CandidateRule] | None = None
    on_stale: Callable[[Item], object] | None = None
    lease: float = 600.0

    def enqueue(self, graph: Any, config: Any) -> list[Item]:
        """The items of the thread's open guardrail interrupts; those that are new are added, stale ones are closed."""
        found = self._open(graph.get_state(config), config)
        self._drop(_ids(graph.get_state_history(config, limit=LOOK_BACK)), found)
        return [item for _, _, item in found]

    async def aenqueue(self, graph: Any, config: Any) -> list[Item]:
        """`enqueue` for async checkpointers."""
        found = self._open(await graph.aget_state(config), config)
        self._drop(_ids([one async for one in graph.aget_state_history(config, limit=LOOK_BACK)]), found)
        return [item for _, _, item in found]

    def resume(self, graph: Any, config: Any, **run: Any) -> dict[str, Any] | None:
        """Go on with what is decided. The graph's result may hold the next interrupt.

        Where a run that was given a decision ended early (its process died, or a tool or a model failed), the graph
        goes on from where it stopped. One call at a time does so in a thread, for ``lease`` seconds.

        Args:
            graph: The graph.
            config: Its configuration, with the thread's id.
            **run: Further arguments of the graph's ``invoke``, e.g. ``context=``.

        Returns:
            The graph's result. None while nothing is decided or another call is at it, and also if nothing waits in the
            thread any more: the items of interrupts that were left behind are then closed, logged, and given to
            ``on_stale``.
        """
        state = graph.get_state(config)
        found = self._open(state, config)
        if _undecided(found):
            return None
        past = list(graph.get_state_history(config, limit=LOOK_BACK))
        work_leases = self._taken(state, found, past)
        if work_leases:
            with self._work(work_leases) as work:
                given = self._given(graph.get_state(config), config, work_leases)
                if given is not None:
                    work.started = True
                    result: dict[str, Any] = graph.invoke(given.input, config, **run)
                    work.done = True
                    return result
        elif not found:
            self._drop(_ids(past), found)
        return None

    async def aresume(self, graph: Any, config: Any, **run: Any) -> dict[str, Any] | None:
        """`resume` for async checkpointers."""
        state = await graph.aget_state(config)
        found = self._open(state, config)
        if _undecided(found):
            return None
        past = [one async for one in graph.aget_state_history(config, limit=LOOK_BACK)]
        work_leases = self._taken(state, found, past)
        if work_leases:
            with self._work(work_leases) as work:
                given = self._given(await graph.aget_state(config), config, work_leases)
                if given is not None:
                    work.started = True
                    result: dict[str, Any] = await graph.ainvoke(given.input, config, **run)
                    work.done = True
                    return result
        elif not found:
            self._drop(_ids(past), found)
        return None

    def drop_stale(self, graph: Any, config: Any) -> list[Item]:
        """Close the items of the thread's interrupts that were left behind. `enqueue` and `resume` do so, too.

        Searches the last 50 checkpoints.

        Returns:
            What was found now: items that are closed undecided, and decided ones whose decision comes to nothing.
        """
        found = self._open(graph.get_state(config), config)
        return self._drop(_ids(graph.get_state_history(config, limit=LOOK_BACK)), found)

    async def adrop_stale(self, graph: Any, config: Any) -> list[Item]:
        """`drop_stale` for async checkpointers."""
        found = self._open(await graph.aget_state(config), config)
        return self._drop(_ids([one async for one in graph.aget_state_history(config, limit=LOOK_BACK)]), found)

    def _taken(self, state: Any, found: Sequence[_Open], past: Sequence[Any]) -> list[WorkLease]:
        """The right to go on in this thread; empty where there is nothing to go on with, or another call has it.

        It is the right to all decided items of the step that waits, or that was not finished, so that no two calls run
        one thread at once.
        """
        if not found and not _unfinished(state):
            return []
        names = dict.fromkeys([*(name for name, _, _ in found), *_newest_step(past)])
        there = [item for name in names if (item := self.store.find(name)) is not None]
        ended = [item for item in there if item.state in ENDED]
        if not found and all(item.lease_until is None for item in ended):
            return []
        return self.store.lease([item.id for item in ended], seconds=self.lease)

    @contextmanager
    def _work(self, work_leases: Sequence[WorkLease]) -> Iterator[_Work]:
        """One run of the graph: when it returns its items are settled; after an error they can be taken up again.

        Where the run is broken off (Ctrl-C, a cancelled task, a kill) tools may still be running: the lease runs out.
        """
        work = _Work()
        token = _changed.set(work.changed)
        try:
            yield work
        except Exception:
            self._put_down(work_leases, work)
            raise
        finally:
            _changed.reset(token)
        self._put_down(work_leases, work)

    def _put_down(self, work_leases: Sequence[WorkLease], work: _Work) -> None:
        for work_lease in work_leases:
            changed = content_digest(work_lease.item.content) in work.changed
            if changed:
                self._not_carried_out(work_lease.item, CHANGED)
            if work.done:
                self.store.settle(work_lease, what="lapsed" if changed else self._outcome(work_lease.item), again=False)
            else:
                self.store.settle(work_lease, again=work.started or work_lease.item.lease_until is not None)

    def _outcome(self, item: Item) -> str:
        handed = any(event.what == "handed_over" for event in self.store.trail(item.id))
        return "carried_out" if handed else "lapsed"

    def _given(self, state: Any, config: Any, work_leases: Sequence[WorkLease]) -> _Given | None:
        """What the graph is to go on with now that no other call is at it; None if another call did it meanwhile."""
        ours = {work_lease.item.id for work_lease in work_leases}
        answers = self._answers([one for one in self._open(state, config) if one[2].id in ours])
        if answers:
            return _Given(_command(answers))
        left_off = any(work_lease.item.lease_until is not None for work_lease in work_leases)
        return _Given(None) if left_off and _unfinished(state) else None

    def _answers(self, found: Sequence[_Open]) -> dict[str, Any]:
        """What the graph is resumed with, by interrupt; only what it will take, so that no decision stops it."""
        answers = {}
        for name, value, item in found:
            if item.decision is not None:
                answers[name] = self._answer(item, value)
            elif item.state == "expired":
                answers[name] = lapsed(value, TOO_LATE)
        return answers

    def _answer(self, item: Item, value: dict[str, Any]) -> dict[str, Any]:
        assert item.decision is not None, "only decided items are answers"
        why = refusal_of(item, value)
        answer: dict[str, Any] = {}
        if why is None:
            answer = {"decisions": response_of(item.decision, value)}
            if item.decision.action in ("approve", "edit"):  # the node compares it with what it holds, see `unchanged`
                answer["content"] = content_digest(item.content)
            try:
                checked(answer, value["review_configs"][0]["allowed_decisions"], tools_of(value))
            except ValidationError as error:
                why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        if why is None:
            self.store.note_event("handed_over", {}, item=item.id)
            return answer
        self._not_carried_out(item, why)
        return lapsed(value, f"The reviewer's {item.decision.action} could not be carried out: {why}")

    def _not_carried_out(self, item: Item, why: str) -> None:
        self.store.note_event("not_carried_out", {"reason": why}, item=item.id)
        _log.warning("the decision about review item %s cannot be carried out, so nothing runs: %s", item.id, why)

    def _drop(self, past: Sequence[str], found: Sequence[_Open]) -> list[Item]:
        """Settle the items of past interrupts, newest first; several may be of one step."""
        still_open = {name for name, _, _ in found}
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

    def _noted(self, item: Item) -> bool:
        """Whether the trail says what became of its decision; items of versions that wrote no such line count, too."""
        known = {"handed_over", "not_carried_out"}
        return item.content.edits == "any" or any(event.what in known for event in self.store.trail(item.id))

    def _open(self, state: Any, config: Any) -> list[_Open]:
        thread = config["configurable"]["thread_id"]
        found = []
        for one in state.interrupts:
            value = one.value
            if not isinstance(value, dict) or value.get("type") != "guardrail_review":
                continue
            way_out = "resume the graph with the version that paused it"
            check_version(value.get("format"), REQUEST_FORMAT, f"the interrupt {one.id}", way_out)
            content = content_of(value).model_copy(
                update={
                    "metadata": {**self.metadata, "thread_id": str(thread), "interrupt": one.id},
                    "candidate_set": self._candidate_set(value),
                }
            )
            item = self.store.enqueue(content, key=one.id, expires_in=self.expires_in, callback=self.callback)
            found.append((one.id, value, item))
        return found

    def _candidate_set(self, value: Mapping[str, Any]) -> Any:
        if self.candidates is None or "meanings" not in value:  # without them the list would be another one
            return None
        given = self.candidates if isinstance(self.candidates, Sequence) else [self.candidates]
        verdict = Verdict.from_stored(_verdict(value))
        return next((found for rule in given if (found := rule.select(verdict)) is not None), None)


def response_of(decision: Decision, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A reviewer's decision as the decisions of an interrupt, one for each action."""
    n = len(value["action_requests"])
    if decision.action == "respond":
        return [{"type": "respond", "message": decision.text}] * n
    if decision.action == "reject":
        said = {"message": decision.note} if decision.note else {}
        return [{"type": "reject", **said}] * n
    if decision.action == "approve" or decision.candidate is None:
        return [{"type": "approve"}] * n
    edited = decision.candidate
    if value["kind"] == "answer":
        return [{"type": "edit", "edited_action": {"name": "answer", "args": {"text": edited.text}}}]
    # The candidate shows all calls of the message; those that pass without a gate are not decided about.
    fixed = _fixed(value)
    gated = [call for place, call in enumerate(edited.tool_calls) if place not in fixed]
    said = {"text": edited.text} if edited.text != value["candidate"]["text"] else {}
    return [{"type": "edit", "edited_action": {"name": c.name, "args": dict(c.arguments)}, **said} for c in gated]


def content_of(value: Mapping[str, Any]) -> Content:
    """What an interrupt asks, as the content of an item."""
    from guardrail.review import Candidate, Content

    shown, kind = value["candidate"], value["kind"]
    calls = [{"name": call["name"], "arguments": call["args"]} for call in shown["tool_calls"]]
    there = bool(shown["text"] or calls)
    allowed = tuple(value["review_configs"][0]["allowed_decisions"])
    if kind == "answer" and calls:  # a plain graph releases such a message as a whole, or not
        allowed = tuple(one for one in allowed if one != "edit") or ("reject",)
    return Content(
        question=value["question"],
        kind=kind,
        candidate=Candidate.from_stored({"text": shown["text"], "tool_calls": calls}) if there else None,
        verdict=_verdict(value),
        alternatives=tuple((one["text"], one["share"]) for one in value["alternatives"]),
        allowed=allowed,
        edits="text" if kind == "answer" else "arguments",
        fixed=_fixed(value),
    )


def _verdict(value: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with what the interrupt shows beside it."""
    shown = value["candidate"]
    calls = [{"name": call["name"], "arguments": call["args"]} for call in shown["tool_calls"]]
    return {
        **value["verdict"],
        "candidate": {"text": shown["text"], "tool_calls": calls} if shown["text"] or calls else None,
        "alternatives": [[one["text"], one["share"]] for one in value["alternatives"]],
        "meanings": list(value.get("meanings", ())),
    }


def refusal_of(item: Item, value: Mapping[str, Any]) -> str | None:
    """Why the decision about an item cannot be carried out: what waits is not what was decided about, or a bad edit."""
    assert item.decision is not None, "only decided items are carried out"
    if item.decision.action in ("approve", "edit") and content_digest(item.content) != request_digest(value):
        return CHANGED
    return None if item.decision.candidate is None else content_of(value).why_not(item.decision.candidate)


def content_digest(content: Content) -> str:
    """Digest of what an approval of this item gives out or runs: text, calls, and which of them are decided about."""
    shown = content.candidate
    calls = [] if shown is None else [{"name": call.name, "args": call.arguments} for call in shown.tool_calls]
    return _digest(content.kind, "" if shown is None else shown.text, calls, content.fixed)


def request_digest(value: Mapping[str, Any]) -> str:
    """The same of what an interrupt asks, so that both can be compared."""
    shown = value["candidate"]
    return _digest(value["kind"], shown["text"], shown["tool_calls"], _fixed(value))


def _digest(kind: str, text: str, calls: Sequence[Mapping[str, Any]], fixed: Sequence[int]) -> str:
    return sha256_hex(canonical_json([kind, text, [call_digest(call) for call in calls], list(fixed)]))


def unchanged(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether a node holds what its answer is about; otherwise `ReviewBridge` in this process learns that it does not.

    An answer that does not say what it is about, as a program's own, is about what waits.
    """
    given = answer.get("content")
    if given in (None, request_digest(request)):
        return True
    seen = _changed.get()
    if seen is not None:
        seen.add(str(given))
    return False


def _fixed(value: Mapping[str, Any]) -> tuple[int, ...]:
    """Places of the candidate's calls that are not decided about."""
    if value["kind"] == "answer":
        return ()
    gated = {action["name"] for action in value["action_requests"]}
    return tuple(place for place, call in enumerate(value["candidate"]["tool_calls"]) if call["name"] not in gated)


def lapsed(value: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The answer to an interrupt about which nobody decided, or whose decision cannot be carried out."""
    return {"decisions": [{"type": "lapse", "message": why}] * len(value["action_requests"])}


def _undecided(found: Sequence[_Open]) -> bool:
    """Whether interrupts are open and none is decided: what `resume` finds most of the time."""
    return bool(found) and not any(item.state in ENDED for _, _, item in found)


def _unfinished(state: Any) -> bool:
    """Whether a run ended early: its step has tasks (that may be done, but are not applied), and none asks anybody."""
    return bool(state.tasks) and not state.interrupts


def _newest_step(past: Iterable[Any]) -> list[str]:
    """Ids of the interrupts of the newest step that had some; none if a new message, or an update, came after it."""
    for snapshot in past:
        if snapshot.interrupts:
            return _ids([snapshot])
        if (snapshot.metadata or {}).get("source") != "loop":
            break
    return []


def _ids(history: Iterable[Any]) -> list[str]:
    """Ids of the interrupts of some snapshots, newest first, each once."""
    return list(dict.fromkeys(one.id for snapshot in history for one in snapshot.interrupts))


def _command(answers: dict[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=answers)
