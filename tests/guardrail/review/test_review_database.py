"""A database that hangs, is locked or is gone: operations end within their deadline, and nothing passes unrecorded."""

from __future__ import annotations

import asyncio
import gc
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError, OperationalError

from guardrail import Guardrail, Reason, Verdict
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.review import Monitors, ReviewStore, StoreUnavailableError, ask_reviewer, audit_sample, ticket
from guardrail.review.database import CONNECTIONS, Database
from guardrail.review.tables import meta
from guardrail.sampling.effects import arun
from guardrail.testing import ScriptedChat, make_artifact
from tests import postgres
from tests.review_pages import held_back

SURE, UNSURE = "Capital of France?", "Capital of Atlantis?"
MODEL = ScriptedChat(script={SURE: ["Paris"], UNSURE: ["Hiddenton", "Maskburg", "Veilham", "Secretville"]})
ARTIFACT = make_artifact(MODEL)
LONG = 300.0
"""A deadline that no test waits for: what ends before it was ended by something else."""


# SQLAlchemy does not close a connection that is broken off while it prepares it.
pytestmark = pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect the garbage of each test before the next test starts, which would be blamed for it."""
    yield
    gc.collect()


on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


@pytest.fixture
def impatient(store_url: str) -> Iterator[ReviewStore]:
    with ReviewStore(store_url) as opened:
        yield opened


@on_postgres
def test_every_operation_of_a_server_that_hangs_ends_and_the_next_succeeds(impatient: ReviewStore) -> None:
    store, monitors = impatient, Monitors(impatient)
    item = store.enqueue(held_back())
    risk = monitors.risk("risk", ARTIFACT)
    switch = monitors.switch(every=0.0)
    operations: list[Callable[[], object]] = [
        lambda: store.enqueue(held_back()),
        lambda: risk.update(False),
    ]
    store.database.deadline = 0.15  # not before: a busy machine may be slower
    with postgres.stopped(str(store.database.url.set(drivername="postgresql"))):
        for operation in operations:
            with pytest.raises(StoreUnavailableError, match=r"within 0\.15 s"):
                operation()
        store.close()
        with pytest.raises(StoreUnavailableError, match=r"within 0\.15 s|timeout"):  # it connects, for 2 s
            store.stats()
        assert switch.objection()
        assert "cannot be read" in str(switch.objection())
    store.database.deadline = 5.0
    assert store.item(item.id).state == "pending"
    assert risk.update(False).n == 1
    assert switch.objection() is None


@on_postgres
def test_waiting_and_cancelling_win_over_the_deadline(store_url: str) -> None:
    with ReviewStore(store_url) as store:
        store.database.deadline = LONG
        item = store.enqueue(held_back())
        ask = Guardrail(model=MODEL, artifact=ARTIFACT, on_abstain=ask_reviewer(store, wait=0.2))
        queueing = threading.Event()

        def queues(verdict: Verdict, messages: Sequence[BaseMessage]) -> dict[str, Any]:
            queueing.set()
            return {}

        waits = ask_reviewer(store, wait=LONG, metadata=queues)
        patient = Guardrail(model=MODEL, artifact=ARTIFACT, on_abstain=waits)

        async def cancelled() -> None:
            call = asyncio.ensure_future(patient.ainvoke(UNSURE))
            assert await asyncio.to_thread(queueing.wait, LONG)  # a call cancelled earlier waits for no store
            call.cancel()
            async with asyncio.timeout(LONG / 3):  # it does not wait until the store has given up
                with pytest.raises(asyncio.CancelledError):
                    await call

        async def waited() -> None:
            assert await arun(store.waiting(item.id, 0.1)) is None

        loops = [asyncio.new_event_loop() for _ in range(2)]
        with postgres.stopped(str(store.database.url.set(drivername="postgresql"))):
            assert store.wait(item.id, 0.1) is None
            assert ABSTENTION in str(ask.invoke(UNSURE).content)
            for loop, run in zip(loops, (cancelled, waited), strict=True):
                loop.run_until_complete(run())
        for loop in loops:  # threads that still waited for the database
            for task in asyncio.all_tasks(loop):
                loop.run_until_complete(task)
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


@on_postgres
def test_an_abstention_stays_one_and_what_cannot_be_watched_is_held_back(impatient: ReviewStore) -> None:
    store = impatient
    drift = Monitors(store).drift("drift", ARTIFACT)
    settings: dict[str, Any] = {"model": MODEL, "artifact": ARTIFACT}
    watched_guard = Guardrail(**settings, on_verdict=drift.watch, on_abstain=ticket(store))
    audited = Guardrail(**settings, on_verdict=audit_sample(store, 1.0))
    store.database.deadline = 0.15
    with postgres.stopped(str(store.database.url.set(drivername="postgresql"))):
        for guard in (watched_guard, audited):
            verdict = guard.assess(SURE)
            assert (verdict.accepted, verdict.reason) == (False, Reason.SUSPENDED)
            assert "could not be recorded (StoreUnavailableError" in verdict.detail
        assert ABSTENTION in str(watched_guard.invoke(UNSURE).content)


def test_a_database_that_takes_nothing_is_not_available(store_url: str) -> None:
    with ReviewStore(store_url) as store:
        guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_abstain=ticket(store))
        drift = Monitors(store).drift("drift", ARTIFACT)
        if store_url.startswith("postgresql"):
            with store.database.write() as transaction:
                name = transaction.connection.exec_driver_sql("SELECT current_database()").scalar_one()
                transaction.connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            store.close()
        else:
            with store.database.write() as transaction:
                transaction.connection.exec_driver_sql("PRAGMA query_only = on")
        assert ABSTENTION in str(guard.invoke(UNSURE).content)
        with pytest.raises(StoreUnavailableError, match=r"failed: .*(read-only|readonly)"):
            drift.watch(guard.assess(SURE))


def test_a_locked_sqlite_file_ends_the_operation_and_a_refused_statement_is_not_unavailable(tmp_path: Path) -> None:
    with ReviewStore(tmp_path / "reviews.db") as store:
        store.database.deadline = 0.1
        with closing(sqlite3.connect(tmp_path / "reviews.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match=r"is locked|within 0\.1 s"):
                store.enqueue(held_back())
            other.execute("ROLLBACK")
        store.database.deadline = 5.0
        store.enqueue(held_back())
        with pytest.raises(IntegrityError), store.database.write() as transaction:
            transaction.execute(insert(meta).values(name="layout", value="2"))
        assert store.stats().pending == 1


def test_a_long_statement_of_sqlite_is_interrupted(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with ReviewStore(tmp_path / "reviews.db") as store:
        assert store.database.deadline == 5.0  # by default
        with pytest.raises(StoreUnavailableError, match=r"within 0\.1 s"), store.database.read(0.1) as transaction:
            transaction.connection.exec_driver_sql(endless)
        assert store.stats().pending == 0


@on_postgres
def test_connections_that_the_server_closed_are_replaced(store_url: str) -> None:
    import psycopg

    with ReviewStore(store_url) as store:
        item = store.enqueue(held_back())
        with psycopg.connect(str(store.database.url.set(drivername="postgresql")), autocommit=True) as other:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            other.execute(f"{ended} AND pid <> pg_backend_pid()")
        assert store.item(item.id).state == "pending"


@pytest.mark.parametrize("closed", [True, False])
def test_only_a_connection_that_the_server_closed_is_tried_again(
    store: ReviewStore, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    begun: list[Any] = []

    def refuse(self: Database, connection: Any, *_: Any) -> None:
        begun.append(connection)
        raise OperationalError("BEGIN", None, OSError("refused"), connection_invalidated=closed)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_begin", refuse)
        with pytest.raises((StoreUnavailableError, OperationalError), match="refused"):
            store.find("a question")
    assert len(begun) == 1 + closed
    assert store.find("a question") is None


def test_a_database_that_cannot_be_reached_is_said_at_once() -> None:
    for secret in ("nobody:hunter2@127.0.0.1:9/none", "nobody@127.0.0.1:9/none?password=hunter2"):
        with pytest.raises(UsageError, match="cannot open the review store") as caught:
            ReviewStore(f"postgresql://{secret}", deadline=5.0)
        assert "hunter2" not in f"{caught.value}"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_is_a_time(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="deadline must be above 0"):
        ReviewStore(tmp_path / "reviews.db", deadline=seconds)


def test_an_operation_whose_turn_comes_too_late_does_not_begin(store_url: str) -> None:
    """Nothing would break it off any more, so that it could wait for a server that hangs for ever."""
    with ReviewStore(store_url) as store:
        store.stats()
        with ExitStack() as others:
            for _ in range(CONNECTIONS):
                others.enter_context(store.database.read())
            for begin in (store.database.read, store.database.write):
                with pytest.raises(StoreUnavailableError, match="within"), begin(0.05):
                    pytest.fail("it began")
        assert store.stats().pending == 0


def test_a_thread_waits_for_its_turn_to_write_no_longer_than_its_deadline(store_url: str) -> None:
    with ReviewStore(store_url) as store, ThreadPoolExecutor(1) as thread:
        with store.database.write() as transaction:
            transaction.connection.exec_driver_sql("UPDATE review_meta SET value = value")

            def late() -> None:
                with store.database.write(0.1) as other:
                    other.connection.exec_driver_sql("UPDATE review_meta SET value = value")

            with pytest.raises(StoreUnavailableError, match=r"0\.1 s"):
                thread.submit(late).result()
        store.enqueue(held_back())


def test_a_server_that_takes_connections_and_says_nothing_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "_prepare", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = Database(f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none", deadline=0.1)
        with pytest.raises(StoreUnavailableError), database.read():
            pytest.fail("connected")
