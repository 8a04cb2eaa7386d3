"""A switch in a database: an alarm that any process raised holds answers back in all of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ...errors import UsageError
from ...monitor import Alarm, SafetySwitch
from ..limits import check_text
from ..queue.store import ReviewStore
from .rows import LONGEST_MONITOR, alarm_of, monitors

__all__ = ["SharedSwitch"]

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 5.0
"""Seconds a thread waits for the look of another one, whatever ``every`` is."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look at the database found.

    Attributes:
        at: When, on the monotonic clock; what is older than ``every`` is looked for again.
        alarms: Those that nobody has acknowledged, as far as known.
        blind: Why others could stand unseen, so that nothing is accepted; empty where all were seen.
    """

    at: float
    alarms: tuple[Alarm, ...] = ()
    blind: str = ""


class SharedSwitch(SafetySwitch):
    """A switch that follows the alarms of a database. Made by `Monitors.switch`.

    Where an alarm could stand unseen nothing is accepted: while the database cannot be read, and while a monitor it
    was told to follow does not exist. One thread looks; others wait for it, at most ``every`` seconds (1 to 5), and
    then count as not having seen. `reset` clears what was given to this object itself; alarms in the database end by
    `Monitors.acknowledge`.
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
        if names is not None:
            _check(names)
        self._store, self._names, self._every = store, names, every
        self._wait = min(max(every, _SHORTEST_WAIT), _LONGEST_WAIT)
        self._looking = threading.Lock()
        self._seen: _Seen | None = None

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms given to this object, and those in the database that nobody has acknowledged."""
        return (*self._alarms, *self._look(self._wait).alarms)

    def allows(self, uncertainty: float) -> bool:
        """Whether an answer that the gate accepts may still pass."""
        return self.objection(uncertainty) is None

    def objection(self, uncertainty: float) -> str | None:
        """Why an answer that the gate accepts may not pass, or None where it may: `allows` and `reason` in one look."""
        seen = self._look(self._wait)
        alarmed = bool(self._alarms or seen.alarms) and not self._stricter(uncertainty)
        return self._words(seen) if seen.blind or alarmed else None

    def reason(self) -> str:
        """Why answers are held back, in words; empty when they are not."""
        return self._words(self._look(0.0))  # whoever asks has just waited

    def _words(self, seen: _Seen) -> str:
        alarms = (*self._alarms, *seen.alarms)
        return " ".join(filter(None, (alarms[-1].detail if alarms else "", seen.blind)))

    def _look(self, wait: float) -> _Seen:
        """What is known now: from the last look, from one's own, or from that of a thread one waits for."""
        seen = self._fresh()
        if seen is not None:
            return seen
        if not self._looking.acquire(timeout=wait):
            return self._blind("The monitors are still being read, so an alarm may be standing.")
        try:
            seen = self._fresh()
            if seen is None:
                seen = self._seen = self._read()
            return seen
        finally:
            self._looking.release()

    def _fresh(self) -> _Seen | None:
        seen = self._seen
        return seen if seen is not None and time.monotonic() - seen.at < self._every else None

    def _blind(self, why: str) -> _Seen:
        """Dated now, not when the look began: a database that is down is not asked again at every question."""
        return _Seen(time.monotonic(), () if self._seen is None else self._seen.alarms, why)

    def _read(self) -> _Seen:
        began = time.monotonic()
        columns = monitors.c
        open_alarm = columns.alarm.is_not(None) & columns.acknowledged.is_(None)
        wanted = select(columns.name, columns.alarm, columns.acknowledged).order_by(columns.name)
        wanted = wanted.where(open_alarm if self._names is None else columns.name.in_(self._names))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(wanted).all()
        except SQLAlchemyError as error:
            return self._blind(f"The monitors cannot be read, so an alarm may be standing ({type(error).__name__}).")
        try:
            found = [alarm_of(row.name, row.alarm) for row in rows if row.acknowledged is None]
        except UsageError as error:
            return self._blind(f"An alarm may be standing: {error}")
        missing = sorted(set(self._names or ()) - {row.name for row in rows})
        return _Seen(began, tuple(alarm for alarm in found if alarm is not None), _unknown(missing) if missing else "")


def _unknown(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    return (
        f"The switch follows {listed}, but the review store has no monitor of that name, so nothing is watched. Begin "
        "it (Monitors.risk or Monitors.drift), or correct Monitors.switch(names=...)."
    )


def _check(names: tuple[str, ...]) -> None:
    if not names:
        raise UsageError("names must name a monitor at least, got none. Leave names out to follow all of the store.")
    for name in names:
        check_text("a monitor's name", name, LONGEST_MONITOR)
