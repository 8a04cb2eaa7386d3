"""Limits on model calls in flight: `max_concurrency` of a run's configuration, shared by all calls that it starts.

The outermost guarded call or batch whose configuration has a `max_concurrency` makes a `Limit`; the calls that it
starts find the limit through a context variable, in threads and in tasks. Every model call of a guard, its probe, its
judges and its fallback takes a slot. A call that is itself a guard keeps its slot and makes its own calls inside it,
one after the other: guards within guards stay within the limit and cannot block each other.

A native sampler is not counted, because it draws all samples in one call; that of an endpoint counts its requests.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from ..errors import UsageError
from .effects import Effect, Steps, arun, run

DEFAULT_CONCURRENCY = 16
"""Calls in flight at once, unless the caller says otherwise."""
_with_locks: WeakSet[Any] = WeakSet()


def new_lock(owner: Any) -> threading.Lock:
    """A lock for ``owner._lock``. A forked process gets a new one, because the thread that held the old one is gone."""
    _with_locks.add(owner)
    return threading.Lock()


def _after_fork() -> None:
    for owner in list(_with_locks):
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Limit:
    """At most n calls in flight, counted over threads and event loops; first come, first served.

    Args:
        n: Slots; at least 1.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._free = n
        self._lock = new_lock(self)
        self._queue: deque[Future[None]] = deque()

    def acquire(self) -> Steps[None]:
        """Wait for a slot."""
        turn = self._turn()
        if turn is None:
            return
        try:
            yield Effect(turn.result, lambda: asyncio.wrap_future(turn))
        except BaseException:  # interrupted or cancelled while waiting: the slot must go to the next caller
            self._withdraw(turn)
            raise

    def release(self) -> None:
        """Hand the slot to the caller that has waited longest."""
        with self._lock:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():  # False for a caller that gave up: the next one gets the slot
                    break
            else:
                self._free += 1
                return
        turn.set_result(None)

    def _turn(self) -> Future[None] | None:
        """Take a free slot and return None; otherwise return a future that resolves when a slot is handed over."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._queue.append(turn)
            return turn

    def _withdraw(self, turn: Future[None]) -> None:
        if not turn.cancel():  # the slot was handed over at this very moment
            self.release()


_limits: ContextVar[tuple[Limit, ...]] = ContextVar("guardrail_limits", default=())
"""The limits that calls of this context are under, the tightest (innermost) first; empty for no limit."""


def limit_of(config: RunnableConfig | Sequence[RunnableConfig] | None) -> int | None:
    """`max_concurrency` of a call's configuration (the first one of a batch's), else of the run it is made in.

    Raises:
        UsageError: Not a whole number of at least 1.
    """
    if config is not None and not isinstance(config, dict):
        config = config[0] if config else None
    n = config.get("max_concurrency") if config else None
    if n is None:
        ambient = var_child_runnable_config.get()
        n = ambient.get("max_concurrency") if ambient else None
    if n is not None and (not isinstance(n, int) or n < 1):
        raise UsageError(f"max_concurrency must be a whole number of at least 1, got {n!r}. Leave it out for no limit.")
    return n


@contextmanager
def bounded(n: int | None) -> Iterator[None]:
    """At most n calls in flight inside, together; a limit around it that is as tight is shared instead."""
    around = _limits.get()
    if n is None or (around and n >= around[0].n):
        yield
        return
    with _under((Limit(n), *around)):
        yield


def current_limits() -> tuple[Limit, ...]:
    """The limits of this context, the tightest first."""
    return _limits.get()


def limits_for_threads() -> tuple[Limit, ...]:
    """The limits of this context, for calls that block.

    On a running event loop a blocking call would keep those tasks from finishing whose slots it waits for, so it counts
    only its own calls.
    """
    limits = _limits.get()
    if not limits:
        return ()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return limits
    return (Limit(limits[0].n),)


def adopt_limits(limits: tuple[Limit, ...]) -> None:
    """Put the current context under these limits, for good."""
    _limits.set(limits)


def take_slot(slots: ExitStack) -> Effect:
    """Wait for a slot of every limit of the context, for one model call; ``slots`` gives them back when it closes."""
    return Effect(
        lambda: run(_take_slots(limits_for_threads(), slots)), lambda: arun(_take_slots(_limits.get(), slots))
    )


def _take_slots(limits: Sequence[Limit], slots: ExitStack) -> Steps[None]:
    for limit in limits:
        yield from limit.acquire()
        slots.callback(limit.release)
    if limits:
        slots.enter_context(_under((Limit(1),)))  # a guard inside this call makes its calls one after the other


@asynccontextmanager
async def ain_flight() -> AsyncIterator[None]:
    """One model call of a task, in a slot of every limit of the context."""
    with ExitStack() as slots:
        await take_slot(slots).arun()
        yield


@contextmanager
def _under(limits: tuple[Limit, ...]) -> Iterator[None]:
    token = _limits.set(limits)
    try:
        yield
    finally:
        _limits.reset(token)
