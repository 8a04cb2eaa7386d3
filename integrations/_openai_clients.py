"""The SDK's clients of one model: one for threads, one for each event loop, closed when loop or model are gone."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from guardrail.errors import require

__all__ = ["Clients"]

openai = require("openai", extra="openai")


class Clients:
    """Made when first asked for, with the settings of that moment. It does not know its model, so both go together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sync: Any = None
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    def sync(self, settings: Mapping[str, Any]) -> Any:
        """The client for threads."""
        with self._lock:
            if self._sync is None:
                self._sync = openai.OpenAI(**settings)
            return self._sync

    async def running(self, settings: Mapping[str, Any]) -> Any:
        """The client of the running event loop; connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._async:
            client = self._async[loop] = openai.AsyncOpenAI(**settings)
            await _kept_by(loop).add(self, client)
        return self._async[loop]


class _Kept:
    """The clients of one event loop: closed when it shuts down, and earlier once their model is gone.

    A client cannot close itself where its model is collected: that happens anywhere, and a task made there is lost
    when the loop ends right after. So the next client that is made closes it.
    """

    def __init__(self) -> None:
        self.clients: set[Any] = set()
        self.orphans: deque[Any] = deque()
        self.keeper = self._close_with_loop()

    async def add(self, owner: Clients, client: Any) -> None:
        """Keep a client until its owner is collected."""
        await anext(self.keeper, None)  # from now on the loop knows it
        self.clients.add(client)
        weakref.finalize(owner, self.orphans.append, client).atexit = False
        while self.orphans:
            await self._close(self.orphans.popleft())

    async def _close(self, client: Any) -> None:
        self.clients.discard(client)
        await client.close()

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
        return _kept.setdefault(loop, _Kept())
