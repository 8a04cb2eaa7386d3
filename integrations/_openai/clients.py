"""The SDK's clients of one model: one for each event loop and endpoint, closed when loop or model are gone."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from guardrail.errors import require

__all__ = ["Clients", "Sent", "counting", "is_background", "iterate", "run", "start_soon"]

openai = require("openai", extra="openai")


class Sent:
    """A count of the HTTP requests that left this machine whole."""

    def __init__(self) -> None:
        self.count = 0


_sent: ContextVar[Sent | None] = ContextVar("guardrail_sent", default=None)


@contextmanager
def counting() -> Iterator[Sent]:
    """Count the requests of this task. One that was cut off before it was written out is none, a redirect is one."""
    sent = Sent()
    token = _sent.set(sent)
    try:
        yield sent
    finally:
        _sent.reset(token)


async def _note(event: str, _: Mapping[str, Any]) -> None:
    if event.endswith("send_request_body.complete") and (sent := _sent.get()) is not None:
        sent.count += 1


async def _trace(request: Any) -> None:
    request.extensions["trace"] = _note


class Clients:
    """Made when first asked for. It does not know its model, so both go together.

    Copies of a model share it, and with it the connections, as long as address and credentials are the same.
    """

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[Clients], tuple[()]]:
        return Clients, ()  # a deep copy, or another process, starts without connections

    async def running(self, *, key: str, url: str | None, headers: Mapping[str, str]) -> Any:
        """The client of the running event loop; connections cannot move between loops.

        Args:
            key: The API key.
            url: Root of the API; None for OpenAI's.
            headers: Further HTTP headers of every request.
        """
        loop = asyncio.get_running_loop()
        mine, who = self._by_loop.setdefault(loop, {}), (key, url, tuple(sorted(headers.items())))
        if who not in mine:
            client = mine[who] = openai.AsyncOpenAI(
                api_key=key,
                base_url=url,
                default_headers=headers,
                max_retries=0,  # see _openai_transport
                timeout=None,  # likewise
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [_trace]}),
            )
            await _kept_by(loop).add(self, client)
        return mine[who]


class _Kept:
    """The clients of one event loop: closed when it shuts down, and earlier once their model is gone.

    A client cannot close itself where its model is collected: that happens anywhere, and a task made there is lost
    when the loop ends right after. So the next client that is made closes it; on the loop of sync calls, which lasts as
    long as the process, a task does.
    """

    def __init__(self, *, lasting: bool) -> None:
        self.lasting = lasting
        self.clients: set[Any] = set()
        self.orphans: deque[Any] = deque()
        self.keeper = self._close_with_loop()

    async def add(self, owner: Clients, client: Any) -> None:
        """Keep a client until its owner is collected."""
        await anext(self.keeper, None)  # from now on the loop knows it
        self.clients.add(client)
        weakref.finalize(owner, self._orphan, client).atexit = False
        await self._close_orphans()

    def _orphan(self, client: Any) -> None:
        """No lock and no wait: this runs wherever garbage is collected."""
        self.orphans.append(client)
        if self.lasting:
            start_soon(self._close_orphans())

    async def _close_orphans(self) -> None:
        while self.orphans:
            await self._close(self.orphans.popleft())

    async def _close(self, client: Any) -> None:
        await client.close()
        self.clients.discard(client)

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """``asyncio.run`` closes the asynchronous generators that are left."""
        try:
            while True:
                yield
        finally:
            while self.clients:
                await self._close(next(iter(self.clients)))


_kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = weakref.WeakKeyDictionary()
_keeping = threading.Lock()


def _kept_by(loop: asyncio.AbstractEventLoop) -> _Kept:
    with _keeping:
        for ended in [other for other in _kept if other.is_closed()]:  # closed without shutting its generators down
            del _kept[ended]
        return _kept.setdefault(loop, _Kept(lasting=is_background(loop)))


# -- An event loop in a thread of its own, on which sync calls to an endpoint run --------------------------------------
# A thread that reads from a socket cannot be stopped: time-outs of sync HTTP clients hold for one read, so a server
# that sends a byte now and then keeps such a call for as long as it likes. A task can be stopped wherever it waits,
# and its connection is closed with it. So there is one way to talk to an endpoint, asynchronous, and sync calls wait
# for it here.

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
