"""Monitors whose state lives in the review store's database: shared by processes, kept over restarts, lost by no kill.

    monitors = Monitors(store)
    switch = monitors.switch()
    drift = monitors.drift("drift", artifact)
    guard = Guardrail(..., switch=switch, on_verdict=[drift.watch, audit_sample(store, rate=0.1)])

Every update is one transaction: it takes the row, catches up with what others wrote, bets, and writes row, history and
alarm together, on the condition that nobody wrote in between. An alarm is a line of the audit trail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from sqlalchemy import (
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..monitor import Alarm, DriftMonitor, DriftState, RiskMonitor, RiskState, SafetySwitch
from ..types import Frozen, Verdict
from .errors import ReviewError
from .schema import events
from .store import ReviewStore

__all__ = ["MonitorView", "Monitors", "SharedDrift", "SharedRisk", "SharedSwitch", "Step"]

POINTS = 2_000
"""Most points of a history that is read for a picture."""
_LOCK = 0x61637264
"""Advisory lock of PostgreSQL under which the tables are made."""
_IN_STEPS = ("stream", "p_values")
"""What of a drift monitor's state is kept step by step, so that an update does not write it all again."""

_metadata = MetaData()
_monitors = Table(
    "review_monitors",
    _metadata,
    Column("name", String(128), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("n", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("alarm", Text),
    Column("acknowledged", Float(53)),
    Column("created", Float(53), nullable=False),
)
_steps = Table(
    "review_monitor_steps",
    _metadata,
    Column("name", String(128), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("key", String(512)),
    Column("at", Float(53), nullable=False),
    Column("value", Float(53), nullable=False),
    Column("chance", Float(53), nullable=False),
    Column("log_wealth", Float(53), nullable=False),
    UniqueConstraint("name", "key"),
)


class Step(Frozen):
    """One update of a monitor."""

    n: int
    """Its number, from 1."""
    at: float
    """When, in seconds since 1970 UTC."""
    value: float
    """Drift: the score. Risk: 1 for a wrong answer, 0 for a right one."""
    chance: float
    """Drift: the conformal p-value. Risk: the probability with which the answer was audited."""
    log_wealth: float
    """Natural logarithm of the betting wealth after it."""


class MonitorView(Frozen):
    """A monitor as a page shows it."""

    name: str
    """Its name."""
    kind: Literal["risk", "drift"]
    """What it tests."""
    n: int
    """Updates so far."""
    delta: float
    """Probability of ever raising a false alarm; the alarm line is ln(1/delta)."""
    log_wealth: float
    """Now."""
    alarm: Alarm | None
    """Its alarm, if it raised one."""
    acknowledged: bool
    """Whether a person has looked at the alarm."""
    estimate: tuple[float, float, float] | None
    """Risk: error rate among accepted answers with a 95 % confidence sequence."""
    alpha: float | None
    """Risk: the promised error rate."""


class Monitors:
    """All monitors of a review store. Safe under threads and processes.

    Args:
        store: Its database gets two more tables.
    """

    def __init__(self, store: ReviewStore) -> None:
        self.store = store
        with store.database.read() as connection:
            if inspect(connection).has_table(_steps.name):
                return
        with store.database.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            _metadata.create_all(connection)

    def risk(
        self,
        name: str,
        alpha: float,
        *,
        delta: float = 0.05,
        min_audit_rate: float = 1.0,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> SharedRisk:
        """The `RiskMonitor` of this name, begun if there is none.

        Args:
            name: Its name in this store; use a new one for a new artifact.
            alpha: Promised error rate among accepted answers.
            delta: Probability of ever raising a false alarm.
            min_audit_rate: Smallest audit probability that will occur.
            on_alarm: Called once in this process, when it learns of the alarm, or now if there is one already.

        Raises:
            UsageError: There is one of this name with other settings.
        """
        fresh = RiskMonitor(alpha, delta=delta, min_audit_rate=min_audit_rate)
        return SharedRisk(self.store, name, fresh, on_alarm)

    def drift(
        self,
        name: str,
        artifact: CalibrationArtifact,
        *,
        delta: float = 0.05,
        seed: int = 0,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> SharedDrift:
        """The `DriftMonitor` of this name, begun if there is none. Arguments as in `DriftMonitor` and `risk`.

        Raises:
            UsageError: There is one of this name for another artifact.
        """
        return SharedDrift(self.store, name, DriftMonitor(artifact, delta=delta, seed=seed), artifact, on_alarm)

    def switch(
        self,
        then: Literal["abstain", "stricter"] = "abstain",
        *,
        threshold: float | None = None,
        names: Sequence[str] | None = None,
        every: float = 5.0,
    ) -> SharedSwitch:
        """A switch that follows alarms in the database, whichever process raised them.

        Args:
            then: As in `SafetySwitch`.
            threshold: As in `SafetySwitch`.
            names: Only these monitors; default: all of the store.
            every: Seconds after which the database is looked at again.
        """
        return SharedSwitch(self.store, then, threshold, None if names is None else tuple(names), every)

    def acknowledge(self, name: str, *, who: str) -> None:
        """A person has looked at the alarm: switches let answers pass again. It stands in the audit trail.

        The monitor stays alarmed. Begin a new one, under another name, for what comes after.

        Raises:
            UsageError: No such monitor, or it has raised no alarm.
        """
        with self.store.database.write() as connection:
            row = _row(connection, name)
            if row is None or row.alarm is None:
                raise UsageError(f"no monitor {name!r} with an alarm in this store.")
            now = self.store.database.now(connection)
            connection.execute(update(_monitors).where(_monitors.c.name == name).values(acknowledged=now))
            _log(connection, now, who, "alarm_acknowledged", {"monitor": name})

    def known_risk(self, name: str, *, on_alarm: Callable[[Alarm], object] | None = None) -> SharedRisk | None:
        """The `RiskMonitor` of this name with the settings it was begun with, or None."""
        with self.store.database.read() as connection:
            row = _row(connection, name)
        if row is None or row.kind != "risk":
            return None
        state = RiskState.model_validate_json(row.state)
        return SharedRisk(self.store, name, _risk_monitor(state, state), on_alarm)

    def all(self) -> list[MonitorView]:
        """Every monitor, alarms first, then by name."""
        with self.store.database.read() as connection:
            rows = connection.execute(select(_monitors).order_by(_monitors.c.name)).all()
        return sorted((_view(row) for row in rows), key=lambda view: view.alarm is None or view.acknowledged)

    def history(self, name: str, *, most: int = POINTS) -> list[Step]:
        """The updates of a monitor in order; of a long history evenly spaced ones and the last."""
        with self.store.database.read() as connection:
            row = _row(connection, name)
            n = 0 if row is None else row.n
            every = max(1, -(-n // most))
            wanted = (_steps.c.n % every == 0) | (_steps.c.n == n)
            found = connection.execute(_of(name).where(wanted)).all()
        return [_step(row) for row in found]


class _Shared:
    """What both kinds do: one transaction an update, and each process told of an alarm once."""

    def __init__(self, store: ReviewStore, name: str, on_alarm: Callable[[Alarm], object] | None) -> None:
        if not name:
            raise UsageError("a monitor in a store needs a name.")
        self.name = name
        self._store, self._on_alarm = store, on_alarm
        self._told = False
        self._lock = threading.Lock()

    def _begin(self, kind: str, state: RiskState | DriftState) -> Any:
        """The row, made if there is none."""
        with self._store.database.write() as connection:
            now = self._store.database.now(connection)
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            values = {"name": self.name, "kind": kind, "n": 0, "state": _dump(state), "created": now}
            connection.execute(insert(_monitors).values(**values).on_conflict_do_nothing(index_elements=["name"]))
            row = _row(connection, self.name)
            assert row is not None
            if row.kind != kind:
                raise UsageError(f"monitor {self.name!r} of this store is a {row.kind} monitor, not a {kind} monitor.")
            return row

    def _tell(self, alarm: str | None, acknowledged: float | None) -> None:
        if alarm is None or self._told:
            return
        self._told = True
        if acknowledged is None and self._on_alarm is not None:
            self._on_alarm(Alarm.model_validate_json(alarm))

    def _write(
        self, connection: Connection, row: Any, state: RiskState | DriftState, step: dict[str, Any], alarm: Alarm | None
    ) -> str | None:
        """Row, step and alarm in one go, if nobody wrote since the row was read. Returns the row's alarm."""
        now = self._store.database.now(connection)
        told = row.alarm if alarm is None else alarm.model_dump_json()
        mine = update(_monitors).where(_monitors.c.name == self.name, _monitors.c.n == row.n)
        changed = connection.execute(mine.values(n=state.n, state=_dump(state), alarm=told)).rowcount
        if changed != 1:
            raise ReviewError(f"monitor {self.name!r} was updated by another process in between; update it again.")
        values = {"name": self.name, "n": state.n, "at": now, "log_wealth": state.log_wealth, **step}
        connection.execute(_steps.insert().values(**values))
        if alarm is not None:
            _log(connection, now, "system", "alarm", {"name": self.name, **alarm.model_dump(mode="json")})
        return str(told) if told is not None else None


class SharedRisk(_Shared):
    """A `RiskMonitor` in a database. Made by `Monitors.risk`."""

    def __init__(
        self, store: ReviewStore, name: str, fresh: RiskMonitor, on_alarm: Callable[[Alarm], object] | None
    ) -> None:
        super().__init__(store, name, on_alarm)
        self._asked = fresh.state
        row = self._begin("risk", fresh.state)
        self._monitor(row)  # refuses other settings
        self._tell(row.alarm, row.acknowledged)

    @property
    def state(self) -> RiskState:
        """The state now, whoever updated it last."""
        with self._store.database.read() as connection:
            return self._monitor(_row(connection, self.name)).state

    def update(self, error: bool, *, audit_rate: float | None = None, key: str | None = None) -> RiskState:
        """Take in one audited accepted answer; see `RiskMonitor.update`.

        Args:
            error: Whether it was wrong.
            audit_rate: Probability with which it was chosen for audit.
            key: Names the answer: a second update with the same key changes nothing.
        """
        with self._lock:
            with self._store.database.write() as connection:
                row = _row(connection, self.name, lock=True)
                heard: list[Alarm] = []
                monitor = self._monitor(row, heard.append)
                if key is not None and _seen(connection, self.name, key):
                    return monitor.state
                rate = self._asked.min_audit_rate if audit_rate is None else audit_rate
                state = monitor.update(error, audit_rate=rate)
                step = {"key": key, "value": float(bool(error)), "chance": rate}
                alarm = self._write(connection, row, state, step, heard[0] if heard else None)
            self._tell(alarm, row.acknowledged)
            return state

    def interval(self, level: float = 0.95) -> tuple[float, float, float] | None:
        """As `RiskMonitor.interval`."""
        return _risk_monitor(self._asked, self.state).interval(level)

    def _monitor(self, row: Any, on_alarm: Callable[[Alarm], object] | None = None) -> RiskMonitor:
        return _risk_monitor(self._asked, RiskState.model_validate_json(row.state), on_alarm)


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
        self._heard: list[Alarm] = []
        self._local: DriftMonitor | None = None
        self._settings = (fresh.state.delta, fresh.state.seed)
        row = self._begin("drift", fresh.state)
        with self._store.database.read() as connection:
            self._caught_up(connection, row)  # refuses another artifact or other settings
        self._tell(row.alarm, row.acknowledged)

    @property
    def state(self) -> DriftState:
        """The state now, whoever updated it last."""
        with self._lock, self._store.database.read() as connection:
            return self._caught_up(connection, _row(connection, self.name)).state

    def update(self, uncertainty: float, *, key: str | None = None) -> DriftState:
        """Take in the score of one question; see `DriftMonitor.update`.

        Args:
            uncertainty: The score.
            key: Names the question: a second update with the same key changes nothing.
        """
        with self._lock:
            try:
                with self._store.database.write() as connection:
                    row = _row(connection, self.name, lock=True)
                    monitor = self._caught_up(connection, row)
                    if key is not None and _seen(connection, self.name, key):
                        return monitor.state
                    self._heard.clear()
                    state = monitor.update(uncertainty)
                    step = {"key": key, "value": float(uncertainty), "chance": state.p_values[-1]}
                    alarm = self._write(connection, row, state, step, self._heard[0] if self._heard else None)
            except BaseException:
                self._local = None  # it may be ahead of the database: read it again
                raise
            self._tell(alarm, row.acknowledged)
            return state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict: ``Guardrail(on_verdict=drift.watch)``. One without a score is left out."""
        if verdict.uncertainty.value is not None:
            self.update(verdict.uncertainty.value)

    def _caught_up(self, connection: Connection, row: Any) -> DriftMonitor:
        """The monitor in memory, after what others wrote since."""
        if self._local is not None and self._local.state.n == row.n:
            return self._local
        own = () if self._local is None else self._local.state.stream
        seen = () if self._local is None else self._local.state.p_values
        found = connection.execute(_of(self.name).where(_steps.c.n > len(own), _steps.c.n <= row.n)).all()
        state = DriftState.model_validate_json(row.state).model_copy(
            update={
                "stream": (*own, *(step.value for step in found)),
                "p_values": (*seen, *(step.chance for step in found)),
            }
        )
        if (state.delta, state.seed) != self._settings:
            raise UsageError(
                f"monitor {self.name!r} has delta {state.delta} and seed {state.seed}; asked for "
                f"{self._settings[0]} and {self._settings[1]}. Ask for the same, or begin one under another name."
            )
        if self._local is None:
            on_alarm = self._heard.append
            self._local = DriftMonitor(self._artifact, delta=state.delta, on_alarm=on_alarm, state=state)
        else:
            self._local.follow(state)
        return self._local


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
        wanted = select(_monitors.c.name, _monitors.c.alarm)
        open_ones = wanted.where(_monitors.c.alarm.is_not(None), _monitors.c.acknowledged.is_(None))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(open_ones.order_by(_monitors.c.name)).all()
        except SQLAlchemyError as error:
            self._blind = f"The monitors cannot be read, so an alarm may be standing ({type(error).__name__})."
            return
        mine = [row for row in rows if self._names is None or row.name in self._names]
        self._found = tuple(Alarm.model_validate_json(row.alarm) for row in mine)
        self._blind = ""


def _row(connection: Connection, name: str, *, lock: bool = False) -> Any:
    found = select(_monitors).where(_monitors.c.name == name)
    return connection.execute(found.with_for_update() if lock else found).one_or_none()


def _risk_monitor(asked: RiskState, state: RiskState, on_alarm: Callable[[Alarm], object] | None = None) -> RiskMonitor:
    rate = asked.min_audit_rate
    return RiskMonitor(asked.alpha, delta=asked.delta, min_audit_rate=rate, on_alarm=on_alarm, state=state)


def _of(name: str) -> Any:
    return select(_steps).where(_steps.c.name == name).order_by(_steps.c.n)


def _seen(connection: Connection, name: str, key: str) -> bool:
    found = select(_steps.c.n).where(_steps.c.name == name, _steps.c.key == key)
    return connection.execute(found).first() is not None


def _dump(state: RiskState | DriftState) -> str:
    return state.model_dump_json(exclude=set(_IN_STEPS))


def _step(row: Any) -> Step:
    return Step(n=row.n, at=row.at, value=row.value, chance=row.chance, log_wealth=row.log_wealth)


def _view(row: Any) -> MonitorView:
    fields = json.loads(row.state)
    estimate = alpha = None
    if row.kind == "risk":
        state = RiskState.model_validate_json(row.state)
        alpha, estimate = state.alpha, _risk_monitor(state, state).interval()
    return MonitorView(
        name=row.name,
        kind=row.kind,
        n=row.n,
        delta=fields["delta"],
        log_wealth=fields["log_wealth"],
        alarm=None if row.alarm is None else Alarm.model_validate_json(row.alarm),
        acknowledged=row.acknowledged is not None,
        estimate=estimate,
        alpha=alpha,
    )


def _log(connection: Connection, at: float, who: str, what: str, detail: dict[str, Any]) -> None:
    line = {"item": "", "at": at, "who": who, "what": what, "detail": json.dumps(detail, ensure_ascii=False)}
    connection.execute(events.insert().values(**line))
