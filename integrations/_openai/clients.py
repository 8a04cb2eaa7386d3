"""HTTP connections: one session for each event loop, closed with the loop or with what it belongs to."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from guardrail.errors import GuardrailError, require
from guardrail.sampling.limits import Limit

from .background import BackgroundLoop

__all__ = ["Clients", "LargeReplyError", "NoRoomError", "ReplyBytes", "Sent", "endpoint_loop", "holding", "proxy_of"]

aiohttp = require("aiohttp", extra="openai")
IDLE = 15.0
"""Seconds after which an unused connection is closed."""
LONGEST_HEADER = 64 * 2**10
endpoint_loop = BackgroundLoop("guardrail-endpoints")
"""Event loop on which the sync calls of all endpoints run."""
holding: ContextVar[Callable[[int], None] | None] = ContextVar("guardrail_holding", default=None)
"""Called with the bytes of each part of a reply; raises `NoRoomError` if there is no room for them."""


class LargeReplyError(GuardrailError, ValueError):
    """A reply is longer than ``max_reply`` allows."""


class NoRoomError(GuardrailError):
    """There is no room for a reply now; later there may be."""


class ReplyBytes:
    """Bytes of the upstream's replies to guarded questions, from their arrival to the verdict.

    A question may hold as many as are then still free for others: alone, half of them. So replies without an end never
    take the room of the rest (dynamic threshold, Choudhury and Hahne 1998).

    Args:
        most: Bytes of all questions.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0

    @contextmanager
    def question(self) -> Iterator[Callable[[], bool]]:
        """Count the replies that arrive within; yields what says whether there was no room for one."""
        mine, refused = 0, False

        def hold(size: int) -> None:
            nonlocal mine, refused
            if mine + size > self._most - self._held:
                refused = True
                raise NoRoomError("the replies under way are longer than the gateway's reply_bytes")
            mine += size
            self._held += size

        token = holding.set(hold)
        try:
            yield lambda: refused
        finally:
            holding.reset(token)
            self._held -= mine


class Sent:
    """A count of the HTTP requests that were sent, given to a session as ``trace_request_ctx``."""

    def __init__(self) -> None:
        self.count = 0


async def _count(_: Any, context: Any, __: Any) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.count += 1


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Certificate authorities of the system, with those of a company, and certifi's, which are always there."""
    context = ssl.create_default_context()
    with suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


@lru_cache(maxsize=256)
def proxy_of(url: str) -> str | None:
    """The proxy for a URL, by the environment. aiohttp would look there for each request, on a thread."""
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _session() -> Any:
    counting = aiohttp.TraceConfig()
    counting.on_request_headers_sent.append(_count)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE, ssl=_certificates()),
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=LONGEST_HEADER,
        max_field_size=LONGEST_HEADER,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # callers have deadlines
        trace_configs=[counting],
    )


class Clients:
    """The sessions of one model, one for each event loop, since connections cannot move between loops.

    It holds no reference to the model, so that both can be collected. Copies of a model share it and its connections.
    """

    def __init__(self) -> None:
        self._replied: float | None = None
        self._limits: dict[int, Limit] = {}
        self.down_since: str | None = None
        """Time from which an endpoint that had replied no longer does (ISO 8601); None if it does, or never did."""

    def note(self, began: float, error: Exception | None) -> None:
        """Keep whether the endpoint replied, be it with an error, to a request that began at a Unix time."""
        if not isinstance(error, aiohttp.ClientConnectionError | TimeoutError):
            self._replied, self.down_since = time.time(), None
        elif self._replied is not None and began > self._replied:  # one slow reply among others is no outage
            self.down_since = self.down_since or datetime.now(UTC).isoformat(timespec="seconds")

    @asynccontextmanager
    async def slot(self, n: int) -> AsyncIterator[None]:
        """One of n requests in flight, counted over threads and event loops."""
        limit = self._limits.setdefault(n, Limit(n))
        await limit.aacquire()
        try:
            yield
        finally:
            limit.release()

    def __reduce__(self) -> tuple[type[Clients], tuple[()]]:
        return Clients, ()  # a deep copy, or another process, starts without connections

    async def session(self) -> Any:
        """The session of the running event loop."""
        loop_clients = _of_loop(asyncio.get_running_loop())
        session = loop_clients.by_owner.get(self)
        return await loop_clients.add(self, _session()) if session is None or session.closed else session


class _LoopClients:
    """The sessions of one event loop: closed when it shuts down, and earlier once their owner is gone.

    A model may be collected on any thread, and a task made there is lost if the loop ends right after. So the client of
    a collected model is closed when the next client is made. On the loop of sync calls, which lasts as long as the
    process, a task closes it at once.
    """

    def __init__(self, *, lasting: bool) -> None:
        self.lasting = lasting
        self.by_owner: weakref.WeakKeyDictionary[Clients, Any] = weakref.WeakKeyDictionary()
        self.clients: set[Any] = set()
        self.orphans: deque[Any] = deque()
        self.keeper = self._close_with_loop()

    async def add(self, owner: Clients, client: Any) -> Any:
        """Keep a client until its owner is collected."""
        self.by_owner[owner] = client
        self.clients.add(client)
        weakref.finalize(owner, self._orphan, client).atexit = False
        await anext(self.keeper, None)  # registers the generator with the loop, which closes it at its end
        await self._close_orphans()
        return client

    def _orphan(self, client: Any) -> None:
        """Queue the client of a collected model. Takes no lock and does not wait, since any thread may collect."""
        self.orphans.append(client)
        if self.lasting:
            endpoint_loop.start_soon(self._close_orphans())

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
        if loop not in _by_loop:
            _by_loop[loop] = _LoopClients(lasting=endpoint_loop.is_current)
        return _by_loop[loop]
