"""Guards write scores into an inbox; a worker in any process folds them into the monitors.

A score is durable when `Inbox.add` returns: threads that write at the same time share one INSERT and one commit. A fold
is one transaction that locks the monitor's row (a worker that finds the row locked skips the monitor), takes the oldest
scores out of the inbox, bets, and writes state, history and alarm. A process that is killed at any instruction leaves
all of that or nothing. Each score has a key, which stays in the history, so a score that is written twice counts once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Table, delete, exists, insert, select, text, update
from sqlalchemy.engine import Connection

from ...errors import GuardrailError
from ...monitor import Alarm, DriftState
from ...monitor.betting import amount
from ...monitor.drift import Grid, drift_detail
from ..errors import StoreUnavailableError
from ..queue.database import Database
from ..queue.rows import SYSTEM
from ..queue.rows import log as note
from ..queue.schema import grids, inbox, monitors, steps
from .rows import fetch, state_of

__all__ = ["FOLD_AT_ONCE", "Inbox", "InboxWorker", "add_grid", "fold", "fold_all", "grid_of", "put", "write_state"]

FOLD_AT_ONCE = 5_000
"""Scores folded in one transaction."""
_KEPT = 10_000
"""Scores that a process keeps for the next attempt while the database fails; the oldest are dropped."""
_FOLDING = 10.0
"""Smallest time limit of a fold, in seconds: a fold writes much, and nobody waits for it."""
_log = logging.getLogger("guardrail")


class _ScoreBatch:
    """Scores that are written together."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.done = threading.Event()
        self.problem: Exception | None = StoreUnavailableError("the thread that writes this score has not ended")
        """Reason why the scores are not on disk; None once they are."""


class Inbox:
    """Writes the scores of one monitor, many threads at once with one commit.

    Args:
        database: The database of the monitor.
        name: The monitor.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database, self._name = database, name
        self._filling, self._writing = threading.Lock(), threading.Lock()
        self._batch = _ScoreBatch()
        self._kept: list[dict[str, Any]] = []

    def add(self, value: float, key: str) -> None:
        """Write a score. It is on disk when this returns, within one deadline of the database.

        Raises:
            StoreUnavailableError: The score may not be on disk. It is kept and written together with later scores.
        """
        end = time.monotonic() + self._database.deadline
        with self._filling:
            batch = self._batch
            batch.rows.append({"key": key, "value": float(value)})
            first = len(batch.rows) == 1
        if first:  # this thread writes for all threads that join the batch before its turn
            turn = self._writing.acquire(timeout=self._database.deadline)
            with self._filling:
                self._batch = _ScoreBatch()
            try:
                if turn:
                    self._write(batch, max(0.0, end - time.monotonic()))
                else:
                    batch.problem = StoreUnavailableError(
                        f"the review store did not take the scores before this one within {self._database.deadline:g} "
                        "s. Check that the database runs and answers."
                    )
            finally:
                batch.done.set()
                if turn:
                    self._writing.release()
        else:
            batch.done.wait(self._database.deadline)
        if batch.problem is not None:
            raise batch.problem

    def flush(self) -> None:
        """Write the kept scores, if the database answers again."""
        with self._writing:
            if self._kept:
                self._write(_ScoreBatch(), self._database.deadline)

    def _write(self, batch: _ScoreBatch, within: float) -> None:
        rows = [*self._kept, *batch.rows]
        try:
            with self._database.write(within) as connection:
                put(connection, self._name, rows, self._database.now(connection))
            self._kept, batch.problem = [], None
        except StoreUnavailableError as error:
            if len(rows) > _KEPT:
                _log.error("guardrail: %d scores of monitor %r are lost", len(rows) - _KEPT, self._name)
            self._kept, batch.problem = rows[-_KEPT:], error


def put(connection: Connection, name: str, rows: Sequence[dict[str, Any]], now: float) -> None:
    """Write scores, unless their keys are in the inbox already."""
    _insert(connection, inbox, {"name": name, "at": now}, rows, "ON CONFLICT (name, key) DO NOTHING")


def _insert(
    connection: Connection, table: Table, same: dict[str, Any], rows: Sequence[dict[str, Any]], otherwise: str = ""
) -> None:
    """Insert rows; with PostgreSQL in one statement, many times faster than a statement for each row.

    Args:
        connection: A connection in a transaction.
        table: The table.
        same: Fields with the same value in all rows.
        rows: The other fields of each row; every row has the same field names.
        otherwise: SQL after the values.
    """
    if not rows:
        return
    names = list(rows[0])
    into = f"INSERT INTO {table.name} ({', '.join([*same, *names])})"
    marks = [f":{name}" for name in same]
    if connection.dialect.name == "postgresql" and len(rows) > 1:
        kinds = {name: table.c[name].type.compile(connection.dialect) for name in names}
        arrays = ", ".join(f"CAST(:{name} AS {kinds[name]}[])" for name in names)
        values = f"SELECT {', '.join(marks)}, * FROM unnest({arrays})"
        columns = {name: [row[name] for row in rows] for name in names}
        connection.execute(text(f"{into} {values} {otherwise}"), same | columns)
    else:
        marks += [f":{name}" for name in names]
        values = f"VALUES ({', '.join(marks)})"
        connection.execute(text(f"{into} {values} {otherwise}"), [{**same, **row} for row in rows])


@lru_cache(maxsize=32)
def grid_of(stored: str) -> Grid:
    """A grid from its row."""
    return Grid.from_stored(stored)


def fold(database: Database, connection: Connection, row: Any) -> tuple[DriftState, int]:
    """Fold the oldest scores of the inbox into a drift monitor.

    Args:
        database: Tells the time.
        connection: A connection whose transaction has locked the row.
        row: Row of the monitor.

    Returns:
        The new state, and the number of scores taken out of the inbox.
    """
    grid = grid_of(connection.execute(select(grids.c.grid).where(grids.c.name == row.name)).scalar_one())
    state = state_of(row, DriftState)
    scores = _take_out(connection, row.name)
    if not scores:
        return state, 0
    new = [(key, value) for key, value, counted in scores if not counted]
    after, p_values, path = state.after(grid, [value for _, value in new])
    first = state.n + 1
    history = [
        {"n": n, "key": key, "value": value, "chance": p, "log_wealth": wealth}
        for n, ((key, value), p, wealth) in enumerate(zip(new, p_values, path, strict=True), start=first)
    ]
    alarm = None
    if row.alarm is None and after.alarmed_at is not None:
        wealth = amount(path[after.alarmed_at - first])
        detail = drift_detail(after.model_copy(update={"n": after.alarmed_at}))
        alarm = Alarm(monitor="drift", at=after.alarmed_at, wealth=wealth, delta=after.delta, detail=detail)
    write_state(connection, row, after, history, alarm, database.now(connection))
    return after, len(scores)


def add_grid(connection: Connection, name: str, grid: Grid) -> None:
    """Store the grid of a drift monitor, if it has none."""
    fetch(connection, name, lock=True)
    if connection.execute(select(grids.c.name).where(grids.c.name == name)).first() is None:
        connection.execute(insert(grids).values(name=name, grid=grid.model_dump_json()))


def write_state(
    connection: Connection, row: Any, state: Any, history: list[dict[str, Any]], alarm: Alarm | None, now: float
) -> None:
    """Write state, history and alarm of a monitor whose row is locked."""
    stored = row.alarm if alarm is None else alarm.model_dump_json()
    changed = {"n": state.n, "state": state.model_dump_json(), "alarm": stored}
    connection.execute(update(monitors).where(monitors.c.name == row.name).values(**changed))
    _insert(connection, steps, {"name": row.name, "at": now}, history)
    if alarm is not None:
        note(connection, "", now, SYSTEM, "alarm", {"name": row.name, **alarm.model_dump(mode="json")})


def _take_out(connection: Connection, name: str) -> Sequence[Any]:
    """Delete the oldest scores from the inbox; key, value and whether the history has the key already.

    They are deleted by number, not by range: a score with a smaller number may be committed at this moment.
    """
    if connection.dialect.name == "postgresql":
        return connection.execute(_TAKE_OUT, {"name": name, "most": FOLD_AT_ONCE}).all()
    oldest = select(inbox.c.number, inbox.c.key, inbox.c.value).where(inbox.c.name == name)
    oldest_rows = connection.execute(oldest.order_by(inbox.c.number).limit(FOLD_AT_ONCE)).all()
    counted: set[str] = set()
    for first in range(0, len(oldest_rows), 500):  # SQLite takes at most 999 parameters
        some = oldest_rows[first : first + 500]
        connection.execute(delete(inbox).where(inbox.c.number.in_([row.number for row in some])))
        theirs = select(steps.c.key).where(steps.c.name == name, steps.c.key.in_([row.key for row in some]))
        counted.update(connection.execute(theirs).scalars())
    return [(key, value, key in counted) for _, key, value in oldest_rows]


# LATERAL looks each key up in the index; PostgreSQL may turn `key IN (...)` into a scan of the whole history.
_TAKE_OUT = text(
    "WITH gone AS (DELETE FROM review_monitor_inbox WHERE number = ANY(ARRAY("
    "SELECT number FROM review_monitor_inbox WHERE name = :name ORDER BY number LIMIT :most"
    ")) RETURNING number, key, value) "
    "SELECT gone.key, gone.value, known.n IS NOT NULL FROM gone LEFT JOIN LATERAL ("
    "SELECT s.n FROM review_monitor_steps s WHERE s.name = :name AND s.key = gone.key LIMIT 1"
    ") AS known ON true ORDER BY gone.number"
)


def fold_all(database: Database) -> int:
    """Fold the scores in the inbox, once for each monitor. Monitors that another process is folding are skipped.

    Returns:
        Scores taken out of the inbox.
    """
    with database.read() as connection:
        waiting = exists().where(inbox.c.name == monitors.c.name)
        names = list(connection.execute(select(monitors.c.name).where(waiting)).scalars())
    folded = 0
    for name in names:
        try:
            with database.write(max(_FOLDING, database.deadline)) as connection:
                row = fetch(connection, name, lock=True, skip=True)
                folded += 0 if row is None else fold(database, connection, row)[1]
        except StoreUnavailableError:
            raise
        except GuardrailError as error:  # e.g. the state of another version; the other monitors are folded
            _log.error("guardrail: the inbox of monitor %r cannot be folded: %s", name, error)
    return folded


class InboxWorker:
    """Folds in a thread until it is stopped.

    Args:
        database: The database with the inbox.
        poll: Seconds between two looks at an empty inbox.
    """

    def __init__(self, database: Database, poll: float = 0.2) -> None:
        self._database, self._poll = database, poll
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Fold until `stop` is called. A failure of the database is logged and retried."""
        while not self._stop.is_set():
            try:
                busy = fold_all(self._database) >= FOLD_AT_ONCE
            except Exception as error:  # any failure: the next score must not wait for a restart
                # Only the first line: the others hold the statement and its values.
                why = str(error).partition("\n")[0]
                _log.warning("guardrail: folding failed and will be retried: %s: %s", type(error).__name__, why)
                self._stop.wait(1.0)
                continue
            if not busy:
                self._stop.wait(self._poll)

    def start(self) -> None:
        """`run` in a thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self.run, name="guardrail-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End `run` after the current fold."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
