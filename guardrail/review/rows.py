"""The steps of a transaction on an item of the queue. No step commits: the caller does."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy import Row, or_, select, update
from sqlalchemy.sql import ColumnElement

from ..files import problem_of
from .database import SYSTEM, Transaction
from .errors import UnknownItemError
from .item import Content, Decision, Item, Kind
from .limits import storable
from .tables import events, items, outbox

__all__ = ["as_item", "body_of", "change", "check_id", "close", "extend_or_reopen", "fetch", "in_time", "is_held"]
__all__ += ["left_undone", "post", "send", "unheld"]


def check_id(item: str) -> None:
    """Refuse an id that a database cannot hold, before it is sent there.

    Raises:
        UnknownItemError: It holds a NUL or half of a surrogate pair.
    """
    if not storable(item):
        raise UnknownItemError(f"no item {item!r} in the review store.")


def fetch(transaction: Transaction, item: str, *, lock: bool = False) -> Row[Any]:
    """The row of an item; with ``lock`` nobody else can write it before the transaction ends.

    Raises:
        UnknownItemError: No item has this id.
    """
    check_id(item)
    query = select(items).where(items.c.id == item)
    row = transaction.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownItemError(f"no item {item!r} in the review store.")
    return row


def change(
    transaction: Transaction, row: Row[Any], who: str, what: str, detail: dict[str, Any], **columns: Any
) -> Row[Any]:
    """Change columns of an item, with a line of the audit trail. Returns the row after it."""
    changed = update(items).where(items.c.number == row.number).values(**columns).returning(items)
    after = transaction.execute(changed).one()
    transaction.log(who, what, detail, row.id)
    return after


def in_time(now: float) -> ColumnElement[bool]:
    """Whether there is still time to decide an item."""
    return or_(items.c.deadline.is_(None), items.c.deadline > now)


def unheld(now: float) -> ColumnElement[bool]:
    """Whether nobody holds an item now: to decide it, or, once it is closed, to carry its decision out."""
    return or_(items.c.lease_until.is_(None), items.c.lease_until <= now)


def is_held(row: Row[Any], now: float) -> bool:
    """The opposite of `unheld`, of a row."""
    return row.lease_until is not None and row.lease_until > now


def as_item(row: Row[Any], now: float) -> Item:
    """The item in a row of the table. A pending item that somebody holds now is claimed.

    An item whose content or decision cannot be read says so in place of its content. It can only be rejected, and
    counts as not decided, so that nothing of it goes out. An error would hide all other items of a list, and an item
    that can never be closed would stop the queue.
    """
    try:
        content = Content.from_stored(row.content)
        decision = None if row.decision is None else Decision.from_stored(row.decision)
    except ValidationError as error:
        kind = row.kind if row.kind in get_args(Kind) else "answer"
        explanation = (
            f"Review item {row.id} cannot be read ({problem_of(error)}). Upgrade acrc-guardrail to the version that "
            "stored it, or reject the item."
        )
        content, decision = Content(question=explanation, kind=kind, allowed=("reject",)), None
    state = "claimed" if row.state == "pending" and is_held(row, now) else row.state
    return Item(
        id=row.id,
        number=row.number,
        key=row.key,
        content=content,
        state=state,
        created=row.created,
        deadline=row.deadline,
        holder=None if state == "pending" else row.holder,  # the holder of an ended lease can still decide
        lease_until=row.lease_until,
        callback=row.callback,
        decision=decision,
    )


def close(transaction: Transaction, row: Row[Any]) -> Row[Any]:
    """Close an item, so that it can no longer be decided, and queue the callback that says so."""
    detail = {"holder": row.holder if is_held(row, transaction.now) else None}
    closed = change(transaction, row, SYSTEM, "expired", detail, state="expired", lease=None, lease_until=None)
    post(transaction, as_item(closed, transaction.now))
    return closed


def extend_or_reopen(transaction: Transaction, row: Row[Any], until: float | None) -> Row[Any]:
    """Another call asks for an undecided item: extend its deadline to ``until``, or open it again if it was closed.

    A reviewer who holds it keeps it, unless it was closed in between.
    """
    late = row.state == "expired" or (row.deadline is not None and row.deadline <= transaction.now)
    # A deadline that has not passed is never shortened: an earlier caller may wait until then.
    latest = until if late else None if until is None or row.deadline is None else max(until, row.deadline)
    if row.state == "decided" or (not late and latest == row.deadline):
        return row
    opened = {"state": "pending", "holder": None, "lease_until": None} if row.state == "expired" else {}
    what = "reopened" if late else "extended"
    return change(transaction, row, SYSTEM, what, {"until": latest}, deadline=latest, **opened)


def left_undone(transaction: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """Why decisions were not carried out, and why items were closed before their deadline, by the item's id."""
    ends = events.c.what.in_(("not_carried_out", "cancelled", "reopened"))
    query = select(events).where(events.c.item.in_(ids), ends).order_by(events.c.number)
    last = {line.item: json.loads(line.detail) for line in transaction.execute(query)}
    return {item: str(detail["reason"]) for item, detail in last.items() if detail.get("reason")}


def post(transaction: Transaction, item: Item) -> None:
    """Put the item's callback, if it has one, in the outbox, in the transaction that decides or closes it."""
    if item.callback is None:
        return
    if item.decision is not None:  # the item was decided after all, so a waiting "expired" must not arrive later
        late = update(outbox).where(outbox.c.item == item.id, outbox.c.state == "waiting")
        transaction.execute(late.values(state="dropped"))
    identity, parts = secrets.token_hex(16), urlsplit(item.callback)
    body = body_of(item, identity, transaction.now)
    send(transaction, identity, item.callback, f"{parts.scheme}://{parts.netloc}", body, item=item.id)


def send(
    transaction: Transaction, identity: str, url: str, receiver: str, body: dict[str, Any], *, item: str = ""
) -> None:
    """Put a message into the outbox.

    Args:
        transaction: The transaction.
        identity: Id of the message.
        url: Where it goes; a destination's name in place of its URL.
        receiver: Scheme, host and port; or the destination's name.
        body: The message.
        item: Id of the item whose callback it is; empty for a destination's message.
    """
    state = {"state": "waiting", "attempts": 0, "next_at": transaction.now, "created": transaction.now, "problem": ""}
    text = json.dumps(body, ensure_ascii=False)
    line = {"id": identity, "item": item, "url": url, "receiver": receiver, "body": text, **state}
    transaction.execute(outbox.insert(), line)


def body_of(item: Item, identity: str, at: float) -> dict[str, Any]:
    """Body of the callback about a decided or expired item: the event with this id at this time, without the note."""
    decision = item.decision
    outcome = None if decision is None else decision.outcome(item.content)
    return {
        "id": identity,
        "type": "review.expired" if decision is None else "review.decided",
        "at": at,
        "ticket": item.id,
        "key": item.key,
        "kind": item.content.kind,
        "decision": None if decision is None else decision.model_dump(mode="json", exclude={"note"}),
        "outcome": None if outcome is None else outcome.model_dump(mode="json"),
        "metadata": item.content.metadata,
    }
