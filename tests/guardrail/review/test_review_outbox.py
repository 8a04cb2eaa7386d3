"""Callbacks: signed, retried, and delivered at least once, despite faulty receivers and kills."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from standardwebhooks import Webhook

from guardrail.errors import UsageError
from guardrail.review import Candidate, Content, Decision, Deliverer, ReviewStore, rows
from guardrail.review.delivery import _is_named
from tests.review_pages import claim, decision_of

ROOT = Path(__file__).parents[3]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the examples of Standard Webhooks
HOSTS = ("*.test", "127.0.0.1")


class Receiver(httpx.AsyncBaseTransport):
    """All hosts at once: answers as told; remembers what it was asked and what it accepted."""

    url = "https://hook.test/hook"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[httpx.Headers] = []
        self.accepted: list[dict[str, Any]] = []
        self.plain: list[dict[str, Any]] = []  # in the format of a chat
        self.script: list[int] = []
        self.gone: set[str] = set()
        self.hanging = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        self.asked.append(str(request.url))
        self.headers.append(request.headers)
        if request.url.host == "hangs.test":
            await self.hanging.wait()
        if request.url.host in self.gone:
            raise httpx.ConnectError("Connection refused")
        status = self.script.pop(0) if self.script else 204
        sent = json.loads(body)
        Webhook(SECRET).verify(body, dict(request.headers))
        if status == 204:
            (self.accepted if "id" in sent else self.plain).append(sent)
        return httpx.Response(status, headers={"Location": self.url})


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


def deliverer_to(receiver: Receiver, store: ReviewStore, **settings: Any) -> Deliverer:
    own = {name: settings.pop(name) for name in ("hosts", "destinations") if name in settings}
    return at_pace(Deliverer(store, SECRET, transport=receiver, **{"hosts": HOSTS, **own}), **settings)


def at_pace(deliverer: Deliverer, **settings: float) -> Deliverer:
    """The deliverer with other limits than those that hold everywhere."""
    for name, value in settings.items():
        setattr(deliverer, name, value)
    return deliverer


def decide(store: ReviewStore, url: str, key: str = "k") -> str:
    content = Content(question="q", candidate=Candidate(text="a"), metadata={"thread": 7})
    item = store.enqueue(content, key=key, callback=url)
    lease = claim(store, "ann", item=item.id)
    store.decide(lease, Decision(action="edit", candidate=Candidate(text="b")))
    return item.id


# -- where a callback may go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "127.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]"),
        *("[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[::ffff:169.254.169.254]", "2852039166", "0x7f.1"),
        *("hooks.example.com.evil.example", "evilexample.org", "example.org", "xhooks.example.com"),
    ],
)
@pytest.mark.parametrize("hosts", [(), ("hooks.example.com", "*.example.org")])
def test_a_callback_goes_only_to_a_host_that_the_operator_named(
    store: ReviewStore, receiver: Receiver, host: str, hosts: tuple[str, ...]
) -> None:
    """Metadata of clouds, in all forms of their addresses; and names that only look like a named one."""
    ticket = decide(store, f"http://{host}/hook")
    deliverer = deliverer_to(receiver, store, hosts=hosts)
    assert deliverer.run_once() == 0
    assert receiver.asked == []
    (failed,) = [event for event in store.trail(ticket) if event.what == "delivery_failed"]
    assert failed.detail["given_up"], "another attempt would end alike"
    assert "--callback-host" in failed.detail["problem"]
    assert store.stats().dead == 1


def test_named_hosts() -> None:
    hosts = ("hooks.example.com", "*.internal.example", "[::1]", "10.0.0.8")
    for url in (
        *("http://hooks.example.com:99/x", "http://HOOKS.example.com", "http://a.b.internal.example"),
        *("http://[::1]:8/", "http://10.0.0.8/"),
    ):
        assert _is_named(httpx.URL(url).host, hosts), url
    for url in ("http://internal.example", "http://hooks.example.com@evil.example/", "http://10.0.0.80"):
        assert not _is_named(httpx.URL(url).host, hosts), url


@pytest.mark.parametrize("host", ["*", "", "*.", "https://example.org", "example.org/x", "a.*.org", "u@example.org"])
def test_a_host_that_is_not_a_name_is_refused(store: ReviewStore, host: str) -> None:
    with pytest.raises(UsageError, match="a host of callbacks is a name like"):
        Deliverer(store, SECRET, hosts=(host,))


def test_a_redirect_is_not_followed(store: ReviewStore, receiver: Receiver) -> None:
    decide(store, "https://other.test/hook")
    receiver.script = [307]
    assert deliverer_to(receiver, store).run_once() == 0
    assert receiver.asked == ["https://other.test/hook"]


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_what_a_receiver_gets(store: ReviewStore, receiver: Receiver) -> None:
    ticket = decide(store, receiver.url)
    deliverer = deliverer_to(receiver, store)
    assert [deliverer.run_once(), deliverer.run_once()] == [1, 0]
    (event,) = receiver.accepted
    assert (event["ticket"], event["key"], event["metadata"]) == (ticket, "k", {"thread": 7})
    assert event["outcome"] == {"text": "b", "tool_calls": []}
    assert "note" not in event["decision"]  # it is for reviewers; a receiver might show it to the user
    assert receiver.headers[0]["webhook-id"] == event["id"]
    assert [event.what for event in store.trail(ticket)][-1] == "delivered"
    assert store.stats().undelivered == 0


@pytest.mark.parametrize(
    "secret", ["short", "a secret that both sides know", "whsec_not base64!", "whsec_AAAA", "whsec_"]
)
def test_a_secret_that_a_library_would_read_as_another_is_refused(store: ReviewStore, secret: str) -> None:
    with pytest.raises(UsageError, match=r"whsec_ and the base64 of at least 16 bytes\. Make one with") as caught:
        Deliverer(store, secret)
    assert secret == "whsec_" or secret not in str(caught.value)


def test_the_caller_is_told_that_nobody_decided(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    content = Content(question="q", candidate=Candidate(text="a"), metadata={"thread": 7})
    item = store.enqueue(content, key="k", callback=receiver.url, expires_in=10)
    deliverer = deliverer_to(receiver, store)
    now[0] += 9
    assert deliverer.run_once() == 0
    now[0] += 1
    assert [deliverer.run_once(), deliverer.run_once()] == [1, 0]  # nobody had to look at the page
    (event,) = receiver.accepted
    facts = [event[name] for name in ("type", "ticket", "key", "metadata", "decision", "outcome")]
    assert facts == ["review.expired", item.id, "k", {"thread": 7}, None, None]
    # Asked for again it can still be decided, and the caller hears of that, too.
    store.enqueue(content, key="k", callback=receiver.url, expires_in=10, reopen=True)
    decide(store, receiver.url)
    assert deliverer.run_once() == 1
    assert receiver.accepted[-1]["type"] == "review.decided"


def test_expiry_and_its_callback_are_one_transaction(
    store_url: str, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReviewStore(store_url, clock=lambda: now[0]) as store:
        content = Content(question="q", candidate=Candidate(text="a"))
        first = store.enqueue(content, callback="http://127.0.0.1:9/", expires_in=10)
        second = store.enqueue(content, callback="http://127.0.0.1:9/")
        now[0] += 10
        ends: list[Callable[[], object]] = [store.expire, lambda: store.cancel(second.id)]
        with monkeypatch.context() as broken:
            broken.setattr(rows, "post", lambda *_: 1 / 0)
            for end in ends:
                with pytest.raises(ZeroDivisionError):
                    end()
        assert [item.state for item in store.items()] == ["pending", "pending"]
        assert [event.what for event in store.trail()] == ["enqueued", "enqueued"]
        for i, end in enumerate(ends):
            end()
            assert store.stats().undelivered == i + 1
        assert [store.item(item.id).state for item in (first, second)] == ["expired", "expired"]


def test_that_nobody_decided_is_not_told_after_the_decision(
    store: ReviewStore, receiver: Receiver, now: list[float]
) -> None:
    content = Content(question="q", candidate=Candidate(text="a"))
    deliverer = deliverer_to(receiver, store, first_pause=60)
    store.enqueue(content, key="k", callback=receiver.url, expires_in=10)
    other = store.enqueue(content, key="other", callback=receiver.url, expires_in=10)
    now[0] += 10
    receiver.script = [503, 503]
    assert deliverer.run_once() == 0
    store.enqueue(content, key="k", callback=receiver.url, expires_in=100, reopen=True)
    ticket = decide(store, receiver.url)
    assert deliverer.run_once() == 1
    now[0] += 3600
    assert deliverer.run_once() == 1
    assert [(event["type"], event["ticket"]) for event in receiver.accepted] == [
        ("review.decided", ticket),
        ("review.expired", other.id),
    ]
    assert (store.stats().undelivered, store.stats().dead) == (0, 0)


def test_a_callback_says_when_its_event_was(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    """A callback that was being posted when the decision was made may arrive after it; the receiver can tell."""
    content = Content(question="q", candidate=Candidate(text="a"))
    store.enqueue(content, key="k", callback=receiver.url, expires_in=10)
    now[0] += 10
    deliverer = deliverer_to(receiver, store)
    store.expire()
    (on_its_way,) = deliverer._take(1)
    now[0] += 5
    store.enqueue(content, key="k", callback=receiver.url, expires_in=10, reopen=True)
    ticket = decide(store, receiver.url)
    now[0] += 100
    assert deliverer.run_once() == 1
    assert (json.loads(on_its_way.body)["at"], receiver.accepted[0]["at"]) == (1010.0, 1015.0)
    decision = decision_of(store, ticket)
    assert decision.at == receiver.accepted[0]["at"]


def test_the_address_of_a_callback_is_not_logged(
    store: ReviewStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    decide(store, f"{receiver.url}/hunter2")
    with caplog.at_level(logging.INFO):
        assert deliverer_to(receiver, store).run_once() == 1
        httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(204))).get(f"{receiver.url}?another=caller")
    assert "hunter2" not in caplog.text
    assert "another=caller" in caplog.text, "httpx logs what other callers ask for"


# -- receivers that fail -----------------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_after_a_growing_pause(
    store: ReviewStore, receiver: Receiver, now: list[float]
) -> None:
    decide(store, receiver.url)
    receiver.script = [500, 404, 301]
    deliverer = deliverer_to(receiver, store, first_pause=8, longest_pause=20)
    for pause in (8, 16, 20):
        assert deliverer.run_once() == 0
        now[0] += pause / 2 - 0.01  # a pause is shortened by a half at most
        assert deliverer.run_once() == 0
        assert len(receiver.asked) == 3 - len(receiver.script)
        now[0] += pause / 2 + 0.01
    assert deliverer.run_once() == 1
    assert len(receiver.accepted) == 1
    problems = [event.detail["problem"] for event in store.trail() if event.what == "delivery_failed"]
    assert problems == ["HTTP 500", "HTTP 404", "HTTP 301"]


def test_after_the_last_attempt_it_is_kept_but_dead(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    decide(store, receiver.url)
    receiver.gone = {"hook.test"}
    deliverer = deliverer_to(receiver, store, attempts=2)
    for _ in range(3):
        deliverer.run_once()
        now[0] += 10_000
    assert (store.stats().undelivered, store.stats().dead, len(receiver.asked)) == (0, 1, 2)
    failed = [
        (event.detail["given_up"], event.detail["problem"]) for event in store.trail() if "problem" in event.detail
    ]
    assert failed == [(False, "ConnectError: Connection refused"), (True, "ConnectError: Connection refused")]


def test_a_receiver_that_is_gone_is_not_asked_again(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    decide(store, receiver.url)
    receiver.script = [410]
    deliverer = deliverer_to(receiver, store)
    for _ in range(2):
        assert deliverer.run_once() == 0
        now[0] += 10_000
    assert (store.stats().undelivered, store.stats().dead, len(receiver.asked)) == (0, 1, 1)


def test_a_receiver_that_does_not_answer_is_left_alone_for_a_while(
    store: ReviewStore, receiver: Receiver, now: list[float]
) -> None:
    """Otherwise each of its callbacks would hold up the others for a time-out of its own."""
    receiver.gone = {"gone.test"}
    receiver.script = [503] * 3
    for host in ("gone", "busy", "fine"):
        for i in range(3):
            decide(store, f"https://{host}.test/{i}", f"{host} {i}")
    deliverer = deliverer_to(receiver, store, first_pause=8, posts=1)

    def counts() -> list[int]:
        return [sum(host in url for url in receiver.asked) for host in ("gone", "busy", "fine")]

    assert deliverer.run_once() == 3
    assert counts() == [1, 3, 3], "an answer, if only a refusal, costs the others no time"
    now[0] += 8
    assert deliverer.run_once() == 3
    assert counts() == [2, 6, 3]


def test_while_a_receiver_hangs_the_others_get_theirs(tmp_path: Path, receiver: Receiver) -> None:
    with ReviewStore(tmp_path / "thread.db") as store:
        for i in range(5):
            decide(store, f"https://hangs.test/{i}", f"first {i}")
        deliverer = deliverer_to(receiver, store, timeout=3600)
        deliverer.start(poll=0.02)
        wait_for(lambda: len(receiver.asked) == 5)
        decide(store, receiver.url, "another")
        wait_for(lambda: bool(receiver.accepted))
        assert [event["key"] for event in receiver.accepted] == ["another"]
        receiver.hanging._loop.call_soon_threadsafe(receiver.hanging.set)  # type: ignore[attr-defined]
        deliverer.stop()
        assert len(receiver.accepted) == 6, "what was under way at the end is marked"
        assert store.stats().undelivered == 0


def test_a_receiver_that_drips_is_cut(tmp_path: Path) -> None:
    """The limit is one for the whole answer: a limit of each read would never end."""
    cut = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            try:
                while True:
                    connection.sendall(b"a")
                    time.sleep(0.02)
            except OSError:
                cut.set()

    with socket.create_server(("127.0.0.1", 0)) as listener, ReviewStore(tmp_path / "drip.db") as store:
        threading.Thread(target=drip, daemon=True).start()
        decide(store, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        assert at_pace(Deliverer(store, SECRET, hosts=HOSTS), timeout=1.0).run_once() == 0
        assert cut.wait(60)
        problems = [event.detail["problem"] for event in store.trail() if event.what == "delivery_failed"]
    assert problems == ["TimeoutError: no answer within 1 s"]


# -- the database, threads and kills -----------------------------------------------------------------------------------


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_killed_deliverer_leaves_the_callback_due(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    decide(store, receiver.url)
    deliverer = deliverer_to(receiver, store, timeout=5)
    assert deliverer._take(1)  # and nothing after it
    assert deliverer.run_once() == 0
    now[0] += 10
    assert deliverer.run_once() == 1


LOCKED = OperationalError("INSERT INTO ...", {"body": "the patient is called Erna"}, Exception("database is locked"))


def failing(times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """A function that fails so often before it does what it should."""
    left = [times]

    def called(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise LOCKED
        return then(*arguments)

    return called


@pytest.mark.parametrize("where", ["_take", "_mark", "expire"])
def test_a_database_that_fails_for_a_while_does_not_end_the_deliveries(
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    owner: Any = ReviewStore if where == "expire" else Deliverer
    monkeypatch.setattr(owner, where, failing(3, getattr(owner, where)))
    with ReviewStore(tmp_path / "thread.db") as store:
        decide(store, receiver.url)
        rejectable = Content(question="q", allowed=("reject",))
        late = store.enqueue(rejectable, key="late", expires_in=0.001, callback=receiver.url)
        deliverer = deliverer_to(receiver, store, timeout=0.02, first_pause=0.01)
        deliverer.start(poll=0.01)
        wait_for(lambda: store.item(late.id).state == "expired" and not store.stats().undelivered)
        deliverer.stop()
        assert {event["type"] for event in receiver.accepted} == {"review.decided", "review.expired"}
    assert "database is locked" in caplog.text
    assert "Erna" not in caplog.text


class Waits(threading.Event):
    """Remembers how long it was to wait, does not, and is set after so many."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._rounds = rounds

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if len(self.seconds) == self._rounds:
            self.set()
        return self.is_set()


def test_the_pause_grows_while_the_database_fails(
    store: ReviewStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(store, receiver.url)
    monkeypatch.setattr(ReviewStore, "expire", failing(7, ReviewStore.expire))
    deliverer = deliverer_to(receiver, store)
    deliverer._stop = waits = Waits(9)
    deliverer.run(poll=1.5)
    assert waits.seconds == [3, 6, 12, 24, 48, 60, 60, 1.5, 1.5]
    assert len(receiver.accepted) == 1, "an item that cannot be closed holds up no callback"


class _Receive(BaseHTTPRequestHandler):
    """A real receiver that refuses four in ten."""

    server: _Flaky

    def do_POST(self) -> None:
        body = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(body) < length:  # the sender was killed on the way
            self.close_connection = True
            return
        refused = self.server.random.random() < 0.4
        if not refused:
            self.server.accepted.append(Webhook(SECRET).verify(body, dict(self.headers)))
        self.send_response(503 if refused else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Flaky(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.random, self.accepted = random.Random(6), list[dict[str, Any]]()


@pytest.fixture
def flaky() -> Iterator[_Flaky]:
    server = _Flaky()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


WORKER = """
import sys
from guardrail.review import *
store = ReviewStore(sys.argv[1])
deliverer = Deliverer(store, sys.argv[2], hosts=("127.0.0.1",))
deliverer.timeout, deliverer.attempts, deliverer.first_pause, deliverer.longest_pause = 0.3, 1000, 0.05, 0.2
deliverer.run(poll=0.02)
"""


@pytest.mark.slow
def test_kills_and_a_flaky_receiver_lose_nothing(tmp_path: Path, flaky: _Flaky) -> None:
    """Deliverers are killed at random while the receiver refuses four in ten; every decision arrives all the same."""
    rng = random.Random(5)
    path, url = tmp_path / "reviews.db", f"http://127.0.0.1:{flaky.server_port}/hook"
    with ReviewStore(path) as store:
        tickets = {decide(store, url, str(i)) for i in range(30)}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", WORKER, str(path), SECRET], cwd=ROOT)

        workers, kills = [start(), start()], 0
        until = time.monotonic() + 120
        try:
            while time.monotonic() < until and (store.stats().undelivered or kills < 6):
                time.sleep(rng.random() * 0.4)
                if kills < 6 and flaky.accepted:
                    i = rng.randrange(2)
                    os.kill(workers[i].pid, signal.SIGKILL)
                    workers[i].wait()
                    workers[i] = start()
                    kills += 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert kills == 6
        assert store.stats().undelivered == store.stats().dead == 0
        assert {event["ticket"] for event in flaky.accepted} == tickets
        events = {event["ticket"]: event["id"] for event in flaky.accepted}
        assert all(events[event["ticket"]] == event["id"] for event in flaky.accepted), "a repeat keeps its event id"
