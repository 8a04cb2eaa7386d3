"""Callbacks about decisions and expired items: signed, retried, delivered at least once.

A decision (or an expiry) and its callback are written in one transaction, so none is lost. A `Deliverer` (any number of
them, in any process) closes items whose deadline has passed, takes due callbacks, posts them and marks them. If it is
killed in between, the callback becomes due again. A receiver may therefore get a callback twice: it must remember
``webhook-id`` and ignore the second one.

Requests are signed as Standard Webhooks (https://www.standardwebhooks.com, version 1); a receiver verifies them with a
library of that standard.

A callback goes only to a host that the operator named. The program that queues an item chooses the URL of its callback,
and no list of addresses to refuse is complete: clouds, NAT64 and proxies each have their own.

Callbacks of one item may arrive out of order, because a failed one is tried again later. A decision drops a waiting
callback that says that the item expired; if that one is being posted at the time, the receiver can compare the times of
the events (``at`` in every body).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import ssl
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, NamedTuple

import httpx
from sqlalchemy import Row, or_, select, update
from sqlalchemy.exc import DBAPIError
from standardwebhooks import Webhook

from ..errors import UsageError
from .database import SYSTEM
from .destinations import PREFIX, Destination, announce
from .limits import without_surrogates
from .store import ReviewStore
from .tables import outbox

__all__ = ["Deliverer"]

_SECRET = "whsec_"
_LEAST_SECRET = 16
_LONGEST_WAIT = 60.0
"""Longest pause in seconds after the database failed, and for a receiver that does not answer."""
_posting: ContextVar[bool] = ContextVar("posting", default=False)
_log = logging.getLogger(__name__)


class _Failure(NamedTuple):
    """A post that was not delivered."""

    problem: str
    final: bool = False
    """Whether another attempt would end alike: the receiver is gone, or the callback may not go there."""
    silent: bool = False
    """Whether the receiver did not answer at all."""


class Deliverer:
    """Posts the callbacks in the outbox.

    A callback is tried again after pauses that double, from a second to an hour, each shortened at random by up to a
    half, so that a receiver that comes back does not get all callbacks at once. If a receiver does not answer at all,
    its other callbacks wait as well (at most a minute), so that it does not hold up others.

    Args:
        store: The store whose outbox is posted.
        secret: Shared with the receivers: ``whsec_`` and the base64 of at least 16 random bytes.
        destinations: Further receivers, which get messages about the whole queue.
        hosts: Hosts that callbacks may go to, e.g. ``("hooks.example.com", "*.internal.example.com", "127.0.0.1")``;
            a callback to any other host is dead. Redirects are not followed.
        transport: How requests are sent; for tests. Default: httpx, with the system's certificates and proxies.

    Raises:
        UsageError: A secret of another form, or a host that is not a name.
    """

    attempts: ClassVar[int] = 15
    """After this many, or after HTTP 410 (gone), a callback is "dead": kept, counted in the stats, not tried again."""
    timeout: ClassVar[float] = 10.0
    """Seconds for a whole post, even if the receiver answers slowly."""
    posts: ClassVar[int] = 16
    """Number of callbacks that are posted at the same time."""
    first_pause: ClassVar[float] = 1.0
    longest_pause: ClassVar[float] = 3600.0

    def __init__(
        self,
        store: ReviewStore,
        secret: str,
        *,
        destinations: tuple[Destination, ...] = (),
        hosts: tuple[str, ...] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        for host in hosts:
            if not host.removeprefix("*.") or any(mark in host.removeprefix("*.") for mark in "*/@ "):
                raise UsageError(
                    f"a host of callbacks is a name like hooks.example.com or *.example.com, got {host!r}. Write it "
                    "without scheme, port and path."
                )
        self._store, self._webhook = store, _webhook_of(secret)
        self._destinations = {destination.name: destination for destination in destinations}
        self._hosts, self._transport = hosts, transport
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> int:
        """Close items whose deadline has passed, and post all due callbacks. Returns the number of deliveries."""
        try:
            self._store.expire()
            for destination in self._destinations.values():
                announce(self._store.database, destination)
        finally:  # an item that cannot be closed must not hold up the callbacks
            delivered = asyncio.run(self._deliver())
        return delivered

    def run(self, poll: float = 1.0) -> None:
        """Deliver until `stop` is called, polling every ``poll`` seconds.

        A failure of the database is logged and retried after a pause that doubles up to a minute.
        """
        pause = poll
        while not self._stop.is_set():
            try:
                self.run_once()
                pause = poll
            except Exception as error:  # any failure: the next callback must not wait for a restart
                # Only the first line: the others hold the values, which are questions and answers.
                why = ": " + str(error.orig).partition("\n")[0] if isinstance(error, DBAPIError) else ""
                _log.warning("delivery failed and will be retried: %s%s", type(error).__name__, why)
                pause = min(2 * pause, max(poll, _LONGEST_WAIT))
            self._stop.wait(pause)

    def start(self, poll: float = 1.0) -> None:
        """`run` in a thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self.run, args=(poll,), name="guardrail-deliverer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End `run` after the current deliveries."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    async def _deliver(self) -> int:
        """Post what is due until nothing is due or under way. Returns the deliveries."""
        delivered, running = 0, set[asyncio.Task[bool]]()
        async with httpx.AsyncClient(verify=_certificates(), timeout=None, transport=self._transport) as client:
            try:
                while True:
                    for post in await asyncio.to_thread(self._take, self.posts - len(running)):
                        running.add(asyncio.create_task(self._carry_out(client, post)))
                    if not running:
                        return delivered
                    done, running = await asyncio.wait(running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                    delivered += sum(task.result() for task in done)
            finally:  # what is under way is marked, so that it is not sent again
                await asyncio.gather(*running, return_exceptions=True)

    def _take(self, most: int) -> Sequence[Row[Any]]:
        """The oldest callbacks that are due, at most so many; none once it is to stop."""
        if self._stop.is_set() or not most:
            return []
        with self._store.database.write() as transaction:
            due = select(outbox).where(outbox.c.state == "waiting", outbox.c.next_at <= transaction.now)
            due = due.where(or_(~outbox.c.url.startswith(PREFIX), outbox.c.url.in_(self._destinations)))
            due = due.order_by(outbox.c.next_at).limit(most).with_for_update(skip_locked=True)
            posts = transaction.execute(due).all()
            # If this process is killed while it posts, the callback is due again after this.
            begun = {"attempts": outbox.c.attempts + 1, "next_at": transaction.now + 2 * self.timeout}
            transaction.execute(update(outbox).where(outbox.c.id.in_([post.id for post in posts])).values(**begun))
            return posts

    async def _carry_out(self, client: httpx.AsyncClient, post: Row[Any]) -> bool:
        failure = await self._send(client, post)
        await asyncio.to_thread(self._mark, post, failure)
        return failure is None

    async def _send(self, client: httpx.AsyncClient, post: Row[Any]) -> _Failure | None:
        _posting.set(True)
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "acrc-guardrail",
            "webhook-id": post.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._webhook.sign(post.id, now, post.body),
        }
        destination = self._destinations.get(post.url)  # the operator's; the URL of a callback is anybody's
        url = post.url if destination is None else destination.url
        try:
            host = httpx.URL(url).host
            if destination is None and not _is_named(host, self._hosts):
                problem = (
                    f"the host {host!r} is not among those that callbacks may go to: name it with `guardrail review "
                    "--callback-host` or `Deliverer(hosts=)`"
                )
                return _Failure(problem, final=True)
            # httpx limits each read only, and a receiver may send one byte at a time. The body is not read.
            async with (
                asyncio.timeout(self.timeout),
                client.stream("POST", url, content=post.body.encode(), headers=headers) as answer,
            ):
                gone = answer.status_code == httpx.codes.GONE
                return None if answer.is_success else _Failure(f"HTTP {answer.status_code}", final=gone)
        except TimeoutError:
            return _Failure(f"TimeoutError: no answer within {self.timeout:g} s", silent=True)
        except Exception as error:  # a broken receiver must not end the deliverer
            return _Failure(f"{type(error).__name__}: {_root(error)}", silent=True)

    def _mark(self, post: Row[Any], failure: _Failure | None) -> None:
        attempt = post.attempts + 1
        with self._store.database.write() as transaction:
            # Not if a decision has dropped the callback meanwhile; see `rows.post`.
            mine = update(outbox).where(outbox.c.id == post.id, outbox.c.state == "waiting")
            if failure is None:
                changed = transaction.execute(mine.values(state="delivered", problem="")).rowcount
                if changed and post.item:
                    transaction.log(SYSTEM, "delivered", {"event": post.id, "attempt": attempt}, post.item)
                return
            now, pause = transaction.now, self._pause(attempt)
            state = "dead" if failure.final or attempt >= self.attempts else "waiting"
            problem = without_surrogates(failure.problem.replace("\0", "\ufffd"))[:500]
            transaction.execute(mine.values(state=state, next_at=now + pause, problem=problem))
            if failure.silent:  # its other callbacks would wait for the time-out, too
                until = now + min(pause, _LONGEST_WAIT)
                others = update(outbox).where(outbox.c.receiver == post.receiver, outbox.c.state == "waiting")
                transaction.execute(others.where(outbox.c.next_at < until).values(next_at=until))
            detail = {"event": post.id, "attempt": attempt, "problem": problem, "given_up": state == "dead"}
            if post.item:
                transaction.log(SYSTEM, "delivery_failed", detail, post.item)
            elif state == "dead":  # only the last failure: a destination gets a message about each item
                where = httpx.URL(self._destinations[post.url].url).netloc.decode()
                transaction.log(SYSTEM, "delivery_failed", {**detail, "destination": where})

    def _pause(self, attempt: int) -> float:
        longest = min(self.first_pause * 2.0 ** min(attempt - 1, 40), self.longest_pause)
        return longest * random.uniform(0.5, 1.0)


def _webhook_of(secret: str) -> Webhook:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_SECRET) or len(key) < _LEAST_SECRET:
        raise UsageError(
            f"a webhook secret is {_SECRET} and the base64 of at least {_LEAST_SECRET} bytes. Make one with: python -c "
            f"\"import base64, secrets; print('{_SECRET}' + base64.b64encode(secrets.token_bytes(24)).decode())\""
        )
    return Webhook(key)


def _is_named(host: str, hosts: tuple[str, ...]) -> bool:
    """Whether the operator named this host, itself or as ``*.`` and its domain."""
    names = [name.strip("[]").lower() for name in hosts]
    return any(host.endswith(name[1:]) if name.startswith("*.") else host == name for name in names)


def _root(error: BaseException) -> BaseException:
    """The first cause: "connection refused" instead of "all attempts failed"."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


@cache
def _certificates() -> ssl.SSLContext:
    """The certificate authorities of the system, which include those of a company; httpx brings another list."""
    return ssl.create_default_context()


def _not_a_callback(_record: Any) -> bool:
    """Filter of httpx's log: its line about a callback would name the URL, which may hold a secret."""
    return not _posting.get()


logging.getLogger("httpx").addFilter(_not_a_callback)
