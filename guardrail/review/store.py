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
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, get_args

from sqlalchemy import (
    Connection,
    Float,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    func,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.sql import ColumnElement

from ..errors import UsageError
from ..plain_json import sha256_hex
from ..sampling.effects import Effect, Steps, arun, run
from . import tables
from .database import DEADLINE, Database
from .errors import AlreadyDecidedError, ItemExpiredError, LeaseLostError, ReviewError, StoreUnavailableError
from .item import Content, Decision, Event, Item, Kind, State, Stats, frozen, writable
from .limits import LONGEST_KEY, LONGEST_NAME, check_callback, check_seconds, check_text, storable
from .purging import Purged, purge
from .tables import ended, events, items, marks, outbox

__all__ = ["Lease", "ReviewStore", "WorkLease"]

LEASE = 600.0
"""Default lease, in seconds, of a reviewer and of a worker that carries out a decision."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LAST_LOOK = 0.5
"""Seconds that the last look of a wait may take beyond it."""
_LONGEST_WORD = 32
_RANDOM = 32
"""Random hex digits of a lease's token."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """A reviewer's hold on an item for a limited time.

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
        self,
        url: str | os.PathLike[str],
        *,
        clock: Callable[[], float] | None = None,
        deadline: float = DEADLINE,
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
        who: str = tables.SYSTEM,
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
            who: Name in the audit trail.
            reopen: If the key exists: extend the deadline of an undecided item to ``expires_in`` from now, and open an
                expired item again. Without it a deadline never changes.
            within: Seconds it may take, if that is less than the store's deadline.

        Raises:
            UsageError: A callback that is not an http(s) URL or holds a secret, a time that is not positive or above
                ten years, or a key or name that a database cannot hold.
            UnstorableError: The content cannot be stored; see `guardrail.review.item`.
        """
        if callback is not None:
            check_callback(callback)
        if expires_in is not None:
            check_seconds("expires_in", expires_in, "Use None for no limit.")
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        check_text("who", who, LONGEST_NAME)
        content = frozen(content)
        ticket = secrets.token_hex(16)
        with self.database.write(self._shorter(within)) as connection:
            now = self.database.now(connection)
            deadline = None if expires_in is None else now + expires_in
            values = {
                "id": ticket,
                "key": key if key is not None else ticket,
                "kind": content.kind,
                "content": content.model_dump_json(),
                "state": "pending",
                "created": now,
                "deadline": deadline,
                "callback": callback,
            }
            row = None
            while row is None:  # repeated only if the item with this key is purged at this moment
                new = tables.insert_into(connection, items).values(**values)
                added = new.on_conflict_do_nothing(index_elements=["key"]).returning(items.c.number)
                number = connection.execute(added).scalar_one_or_none()
                if number is not None:
                    tables.log(connection, ticket, now, who, "enqueued", {"key": values["key"], "kind": content.kind})
                    fields = {name: values[name] for name in ("id", "key", "state", "created", "deadline", "callback")}
                    return Item(number=number, content=content, **fields)
                row = connection.execute(select(items).where(items.c.key == values["key"])).one_or_none()
            row = tables.fetch(connection, row.id, lock=True)
            if reopen:
                tables.extend_or_reopen(connection, row, now, deadline)
            elif row.state in ("pending", "claimed") and row.deadline is not None and row.deadline <= now:
                tables.close(connection, row, now)
            return tables.as_item(tables.fetch(connection, row.id))

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
        if item is not None:
            tables.check_id(item)
        with self.database.write() as connection:
            now = self.database.now(connection)
            free: ColumnElement[bool]
            if item is None:  # one state only, so that the index gives the oldest
                tables.put_back_ended(connection, now)
                free = and_(items.c.state == "pending", tables.before_deadline(now))
            else:
                mine = and_(items.c.state == "claimed", items.c.holder == reviewer, tables.before_deadline(now))
                free = and_(items.c.id == item, or_(tables.claimable(now), mine))
            if kinds is not None:
                free = and_(free, items.c.kind.in_(kinds))
            candidates = select(items).where(free).order_by(items.c.number).limit(1)
            # Wait for a named item; otherwise skip rows that another process is claiming.
            candidates = candidates.with_for_update(skip_locked=item is None)
            row = None
            if item is None:
                row = connection.execute(candidates.where(~tables.released_before(reviewer))).one_or_none()
            row = row or connection.execute(candidates).one_or_none()
            if row is None:
                if item is not None:
                    tables.fetch(connection, item)
                return None
            if row.state == "claimed" and row.lease_until <= now:
                tables.log(connection, row.id, now, tables.SYSTEM, "lease_expired", {"holder": row.holder})
            token, until = _token_of(reviewer), now + seconds
            changed = {"state": "claimed", "holder": reviewer, "lease": token, "lease_until": until}
            connection.execute(update(items).where(items.c.number == row.number).values(**changed))
            tables.log(connection, row.id, now, reviewer, "claimed", {"until": until})
            return Lease(tables.as_item(tables.fetch(connection, row.id)), token, reviewer, until)

    def held(self, item: str, reviewer: str) -> Lease | None:
        """The lease by which this reviewer holds an item now, or None.

        Raises:
            UnknownItemError: No item has this id.
        """
        with self.database.read() as connection:
            row, now = tables.fetch(connection, item), self.database.now(connection)
            mine = row.state == "claimed" and row.holder == reviewer and row.lease_until > now
            return Lease(tables.as_item(row), row.lease, reviewer, row.lease_until) if mine else None

    def renew(self, lease: Lease, *, seconds: float = LEASE) -> Lease:
        """Keep an item longer.

        Raises:
            LeaseLostError: Another reviewer holds it.
            AlreadyDecidedError: It is decided.
            ItemExpiredError: Its deadline has passed.
        """
        _check_lease(lease.reviewer, seconds)
        with self.database.write() as connection:
            now = self.database.now(connection)
            row = tables.fetch(connection, lease.item.id, lock=True)
            _check_held(connection, row, lease, now)
            until = now + seconds
            changed = {"state": "claimed", "holder": lease.reviewer, "lease_until": until}
            connection.execute(update(items).where(items.c.number == row.number).values(**changed))
            tables.log(connection, row.id, now, lease.reviewer, "renewed", {"until": until})
            return Lease(tables.as_item(tables.fetch(connection, row.id)), lease.token, lease.reviewer, until)

    def release(self, lease: Lease) -> None:
        """Give an item back to the queue.

        Raises:
            LeaseLostError: Another reviewer holds it.
            AlreadyDecidedError: It is decided.
            ItemExpiredError: Its deadline has passed.
        """
        with self.database.write() as connection:
            now = self.database.now(connection)
            row = tables.fetch(connection, lease.item.id, lock=True)
            _check_held(connection, row, lease, now)
            tables.put_back(connection, row, keep_token=False)
            tables.log(connection, row.id, now, lease.reviewer, "released", {})

    def take_back(self, item: str, *, who: str) -> None:
        """Take an item from its holder, so that others can claim it. For administrators."""
        check_text("who", who, LONGEST_NAME)
        with self.database.write() as connection:
            now = self.database.now(connection)
            row = tables.fetch(connection, item, lock=True)
            if row.state == "claimed":
                tables.put_back(connection, row, keep_token=False)
                tables.log(connection, row.id, now, who, "released", {"holder": row.holder})

    def decide(self, lease: Lease, decision: Decision) -> Item:
        """Record a decision and its callback in one transaction. Repeating the same decision changes nothing.

        A lease that has ended still counts as long as nobody else has taken the item.

        Raises:
            LeaseLostError: Another reviewer holds the item.
            AlreadyDecidedError: Another decision was recorded first.
            ItemExpiredError: Its deadline has passed.
            UnstorableError: The decision cannot be written and read back unchanged.
            UsageError: The item does not allow this decision.
        """
        check_text("reviewer", lease.reviewer, LONGEST_NAME)
        signed = decision.model_copy(update={"reviewer": lease.reviewer})
        try:
            return self._decide(lease, writable(signed))
        except ReviewError as error:
            with self.database.write() as connection:
                now = self.database.now(connection)
                why = {"action": decision.action, "reason": type(error).__name__}
                tables.log(connection, lease.item.id, now, lease.reviewer, "refused", why)
            raise

    def _decide(self, lease: Lease, decision: Decision) -> Item:
        with self.database.write() as connection:
            now = self.database.now(connection)
            row = tables.fetch(connection, lease.item.id, lock=True)
            there = tables.as_item(row)
            if there.decision is not None and row.lease == lease.token and there.decision.same_as(decision):
                return there  # a retry whose first answer was lost
            _check_held(connection, row, lease, now)
            if (why_not := decision.objection(there.content)) is not None:
                raise UsageError(why_not)
            dated = decision.model_copy(update={"at": now})
            changed = {  # `lease` keeps its token, by which a retry is recognised above
                "state": "decided",
                "holder": lease.reviewer,
                "lease_until": None,
                "action": dated.action,
                "decision": dated.model_dump_json(),
                "decided_at": now,
            }
            connection.execute(update(items).where(items.c.number == row.number).values(**changed))
            tables.log(connection, row.id, now, lease.reviewer, "decided", {"action": dated.action})
            decided = tables.as_item(tables.fetch(connection, row.id))
            tables.post(connection, decided, now)
            return decided

    def expire(self) -> int:
        """Close items whose deadline has passed and put items with ended leases back. Reviewing does not depend on it.

        Returns:
            Number of items closed.
        """
        with self.database.write() as connection:
            now = self.database.now(connection)
            late = select(items).where(items.c.state.in_(("pending", "claimed")), items.c.deadline <= now)
            closed = connection.execute(late.with_for_update(skip_locked=True)).all()
            for row in closed:
                tables.close(connection, row, now)
            tables.put_back_ended(connection, now)
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
        with self.database.write() as connection:
            now = self.database.now(connection)
            until = now + seconds
            # In a fixed order, so that two workers cannot deadlock.
            available = select(items).where(items.c.id.in_(ids), tables.finished(now)).order_by(items.c.number)
            free = connection.execute(available.with_for_update()).all()
            if len(free) < len(set(ids)):
                return []
            for row in free:
                connection.execute(update(items).where(items.c.number == row.number).values(lease_until=until))
                tables.log(connection, row.id, now, tables.SYSTEM, "taken_up", {"until": until})
            return [WorkLease(tables.as_item(row), until) for row in free]

    def settle(self, work_lease: WorkLease, *, what: str = "put_down", again: bool) -> None:
        """End a lease. If another worker has taken the item over, that worker keeps it.

        Args:
            work_lease: A lease that `lease` returned.
            what: Event for the audit trail, e.g. "carried_out".
            again: Whether the work is not finished: the next lease then shows that the item was leased before.
        """
        check_text("what", what, _LONGEST_WORD)
        with self.database.write() as connection:
            now = self.database.now(connection)
            # The end of the lease identifies it: a worker that leased the item later has another one.
            mine = and_(items.c.id == work_lease.item.id, items.c.lease_until == work_lease.until)
            connection.execute(update(items).where(mine).values(lease_until=now if again else None))
            tables.log(connection, work_lease.item.id, now, tables.SYSTEM, what, {})

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, item: str, seconds: float) -> Decision | None:
        """Block until the item is decided or expired, at most so many seconds. Returns None without a decision.

        While the database fails or hangs it goes on waiting.
        """
        return run(self._wait(item, seconds))

    async def await_decision(self, item: str, seconds: float) -> Decision | None:
        """`wait` for async callers; it holds no thread while it waits."""
        return await arun(self._wait(item, seconds))

    def _wait(self, item: str, seconds: float) -> Steps[Decision | None]:
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE
        look = partial(self._look, item, until)
        while True:
            current: Item | None = yield Effect(look, partial(_alook, look, until))
            left = until - time.monotonic()
            if left <= 0 or (current is not None and current.state in ("decided", "expired")):
                return None if current is None else current.decision
            rest = min(pause, left)
            yield Effect(partial(time.sleep, rest), partial(asyncio.sleep, rest))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _shorter(self, seconds: float | None) -> float:
        return self.database.deadline if seconds is None else min(seconds, self.database.deadline)

    def _look(self, item: str, until: float) -> Item | None:
        """The current item; None if the database does not answer by then."""
        left = max(until - time.monotonic(), _LAST_LOOK)
        try:
            with self.database.read(self._shorter(left)) as connection:
                return tables.as_item(tables.fetch(connection, item))
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
        with self.database.write(self._shorter(within)) as connection:
            now = self.database.now(connection)
            row = tables.fetch(connection, item, lock=True)
            late = row.deadline is not None and row.deadline <= now
            if row.state in ("pending", "claimed") and (late or not only_if_late):
                if why:
                    tables.log(connection, row.id, now, tables.SYSTEM, "cancelled", {"reason": why})
                tables.close(connection, row, now)
            return tables.as_item(tables.fetch(connection, item))

    # -- looking ---------------------------------------------------------------------------------------------------

    def find(self, key: str) -> Item | None:
        """The item that was added with this key, or None."""
        if not storable(key):
            return None
        with self.database.read() as connection:
            row = connection.execute(select(items).where(items.c.key == key)).one_or_none()
            return None if row is None else tables.as_item(row)

    def item(self, item: str) -> Item:
        """The current state of one item.

        Raises:
            UnknownItemError: No item has this id.
        """
        with self.database.read() as connection:
            return tables.as_item(tables.fetch(connection, item))

    def items(
        self, states: Sequence[State] | None = None, *, limit: int = 100, offset: int = 0, newest: bool = False
    ) -> list[Item]:
        """Items in order of arrival, or newest first (decided ones by the time of the decision)."""
        listed_states = get_args(State) if states is None else tuple(dict.fromkeys(states))
        span = {"limit": limit, "offset": offset, "end": limit + offset}
        with self.database.read() as connection:
            listing = connection.execute(_listing(listed_states, newest), span) if listed_states else ()
            return [tables.as_item(row) for row in listing]

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
        with self.database.read() as connection:
            found = connection.execute(named).all() or connection.execute(texts).all()
            return [tables.as_item(row) for row in found]

    def trail(self, item: str | None = None, *, limit: int = 1000) -> list[Event]:
        """The audit trail of an item, or of everything (the newest lines), oldest first."""
        query = select(events).order_by(events.c.number.desc()).limit(limit)
        if item is not None:
            if not storable(item):
                return []
            query = query.where(events.c.item == item)
        with self.database.read() as connection:
            lines = connection.execute(query).all()
        return [tables.as_event(line) for line in reversed(lines)]

    def left_undone(self, ids: Sequence[str]) -> dict[str, str]:
        """Why decisions were not carried out, and why items were closed before their deadline, by the item's id."""
        with self.database.read() as connection:
            return tables.left_undone(connection, ids)

    def note_event(self, what: str, detail: dict[str, Any], *, who: str = tables.SYSTEM, item: str = "") -> None:
        """Add a line to the audit trail, e.g. a monitor's alarm.

        Raises:
            UsageError: ``what`` has more than 32 characters, or a text cannot be stored.
        """
        check_text("what", what, _LONGEST_WORD)
        check_text("who", who, LONGEST_NAME)
        if item:
            tables.check_id(item)
        with self.database.write() as connection:
            tables.log(connection, item, self.database.now(connection), who, what, detail)

    def purge(self, older_than: float, *, who: str = tables.SYSTEM, dry_run: bool = False) -> Purged:
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
        with self.database.write() as connection:
            row = {"until": self.database.now(connection), "value": ""}  # as of an expiring key, which a purge deletes
            new = tables.insert_into(connection, marks).values(name="check", **row)
            connection.execute(new.on_conflict_do_update(index_elements=["name"], set_=row))

    def stats(self, *, actions: bool = True) -> Stats:
        """Counters of the whole queue.

        Args:
            actions: Whether to count the decisions by action, too, which takes longest.
        """
        ended_lease = and_(items.c.state == "claimed", items.c.lease_until <= bindparam("now", type_=Float(53)))
        with self.database.read() as connection:

            def numbers(column: Any, condition: ColumnElement[bool]) -> dict[str, int]:
                return {
                    value: n
                    for value, n in connection.execute(select(column, func.count()).where(condition).group_by(column))
                }

            now = self.database.now(connection)
            # Nearly all items of an old queue are decided, so it is faster to count the others and subtract.
            every = connection.execute(select(func.count()).select_from(items)).scalar_one()
            states = numbers(items.c.state, items.c.state.in_(("pending", "claimed", "expired")))
            posts = numbers(outbox.c.state, outbox.c.state.in_(("waiting", "dead")))
            stale = connection.execute(select(func.count()).where(ended_lease), {"now": now}).scalar_one()
            arrived = [
                connection.execute(
                    select(items.c.created).where(items.c.state == state).order_by(items.c.number).limit(1)
                )
                for state in ("pending", "claimed")
            ]
            oldest = min((row.created for first in arrived for row in first), default=None)
            by_action = numbers(items.c.action, items.c.state == "decided") if actions else {}
        return Stats(
            pending=states.get("pending", 0) + stale,
            claimed=states.get("claimed", 0) - stale,
            decided=every - sum(states.values()),
            expired=states.get("expired", 0),
            actions=by_action,
            oldest=None if oldest is None else max(0.0, now - oldest),
            undelivered=posts.get("waiting", 0),
            dead=posts.get("dead", 0),
        )


async def _alook(look: Callable[[], Item | None], until: float) -> Item | None:
    """Look in a thread; None if none is free by then."""
    try:
        async with asyncio.timeout(max(until - time.monotonic(), _LAST_LOOK)):
            return await asyncio.to_thread(look)
    except TimeoutError:
        return None


# SQLAlchemy takes longer to build these statements than the database to answer them, so they are built once.


@lru_cache(maxsize=64)
def _listing(states: tuple[State, ...], newest: bool) -> Select[Any]:
    """A page of the items in these states; parameters ``limit``, ``offset`` and their sum ``end``."""
    key = [ended.label("at"), items.c.number] if newest else [items.c.number]
    order = [column.desc() if newest else column.asc() for column in key]
    # Within one state an index gives the order, so the rows before the page are read from that index only.
    end = bindparam("end", type_=Integer)
    parts = [select(*key).where(items.c.state == state).order_by(*order).limit(end) for state in states]
    first = union_all(*(select(part.subquery()) for part in parts)).subquery()
    place = [column.desc() if newest else column.asc() for column in first.c]
    page = select(first).order_by(*place).limit(bindparam("limit", type_=Integer))
    page = page.offset(bindparam("offset", type_=Integer))
    chosen = page.subquery()
    return select(items).join(chosen, items.c.number == chosen.c.number).order_by(*order)


def _check_lease(reviewer: str, seconds: float) -> None:
    if not reviewer:
        raise UsageError("reviewer must be a name, got an empty text: the audit trail records who decided.")
    check_text("reviewer", reviewer, LONGEST_NAME)
    check_seconds("a lease", seconds, "Use 600.")


def _check_held(connection: Connection, row: Row[Any], lease: Lease, now: float) -> None:
    if row.state == "decided":
        raise AlreadyDecidedError(f"item {row.id} was already decided by {row.holder}; that decision stands.")
    why = tables.left_undone(connection, [row.id]).get(row.id) if row.state == "expired" else None
    if why is not None:
        raise ItemExpiredError(f"item {row.id} was closed, and nobody waits for a decision any more. {why}")
    if row.state == "expired" or (row.deadline is not None and row.deadline <= now):
        raise ItemExpiredError(f"the deadline of item {row.id} has passed, so nobody waits for a decision any more.")
    if row.lease != lease.token:
        holder = f"{row.holder} holds it now" if row.holder else "it went back to the queue"
        raise LeaseLostError(
            f"{lease.reviewer}'s lease of item {row.id} has ended and {holder}. Nothing was recorded; claim it again."
        )
    if lease.token != _token_of(lease.reviewer, lease.token[:_RANDOM]):
        owner = f"{row.holder}'s" if row.holder else "another reviewer's"
        raise LeaseLostError(
            f"this lease of item {row.id} is {owner}, not {lease.reviewer}'s. Nothing was recorded; only the reviewer "
            "who claimed the item can decide it."
        )


def _token_of(reviewer: str, random: str | None = None) -> str:
    """A lease's token: a random half, and a half that binds it to the reviewer also when the item is put back."""
    random = secrets.token_hex(_RANDOM // 2) if random is None else random
    return random + sha256_hex(f"{random} {reviewer}", _RANDOM)
