"""Values with a name and an end that all processes on a database share."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from .database import Database
from .schema import marks

__all__ = ["ExpiringKeys"]

# Built once: a page reads a mark for each request.
_VALUE = select(marks.c.value).where(marks.c.name == bindparam("mark"), marks.c.until > bindparam("now"))


class ExpiringKeys:
    """ExpiringKeys of a database.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> str | None:
        """The value of a mark that has not ended, or None."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            return connection.execute(_VALUE, {"mark": name, "now": now}).scalar_one_or_none()

    def add(self, name: str, value: str, seconds: float) -> str | None:
        """Make a mark for so many seconds. If there is one already, it stays, and its value is returned."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA secure_delete=ON")  # as in a purge: some marks hold answers
            connection.execute(delete(marks).where(marks.c.until <= now))
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            new = insert(marks).values(name=name, until=now + seconds, value=value)
            # Not the rowcount, which is -1 on PostgreSQL, whether or not there was a conflict.
            made = new.on_conflict_do_nothing(index_elements=["name"]).returning(marks.c.name)
            if connection.execute(made).first() is not None:
                return None
            return str(connection.execute(select(marks.c.value).where(marks.c.name == name)).scalar_one())

    def replace(self, name: str, before: str, value: str, seconds: float) -> bool:
        """Give a mark another value and end, if its value is still ``before``. Returns whether it was."""
        with self._database.write() as connection:
            until = self._database.now(connection) + seconds
            mine = update(marks).where(marks.c.name == name, marks.c.value == before)
            return connection.execute(mine.values(until=until, value=value)).rowcount > 0

    def remove(self, name: str, value: str) -> None:
        """Delete a mark, if it has this value."""
        with self._database.write() as connection:
            connection.execute(delete(marks).where(marks.c.name == name, marks.c.value == value))
