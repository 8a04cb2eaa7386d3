"""Indexes that hold all that a count or a list needs, so that neither reads rows with contents."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Replace the indexes of the items."""
    op.drop_index("review_items_state", "review_items")
    op.drop_index("review_items_decided", "review_items")
    op.create_index("review_items_queue", "review_items", ["state", "number", "deadline", "kind"])
    op.create_index("review_items_late", "review_items", ["state", "deadline"])
    op.create_index("review_items_action", "review_items", ["state", "action"])
    ended = sa.text("coalesce(decided_at, created)")
    op.create_index("review_items_history", "review_items", ["state", ended, "number"])
