"""Questions under way: equal ones share one answer, and no more are let in than are answered in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from .answers import GuardReply
from .config import Config, Key
from .errors import ApiError, unavailable

__all__ = ["InFlight", "Result", "Room"]

LOOK = 0.05
"""Seconds between two looks how late the event loop is."""
LEAST_ROOM = 16
"""Questions under way that are never too many."""
Result = GuardReply | ApiError


class InFlight:
    """Questions that run, by request: equal requests share one answer, which a client that leaves does not stop.

    A client whose connection breaks, or that waited too long, sends the same request again by itself. It joins the work
    that is still running. Afterwards the guard's memory of draws (`guardrail.sampling.draws`) gives it the same
    verdict. The memory alone would let both requests make all calls, and keep one answer of each; and a request of a
    native sampler that is cancelled with its client leaves nothing to continue.
    """

    def __init__(self) -> None:
        self._current: dict[str, asyncio.Task[Result]] = {}
        self.clients: dict[asyncio.Task[Result], int] = {}
        """Number of clients that wait for each running task."""

    def get(self, key: str, start: Callable[[], Coroutine[Any, Any, Result]]) -> asyncio.Task[Result]:
        """A task for a request, running or new; only equal requests share a key. The caller is one of its clients."""
        task = self._current.get(key)
        if task is None or task.cancelling():
            task = self._current[key] = asyncio.get_running_loop().create_task(start())
            self.clients[task] = 0
            task.add_done_callback(partial(self._ended, key))
        self.clients[task] += 1
        return task

    def _ended(self, key: str, task: asyncio.Task[Result]) -> None:
        del self.clients[task]
        if self._current.get(key) is task:  # not what began after its cancellation
            del self._current[key]

    def leave(self, task: asyncio.Task[Result], *, cancel: bool) -> None:
        """Count a client off that has its reply or is gone; with ``cancel``, stop a task that nobody waits for."""
        if task in self.clients:
            self.clients[task] -= 1
            if cancel and not self.clients[task]:
                task.cancel()

    async def stop(self, seconds: float) -> None:
        """Let what runs finish for so long, then cancel it."""
        if running := [*self.clients]:
            await asyncio.wait(running, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Room:
    """The questions that may be under way: fewer while the event loop runs late, and of each key its own number.

    A question takes about ten turns of the loop, and in each of them waits for all others. Questions that wait for a
    slow model take no turn, so any number of them leaves the loop in time.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.size = float(config.max_concurrency)
        """Questions that may be under way so that the event loop runs in time."""
        self.busy: Counter[str] = Counter()
        """Questions under way by the name of their key."""

    @contextmanager
    def taken(self, key: Key | None) -> Iterator[None]:
        """Count a question as under way; an `ApiError` above a limit."""
        name, own = ("", None) if key is None else (key.name, key.max_concurrency)
        if self.busy.total() >= min(self.size, self.config.max_concurrency):
            overloaded = unavailable("The gateway is overloaded. Try again.", "overloaded")
            raise replace(overloaded, headers={"Retry-After": "1"})
        if own is not None and self.busy[name] >= own:
            busy, headers = "Too many requests of this key are under way.", {"Retry-After": "2"}
            raise ApiError(429, busy, "rate_limit_exceeded", kind="rate_limit_error", headers=headers)
        self.busy[name] += 1
        try:
            yield
        finally:
            self.busy[name] -= 1

    async def watch(self) -> None:
        """Lower the room while the event loop runs late, and raise it step by step while it is in time."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK
            await asyncio.sleep(LOOK)
            if loop.time() - due > self.config.max_lag:
                self.size = max(LEAST_ROOM, 0.9 * min(self.size, self.busy.total()))
            else:
                self.size = min(self.size + 1, self.config.max_concurrency)
