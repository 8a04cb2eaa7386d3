"""Deleting what is old: what goes, what stays, and what the audit trail says; on both databases."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from guardrail.__main__ import main
from guardrail.review import (
    Candidate,
    Content,
    Decision,
    Deliverer,
    Item,
    Monitors,
    Purged,
    ReviewStore,
    UnknownItemError,
    purging,
)
from guardrail.testing import ScriptedChat, make_artifact
from tests.guardrail.review.test_review_outbox import SECRET, at_pace
from tests.review_pages import claim

SECRET_TEXT = "the patient is called Erna Unbekannt"
DAY = 86_400.0


@pytest.fixture
def now() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def store(store_url: str, now: list[float]) -> Iterator[ReviewStore]:
    with ReviewStore(store_url, clock=lambda: now[0]) as opened:
        yield opened


def queued(store: ReviewStore, key: str | None = None, callback: str | None = None, days: float | None = None) -> Item:
    content = Content(question=SECRET_TEXT, candidate=Candidate(text="a"))
    expires_in = None if days is None else days * DAY
    return store.enqueue(content, key=key, callback=callback, expires_in=expires_in)


def decided(store: ReviewStore, key: str | None = None, callback: str | None = None) -> Item:
    item = queued(store, key, callback)
    lease = claim(store, "ann", item=item.id)
    return store.decide(lease, Decision(action="respond", text=SECRET_TEXT))


def left(store: ReviewStore) -> set[str]:
    return {item.id for item in store.items()}


def test_what_arrived_long_ago_goes_once_it_is_decided_or_expired(store: ReviewStore, now: list[float]) -> None:
    old = {decided(store).id, queued(store, days=2).id}
    given_up = queued(store, days=500)
    store.cancel(given_up.id)
    late = queued(store, days=30)
    decided_today = queued(store, key="today")
    long_open, long_claimed = queued(store), queued(store)
    store.claim("bob", item=long_claimed.id, seconds=100 * DAY)
    now[0] += 40 * DAY
    decided(store, key="today")
    young = {decided(store).id, queued(store).id, queued(store, days=1).id}
    store.expire()
    stays = young | {long_open.id, long_claimed.id, decided_today.id}
    everything = stays | old | {given_up.id, late.id}
    before = store.trail(limit=10_000)
    counted = Purged(items=4, callbacks=0, kept=1, open=2, since=now[0] - 30 * DAY)
    assert store.purge(30 * DAY, dry_run=True) == counted
    assert left(store) == everything
    assert store.trail(limit=10_000) == before
    assert store.purge(30 * DAY, who="eve") == counted
    assert left(store) == stays
    assert store.trail(limit=10_000)[:-1] == before
    last = store.trail()[-1]
    assert (last.item, last.who, last.what) == ("", "eve", "purged")
    assert last.detail == {"items": 4, "callbacks": 0, "older_than_seconds": 30 * DAY}
    assert store.purge(30 * DAY) == counted.model_copy(update={"items": 0})
    assert store.trail()[-1] == last
    now[0] += DAY + 1  # whoever waited had time to learn of today's decision
    assert store.purge(31 * DAY).items == 1
    assert left(store) == stays - {decided_today.id}


def test_what_somebody_carries_out_stays(store: ReviewStore, now: list[float]) -> None:
    item = decided(store)
    now[0] += 40 * DAY
    (work_lease,) = store.lease([item.id])
    assert store.purge(30 * DAY).kept == 1
    store.settle(work_lease, again=False)
    assert store.purge(30 * DAY).items == 1


@pytest.mark.parametrize(("audits_every", "late"), [(7, 0), (20, 5)])
def test_what_stays_is_like_the_questions_that_are_asked(
    store: ReviewStore, now: list[float], audits_every: int, late: int
) -> None:
    """Held-back answers are decided at once, audits every few weeks; of what arrived since, each kind stays whole."""
    for day in range(36):
        now[0] += DAY
        decided(store, key=f"held back {day}")
        store.enqueue(Content(question="q", candidate=Candidate(text="a"), kind="audit"), key=f"audit {day}")
        while day % audits_every == audits_every - 1 and (lease := store.claim("ann", kinds=["audit"])):
            store.decide(lease, Decision(action="approve"))
    purged = store.purge(10 * DAY)
    stays = store.items(limit=1000)
    assert Counter(item.content.kind for item in stays if item.created >= purged.since) == {"answer": 11, "audit": 11}
    # Audits that are late by more than that stay, too: without the held-back answers of their days.
    assert [item.content.kind for item in stays if item.created < purged.since] == ["audit"] * late
    assert purged.open == late


def test_the_trail_holds_no_content(store: ReviewStore, now: list[float]) -> None:
    item = decided(store)
    now[0] += DAY
    assert SECRET_TEXT not in f"{store.trail(limit=10_000)}"
    store.purge(1.0)
    with pytest.raises(UnknownItemError):
        store.item(item.id)
    assert [event.what for event in store.trail(item.id)] == ["enqueued", "claimed", "decided"]


def test_callbacks_go_with_their_item_but_not_before_they_are_delivered(store: ReviewStore, now: list[float]) -> None:
    item = decided(store, callback="http://127.0.0.1:9/closed")
    now[0] += 90 * DAY
    deliverer = at_pace(Deliverer(store, SECRET, hosts=("127.0.0.1",)), attempts=2)
    deliverer.run_once()
    assert store.purge(DAY) == Purged(items=0, callbacks=0, kept=1, open=0, since=now[0] - DAY)
    assert left(store) == {item.id}
    now[0] += DAY
    deliverer.run_once()
    assert store.stats().dead == 1
    assert store.purge(DAY) == Purged(items=1, callbacks=1, kept=0, open=0, since=now[0] - DAY)
    assert (store.stats().undelivered, store.stats().dead) == (0, 0)
    assert [event.detail["given_up"] for event in store.trail() if event.what == "delivery_failed"] == [False, True]


def test_many_at_once_and_their_keys_are_free_again(store: ReviewStore, now: list[float]) -> None:
    first = [decided(store, key=f"k{i}", callback="http://127.0.0.1:9/") for i in range(3)]
    with store.database.write() as transaction:
        for i in range(1200):
            transaction.connection.exec_driver_sql(
                "INSERT INTO review_items (id, key, kind, content, state, created) "
                f"SELECT 'x{i}', 'x{i}', kind, content, 'expired', created FROM review_items WHERE key = 'k0'"
            )
        transaction.connection.exec_driver_sql("UPDATE review_outbox SET state = 'delivered'")
    now[0] += DAY
    assert store.purge(1.0) == Purged(items=1203, callbacks=3, kept=0, open=0, since=now[0] - 1)
    assert queued(store, key="k0").id != first[0].id


def test_nothing_of_it_is_left_in_an_sqlite_file(tmp_path: Path) -> None:
    path = tmp_path / "reviews.db"
    now = [0.0]
    with ReviewStore(path, clock=lambda: now[0]) as store:
        for _ in range(30):
            decided(store)
        assert found_in(tmp_path)
        now[0] += DAY
        store.purge(1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews.db"]
    assert SECRET_TEXT.encode() not in path.read_bytes()


def test_nothing_of_it_is_left_while_others_have_the_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "_PATIENCE", 0.1)
    now = [0.0]
    with ReviewStore(tmp_path / "reviews.db", clock=lambda: now[0]) as store:
        for _ in range(30):
            decided(store)
        now[0] += DAY
        with closing(sqlite3.connect(tmp_path / "reviews.db", isolation_level=None)) as another:
            another.execute("BEGIN")
            another.execute("SELECT count(*) FROM review_items").fetchall()
            assert store.purge(1.0, dry_run=True).in_log is False
            assert store.purge(1.0).in_log is True
            assert found_in(tmp_path)
            another.execute("COMMIT")
            assert store.purge(1.0).in_log is False
            assert len(list(tmp_path.iterdir())) > 1, "the other connection keeps the log"
            assert not found_in(tmp_path)


def found_in(folder: Path) -> list[str]:
    """Files that hold the text."""
    return [path.name for path in folder.iterdir() if SECRET_TEXT.encode() in path.read_bytes()]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GUARDRAIL_REVIEW_DB", raising=False)
    monkeypatch.setenv("LOGNAME", "eve")
    for database in ("reviews.db", "sqlite:///reviews.db"):
        assert main(["review", "--purge", "30", "--db", database]) == 1
        assert "there is no review store" in capsys.readouterr().err
    assert main(["review", "--purge", "30", "--db", "a\x1b[2J.db"]) == 1
    assert r"'a\x1b[2J.db'" in capsys.readouterr().err, "a name cannot command a terminal"
    now = [0.0]  # 1970: long ago
    with ReviewStore("reviews.db", clock=lambda: now[0]) as store:
        decided(store)
        decided(store, callback="http://127.0.0.1:9/")
        queued(store)
    assert main(["review", "--dry-run"]) == 1
    assert "--dry-run goes with --purge" in capsys.readouterr().err
    earliest = time.time() - 30 * DAY
    assert main(["review", "--purge", "30", "--dry-run"]) == 0
    output, _, since = capsys.readouterr().out.rpartition(" ")
    assert (
        earliest <= datetime.fromisoformat(since.strip()).replace(tzinfo=UTC).timestamp() <= time.time() - 30 * DAY + 1
    )
    assert output == (
        "Would delete 1 decided or expired items that arrived more than 30 days ago, and 0 of their callbacks.\n"
        "1 older items stay: their callers may not have received the decision yet.\n"
        "1 older items stay: they are not decided yet.\n"
        "These are not a fair sample. To learn without them: calibrate learn --since"
    )
    with ReviewStore("reviews.db") as store:
        assert len(store.items()) == 3
        assert main(["review", "--purge", "30"]) == 0
        assert capsys.readouterr().out.startswith("Deleted 1 decided or expired items that arrived")
        assert len(store.items()) == 2
        assert (store.trail()[-1].what, store.trail()[-1].who) == ("purged", "eve (command line)")
    for days in ("0", "-1", "nan", "inf", "4000"):
        assert main(["review", "--purge", days]) == 1
        assert "above 0 seconds and at most ten years" in capsys.readouterr().err


def test_steps_of_monitors_go_and_what_they_found_and_what_may_come_again_stays(
    store: ReviewStore, now: list[float]
) -> None:
    monitors, drawn = Monitors(store), make_artifact(ScriptedChat())
    drift, risk = monitors.drift("drift", drawn), monitors.risk("risk", drawn)
    drift.update(0.5, key="old")
    audit, open_item = decided(store), queued(store)
    risk.update(True, key=audit.id)
    risk.update(False, key=open_item.id)
    now[0] += 40 * DAY
    drift.update(0.5, key="new")
    states = (drift.state, risk.state)
    counted = store.purge(30 * DAY, dry_run=True)
    assert (counted.items, counted.steps) == (1, 2)
    assert store.purge(30 * DAY) == counted
    assert store.trail()[-1].detail["steps"] == 2
    assert (drift.state, risk.state) == states
    assert [step.n for step in monitors.history("drift")] == [2]
    assert [step.n for step in monitors.history("risk")] == [2]  # that item can still be decided and fed again
    assert drift.update(0.5, key="new") == states[0]
    assert risk.update(False, key=open_item.id) == states[1]
    assert drift.update(0.5).n == 3


def test_steps_of_the_last_day_stay(store: ReviewStore, now: list[float]) -> None:
    drift = Monitors(store).drift("drift", make_artifact(ScriptedChat()))
    drift.update(0.5, key="score")
    now[0] += 3600.0
    assert store.purge(60.0).steps == 0  # a guard whose answer was lost may write it again
    assert drift.update(0.5, key="score").n == 1
