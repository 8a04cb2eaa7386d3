"""Keys with a value and an end, in the database, so that all its processes share them."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select, update

from .database import Database
from .tables import marks

__all__ = ["ExpiringKeys"]

# Built once: the page reads a key for each request.
_VALUE = select(marks.c.value).where(marks.c.name == bindparam("key"), marks.c.until > bindparam("now"))


class ExpiringKeys:
    """Keys of a database, each with a value and an end.

    Args:
        database: Its table ``review_marks`` holds them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> str | None:
        """The value of a key that has not ended, or None."""
        with self._database.read() as transaction:
            return transaction.execute(_VALUE, {"key": name, "now": transaction.now}).scalar_one_or_none()

    def add(self, name: str, value: str, seconds: float) -> str | None:
        """Add a key for so many seconds. A key that exists already stays, and its value is returned."""
        with self._database.write() as transaction:
            transaction.execute(delete(marks).where(marks.c.until <= transaction.now))
            new = transaction.insert(marks).values(name=name, until=transaction.now + seconds, value=value)
            # Not the rowcount, which is -1 on PostgreSQL, whether or not there was a conflict.
            added = new.on_conflict_do_nothing(index_elements=["name"]).returning(marks.c.name)
            if transaction.execute(added).first() is not None:
                return None
            return str(transaction.execute(select(marks.c.value).where(marks.c.name == name)).scalar_one())

    def replace(self, name: str, before: str, value: str, seconds: float) -> bool:
        """Give a key another value and end, if its value is still ``before``. Returns whether it was."""
        with self._database.write() as transaction:
            unchanged = update(marks).where(marks.c.name == name, marks.c.value == before)
            renewed = unchanged.values(until=transaction.now + seconds, value=value)
            return transaction.execute(renewed).rowcount > 0

    def remove(self, name: str, value: str) -> None:
        """Delete a key, if it has this value."""
        with self._database.write() as transaction:
            transaction.execute(delete(marks).where(marks.c.name == name, marks.c.value == value))
