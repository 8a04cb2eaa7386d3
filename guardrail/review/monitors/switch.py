"""A switch in a database: an alarm raised by one process holds answers back in all processes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ...errors import UsageError
from ...monitor import Alarm, SafetySwitch
from ..errors import StoreUnavailableError
from ..limits import check_text
from ..queue.schema import LONGEST_MONITOR, inbox, monitors
from ..queue.store import ReviewStore
from .rows import alarm_of

__all__ = ["SharedSwitch"]

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 5.0
"""Limits of the time a thread waits for another thread that reads the database."""
BEHIND = 60.0
"""Seconds for which a score may wait to be folded before nothing is accepted."""


@dataclass(frozen=True, slots=True)
class _SwitchState:
    """Result of one read of the database.

    Attributes:
        at: Time of the read on the monotonic clock; after ``every`` seconds the database is read again.
        alarms: The known alarms that nobody has acknowledged.
        problem: Reason why other alarms may exist, so that nothing is accepted; empty if all alarms are known.
    """

    at: float
    alarms: tuple[Alarm, ...] = ()
    problem: str = ""


class SharedSwitch(SafetySwitch):
    """A switch that follows the alarms of a database. Made by `Monitors.switch`.

    Nothing is accepted while an alarm may be unknown: while the database cannot be read, a monitor in ``names`` does
    not exist, or scores have waited longer than a minute to be folded. One thread reads; others wait for it, at most
    ``every`` seconds (1 to 5), and then accept nothing.
    `reset` clears the alarms given to this object; `Monitors.acknowledge` clears alarms in the database.
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
        self._reading = threading.Lock()
        self._last: _SwitchState | None = None

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms given to this object, and alarms in the database that nobody has acknowledged."""
        return (*self._alarms, *self._latest(self._wait).alarms)

    def allows(self, uncertainty: float) -> bool:
        """Whether an answer that the gate accepts may pass."""
        return self.objection(uncertainty) is None

    def objection(self, uncertainty: float) -> str | None:
        """Why an answer that the gate accepts may not pass; None if it may. `allows` and `reason` in one read."""
        state = self._latest(self._wait)
        alarmed = bool(self._alarms or state.alarms) and not self._stricter(uncertainty)
        return self._describe(state) if state.problem or alarmed else None

    def reason(self) -> str:
        """Why answers are held back; empty if they are not."""
        return self._describe(self._latest(0.0))  # the caller has just waited

    def _describe(self, state: _SwitchState) -> str:
        alarms = (*self._alarms, *state.alarms)
        return " ".join(filter(None, (alarms[-1].detail if alarms else "", state.problem)))

    def _latest(self, wait: float) -> _SwitchState:
        """The latest state: the last state if it is recent, otherwise a new read by this thread or another thread."""
        state = self._fresh()
        if state is not None:
            return state
        if not self._reading.acquire(timeout=wait):
            return self._failed("The monitors are still being read, so there may be an alarm.")
        try:
            state = self._fresh()  # the thread that this one waited for may have read it
            if state is None:
                state = self._last = self._read()
            return state
        finally:
            self._reading.release()

    def _fresh(self) -> _SwitchState | None:
        state = self._last
        return state if state is not None and time.monotonic() - state.at < self._every else None

    def _failed(self, why: str) -> _SwitchState:
        """The state after a failed read. It is dated now, so that a database that is down is not read every time."""
        return _SwitchState(time.monotonic(), () if self._last is None else self._last.alarms, why)

    def _read(self) -> _SwitchState:
        began = time.monotonic()
        columns = monitors.c
        open_alarm = columns.alarm.is_not(None) & columns.acknowledged.is_(None)
        followed = select(columns.name, columns.alarm, columns.acknowledged).order_by(columns.name)
        followed = followed.where(open_alarm if self._names is None else columns.name.in_(self._names))
        oldest = select(inbox.c.name, inbox.c.at).order_by(inbox.c.number).limit(1)
        if self._names is not None:
            oldest = oldest.where(inbox.c.name.in_(self._names))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(followed).all()
                waiting = connection.execute(oldest).one_or_none()
                now = self._store.database.now(connection)
        except (SQLAlchemyError, StoreUnavailableError) as error:
            return self._failed(f"The monitors cannot be read, so there may be an alarm ({type(error).__name__}).")
        try:
            alarms = [alarm_of(row.name, row.alarm) for row in rows if row.acknowledged is None]
        except UsageError as error:
            return self._failed(f"There may be an alarm: {error}")
        missing = sorted(set(self._names or ()) - {row.name for row in rows})
        problem = _missing(missing) if missing else ""
        if waiting is not None and now - waiting.at > BEHIND:
            problem = f"{problem} {_behind(waiting.name, now - waiting.at)}".strip()
        return _SwitchState(began, tuple(alarm for alarm in alarms if alarm is not None), problem)


def _missing(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    return (
        f"The switch follows {listed}, but the review store has no such monitor, so nothing is watched. Start it "
        "(Monitors.risk or Monitors.drift), or correct Monitors.switch(names=...)."
    )


def _behind(name: str, seconds: float) -> str:
    return (
        f"Scores of monitor {name!r} have waited {seconds:.0f} s to be folded, so there may be an alarm. Run "
        "`guardrail monitor`; its log says why it cannot fold."
    )


def _check(names: tuple[str, ...]) -> None:
    if not names:
        raise UsageError(
            "names must have at least one monitor, got none. Leave names out to follow all monitors of the store."
        )
    for name in names:
        check_text("a monitor's name", name, LONGEST_MONITOR)
