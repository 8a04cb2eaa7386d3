"""How many model calls may be in flight at once: `max_concurrency` of a run's configuration, shared by all it starts.

The outermost guarded call or batch whose configuration has a `max_concurrency` makes a `Limit`; what it starts finds it
through a context variable, in threads and in tasks. Every model call of a guard, its probe, its judges and its fallback
takes a slot. A call that turns out to be a guard itself gives its slot back before that guard draws, so whoever waits
for a slot holds none, and guards within guards cannot block each other.

Not counted: native samplers, which draw all samples in one go, and plain calls that a model makes itself after a guard
within it has drawn.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from ..errors import UsageError

__all__ = [
    "Bound",
    "Limit",
    "adopt",
    "ain_flight",
    "bound_for_threads",
    "bounded",
    "current_bound",
    "give_back",
    "in_flight",
    "limit_of",
]


class Limit:
    """At most n calls in flight, counted over threads and event loops; first come, first served.

    Args:
        n: Slots; at least 1.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._free = n
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()

    def acquire(self) -> None:
        """Wait for a slot; blocks the thread."""
        turn = self._turn()
        if turn is None:
            return
        try:
            turn.result()
        except BaseException:  # interrupted while waiting
            self._withdraw(turn)
            raise

    async def aacquire(self) -> None:
        """Wait for a slot without blocking the event loop."""
        turn = self._turn()
        if turn is None:
            return
        try:
            await asyncio.wrap_future(turn)
        except BaseException:  # cancelled while waiting
            self._withdraw(turn)
            raise

    def release(self) -> None:
        """Hand the slot to whoever has waited longest."""
        with self._lock:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        turn.set_result(None)

    def _turn(self) -> Future[None] | None:
        """None where a slot was free and is taken now; else what resolves when one is handed over."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._queue.append(turn)
            return turn

    def _withdraw(self, turn: Future[None]) -> None:
        if not turn.cancel():  # it was handed over at this very moment
            self.release()


class _Slot:
    """What one call in flight holds: a place in every limit around it."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._held: list[Limit] = []

    def take(self) -> None:
        try:
            for limit in self._limits:
                limit.acquire()
                self._held.append(limit)
        except BaseException:
            self.leave()
            raise

    async def atake(self) -> None:
        try:
            for limit in self._limits:
                await limit.aacquire()
                self._held.append(limit)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give everything back; once is enough."""
        with self._lock:
            held, self._held = self._held, []
        for limit in held:
            limit.release()


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits that calls of this context are under.

    Attributes:
        limits: The tightest first, that is the innermost.
        slot: Of the model call that this context is in, or None.
    """

    limits: tuple[Limit, ...]
    slot: _Slot | None = None

    @property
    def n(self) -> int:
        """Calls that can be in flight at once."""
        return self.limits[0].n

    def draws(self) -> None:
        """To be called before several calls are made: the model call around them, if any, gives its slot back."""
        if self.slot is not None:
            self.slot.leave()

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """One model call of a thread, in a slot."""
        slot = _Slot(self.limits)
        slot.take()
        token = _bound.set(Bound(self.limits, slot))
        try:
            yield
        finally:
            _bound.reset(token)
            slot.leave()

    @asynccontextmanager
    async def ain_flight(self) -> AsyncIterator[None]:
        """One model call of a task, in a slot."""
        slot = _Slot(self.limits)
        await slot.atake()
        token = _bound.set(Bound(self.limits, slot))
        try:
            yield
        finally:
            _bound.reset(token)
            slot.leave()


_bound: ContextVar[Bound | None] = ContextVar("guardrail_bound", default=None)


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
    around = _bound.get()
    if n is None or (around is not None and n >= around.n):
        yield
        return
    token = _bound.set(Bound((Limit(n),), None) if around is None else Bound((Limit(n), *around.limits), around.slot))
    try:
        yield
    finally:
        _bound.reset(token)


def current_bound() -> Bound | None:
    """The limits of this context, for tasks; None without."""
    return _bound.get()


def bound_for_threads() -> Bound | None:
    """The limits of this context, for calls that block.

    On an event loop that is running, a blocking call would keep those from finishing whose slot it waits for; it counts
    its own calls only.
    """
    found = _bound.get()
    if found is None:
        return None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return found
    return Bound((Limit(found.n),))


def adopt(bound: Bound | None) -> None:
    """Put a thread that has no context of its own under these limits."""
    _bound.set(bound)


def give_back() -> None:
    """To be called before waiting for what others may need a slot for: see `Bound.draws`."""
    found = _bound.get()
    if found is not None:
        found.draws()


@contextmanager
def in_flight() -> Iterator[None]:
    """One model call of a thread, in a slot where the context has a limit."""
    found = bound_for_threads()
    if found is None:
        yield
        return
    with found.in_flight():
        yield


@asynccontextmanager
async def ain_flight() -> AsyncIterator[None]:
    """One model call of a task, in a slot where the context has a limit."""
    found = _bound.get()
    if found is None:
        yield
        return
    async with found.ain_flight():
        yield
