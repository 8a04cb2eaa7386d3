"""An event loop in a background thread, on which async code runs for sync callers."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from .limits import new_lock

# A thread that reads from a socket cannot be stopped: time-outs of sync HTTP clients hold for one read, so a server
# that sends a byte now and then can keep such a call for ever. A task can be stopped wherever it waits, and its
# connection is closed with it. All calls to a model behind a network are therefore asynchronous, and sync callers wait
# for them here.

T = TypeVar("T")
END = object()
SECONDS_AT_EXIT = 5.0
"""Seconds that the process waits at its end for connections to close."""


class BackgroundLoop:
    """Runs coroutines for sync callers, with their context, also for those inside a running event loop.

    The thread starts with the first call and lasts as long as the process, because async clients have to stay on the
    event loop that they first ran on. A forked process starts a thread for itself.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, new_lock(self)
        self._loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}
        """By process: a forked one inherits the loop of its parent, whose thread it lacks."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it. If the wait is interrupted (Ctrl-C), the coroutine is cancelled.

        Raises:
            RuntimeError: The caller is itself a coroutine on this loop, which would wait for ever.
        """
        loop, thread = self._running()
        if threading.current_thread() is thread:
            raise RuntimeError("a sync call from this event loop thread would wait for itself. Use the async call.")
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        finally:
            future.cancel()  # no effect on a finished task
            del future  # an error refers to this frame, so this frame must not refer to the error

    def iterate(self, events: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over the values of a generator on the event loop. Stopping early closes the generator."""

        async def step() -> Any:
            return await anext(events, END)

        try:
            while (event := self.run(step())) is not END:
                yield event
        finally:
            self.run(events.aclose())

    def _running(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        """The loop and its thread, started if necessary."""
        with self._lock:
            loop, thread = self._loops.get(os.getpid(), (None, None))
            if loop is None or thread is None or not thread.is_alive():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
                thread.start()
                self._loops[os.getpid()] = loop, thread
                atexit.register(_stop, loop, thread, os.getpid())
            return loop, thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, owner: int) -> None:
    """Cancel what runs, and close the async generators, which close clients at their end."""
    if os.getpid() != owner or not thread.is_alive():
        return

    async def end() -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await loop.shutdown_asyncgens()

    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(end(), loop).result(SECONDS_AT_EXIT)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(SECONDS_AT_EXIT)
