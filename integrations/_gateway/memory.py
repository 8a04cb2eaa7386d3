"""Requests that are being answered, or were: an identical one that a client repeats is never drawn again.

A client whose connection breaks, or that waited too long, sends the same request again by itself. Uncertain questions
take longest, so drawing again would select: the error rate among answers would be what the retries make of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Repeats", "Work"]

T = TypeVar("T")
MOST = 10_000
"""Results that are remembered at once; the oldest make room."""


@dataclass(eq=False)
class Work(Generic[T]):
    """One request that is being answered, or was.

    Attributes:
        task: Answers it; clients wait for it, and it does not end with them.
        clients: Clients that wait for it.
        ends: Until when its result is remembered; None while it runs.
        is_new: Whether the last `Repeats.get` began it.
    """

    task: asyncio.Task[T]
    clients: int = 0
    ends: float | None = None
    is_new: bool = True


class Repeats(Generic[T]):
    """Work by request.

    Args:
        seconds: How long a result is remembered.
        keep: Whether a result is remembered at all.
        clock: Seconds that only grow.
    """

    def __init__(
        self, seconds: float, keep: Callable[[T], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._keep, self._clock = seconds, keep, clock
        self._known: OrderedDict[str, Work[T]] = OrderedDict()
        self._running: set[asyncio.Task[T]] = set()

    @property
    def running(self) -> frozenset[asyncio.Task[T]]:
        """What has not ended, wanted by a client or not."""
        return frozenset(self._running)

    def get(self, key: str, start: Callable[[], Awaitable[T]], *, repeated: bool) -> Work[T]:
        """The work for a request: what is known of an identical one, or new.

        A request that says that it is a repetition joins or gets the result. Any other joins only what runs on after
        its client has gone: two clients that ask the same at once are two questions.

        Args:
            key: Of equal requests.
            start: Begins the work.
            repeated: Whether the client says that it asks again.
        """
        now = self._clock()
        found = self._known.get(key)
        if found is not None and ((found.ends is not None and found.ends <= now) or found.task.cancelling()):
            found = None
        if found is not None and (repeated or (found.ends is None and not found.clients)):
            found.is_new = False
            return found

        async def answer() -> T:
            return await start()

        work = Work(asyncio.get_running_loop().create_task(answer()))
        self._known[key] = work
        self._known.move_to_end(key)
        self._running.add(work.task)
        work.task.add_done_callback(lambda _: self._ended(key, work))
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return work

    def _ended(self, key: str, work: Work[T]) -> None:
        task = work.task
        self._running.discard(task)
        kept = not task.cancelled() and task.exception() is None and self._keep(task.result())
        if kept and self._seconds > 0:
            work.ends = self._clock() + self._seconds
        elif self._known.get(key) is work:
            del self._known[key]
        while (
            self._known and (first := next(iter(self._known.values()))).ends is not None and first.ends <= self._clock()
        ):
            self._known.popitem(last=False)
