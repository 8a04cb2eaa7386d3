"""Monitors whose state lives in the review store's database: shared by processes, safe against restarts and kills.

    monitors = Monitors(store)
    switch = monitors.switch()
    drift = monitors.drift("drift", artifact)
    guard = Guardrail(..., switch=switch, on_verdict=[drift.watch, audit_sample(store, rate=0.1)])

Every update is one transaction: it locks the row, bets, and writes row, history and alarm. Scores that guards watch go
through an inbox; see `guardrail.review.monitors.inbox`. An alarm is also a line of the audit trail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from sqlalchemy import select, update

from ...artifact import CalibrationArtifact
from ...errors import UsageError
from ...monitor import Alarm, CanaryMonitor, CanaryState, DriftMonitor, DriftState, RiskMonitor, RiskState
from ...types import Frozen
from ..limits import LONGEST_NAME, check_text
from ..queue.rows import log
from ..queue.schema import monitors, steps
from ..queue.store import ReviewStore
from .inbox import fold_all
from .rows import alarm_of, fetch, state_of, steps_of
from .shared import SharedCanary, SharedDrift, SharedRisk, risk_monitor
from .switch import SharedSwitch

__all__ = ["MonitorStep", "MonitorView", "Monitors"]

POINTS = 2_000
"""Largest number of points read of a history."""


class MonitorStep(Frozen):
    """One update of a monitor."""

    n: int
    """Its number, from 1."""
    at: float
    """When, in seconds since 1970 UTC."""
    value: float
    """Drift, canary: the score. Risk: 1 for a wrong answer, 0 for a right one."""
    chance: float
    """Drift, canary: the conformal p-value. Risk: the probability with which the answer was audited."""
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
            on_alarm: Called once in this process when it learns of an alarm; immediately if there already is one.

        Raises:
            UsageError: The monitor of this name has other settings or another artifact.
        """
        fresh = RiskMonitor(alpha, delta=delta, min_audit_rate=min_audit_rate, artifact=artifact)
        return SharedRisk(self.store, name, fresh, on_alarm)

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
            on_alarm: As in `risk`. In a process that watches it is called within about a second.
            on_watch_failure: While the database does not take scores, `SharedDrift.watch` raises, so that guards hold
                accepted answers back ("hold"); or they pass, and are logged and counted in ``unwritten`` ("pass").

        Raises:
            UsageError: The monitor of this name has another artifact.
        """
        fresh = DriftMonitor(artifact, delta=delta, seed=seed)
        return SharedDrift(self.store, name, fresh, artifact, on_alarm, on_watch_failure)

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
        return SharedCanary(self.store, name, CanaryMonitor(questions, delta=delta), on_alarm)

    def fold(self) -> int:
        """Fold the scores that guards have written into the drift monitors, and return their number.

        Guards do this themselves about once a second while they watch. ``guardrail monitor`` and ``guardrail review``
        do it five times a second, so that guards have less to do.

        Raises:
            StoreUnavailableError: The database does not answer.
        """
        folded = 0
        while (more := fold_all(self.store.database)) > 0:
            folded += more
        return folded

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
        return SharedSwitch(self.store, then, threshold, named, every)

    def acknowledge(self, name: str, *, who: str) -> None:
        """Acknowledge an alarm: switches let answers pass again. The audit trail records it.

        The monitor stays alarmed. Start a new one under another name to go on watching.

        Raises:
            UsageError: The store has no monitor of this name, or the monitor has no alarm.
        """
        check_text("who", who, LONGEST_NAME)
        with self.store.database.write() as connection:
            row = fetch(connection, name)
            if row is None or row.alarm is None:
                raise UsageError(f"no monitor {name!r} with an alarm in this store.")
            now = self.store.database.now(connection)
            connection.execute(update(monitors).where(monitors.c.name == name).values(acknowledged=now))
            log(connection, "", now, who, "alarm_acknowledged", {"monitor": name})

    def known_risk(
        self, name: str, *, artifact: str | None = None, on_alarm: Callable[[Alarm], object] | None = None
    ) -> SharedRisk | None:
        """The `RiskMonitor` of this name with the settings it was started with, or None.

        Raises:
            UsageError: It audits another artifact.
        """
        with self.store.database.read() as connection:
            row = fetch(connection, name)
        if row is None or row.kind != "risk":
            return None
        state = state_of(row, RiskState)
        settings = state if artifact is None else state.model_copy(update={"artifact": artifact})
        return SharedRisk(self.store, name, risk_monitor(settings, state), on_alarm)

    def all(self) -> list[MonitorView]:
        """Every monitor, alarms first, then by name."""
        with self.store.database.read() as connection:
            rows = connection.execute(select(monitors).order_by(monitors.c.name)).all()
        return sorted((_view(row) for row in rows), key=lambda view: view.alarm is None or view.acknowledged)

    def history(self, name: str, *, most: int = POINTS) -> list[MonitorStep]:
        """The updates of a monitor in order; a long history is thinned evenly and keeps the last update."""
        with self.store.database.read() as connection:
            row = fetch(connection, name)
            if row is None:
                return []
            every = max(1, -(-row.n // most))
            shown = (steps.c.n % every == 0) | (steps.c.n == row.n)
            rows = connection.execute(steps_of(name).where(shown)).all()
        return [_step(row) for row in rows]


def _step(row: Any) -> MonitorStep:
    return MonitorStep(n=row.n, at=row.at, value=row.value, chance=row.chance, log_wealth=row.log_wealth)


def _view(row: Any) -> MonitorView:
    kinds: dict[str, type[RiskState | DriftState | CanaryState]] = {
        "risk": RiskState,
        "drift": DriftState,
        "canary": CanaryState,
    }
    if row.kind not in kinds:
        raise UsageError(
            f"monitor {row.name!r} of the review store is of the kind {row.kind!r}; this version of acrc-guardrail "
            f"knows {', '.join(kinds)}. Upgrade acrc-guardrail to the version that wrote it."
        )
    state = state_of(row, kinds[row.kind])
    estimate = alpha = None
    if isinstance(state, RiskState):
        alpha, estimate = state.alpha, risk_monitor(state, state).interval()
    return MonitorView(
        name=row.name,
        kind=row.kind,
        n=row.n,
        delta=state.delta,
        log_wealth=state.log_wealth,
        alarm=alarm_of(row.name, row.alarm),
        acknowledged=row.acknowledged is not None,
        estimate=estimate,
        alpha=alpha,
    )
