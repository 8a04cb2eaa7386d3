"""Tables of the queue. Times are seconds since 1970 UTC; contents are JSON texts."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text, func

__all__ = ["LAYOUT", "ended", "events", "items", "marks", "meta", "metadata", "outbox"]

LAYOUT = "4"
"""Version of the tables: the last revision in ``guardrail/review/migrations``, which makes and changes them."""
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
