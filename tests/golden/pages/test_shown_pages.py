"""Every page of the review site as a browser gets it, and the errors that it shows.

A store with a fixed clock and counted ids; tokens of forms are replaced by a word.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from guardrail.parts.part import PartVerdict
from guardrail.review import Candidate, CandidateSet, Content, Decision, ReviewStore
from guardrail.review.monitors.store import Monitors, MonitorStep
from guardrail.review.queue.schema import items
from guardrail.review.web import site as site_module
from guardrail.review.web.accounts import Accounts
from guardrail.review.web.app import review_app
from guardrail.review.web.parts import PartRow, rows_of
from guardrail.review.web.plots import uncertainty_plot, wealth_plot
from guardrail.review.web.sessions import RateLimit
from guardrail.review.web.site import ago, promise_on_page, when
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import ToolCall
from tests.golden.shown import same
from tests.review_pages import HOSTILE, REVIEWERS, held_back, verdict

TOKENS = f"{REVIEWERS},zendesk:system:zendesk-token-0123456789ab"
TRANSFER = ToolCall(name="transfer", arguments={"to": "Ann", "amount": 5})
TO_BOB = '[{"arguments":{"amount":5,"to":"Bob"},"name":"transfer"}]'
ARTIFACT = make_artifact(ScriptedChat(), threshold=0.7)


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count ids and tokens instead of drawing them."""
    numbers = itertools.count(1)
    monkeypatch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
    monkeypatch.setattr(secrets, "randbits", lambda _: 7)


class Browser:
    """One reviewer's browser."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str, **headers: str) -> str:
        """A page with its status, as it is shown in a golden file."""
        return shown(self.client.get(path, headers=headers))

    def post(self, path: str, **fields: str) -> Any:
        """The response to a form."""
        page = self.client.get("/monitor").text
        token = re.search(r'name="form_token" value="([^"]+)"', page)
        assert token is not None
        return self.client.post(path, data={"form_token": token[1], **fields})


def shown(response: Any) -> str:
    """A page without its random tokens, after its status."""
    text = re.sub(r'(name="form_token" value=")[^"]+', r"\1(token of the form)", response.text)
    text = "\n".join(line for line in text.splitlines() if line.strip())
    text = text.replace("\0", "\\0").replace("\u202e", "\\u202e")  # readable, and git takes the file for a text
    return f"<!-- {response.status_code} -->\n{text}"


def said(response: Any) -> str:
    """Status, redirect or error of a response, in a line."""
    if response.is_redirect:
        return f"{response.status_code}, to {response.headers['location']}"
    if response.headers["content-type"] == "application/json":
        return f"{response.status_code} {response.text}"
    title, text = re.findall(r"<h1>(.*?)</h1>\n<p>(.*?)</p>", response.text, re.DOTALL)[0]
    retry = f" (Retry-After: {response.headers['retry-after']})" if "retry-after" in response.headers else ""
    return f"{response.status_code} {unescape(title)}: {unescape(text)}{retry}"


class Site:
    """The site with its store."""

    def __init__(self, store: ReviewStore, **how: Any) -> None:
        how.setdefault("limit", RateLimit(failures=3, window=300, pause=0, clock=lambda: 0.0))
        accounts = Accounts.from_text(TOKENS)
        self.app = review_app(store, accounts, secret=b"s" * 32, hosts=("testserver",), lease=60, **how)
        self.opened = ExitStack()

    def browser(self, name: str = "") -> Browser:
        """A browser that keeps cookies; signed in unless the name is empty."""
        browser = Browser(self.opened.enter_context(TestClient(self.app, follow_redirects=False)))
        if name:
            page = browser.client.get("/sign-in").text
            token = re.search(r'name="form_token" value="([^"]+)"', page)
            assert token is not None
            fields = {"form_token": token[1], "token": f"{name}-token-0123456789ab"}
            assert browser.client.post("/sign-in", data=fields).status_code == 303
        return browser


@pytest.fixture
def site(store: ReviewStore) -> Iterator[Site]:
    opened = Site(store)
    with opened.opened:
        yield opened


def call_item(**changes: Any) -> Content:
    """A held-back tool call."""
    values: dict[str, Any] = {
        "candidate": Candidate(text="I will send it.", tool_calls=(TRANSFER,)),
        "kind": "tool_call",
        "alternatives": (
            ('[{"arguments":{"amount":5,"to":"Ann"},"name":"transfer"}]', 0.6),
            (TO_BOB, 0.3),
            ("It is done.", 0.1),
        ),
        "candidate_set": None,
        "edits": "arguments",
    }
    return held_back("Send Ann 5 euros.", **{**values, **changes})


def part_item(**changes: Any) -> Content:
    """An answer of which two fields are held back."""
    parts = (
        PartVerdict(path="/author", text='"Woolf"', uncertainty=0.1, kept=True),
        PartVerdict(path="/year", text="1931", uncertainty=0.75, kept=False),
        PartVerdict(path="/pages", text="null", uncertainty=None, detail="the field's judge failed", kept=False),
        PartVerdict(path="/a~1b/0", text='"x"', uncertainty=0.5, kept=False, absent=False),
        PartVerdict(path="/isbn", text="", uncertainty=0.25, kept=False, absent=True),
    )
    samples = [
        '{"author": "Woolf", "year": 1931, "a/b": ["x"]}',
        '{"author": "Woolf", "year": 1932, "a/b": ["y"], "isbn": "978"}',
        '{"author": "Mansfield", "year": 1932, "pages": 5}',
        "not JSON",
    ]
    values: dict[str, Any] = {
        "candidate": Candidate(text='{"author": "Woolf", "year": 1931, "pages": null, "a/b": ["x"]}'),
        "verdict": {**verdict(), "samples": samples},
        "parts": parts,
        "allowed": ("approve", "edit", "reject", "respond"),
        "candidate_set": None,
    }
    return held_back("Describe The Waves as JSON.", **{**values, **changes})


def sentences_item(**changes: Any) -> Content:
    """A text of which one sentence is held back."""
    text = "Woolf wrote The Waves. It appeared in 1932, a year in which she also wrote a long essay on reading."
    parts = (
        PartVerdict(span=(0, 22), text=text[:22], uncertainty=0.0, kept=True),
        PartVerdict(span=(23, len(text)), text=text[23:], uncertainty=0.75, kept=False),
    )
    values: dict[str, Any] = {"candidate": Candidate(text=text), "parts": parts, "candidate_set": None}
    return held_back("Tell me about The Waves.", **{**values, **changes})


TO_LABEL = Content(
    question="2 + 2?",
    kind="audit",
    candidate=Candidate(text="4"),
    alternatives=(("4", 0.6), ("5", 0.4)),
    allowed=("approve", "edit", "reject"),
)


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def taken(store: ReviewStore, content: Content, name: str = "ann", **how: Any) -> str:
    """Id of a new item that a reviewer has claimed."""
    item = store.enqueue(content, **how)
    assert store.claim(name, item=item.id, seconds=60) is not None
    return item.id


def decided(store: ReviewStore, content: Content, decision: Decision, **how: Any) -> str:
    """Id of a new item that ann has decided."""
    item = store.enqueue(content, **how)
    lease = store.claim("ann", item=item.id, seconds=60)
    assert lease is not None
    store.decide(lease, decision)
    return item.id


# -- lists ---------------------------------------------------------------------------------------------------------


def test_sign_in(site: Site) -> None:
    browser = site.browser()
    page = browser.client.get("/sign-in")
    same("pages/sign-in.html", shown(page))
    headers = sorted(
        f"{name}: {value}" for name, value in page.headers.items() if name not in ("content-length", "set-cookie")
    )
    cookie = re.sub("=[^;]+", "=(value)", page.headers["set-cookie"], count=1)
    static = browser.client.get("/static/icon.svg")
    lines = [*headers, f"set-cookie: {cookie}", "", f"static: cache-control {static.headers.get('cache-control')}"]
    same("pages/headers.txt", "\n".join(lines))


def test_the_queue(site: Site, store: ReviewStore, now: list[float]) -> None:
    ann = site.browser("ann")
    same("pages/queue-empty.html", ann.get("/"))
    now[0] -= 2 * 86_400
    store.enqueue(held_back())
    now[0] += 86_400
    store.enqueue(call_item(), expires_in=90_000)
    now[0] += 80_000
    store.enqueue(held_back("An audit?", kind="audit", allowed=("approve", "reject")))
    store.enqueue(TO_LABEL)
    taken(store, held_back("Mine?"))
    taken(store, held_back("Of somebody else?"), "bob", expires_in=7000)
    now[0] += 6350
    ended = store.enqueue(held_back("Its lease has ended?"))
    assert store.claim("bob", item=ended.id, seconds=1) is not None
    store.enqueue(held_back("", "", candidate=None, allowed=("reject", "respond")), expires_in=5)
    store.enqueue(held_back(HOSTILE))
    now[0] += 30
    for name in ("ann", "bob"):
        assert store.claim(name, seconds=45.5) is not None
    same("pages/queue.html", ann.get("/"))


def test_pages_of_lists(site: Site, store: ReviewStore) -> None:
    ann = site.browser("ann")
    for number in range(52):
        store.enqueue(held_back(f"Question {number}?", alternatives=(), candidate_set=None))
    moved = []

    def moves(path: str) -> None:
        page = ann.get(path)
        questions = re.findall(r"Question \d+\?", page)
        links = re.findall(r'<a class="button" href="[^"]+">\w+</a>', page)
        limit = re.findall(r"Only the newest .*", page)
        moved.append(f"{path}: {len(questions)} from {questions[0]} to {questions[-1]} {links} {limit}")

    moves("/")
    moves("/?page=1")
    moves("/?page=x")
    moved.append(f"/?page=2: {said(ann.client.get('/?page=2'))}")
    moves("/search?q=question")
    for item in store.items(limit=52):
        store.give_up(item.id)
    moves("/history")
    moves("/history?page=1")
    same("pages/pages.txt", "\n".join(moved))


def test_history_search_and_trail(site: Site, store: ReviewStore, now: list[float]) -> None:
    ann, eve = site.browser("ann"), site.browser("eve")
    same("pages/history-empty.html", ann.get("/history"))
    decided(store, held_back("Approved?"), Decision(action="approve"), key="order-7")
    now[0] += 60
    decided(store, held_back("Edited?"), Decision(action="edit", candidate=Candidate(text="Woolf")))
    decided(store, held_back("Answered?"), Decision(action="respond", text="Ask her."))
    decided(store, held_back("Rejected?"), Decision(action="reject"))
    store.enqueue(held_back("Late?"), expires_in=5)
    store.cancel(store.enqueue(held_back("Cancelled?")).id, why="nobody waits")
    taken(store, held_back("Claimed?"))
    store.enqueue(held_back("Waiting?"))
    now[0] += 10
    store.expire()
    same("pages/history.html", ann.get("/history"))
    same("pages/search-empty.html", ann.get("/search"))
    same("pages/search-nothing.html", ann.get("/search?q=%22no+such%22"))
    same("pages/search.html", ann.get("/search?q=%20VIRGINIA "))
    assert ann.get("/search?q=order-7").count("<li>") == 1
    same("pages/trail.html", eve.get("/trail"))


def test_monitors(site: Site, store: ReviewStore, now: list[float]) -> None:
    ann, eve = site.browser("ann"), site.browser("eve")
    same("pages/monitors-none.html", ann.get("/monitor"))
    monitors = Monitors(store)
    monitors.risk("not started", 0.025)
    quiet = monitors.risk("quiet errors", 0.1, delta=0.01, min_audit_rate=0.5)
    for right in range(3):
        now[0] += 86_400
        quiet.update(right == 2, audit_rate=0.5)
    alarmed = monitors.risk("errors", 0.1)
    while not alarmed.state.alarmed:
        alarmed.update(True)
    seen = monitors.risk("seen errors", 0.2, delta=0.2)
    while not seen.state.alarmed:
        seen.update(True)
    canary = monitors.canary("known questions", 2)
    for _ in range(12):
        canary.update([0.5, 0.25])
    drift = monitors.drift("scores", ARTIFACT)
    drift.update(0.25, key="a")
    monitors.acknowledge("seen errors", who="eve")
    same("pages/monitors.html", ann.get("/monitor"))
    page = eve.get("/monitor")
    assert page.count("Acknowledge: let answers pass again") == 1
    same("pages/monitor-of-an-administrator.html", page[page.index("<section") : page.index("</section>") + 10])


# -- items ---------------------------------------------------------------------------------------------------------


def item_pages(store: ReviewStore) -> dict[str, str]:
    """Ids of items in every form, by the name of their page for ann."""
    talk = (
        {"role": "system", "content": "Answer briefly."},
        {"role": "human", "content": "Who wrote The Waves?"},
        {"role": "ai", "content": "", "tool_calls": [{"name": "search", "arguments": {"q": "Waves"}}]},
        {"role": "tool", "content": "A novel of 1931 by …"},
    )
    broken = Candidate(text="half of a pair: \ud800")
    not_attained = CandidateSet(answers=(("Woolf", 0.5), ("Joyce", 0.5)), epsilon=0.1, attained=False, attainable=0.35)
    unsure = CandidateSet(
        answers=(("Woolf", 0.5), ("Joyce", 0.5)), epsilon=0.1, attained=False, attainable=0.35, delta=0.1
    )
    many = tuple((f"answer {number}", round(0.2 - 0.01 * number, 2)) for number in range(11))
    data = {"thread": 7, "größe": "groß"}
    return {
        "answer-free": store.enqueue(held_back(messages=talk, metadata=data), expires_in=3000).id,
        "answer-mine": taken(store, held_back(messages=talk, metadata=data), expires_in=30),
        "answer-of-another": taken(store, held_back(), "bob"),
        "answer-with-many-others": taken(store, held_back(alternatives=many, candidate_set=None)),
        "answer-without-a-promise": taken(store, held_back(alternatives=(), candidate_set=not_attained)),
        "answer-with-a-promise-not-attained": taken(store, held_back(allowed=("edit",), candidate_set=unsure)),
        "answer-hostile": taken(store, held_back(HOSTILE, HOSTILE)),
        "answer-broken": taken(store, held_back(candidate=broken, alternatives=(("", 0.5), ("a\ufffd", 0.5)))),
        "answer-missing": taken(
            store, held_back("", candidate=None, allowed=("reject", "respond"), verdict=None, candidate_set=None)
        ),
        "answer-approved": decided(store, held_back(), Decision(action="approve", note="looked it up")),
        "answer-edited": decided(store, held_back(), Decision(action="edit", candidate=Candidate(text="V. Woolf"))),
        "answer-answered": decided(store, held_back(), Decision(action="respond", text="Ask a librarian.")),
        "answer-rejected": decided(store, held_back(), Decision(action="reject")),
        "call-mine": taken(store, call_item()),
        "call-edited": decided(
            store,
            call_item(),
            Decision(
                action="edit",
                candidate=Candidate(
                    tool_calls=(TRANSFER.model_copy(update={"arguments": {"to": "Ann", "amount": 4}}),)
                ),
            ),
        ),
        "parts-free": store.enqueue(part_item()).id,
        "parts-mine": taken(store, part_item()),
        "parts-sentences": taken(store, sentences_item(verdict={**verdict(), "accepted": True})),
        "parts-call": taken(
            store,
            call_item(
                parts=(
                    PartVerdict(path="/to", text='"Ann"', uncertainty=0.0, kept=True),
                    PartVerdict(path="/amount", text="5", uncertainty=0.6, kept=False),
                )
            ),
        ),
        "parts-audit": taken(
            store,
            sentences_item(
                kind="audit", verdict={**verdict(0.3), "accepted": True}, allowed=("approve", "edit", "reject")
            ),
        ),
        "audit-mine": taken(
            store,
            held_back(
                kind="audit",
                verdict={**verdict(0.3), "uncertainty": {"value": 0.3, "unit": "probability"}},
                allowed=("approve", "edit", "reject"),
                candidate=broken,
                candidate_set=None,
            ),
        ),
        "label-mine": taken(store, TO_LABEL),
        "label-decided": decided(store, TO_LABEL, Decision(action="approve")),
    }


def test_items(site: Site, store: ReviewStore, now: list[float]) -> None:
    ann, pages = site.browser("ann"), item_pages(store)
    expired = store.enqueue(held_back("Too late?"), expires_in=10)
    now[0] += 20
    for name, item in pages.items():
        page = ann.get(f"/items/{item}")
        start = 0 if name == "answer-mine" else page.index("<title>")
        same(f"pages/items/{name}.html", page[start:])
    page = ann.get(f"/items/{expired.id}")
    same("pages/items/answer-late.html", page[page.index("<main") :])
    store.expire()
    page = ann.get(f"/items/{expired.id}")
    same("pages/items/answer-expired.html", page[page.index("<main") :])


def test_an_item_of_an_administrator(site: Site, store: ReviewStore, now: list[float]) -> None:
    eve, item = site.browser("eve"), taken(store, held_back(), "bob")
    now[0] += 5
    page = eve.get(f"/items/{item}")
    same("pages/items/administrator.html", page[page.index("<body>") :])


# -- forms and errors ----------------------------------------------------------------------------------------------


def test_a_review_by_forms(site: Site, store: ReviewStore, now: list[float]) -> None:
    """Each form with its response, and what the store has then."""
    ann, eve = site.browser("ann"), site.browser("eve")
    lines: list[str] = []

    def send(browser: Browser, path: str, **fields: str) -> None:
        now[0] += 1
        response = browser.post(path, **fields)
        lines.append(f"{path} {json.dumps(fields, ensure_ascii=False)}\n  -> {said(response)}")

    def claim(content: Content) -> tuple[str, str]:
        item = store.enqueue(content)
        send(ann, f"/items/{item.id}/claim")
        held = store.held(item.id, "ann")
        assert held is not None
        return f"/items/{item.id}", held.token

    def outcome() -> None:
        item = store.items(["decided"], newest=True, limit=1)[0]
        assert item.decision is not None
        shown = item.decision.model_dump(mode="json", exclude_defaults=True)
        lines.append(f"  = {json.dumps(shown, ensure_ascii=False)}")
        lines.append("")

    send(ann, "/next")
    first = store.enqueue(held_back())
    send(ann, "/next")
    lease = store.held(first.id, "ann")
    assert lease is not None
    send(ann, f"/items/{first.id}/renew", lease=lease.token)
    send(ann, f"/items/{first.id}/release", lease=lease.token)
    send(ann, f"/items/{first.id}/claim")
    send(eve, f"/items/{first.id}/claim")
    send(eve, f"/items/{first.id}/take-back")
    send(ann, f"/items/{first.id}/take-back")
    store.cancel(first.id, why="enough")
    for fields in (
        {"action": "approve", "note": " sure "},
        {"action": "reject"},
        {"action": "respond", "text": "Ask\r\nher."},
        {"action": "edit", "edited": "V. Woolf"},
        {"action": "edit", "edited": "Virginia Woolf\r\n"},
    ):
        path, token = claim(held_back())
        send(ann, f"{path}/decide", lease=token, **fields)
        outcome()
    path, token = claim(held_back())
    page = ann.get(path)
    keys = re.findall(r'name="choice" value="(\w+)"', page)
    send(ann, f"{path}/decide", lease=token, choice=keys[1], note="of the list")
    outcome()
    path, token = claim(call_item())
    arguments = json.dumps([{"name": "transfer", "arguments": {"to": "Ann", "amount": 4}}])
    send(ann, f"{path}/decide", lease=token, action="edit", tool_calls=arguments)
    outcome()
    path, token = claim(part_item())
    fields = {
        "part:1": "approve",
        "part:2": "edit",
        "value:2": "324",
        "part:3": "edit",
        "value:3": "z",
        "part:4": "edit",
    }
    send(ann, f"{path}/decide", lease=token, action="parts", **fields, **{"value:4": "978-0"})
    outcome()
    path, token = claim(sentences_item())
    send(ann, f"{path}/decide", lease=token, action="parts", **{"part:1": "edit", "value:1": "It appeared in 1931."})
    outcome()
    store.enqueue(TO_LABEL)
    path, token = claim(TO_LABEL)
    send(ann, f"{path}/decide", lease=token, action="approve")
    outcome()
    (label,) = store.items(["claimed"])
    held = store.held(label.id, "ann")
    assert held is not None
    send(ann, f"/items/{label.id}/decide", lease=held.token, action="reject")
    outcome()
    monitor = Monitors(store).risk("errors", 0.1)
    while not monitor.state.alarmed:
        monitor.update(True)
    send(eve, "/monitor/acknowledge", name="errors")
    send(ann, "/sign-out")
    lines.append(f"/ -> {said(ann.client.get('/'))}")
    same("pages/forms.txt", "\n".join(lines))


def test_refusals(site: Site, store: ReviewStore, now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, nobody = site.browser("ann"), site.browser("bob"), site.browser()
    lines: list[str] = []

    def line(name: str, response: Any) -> None:
        lines.append(f"{name}\n  -> {said(response)}")

    item = store.enqueue(held_back(allowed=("edit", "reject")))
    lease = store.claim("ann", item=item.id, seconds=60)
    assert lease is not None
    decide = f"/items/{item.id}/decide"
    same("pages/error.html", ann.get("/items/nothing"))
    line("without a sign-in", nobody.client.get("/history"))
    line("a page that does not exist", ann.client.get("/no/such/page"))
    line("the same as JSON", ann.client.get("/no/such/page", headers={"accept": "application/json"}))
    line("the trail of a reviewer", ann.client.get("/trail"))
    line("an item that does not exist", ann.client.get("/items/nothing"))
    line("an id that no database holds", ann.client.get("/items/%00"))
    line("a form without its token", ann.client.post("/next", data={}))
    line("a form with a forged token", ann.client.post("/next", data={"form_token": "00"}))
    line("a form before any page", site.browser().client.post("/sign-in", data={"token": "x"}))
    line("a form of another kind", ann.client.post("/next", files={"a": b"b"}))
    line("a form that is too large", ann.client.post("/next", data={"a": "x" * 65_000}))
    line("a decision that is too large", ann.client.post(decide, data={"a": "x" * 16_000_001}))
    chunks = {"Content-Type": "application/x-www-form-urlencoded"}
    line("a form in chunks", ann.client.post("/next", content=iter([b"a=", b"b"]), headers=chunks))
    line("an action that does not exist", ann.post(decide, lease=lease.token, action="delete"))
    line("an action that is not allowed", ann.post(decide, lease=lease.token, action="approve"))
    line("an edit without a change", ann.post(decide, lease=lease.token, action="edit", edited="Virginia Woolf"))
    line("an empty edit", ann.post(decide, lease=lease.token, action="edit", edited=" "))
    line("an answer without a text", ann.post(decide, lease=lease.token, action="respond", text=" "))
    line("broken tool calls", ann.post(decide, lease=lease.token, action="edit", tool_calls="{"))
    line("wrong tool calls", ann.post(decide, lease=lease.token, action="edit", tool_calls='[{"name": 1}]'))
    line("tool calls without a list", ann.post(decide, lease=lease.token, action="edit", tool_calls="5"))
    deep = json.dumps([{"name": "t", "arguments": {"a": nested(300)}}])
    line(
        "tool calls nested too deeply", ann.post(decide, lease=lease.token, action="edit", edited="x", tool_calls=deep)
    )
    line("a choice and an action", ann.post(decide, lease=lease.token, action="edit", choice="x"))
    line("a choice that is not listed", ann.post(decide, lease=lease.token, choice="x"))
    line("parts of an item without parts", ann.post(decide, lease=lease.token, action="parts"))
    line("a lease of another", bob.post(decide, lease="0", action="reject"))
    line("taking what is taken", bob.post(f"/items/{item.id}/claim"))
    line("a renewal without a lease", bob.post(f"/items/{item.id}/renew", lease="0"))
    line("half of a surrogate pair", ann.client.get("/items/%ED%A0%80"))
    now[0] += 70
    store.expire()
    line("a lease that has ended", bob.post(f"/items/{item.id}/renew", lease="0"))
    assert store.claim("bob", item=item.id) is not None
    line("a decision after another has taken it", ann.post(decide, lease=lease.token, action="reject"))
    parts = store.enqueue(part_item())
    held = store.claim("ann", item=parts.id)
    assert held is not None
    by_part = f"/items/{parts.id}/decide"
    line("a part without a decision", ann.post(by_part, lease=held.token, action="parts", **{"part:1": "approve"}))
    fields = {"part:1": "edit", "part:2": "reject", "part:3": "reject", "part:4": "reject"}
    line("a part without its text", ann.post(by_part, lease=held.token, action="parts", **fields, **{"value:1": " "}))
    line("a part that is not JSON", ann.post(by_part, lease=held.token, action="parts", **fields, **{"value:1": "19x"}))
    fields["part:1"] = "delete"
    line("a part with another action", ann.post(by_part, lease=held.token, action="parts", **fields))
    line("the whole of an item with parts", ann.post(by_part, lease=held.token, action="edit", edited="{}"))
    store.decide(held, Decision(action="reject"))
    line("a second decision", ann.post(by_part, lease=held.token, action="approve"))
    late = store.enqueue(held_back(), expires_in=5)
    held = store.claim("ann", item=late.id)
    assert held is not None
    now[0] += 6
    line("a decision that comes too late", ann.post(f"/items/{late.id}/decide", lease=held.token, action="approve"))
    line("taking what is too late", ann.post(f"/items/{late.id}/claim"))
    line("no alarm to acknowledge", site.browser("eve").post("/monitor/acknowledge", name="errors"))
    line("an acknowledgement of a reviewer", ann.post("/monitor/acknowledge", name="errors"))
    line("health", ann.client.get("/health"))

    def fails(*_: Any, **__: Any) -> None:
        raise OperationalError("SELECT", {}, OSError("disk full"))

    with monkeypatch.context() as broken:
        broken.setattr(store, "item", fails)
        broken.setattr(store, "check", fails)
        line("a database that does not answer", ann.client.get(f"/items/{item.id}"))
        line("the health of it", ann.client.get("/health"))
    with monkeypatch.context() as busy:
        busy.setattr(site_module, "LARGEST_TOGETHER", 80_000)
        body = {"a": "x" * 90_000}
        line("a large form beside others", ann.client.post(decide, data=body))
    same("pages/refusals.txt", "\n".join(lines))


def test_wrong_tokens(site: Site) -> None:
    browser, lines = site.browser(), []
    for token in ("wrong", "zendesk-token-0123456789ab", "wrong", "wrong", "wrong", "ann-token-0123456789ab"):
        form = re.search(r'name="form_token" value="([^"]+)"', browser.client.get("/sign-in").text)
        assert form is not None
        response = browser.client.post("/sign-in", data={"form_token": form[1], "token": token})
        problem = re.findall(r'<p class="problem" role="alert">(.*?)</p>', response.text)
        lines.append(f"{token}: {response.status_code} {problem[0]}" if problem else f"{token}: {said(response)}")
    same("pages/wrong-tokens.txt", "\n".join(lines))


def test_an_item_that_cannot_be_read(site: Site, store: ReviewStore) -> None:
    item = store.enqueue(held_back())
    with store.database.write() as connection:
        connection.execute(update(items).values(content='{"question": 5}', kind="essay"))
    page = site.browser("ann").get(f"/items/{item.id}")
    same("pages/items/unreadable.html", page[page.index("<main") :])


def test_words_and_plots() -> None:
    """Times, lengths of time and pictures at their limits."""
    lines = [f"when {value!r}: {when(value)}" for value in (None, 0.0, 1e9, 1e20, -1e20, math.inf, math.nan, "x", True)]
    lengths = (-5.0, 0.0, 59.9, 60.0, 3599.0, 3600.0, 86_399.0, 86_400.0, 200_000.0, math.inf, math.nan)
    lines += [f"ago {value!r}: {ago(value)}" for value in lengths]
    promises = ("Asymptotic and on average.", "None: a test.", "On average over questions.", "At most 0.1 of them.")
    lines += [f"promise {text!r}: {promise_on_page(text)}" for text in (*promises, None)]
    for value, threshold, unit in (
        *((0.3, 0.61, "nats"), (-1.5, -2.0, "score"), (0.0, 0.0, "probability"), (5.0, 0.001, "nats")),
        *((1e301, 1.0, "nats"), (None, 1.0, "nats"), (1.0, None, "nats"), ("1", 1.0, "nats"), (math.nan, 1.0, "nats")),
    ):
        picture = uncertainty_plot({"uncertainty": {"value": value, "unit": unit}, "threshold": threshold})
        lines.append(f"score {value!r}, threshold {threshold!r}: {picture}")
    lines += [f"verdict {verdict!r}: {uncertainty_plot(verdict)}" for verdict in (None, {}, {"uncertainty": 5})]
    step = MonitorStep(n=1, at=0.0, value=0.5, chance=0.5, log_wealth=0.0)
    for wealths, delta in (((), 0.05), ((-3.0,), 0.05), ((1.0, 2.5), 0.1), ((500.0, 699.0, 710.0), 1e-6)):
        steps = [step.model_copy(update={"n": n, "log_wealth": w}) for n, w in enumerate(wealths, 1)]
        lines.append(f"wealth {wealths}, delta {delta}: {wealth_plot(steps, delta)}")
    for part in part_item().parts:
        for n_samples in (0, 4):
            row = PartRow(0, "x", "x", "line\n" * 3 + "y" * 130, part, (), n_samples)
            lines.append(f"{part.place}, {n_samples} samples: {row.lines} lines, {row.support}")
    lines.append(f"many lines: {PartRow(0, 'x', 'x', 'line' + chr(10) * 20, part_item().parts[0], (), 0).lines}")
    call = call_item(verdict={"samples": [TO_BOB, "[1]", '{"amount": 7, "to": ["Bob"]}']}, parts=IN_CALL)
    lines += [f"{row.label}: {row.text}, others {row.others} of {row.samples}" for row in rows_of(call)]
    lines += [f"of a label: {row.others} of {row.samples}" for row in rows_of(part_item(kind="audit", verdict=None))]
    same("pages/words-and-plots.txt", "\n".join(lines))


IN_CALL = (
    PartVerdict(path="/to", text='"Ann"', uncertainty=0.5, kept=False),
    PartVerdict(path="/to/0", text='"Ann"', uncertainty=0.5, kept=False),
    PartVerdict(path="/to/9", text='"Ann"', uncertainty=0.5, kept=False),
    PartVerdict(path="/amount", text="5", uncertainty=0.25, kept=False),
    PartVerdict(path="", text="{}", uncertainty=0.25, kept=False),
)
