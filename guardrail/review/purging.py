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

from sqlalchemy import and_, case, delete, exists, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from ..types import Frozen
from .database import Database
from .tables import items, log, marks, outbox, steps

__all__ = ["Purged", "purge"]

_AT_ONCE = 500
"""Items deleted with one statement; SQLite takes at most 999 parameters."""
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
    purged = _purge(database, older_than, who, dry_run)
    if dry_run:
        return purged
    return purged.model_copy(update={"in_log": not _log_emptied(database)})


def _purge(database: Database, older_than: float, who: str, dry_run: bool) -> Purged:
    with database.write(max(_DELETING, database.deadline)) as connection:
        now = database.now(connection)
        since = now - older_than
        old, ended = items.c.created < since, items.c.state.in_(("decided", "expired"))
        informed = _known(now, min(older_than, _TO_BE_KNOWN))
        count = select(func.count()).select_from(items).where(old)
        staying = int(connection.execute(count.where(ended, ~informed)).scalar_one())
        still_open = int(connection.execute(count.where(~ended)).scalar_one())
        deletable = select(items.c.id).where(old, ended, informed).order_by(items.c.number)
        if not dry_run:  # no worker may lease an item that is being deleted
            deletable = deletable.with_for_update()
        ids = list(connection.execute(deletable).scalars())
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA secure_delete=ON")  # overwrite with zeros: nothing is left in the file
        if not dry_run:
            connection.execute(delete(marks).where(marks.c.until <= now))  # some are answers that a gateway remembers
        callbacks = 0
        for first in range(0, len(ids), _AT_ONCE):
            callbacks += _delete(connection, ids[first : first + _AT_ONCE], dry_run)
        deleted_steps = _delete_steps(connection, min(since, now - _TO_BE_KNOWN), and_(old, ended, informed), dry_run)
        if (ids or deleted_steps) and not dry_run:
            detail = {"items": len(ids), "callbacks": callbacks, "older_than_seconds": older_than}
            detail |= {"steps": deleted_steps} if deleted_steps else {}
            log(connection, "", now, who, "purged", detail)
        return Purged(
            items=len(ids), callbacks=callbacks, kept=staying, open=still_open, steps=deleted_steps, since=since
        )


def _delete_steps(connection: Connection, since: float, deleted: ColumnElement[bool], dry_run: bool) -> int:
    """Delete the steps of monitors before ``since``, at least a day ago: until then a guard may write a score again."""
    old = and_(steps.c.at < since, ~exists().where(items.c.id == steps.c.key, ~deleted))
    if dry_run:
        return int(connection.execute(select(func.count()).select_from(steps).where(old)).scalar_one())
    return connection.execute(delete(steps).where(old)).rowcount


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


def _delete(connection: Connection, ids: list[str], dry_run: bool) -> int:
    theirs = outbox.c.item.in_(ids)
    if dry_run:
        return int(connection.execute(select(func.count()).select_from(outbox).where(theirs)).scalar_one())
    callbacks = connection.execute(delete(outbox).where(theirs)).rowcount
    connection.execute(delete(items).where(items.c.id.in_(ids)))
    return callbacks
