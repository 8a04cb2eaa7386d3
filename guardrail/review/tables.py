"""Tables of the queue and of the shared monitors. Times are seconds since 1970 UTC; contents are JSON texts."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text, UniqueConstraint, func, insert
from sqlalchemy.engine import Connection

from .limits import LONGEST_KEY

__all__ = ["LAYOUT", "LONGEST_MONITOR", "ended", "events", "items", "make_tables", "marks", "meta", "metadata"]
__all__ += ["monitors", "outbox", "steps"]

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
    Column("state", String(16), nullable=False),  # pending, also while somebody holds it; decided or expired
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
Index("review_items_queue", items.c.state, items.c.number, items.c.deadline, items.c.kind, items.c.lease_until)
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
    Column("value", Float(53), nullable=False),  # this and the next two as of `MonitorStep`
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
