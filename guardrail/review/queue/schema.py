"""Tables of the review store. Times are seconds since 1970 UTC; contents are JSON texts."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.engine import Connection

__all__ = ["LAYOUT", "create", "events", "items", "meta", "metadata", "outbox"]

LAYOUT = "1"
"""Version of the tables."""
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
Index("review_items_state", items.c.state, items.c.number)
Index("review_items_decided", items.c.decided_at)

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
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Float(53), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("problem", Text, nullable=False),
)
Index("review_outbox_due", outbox.c.state, outbox.c.next_at)

_SQLITE = [
    f"CREATE TRIGGER IF NOT EXISTS review_events_no_{verb} BEFORE {verb} ON review_events "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
    for verb in ("UPDATE", "DELETE")
]
_POSTGRES = [
    "CREATE OR REPLACE FUNCTION review_events_frozen() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the audit trail is append-only'; END $$",
    "CREATE TRIGGER review_events_frozen BEFORE UPDATE OR DELETE OR TRUNCATE ON review_events "
    "FOR EACH STATEMENT EXECUTE FUNCTION review_events_frozen()",
]


def create(connection: Connection) -> None:
    """Make all tables, and the triggers that keep the audit trail append-only."""
    metadata.create_all(connection)
    for statement in _POSTGRES if connection.dialect.name == "postgresql" else _SQLITE:
        connection.exec_driver_sql(statement)
    connection.execute(meta.insert().values(name="layout", value=LAYOUT))
