"""Limits on connections: how many, and how long one may take to ask.

uvicorn has no deadline for a request's head, and its own limit answers 503 to everybody while silent sockets stay open.
Here a full server closes the connection that has waited longest without a request, so that clients who ask get in.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from guardrail.errors import require

from .config import Config
from .health import Health

__all__ = ["Connections"]

LARGEST_HEAD = 64 * 2**10
"""Bytes of a request's line and headers."""


class Connections:
    """The open connections of one server.

    Args:
        most: Open connections. One more closes the oldest that has no whole request under way, or is closed itself.
        most_per_address: Open connections of one client address; None for no limit.
        header_timeout: Seconds until a request's head must be complete.
        health: Where connections are reported that were refused.
        clock: The time in seconds.
    """

    def __init__(
        self,
        most: int,
        most_per_address: int | None,
        header_timeout: float,
        health: Health,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._per_address, self._header_timeout = most, most_per_address, header_timeout
        self._health, self._clock = health, clock
        self._open: dict[Any, str] = {}
        self._by_address: Counter[str] = Counter()
        self.backlog = max(1, min(2048, most // 4))
        """Connections that asyncio accepts at once, before any of them is counted."""

    @classmethod
    def of(cls, config: Config, health: Health) -> Connections:
        """Those of a configuration; at most half of the files that the process may open.

        The other half is for the upstream, the store, and connections that were accepted and not yet counted.
        """
        most = config.max_connections
        with suppress(ImportError):  # Windows has no such limit
            import resource

            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            most = most if files == resource.RLIM_INFINITY else max(1, min(most, files // 2))
        return cls(most, config.max_connections_per_address, config.header_timeout, health)

    def protocol(self) -> Any:
        """A subclass of uvicorn's HTTP protocol under these limits."""
        limits = self
        base: Any = require("uvicorn.protocols.http.auto", extra="serve").AutoHTTPProtocol

        class Limited(base):  # type: ignore[misc]
            since, head = 0.0, 0

            @property
            def waits(self) -> bool:
                """Whether no request is under way."""
                return self.cycle is None or bool(self.cycle.response_complete)

            @property
            def may_go(self) -> bool:
                """Whether no whole request is under way: a body may never come."""
                return self.waits or bool(self.cycle.more_body)

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                self.since = limits._clock()
                limits.opened(self, (transport.get_extra_info("peername") or ("",))[0])

            def connection_lost(self, exc: Exception | None) -> None:
                limits.closed(self)
                super().connection_lost(exc)

            def data_received(self, data: bytes) -> None:
                if self.timeout_keep_alive_task is not None or not self.waits:
                    self.since, self.head = limits._clock(), 0
                self.head += len(data)
                super().data_received(data)
                if self.waits and self.head > LARGEST_HEAD:
                    self.transport.abort()

        return Limited

    def opened(self, connection: Any, address: str) -> None:
        """Count a new connection, or close it or another one."""
        if self._per_address is not None and self._by_address[address] >= self._per_address:
            self._refuse(connection)
            return
        if len(self._open) >= self._most:
            oldest = next((other for other in self._open if other.may_go), connection)
            self._refuse(oldest)
            self.closed(oldest)
            if oldest is connection:
                return
        self._open[connection] = address
        self._by_address[address] += 1

    def closed(self, connection: Any) -> None:
        """Count a connection off."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            self._by_address += Counter()  # drops addresses without connections

    def sweep(self) -> None:
        """Close connections whose request's head is late. Idle ones with an answer have uvicorn's own time."""
        late = self._clock() - self._header_timeout
        for other in [other for other in self._open if other.waits and other.since < late]:
            if other.timeout_keep_alive_task is None:
                other.transport.abort()

    def _refuse(self, connection: Any) -> None:
        connection.transport.abort()
        self._health.warn(None, "connections", "too many connections are open, so one was closed")

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exception handler of the event loop: sockets that cannot be accepted are one line a minute."""
        if "accept" in context.get("message", ""):
            self._health.warn(None, "accept", f"a connection could not be accepted ({context.get('exception')})")
        else:
            loop.default_exception_handler(context)
