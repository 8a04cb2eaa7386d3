"""Monitors whose state lives in the review store's database: shared by processes, safe against restarts and kills.

    monitors = Monitors(store)
    switch = monitors.switch()
    drift = monitors.drift("drift", artifact)
    guard = Guardrail(..., switch=switch, on_verdict=[drift.watch, audit_sample(store, rate=0.1)])

Every update is one transaction: it locks the row, bets, and writes row, history and alarm. A process that is killed at
any instruction leaves all of that or nothing. An alarm is also a line of the audit trail.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from langchain_core.messages import BaseMessage
from pydantic import ValidationError
from sqlalchemy import insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..files import problem_of
from ..monitor import Alarm, CanaryMonitor, CanaryState, DriftMonitor, DriftState, RiskMonitor, RiskState, SafetySwitch
from ..monitor.base import Bet, Monitor, parse_state
from ..types import Frozen
from ..verdict import Verdict
from .errors import StoreUnavailableError
from .limits import LONGEST_KEY, LONGEST_NAME, check_text, passes, storable
from .store import ReviewStore
from .tables import LONGEST_MONITOR, SYSTEM, log, monitors, steps

__all__ = ["MonitorStep", "MonitorView", "Monitors", "SharedCanary", "SharedDrift", "SharedRisk", "SharedSwitch"]

POINTS = 2_000
"""Largest number of points read of a history."""
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 5.0
"""Limits of the time a thread waits for another thread that reads the database."""
_log = logging.getLogger("guardrail")
M = TypeVar("M", bound=Monitor[Any])
_STATES: dict[str, type[RiskState | DriftState | CanaryState]] = {
    "risk": RiskState,
    "drift": DriftState,
    "canary": CanaryState,
}


class MonitorStep(Frozen):
    """One update of a monitor."""

    n: int
    """Its number, from 1."""
    at: float
    """When, in seconds since 1970 UTC."""
    value: float
    """Drift, canary: the score. Risk: 1 for a wrong answer, 0 for a right one."""
    chance: float
    """Drift, canary: the p-value. Risk: the probability with which the answer was audited."""
    log_wealth: float
    """Natural logarithm of the betting wealth after it."""


class MonitorView(Frozen):
    """Summary of a monitor for display."""

    name: str
    """Its name."""
    kind: Literal["risk", "drift", "canary"]
    """Subject of its test: the error rate of answers, the drift of scores, or that of the scores of known questions."""
    n: int
    """Updates so far."""
    delta: float
    """Probability of ever raising a false alarm; the alarm line is ln(1/delta)."""
    log_wealth: float
    """Natural logarithm of the betting wealth now."""
    alarm: Alarm | None
    """Its alarm, or None."""
    acknowledged: bool
    """Whether a person has acknowledged the alarm."""
    estimate: tuple[float, float, float] | None
    """Risk: error rate among accepted answers with a 95 % confidence sequence."""
    alpha: float | None
    """Risk: the promised error rate."""


class _Shared(Generic[M]):
    """A monitor in a database: one transaction for each update, and one report of an alarm for each process."""

    def __init__(
        self, store: ReviewStore, name: str, kind: str, fresh: M, on_alarm: Callable[[Alarm], object] | None
    ) -> None:
        check_text("a monitor's name", name, LONGEST_MONITOR)
        self.name = name
        self._store, self._fresh, self._on_alarm = store, fresh, on_alarm
        self._reported = self._warned = False
        self._lock = threading.Lock()
        with store.database.write() as connection:
            now = store.database.now(connection)
            new = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(monitors)
            values = {"name": name, "kind": kind, "n": 0, "state": fresh.state.model_dump_json(), "created": now}
            connection.execute(new.values(**values).on_conflict_do_nothing(index_elements=["name"]))
            row = _fetch(connection, name)
        if row.kind != kind:
            raise UsageError(f"monitor {name!r} of this store is a {row.kind} monitor, not a {kind} monitor.")
        self._monitor(row)  # refuses different settings
        self._report(_alarm_of(row), row.acknowledged)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if one was raised and nobody has acknowledged it."""
        row = self._row()
        return _alarm_of(row) if row.acknowledged is None else None

    def _row(self) -> Any:
        with self._store.database.read() as connection:
            return _fetch(connection, self.name)

    def _monitor(self, row: Any) -> M:
        return self._fresh.at(_state_of(row))

    def _update(self, take: Callable[[M], Sequence[Bet]], key: str | None = None, within: float | None = None) -> M:
        """Bet with the state of all processes, and write it; with a key that the history has, change nothing."""
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        with self._lock:
            with self._store.database.write(within) as connection:
                row = _fetch(connection, self.name, lock=True)
                monitor = self._monitor(row)
                known = select(steps.c.n).where(steps.c.name == self.name, steps.c.key == key)
                if key is not None and connection.execute(known).first() is not None:
                    return monitor
                before, bets = monitor.state.n, take(monitor)
                alarm = self._write(connection, row, monitor, before, bets, key)
            if row.acknowledged is not None and not self._warned:
                self._warned = True
                _log.warning(
                    "guardrail: the alarm of monitor %r was acknowledged, so it never alarms again and holds no answer "
                    "back. Start a monitor under a new name.",
                    self.name,
                )
            self._report(alarm, row.acknowledged)
            return monitor

    def _write(
        self, connection: Connection, row: Any, monitor: M, before: int, bets: Sequence[Bet], key: str | None
    ) -> Alarm | None:
        """Write state, history and a new alarm; the alarm, new or old."""
        now, state = self._store.database.now(connection), monitor.state
        alarm = monitor.alarm if row.alarm is None else None
        stored = row.alarm if alarm is None else alarm.model_dump_json()
        changed = {"n": state.n, "state": state.model_dump_json(), "alarm": stored}
        connection.execute(update(monitors).where(monitors.c.name == self.name).values(**changed))
        common = {"name": self.name, "at": now, "key": key}
        lines = [{**common, "n": n, **bet._asdict()} for n, bet in enumerate(bets, start=before + 1)]
        if lines:
            connection.execute(insert(steps), lines)
        if alarm is not None:
            log(connection, "", now, SYSTEM, "alarm", {"name": self.name, **alarm.model_dump(mode="json")})
        return alarm or _alarm_of(row)

    def _report(self, alarm: Alarm | None, acknowledged: float | None) -> None:
        if alarm is None or self._reported:
            return
        if acknowledged is None and self._on_alarm is not None:
            self._on_alarm(alarm)
        self._reported = True  # not if it raised: it is called again at the next update


class SharedRisk(_Shared[RiskMonitor]):
    """A `RiskMonitor` in a database. Made by `Monitors.risk`."""

    @property
    def state(self) -> RiskState:
        """The current state, with the updates of all processes."""
        return self._monitor(self._row()).state

    def update(self, error: bool, *, audit_rate: float | None = None, key: str | None = None) -> RiskState:
        """Take in one audited accepted answer; see `RiskMonitor.update`.

        Args:
            error: Whether it was wrong.
            audit_rate: Probability with which it was chosen for audit.
            key: Names the answer, at most 512 characters; a second update with the same key changes nothing.
        """
        return self._update(lambda monitor: monitor.take(error, audit_rate), key).state

    def interval(self, level: float = 0.95) -> tuple[float, float, float] | None:
        """See `RiskMonitor.interval`."""
        return self._monitor(self._row()).interval(level)


class SharedCanary(_Shared[CanaryMonitor]):
    """A `CanaryMonitor` in a database. Made by `Monitors.canary`."""

    @property
    def state(self) -> CanaryState:
        """The current state, with the rounds of all processes."""
        return self._monitor(self._row()).state

    def update(self, scores: Sequence[float | None]) -> CanaryState:
        """Take in a round; see `CanaryMonitor.update`."""
        return self._update(lambda monitor: monitor.take(scores)).state


@dataclass(slots=True)
class _Watched:
    """A score that a guard has measured: whether it was written, or why not."""

    score: float
    written: bool = False
    problem: Exception | None = None


class SharedDrift(_Shared[DriftMonitor]):
    """A `DriftMonitor` in a database. Made by `Monitors.drift`."""

    needs_scores = True

    def __init__(
        self,
        store: ReviewStore,
        name: str,
        fresh: DriftMonitor,
        on_alarm: Callable[[Alarm], object] | None,
        on_watch_failure: Literal["hold", "pass"] = "hold",
    ) -> None:
        self.unwritten = 0
        """Number of scores that were not written, while ``on_watch_failure="pass"`` let the answers pass."""
        self._pass = passes(on_watch_failure)
        self._waiting, self._turn = deque[_Watched](), threading.Lock()
        super().__init__(store, name, "drift", fresh, on_alarm)

    @property
    def state(self) -> DriftState:
        """The current state, with the updates of all processes."""
        return self._monitor(self._row()).state

    def update(self, uncertainty: float, *, key: str | None = None) -> DriftState:
        """Take in the score of one question; see `DriftMonitor.update`.

        Args:
            uncertainty: The score.
            key: Names the question, at most 512 characters; a second update with the same key changes nothing.
        """
        return self._update(lambda monitor: monitor.take(uncertainty), key).state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, as `DriftMonitor.watch`: ``Guardrail(on_verdict=drift.watch)``.

        Raises:
            StoreUnavailableError: The score could not be written within the store's deadline, so that a guard holds the
                answer back; not under ``on_watch_failure="pass"``, where it is logged and counted.
        """
        score = self._fresh.score(verdict)
        if score is None:
            return
        try:
            self._write_together(_Watched(score))
        except StoreUnavailableError as error:
            if not self._pass:
                raise
            self.unwritten += 1
            _log.error("guardrail: a score of monitor %r is not written: %s", self.name, error)

    def _write_together(self, mine: _Watched) -> None:
        """Write a score; the thread whose turn it is writes those of all threads that wait, with one commit."""
        deadline = self._store.database.deadline
        end = time.monotonic() + deadline
        self._waiting.append(mine)
        if not self._turn.acquire(timeout=deadline):
            raise StoreUnavailableError(f"the review store did not take the scores before this one in {deadline:g} s.")
        try:
            if not (mine.written or mine.problem):
                together = [self._waiting.popleft() for _ in range(len(self._waiting))]

                def take(monitor: DriftMonitor) -> list[Bet]:
                    return [bet for watched in together for bet in monitor.take(watched.score)]

                try:
                    self._update(take, within=max(0.0, end - time.monotonic()))
                except Exception as error:  # of each of these scores
                    for watched in together:
                        watched.problem = error
                for watched in together:
                    watched.written = watched.problem is None
        finally:
            self._turn.release()
        if mine.problem is not None:
            raise mine.problem

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Accept a guard of this artifact or refuse it, as `DriftMonitor.admit`."""
        self._fresh.admit(artifact)


class Monitors:
    """The monitors of a review store. Safe under threads and processes.

    Args:
        store: Its database holds the monitors.
    """

    def __init__(self, store: ReviewStore) -> None:
        self.store = store

    def risk(
        self,
        name: str,
        alpha: float,
        *,
        delta: float = 0.05,
        min_audit_rate: float = 1.0,
        artifact: str | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> SharedRisk:
        """The `RiskMonitor` of this name, started if the store does not have it.

        Args:
            name: Its name in this store; use a new one for a new artifact.
            alpha: Promised error rate among accepted answers.
            delta: Probability of ever raising a false alarm.
            min_audit_rate: Smallest audit probability that will occur.
            artifact: Digest of the artifact that accepts the answers; see `RiskMonitor`.
            on_alarm: Called once in this process when it learns of an alarm, at an update; immediately if there already
                is one.

        Raises:
            UsageError: The monitor of this name has other settings or another artifact.
        """
        fresh = RiskMonitor(alpha, delta=delta, min_audit_rate=min_audit_rate, artifact=artifact)
        return SharedRisk(self.store, name, "risk", fresh, on_alarm)

    def known_risk(
        self, name: str, *, artifact: str | None = None, on_alarm: Callable[[Alarm], object] | None = None
    ) -> SharedRisk | None:
        """The `RiskMonitor` of this name with the settings it was started with, or None.

        Raises:
            UsageError: It audits another artifact.
        """
        with self.store.database.read() as connection:
            row = _fetch(connection, name)
        state = None if row is None else _state_of(row)
        if not isinstance(state, RiskState):
            return None
        return self.risk(
            name,
            state.alpha,
            delta=state.delta,
            min_audit_rate=state.min_audit_rate,
            artifact=artifact or state.artifact,
            on_alarm=on_alarm,
        )

    def drift(
        self,
        name: str,
        artifact: CalibrationArtifact,
        *,
        delta: float = 0.05,
        seed: int = 0,
        on_alarm: Callable[[Alarm], object] | None = None,
        on_watch_failure: Literal["hold", "pass"] = "hold",
    ) -> SharedDrift:
        """The `DriftMonitor` of this name, started if the store does not have it.

        Args:
            name: Its name in this store; use a new one for a new artifact.
            artifact: Its stored calibration scores are the reference.
            delta: Probability of ever raising a false alarm.
            seed: As in `DriftMonitor`.
            on_alarm: As in `risk`.
            on_watch_failure: While the database does not take scores, `SharedDrift.watch` raises, so that guards hold
                accepted answers back ("hold"); or they pass, and are logged and counted in ``unwritten`` ("pass").

        Raises:
            UsageError: The monitor of this name has other settings or another artifact.
        """
        return SharedDrift(self.store, name, DriftMonitor(artifact, delta=delta, seed=seed), on_alarm, on_watch_failure)

    def canary(
        self,
        name: str,
        questions: int,
        *,
        delta: float = 0.05,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> SharedCanary:
        """The `CanaryMonitor` of this name, started if the store does not have it.

        Args:
            name: Its name in this store; use a new one for a new artifact or other questions.
            questions: Number of its questions.
            delta: Probability of ever raising a false alarm; that of a monitor in the store does not change.
            on_alarm: As in `risk`.

        Raises:
            UsageError: The monitor of this name has another number of questions, or is of another kind.
        """
        return SharedCanary(self.store, name, "canary", CanaryMonitor(questions, delta=delta), on_alarm)

    def switch(
        self,
        then: Literal["abstain", "stricter"] = "abstain",
        *,
        threshold: float | None = None,
        names: str | Sequence[str] | None = None,
        every: float = 5.0,
    ) -> SharedSwitch:
        """A switch that follows alarms in the database, whichever process raised them.

        Args:
            then: As in `SafetySwitch`.
            threshold: As in `SafetySwitch`.
            names: One or more monitors to follow; default: all of the store. Nothing is accepted while one of them is
                missing from the store.
            every: Seconds after which the database is read again.

        Raises:
            UsageError: As `SafetySwitch`; also for an invalid name or an empty list of names.
        """
        named = (names,) if isinstance(names, str) else None if names is None else tuple(names)
        if named == ():
            raise UsageError(
                "names must have at least one monitor, got none. Leave names out to follow all monitors of the store."
            )
        for name in named or ():
            check_text("a monitor's name", name, LONGEST_MONITOR)
        return SharedSwitch(self.store, then, threshold, named, every)

    def acknowledge(self, name: str, *, who: str) -> None:
        """Acknowledge an alarm: switches let answers pass again. The audit trail records it.

        The monitor stays alarmed. Start a new one under another name to go on watching.

        Raises:
            UsageError: The store has no monitor of this name, or the monitor has no alarm.
        """
        check_text("who", who, LONGEST_NAME)
        with self.store.database.write() as connection:
            row = _fetch(connection, name)
            if row is None or row.alarm is None:
                raise UsageError(f"no monitor {name!r} with an alarm in this store.")
            now = self.store.database.now(connection)
            connection.execute(update(monitors).where(monitors.c.name == name).values(acknowledged=now))
            log(connection, "", now, who, "alarm_acknowledged", {"monitor": name})

    def all(self) -> list[MonitorView]:
        """Every monitor, alarms first, then by name."""
        with self.store.database.read() as connection:
            rows = connection.execute(select(monitors).order_by(monitors.c.name)).all()
        return sorted((_view(row) for row in rows), key=lambda view: view.alarm is None or view.acknowledged)

    def history(self, name: str, *, most: int = POINTS) -> list[MonitorStep]:
        """The updates of a monitor in order; a long history is thinned evenly and keeps the last update."""
        with self.store.database.read() as connection:
            row = _fetch(connection, name)
            if row is None:
                return []
            every = max(1, -(-row.n // most))
            shown = (steps.c.n % every == 0) | (steps.c.n == row.n)
            query = select(*(steps.c[field] for field in MonitorStep.model_fields)).where(steps.c.name == name, shown)
            return [MonitorStep(**row._mapping) for row in connection.execute(query.order_by(steps.c.n))]


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

    Nothing is accepted while an alarm may be unknown: while the database cannot be read, or a monitor in ``names`` does
    not exist. One thread reads; others wait for it, at most ``every`` seconds (1 to 5), and then accept nothing.
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
        began, columns = time.monotonic(), monitors.c
        followed = select(columns.name, columns.alarm, columns.acknowledged).order_by(columns.name)
        open_alarm = columns.alarm.is_not(None) & columns.acknowledged.is_(None)
        followed = followed.where(open_alarm if self._names is None else columns.name.in_(self._names))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(followed).all()
            alarms = [_alarm_of(row) for row in rows if row.acknowledged is None]
        except (SQLAlchemyError, StoreUnavailableError) as error:
            return self._failed(f"The monitors cannot be read, so there may be an alarm ({type(error).__name__}).")
        except UsageError as error:
            return self._failed(f"There may be an alarm: {error}")
        missing = ", ".join(map(repr, sorted(set(self._names or ()) - {row.name for row in rows})))
        problem = (
            f"The switch follows {missing}, but the review store has no such monitor, so nothing is watched. Start it "
            "(Monitors.risk or Monitors.drift), or correct Monitors.switch(names=...)."
        )
        return _SwitchState(began, tuple(alarm for alarm in alarms if alarm is not None), problem if missing else "")


def _fetch(connection: Connection, name: str, *, lock: bool = False) -> Any:
    """The row of a monitor, or None; with ``lock`` nobody else can write it before the transaction ends."""
    if not storable(name):
        return None
    query = select(monitors).where(monitors.c.name == name)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def _state_of(row: Any) -> RiskState | DriftState | CanaryState:
    """The state in a row.

    Raises:
        UsageError: It cannot be read, or another version wrote it; the message names the monitor.
    """
    if row.kind not in _STATES:
        raise UsageError(
            f"monitor {row.name!r} of the review store is of the kind {row.kind!r}; this version of acrc-guardrail "
            f"knows {', '.join(_STATES)}. Upgrade acrc-guardrail to the version that wrote it."
        )
    return parse_state(row.state, _STATES[row.kind], f"monitor {row.name!r} of the review store")


def _alarm_of(row: Any) -> Alarm | None:
    """The alarm in a monitor's row, or None.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return None if row.alarm is None else Alarm.from_stored(row.alarm)
    except ValidationError as error:
        raise UsageError(
            f"the alarm of monitor {row.name!r} of the review store cannot be read ({problem_of(error)}). Upgrade "
            "acrc-guardrail to the version that wrote it, or start a new monitor."
        ) from error


def _view(row: Any) -> MonitorView:
    state = _state_of(row)
    estimate = alpha = None
    if isinstance(state, RiskState):
        alpha = state.alpha
        estimate = RiskMonitor(alpha, delta=state.delta, min_audit_rate=state.min_audit_rate, state=state).interval()
    return MonitorView(
        name=row.name,
        kind=row.kind,
        n=row.n,
        delta=state.delta,
        log_wealth=state.log_wealth,
        alarm=_alarm_of(row),
        acknowledged=row.acknowledged is not None,
        estimate=estimate,
        alpha=alpha,
    )
