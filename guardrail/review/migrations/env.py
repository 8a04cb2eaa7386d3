"""Runs the migrations of the review database in the transaction of the caller; Alembic loads this file."""

from alembic import context

# Alembic assumes that SQLite cannot create tables in a transaction. It can, as `Database` begins transactions itself.
context.configure(
    connection=context.config.attributes["connection"], version_table="review_version", transactional_ddl=True
)
context.run_migrations()
