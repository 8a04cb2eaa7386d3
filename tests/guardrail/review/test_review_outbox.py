"""Callbacks: signed, retried, and delivered at least once, despite faulty receivers and kills."""

from __future__ import annotations

import base64
import hmac
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
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from guardrail.errors import UsageError
from guardrail.review import Candidate, Content, Decision, Deliverer, ReviewStore, sign, verify
from guardrail.review.delivery import _Answer, _Post, _refuse_near, post_within, standard_headers
from guardrail.review.queue import rows

ROOT = Path(__file__).parents[3]
SECRET = "a secret that both sides know"
HERE = ("127.0.0.1", "localhost", "*.example.org", "hook.test")
"""Receivers of these tests run on this machine, which must be allowed."""


class Receiver(ThreadingHTTPServer):
    """Answers as told; remembers what it accepted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.accepted: list[dict[str, Any]] = []
        self.plain: list[dict[str, Any]] = []  # in the format of a chat
        self.signed: list[bool] = []
        self.headers: list[Message] = []
        self.bodies: list[bytes] = []
        self.script: list[int] = []
        self.flaky: random.Random | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Receive(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(body) < length:  # the sender was killed on the way
            self.close_connection = True
            return
        self.server.headers.append(self.headers)
        self.server.bodies.append(body)
        self.server.signed.append(verify(SECRET, body, self.headers["Guardrail-Signature"]))
        flaky = self.server.flaky is not None and self.server.flaky.random() < 0.4
        status = self.server.script.pop(0) if self.server.script else 503 if flaky else 204
        if status == 204 and "id" not in json.loads(body):
            self.server.plain.append(json.loads(body))
        elif status == 204:
            assert json.loads(body)["id"] == self.headers["Guardrail-Event-Id"]
            self.server.accepted.append(json.loads(body))
        self.send_response(status)
        if status in (301, 307):
            self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


def decide(store: ReviewStore, url: str, key: str = "k") -> str:
    content = Content(question="q", candidate=Candidate(text="a"), metadata={"thread": 7})
    item = store.enqueue(content, key=key, callback=url)
    lease = store.claim("ann", item=item.id)
    assert lease is not None
    store.decide(lease, Decision(action="edit", candidate=Candidate(text="b")))
    return item.id


@pytest.mark.parametrize("hosts", [(), ("hooks.example.com",)])
def test_a_callback_to_this_machine_needs_leave_and_sends_nothing_without(
    store: ReviewStore, receiver: Receiver, hosts: tuple[str, ...]
) -> None:
    ticket = decide(store, receiver.url.replace("127.0.0.1", "localhost"))
    deliverer = Deliverer(store, SECRET, hosts=hosts)
    assert deliverer.run_once() == 0
    assert receiver.bodies == []
    (failed,) = [event for event in store.trail(ticket) if event.what == "delivery_failed"]
    assert failed.detail["given_up"], "another attempt would end alike"
    assert "'localhost'" in failed.detail["problem"]
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 0
    decide(store, receiver.url, key="named")
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 1


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        *(("127.0.0.1", True), ("169.254.169.254", True), ("fe80::1%eth0", True), ("::ffff:127.0.0.1", True)),
        *(("0.0.0.0", True), ("10.0.0.8", False), ("93.184.216.34", False), ("2001:db8::1", False)),
    ],
)
def test_addresses_of_this_machine_and_link_are_near(address: str, refused: bool) -> None:
    if refused:
        with pytest.raises(Exception, match="--callback-host"):
            _refuse_near("hooks.example.com", address)
    else:
        _refuse_near("hooks.example.com", address)


@pytest.mark.parametrize("url", ["http://a.example/x\r\nX: y", "http://a.example/\tx", "http://a.example/ x"])
def test_a_callback_with_a_line_break_or_white_space_is_refused(store: ReviewStore, url: str) -> None:
    with pytest.raises(UsageError, match="line break, white space or a control character"):
        decide(store, url)


def test_what_a_receiver_gets(store: ReviewStore, receiver: Receiver) -> None:
    ticket = decide(store, receiver.url)
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 1
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 0
    (event,) = receiver.accepted
    assert receiver.signed == [True]
    assert (event["ticket"], event["key"], event["metadata"]) == (ticket, "k", {"thread": 7})
    assert event["outcome"] == {"text": "b", "tool_calls": []}
    assert "note" not in event["decision"]  # it is for reviewers; a receiver might show it to the user
    assert [event.what for event in store.trail(ticket)][-1] == "delivered"
    assert store.stats().undelivered == 0


def test_the_caller_is_told_that_nobody_decided(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    content = Content(question="q", candidate=Candidate(text="a"), metadata={"thread": 7})
    item = store.enqueue(content, key="k", callback=receiver.url, expires_in=10)
    deliverer = Deliverer(store, SECRET, hosts=HERE)
    now[0] += 9
    assert deliverer.run_once() == 0
    now[0] += 1
    assert deliverer.run_once() == 1  # nobody had to look at the page
    assert deliverer.run_once() == 0
    (event,) = receiver.accepted
    assert (event["type"], event["ticket"], event["key"], event["metadata"]) == (
        "review.expired",
        item.id,
        "k",
        {"thread": 7},
    )
    assert (event["decision"], event["outcome"]) == (None, None)
    assert store.item(item.id).state == "expired"
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
        ends: list[Callable[[], object]] = [store.expire, lambda: store.give_up(second.id)]
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
    deliverer = Deliverer(store, SECRET, hosts=HERE, first_pause=60)
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
    deliverer = Deliverer(store, SECRET, hosts=HERE)
    store.expire()
    on_its_way = deliverer._take()
    assert on_its_way is not None
    now[0] += 5
    store.enqueue(content, key="k", callback=receiver.url, expires_in=10, reopen=True)
    ticket = decide(store, receiver.url)
    now[0] += 100
    assert deliverer.run_once() == 1
    deliverer._mark(on_its_way, deliverer._send(on_its_way))
    assert [(event["type"], event["at"]) for event in receiver.accepted] == [
        ("review.decided", 1015.0),
        ("review.expired", 1010.0),
    ]
    decision = store.item(ticket).decision
    assert decision is not None
    assert decision.at == receiver.accepted[0]["at"]


class Dripping:
    """A receiver that begins to answer and never comes to an end, until its connection is cut or a minute is over."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.cut = threading.Event()
        self.tired = False
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            until = time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    connection.sendall(b"a")
                except OSError:
                    self.cut.set()
                    return
                time.sleep(0.02)
            self.tired = True

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def test_a_receiver_that_drips_is_cut(receiver: Receiver) -> None:
    """The limit is one for the whole answer: a limit of each read would never end."""
    dripping = Dripping()
    assert post_within(dripping.url, b"{}", {}, 1.0) == "TimeoutError: no answer within 1 s"
    assert not dripping.tired, "the deliverer waited for the receiver instead of cutting the post"
    assert dripping.cut.wait(60)
    dripping.close()


class Hanging:
    """A receiver that takes connections and says nothing, until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    yield server
    server.close()


def test_while_a_receiver_hangs_the_others_get_theirs(tmp_path: Path, hanging: Hanging, receiver: Receiver) -> None:
    with ReviewStore(tmp_path / "thread.db") as store:
        for i in range(5):
            decide(store, f"{hanging.url}/{i}", f"first {i}")
        deliverer = Deliverer(store, SECRET, hosts=HERE, timeout=3600)
        deliverer.start(poll=0.02)
        decide(store, receiver.url, "another")
        until = time.monotonic() + 60
        while not receiver.accepted and time.monotonic() < until:
            time.sleep(0.01)
        hanging.close()  # ends the one post that hangs
        deliverer.stop()
        assert [event["key"] for event in receiver.accepted] == ["another"]
        failed = [event for event in store.trail() if event.what == "delivery_failed"]
        assert len(failed) <= 1, "each of the five had its own time-out"


def test_a_receiver_that_did_not_answer_is_left_alone_for_a_while(
    store: ReviewStore, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of its callbacks would hold up the others for a time-out of its own."""
    asked = list[str]()

    def post(url: str, *_: object) -> _Answer:
        asked.append(url)
        return (
            _Answer(problem="no answer")
            if "hangs" in url
            else _Answer(503, "HTTP 503")
            if "busy" in url
            else _Answer(204)
        )

    monkeypatch.setattr("guardrail.review.delivery._posted", post)
    for i in range(3):
        for host in ("hangs", "busy", "fine"):
            decide(store, f"https://{host}.example.org/{i}", f"{host} {i}")
    deliverer = Deliverer(store, SECRET, hosts=HERE, first_pause=8)
    assert deliverer.run_once() == 3
    assert [sum(host in url for url in asked) for host in ("hangs", "busy", "fine")] == [1, 3, 3], (
        "a refusal costs no time"
    )
    now[0] += 8
    assert deliverer.run_once() == 0
    assert sum("hangs" in url for url in asked) == 2


def test_what_counts_as_one_receiver() -> None:
    for url in (
        "https://a.example",
        "https://a.example/",
        "https://a.example/x?y",
        "https://a.example?y",
        "https://a.example#y",
    ):
        assert _Post("", "", url, b"", 1, trusted=True).receiver == "https://a.example"
    for url in ("https://a.example.org/", "http://a.example/", "https://a.example:444/", "https://u@a.example/"):
        assert _Post("", "", url, b"", 1, trusted=True).receiver == url.removesuffix("/")


def test_a_receiver_that_is_gone_is_not_asked_again(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    decide(store, receiver.url)
    receiver.script = [410]
    deliverer = Deliverer(store, SECRET, hosts=HERE)
    assert deliverer.run_once() == 0
    now[0] += 10_000
    assert deliverer.run_once() == 0
    assert (store.stats().undelivered, store.stats().dead, len(receiver.signed)) == (0, 1, 1)


def test_the_headers_of_standard_webhooks(store: ReviewStore, receiver: Receiver) -> None:
    # The example of the specification's test suite.
    example = standard_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330.9
    )
    assert example == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    decide(store, receiver.url)
    Deliverer(store, SECRET, hosts=HERE).run_once()
    (headers,) = receiver.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + receiver.bodies[0]
    mac = base64.b64encode(hmac.digest(SECRET.encode(), signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["webhook-id"] == headers["Guardrail-Event-Id"] == receiver.accepted[0]["id"]
    with pytest.raises(UsageError, match="base64"):
        Deliverer(store, "whsec_this is not base64")


def test_whatever_a_url_leads_to_is_a_problem_in_words(receiver: Receiver) -> None:
    for url in ("http://", "http://[", "http://a b/", "http://127.0.0.1:9/", receiver.url.replace("http:", "https:")):
        assert post_within(url, b"{}", {}, 10.0), url
    for status in (301, 404):
        receiver.script = [status]
        assert post_within(receiver.url, b"{}", {}, 10.0) == f"HTTP {status}"


def test_the_address_of_a_callback_is_not_logged(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.script = [404]
    with caplog.at_level(logging.INFO):
        assert post_within(f"{receiver.url}?token=hunter2", b"{}", {}, 10.0) == "HTTP 404"
        httpx.get(f"{receiver.url}?another=caller")
    assert "hunter2" not in caplog.text
    assert "another=caller" in caplog.text, "httpx logs what other callers ask for"


def test_a_failure_is_tried_again_after_a_growing_pause(
    store: ReviewStore, receiver: Receiver, now: list[float]
) -> None:
    decide(store, receiver.url)
    receiver.script = [500, 404, 307]
    deliverer = Deliverer(store, SECRET, hosts=HERE, first_pause=8, longest_pause=20)
    for pause in (8, 16, 20):
        assert deliverer.run_once() == 0
        now[0] += pause / 2 - 0.01  # a pause is shortened by a half at most
        assert deliverer.run_once() == 0
        assert len(receiver.signed) == 3 - len(receiver.script)
        now[0] += pause / 2 + 0.01
    assert deliverer.run_once() == 1
    assert len(receiver.accepted) == 1
    problems = [event.detail["problem"] for event in store.trail() if event.what == "delivery_failed"]
    assert problems == ["HTTP 500", "HTTP 404", "HTTP 307"]


def test_after_the_last_attempt_it_is_kept_but_dead(store: ReviewStore, now: list[float]) -> None:
    decide(store, "http://127.0.0.1:9/closed")
    deliverer = Deliverer(store, SECRET, hosts=HERE, attempts=2)
    for _ in range(3):
        deliverer.run_once()
        now[0] += 10_000
    assert (store.stats().undelivered, store.stats().dead) == (0, 1)
    failed = [event.detail["given_up"] for event in store.trail() if event.what == "delivery_failed"]
    assert failed == [False, True]


def test_a_dead_receiver_does_not_hold_up_the_others(store: ReviewStore, receiver: Receiver) -> None:
    decide(store, "http://127.0.0.1:9/closed", "first")
    decide(store, receiver.url, "second")
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 1


def test_a_killed_deliverer_leaves_the_callback_due(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    decide(store, receiver.url)
    dies = Deliverer(store, SECRET, hosts=HERE, timeout=5)
    assert dies._take() is not None  # and nothing after it
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 0
    now[0] += 10
    assert Deliverer(store, SECRET, hosts=HERE).run_once() == 1


def test_signatures() -> None:
    body = b'{"a": 1}'
    header = sign(SECRET, body, 1000.7)
    # Independent of the code: HMAC-SHA256 of "1000.<body>" with OpenSSL.
    by_openssl = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", SECRET, "-r"], input=b"1000." + body, capture_output=True, check=False
    )
    if by_openssl.returncode == 0:
        assert header == f"t=1000,v1={by_openssl.stdout.split()[0].decode()}"
    assert verify(SECRET, body, header, now=1000)
    assert verify(SECRET, body, header, now=1300)
    assert not verify(SECRET, body, header, now=1301)
    assert not verify(SECRET, body, header, now=699)
    assert not verify(SECRET + "x", body, header, now=1000)
    assert not verify(SECRET, body + b" ", header, now=1000)
    assert not verify(SECRET, body, header.replace("t=1000", "t=1001"), now=1000)
    for broken in (None, "", "t=1000", "v1=ab", "t=x,v1=ab", "t=1000,v1=", "t=1000,v1=\u00e9", ",,,="):
        assert not verify(SECRET, body, broken, now=1000)


def test_a_short_secret_is_refused(store: ReviewStore) -> None:
    with pytest.raises(UsageError, match="at least 16"):
        Deliverer(store, "short")


def test_the_thread_delivers_and_ends(tmp_path: Path, receiver: Receiver) -> None:
    with ReviewStore(tmp_path / "thread.db") as store:
        deliverer = Deliverer(store, SECRET, hosts=HERE)
        deliverer.start(poll=0.02)
        decide(store, receiver.url)
        until = time.monotonic() + 60
        while not receiver.accepted and time.monotonic() < until:
            time.sleep(0.01)
        deliverer.stop()
        assert len(receiver.accepted) == 1
        assert store.stats().undelivered == 0


LOCKED = OperationalError("INSERT INTO ...", {"body": "the patient is called Erna"}, Exception("database is locked"))


def test_a_post_under_way_at_the_end_is_marked_and_not_sent_again(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReviewStore(tmp_path / "thread.db") as store:
        decide(store, receiver.url)
        deliverer, begun, stopped = Deliverer(store, SECRET, hosts=HERE), threading.Event(), threading.Event()
        send = Deliverer._send

        def held(self: Deliverer, due: Any) -> Any:
            begun.set()
            assert stopped.wait(20)
            return send(self, due)

        monkeypatch.setattr(Deliverer, "_send", held)
        deliverer.start(poll=0.02)
        assert begun.wait(20)
        deliverer._stop.set()
        stopped.set()
        deliverer.stop()
        assert len(receiver.accepted) == 1
        assert Deliverer(store, SECRET, hosts=HERE).run_once() == 0
        assert [event.what for event in store.trail()].count("delivered") == 1


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
        late = store.enqueue(
            Content(question="q", allowed=("reject",)), key="late", expires_in=0.001, callback=receiver.url
        )
        deliverer = Deliverer(store, SECRET, hosts=HERE, first_pause=0.01)
        deliverer.start(poll=0.01)
        until = time.monotonic() + 60
        while (store.stats().undelivered or store.item(late.id).state != "expired") and time.monotonic() < until:
            time.sleep(0.01)
        deliverer.stop()
        assert {event["type"] for event in receiver.accepted} == {"review.decided", "review.expired"}
        assert store.stats().undelivered == 0
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


def test_the_pause_grows_while_the_database_fails(store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReviewStore, "expire", failing(7, ReviewStore.expire))
    deliverer = Deliverer(store, SECRET, hosts=HERE)
    deliverer._stop = waits = Waits(9)
    deliverer.run(poll=1.5)
    assert waits.seconds == [3, 6, 12, 24, 48, 60, 60, 1.5, 1.5]


def test_an_item_that_cannot_be_closed_holds_up_no_callback(
    store: ReviewStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(store, receiver.url)
    monkeypatch.setattr(ReviewStore, "expire", failing(1, ReviewStore.expire))
    deliverer = Deliverer(store, SECRET, hosts=HERE)
    deliverer._stop = Waits(1)
    deliverer.run()
    assert len(receiver.accepted) == 1


WORKER = """
import sys
from guardrail.review import *
store = ReviewStore(sys.argv[1])
pauses = {"first_pause": 0.05, "longest_pause": 0.2}
deliverer = Deliverer(store, sys.argv[2], hosts=("127.0.0.1",), timeout=0.3, attempts=1000, **pauses)
deliverer.run(poll=0.02)
"""


@pytest.mark.slow
def test_kills_and_a_flaky_receiver_lose_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """Deliverers are killed at random while the receiver refuses four in ten; every decision arrives all the same."""
    rng = random.Random(5)
    receiver.flaky = random.Random(6)
    path = tmp_path / "reviews.db"
    n, kills = 30, 0
    with ReviewStore(path) as store:
        tickets = {decide(store, receiver.url, str(i)) for i in range(n)}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", WORKER, str(path), SECRET], cwd=ROOT)

        workers = [start(), start()]
        until = time.monotonic() + 120
        try:
            while time.monotonic() < until and (store.stats().undelivered or kills < 6):
                time.sleep(rng.random() * 0.4)
                if kills < 6 and receiver.signed:
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
        assert {event["ticket"] for event in receiver.accepted} == tickets
        events = {event["ticket"]: event["id"] for event in receiver.accepted}
        assert all(events[event["ticket"]] == event["id"] for event in receiver.accepted), "a repeat keeps its event id"
        assert all(receiver.signed)
