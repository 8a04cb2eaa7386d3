"""Audits: people check a known share of the accepted answers, so that the error rate can be monitored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from langchain_core.messages import BaseMessage

from ..errors import UsageError
from ..guard.observers import chosen
from ..verdict import Verdict
from .errors import StoreUnavailableError
from .hooks import content_of
from .limits import LONGEST_KEY, check_text, passes
from .queue.item import Action
from .queue.store import ReviewStore

__all__ = ["AUDIT_RATE", "AuditSample", "audit_sample", "chosen"]

AUDIT_RATE = "audit_rate"
"""Name in an item's metadata: the probability with which it was chosen."""
_ALLOWED: tuple[Action, ...] = (
    "approve",
    "edit",
    "reject",
)  # "respond" would not say whether the accepted answer is right

_log = logging.getLogger("guardrail")
Key = Callable[[Verdict, Sequence[BaseMessage]], str]


def audit_sample(
    store: ReviewStore,
    rate: float,
    *,
    key: Key | None = None,
    metadata: dict[str, Any] | None = None,
    on_watch_failure: Literal["hold", "pass"] = "hold",
) -> AuditSample:
    """An observer that sends accepted answers to the review queue with a known probability.

        Guardrail(..., on_verdict=audit_sample(store, rate=0.1))

    If the artifact gates items, it chooses among all answers of which some item is kept, and a person decides about
    every item of the original answer, also about those that were given out.

    A hash of the key decides whether an answer is chosen, so a key is always chosen or never, and queued once. The
    choice must not depend on what a person will say, so a key names the *request*. A question that is asked twice makes
    two requests: under a single key it would count once among the accepted answers and twice among the held-back
    answers.

    Args:
        store: The queue; items have the kind "audit" and the metadata "audit_rate".
        rate: Probability, in (0, 1].
        key: Names the request. Default: the id of the last message if it has one (LangGraph gives ids), so that a
            graph that runs again makes the same choice; otherwise a new name for every call.
        metadata: Stored with the item, e.g. a tenant, or the "group" (conversation, user) it belongs to.
        on_watch_failure: While the database does not answer, a chosen answer is held back ("hold"), or it passes
            without an audit, is logged and counted in ``unwritten`` ("pass").

    Raises:
        UsageError: A rate outside (0, 1], or an ``on_watch_failure`` other than "hold" and "pass".
    """
    if not 0 < rate <= 1:
        raise UsageError(f"rate must be in (0, 1], got {rate}. Write 0.1 to audit one answer in ten.")
    passes(on_watch_failure)
    return AuditSample(store, float(rate), key, metadata or {}, on_watch_failure)


@dataclass(frozen=True, slots=True)
class AuditSample:
    """See `audit_sample`."""

    store: ReviewStore
    rate: float
    key: Key | None
    metadata: dict[str, Any]
    on_watch_failure: Literal["hold", "pass"] = "hold"
    _unwritten: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def unwritten(self) -> int:
        """Chosen answers that passed without an audit."""
        return len(self._unwritten)

    def __call__(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        """Queue an accepted answer, or one with a kept item, if it is chosen; ignore any other verdict.

        Raises:
            StoreUnavailableError: It could not be queued; not under ``on_watch_failure="pass"``.
        """
        if not verdict.accepted and (verdict.passes or not any(item.kept for item in verdict.items)):
            return
        name = f"audit:{_request(verdict, messages) if self.key is None else self.key(verdict, messages)}"
        check_text("key", name, LONGEST_KEY)
        if chosen(name, self.rate):
            metadata = {**self.metadata, AUDIT_RATE: self.rate}
            content = content_of(verdict, messages, kind="audit", allowed=_ALLOWED, metadata=metadata)
            try:
                self.store.enqueue(content, key=name)
            except StoreUnavailableError as error:
                if self.on_watch_failure == "hold":
                    raise
                self._unwritten.append(name)
                _log.error("guardrail: an answer passes without its audit: %s", error)


def _request(verdict: Verdict, messages: Sequence[BaseMessage]) -> str:
    name = messages[-1].id if messages else None
    return f"{verdict.artifact}:{name}" if name else uuid4().hex
