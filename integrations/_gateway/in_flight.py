"""Requests in flight: identical requests share one answer, which a client that leaves does not stop.

A client whose connection breaks, or that waited too long, sends the same request again by itself. It joins the work
that is still running. Afterwards the guard's memory of draws (`guardrail.sampling.draws`) gives it the same verdict.
The memory alone would let both requests make all calls, and keep one answer of each; and a request of a native sampler
that is cancelled with its client leaves nothing to continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["InFlight"]

T = TypeVar("T")


class InFlight(Generic[T]):
    """Running tasks by request; they do not end with the clients that wait for them."""

    def __init__(self) -> None:
        self._current: dict[str, asyncio.Task[T]] = {}
        self.clients: dict[asyncio.Task[T], int] = {}
        """Number of clients that wait for each running task."""

    def get(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """A task for a request, running or new; only equal requests share a key. The caller is one of its clients."""
        task = self._current.get(key)
        if task is None or task.cancelling():
            task = self._current[key] = asyncio.get_running_loop().create_task(start())
            self.clients[task] = 0
            task.add_done_callback(partial(self._ended, key))
        self.clients[task] += 1
        return task

    def _ended(self, key: str, task: asyncio.Task[T]) -> None:
        del self.clients[task]
        if self._current.get(key) is task:  # not what began after its cancellation
            del self._current[key]

    def leave(self, task: asyncio.Task[T], *, cancel: bool) -> None:
        """Count a client off that has its reply or is gone; with ``cancel``, stop a task that nobody waits for."""
        if task in self.clients:
            self.clients[task] -= 1
            if cancel and not self.clients[task]:
                task.cancel()
