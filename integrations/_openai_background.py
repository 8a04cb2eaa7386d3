"""An event loop in a thread of its own, on which sync calls to an endpoint run.

A thread that reads from a socket cannot be stopped: time-outs of sync HTTP clients hold for one read, so a server that
sends a byte now and then keeps such a call for as long as it likes. A task can be stopped wherever it waits, and its
connection is closed with it. So there is one way to talk to an endpoint, asynchronous, and sync calls wait for it here.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["is_background", "iterate", "run", "start_soon"]

T = TypeVar("T")
END = object()
PATIENCE_AT_EXIT = 5.0
"""Seconds in which connections may be closed when the process ends."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_of_parents: list[asyncio.AbstractEventLoop] = []
"""Loops that stayed behind in the parent process; kept, because collecting them would close what the parent uses."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine there and wait for it. When the wait is interrupted (Ctrl-C), it is cancelled."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _running())
    try:
        return future.result()
    finally:
        future.cancel()  # without effect on what is done
        del future  # an error knows this frame, and the frame must not know the error


def iterate(events: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate here over what is made there. Whoever stops early closes the connection."""
    queue: SimpleQueue[Any] = SimpleQueue()

    async def pump() -> None:
        async with aclosing(events):
            async for event in events:
                queue.put(event)

    future = asyncio.run_coroutine_threadsafe(pump(), _running())
    future.add_done_callback(lambda _: queue.put(END))
    try:
        while (event := queue.get()) is not END:
            yield event
        future.result()
    finally:
        future.cancel()
        del future


def is_background(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is the loop of sync calls, which lasts as long as the process."""
    return loop is _loop


def start_soon(coroutine: Coroutine[Any, Any, None]) -> None:
    """Have the loop of sync calls run something, without waiting for it; nothing happens once it is closed."""
    with suppress(RuntimeError):  # closed
        if _loop is not None:
            asyncio.run_coroutine_threadsafe(coroutine, _loop)
            return
    coroutine.close()


def _running() -> asyncio.AbstractEventLoop:
    """The loop, started when it is first needed."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(_loop,), name="guardrail-endpoints", daemon=True)
            thread.start()
            atexit.register(_stop, _loop, thread, os.getpid())
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())  # closes the clients, see _openai_clients
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, owner: int) -> None:
    if os.getpid() == owner and not loop.is_closed():
        with suppress(RuntimeError):  # closed just now
            loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_AT_EXIT)


def _forget() -> None:
    """A forked process has none of its parent's threads, so it starts a loop of its own."""
    global _loop, _lock
    _lock = threading.Lock()
    if _loop is not None:
        _of_parents.append(_loop)
        _loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
