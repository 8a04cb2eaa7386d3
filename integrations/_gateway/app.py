"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from guardrail.errors import GuardrailError, require
from guardrail.guard.observe import Observed
from guardrail.plain_json import canonical_json, sha256_hex

from .aliases import ServedAlias
from .config import Config, Key, load_config
from .memory import Repeats, Work
from .metrics import Metrics
from .observing import Observing
from .protocol import (
    Answer,
    ApiError,
    ChatRequest,
    chunks,
    completion,
    headers_of,
    read_body,
    read_request,
    refuse_endpoint,
)

_requests = require("starlette.requests", extra="serve")
_responses = require("starlette.responses", extra="serve")

__all__ = ["Gateway"]

CHAT, MODELS, OBSERVED = "/v1/chat/completions", "/v1/models", "/guardrail/v1/observed"
OPEN = frozenset({"/healthz", "/readyz"})
"""Paths without a key; every other path needs one."""
ROUTES = frozenset({CHAT, MODELS, OBSERVED, "/metrics", *OPEN})
LOCAL = ("127.0.0.1", "localhost", "::1")
MINUTE = 60.0
log = logging.getLogger("guardrail")


class Gateway:
    """An OpenAI-compatible server in front of models, as an ASGI application; see `integrations.gateway`.

    Args:
        config: The configuration, or the path of its file, which `reload` reads again.

    Raises:
        UsageError: The configuration is wrong.
        ArtifactError: An artifact cannot be read, or does not fit its model.
    """

    def __init__(self, config: Config | str | Path) -> None:
        self._path = None if isinstance(config, Config) else Path(config)
        self.config = config if isinstance(config, Config) else load_config(config)
        self.metrics = Metrics(lambda: {name: one.queue.observed for name, one in self.observing.items()})
        self.draining = False
        self._reload_failed = False
        self._started = int(time.time())
        self._store: Any = None
        self._busy: Counter[str | None] = Counter()
        self._recent: dict[str, deque[float]] = {}
        self._repeats: Repeats[Answer | ApiError] = Repeats(self.config.remember, _is_kept)
        self.aliases: dict[str, ServedAlias] = {}
        self.observing: dict[str, Observing] = {}
        self.aliases, self.observing = self._load(self.config)

    def _load(self, config: Config) -> tuple[dict[str, ServedAlias], dict[str, Observing]]:
        """The aliases of a configuration, with their guards made, so that every fault is found before it serves."""
        made: dict[str, ServedAlias] = {}
        observing: dict[str, Observing] = {}
        for name, alias in config.models.items():
            observers = self.metrics.observers(mode=alias.mode, model=name)
            fresh = ServedAlias(name, alias, lambda other: made[other], self._ticket(config), observers)
            former = self.aliases.get(name)
            # What did not change keeps its connections, its probe and its remembered abstentions.
            made[name] = former if former is not None and former.is_same(fresh) else fresh
        for name, one in made.items():
            if one.artifact is not None:
                one.guard(None)
            if not one.guarded:
                known = self.observing.get(name)
                observing[name] = known if known is not None and known.alias is one else Observing(one)
        return made, observing

    def _ticket(self, config: Config) -> Any:
        if config.reviews is None:
            return None
        from guardrail.review.hooks import ticket
        from guardrail.review.queue.store import ReviewStore

        if self._store is None:
            self._store = ReviewStore(config.reviews)
        return ticket(self._store)

    def reload(self) -> bool:
        """Read configuration and artifacts again; requests keep what they began with.

        Returns:
            Whether it succeeded. If not, what was there stays, the log says why, and ``/readyz`` says that it failed.
        """
        try:
            config = self.config if self._path is None else load_config(self._path)
            (self.aliases, self.observing), self.config = self._load(config), config
            self._reload_failed = False
        except GuardrailError as error:
            log.error("guardrail serve: not reloaded; the former configuration stays: %s", error)
            self._reload_failed = True
        return not self._reload_failed

    # -- ASGI ----------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        if scope["type"] != "http":
            return
        request, request_id = _requests.Request(scope, receive), uuid4().hex
        status = 500

        async def numbered(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        try:
            with self.metrics.trace_of(request.headers):
                response = await self._respond(request, request_id)
        except ApiError as error:
            response = _error(error)
        except Exception as error:  # the log has the type only: texts may quote an answer
            log.error("guardrail serve: request %s failed with %s", request_id, type(error).__name__)
            log.debug("guardrail serve: request %s", request_id, exc_info=error)
            response = _error(ApiError(500, "The gateway failed.", "internal_error", kind="server_error"))
        try:
            await response(scope, receive, numbered)
        finally:
            path = scope["path"]
            self.metrics.requested(path if path in ROUTES else "other", status)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Let running questions finish for the grace time, then stop them."""
        self.draining = True
        running = self._repeats.running
        if running:
            await asyncio.wait(running, timeout=self.config.drain)
        for task in running:
            task.cancel()
        for one in self.observing.values():
            await asyncio.to_thread(one.queue.drain, self.config.drain)
            await one.aclose()
        if self._store is not None:
            self._store.close()

    async def _respond(self, request: Any, request_id: str) -> Any:
        path, method = request.url.path, request.method
        if path == "/healthz":
            return _responses.JSONResponse({"status": "ok"})
        if path == "/readyz":
            reasons = [name for name, wrong in self._faults().items() if wrong]
            return _responses.JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
        key = self._authenticate(request)
        if method == "POST" and path == CHAT:
            return await self._chat(request, request_id, key)
        if method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            return self._models(path, key)
        if method == "GET" and path == OBSERVED:
            return _responses.JSONResponse({name: _counts(one.queue.observed) for name, one in self.observing.items()})
        if method == "GET" and path == "/metrics":
            page, kind = self.metrics.exposition()
            return _responses.Response(page, media_type=kind)
        raise refuse_endpoint(path, method)

    def _faults(self) -> dict[str, bool]:
        return {"draining": self.draining, "reload_failed": self._reload_failed}

    def _models(self, path: str, key: Key | None) -> Any:
        name = path.removeprefix(MODELS).strip("/")
        known = [one for one in self.aliases if key is None or key.models is None or one in key.models]
        listed = [
            {"id": one, "object": "model", "created": self._started, "owned_by": "acrc-guardrail"} for one in known
        ]
        if not name:
            return _responses.JSONResponse({"object": "list", "data": listed})
        if name not in known:
            raise _no_model(name)
        return _responses.JSONResponse(next(one for one in listed if one["id"] == name))

    # -- who asks ------------------------------------------------------------------------------------------------------

    def _authenticate(self, request: Any) -> Key | None:
        """The key of the request; None where the configuration has none, and only this machine can ask."""
        if not self.config.keys:
            if request.url.hostname not in (*LOCAL, self.config.host, *self.config.allowed_hosts):
                # A web page may reach this machine under a name of its own (DNS rebinding).
                raise ApiError(403, "This host name is not allowed; use 127.0.0.1.", "host_not_allowed")
            return None
        headers = request.headers
        given = headers.get("x-guardrail-key") or _bearer(headers) or headers.get("api-key")
        key = self.config.key_of(given)
        if key is None:
            raise ApiError(
                401, "The API key is missing or unknown.", "invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
            )
        self._count(key)
        return key

    def _count(self, key: Key) -> None:
        if key.requests_per_minute is None:
            return
        recent, now = self._recent.setdefault(key.name, deque()), time.monotonic()
        while recent and recent[0] <= now - MINUTE:
            recent.popleft()
        if len(recent) >= key.requests_per_minute:
            wait = str(int(recent[0] + MINUTE - now) + 1)
            raise ApiError(
                429, "Too many requests for this key.", "rate_limit_exceeded", kind="rate_limit_error",
                headers={"Retry-After": wait},
            )  # fmt: skip
        recent.append(now)

    def _alias(self, name: str, key: Key | None) -> ServedAlias:
        found = self.aliases.get(name)
        if found is None:
            raise _no_model(name)
        if key is not None and key.models is not None and name not in key.models:
            raise ApiError(403, f"This key may not use the model {name[:100]!r}.", "model_not_allowed", "model")
        return found

    def _credential(self, alias: ServedAlias, key: Key | None, headers: Mapping[str, str]) -> str | None:
        """The key for the upstream; None for the alias's own."""
        if alias.upstream.forward_key:
            bearer = _bearer(headers)
            if bearer is None or (key is not None and headers.get("x-guardrail-key") is None):
                raise ApiError(
                    401,
                    "This model is called with your own key: send it as Authorization: Bearer KEY"
                    + (", and the gateway's key in the header x-guardrail-key." if key is not None else "."),
                    "invalid_api_key",
                )
            return bearer
        if key is not None and key.upstream_key is not None:
            return key.upstream_key.get_secret_value()
        return None

    # -- chat completions ----------------------------------------------------------------------------------------------

    async def _content(self, request: Any) -> bytes:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "Content-Type must be application/json.", "unsupported_media_type")
        too_large = ApiError(413, f"The body is larger than {self.config.max_body} bytes.", "request_too_large")
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self.config.max_body:
            raise too_large
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > self.config.max_body:
                raise too_large
        return bytes(content)

    async def _chat(self, request: Any, request_id: str, key: Key | None) -> Any:
        content = await self._content(request)
        body = read_body(content)
        alias, headers = self._alias(body["model"], key), request.headers
        credential = self._credential(alias, key, headers)
        once = headers.get("idempotency-key")
        if (observing := self.observing.get(alias.name)) is not None:
            return await observing.respond(content, body, headers, credential, once or request_id)
        assert alias.plan is not None, "a guarded alias has an artifact"
        asked = read_request(
            body,
            alias.plan,
            fixed=alias.upstream.extra_body,
            settings=alias.config.settings,
            ignore=alias.config.ignore,
        )
        segment = headers.get("x-guardrail-segment")
        who = (None if key is None else key.name, credential, segment, once, canonical_json(body))
        repeated = once is not None or headers.get("x-stainless-retry-count", "0") not in ("", "0")
        work = self._repeats.get(
            sha256_hex(repr(who).encode("utf-8", "surrogatepass")),
            partial(self._measured, alias, asked, credential, segment, key),
            repeated=repeated,
        )
        reply = partial(_reply, request=asked, request_id=request_id, model=alias.name)
        work.clients += 1
        gone = asyncio.ensure_future(_disconnected(request.receive))
        hold = self.config.stream_hold if asked.stream else None
        handed_on = False
        try:
            await asyncio.wait({work.task, gone}, timeout=hold, return_when=asyncio.FIRST_COMPLETED)
            if work.task.done():
                return reply(_result(work.task))
            if gone.done():
                return _responses.Response(status_code=499)  # nobody reads it
            handed_on = True
            frames = self._late_frames(work, alias, reply)
            return _responses.StreamingResponse(frames, media_type="text/event-stream", headers=_STREAMED)
        finally:
            gone.cancel()
            if not handed_on:
                self._leave(work, alias)

    def _leave(self, work: Work[Answer | ApiError], alias: ServedAlias) -> None:
        """A client has its reply, or is gone; see `Alias.on_disconnect`."""
        work.clients -= 1
        if alias.config.on_disconnect == "cancel" and not work.clients and not work.task.done():
            work.task.cancel()

    async def _late_frames(
        self, work: Work[Answer | ApiError], alias: ServedAlias, reply: Callable[..., Any]
    ) -> AsyncIterator[bytes]:
        """A stream that began before its verdict: comments keep the connection open until then."""
        try:
            while not work.task.done():
                yield b": keep-alive\n\n"
                await asyncio.wait({work.task}, timeout=self.config.keep_alive)
            for frame in reply(_result(work.task), late=True):
                yield frame
        finally:
            self._leave(work, alias)

    async def _measured(
        self, alias: ServedAlias, asked: ChatRequest, credential: str | None, segment: str | None, key: Key | None
    ) -> Answer | ApiError:
        """The guard's answer, within the limits; never raises."""
        name, most = (None, None) if key is None else (key.name, key.max_concurrency)
        overload: dict[str, Any] = {"headers": {"Retry-After": "2"}}
        if most is not None and self._busy[name] >= most:
            text = "Too many questions of this key are being measured."
            return ApiError(429, text, "rate_limit_exceeded", kind="rate_limit_error", **overload)
        if self._busy.total() >= self.config.max_concurrency:
            return ApiError(503, "The gateway is overloaded.", "overloaded", kind="server_error", **overload)
        self._busy[name] += 1
        try:
            return await alias.answer(asked, credential, segment)
        except Exception as error:
            log.error("guardrail serve: %s failed with %s", alias.name, type(error).__name__)
            log.debug("guardrail serve: %s", alias.name, exc_info=error)
            return ApiError(500, "The gateway failed.", "internal_error", kind="server_error")
        finally:
            self._busy[name] -= 1


_STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Nothing between us and the client may hold a stream back."""


def _counts(observed: Observed) -> dict[str, Any]:
    return {**dataclasses.asdict(observed), "acceptance": observed.acceptance}


def _is_kept(result: Answer | ApiError) -> bool:
    return result.settled


def _result(task: asyncio.Task[Answer | ApiError]) -> Answer | ApiError:
    if task.cancelled():
        return ApiError(503, "The gateway is stopping.", "stopping", kind="server_error", headers={"Retry-After": "5"})
    return task.result()


def _reply(result: Answer | ApiError, *, request: ChatRequest, request_id: str, model: str, late: bool = False) -> Any:
    """The response, or with ``late`` the frames of a stream that has begun."""
    if isinstance(result, ApiError):
        return iter([_frame(result.body), _DONE]) if late else _error(result)
    reply = completion(result, request, request_id=request_id, model=model)
    if not request.stream:
        return _responses.JSONResponse(reply, headers=headers_of(result, request.replaced))
    frames = _frames(reply, include_usage=request.include_usage)
    if late:
        return frames
    headers = {**headers_of(result, request.replaced), **_STREAMED}
    return _responses.Response(b"".join(frames), media_type="text/event-stream", headers=headers)


_DONE = b"data: [DONE]\n\n"


def _frames(reply: Mapping[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    yield from map(_frame, chunks(reply, include_usage=include_usage))
    yield _DONE


def _frame(event: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def _error(error: ApiError) -> Any:
    return _responses.JSONResponse(error.body, error.status, headers=dict(error.headers))


def _no_model(name: str) -> ApiError:
    return ApiError(404, f"The model {name[:100]!r} does not exist here.", "model_not_found", "model")


def _bearer(headers: Mapping[str, str]) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


async def _disconnected(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
