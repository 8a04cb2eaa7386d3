"""The review queue: items are added once, leased to one reviewer at a time, and decided once.

Every operation is one transaction that also writes the line of the audit trail, so a process that is killed at any
instruction leaves the complete state before or after the operation.

Current limitations: with SQLite all processes must run on one machine (leases depend on its clock, and WAL needs
shared memory); use PostgreSQL for several machines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from sqlalchemy import Row, and_, exists, func, or_, select, update

from ..errors import UsageError
from ..sampling.effects import Effect, Steps, computation, run
from . import rows
from .database import DEADLINE, SYSTEM, Database, Transaction
from .errors import AlreadyDecidedError, ItemExpiredError, LeaseLostError, ReviewError, StoreUnavailableError
from .item import Content, Decision, Event, Item, Kind, State, Stats, frozen, writable
from .limits import LONGEST_KEY, LONGEST_NAME, check_callback, check_seconds, check_text, storable
from .purging import Purged, purge
from .rows import as_item
from .tables import ended, events, items, marks, outbox

__all__ = ["Lease", "ReviewStore", "WorkLease"]

LEASE = 600.0
"""Default lease, in seconds, of a reviewer and of a worker that carries out a decision."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LAST_LOOK = 0.5
"""Seconds that the last look of a wait may take beyond it."""
_LONGEST_WORD = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """A reviewer's hold on an item for a limited time; after it, it still counts until somebody claims the item.

    What uses it raises `LeaseLostError` if another reviewer holds the item, `AlreadyDecidedError` if it is decided, and
    `ItemExpiredError` if its deadline has passed.

    Attributes:
        item: The item.
        token: Proof of the hold; needed to renew, release and decide. It is of use to this reviewer only.
        reviewer: Who holds it.
        until: Time at which the item goes back to the queue, in seconds since 1970.
    """

    item: Item
    token: str
    reviewer: str
    until: float


@dataclass(frozen=True, slots=True)
class WorkLease:
    """A worker's hold on a decided or expired item, while it carries out the outcome.

    Attributes:
        item: The item before this lease. If its ``lease_until`` is set, an earlier worker leased it and did not finish.
        until: Time at which others can lease it, in seconds since 1970.
    """

    item: Item
    until: float


class ReviewStore:
    """A durable queue of items for people to decide. Safe under threads, processes and forks.

    Args:
        url: ``sqlite:///reviews.db``, a path, or ``postgresql://user@host/name``. Tables are made if missing.
        clock: Now, in seconds since 1970; for tests.
        deadline: Seconds that an operation may take, with connecting, also if the database hangs. Monitors and switches
            of this store have the same. Opening and purging may take longer.

    Raises:
        UsageError: The database cannot be opened, or has another layout.

    Every operation raises `StoreUnavailableError` if the database cannot be reached, does not answer in time, or takes
    nothing (read-only, full).
    """

    def __init__(
        self, url: str | os.PathLike[str], *, clock: Callable[[], float] | None = None, deadline: float = DEADLINE
    ) -> None:
        self.database = Database(url, clock, deadline=deadline)

    def __enter__(self) -> ReviewStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    # -- filling ---------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        content: Content,
        *,
        key: str | None = None,
        expires_in: float | None = None,
        callback: str | None = None,
        reopen: bool = False,
        within: float | None = None,
    ) -> Item:
        """Add an item, or find the item with this key. It is on disk when this returns.

        An item whose deadline has passed is closed, so that an agent that asks again learns of it, also without a page.

        Args:
            content: The candidate to decide about. If the key exists, the stored content stays.
            key: The caller's name for it, at most 512 characters, so that a retry adds nothing; default: a new key.
            expires_in: Seconds until the deadline of the decision, at most ten years; None for no deadline.
            callback: http(s) URL that receives the decision, or the event that nobody decided in time; see
                `guardrail.review.Deliverer`.
            reopen: If the key exists: extend the deadline of an undecided item to ``expires_in`` from now, and open an
                expired item again. Without it a deadline never changes.
            within: Seconds it may take, if that is less than the store's deadline.

        Raises:
            UsageError: A callback that is not an http(s) URL or holds a secret, a time that is not positive or above
                ten years, or a key that a database cannot hold.
            UnstorableError: The content cannot be stored; see `guardrail.review.item`.
        """
        if callback is not None:
            check_callback(callback)
        if expires_in is not None:
            check_seconds("expires_in", expires_in, "Use None for no limit.")
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        content = frozen(content)
        ticket = secrets.token_hex(16)
        with self._within(within) as transaction:
            deadline = None if expires_in is None else transaction.now + expires_in
            new = transaction.insert(items).values(
                id=ticket,
                key=key if key is not None else ticket,
                kind=content.kind,
                content=content.model_dump_json(),
                state="pending",
                created=transaction.now,
                deadline=deadline,
                callback=callback,
            )
            row = None
            if key is not None:  # most calls of an agent that waits find their item
                row = transaction.execute(select(items).where(items.c.key == key).with_for_update()).one_or_none()
            if row is None:  # if another process adds the key meanwhile, the update locks its item and returns it
                added = new.on_conflict_do_update(index_elements=["key"], set_={"key": new.excluded.key})
                row = transaction.execute(added.returning(items)).one()
            if row.id == ticket:
                transaction.log(SYSTEM, "enqueued", {"key": row.key, "kind": row.kind}, ticket)
            elif reopen:
                row = rows.extend_or_reopen(transaction, row, deadline)
            elif row.state == "pending" and _is_late(row, transaction):
                row = rows.close(transaction, row)
            return as_item(row, transaction.now)

    # -- reviewing -------------------------------------------------------------------------------------------------

    def claim(
        self,
        reviewer: str,
        *,
        seconds: float = LEASE,
        item: str | None = None,
        kinds: Sequence[Kind] | None = None,
    ) -> Lease | None:
        """Take the oldest free item; nobody else gets it until the lease ends.

        Items that this reviewer gave back come last, so that the next item is a different one.

        Args:
            reviewer: Who takes it.
            seconds: Length of the lease.
            item: Take this item. If the reviewer holds it already, it gets a new lease with a new token.
            kinds: Only these kinds.

        Returns:
            The lease, or None if no item is free.

        Raises:
            UnknownItemError: No item has this id.
            UsageError: A reviewer's name that is empty or above 256 characters, or a lease that is not positive or
                above ten years.
        """
        _check_lease(reviewer, seconds)
        with self.database.write() as transaction:
            row = _free(transaction, reviewer, kinds) if item is None else _named(transaction, reviewer, item)
            if row is None:
                return None
            until = transaction.now + seconds
            lease = {"holder": reviewer, "lease": secrets.token_hex(32), "lease_until": until}
            claimed = rows.change(transaction, row, reviewer, "claimed", {"until": until}, **lease)
            return _lease_in(claimed, transaction)

    def held(self, item: str, reviewer: str) -> Lease | None:
        """The lease by which this reviewer holds an item now, or None.

        Raises:
            UnknownItemError: No item has this id.
        """
        with self.database.read() as transaction:
            row = rows.fetch(transaction, item)
            mine = row.state == "pending" and row.holder == reviewer and rows.is_held(row, transaction.now)
            return _lease_in(row, transaction) if mine else None

    def renew(self, lease: Lease, *, seconds: float = LEASE) -> Lease:
        """Keep an item longer."""
        _check_lease(lease.reviewer, seconds)
        with self.database.write() as transaction:
            row = _held_row(transaction, lease)
            until = transaction.now + seconds
            renewed = rows.change(transaction, row, lease.reviewer, "renewed", {"until": until}, lease_until=until)
            return _lease_in(renewed, transaction)

    def release(self, lease: Lease) -> None:
        """Give an item back to the queue."""
        with self.database.write() as transaction:
            rows.change(transaction, _held_row(transaction, lease), lease.reviewer, "released", {}, **_PUT_BACK)

    def take_back(self, item: str, *, who: str) -> None:
        """Take an item from its holder, so that others can claim it. For administrators."""
        check_text("who", who, LONGEST_NAME)
        with self.database.write() as transaction:
            row = rows.fetch(transaction, item, lock=True)
            if (
                row.state == "pending" and row.holder is not None
            ):  # also after the lease, when its holder may yet decide
                rows.change(transaction, row, who, "released", {"holder": row.holder}, **_PUT_BACK)

    def decide(self, lease: Lease, decision: Decision) -> Item:
        """Record a decision and its callback in one transaction. Repeating the same decision changes nothing.

        Raises:
            UnstorableError: The decision cannot be written and read back unchanged.
            UsageError: The item does not allow this decision.
        """
        return self._decide(lease.item.id, lease.reviewer, lease.token, decision)

    def decide_free(self, item: str, reviewer: str, decision: Decision) -> Item:
        """`decide` an item that nobody holds, without a lease: for a program that asks people elsewhere.

        Raises:
            LeaseLostError: A reviewer holds the item.
        """
        return self._decide(item, reviewer, None, decision)

    def _decide(self, item: str, reviewer: str, token: str | None, decision: Decision) -> Item:
        check_text("reviewer", reviewer, LONGEST_NAME)
        try:
            return self._record(item, reviewer, token, writable(decision.model_copy(update={"reviewer": reviewer})))
        except StoreUnavailableError:  # the decision may be stored, and another write would wait as long again
            raise
        except ReviewError as error:
            with self.database.write() as transaction:
                why = {"action": decision.action, "reason": type(error).__name__}
                transaction.log(reviewer, "refused", why, item)
            raise

    def _record(self, item: str, reviewer: str, token: str | None, decision: Decision) -> Item:
        with self.database.write() as transaction:
            row = rows.fetch(transaction, item, lock=True)
            known = as_item(row, transaction.now)
            if known.decision is not None and token in (None, row.lease) and known.decision.same_as(decision):
                return known  # a retry whose first answer was lost
            _check_hold(transaction, row, reviewer, token)
            why_not = decision.objection(known.content)
            if why_not is not None:
                raise UsageError(why_not)
            dated = decision.model_copy(update={"at": transaction.now})
            changed = rows.change(  # `lease` keeps its token, by which a retry is recognised above
                transaction,
                row,
                reviewer,
                "decided",
                {"action": dated.action},
                state="decided",
                holder=reviewer,
                lease_until=None,
                action=dated.action,
                decision=dated.model_dump_json(),
                decided_at=transaction.now,
            )
            rows.post(transaction, decided := as_item(changed, transaction.now))
            return decided

    def expire(self) -> int:
        """Close items whose deadline has passed. Reviewing does not depend on it.

        Returns:
            Number of items closed.
        """
        with self.database.write() as transaction:
            late = select(items).where(items.c.state == "pending", items.c.deadline <= transaction.now)
            closed = transaction.execute(late.with_for_update(skip_locked=True)).all()
            for row in closed:
                rows.close(transaction, row)
            return len(closed)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def lease(self, ids: Sequence[str], *, seconds: float = LEASE) -> list[WorkLease]:
        """Take decided or expired items to carry them out: all or none, by one worker at a time.

        Args:
            ids: The ids of the items.
            seconds: Time after which others can lease them, unless `settle` comes first.

        Returns:
            A lease for each item; empty if another worker has any of them, or if any is open or deleted.

        Raises:
            UsageError: A time that is not positive or above ten years.
        """
        check_seconds("a lease", seconds, "Use 600.")
        with self.database.write() as transaction:
            until = transaction.now + seconds
            ended = select(items).where(items.c.id.in_(ids), items.c.state != "pending")
            available = ended.where(rows.unheld(transaction.now))
            # In a fixed order, so that two workers cannot deadlock.
            free = transaction.execute(available.order_by(items.c.number).with_for_update()).all()
            if len(free) < len(set(ids)):
                return []
            for row in free:
                rows.change(transaction, row, SYSTEM, "taken_up", {"until": until}, lease_until=until)
            return [WorkLease(as_item(row, transaction.now), until) for row in free]

    def settle(self, work_lease: WorkLease, *, what: str = "put_down", again: bool) -> None:
        """End a lease. If another worker has taken the item over, that worker keeps it.

        Args:
            work_lease: A lease that `lease` returned.
            what: Event for the audit trail, e.g. "carried_out".
            again: Whether the work is not finished: the next lease then shows that the item was leased before.
        """
        check_text("what", what, _LONGEST_WORD)
        with self.database.write() as transaction:
            # The end of the lease identifies it: a worker that leased the item later has another one.
            mine = and_(items.c.id == work_lease.item.id, items.c.lease_until == work_lease.until)
            transaction.execute(update(items).where(mine).values(lease_until=transaction.now if again else None))
            transaction.log(SYSTEM, what, {}, work_lease.item.id)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, item: str, seconds: float) -> Decision | None:
        """Block until the item is decided or expired, at most so many seconds. Returns None without a decision.

        While the database fails or hangs it goes on waiting.
        """
        return run(self.waiting(item, seconds))

    def waiting(self, item: str, seconds: float) -> Steps[Decision | None]:
        """`wait` in steps, which hold no thread on an event loop."""
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE
        while True:
            current: Item | None = yield computation(partial(self._look, item, until), slow=True)
            left = until - time.monotonic()
            if left <= 0 or (current is not None and current.state in ("decided", "expired")):
                return None if current is None else current.decision
            rest = min(pause, left)
            yield Effect(partial(time.sleep, rest), partial(asyncio.sleep, rest))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _within(self, seconds: float | None) -> AbstractContextManager[Transaction]:
        return self.database.write(None if seconds is None else min(seconds, self.database.deadline))

    def _look(self, item: str, until: float) -> Item | None:
        """The current item; None if the database does not answer by then."""
        left = max(until - time.monotonic(), _LAST_LOOK)
        try:
            with self.database.read(min(left, self.database.deadline)) as transaction:
                return as_item(rows.fetch(transaction, item), transaction.now)
        except StoreUnavailableError as error:
            _log.warning("Waiting for a decision goes on: %s", error)
            return None

    def cancel(self, item: str, *, why: str = "", only_if_late: bool = False, within: float | None = None) -> Item:
        """Close an item that nobody waits for. A decided item does not change.

        Args:
            item: Its id.
            why: Reason for the audit trail.
            only_if_late: Close it only if its deadline has passed, because others may still wait for it.
            within: Seconds it may take, if that is less than the store's deadline.

        Raises:
            UnknownItemError: No item has this id.
        """
        with self._within(within) as transaction:
            row = rows.fetch(transaction, item, lock=True)
            if row.state == "pending" and (not only_if_late or _is_late(row, transaction)):
                if why:
                    transaction.log(SYSTEM, "cancelled", {"reason": why}, row.id)
                row = rows.close(transaction, row)
            return as_item(row, transaction.now)

    # -- looking ---------------------------------------------------------------------------------------------------

    def find(self, key: str) -> Item | None:
        """The item that was added with this key, or None."""
        if not storable(key):
            return None
        with self.database.read() as transaction:
            row = transaction.execute(select(items).where(items.c.key == key)).one_or_none()
            return None if row is None else as_item(row, transaction.now)

    def item(self, item: str) -> Item:
        """The current state of one item.

        Raises:
            UnknownItemError: No item has this id.
        """
        with self.database.read() as transaction:
            return as_item(rows.fetch(transaction, item), transaction.now)

    def items(
        self, states: Sequence[State] | None = None, *, limit: int = 100, offset: int = 0, newest: bool = False
    ) -> list[Item]:
        """Items in order of arrival, or newest first (decided ones by the time of the decision)."""
        order = [ended.desc(), items.c.number.desc()] if newest else [items.c.number]
        wanted = set(get_args(State) if states is None else states)
        with self.database.read() as transaction:
            stored = {"pending" if state == "claimed" else state for state in wanted}
            page = select(items.c.number).where(items.c.state.in_(stored))
            if len(wanted & {"pending", "claimed"}) == 1:
                free = rows.unheld(transaction.now)
                page = page.where(or_(items.c.state != "pending", free if "pending" in wanted else ~free))
            # The numbers come from an index, so that only the rows of this page are read with their contents.
            numbers = page.order_by(*order).limit(limit).offset(offset).scalar_subquery()
            listing = transaction.execute(select(items).where(items.c.number.in_(numbers)).order_by(*order))
            return [as_item(row, transaction.now) for row in listing]

    def search(self, wanted: str, *, limit: int = 50) -> list[Item]:
        """The item with this ticket or key; otherwise items whose question or answers contain this text, newest first.

        Case is ignored (by SQLite in ASCII letters only). Contents are read until ``limit`` items are found, within the
        deadline of the database: about a second for 100,000 items.
        """
        wanted = wanted.strip()
        if not wanted or not storable(wanted):
            return []
        written = json.dumps(wanted, ensure_ascii=False)[1:-1]  # contents are JSON
        named = select(items).where(or_(items.c.id == wanted, items.c.key == wanted))
        texts = select(items).where(items.c.content.icontains(written, autoescape=True))
        texts = texts.order_by(items.c.number.desc()).limit(limit)
        with self.database.read() as transaction:
            found = transaction.execute(named).all() or transaction.execute(texts).all()
            return [as_item(row, transaction.now) for row in found]

    def trail(self, item: str | None = None, *, limit: int = 1000) -> list[Event]:
        """The audit trail of an item, or of everything (the newest lines), oldest first."""
        query = select(events).order_by(events.c.number.desc()).limit(limit)
        if item is not None:
            if not storable(item):
                return []
            query = query.where(events.c.item == item)
        with self.database.read() as transaction:
            lines = transaction.execute(query).all()
        return [Event(**{**line._mapping, "detail": json.loads(line.detail)}) for line in reversed(lines)]

    def left_undone(self, ids: Sequence[str]) -> dict[str, str]:
        """Why decisions were not carried out, and why items were closed before their deadline, by the item's id."""
        with self.database.read() as transaction:
            return rows.left_undone(transaction, ids)

    def note_event(self, what: str, detail: dict[str, Any], *, item: str = "") -> None:
        """Add a line to the audit trail, e.g. a monitor's alarm.

        Raises:
            UsageError: ``what`` has more than 32 characters, or a text cannot be stored.
        """
        check_text("what", what, _LONGEST_WORD)
        if item:
            rows.check_id(item)
        with self.database.write() as transaction:
            transaction.log(SYSTEM, what, detail, item)

    def purge(self, older_than: float, *, who: str = SYSTEM, dry_run: bool = False) -> Purged:
        """Delete old items that nobody waits for, with contents and callbacks; see `guardrail.review.purging`.

        Args:
            older_than: Seconds since the item arrived; at most ten years.
            who: Name in the audit trail, which keeps its lines and gets one about the deletion.
            dry_run: Only count.

        Raises:
            UsageError: A time that is not positive or above ten years, or a name that a database cannot hold.
        """
        check_seconds("older_than", older_than, "Use 90 * 86400 for 90 days.")
        check_text("who", who, LONGEST_NAME)
        if not dry_run:
            self.expire()
        return purge(self.database, older_than, who, dry_run=dry_run)

    def check(self) -> None:
        """Raise the database's error if it takes no write: it writes one row, the same each time. Counts nothing.

        The row is committed, because a full disk shows only then.
        """
        with self.database.write() as transaction:
            row = {"until": transaction.now, "value": ""}  # as of an expiring key, which a purge deletes
            new = transaction.insert(marks).values(name="check", **row)
            transaction.execute(new.on_conflict_do_update(index_elements=["name"], set_=row))

    def stats(self) -> Stats:
        """Counters of the whole queue."""
        with self.database.read() as transaction:

            def numbers(column: Any, *only: Any) -> dict[str, int]:
                counts: Any = transaction.execute(select(column, func.count()).where(*only).group_by(column))
                return {value: n for value, n in counts}

            states = numbers(items.c.state)
            posts = numbers(outbox.c.state, outbox.c.state.in_(("waiting", "dead")))
            actions = numbers(items.c.action, items.c.state == "decided")
            held = numbers(items.c.state, items.c.state == "pending", items.c.lease_until > transaction.now)
            first = select(func.min(items.c.number)).where(items.c.state == "pending").scalar_subquery()
            oldest = transaction.execute(select(items.c.created).where(items.c.number == first)).scalar_one_or_none()
        claimed = held.get("pending", 0)
        return Stats(
            pending=states.get("pending", 0) - claimed,
            claimed=claimed,
            decided=states.get("decided", 0),
            expired=states.get("expired", 0),
            actions=actions,
            oldest=None if oldest is None else max(0.0, transaction.now - oldest),
            undelivered=posts.get("waiting", 0),
            dead=posts.get("dead", 0),
        )


_PUT_BACK = {"holder": None, "lease": None, "lease_until": None}
"""Columns of an item that was given back."""


def _check_lease(reviewer: str, seconds: float) -> None:
    check_text("reviewer", reviewer, LONGEST_NAME)
    check_seconds("a lease", seconds, "Use 600.")


def _lease_in(row: Row[Any], transaction: Transaction) -> Lease:
    """The lease of a claimed item."""
    return Lease(as_item(row, transaction.now), row.lease, row.holder, row.lease_until)


def _is_late(row: Row[Any], transaction: Transaction) -> bool:
    return row.deadline is not None and row.deadline <= transaction.now


def _free(transaction: Transaction, reviewer: str, kinds: Sequence[Kind] | None) -> Row[Any] | None:
    """The oldest free item, locked; items that this reviewer gave back come last."""
    now = transaction.now
    free = select(items).where(items.c.state == "pending", rows.in_time(now), rows.unheld(now))
    if kinds is not None:
        free = free.where(items.c.kind.in_(kinds))
    # Skip rows that another process is claiming.
    free = free.order_by(items.c.number).limit(1).with_for_update(skip_locked=True)
    # A line with a holder is a take-back by an administrator.
    gave_back = and_(events.c.who == reviewer, events.c.what == "released", events.c.detail == "{}")
    new_to_them = free.where(~exists().where(events.c.item == items.c.id, gave_back))
    return transaction.execute(new_to_them).one_or_none() or transaction.execute(free).one_or_none()


def _named(transaction: Transaction, reviewer: str, item: str) -> Row[Any] | None:
    """An item that is free, or that this reviewer holds, locked."""
    row = rows.fetch(transaction, item, lock=True)
    free = row.state == "pending" and (row.holder == reviewer or not rows.is_held(row, transaction.now))
    return row if free and not _is_late(row, transaction) else None


def _held_row(transaction: Transaction, lease: Lease) -> Row[Any]:
    """The row of the item of a lease, locked; errors as `Lease` says."""
    row = rows.fetch(transaction, lease.item.id, lock=True)
    _check_hold(transaction, row, lease.reviewer, lease.token)
    return row


def _check_hold(transaction: Transaction, row: Row[Any], reviewer: str, token: str | None) -> None:
    """Refuse what this reviewer may not do with an item: by the token of a lease, or without one; errors as `Lease`."""
    if row.state == "decided":
        raise AlreadyDecidedError(f"item {row.id} was already decided by {row.holder}; that decision stands.")
    why = rows.left_undone(transaction, [row.id]).get(row.id) if row.state == "expired" else None
    if why is not None:
        raise ItemExpiredError(f"item {row.id} was closed, and nobody waits for a decision any more. {why}")
    if row.state == "expired" or _is_late(row, transaction):
        raise ItemExpiredError(f"the deadline of item {row.id} has passed, so nobody waits for a decision any more.")
    held = rows.is_held(row, transaction.now)
    if token is None:
        if held:
            raise LeaseLostError(f"{row.holder} is reviewing item {row.id}. Nothing was recorded; try again later.")
        return
    if row.lease != token:
        holder = f"{row.holder} holds it now" if held else "it went back to the queue"
        raise LeaseLostError(
            f"{reviewer}'s lease of item {row.id} has ended and {holder}. Nothing was recorded; claim it again."
        )
    if row.holder != reviewer:
        raise LeaseLostError(
            f"this lease of item {row.id} is {row.holder}'s, not {reviewer}'s. Nothing was recorded; only the "
            "reviewer who claimed the item can decide it."
        )
