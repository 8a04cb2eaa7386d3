"""The review store: one item, one reviewer, one decision; on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.exc import DatabaseError

from guardrail.errors import UsageError
from guardrail.review import (
    AlreadyDecidedError,
    Candidate,
    Content,
    Decision,
    ItemExpiredError,
    LeaseLostError,
    ReviewStore,
    StoreUnavailableError,
    UnknownItemError,
    WorkLease,
    tables,
)
from guardrail.review.database import Transaction
from guardrail.review.keys import ExpiringKeys
from tests.review_pages import claim, decision_of

ROOT = Path(__file__).parents[3]
APPROVE = Decision(action="approve")


def content(question: str = "Who wrote it?", **changes: object) -> Content:
    values = {"question": question, "candidate": Candidate(text="Woolf"), **changes}
    return Content.model_validate(values)


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def store(store_url: str, now: list[float]) -> Iterator[ReviewStore]:
    with ReviewStore(store_url, clock=lambda: now[0]) as opened:
        yield opened


def words(store: ReviewStore, item: str) -> list[str]:
    return [event.what for event in store.trail(item)]


def test_the_way_of_an_item(store: ReviewStore) -> None:
    item = store.enqueue(content(), key="k")
    assert (item.state, item.content) == ("pending", content())
    lease = claim(store, "ann")
    assert (lease.item.id, lease.item.state, lease.item.holder) == (item.id, "claimed", "ann")
    assert store.claim("bob") is None
    decided = store.decide(lease, Decision(action="respond", text="Virginia Woolf", note="full name"))
    assert decided.decision == Decision(
        action="respond", text="Virginia Woolf", note="full name", reviewer="ann", at=1000.0
    )
    assert decided.decision is not None
    assert decided.decision.outcome(decided.content) == Candidate(text="Virginia Woolf")
    assert words(store, item.id) == ["enqueued", "claimed", "decided"]
    assert [event.who for event in store.trail(item.id)] == ["system", "ann", "ann"]


def test_the_same_key_is_the_same_item_and_the_first_content_stays(store: ReviewStore) -> None:
    first = store.enqueue(content("one"), key="k")
    second = store.enqueue(content("two"), key="k")
    assert (second.id, second.content.question) == (first.id, "one")
    assert words(store, first.id) == ["enqueued"]
    assert store.enqueue(content("one")).id != store.enqueue(content("one")).id


def test_oldest_first_and_by_kind(store: ReviewStore) -> None:
    for kind in ("answer", "audit", "answer"):
        store.enqueue(content(kind, kind=kind))
    audit = claim(store, "ann", kinds=["audit"])
    assert audit.item.content.kind == "audit"
    leases = [store.claim("ann") for _ in range(3)]
    assert [lease and lease.item.number for lease in leases] == [1, 3, None]


def test_a_decision_whose_commit_was_not_answered_is_not_called_refused(
    store: ReviewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auditor would read that a decision was refused which is in force, and the reviewer would wait twice."""
    item = store.enqueue(content("one"))
    lease = claim(store, "ann")
    write, written = store.database.write, []

    @contextmanager
    def unanswered(within: float | None = None) -> Iterator[Transaction]:
        written.append(within)
        with write(within) as transaction:
            yield transaction
        if len(written) == 1:
            raise StoreUnavailableError("the review store did not answer within 5 s")

    monkeypatch.setattr(store.database, "write", unanswered)
    with pytest.raises(StoreUnavailableError):
        store.decide(lease, APPROVE)
    assert len(written) == 1
    assert words(store, item.id) == ["enqueued", "claimed", "decided"]
    assert store.decide(lease, APPROVE).state == "decided"  # repeated, as the error says


def test_a_stale_lease_goes_to_the_next_and_the_first_is_refused(store: ReviewStore, now: list[float]) -> None:
    item = store.enqueue(content())
    first = claim(store, "ann", seconds=10)
    now[0] += 10
    second = claim(store, "bob", seconds=10)
    with pytest.raises(LeaseLostError, match="bob holds it now"):
        store.decide(first, APPROVE)
    for act in (store.renew, store.release):
        with pytest.raises(LeaseLostError):
            act(first)
    assert store.item(item.id).decision is None
    store.decide(second, APPROVE)
    with pytest.raises(AlreadyDecidedError, match="bob"):
        store.decide(first, Decision(action="reject"))
    assert words(store, item.id) == ["enqueued", "claimed", "claimed", "refused", "decided", "refused"]


def test_a_stale_lease_that_nobody_took_still_counts(store: ReviewStore, now: list[float]) -> None:
    item = store.enqueue(content())
    lease = claim(store, "ann", seconds=10)
    now[0] += 100
    there = store.item(item.id)
    assert (there.state, there.holder) == ("pending", None)
    assert (len(store.items(["pending"])), store.items(["claimed"])) == (1, [])
    assert store.decide(lease, APPROVE).state == "decided"


def test_renew_keeps_it_and_release_gives_it_back(store: ReviewStore, now: list[float]) -> None:
    store.enqueue(content())
    lease = claim(store, "ann", seconds=10)
    now[0] += 9
    lease = store.renew(lease, seconds=10)
    now[0] += 9
    assert store.claim("bob") is None
    store.release(lease)
    with pytest.raises(LeaseLostError, match="went back to the queue"):
        store.decide(lease, APPROVE)
    assert store.claim("bob") is not None


def test_taking_a_named_item(store: ReviewStore) -> None:
    store.enqueue(content("one"))
    item = store.enqueue(content("two"))
    first = claim(store, "ann", item=item.id)
    assert first.item.content.question == "two"
    assert store.claim("bob", item=item.id) is None
    again = claim(store, "ann", item=item.id)
    with pytest.raises(LeaseLostError):
        store.decide(first, APPROVE)
    store.take_back(item.id, who="admin")
    with pytest.raises(LeaseLostError):
        store.decide(again, APPROVE)
    assert store.claim("bob", item=item.id) is not None
    with pytest.raises(UnknownItemError, match="nothing-like-it"):
        store.claim("bob", item="nothing-like-it")


def test_who_held_an_item_last_decides_it_no_more_once_it_was_taken_back(store: ReviewStore, now: list[float]) -> None:
    """Until somebody else claims an item, its reviewer can still decide after the lease; an administrator ends that."""
    item = store.enqueue(content("one"))
    lease = claim(store, "ann", seconds=10)
    now[0] += 11
    store.take_back(item.id, who="admin")
    with pytest.raises(LeaseLostError):
        store.decide(lease, APPROVE)


def test_what_was_taken_back_comes_in_its_turn_for_everybody(store: ReviewStore) -> None:
    first, second = store.enqueue(content("one")), store.enqueue(content("two"))

    def next_of(reviewer: str) -> str:
        lease = claim(store, reviewer)
        store.take_back(lease.item.id, who="eve")
        return lease.item.id

    assert [next_of(reviewer) for reviewer in ("ann", "ann", "eve", "eve")] == 4 * [first.id]
    lease = claim(store, "eve")
    store.release(lease)
    assert [next_of(reviewer) for reviewer in ("eve", "ann")] == [second.id, first.id]


def test_the_same_decision_twice_is_one_and_another_is_refused(store: ReviewStore) -> None:
    item = store.enqueue(content(), callback="https://example.org/hook")
    lease = claim(store, "ann")
    first = store.decide(lease, APPROVE)
    assert store.decide(lease, APPROVE) == first
    with pytest.raises(AlreadyDecidedError):
        store.decide(lease, Decision(action="reject"))
    assert words(store, item.id).count("decided") == 1
    assert store.stats().undelivered == 1


def test_after_the_deadline_nobody_decides(store: ReviewStore, now: list[float]) -> None:
    item = store.enqueue(content(), expires_in=60)
    lease = claim(store, "ann", seconds=600)
    now[0] += 60
    with pytest.raises(ItemExpiredError):
        store.decide(lease, APPROVE)
    assert store.claim("bob") is None
    assert store.expire() == 1
    assert store.item(item.id).state == "expired"
    assert store.expire() == 0


def test_giving_up_loses_to_a_decision_that_came_first(store: ReviewStore) -> None:
    first, second = store.enqueue(content()), store.enqueue(content())
    lease = claim(store, "ann")
    store.decide(lease, APPROVE)
    decision = store.cancel(first.id).decision
    assert decision is not None
    assert decision.action == "approve"
    assert store.cancel(second.id).decision is None
    assert store.item(second.id).state == "expired"


def test_what_is_not_allowed_is_refused(store: ReviewStore) -> None:
    store.enqueue(content(allowed=("approve", "reject")))
    lease = claim(store, "ann")
    with pytest.raises(UsageError, match="does not allow 'respond'; it allows approve, reject"):
        store.decide(lease, Decision(action="respond", text="x"))
    assert store.item(lease.item.id).state == "claimed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "respond"},
        {"action": "respond", "text": "  "},
        {"action": "approve", "text": "x"},
        {"action": "edit"},
        {"action": "edit", "candidate": {"text": " "}},
        {"action": "reject", "candidate": {"text": "x"}},
    ],
)
def test_incomplete_decisions(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Decision.model_validate(wrong)


def test_without_a_candidate_there_is_nothing_to_approve() -> None:
    with pytest.raises(ValueError, match="nothing to approve"):
        Content(question="q")
    assert Content(question="q", allowed=("reject", "respond")).candidate is None


def test_the_trail_cannot_be_changed(store: ReviewStore) -> None:
    item = store.enqueue(content())
    for statement in ("DELETE FROM review_events", "UPDATE review_events SET who = 'nobody'"):
        with pytest.raises(DatabaseError, match="append-only"), store.database.write() as transaction:
            transaction.connection.exec_driver_sql(statement)
    assert words(store, item.id) == ["enqueued"]
    store.note_event("alarm", {"monitor": "risk"})
    assert store.trail()[-1].detail == {"monitor": "risk"}


def test_counters(store: ReviewStore, now: list[float]) -> None:
    for _ in range(5):
        store.enqueue(content())
    store.enqueue(content(), expires_in=1)
    for action in ("approve", "reject"):
        lease = claim(store, "ann")
        store.decide(lease, Decision(action=action))
    store.claim("ann", seconds=5)
    store.claim("bob", seconds=500)
    now[0] += 50
    store.expire()
    counts = store.stats()
    assert (counts.pending, counts.claimed, counts.decided, counts.expired) == (2, 1, 2, 1)
    assert counts.actions == {"approve": 1, "reject": 1}
    assert counts.oldest == 50.0


def test_lists(store: ReviewStore) -> None:
    for name in "abc":
        store.enqueue(content(name))
    assert [item.content.question for item in store.items(["pending"])] == ["a", "b", "c"]
    assert [item.content.question for item in store.items(newest=True, limit=2)] == ["c", "b"]
    assert store.items(["decided"]) == []


def test_it_is_all_there_after_reopening(store_url: str) -> None:
    with ReviewStore(store_url) as first:
        item = first.enqueue(content("ü 漢 <b>"), key="k")
    with ReviewStore(store_url) as second:
        assert second.item(item.id) == item


def test_waiting_ends_with_the_decision(store: ReviewStore) -> None:
    lease = claim(store, "ann", item=store.enqueue(content()).id)
    assert store.wait(lease.item.id, 0) is None
    decided = store.decide(lease, APPROVE)
    assert store.wait(lease.item.id, 60) == decided.decision


def test_threads_never_share_an_item(store_url: str) -> None:
    with ReviewStore(store_url) as store:
        for _ in range(40):
            store.enqueue(content())
        claimed: list[str] = []

        def work(name: str) -> None:
            while (lease := store.claim(name)) is not None:
                claimed.append(lease.item.id)

        threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = store.claim("sweeper")  # PostgreSQL passes over what another is just taking
        while left is not None:
            claimed.append(left.item.id)
            left = store.claim("sweeper")
        assert len(claimed) == len(set(claimed)) == 40


def test_a_fork_gets_connections_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from guardrail.review import *\n"
        f"store = ReviewStore({str(tmp_path / 'reviews.db')!r})\n"
        "c = Content(question='q', candidate=Candidate(text='a'))\n"
        "store.enqueue(c)\n"
        "child = os.fork()\n"
        "for _ in range(20): store.enqueue(c)\n"
        "store.close()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(store.stats().pending)\n"
        "store.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "41\n"), done.stderr


# -- kills -------------------------------------------------------------------------------------------------------------

PRODUCER = """
import sys
from guardrail.review import *
store = ReviewStore(sys.argv[1])
name, n = sys.argv[2], int(sys.argv[3])
print('ready', flush=True)
for i in range(n):
    store.enqueue(Content(question=f'{name}-{i}', candidate=Candidate(text='a')), key=f'{name}-{i}', callback='http://x')
    print(f'{name}-{i}', flush=True)
print('done', flush=True)
"""
WORKER = """
import sys, time
from guardrail.review import *
store = ReviewStore(sys.argv[1])
name = sys.argv[2]
print('ready', flush=True)
while True:
    lease = store.claim(name, seconds=0.1)  # so short that others take over
    if lease is None:
        time.sleep(0.01)
        continue
    try:
        store.decide(lease, Decision(action='respond', text=name))
    except (LeaseLostError, AlreadyDecidedError):
        continue
    print(lease.item.key, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kills_lose_nothing(store_url: str, tmp_path: Path, seed: int) -> None:
    """Producers and reviewers are killed at random moments; what they were told is true afterwards.

    Every key that `enqueue` returned for is there exactly once; every decision that `decide` returned for stands under
    the name it was made with; each item is decided once and has one callback; nothing is left half done.
    """
    rng = random.Random(seed)
    n = 25
    running: dict[str, tuple[subprocess.Popen[str], Path, str]] = {}
    outputs: list[tuple[str, Path]] = []
    ReviewStore(store_url).close()

    def start(name: str, code: str, *arguments: str) -> None:
        path = tmp_path / f"{name}-{len(outputs)}.out"
        with path.open("w") as stream:
            command = [sys.executable, "-c", code, store_url, name, *arguments]
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        running[name] = (process, path, code)
        outputs.append((name, path))

    for i in range(2):
        start(f"p{i}", PRODUCER, str(n))
    for i in range(3):
        start(f"w{i}", WORKER)
    until = time.monotonic() + 300
    kills = 0
    try:
        with ReviewStore(store_url) as store:
            while time.monotonic() < until:
                finished = all("done" in running[f"p{i}"][1].read_text() for i in range(2))
                if finished and kills >= 6 and store.stats().decided == 2 * n:
                    break
                # A process that just started has done nothing yet: kill only those at work.
                name = rng.choice(sorted(running))
                process, path, code = running[name]
                if process.poll() is None and path.stat().st_size > 0 and kills < 12:
                    time.sleep(rng.random() * 0.3)
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                    if code is WORKER or "done" not in path.read_text():
                        start(name, code, *([str(n)] if code is PRODUCER else []))
                time.sleep(0.05)
    finally:
        for process, _, _ in running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
    reports = [(name, line) for name, path in outputs for line in path.read_text().splitlines()]
    assert [(name, line) for name, line in reports if "Error" in line] == []
    with ReviewStore(store_url) as store:
        there = {item.key: item for item in store.items(limit=1000)}
        assert set(there) == {f"p{p}-{i}" for p in range(2) for i in range(n)}
        assert kills >= 6
        for name, line in reports:
            if line in there and name.startswith("w"):
                decision = there[line].decision
                assert decision is not None
                assert decision.reviewer == decision.text == name
        counted = Counter((event.item, event.what) for event in store.trail(limit=100_000))
        assert all(counted[item.id, "enqueued"] == counted[item.id, "decided"] == 1 for item in there.values())
        assert store.stats().undelivered == 2 * n


def test_misuse(tmp_path: Path) -> None:
    for wrong, message in (
        ("sqlite://", "in memory"),
        (":memory:", "in memory"),
        ("mysql://x/y", "SQLite and PostgreSQL"),
        ("://", "not a database URL"),
    ):
        with pytest.raises(UsageError, match=message):
            ReviewStore(wrong)
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(UsageError, match="cannot open"):
        ReviewStore(text)
    with pytest.raises(UsageError, match="cannot open"):
        ReviewStore(tmp_path)
    ReviewStore(tmp_path / "reviews.db").close()
    assert (tmp_path / "reviews.db").stat().st_mode & 0o077 == 0, "it has questions and answers in it"


# -- layouts -------------------------------------------------------------------------------------------------------


def test_processes_that_open_a_new_database_at_once_make_its_tables_once(empty_url: str) -> None:
    """The second process failed on tables that exist."""
    with ThreadPoolExecutor(4) as threads:
        for store in threads.map(lambda _: ReviewStore(empty_url), range(4)):
            assert store.items() == []
            store.close()


def test_tables_that_cannot_all_be_made_leave_none(empty_url: str) -> None:
    """A database that was made by half would open as a whole one at the next start."""
    with (
        patch.object(tables, "_SQLITE", ["bad"]),
        patch.object(tables, "_POSTGRESQL", ["bad"]),
        pytest.raises(UsageError, match="cannot open the review store"),
    ):
        ReviewStore(empty_url)
    with ReviewStore(empty_url) as store:
        assert store.items() == []


@pytest.mark.parametrize("layout", ["0", "2", "two", None])
def test_another_layout_is_refused_with_the_way_out(store_url: str, layout: str | None) -> None:
    """Tables of another version would be read wrongly: nothing may be decided on them."""
    with ReviewStore(store_url) as store, store.database.write() as transaction:
        transaction.execute(update(tables.meta).values(value=layout))
    refused = rf"layout '{layout}'; this version of acrc-guardrail reads '1'. Upgrade acrc-guardrail to the version"
    with pytest.raises(UsageError, match=refused):
        ReviewStore(store_url)


def test_a_check_writes_and_counts_nothing(store: ReviewStore) -> None:
    before = store.stats()
    store.check()
    store.check()
    assert store.stats() == before
    with store.database.write() as transaction:
        transaction.execute(text("DROP TABLE review_marks"))
    with pytest.raises((StoreUnavailableError, DatabaseError), match=r"no such table|does not exist"):
        store.check()


# -- many items ----------------------------------------------------------------------------------------------------


class Plans:
    """Query plans of SQLite for each statement that reads the items."""

    def __init__(self, store: ReviewStore) -> None:
        self.found: list[str] = []
        event.listen(store.database.engine, "before_cursor_execute", self.explain)

    def explain(self, connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "FROM review_items" in statement:
            rows = connection.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            self.found += [row[3] for row in rows]

    def through_all_rows(self) -> bool:
        """Whether a step goes through the rows of all items, with their contents."""
        return any(step.startswith("SCAN review_items") and "COVERING" not in step for step in self.found)


@pytest.mark.parametrize("indexed", [True, False])
def test_counts_and_lists_read_indexes_and_no_rows_of_other_items(tmp_path: Path, indexed: bool) -> None:
    with ReviewStore(tmp_path / "reviews.db") as store:
        if not indexed:  # the control
            with store.database.write() as transaction:
                for name in ("queue", "late", "action", "history"):
                    transaction.connection.exec_driver_sql(f"DROP INDEX review_items_{name}")
        store.enqueue(content())
        plans = Plans(store)
        calls: list[Callable[[], object]] = [
            store.stats,
            lambda: store.items(["pending", "claimed"]),
            lambda: store.items(["decided", "expired"], newest=True),
            lambda: store.claim("ann"),
            lambda: store.claim("ann", kinds=["audit"]),
            store.expire,
        ]
        for call in calls:
            plans.found.clear()
            call()
            assert plans.found
            assert plans.through_all_rows() is not indexed, plans.found


# -- files of SQLite -----------------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[ReviewStore]:
    with ReviewStore(tmp_path / "reviews.db") as opened:
        yield opened


def test_a_full_disk_is_not_available_and_loses_nothing_that_was_stored(sqlite_store: ReviewStore) -> None:
    item = sqlite_store.enqueue(content())
    with sqlite_store.database.write() as transaction:
        pages = transaction.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        transaction.connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnavailableError, match="database or disk is full"):
        sqlite_store.enqueue(content("x" * 100_000))
    assert [stored.id for stored in sqlite_store.items()] == [item.id], "reading goes on"
    with sqlite_store.database.write() as transaction:
        transaction.connection.exec_driver_sql("PRAGMA max_page_count=1073741823")
    sqlite_store.enqueue(content("x" * 100_000))


def test_a_write_that_fails_is_undone(sqlite_store: ReviewStore) -> None:
    sqlite_store.enqueue(content())

    def fails() -> None:
        with sqlite_store.database.write() as transaction:
            for table in ("review_items", "nowhere"):
                transaction.connection.exec_driver_sql(f"UPDATE {table} SET holder = 'wrong'")

    with pytest.raises((StoreUnavailableError, DatabaseError), match=r"no such table|does not exist"):
        fails()
    assert [item.holder for item in sqlite_store.items()] == [None]


def test_a_connection_stays_open_and_a_moved_file_is_not_replaced(sqlite_store: ReviewStore, tmp_path: Path) -> None:
    connected: list[object] = []
    event.listen(sqlite_store.database.engine, "connect", lambda *_: connected.append(1))
    sqlite_store.enqueue(content())
    lease = claim(sqlite_store, "ann")
    sqlite_store.decide(lease, APPROVE)
    assert (len(connected), (tmp_path / "reviews.db-wal").exists()) == (0, True)
    (tmp_path / "reviews.db").rename(tmp_path / "away.db")
    for act in (sqlite_store.items, sqlite_store.stats, sqlite_store.check, partial(sqlite_store.enqueue, content())):
        with pytest.raises(StoreUnavailableError, match="was moved, deleted or replaced"):
            act()
    assert not (tmp_path / "reviews.db").exists()
    (tmp_path / "away.db").rename(tmp_path / "reviews.db")
    assert len(sqlite_store.items()) == 1


# -- carrying out --------------------------------------------------------------------------------------------------


def decided(store: ReviewStore) -> str:
    item = store.enqueue(content())
    lease = claim(store, "ann", item=item.id)
    store.decide(lease, APPROVE)
    return item.id


def test_a_decision_is_carried_out_by_one_at_a_time(store: ReviewStore, now: list[float]) -> None:
    item = decided(store)
    (first,) = store.lease([item], seconds=60)
    assert (first.item.lease_until, first.until) == (None, 1060.0)
    now[0] = 1059.9
    assert store.lease([item]) == []
    now[0] = 1060.0  # whoever had it is taken for dead
    (second,) = store.lease([item], seconds=60)
    assert second.item.lease_until == 1060.0  # it was leased before
    store.settle(first, again=True)
    assert store.lease([item]) == []  # too late: it is another's now
    store.settle(second, what="carried_out", again=False)
    assert words(store, item)[3:] == ["taken_up", "taken_up", "put_down", "carried_out"]
    (third,) = store.lease([item])
    assert third.item.lease_until is None


def test_what_was_put_down_unfinished_is_free_at_once_and_says_so(store: ReviewStore) -> None:
    item = decided(store)
    (first,) = store.lease([item])
    store.settle(first, again=True)
    (second,) = store.lease([item])
    assert second.item.lease_until == 1000.0
    assert second.item.decision is not None


def test_items_are_leased_all_or_none(store: ReviewStore) -> None:
    first, other = decided(store), decided(store)
    still_open = store.enqueue(content()).id
    for ids in ([first, still_open], [first, "no such item"]):
        assert store.lease(ids) == []
    (work_lease,) = store.lease([other])
    assert store.lease([first, other]) == []
    store.settle(work_lease, again=False)
    assert [work_lease.item.id for work_lease in store.lease([first, other])] == [first, other]


def test_an_expired_item_is_leased_too_and_a_decision_told_twice_stays_one(store: ReviewStore) -> None:
    item = store.enqueue(content())
    store.cancel(item.id, why="x")
    assert len(store.lease([item.id])) == 1
    lease = claim(store, "ann", item=store.enqueue(content()).id)
    store.decide(lease, APPROVE)
    store.lease([lease.item.id])
    assert store.decide(lease, APPROVE).decision is not None  # a retry after an answer that got lost


def test_threads_that_lease_the_same_items_at_once_do_not_share_them(store: ReviewStore) -> None:
    ids = [decided(store) for _ in range(2)]
    results: list[list[WorkLease]] = []
    start = threading.Barrier(6)

    def work(order: list[str]) -> None:
        start.wait()
        results.append(store.lease(order))

    workers = [threading.Thread(target=work, args=(ids[:: 1 if i % 2 else -1],)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(len(work_leases) for work_leases in results) == [0, 0, 0, 0, 0, 2]


def test_an_edit_with_a_number_that_a_graphs_state_cannot_hold_is_refused(store: ReviewStore) -> None:
    """It was recorded, and stopped the graph at every resume."""
    calls = [{"name": "pay", "arguments": {"wei": 5}}]
    waits = content(kind="tool_call", candidate={"tool_calls": calls}, agent=True)
    item = store.enqueue(waits)
    lease = claim(store, "ann", item=item.id)
    more = {"tool_calls": [{"name": "pay", "arguments": {"wei": 25 * 10**18}}]}
    edit = Decision.model_validate({"action": "edit", "candidate": more})
    with pytest.raises(UsageError, match=r"pay hold an integer of 65 bits.*Correct them, or reject"):
        store.decide(lease, edit)
    assert store.item(item.id).state == "claimed"
    # Where no graph waits, JSON's own numbers do.
    lease = claim(store, "ann", item=store.enqueue(waits.model_copy(update={"agent": False})).id)
    store.decide(lease, edit)
    decision = decision_of(store, lease.item.id)
    assert decision.candidate == edit.candidate


def test_an_expiring_key_is_added_once_and_changed_by_its_owner(store_url: str) -> None:
    times = [0.0]
    with ReviewStore(store_url, clock=lambda: times[0]) as store:
        keys = ExpiringKeys(store.database)
        assert (keys.add("m", "mine", 10), keys.add("m", "another", 10), keys.get("m")) == (None, "mine", "mine")
        assert not keys.replace("m", "another", "x", 10)
        assert keys.replace("m", "mine", "done", 20)
        times[0] = 15.0
        assert keys.add("m", "another", 10) == "done"
        times[0] = 20.0
        assert (keys.get("m"), keys.add("m", "another", 10)) == (None, None)
        times[0] = 30.0
        store.purge(older_than=86_400, who="ann")
        with store.database.read() as transaction:
            assert not transaction.execute(text("SELECT * FROM review_marks")).all()


def test_a_lease_is_of_use_to_the_reviewer_who_claimed_the_item_only(store: ReviewStore, now: list[float]) -> None:
    """With the value of Karl's lease Dora decided an item that Karl was reviewing."""
    item = store.enqueue(content())
    lease = claim(store, "karl", seconds=60)
    hers = replace(lease, reviewer="dora")
    with pytest.raises(LeaseLostError, match=f"this lease of item {item.id} is karl's, not dora's"):
        store.decide(hers, Decision(action="approve"))
    with pytest.raises(LeaseLostError, match="karl's"):
        store.renew(hers)
    with pytest.raises(LeaseLostError, match="karl's"):
        store.release(hers)
    now[0] += 61  # the item is pending again, and its lease still counts for Karl
    with pytest.raises(LeaseLostError, match="karl's, not dora's"):
        store.decide(hers, Decision(action="approve"))
    assert store.decide(lease, Decision(action="approve")).holder == "karl"


def test_an_item_that_was_closed_says_why(store: ReviewStore) -> None:
    """A reviewer read "the deadline has passed" where the customer had written another message."""
    item = store.enqueue(content())
    lease = claim(store, "karl")
    store.cancel(item.id, why="The conversation went on.")
    with pytest.raises(ItemExpiredError, match=r"nobody waits for a decision any more\. The conversation went on\."):
        store.decide(lease, Decision(action="approve"))
    assert store.left_undone([item.id, "0" * 32]) == {item.id: "The conversation went on."}
