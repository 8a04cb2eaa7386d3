"""Turns of the threads of a process that write to an SQLite file: in the order of asking, several writes in a commit.

SQLite gives its lock to the writer that happens to try at the right moment, so with eight threads some wait for
seconds; and each commit waits for the disk. Here a thread that has written while others wait hands its open transaction
to the next thread; the last thread commits for all. Each thread writes in a savepoint, so that a failed write is undone
alone. No write returns before it is on disk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoTurnError

__all__ = ["Writers"]

_TOGETHER = 32
"""Largest number of writes in one commit."""


class Writers:
    """Gives threads one transaction after another, or together.

    Args:
        connect: Opens a connection whose transaction takes SQLite's lock when it begins.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._mutex, self._taken = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()
        self._batch: _Transaction | None = None  # of the thread that has its turn

    @contextmanager
    def write(self, patience: float) -> Iterator[Connection]:
        """A transaction, committed when this returns.

        Raises:
            sqlalchemy.exc.TimeoutError: Earlier threads, or later threads in the same commit, took longer than
                ``patience`` seconds. In the second case the write may be stored.
            sqlalchemy.exc.OperationalError: The commit failed; none of its writes is stored.
        """
        end = time.monotonic() + patience
        self._take_turn(patience)
        try:
            batch = self._batch = self._batch or _Transaction(self._connect())
            with batch.part() as connection:
                yield connection
        finally:
            self._end_turn()
        batch.wait(max(0.0, end - time.monotonic()))

    def _take_turn(self, patience: float) -> None:
        mine, has_turn = threading.Lock(), False
        mine.acquire()
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            self._waiting.append(mine)
        try:
            has_turn = mine.acquire(timeout=patience)
        finally:
            if not has_turn:
                with self._mutex:
                    waits = mine in self._waiting
                    if waits:
                        self._waiting.remove(mine)
                if not waits:  # the turn came at this very moment
                    self._end_turn()
        if not has_turn:
            raise NoTurnError(f"other threads were writing to the review store for more than {patience:g} s")

    def _end_turn(self) -> None:
        """Hand the turn, with the open transaction, to the next thread; without one, commit."""
        # The limit ends a batch while threads keep coming: its first threads wait for the commit.
        if (self._batch is None or self._batch.parts < _TOGETHER) and self._handed_over():
            return
        batch, self._batch = self._batch, None
        try:
            if batch is not None:
                batch.commit()
        finally:
            self._handed_over(or_free=True)

    def _handed_over(self, *, or_free: bool = False) -> bool:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
                return True
            self._taken = self._taken and not or_free
            return False


class _Transaction:
    """One transaction with the writes of several threads, one after another."""

    def __init__(self, connection: Connection) -> None:
        self.parts = 0
        self._connection = connection
        self._error: BaseException | None = None
        self._done = threading.Event()
        try:
            self._transaction = connection.begin()
        except BaseException:
            connection.close()
            raise

    @contextmanager
    def part(self) -> Iterator[Connection]:
        """The connection, in a savepoint."""
        self.parts += 1
        self._check()
        self._connection.exec_driver_sql("SAVEPOINT part")
        try:
            yield self._connection
        except BaseException:
            self._check()
            self._connection.exec_driver_sql("ROLLBACK TO part")
            raise
        finally:
            if self._open:
                self._connection.exec_driver_sql("RELEASE part")

    def commit(self) -> None:
        """Commit, and wake the threads that wait for it."""
        try:
            self._check()
            self._transaction.commit()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._connection.close()
            self._done.set()

    def wait(self, patience: float) -> None:
        """Wait for the commit, and raise its error."""
        if not self._done.wait(patience):
            raise NoTurnError("threads that commit together took too long")
        if self._error is not None:
            cause = getattr(self._error, "orig", None) or self._error
            raise OperationalError(None, None, cause) from self._error

    @property
    def _open(self) -> bool:
        return bool(self._connection.connection.dbapi_connection.in_transaction)  # type: ignore[union-attr]

    def _check(self) -> None:
        """Raise if SQLite has rolled back the transaction, e.g. on a full disk: a write would begin another one."""
        if not self._open:
            raise OperationalError(None, None, OSError("SQLite undid the transaction after an error"))
