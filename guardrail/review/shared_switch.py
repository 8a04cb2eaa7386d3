"""A switch in a database: an alarm that any process raised holds answers back in all of them."""

from __future__ import annotations

import time
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ..monitor import Alarm, SafetySwitch
from .monitor_rows import monitors
from .store import ReviewStore

__all__ = ["SharedSwitch"]


class SharedSwitch(SafetySwitch):
    """A switch that follows the alarms of a database. Made by `Monitors.switch`.

    Where the database cannot be read nothing is accepted: an alarm could stand in it. `reset` clears what was given to
    this object itself; alarms in the database end by `Monitors.acknowledge`.
    """

    def __init__(
        self,
        store: ReviewStore,
        then: Literal["abstain", "stricter"],
        threshold: float | None,
        names: tuple[str, ...] | None,
        every: float,
    ) -> None:
        super().__init__(then, threshold=threshold)
        self._store, self._names, self._every = store, names, every
        self._looked = float("-inf")
        self._found: tuple[Alarm, ...] = ()
        self._blind = ""

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms given to this object, and those in the database that nobody has acknowledged."""
        self._look()
        return (*self._alarms, *self._found)

    def allows(self, uncertainty: float) -> bool:
        """Whether an answer that the gate accepts may still pass."""
        alarms = self.alarms
        return not self._blind and (not alarms or self._stricter(uncertainty))

    def reason(self) -> str:
        """Why answers are held back, in words; empty when they are not."""
        alarms = self.alarms
        return self._blind or (alarms[-1].detail if alarms else "")

    def _look(self) -> None:
        if time.monotonic() - self._looked < self._every:
            return
        self._looked = time.monotonic()  # also after a failure: a database that is down is not asked at every question
        wanted = select(monitors.c.name, monitors.c.alarm)
        open_ones = wanted.where(monitors.c.alarm.is_not(None), monitors.c.acknowledged.is_(None))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(open_ones.order_by(monitors.c.name)).all()
        except SQLAlchemyError as error:
            self._blind = f"The monitors cannot be read, so an alarm may be standing ({type(error).__name__})."
            return
        mine = [row for row in rows if self._names is None or row.name in self._names]
        self._found = tuple(Alarm.model_validate_json(row.alarm) for row in mine)
        self._blind = ""
