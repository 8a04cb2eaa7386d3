"""Requests in flight: identical requests share one answer, which a client that leaves does not stop.

A client whose connection breaks, or that waited too long, sends the same request again by itself. It joins the work
that is still running. Afterwards the guard's memory of draws (`guardrail.sampling.draws`) gives it the same verdict.
The memory alone would let both requests make all calls, and keep one answer of each; and a wave of a native sampler
that is cancelled with its client leaves nothing to continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["InFlight", "Work"]

T = TypeVar("T")
Start = Callable[[], Coroutine[Any, Any, T]]


@dataclass(eq=False)
class Work(Generic[T]):
    """One request that is being answered.

    Attributes:
        task: Answers the request; clients wait for it, and it does not end with them.
        clients: Number of clients that wait for it.
    """

    task: asyncio.Task[T] = field(init=False)
    clients: int = 0


class InFlight(Generic[T]):
    """Running work by request."""

    def __init__(self) -> None:
        self._current: dict[str, Work[T]] = {}
        self.running: set[asyncio.Task[T]] = set()

    def get(self, key: str, start: Start[T]) -> Work[T]:
        """The work for a request: that of an identical request, or new work. The caller is one of its clients.

        Args:
            key: Key that only equal requests share.
            start: Begins the work.
        """
        work = self._current.get(key)
        if work is None or work.task.cancelling():
            work = self._current[key] = Work()
            work.task = asyncio.get_running_loop().create_task(start())
            self.running.add(work.task)
            work.task.add_done_callback(partial(self._ended, key, work))
        work.clients += 1
        return work

    def _ended(self, key: str, work: Work[T], task: asyncio.Task[T]) -> None:
        self.running.discard(task)
        if self._current.get(key) is work:  # not the work that began after this one was cancelled
            del self._current[key]

    def leave(self, work: Work[T], *, cancel: bool) -> None:
        """Count a client off that has its reply or is gone; with ``cancel``, stop work that nobody waits for."""
        work.clients -= 1
        if cancel and not work.clients:
            work.task.cancel()
