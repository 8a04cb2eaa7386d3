"""Keys with a value and an end, in the database, so that all its processes share them."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select, update

from .database import Database
from .tables import insert_into, marks

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
        with self._database.read() as connection:
            now = self._database.now(connection)
            return connection.execute(_VALUE, {"key": name, "now": now}).scalar_one_or_none()

    def add(self, name: str, value: str, seconds: float) -> str | None:
        """Add a key for so many seconds. A key that exists already stays, and its value is returned."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA secure_delete=ON")  # as in a purge: some values are answers
            connection.execute(delete(marks).where(marks.c.until <= now))
            new = insert_into(connection, marks).values(name=name, until=now + seconds, value=value)
            # Not the rowcount, which is -1 on PostgreSQL, whether or not there was a conflict.
            added = new.on_conflict_do_nothing(index_elements=["name"]).returning(marks.c.name)
            if connection.execute(added).first() is not None:
                return None
            return str(connection.execute(select(marks.c.value).where(marks.c.name == name)).scalar_one())

    def replace(self, name: str, before: str, value: str, seconds: float) -> bool:
        """Give a key another value and end, if its value is still ``before``. Returns whether it was."""
        with self._database.write() as connection:
            until = self._database.now(connection) + seconds
            unchanged = update(marks).where(marks.c.name == name, marks.c.value == before)
            return connection.execute(unchanged.values(until=until, value=value)).rowcount > 0

    def remove(self, name: str, value: str) -> None:
        """Delete a key, if it has this value."""
        with self._database.write() as connection:
            connection.execute(delete(marks).where(marks.c.name == name, marks.c.value == value))
