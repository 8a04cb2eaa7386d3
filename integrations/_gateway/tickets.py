"""Tickets: what has become of an answer that a person decides about."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .aliases import ALIAS
from .errors import ApiError

if TYPE_CHECKING:  # the gateway serves without the extra of the store
    from guardrail.review.item import Item
    from guardrail.review.store import ReviewStore

PATH = "/guardrail/v1/tickets/"
PRIVATE = {"Cache-Control": "no-store"}
"""No cache may store the reply to a ticket: it changes, and it belongs to one key, which caches do not tell apart."""
LOOKS = 3
"""Tickets looked up at once, fewer than a loop has threads: questions need some for the store, too."""


class Tickets:
    """The tickets of a review store."""

    def __init__(self, store: ReviewStore) -> None:
        self._store = store
        self._looks = asyncio.Semaphore(LOOKS)

    async def find(self, ticket: str) -> Item | None:
        """The item under a ticket that a gateway gave out; None for an unknown ticket.

        Raises:
            StoreUnavailableError: The store cannot be read.
        """
        from guardrail.review.errors import UnknownItemError

        try:
            async with self._looks:
                item = await asyncio.to_thread(self._store.item, ticket)
        except UnknownItemError:
            return None
        return item if isinstance(item.content.metadata.get(ALIAS), str) else None


def unknown_ticket(ticket: str) -> ApiError:
    """The error for a ticket that does not exist, or belongs to a model that the key may not use."""
    return ApiError(404, f"The ticket {ticket[:100]!r} does not exist here.", "ticket_not_found", headers=PRIVATE)


def state_of(item: Item) -> dict[str, Any]:
    """The state of a ticket. It shows only the item's candidate or a person's text, and nobody's name."""
    shown = {
        "ticket": item.id,
        "model": item.content.metadata[ALIAS],
        "state": item.state if item.state in ("decided", "expired") else "open",
        "created": int(item.created),
    }
    decision = item.decision
    if decision is None:
        return {**shown, "outcome": None}
    outcome = decision.outcome(item.content)
    stored = None if outcome is None else outcome.model_dump(mode="json")
    return {**shown, "action": decision.action, "decided": int(decision.at), "outcome": stored}
