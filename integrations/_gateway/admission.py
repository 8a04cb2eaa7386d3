"""Admission: clients by their keys, bodies that can be read, and as many questions as are answered in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from guardrail.errors import require
from guardrail.plain_json import json_fault

from .answers import GuardReply
from .config import Config, Key, Upstream
from .errors import ApiError, invalid, unavailable

jiter = require("jiter", extra="serve")

# -- Clients and their keys --------------------------------------------------------------------------------------------

LOCAL = ("127.0.0.1", "localhost", "::1")


def authenticate(config: Config, headers: Mapping[str, str]) -> Key | None:
    """The key of a request; None if the configuration has no keys, so that only this machine can ask.

    Raises:
        ApiError: The key is missing or unknown; without keys, the host name is not one of this machine.
    """
    if not config.keys:
        if _hostname(headers) not in (*LOCAL, config.host, *config.allowed_hosts):
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
    own = bearer(headers)
    if own is None or (key is not None and not headers.get("x-guardrail-key")):
        also = ", and the gateway's key in the header x-guardrail-key" if key is not None else ""
        raise _unauthorized(f"This model is called with your own key: send it as Authorization: Bearer KEY{also}.")
    return own


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


# -- Bodies ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
LARGE = 32_000
"""Bytes of a body above which it is read off the event loop."""
MOST = {"messages": 2048, "input": 2048, "tools": 128, "functions": 128, "metadata": 16}
"""Entries that OpenAI's API takes: reading more of them would take seconds."""


async def content_of(request: Any, most: int) -> bytes:
    """The body of a request; an `ApiError` if it has more bytes than ``most``."""
    too_large = ApiError(413, f"The body is larger than {most} bytes.", "request_too_large")
    declared, content = request.headers.get("content-length", "0"), bytearray()
    if not declared.isdecimal() or int(declared) > most:
        raise too_large
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise too_large
    return bytes(content)


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether a body is declared as JSON, which no form of a web page is."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def refuse_other_types(headers: Mapping[str, str]) -> None:
    """Raise an `ApiError` for a body that is not declared as JSON."""
    if not is_json(headers):
        raise ApiError(415, "Content-Type must be application/json.", "unsupported_media_type")


class Reader:
    """Reads large bodies on a thread, one at a time, while others are served."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def read(self, content: bytes, work: Callable[[], T]) -> T:
        """The result of ``work``, which reads a body of this content."""
        if len(content) <= LARGE:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)


def read_body(content: bytes, most_values: int, *, model: bool = True) -> dict[str, Any]:
    """A request's body as a JSON object, which must name a model unless ``model`` is false.

    Raises:
        ApiError: It is not JSON, is too deep, repeats a name, has numbers or characters that JSON or UTF-8 lack, or
            more values than ``most_values``, or more messages, tools or metadata than OpenAI's API takes.
    """
    if has_more_values(content, most_values):
        way_out = "Send fewer, or ask the operator for a larger 'max_values' in the configuration."
        raise ApiError(400, f"The body has more than {most_values} JSON values. {way_out}", "too_many")
    try:
        # A repeated name is refused: the upstream could read its other value and answer that.
        body = jiter.from_json(content, allow_inf_nan=False, catch_duplicate_keys=True)
        for name, most in MOST.items() if isinstance(body, dict) else ():
            value = body.get(name)
            if isinstance(value, list | dict) and len(value) > most:
                raise invalid(name, f"has {len(value)} entries; at most {most} are served.", "too_many")
        fault = json_fault(body, packed=True)
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise ApiError(400, f"The body cannot be read as JSON: {fault}.", "invalid_json")
    if not isinstance(body, dict) or (model and not isinstance(body.get("model"), str)):
        raise ApiError(400, "The body must be a JSON object with a text 'model'.", "missing_field", "model")
    return body


def has_more_values(content: bytes, most: int) -> bool:
    """Whether a body has more JSON values than ``most``, or as many texts as only such a body has.

    It counts bytes before anything is parsed: a parser does not let other threads run until it has made all values.
    Each value but the first follows a comma or a bracket. Commas in texts count only if the exact count is needed.
    """

    def separators(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    if separators(content) < most:
        return False
    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * most:  # two quotes a text, and each value may have a name
        return True
    return separators(b"".join(unescaped.split(b'"')[::2])) >= most


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
        name, own = ("", None) if key is None else (key.name, key.max_concurrency)
        if self.busy.total() >= min(self.size, self.config.max_concurrency):
            overloaded = unavailable("The gateway is overloaded. Try again.", "overloaded")
            raise replace(overloaded, headers={"Retry-After": "1"})
        if own is not None and self.busy[name] >= own:
            busy, headers = "Too many requests of this key are under way.", {"Retry-After": "2"}
            raise ApiError(429, busy, "rate_limit_exceeded", headers=headers)
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
