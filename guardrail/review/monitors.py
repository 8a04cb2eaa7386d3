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
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from langchain_core.messages import BaseMessage
from pydantic import ValidationError
from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..files import problem_of
from ..monitor import Alarm, CanaryMonitor, CanaryState, DriftMonitor, DriftState, RiskMonitor, RiskState, SafetySwitch
from ..monitor.base import BettingState, Keeper, Taking, parse_state
from ..monitor.risk import interval_of
from ..types import Frozen
from ..verdict import Verdict
from .errors import StoreUnavailableError
from .limits import LONGEST_KEY, LONGEST_NAME, check_text, passes, storable
from .store import ReviewStore
from .tables import LONGEST_MONITOR, SYSTEM, insert_into, log, monitors, steps

__all__ = ["MonitorStep", "MonitorView", "Monitors", "SharedDrift", "SharedSwitch"]

POINTS = 2_000
"""Largest number of points read of a history."""
_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 5.0
"""Limits of the time a thread waits for another thread that reads the database."""
_log = logging.getLogger("guardrail")
State = TypeVar("State", bound=BettingState)
_KINDS: dict[str, type[BettingState]] = {"risk": RiskState, "drift": DriftState, "canary": CanaryState}


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


class Row(Keeper[State]):
    """Keeps the state of a monitor in a row of the database, with its history and its alarm.

    Every update is one transaction. The stored alarm is that of the update that raised it.

    Args:
        store: The review store.
        name: Name of the monitor.
        kind: "risk", "drift" or "canary".
    """

    def __init__(self, store: ReviewStore, name: str, kind: str) -> None:
        check_text("a monitor's name", name, LONGEST_MONITOR)
        self._database, self._name, self._kind = store.database, name, kind
        self._warned = False

    def begin(self, start: State) -> State:
        """The state of the monitor of this name, which is started if the store does not have it.

        Raises:
            UsageError: The monitor of this name is of another kind.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            values = {"name": self._name, "kind": self._kind, "n": 0, "state": start.model_dump_json(), "created": now}
            connection.execute(
                insert_into(connection, monitors).values(**values).on_conflict_do_nothing(index_elements=["name"])
            )
            row = _fetch(connection, self._name)
        if row.kind != self._kind:
            raise UsageError(
                f"monitor {self._name!r} of this store is a {row.kind} monitor, not a {self._kind} monitor."
            )
        return self._state_of(row)

    def read(self) -> State:
        """The current state, with the updates of all processes."""
        return self._state_of(self._row())

    def alarm(self, alarm_of: Callable[[State], Alarm | None]) -> Alarm | None:
        """The stored alarm, if nobody has acknowledged it."""
        row = self._row()
        return _alarm_of(row) if row.acknowledged is None else None

    def change(
        self,
        take: Taking[State],
        key: str | None,
        within: float | None,
        alarm_of: Callable[[State], Alarm | None],
    ) -> State:
        """Bet with the state of all processes, and write it; with a key that the history has, change nothing."""
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        with self._database.write(within) as connection:
            row = _fetch(connection, self._name, lock=True)
            before = self._state_of(row)
            known = select(steps.c.n).where(steps.c.name == self._name, steps.c.key == key)
            if key is not None and connection.execute(known).first() is not None:
                return before
            after, bets = take(before)
            now, alarm = self._database.now(connection), alarm_of(after) if row.alarm is None else None
            stored = row.alarm if alarm is None else alarm.model_dump_json()
            changed = {"n": after.n, "state": after.model_dump_json(), "alarm": stored}
            connection.execute(update(monitors).where(monitors.c.name == self._name).values(**changed))
            common = {"name": self._name, "at": now, "key": key}
            lines = [{**common, "n": n, **bet._asdict()} for n, bet in enumerate(bets, start=before.n + 1)]
            if lines:
                connection.execute(insert(steps), lines)
            if alarm is not None:
                log(connection, "", now, SYSTEM, "alarm", {"name": self._name, **alarm.model_dump(mode="json")})
        if row.acknowledged is not None and not self._warned:
            self._warned = True
            _log.warning(
                "guardrail: the alarm of monitor %r was acknowledged, so it never alarms again and holds no answer "
                "back. Start a monitor under a new name.",
                self._name,
            )
        return after

    def _row(self) -> Any:
        with self._database.read() as connection:
            return _fetch(connection, self._name)

    def _state_of(self, row: Any) -> State:
        state: Any = _state_of(row)
        return state  # type: ignore[no-any-return]


class SharedDrift(DriftMonitor):
    """A `DriftMonitor` in a database, which many threads may feed at once. Made by `Monitors.drift`."""

    unwritten = 0
    """Number of scores that were not written, while ``on_watch_failure="pass"`` let the answers pass."""

    def __init__(
        self,
        store: ReviewStore,
        name: str,
        artifact: CalibrationArtifact,
        delta: float,
        seed: int,
        on_alarm: Callable[[Alarm], object] | None,
        on_watch_failure: Literal["hold", "pass"],
    ) -> None:
        self._pass, self._name, self._patience = passes(on_watch_failure), name, store.database.deadline
        self._waiting, self._turn = SimpleQueue[tuple[float, Future[None]]](), threading.Lock()
        keeper = Row[DriftState](store, name, "drift")
        super().__init__(artifact, delta=delta, seed=seed, on_alarm=on_alarm, keeper=keeper)

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, as `DriftMonitor.watch`: ``Guardrail(on_verdict=drift.watch)``.

        Raises:
            StoreUnavailableError: The score could not be written within the store's deadline, so that a guard holds the
                answer back; not under ``on_watch_failure="pass"``, where it is logged and counted.
        """
        score = self.score(verdict)
        if score is None:
            return
        try:
            self._write_together(score)
        except StoreUnavailableError as error:
            if not self._pass:
                raise
            self.unwritten += 1
            _log.error("guardrail: a score of monitor %r is not written: %s", self._name, error)

    def _write_together(self, score: float) -> None:
        """Write a score; the thread whose turn it is writes those of all threads that wait, with one commit."""
        end, mine = time.monotonic() + self._patience, Future[None]()
        self._waiting.put((score, mine))
        if not self._turn.acquire(timeout=self._patience):
            raise StoreUnavailableError(
                f"the review store did not take the scores before this one in {self._patience:g} s."
            )
        try:
            if not mine.done():
                together = [self._waiting.get() for _ in range(self._waiting.qsize())]
                self._write([score for score, _ in together], [future for _, future in together], end)
        finally:
            self._turn.release()
        mine.result()

    def _write(self, scores: Sequence[float], futures: Sequence[Future[None]], end: float) -> None:
        try:
            self._update(lambda state: self.take(state, *scores), within=max(0.0, end - time.monotonic()))
        except Exception as error:  # of each of these scores
            for future in futures:
                future.set_exception(error)
        else:
            for future in futures:
                future.set_result(None)


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
    ) -> RiskMonitor:
        """The `RiskMonitor` of this name, started if the store does not have it; use a new name for a new artifact.

        ``on_alarm`` is called once in this process when it learns of an alarm, at an update; immediately if there
        already is one.

        Raises:
            UsageError: The monitor of this name has other settings or another artifact.
        """
        settings: dict[str, Any] = {"delta": delta, "min_audit_rate": min_audit_rate, "artifact": artifact}
        return RiskMonitor(alpha, **settings, on_alarm=on_alarm, keeper=Row(self.store, name, "risk"))

    def known_risk(
        self, name: str, *, artifact: str | None = None, on_alarm: Callable[[Alarm], object] | None = None
    ) -> RiskMonitor | None:
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
        """The `DriftMonitor` of this name, started if the store does not have it; use a new name for a new artifact.

        ``on_watch_failure``: while the database does not take scores, `SharedDrift.watch` raises, so that guards hold
        accepted answers back ("hold"); or they pass, and are logged and counted in ``unwritten`` ("pass").

        Raises:
            UsageError: The monitor of this name has other settings or another artifact.
        """
        return SharedDrift(self.store, name, artifact, delta, seed, on_alarm, on_watch_failure)

    def canary(
        self,
        name: str,
        questions: int,
        *,
        delta: float = 0.05,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> CanaryMonitor:
        """The `CanaryMonitor` of this name, started if the store does not have it; use a new name for other questions.

        Raises:
            UsageError: The monitor of this name has another number of questions, or is of another kind.
        """
        return CanaryMonitor(questions, delta=delta, on_alarm=on_alarm, keeper=Row(self.store, name, "canary"))

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
        self._known: tuple[tuple[Alarm, ...], str] = ((), "")
        self._fresh_until = -math.inf

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms given to this object, and alarms in the database that nobody has acknowledged."""
        return (*self._alarms, *self._latest()[0])

    def objection(self, uncertainty: float | None) -> str | None:
        """Why an answer that the gate accepts may not pass; None if it may."""
        stored, problem = self._latest()
        alarms = (*self._alarms, *stored)
        if not problem and (not alarms or self._stricter(uncertainty)):
            return None
        return " ".join(filter(None, (alarms[-1].detail if alarms else "", problem)))

    def _latest(self) -> tuple[tuple[Alarm, ...], str]:
        """The known alarms, and why there may be others; read again if the last read is too old."""
        if time.monotonic() < self._fresh_until:
            return self._known
        if not self._reading.acquire(timeout=self._wait):
            return self._known[0], "The monitors are still being read, so there may be an alarm."
        try:
            if time.monotonic() >= self._fresh_until:  # the thread that this one waited for may have read them
                self._known = self._read()
                # Dated after the read, so that a database that is down is not asked every time.
                self._fresh_until = time.monotonic() + self._every
            return self._known
        finally:
            self._reading.release()

    def _read(self) -> tuple[tuple[Alarm, ...], str]:
        columns = monitors.c
        followed = select(columns.name, columns.alarm, columns.acknowledged).order_by(columns.name)
        open_alarm = columns.alarm.is_not(None) & columns.acknowledged.is_(None)
        followed = followed.where(open_alarm if self._names is None else columns.name.in_(self._names))
        try:
            with self._store.database.read() as connection:
                rows = connection.execute(followed).all()
            alarms = tuple(filter(None, (_alarm_of(row) for row in rows if row.acknowledged is None)))
        except (SQLAlchemyError, StoreUnavailableError) as error:
            why = f"The monitors cannot be read, so there may be an alarm ({type(error).__name__})."
            return self._known[0], why
        except UsageError as error:
            return self._known[0], f"There may be an alarm: {error}"
        missing = ", ".join(map(repr, sorted(set(self._names or ()) - {row.name for row in rows})))
        problem = (
            f"The switch follows {missing}, but the review store has no such monitor, so nothing is watched. Start it "
            "(Monitors.risk or Monitors.drift), or correct Monitors.switch(names=...)."
        )
        return alarms, problem if missing else ""


def _fetch(connection: Connection, name: str, *, lock: bool = False) -> Any:
    """The row of a monitor, or None; with ``lock`` nobody else can write it before the transaction ends."""
    if not storable(name):
        return None
    query = select(monitors).where(monitors.c.name == name)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def _state_of(row: Any) -> BettingState:
    """The state in a row.

    Raises:
        UsageError: It cannot be read, or another version wrote it; the message names the monitor.
    """
    if row.kind not in _KINDS:
        raise UsageError(
            f"monitor {row.name!r} of the review store is of the kind {row.kind!r}; this version of acrc-guardrail "
            f"knows {', '.join(_KINDS)}. Upgrade acrc-guardrail to the version that wrote it."
        )
    return parse_state(row.state, _KINDS[row.kind], f"monitor {row.name!r} of the review store")


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
    risk = state if isinstance(state, RiskState) else None
    return MonitorView(
        name=row.name,
        kind=row.kind,
        n=row.n,
        delta=state.delta,
        log_wealth=state.log_wealth,
        alarm=_alarm_of(row),
        acknowledged=row.acknowledged is not None,
        estimate=None if risk is None else interval_of(risk.tallies, risk.min_audit_rate),
        alpha=None if risk is None else risk.alpha,
    )
