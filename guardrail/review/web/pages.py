"""The pages: sign-in, queue, an item with its decision, history with a search, audit trail and monitors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ...errors import UsageError
from ...explain import reviewers_reason
from ...files import problem_of
from ...types import ToolCall, canonical_calls
from ..errors import ReviewError, StoreUnavailableError
from ..item import Action, Candidate, Content, Decision, Item, ItemDecision, Kind, by_items
from ..monitors import Monitors, MonitorStep
from ..store import Lease, ReviewStore
from .choices import choices_of, choose
from .fields import arguments_of, decisions_of, edited_calls, named_arguments, purpose_of, rows_of
from .site import LARGEST_FORM, PageError, Site, SiteCall, refusal_of

__all__ = ["LARGEST_DECISION", "Pages", "decided", "wealth_plot"]

LARGEST_DECISION = 16_000_000
"""Bytes of a decision, which may hold an edited answer; the edited text is sent unencoded (multipart)."""
PAGE = 50
LONGEST_SEARCH = 200
"""Characters of a search that are used."""


class Pages:
    """Handlers of all pages; each runs in a thread and answers one call.

    Args:
        site: Serves the pages.
        store: The queue; its database holds the monitors.
        lease: Seconds a reviewer has for an item.
    """

    def __init__(self, site: Site, store: ReviewStore, lease: float) -> None:
        self._site, self._store, self._lease = site, store, lease
        self._monitors = Monitors(store)

    def routes(self) -> list[Route]:
        """Paths and their handlers."""
        route, small = self._site.route, LARGEST_FORM
        return [
            route("/sign-in", self._sign_in_form, who="anybody"),
            route("/sign-in", self._sign_in, form=small, who="anybody"),
            route("/sign-out", self._sign_out, form=small),
            route("/", self._queue),
            route("/history", self._history),
            route("/trail", self._trail, who="admin"),
            route("/next", self._next_item, form=small),
            route("/items/{item}", self._show),
            route("/items/{item}/claim", self._claim, form=small),
            route("/items/{item}/renew", self._renew, form=small),
            route("/items/{item}/release", self._release, form=small),
            route("/items/{item}/take-back", self._take_back, form=small, who="admin"),
            route("/items/{item}/decide", self._decide, form=LARGEST_DECISION),
            route("/monitor", self._monitor),
            route("/monitor/acknowledge", self._acknowledge, form=small, who="admin"),
        ]

    def _sign_in_form(self, call: SiteCall) -> Response:
        return self._site.page(call, "sign_in.html", problem="")

    def _sign_in(self, call: SiteCall) -> Response:
        account = self._site.accounts.by_token(call.field("token").strip())
        if account is None or account.role == "system":
            problem = "This token is not valid here. Ask your administrator for a token."
            return self._site.page(call, "sign_in.html", 403, problem=problem)
        response = RedirectResponse("/", 303)
        self._site.remember(response, self._site.sessions.begin(account))
        return response

    def _sign_out(self, call: SiteCall) -> Response:
        self._site.sessions.end(call.cookie)
        response = RedirectResponse("/sign-in", 303)
        self._site.remember(response, "")
        return response

    def _queue(self, call: SiteCall) -> Response:
        """Open items, oldest first."""
        page = _page_number(call.request)
        listed = self._store.items(["pending", "claimed"], limit=PAGE + 1, offset=page * PAGE)
        if page and not listed:  # they were decided meanwhile
            return RedirectResponse("/", 303)
        return self._list(call, "queue.html", listed, page=page)

    def _history(self, call: SiteCall) -> Response:
        """Decided and expired items, newest first; or all items with a ticket, key or text that somebody searches."""
        page, wanted = _page_number(call.request), call.request.query_params.get("q", "").strip()[:LONGEST_SEARCH]
        if wanted:
            listed = self._store.search(wanted, limit=PAGE + 1)
        else:
            listed = self._store.items(["decided", "expired"], newest=True, limit=PAGE + 1, offset=page * PAGE)
        return self._list(call, "history.html", listed, page=page, wanted=wanted)

    def _list(self, call: SiteCall, template: str, listed: list[Item], **shown: Any) -> Response:
        shown |= {"items": listed[:PAGE], "more": len(listed) > PAGE, "stats": self._store.stats(), "now": self._now()}
        return self._site.page(call, template, undone=self._store.left_undone([item.id for item in listed]), **shown)

    def _trail(self, call: SiteCall) -> Response:
        """The latest lines of the audit trail."""
        return self._site.page(call, "trail.html", events=self._store.trail(limit=200)[::-1])

    def _next_item(self, call: SiteCall) -> Response:
        """Claim the oldest free item and show it."""
        self._store.expire()  # here and not in the pages, because a GET must not write
        return _opened(self._store.claim(call.account.name, seconds=self._lease))

    def _show(self, call: SiteCall, problem: PageError | None = None) -> Response:
        """One item; after a decision that was refused, with the reason and with what the person wrote."""
        item = self._store.item(call.item)
        verdict = item.content.verdict
        why, numbers = ("", "") if verdict is None else reviewers_reason(verdict)
        return self._site.page(
            call,
            "item.html",
            200 if problem is None else problem.status,
            problem=problem,
            typed=partial(_typed, call),
            item=item,
            undone=self._store.left_undone([item.id]).get(item.id, ""),
            why=why,
            numbers=numbers,
            purpose=partial(purpose_of, item.content),
            named=partial(named_arguments, item.content),
            lease=self._store.held(call.item, call.account.name),
            trail=self._store.trail(call.item) if call.account.role == "admin" else [],
            now=self._now(),
            choices=choices_of(item.content),
            rows=rows_of(item.content),
            arguments=arguments_of(item.content),
        )

    def _claim(self, call: SiteCall) -> Response:
        if self._store.claim(call.account.name, item=call.item, seconds=self._lease) is None:
            raise PageError(409, "Already taken", "Another reviewer has taken this item. Take the next one.")
        return RedirectResponse(f"/items/{call.item}", 303)

    def _renew(self, call: SiteCall) -> Response:
        """Keep the item longer; the page's script asks for it."""
        renewed = self._store.renew(self._given_lease(call), seconds=self._lease)
        return JSONResponse({"seconds": self._lease, "until": renewed.until})

    def _release(self, call: SiteCall) -> Response:
        self._store.release(self._given_lease(call))
        return RedirectResponse("/", 303)

    def _take_back(self, call: SiteCall) -> Response:
        self._store.take_back(call.item, who=call.account.name)
        return RedirectResponse(f"/items/{call.item}", 303)

    def _decide(self, call: SiteCall) -> Response:
        """Record a decision and open the next item: after an audit or a label the next of these, else a waiting item.

        A decision that is refused shows the item again, with what the reviewer wrote.
        An item that the reviewer holds already comes first, so that a form sent twice takes no second item.
        """
        lease = self._given_lease(call)
        try:
            self._store.decide(lease, _decision(call, lease.item))
        except (PageError, ReviewError, UsageError) as error:
            if isinstance(error, StoreUnavailableError) or self._store.held(call.item, call.account.name) is None:
                raise
            return self._show(call, refusal_of(error))
        kinds: tuple[Kind, ...] = ("audit",) if lease.item.content.kind == "audit" else ("answer", "tool_call")
        for item in self._store.items(["claimed"], limit=PAGE):
            if item.holder == call.account.name and item.content.kind in kinds:
                return RedirectResponse(f"/items/{item.id}", 303)
        return _opened(self._store.claim(call.account.name, seconds=self._lease, kinds=kinds))

    def _given_lease(self, call: SiteCall) -> Lease:
        return Lease(self._store.item(call.item), call.field("lease"), call.account.name, 0.0)

    def _now(self) -> float:
        with self._store.database.read() as transaction:
            return transaction.now

    def _monitor(self, call: SiteCall) -> Response:
        views = [(view, self._monitors.history(view.name)) for view in self._monitors.all()]
        return self._site.page(call, "monitor.html", views=views, plot=wealth_plot)

    def _acknowledge(self, call: SiteCall) -> Response:
        self._monitors.acknowledge(call.field("name"), who=call.account.name)
        return RedirectResponse("/monitor", 303)


def _opened(lease: Lease | None) -> Response:
    """Shows the item that was taken; the queue if none was free."""
    return RedirectResponse("/" if lease is None else f"/items/{lease.item.id}", 303)


def _typed(call: SiteCall, name: str, otherwise: Any) -> Any:
    """The text of a form that was refused; otherwise what the form starts from."""
    sent = call.sent(name)
    return otherwise if sent is None else sent


def _decision(call: SiteCall, item: Item) -> Decision:
    action: Any = call.field("action")
    note = call.field("note").strip()
    if call.field("choice"):
        chosen = choose(item.content, call.field("choice"), note)
        if chosen is None:
            why = "Nothing was changed. Reload the page and choose again, or decide in another way."
            raise PageError(422, "This answer is not on the list, or cannot be chosen", why)
        return chosen
    content = item.content
    try:
        if action == "items":
            return decided(content, None, items=decisions_of(content, call.field), note=note)
        if action == "edit":
            calls = edited_calls(content, call.sent)
            return decided(content, action, text=call.field("edited"), calls=calls, note=note)
        text = call.field("text") if action in ("respond", "answer") else call.field("reason").strip() or None
        return decided(content, action, text=text, note=note)
    except ValidationError as error:
        text = f"{problem_of(error)}. Nothing was changed."
        raise PageError(422, "This decision is incomplete", text) from None


def decided(
    content: Content,
    action: Action | None,
    *,
    text: str | None = None,
    calls: tuple[ToolCall, ...] | None = None,
    items: Sequence[ItemDecision] = (),
    note: str = "",
) -> Decision:
    """The decision in a form or a request; without an action, item by item. An edit keeps a text or calls of None.

    An edit that changes nothing is an approval: an edit would record that the candidate is wrong.

    Raises:
        PageError: An edit that changes nothing, and the item does not allow approve.
        ValidationError: An incomplete decision.
        UsageError: The items are not exactly those that were held back.
    """
    if action is None:
        return by_items(content, items, note)
    if action != "edit":
        return Decision(action=action, text=text, note=note)
    before = content.candidate or Candidate()
    edited = Candidate(
        text=before.text if text is None else text, tool_calls=before.tool_calls if calls is None else calls
    )
    if content.candidate is None or not _is_unchanged(before, edited):
        return Decision(action="edit", candidate=edited, note=note)
    if "approve" in content.allowed:
        return Decision(action="approve", note=note)
    why = "An edit records that the model's answer is wrong, but nothing changed. Edit it, or reject it."
    raise PageError(422, "Nothing was edited", why)


def _is_unchanged(before: Candidate, edited: Candidate) -> bool:
    try:
        same_calls = canonical_calls(before.tool_calls) == canonical_calls(edited.tool_calls)
    except RecursionError:  # nested too deeply; the store refuses it
        return False
    return same_calls and _as_field_text(before.text) == _as_field_text(edited.text)


def _as_field_text(text: str) -> str:
    """As a browser's text field returns it: one kind of line end, no NUL."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _page_number(request: Request) -> int:
    number = request.query_params.get("page", "0")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 0


# -- the plot of a monitor ---------------------------------------------------------------------------------------------

LEFT, RIGHT, TOP, BOTTOM = 10, 626, 20, 196
"""The area of the curve in the picture that monitor.html draws."""


def wealth_plot(steps: Sequence[MonitorStep], delta: float) -> dict[str, Any]:
    """Places in the picture of ln(wealth) over the updates, from 0 at the start, with the alarm line ln(1/delta).

    Args:
        steps: The history in order, not empty; a long history may be thinned, and must include the last step.
        delta: False-alarm probability of the monitor.

    Returns:
        ``points`` of the curve, and the heights ``zero``, ``alarm`` and ``end``.
    """
    alarm, last = -math.log(delta), steps[-1]
    values = [0.0, *(step.log_wealth for step in steps)]
    numbers = [0, *(step.n for step in steps)]
    low, high = min(-0.5, *values), max(alarm * 1.12, *values)

    def height(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    across = [LEFT + number / last.n * (RIGHT - LEFT) for number in numbers]
    points = " ".join(f"{x:.1f},{height(value):.1f}" for x, value in zip(across, values, strict=True))
    return {"points": points, "zero": height(0), "alarm": height(alarm), "end": height(last.log_wealth)}
