"""The SDK's HTTP clients of one model: one for each event loop and endpoint, closed with their loop or their model."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from guardrail.errors import GuardrailError, require

from .background import BackgroundLoop

__all__ = ["Clients", "LargeReplyError", "NoRoomError", "Sent", "counting", "endpoint_loop", "holding"]

openai = require("openai", extra="openai")
AT_ONCE = 32
"""Requests of one client at once; further requests get another client, because a pool scans all its connections."""
IDLE = 15.0
"""Seconds after which a client that is not used is closed, with its connections."""
endpoint_loop = BackgroundLoop("guardrail-endpoints")
"""Event loop on which the sync calls of all endpoints run."""


class LargeReplyError(GuardrailError, ValueError):
    """A reply is longer than ``max_reply`` allows."""


class NoRoomError(GuardrailError):
    """There is no room for a reply now; later there may be."""


class Sent:
    """A count of the HTTP requests that were sent completely."""

    def __init__(self) -> None:
        self.count = 0


_sent: ContextVar[Sent | None] = ContextVar("guardrail_sent", default=None)


@contextmanager
def counting() -> Iterator[Sent]:
    """Count the requests of this task, but not a request that was cut off while it was sent."""
    sent = Sent()
    token = _sent.set(sent)
    try:
        yield sent
    finally:
        _sent.reset(token)


holding: ContextVar[Callable[[int], None] | None] = ContextVar("guardrail_holding", default=None)
"""Called with the bytes of each part of a reply; raises `NoRoomError` if there is no room for them."""


async def _count(event: str, _: Mapping[str, Any]) -> None:
    if event.endswith("send_request_body.complete") and (sent := _sent.get()) is not None:
        sent.count += 1


async def _trace(request: Any) -> None:
    request.extensions["trace"] = _count


async def _bound(most: int, response: Any) -> None:
    """Limit the bytes of a reply, counted unpacked, since a short reply may unpack to a huge one."""
    read = response.aiter_bytes

    async def bounded(*arguments: Any, **options: Any) -> AsyncGenerator[bytes, None]:
        size = 0
        async for part in read(*arguments, **options):
            size += len(part)
            if size > most:
                raise LargeReplyError(f"the reply is longer than max_reply={most} bytes")
            if (hold := holding.get()) is not None:
                hold(len(part))
            yield part

    response.aiter_bytes = bounded


@dataclass(eq=False)
class _Leased:
    """A client, its number of requests in flight, and the number of those that are over."""

    client: Any
    requests: int = 0
    uses: int = 0


class Clients:
    """The clients of one model, made when they are first needed.

    It holds no reference to the model, so that both can be collected. Copies of a model share it and its connections,
    as long as address and credentials are the same.
    """

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, list[_Leased]]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[Clients], tuple[()]]:
        return Clients, ()  # a deep copy, or another process, starts without connections

    @asynccontextmanager
    async def lease(self, *, key: str, url: str | None, headers: Mapping[str, str], most: int) -> AsyncIterator[Any]:
        """A client of the running event loop, for one request: connections cannot move between loops.

        Args:
            key: The API key.
            url: Root of the API; None for OpenAI's.
            headers: Additional HTTP headers of every request.
            most: Bytes of a reply.
        """
        loop = asyncio.get_running_loop()
        endpoint = (key, url, tuple(sorted(headers.items())), most)
        clients = self._by_loop.setdefault(loop, {}).setdefault(endpoint, [])
        leased = next((candidate for candidate in clients if candidate.requests < AT_ONCE), None)
        if leased is None:
            client = openai.AsyncOpenAI(
                api_key=key,
                base_url=url,
                default_headers=headers,
                max_retries=0,  # `endpoint.apost` retries, within the deadline
                timeout=None,
                # A redirect would send questions to an address that nobody configured.
                http_client=openai.DefaultAsyncHttpxClient(
                    event_hooks={"request": [_trace], "response": [partial(_bound, most)]}, follow_redirects=False
                ),
            )
            leased = _Leased(client)
            clients.append(leased)
            await _of_loop(loop).add(self, client)
        leased.requests += 1
        try:
            yield leased.client
        finally:
            leased.requests -= 1
            leased.uses += 1
            if not leased.requests:
                loop.call_later(IDLE, Clients._retire, clients, leased, leased.uses)

    @staticmethod  # a timer must not keep the model from being collected
    def _retire(clients: list[_Leased], leased: _Leased, uses: int) -> None:
        """Close a client that nobody has used since: its pool closes idle connections only when it is used."""
        if leased.uses == uses and not leased.requests and leased in clients:
            clients.remove(leased)
            _of_loop(asyncio.get_running_loop()).retire(leased.client)


class _LoopClients:
    """The clients of one event loop: closed when it shuts down, and earlier once their model is gone.

    A model may be collected on any thread, and a task made there is lost if the loop ends right after. So the client of
    a collected model is closed when the next client is made. On the loop of sync calls, which lasts as long as the
    process, a task closes it at once.
    """

    def __init__(self, *, lasting: bool) -> None:
        self.lasting = lasting
        self.clients: set[Any] = set()
        self.orphans: deque[Any] = deque()
        self.closing: set[asyncio.Task[None]] = set()
        self.keeper = self._close_with_loop()

    async def add(self, owner: Clients, client: Any) -> None:
        """Keep a client until its owner is collected."""
        await anext(self.keeper, None)  # registers the generator with the loop, which closes it at its end
        self.clients.add(client)
        weakref.finalize(owner, self._orphan, client).atexit = False
        await self._close_orphans()

    def _orphan(self, client: Any) -> None:
        """Queue the client of a collected model. Takes no lock and does not wait, since any thread may collect."""
        self.orphans.append(client)
        if self.lasting:
            endpoint_loop.start_soon(self._close_orphans())

    def retire(self, client: Any) -> None:
        """Close a client on this loop, which runs."""
        task = asyncio.get_running_loop().create_task(self._close(client))
        self.closing.add(task)  # a task without a reference may be collected
        task.add_done_callback(self.closing.discard)

    async def _close_orphans(self) -> None:
        while self.orphans:
            await self._close(self.orphans.popleft())

    async def _close(self, client: Any) -> None:
        await client.close()
        self.clients.discard(client)

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Close the clients when ``asyncio.run`` closes the remaining asynchronous generators."""
        try:
            while True:
                yield
        finally:
            while self.clients:
                await self._close(next(iter(self.clients)))


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClients] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _of_loop(loop: asyncio.AbstractEventLoop) -> _LoopClients:
    with _lock:
        for ended in [other for other in _by_loop if other.is_closed()]:  # closed without closing its generators
            del _by_loop[ended]
        return _by_loop.setdefault(loop, _LoopClients(lasting=endpoint_loop.is_current))
