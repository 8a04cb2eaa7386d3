"""The review page: a small server-rendered site over a `ReviewStore`. Works without JavaScript.

Model output is shown as text only: templates escape everything, and the content security policy allows only the scripts
and styles of the page.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import uvicorn
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import StoreUnavailableError
from ..keys import ExpiringKeys
from ..limits import check_seconds
from ..store import LEASE, ReviewStore
from .accounts import Accounts
from .api import Api
from .items import ItemPages
from .monitors import MonitorPages
from .sessions import Sessions
from .site import LARGEST_FORM, UNAVAILABLE, Site, SiteCall

__all__ = ["review_app", "server_of"]

_CONNECTIONS = 500
"""Connections and requests above which the server answers 503."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def review_app(
    store: ReviewStore,
    accounts: Accounts,
    *,
    secret: bytes | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    https: bool = False,
    lease: float = LEASE,
) -> Starlette:
    """The page as an ASGI application.

    Args:
        store: The queue.
        accounts: Who may sign in.
        secret: Key that signs session cookies; several processes must share it. Default: a new random key, so that a
            restart signs everybody out.
        hosts: Host names that the page answers to; all others are refused, which prevents DNS rebinding.
        https: Whether browsers use https only; marks the cookie Secure.
        lease: Seconds a reviewer has for an item; the page renews the lease while it is open.

    Raises:
        UsageError: A lease that is not positive or above ten years.
    """
    check_seconds("lease", lease, "Use 600.")
    keys = ExpiringKeys(store.database)
    site = Site(accounts, Sessions(secret), keys, https=https)
    sign_in = _SignIn(site)

    async def health(_: Request) -> Response:
        """For a load balancer: whether the store takes writes."""
        try:
            await run_in_threadpool(store.check)
        except (SQLAlchemyError, StoreUnavailableError):
            return JSONResponse({"status": "the database is not available"}, 503, UNAVAILABLE)
        return JSONResponse({"status": "ok"})

    async def not_found(request: Request, _: Exception) -> Response:
        call = SiteCall(request, site.sessions.begin(), None, FormData())
        return site.error(call, 404, "Nothing here", "This page does not exist.")

    routes = [
        Route("/health", health),
        *sign_in.routes(),
        *ItemPages(site, store, lease).routes(),
        *MonitorPages(site, store).routes(),
        *Api(site, store).routes(),
        Mount("/static", StaticFiles(directory=Path(str(files("guardrail.review.web") / "static")))),
    ]
    middleware = [
        Middleware(_SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={404: not_found})


def server_of(app: Starlette) -> uvicorn.Server:
    """The page's server; ``run(sockets=[...])`` serves. Slow clients and floods are the work of a proxy in front."""
    # No access log: paths hold tickets. Warnings, e.g. of an invalid request, can be caused by anybody, any number of
    # times, so only errors are logged.
    config = uvicorn.Config(
        app, ws="none", log_level="error", access_log=False, server_header=False, limit_concurrency=_CONNECTIONS
    )
    return uvicorn.Server(config)


class _SignIn:
    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        return [
            Route("/sign-in", self._site.open(self.page)),
            Route("/sign-in", self._site.open(self.enter, form=LARGEST_FORM), methods=["POST"]),
            Route("/sign-out", self._site.closed(self.leave, form=LARGEST_FORM), methods=["POST"]),
        ]

    async def page(self, call: SiteCall) -> Response:
        return self._site.page(call, "sign_in.html", problem="")

    async def enter(self, call: SiteCall) -> Response:
        account = await self._site.account_of(call.field("token").strip())
        if account is None or account.role == "system":
            problem = "This token is not valid here. Ask your administrator for a token."
            return self._site.page(call, "sign_in.html", 403, problem=problem)
        response = RedirectResponse("/", 303)
        self._site.remember(response, self._site.sessions.begin(account.name, account.sha256))
        return response

    async def leave(self, call: SiteCall) -> Response:
        await self._site.end(call.session)
        response = RedirectResponse("/sign-in", 303)
        self._site.remember(response, self._site.sessions.begin())
        return response


class _SecurityHeaders:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
