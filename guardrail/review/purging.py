"""Deleting what is old: contents, decisions and callbacks. The audit trail keeps its lines, which hold none of them.

Only decided and expired items go, and none whose callback is still to be delivered. Callbacks that were given up go
with their item; that they failed stays in the trail. An item's key is free again: a call with it makes a new item.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, case, delete, exists, func, or_, select
from sqlalchemy.engine import Connection

from ..types import Frozen
from .database import Database
from .rows import log
from .schema import items, outbox

__all__ = ["Purged", "purge"]

_AT_ONCE = 500
"""Items deleted with one statement: SQLite takes 999 parameters."""


class Purged(Frozen):
    """What was deleted, or would be."""

    items: int
    """Items, with their contents and decisions."""
    callbacks: int
    """Their callbacks, delivered or given up."""
    kept: int
    """Items as old that stay, because a callback of theirs is still to be delivered."""


def purge(database: Database, older_than: float, who: str, *, dry_run: bool) -> Purged:
    """Delete, in one transaction, items that were decided or expired more than ``older_than`` seconds ago."""
    with database.write() as connection:
        now = database.now(connection)
        waiting = exists().where(outbox.c.item == items.c.id, outbox.c.state == "waiting")
        old = _old(now, older_than)
        kept = int(connection.execute(select(func.count()).select_from(items).where(old, waiting)).scalar_one())
        wanted = select(items.c.id).where(old, ~waiting).order_by(items.c.number)
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
        return Purged(items=len(found), callbacks=callbacks, kept=kept)


def _old(now: float, older_than: float) -> Any:
    # Nothing says when an item expired but its deadline; one that was given up before it counts from its arrival.
    expired = case((items.c.deadline <= now, items.c.deadline), else_=items.c.created)
    ended = func.coalesce(items.c.decided_at, expired)
    return and_(or_(items.c.state == "decided", items.c.state == "expired"), ended < now - older_than)


def _delete(connection: Connection, found: list[str], dry_run: bool) -> int:
    theirs = outbox.c.item.in_(found)
    if dry_run:
        return int(connection.execute(select(func.count()).select_from(outbox).where(theirs)).scalar_one())
    gone = connection.execute(delete(outbox).where(theirs)).rowcount
    connection.execute(delete(items).where(items.c.id.in_(found)))
    return gone
