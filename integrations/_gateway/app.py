"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from guardrail.errors import GuardrailError, UsageError, require
from guardrail.sampling.draws import Draws, SharedKeys

from .admission import InFlight, Result, Room, authenticate, credential_of, may_use
from .aliases import ALIAS, ServedAlias
from .bodies import Reader, content_of, is_json, read_body, refuse_other_types
from .config import Config, Key, load_config
from .errors import DOWN, FAULTS, ApiError, invalid, no_model, not_served, unavailable
from .forwarding import CutError, Mask
from .health import Health, news
from .metrics import Metrics
from .observing import Observing
from .passing import alias_for, passing
from .protocols.chat import CHAT
from .protocols.dialect import Dialect
from .protocols.litellm_api import LITELLM, question_of
from .protocols.litellm_api import PATH as LITELLM_PATH
from .protocols.messages import MESSAGES
from .protocols.responses import RESPONSES
from .replies import error_response, failed, late_stream, models_response, response_of
from .requests import Asked, Question, read_request
from .tickets import PATH as TICKETS
from .tickets import PRIVATE, Tickets, state_of, unknown_ticket

_requests = require("starlette.requests", extra="serve")
_responses = require("starlette.responses", extra="serve")

DIALECTS = {f"/v1/{dialect.path}": dialect for dialect in (CHAT, RESPONSES, MESSAGES)} | {LITELLM_PATH: LITELLM}
"""The protocols that have the gate behind them, by path."""
MODELS = "/v1/models"
OBSERVED = "/guardrail/v1/observed"
ROUTES = frozenset({*DIALECTS, MODELS, OBSERVED, TICKETS, "/metrics", "/healthz", "/readyz"})
TICK = 1.0
"""Seconds between two looks whether a canary is due."""
LEFT = _responses.Response(status_code=499)
"""Response for a client that has disconnected; it only shows in the metrics."""
PASSING_VALUES = 8
"""Multiple of ``max_values`` for paths that pass through: embeddings take lists of tokens, which are read fast."""
AT_START = ("reviews", "remember", "remember_bytes")
"""Settings of what is opened at the start: running requests and guards keep it, so a reload cannot change them."""
log = logging.getLogger("guardrail")


@dataclass
class Exchange:
    """A request with what the gateway knows of it: not `request.state`, which applications around it may share."""

    number: str = field(default_factory=lambda: uuid4().hex)
    """The request's id."""
    key: Key | None = None
    mask: Mask = field(default_factory=lambda: Mask(()))


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
        self.metrics = Metrics(lambda: self._draws.evicted)
        self.health = Health()
        self._stops_at: float | None = None
        self._stale = False
        self._started = int(time.time())
        self._store: Any = None
        self._store_errors: tuple[type[Exception], ...] = ()
        self._tickets: Tickets | None = None
        reviews = self.config.reviews
        self._draws = Draws(
            self.config.remember,
            most_bytes=self.config.remember_bytes,
            shared=None if reviews is None else self._open_store(reviews.get_secret_value()),
            report=self._report_store,
        )
        self._reader = Reader()
        self.room = Room(self.config)
        self.aliases: dict[str, ServedAlias] = {}
        self.observing: dict[str, Observing] = {}
        self._observed: WeakSet[Observing] = WeakSet()
        """With those that a reload has replaced, as long as answers wait there or are on their way."""
        self._load(self.config)
        self._repeats = InFlight()

    def _load(self, config: Config) -> None:
        """Serve a configuration. Its guards are built here, so that every fault shows before anything changes."""
        former = self.aliases
        aliases: dict[str, ServedAlias] = {}
        observing: dict[str, Observing] = {}
        for name, alias in config.models.items():
            fresh = ServedAlias(name, alias, aliases, self._draws, self._store, self.metrics, self.health)
            aliases[name] = fresh
            if name not in former:
                continue
            # An alias that did not change keeps its connections and its probe.
            if former[name].is_same(fresh) and self.health.fault(name) in (None, DOWN):
                aliases[name] = former[name]
        for name, served in aliases.items():
            served.check_routes(config.keys)
            same = served is former.get(name)
            if served.artifact is not None:
                served.guard(None)
            if not served.guarded:
                observing[name] = self.observing[name] if same else Observing(served, self.health)
            if served.config.pass_through and not same:
                listed = ", ".join(f"/v1/{path}" for path in served.config.pass_through)
                log.warning("guardrail serve: models.%s passes %s through without a verdict", name, listed)
        for name, served in former.items():
            if name not in aliases or not served.is_same(aliases[name]):
                self.health.forget(name)
        self.aliases = aliases
        self.observing = observing
        self._observed.update(observing.values())
        self.config = self.room.config = config

    def _open_store(self, url: str) -> SharedKeys:
        """Open the review store. Returns its keys, by which all processes on it share the memory of draws."""
        from guardrail.review.errors import StoreUnavailableError
        from guardrail.review.keys import ExpiringKeys
        from guardrail.review.store import ReviewStore

        self._store = ReviewStore(url)
        self._store_errors = (StoreUnavailableError,)
        self._tickets = Tickets(self._store)
        return ExpiringKeys(self._store.database)

    def _report_store(self, error: GuardrailError | None) -> None:
        """Report whether a draw could be written to the store: otherwise only this process knows it."""
        if error is None:
            self.health.recover(None)
        else:
            self.health.fail(None, "store_unavailable", f"the store cannot be written: {error}")

    def reload(self) -> bool:
        """Read configuration and artifacts again; running requests finish with the former ones.

        The address stays, because the server is bound to it, and the rules for it are checked with the new keys.

        Returns:
            Whether it succeeded. Otherwise the former configuration stays, as log, ``/readyz`` and a metric say.
        """
        self._stale = False
        try:
            config = self.config if self._path is None else load_config(self._path)
            address = {"host": self.config.host, "port": self.config.port}
            config = Config.checked({**config.model_dump(exclude_unset=True), **address}, str(self._path))
            for name in AT_START:
                if getattr(config, name) != getattr(self.config, name):
                    raise UsageError(
                        f"{self._path}: {name} is read at the start only. Restart the gateway to change it."
                    )
            self._load(config)
        except Exception as error:  # a fault in a file must not stop a running gateway
            why = error if isinstance(error, GuardrailError) else type(error).__name__
            log.error("guardrail serve: not reloaded; the former configuration stays: %s", why)
            self._stale = True
        else:
            served = (f"{name} ({alias.described})" for name, alias in self.aliases.items())
            news.info("guardrail serve: reloaded: %s", "; ".join(served))
        self.metrics.show("configuration_stale", self._stale)
        return not self._stale

    # -- ASGI ----------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        if scope["type"] != "http":
            return
        request = _requests.Request(scope, receive)
        status = 500
        exchange = request.gateway = Exchange()

        async def numbered(message: dict[str, Any]) -> None:
            """Send a part of the response, of which all pass here: it has a number, and quotes no key of ours."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name, exchange.mask.masked(value)) for name, value in message["headers"]]
                message = {**message, "headers": [*headers, (b"x-request-id", exchange.number.encode())]}
            elif message["type"] == "http.response.body":
                last = not message.get("more_body", False)
                message = {**message, "body": exchange.mask.add(message.get("body", b""), last=last)}
            await send(message)

        try:
            with self.metrics.trace_of(request.headers):
                response = await self._respond(request)
        except _requests.ClientDisconnect:  # before it had sent the whole body
            response = LEFT
        except Exception as error:
            shown = error if isinstance(error, ApiError) else failed(f"request {exchange.number}", error)
            dialect = next((known for start, known in DIALECTS.items() if scope["path"].startswith(start)), CHAT)
            response = error_response(shown, dialect)
        try:
            await response(scope, receive, numbered)
        except CutError:
            pass  # the server closes the connection of an incomplete reply
        finally:
            path = TICKETS if scope["path"].startswith(TICKETS) else scope["path"]
            self.metrics.count("http_requests", path if path in ROUTES else "other", f"{status // 100}xx")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        canaries = asyncio.create_task(self._ask_canaries())
        watch = asyncio.create_task(self.room.watch())
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        canaries.cancel()
        watch.cancel()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _ask_canaries(self) -> None:
        """Ask the canaries' questions when they are due."""
        async with asyncio.TaskGroup() as rounds:  # cancelled with it
            while True:
                for alias in self.aliases.values():
                    if alias.canary is not None and time.monotonic() >= alias.canary.due:
                        rounds.create_task(alias.canary.round())
                await asyncio.sleep(TICK)

    def _time_left(self) -> float:
        """Seconds in which running requests may finish, from the first call on."""
        if self._stops_at is None:
            self._stops_at = time.monotonic() + self.config.drain
        return max(0.0, self._stops_at - time.monotonic())

    async def stop(self) -> None:
        """Let running questions finish for the grace time, then stop them: their clients get 503 ``stopping``."""
        await self._repeats.stop(self._time_left())

    async def aclose(self) -> None:
        """`stop`, measure the waiting observations within the same time, and close all connections."""
        await self.stop()
        for observing in list(self._observed):
            await asyncio.to_thread(observing.queue.drain, self._time_left())
        if self._store is not None:
            self._store.close()

    async def _respond(self, request: Any) -> Any:
        path, method = request.scope["path"], request.method
        if path == "/healthz":
            return _responses.JSONResponse({"status": "ok"})
        if path == "/readyz":
            return self._ready(request)
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            # A proxy in front could end the body elsewhere, and read the rest as another request.
            both = "Send Content-Length or Transfer-Encoding, not both."
            raise ApiError(400, both, "ambiguous_length", headers={"Connection": "close"})
        key = request.gateway.key = authenticate(self.config, request.headers)
        if method == "POST" and path == LITELLM_PATH:
            return await self._ask_for_litellm(request)
        if method == "POST" and path in DIALECTS:
            return await self._ask(request, DIALECTS[path])
        if method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            usable = [alias for alias in self.aliases if may_use(key, alias)]
            return models_response(usable, path.removeprefix(MODELS).strip("/"), self._started)
        if method == "GET" and path == OBSERVED:
            counts = {name: alias.summary() for name, alias in self.observing.items() if may_use(key, name)}
            return _responses.JSONResponse(counts)
        if method == "GET" and path.startswith(TICKETS) and self._tickets is not None:
            return await self._ticket(request, path.removeprefix(TICKETS), self._tickets)
        if method == "GET" and path == "/metrics":
            page, kind = self.metrics.exposition(lambda model: model is None or may_use(key, model))
            return _responses.Response(page, media_type=kind)
        if path.startswith("/v1/"):
            return await self._pass(request, path.removeprefix("/v1/"))
        raise not_served(path, method)

    def _ready(self, request: Any) -> Any:
        """Whether requests can be answered, promises and warnings. Without a key, a probe learns no model's name."""
        reasons = self.health.reasons([name for name, alias in self.aliases.items() if alias.guarded])
        shown: dict[str, ServedAlias] = {}
        with suppress(ApiError):
            key = authenticate(self.config, request.headers)
            shown = {name: alias for name, alias in self.aliases.items() if may_use(key, name)}
        lines = {
            name: [*(alias.canary.lines if alias.canary else ()), *self.health.lines(name)]
            for name, alias in shown.items()
        }
        return _responses.JSONResponse(
            {
                "ready": not reasons,
                "reasons": reasons,
                "stale": self._stale,
                "promises": {name: alias.promises for name, alias in shown.items() if alias.promises},
                "warnings": {name: listed for name, listed in lines.items() if listed},
            },
            503 if reasons else 200,
        )

    async def _ticket(self, request: Any, ticket: str, tickets: Tickets) -> Any:
        key = request.gateway.key
        try:
            item = await tickets.find(ticket)
        except self._store_errors as error:
            raise self._unreachable(error) from error
        if item is None or not may_use(key, item.content.metadata[ALIAS]):
            raise unknown_ticket(ticket)
        alias = self.aliases.get(item.content.metadata[ALIAS])
        if alias is not None and not alias.upstream.forward_key:
            request.gateway.mask = alias.mask(credential_of(alias.upstream, key, request.headers))
        return _responses.JSONResponse(state_of(item), headers=PRIVATE)

    def _alias(self, name: str, key: Key | None) -> ServedAlias:
        alias = self.aliases.get(name)
        if alias is None:
            raise no_model(name)
        if not may_use(key, name):
            raise ApiError(403, f"This key may not use the model {name[:100]!r}.", "model_not_allowed", "model")
        return alias

    # -- questions -----------------------------------------------------------------------------------------------------

    async def _pass(self, request: Any, path: str) -> Any:
        """The reply of an upstream to a path that the configuration names; without a verdict."""
        key, headers = request.gateway.key, request.headers
        names = passing(self.aliases.values(), key, path)
        if not names:
            raise not_served(f"/v1/{path}", request.method)
        # A web page can send a form to this machine, and cannot add this header.
        if "authorization" not in headers and request.method != "GET":
            refuse_other_types(headers)
        content = await content_of(request, self.config.max_body)
        body: Mapping[str, Any] = {}
        if is_json(headers) and content:
            most = PASSING_VALUES * self.config.max_values
            body = await self._reader.read(content, partial(read_body, content, most, model=False))
        model = headers.get("x-guardrail-model") or body.get("model")
        alias = self.aliases[alias_for(request.method, path, model, names, self.aliases)]
        credential = credential_of(alias.upstream, key, headers)
        self.metrics.count("passed_through", alias.name, names[alias.name])
        if body.get("model") == alias.name:  # which the upstream knows by another name
            content = alias.forwarding.renamed(body)
        response = await alias.forwarding.pass_through(request, path, content, credential)
        request.gateway.mask = alias.mask(credential, response.status_code)
        return response

    async def _ask(self, request: Any, dialect: Dialect) -> Any:
        """The response to a question of a client."""
        refuse_other_types(request.headers)
        content = await content_of(request, self.config.max_body)
        body = await self._reader.read(content, partial(read_body, content, self.config.max_values))
        alias, question = self._question(request, body, len(content), dialect)
        observing = self.observing.get(alias.name)
        if observing is None:
            return await self._guarded(request, alias, question, content)
        response = await observing.respond(question, content)
        request.gateway.mask = alias.mask(question.credential, response.status_code)
        return response

    async def _ask_for_litellm(self, request: Any) -> Any:
        """The response to LiteLLM's proxy: go on after a prompt, pass the judged answer, block any other."""
        refuse_other_types(request.headers)
        content = await content_of(request, self.config.max_body)
        payload = await self._reader.read(content, partial(read_body, content, self.config.max_values, model=False))
        self._refuse_long(content)
        key, model = request.gateway.key, request.headers.get("x-guardrail-model")
        key_name = None if key is None else key.name
        body = await asyncio.to_thread(question_of, payload, key_name, model, self._draws)
        if body is None:
            return _responses.JSONResponse({"action": "NONE"})
        alias, question = self._question(request, body, len(content), LITELLM)
        return await self._guarded(request, alias, question, content)

    def _question(
        self, request: Any, body: Mapping[str, Any], size: int, dialect: Dialect
    ) -> tuple[ServedAlias, Question]:
        """The alias that a request asks, and its question."""
        key, headers = request.gateway.key, request.headers
        alias = self._alias(body["model"], key)
        credential = credential_of(alias.upstream, key, headers)
        return alias, Question(request.gateway.number, body, size, dialect, key, credential, headers)

    def _refuse_long(self, content: bytes) -> None:
        most = self.config.max_guarded_body
        if len(content) > most:
            long = f"A request to a guarded model may have {most} bytes, this one has {len(content)}."
            way_out = "Shorten it, or ask the operator to raise 'max_guarded_body' in the configuration."
            raise ApiError(413, f"{long} {way_out}", "request_too_large")

    async def _guarded(self, request: Any, alias: ServedAlias, question: Question, content: bytes) -> Any:
        """The response to a question for a guard, as soon as there is one or the client is gone."""
        request.gateway.mask = alias.mask(question.credential)
        if alias.plan is None or not alias.guarded:
            raise invalid("model", f"{alias.name!r} only observes. Name one that guards.", "not_guarded")
        self._refuse_long(content)
        asked = await self._reader.read(content, partial(read_request, question, alias.plan, alias.config))
        task = self._repeats.get(asked.digest, partial(self._measured, alias, asked))
        disconnected = asyncio.ensure_future(request.receive())  # after the body, nothing else comes
        try:
            hold = self.config.stream_hold if asked.stream else None
            await asyncio.wait({task, disconnected}, timeout=hold, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
        if task.done():
            return response_of(asked, task)
        return LEFT if disconnected.done() else late_stream(asked, task)

    async def _measured(self, alias: ServedAlias, asked: Asked) -> Result:
        """The guard's answer, or an error above the limits; never raises."""
        try:
            with self.room.taken(asked.question.key):
                result = await alias.answer(asked)
            self._note(alias, asked.question, result)
            return result
        except ApiError as error:
            return error
        except self._store_errors as error:  # whether the question was drawn is unknown, so nothing was drawn
            return self._unreachable(error)
        except Exception as error:
            return failed(alias.name, error)

    def _note(self, alias: ServedAlias, question: Question, result: Result) -> None:
        """Report what a result says about the upstream and the store."""
        if not isinstance(result, ApiError):
            self.health.recover(alias.name)
        elif result.verdict is not None and result.code in FAULTS:
            detail = result.verdict.uncertainty.detail
            cause = FAULTS[result.code].cause.format(detail=detail, hint=alias.upstream.hint, since=alias.down)
            at = f" ({alias.upstream.url})"
            if question.credential is None:
                self.health.fail(alias.name, result.code, cause, at=at)
            else:  # a client's own key says nothing about the others
                self.health.warn(alias.name, f"{result.code}:own_key", cause, at=at)

    def _unreachable(self, error: BaseException) -> ApiError:
        self.health.fail(None, "store_unavailable", f"the store cannot be used: {error}")
        return unavailable("The gateway cannot reach its store.", "store_unavailable")
