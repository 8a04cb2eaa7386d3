"""Callbacks about decisions and expired items: signed, retried, delivered at least once.

A decision (or an expiry) and its callback are written in one transaction, so none is lost. A `Deliverer` (any number of
them, in any process) closes items whose deadline has passed, takes due callbacks, posts them and marks them. If it is
killed in between, the callback becomes due again. A receiver may therefore get a callback twice: it must remember
``Guardrail-Event-Id`` and ignore the second one.

Every request carries ``Guardrail-Signature: t=<seconds>,v1=<hex>`` with HMAC-SHA256 of ``<seconds>.<body>``; `verify`
refuses a wrong signature and one older than five minutes. Within these five minutes a recorded request can be replayed;
the event id protects against that, too. Beside it are the headers of Standard Webhooks
(https://github.com/standard-webhooks/standard-webhooks, version 1), whose libraries check them: ``webhook-id`` (the
event id), ``webhook-timestamp`` and ``webhook-signature``.

One callback at a time is posted to each receiver (scheme, host and port of the URL), and callbacks to different
receivers at the same time. A receiver that does not answer is left alone until the callback that failed is due again,
so it holds up nobody else.

Callbacks of one item may arrive out of order, because a failed one is tried again later. A decision drops a waiting
callback that says that the item expired; if that one is being posted at the time, the receiver can compare the times of
the events (``at`` in every body).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import math
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from ..errors import UsageError
from .destinations import PREFIX, Destination, announce
from .limits import check_seconds, without_surrogates
from .queue.rows import SYSTEM, log
from .queue.schema import outbox
from .queue.store import ReviewStore

__all__ = ["REPLAY_WINDOW", "Deliverer", "post_within", "sign", "verify"]

REPLAY_WINDOW = 300.0
"""Seconds for which a signature is valid."""
_LEAST_SECRET = 16
_STANDARD = b"whsec_"
"""Beginning of a secret of Standard Webhooks; base64 follows."""
_LONGEST_WAIT = 60.0
"""Longest pause of `Deliverer.run`, in seconds, after the database failed."""
_POSTING = "guardrail-post"
"""Name of the threads that post."""
_log = logging.getLogger(__name__)


def sign(secret: str | bytes, body: bytes, at: float) -> str:
    """The signature header of a body: ``t=<whole seconds>,v1=<hex HMAC-SHA256>``."""
    return f"t={int(at)},v1={_mac(secret, body, int(at))}"


def verify(
    secret: str | bytes, body: bytes, header: str | None, *, window: float = REPLAY_WINDOW, now: float | None = None
) -> bool:
    """Whether a request was signed with the secret, and recently. Compares in constant time; never raises.

    Args:
        secret: The shared secret.
        body: The body as received, byte for byte.
        header: Value of ``Guardrail-Signature``; None if it is missing.
        window: Seconds by which the clocks of sender and receiver may differ.
        now: Time of the receiver; default: the system clock.
    """
    parts = dict(part.split("=", 1) for part in (header or "").split(",") if "=" in part)
    try:
        at, mac = int(parts["t"]), parts["v1"].encode("ascii")
    except (KeyError, ValueError):
        return False
    fresh = abs((time.time() if now is None else now) - at) <= window
    return hmac.compare_digest(_mac(secret, body, at).encode(), mac) and fresh


def _mac(secret: str | bytes, body: bytes, at: int) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(key, f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def standard_headers(secret: str | bytes, identity: str, body: bytes, at: float) -> dict[str, str]:
    """The headers of Standard Webhooks: HMAC-SHA256 of ``<id>.<seconds>.<body>`` in base64.

    The key is what follows ``whsec_`` in the secret, in base64, as in the specification; otherwise the secret itself,
    so that a receiver's library takes ``base64.b64encode(secret)``.
    """
    key = secret.encode() if isinstance(secret, str) else secret
    if key.startswith(_STANDARD):
        key = base64.b64decode(key.removeprefix(_STANDARD))
    signed = f"{identity}.{int(at)}.".encode() + body
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": identity, "webhook-timestamp": str(int(at)), "webhook-signature": f"v1,{mac}"}


@dataclass(frozen=True, slots=True)
class _Post:
    id: str
    item: str
    url: str
    body: bytes
    attempt: int
    trusted: bool
    """Whether the URL is the operator's (a destination) and not that of whoever queued the item."""

    @property
    def receiver(self) -> str:
        """Scheme, host and port as they stand in the URL."""
        return _receiver(self.url)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a post: the receiver's status, or None if it did not answer; a problem unless the status was 2xx."""

    status: int | None = None
    problem: str | None = None
    refused: bool = False
    """Whether the callback may not go there, so that another attempt would end alike."""


def _receiver(url: str) -> str:
    return re.split(r"(?<=[^:/])[/?#]", url, maxsplit=1)[0]


def _sent_to(receiver: str) -> ColumnElement[bool]:
    """Whether a callback goes to this receiver."""
    further = (outbox.c.url.startswith(receiver + mark, autoescape=True) for mark in "/?#")
    return or_(outbox.c.url == receiver, *further)


@dataclass(slots=True)
class Deliverer:
    """Posts the callbacks in the outbox.

    The pause after attempt ``k`` is ``first_pause * 2**(k-1)`` seconds, at most ``longest_pause``, each shortened at
    random by up to a half, so that a receiver that comes back does not get all callbacks at once.

    Attributes:
        store: The store whose outbox is posted.
        secret: Shared with the receivers; at least 16 characters. A secret of Standard Webhooks begins with ``whsec_``.
        attempts: After this many, or after HTTP 410 (gone), the callback is "dead": kept, counted in the stats, not
            tried again.
        timeout: Seconds for a whole post, even if the receiver answers slowly.
        posts: Number of receivers that are posted to at the same time.
        first_pause: Seconds before the second attempt.
        longest_pause: Longest pause between two attempts, in seconds.
        destinations: Further receivers, which get messages about the whole queue.
        hosts: Hosts that callbacks may go to, e.g. ``("hooks.example.com", "*.internal.example.com", "127.0.0.1")``.
            Default: every host except this machine and link-local addresses, where the metadata of cloud machines is.
            Whoever may queue an item chooses the URL of its callback, so name the hosts where that is not only you.
    """

    store: ReviewStore
    secret: str | bytes = field(repr=False)
    attempts: int = 15
    timeout: float = 10.0
    first_pause: float = 1.0
    longest_pause: float = 3600.0
    posts: int = 16
    destinations: tuple[Destination, ...] = ()
    hosts: tuple[str, ...] = ()
    _posting: dict[str, tuple[_Post, Future[_Answer]]] = field(default_factory=dict, init=False, repr=False)
    _left_alone: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _LEAST_SECRET:
            raise UsageError(
                f"a webhook secret needs at least {_LEAST_SECRET} characters, got {len(self.secret)}. Make one with: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )
        check_seconds("timeout", self.timeout, "Use 10.")
        key = self.secret.encode() if isinstance(self.secret, str) else self.secret
        try:
            base64.b64decode(key.removeprefix(_STANDARD) if key.startswith(_STANDARD) else b"", validate=True)
        except binascii.Error:
            raise UsageError("a webhook secret that begins with whsec_ must go on in base64.") from None
        if self.posts < 1:
            raise UsageError(f"posts must be at least 1, got {self.posts}.")

    def run_once(self) -> int:
        """Close items whose deadline has passed, and post all due callbacks. Returns the number of deliveries."""
        self.store.expire()
        self._announce()
        with ThreadPoolExecutor(self.posts) as threads:
            delivered = self._deliver(threads)
            while self._posting:
                wait(self._in_flight(), return_when=FIRST_COMPLETED)
                delivered += self._deliver(threads)
        return delivered

    def _announce(self) -> int:
        return sum(announce(self.store.database, destination) for destination in self.destinations)

    def _deliver(self, threads: ThreadPoolExecutor) -> int:
        """Mark the posts that have ended and begin those that are due. Does not wait; returns the deliveries."""
        delivered = 0
        for receiver, (post, future) in list(self._posting.items()):
            if future.done():
                del self._posting[receiver]
                answer = future.result()
                self._mark(post, answer)
                delivered += answer.problem is None
        while not self._stop.is_set() and len(self._posting) < self.posts:
            due = self._take()
            if due is None:
                break
            self._posting[due.receiver] = (due, threads.submit(self._send, due))
        return delivered

    def _in_flight(self) -> list[Future[_Answer]]:
        return [future for _, future in self._posting.values()]

    def run(self, poll: float = 1.0) -> None:
        """Deliver until `stop` is called, polling every ``poll`` seconds.

        A failure of the database is logged and retried after a pause that doubles up to a minute.
        """
        failures, looked = 0, -math.inf
        with ThreadPoolExecutor(self.posts) as threads:
            deliver = partial(self._succeeded, "deliver", partial(self._deliver, threads))
            while not self._stop.is_set():
                done = []
                if failures or time.monotonic() >= looked + poll:
                    looked = time.monotonic()
                    # Separately: an item that cannot be closed must not hold up the callbacks.
                    done.append(self._succeeded("expire", self.store.expire))
                    done.append(self._succeeded("announce", self._announce))
                failures = 0 if all([*done, deliver()]) else failures + 1
                pause = min(poll * 2.0 ** min(failures, 40), max(poll, _LONGEST_WAIT))
                if self._posting and not failures:  # the end of a post makes room for the next one
                    wait(self._in_flight(), pause, FIRST_COMPLETED)
                else:
                    self._stop.wait(pause)
        deliver()  # marks the last posts; begins none

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

    @staticmethod
    def _succeeded(what: str, do: Callable[[], int]) -> bool:
        try:
            do()
        except Exception as error:  # any failure: the next callback must not wait for a restart
            # Only the first line: the others hold the values, which are questions and answers.
            why = ": " + str(error.orig).partition("\n")[0] if isinstance(error, DBAPIError) else ""
            _log.warning("the deliverer could not %s and will retry: %s%s", what, type(error).__name__, why)
            return False
        return True

    def _take(self) -> _Post | None:
        database = self.store.database
        with database.write() as connection:
            now = database.now(connection)
            due = select(outbox).where(outbox.c.state == "waiting", outbox.c.next_at <= now)
            self._left_alone = {receiver: until for receiver, until in self._left_alone.items() if until > now}
            blocked = {*self._posting, *self._left_alone}
            urls = {
                destination.name: destination.url
                for destination in self.destinations
                if _receiver(destination.url) not in blocked
            }
            due = due.where(or_(~outbox.c.url.startswith(PREFIX), outbox.c.url.in_(urls)))
            for receiver in blocked:  # in SQL, so that the limit of one row finds a callback that may be posted
                due = due.where(~_sent_to(receiver))
            row = connection.execute(
                due.order_by(outbox.c.next_at).limit(1).with_for_update(skip_locked=True)
            ).one_or_none()
            if row is None:
                return None
            attempt = row.attempts + 1
            # If this process is killed while it posts, the callback is due again after this.
            again = now + max(2 * self.timeout, self._pause(attempt))
            attempted = update(outbox).where(outbox.c.id == row.id).values(attempts=attempt, next_at=again)
            connection.execute(attempted)
            return _Post(
                row.id, row.item, urls.get(row.url, row.url), row.body.encode(), attempt, trusted=row.url in urls
            )

    def _send(self, post: _Post) -> _Answer:
        now = time.time()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "acrc-guardrail",
            "Guardrail-Event-Id": post.id,
            "Guardrail-Signature": sign(self.secret, post.body, now),
            **standard_headers(self.secret, post.id, post.body, now),
        }
        hosts = None if post.trusted else self.hosts
        return _posted(post.url, post.body, headers, self.timeout, hosts)

    def _mark(self, post: _Post, answer: _Answer) -> None:
        database = self.store.database
        with database.write() as connection:
            now = database.now(connection)
            # Not if a decision has dropped the callback meanwhile; see `rows.post`.
            mine = update(outbox).where(outbox.c.id == post.id, outbox.c.state == "waiting")
            if answer.problem is None:
                changed = connection.execute(mine.values(state="delivered", problem="")).rowcount
                if changed and post.item:
                    log(connection, post.item, now, SYSTEM, "delivered", {"event": post.id, "attempt": post.attempt})
                return
            pause = self._pause(post.attempt)
            dead = post.attempt >= self.attempts or answer.status == httpx.codes.GONE or answer.refused
            if answer.status is None and not answer.refused:  # another callback would wait for the timeout, too
                self._left_alone[post.receiver] = now + min(pause, _LONGEST_WAIT)
            problem = without_surrogates(answer.problem.replace("\0", "\ufffd"))[:500]
            connection.execute(mine.values(state="dead" if dead else "waiting", next_at=now + pause, problem=problem))
            detail = {"event": post.id, "attempt": post.attempt, "problem": problem, "given_up": dead}
            if post.item:
                log(connection, post.item, now, SYSTEM, "delivery_failed", detail)
            elif dead:  # only the last failure: a destination gets a message about each item
                where = post.receiver.rpartition("@")[2].rpartition("/")[2]
                log(connection, "", now, SYSTEM, "delivery_failed", {**detail, "destination": where})

    def _pause(self, attempt: int) -> float:
        longest = min(self.first_pause * 2.0 ** min(attempt - 1, 40), self.longest_pause)
        return longest * random.uniform(0.5, 1.0)

    def undelivered(self) -> int:
        """Number of callbacks that are still to be delivered."""
        with self.store.database.read() as connection:
            waiting = select(func.count()).select_from(outbox).where(outbox.c.state == "waiting")
            return int(connection.execute(waiting).scalar_one())


def post_within(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, hosts: Sequence[str] | None = None
) -> str | None:
    """Post, and follow no redirect. The answer's body is not read.

    Args:
        url: http(s) address.
        body: Bytes to send.
        headers: Headers.
        seconds: Time limit, from the name look-up to the end of the answer's headers.
        hosts: Hosts that it may go to, as for `Deliverer`; None for any.

    Returns:
        None if the receiver answered 2xx in time, else the problem in words.
    """
    return _posted(url, body, headers, seconds, hosts).problem


def _posted(url: str, body: bytes, headers: Mapping[str, str], seconds: float, hosts: Sequence[str] | None) -> _Answer:
    """`post_within`, with the status.

    The post runs in a thread with an event loop, where it is cancelled after ``seconds``. A name look-up cannot be
    cancelled, so the caller does not wait for the thread any longer than that.
    """
    answers: list[_Answer] = []

    def run() -> None:
        answers.append(asyncio.run(_post(url, body, headers, seconds, hosts)))

    thread = threading.Thread(target=run, name=_POSTING, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else _too_late(seconds)


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, hosts: Sequence[str] | None
) -> _Answer:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError as error:
        return _Answer(problem=f"ValueError: {error}")
    named = any(fnmatchcase(host, allowed.strip("[]").lower()) for allowed in hosts or ())
    if hosts and not named:
        return _Answer(problem=f"the host {host!r} is not among the hosts that callbacks may go to", refused=True)

    async def check(event: str, details: Mapping[str, Any]) -> None:
        # The address that was connected to, not the name: a name may resolve to another address the next time.
        if event == "connection.connect_tcp.complete" and hosts is not None and not named:
            connection = details["return_value"]
            try:
                _refuse_near(host, str(connection.get_extra_info("server_addr")[0]))
            except _RefusedError:
                await connection.aclose()  # httpx does not have it yet
                raise

    try:
        # httpx limits each read only, and a receiver may send one byte at a time.
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=_certificates(), timeout=None) as client,
            client.stream("POST", url, content=body, headers=dict(headers), extensions={"trace": check}) as answer,
        ):
            return _Answer(answer.status_code, None if answer.is_success else f"HTTP {answer.status_code}")
    except TimeoutError:
        return _too_late(seconds)
    except _RefusedError as error:
        return _Answer(problem=str(error), refused=True)
    except Exception as error:  # a broken receiver must not end the deliverer
        return _Answer(problem=f"{type(error).__name__}: {_root(error)}")


class _RefusedError(Exception):
    """A callback may not go to this address."""


def _refuse_near(host: str, address: str) -> None:
    """Refuse this machine and link-local addresses; nothing has been sent yet."""
    at = ipaddress.ip_address(address.partition("%")[0])
    at = getattr(at, "ipv4_mapped", None) or at
    if at.is_loopback or at.is_link_local or at.is_unspecified or at.is_multicast:
        raise _RefusedError(
            f"the host {host!r} has the address {address} of this machine or link, where callbacks go only if the host "
            "is named: `guardrail review --callback-host`, or `Deliverer(hosts=)`"
        )


def _too_late(seconds: float) -> _Answer:
    return _Answer(problem=f"TimeoutError: no answer within {seconds:g} s")


def _root(error: BaseException) -> BaseException:
    """The first cause: "connection refused" instead of "all attempts failed"."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


@cache
def _certificates() -> ssl.SSLContext:
    """The certificate authorities of the system, which include those of a company; httpx brings another list."""
    return ssl.create_default_context()


def _not_a_callback(record: logging.LogRecord) -> bool:
    """Filter of httpx's log: its line about a callback would name the URL, which may hold a secret."""
    return record.threadName != _POSTING


logging.getLogger("httpx").addFilter(_not_a_callback)
