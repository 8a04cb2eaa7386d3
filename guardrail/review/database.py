"""Connections and transactions: SQLite (WAL, one writer at a time) or PostgreSQL, safe under threads and processes.

Every operation ends within its deadline. SQLite waits for locks that long at most and gives up a long statement;
PostgreSQL's server ends a statement that takes longer. If the server hangs, its sockets stay open, so that neither
driver nor TCP end an operation: a timer shuts the socket down.

Connections to SQLite stay open between operations: it empties and deletes its log whenever the last one closes.

Forking is safe while no other thread is in the middle of an operation.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from weakref import WeakSet, finalize

from sqlalchemy import create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError, SQLAlchemyError

from ..errors import UsageError, require
from ..files import SQLITE_PATIENCE, create_private, prepare_sqlite
from . import tables
from .errors import StoreUnavailableError
from .limits import check_seconds

__all__ = ["DEADLINE", "Database"]

DEADLINE = 5.0
"""Default seconds for one operation."""
CONNECTIONS = 8
"""Largest number of connections that a process opens; further operations wait for one."""
_OPENING = 60.0
"""Seconds in which tables are made; other processes that start at that time wait for it."""
_STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
_LOCK = 0x61637263
"""Advisory lock of PostgreSQL under which the tables are made."""
_POSTGRESQL_TAKES_NOTHING = ("53", "57", "25006", "25P03")
"""SQLSTATEs: no disk, memory or connections; cancelled or shut down; read-only; idle in a transaction for too long."""
_SQLITE_TAKES_NOTHING = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
_BEGIN = text(
    "SELECT extract(epoch FROM clock_timestamp()), set_config('statement_timeout', :work, true), "
    "set_config('idle_in_transaction_session_timeout', :idle, true)"
)
"""Begins a transaction of PostgreSQL with limits for the server: it must not hold locks for a client that has gone."""


class _Deadline:
    """The end of an operation that takes so many seconds at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end


_deadline: ContextVar[_Deadline | None] = ContextVar("review_deadline", default=None)
"""Deadline of the operation that is connecting."""


class Database:
    """One database, opened when it is first used.

    Args:
        url: ``sqlite:///path``, a bare path (SQLite), or ``postgresql://...``.
        clock: Now, in seconds since 1970; default: the server's clock for PostgreSQL, this machine's for SQLite.
        deadline: Seconds for one operation, with connecting (to PostgreSQL at least 2) and committing.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        clock: Callable[[], float] | None = None,
        *,
        deadline: float = DEADLINE,
    ) -> None:
        check_seconds("deadline", deadline, "Use 5.")
        self.url = _parsed(os.fspath(url))
        self.deadline = deadline
        self._clock = clock
        self._sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(self.url, deadline) if self._sqlite else _postgresql_engine(self.url)
        self._file = _identity(self.url) if self._sqlite else None
        self._new_locks()
        _open.add(self)
        finalize(self, self.engine.dispose)
        self._prepare()

    @contextmanager
    def write(self, within: float | None = None) -> Iterator[Connection]:
        """A transaction that may write; committed at the end, rolled back after an error.

        Args:
            within: Seconds it may take; default: the deadline of the database.

        Raises:
            StoreUnavailableError: It took longer, the database cannot be reached, or takes nothing.
        """
        with self._transaction(within, writes=True) as connection:
            yield connection

    @contextmanager
    def read(self, within: float | None = None) -> Iterator[Connection]:
        """A transaction that only reads: one consistent view. Arguments and errors as for `write`."""
        with self._transaction(within, writes=False) as connection:
            yield connection

    @contextmanager
    def _transaction(self, within: float | None, *, writes: bool) -> Iterator[Connection]:
        deadline = _Deadline(self.deadline if within is None else within)
        token = _deadline.set(deadline)
        try:
            with ExitStack() as held:
                # On SQLite also the turn to write, which SQLite would give to any thread.
                for lock in [self._writing, self._connections] if writes and self._sqlite else [self._connections]:
                    if not lock.acquire(timeout=deadline.left):
                        raise StoreUnavailableError(f"was in use by other threads for more than {deadline.seconds:g} s")
                    held.callback(lock.release)
                connection = self._begun(held, deadline, writes)
                yield connection
                connection.commit()
        except (SQLAlchemyError, StoreUnavailableError) as error:
            why = _unavailable(error, deadline)
            if why is None:
                raise
            raise StoreUnavailableError(
                f"the review store {why}. If this was written, it may or may not be stored: repeat it under the "
                "same key. Check that the database runs and answers."
            ) from error
        finally:
            _deadline.reset(token)

    def _begun(self, held: ExitStack, deadline: _Deadline, writes: bool) -> Connection:
        """A connection on which a transaction has begun; rolled back and given back to the pool with ``held``."""
        for attempt in (1, 2):
            with ExitStack() as own:
                try:
                    connection = own.enter_context(self._connected())
                    own.enter_context(self._breaking_off(connection, deadline))
                    self._begin(connection, deadline, writes)
                except DBAPIError as error:
                    # The server closed the idle connection, e.g. in a restart. The pool has dropped the others as well.
                    if attempt == 2 or deadline.is_over() or not error.connection_invalidated:
                        raise
                else:
                    held.push(own.pop_all())
                    return connection
        raise AssertionError("the second attempt raises")

    def _connected(self) -> Connection:
        # An open connection would go on writing to a file that was moved away or deleted, where nobody reads.
        if self._sqlite and self._file != _identity(self.url):
            why = f"{self.url.database} was moved, deleted or replaced. Put it back, or restart to use what is there"
            raise OperationalError(None, None, OSError(why))
        return self.engine.connect()

    @contextmanager
    def _breaking_off(self, connection: Connection, deadline: _Deadline) -> Iterator[None]:
        """Break off what the connection does when the time is over."""
        dbapi: Any = connection.connection.dbapi_connection
        if self._sqlite:
            dbapi.set_progress_handler(deadline.is_over, _STEPS)
            yield
            return
        lock, over = threading.Lock(), threading.Event()

        def ring() -> None:
            with lock:  # the connection of an operation that is over may be another operation's now
                if not over.is_set():
                    _shut_down(dbapi)

        timer = threading.Timer(deadline.left, ring)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            with lock:
                over.set()
            timer.cancel()

    def _begin(self, connection: Connection, deadline: _Deadline, writes: bool) -> None:
        if self._sqlite:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(deadline.left * 1000)}")
            # IMMEDIATE takes the write lock before reading, so that no decision rests on rows that another is changing.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
            return
        limits = {"work": f"{int(deadline.seconds * 1000)}ms", "idle": f"{int(2 * deadline.seconds * 1000)}ms"}
        connection.info["review_now"] = float(connection.execute(_BEGIN, limits).one()[0])

    def now(self, connection: Connection) -> float:
        """Now, in seconds since 1970; PostgreSQL's clock is the same for every machine."""
        if self._clock is not None:
            return self._clock()
        began = connection.info.get("review_now")  # PostgreSQL: when the transaction began
        return time.time() if began is None else float(began)

    def close(self) -> None:
        """Close all connections. They are opened again when needed."""
        self.engine.dispose()

    def _new_locks(self) -> None:
        self._writing, self._connections = threading.Semaphore(1), threading.Semaphore(CONNECTIONS)

    def _prepare(self) -> None:
        try:
            with self.read() as connection:
                layout = _layout(connection)
            if layout is None:
                layout = self._with_tables()
        except (DatabaseError, StoreUnavailableError) as error:
            self.close()
            raise UsageError(f"cannot open the review store {_shown(self.url)}: {_first_line(error)}.") from error
        if layout != tables.LAYOUT:
            self.close()
            raise UsageError(
                f"the review store {_shown(self.url)} has layout {layout!r}; this version of acrc-guardrail reads "
                f"{tables.LAYOUT!r}. Upgrade acrc-guardrail to the version that wrote it, or use another database."
            )

    def _with_tables(self) -> str | None:
        """Make the tables, one process at a time; the layout, also if another process made them in between."""
        with self.write(_OPENING) as connection:
            if not self._sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if _layout(connection) is None:
                tables.make_tables(connection)
            return _layout(connection)


def _unavailable(error: Exception, deadline: _Deadline) -> str | None:
    """Why the database could not be used, in words; None if it answered and refused a statement."""
    if isinstance(error, StoreUnavailableError):
        return str(error)
    if deadline.is_over():
        return f"did not answer within {deadline.seconds:g} s"
    if not isinstance(error, DBAPIError):
        return None
    connecting = error.statement is None
    if error.connection_invalidated or connecting or _takes_nothing(error.orig):
        return f"failed: {_first_line(error)}"
    locked = type(error.orig).__name__ == "OperationalError" and "locked" in str(error.orig)
    return f"is locked by another process for more than {deadline.seconds:g} s" if locked else None


def _takes_nothing(error: Any) -> bool:
    """Whether the database refuses every statement: it is read-only, full, or is being stopped."""
    state = getattr(error, "sqlstate", None) or ""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; higher bits hold the extended one
    return state.startswith(_POSTGRESQL_TAKES_NOTHING) or code in _SQLITE_TAKES_NOTHING


def _shown(url: URL) -> str:
    """The URL without its password, which may also be a parameter."""
    return repr(url.set(query={}))


def _first_line(error: Exception) -> str:
    """First line of the driver's message. Later lines hold statements and values, which are questions and answers."""
    return str(getattr(error.__cause__ or error, "orig", None) or error).strip().partition("\n")[0].rstrip(".")


def _layout(connection: Connection) -> str | None:
    """The layout of the tables; None in a database without tables."""
    if not inspect(connection).has_table(tables.meta.name):
        return None
    query = select(tables.meta.c.value).where(tables.meta.c.name == "layout")
    return str(connection.execute(query).scalar_one_or_none())


def _parsed(text: str) -> URL:
    try:
        url = make_url(text if "://" in text else f"sqlite:///{text}")
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


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def _postgresql_engine(url: URL) -> Engine:
    # `Database._connections` limits the connections and waits for a free one, so the pool itself never waits.
    engine = create_engine(
        url, pool_size=CONNECTIONS, max_overflow=0, isolation_level="READ COMMITTED", hide_parameters=True
    )
    event.listen(engine, "do_connect", _limit_connecting)
    return engine


def _limit_connecting(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
    """Limit an attempt to connect to the time that is left for the operation."""
    deadline = _deadline.get()
    if deadline is not None:
        options.setdefault("connect_timeout", math.ceil(deadline.left))  # psycopg takes 2 for less


def _shut_down(connection: Any) -> None:
    """Shut the socket of a psycopg connection down, so that the thread that waits for it gets an error."""
    with suppress(Exception), socket(fileno=os.dup(connection.fileno())) as channel:  # it may be closed already
        channel.shutdown(SHUT_RDWR)


# -- SQLite ------------------------------------------------------------------------------------------------------------


def _sqlite_engine(url: URL, deadline: float) -> Engine:
    assert url.database is not None
    path, patience = Path(url.database), min(deadline, SQLITE_PATIENCE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_private(path)  # SQLite gives the WAL files the same mode
    except OSError as error:
        raise UsageError(f"cannot open the review store {url.database!r}: {error.strerror}.") from error
    engine = create_engine(url, pool_size=CONNECTIONS, max_overflow=0, hide_parameters=True)

    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `Database` begins transactions, not the driver
        prepare_sqlite(connection, patience=patience)

    event.listen(engine, "connect", prepare)
    return engine


def _identity(url: URL) -> tuple[int, int] | None:
    """Device and inode of an SQLite file; None if the file does not exist."""
    try:
        status = os.stat(str(url.database))
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


# -- forks -------------------------------------------------------------------------------------------------------------

_open: WeakSet[Database] = WeakSet()


def _close_before_fork() -> None:
    """SQLite keeps its file locks by process, so a child must not have a connection of its parent."""
    for database in list(_open):
        if database._sqlite:
            database.close()


def _new_after_fork() -> None:
    """The child opens its connections and locks; the parent keeps those that it has."""
    for database in list(_open):
        database.engine.dispose(close=False)
        database._new_locks()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_close_before_fork, after_in_child=_new_after_fork)
