"""Table of expiring keys, which all processes share: sessions that were signed out, and stored replies."""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "review_marks",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("until", sa.Float(53), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("review_marks_until", "review_marks", ["until"])
