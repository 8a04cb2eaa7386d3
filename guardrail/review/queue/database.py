"""Connections and transactions: SQLite (WAL, one writer at a time) or PostgreSQL, safe under threads and processes.

Connections to SQLite stay open between operations: it empties and deletes its log whenever the last one closes.

Forking is safe while no other thread is in the middle of an operation.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize

from sqlalchemy import create_engine, delete, event, insert, inspect, select, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from ...errors import UsageError, require
from ...files import SQLITE_PATIENCE, prepare_sqlite
from . import schema
from .writers import Writers

__all__ = ["Database", "migrate"]

_LOCK = 0x61637263
"""Advisory lock of PostgreSQL under which the tables are made."""
_MIGRATING = threading.Lock()
"""Alembic runs one migration at a time in a process: what it runs is in a global variable."""
_MIGRATIONS = Path(__file__).parent.parent / "migrations"
_NO_TABLES = "0"
_OLDER = tuple(str(number) for number in range(int(schema.LAYOUT)))
"""Layouts that `migrate` starts from."""


class Database:
    """One database, opened when it is first used.

    Args:
        url: ``sqlite:///path``, a bare path (SQLite), or ``postgresql://...``.
        clock: Now, in seconds since 1970; default: the server's clock for PostgreSQL, this machine's for SQLite.
    """

    def __init__(self, url: str | os.PathLike[str], clock: Callable[[], float] | None = None) -> None:
        self.url = _parsed(os.fspath(url))
        self._clock = clock
        self._engine = _engine(self.url)
        self._owner = os.getpid()
        self._writers = self._new_writers()
        self._sqlite = self.url.get_backend_name() == "sqlite"
        if self._sqlite:
            self._file = _identity(self.url)
            _open.add(self)
            finalize(self, self._engine.dispose)
        self._prepare()

    @property
    def engine(self) -> Engine:
        """The engine; a forked child gets new connections."""
        if self._owner != os.getpid():
            self._engine.dispose(close=False)
            self._owner = os.getpid()
        return self._engine

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; committed at the end, rolled back after an error."""
        if self._sqlite:
            with self._writers.write(SQLITE_PATIENCE) as connection:
                yield connection
            return
        with self._connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: one consistent view."""
        with self._connect() as connection, connection.begin():
            yield connection

    def _connect(self) -> Connection:
        # An open connection would go on writing to a file that was moved away or deleted, where nobody reads.
        if self._sqlite and self._file != _identity(self.url):
            why = f"{self.url.database} was moved, deleted or replaced. Put it back, or restart to use what is there"
            raise OperationalError(None, None, OSError(why))
        return self.engine.connect()

    def _new_writers(self) -> Writers:
        return Writers(lambda: self._connect().execution_options(review_writes=True))

    def now(self, connection: Connection) -> float:
        """Now, in seconds since 1970; PostgreSQL's clock is the same for every machine."""
        if self._clock is not None:
            return self._clock()
        if connection.dialect.name == "postgresql":
            return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        return time.time()

    def close(self) -> None:
        """Close all connections. They are opened again when needed."""
        self.engine.dispose()

    def _prepare(self) -> None:
        try:
            with self.read() as connection:
                layout = _layout(connection)
            if layout != schema.LAYOUT:
                with self.write() as connection:
                    if connection.dialect.name == "postgresql":
                        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                    layout = _layout(connection)  # another process may have done it in between
                    if layout in _OLDER:
                        migrate(connection)
                        layout = schema.LAYOUT
        except DatabaseError as error:
            self.close()
            raise UsageError(f"cannot open the review store {self.url!r}: {error.orig}.") from error
        if layout != schema.LAYOUT:
            self.close()
            raise UsageError(
                f"the review store {self.url!r} has layout {layout!r}; this version reads {schema.LAYOUT!r} and older "
                "ones. Upgrade acrc-guardrail to the version that wrote it, or use another database."
            )


_open: WeakSet[Database] = WeakSet()
"""Those on SQLite."""


def _close_before_fork() -> None:
    """SQLite keeps its file locks by process, so a child must not have a connection of its parent."""
    for database in list(_open):
        database.close()


def _new_after_fork() -> None:
    """A thread that the child does not have may have had its turn."""
    for database in list(_open):
        database._writers = database._new_writers()


os.register_at_fork(before=_close_before_fork, after_in_child=_new_after_fork)


def _identity(url: URL) -> tuple[int, int] | None:
    """Device and inode of an SQLite file; None if there is none."""
    try:
        found = os.stat(str(url.database))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def migrate(connection: Connection, layout: str = schema.LAYOUT) -> None:
    """Make the tables, or change those of an older layout, in the caller's transaction.

    Args:
        connection: Its transaction holds the lock under which the tables are changed.
        layout: The layout to have afterwards.
    """
    from alembic import command  # takes longer to load than an up-to-date database takes to open
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with _MIGRATING:
        command.upgrade(config, layout)
    # Also for versions before Alembic, which read only this and refuse what they do not know.
    connection.execute(delete(schema.meta).where(schema.meta.c.name == "layout"))
    connection.execute(insert(schema.meta).values(name="layout", value=layout))


def _layout(connection: Connection) -> str | None:
    """The layout of the tables; `_NO_TABLES` where there are none."""
    if not inspect(connection).has_table(schema.meta.name):
        return _NO_TABLES
    found = select(schema.meta.c.value).where(schema.meta.c.name == "layout")
    return connection.execute(found).scalar_one_or_none()


def _parsed(given: str) -> URL:
    try:
        url = make_url(given if "://" in given else f"sqlite:///{given}")
    except ArgumentError:
        raise UsageError("this is not a database URL. Use sqlite:///reviews.db or postgresql://host/name.") from None
    backend = url.get_backend_name()
    if backend == "postgresql":
        require("psycopg", extra="postgres")
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(f"the review store runs on SQLite and PostgreSQL, not {backend!r}.")
    if not url.database or url.database == ":memory:":
        raise UsageError("a review store in memory would lose its items. Name a file: sqlite:///reviews.db")
    return url


def _engine(url: URL) -> Engine:
    try:
        if url.get_backend_name() == "postgresql":
            return create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED", hide_parameters=True)
        assert url.database is not None
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        # Only the owner may read held-back answers; SQLite gives the WAL files the same mode.
        os.close(os.open(url.database, os.O_RDWR | os.O_CREAT, 0o600))
        engine = create_engine(url, connect_args={"timeout": SQLITE_PATIENCE}, max_overflow=-1, hide_parameters=True)
    except OSError as error:
        raise UsageError(f"cannot open the review store {url.database!r}: {error.strerror}.") from error
    except NoSuchModuleError as error:
        raise UsageError(f"no driver for {url!r}: {error}.") from error
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    prepare_sqlite(connection)


def _on_begin(connection: Connection) -> None:
    # IMMEDIATE takes the write lock before reading, so that no decision rests on rows that another is changing.
    writes = connection.get_execution_options().get("review_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
