"""The SDK's clients of one model: one for each event loop and endpoint, closed when loop or model are gone."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from guardrail.errors import require

from ._openai_background import is_background, start_soon

__all__ = ["Clients", "Sent", "counting"]

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
