"""Admission: clients by their keys, and as many questions as are answered in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from .answers import GuardReply
from .config import Config, Key, Upstream, is_loopback
from .errors import ApiError, unavailable

# -- Clients and their keys --------------------------------------------------------------------------------------------


def authenticate(config: Config, headers: Mapping[str, str]) -> Key | None:
    """The key of a request; None if the configuration has no keys, so that only this machine can ask.

    Raises:
        ApiError: The key is missing or unknown; without keys, the host name is not one of this machine.
    """
    if not config.keys:
        hostname = _hostname(headers) or ""
        if not is_loopback(hostname) and hostname not in (config.host, *config.allowed_hosts):
            # A web page may point its host name at this machine (DNS rebinding).
            raise ApiError(403, "This host name is not allowed; use 127.0.0.1.", "host_not_allowed")
        return None
    key = config.key_of(headers.get("x-guardrail-key") or bearer(headers) or headers.get("api-key"))
    if key is None:
        raise _unauthorized("The API key is missing or unknown.")
    return key


def may_use(key: Key | None, name: str) -> bool:
    """Whether a key may use a model."""
    return key is None or key.models is None or name in key.models


def credential_of(upstream: Upstream, key: Key | None, headers: Mapping[str, str]) -> str | None:
    """The key that is sent upstream for a request; None for the one in the configuration.

    Raises:
        ApiError: The upstream is called with the client's own key, and the request has none.
    """
    if not upstream.forward_key:
        return None if key is None or key.upstream_key is None else key.upstream_key.get_secret_value()
    clients_key = bearer(headers)
    if clients_key is None or (key is not None and not headers.get("x-guardrail-key")):
        also = ", and the gateway's key in the header x-guardrail-key" if key is not None else ""
        raise _unauthorized(f"This model is called with your own key: send it as Authorization: Bearer KEY{also}.")
    return clients_key


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of a request, as OpenAI's or as Anthropic's clients send it."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    return token if token and token.isascii() else None


def _hostname(headers: Mapping[str, str]) -> str | None:
    """The host in the client's Host header, or None if it is malformed; Starlette would put this machine's there."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


# -- Questions under way -----------------------------------------------------------------------------------------------

LOOK = 0.05
"""Seconds between two looks how late the event loop is."""
LEAST_ROOM = 16
"""Questions under way that are never too many."""
Result = GuardReply | ApiError


class InFlight:
    """Questions that run, by request: equal requests share one answer, which a client that leaves does not stop.

    A client whose connection breaks, or that waited too long, sends the same request again by itself. It joins the work
    that is still running. Afterwards the guard's memory of draws (`guardrail.sampling.draws`) gives it the same
    verdict. The memory alone would let both requests make all calls, and keep one answer of each; and a request of a
    native sampler that is cancelled with its client leaves nothing to continue.
    """

    def __init__(self) -> None:
        self.current: dict[str, asyncio.Task[Result]] = {}

    def get(self, key: str, start: Callable[[], Coroutine[Any, Any, Result]]) -> asyncio.Task[Result]:
        """A task for a request, running or new; only equal requests share a key."""
        if key not in self.current:
            task = self.current[key] = asyncio.get_running_loop().create_task(start())
            task.add_done_callback(lambda _: self.current.pop(key))
        return self.current[key]

    async def stop(self, seconds: float) -> None:
        """Let what runs finish for so long, then cancel it."""
        if running := [*self.current.values()]:
            await asyncio.wait(running, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Room:
    """The questions that may be under way: fewer while the event loop runs late, and of each key its own number.

    A question takes about ten turns of the loop, and in each of them waits for all others. Questions that wait for a
    slow model take no turn, so any number of them leaves the loop in time.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.size = float(config.max_concurrency)
        """Questions that may be under way so that the event loop runs in time."""
        self.busy: Counter[str] = Counter()
        """Questions under way by the name of their key."""

    @contextmanager
    def taken(self, key: Key | None) -> Iterator[None]:
        """Count a question as under way; an `ApiError` above a limit."""
        name = "" if key is None else key.name
        limit = None if key is None else key.max_concurrency
        if self.busy.total() >= min(self.size, self.config.max_concurrency):
            overloaded = unavailable("The gateway is overloaded. Try again.", "overloaded")
            raise replace(overloaded, headers={"Retry-After": "1"})
        if limit is not None and self.busy[name] >= limit:
            busy = "Too many requests of this key are under way."
            raise ApiError(429, busy, "rate_limit_exceeded", headers={"Retry-After": "2"})
        self.busy[name] += 1
        try:
            yield
        finally:
            self.busy[name] -= 1

    async def watch(self) -> None:
        """Lower the room while the event loop runs late, and raise it step by step while it is in time."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK
            await asyncio.sleep(LOOK)
            if loop.time() - due > self.config.max_lag:
                self.size = max(LEAST_ROOM, 0.9 * min(self.size, self.busy.total()))
            else:
                self.size = min(self.size + 1, self.config.max_concurrency)
