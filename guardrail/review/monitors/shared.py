"""Monitors in a database: each update is one transaction, and each process reports an alarm once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from sqlalchemy import update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from ...artifact import CalibrationArtifact
from ...errors import UsageError
from ...monitor import Alarm, DriftMonitor, DriftState, RiskMonitor, RiskState
from ...monitor.drift import Reference
from ...verdict import Verdict
from ..errors import ReviewError
from ..limits import LONGEST_KEY, check_text
from ..queue.rows import SYSTEM
from ..queue.rows import log as note
from ..queue.store import ReviewStore
from .rows import LONGEST_MONITOR, alarm_of, dump, fetch, monitors, seen, state_of, steps, steps_of

__all__ = ["SharedDrift", "SharedRisk", "risk_monitor"]

log = logging.getLogger("guardrail")


class _Shared:
    """Base of both kinds: one transaction for each update, and one report of an alarm for each process."""

    def __init__(self, store: ReviewStore, name: str, on_alarm: Callable[[Alarm], object] | None) -> None:
        check_text("a monitor's name", name, LONGEST_MONITOR)
        self.name = name
        self._store, self._on_alarm = store, on_alarm
        self._reported = self._warned = False
        self._lock = threading.Lock()

    def _begin(self, kind: str, state: RiskState | DriftState) -> Any:
        """The row, created if it is missing."""
        with self._store.database.write() as connection:
            now = self._store.database.now(connection)
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            values = {"name": self.name, "kind": kind, "n": 0, "state": dump(state), "created": now}
            connection.execute(insert(monitors).values(**values).on_conflict_do_nothing(index_elements=["name"]))
            row = fetch(connection, self.name)
            assert row is not None
            if row.kind != kind:
                raise UsageError(f"monitor {self.name!r} of this store is a {row.kind} monitor, not a {kind} monitor.")
            return row

    def _warn_if_over(self, row: Any) -> None:
        """Warn, once per object, that a monitor whose alarm was acknowledged no longer holds answers back."""
        if row.acknowledged is None or self._warned:
            return
        self._warned = True
        log.warning(
            "guardrail: the alarm of monitor %r was acknowledged, so it never alarms again and holds no answer "
            "back. Start a monitor under a new name.",
            self.name,
        )

    def _report(self, alarm: str | None, acknowledged: float | None) -> None:
        known = None if self._reported else alarm_of(self.name, alarm)
        if known is None:
            return
        if acknowledged is None and self._on_alarm is not None:
            self._on_alarm(known)
        self._reported = True  # not if it raised: it is called again at the next update

    def _write(
        self, connection: Connection, row: Any, state: RiskState | DriftState, step: dict[str, Any], alarm: Alarm | None
    ) -> str | None:
        """Write row, step and alarm, if the row has not changed since it was read. Returns the row's alarm."""
        now = self._store.database.now(connection)
        stored = row.alarm if alarm is None else alarm.model_dump_json()
        mine = update(monitors).where(monitors.c.name == self.name, monitors.c.n == row.n)
        changed = connection.execute(mine.values(n=state.n, state=dump(state), alarm=stored)).rowcount
        if changed != 1:
            raise ReviewError(f"monitor {self.name!r} was updated by another process in between; update it again.")
        values = {"name": self.name, "n": state.n, "at": now, "log_wealth": state.log_wealth, **step}
        connection.execute(steps.insert().values(**values))
        if alarm is not None:
            note(connection, "", now, SYSTEM, "alarm", {"name": self.name, **alarm.model_dump(mode="json")})
        return str(stored) if stored is not None else None


class SharedRisk(_Shared):
    """A `RiskMonitor` in a database. Made by `Monitors.risk`."""

    def __init__(
        self, store: ReviewStore, name: str, fresh: RiskMonitor, on_alarm: Callable[[Alarm], object] | None
    ) -> None:
        super().__init__(store, name, on_alarm)
        self._asked = fresh.state
        row = self._begin("risk", fresh.state)
        self._monitor(row)  # refuses different settings
        self._report(row.alarm, row.acknowledged)

    @property
    def state(self) -> RiskState:
        """The current state, with the updates of all processes."""
        with self._store.database.read() as connection:
            return self._monitor(fetch(connection, self.name)).state

    def update(self, error: bool, *, audit_rate: float | None = None, key: str | None = None) -> RiskState:
        """Take in one audited accepted answer; see `RiskMonitor.update`.

        Args:
            error: Whether it was wrong.
            audit_rate: Probability with which it was chosen for audit.
            key: Names the answer, at most 512 characters; a second update with the same key changes nothing.
        """
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        with self._lock:
            with self._store.database.write() as connection:
                row = fetch(connection, self.name, lock=True)
                monitor = self._monitor(row)
                if key is not None and seen(connection, self.name, key):
                    return monitor.state
                rate = self._asked.min_audit_rate if audit_rate is None else audit_rate
                state = monitor.update(error, audit_rate=rate)
                step = {"key": key, "value": float(bool(error)), "chance": rate}
                alarm = self._write(connection, row, state, step, monitor.alarm if row.alarm is None else None)
            self._warn_if_over(row)
            self._report(alarm, row.acknowledged)
            return state

    def interval(self, level: float = 0.95) -> tuple[float, float, float] | None:
        """As `RiskMonitor.interval`."""
        return risk_monitor(self._asked, self.state).interval(level)

    def _monitor(self, row: Any) -> RiskMonitor:
        return risk_monitor(self._asked, state_of(row, RiskState))


class SharedDrift(_Shared):
    """A `DriftMonitor` in a database. Made by `Monitors.drift`."""

    needs_scores = True

    def __init__(
        self,
        store: ReviewStore,
        name: str,
        fresh: DriftMonitor,
        artifact: CalibrationArtifact,
        on_alarm: Callable[[Alarm], object] | None,
    ) -> None:
        super().__init__(store, name, on_alarm)
        self._artifact = artifact
        self._reference = Reference(artifact)
        self._local: DriftMonitor | None = None
        self._settings = (fresh.state.delta, fresh.state.seed)
        row = self._begin("drift", fresh.state)
        with self._store.database.read() as connection:
            self._caught_up(connection, row)  # refuses another artifact or different settings
        self._report(row.alarm, row.acknowledged)

    @property
    def state(self) -> DriftState:
        """The current state, with the updates of all processes."""
        with self._lock, self._store.database.read() as connection:
            return self._caught_up(connection, fetch(connection, self.name)).state

    def update(self, uncertainty: float, *, key: str | None = None) -> DriftState:
        """Take in the score of one question; see `DriftMonitor.update`.

        Args:
            uncertainty: The score.
            key: Names the question, at most 512 characters; a second update with the same key changes nothing.
        """
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        with self._lock:
            try:
                with self._store.database.write() as connection:
                    row = fetch(connection, self.name, lock=True)
                    monitor = self._caught_up(connection, row)
                    if key is not None and seen(connection, self.name, key):
                        return monitor.state
                    state = monitor.update(uncertainty)
                    if state.n == row.n:  # above the artifact's reach
                        return state
                    step = {"key": key, "value": float(uncertainty), "chance": state.p_values[-1]}
                    alarm = self._write(connection, row, state, step, monitor.alarm if row.alarm is None else None)
            except BaseException:
                self._local = None  # it may be ahead of the database, so read it again
                raise
            self._warn_if_over(row)
            self._report(alarm, row.acknowledged)
            return state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, as `DriftMonitor.watch`: ``Guardrail(on_verdict=drift.watch)``."""
        score = self._reference.score(verdict)
        if score is not None:
            self.update(score)

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Accept a guard of this artifact or refuse it, as `DriftMonitor.admit`."""
        self._reference.admit(artifact)

    def _caught_up(self, connection: Connection, row: Any) -> DriftMonitor:
        """The monitor in memory, with the updates that other processes wrote since."""
        if self._local is not None and self._local.state.n == row.n:
            return self._local
        own = () if self._local is None else self._local.state.stream
        seen = () if self._local is None else self._local.state.p_values
        found = connection.execute(steps_of(self.name).where(steps.c.n > len(own), steps.c.n <= row.n)).all()
        state = state_of(row, DriftState).model_copy(
            update={
                "stream": (*own, *(step.value for step in found)),
                "p_values": (*seen, *(step.chance for step in found)),
            }
        )
        if (state.delta, state.seed) != self._settings:
            raise UsageError(
                f"monitor {self.name!r} has delta {state.delta} and seed {state.seed}; the arguments are "
                f"{self._settings[0]} and {self._settings[1]}. Give the same values, or use another name."
            )
        if self._local is None:
            self._local = DriftMonitor(self._artifact, delta=state.delta, state=state)
        else:
            self._local.follow(state)
        return self._local


def risk_monitor(asked: RiskState, state: RiskState) -> RiskMonitor:
    """The monitor with this state; refuses different settings."""
    rate = asked.min_audit_rate
    return RiskMonitor(asked.alpha, delta=asked.delta, min_audit_rate=rate, artifact=asked.artifact, state=state)
