"""Deadlines of database operations on the client's side, and a circuit that opens after repeated failures.

A server that hangs keeps its sockets open, so neither the driver nor TCP ends an operation. One daemon thread of the
process watches the operations and breaks off those that are late: it shuts down the socket (PostgreSQL) or interrupts
the statement (SQLite), and the thread that waits gets an error at once.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import StoreUnavailableError

__all__ = ["DEADLINE", "Circuit", "Operation", "watched"]

DEADLINE = 5.0
"""Default seconds for one operation."""
FAILURES, PAUSE = 3, 5.0
"""Failures in a row that open the circuit, and the seconds for which it then refuses all operations except one."""


class Operation:
    """One operation under a deadline.

    Args:
        seconds: Time for all of it, with connecting and committing.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.late = False
        """Whether it was broken off."""
        self.break_off: Callable[[], object] | None = None
        """Raises an error in the thread that waits; None while the operation has no connection."""

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.end - time.monotonic())


class Circuit:
    """Opens after `FAILURES` failures in a row: it lets one operation try every `PAUSE` seconds and refuses the others.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._again = 0.0

    def enter(self) -> None:
        """Let an operation begin.

        Raises:
            StoreUnavailableError: The circuit is open.
        """
        with self._lock:
            if self._failures < FAILURES:
                return
            left = self._again - self._clock()
            if left > 0:
                raise StoreUnavailableError(
                    f"the review store failed {self._failures} times in a row, so it is not asked for another "
                    f"{left:.1f} s. Nothing was read or written. Check that the database runs and answers."
                )
            self._again = self._clock() + PAUSE  # the operation that enters now tries for all

    def note(self, *, failed: bool) -> None:
        """Count the outcome of an operation."""
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if failed:
                self._again = self._clock() + PAUSE


class _Watchdog:
    """The thread that breaks off late operations; started when it is first needed, and again after a fork."""

    def __init__(self) -> None:
        self._owner = 0

    def add(self, operation: Operation) -> None:
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._changed = threading.Condition()
            self._running: set[Operation] = set()
            self._wakes = math.inf
            threading.Thread(target=self._run, name="guardrail-deadlines", daemon=True).start()
        with self._changed:
            self._running.add(operation)
            if operation.end < self._wakes:
                self._changed.notify()

    def remove(self, operation: Operation) -> None:
        with self._changed:  # so that `_run` is not breaking it off: its connection may go to another operation now
            self._running.discard(operation)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for operation in [running for running in self._running if running.end <= now]:
                    self._running.discard(operation)
                    operation.late = True
                    if operation.break_off is not None:
                        operation.break_off()
                self._wakes = min((running.end for running in self._running), default=math.inf)
                self._changed.wait(None if self._wakes == math.inf else max(0.0, self._wakes - now))


_WATCHDOG = _Watchdog()
_STARTING = threading.Lock()


@contextmanager
def watched(seconds: float) -> Iterator[Operation]:
    """An operation that is broken off when its deadline has passed."""
    operation = Operation(seconds)
    with _STARTING:
        _WATCHDOG.add(operation)
    try:
        yield operation
    finally:
        _WATCHDOG.remove(operation)
