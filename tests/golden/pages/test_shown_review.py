"""Transcripts of the review store, its API, callbacks, messages, monitors and commands.

Each file is one story: what was called, and what it returned or refused. The clock stands still, ids are counted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, ValidationError
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoTurnError
from starlette.testclient import TestClient

from guardrail.__main__ import main
from guardrail.errors import GuardrailError
from guardrail.guard.abstention import Abstention
from guardrail.monitor import Alarm
from guardrail.parts.part import PartVerdict
from guardrail.review import (
    Candidate,
    CandidateRule,
    CandidateSet,
    Content,
    Decision,
    Deliverer,
    Destination,
    Lease,
    Monitors,
    PartDecision,
    ReviewStore,
    StoreUnavailableError,
    ask_reviewer,
    audit_sample,
    by_parts,
    delivery,
    sign,
    ticket,
    verify,
)
from guardrail.review import command as review_command
from guardrail.review.destinations import announce
from guardrail.review.hooks import content_of
from guardrail.review.limits import check_callback, check_seconds, check_text, passes
from guardrail.review.monitors.inbox import FOLD_AT_ONCE, Inbox, InboxWorker
from guardrail.review.monitors.rows import inbox
from guardrail.review.monitors.rows import monitors as monitor_table
from guardrail.review.queue.database import _check_in_time, _unavailable
from guardrail.review.queue.deadline import Circuit, Operation
from guardrail.review.queue.expiring_keys import ExpiringKeys
from guardrail.review.queue.item import frozen, writable
from guardrail.review.queue.schema import events, items, metadata, outbox
from guardrail.review.queue.writers import _Transaction
from guardrail.review.web.accounts import Accounts, add_token
from guardrail.review.web.app import review_app
from guardrail.review.web.server import Limits, check_proxies, server_of
from guardrail.review.web.sessions import RateLimit, Session, Sessions
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, ToolCall, Uncertainty
from guardrail.verdict import Reason, Verdict
from tests.golden.pages.test_shown_pages import TOKENS, _counted, call_item, nested, part_item, sentences_item
from tests.golden.shown import same
from tests.review_pages import REVIEWERS, held_back

__all__ = ["_counted"]  # a fixture

DAY = 86_400.0
SECRET = "a secret that both sides know"
HOOK = "https://hooks.example.com/decided?team=7"
SETTINGS = (
    *("ws", "log_level", "access_log", "server_header", "proxy_headers", "forwarded_allow_ips"),
    *("limit_concurrency", "backlog"),
)
SHORT = Content(question="Who?", candidate=Candidate(text="Woolf"), metadata={"thread": 7})


def plain(value: Any) -> Any:
    """A value as JSON, with six digits of what is computed; times keep theirs."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif is_dataclass(value) and not isinstance(value, type):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and abs(value) < 1e6:
        return float(f"{round(value, 9):.6g}") + 0.0
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def brief(value: Any) -> Any:
    """A value as `plain`, without contents."""
    value = plain(value)
    if isinstance(value, dict):
        return {name: brief(each) for name, each in value.items() if name != "content" or isinstance(each, str)}
    return [brief(each) for each in value] if isinstance(value, list) else value


class Story:
    """Lines of a transcript."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        """A line of its own."""
        self.lines += ["", text]

    def did(self, name: str, call: Callable[..., Any], *arguments: Any, whole: bool = False) -> Any:
        """Call, and note what it returned or refused; returns the value."""
        try:
            value = call(*arguments)
        except (GuardrailError, ValueError, NoTurnError) as error:
            text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            text = text.replace("JSON compliant: nan", "JSON compliant")  # Python names the number since 3.13
            self.lines.append(f"{name}\n  {type(error).__name__}: {text}")
            return None
        shown = json.dumps((plain if whole else brief)(value), ensure_ascii=False, indent=1 if whole else None)
        self.lines.append(f"{name}\n  {shown}")
        return value

    def trail(self, store: ReviewStore) -> None:
        """The audit trail."""
        self.note("trail:")
        for event in store.trail():
            detail = json.dumps(plain(event.detail), ensure_ascii=False)
            self.lines.append(f"  {event.at:.0f} {event.item[-4:] or '-'} {event.who}: {event.what} {detail}")

    def same(self, name: str) -> None:
        """Compare with a golden file."""
        same(f"review/{name}", "\n".join(self.lines))


@pytest.fixture
def story() -> Story:
    return Story()


def claimed(store: ReviewStore, item: str, name: str = "ann", **how: Any) -> Lease:
    """The lease of an item that is free."""
    lease = store.claim(name, item=item, **how)
    assert lease is not None
    return lease


# -- the store -----------------------------------------------------------------------------------------------------


def test_the_life_of_an_item(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did
    item = did("enqueue", lambda: store.enqueue(held_back(), key="order-7", expires_in=600, callback=HOOK), whole=True)
    did("enqueue again", lambda: store.enqueue(SHORT, key="order-7", expires_in=5))
    did("the same, reopen for longer", lambda: store.enqueue(SHORT, key="order-7", expires_in=900, reopen=True))
    did("the same, reopen for less", lambda: store.enqueue(SHORT, key="order-7", expires_in=5, reopen=True))
    did("the same, reopen without a deadline", lambda: store.enqueue(SHORT, key="order-7", reopen=True))
    did("claim", lambda: store.claim("ann", seconds=60))
    did("claim what is taken", lambda: store.claim("bob", item=item.id))
    did("claim when nothing is free", lambda: store.claim("bob"))
    now[0] += 10
    lease = did("claim it again", lambda: store.claim("ann", item=item.id, seconds=60))
    did("held by ann", lambda: store.held(item.id, "ann"))
    did("held by bob", lambda: store.held(item.id, "bob"))
    did("stats", lambda: store.stats())
    now[0] += 10
    lease = did("renew", lambda: store.renew(lease, seconds=100))
    did("release", lambda: store.release(lease))
    did("release again", lambda: store.release(lease))
    did("renew what was released", lambda: store.renew(lease))
    now[0] += 1
    lease = did("claim by default", lambda: store.claim("bob"))
    now[0] += 601
    did("held after the end", lambda: store.held(item.id, "bob"))
    did("expire", lambda: store.expire())
    did("decide after the end", lambda: store.decide(lease, Decision(action="approve", note="late, but free")))
    did("decide again the same", lambda: store.decide(lease, Decision(action="approve", note="late, but free")))
    did("decide again otherwise", lambda: store.decide(lease, Decision(action="reject")))
    did("renew what is decided", lambda: store.renew(lease))
    did("release what is decided", lambda: store.release(lease))
    did("claim what is decided", lambda: store.claim("ann", item=item.id))
    did("reopen what is decided", lambda: store.enqueue(SHORT, key="order-7", expires_in=900, reopen=True))
    did("cancel what is decided", lambda: store.cancel(item.id, why="too late"))
    did("give up what is decided", lambda: store.give_up(item.id))
    did("take back what is decided", lambda: store.take_back(item.id, who="eve"))
    did("stats", lambda: store.stats())
    did("stats without actions", lambda: store.stats(actions=False))
    story.trail(store)
    story.same("item.txt")


def test_the_end_of_an_item(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did
    late = did("with a deadline", lambda: store.enqueue(SHORT, key="late", expires_in=100, callback=HOOK))
    lease = claimed(store, late.id, seconds=500)
    now[0] += 99
    did("expire, just in time", lambda: store.expire())
    did("give up only if late, just in time", lambda: store.give_up(late.id, only_if_late=True))
    now[0] += 1
    did("decide at the deadline", lambda: store.decide(lease, Decision(action="approve")))
    did("renew at the deadline", lambda: store.renew(lease))
    did("release at the deadline", lambda: store.release(lease))
    did("claim at the deadline", lambda: store.claim("ann", item=late.id))
    did("reopen before it is closed", lambda: store.enqueue(SHORT, key="late", expires_in=50, reopen=True))
    now[0] += 50
    did("expire", lambda: store.expire())
    did("expire again", lambda: store.expire())
    did("the item", lambda: store.item(late.id))
    did("decide what is expired", lambda: store.decide(lease, Decision(action="approve")))
    did("reopen", lambda: store.enqueue(SHORT, key="late", expires_in=50, reopen=True))
    did("claim the reopened", lambda: store.claim("bob", item=late.id, seconds=20))
    did("take back", lambda: store.take_back(late.id, who="eve"))
    did("take back again", lambda: store.take_back(late.id, who="eve"))
    did("bob's next, after a take-back", lambda: store.claim("bob", seconds=20))
    did("cancel", lambda: store.cancel(late.id, why="the order was cancelled"))
    did("cancel again", lambda: store.cancel(late.id, why="again"))
    given_up = store.enqueue(SHORT, key="nobody")
    did("give up", lambda: store.give_up(given_up.id, within=1))
    did("give up again", lambda: store.give_up(given_up.id))
    did("give up only if late, no deadline", lambda: store.give_up(store.enqueue(SHORT).id, only_if_late=True))
    first, second = store.enqueue(SHORT, key="first"), store.enqueue(held_back(kind="audit"), key="second")
    lease = claimed(store, first.id, "bob")
    store.release(lease)
    store.claim("eve", item=store.items(["pending"])[0].id, seconds=1)
    now[0] += 1
    did("bob's next is not what he gave back", lambda: store.claim("bob", seconds=1, kinds=("answer", "audit")))
    did("the next of a kind", lambda: store.claim("eve", kinds=("audit",)))
    did("none of this kind", lambda: store.claim("eve", kinds=("tool_call",)))
    did("what he gave back comes last", lambda: [store.claim("bob", seconds=9) for _ in range(3)])
    did("note an event", lambda: store.note_event("checked", {"by": "hand"}, who="eve", item=second.id))
    story.trail(store)
    story.same("end-of-an-item.txt")


def test_finding(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did
    for number in range(6):
        item = store.enqueue(held_back(f"Question {number} of 100 %?", f"Answer_{number}"), key=f"key-{number}")
        now[0] += 1
        if number % 2:
            lease = claimed(store, item.id)
            now[0] += 10 - number
            store.decide(
                lease, Decision(action="approve" if number > 1 else "respond", text=None if number > 1 else "x")
            )
    store.give_up(store.items()[0].id)

    def keys(listed: Any) -> Any:
        return [item.key for item in listed]

    did("find", lambda: store.find("key-3"))
    did("find nothing", lambda: store.find("no such key"))
    did("find what no database holds", lambda: store.find("\0"))
    did("all", lambda: keys(store.items()))
    did("newest", lambda: keys(store.items(newest=True)))
    did("pending", lambda: keys(store.items(["pending"])))
    did("decided, newest, a page", lambda: keys(store.items(["decided", "expired"], newest=True, limit=2, offset=1)))
    did("twice the same state", lambda: keys(store.items(["decided", "decided"], limit=2)))
    did("no state", lambda: keys(store.items([])))
    for wanted in ("key-3", "question", " 100 % ", "answer_5", "answer?5", "Virginia", "", "\0", store.items()[2].id):
        did(f"search {wanted!r}", lambda wanted=wanted: keys(store.search(wanted)))
    did("search, two at most", lambda: keys(store.search("question", limit=2)))
    did("trail, two lines", lambda: store.trail(limit=2))
    did("trail of an item", lambda: store.trail(store.items()[1].id))
    did("trail of what no database holds", lambda: store.trail("\0"))
    did("stats", lambda: store.stats())
    did("check", lambda: store.check())
    with store.database.write() as connection:
        connection.execute(update(items).where(items.c.key == "key-2").values(content="{", kind="essay"))
        connection.execute(update(items).where(items.c.key == "key-3").values(decision="{}"))
        broken = {"item": "", "at": now[0], "who": "eve", "what": "alarm", "detail": "{"}
        connection.execute(events.insert().values(**broken))
    did("a content that cannot be read", lambda: store.find("key-2"), whole=True)
    did("a decision that cannot be read", lambda: store.find("key-3"), whole=True)
    did("particulars that cannot be read", lambda: store.trail()[-1])
    story.same("finding.txt")


def test_carrying_out(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did
    decided = store.enqueue(SHORT)
    lease = claimed(store, decided.id)
    store.decide(lease, Decision(action="approve"))
    closed, waiting = store.enqueue(SHORT), store.enqueue(SHORT)
    store.give_up(closed.id)
    did("lease one that is open", lambda: store.lease([decided.id, waiting.id]))
    work = did("lease", lambda: store.lease([decided.id, closed.id, decided.id], seconds=60))
    did("lease what another has", lambda: store.lease([decided.id]))
    did("the item", lambda: store.item(decided.id))
    now[0] += 59
    did("a second early", lambda: store.lease([decided.id]))
    now[0] += 1
    later = did("lease after the end", lambda: store.lease([decided.id]))
    did("settle one that was taken over", lambda: store.settle(work[0], what="carried_out", again=False))
    did("the item", lambda: store.item(decided.id))
    did("put down", lambda: store.settle(later[0], again=True))
    later = did("lease again at once", lambda: store.lease([decided.id]))
    now[0] += 1
    did("carry out", lambda: store.settle(later[0], what="carried_out", again=False))
    did("the item", lambda: store.item(decided.id))
    did("lease nothing", lambda: store.lease([]))
    story.trail(store)
    story.same("carrying-out.txt")


def test_waiting(store: ReviewStore, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a wait: pauses grow from 50 ms to a second, and the last look is short."""
    from guardrail.review.queue import store as store_module

    clock, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 4))
        clock[0] += seconds

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    def timeout(seconds: float) -> Any:
        limits.append(round(seconds, 4))
        return nullcontext()

    limits: list[float] = []
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    item = store.enqueue(SHORT)
    story.did("wait", lambda: store.wait(item.id, 10))
    story.did("pauses", lambda: pauses)
    pauses.clear()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", asleep)
        patched.setattr(asyncio, "timeout", timeout)
        story.did("await", lambda: asyncio.run(store.await_decision(item.id, 10)))
    story.did("pauses", lambda: pauses)
    story.did("limits of its looks", lambda: limits)
    story.did("wait for what does not exist", lambda: store.wait("nothing", 1))
    lease = store.claim("ann")
    assert lease is not None
    store.decide(lease, Decision(action="approve"))
    pauses.clear()
    story.did("wait for what is decided", lambda: store.wait(item.id, 10))
    story.did("await what is decided", lambda: asyncio.run(store.await_decision(item.id, 10)))
    story.did("pauses", lambda: pauses)
    within: list[float] = []
    read = store.database.read

    def failing(seconds: float | None = None) -> Any:
        within.append(round(seconds or 0, 4))
        raise StoreUnavailableError("it hangs")

    monkeypatch.setattr(store.database, "read", failing)
    story.did("wait while the database hangs", lambda: store.wait(item.id, 2))
    story.did("seconds of each look", lambda: within)
    monkeypatch.setattr(store.database, "read", read)
    story.same("waiting.txt")


def test_purging(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did

    def decide(key: str, callback: str | None = None) -> None:
        lease = claimed(store, store.enqueue(SHORT, key=key, callback=callback).id)
        store.decide(lease, Decision(action="approve"))

    keys = ExpiringKeys(store.database)
    keys.add("answer", "remembered", 5 * DAY)
    decide("decided")
    decide("callback waits", HOOK)
    decide("callback delivered", HOOK)
    with store.database.write() as connection:
        done = select(items.c.id).where(items.c.key == "callback delivered").scalar_subquery()
        connection.execute(update(outbox).where(outbox.c.item == done).values(state="delivered"))
    store.enqueue(SHORT, key="open")
    store.enqueue(SHORT, key="expired", expires_in=DAY)
    store.enqueue(SHORT, key="expires late", expires_in=20 * DAY)
    store.give_up(store.enqueue(SHORT, key="given up", expires_in=90 * DAY).id)
    late = store.enqueue(SHORT, key="decided late")
    decide("carried out late")
    risk = Monitors(store).risk("errors", 0.1)
    risk.update(True, key=late.id)
    risk.update(False, key="old")
    drift = Monitors(store).drift("scores", make_artifact(ScriptedChat(), threshold=0.7))
    drift.update(0.25, key="old score")
    now[0] += 19.5 * DAY
    lease = claimed(store, late.id)
    store.decide(lease, Decision(action="approve"))
    worked = store.find("carried out late")
    assert worked is not None
    store.lease([worked.id], seconds=600)
    decide("new")
    now[0] += 0.6 * DAY
    for days in (0, -1, float("nan"), 4000):
        did(f"purge {days} days", lambda days=days: store.purge(days * DAY))
    did("purge without a name", lambda: store.purge(DAY, who=""))
    did("a dry run", lambda: store.purge(10 * DAY, dry_run=True))
    did("what is there", lambda: [item.key for item in store.items()])
    did("purge", lambda: store.purge(10 * DAY, who="eve"))
    did("what is left", lambda: [item.key for item in store.items()])
    did("the key", lambda: keys.get("answer"))
    did("callbacks left", lambda: store.stats())
    did("steps left", lambda: Monitors(store).history("errors"))
    did("purge again", lambda: store.purge(10 * DAY))
    now[0] += 2 * DAY
    did("purge two days later", lambda: store.purge(10 * DAY))
    did("what is left", lambda: [item.key for item in store.items()])
    did("purge half a day", lambda: store.purge(0.5 * DAY))
    did("what is left", lambda: [item.key for item in store.items()])
    story.trail(store)
    story.same("purging.txt")


def test_expiring_keys(store: ReviewStore, now: list[float], story: Story) -> None:
    keys = ExpiringKeys(store.database)
    story.did("add", lambda: keys.add("a", "1", 10))
    story.did("add again", lambda: keys.add("a", "2", 10))
    story.did("get", lambda: keys.get("a"))
    story.did("replace another value", lambda: keys.replace("a", "2", "3", 10))
    now[0] += 5
    story.did("replace", lambda: keys.replace("a", "1", "3", 10))
    now[0] += 9
    story.did("get", lambda: keys.get("a"))
    now[0] += 1
    story.did("get at the end", lambda: keys.get("a"))
    story.did("add after the end", lambda: keys.add("a", "4", 10))
    story.did("remove another value", lambda: keys.remove("a", "1"))
    story.did("get", lambda: keys.get("a"))
    story.did("remove", lambda: keys.remove("a", "4"))
    story.did("get", lambda: keys.get("a"))
    story.same("expiring-keys.txt")


def test_tables(store: ReviewStore) -> None:
    """Columns and indexes of all tables, as declared and as the migrations make them."""
    lines = []
    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        lines += ["", table.name]
        for column in table.columns:
            marks = [column.primary_key and "key", column.nullable and "nullable", column.unique and "unique"]
            lines.append("  ".join(["", column.name, str(column.type), *(mark for mark in marks if mark)]))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            lines.append(f"  index {index.name}: {', '.join(str(each) for each in index.expressions)}")
    with closing(sqlite3.connect(store.database.url.database or "")) as connection:
        for (table_name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
            lines += ["", f"made: {table_name}"]
            for _, name, kind, required, default, key in connection.execute(f"PRAGMA table_info({table_name})"):
                lines.append(f"  {name} {kind} required {required} default {default} key {key}")
            made = connection.execute(f"PRAGMA index_list({table_name})").fetchall()
            for _, index_name, unique, *_ in sorted(made, key=lambda each: str(each[1])):
                columns = [str(each[2]) for each in connection.execute(f"PRAGMA index_info({index_name})")]
                lines.append(f"  index {index_name} unique {unique}: {', '.join(columns)}")
    same("review/tables.txt", "\n".join(lines))


# -- refusals ------------------------------------------------------------------------------------------------------


def test_refusals_of_the_store(store: ReviewStore, story: Story) -> None:
    did = story.did

    def enqueue(**how: Any) -> Callable[[], Any]:
        return lambda: store.enqueue(SHORT, **how)

    did("a callback without a scheme", enqueue(callback="hooks.example.com/x"))
    did("a callback of ftp", enqueue(callback="ftp://hooks.example.com/x"))
    did("a callback with a line break", enqueue(callback="https://hooks.example.com/\nx"))
    did("a callback with a password", enqueue(callback="https://ann:pw@hooks.example.com/x"))
    did("a callback with a token", enqueue(callback="https://hooks.example.com/x?myToken=1&a=2"))
    did("a callback with a code", enqueue(callback="https://hooks.example.com/x?code=1"))
    did("a callback with a harmless name", enqueue(callback="https://hooks.example.com/x?zipcode=1&design=2"))
    did("a callback that cannot be read", enqueue(callback="https://[::1/x"))
    did("a callback without a host", enqueue(callback="https:///x"))
    did("a key that is too long", enqueue(key="k" * 513))
    did("a key of 512 characters", lambda: len(store.enqueue(SHORT, key="k" * 512).key))
    did("an empty key", enqueue(key=""))
    did("a key with a NUL", enqueue(key="a\0"))
    did("half of a surrogate pair", enqueue(key="a\ud800"))
    did("a name that is too long", enqueue(who="w" * 257))
    for seconds in (0, -1.5, float("inf"), float("nan"), 315_576_001):
        did(f"expires_in {seconds}", enqueue(expires_in=seconds))
    did("expires_in of ten years", lambda: store.enqueue(SHORT, expires_in=315_576_000).deadline)
    did("claim without a name", lambda: store.claim(""))
    did("claim with a name that is too long", lambda: store.claim("n" * 257))
    did("claim for ever", lambda: store.claim("ann", seconds=float("inf")))
    did("claim what no database holds", lambda: store.claim("ann", item="\0"))
    did("claim what does not exist", lambda: store.claim("ann", item="x"))
    did("the item", lambda: store.item("x"))
    did("held", lambda: store.held("x", "ann"))
    did("take back", lambda: store.take_back("x", who="eve"))
    did("take back without a name", lambda: store.take_back("x", who=""))
    did("give up", lambda: store.give_up("x"))
    did("cancel", lambda: store.cancel("x", why="y"))
    did("lease for no time", lambda: store.lease(["x"], seconds=0))
    did("lease what does not exist", lambda: store.lease(["x"]))
    did("an event with a long name", lambda: store.note_event("e" * 33, {}))
    did("an event without a name", lambda: store.note_event("", {}))
    did("an event of nobody", lambda: store.note_event("e", {}, who=""))
    did("an event of an item that no database holds", lambda: store.note_event("e", {}, item="\0"))
    did("check_seconds", lambda: check_seconds("wait", 0, "Use 5."))
    did("check_text of a number", lambda: check_text("name", 5, 9))  # type: ignore[arg-type]
    did("check_callback", lambda: check_callback("javascript:alert(1)"))
    did("passes", lambda: [passes("hold"), passes("pass")])
    did("passes something else", lambda: passes("drop"))
    story.same("refusals.txt")


def test_refusals_of_decisions(store: ReviewStore, story: Story) -> None:
    did = story.did
    call = ToolCall(name="transfer", arguments={"to": "Ann", "amount": 5})
    other = ToolCall(name="balance", arguments={})

    def decide(content: Content, decision: Decision) -> Callable[[], Any]:
        item = store.enqueue(content)
        lease = claimed(store, item.id)
        return lambda: store.decide(lease, decision).decision

    did("no allowed decision", lambda: Content(question="q", allowed=()))
    did("one allowed twice", lambda: Content(question="q", allowed=("reject", "reject")))
    did("approve without a candidate", lambda: Content(question="q"))
    did("respond without a text", lambda: Decision(action="respond", text=" "))
    did("a text with approve", lambda: Decision(action="approve", text="x"))
    did("edit without a candidate", lambda: Decision(action="edit"))
    did("a candidate with approve", lambda: Decision(action="approve", candidate=Candidate(text="x")))
    did("an empty edit", lambda: Decision(action="edit", candidate=Candidate(text=" ")))
    did("a part without its text", lambda: PartDecision(place="/a", action="edit"))
    did("a text of an approved part", lambda: PartDecision(place="/a", action="approve", text="x"))
    did("not allowed", decide(held_back(allowed=("reject",)), Decision(action="approve")))
    calls = Candidate(tool_calls=(call, other))
    edits = {
        "text": (held_back(edits="text"), Candidate(tool_calls=(call,))),
        "arguments, another tool": (call_item(), Candidate(tool_calls=(other,))),
        "arguments, a number of 65 bits": (
            call_item(),
            Candidate(tool_calls=(call.model_copy(update={"arguments": {"to": "Ann", "amount": 2**64}}),)),
        ),
        "a fixed call": (
            call_item(candidate=calls, fixed=(1,), edits="any"),
            Candidate(tool_calls=(call, ToolCall(name="balance", arguments={"x": 1}))),
        ),
        "a fixed call left out": (call_item(candidate=calls, fixed=(1,), edits="any"), Candidate(tool_calls=(call,))),
    }
    for name, (content, candidate) in edits.items():
        did(f"an edit: {name}", decide(content, Decision(action="edit", candidate=candidate)))
    did("half of a surrogate pair", decide(SHORT, Decision(action="respond", text="\ud800")))
    deep = Decision(
        action="edit", candidate=Candidate(tool_calls=(call.model_copy(update={"arguments": {"a": nested(300)}}),))
    )
    did("nested too deeply", decide(SHORT, deep))
    number = call.model_copy(update={"arguments": {"a": float("nan")}})
    did(
        "a number that is not finite", decide(SHORT, Decision(action="edit", candidate=Candidate(tool_calls=(number,))))
    )
    did("frozen: it can be rejected only", lambda: frozen(held_back(answer="\ud800")).allowed)
    did("frozen: in an audit", lambda: frozen(held_back(answer="\ud800", kind="audit")).candidate)
    did("frozen: nothing is left", lambda: frozen(held_back(answer="\ud800", allowed=("approve", "edit"))))
    did("frozen: nested too deeply", lambda: frozen(held_back(metadata={"a": nested(300)})))
    did("frozen: what JSON lacks", lambda: frozen(held_back(metadata={"a": float("inf"), "b\ud800": {1}})).metadata)
    did("frozen: not JSON", lambda: frozen(held_back(metadata={"a": object()})))
    did("a verdict that cannot be read", lambda: held_back().parsed_verdict())
    did("no verdict", lambda: SHORT.parsed_verdict())
    did("writable", lambda: writable(Decision(action="approve")))
    parts = part_item()
    places = [part.place for part in parts.parts if not part.kept]

    def decided(*actions: str, **texts: str) -> Callable[[], Any]:
        named = zip(places, actions, strict=True)
        each = [
            {"place": place, "action": action, "text": texts.get(f"at{i}", "")}
            for i, (place, action) in enumerate(named)
        ]
        return lambda: by_parts(parts, [PartDecision.model_validate(one) for one in each], "note")

    did("by parts: all right", decided("approve", "approve", "approve", "approve"))
    did("by parts: some", decided("approve", "reject", "edit", "reject", at2='"y"'))
    did("by parts: not JSON", decided("edit", "reject", "reject", "reject", at0="19x"))
    did("by parts: not all of them", lambda: by_parts(parts, []))
    did(
        "by parts: all out",
        lambda: by_parts(
            sentences_item(parts=tuple(part.held() for part in sentences_item().parts)),
            [PartDecision(place=place, action="reject") for place in ("0-22", "23-99")],
        ),
    )
    in_call = (
        PartVerdict(path="/to", text='"Ann"', uncertainty=0.5, kept=False),
        PartVerdict(path="/amount", text="5", uncertainty=0.0, kept=True),
    )
    did("by parts: of a call", lambda: by_parts(call_item(parts=in_call), [PartDecision(place="/to", action="reject")]))
    did(
        "by parts: a call with another value",
        lambda: by_parts(call_item(parts=in_call), [PartDecision(place="/to", action="edit", text='"Bob"')]),
    )
    claims = tuple(PartVerdict(span=(0, 22), claim=i, text=f"claim {i}", uncertainty=0.5, kept=i == 1) for i in (1, 2))
    of_claims = sentences_item(parts=claims)
    for action in ("approve", "reject"):
        did(
            f"by parts: claims, {action}",
            lambda action=action: by_parts(
                of_claims, [PartDecision.model_validate({"place": "0-22#2", "action": action})]
            ),
        )
    forged = by_parts(of_claims, [PartDecision(place="0-22#2", action="approve")])
    forged = forged.model_copy(update={"candidate": Candidate(text="something else")})
    did("parts and another candidate", decide(of_claims, forged))
    did("a whole edit of parts", decide(of_claims, Decision(action="edit", candidate=Candidate(text="x"))))
    story.same("decisions.txt")


def test_refusals_of_databases(tmp_path: Path, story: Story, new_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    did = story.did
    did("not a URL", lambda: ReviewStore("://"))
    did("another database", lambda: ReviewStore("mysql://host/name"))
    did("another driver", lambda: ReviewStore("sqlite+nothing:///x.db?key=secret"))
    did("in memory", lambda: ReviewStore("sqlite://"))
    did("in memory, too", lambda: ReviewStore("sqlite:///:memory:"))
    did("a deadline of no time", lambda: ReviewStore("reviews.db", deadline=0))
    Path("folder").mkdir()
    did("a folder", lambda: ReviewStore("folder"))
    Path("text.db").write_text("This is not a database, but a text that is long enough to be looked at.")
    did("a text", lambda: ReviewStore("text.db"))
    Path("in").write_text("")
    did("below a file", lambda: ReviewStore("in/reviews.db"))
    Path("old.db").write_bytes(new_store.read_bytes())
    with closing(sqlite3.connect("old.db")) as connection:
        connection.execute("UPDATE review_meta SET value = '99' WHERE name = 'layout'")
        connection.commit()
    did("of a newer version", lambda: ReviewStore("old.db"))
    Path("lost.db").write_bytes(new_store.read_bytes())
    Path("lost.db-shm").write_bytes(b"")
    did("a log that is lost", lambda: ReviewStore("lost.db"))
    moved = ReviewStore("moved.db")
    Path("moved.db").rename("away.db")
    did("a file that was moved", lambda: moved.items())
    did("a second later", lambda: moved.enqueue(SHORT))
    moved.close()
    story.same("databases.txt")


def test_failures_of_a_database(store: ReviewStore, story: Story) -> None:
    did, database = story.did, store.database

    def failing(error: Exception) -> Callable[[], Any]:
        def run() -> None:
            with database.read():
                raise error

        return run

    def coded(code: int) -> Exception:
        cause = sqlite3.OperationalError("disk I/O error\nvalues: a secret question")
        cause.sqlite_errorcode = code  # type: ignore[misc, unused-ignore]
        return OperationalError("SELECT", {}, cause)

    for name in ("SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_IOERR_WRITE"):
        did(name, failing(coded(getattr(sqlite3, name))))
    for state in ("53100", "57014", "57P01", "25006", "25P03"):
        cause = type("Broken", (Exception,), {"sqlstate": state})("the server says no.")
        did(f"SQLSTATE {state}", failing(OperationalError("SELECT", {}, cause)))
    did("locked", failing(OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked"))))
    did("a connection", failing(OperationalError(None, None, OSError("no route"))))
    for other in (
        coded(sqlite3.SQLITE_ERROR),
        OperationalError("SELECT", {}, type("B", (Exception,), {"sqlstate": "42601"})()),
    ):
        with pytest.raises(OperationalError):
            failing(other)()
    late, soon = Operation(2.5), Operation(2.5)
    late.late = True
    for name, error in (
        ("late", OperationalError("SELECT", {}, OSError("interrupted"))),
        ("late, refused", ValueError("no")),
        ("no turn", NoTurnError("other threads were writing")),
        ("no connection", StoreUnavailableError("cannot be reached")),
        ("another error", ValueError("no")),
    ):
        did(name, _unavailable, error, late if "late" in name else soon)
    did("late before it began", _check_in_time, late)
    did("in time", _check_in_time, soon)
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(database.read())
        did("the ninth connection", lambda: database._connected(Operation(0.05), False).__enter__())
    did("a free one again", lambda: len(store.items()))

    def undone() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("ROLLBACK")

    did("a transaction that SQLite undid", undone)
    did("the next one", lambda: store.check())
    writers = database._writers
    writers._taken = True
    did("writers that wait", lambda: writers.write(0.01).__enter__())
    writers._taken = False
    with closing(database.engine.connect()) as connection:
        waiting = _Transaction(connection)
        did("a commit that takes too long", waiting.wait, 0.01)
        waiting.commit()
        did("a commit", waiting.wait, 0.01)
    clock = [0.0]
    circuit = Circuit(lambda: clock[0])
    for after in (0.0, 0.0, 0.0, 0.0, 3.75, 1.25, 0.0, 5.0):
        clock[0] += after
        did(f"after {clock[0]:g} s", circuit.enter)
        if after != 5.0:
            circuit.note(failed=clock[0] != 5.0)
    circuit.note(failed=False)
    did("after a success", circuit.enter)
    story.same("failures.txt")


# -- the API -------------------------------------------------------------------------------------------------------


def test_the_api(store: ReviewStore, now: list[float], story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = RateLimit(failures=2, window=300, pause=0, clock=lambda: 0.0)
    app = review_app(store, Accounts.from_text(TOKENS), limit=limit, hosts=("testserver",))
    bearer = {"Authorization": "Bearer zendesk-token-0123456789ab"}

    def reply(name: str, response: Any) -> Any:
        headers = {
            key: response.headers[key] for key in ("etag", "retry-after", "www-authenticate") if key in response.headers
        }
        text = json.dumps(response.json(), ensure_ascii=False)
        story.lines.append(f"{name}\n  {response.status_code} {headers or ''} {text}")
        return response

    with TestClient(app, headers=bearer) as system:

        def decide(name: str, ticket_: str, body: Any = None, **headers: str) -> Any:
            sent = {key.replace("_", "-"): value for key, value in headers.items()}
            body = {"action": "approve", "reviewer": "Dora"} if body is None else body
            return reply(name, system.post(f"/api/items/{ticket_}/decide", json=body, headers=sent))

        item = store.enqueue(
            held_back(verdict=None, metadata={"thread": 7}), key="order-7", callback=HOOK, expires_in=600
        )
        version = reply("read", system.get(f"/api/items/{item.id}")).headers["etag"]
        reply("read nothing", system.get("/api/items/nothing"))
        reply("without a token", system.get(f"/api/items/{item.id}", headers={"Authorization": ""}))
        reply("another scheme", system.get(f"/api/items/{item.id}", headers={"Authorization": "Basic x"}))
        person = {"Authorization": "bearer ann-token-0123456789ab"}
        reply("a person's token", system.get(f"/api/items/{item.id}", headers=person))
        for _ in range(3):
            reply("a wrong token", system.get(f"/api/items/{item.id}", headers={"Authorization": "Bearer x"}))
        reply("a decision as a form", system.post(f"/api/items/{item.id}/decide", data={"action": "approve"}))
        decide("of nothing", "nothing")
        decide("neither an action nor parts", item.id, {"reviewer": "Dora"})
        decide(
            "an action and parts",
            item.id,
            {"reviewer": "Dora", "action": "approve", "parts": [{"place": "/a", "action": "approve"}]},
        )
        decide("no reviewer", item.id, {"action": "approve"})
        decide("an empty reviewer", item.id, {"action": "approve", "reviewer": ""})
        decide("another field", item.id, {"action": "approve", "reviewer": "Dora", "score": 5})
        decide("an action that does not exist", item.id, {"action": "delete", "reviewer": "Dora"})
        decide("not an object", item.id, [])
        decide("tool calls beside approve", item.id, {"action": "approve", "reviewer": "Dora", "tool_calls": []})
        decide("a text beside approve", item.id, {"action": "approve", "reviewer": "Dora", "text": "x"})
        decide("an empty edit", item.id, {"action": "edit", "reviewer": "Dora", "text": ""})
        decide("a long reviewer", item.id, {"action": "approve", "reviewer": "D" * 245})
        decide("a reviewer with a line break", item.id, {"action": "approve", "reviewer": "D\n"})
        decide(
            "parts of an item without parts",
            item.id,
            {"reviewer": "Dora", "parts": [{"place": "/a", "action": "approve"}]},
        )
        broken = {"Content-Type": "application/json"}
        reply("not JSON", system.post(f"/api/items/{item.id}/decide", content=b"{", headers=broken))
        decide("another version", item.id, If_Match='"0"')
        decide("an empty key", item.id, Idempotency_Key="")
        decide("a key that is too long", item.id, Idempotency_Key="k" * 256)
        lease = claimed(store, item.id, seconds=60)
        decide("while a person has it", item.id, If_Match=f'"x", {version}')
        store.release(lease)
        edit = {"action": "edit", "reviewer": "Dora", "text": "V. Woolf", "note": "checked"}
        decide("an edit", item.id, edit, If_Match=version, Idempotency_Key="key-1")
        decide("the same again", item.id, edit, If_Match=version, Idempotency_Key="key-1")
        decide("the same key, another body", item.id, Idempotency_Key="key-1")
        decide("the same without a key", item.id, edit)
        decide("another decision", item.id)
        reply("read it", system.get(f"/api/items/{item.id}"))
        now[0] += 86_401
        decide("the key after a day", item.id, Idempotency_Key="key-1")
        story.note("other items:")
        blind = Content(
            question="2 + 2?",
            kind="audit",
            candidate=Candidate(text="4"),
            alternatives=(("4", 0.6),),
            allowed=("approve", "edit", "reject"),
        )
        label = store.enqueue(blind)
        reply("read an item to label", system.get(f"/api/items/{label.id}"))
        decide("an edit that changes nothing", label.id, {"action": "edit", "reviewer": "Dora"})
        parts = store.enqueue(part_item(verdict=None, alternatives=()))
        reply("read an item with parts", system.get(f"/api/items/{parts.id}"))
        by_part = [{"place": place, "action": "reject"} for place in ("/year", "/pages", "/a~1b/0", "/isbn")]
        decide("by parts", parts.id, {"reviewer": "Dora", "parts": by_part})
        late = store.enqueue(SHORT, expires_in=5)
        now[0] += 6
        decide("too late", late.id)
        refused = store.enqueue(held_back(allowed=("edit", "reject"), verdict=None))
        decide("not allowed", refused.id, Idempotency_Key="key-2")
        assert store.item(refused.id).state == "pending"
        decide("nothing is edited", refused.id, {"action": "edit", "reviewer": "Dora"}, Idempotency_Key="key-2")
        add = ExpiringKeys.add
        monkeypatch.setattr(
            ExpiringKeys, "add", lambda keys, name, value, seconds: (add(keys, name, value, seconds), value)[1]
        )
        decide("while the first still runs", refused.id, Idempotency_Key="key-3")

        def fails(*_: Any, **__: Any) -> None:
            raise StoreUnavailableError("it does not answer")

        monkeypatch.setattr(store, "item", fails)
        decide("without the database", refused.id)
    story.same("api.txt")


# -- callbacks and messages ----------------------------------------------------------------------------------------


def in_outbox(store: ReviewStore) -> list[dict[str, Any]]:
    """Rows of the outbox."""
    with store.database.read() as connection:
        found = connection.execute(select(outbox).order_by(outbox.c.created, outbox.c.id)).all()
    return [{**row._mapping, "body": json.loads(row.body)} for row in found]


@pytest.fixture
def posts(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> list[Any]:
    """Answers of receivers, in order; the deliverer's clock and dice stand still."""
    answers: list[Any] = []
    monkeypatch.setattr(delivery, "time", SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic))
    monkeypatch.setattr(delivery, "random", SimpleNamespace(uniform=lambda low, high: (low + 2 * high) / 3))

    def posted(url: str, body: bytes, headers: Any, seconds: float, hosts: Any) -> Any:
        answer = answers.pop(0) if answers else delivery._Answer(204)
        sent.append(
            {"url": url, "headers": dict(headers), "seconds": seconds, "hosts": hosts, "body": json.loads(body)}
        )
        return answer

    sent: list[Any] = []
    monkeypatch.setattr(delivery, "_posted", posted)
    answers_and_sent = SimpleNamespace(answers=answers, sent=sent)
    return answers_and_sent  # type: ignore[return-value]


def test_callbacks(store: ReviewStore, now: list[float], story: Story, posts: Any) -> None:
    did = story.did
    answer = delivery._Answer

    def decide(url: str, decision: Decision, **how: Any) -> str:
        lease = claimed(store, store.enqueue(SHORT, callback=url, **how).id)
        return store.decide(lease, decision).id

    deliverer = Deliverer(store, SECRET, hosts=("hooks.example.com",))
    first = decide(HOOK, Decision(action="edit", candidate=Candidate(text="V. Woolf"), note="n"), key="order-7")
    did("the outbox", lambda: in_outbox(store), whole=True)
    did("stats", lambda: store.stats())
    did("undelivered", deliverer.undelivered)
    posts.answers.append(answer(503, "HTTP 503"))
    did("deliver to a receiver that fails", deliverer.run_once)
    did("posted", lambda: posts.sent, whole=True)
    did("the signature", lambda: verify(SECRET, b"x", sign(SECRET, b"x", now[0]), now=now[0] + 300))
    did("the signature later", lambda: verify(SECRET, b"x", sign(SECRET, b"x", now[0]), now=now[0] + 301))
    for header in (None, "", "t=x,v1=y", "t=1", f"t={now[0]:.0f},v1=é", f"t={now[0]:.0f},v1=00"):
        did(f"the signature {header!r}", lambda header=header: verify(SECRET, b"x", header, now=now[0]))
    for each in ("state", "attempts", "next_at", "problem"):
        did(each, lambda each=each: [row[each] for row in in_outbox(store)])
    did("at once again", deliverer.run_once)
    now[0] += 1
    did("a second later", deliverer.run_once)
    did("state", lambda: [(row["state"], row["attempts"], row["problem"]) for row in in_outbox(store)])
    story.note("a receiver that is gone, one that does not answer, one that is refused:")
    gone = decide("https://gone.example.com", Decision(action="reject"))
    silent = decide("https://silent.example.com:8443/a", Decision(action="respond", text="x"))
    silent_too = decide("https://silent.example.com:8443#b", Decision(action="approve"))
    refused = decide("https://refused.example.com/", Decision(action="approve"))
    posts.answers += [
        answer(410, "HTTP 410"),
        answer(None, "TimeoutError: no answer\0 within 10 s"),
        answer(None, "not there", True),
    ]
    did("deliver", deliverer.run_once)

    def states() -> Any:
        rows = in_outbox(store)
        return [(row["url"], row["state"], row["attempts"], row["next_at"], row["problem"]) for row in rows]

    did("state", states)
    now[0] += 0.5
    did("half a second later", deliverer.run_once)
    now[0] += 1
    did("a second later", deliverer.run_once)
    did("state", states)
    story.note("pauses and attempts:")
    decide(HOOK, Decision(action="approve"))
    few = Deliverer(store, SECRET, attempts=3, first_pause=2.0, longest_pause=3.0, timeout=0.1)
    for _ in range(3):
        posts.answers.append(answer(500, "HTTP 500" + "x" * 600))
        did("deliver", few.run_once)
        did(
            "due",
            lambda: [
                (row["state"], round(row["next_at"] - now[0], 3), len(row["problem"])) for row in in_outbox(store)
            ][-1],
        )
        now[0] += 10
    did("pauses", lambda: [round(deliverer._pause(attempt), 3) for attempt in (1, 2, 5, 12, 13, 50)])
    story.note("an item that expires, and is decided after all:")
    late = store.enqueue(SHORT, callback=HOOK, expires_in=5, key="late")
    now[0] += 5
    store.expire()
    did("body", lambda: in_outbox(store)[-1], whole=True)
    store.enqueue(SHORT, key="late", expires_in=50, reopen=True)
    lease = claimed(store, late.id, "bob")
    store.decide(lease, Decision(action="approve"))
    did("states", lambda: [(row["body"]["type"], row["state"]) for row in in_outbox(store)[-2:]])
    assert len({first, gone, silent, silent_too, refused}) == 5
    standard = Deliverer(store, "whsec_MDEyMzQ1Njc4OWFiY2RlZg==")
    posts.sent.clear()
    did("deliver with a secret of Standard Webhooks", standard.run_once)
    did("its headers", lambda: [post["headers"] for post in posts.sent])
    story.trail(store)
    for secret in ("short", "whsec_not base64!!", b"short"):
        did(f"the secret {secret!r}", lambda secret=secret: Deliverer(store, secret))
    did("no posts", lambda: Deliverer(store, SECRET, posts=0))
    did("no time", lambda: Deliverer(store, SECRET, timeout=0))
    did("defaults", lambda: {name: each for name, each in repr_fields(Deliverer(store, SECRET)).items()})
    story.same("callbacks.txt")


def repr_fields(deliverer: Deliverer) -> dict[str, Any]:
    """Public settings."""
    names = ("attempts", "timeout", "first_pause", "longest_pause", "posts", "destinations", "hosts")
    return {name: getattr(deliverer, name) for name in names}


def test_messages(store: ReviewStore, now: list[float], story: Story, posts: Any) -> None:
    """What Slack, Teams and JSON receivers get of each event."""
    question = "Is <!channel> & <https://evil.example|this> a link?\nSecond line"
    urls = {name: f"https://{name}.example.com/T0/secret" for name in ("json", "slack", "teams")}
    page = "https://review.example.org/"
    destinations = (
        Destination(urls["json"], page=page),
        Destination(urls["slack"], "slack", page=page, questions=True),
        Destination(urls["teams"], "teams", page=page, questions=True),
        Destination(
            "https://all.example.com/x", "slack", ("review.decided", "review.expired"), kinds=("answer", "audit")
        ),
    )
    for destination in destinations:
        assert announce(store.database, destination) == 0
    content = SHORT.model_copy(update={"question": question})
    item = store.enqueue(content, key="order-7", expires_in=600)
    lease = claimed(store, item.id)
    store.decide(lease, Decision(action="respond", text="No."))
    store.enqueue(call_item(verdict=None))
    store.enqueue(SHORT.model_copy(update={"question": ""}), expires_in=5)
    label = Content(question="2 + 2?", kind="audit", candidate=Candidate(text="4"), allowed=("approve", "reject"))
    lease = claimed(store, store.enqueue(label).id)
    store.decide(lease, Decision(action="approve"))
    alarm = Alarm(monitor="risk", at=3, wealth=20.0, delta=0.05, detail="The error rate exceeds 10 %.")
    store.note_event("alarm", {"name": "errors", **alarm.model_dump(mode="json")})
    now[0] += 6
    deliverer = Deliverer(store, SECRET, destinations=destinations)
    posts.answers += [delivery._Answer(500, "HTTP 500")]
    story.did("deliver", deliverer.run_once)
    sent = sorted(posts.sent, key=lambda post: (post["url"], post["headers"]["Guardrail-Event-Id"]))
    for post in sent:
        story.note(f"{post['url']}, hosts {post['hosts']}, event {post['headers']['Guardrail-Event-Id'][-3:]}")
        text = json.dumps(post["body"], ensure_ascii=False, indent=1)
        story.lines.append(text.replace(post["body"].get("id", "(none)"), "(id)"))
    story.did("in the outbox", lambda: [(row["url"], row["state"]) for row in in_outbox(store)])
    now[0] += 70
    story.did("announce later", lambda: [announce(store.database, each) for each in destinations])
    now[0] += 86_401
    story.did("a day later", lambda: [announce(store.database, each) for each in destinations])
    story.did("in the outbox", lambda: len(in_outbox(store)))
    store.enqueue(content)
    posts.answers += [delivery._Answer(410, "HTTP 410")] * 3
    story.did("destinations that are gone", deliverer.run_once)
    story.did("the trail", lambda: [event.detail for event in store.trail() if event.what == "delivery_failed"])
    for how in (
        {"url": "ftp://x"},
        {"url": "https://x", "format": "mail"},
        {"url": "https://x", "events": ("review.deleted",)},
    ):
        story.did(f"Destination {how}", lambda how=how: Destination(**how))
    story.did("events", lambda: [Destination("https://x", each).wanted for each in ("json", "slack", "teams")])
    story.same("messages.txt")


def test_posts(story: Story) -> None:
    """What becomes of a post, without a network: addresses near by are refused before anything is sent."""
    did = story.did
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]

    def post(url: str, hosts: Any, seconds: float = 20) -> Callable[[], Any]:
        return lambda: delivery.post_within(url, b"{}", {}, seconds, hosts)

    did("a host that is not named", post("http://other.example.com/", ("*.example.org",)))
    did("a URL that cannot be read", post("http://[::1/", None))
    refused = delivery.post_within(f"http://127.0.0.1:{port}/", b"{}", {}, 20) or ""
    did("nobody listens", lambda: refused.partition(":")[0])  # the rest is the system's
    with socket.create_server(("127.0.0.1", 0)) as here:
        near = here.getsockname()[1]
        did("this machine", lambda: delivery.post_within(f"http://127.0.0.1:{near}/", b"{}", {}, 20, ()))
        did(
            "no answer in time",
            lambda: delivery.post_within(f"http://127.0.0.1:{near}/", b"{}", {}, 0.2, ("[127.0.0.1]",)),
        )
    for address in ("127.0.0.1", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "10.0.0.8"):
        try:
            delivery._refuse_near("hooks.example.com", address)
            story.note(f"{address}: may be posted to")
        except delivery._RefusedError as error:
            story.note(f"{address}: {error}")
    story.same("posts.txt")


# -- guards that ask people ----------------------------------------------------------------------------------------

QUESTION = "Who wrote The Waves?"
ANSWERS = ["Woolf", "Woolf", "Forster", "James", "Mansfield", "Woolf", "Stein", "Joyce", "Eliot", "Hardy", "Wells"]


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    """A verdict that holds an answer back."""
    from guardrail import Guardrail

    model = ScriptedChat(script={QUESTION: ANSWERS})
    guard = Guardrail(model=model, artifact=make_artifact(model))
    return guard.assess([HumanMessage(QUESTION)])


def test_hooks(
    store: ReviewStore, now: list[float], story: Story, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    did = story.did
    messages = (HumanMessage(QUESTION),)

    def asked(hook: Any, form: str = "text") -> Any:
        reply = hook.on_abstention(Abstention(verdict, messages, hook, "", form=form))  # type: ignore[arg-type]
        return None if reply is None else message(reply)

    def message(reply: AIMessage) -> Any:
        return {"content": reply.content, "tool_calls": len(reply.tool_calls), "metadata": reply.response_metadata}

    rule = CandidateRule(
        artifact=verdict.artifact,
        epsilon=0.2,
        quantile=0.3,
        n=40,
        n_without=2,
        attainable=0.15,
        population="held_back",
        delta=0.1,
    )
    content = content_of(verdict, messages, candidates=rule, metadata={"thread": 7})
    did("content", lambda: content.model_copy(update={"verdict": None}), whole=True)
    did("fields of the verdict", lambda: sorted(content.verdict or {}))
    did("an audit", lambda: brief(content_of(verdict, messages, kind="audit")).get("kind"))
    did("without messages", lambda: content_of(verdict, ()).question)
    failed = verdict.model_copy(update={"candidate": None})
    did("without a candidate", lambda: content_of(failed, messages).allowed)
    calls = AIMessage("", tool_calls=[{"name": "search", "args": {"q": "Waves"}, "id": "1"}])
    did("messages", lambda: content_of(verdict, [*messages, calls, HumanMessage("And?")]).messages)
    did("a ticket", lambda: asked(ticket(store, callback=HOOK, expires_in=600, key=lambda *_: "order-7")))
    did("with another reply", lambda: asked(ticket(store, reply="Wait: {ticket} {x}")))
    did("to a caller of another form", lambda: asked(ticket(store), "calls"))
    did("its item", lambda: store.find("order-7"))
    lease = claimed(store, store.items()[0].id)
    store.decide(lease, Decision(action="edit", candidate=Candidate(text="V. Woolf")))
    did("asked again", lambda: asked(ask_reviewer(store, wait=5, key=lambda *_: "order-7")))
    with monkeypatch.context() as nobody:
        nobody.setattr(store, "wait", lambda item, seconds: None)
        did("nobody answers", lambda: asked(ask_reviewer(store, wait=30)))
        did("the item is closed", lambda: store.items(newest=True)[0].state)
        did("nobody answers under a key", lambda: asked(ask_reviewer(store, wait=30, key=lambda *_: "k"), "calls"))
    kept = store.find("k")
    assert kept is not None
    did("the item stays open", lambda: (kept.state, kept.deadline, kept.content.allowed))
    did("metadata that is not JSON", lambda: ticket(store, metadata={"a": object()}))
    did("metadata with NaN", lambda: ask_reviewer(store, wait=5, metadata={"a": float("nan")}))
    did("metadata of a call", lambda: asked(ticket(store, metadata=lambda *_: {"a": {1}})))
    did("metadata of a call that is missing", lambda: asked(ticket(store, metadata=lambda *_: None)))
    did("no time", lambda: ask_reviewer(store, wait=0))
    did("no deadline", lambda: ticket(store, expires_in=-1))
    deep = ticket(store, metadata={"a": nested(300)})
    did("what cannot be stored", lambda: asked(deep))
    did("the trail says why", lambda: store.trail()[-1].detail)

    def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("it does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(store, "enqueue", fails)
        did("without the database", lambda: asked(ticket(store)))
        accepted = verdict.model_copy(update={"accepted": True})
        did("an audit without the database", lambda: audit_sample(store, 1.0)(accepted, messages))
        lenient = audit_sample(store, 1.0, on_watch_failure="pass")
        lenient(accepted, messages)
        did("an audit that passes", lambda: lenient.unwritten)
    audit_sample(store, 1.0, metadata={"group": "g"}, key=lambda *_: "request")(accepted, messages)
    did(
        "an audit",
        lambda: (
            (found := store.find("audit:request"))
            and (found.content.kind, found.content.metadata, found.content.allowed)
        ),
    )
    audit_sample(store, 1.0)(accepted, [HumanMessage(QUESTION, id="m1")])
    did("an audit of a message", lambda: store.items(newest=True)[0].key == f"audit:{verdict.artifact}:m1")
    for rate in (0, 1.5, float("nan")):
        did(f"audit rate {rate}", lambda rate=rate: audit_sample(store, rate))
    did("audit that drops", lambda: audit_sample(store, 0.1, on_watch_failure="drop"))  # type: ignore[arg-type]
    did("a key that is too long", lambda: audit_sample(store, 1.0, key=lambda *_: "k" * 513)(accepted, messages))
    sets = {
        "attained": CandidateSet(answers=(), epsilon=0.2, attained=True, attainable=0.1, delta=0.1),
        "not attained": CandidateSet(answers=(), epsilon=0.05, attained=False, attainable=0.125, delta=0.1),
        "of earlier versions": CandidateSet(answers=(), epsilon=0.2, attained=True, attainable=0.1),
    }
    for name, each in sets.items():
        did(f"a list {name}", lambda each=each: each.statement)
    did("the list of this verdict", lambda: rule.select(verdict), whole=True)
    did("all answers", lambda: len(rule.model_copy(update={"quantile": None}).select(verdict).answers))  # type: ignore[union-attr]
    did("of another artifact", lambda: rule.model_copy(update={"artifact": "0"}).select(verdict))
    story.same("hooks.txt")


# -- monitors ------------------------------------------------------------------------------------------------------


def test_monitors(store: ReviewStore, now: list[float], story: Story) -> None:
    did = story.did
    monitors, heard = Monitors(store), list[str]()
    artifact = make_artifact(ScriptedChat(), threshold=0.7)

    def hear(alarm: Alarm) -> None:
        heard.append(alarm.detail)

    alarm = Alarm(monitor="risk", at=3, wealth=20.0, delta=0.05, detail="Somebody said so.")
    risk = monitors.risk("errors", 0.1, min_audit_rate=0.5, on_alarm=hear)
    did("before the first audit", lambda: (risk.interval(), risk.state))
    did("update", lambda: risk.update(False, audit_rate=0.5, key="a"))
    did("the same key", lambda: risk.update(True, key="a").n)
    while not risk.state.alarmed:
        now[0] += 1
        risk.update(True, audit_rate=1.0)
    did("state", lambda: risk.state)
    did("interval", lambda: risk.interval())
    did("interval of 80 %", lambda: risk.interval(0.8))
    did("heard", lambda: heard)
    did("history", lambda: monitors.history("errors"))
    did("history, two points", lambda: [step.n for step in monitors.history("errors", most=2)])
    did("history of nobody", lambda: monitors.history("nobody"))
    did("history of what no database holds", lambda: monitors.history("\0"))
    switch = monitors.switch(every=0.0)
    did("objection", lambda: switch.objection(0.1))
    did("reason", switch.reason)
    did("alarms", lambda: switch.alarms)
    strict = monitors.switch("stricter", threshold=0.3, names="errors", every=0.0)
    did("stricter", lambda: [strict.allows(score) for score in (0.2, 0.3, 0.4)])
    did("a switch that follows others", lambda: monitors.switch(names=("gone", "errors", "away"), every=0.0).reason())
    did("acknowledge", lambda: monitors.acknowledge("errors", who="eve"))
    did("objection", lambda: switch.objection(0.1))
    did("update after it", lambda: risk.update(True).n)
    drift = monitors.drift("scores", artifact, delta=0.2, on_alarm=hear)
    did("a score", lambda: drift.update(0.25, key="s"))
    did("the same key", lambda: drift.update(0.75, key="s").n)
    for number in range(40):
        if drift.state.alarmed:
            break
        drift.update(5.0 + number)
    did("drift", lambda: drift.state.model_copy(update={"counts": ()}))
    did("heard", lambda: heard)
    canary = monitors.canary("known", 2, delta=0.5, on_alarm=hear)
    for number in range(30):
        canary.update([0.25 if number < 8 else 5.0 + number, None if number == 3 else 0.5])
    did("canary", lambda: canary.state.model_copy(update={"counts": canary.state.counts}))
    did("its alarm", lambda: canary.alarm)
    did("all", monitors.all)
    story.note("scores that wait:")
    with store.database.write() as connection:
        connection.execute(inbox.insert().values(name="scores", key="w", at=now[0], value=0.5))
    now[0] += 60
    did("a minute", lambda: monitors.switch(names="scores", every=0.0).reason())
    now[0] += 1
    did("more", lambda: monitors.switch(names="scores", every=0.0).reason())
    did("fold", monitors.fold)
    did("fold again", monitors.fold)
    read = store.database.read
    store.database.read = fails  # type: ignore[method-assign]
    did("a database that cannot be read", lambda: monitors.switch(every=0.0).reason())
    followed = monitors.switch(every=0.0)
    did("it accepts", lambda: followed.allows(0.0))
    store.database.read = read  # type: ignore[method-assign]
    with followed._reading:
        did("while another thread reads", followed.reason)
    did("waits", lambda: [monitors.switch(every=each)._wait for each in (0.0, 2.0, 60.0)])
    did("give it an alarm", followed.alarm, alarm)
    did("its own alarm", lambda: (followed.reason(), len(followed.alarms)))
    remembered = monitors.switch(every=60.0)
    did("remembered", lambda: remembered.reason())
    story.note("refusals:")
    did("another kind", lambda: monitors.risk("scores", 0.1))
    did("another alpha", lambda: monitors.risk("errors", 0.2, min_audit_rate=0.5))
    did("another delta", lambda: monitors.drift("scores", artifact))
    did("another seed", lambda: monitors.drift("scores", artifact, delta=0.2, seed=1))
    did("other questions", lambda: monitors.canary("known", 3))
    did("a round of three", lambda: canary.update([1.0, 2.0, 3.0]))
    did("no name", lambda: monitors.risk("", 0.1))
    did("a name that is too long", lambda: monitors.risk("n" * 129, 0.1))
    did("a key that is too long", lambda: risk.update(True, key="k" * 513))
    did("a score that is not finite", lambda: drift.update(float("nan")))
    did("a key of a score that is too long", lambda: drift.update(0.5, key="k" * 513))
    did("no monitors to follow", lambda: monitors.switch(names=()))
    did("an empty name to follow", lambda: monitors.switch(names=("",)))
    did("acknowledge nobody", lambda: monitors.acknowledge("nobody", who="eve"))
    did("acknowledge for nobody", lambda: monitors.acknowledge("errors", who=""))
    did("a known monitor", lambda: (known := monitors.known_risk("errors")) and known.state.n)
    did("an unknown one", lambda: monitors.known_risk("nobody"))
    did("one of another kind", lambda: monitors.known_risk("scores"))
    with store.database.write() as connection:
        connection.execute(update(monitor_table).where(monitor_table.c.name == "known").values(kind="mood"))
    did("a kind of a newer version", monitors.all)
    with store.database.write() as connection:
        connection.execute(update(monitor_table).where(monitor_table.c.name == "scores").values(alarm="{}"))
        connection.execute(update(monitor_table).where(monitor_table.c.name == "errors").values(state="{"))
    did("a state that cannot be read", lambda: risk.state)
    did("an alarm that cannot be read", lambda: monitors.switch(names="scores", every=0.0).reason())
    story.trail(store)
    story.lines = [line.replace(artifact.digest, "(digest)") for line in story.lines]
    story.same("monitors.txt")


# -- accounts, sessions, limits ------------------------------------------------------------------------------------


def test_accounts(tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    did = story.did
    for text in ("ann", "ann:reviewer:short", "ann:boss:0123456789abcdefghij", ":reviewer:0123456789abcdefghij", ""):
        did(f"from {text!r}", lambda text=text: [plain(each) for each in Accounts.from_text(text).all()])
    did("two", lambda: [(each.name, each.role) for each in Accounts.from_text(f" {REVIEWERS} ,").all()])
    path = Path("tokens.json")
    for name in ("ann", "", "a:b", "a,b", "n" * 65, "a\n"):
        did(f"add {name!r}", lambda name=name: len(add_token(path, name, "reviewer")))
    did("add a boss", lambda: add_token(path, "bob", "boss"))
    did("add a system", lambda: len(add_token(path, "zendesk", "system")))
    stored = json.loads(path.read_text(encoding="utf-8"))
    did(
        "the file",
        lambda: {**stored, "accounts": {name: sorted(row.items())[:1] for name, row in stored["accounts"].items()}},
    )
    did("its mode", lambda: oct(path.stat().st_mode & 0o777))
    did("accounts", lambda: [(each.name, each.role) for each in Accounts(path).all()])
    for text in (
        "{",
        "[]",
        '{"format": 99, "accounts": {}}',
        '{"ann": {"role": "reviewer"}}',
        '{"ann": {"role": "boss", "sha256": "0"}}',
    ):
        Path("broken.json").write_text(text, encoding="utf-8")
        did(f"the file {text}", lambda: Accounts(Path("broken.json")))
    Path("broken.json").write_text('{"ann": {"role": "admin", "sha256": "0"}}', encoding="utf-8")
    did("of the first version", lambda: plain(Accounts(Path("broken.json")).all()))
    did("no file", lambda: Accounts(Path("none.json")).all())
    clock = [1000.0]
    sessions = Sessions(b"s" * 32, lambda: clock[0])
    session = sessions.begin("ann", "hash")
    cookie = sessions.write(session)
    story.note("sessions:")
    did("begin", lambda: session)
    did("cookie", lambda: cookie)
    did("form token", lambda: sessions.form_token(session))
    did("read", lambda: sessions.read(cookie))
    for wrong in (None, "", "x", cookie[:-1], "x" + cookie, cookie + "\ud800"):
        did(f"read {str(wrong)[:3]!r}…", lambda wrong=wrong: sessions.read(wrong))
    clock[0] += 12 * 3600 - 1
    did("read a second before the end", lambda: sessions.read(cookie) is not None)
    clock[0] += 1
    did("read at the end", lambda: sessions.read(cookie))
    clock[0] = 999.0
    did("read before the beginning", lambda: sessions.read(cookie))
    did("genuine", lambda: [sessions.genuine(session, each) for each in (sessions.form_token(session), "", "\ud800")])
    did("another secret", lambda: Sessions(None, lambda: 1000.0).read(cookie))
    did("a session before the sign-in", lambda: Session("n", 1.0))
    story.note("wrong tokens:")
    limit = RateLimit(failures=2, window=10, clock=lambda: clock[0])
    for host in (
        "1.2.3.4",
        "1.2.3.4:80",
        "1.2.3.4",
        "1.2.3.5",
        None,
        "x",
        "2001:db8::1",
        "[2001:db8::2]:443",
        "2001:db8::3",
        "::ffff:1.2.3.4",
    ):
        clock[0] += 1
        did(f"{host} at {clock[0]:g}", lambda host=host: limit.attempt(host))
    limit.succeeded("1.2.3.4")
    limit.succeeded("nobody")
    did("after a success", lambda: limit.attempt("1.2.3.4"))
    clock[0] += 10
    did("after the window", lambda: limit.attempt("1.2.3.4"))
    did("defaults", lambda: [RateLimit().pause, RateLimit()._most, RateLimit()._window])
    did("a thousand addresses", lambda: [limit.attempt(f"10.0.{n // 250}.{n % 250}") for n in range(1001)][-1])
    did("remembered", lambda: len(limit._seen))
    story.note("the server:")
    did("a trusted proxy", lambda: check_proxies(["10.0.0.0/8", "::1", "proxy"]))
    for descriptors, how in (
        (10_000, {"trusted_proxies": ("10.0.0.1",)}),
        (10_000, {"limits": Limits(3, 1.0, 2.0)}),
        (100, {}),
        (resource.RLIM_INFINITY, {"limits": Limits(connections=700)}),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda which, most=descriptors: (most, most))
        config = server_of(None, **how).config  # type: ignore[arg-type]
        did("settings", lambda c: {name: getattr(c, name) for name in SETTINGS}, config)
        did("limits", lambda c: asdict(c.http.limits), config)
    story.same("accounts.txt")


# -- commands ------------------------------------------------------------------------------------------------------


def arguments_of(module: Any) -> list[str]:
    """The arguments of a command, one a line."""
    import argparse

    parser = argparse.ArgumentParser(prog="guardrail")
    module.add_arguments(parser)
    lines = []
    for action in parser._actions[1:]:  # without the help
        fields = {
            name: getattr(action, name)
            for name in ("dest", "nargs", "const", "default", "type", "choices", "metavar", "help")
        }
        fields["type"] = getattr(fields["type"], "__name__", None)
        shown = ", ".join(f"{name} {str(value)!r}" for name, value in fields.items() if value not in (None, []))
        lines.append(f"{' '.join(action.option_strings)}: {type(action).__name__.strip('_')}, {shown}")
    return [*lines, *(parser.epilog or "").splitlines()]


def test_commands(
    tmp_path: Path, story: Story, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, new_store: Path
) -> None:
    from guardrail.review import monitor_command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "eve")
    for name in (
        "GUARDRAIL_REVIEW_DB",
        "GUARDRAIL_REVIEW_TOKENS",
        "GUARDRAIL_REVIEW_SECRET",
        "GUARDRAIL_WEBHOOK_SECRET",
        "GUARDRAIL_NOTIFY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: "t" * size)
    served: dict[str, Any] = {}

    def server(app: Any, *, trusted_proxies: tuple[str, ...]) -> Any:
        served["proxies"] = trusted_proxies
        served["hosts"] = [each.kwargs for each in app.user_middleware if "allowed_hosts" in each.kwargs]

        def run(sockets: list[socket.socket]) -> None:
            names = {thread.name for thread in threading.enumerate()}
            served["threads"] = sorted(names & {"guardrail-monitor", "guardrail-deliverer"})

        return SimpleNamespace(run=run)

    made = delivery.Deliverer

    def fails() -> str:
        raise OSError("no user")

    def deliverer(store: Any, secret: str, **how: Any) -> Any:
        served["destinations"] = [(each.format, each.page, each.url) for each in how["destinations"]]
        served["callback hosts"] = how["hosts"]
        return made(store, secret, **how)

    monkeypatch.setattr("guardrail.review.web.server.server_of", server)
    monkeypatch.setattr("guardrail.review.delivery.Deliverer", deliverer)

    def run(*words: str) -> None:
        served.clear()
        code = main(words)
        output = capsys.readouterr()
        port = [
            line.rpartition(":")[2].split()[0] for line in output.out.splitlines() if line.startswith("Review page")
        ]
        text = "".join(f"\n  {line}" for line in (output.out + output.err).splitlines())
        text = text.replace(f":{port[0]} ", ":PORT ") if port else text
        found = json.dumps(plain(served)) if served else ""
        found = found.replace(f":{port[0]}", ":PORT") if port else found
        story.lines.append(f"$ guardrail {' '.join(words)}  -> {code}{text}" + (f"\n  {found}" if found else ""))

    story.lines += [
        "guardrail review:",
        *arguments_of(review_command),
        "",
        "guardrail monitor:",
        *arguments_of(monitor_command),
        "",
    ]
    run("review")
    run("review", "--add-token", "ann")
    run("review", "--add-token", "bob", "--role", "admin", "--tokens", "folder/tokens.json")
    run("review", "--add-token", "a:b")
    run("review", "--dry-run")
    run("review", "--purge", "90")
    run("monitor", "--once")
    run("monitor", "--once", "--poll", "0")
    Path("reviews.db").write_bytes(new_store.read_bytes())
    run("monitor", "--once")
    old = 1_000_000_000.0
    clock = [old]
    with ReviewStore("reviews.db", clock=lambda: clock[0]) as store:
        for key in ("decided", "callback"):
            lease = store.claim(
                "ann", item=store.enqueue(SHORT, key=key, callback=HOOK if key == "callback" else None).id
            )
            assert lease is not None
            store.decide(lease, Decision(action="approve"))
        store.enqueue(SHORT, key="open")
        risk = Monitors(store).risk("errors", 0.1)
        risk.update(False)
        quiet = Monitors(store).risk("seen", 0.1)
        while not quiet.state.alarmed:
            quiet.update(True)
        Monitors(store).acknowledge("seen", who="eve")
        loud = Monitors(store).risk("loud\x1b[31m", 0.1)
        while not loud.state.alarmed:
            loud.update(True)
        clock[0] += 100 * DAY
    monkeypatch.setattr(
        "guardrail.review.queue.database.time",
        SimpleNamespace(time=lambda: clock[0], monotonic=time.monotonic, sleep=time.sleep),
    )
    run("monitor", "--once")
    run("review", "--purge", "90", "--dry-run")
    run("review", "--purge", "90.5")
    run("review", "--purge", "0")
    monkeypatch.setattr("guardrail.review.queue.purging._PATIENCE", 0.01)
    with closing(sqlite3.connect("reviews.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM review_items").fetchone()
        with ReviewStore("reviews.db") as store:  # it is now in the log, which a reader keeps
            store.note_event("checked", {})
        run("review", "--purge", "90", "--db", "reviews.db")
    signals: list[int] = []
    ended = SimpleNamespace(wait=lambda seconds: bool(signals), set=lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(monitor_command, "threading", SimpleNamespace(Event=lambda: ended))
        patched.setattr("signal.signal", lambda number, call: signals.append(int(number)))
        run("monitor", "--poll", "0.5")
    story.lines.append(f"  signals {signals}")
    with monkeypatch.context() as nameless:
        nameless.setattr("getpass.getuser", fails)
        run("review", "--purge", "0.001")
    with ReviewStore("reviews.db") as store:
        story.did("the trail", lambda: store.trail()[-3:])
    run("review", "--port", "0")
    run(
        "review",
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--allowed-host",
        "review.example.org",
        "--trusted-proxy",
        "10.0.0.0/8",
    )
    run("review", "--port", "70000")
    run("review", "--lease", "0")
    run("review", "--trusted-proxy", "x")
    monkeypatch.setenv("GUARDRAIL_NOTIFY", "slack=https://hooks.example.com/T/secret json=http://127.0.0.1:9/x")
    run("review", "--port", "0")
    monkeypatch.setenv("GUARDRAIL_WEBHOOK_SECRET", SECRET)
    run("review", "--port", "0", "--callback-host", "hooks.example.com")
    run("review", "--port", "0", "--https", "--host", "0.0.0.0", "--allowed-host", "review.example.org")
    monkeypatch.setenv("GUARDRAIL_NOTIFY", "mail=x@example.org")
    run("review", "--port", "0")
    monkeypatch.setenv("GUARDRAIL_NOTIFY", "slack=x")
    run("review", "--port", "0")
    monkeypatch.setenv("GUARDRAIL_REVIEW_SECRET", "short")
    monkeypatch.delenv("GUARDRAIL_NOTIFY")
    run("review", "--port", "0")
    monkeypatch.setenv("GUARDRAIL_REVIEW_TOKENS", "ann:reviewer:short")
    run("review", "--port", "0")
    monkeypatch.setenv("GUARDRAIL_REVIEW_DB", "elsewhere.db")
    run("review", "--purge", "90")
    run("monitor", "--once")
    story.same("commands.txt")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No thread of a test outlives it."""
    yield
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("guardrail-monitor", "guardrail-deliverer")
    ]


# -- trouble -------------------------------------------------------------------------------------------------------


class Pauses:
    """Stands for an event that nobody sets: notes how long each wait is, and ends after so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waited: list[float] = []

    def is_set(self) -> bool:
        return len(self.waited) >= self.most

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


@pytest.fixture
def logged(story: Story, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Callable[[], None]:
    """Move what was logged into the story."""

    def move() -> None:
        for record in caplog.records:
            text = record.getMessage().replace(f"{tmp_path}/", "")
            story.lines.append(f"  logged {record.name} {record.levelname.lower()}: {text}")
        caplog.clear()

    return move


def fails(*_: Any, **__: Any) -> Any:
    """Stand for a call of a database that fails."""
    raise OperationalError("SELECT", {}, OSError("disk full\nvalues: a secret question"))


def unavailable(*_: Any, **__: Any) -> Any:
    """Stand for a call of a store that is not available."""
    raise StoreUnavailableError("it does not answer")


def test_a_deliverer_whose_database_fails(
    store: ReviewStore, story: Story, logged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    deliverer = Deliverer(store, SECRET)
    for poll, broken in ((1.0, True), (0.5, False), (100.0, True)):
        with monkeypatch.context() as patched:
            if broken:
                patched.setattr(store, "expire", fails)
            pauses = Pauses(9 if broken else 2)
            deliverer._stop = pauses  # type: ignore[assignment]
            deliverer.run(poll)
        story.did(f"pauses, poll {poll:g}, the database {'fails' if broken else 'answers'}", lambda p: p.waited, pauses)
        logged()
    story.did("a count", lambda: deliverer._succeeded("count", lambda: 5))
    story.did("a count that fails", lambda: deliverer._succeeded("count", unavailable))
    logged()
    hook = ask_reviewer(store, wait=30)
    verdict_ = Verdict(**VERDICT)
    monkeypatch.setattr(store, "wait", lambda item, seconds: None)
    monkeypatch.setattr(store, "give_up", unavailable)
    story.did("an item that cannot be closed", lambda: hook.on_abstention(Abstention(verdict_, (), hook, "")))
    logged()
    story.lines = [line.replace(store.items(newest=True)[0].id, "(ticket)") for line in story.lines]
    story.same("trouble-of-deliveries.txt")


def test_a_worker_that_folds(
    store: ReviewStore, story: Story, logged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = InboxWorker(store.database, 0.5)

    def run(name: str, fold: Callable[[Any], int]) -> None:
        pauses, calls = Pauses(2), itertools.count(1)
        worker._stop = pauses  # type: ignore[assignment]

        def folding(database: Any) -> int:
            if next(calls) == 5:  # it folds on without a pause
                pauses.most = 0
            return fold(database)

        with monkeypatch.context() as patched:
            patched.setattr("guardrail.review.monitors.inbox.fold_all", folding)
            worker.run()
        story.did(name, lambda: (pauses.waited, f"call {next(calls)} would follow"))
        logged()

    run("pauses while the database fails", fails)
    run("pauses while many scores wait", lambda _: FOLD_AT_ONCE)
    run("pauses while few scores wait", lambda _: FOLD_AT_ONCE - 1)
    story.same("trouble-of-folding.txt")


def test_an_inbox_that_cannot_be_written(
    store: ReviewStore, story: Story, logged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    did = story.did
    artifact = make_artifact(ScriptedChat(), threshold=0.7)
    drift = Monitors(store).drift("scores", artifact, on_watch_failure="pass")
    strict = Monitors(store).drift("scores", artifact)
    kept, scored = Inbox(store.database, "scores"), Verdict(**{**VERDICT, "artifact": artifact.digest})
    with monkeypatch.context() as broken:
        broken.setattr("guardrail.review.monitors.inbox._KEPT", 2)
        broken.setattr(store.database, "write", unavailable)
        for number in range(4):
            did(f"add {number}", kept.add, float(number), f"key-{number}")
        for watching in (drift, strict):
            broken.setattr(watching, "_watch_on", lambda: None)
            did("watch", watching.watch, scored)
            did("unwritten", lambda w: w.unwritten, watching)
        did("kept", lambda: [row["key"] for row in kept._kept])
        logged()
    store.database.deadline = 0.02
    with kept._writing:
        did("add while others write", kept.add, 5.0, "key-5")
    store.database.deadline = 5.0
    did("flush", kept.flush)
    did("kept", lambda: kept._kept)
    did("add", kept.add, 9.0, "key-9")
    did("add the same key", kept.add, 8.0, "key-9")
    did("folded", Monitors(store).fold)
    did("history", lambda: [(step.n, step.value) for step in Monitors(store).history("scores")])
    kept.add(1.0, "late")
    with store.database.write() as connection:
        connection.execute(update(monitor_table).values(state="{"))
    did("a state that cannot be read", Monitors(store).fold)
    logged()
    story.note("an acknowledged alarm:")
    risk = Monitors(store).risk("errors", 0.1)
    while not risk.state.alarmed:
        risk.update(True)
    Monitors(store).acknowledge("errors", who="eve")
    for _ in range(2):
        did("update", lambda: risk.update(False).n)
        logged()
    story.same("trouble-of-monitors.txt")


def test_a_file_of_tokens_that_is_being_written(story: Story, logged: Callable[[], None], tmp_path: Path) -> None:
    path, good = tmp_path / "tokens.json", '{"ann": {"role": "admin", "sha256": "0"}}'
    path.write_text(good, encoding="utf-8")
    os.utime(path, (9, 9))
    accounts = Accounts(path)
    for number, text in enumerate((good, "{", "{", good.replace("ann", "bob"), None, "{", good)):
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (number, number))
        for name in (f"the file {text}", "again"):
            story.did(name, lambda: [account.name for account in accounts.all()])
        logged()
    story.same("trouble-of-tokens.txt")


VERDICT: dict[str, Any] = {
    "accepted": False,
    "reason": Reason.ABOVE_THRESHOLD,
    "detail": "Held back.",
    "uncertainty": Uncertainty(value=0.5, unit="nats", estimator="discrete_semantic_entropy"),
    "threshold": 0.25,
    "alpha": 0.1,
    "guarantee": "None.",
    "artifact": "sha256:0",
    "candidate": Sample(text="Woolf"),
}
