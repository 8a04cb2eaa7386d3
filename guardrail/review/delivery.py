"""Callbacks about decisions and expired items: signed, retried, delivered at least once.

A decision (or an expiry) and its callback are written in one transaction, so none is lost. A `Deliverer` (any number of
them, in any process) closes items whose deadline has passed, takes due callbacks, posts them and marks them. If it is
killed in between, the callback becomes due again. A receiver may therefore get a callback twice: it must remember
``Guardrail-Event-Id`` and ignore the second one.

Every request carries ``Guardrail-Signature: t=<seconds>,v1=<hex>`` with HMAC-SHA256 of ``<seconds>.<body>``; `verify`
refuses a wrong signature and one older than five minutes. Within these five minutes a recorded request can be replayed;
the event id protects against that, too.

Callbacks of one item may arrive out of order, because a failed one is tried again later. A decision drops a waiting
callback that says that the item expired; if that one is being posted at the time, the receiver can compare the times of
the events (``at`` in every body).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import httpx
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError

from ..errors import UsageError
from .limits import check_seconds, without_surrogates
from .queue.rows import SYSTEM, log
from .queue.schema import outbox
from .queue.store import ReviewStore

__all__ = ["REPLAY_WINDOW", "Deliverer", "post_within", "sign", "verify"]

REPLAY_WINDOW = 300.0
"""Seconds for which a signature is valid."""
_LEAST_SECRET = 16
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
        at, given = int(parts["t"]), parts["v1"].encode("ascii")
    except (KeyError, ValueError):
        return False
    fresh = abs((time.time() if now is None else now) - at) <= window
    return hmac.compare_digest(_mac(secret, body, at).encode(), given) and fresh


def _mac(secret: str | bytes, body: bytes, at: int) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(key, f"{at}.".encode() + body, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class _Post:
    id: str
    item: str
    url: str
    body: bytes
    attempt: int


@dataclass(slots=True)
class Deliverer:
    """Posts the callbacks in the outbox.

    The pause after attempt ``k`` is ``first_pause * 2**(k-1)`` seconds, at most ``longest_pause``, each shortened at
    random by up to a half, so that a receiver that comes back does not get all callbacks at once.

    Attributes:
        store: The store whose outbox is posted.
        secret: Shared with the receivers; at least 16 characters.
        attempts: After this many the callback is "dead": kept, counted in the stats, not tried again.
        timeout: Seconds for a whole post, even if the receiver answers slowly.
        first_pause: Seconds before the second attempt.
        longest_pause: Longest pause between two attempts, in seconds.
    """

    store: ReviewStore
    secret: str | bytes = field(repr=False)
    attempts: int = 15
    timeout: float = 10.0
    first_pause: float = 1.0
    longest_pause: float = 3600.0
    _stop: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _LEAST_SECRET:
            raise UsageError(
                f"a webhook secret needs at least {_LEAST_SECRET} characters, got {len(self.secret)}. Make one with: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )
        check_seconds("timeout", self.timeout, "Use 10.")

    def run_once(self) -> int:
        """Close items whose deadline has passed, and post all due callbacks. Returns the number of deliveries."""
        self.store.expire()
        return self._deliver()

    def _deliver(self) -> int:
        delivered = 0
        while not self._stop.is_set() and (post := self._take()) is not None:
            problem = self._send(post)
            self._mark(post, problem)
            delivered += problem is None
        return delivered

    def run(self, poll: float = 1.0) -> None:
        """Deliver until `stop` is called, polling every ``poll`` seconds.

        A failure of the database is logged and retried after a pause that doubles up to a minute.
        """
        failures = 0
        while not self._stop.is_set():
            # Separately: an item that cannot be closed must not hold up the callbacks.
            done = [self._succeeded("expire", self.store.expire), self._succeeded("deliver", self._deliver)]
            failures = 0 if all(done) else failures + 1
            self._stop.wait(min(poll * 2.0 ** min(failures, 40), max(poll, _LONGEST_WAIT)))

    def start(self, poll: float = 1.0) -> None:
        """`run` in a thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self.run, args=(poll,), name="guardrail-deliverer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End `run` after the current delivery."""
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
            row = connection.execute(
                due.order_by(outbox.c.next_at).limit(1).with_for_update(skip_locked=True)
            ).one_or_none()
            if row is None:
                return None
            attempt = row.attempts + 1
            # If this process is killed while it posts, the callback is due again after this.
            again = now + max(2 * self.timeout, self._pause(attempt))
            taken = update(outbox).where(outbox.c.id == row.id).values(attempts=attempt, next_at=again)
            connection.execute(taken)
            return _Post(row.id, row.item, row.url, row.body.encode(), attempt)

    def _send(self, post: _Post) -> str | None:
        """None if the receiver answered 2xx, else the problem."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "acrc-guardrail",
            "Guardrail-Event-Id": post.id,
            "Guardrail-Signature": sign(self.secret, post.body, time.time()),
        }
        problem = post_within(post.url, post.body, headers, self.timeout)
        return None if problem is None else without_surrogates(problem.replace("\0", "\ufffd"))[:500]

    def _mark(self, post: _Post, problem: str | None) -> None:
        database = self.store.database
        with database.write() as connection:
            now = database.now(connection)
            mine = update(outbox).where(outbox.c.id == post.id, outbox.c.state == "waiting")
            if problem is None:
                changed = connection.execute(mine.values(state="delivered", problem="")).rowcount
                if changed:
                    log(connection, post.item, now, SYSTEM, "delivered", {"event": post.id, "attempt": post.attempt})
                return
            dead = post.attempt >= self.attempts
            state, at = ("dead", now) if dead else ("waiting", now + self._pause(post.attempt))
            connection.execute(mine.values(state=state, next_at=at, problem=problem))
            detail = {"event": post.id, "attempt": post.attempt, "problem": problem, "given_up": dead}
            log(connection, post.item, now, SYSTEM, "delivery_failed", detail)

    def _pause(self, attempt: int) -> float:
        longest = min(self.first_pause * 2.0 ** min(attempt - 1, 40), self.longest_pause)
        return longest * random.uniform(0.5, 1.0)

    def undelivered(self) -> int:
        """Number of callbacks that are still to be delivered."""
        with self.store.database.read() as connection:
            waiting = select(func.count()).select_from(outbox).where(outbox.c.state == "waiting")
            return int(connection.execute(waiting).scalar_one())


def post_within(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> str | None:
    """Post, and follow no redirect. The answer's body is not read.

    The post runs in a thread with an event loop, where it is cancelled after ``seconds``. A name look-up cannot be
    cancelled, so the caller does not wait for the thread any longer than that.

    Args:
        url: http(s) address.
        body: Bytes to send.
        headers: Headers.
        seconds: For everything, from the name look-up to the end of the answer's headers.

    Returns:
        None if the receiver answered 2xx in time, else the problem in words.
    """
    found: list[str | None] = []

    def run() -> None:
        found.append(asyncio.run(_post(url, body, headers, seconds)))

    thread = threading.Thread(target=run, name=_POSTING, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else _too_late(seconds)


async def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> str | None:
    try:
        # httpx limits each read only, and a receiver may send one byte at a time.
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=_certificates(), timeout=None) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            return None if answer.is_success else f"HTTP {answer.status_code}"
    except TimeoutError:
        return _too_late(seconds)
    except Exception as error:  # a broken receiver must not end the deliverer
        return f"{type(error).__name__}: {_root(error)}"


def _too_late(seconds: float) -> str:
    return f"TimeoutError: no answer within {seconds:g} s"


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
