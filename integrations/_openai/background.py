"""An event loop in a background thread, on which async code runs for sync callers."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["BackgroundLoop"]

# A thread that reads from a socket cannot be stopped: time-outs of sync HTTP clients hold for one read, so a server
# that sends a byte now and then can keep such a call for ever. A task can be stopped wherever it waits, and its
# connection is closed with it. All calls to a model behind a network are therefore asynchronous, and sync callers wait
# for them here.

T = TypeVar("T")
END = object()
SECONDS_AT_EXIT = 5.0
"""Seconds that the process waits at its end for connections to close."""


class _Running(NamedTuple):
    portal: BlockingPortal
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


class BackgroundLoop:
    """Runs coroutines for sync callers, also for those inside a running event loop.

    The thread starts with the first call and lasts as long as the process, because async clients have to stay on the
    event loop that they first ran on. A forked process starts a thread for itself.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._of_parents: list[_Running] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it. If the wait is interrupted (Ctrl-C), the coroutine is cancelled."""
        future: Future[T] = self._portal().start_task_soon(lambda: coroutine)
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

    def _portal(self) -> BlockingPortal:
        """The portal, started if necessary."""
        with self._lock:
            if self._running is None or not self._running.thread.is_alive():
                started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
                thread = threading.Thread(target=_serve, args=(started,), name=self._name, daemon=True)
                thread.start()
                self._running = _Running(*started.result(), thread)
                atexit.register(_stop, self._running, os.getpid())
            return self._running.portal

    def _forget(self) -> None:
        """Forget the parent's thread, which a forked process lacks, but keep its loop: collecting it would close it."""
        self._lock = threading.Lock()
        if self._running is not None:
            self._of_parents.append(self._running)
            self._running = None


def _serve(started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result((portal, asyncio.get_running_loop()))
            await portal.sleep_until_stopped()

    try:
        anyio.run(main)  # its end closes async generators, which close the clients (`_LoopClients`)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


def _stop(running: _Running, owner: int) -> None:
    if os.getpid() == owner and running.thread.is_alive():
        with suppress(RuntimeError):  # closed just now
            running.portal.start_task_soon(running.portal.stop, True)
        running.thread.join(SECONDS_AT_EXIT)
