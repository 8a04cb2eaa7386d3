"""Base of all pages: who signed in, forms that only our pages can send, templates, and errors in words."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ...errors import UsageError
from ...plain_json import visible
from ..errors import (
    AlreadyDecidedError,
    ItemExpiredError,
    LeaseLostError,
    ReviewError,
    StoreUnavailableError,
    UnknownItemError,
    UnstorableError,
)
from ..item import Candidate, Item, plain_number
from ..keys import ExpiringKeys
from .accounts import LIFETIME, Account, Accounts, Sessions

__all__ = [
    "FAILURES",
    "LARGEST_FORM",
    "UNAVAILABLE",
    "PageError",
    "Site",
    "SiteCall",
    "ago",
    "in_words",
    "refusal_of",
    "when",
]

COOKIE = "guardrail_review"
LARGEST_FORM = 64_000
"""Bytes of a form without an edited answer. Anybody may send such a form: the page to sign in has one."""
MOST_FIELDS = 1000
"""Fields of a form: two for each part of an answer that is decided by itself."""
UNAVAILABLE = {"Retry-After": "30"}
"""Headers of a response that says that the database failed."""
_WRITTEN = ("edited", "text", "reason", "note")
"""Fields of a decision that a person writes; an error page shows them, so that they can be copied."""
_DEEPEST = 6
"""Levels of a nested value that are shown in words."""
_DONE = {
    "approve": "approved",
    "edit": "edited",
    "respond": "answered",
    "answer": "answered the user",
    "reject": "rejected",
}
"""Actions, once they are done."""
_JUDGED = {"approve": "right", "edit": "corrected", "reject": "wrong"}
"""The same of an answer that was only judged: the words of the buttons."""
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that embed, override or isolate the direction of writing."""
_log = logging.getLogger(__name__)
Handler = Callable[["SiteCall"], Response]
"""Answers a call; runs in a thread, because the store blocks."""


class PageError(Exception):
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.text, self.headers = status, title, text, headers


FAILURES = (PageError, SQLAlchemyError, ReviewError, UsageError, ClientDisconnect)
"""What ends a request with a page that says why; see `refusal_of`."""
_REFUSALS: tuple[tuple[type[ReviewError], int, str], ...] = (
    (UnknownItemError, 404, "No such item"),
    (LeaseLostError, 409, "You do not hold this item"),
    (AlreadyDecidedError, 409, "Already decided"),
    (ItemExpiredError, 410, "Too late"),
    (UnstorableError, 422, "This cannot be stored; nothing was changed"),
)


class SiteCall:
    """One request and the account that makes it."""

    def __init__(self, request: Request) -> None:
        self.request, self.cookie = request, request.cookies.get(COOKIE, "")
        self.signed_in: Account | None = None
        self.form = FormData()

    @property
    def account(self) -> Account:
        """The account that signed in, on a page behind the sign-in."""
        assert self.signed_in is not None, "only pages behind the sign-in ask for it"
        return self.signed_in

    @property
    def item(self) -> str:
        """Id of the item in the path."""
        return str(self.request.path_params["item"])

    def sent(self, name: str) -> str | None:
        """A text field of the form; None if it is missing."""
        value = self.form.get(name)
        # Browsers send the line ends of a text field as CR LF.
        return value.replace("\r\n", "\n") if isinstance(value, str) else None

    def field(self, name: str) -> str:
        """A text field of the form; empty if it is missing."""
        return self.sent(name) or ""


class Site:
    """Serves pages: finds the session, checks the form, calls the handler and renders the result.

    Args:
        accounts: Who may sign in.
        keys: Keep the sessions.
        https: Whether browsers use https: the cookie is Secure, and forms come from https pages.
    """

    def __init__(self, accounts: Accounts, keys: ExpiringKeys, *, https: bool = False) -> None:
        self.accounts, self.sessions, self._https = accounts, Sessions(keys, accounts), https
        self._pages = Environment(
            loader=PackageLoader("guardrail.review.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            finalize=_shown,
        )
        self._pages.globals["done"] = _DONE
        self._pages.filters |= {"when": when, "ago": ago, "words": in_words, "result": _result, "fate": _fate}
        self._pages.filters |= {"broken": _broken, "hidden": _hidden, "editable": _editable, "escaped": _escaped}

    def route(
        self, path: str, handler: Handler, *, form: int = 0, who: Literal["anybody", "person", "admin"] = "person"
    ) -> Route:
        """A page, or what a form is sent to; "person" is everybody who signed in.

        Args:
            path: Its path.
            handler: Answers a call.
            form: The most bytes of the form; 0 for a page that is only looked at.
            who: Who may use it.
        """

        async def serve(request: Request) -> Response:
            call = request.state.call = SiteCall(request)
            if call.cookie:
                call.signed_in = await run_in_threadpool(self.sessions.account, call.cookie)
            if who != "anybody" and call.signed_in is None:
                return RedirectResponse("/sign-in", 303)
            if who == "admin" and call.account.role != "admin":
                raise PageError(403, "For administrators", "Your account may not do this.")
            if form:
                self.check_length(request, form)
                call.form = await self._form(call, form)
            return await run_in_threadpool(handler, call)

        return Route(path, serve, methods=["POST" if form else "GET"])

    async def _form(self, call: SiteCall, most: int) -> FormData:
        """The fields of a form that one of our pages sent; a form of another site is refused."""
        multipart = call.request.headers.get("content-type", "").startswith("multipart/")
        if multipart and most <= LARGEST_FORM:  # not sent by our pages, and its parser logs a line for a broken one
            raise PageError(415, "Not a form", "Send the form as application/x-www-form-urlencoded.")
        if not self._is_ours(call.request):
            raise PageError(
                403, "Not from this page", "Forms are taken from pages of this address. Nothing was changed."
            )
        return await call.request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=most)

    def _is_ours(self, request: Request) -> bool:
        """Whether a page of ours sent a form: browsers say which site did, and no page can make them say another."""
        sender = request.headers.get("sec-fetch-site")  # missing over http from another machine, and in old browsers
        if sender is not None:
            return sender == "same-origin"
        # The scheme counts: whoever answers http in the network must not send forms to the https page of the same name.
        # It is the one that the operator set. A proxy that ends TLS may or may not say it (X-Forwarded-Proto).
        ours = f"{'https' if self._https else 'http'}://{request.headers.get('host')}"
        return request.headers.get("origin") == ours

    def check_length(self, request: Request, most: int) -> None:
        """Refuse a body that is too large before it is read; the server stops reading at its Content-Length.

        Raises:
            PageError: No length, or a body that is too large.
        """
        if "transfer-encoding" in request.headers:  # its length is not known beforehand
            raise PageError(411, "Length required", "Send the body with Content-Length, not in chunks.")
        length = int(request.headers.get("content-length", "0"))  # the server has checked that it is a number
        if length > most:
            limit = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most // 1000} kB"
            text = f"The limit is {limit}. Go back and shorten the text; nothing was changed."
            raise PageError(413, "Too large", text)

    def page(self, call: SiteCall, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A template, rendered for a request."""
        return HTMLResponse(self._pages.get_template(name).render(account=call.signed_in, **values), status)

    async def failed(self, request: Request, error: Exception) -> Response:
        """The response to a request that ended with one of `FAILURES`, or that met no page.

        A page that says why, with what the person wrote; JSON for a program and where the browser asks for it.
        """
        problem = refusal_of(error)
        if request.url.path.startswith("/api/") or "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"error": problem.title, "detail": problem.text}, problem.status, problem.headers)
        call: SiteCall = getattr(request.state, "call", None) or SiteCall(request)
        signed_in = call.signed_in is not None
        item = call.request.path_params.get("item") if signed_in and problem.status != 404 else None
        wrote = [text for name in _WRITTEN if (text := call.field(name).strip())]
        response = self.page(
            call, "error.html", problem.status, title=problem.title, text=problem.text, item=item, wrote=wrote
        )
        response.headers.update(problem.headers or {})
        return response

    def remember(self, response: Response, cookie: str) -> None:
        """Set the session cookie; remove it if it is empty."""
        # Lax, so that a link in a chat opens the item: pages that are only looked at write nothing.
        lifetime = int(LIFETIME) if cookie else 0
        response.set_cookie(COOKIE, cookie, lifetime, httponly=True, samesite="lax", secure=self._https)


def refusal_of(error: Exception) -> PageError:
    """The page about an operation that was refused or that failed; a failure of the database is logged."""
    if isinstance(error, PageError):
        return error
    if isinstance(error, ClientDisconnect):  # in the middle of its form; nobody gets this response
        return PageError(400, "Broken off", "The request ended before its body.")
    if isinstance(error, HTTPException):
        return PageError(404, "Nothing here", "This page does not exist.")
    if isinstance(error, SQLAlchemyError | StoreUnavailableError):
        # Only the first line: the others hold the values, which are questions and answers.
        cause = error.__cause__ if isinstance(error, StoreUnavailableError) else error
        why = ": " + str(cause.orig).partition("\n")[0] if isinstance(cause, DBAPIError) else ""
        _log.warning("the database of the reviews failed: %s%s", type(error).__name__, why)
        text = "The database does not answer. Try again in a minute; then the page shows if your last step counted."
        return PageError(503, "The database is not available", text, UNAVAILABLE)
    for kind, status, title in _REFUSALS:
        if isinstance(error, kind):
            return PageError(status, title, f"{error}")
    return PageError(400, "Not possible", f"{error}")


def when(seconds: Any) -> str:
    """A time in a form that people read."""
    if seconds is None:
        return "no limit"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError, TypeError):  # beyond the calendar
        return "never" if isinstance(seconds, float) and seconds > 0 else f"{seconds}"


def ago(seconds: float) -> str:
    """A length of time in its largest unit."""
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(int(seconds), 0)} s"


def _fate(item: Item) -> str:
    """The end of an item, in a word."""
    if item.decision is None:
        return {"pending": "waiting", "claimed": "being reviewed"}.get(item.state, item.state)
    return (_JUDGED if item.content.kind == "audit" else _DONE)[item.decision.action]


def _broken(candidate: Candidate | None) -> bool:
    """Whether one of its characters could not be stored."""
    return candidate is not None and "\ufffd" in f"{candidate.model_dump()}"


def _hidden(candidate: Candidate) -> bool:
    """Whether the page names one of its characters, which would hide or turn around the text."""
    texts = candidate.text + json.dumps([call.arguments for call in candidate.tool_calls], ensure_ascii=False)
    return visible(texts) != texts


def _editable(text: str) -> str:
    """The text from which an edit starts, without characters that turn it around, which show one answer as another."""
    return _TURNING.sub("", text)


def _escaped(text: str) -> str:
    """JSON to edit, with such characters as the escapes that JSON has for them: the same value."""
    return _TURNING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _shown(value: Any) -> Any:
    """A text without characters that turn it around or hide in it; fields to edit are marked by ``| e``."""
    return visible(value) if type(value) is str else value


def in_words(value: Any, depth: int = 0) -> Markup:
    """A JSON value as people read it: names and values, lists, yes and no. JSON only where it is nested deeply."""
    if isinstance(value, str):
        return escape(visible(value))
    if isinstance(value, bool) or value is None:
        return escape({True: "yes", False: "no", None: "\u2013"}[value])
    value = plain_number(value)
    if not isinstance(value, Mapping | list | tuple) or depth == _DEEPEST:
        return escape(visible(json.dumps(value, ensure_ascii=False)))
    if not value:
        return Markup("none")
    if isinstance(value, Mapping):
        pair = Markup('<dt>{}</dt><dd class="pre">{}</dd>')
        rows = (pair.format(in_words(name), in_words(inner, depth + 1)) for name, inner in value.items())
        return Markup('<dl class="arguments">{}</dl>').format(Markup("").join(rows))
    rows = (Markup("<li>{}</li>").format(in_words(inner, depth + 1)) for inner in value)
    return Markup('<ul class="values">{}</ul>').format(Markup("").join(rows))


def _result(returned: Any) -> Markup:
    """The result of a tool: JSON in words, any other text unchanged."""
    try:
        value = json.loads(returned)
    except (ValueError, TypeError, RecursionError):
        return in_words(returned)
    return in_words(value if isinstance(value, dict | list) else returned)
