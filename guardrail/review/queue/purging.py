"""Deleting what is old: contents, decisions and callbacks. The audit trail keeps its lines, which hold none of them.

What is old is a question of arrival, not of decision: held-back answers are decided at once and audits later, so a cut
by decision would leave more audits than held-back answers, and what is learned from them would be unlike the questions
that are asked. Of what arrived after the cut everything stays, whatever it is and whenever it was decided; so each
question is in it with the same probability as before (`calibrate from-reviews` thins by that).

Of what arrived before it, only decided and expired items go, and none of which whoever waits may not know yet: decided,
expired or being carried out within the last day, or with a callback still to be delivered. Those that stay are no such
sample, also once they are decided: leave them out of what is learned (``--since`` the cut).

Callbacks that were given up go with their item; that they failed stays in the trail. An item's key is free again: a
call with it makes a new item.
"""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import and_, case, delete, exists, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from ...types import Frozen
from .database import Database
from .rows import log
from .schema import items, outbox

__all__ = ["Purged", "purge"]

_AT_ONCE = 500
"""Items deleted with one statement: SQLite takes 999 parameters."""
_TO_BE_KNOWN = 86_400.0
"""Seconds in which whoever waits learns of a decision, e.g. by asking for the ticket."""
_PATIENCE = 5.0
"""Seconds to wait for readers of an SQLite file; writers wait meanwhile."""


class Purged(Frozen):
    """What was deleted, or would be."""

    items: int
    """Items, with their contents and decisions."""
    callbacks: int
    """Their callbacks, delivered or given up."""
    kept: int
    """Items as old that stay, because whoever waits for them may not know yet what became of them."""
    open: int
    """Items as old that stay, because nobody has decided them and they may still be."""
    since: float
    """The cut, in seconds since 1970 UTC: what arrived then or later stays."""
    in_log: bool = False
    """SQLite: somebody was reading, so deleted texts may still be in the file's ``-wal``. Purging again clears it."""


def purge(database: Database, older_than: float, who: str, *, dry_run: bool) -> Purged:
    """Delete, in one transaction, decided and expired items that arrived more than ``older_than`` seconds ago."""
    purged = _purge(database, older_than, who, dry_run)
    if dry_run:
        return purged
    return purged.model_copy(update={"in_log": not _log_emptied(database)})


def _purge(database: Database, older_than: float, who: str, dry_run: bool) -> Purged:
    with database.write() as connection:
        now = database.now(connection)
        since = now - older_than
        old, ended = items.c.created < since, items.c.state.in_(("decided", "expired"))
        known = _known(now, min(older_than, _TO_BE_KNOWN))
        count = select(func.count()).select_from(items).where(old)
        kept = int(connection.execute(count.where(ended, ~known)).scalar_one())
        still_open = int(connection.execute(count.where(~ended)).scalar_one())
        wanted = select(items.c.id).where(old, ended, known).order_by(items.c.number)
        if not dry_run:
            wanted = wanted.with_for_update()
        found = list(connection.execute(wanted).scalars())
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA secure_delete=ON")  # overwrite with zeros: nothing is left in the file
        callbacks = 0
        for first in range(0, len(found), _AT_ONCE):
            callbacks += _delete(connection, found[first : first + _AT_ONCE], dry_run)
        if found and not dry_run:
            detail = {"items": len(found), "callbacks": callbacks, "older_than_seconds": older_than}
            log(connection, "", now, who, "purged", detail)
        return Purged(items=len(found), callbacks=callbacks, kept=kept, open=still_open, since=since)


def _known(now: float, seconds: float) -> ColumnElement[bool]:
    """Whether whoever waits knows, or had so long to learn, what became of a decided or expired item."""
    # Nothing says when an item expired but its deadline. Nobody waits for one that was given up before it.
    expired = case((items.c.deadline <= now, items.c.deadline), else_=items.c.created)
    ended = func.coalesce(items.c.decided_at, expired)
    carried_out = func.coalesce(items.c.lease_until, items.c.created)
    waiting = exists().where(outbox.c.item == items.c.id, outbox.c.state == "waiting")
    return and_(ended < now - seconds, carried_out < now - seconds, ~waiting)


def _log_emptied(database: Database) -> bool:
    """Move what SQLite's log holds into the file, and cut the log to nothing; False where a reader stood in the way.

    The log goes by itself when the last connection closes; but there may be another one.
    """
    if database.engine.dialect.name != "sqlite":
        return True
    with closing(database.engine.raw_connection()) as connection:  # a checkpoint runs in no transaction
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(_PATIENCE * 1000)}")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((busy, *_),) = cursor.fetchall()
        cursor.close()
        return not busy


def _delete(connection: Connection, found: list[str], dry_run: bool) -> int:
    theirs = outbox.c.item.in_(found)
    if dry_run:
        return int(connection.execute(select(func.count()).select_from(outbox).where(theirs)).scalar_one())
    gone = connection.execute(delete(outbox).where(theirs)).rowcount
    connection.execute(delete(items).where(items.c.id.in_(found)))
    return gone
