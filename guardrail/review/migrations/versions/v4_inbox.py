"""The inbox of the monitors, and the grids of drift monitors."""

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Make two tables; the states of drift monitors change when a process opens them with their artifact."""
    op.create_table(
        "review_monitor_grids",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("grid", sa.Text, nullable=False),
    )
    op.create_table(
        "review_monitor_inbox",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("key", sa.String(512), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.UniqueConstraint("name", "key"),
        sqlite_autoincrement=True,
    )
    op.create_index("review_monitor_inbox_order", "review_monitor_inbox", ["name", "number"])
