"""Deletes old contents, decisions and callbacks. The audit trail keeps its lines, which hold none of these.

The cut is by arrival, not by decision: held-back answers are decided at once and audits later, so a cut by decision
would leave more audits than held-back answers, and a calibration on them would not fit the questions asked. Every item
that arrived after the cut stays, so each question is kept with the same probability as before (`calibrate learn`
thins by this probability).

Of the items that arrived before the cut, only decided and expired ones are deleted, and only if the caller has had time
to learn of it: an item stays if it was decided, expired or carried out within the last day, or if a callback is still
to be delivered. The items that stay are not a fair sample, not even once they are decided: leave them out when learning
(``--since`` the cut).

Steps of monitors that are older than the cut are deleted, too, except the steps of items that stay: the key of such a
step prevents a second count. The state of each monitor, with its alarm, stays.

Dead callbacks are deleted with their item; the trail still says that they failed. The key of a deleted item is free: a
call with it makes a new item.
"""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import Table, and_, case, delete, exists, func, select
from sqlalchemy.sql import ColumnElement

from ..types import Frozen
from .database import Database
from .tables import items, marks, outbox, steps

__all__ = ["Purged", "purge"]

_TO_BE_KNOWN = 86_400.0
"""Seconds that a caller has to learn of a decision, e.g. by asking for the ticket."""
_DELETING = 600.0
"""Smallest time limit of a purge, in seconds: nobody waits for it."""
_PATIENCE = 5.0
"""Seconds to wait for readers of an SQLite file; writers are blocked meanwhile."""


class Purged(Frozen):
    """Counts of the rows that were deleted, or would be deleted."""

    items: int
    """Items, with their contents and decisions."""
    callbacks: int
    """Their callbacks, delivered or dead."""
    kept: int
    """Older items that stay because the caller may not have learned of the decision yet."""
    open: int
    """Older items that stay because they can still be decided."""
    steps: int = 0
    """Steps of the monitors' histories."""
    since: float
    """The cut, in seconds since 1970 UTC: items that arrived then or later stay."""
    in_log: bool = False
    """SQLite: the file was in use, so deleted texts may still be in its ``-wal``. Purging again clears it."""


def purge(database: Database, older_than: float, who: str, *, dry_run: bool) -> Purged:
    """Delete, in one transaction, decided and expired items that arrived more than ``older_than`` seconds ago."""
    with database.write(max(_DELETING, database.deadline)) as transaction:
        now = transaction.now
        since = now - older_than
        old, ended = items.c.created < since, items.c.state != "pending"
        informed = _known(now, min(older_than, _TO_BE_KNOWN))
        going = and_(old, ended, informed)

        def count(table: Table, condition: ColumnElement[bool]) -> int:
            counted = select(func.count()).select_from(table).where(condition)
            return int(transaction.execute(counted).scalar_one())

        # A step stays at least a day: until then a guard may write a score again. That of an item that stays, too.
        of_kept_item = exists().where(items.c.id == steps.c.key, ~going)
        going_steps = and_(steps.c.at < min(since, now - _TO_BE_KNOWN), ~of_kept_item)
        purged = Purged(
            items=count(items, going),
            callbacks=count(outbox, exists().where(items.c.id == outbox.c.item, going)),
            kept=count(items, and_(old, ended, ~informed)),
            open=count(items, and_(old, ~ended)),
            steps=count(steps, going_steps),
            since=since,
        )
        if dry_run:
            return purged
        transaction.execute(delete(steps).where(going_steps))
        transaction.execute(delete(items).where(going))
        # Callbacks that have lost their item; a message of a destination has none.
        orphan = and_(outbox.c.item != "", ~exists().where(items.c.id == outbox.c.item))
        transaction.execute(delete(outbox).where(orphan))
        transaction.execute(delete(marks).where(marks.c.until <= now))  # some are answers that a gateway remembers
        if purged.items or purged.steps:
            detail = {"items": purged.items, "callbacks": purged.callbacks, "older_than_seconds": older_than}
            transaction.log(who, "purged", detail | ({"steps": purged.steps} if purged.steps else {}))
    return purged.model_copy(update={"in_log": not _log_emptied(database)})


def _known(now: float, seconds: float) -> ColumnElement[bool]:
    """Whether the caller had so many seconds to learn that an item was decided or expired."""
    # Only the deadline says when an item expired: an item that was given up earlier has no caller to inform.
    expired = case((items.c.deadline <= now, items.c.deadline), else_=items.c.created)
    ended = func.coalesce(items.c.decided_at, expired)
    carried_out = func.coalesce(items.c.lease_until, items.c.created)
    waiting = exists().where(outbox.c.item == items.c.id, outbox.c.state == "waiting")
    return and_(ended < now - seconds, carried_out < now - seconds, ~waiting)


def _log_emptied(database: Database) -> bool:
    """Move the content of SQLite's log into the file and truncate the log; False if a reader prevented it.

    SQLite deletes the log when the last connection closes, but another process may have one.
    """
    if database.engine.dialect.name != "sqlite":
        return True
    with closing(database.engine.raw_connection()) as connection:  # a checkpoint cannot run in a transaction
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(_PATIENCE * 1000)}")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((busy, *_),) = cursor.fetchall()
        cursor.close()
        return not busy
