"""What every page shares: sessions, forms that only our pages can send, templates, and errors in words."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from ...errors import UsageError
from ..errors import (
    AlreadyDecidedError,
    ItemExpiredError,
    LeaseLostError,
    ReviewError,
    UnknownItemError,
    UnstorableError,
)
from ..queue.item import Candidate
from ..queue.store import LEASE
from .accounts import Account, Accounts
from .sessions import Session, Sessions

__all__ = ["LARGEST_FORM", "Call", "Endpoint", "PageError", "Site", "ago", "when"]

COOKIE = "guardrail_review"
LARGEST_FORM = 1_000_000
"""Bytes of a form without an edited answer."""
Handler = Callable[["Call"], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


class PageError(Exception):
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.text, self.headers = status, title, text, headers


class Call:
    """One request and the account that makes it."""

    def __init__(self, request: Request, session: Session, account: Account | None, form: FormData) -> None:
        self.request, self.session, self._account, self.form = request, session, account, form

    @property
    def signed_in(self) -> Account | None:
        """Who signed in; None on a page for everybody."""
        return self._account

    @property
    def account(self) -> Account:
        """Who signed in, on a page behind the sign-in."""
        assert self._account is not None, "only pages behind the sign-in ask for it"
        return self._account

    @property
    def item(self) -> str:
        """Id of the item in the path."""
        return str(self.request.path_params["item"])

    def field(self, name: str) -> str:
        """A text field of the form; empty where it is missing."""
        value = self.form.get(name, "")
        # Browsers send the line ends of a text field as CR LF.
        return value.replace("\r\n", "\n") if isinstance(value, str) else ""


class Site:
    """Serves pages: finds the session, checks the form, calls the handler and renders what it gives.

    Args:
        accounts: Who may sign in.
        sessions: Makes and reads session cookies.
        https: Whether to mark the cookie Secure.
    """

    def __init__(self, accounts: Accounts, sessions: Sessions, https: bool) -> None:
        self.accounts, self.sessions, self._https = accounts, sessions, https
        self._pages = Environment(
            loader=PackageLoader("guardrail.review.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._pages.filters["when"] = when
        self._pages.filters["pretty"] = _pretty
        self._pages.filters["compact"] = _compact
        self._pages.filters["ago"] = ago
        self._pages.filters["seconds"] = _seconds
        self._pages.filters["broken"] = _broken

    def open(self, handler: Handler, *, form: int = 0) -> Endpoint:
        """A page for everybody. ``form`` is the most bytes of the form it takes; 0 for a page without a form."""
        return partial(self._serve, handler, form, signed_in=False, admin=False)

    def closed(self, handler: Handler, *, form: int = 0, admin: bool = False) -> Endpoint:
        """A page for those who signed in; with ``admin``, for administrators."""
        return partial(self._serve, handler, form, signed_in=True, admin=admin)

    async def _serve(self, handler: Handler, form: int, request: Request, *, signed_in: bool, admin: bool) -> Response:
        session = self.sessions.read(request.cookies.get(COOKIE))
        account = None
        if session is not None and session.name:
            account = await run_in_threadpool(self.accounts.by_name, session.name, session.sha256)
        if signed_in and account is None:
            return RedirectResponse("/sign-in", 303)
        call = Call(request, session or self.sessions.begin(), account, FormData())
        try:
            if admin and call.account.role != "admin":
                raise PageError(403, "For administrators", "Your account may not do this.")
            if form:
                call.form = await self._form(request, session, form)
            response = await handler(call)
        except PageError as problem:
            response = self.error(call, problem.status, problem.title, problem.text, problem.headers)
        except (ReviewError, UsageError) as error:
            response = self.error(call, *_describe(error))
        if session is None and COOKIE not in response.headers.get("set-cookie", ""):
            self.remember(response, call.session)
        return response

    async def _form(self, request: Request, session: Session | None, most: int) -> FormData:
        """The fields of a form that one of our pages sent; a form of another site is refused."""
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > most:
            text = f"The limit is {most // 1_000_000} MB. Go back and shorten the text; nothing was changed."
            raise PageError(413, "Too large", text)
        form = await request.form(max_files=0, max_fields=50, max_part_size=most)
        given = form.get("form_token")
        if session is None or not isinstance(given, str) or not self.sessions.genuine(session, given):
            raise PageError(
                403, "This form has expired", "Go back, reload the page and try again. Nothing was changed."
            )
        return form

    def page(self, call: Call, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A template, rendered for a request."""
        context = {
            "account": call.signed_in,
            "form_token": self.sessions.form_token(call.session),
            **values,
        }
        return HTMLResponse(self._pages.get_template(name).render(context), status)

    def error(self, call: Call, status: int, title: str, text: str, headers: dict[str, str] | None = None) -> Response:
        """A page that says what went wrong; JSON where the browser asks for it."""
        if "application/json" in call.request.headers.get("accept", ""):
            return JSONResponse({"error": title, "detail": text}, status, headers)
        response = self.page(call, "error.html", status, title=title, text=text)
        response.headers.update(headers or {})
        return response

    def remember(self, response: Response, session: Session) -> None:
        """Set the session cookie."""
        response.set_cookie(
            COOKIE, self.sessions.write(session), httponly=True, samesite="strict", secure=self._https, path="/"
        )


def _describe(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, UnknownItemError):
        return 404, "No such item", "This item does not exist, or it was deleted."
    if isinstance(error, LeaseLostError):
        return 409, "Your time for this item is over", f"{error}"
    if isinstance(error, UnstorableError):
        return 422, "This cannot be stored", f"{error} Go back and correct it; nothing was changed."
    if isinstance(error, AlreadyDecidedError):
        return 409, "Already decided", f"{error}"
    if isinstance(error, ItemExpiredError):
        return 409, "Too late", f"{error}"
    return 400, "Not possible", f"{error}"


def when(seconds: Any) -> str:
    """A time as people read it."""
    if seconds is None:
        return "no limit"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError, TypeError):  # an older store may hold times beyond the calendar
        return "never" if isinstance(seconds, float) and seconds > 0 else f"{seconds}"


def _seconds(seconds: float) -> int:
    return int(seconds if math.isfinite(seconds) else LEASE)


def ago(seconds: float) -> str:
    """A length of time in its largest unit."""
    if not math.isfinite(seconds):
        return "for ever"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(int(seconds), 0)} s"


def _broken(candidate: Candidate | None) -> bool:
    """Whether one of its characters could not be stored."""
    return candidate is not None and "\ufffd" in f"{candidate.model_dump()}"


def _pretty(value: Any) -> str:
    if isinstance(value, tuple):
        value = [one.model_dump(mode="json") for one in value]
    return json.dumps(value, indent=2, ensure_ascii=False)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
