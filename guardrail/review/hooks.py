"""Hooks of a guard that ask people: ``on_abstain`` waits or replies with a ticket, ``on_verdict`` audits."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage

from ..bindings import schemas_of
from ..errors import UsageError
from ..guard.abstention import Abstention
from ..guard.messages import tool_calls_of
from ..guard.observers import chosen
from ..prompting import copies_of, plain_turns, question_text
from ..sampling.effects import Steps, computation
from ..verdict import AbstainedError, Verdict
from .candidates import CandidateRule
from .errors import StoreUnavailableError, UnstorableError
from .item import ACTIONS, Action, Candidate, Content, Decision, Item, Kind
from .limits import LONGEST_KEY, check_seconds, check_text
from .store import ReviewStore

__all__ = [
    "AUDIT_RATE",
    "TICKET",
    "AskReviewer",
    "AuditSample",
    "Ticket",
    "ask_reviewer",
    "audit_sample",
    "chosen",
    "content_of",
    "ticket",
]

TICKET = "I am not sure enough to answer this. A person will look at it; your ticket is {ticket}."
"""Default reply of `ticket`."""
Key = Callable[[Verdict, Sequence[BaseMessage]], str | None]
AuditKey = Callable[[Verdict, Sequence[BaseMessage]], str]
_GRACE = 1.0
"""Seconds that a call which no longer waits spends on closing its item: a database that hangs must not keep it."""
Metadata = dict[str, Any] | Callable[[Verdict, Sequence[BaseMessage]], dict[str, Any] | None]
_log = logging.getLogger(__name__)


def content_of(
    verdict: Verdict,
    messages: Sequence[BaseMessage],
    *,
    kind: Kind | None = None,
    allowed: Sequence[Action] = ACTIONS,
    candidates: CandidateRule | None = None,
    metadata: dict[str, Any] | None = None,
    schemas: Mapping[str, dict[str, Any]] | None = None,
) -> Content:
    """The content that a reviewer sees of a verdict. Nothing is sampled again: the content is what was judged.

    Args:
        verdict: The verdict, with its candidate.
        messages: The messages that the guard received.
        kind: Default: "tool_call" if the candidate calls tools, else "answer".
        allowed: Decisions to offer; without a candidate, approve and edit are left out.
        candidates: Calibrated list of candidates to show.
        metadata: Stored with the item.
        schemas: JSON schema of the arguments of each tool, by its name; see `Content.schemas`.
    """
    answer = verdict.candidate
    judged = None if answer is None else Candidate.of(answer)
    if judged is None:
        allowed = [action for action in allowed if action in ("reject", "respond")]
    called = () if judged is None else judged.tool_calls
    items = verdict.items if verdict.by_items else ()
    by_item = judged is not None and verdict.held_back and {"approve", "edit", "reject"} <= set(allowed)
    return Content(
        question=question_text(messages) if messages else "",
        messages=tuple(plain_turns(messages)),
        kind=kind or ("tool_call" if called else "answer"),
        candidate=judged,
        verdict=verdict,
        alternatives=verdict.alternatives,
        candidate_set=None if candidates is None else candidates.select(verdict),
        allowed=tuple(allowed),
        schemas={call.name: schemas[call.name] for call in called if schemas and call.name in schemas},
        metadata=metadata or {},
        # An audit labels: every item is decided, also those that were given out.
        items=tuple(item.held() for item in items) if kind == "audit" else items if by_item else (),
    )


@dataclass(frozen=True, kw_only=True)
class _Hook:
    """An ``on_abstain`` handler that queues what is held back.

    Attributes:
        store: The queue.
        candidates: Calibrated list of candidates to show; see `CandidateRule`.
        metadata: Stored with the item and sent with a callback, e.g. a tenant, or whom to notify. Plain JSON, or a
            function of the verdict and the messages that returns it.
        key: Names the item in at most 512 characters, so that a retry of the same call finds the same item, extends its
            deadline, and opens it again if it expired. By default, and if it returns None, every call makes a new item.

    Raises:
        UsageError: The metadata is not JSON. What a function returns is checked when a call abstains.
    """

    store: ReviewStore = field(kw_only=False)
    candidates: CandidateRule | None = None
    metadata: Metadata | None = None
    key: Key | None = None

    def __post_init__(self) -> None:
        if not callable(self.metadata):
            _json(self.metadata)

    def _queued(self, abstention: Abstention, *, allowed: Sequence[Action] = ACTIONS, **settings: Any) -> Item | None:
        """The item; None if it cannot be stored, or not at the moment. The call is then an ordinary abstention."""

        def result_of(given: Any) -> Any:
            if not callable(given):
                return given
            copied = abstention.copied  # the reviewer decides about what was judged, and that is given out
            return given(copied.verdict, copied.messages)

        key = result_of(self.key)
        try:
            content = content_of(
                abstention.verdict,
                abstention.messages,
                allowed=allowed,
                candidates=self.candidates,
                metadata=_json(result_of(self.metadata)),
                schemas=schemas_of(abstention.bound),
            )
            return self.store.enqueue(content, key=key, reopen=key is not None, **settings)
        except UnstorableError as error:
            _log.warning("A held-back answer could not be added to the review queue: %s", error)
            with suppress(StoreUnavailableError):
                self.store.note_event("not_queued", {"reason": str(error)})
        except StoreUnavailableError as error:
            _log.error("A held-back answer could not be added to the review queue: %s", error)
        return None


@dataclass(frozen=True, kw_only=True)
class AskReviewer(_Hook):
    """An ``on_abstain`` handler that blocks until a person decides.

    "approve" returns exactly the judged candidate, "edit" the edited candidate, "respond" the answer that the reviewer
    wrote. After "reject", or without a decision in time, the abstention message is returned. The reply's
    ``response_metadata["review"]`` names ticket and action.

    Without a key nobody else can wait for an item, so it is closed when its call ends. With a key it stays open until
    its deadline, ``wait`` seconds after the last call that asked for it, even if callers are cancelled or give up
    earlier; so does an item whose call is cancelled while it is being added. A call after the decision gets the
    decision.

    Attributes:
        wait: Seconds to wait, at most ten years. After that the item is closed, because nobody waits for a decision.
    """

    wait: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seconds("wait", self.wait, "Use `ticket` to reply immediately.")

    def steps(self, abstention: Abstention, kept: AIMessage | None = None) -> Steps[AIMessage | None]:
        """Queue, and wait; the decided answer, or None after "reject", without a decision in time or without an item.

        Args:
            abstention: The abstention.
            kept: The message with the items of the answer that are kept; the decided answer has them, too.
        """
        until = time.monotonic() + self.wait
        item: Item | None = yield computation(partial(self._enqueue, abstention), slow=True)
        if item is None:
            return None
        close = partial(self._stop_waiting, item)
        try:
            decision = yield from self.store.waiting(item.id, until - time.monotonic())
        except GeneratorExit:  # interrupted between two effects
            close()
            raise
        except BaseException:  # cancelled
            yield computation(close, slow=True)
            raise
        return _reply(item, decision or (yield computation(close, slow=True)))

    def _enqueue(self, abstention: Abstention) -> Item | None:
        allowed: tuple[Action, ...] = ("approve", "edit", "reject") if abstention.form == "calls" else ACTIONS
        return self._queued(abstention, allowed=allowed, expires_in=self.wait, within=self.wait)

    def _stop_waiting(self, item: Item) -> Decision | None:
        """This call stops waiting. An item with a key stays open until its deadline: other calls may wait for it."""
        try:
            return self.store.cancel(item.id, only_if_late=item.key != item.id, within=_GRACE).decision
        except StoreUnavailableError as error:  # the item has a deadline in the database, too
            _log.warning("Nobody waits for item %s any more, but it could not be closed: %s", item.id, error)
            return None


@dataclass(frozen=True, kw_only=True)
class Ticket(_Hook):
    """An ``on_abstain`` handler that queues the item and immediately replies with the ticket.

    If the caller cannot use a text (it expects a tool call, or parses a format), the item is queued and
    `AbstainedError` is raised, with the ticket and the reply.

    Attributes:
        reply: Reply to the user; "{ticket}" is replaced.
        callback: URL that receives the decision, or the news that nobody decided in time; see `Deliverer`.
        expires_in: Seconds until the deadline of the decision, at most ten years; None for no deadline.
    """

    reply: str = TICKET
    callback: str | None = None
    expires_in: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expires_in is not None:
            check_seconds("expires_in", self.expires_in, "Use None for no limit.")

    def steps(self, abstention: Abstention, kept: AIMessage | None = None) -> Steps[AIMessage | None]:
        """Queue; the reply with the ticket.

        Args:
            abstention: The abstention.
            kept: The message with the items of the answer that are kept; it then takes the place of the reply.
        """
        queue = partial(self._queued, abstention, expires_in=self.expires_in, callback=self.callback)
        item: Item | None = yield computation(queue, slow=True)
        if item is None:
            return None
        review = {"review": {"ticket": item.id}}
        if kept is not None:
            return kept.model_copy(update={"response_metadata": {**kept.response_metadata, **review}})
        text = self.reply.replace("{ticket}", item.id)
        if abstention.form != "text":
            raise AbstainedError.of(abstention.verdict, text, item.id)
        return AIMessage(content=text, response_metadata=review)


def _reply(item: Item, decision: Decision | None) -> AIMessage | None:
    outcome = None if decision is None else decision.outcome(item.content)
    if outcome is None or decision is None:
        return None
    review: dict[str, Any] = {"ticket": item.id, "action": decision.action}
    if decision.items:
        named = {each.path: each.shown_path for each in item.content.items}
        review["held_back"] = [named[item.path] for item in decision.items if item.action == "reject"]
    return AIMessage(
        content=outcome.text, tool_calls=tool_calls_of(outcome.tool_calls), response_metadata={"review": review}
    )


def _json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    try:
        json.dumps(metadata, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata must be plain JSON, so that it can be stored: {error}.") from error
    return metadata or {}


# -- audits: people check a known share of the accepted answers, so that the error rate can be monitored ---------------

AUDIT_RATE = "audit_rate"
"""Name in an item's metadata: the probability with which it was chosen."""


@dataclass(frozen=True)
class AuditSample:
    """An observer that sends accepted answers to the review queue with a known probability.

        Guardrail(..., on_verdict=audit_sample(store, rate=0.1))

    If the artifact gates items, it chooses among all answers of which some item is kept, and a person decides about
    every item of the original answer, also about those that were given out.

    A hash of the key decides whether an answer is chosen, so a key is always chosen or never, and queued once. The
    choice must not depend on what a person will say, so a key names the *request*. A question that is asked twice makes
    two requests: under a single key it would count once among the accepted answers and twice among the held-back
    answers.

    Attributes:
        store: The queue; items have the kind "audit" and the metadata "audit_rate".
        rate: Probability, in (0, 1].
        key: Names the request. Default: the id of the last message if it has one (LangGraph gives ids), so that a
            graph that runs again makes the same choice; otherwise a new name for every call.
        metadata: Stored with the item, e.g. a tenant, or the "group" (conversation, user) it belongs to.

    Raises:
        UsageError: A rate outside (0, 1].
    """

    store: ReviewStore
    rate: float
    key: AuditKey | None = field(default=None, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UsageError(f"rate must be in (0, 1], got {self.rate}. Write 0.1 to audit one answer in ten.")

    def __call__(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        """Queue an accepted answer, or one with a kept item, if it is chosen; ignore any other verdict.

        Raises:
            StoreUnavailableError: It could not be queued, so that a guard holds the answer back.
        """
        if not verdict.accepted and (verdict.passes or not any(item.kept for item in verdict.items)):
            return
        if self.key is not None:  # copies: the auditor decides about what was given out
            request = self.key(verdict.model_copy(deep=True), copies_of(messages))
        else:
            last = messages[-1].id if messages else None
            request = f"{verdict.artifact}:{last}" if last else uuid4().hex
        name = f"audit:{request}"
        check_text("key", name, LONGEST_KEY)
        if chosen(name, self.rate):
            metadata = {**self.metadata, AUDIT_RATE: float(self.rate)}
            allowed: tuple[Action, ...] = ("approve", "edit", "reject")  # "respond" would not say whether it is right
            content = content_of(verdict, messages, kind="audit", allowed=allowed, metadata=metadata)
            self.store.enqueue(content, key=name)


ask_reviewer, ticket, audit_sample = AskReviewer, Ticket, AuditSample
"""The hooks, as a guard names them: ``Guardrail(on_abstain=ticket(store), on_verdict=audit_sample(store, 0.1))``."""
