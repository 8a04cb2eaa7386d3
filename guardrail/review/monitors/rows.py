"""Steps of a transaction on the rows of the shared monitors."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.engine import Connection

from ...errors import UsageError
from ...files import problem_of
from ...monitor import Alarm
from ...monitor.base import parse_state
from ...monitor.betting import BettingState
from ..limits import storable
from ..queue.schema import monitors, steps

__all__ = ["alarm_of", "fetch", "has_step", "state_of", "steps_of"]

State = TypeVar("State", bound=BettingState)


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
    """The state in a row.

    Raises:
        UsageError: It cannot be read, or another version wrote it; the message names the monitor.
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
