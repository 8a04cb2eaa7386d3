"""Connections and transactions: SQLite (WAL, one writer at a time) or PostgreSQL, safe under threads and processes.

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
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from weakref import WeakSet, finalize

from sqlalchemy import create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoTurnError

from ...errors import UsageError, require
from ...files import SQLITE_PATIENCE, create_private, prepare_sqlite
from ..errors import StoreUnavailableError
from ..limits import check_seconds
from . import schema
from .deadline import DEADLINE, Circuit, Operation, watched
from .writers import Writers

__all__ = ["Database"]

_LOCK = 0x61637263
"""Advisory lock of PostgreSQL under which the tables are made."""
CONNECTIONS = 8
"""Largest number of connections that a process opens to PostgreSQL; further operations wait for one."""
_OPENING = 60.0
"""Seconds in which tables are made; other processes that start at that time wait for it."""
_POSTGRESQL_TAKES_NOTHING = ("53", "57", "25006", "25P03")
"""SQLSTATEs: no disk, memory or connections; cancelled or shut down; read-only; idle in a transaction for too long."""
_SQLITE_TAKES_NOTHING = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)


class Database:
    """One database, opened when it is first used.

    Every operation ends within its deadline, also while it connects and while the server hangs; see
    `guardrail.review.queue.deadline`. After three failures in a row operations fail at once for five seconds.

    Args:
        url: ``sqlite:///path``, a bare path (SQLite), or ``postgresql://...``.
        clock: Now, in seconds since 1970; default: the server's clock for PostgreSQL, this machine's for SQLite.
        deadline: Seconds for one operation, with connecting and committing.
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
        self.circuit = Circuit()
        self.closings = 0
        self._clock = clock
        self._current = threading.local()
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._engine = _engine(self.url, deadline)
        # Not methods: the engine must not keep this object, which closes it when it goes.
        event.listen(self._engine, "do_connect", partial(_dial, self._current, {}))
        event.listen(self._engine, "checkout", partial(_checked_out, self._current))
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
    def write(self, within: float | None = None) -> Iterator[Connection]:
        """A transaction that may write; committed at the end, rolled back after an error.

        Args:
            within: Seconds it may take; default: the deadline of the database.

        Raises:
            StoreUnavailableError: It took longer, the database cannot be reached, or the circuit is open.
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
        self.circuit.enter()
        with watched(self.deadline if within is None else within) as operation:
            try:
                with self._connected(operation, writes) as connection:
                    yield connection
            except (SQLAlchemyError, StoreUnavailableError) as error:
                why = _unavailable(error, operation)
                if why is None:
                    self.circuit.note(failed=False)
                    raise
                waited = operation.left < 0.9 * operation.seconds  # what fails at once costs nothing to try again
                # A shorter time says nothing about the database.
                if waited and operation.seconds >= 0.9 * self.deadline:
                    self.circuit.note(failed=True)
                raise StoreUnavailableError(
                    f"the review store {why}. If this was written, it may or may not be stored: repeat it under the "
                    "same key. Check that the database runs and answers."
                ) from error
            except Exception:  # the database answered
                self.circuit.note(failed=False)
                raise
            self.circuit.note(failed=False)

    @contextmanager
    def _connected(self, operation: Operation, writes: bool) -> Iterator[Connection]:
        """A connection on which a transaction has begun; it is committed at the end."""
        opened, self._current.operation = self.closings, operation
        try:
            if self._sqlite and writes:
                with self._writers.write(operation.left) as connection:
                    # Several threads write in this transaction, so only the thread whose turn it is may interrupt it.
                    operation.break_off = getattr(connection.connection.dbapi_connection, "interrupt", None)
                    try:
                        _check_in_time(operation)
                        yield connection
                    finally:
                        operation.break_off = None
                return
            if not self._slots.acquire(timeout=operation.left):
                raise StoreUnavailableError(f"has all {CONNECTIONS} connections of this process in use")
            try:
                with self._begun(operation) as connection:
                    try:
                        yield connection
                        connection.commit()
                    finally:
                        if self.closings != opened:  # closed meanwhile by another thread: its pool is gone
                            connection.invalidate()
            finally:
                self._slots.release()
        finally:
            self._current.operation = None

    def _begun(self, operation: Operation) -> Connection:
        connection = self._connect()
        try:
            _begin(connection, operation)
        except DBAPIError as error:
            connection.close()
            if operation.late or not error.connection_invalidated:
                raise
            # The server closed the idle connection, e.g. in a restart. The pool has dropped the other ones as well.
            connection = self._connect()
            _begin(connection, operation)
        return connection

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
        began = connection.info.get("review_now")  # PostgreSQL: when the transaction began
        return time.time() if began is None else float(began)

    def close(self) -> None:
        """Close all connections. They are opened again when needed."""
        self.closings += 1
        self.engine.dispose()

    def _prepare(self) -> None:
        try:
            with self.read() as connection:
                layout = _layout(connection)
            if layout is None:
                layout = self._with_tables()
        except (DatabaseError, StoreUnavailableError) as error:
            self.close()
            raise UsageError(f"cannot open the review store {_shown(self.url)}: {_first_line(error)}.") from error
        if layout != schema.LAYOUT:
            self.close()
            raise UsageError(
                f"the review store {_shown(self.url)} has layout {layout!r}; this version of acrc-guardrail reads "
                f"{schema.LAYOUT!r}. Upgrade acrc-guardrail to the version that wrote it, or use another database."
            )

    def _with_tables(self) -> str | None:
        """Make the tables, one process at a time; the layout, also if another process made them in between."""
        with self.write(_OPENING) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            if _layout(connection) is None:
                schema.make_tables(connection)
            return _layout(connection)


_BEGIN = text(
    "SELECT extract(epoch FROM clock_timestamp()), set_config('statement_timeout', :work, true), "
    "set_config('idle_in_transaction_session_timeout', :idle, true)"
)


def _begin(connection: Connection, operation: Operation) -> None:
    """Begin the transaction, with limits for the server: it must not hold locks for a client that has gone."""
    if connection.dialect.name != "postgresql":
        connection.begin()
        return
    limits = {"work": f"{int(operation.seconds * 1000)}ms", "idle": f"{int(2 * operation.seconds * 1000)}ms"}
    connection.info["review_now"] = float(connection.execute(_BEGIN, limits).one()[0])


def _dial(
    current: threading.local, left: dict[int, Future[Any]], dialect: Any, _record: Any, arguments: Any, options: Any
) -> Any:
    """Connect in a thread, because neither a name look-up nor a connection attempt can be broken off.

    Args:
        current: The operation of this thread.
        left: By process, an attempt that its operation no longer waits for. While it goes on, no other attempt begins.
        dialect: Dialect of the engine.
        arguments: Positional arguments of the driver.
        options: Keyword arguments of the driver.
    """
    operation: Operation | None = getattr(current, "operation", None)
    if operation is None or dialect.name != "postgresql":
        return None  # SQLAlchemy connects
    earlier = left.get(os.getpid())
    if earlier is not None and wait([earlier], operation.left).not_done:
        operation.late = True
        raise StoreUnavailableError("cannot be reached")
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(dialect.connect(*arguments, **options))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="guardrail-connect", daemon=True).start()
    try:
        connection = future.result(operation.left)
    except TimeoutError:
        left[os.getpid()] = future
        future.add_done_callback(_close_unused)
        operation.late = True
        raise StoreUnavailableError("cannot be reached") from None
    operation.break_off = partial(_shut_down, connection)
    if operation.late:  # the watchdog ran before `break_off` was set and does not come back
        connection.close()
        raise StoreUnavailableError("cannot be reached")
    return connection


def _checked_out(current: threading.local, connection: Any, _record: Any, _proxy: Any) -> None:
    operation: Operation | None = getattr(current, "operation", None)
    if operation is None:
        return
    interrupt = getattr(connection, "interrupt", None)
    if interrupt is not None:  # SQLite
        connection.execute(f"PRAGMA busy_timeout={int(operation.left * 1000)}").close()
    operation.break_off = interrupt or partial(_shut_down, connection)
    _check_in_time(operation)


def _check_in_time(operation: Operation) -> None:
    """Refuse to begin an operation whose time ran out while it had no connection: the watchdog does not come back."""
    if operation.late:
        raise StoreUnavailableError("got no connection in time")


def _unavailable(error: Exception, operation: Operation) -> str | None:
    """Why the database could not be used, in words; None if it answered and refused a statement."""
    if operation.late:
        return f"did not answer within {operation.seconds:g} s"
    if isinstance(error, StoreUnavailableError):
        return str(error)
    if isinstance(error, NoTurnError):
        return f"is busy: {error}"
    if not isinstance(error, DBAPIError):
        return None
    kind = type(error.orig).__name__
    connecting = error.statement is None
    if error.connection_invalidated or connecting or _takes_nothing(error.orig):
        return f"failed: {_first_line(error)}"
    locked = kind == "OperationalError" and "locked" in str(error.orig)
    return f"is locked by another process for more than {operation.seconds:g} s" if locked else None


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


def _shut_down(connection: Any) -> None:
    """Shut the socket of a psycopg connection down, so that the thread that waits for it gets an error."""
    with suppress(Exception), socket(fileno=os.dup(connection.fileno())) as channel:  # it may be closed already
        channel.shutdown(SHUT_RDWR)


def _close_unused(connecting: Future[Any]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


_open: WeakSet[Database] = WeakSet()
"""The open databases on SQLite."""


def _close_before_fork() -> None:
    """SQLite keeps its file locks by process, so a child must not have a connection of its parent."""
    for database in list(_open):
        database.close()


def _new_after_fork() -> None:
    """Replace the writers: a thread that does not exist in the child may have had its turn."""
    for database in list(_open):
        database._writers = database._new_writers()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_close_before_fork, after_in_child=_new_after_fork)


def _identity(url: URL) -> tuple[int, int] | None:
    """Device and inode of an SQLite file; None if the file does not exist."""
    try:
        status = os.stat(str(url.database))
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _layout(connection: Connection) -> str | None:
    """The layout of the tables; None in a database without tables."""
    if not inspect(connection).has_table(schema.meta.name):
        return None
    query = select(schema.meta.c.value).where(schema.meta.c.name == "layout")
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


def _engine(url: URL, deadline: float) -> Engine:
    try:
        if url.get_backend_name() == "postgresql":
            # An attempt that no operation waits for any more must end, too.
            connecting = url.query.get("connect_timeout", math.ceil(deadline))
            # `Database._slots` limits the connections and waits for a free one, so the pool itself never waits.
            engine = create_engine(
                url,
                pool_size=CONNECTIONS,
                max_overflow=0,
                isolation_level="READ COMMITTED",
                connect_args={"connect_timeout": connecting},
                hide_parameters=True,
            )
            event.listen(engine, "connect", _send_binary_lists)
            return engine
        assert url.database is not None
        path, patience = Path(url.database), min(deadline, SQLITE_PATIENCE)
        _refuse_lost_log(path)
        if _is_read_only(path):
            connect = partial(_connect_read_only, path, patience)
            engine = create_engine(url, creator=connect, max_overflow=-1, hide_parameters=True)
            event.listen(engine, "begin", _on_begin)
            return engine
        path.parent.mkdir(parents=True, exist_ok=True)
        create_private(path)  # SQLite gives the WAL files the same mode
        engine = create_engine(url, connect_args={"timeout": patience}, max_overflow=-1, hide_parameters=True)
    except OSError as error:
        raise UsageError(f"cannot open the review store {url.database!r}: {error.strerror}.") from error
    except NoSuchModuleError as error:
        raise UsageError(f"no driver for {_shown(url)}: {error}.") from error
    event.listen(engine, "connect", partial(_on_connect, min(deadline, SQLITE_PATIENCE)))
    event.listen(engine, "begin", _on_begin)
    return engine


def _refuse_lost_log(path: Path) -> None:
    """Refuse an SQLite file whose write-ahead log is gone: what was written since the last checkpoint was only there.

    A process that is killed leaves ``-wal`` and ``-shm``; the last one that closes the file removes both.
    """
    log, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    for attempt in range(2):
        if log.exists() or not index.exists():
            return
        if attempt == 0:
            time.sleep(0.1)  # another process may be opening or closing the file at this moment
    raise UsageError(
        f"{log} is missing, but {index.name} shows that the review store was not closed: items written last are lost "
        f"with it. Put {log.name} back, or delete {index.name} to go on with what is left in {path.name}."
    )


def _is_read_only(path: Path) -> bool:
    """Whether an SQLite file exists that cannot be written, e.g. on a read-only file system."""
    return path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _connect_read_only(path: Path, patience: float) -> sqlite3.Connection:
    """A connection that only reads. Every write fails with SQLITE_READONLY, which makes the store unavailable."""
    # Without a log SQLite would make one to read a WAL file; nobody writes to the file, so it can be read as it is.
    immutable = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode=ro{immutable}"
    connection = sqlite3.connect(uri, uri=True, timeout=patience, check_same_thread=False)
    connection.isolation_level = None
    return connection


def _send_binary_lists(connection: Any, _record: Any) -> None:
    # In text format psycopg searches each element of an array for characters to quote.
    connection.adapters.register_dumper(list, require("psycopg.types.array", extra="postgres").ListBinaryDumper)


def _on_connect(patience: float, connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    prepare_sqlite(connection, patience=patience)


def _on_begin(connection: Connection) -> None:
    # IMMEDIATE takes the write lock before reading, so that no decision rests on rows that another is changing.
    writes = connection.get_execution_options().get("review_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
