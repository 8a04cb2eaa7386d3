"""Requests in flight: identical requests share one answer, which a client that leaves does not stop.

A client whose connection breaks, or that waited too long, sends the same request again by itself. It joins the work
that is still running. Afterwards the guard's memory of draws (`guardrail.sampling.draws`) gives it the same verdict.
The memory alone would let both requests make all calls, and keep one answer of each; and a wave of a native sampler
that is cancelled with its client leaves nothing to continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["InFlight", "Work"]

T = TypeVar("T")


@dataclass(eq=False)
class Work(Generic[T]):
    """One request that is being answered, by a task that does not end with the clients that wait for it."""

    task: asyncio.Task[T]
    clients: int = 0


class InFlight(Generic[T]):
    """Running work by request."""

    def __init__(self) -> None:
        self._current: dict[str, Work[T]] = {}
        self.running: set[asyncio.Task[T]] = set()

    def get(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> Work[T]:
        """Work for a request, running or new; only equal requests share a key. The caller is one of its clients."""
        work = self._current.get(key)
        if work is None or work.task.cancelling():
            work = self._current[key] = Work(asyncio.get_running_loop().create_task(start()))
            self.running.add(work.task)
            work.task.add_done_callback(lambda task: self._ended(key, task))
        work.clients += 1
        return work

    def _ended(self, key: str, task: asyncio.Task[T]) -> None:
        self.running.discard(task)
        if (work := self._current.get(key)) is not None and work.task is task:  # not what began after its cancellation
            del self._current[key]

    def leave(self, work: Work[T], *, cancel: bool) -> None:
        """Count a client off that has its reply or is gone; with ``cancel``, stop work that nobody waits for."""
        work.clients -= 1
        if cancel and not work.clients:
            work.task.cancel()
