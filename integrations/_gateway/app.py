"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from guardrail.errors import GuardrailError, require
from guardrail.plain_json import canonical_json
from guardrail.sampling.draws import Draws

from .admission import InFlight, Result, Room, authenticate, credential_of, may_use
from .aliases import ALIAS, ServedAlias
from .bodies import Reader, content_of, is_json, read_body, refuse_other_types
from .config import Config, Key, load_config
from .errors import DOWN, FAULTS, ApiError, invalid, unavailable
from .forwarding import CutError, Mask, passed_name
from .health import Health, news
from .metrics import Metrics
from .observing import Observing
from .protocols.chat import CHAT
from .protocols.dialect import Dialect
from .protocols.litellm_api import GUARDRAIL, PATH, call_of, is_answer, prompt_of, unknown_call
from .protocols.messages import MESSAGES
from .protocols.responses import RESPONSES
from .replies import error_response, failed, late_stream, response_of
from .requests import Asked, Question, read_request

_requests = require("starlette.requests", extra="serve")
_responses = require("starlette.responses", extra="serve")

DIALECTS = {f"/v1/{dialect.path}": dialect for dialect in (CHAT, RESPONSES, MESSAGES)} | {PATH: GUARDRAIL}
"""The protocols that have the gate behind them, by path."""
MODELS = "/v1/models"
OBSERVED, TICKETS = "/guardrail/v1/observed", "/guardrail/v1/tickets/"
ROUTES = frozenset({*DIALECTS, MODELS, OBSERVED, TICKETS, "/metrics", "/healthz", "/readyz"})
LOOKS = 3
"""Tickets looked up at once, fewer than a loop has threads: questions need some for the store, too."""
TICK = 1.0
"""Seconds between two looks whether a canary is due."""
PRIVATE = {"Cache-Control": "no-store"}
"""No cache may store the reply to a ticket: it changes, and it belongs to one key, which caches do not tell apart."""
LEFT = _responses.Response(status_code=499)
"""Response for a client that has disconnected; it only shows in the metrics."""
PASSING_VALUES = 8
"""Multiple of ``max_values`` for paths that pass through: embeddings take lists of tokens, which are read fast."""
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
        self._draws = self._memory(self.config)
        self._looks = asyncio.Semaphore(LOOKS)
        self._reader, self.room = Reader(), Room(self.config)
        self.aliases: dict[str, ServedAlias] = {}
        self.observing: dict[str, Observing] = {}
        self._load(self.config)
        self._repeats = InFlight()

    def _load(self, config: Config) -> None:
        """Serve a configuration. Its guards are built here, so that every fault shows before anything changes."""
        aliases, observing, former = dict[str, ServedAlias](), dict[str, Observing](), self.aliases
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
        self.aliases, self.observing, self.config, self.room.config = aliases, observing, config, config

    def _memory(self, config: Config) -> Draws:
        """The memory of draws, which all processes on a review store share."""
        shared = None
        if config.reviews is not None:
            from guardrail.review.errors import StoreUnavailableError
            from guardrail.review.keys import ExpiringKeys
            from guardrail.review.store import ReviewStore

            self._store, self._store_errors = ReviewStore(config.reviews.get_secret_value()), (StoreUnavailableError,)
            shared = ExpiringKeys(self._store.database)
        return Draws(config.remember, most_bytes=config.remember_bytes, shared=shared, report=self._shared)

    def _shared(self, error: GuardrailError | None) -> None:
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
        request, status = _requests.Request(scope, receive), 500
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
            dialect = next((each for start, each in DIALECTS.items() if scope["path"].startswith(start)), CHAT)
            response = error_response(shown, dialect)
        try:
            await response(scope, receive, numbered)
        except CutError:
            pass  # the server closes the connection of an incomplete reply
        finally:
            path = TICKETS if scope["path"].startswith(TICKETS) else scope["path"]
            self.metrics.count("http_requests", path if path in ROUTES else "other", f"{status // 100}xx")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        canaries, watch = asyncio.create_task(self._ask_canaries()), asyncio.create_task(self.room.watch())
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
        for observing in self.observing.values():
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
        if method == "POST" and path in DIALECTS:
            return await self._ask(request, DIALECTS[path])
        if method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            return self._models(path.removeprefix(MODELS).strip("/"), key)
        if method == "GET" and path == OBSERVED:
            counts = {name: alias.summary() for name, alias in self.observing.items() if may_use(key, name)}
            return _responses.JSONResponse(counts)
        if method == "GET" and path.startswith(TICKETS) and self._store is not None:
            async with self._looks:
                return await asyncio.to_thread(self._ticket, request, path.removeprefix(TICKETS))
        if method == "GET" and path == "/metrics":
            page, kind = self.metrics.exposition(lambda model: model is None or may_use(key, model))
            return _responses.Response(page, media_type=kind)
        if path.startswith("/v1/"):
            return await self._pass(request, path.removeprefix("/v1/"))
        raise _not_served(path, method)

    def _ready(self, request: Any) -> Any:
        """Whether requests can be answered, promises and warnings. Without a key, a probe learns no model's name."""
        guarded, shown = [name for name, alias in self.aliases.items() if alias.guarded], dict[str, ServedAlias]()
        reasons = self.health.reasons(guarded)
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

    def _models(self, name: str, key: Key | None) -> Any:
        usable = [alias for alias in self.aliases if may_use(key, alias)]
        created = datetime.fromtimestamp(self._started, UTC).isoformat()  # Anthropic's, beside OpenAI's fields
        common = {"object": "model", "created": self._started, "owned_by": "acrc-guardrail"}
        common |= {"type": "model", "created_at": created, "lifecycle": "active"}
        listed = {alias: {"id": alias, "display_name": alias, **common} for alias in usable}
        if name and name not in listed:
            raise _no_model(name)
        page = {"has_more": False, "first_id": next(iter(usable), None), "last_id": next(reversed(usable), None)}
        listing = {"object": "list", "data": [*listed.values()], **page}
        return _responses.JSONResponse(listed[name] if name else listing)

    def _ticket(self, request: Any, name: str) -> Any:
        """The state of a ticket. The reply shows only its candidate or a person's text, and nobody's name."""
        from guardrail.review.errors import UnknownItemError

        try:
            item = self._store.item(name)
        except self._store_errors as error:
            raise self._unreachable(error) from error
        except UnknownItemError:
            item = None
        alias = None if item is None else item.content.metadata.get(ALIAS)
        if item is None or not isinstance(alias, str) or not may_use(request.gateway.key, alias):
            raise ApiError(404, f"The ticket {name[:100]!r} does not exist here.", "ticket_not_found", headers=PRIVATE)
        if (served := self.aliases.get(alias)) is not None and not served.upstream.forward_key:
            request.gateway.mask = served.mask(credential_of(served.upstream, request.gateway.key, request.headers))
        state, decision = item.state if item.state in ("decided", "expired") else "open", item.decision
        outcome = None if decision is None else decision.outcome(item.content)
        reply = {"ticket": item.id, "model": alias, "state": state, "created": int(item.created)}
        if decision is not None:
            reply |= {"action": decision.action, "decided": int(decision.at)}
        reply["outcome"] = None if outcome is None else outcome.model_dump(mode="json")
        return _responses.JSONResponse(reply, headers=PRIVATE)

    def _alias(self, name: str, key: Key | None) -> ServedAlias:
        alias = self.aliases.get(name)
        if alias is None:
            raise _no_model(name)
        if not may_use(key, name):
            raise ApiError(403, f"This key may not use the model {name[:100]!r}.", "model_not_allowed", "model")
        return alias

    # -- questions -----------------------------------------------------------------------------------------------------

    async def _pass(self, request: Any, path: str) -> Any:
        """The reply of an upstream to a path that the configuration names; without a verdict."""
        key, headers = request.gateway.key, request.headers
        named = {
            name: listed
            for name, alias in self.aliases.items()
            if may_use(key, name) and (listed := passed_name(path, alias.config.pass_through))
        }
        if not named:
            raise _not_served(f"/v1/{path}", request.method)
        # A web page can send a form to this machine, and cannot add this header.
        if "authorization" not in headers and request.method != "GET":
            refuse_other_types(headers)
        content = await content_of(request, self.config.max_body)
        reading = partial(read_body, content, PASSING_VALUES * self.config.max_values, model=False)
        body = await self._reader.read(content, reading) if is_json(headers) and content else None
        model = headers.get("x-guardrail-model") or (None if body is None else body.get("model"))
        if model is not None and not isinstance(model, str):
            raise invalid("model", "must be a text.")
        if model in self.aliases and model not in named:
            raise _not_served(f"/v1/{path}", request.method)
        if model not in named and len(named) > 1:
            why = f"must be named in the header x-guardrail-model: several pass {path[:100]} through."
            raise invalid("model", why, "model_not_named")
        alias = self.aliases[model if model in named else next(iter(named))]
        credential = credential_of(alias.upstream, key, headers)
        self.metrics.count("passed_through", alias.name, named[alias.name])
        if body is not None and body.get("model") == alias.name:  # which the upstream knows by another name
            content = alias.forwarding.renamed(body)
        response = await alias.forwarding.pass_through(request, path, content, credential)
        request.gateway.mask = alias.mask(credential, response.status_code)
        return response

    async def _ask(self, request: Any, dialect: Dialect) -> Any:
        key, headers = request.gateway.key, request.headers
        refuse_other_types(headers)
        content = await content_of(request, self.config.max_body)
        reading = partial(read_body, content, self.config.max_values, model=dialect is not GUARDRAIL)
        body = await self._reader.read(content, reading)
        if dialect is GUARDRAIL:
            self._refuse_long(content)
            prompt = await asyncio.to_thread(self._prompt_of, body, key, headers.get("x-guardrail-model"))
            if prompt is None:
                return _responses.JSONResponse({"action": "NONE"})
            body = {**prompt, "sent": body}
        alias = self._alias(body["model"], key)
        credential = credential_of(alias.upstream, key, headers)
        question = Question(request.gateway.number, body, len(content), dialect, key, credential, headers)
        if (observing := self.observing.get(alias.name)) is not None and dialect is not GUARDRAIL:
            response = await observing.respond(question, content)
            request.gateway.mask = alias.mask(credential, response.status_code)
            return response
        request.gateway.mask = alias.mask(credential)
        if alias.plan is None or not alias.guarded:
            raise invalid("model", f"{alias.name!r} only observes. Name one that guards.", "not_guarded")
        self._refuse_long(content)
        asked = await self._reader.read(content, partial(read_request, question, alias.plan, alias.config))
        return await self._guarded(request, alias, asked)

    def _refuse_long(self, content: bytes) -> None:
        if len(content) > (most := self.config.max_guarded_body):
            long = f"A request to a guarded model may have {most} bytes, this one has {len(content)}."
            way_out = "Shorten it, or ask the operator to raise 'max_guarded_body' in the configuration."
            raise ApiError(413, f"{long} {way_out}", "request_too_large")

    async def _guarded(self, request: Any, alias: ServedAlias, asked: Asked) -> Any:
        """The response to a question for a guard, as soon as there is one or the client is gone."""
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

    def _prompt_of(self, payload: Mapping[str, Any], key: Key | None, model: str | None) -> dict[str, Any] | None:
        """The prompt whose answer a proxy asks about; None if it sends the prompt, which is remembered."""
        call = call_of(payload, None if key is None else key.name)
        if is_answer(payload):
            if (prompt := self._draws.get(call)) is None:
                raise unknown_call()
            remembered: dict[str, Any] = json.loads(prompt)
            return remembered
        prompt = canonical_json(prompt_of(payload, model))
        if self._draws.add(call, prompt) != prompt:
            raise ApiError(400, "Another prompt has this litellm_call_id.", "call_not_unique", "litellm_call_id")
        return None

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
            # A client's own key says nothing about the others.
            report = self.health.fail if question.credential is None else self.health.warn
            report(alias.name, result.code, cause, at=f" ({alias.upstream.url})")

    def _unreachable(self, error: BaseException) -> ApiError:
        self.health.fail(None, "store_unavailable", f"the store cannot be used: {error}")
        return unavailable("The gateway cannot reach its store.", "store_unavailable")


def _not_served(path: str, method: str) -> ApiError:
    """The error for every path that the gateway does not serve: nothing passes the gate by accident."""
    served = "the gateway serves POST /v1/chat/completions, /v1/responses and /v1/messages, and GET /v1/models"
    more = "It keeps no responses. The operator may pass other paths through with 'pass_through' in the configuration."
    return ApiError(404, f"{method} {path[:100]} is not served; {served}. {more}", "unknown_endpoint")


def _no_model(name: str) -> ApiError:
    return ApiError(404, f"The model {name[:100]!r} does not exist here.", "model_not_found", "model")
