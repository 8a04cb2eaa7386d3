"""The API with which another system, e.g. for tickets, reads an item and decides it. JSON, one token for each system.

A system does not claim items. Its decision is refused while a reviewer holds the item on the page.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import UsageError
from ...files import problem_of
from ...types import ToolCall
from ..errors import AlreadyDecidedError, LeaseLostError
from ..item import Action, Content, Decision, Item, ItemDecision
from ..limits import LONGEST_NAME
from ..store import ReviewStore
from .accounts import Account
from .pages import LARGEST_DECISION, decided
from .site import PageError, Site

__all__ = ["Api"]


class _DecisionBody(BaseModel):
    """The body of a decision."""

    model_config = ConfigDict(extra="forbid")

    action: Action | None = None
    items: tuple[ItemDecision, ...] = ()
    reviewer: str = Field(min_length=1)
    text: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    note: str = ""

    def decision(self, content: Content) -> Decision:
        """The decision; see `decided` for the errors.

        Raises:
            UsageError: A field that goes with another action.
        """
        if (self.action is None) != bool(self.items):
            raise UsageError("send either an action, or items: a decision about each item that was held back.")
        if self.tool_calls is not None and self.action != "edit":
            raise UsageError(f'tool_calls goes with the action "edit", got {self.action!r}. Leave it out.')
        return decided(content, self.action, text=self.text, calls=self.tool_calls, items=self.items, note=self.note)


class Api:
    """Reads and decides items for other systems.

    Args:
        site: Holds the accounts and the limits.
        store: The queue.
    """

    def __init__(self, site: Site, store: ReviewStore) -> None:
        self._site, self._store = site, store

    def routes(self) -> list[Route]:
        """Paths and their handlers."""
        return [
            Route("/api/items/{item}", self.show),
            Route("/api/items/{item}/decide", self.decide, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """One item with its content and state."""
        await self._system(request)
        item = await run_in_threadpool(self._store.item, request.path_params["item"])
        return JSONResponse(await run_in_threadpool(self._shown, item))

    async def decide(self, request: Request) -> Response:
        """Decide an item.

        A request that is sent again changes nothing: the same decision gets the decided item again, 409 another one.
        """
        account = await self._system(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise PageError(415, "Not JSON", "Send the decision as application/json.")
        self._site.check_length(request, LARGEST_DECISION)
        body = await request.body()
        return await run_in_threadpool(self._decide, request.path_params["item"], account, body)

    async def _system(self, request: Request) -> Account:
        """The system that sends the request."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("Send Authorization: Bearer with the token of a system.")
        account = await run_in_threadpool(self._site.accounts.by_token, token.strip())
        if account is None:
            raise _unauthorized("This token is not valid.")
        if account.role != "system":
            raise PageError(403, "For systems", 'The API takes tokens of the role "system" only.')
        return account

    def _decide(self, ticket: str, account: Account, body: bytes) -> Response:
        item = self._store.item(ticket)
        try:
            posted = _DecisionBody.model_validate_json(body)
            decision = posted.decision(item.content)
        except ValidationError as error:
            raise PageError(422, "This decision cannot be read", problem_of(error)) from None
        name = f"{posted.reviewer} via {account.name}"
        if len(name) > LONGEST_NAME or not name.isprintable():
            text = f"reviewer: a printable name; with the system's it has at most {LONGEST_NAME} characters"
            raise PageError(422, "This decision cannot be read", text)
        try:
            return JSONResponse(self._shown(self._store.decide_free(item.id, name, decision)))
        except AlreadyDecidedError as error:
            standing = {"error": "Already decided", "detail": f"{error}", **self._shown(self._store.item(item.id))}
            return JSONResponse(standing, 409)
        except LeaseLostError as error:
            raise PageError(409, "Held by a reviewer", f"{error}") from None

    def _shown(self, item: Item) -> dict[str, Any]:
        # A reviewer's note is for reviewers: a system gets of a decision what the callback has.
        hidden = dict.fromkeys(("id", "number", "callback", "lease_until"), True)
        shown = item.model_dump(mode="json", exclude={**hidden, "decision": {"note"}})
        if item.content.verdict is not None:
            shown["content"]["verdict"] = item.content.verdict.shown()
        if item.content.blind and item.decision is None:
            shown["content"] |= {"alternatives": [], "candidate_set": None, "verdict": None}
            for part in shown["content"].get("items", ()):
                part |= {"uncertainty": None, "detail": ""}
        undone = self._store.left_undone([item.id]).get(item.id)
        return {"ticket": item.id, **shown, "left_undone": undone}


def _unauthorized(text: str) -> PageError:
    return PageError(401, "Not authorized", text, {"WWW-Authenticate": "Bearer"})
