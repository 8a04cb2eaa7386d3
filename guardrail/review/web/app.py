"""The review page: a small server-rendered site over a `ReviewStore`. Works without JavaScript.

What a model wrote is shown as text only: templates escape everything, and the content security policy allows no script
and no style but the page's own files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import UsageError
from ...types import ToolCall, canonical_calls
from ..errors import (
    AlreadyDecidedError,
    ItemExpiredError,
    LeaseLostError,
    ReviewError,
    UnknownItemError,
    UnstorableError,
)
from ..limits import check_seconds
from ..monitors.store import Monitors, MonitorView
from ..queue.item import Candidate, Content, Decision, Item, State
from ..queue.store import LEASE, Lease, ReviewStore
from .accounts import Account, Accounts
from .choices import choices_of, choose
from .plots import uncertainty_plot, wealth_plot
from .sessions import RateLimit, Session, Sessions

__all__ = ["review_app"]

COOKIE = "guardrail_review"
LARGEST_FORM = 1_000_000
LARGEST_DECISION = 16_000_000
"""Bytes of a decision, which may hold an edited answer; the edited text is sent as it is (multipart)."""
PAGE = 50
POINTS = 400
"""Points of a monitor's plot."""
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
Handler = Callable[["_Call"], Awaitable[Response]]


class _Refused(Exception):  # noqa: N818
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.text, self.headers = status, title, text, headers


def review_app(
    store: ReviewStore,
    accounts: Accounts,
    *,
    secret: bytes | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]"),
    https: bool = False,
    lease: float = LEASE,
    limit: RateLimit | None = None,
) -> Starlette:
    """The page as an ASGI application.

    Args:
        store: The queue.
        accounts: Who may sign in.
        secret: Signs session cookies; give the same to several processes. Default: a fresh one, so that a restart
            signs everybody out.
        hosts: Host names it answers to; others are refused, so that no other name can be pointed at it.
        https: Whether browsers reach it by https only; marks the cookie Secure.
        lease: Seconds a reviewer has for an item; the page renews it while it is open.
        limit: Failures of signing in that are tolerated.

    Raises:
        UsageError: A lease that is not positive or above ten years.
    """
    check_seconds("lease", lease, "Use 600.")
    site = _Site(store, accounts, Sessions(secret), limit or RateLimit(), https, lease)
    folder = Path(str(files("guardrail.review.web") / "static"))
    routes = [
        Route("/health", site.health),
        Route("/sign-in", site.open(site.sign_in_page)),
        Route("/sign-in", site.open(site.sign_in, form=LARGEST_FORM), methods=["POST"]),
        Route("/sign-out", site.closed(site.sign_out, form=LARGEST_FORM), methods=["POST"]),
        Route("/", site.closed(site.queue)),
        Route("/history", site.closed(site.history)),
        Route("/trail", site.closed(site.trail, admin=True)),
        Route("/monitor", site.closed(site.monitor)),
        Route("/monitor/acknowledge", site.closed(site.acknowledge, form=LARGEST_FORM, admin=True), methods=["POST"]),
        Route("/next", site.closed(site.next_item, form=LARGEST_FORM), methods=["POST"]),
        Route("/items/{item}", site.closed(site.show)),
        Route("/items/{item}/claim", site.closed(site.claim, form=LARGEST_FORM), methods=["POST"]),
        Route("/items/{item}/renew", site.closed(site.renew, form=LARGEST_FORM), methods=["POST"]),
        Route("/items/{item}/release", site.closed(site.release, form=LARGEST_FORM), methods=["POST"]),
        Route("/items/{item}/take-back", site.closed(site.take_back, form=LARGEST_FORM, admin=True), methods=["POST"]),
        Route("/items/{item}/decide", site.closed(site.decide, form=LARGEST_DECISION), methods=["POST"]),
        Mount("/static", StaticFiles(directory=folder)),
    ]
    middleware = [
        Middleware(_Headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={404: site.not_found})


class _Headers:
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


class _Call:
    """One request, with who makes it."""

    def __init__(self, request: Request, session: Session, account: Account | None, form: FormData) -> None:
        self.request, self.session, self._account, self.form = request, session, account, form

    @property
    def account(self) -> Account:
        assert self._account is not None, "only pages behind the sign-in ask"
        return self._account

    @property
    def item(self) -> str:
        return str(self.request.path_params["item"])

    def field(self, name: str) -> str:
        value = self.form.get(name, "")
        # Browsers send the line ends of a text field as CR LF.
        return value.replace("\r\n", "\n") if isinstance(value, str) else ""


class _Site:
    def __init__(
        self,
        store: ReviewStore,
        accounts: Accounts,
        sessions: Sessions,
        limit: RateLimit,
        https: bool,
        lease: float,
    ) -> None:
        self._store, self._accounts, self._sessions = store, accounts, sessions
        self._limit, self._https, self._lease = limit, https, lease
        self._pages = Environment(
            loader=PackageLoader("guardrail.review.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._pages.filters["when"] = _when
        self._pages.filters["pretty"] = _pretty
        self._pages.filters["compact"] = _compact
        self._pages.filters["ago"] = _ago
        self._pages.filters["seconds"] = _seconds
        self._pages.filters["broken"] = _broken

    # -- frame -----------------------------------------------------------------------------------------------------

    def open(self, handler: Handler, *, form: int = 0) -> Callable[[Request], Awaitable[Response]]:
        """A page for everybody. ``form``: bytes of the form it takes; 0: none."""
        return partial(self._serve, handler, form, signed_in=False, admin=False)

    def closed(
        self, handler: Handler, *, form: int = 0, admin: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """A page for those who signed in."""
        return partial(self._serve, handler, form, signed_in=True, admin=admin)

    async def _serve(self, handler: Handler, form: int, request: Request, *, signed_in: bool, admin: bool) -> Response:
        session = self._sessions.read(request.cookies.get(COOKIE))
        account = None
        if session is not None and session.name:
            account = await run_in_threadpool(self._accounts.by_name, session.name, session.sha256)
        if signed_in and account is None:
            return RedirectResponse("/sign-in", 303)
        call = _Call(request, session or self._sessions.begin(), account, FormData())
        try:
            if admin and call.account.role != "admin":
                raise _Refused(403, "For administrators", "Your account may not do this.")
            if form:
                call.form = await self._form(request, session, form)
            response = await handler(call)
        except _Refused as refused:
            response = self._error(call, refused.status, refused.title, refused.text, refused.headers)
        except (ReviewError, UsageError) as error:
            response = self._error(call, *_told(error))
        if session is None and COOKIE not in response.headers.get("set-cookie", ""):
            self._remember(response, call.session)
        return response

    async def _form(self, request: Request, session: Session | None, most: int) -> FormData:
        """The fields of a form of ours, and of no other site's."""
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > most:
            text = f"This form may carry {most // 1_000_000} MB. Go back and shorten the text; nothing was changed."
            raise _Refused(413, "Too large", text)
        form = await request.form(max_files=0, max_fields=50, max_part_size=most)
        given = form.get("form_token")
        if session is None or not isinstance(given, str) or not self._sessions.genuine(session, given):
            raise _Refused(403, "This form is too old", "Go back, reload the page and try again. Nothing was changed.")
        return form

    def _page(self, call: _Call, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        context = {
            "account": call._account,
            "form_token": self._sessions.form_token(call.session),
            **values,
        }
        return HTMLResponse(self._pages.get_template(name).render(context), status)

    def _error(
        self, call: _Call, status: int, title: str, text: str, headers: dict[str, str] | None = None
    ) -> Response:
        if "application/json" in call.request.headers.get("accept", ""):
            return JSONResponse({"error": title, "detail": text}, status, headers)
        response = self._page(call, "error.html", status, title=title, text=text)
        response.headers.update(headers or {})
        return response

    def _remember(self, response: Response, session: Session) -> None:
        response.set_cookie(
            COOKIE, self._sessions.write(session), httponly=True, samesite="strict", secure=self._https, path="/"
        )

    async def health(self, _: Request) -> Response:
        """For a load balancer: whether the store answers."""
        await run_in_threadpool(self._store.stats)
        return JSONResponse({"status": "ok"})

    async def not_found(self, request: Request, _: Exception) -> Response:
        """A page that is not there."""
        call = _Call(request, self._sessions.begin(), None, FormData())
        return self._error(call, 404, "Nothing here", "This page does not exist.")

    # -- signing in ------------------------------------------------------------------------------------------------

    async def sign_in_page(self, call: _Call) -> Response:
        return self._page(call, "sign_in.html", problem="")

    async def sign_in(self, call: _Call) -> Response:
        address = call.request.client.host if call.request.client else "unknown"
        wait = self._limit.wait(address)
        if wait > 0:
            seconds = str(int(wait) + 1)
            text = f"Wait {seconds} seconds and try again."
            raise _Refused(429, "Too many attempts", text, {"Retry-After": seconds})
        account = await run_in_threadpool(self._accounts.by_token, call.field("token").strip())
        if account is None:
            self._limit.failed(address)
            problem = "This token is not known. Ask whoever runs this page for one."
            return self._page(call, "sign_in.html", 403, problem=problem)
        response = RedirectResponse("/", 303)
        self._remember(response, self._sessions.begin(account.name, account.sha256))
        return response

    async def sign_out(self, call: _Call) -> Response:
        response = RedirectResponse("/sign-in", 303)
        self._remember(response, self._sessions.begin())
        return response

    # -- the queue -------------------------------------------------------------------------------------------------

    async def queue(self, call: _Call) -> Response:
        await run_in_threadpool(self._store.expire)
        page, found = await self._listed(call, ["pending", "claimed"], newest=False)
        if page and not found["items"]:  # they were decided meanwhile
            return RedirectResponse("/", 303)
        return self._page(call, "queue.html", page=page, **found)

    async def history(self, call: _Call) -> Response:
        page, found = await self._listed(call, ["decided", "expired"], newest=True)
        return self._page(call, "history.html", page=page, **found)

    async def _listed(self, call: _Call, states: list[State], *, newest: bool) -> tuple[int, dict[str, Any]]:
        page = _page_number(call.request)

        def find() -> dict[str, Any]:
            listed = self._store.items(states, newest=newest, limit=PAGE + 1, offset=page * PAGE)
            more = len(listed) > PAGE
            return {"items": listed[:PAGE], "more": more, "stats": self._store.stats(), "now": self._now()}

        return page, await run_in_threadpool(find)

    async def trail(self, call: _Call) -> Response:
        lines = await run_in_threadpool(self._store.trail, limit=200)
        return self._page(call, "trail.html", events=lines[::-1])

    async def monitor(self, call: _Call) -> Response:
        def find() -> list[tuple[MonitorView, Any]]:
            monitors = Monitors(self._store)
            views = monitors.all()
            return [(view, wealth_plot(monitors.history(view.name, most=POINTS), view.delta)) for view in views]

        return self._page(call, "monitor.html", views=await run_in_threadpool(find))

    async def acknowledge(self, call: _Call) -> Response:
        def note() -> None:
            Monitors(self._store).acknowledge(call.field("name"), who=call.account.name)

        await run_in_threadpool(note)
        return RedirectResponse("/monitor", 303)

    async def next_item(self, call: _Call) -> Response:
        lease = await run_in_threadpool(partial(self._store.claim, call.account.name, seconds=self._lease))
        return RedirectResponse("/" if lease is None else f"/items/{lease.item.id}", 303)

    async def show(self, call: _Call) -> Response:
        def find() -> dict[str, Any]:
            item = self._store.item(call.item)
            return {
                "item": item,
                "lease": self._store.held(call.item, call.account.name),
                "trail": self._store.trail(call.item) if call.account.role == "admin" else [],
                "now": self._now(),
                "stats": self._store.stats(),
            }

        found = await run_in_threadpool(find)
        content = found["item"].content
        plot, choices = uncertainty_plot(content.verdict), choices_of(content)
        return self._page(call, "item.html", plot=plot, choices=choices, **found)

    async def claim(self, call: _Call) -> Response:
        claim = partial(self._store.claim, call.account.name, item=call.item, seconds=self._lease)
        if await run_in_threadpool(claim) is None:
            raise _Refused(409, "Somebody was faster", "Another reviewer has taken this item. Take the next one.")
        return RedirectResponse(f"/items/{call.item}", 303)

    async def renew(self, call: _Call) -> Response:
        lease = await self._given_lease(call)
        renewed = await run_in_threadpool(partial(self._store.renew, lease, seconds=self._lease))
        return JSONResponse({"seconds": self._lease, "until": renewed.until})

    async def release(self, call: _Call) -> Response:
        await run_in_threadpool(self._store.release, await self._given_lease(call))
        return RedirectResponse("/", 303)

    async def take_back(self, call: _Call) -> Response:
        await run_in_threadpool(partial(self._store.take_back, call.item, who=call.account.name))
        return RedirectResponse(f"/items/{call.item}", 303)

    async def decide(self, call: _Call) -> Response:
        lease = await self._given_lease(call)
        await run_in_threadpool(self._store.decide, lease, _decision(call, lease.item))
        return RedirectResponse("/", 303)

    async def _given_lease(self, call: _Call) -> Lease:
        item = await run_in_threadpool(self._store.item, call.item)
        return Lease(item, call.field("lease"), call.account.name, 0.0)

    def _now(self) -> float:
        with self._store.database.read() as connection:
            return self._store.database.now(connection)


def _decision(call: _Call, item: Item) -> Decision:
    action: Any = call.field("action")
    note = call.field("note").strip()
    if call.field("choice"):
        return _choice(call, item, note)
    try:
        if action == "edit":
            return _edit(item.content, _edited(call, item), note)
        text = call.field("text") if action == "respond" else None
        return Decision(action=action, text=text, note=note)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise _Refused(
            422, "This decision is incomplete", f"{message}. Go back; what you wrote is still there."
        ) from None


def _choice(call: _Call, item: Item, note: str) -> Decision:
    if call.field("action"):
        text = "Choose one answer of the list, or decide in another way; the form asked for both. Nothing was changed."
        raise _Refused(422, "Two decisions at once", text)
    decision = choose(item.content, call.field("choice"), note)
    if decision is None:
        why = (
            "No answer of this item that may be chosen has this name. Nothing was changed. Reload the page and choose "
            "again, or decide in another way."
        )
        raise _Refused(422, "This answer is not on the list", why)
    return decision


def _edit(content: Content, mended: Candidate, note: str) -> Decision:
    """An edit that changes nothing approves: recorded as an edit, it would say that the candidate is wrong."""
    if content.candidate is None or not _unchanged(content.candidate, mended):
        return Decision(action="edit", candidate=mended, note=note)
    if "approve" in content.allowed:
        return Decision(action="approve", note=note)
    text = "An edit says that the model's answer is wrong, but this one is the same. Go back and change it, or reject."
    raise _Refused(422, "Nothing was edited", text)


def _unchanged(one: Candidate, other: Candidate) -> bool:
    try:
        same_calls = canonical_calls(one.tool_calls) == canonical_calls(other.tool_calls)
    except RecursionError:  # deeper than anything that was stored; the store says so
        return False
    return same_calls and _in_a_field(one.text) == _in_a_field(other.text)


def _in_a_field(text: str) -> str:
    """As a browser's text field gives it back: one kind of line end, no NUL."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _edited(call: _Call, item: Item) -> Candidate:
    before = item.content.candidate or Candidate()
    calls = before.tool_calls
    if call.field("tool_calls"):
        try:
            calls = tuple(ToolCall.model_validate(one) for one in json.loads(call.field("tool_calls")))
        except (ValueError, TypeError, RecursionError) as error:
            why = str(error).splitlines()[0]
            text = f'Tool calls are a JSON list of {{"name": ..., "arguments": {{...}}}}: {why}. Go back and mend it.'
            raise _Refused(422, "These tool calls cannot be read", text) from None
    return Candidate(text=call.field("edited"), tool_calls=calls)


def _told(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, UnknownItemError):
        return 404, "No such item", "It does not exist, or you followed a broken link."
    if isinstance(error, LeaseLostError):
        return 409, "Your time for this item is over", f"{error}"
    if isinstance(error, UnstorableError):
        return 422, "This cannot be stored", f"{error} Go back and mend it; nothing was changed."
    if isinstance(error, AlreadyDecidedError):
        return 409, "Already decided", f"{error}"
    if isinstance(error, ItemExpiredError):
        return 409, "Too late", f"{error}"
    return 400, "Not possible", f"{error}"


def _page_number(request: Request) -> int:
    given = request.query_params.get("page", "0")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0


def _when(seconds: Any) -> str:
    if seconds is None:
        return "no limit"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError, TypeError):  # an older store may hold times that no calendar does
        return "never" if isinstance(seconds, float) and seconds > 0 else f"{seconds}"


def _seconds(seconds: float) -> int:
    return int(seconds if math.isfinite(seconds) else LEASE)


def _ago(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "for ever"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(int(seconds), 0)} s"


def _broken(candidate: Candidate | None) -> bool:
    """Whether a character of it could not be stored."""
    return candidate is not None and "\ufffd" in f"{candidate.model_dump()}"


def _pretty(value: Any) -> str:
    if isinstance(value, tuple):
        value = [one.model_dump(mode="json") for one in value]
    return json.dumps(value, indent=2, ensure_ascii=False)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
