"""Tables of the shared monitors, and steps of a transaction on their rows."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table, Text, UniqueConstraint, select
from sqlalchemy.engine import Connection

from ...errors import UsageError
from ...files import problem_of
from ...monitor import Alarm
from ...monitor.base import parse_state
from ...monitor.betting import BettingState
from ..limits import LONGEST_KEY, storable
from ..queue.schema import metadata

__all__ = [
    "LONGEST_MONITOR",
    "alarm_of",
    "fetch",
    "grids",
    "has_step",
    "inbox",
    "monitors",
    "state_of",
    "steps",
    "steps_of",
]

State = TypeVar("State", bound=BettingState)

LONGEST_MONITOR = 128
"""Characters of a monitor's name."""

monitors = Table(
    "review_monitors",
    metadata,
    Column("name", String(LONGEST_MONITOR), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("n", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("alarm", Text),
    Column("acknowledged", Float(53)),
    Column("created", Float(53), nullable=False),
)
steps = Table(
    "review_monitor_steps",
    metadata,
    Column("name", String(LONGEST_MONITOR), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("key", String(LONGEST_KEY)),
    Column("at", Float(53), nullable=False),
    Column("value", Float(53), nullable=False),
    Column("chance", Float(53), nullable=False),
    Column("log_wealth", Float(53), nullable=False),
    UniqueConstraint("name", "key"),
)
grids = Table(
    "review_monitor_grids",
    metadata,
    Column("name", String(LONGEST_MONITOR), primary_key=True),
    Column("grid", Text, nullable=False),
)
"""The `Grid` of each drift monitor, which never changes: a process without the artifact can fold."""
inbox = Table(
    "review_monitor_inbox",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("name", String(LONGEST_MONITOR), nullable=False),
    Column("key", String(LONGEST_KEY), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("value", Float(53), nullable=False),
    UniqueConstraint("name", "key"),
    sqlite_autoincrement=True,
)
"""Scores that guards have written and nobody has folded into the monitor yet."""
Index("review_monitor_inbox_order", inbox.c.name, inbox.c.number)


def fetch(connection: Connection, name: str, *, lock: bool = False, skip: bool = False) -> Any:
    """The row of a monitor, or None.

    Args:
        connection: A connection in a transaction.
        name: The monitor.
        lock: Lock the row until the transaction ends.
        skip: With ``lock``: return None if another transaction has locked it.
    """
    if not storable(name):
        return None
    query = select(monitors).where(monitors.c.name == name)
    return connection.execute(query.with_for_update(skip_locked=skip) if lock else query).one_or_none()


def steps_of(name: str) -> Any:
    """The query for all steps of a monitor, in order."""
    return select(steps).where(steps.c.name == name).order_by(steps.c.n)


def has_step(connection: Connection, name: str, key: str) -> bool:
    """Whether a monitor was updated with this key."""
    query = select(steps.c.n).where(steps.c.name == name, steps.c.key == key)
    return connection.execute(query).first() is not None


def state_of(row: Any, kind: type[State]) -> State:
    """The state in a row. A state of the first format has no counts; `add_grid` of the inbox counts them.

    Raises:
        UsageError: It cannot be read, or a newer version wrote it; the message names the monitor.
    """
    return parse_state(row.state, kind, f"monitor {row.name!r} of the review store")


def alarm_of(name: str, text: str | None) -> Alarm | None:
    """The alarm in a monitor's row, or None.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return None if text is None else Alarm.from_stored(text)
    except ValidationError as error:
        raise UsageError(
            f"the alarm of monitor {name!r} of the review store cannot be read ({problem_of(error)}). Upgrade "
            "acrc-guardrail to the version that wrote it, or start a new monitor."
        ) from error
