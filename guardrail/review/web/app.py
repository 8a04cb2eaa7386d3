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
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..errors import StoreUnavailableError
from ..keys import ExpiringKeys
from ..limits import check_seconds
from ..store import LEASE, ReviewStore
from .accounts import Accounts
from .api import Api
from .pages import Pages
from .site import FAILURES, UNAVAILABLE, Site

__all__ = ["review_app", "server_of"]

_CONNECTIONS = 500
"""Connections and requests above which the server answers 503."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def review_app(
    store: ReviewStore,
    accounts: Accounts,
    *,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    https: bool = False,
    lease: float = LEASE,
) -> Starlette:
    """The page as an ASGI application.

    Args:
        store: The queue.
        accounts: Who may sign in.
        hosts: Host names that the page answers to; all others are refused, which prevents DNS rebinding.
        https: Whether browsers use https only: the cookie is Secure, and forms come from https pages.
        lease: Seconds a reviewer has for an item; the page renews the lease while it is open.

    Raises:
        UsageError: A lease that is not positive or above ten years.
    """
    check_seconds("lease", lease, "Use 600.")
    site = Site(accounts, ExpiringKeys(store.database), https=https)

    def health(_: Request) -> Response:
        """For a load balancer: whether the store takes writes."""
        try:
            store.check()
        except (SQLAlchemyError, StoreUnavailableError):
            return JSONResponse({"status": "the database is not available"}, 503, UNAVAILABLE)
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/health", health),
        *Pages(site, store, lease).routes(),
        *Api(site, store).routes(),
        Mount("/static", StaticFiles(directory=Path(str(files("guardrail.review.web") / "static")))),
    ]
    middleware = [
        Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
    ]
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers=dict.fromkeys((404, *FAILURES), site.failed)
    )


def server_of(app: Starlette) -> uvicorn.Server:
    """The page's server; ``run(sockets=[...])`` serves. Slow clients and floods are the work of a proxy in front."""
    # No access log: paths hold tickets. Warnings, e.g. of an invalid request, can be caused by anybody, any number of
    # times, so only errors are logged.
    config = uvicorn.Config(
        app, ws="none", log_level="error", access_log=False, server_header=False, limit_concurrency=_CONNECTIONS
    )
    return uvicorn.Server(config)


async def _with_headers(request: Request, respond: RequestResponseEndpoint) -> Response:
    """A response with the security headers."""
    response = await respond(request)
    response.headers.update(HEADERS)
    if not request.url.path.startswith("/static/"):
        response.headers["Cache-Control"] = "no-store"
    return response
