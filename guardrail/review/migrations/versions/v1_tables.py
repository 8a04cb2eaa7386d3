"""Tables of the first layout: queue, audit trail, outbox and monitors.

Databases of that layout were not made by Alembic, and databases without monitors lack two tables. Every step here
therefore skips tables and indexes that exist.
"""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

_SQLITE = [
    f"CREATE TRIGGER IF NOT EXISTS review_events_no_{verb} BEFORE {verb} ON review_events "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
    for verb in ("UPDATE", "DELETE")
]
_POSTGRES = [
    "CREATE OR REPLACE FUNCTION review_events_frozen() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the audit trail is append-only'; END $$",
    "DROP TRIGGER IF EXISTS review_events_frozen ON review_events",
    "CREATE TRIGGER review_events_frozen BEFORE UPDATE OR DELETE OR TRUNCATE ON review_events "
    "FOR EACH STATEMENT EXECUTE FUNCTION review_events_frozen()",
]


def upgrade() -> None:
    """Make the tables, and the triggers that keep the audit trail append-only."""
    op.create_table(
        "review_meta",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text),
        if_not_exists=True,
    )
    op.create_table(
        "review_items",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("key", sa.String(512), nullable=False, unique=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("deadline", sa.Float(53)),
        sa.Column("holder", sa.String(256)),
        sa.Column("lease", sa.String(64)),
        sa.Column("lease_until", sa.Float(53)),
        sa.Column("callback", sa.Text),
        sa.Column("action", sa.String(16)),
        sa.Column("decision", sa.Text),
        sa.Column("decided_at", sa.Float(53)),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_table(
        "review_events",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("item", sa.String(64), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("who", sa.String(256), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_table(
        "review_outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("item", sa.String(64), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float(53), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "review_monitors",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("alarm", sa.Text),
        sa.Column("acknowledged", sa.Float(53)),
        sa.Column("created", sa.Float(53), nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "review_monitor_steps",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("n", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(512)),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("chance", sa.Float(53), nullable=False),
        sa.Column("log_wealth", sa.Float(53), nullable=False),
        sa.UniqueConstraint("name", "key"),
        if_not_exists=True,
    )
    for name, table, columns in (
        ("review_items_state", "review_items", ["state", "number"]),
        ("review_items_decided", "review_items", ["decided_at"]),
        ("review_events_item", "review_events", ["item", "number"]),
        ("review_outbox_due", "review_outbox", ["state", "next_at"]),
    ):
        op.create_index(name, table, columns, if_not_exists=True)
    for statement in _POSTGRES if op.get_context().dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)
