"""Monitors in the review store's database: shared by processes, safe against restarts and kills.

    monitors = Monitors(store)
    drift = monitors.drift("drift", artifact)
    guard = Guardrail(..., on_verdict=[monitors.switch(), drift.watch, audit_sample(store, rate=0.1)])

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
from typing import Any, Generic, TypeVar, cast

from langchain_core.messages import BaseMessage
from sqlalchemy import insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from ..artifact import CalibrationArtifact
from ..describe import CALLS, nouns_of
from ..errors import UsageError
from ..guard.observers import SafetySwitch
from ..monitor import Alarm, CanaryState, Drift, DriftState, RiskState
from ..monitor.state import Bet, BettingState
from ..types import Frozen
from ..verdict import Verdict
from .database import SYSTEM, Transaction
from .errors import StoreUnavailableError
from .limits import LONGEST_KEY, LONGEST_NAME, check_text, storable
from .store import ReviewStore
from .tables import LONGEST_MONITOR, monitors, steps

__all__ = ["CanaryMonitor", "DriftMonitor", "MonitorStep", "MonitorView", "Monitors", "RiskMonitor", "SharedSwitch"]

POINTS = 400
"""Largest number of points read of a history."""
_log = logging.getLogger("guardrail")
State = TypeVar("State", bound=BettingState)
_KINDS: dict[str, type[BettingState]] = {kind.kind: kind for kind in (RiskState, DriftState, CanaryState)}


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
    """A monitor for display."""

    name: str
    """Its name."""
    state: BettingState
    """Its state: a `RiskState`, `DriftState` or `CanaryState`."""
    acknowledged: bool
    """Whether a person has acknowledged its alarm."""


class _Monitor(Generic[State]):
    """A monitor in a row of the database, with its history. Safe under threads and processes.

    Args:
        store: The review store.
        name: Name of the monitor; the row is made if it is missing.
        start: The state before the first update.

    Raises:
        UsageError: The monitor of this name is of another kind, or has other settings.
    """

    def __init__(self, store: ReviewStore, name: str, start: State) -> None:
        check_text("a monitor's name", name, LONGEST_MONITOR)
        self._database, self._name, self._warned = store.database, name, False
        with self._database.write() as transaction:
            values = {"name": name, "kind": start.kind, "n": 0, "state": start.model_dump_json()}
            new = transaction.insert(monitors).values(**values, created=transaction.now)
            transaction.execute(new.on_conflict_do_nothing(index_elements=["name"]))
            known = _state_of(_fetch(transaction, name))
        if known.kind != start.kind:
            raise UsageError(f"monitor {name!r} of this store is a {known.kind} monitor, not a {start.kind} monitor.")
        for field in start.SETTINGS:
            ours, theirs = getattr(start, field), getattr(known, field)
            if ours != theirs:
                raise UsageError(
                    f"monitor {name!r} of this store has {field} {theirs}, not {ours}. Give the same, or start a new "
                    "monitor under a new name."
                )

    @property
    def state(self) -> State:
        """The current state, with the updates of all processes."""
        return cast(State, _state_of(self._row()))

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one and nobody has acknowledged it."""
        row = self._row()
        return _state_of(row).alarm if row.acknowledged is None else None

    def _row(self) -> Any:
        with self._database.read() as transaction:
            return _fetch(transaction, self._name)

    def _update(
        self, take: Callable[[State], tuple[State, list[Bet]]], key: str | None = None, within: float | None = None
    ) -> State:
        """Bet with the state of all processes, and write it; with a key that the history has, change nothing.

        Args:
            take: The state after some bets, from the state before them, and these bets.
            key: Names the update; None for an update that cannot come twice.
            within: Seconds it may take; default: the store's deadline.
        """
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        with self._database.write(within) as transaction:
            row = _fetch(transaction, self._name, lock=True)
            before = cast(State, _state_of(row))
            known = select(steps.c.n).where(steps.c.name == self._name, steps.c.key == key)
            if key is not None and transaction.execute(known).first() is not None:
                return before
            after, bets = take(before)
            changed: dict[str, Any] = {"n": after.n, "state": after.model_dump_json()}
            if before.alarm is None and after.alarm is not None:
                changed["alarmed"] = transaction.now
                transaction.log(SYSTEM, "alarm", {"name": self._name, **after.alarm.numbers})
            transaction.execute(update(monitors).where(monitors.c.name == self._name).values(**changed))
            common = {"name": self._name, "at": transaction.now, "key": key}
            lines = [{**common, "n": n, **bet._asdict()} for n, bet in enumerate(bets, start=before.n + 1)]
            if lines:
                transaction.execute(insert(steps), lines)
        if row.acknowledged is not None and not self._warned:
            self._warned = True
            _log.warning(
                "guardrail: the alarm of monitor %r was acknowledged, so it never alarms again and holds no answer "
                "back. Start a monitor under a new name.",
                self._name,
            )
        return after


class RiskMonitor(_Monitor[RiskState]):
    """Tests the error rate among accepted answers on audits; see `RiskState`. Made by `Monitors.risk`."""

    def update(self, error: bool, *, audit_rate: float | None = None, key: str | None = None) -> RiskState:
        """Take in one audited accepted answer; see `RiskState.take`. A second update with the same key does nothing."""
        return self._update(lambda state: state.take(error, audit_rate), key)


class CanaryMonitor(_Monitor[CanaryState]):
    """Compares known questions with their own first rounds; see `CanaryState`. Made by `Monitors.canary`."""

    def update(self, scores: Sequence[float | None]) -> CanaryState:
        """Take in a round: the score of each question, None where it was not measured."""
        return self._update(lambda state: state.take(scores))


class DriftMonitor(_Monitor[DriftState]):
    """Tests whether scores are like those of the calibration; see `Drift`. Made by `Monitors.drift`.

    Many threads may feed it at once.
    """

    needs_scores = True
    """A guard has it admit its artifact, and shows it each verdict once."""

    def __init__(self, store: ReviewStore, name: str, test: Drift) -> None:
        self._test, self._patience = test, store.database.deadline
        self._waiting, self._turn = SimpleQueue[tuple[float, Future[None]]](), threading.Lock()
        self.admit = test.admit
        super().__init__(store, name, test.start)

    def update(self, uncertainty: float, *, key: str | None = None) -> DriftState:
        """Take in the score of one question, accepted or not. A second update with the same key does nothing.

        Raises:
            UsageError: The score is not finite. Leave out questions that could not be measured, and count them.
        """
        return self._update(lambda state: self._test.take(state, uncertainty), key)

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, accepted or not: ``Guardrail(on_verdict=drift.watch)``.

        `Drift.score` says which verdicts are left out.

        Raises:
            StoreUnavailableError: The score could not be written within the store's deadline, so that a guard holds the
                answer back.
        """
        score = self._test.score(verdict)
        if score is not None:
            self._write_together(score)

    def _write_together(self, score: float) -> None:
        """Write a score; the thread whose turn it is writes those of all threads that wait, with one commit."""
        end = time.monotonic() + self._patience
        mine: Future[None] = Future()
        self._waiting.put((score, mine))
        if not self._turn.acquire(timeout=self._patience):
            raise StoreUnavailableError(
                f"the review store did not take the scores before this one in {self._patience:g} s."
            )
        try:
            if not mine.done():
                together = [self._waiting.get() for _ in range(self._waiting.qsize())]
                self._write(together, max(0.0, end - time.monotonic()))
        finally:
            self._turn.release()
        mine.result()

    def _write(self, together: Sequence[tuple[float, Future[None]]], seconds: float) -> None:
        scores = [score for score, _ in together]
        try:
            self._update(lambda state: self._test.take(state, *scores), within=seconds)
        except Exception as error:  # of each of these scores
            for _, future in together:
                future.set_exception(error)
        else:
            for _, future in together:
                future.set_result(None)


class Monitors:
    """The monitors of a review store. Safe under threads and processes.

    A monitor is started when it is first named, and keeps its settings. `risk`, `drift` and `canary` raise `UsageError`
    if the monitor of this name has others, another artifact or another kind.

    Args:
        store: Its database holds the monitors.
    """

    def __init__(self, store: ReviewStore) -> None:
        self.store = store

    def risk(
        self,
        name: str,
        artifact: CalibrationArtifact,
        *,
        alpha: float | None = None,
        delta: float = 0.05,
        min_audit_rate: float = 1.0,
    ) -> RiskMonitor:
        """The `RiskMonitor` of this name.

        Args:
            name: Its name.
            artifact: The artifact whose accepted answers are audited.
            alpha: The error rate to test; default: that of the artifact.
            delta: Probability of ever raising a false alarm, in (0, 1).
            min_audit_rate: Smallest audit probability that will occur, in (0, 1].
        """
        tested, calls = artifact.alpha if alpha is None else alpha, nouns_of(artifact) is CALLS
        start = RiskState.start(artifact.digest, tested, delta, min_audit_rate, calls=calls)
        return RiskMonitor(self.store, name, start)

    def known_risk(self, name: str, artifact: CalibrationArtifact) -> RiskMonitor | None:
        """The `RiskMonitor` of this name with the audit rate and delta it was started with, or None."""
        with self.store.database.read() as transaction:
            row = _fetch(transaction, name)
        state = None if row is None else _state_of(row)
        if not isinstance(state, RiskState):
            return None
        return self.risk(name, artifact, delta=state.delta, min_audit_rate=state.min_audit_rate)

    def drift(self, name: str, artifact: CalibrationArtifact, *, delta: float = 0.05, seed: int = 0) -> DriftMonitor:
        """The `DriftMonitor` of this name; ``delta`` and ``seed`` as in `Drift`."""
        return DriftMonitor(self.store, name, Drift(artifact, delta=delta, seed=seed))

    def canary(self, name: str, questions: int, *, delta: float = 0.05) -> CanaryMonitor:
        """The `CanaryMonitor` of this name, for a number of questions."""
        return CanaryMonitor(self.store, name, CanaryState.start(questions, delta=delta))

    def switch(self, *, names: str | Sequence[str] | None = None, every: float = 5.0) -> SharedSwitch:
        """A switch that follows alarms in the database, whichever process raised them.

        Args:
            names: One or more monitors to follow; default: all of the store. Nothing is accepted while one of them is
                missing from the store.
            every: Seconds after which the database is read again.

        Raises:
            UsageError: An invalid name, or an empty list of names.
        """
        named = (names,) if isinstance(names, str) else None if names is None else tuple(names)
        if named == ():
            raise UsageError(
                "names must have at least one monitor, got none. Leave names out to follow all monitors of the store."
            )
        for name in named or ():
            check_text("a monitor's name", name, LONGEST_MONITOR)
        return SharedSwitch(self.store, named, every)

    def acknowledge(self, name: str, *, who: str) -> None:
        """Acknowledge an alarm: switches let answers pass again. The audit trail records it.

        The monitor stays alarmed. Start a new one under another name to go on watching.

        Raises:
            UsageError: The store has no monitor of this name, or the monitor has no alarm.
        """
        check_text("who", who, LONGEST_NAME)
        with self.store.database.write() as transaction:
            row = _fetch(transaction, name)
            if row is None or row.alarmed is None:
                raise UsageError(f"no monitor {name!r} with an alarm in this store.")
            seen = update(monitors).where(monitors.c.name == name).values(acknowledged=transaction.now)
            transaction.execute(seen)
            transaction.log(who, "alarm_acknowledged", {"monitor": name})

    def all(self) -> list[MonitorView]:
        """Every monitor, alarms first, then by name."""
        with self.store.database.read() as transaction:
            rows = transaction.execute(select(monitors).order_by(monitors.c.name)).all()
        views = [MonitorView(name=r.name, state=_state_of(r), acknowledged=r.acknowledged is not None) for r in rows]
        return sorted(views, key=lambda view: view.state.alarm is None or view.acknowledged)

    def history(self, name: str, *, most: int = POINTS) -> list[MonitorStep]:
        """The updates of a monitor in order; a long history is thinned evenly and keeps the last update."""
        with self.store.database.read() as transaction:
            row = _fetch(transaction, name)
            if row is None:
                return []
            every = max(1, -(-row.n // most))
            shown = (steps.c.n % every == 0) | (steps.c.n == row.n)
            query = select(*(steps.c[field] for field in MonitorStep.model_fields)).where(steps.c.name == name, shown)
            return [MonitorStep(**row._mapping) for row in transaction.execute(query.order_by(steps.c.n))]


class SharedSwitch(SafetySwitch):
    """A switch that follows the alarms of a database. Made by `Monitors.switch`.

    Nothing is accepted while an alarm may be unknown: while the database cannot be read, or a monitor in ``names`` does
    not exist. `Monitors.acknowledge` clears an alarm. `hold` and `release` are about this object alone.
    """

    def __init__(self, store: ReviewStore, names: tuple[str, ...] | None, every: float) -> None:
        super().__init__()
        self._store, self._names, self._every = store, names, every
        self._known: tuple[Alarm | None, str] = (None, "")
        self._began = self._fresh_until = -math.inf
        self._lock = threading.Lock()

    def objection(self) -> str | None:
        """Why an answer that the gate accepts may not pass; None if it may."""
        alarm, problem = self._latest()
        why = " ".join(filter(None, (self._why, alarm.detail if alarm else None, problem)))
        return why or None

    def _latest(self) -> tuple[Alarm | None, str]:
        """A known alarm, and why there may be others; read again if the last read is too old."""
        began = time.monotonic()
        if began < self._fresh_until:
            return self._known
        known = self._read()
        with self._lock:
            if began >= self._began:  # otherwise another thread, which began later, has seen more
                # Dated after the read, so that a database that is down is not asked every time.
                self._known = known
                self._began = began
                self._fresh_until = time.monotonic() + self._every  # last: other threads read it without the lock
        return known

    def _read(self) -> tuple[Alarm | None, str]:
        row = monitors.c
        alarmed = row.alarmed.is_not(None) & row.acknowledged.is_(None)
        followed = select(monitors).where(alarmed if self._names is None else row.name.in_(self._names))
        try:
            with self._store.database.read() as transaction:
                rows = transaction.execute(followed.order_by(row.name)).all()
            alarms = [state.alarm for row in rows if row.acknowledged is None and (state := _state_of(row)).alarm]
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
        return alarms[-1] if alarms else None, problem if missing else ""


def _fetch(transaction: Transaction, name: str, *, lock: bool = False) -> Any:
    """The row of a monitor, or None; with ``lock`` nobody else can write it before the transaction ends."""
    if not storable(name):
        return None
    query = select(monitors).where(monitors.c.name == name)
    return transaction.execute(query.with_for_update() if lock else query).one_or_none()


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
    return _KINDS[row.kind].read(row.state, f"monitor {row.name!r} of the review store")
