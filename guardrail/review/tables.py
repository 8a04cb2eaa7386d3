"""Tables of the queue and of the shared monitors, and the steps of a transaction on their rows.

Times are seconds since 1970 UTC; contents are JSON texts. No step commits: the caller does, together with the line of
the audit trail.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from ..files import problem_of
from .errors import UnknownItemError
from .item import Content, Decision, Event, Item, Kind
from .limits import LONGEST_KEY, storable, without_surrogates

__all__ = [
    "LAYOUT",
    "LONGEST_MONITOR",
    "SYSTEM",
    "as_event",
    "as_item",
    "before_deadline",
    "body_of",
    "check_id",
    "claimable",
    "close",
    "ended",
    "events",
    "extend_or_reopen",
    "fetch",
    "finished",
    "insert_into",
    "items",
    "left_undone",
    "log",
    "make_tables",
    "marks",
    "meta",
    "metadata",
    "monitors",
    "outbox",
    "post",
    "put_back",
    "put_back_ended",
    "released_before",
    "steps",
]

SYSTEM = "system"
"""Name in the audit trail for actions that no person took."""
LAYOUT = "1"
"""Version of the tables, stored in `meta`."""
LONGEST_MONITOR = 128
"""Characters of a monitor's name."""
metadata = MetaData()

meta = Table("review_meta", metadata, Column("name", String(64), primary_key=True), Column("value", Text))

items = Table(
    "review_items",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("key", String(512), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("content", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("deadline", Float(53)),
    Column("holder", String(256)),
    Column("lease", String(64)),
    Column("lease_until", Float(53)),
    Column("callback", Text),
    Column("action", String(16)),
    Column("decision", Text),
    Column("decided_at", Float(53)),
    sqlite_autoincrement=True,
)
ended = func.coalesce(items.c.decided_at, items.c.created)
"""Time of the decision; for an item that nobody decided, time of its arrival."""
# Each index holds all columns that one count or list needs, so that only the rows to show are read with their contents.
Index("review_items_queue", items.c.state, items.c.number, items.c.deadline, items.c.kind)
Index("review_items_late", items.c.state, items.c.deadline)
Index("review_items_action", items.c.state, items.c.action)
Index("review_items_history", items.c.state, ended, items.c.number)

events = Table(
    "review_events",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("item", String(64), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("who", String(256), nullable=False),
    Column("what", String(32), nullable=False),
    Column("detail", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("review_events_item", events.c.item, events.c.number)

outbox = Table(
    "review_outbox",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("item", String(64), nullable=False),
    Column("url", Text, nullable=False),
    Column("receiver", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Float(53), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("problem", Text, nullable=False),
)
Index("review_outbox_due", outbox.c.state, outbox.c.next_at)

marks = Table(
    "review_marks",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("until", Float(53), nullable=False),
    Column("value", Text, nullable=False),
)
Index("review_marks_until", marks.c.until)

monitors = Table(
    "review_monitors",
    metadata,
    Column("name", String(LONGEST_MONITOR), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("n", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("alarmed", Float(53)),
    Column("acknowledged", Float(53)),
    Column("created", Float(53), nullable=False),
)
steps = Table(
    "review_monitor_steps",
    metadata,
    Column("name", String(LONGEST_MONITOR), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("key", String(LONGEST_KEY)),
    Column("at", Float(53), nullable=False),
    Column("value", Float(53), nullable=False),
    Column("chance", Float(53), nullable=False),
    Column("log_wealth", Float(53), nullable=False),
    UniqueConstraint("name", "key"),
)


_SQLITE = [
    f"CREATE TRIGGER review_events_no_{verb} BEFORE {verb} ON review_events "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
    for verb in ("UPDATE", "DELETE")
]
_POSTGRESQL = [
    "CREATE OR REPLACE FUNCTION review_events_frozen() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the audit trail is append-only'; END $$",
    "CREATE TRIGGER review_events_frozen BEFORE UPDATE OR DELETE OR TRUNCATE ON review_events "
    "FOR EACH STATEMENT EXECUTE FUNCTION review_events_frozen()",
]


def make_tables(connection: Connection) -> None:
    """Make the tables, and the triggers that keep the audit trail append-only, in the caller's transaction."""
    metadata.create_all(connection, checkfirst=False)
    for statement in _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE:
        connection.exec_driver_sql(statement)
    connection.execute(insert(meta).values(name="layout", value=LAYOUT))


# -- steps of a transaction on rows ------------------------------------------------------------------------------------


def before_deadline(now: float) -> ColumnElement[bool]:
    """Whether there is still time to decide an item."""
    return or_(items.c.deadline.is_(None), items.c.deadline > now)


def claimable(now: float) -> ColumnElement[bool]:
    """Whether an item can be claimed: it is pending, or its lease has ended."""
    stale = and_(items.c.state == "claimed", items.c.lease_until <= now)
    return and_(or_(items.c.state == "pending", stale), before_deadline(now))


def finished(now: float) -> ColumnElement[bool]:
    """Whether an item is decided or expired, and nobody is carrying it out at the moment."""
    unheld = or_(items.c.lease_until.is_(None), items.c.lease_until <= now)
    return and_(items.c.state.in_(("decided", "expired")), unheld)


def released_before(reviewer: str) -> ColumnElement[bool]:
    """Whether this reviewer has given the item back before; a take-back by an administrator does not count."""
    released = and_(events.c.what == "released", events.c.detail == "{}")  # a line with a holder is a take-back
    return exists().where(events.c.item == items.c.id, events.c.who == reviewer, released)


def check_id(item: str) -> None:
    """Refuse an id that a database cannot hold, before it is sent there.

    Raises:
        UnknownItemError: It holds a NUL or half of a surrogate pair.
    """
    if not storable(item):
        raise UnknownItemError(f"no item {item!r} in the review store.")


def fetch(connection: Connection, item: str, *, lock: bool = False) -> Row[Any]:
    """The row of an item; with ``lock`` nobody else can write it before the transaction ends.

    Raises:
        UnknownItemError: No item has this id.
    """
    check_id(item)
    query = select(items).where(items.c.id == item)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownItemError(f"no item {item!r} in the review store.")
    return row


def as_item(row: Row[Any]) -> Item:
    """The item in a row of the table.

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
    return Item(
        id=row.id,
        number=row.number,
        key=row.key,
        content=content,
        state=row.state,
        created=row.created,
        deadline=row.deadline,
        holder=row.holder,
        lease_until=row.lease_until,
        callback=row.callback,
        decision=decision,
    )


def as_event(line: Row[Any]) -> Event:
    """A line of the audit trail."""
    return Event(**{**line._mapping, "detail": json.loads(line.detail)})


def put_back(connection: Connection, row: Row[Any], *, keep_token: bool) -> None:
    """Put an item back in the queue."""
    # With the token the holder can still decide, as long as nobody else claims the item.
    token = row.lease if keep_token else None
    changed = {"state": "pending", "holder": None, "lease": token, "lease_until": None}
    connection.execute(update(items).where(items.c.number == row.number).values(**changed))


def put_back_ended(connection: Connection, now: float) -> None:
    """Put items whose lease has ended back in the queue; their holders can decide until another takes them."""
    stale = select(items).where(items.c.state == "claimed", items.c.lease_until <= now)
    for row in connection.execute(stale.with_for_update(skip_locked=True)).all():
        put_back(connection, row, keep_token=True)
        log(connection, row.id, now, SYSTEM, "lease_expired", {"holder": row.holder})


def close(connection: Connection, row: Row[Any], now: float) -> None:
    """Close an item, so that it can no longer be decided, and queue the callback that says so."""
    changed = {"state": "expired", "lease": None, "lease_until": None}
    connection.execute(update(items).where(items.c.number == row.number).values(**changed))
    log(connection, row.id, now, SYSTEM, "expired", {"holder": row.holder})
    if row.callback is not None:
        post(connection, as_item(row), now)


def extend_or_reopen(connection: Connection, row: Row[Any], now: float, until: float | None) -> None:
    """Another call asks for an undecided item: extend its deadline to ``until``, or open it again if it was closed.

    A reviewer who holds it keeps it, unless it was closed in between.
    """
    if row.state == "decided":
        return
    late = row.state == "expired" or (row.deadline is not None and row.deadline <= now)
    # A deadline that has not passed is never shortened: an earlier caller may wait until then.
    latest = until if late else None if until is None or row.deadline is None else max(until, row.deadline)
    if not late and latest == row.deadline:
        return
    changed: dict[str, Any] = {"deadline": latest}
    if row.state == "expired":
        changed |= {"state": "pending", "holder": None, "lease_until": None}
    connection.execute(update(items).where(items.c.number == row.number).values(**changed))
    log(connection, row.id, now, SYSTEM, "reopened" if late else "extended", {"until": latest})


def left_undone(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Why decisions were not carried out, and why items were closed before their deadline, by the item's id."""
    ends = events.c.what.in_(("not_carried_out", "cancelled", "reopened"))
    query = select(events).where(events.c.item.in_(ids), ends).order_by(events.c.number)
    last = {line.item: line for line in connection.execute(query)}
    reasons = {item: json.loads(line.detail).get("reason", "") for item, line in last.items()}
    return {item: str(reason) for item, reason in reasons.items() if reason}


def post(connection: Connection, item: Item, now: float) -> None:
    """Put the callback in the outbox, in the transaction that records the decision or the expiry."""
    if item.callback is None:
        return
    identity = secrets.token_hex(16)
    if item.decision is not None:  # the item was decided after all, so a waiting "expired" must not arrive later
        late = update(outbox).where(outbox.c.item == item.id, outbox.c.state == "waiting")
        connection.execute(late.values(state="dropped"))
    values = {"id": identity, "item": item.id, "url": item.callback, "receiver": _receiver(item.callback)}
    state = {"state": "waiting", "attempts": 0, "next_at": now, "created": now, "problem": ""}
    text = json.dumps(body_of(item, identity, now), ensure_ascii=False)
    connection.execute(outbox.insert().values(**values, **state, body=text))


def _receiver(url: str) -> str:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


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


def insert_into(connection: Connection, table: Table) -> Any:
    """An INSERT of the connection's dialect, which takes ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def log(connection: Connection, item: str, at: float, who: str, what: str, detail: dict[str, Any]) -> None:
    """Add a line to the audit trail."""
    text = without_surrogates(json.dumps(detail, ensure_ascii=False))
    line = {"item": item, "at": at, "who": who, "what": what, "detail": text}
    connection.execute(events.insert(), line)
