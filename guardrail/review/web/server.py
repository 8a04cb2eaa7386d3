"""The page's HTTP server: uvicorn, with the limits that it lacks.

uvicorn limits the time between two requests, but not how long a client may take for one, and it answers 503 above
``limit_concurrency`` without closing connections. A process that runs out of file descriptors cannot accept anybody,
and asyncio logs each attempt.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ...errors import UsageError
from .sessions import SLOWED

__all__ = ["Limits", "check_proxies", "server_of"]

_AT_ONCE = 100
"""Connections that asyncio accepts before the limit is applied to them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server on its clients.

    Attributes:
        connections: Open connections, at most half of the file descriptors of this process. Above it, each new
            connection closes the connection that has waited longest without a complete request, or that is delayed
            after too many wrong tokens; without such a connection the new one is closed.
        silent: Seconds for the header of a request, counted from the connection or from the previous response.
        exchange: Seconds from the header of a request to the end of its response.
    """

    connections: int = 500
    silent: float = 10.0
    exchange: float = 60.0


def server_of(app: ASGIApp, *, limits: Limits | None = None, trusted_proxies: tuple[str, ...] = ()) -> uvicorn.Server:
    """A server for the page; ``run(sockets=[...])`` serves.

    Args:
        app: The application.
        limits: Limits on clients.
        trusted_proxies: Addresses or networks (``10.0.0.0/8``) whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            believed. The client's address is then the last one in the list that is not a trusted proxy.

    Raises:
        UsageError: A trusted proxy that is not an address or a network.
    """
    check_proxies(trusted_proxies)
    granted = _within_descriptors(limits or Limits())

    class Limited(_LimitedProtocol):
        limits = granted

    # No access log: paths hold tickets. Warnings (an invalid request, an upgrade) can be caused by anybody, any number
    # of times, so only errors are logged.
    config = uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        limit_concurrency=granted.connections + 1,  # requests whose clients have gone also count
        backlog=min(_AT_ONCE, granted.connections),
    )
    return uvicorn.Server(config)


def check_proxies(proxies: Iterable[str]) -> None:
    """Refuse a trusted proxy that is not an address or a network; uvicorn would take it for the name of a socket.

    Raises:
        UsageError: With the value and the rule.
    """
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise UsageError(
                f"a trusted proxy is an IP address or a network like 10.0.0.0/8, got {proxy!r}: {error}."
            ) from None


def _within_descriptors(limits: Limits) -> Limits:
    try:
        import resource  # not on Windows
    except ImportError:
        return limits
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if soft == resource.RLIM_INFINITY else min(limits.connections, max(soft // 2, 1))
    return Limits(most, limits.silent, limits.exchange)


class _LimitedProtocol(H11Protocol):
    """One connection.

    Each connection has one timer. It starts again when the connection changes between waiting for a request and
    answering one, but not when bytes arrive, so a client gains nothing by sending one byte at a time.
    """

    limits: Limits

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answering: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        others = [connection for connection in self.connections if isinstance(connection, _LimitedProtocol)]
        super().connection_made(cast(asyncio.Transport, transport))
        self._since = self.loop.time()
        self._start(self.limits.silent)
        if len(others) >= self.limits.connections:
            idle = [other for other in others if other._is_idle()]
            (min(idle, key=lambda other: other._since) if idle else self)._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._start(None)
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        """Whether its request is not complete (the header, or the body announced in it), or has a wrong token."""
        cycle = self._answering
        return cycle is None or cycle.more_body or SLOWED in cycle.scope

    def _look(self) -> None:
        """Start the timer again if this connection has begun or ended a request."""
        cycle = None if self.cycle is None or self.cycle.response_complete else self.cycle
        if cycle is not self._answering:
            self._answering, self._since = cycle, self.loop.time()
            self._start(self.limits.silent if cycle is None else self.limits.exchange)

    def _start(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self._start(None)
        self.connections.discard(self)  # so that the next connection does not choose this one again
        self.transport.abort()  # close() would wait for a client that does not read
