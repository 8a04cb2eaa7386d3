"""Calls side by side in threads, without making a fast model pay for threads that it does not need."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["side_by_side"]

Call = TypeVar("Call")
Reply = TypeVar("Reply")
PATIENCE = 0.002
"""Seconds in which the caller has to get two answers, or threads take part."""
REST = 150
"""Looks of the lookout at nothing before it goes to sleep."""
MOST_HELPERS = 256
"""Threads that all sync guards of a process share; started as they are needed."""
_helpers = ThreadPoolExecutor(MOST_HELPERS, thread_name_prefix="guardrail")


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised."""

    error: BaseException


def side_by_side(run: Callable[[Call], Reply], calls: Sequence[Call], workers: int) -> list[Reply]:
    """Run calls at once, the caller and at most ``workers - 1`` threads; see `_Crew`.

    Args:
        run: Makes one call. An `Exception` should be a reply; whatever is raised ends the whole.
        calls: What to run.
        workers: Most calls in flight.

    Returns:
        The replies, in the order of the calls.
    """
    crew = _Crew(run, calls, workers)
    try:
        if len(calls) > 1 and workers > 1:
            _lookout.watch(crew)
        crew.work()
        return crew.replies()
    except BaseException:  # Ctrl-C while calling or waiting: what has not begun is not begun
        crew.stop()
        raise


class _Crew(Generic[Call, Reply]):
    """The caller takes one call after the other, and threads of a shared pool help it.

    Handing every call to a thread would cost several times as much as a call to a fast model does. So the lookout calls
    them once the caller makes little progress: a fast model answers everything by itself, while calls that wait for a
    server run at once. As the caller helps itself, a pool that is busy (guards within guards, many batches) makes a
    call slower but cannot block it.
    """

    def __init__(self, run: Callable[[Call], Reply], calls: Sequence[Call], workers: int) -> None:
        self._run = run
        self._workers = workers
        self._context = copy_context()
        self._waiting = deque(enumerate(calls))
        self._made: SimpleQueue[tuple[int, Reply | _Raised]] = SimpleQueue()
        self._n = len(calls)
        self._seen: int | None = None

    def work(self) -> None:
        """Take calls until none is left."""
        while True:
            try:
                place, call = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._made.put((place, self._context.copy().run(self._run, call)))
            except BaseException as error:  # no Exception, which is a reply: the process is to end
                self.stop()
                self._made.put((place, _Raised(error)))

    def stop(self) -> None:
        """Start no further call; those under way go on, and nobody waits for them."""
        self._waiting.clear()

    def looked_after(self) -> bool:
        """Whether nothing is left to watch: all calls are taken, or helpers were called as the caller is slow."""
        before, self._seen = self._seen, self._made.qsize()
        if before is not None and self._seen < before + 2:  # one answer after the other would be slower
            for _ in range(min(len(self._waiting), self._workers - 1)):
                _helpers.submit(self.work)
            return True
        return not self._waiting

    def replies(self) -> list[Reply]:
        """All replies in the order of the calls, once they are there; what ends the process is raised at once."""
        found: dict[int, Reply] = {}
        while len(found) < self._n:
            place, reply = self._made.get()
            if isinstance(reply, _Raised):
                raise reply.error
            found[place] = reply
        return [found[place] for place in range(self._n)]


class _Lookout:
    """One thread that looks at every crew now and then, and sleeps while there are none.

    A thread of their own would cost crews of a fast model more than their calls do: waking it takes its time from them.
    """

    def __init__(self) -> None:
        self._new: deque[_Crew[Any, Any]] = deque()
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, crew: _Crew[Any, Any]) -> None:
        """Look after a crew from now on."""
        self._new.append(crew)
        if not self._awake.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._look, name="guardrail-lookout", daemon=True)
                    self._thread.start()
                self._awake.set()

    def _look(self) -> None:
        crews: list[_Crew[Any, Any]] = []
        idle = 0
        while True:
            self._awake.wait()
            time.sleep(PATIENCE)
            idle = 0 if self._new or crews else idle + 1
            while self._new:
                crews.append(self._new.popleft())
            try:
                crews = [crew for crew in crews if not crew.looked_after()]
            except RuntimeError:  # the interpreter ends, and starts no thread any more: callers do it all themselves
                crews = []
            if idle > REST:
                idle = 0
                self._awake.clear()
                if self._new:  # added between the look and the sleep
                    self._awake.set()


_lookout = _Lookout()


def _hire() -> None:
    """New threads after a fork: a child process has none of its parent's, and nothing would notice."""
    global _helpers, _lookout
    _helpers = ThreadPoolExecutor(MOST_HELPERS, thread_name_prefix="guardrail")
    _lookout = _Lookout()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hire)
