"""Connections and transactions: SQLite (WAL, one writer at a time) or PostgreSQL, safe under threads and processes.

Every operation ends within its deadline. SQLite waits for locks that long at most and gives up a long statement;
PostgreSQL's server ends a statement that takes longer. If the server hangs, its sockets stay open, so that neither
driver nor TCP end an operation: a timer shuts the socket down.

Connections to SQLite stay open between operations: it empties and deletes its log whenever the last one closes.

Forking is safe while no other thread is in the middle of an operation.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from weakref import WeakSet, finalize

from sqlalchemy import CursorResult, Executable, Table, create_engine, event, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoConnection

from ..errors import UsageError, require
from ..files import SQLITE_PATIENCE, create_private, prepare_sqlite
from . import tables
from .errors import StoreUnavailableError
from .limits import check_seconds, without_surrogates

__all__ = ["DEADLINE", "SYSTEM", "Database", "Transaction"]

DEADLINE = 5.0
"""Default seconds for one operation."""
SYSTEM = "system"
"""Name in the audit trail for actions that no person took."""
CONNECTIONS = 8
"""Largest number of connections that a process opens; further operations wait for one."""
_OPENING = 60.0
"""Seconds in which tables are made; other processes that start at that time wait for it."""
_STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
_LOCK = 0x61637263
"""Advisory lock of PostgreSQL under which the tables are made."""
_BEGIN = text(
    "SELECT extract(epoch FROM clock_timestamp()), set_config('statement_timeout', :work, true), "
    "set_config('idle_in_transaction_session_timeout', :idle, true)"
)
"""Begins a transaction of PostgreSQL with limits for the server: it must not hold locks for a client that has gone."""
_end: ContextVar[float | None] = ContextVar("review_end", default=None)
"""Time at which the operation that is connecting must end."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that has begun.

    Attributes:
        connection: Its connection.
        now: When it began, in seconds since 1970 UTC; PostgreSQL's clock is the same for every machine.
    """

    connection: Connection
    now: float

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        """Execute a statement; ``values`` are its parameters, or the rows of an INSERT."""
        result: Any = self.connection.execute(statement, values)
        return result  # type: ignore[no-any-return]

    def insert(self, table: Table) -> Any:
        """An INSERT of the database's dialect, which takes ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
        return (postgresql if self.connection.dialect.name == "postgresql" else sqlite).insert(table)

    def log(self, who: str, what: str, detail: dict[str, Any], item: str = "") -> None:
        """Add a line to the audit trail."""
        words = without_surrogates(json.dumps(detail, ensure_ascii=False))
        self.execute(tables.events.insert(), {"item": item, "at": self.now, "who": who, "what": what, "detail": words})


class Database:
    """One database, opened when it is first used.

    Args:
        url: ``sqlite:///path``, a bare path (SQLite), or ``postgresql://...``.
        clock: Now, in seconds since 1970; default: the server's clock for PostgreSQL, this machine's for SQLite.
        deadline: Seconds for one operation, with connecting (to PostgreSQL at least 2) and committing.
    """

    def __init__(
        self, url: str | os.PathLike[str], clock: Callable[[], float] | None = None, *, deadline: float = DEADLINE
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
    def write(self, within: float | None = None) -> Iterator[Transaction]:
        """A transaction that may write; committed at the end, rolled back after an error.

        Args:
            within: Seconds it may take; default: the deadline of the database.

        Raises:
            StoreUnavailableError: It took longer, the database cannot be reached, or takes nothing.
        """
        with self._transaction(within, writes=True) as transaction:
            yield transaction

    @contextmanager
    def read(self, within: float | None = None) -> Iterator[Transaction]:
        """A transaction that only reads: one consistent view. Arguments and errors as for `write`."""
        with self._transaction(within, writes=False) as transaction:
            yield transaction

    @contextmanager
    def _transaction(self, within: float | None, *, writes: bool) -> Iterator[Transaction]:
        seconds = self.deadline if within is None else within
        end = time.monotonic() + seconds
        token = _end.set(end)
        try:
            with ExitStack() as held:
                # On SQLite also the turn to write, which SQLite would give to any thread.
                for lock in [self._writing, self._connections] if writes and self._sqlite else [self._connections]:
                    if not lock.acquire(timeout=_left(end)):
                        raise NoConnection("in use by other threads")
                    held.callback(lock.release)
                transaction = self._begun(held, seconds, end, writes)
                yield transaction
                transaction.connection.commit()
        except SQLAlchemyError as error:
            if not _left(end):
                why = f"did not answer within {seconds:g} s"
            elif _is_failure(error):
                why = f"failed: {_first_line(error)}"
            else:  # the database answered, and refused a statement
                raise
            raise StoreUnavailableError(
                f"the review store {why}. If this was written, it may or may not be stored: repeat it under the "
                "same key. Check that the database runs and answers."
            ) from error
        finally:
            _end.reset(token)

    def _begun(self, held: ExitStack, seconds: float, end: float, writes: bool) -> Transaction:
        """A transaction that has begun; its connection is rolled back and given back to the pool with ``held``."""
        # An open connection would go on writing to a file that was moved away or deleted, where nobody reads.
        if self._sqlite and self._file != _identity(self.url):
            why = f"{self.url.database} was moved, deleted or replaced. Put it back, or restart to use what is there"
            raise OperationalError(None, None, OSError(why))
        for attempt in (1, 2):
            with ExitStack() as own:
                try:
                    connection = own.enter_context(self.engine.connect())
                    own.enter_context(self._breaking_off(connection, end))
                    now = self._begin(connection, seconds, end, writes)
                except DBAPIError as error:
                    # The server closed the idle connection, e.g. in a restart. The pool has dropped the others as well.
                    if attempt == 2 or not _left(end) or not error.connection_invalidated:
                        raise
                else:
                    held.push(own.pop_all())
                    return Transaction(connection, now if self._clock is None else self._clock())
        raise AssertionError("the second attempt raises")

    @contextmanager
    def _breaking_off(self, connection: Connection, end: float) -> Iterator[None]:
        """Break off what the connection does when the time is over."""
        dbapi: Any = connection.connection.dbapi_connection
        if self._sqlite:
            dbapi.set_progress_handler(lambda: not _left(end), _STEPS)
            yield
            return
        lock, over = threading.Lock(), threading.Event()

        def ring() -> None:
            with lock:  # the connection of an operation that is over may be another operation's now
                if not over.is_set():
                    _shut_down(dbapi)

        timer = threading.Timer(_left(end), ring)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            with lock:
                over.set()
            timer.cancel()

    def _begin(self, connection: Connection, seconds: float, end: float, writes: bool) -> float:
        """Begin a transaction; returns the time."""
        if self._sqlite:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(_left(end) * 1000)}")
            # IMMEDIATE takes the write lock before reading, so that no decision rests on rows that another is changing.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
            return time.time()
        limits = {"work": f"{int(seconds * 1000)}ms", "idle": f"{int(2 * seconds * 1000)}ms"}
        return float(connection.execute(_BEGIN, limits).one()[0])

    def close(self) -> None:
        """Close all connections. They are opened again when needed."""
        self.engine.dispose()

    def _new_locks(self) -> None:
        self._writing, self._connections = threading.Semaphore(1), threading.Semaphore(CONNECTIONS)

    def _prepare(self) -> None:
        try:
            with self.read() as transaction:
                layout = _layout(transaction.connection)
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
        with self.write(_OPENING) as transaction:
            connection = transaction.connection
            if not self._sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if _layout(connection) is None:
                tables.make_tables(connection)
            return _layout(connection)


def _left(end: float) -> float:
    """Seconds left, at least 0."""
    return max(0.0, end - time.monotonic())


def _is_failure(error: SQLAlchemyError) -> bool:
    """Whether the database failed: it is gone, locked, full, read-only or being stopped."""
    # psycopg reports a read-only transaction as an internal error, all else as an operational one.
    return isinstance(error, OperationalError | InterfaceError | InternalError | NoConnection)


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
    end = _end.get()
    if end is not None:
        options.setdefault("connect_timeout", math.ceil(_left(end)))  # psycopg takes 2 for less


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
        connection.execute("PRAGMA secure_delete=ON")  # no text of a deleted row is left in the file

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
