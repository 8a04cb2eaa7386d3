"""Monitors in a database: each update is one transaction, and each process reports an alarm once."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from sqlalchemy.dialects import postgresql, sqlite

from ...artifact import CalibrationArtifact
from ...errors import UsageError, describe_error
from ...monitor import Alarm, CanaryMonitor, CanaryState, DriftMonitor, DriftState, RiskMonitor, RiskState
from ...monitor.drift import Reference
from ...verdict import Verdict
from ..errors import StoreUnavailableError
from ..limits import LONGEST_KEY, check_text, passes
from ..queue.schema import LONGEST_MONITOR, monitors
from ..queue.store import ReviewStore
from .inbox import FOLD_AT_ONCE, Inbox, add_grid, fold, fold_all, put, write_state
from .rows import alarm_of, fetch, has_step, state_of

__all__ = ["SharedCanary", "SharedDrift", "SharedRisk", "risk_monitor"]

log = logging.getLogger("guardrail")

_POLL = 1.0
"""Seconds between two folds of a process that watches."""


class _Shared:
    """Base of all kinds: one transaction for each update, and one report of an alarm for each process."""

    def __init__(self, store: ReviewStore, name: str, on_alarm: Callable[[Alarm], object] | None) -> None:
        check_text("a monitor's name", name, LONGEST_MONITOR)
        self.name = name
        self._store, self._on_alarm = store, on_alarm
        self._reported = self._warned = False
        self._lock = threading.Lock()

    def _begin(self, kind: str, state: RiskState | DriftState | CanaryState) -> Any:
        """The monitor's row, created if it is missing."""
        with self._store.database.write() as connection:
            now = self._store.database.now(connection)
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            values = {"name": self.name, "kind": kind, "n": 0, "state": state.model_dump_json(), "created": now}
            connection.execute(insert(monitors).values(**values).on_conflict_do_nothing(index_elements=["name"]))
            row = fetch(connection, self.name)
            assert row is not None
            if row.kind != kind:
                raise UsageError(f"monitor {self.name!r} of this store is a {row.kind} monitor, not a {kind} monitor.")
            return row

    def _warn_if_over(self, row: Any) -> None:
        """Warn, once for each object, that a monitor whose alarm was acknowledged no longer holds answers back."""
        if row.acknowledged is None or self._warned:
            return
        self._warned = True
        log.warning(
            "guardrail: the alarm of monitor %r was acknowledged, so it never alarms again and holds no answer "
            "back. Start a monitor under a new name.",
            self.name,
        )

    def _report(self, alarm: str | None, acknowledged: float | None) -> None:
        new_alarm = None if self._reported else alarm_of(self.name, alarm)
        if new_alarm is None:
            return
        if acknowledged is None and self._on_alarm is not None:
            self._on_alarm(new_alarm)
        self._reported = True  # not if it raised: it is called again at the next update


class SharedRisk(_Shared):
    """A `RiskMonitor` in a database. Made by `Monitors.risk`."""

    def __init__(
        self, store: ReviewStore, name: str, fresh: RiskMonitor, on_alarm: Callable[[Alarm], object] | None
    ) -> None:
        super().__init__(store, name, on_alarm)
        self._settings = fresh.state
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
                if key is not None and has_step(connection, self.name, key):
                    return monitor.state
                rate = self._settings.min_audit_rate if audit_rate is None else audit_rate
                state = monitor.update(error, audit_rate=rate)
                step = {"n": state.n, "key": key, "value": float(bool(error)), "chance": rate}
                step["log_wealth"] = state.log_wealth
                alarm = monitor.alarm if row.alarm is None else None
                write_state(connection, row, state, [step], alarm, self._store.database.now(connection))
                row = fetch(connection, self.name)
            self._warn_if_over(row)
            self._report(row.alarm, row.acknowledged)
            return state

    def interval(self, level: float = 0.95) -> tuple[float, float, float] | None:
        """See `RiskMonitor.interval`."""
        return risk_monitor(self._settings, self.state).interval(level)

    def _monitor(self, row: Any) -> RiskMonitor:
        return risk_monitor(self._settings, state_of(row, RiskState))


class SharedCanary(_Shared):
    """A `CanaryMonitor` in a database. Made by `Monitors.canary`."""

    def __init__(
        self, store: ReviewStore, name: str, fresh: CanaryMonitor, on_alarm: Callable[[Alarm], object] | None
    ) -> None:
        super().__init__(store, name, on_alarm)
        self._questions = len(fresh.state.baseline)
        row = self._begin("canary", fresh.state)
        self._monitor(row)  # refuses another number of questions
        self._report(row.alarm, row.acknowledged)

    @property
    def state(self) -> CanaryState:
        """The current state, with the rounds of all processes."""
        return self._monitor(self._row()).state

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if one was raised and nobody has acknowledged it."""
        row = self._row()
        return alarm_of(self.name, row.alarm) if row.acknowledged is None else None

    def update(self, scores: Sequence[float | None]) -> CanaryState:
        """Take in a round; see `CanaryMonitor.update`."""
        with self._lock:
            with self._store.database.write() as connection:
                row = fetch(connection, self.name, lock=True)
                before = self._monitor(row).state
                state, bets = before.after(scores)
                steps = [
                    {"n": n, "key": None, "value": value, "chance": p, "log_wealth": wealth}
                    for n, (value, p, wealth) in enumerate(zip(*bets, strict=True), start=before.n + 1)
                ]
                alarm = CanaryMonitor(self._questions, state=state).alarm if row.alarm is None else None
                write_state(connection, row, state, steps, alarm, self._store.database.now(connection))
                row = fetch(connection, self.name)
            self._warn_if_over(row)
            self._report(row.alarm, row.acknowledged)
            return state

    def _row(self) -> Any:
        with self._store.database.read() as connection:
            return fetch(connection, self.name)

    def _monitor(self, row: Any) -> CanaryMonitor:
        return CanaryMonitor(self._questions, state=state_of(row, CanaryState))


class SharedDrift(_Shared):
    """A `DriftMonitor` in a database. Made by `Monitors.drift`.

    `watch` writes the score into the inbox of the database and returns when it is on disk. The scores are folded into
    the monitor by any process: by ``guardrail monitor`` or ``guardrail review``, or by a thread of this one, which runs
    while scores are watched; alarms that another process has raised are reported here by the same thread.
    """

    needs_scores = True

    def __init__(
        self,
        store: ReviewStore,
        name: str,
        fresh: DriftMonitor,
        artifact: CalibrationArtifact,
        on_alarm: Callable[[Alarm], object] | None,
        on_watch_failure: Literal["hold", "pass"] = "hold",
    ) -> None:
        super().__init__(store, name, on_alarm)
        self.unwritten = 0
        """Number of scores that were not written at once, while ``on_watch_failure="pass"`` let the answers pass."""
        self._pass = passes(on_watch_failure)
        self._reference = Reference(artifact)
        self._inbox = Inbox(store.database, name)
        self._watching: threading.Thread | None = None
        self._watched = False
        self._starting = threading.Lock()
        row = self._begin("drift", fresh.state)
        state = state_of(row, DriftState)
        if (state.delta, state.seed) != (fresh.state.delta, fresh.state.seed):
            raise UsageError(
                f"monitor {name!r} has delta {state.delta} and seed {state.seed}; the arguments are "
                f"{fresh.state.delta} and {fresh.state.seed}. Give the same values, or use another name."
            )
        DriftMonitor(artifact, delta=state.delta, seed=state.seed, state=state)  # refuses another artifact
        with store.database.write() as connection:
            add_grid(connection, name, fresh.grid)
        self._report(row.alarm, row.acknowledged)

    @property
    def state(self) -> DriftState:
        """The current state, with the updates of all processes; the inbox is folded first."""
        return self._fold(())

    def update(self, uncertainty: float, *, key: str | None = None) -> DriftState:
        """Take in the score of one question, and fold it; see `DriftMonitor.update`.

        Args:
            uncertainty: The score.
            key: Names the question, at most 512 characters; a second update with the same key changes nothing.
        """
        if key is not None:
            check_text("key", key, LONGEST_KEY)
        if not self._reference.in_scope(uncertainty):
            return self.state
        return self._fold([{"key": key or _new_key(), "value": float(uncertainty)}])

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, as `DriftMonitor.watch`: ``Guardrail(on_verdict=drift.watch)``.

        A score that could not be written is kept in memory and written with later ones.

        Raises:
            StoreUnavailableError: The score could not be written within the store's deadline, so that a guard holds the
                answer back; not under ``on_watch_failure="pass"``, where it is logged and counted.
        """
        score = self._reference.score(verdict)
        if score is None or not self._reference.in_scope(score):
            return
        try:
            self._inbox.add(score, _new_key())
        except StoreUnavailableError as error:
            if not self._pass:
                raise
            with self._starting:
                self.unwritten += 1
            log.error("guardrail: a score of monitor %r is not written yet: %s", self.name, error)
        finally:
            self._watch_on()

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Accept a guard of this artifact or refuse it, as `DriftMonitor.admit`."""
        self._reference.admit(artifact)

    def _fold(self, rows: Sequence[dict[str, Any]]) -> DriftState:
        """Write scores, fold all waiting scores, and return the new state."""
        database, updated = self._store.database, bool(rows)
        with self._lock:
            folded = FOLD_AT_ONCE
            while folded >= FOLD_AT_ONCE:
                with database.write() as connection:
                    row = fetch(connection, self.name, lock=True)
                    if rows:
                        put(connection, self.name, rows, database.now(connection))
                    state, folded = fold(database, connection, row)
                    row, rows = fetch(connection, self.name), ()
            if updated:
                self._warn_if_over(row)
            self._report(row.alarm, row.acknowledged)
            return state

    def _watch_on(self) -> None:
        """Start the thread that folds, unless it runs."""
        with self._starting:
            self._watched = True
            if self._watching is None or not self._watching.is_alive():  # not alive: this process was forked
                name = f"guardrail-monitor {self.name}"
                self._watching = threading.Thread(target=self._keep_up, name=name, daemon=True)
                self._watching.start()

    def _keep_up(self) -> None:
        database = self._store.database
        opened = database._closings
        while True:
            with self._starting:
                self._watched = False
            try:
                self._inbox.flush()
                while fold_all(database) >= FOLD_AT_ONCE:
                    pass
                with database.read() as connection:
                    row = fetch(connection, self.name)
                if row is not None:
                    self._warn_if_over(row)
                    self._report(row.alarm, row.acknowledged)
                behind = False
            except Exception as error:  # also of a hook: the next score must not wait for a restart
                behind = True
                why = describe_error(error)
                log.warning("guardrail: monitor %r could not be brought up to date: %s", self.name, why)
            time.sleep(_POLL)
            with self._starting:
                # A closed store ends the thread, which would otherwise open the database again.
                if database._closings != opened or not (behind or self._watched):
                    self._watching = None  # the next score starts another thread
                    return


def _new_key() -> str:
    """A unique key. Keys ascend with time, because an index takes ascending keys faster than random ones."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def risk_monitor(settings: RiskState, state: RiskState) -> RiskMonitor:
    """The monitor with this state. Raises `UsageError` if the state has other settings."""
    rate = settings.min_audit_rate
    return RiskMonitor(
        settings.alpha, delta=settings.delta, min_audit_rate=rate, artifact=settings.artifact, state=state
    )
