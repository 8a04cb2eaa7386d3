"""HTTP connections: one session for each event loop, which all models share; it is closed with its loop."""

from __future__ import annotations

import asyncio
import math
import ssl
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from guardrail.errors import GuardrailError, require
from guardrail.sampling.background import BackgroundLoop
from guardrail.sampling.effects import arun
from guardrail.sampling.limits import Limit

aiohttp = require("aiohttp", extra="openai")
IDLE = 15.0
"""Seconds after which an unused connection is closed."""
LONGEST_HEADER = 64 * 2**10
endpoint_loop = BackgroundLoop("guardrail-endpoints")
"""Event loop on which the sync calls of all endpoints run."""


class LargeReplyError(GuardrailError, ValueError):
    """A reply is longer than ``max_reply`` allows."""


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


_sessions: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None, None]]] = {}
_lock = threading.Lock()


async def session_of_loop() -> Any:
    """The session of the running event loop, since connections cannot move between loops. It holds no credential."""
    loop = asyncio.get_running_loop()
    held = _sessions.get(loop)
    if held is not None and not held[0].closed:
        return held[0]
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE, ssl=_certificates()),
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=LONGEST_HEADER,
        max_field_size=LONGEST_HEADER,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # callers have deadlines
    )
    keeper = _close_with_loop(loop, session)
    with _lock:
        for ended in [other for other in _sessions if other.is_closed()]:  # closed without closing its generators
            del _sessions[ended]
        _sessions[loop] = session, keeper
    await anext(keeper)  # registers the generator with the loop, which closes it at its end
    return session


async def _close_with_loop(loop: asyncio.AbstractEventLoop, session: Any) -> AsyncGenerator[None, None]:
    """Close the session when ``asyncio.run`` closes the remaining asynchronous generators."""
    try:
        yield
    finally:
        with _lock:  # another loop may go through them at this moment
            _sessions.pop(loop, None)
        await session.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn


class EndpointState:
    """The state of an endpoint that the copies of a model share: whether it replies, and the requests in flight."""

    def __init__(self) -> None:
        self._replied: float | None = None
        self._limits: dict[int, Limit] = {}
        self.refused_n = math.inf
        """The fewest answers at once that its server refused, and gave a single one instead."""
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
        await arun(limit.acquire())
        try:
            yield
        finally:
            limit.release()

    def __reduce__(self) -> tuple[type[EndpointState], tuple[()]]:
        return EndpointState, ()  # a deep copy, or another process, knows nothing yet
