"""The page over HTTP: who may do what, forged and hostile requests, and the headers. No browser."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from guardrail import Guardrail
from guardrail.__main__ import main
from guardrail.errors import UsageError
from guardrail.judges import canonical_calls
from guardrail.review import Candidate, Content, Decision, ReviewStore, ask_reviewer
from guardrail.review.web.accounts import Accounts, add_token
from guardrail.review.web.app import review_app
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import ToolCall
from tests.review_pages import HOSTILE, accounts, decision_of, held_back, in_process, verdict


class Client:
    """A browser without anything: one cookie, no redirects followed."""

    def __init__(self, app: Starlette) -> None:
        self.page = in_process(app)
        self.cookie = ""
        self.headers: Mapping[str, str] = {}

    def ask(self, method: str, path: str, fields: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
        self.page.cookies.clear()
        sent = {"Cookie": self.cookie, **headers}
        body = None
        if fields is not None:
            body = urlencode(fields)
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        response = self.page.request(method, path, content=body, headers=sent)
        self.headers = response.headers
        if "set-cookie" in self.headers:
            self.cookie = self.headers["set-cookie"].split(";")[0]
        return response.status_code, response.text

    def get(self, path: str) -> tuple[int, str]:
        return self.ask("GET", path)

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        return self.ask("POST", path, fields)

    def sign_in(self, name: str) -> Client:
        status, _ = self.post("/sign-in", token=f"{name}-token-0123456789ab")
        assert (status, self.headers["location"]) == (303, "/")
        return self


@pytest.fixture
def site(store: ReviewStore) -> Starlette:
    return review_app(store, accounts(), lease=60)


def lease_of(text: str) -> str:
    match = re.search(r'name="lease" value="([0-9a-f]+)"', text)
    assert match is not None
    return match[1]


class Desk:
    """A reviewer who has taken an item with this content."""

    def __init__(self, site: Starlette, store: ReviewStore, content: Content, name: str = "ann") -> None:
        self._store, self.item = store, store.enqueue(content)
        self.path = f"/items/{self.item.id}"
        self.client = Client(site).sign_in(name)
        self.client.post(f"{self.path}/claim")
        self.page = self.client.get(self.path)[1]
        self.lease = lease_of(self.page)

    def decide(self, **form: str) -> tuple[int, str]:
        return self.client.post(f"{self.path}/decide", lease=self.lease, **form)

    @property
    def state(self) -> str:
        return self._store.item(self.item.id).state

    @property
    def decision(self) -> Decision:
        return decision_of(self._store, self.item.id)

    @property
    def edited(self) -> Candidate:
        """The candidate of the edit."""
        assert self.decision.candidate is not None
        return self.decision.candidate

    @property
    def choices(self) -> dict[str, str]:
        """Answers that have a button on the page, with what the button posts."""
        keys = {}
        for row in (row for row in self.page.split("<li>") if 'name="choice"' in row):
            text, value = re.search(r'answer-text".*?>(.*?)</div>', row, re.DOTALL), re.search(r'value="([^"]+)"', row)
            assert text is not None
            assert value is not None
            keys[unescape(text[1])] = value[1]
        assert len(keys) == self.page.count('name="choice"')
        return keys


Take = Callable[..., Desk]


@pytest.fixture
def take(site: Starlette, store: ReviewStore) -> Take:
    return partial(Desk, site, store)


def test_a_review_without_javascript(store: ReviewStore, site: Starlette) -> None:
    item = store.enqueue(held_back())
    ann = Client(site).sign_in("ann")
    assert "Who wrote The Waves?" in ann.get("/")[1]
    assert ann.post("/next")[0] == 303
    assert ann.headers["location"] == f"/items/{item.id}"
    _, page = ann.get(f"/items/{item.id}")
    assert "An acceptable answer is among these in at least 80% of such questions (90% confidence)." in page
    status, _ = ann.post(
        f"/items/{item.id}/decide", lease=lease_of(page), action="edit", edited="V.\r\nWoolf", note="n"
    )
    assert status == 303
    decision = decision_of(store, item.id)
    assert decision.candidate is not None
    assert (decision.reviewer, decision.candidate.text, decision.note) == ("ann", "V.\nWoolf", "n")
    assert "edited" in ann.get("/history")[1]
    assert "Edited by ann" in ann.get(f"/items/{item.id}")[1]


def test_edited_tool_calls(take: Take) -> None:
    call = {"name": "transfer", "arguments": {"amount": 5, "text": "For Ann", "days": [1], "to": "\u202ebob"}}
    desk = take(held_back(candidate={"tool_calls": [call]}, kind="tool_call"))
    assert '<dt>amount</dt><dd class="pre">5</dd><dt>text</dt><dd class="pre">For Ann</dd>' in desk.page
    for wrong in ("{", "4o", "4 euros", "true", "null", '"4"', "[4]"):  # no number, though JSON: a tool may take it
        status, text = desk.decide(action="edit", **{"argument:0:0": wrong})
        assert (status, "amount must be a number" in text) == (400, True)
    desk.decide(action="edit", **{"argument:0:0": "4", "argument:0:1": "For Ann\r\nand Bob", "argument:0:2": ""})
    arguments = {"amount": 4, "text": "For Ann\nand Bob", "to": "\u202ebob"}
    assert desk.edited.tool_calls == (ToolCall(name="transfer", arguments=arguments),)


REFUND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": "number", "title": "Amount", "description": "in euros", "maximum": 500},
        "reason": {"enum": ["broken", "late"]},
        "notify": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "items": {"type": "string"}},
        "address": {"$ref": "#/$defs/Address"},
    },
    "required": ["order_id", "amount", "reason"],
    "$defs": {"Address": {"type": "object", "description": "where to", "properties": {"city": {"type": "string"}}}},
    "additionalProperties": False,
}


def a_refund(**changes: Any) -> Content:
    arguments = {"order_id": "A-17", "amount": 40, "reason": "late", "lines": ["shirt", "hat"]}
    call = {"name": "refund", "arguments": {**arguments, **changes}}
    return held_back(
        kind="tool_call", candidate={"tool_calls": [call]}, agent=True, schemas={"refund": REFUND},
        alternatives=(), candidate_set=None,
    )  # fmt: skip


def test_the_form_of_a_call_follows_the_tools_schema(take: Take) -> None:
    """A support employee reads no JSON: numbers, choices and lists have fields of their own, also those left out."""
    desk = take(a_refund())
    for shown in (
        *(">order id</label>", '>Amount <span class="soft">in euros</span></label>', ">where to</span>"),
        "one on each line",
        *('inputmode="decimal" autocomplete="off" value="40"', '<option value="&#34;late&#34;" selected>late</option>'),
        *('<option value="">(left out)</option>', '<option value="true">yes</option>', "shirt\nhat</textarea>"),
    ):  # fmt: skip
        assert shown in desk.page, shown
    fields = {label: name for name, label in re.findall(r'<label for="(argument:0:\d)">(\w+)', desk.page)}
    edited = {"Amount": "12.5", "notify": "true", "lines": "shirt\r\n\r\n", "reason": '"broken"'}
    desk.decide(action="edit", **{fields[label]: text for label, text in edited.items()})
    assert desk.edited.tool_calls[0].arguments == {
        **{"order_id": "A-17", "amount": 12.5, "reason": "broken", "lines": ["shirt"], "notify": True}
    }


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("argument:0:1", "501", "amount: 501 is greater than the maximum of 500"),
        ("argument:0:1", "12,5", "Amount must be a number"),
        ("argument:0:1", "", "&#39;amount&#39; is a required property"),
        ("argument:0:2", '"stolen"', "reason must be one of its choices"),
    ],
)
def test_an_edit_that_the_tool_would_refuse_consumes_nothing(take: Take, field: str, value: str, why: str) -> None:
    desk = take(a_refund())
    status, text = desk.decide(action="edit", **{field: value})
    assert (status, why in text) == (400, True), text
    assert desk.state == "claimed"
    assert desk.decide(action="approve")[0] == 303, "the lease still holds"


@pytest.mark.parametrize(
    ("given", "shown", "sent"),
    [
        ({"amount": None}, 'inputmode="decimal" autocomplete="off" value=""', {"argument:0:1": ""}),
        ({"notify": None}, '<option value="null" selected>(empty)</option>', {"argument:0:4": "null"}),
        ({"reason": "lost"}, '<option value="&#34;lost&#34;" selected>lost</option>', {"argument:0:2": '"lost"'}),
        ({"amount": "40"}, ">\n40</textarea>", {"argument:0:1": "40"}),
    ],
)
def test_what_does_not_fit_the_tool_is_shown_and_stays_unless_it_is_changed(
    take: Take, given: dict[str, Any], shown: str, sent: dict[str, str]
) -> None:
    """A form that turned null into a text, or 40 into "40", would record that the model was wrong."""
    desk = take(a_refund(**given))
    assert shown in desk.page
    desk.decide(action="edit", **sent)
    assert desk.decision.action == "approve"


def test_a_schema_of_a_stranger_neither_breaks_the_page_nor_sends_it_anywhere(take: Take) -> None:
    """Tools of an MCP server describe themselves."""
    loop = {"anyOf": [{"$ref": "#/$defs/A"}]}
    for schema in (
        {"properties": {"amount": loop, "order_id": 5, "x": {"enum": "abc", "anyOf": 1}}, "$defs": {"A": loop}},
        {"properties": {"amount": {"$ref": "http://169.254.169.254/latest"}}},
        {"type": "money"},
    ):
        desk = take(a_refund().model_copy(update={"schemas": {"refund": schema}}))
        status, text = desk.decide(action="edit", **{"argument:0:1": "41"})
        assert (status, "the schema of the tool cannot be used" in text) == (400, True)


def test_two_calls_of_one_step_say_what_a_decision_does_to_each(take: Take) -> None:
    calls: list[dict[str, Any]] = [{"name": name, "arguments": {}} for name in ("refund", "mail", "close")]
    desk = take(held_back(kind="tool_call", candidate={"tool_calls": calls}, agent=True, fixed=(1,)))
    assert "<b>mail</b> needs no decision: it runs also if you reject." in desk.page
    assert "one decision is about all of them" in desk.page


def test_the_conversation_is_in_words(take: Take) -> None:
    """Nobody untrained reads JSON; what a tool returned decides most refunds."""
    talk = (
        {"role": "human", "content": "Refund A-17."},
        {"role": "ai", "content": "", "tool_calls": [{"name": "order", "arguments": {"id": "A-17"}}]},
        {"role": "tool", "content": json.dumps({"total": 40.5, "paid": True, "lines": [{"sku": "hat"}], "note": None})},
        {"role": "tool", "content": "no such order {"},
    )
    page = take(held_back(messages=talk)).page
    for shown in (
        *("<b>User</b>", "<b>Result of the tool</b>", 'calls <b>order</b><dl class="arguments"><dt>id</dt>'),
        *('<dt>total</dt><dd class="pre">40.5</dd><dt>paid</dt><dd class="pre">yes</dd>', "no such order {"),
        '<ul class="values"><li><dl class="arguments"><dt>sku</dt><dd class="pre">hat</dd></dl></li></ul>',
    ):
        assert shown in page, shown
    assert "&#34;total&#34;" not in page


@pytest.mark.parametrize(
    ("changes", "shown", "missing"),
    [
        # Only what the buttons can do is explained.
        ({"candidate": None, "allowed": ("reject", "respond")}, "Reject: the user is told", "Approve:"),
        # A list of the candidate alone would be a second, equal button.
        ({"alternatives": (("Virginia Woolf", 1.0),), "candidate_set": None}, "Approve:", "Send this"),
        ({"candidate": {"text": "void \u202eonly if"}}, "stands for a character that hides or turns", "\u202e"),
        ({}, "A decision is final.", "stands for a character"),
    ],
)
def test_a_support_employee_need_not_guess(take: Take, changes: dict[str, Any], shown: str, missing: str) -> None:
    page = take(held_back(**changes)).page
    assert (shown in page, missing in page) == (True, False)


@pytest.mark.parametrize("text", ["Virginia Woolf", "two\nlines\n", "\r\nold\rlines\r\n", " x", "NUL\0"])
def test_an_edit_that_changes_nothing_approves(take: Take, text: str) -> None:
    """As an edit it would teach that the candidate is wrong."""
    desk = take(held_back(answer=text))
    sent = text.replace("\0", "\ufffd").replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")
    desk.decide(action="edit", edited=sent, note="looked it up")
    decision, judged = desk.decision, desk.item.content
    assert (decision.action, decision.note, decision.outcome(judged)) == ("approve", "looked it up", judged.candidate)


@pytest.mark.parametrize(
    ("edited", "amount", "action"), [("Done.", 5, "approve"), ("Done.", 4, "edit"), ("", 5, "edit")]
)
def test_an_edit_of_calls_counts_where_the_call_or_the_text_beside_it_is_another(
    take: Take, edited: str, amount: int, action: str
) -> None:
    call = {"name": "transfer", "arguments": {"to": "Ann", "amount": 5.0}}
    desk = take(held_back(candidate={"text": "Done.", "tool_calls": [call]}, kind="tool_call"))
    desk.decide(action="edit", edited=edited, **{"argument:0:0": "Ann", "argument:0:1": f"{amount}"})
    assert desk.decision.action == action


def test_an_edit_that_changes_nothing_is_refused_where_nothing_can_be_approved(take: Take) -> None:
    desk = take(held_back(allowed=("edit", "reject")))
    status, text = desk.decide(action="edit", edited="Virginia Woolf")
    assert (status, "Nothing was edited" in text, desk.state) == (422, True, "claimed")


# -- another answer of the list ------------------------------------------------------------------------------------


SAID = '<b>E. M.</b> Forster & "co"\nor  so'


def test_the_waiting_caller_gets_exactly_the_chosen_text(store: ReviewStore, site: Starlette) -> None:
    reviews = pytest.importorskip("calibrate.reviews")
    model = ScriptedChat(script={"Who?": ["Woolf", "Woolf", SAID, "James", "Mansfield", "Stein", "Woolf", *"abcd"]})
    artifact = make_artifact(model)
    guard = Guardrail(model=model, artifact=artifact, on_abstain=ask_reviewer(store, wait=120))
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(guard.invoke, "Who?")
        while not (waiting := store.items(["pending"])):
            wait([reply], timeout=0.01)
            assert not reply.done(), reply.result()
        ann = Client(site).sign_in("ann")
        ann.post(f"/items/{waiting[0].id}/claim")
        page = ann.get(f"/items/{waiting[0].id}")[1]
        key = hashlib.sha256(SAID.encode()).hexdigest()[:32]
        assert f'name="choice" value="{key}"' in page
        posted = ann.post(f"/items/{waiting[0].id}/decide", lease=lease_of(page), choice=key, note="looked it up")
        assert posted[0] == 303
        message = reply.result(timeout=60)
    assert message.content == SAID
    assert message.response_metadata["review"]["action"] == "edit"
    decision = decision_of(store, waiting[0].id)
    assert (decision.reviewer, decision.note) == ("ann", "looked it up [chosen from the list]")
    (reviewed,) = reviews.read_reviews(store, [artifact]).items
    assert reviewed.correct is False
    assert "Forster &amp; &#34;co&#34;" in ann.get(f"/items/{waiting[0].id}")[1]


def test_only_what_is_on_the_items_own_list_can_be_chosen(take: Take) -> None:
    desk = take(held_back(alternatives=(("", 0.5), ("Forster", 0.5)), candidate_set=None))
    elsewhere = take(held_back(alternatives=(("Stein", 1.0),), candidate_set=None), "bob").choices
    assert list(desk.choices) == ["Forster"]
    empty = hashlib.sha256(b"").hexdigest()[:32]
    for choice in ("9", "-1", "Forster", "x" * 32, empty, elsewhere["Stein"], desk.choices["Forster"].upper()):
        status, text = desk.decide(choice=choice)
        assert (status, "not on the list" in text) == (422, True), choice
    assert desk.state == "claimed"


def test_choosing_needs_the_lease_and_a_form_of_ours(
    store: ReviewStore, site: Starlette, take: Take, now: list[float]
) -> None:
    desk = take(held_back())
    form = {"lease": desk.lease, "choice": desk.choices["E. M. Forster"]}
    bob = Client(site).sign_in("bob")
    assert 'name="choice"' not in bob.get(desk.path)[1]
    for token in ("", "0" * 32):
        assert bob.post(f"{desk.path}/decide", **{**form, "lease": token})[0] == 409
    assert desk.client.ask("POST", f"{desk.path}/decide", form, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    now[0] += 61
    assert store.claim("bob", item=desk.item.id) is not None
    status, text = desk.decide(choice=form["choice"])
    assert (status, "You do not hold this item" in text) == (409, True)
    store.cancel(desk.item.id)
    status, text = desk.decide(choice=form["choice"])
    assert (status, "Too late" in text) == (410, True)


@pytest.mark.parametrize("kind", ["audit", "to label", "tool_call"])
def test_nothing_leans_a_label_towards_the_score(take: Take, kind: str) -> None:
    """A reviewer who sees "90 %" beside the call agrees with it, and the calibration learns the model's opinion."""
    call = {"name": "refund", "arguments": {"amount": 40}}
    others = ((canonical_calls([ToolCall.model_validate(call)]), 0.9), ("Forster", 0.1))
    collected: dict[str, Any] = {"candidate": {"tool_calls": [call]}, "alternatives": others}
    audited: dict[str, Any] = {"kind": "audit", "allowed": ("approve", "edit", "reject")}
    contents = {
        "audit": held_back(**audited),
        "to label": held_back(**audited, verdict=None, candidate_set=None),
        "tool_call": held_back(kind="tool_call", verdict=verdict(record="r1"), **collected),
    }
    desk = take(contents[kind])
    for hint in (
        *("percent", "All of the model", "Likely answers", "Why it was", "Make this call", "1.36", 'class="answers"'),
        *("with their shares", 'data-key="1"', 'class="approve"', 'class="reject"'),
    ):
        assert hint not in desk.page
    desk.decide(choice=hashlib.sha256(b"Forster").hexdigest()[:32])
    assert desk.state == "claimed", "nothing is chosen from a list that is not shown"
    desk.decide(action="reject")
    assert "s, with their shares" in desk.client.get(desk.path)[1]


def test_the_list_names_the_tool_and_its_arguments(store: ReviewStore, site: Starlette) -> None:
    """Two refunds of one conversation look alike without them."""
    call = {
        "name": "refund",
        "arguments": {"order": "A-17", "amount": 40.5, "lines": [1, 2], "paid": True, "why": "x" * 99},
    }
    store.enqueue(held_back(kind="tool_call", candidate={"tool_calls": [call, {"name": "mail", "arguments": {}}]}))
    shown = f"refund: order A-17, amount 40.5, lines (1, 2), paid yes, why {'x' * 60}…; mail"
    assert shown in unescape(Client(site).sign_in("ann").get("/")[1])


def test_an_agent_is_told_why_its_call_is_rejected_and_nobody_else(take: Take) -> None:
    call = {"tool_calls": [{"name": "refund", "arguments": {"amount": 40}}]}
    agents = take(held_back(kind="tool_call", candidate=call, agent=True))
    assert "Reject and tell the agent why" in agents.page
    agents.decide(action="reject", reason="already paid", note="see order")
    decision = agents.decision
    assert (decision.action, decision.text, decision.note) == ("reject", "already paid", "see order")
    guards = take(held_back(kind="tool_call", candidate=call))
    assert "tell the agent" not in guards.page
    assert guards.decide(action="reject", reason="already paid")[0] == 400
    assert guards.state == "claimed"


def test_another_call_of_the_same_tool(take: Take) -> None:
    five, four = (ToolCall(name="transfer", arguments={"amount": amount}) for amount in (5, 4))
    others = tuple((canonical_calls([call]), 0.25) for call in (five, four, ToolCall(name="balance", arguments={})))
    candidate = {"tool_calls": [five.model_dump()]}
    answers = (*others, ("It is done.", 0.25))
    desk = take(held_back(candidate=candidate, kind="tool_call", alternatives=answers, candidate_set=None))
    amounts = [f'<dl class="arguments"><dt>amount</dt><dd class="pre">{amount}</dd></dl>' for amount in (5, 4)]
    assert list(desk.choices) == [f"<b>transfer</b>{amount}" for amount in amounts]
    desk.decide(choice=list(desk.choices.values())[1])
    assert (desk.decision.action, desk.edited.tool_calls) == ("edit", (four,))


@pytest.mark.parametrize("fields", [{}, {"action": "maybe"}, {"action": "respond"}, {"action": "edit", "edited": " "}])
def test_incomplete_decisions_change_nothing(take: Take, fields: dict[str, str]) -> None:
    desk = take(held_back())
    assert (desk.decide(**fields)[0], desk.state) == (422, "claimed")


def test_only_who_signed_in_sees_anything(store: ReviewStore, site: Starlette) -> None:
    item = store.enqueue(held_back())
    nobody = Client(site)
    for path in ("/", "/history", "/trail", f"/items/{item.id}"):
        status, text = nobody.get(path)
        assert (status, nobody.headers["location"], text) == (303, "/sign-in", "")
    for path in ("/next", f"/items/{item.id}/claim", f"/items/{item.id}/decide"):
        assert nobody.post(path)[0] == 303
    assert store.item(item.id).state == "pending"
    assert nobody.get("/health") == (200, '{"status":"ok"}')


def test_only_admins_see_the_trail_and_take_back(take: Take, site: Starlette) -> None:
    desk, eve = take(held_back()), Client(site).sign_in("eve")
    assert desk.client.get("/trail")[0] == 403
    assert desk.client.post(f"{desk.path}/take-back")[0] == 403
    assert "claimed" in eve.get("/trail")[1]
    assert "ann is reviewing this" in eve.get(desk.path)[1]
    assert eve.post(f"{desk.path}/take-back")[0] == 303
    status, text = desk.decide(action="approve")
    assert (status, "You do not hold this item" in text) == (409, True)


@pytest.mark.parametrize(
    ("https", "sender", "status"),
    [
        (False, {"Sec-Fetch-Site": "same-origin"}, 303),
        (False, {"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        (False, {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"}, 403),
        (False, {"Sec-Fetch-Site": "none"}, 403),
        (False, {"Origin": "http://127.0.0.1"}, 303),  # http from another machine, and old browsers
        (False, {"Origin": "http://127.0.0.1:3000"}, 403),
        (False, {"Origin": "https://evil.example"}, 403),
        (False, {"Origin": "null"}, 403),  # a frame without an origin
        (False, {"Origin": "https://127.0.0.1"}, 403),  # another program that serves https on this machine
        (False, {}, 403),
        # Behind a proxy that ends TLS, a page that somebody in the network serves under the same name over http:
        (True, {"Origin": "http://127.0.0.1"}, 403),
        (True, {"Origin": "http://127.0.0.1", "X-Forwarded-Proto": "http"}, 403),
        (True, {"Origin": "https://127.0.0.1"}, 303),
        (True, {"Origin": "https://127.0.0.1", "X-Forwarded-Proto": "http"}, 303),  # a proxy that names its own hop
    ],
)
def test_another_sites_form_is_refused(store: ReviewStore, https: bool, sender: dict[str, str], status: int) -> None:
    """A page elsewhere must not decide in the name of a reviewer who is signed in here, nor sign anybody in or out."""
    item = store.enqueue(held_back())
    ann = Client(review_app(store, accounts(), https=https)).sign_in("ann")
    ann.page.headers.pop("Sec-Fetch-Site")
    form = {"token": "ann-token-0123456789ab"}
    for path in ("/sign-in", f"/items/{item.id}/claim", "/sign-out"):
        assert ann.ask("POST", path, form, **sender)[0] == status, path
    assert store.item(item.id).state == ("claimed" if status == 303 else "pending")


def test_renewing(store: ReviewStore, take: Take, now: list[float]) -> None:
    desk = take(held_back())
    now[0] += 50
    status, text = desk.client.post(f"{desk.path}/renew", lease=desk.lease)
    assert (status, json.loads(text)["until"]) == (200, now[0] + 60)
    now[0] += 70
    assert store.claim("bob", item=desk.item.id) is not None
    status, text = desk.client.ask("POST", f"{desk.path}/renew", {"lease": desk.lease}, Accept="application/json")
    assert (status, json.loads(text)["error"]) == (409, "You do not hold this item")


def test_the_latest_turns_are_open_and_earlier_ones_folded(take: Take) -> None:
    """Nobody decides about "the second one" without the turn that lists them; a long talk does not bury the answer."""
    talk = tuple({"role": "human", "content": f"turn {place}."} for place in range(9))
    page = take(held_back(messages=({"role": "system", "content": "rules"}, *talk))).page
    assert "<summary>3 earlier messages</summary>" in page
    folded = [fold.split("</details>")[0] for fold in page.split("<details>")[1:]]
    assert ["rules" in part for part in folded][:2] == [True, False]
    assert [f"turn {place}." in folded[1] for place in range(9)] == [True] * 3 + [False] * 6
    assert all(f"turn {place}." in page for place in range(9))


def test_no_character_turns_the_text_around(take: Take) -> None:
    """A reviewer approved "pay 50 to bob", shown by an override from a text that says otherwise."""
    turned, shown = "pay \u202ebob ot 05\u2066", "pay \\u202ebob ot 05\\u2066"
    talk = ({"role": "human", "content": turned}, {"role": "ai", "content": "", "tool_calls": [{"name": turned}]})
    desk = take(held_back(turned, turned, alternatives=((turned, 1.0),), messages=talk, metadata={turned: turned}))
    for path in ("/", "/history?q=pay", desk.path):
        page = desk.client.get(path)[1]
        assert shown in page
        assert "\u202e" not in page
        assert "\u2066" not in page
    field = unescape(re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, flags=re.DOTALL)[0])
    assert field == "pay bob ot 05", "an edit starts from what can be seen"
    desk.decide(action="edit", edited=field)
    assert desk.edited == Candidate(text=field), "the override is gone, so this is not what was judged"


def test_arguments_to_edit_keep_their_value_though_no_character_turns_them(take: Take) -> None:
    call = {"name": "pay", "arguments": {"to": "\u202ebob"}}
    desk = take(held_back(kind="tool_call", candidate={"tool_calls": [call]}))
    assert "\u202e" not in desk.page
    field = unescape(re.findall(r'<textarea id="argument:0:0".*?>\n(.*?)</textarea>', desk.page, flags=re.DOTALL)[0])
    desk.decide(action="edit", **{"argument:0:0": field})
    assert desk.decision.action == "approve"


def test_hostile_text_is_text(take: Take) -> None:
    content = held_back(
        HOSTILE,
        HOSTILE,
        alternatives=((HOSTILE, 1.0),),
        messages=({"role": HOSTILE, "content": HOSTILE}, {"role": "ai", "content": HOSTILE, "tool_calls": [HOSTILE]}),
        metadata={HOSTILE: HOSTILE},
        verdict=verdict(samples=(HOSTILE,)),
    )
    desk = take(content, "eve")
    for path in ("/", desk.path, "/trail"):
        text = desk.client.get(path)[1]
        assert "<script>" not in text
        assert "<img" not in text
        assert 'href="javascript' not in text
        assert " 49 " not in text
    desk.decide(action="respond", text=HOSTILE.replace("\x00", ""), note=HOSTILE)
    for path in ("/history", desk.path):
        assert "<script>" not in desk.client.get(path)[1]


def test_headers(site: Starlette) -> None:
    client = Client(site)
    for path in ("/sign-in", "/static/review.js", "/nothing", "/"):
        client.get(path)
        policy = client.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert client.headers["x-content-type-options"] == "nosniff"
        assert client.headers["referrer-policy"] == "same-origin"
        assert "server" not in client.headers or "uvicorn" in client.headers["server"]
    cookie = client.sign_in("ann").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert client.headers["cache-control"] == "no-store"


def test_pages_hold_no_inline_code(take: Take) -> None:
    desk = take(held_back(), "eve")
    for path in ("/", "/history", "/trail", desk.path):
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! src=)", desk.client.get(path)[1])


def test_a_proxys_headers_change_nothing(store: ReviewStore) -> None:
    """They are anybody's words: no sign-in, name or limit depends on them."""
    client = Client(review_app(store, accounts(), hosts=("review.example.org",), https=True))
    forwarded = {"Host": "review.example.org", "X-Forwarded-For": "10.0.0.1", "X-Forwarded-Host": "evil.example"}
    status, text = client.ask("GET", "/sign-in", None, **forwarded)
    assert (status, "evil" in text + repr(client.headers)) == (200, False)
    assert client.ask("GET", "/", None, **forwarded)[0] == 303
    assert client.headers["location"] == "/sign-in", "relative, so it stays on the proxy's address"
    form = {"token": "ann-token-0123456789ab"}
    assert client.ask("POST", "/sign-in", form, **forwarded)[0] == 303
    assert "Secure" in client.headers["set-cookie"]


def test_other_host_names_are_refused(site: Starlette) -> None:
    client = Client(site)
    assert client.ask("GET", "/sign-in", Host="evil.example")[0] == 400


def test_a_copied_cookie_is_worth_nothing_after_signing_out(store: ReviewStore) -> None:
    first, other = (review_app(store, accounts()) for _ in range(2))
    ann = Client(first).sign_in("ann")
    copies = [Client(first), Client(other)]
    for copy in copies:
        copy.cookie = ann.cookie
        assert copy.get("/history")[0] == 200
    ann.post("/sign-out")
    assert "Max-Age=0" in ann.headers["set-cookie"]
    for copy in copies:
        assert copy.get("/history")[0] == 303
    assert ann.sign_in("ann").get("/history")[0] == 200
    assert ann.cookie != copies[0].cookie


def test_forged_cookies_are_no_session(site: Starlette) -> None:
    ann = Client(site).sign_in("ann")
    body = ann.cookie.split("=", 1)[1]
    for cookie in ("", ".", "a.b", body[:-1], "x" + body, "0" * 64, body.upper()):
        ann.cookie = f"guardrail_review={cookie}"
        assert ann.get("/history")[0] == 303


# -- limits of the server ------------------------------------------------------------------------------------------


def test_a_broken_form_is_not_logged(site: Starlette, caplog: pytest.LogCaptureFixture) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert in_process(site).post("/sign-in", content=b"abc", headers=kind).status_code == 415
    assert [record for record in caplog.records if record.name.startswith("guardrail")] == [], "anybody could fill it"


def test_a_database_that_fails_is_a_page_that_says_so(
    store: ReviewStore, take: Take, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = take(held_back())

    def fails(*_: object, **__: object) -> None:
        raise OperationalError("SELECT ...", {"content": "the patient is called Erna"}, Exception("server closed"))

    for operation in ("item", "items", "decide"):
        monkeypatch.setattr(store, operation, fails)
    ann = desk.client
    for status, text in (ann.get("/"), ann.get(desk.path), desk.decide(action="approve")):
        assert (status, "The database does not answer." in text) == (503, True)
        assert ann.headers["retry-after"] == "30"
        assert "Erna" not in text
    assert "server closed" in caplog.text
    assert "Erna" not in caplog.text
    assert ann.get("/health")[0] == 200
    monkeypatch.setattr(store.database, "write", fails)
    assert ann.get("/health") == (503, '{"status":"the database is not available"}')


def test_a_search_finds_tickets_keys_and_texts(store: ReviewStore, site: Starlette) -> None:
    items = {
        key: store.enqueue(held_back(question), key=key)
        for key, question in (
            ("order-7", 'Who wrote "Orlando"?'),
            ("order-8", "100% of it?"),
            ("<b>", "Wer schrieb Z\u00fcrich?"),
        )
    }
    ann = Client(site).sign_in("ann")

    def found(wanted: str) -> set[str]:
        status, text = ann.get(f"/history?q={quote(wanted)}")
        assert status == 200
        return {key for key, item in items.items() if f"/items/{item.id}" in text}

    assert found("order-7") == {"order-7"}
    assert found(items["order-8"].id) == {"order-8"}
    assert found('wrote "orlando') == {"order-7"}
    assert found("100%") == {"order-8"}, "a % is no wildcard"
    assert found("Z\u00fcrich") == {"<b>"}
    assert found("nobody asked this") == found("  ") == found("\0") == set()
    assert "<script>" not in ann.get(f"/history?q={quote('<script>')}")[1]
    assert Client(site).get("/history?q=order")[0] != 200, "only for reviewers"


def test_large_forms_are_refused(take: Take) -> None:
    desk = take(held_back())
    assert desk.client.post("/next", note="x" * 64_001)[0] == 413
    status, text = desk.decide(action="respond", text="x" * 16_000_001)
    assert (status, "16 MB" in text, desk.state) == (413, True, "claimed")
    assert desk.decide(action="respond", text="x" * 2_000_000)[0] == 303


def test_the_queue_has_pages(store: ReviewStore, site: Starlette) -> None:
    for i in range(120):
        store.enqueue(held_back(f"Question {i}?"))
    ann = Client(site).sign_in("ann")
    shown, path = [], "/"
    for older in (False, True, True):
        page = ann.get(path)[1]
        shown += re.findall(r"Question (\d+)\?", page)
        assert (">Older<" in page) is older
        newer = re.search(r'href="([^"]+)">Newer<', page)
        path = newer[1] if newer else ""
    assert path == ""
    assert shown == [str(i) for i in range(120)]
    # A page that emptied in the meantime leads back to the first.
    assert ann.get("/?page=3")[0] == 303
    assert ann.headers["location"] == "/"
    for page in ("-1", "x", "999999999999"):
        assert "Question 0?" in ann.get(f"/?page={page}")[1]


def test_a_broken_audited_answer_can_be_called_right(take: Take) -> None:
    broken: dict[str, Any] = {"candidate_set": None, "alternatives": (), "candidate": {"text": "Caf\ud83d"}}
    desk = take(held_back(kind="audit", allowed=("approve", "edit", "reject"), **broken))
    assert "stands for a character that could not be read or stored" in desk.page
    assert "cannot be approved" not in desk.page
    assert desk.decide(action="approve")[0] == 303


def test_strange_paths(store: ReviewStore, site: Starlette) -> None:
    ann = Client(site).sign_in("ann")
    assert ann.get("/items/unknown")[0] == 404
    assert ann.get("/nothing")[0] == 404
    for page in ("-1", "x", "999999999999", "\u0664", "3"):
        assert ann.ask("GET", "/history?" + urlencode({"page": page}))[0] == 200
    assert ann.get("/static/../web.py")[0] == 404
    assert ann.get("/static/%2e%2e/web.py")[0] == 404


def test_no_page_that_is_only_looked_at_writes_and_health_counts_nothing(
    store: ReviewStore, site: Starlette, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, _ = store.enqueue(held_back(), expires_in=30), store.enqueue(held_back())
    eve = Client(site).sign_in("eve")
    now[0] += 31
    with monkeypatch.context() as patched:
        patched.setattr(store.database, "write", lambda: pytest.fail("it writes"))
        for path in ("/", "/history", "/history?q=a", "/trail", "/monitor", f"/items/{late.id}", "/sign-in"):
            assert eve.get(path)[0] == 200
        assert "too late" in eve.get("/")[1]
    with monkeypatch.context() as patched:
        patched.setattr(store, "stats", lambda **_: pytest.fail("it counts"))
        assert eve.get("/health") == (200, '{"status":"ok"}')
        patched.setattr(store.database, "url", store.database.url.set(database="/nowhere/reviews.db"))
        assert eve.get("/health")[0] >= 500
    eve.post("/next")  # closes what is late
    assert store.item(late.id).state == "expired"


def to_label(question: str = "2 + 2?") -> Content:
    """Return an item as `calibrate label --review-store` queues it."""
    return Content(
        question=question,
        kind="audit",
        candidate=Candidate(text="5"),
        alternatives=(("4", 0.6), ("5", 0.4)),
        allowed=("approve", "edit", "reject"),
    )


def test_one_key_decides_and_opens_the_next(store: ReviewStore, site: Starlette) -> None:
    held = store.enqueue(held_back())
    first, second = (store.enqueue(to_label(question)) for question in ("1 + 1?", "2 + 2?"))
    browser = Client(site).sign_in("ann")
    queue = browser.get("/")[1]
    assert queue.count(">answer to judge<") == 2
    assert ">audit<" not in queue
    browser.post(f"/items/{first.id}/claim")
    page = browser.get(f"/items/{first.id}")[1]
    assert re.search(r'value="approve" data-key="a">Right', page)
    assert re.search(r'value="reject" data-key="r">Wrong', page)

    def decide(item: str, lease: str) -> str:
        assert browser.post(f"/items/{item}/decide", lease=lease, action="approve")[0] == 303
        return browser.headers["location"]

    assert decide(first.id, lease_of(page)) == f"/items/{second.id}"
    assert store.item(second.id).holder == "ann"
    assert decide(second.id, lease_of(browser.get(f"/items/{second.id}")[1])) == "/"
    waiting = store.enqueue(held_back("Who wrote Orlando?"))
    store.enqueue(to_label("3 + 3?"))
    browser.post(f"/items/{held.id}/claim")
    lease = lease_of(browser.get(f"/items/{held.id}")[1])
    assert decide(held.id, lease) == f"/items/{waiting.id}", "the next for which somebody waits"
    store.enqueue(held_back("Who wrote Flush?"))
    assert decide(held.id, lease) == f"/items/{waiting.id}", "a form sent twice takes no second item"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "the user gets exactly this answer"),
        ({"kind": "audit", "allowed": ("approve", "reject")}, "The user has this answer already"),
        ({"kind": "audit", "allowed": ("approve", "reject"), "verdict": None}, "you only say whether it is right"),
        ({"kind": "tool_call", "agent": True}, "Reject: the call is not made, and the agent is told so."),
        ({"kind": "tool_call"}, "the caller gets exactly this call"),
    ],
)
def test_the_page_says_what_a_decision_does(take: Take, changes: dict[str, Any], says: str) -> None:
    """Who sees the page for the first time does not know what becomes of a rejected call."""
    page = take(held_back(**changes)).page
    assert says in page
    assert (">Right <kbd>" in page) == (changes.get("kind") == "audit")


def test_the_user_and_the_agent_are_answered_in_two_fields(take: Take) -> None:
    """A text for the customer in the agent's field would become the result of a tool."""
    call = Candidate(tool_calls=(ToolCall(name="refund", arguments={"order": "1"}),))
    allowed: Any = ("approve", "reject", "respond", "answer")
    desk = take(Content(question="", kind="tool_call", candidate=call, agent=True, allowed=allowed))
    assert "the agent takes this for what the tool returned" in desk.page
    assert "the user gets exactly this text; the call is not made" in desk.page
    desk.decide(action="answer", text="It is closed.")
    assert (desk.decision.action, desk.decision.text) == ("answer", "It is closed.")
    assert "Answered the user by ann" in desk.client.get(desk.path)[1]


def test_items_without_the_usual(take: Take) -> None:
    page = take(Content(question="", allowed=("reject", "respond"))).page
    assert "The model gave no answer." in page
    assert 'value="approve"' not in page
    assert 'value="respond"' in page


# -- accounts ----------------------------------------------------------------------------------------------------------


def test_a_session_ends_after_twelve_hours_and_outlives_a_restart(
    store: ReviewStore, site: Starlette, now: list[float]
) -> None:
    ann = Client(site).sign_in("ann")
    now[0] += 12 * 3600 - 1
    ann.page = in_process(review_app(store, accounts()))
    assert ann.get("/history")[0] == 200
    now[0] += 1
    assert ann.get("/history")[0] == 303


def test_tokens_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, "ann", "reviewer")
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    accounts = Accounts(path)
    account = accounts.by_token(token)
    assert account is not None
    assert (account.name, account.role) == ("ann", "reviewer")
    assert accounts.by_token(token + "x") is None
    admin = add_token(path, "eve", "admin")
    eve = accounts.by_token(admin)
    assert eve is not None
    assert eve.role == "admin"
    again = add_token(path, "ann", "reviewer")
    assert accounts.by_token(token) is None
    assert accounts.by_token(again) is not None
    assert accounts.by_hash(account.sha256) is None
    path.unlink()
    assert accounts.all() == ()


def test_a_malformed_tokens_file_lets_nobody_in_until_it_is_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the edit that withdraws a token."""
    path = tmp_path / "tokens.json"
    token = add_token(path, "ann", "reviewer")
    accounts = Accounts(path)
    whole = path.read_text()
    path.write_text(whole[:40])
    assert accounts.by_token(token) is None
    assert "is not a tokens file" in caplog.text
    path.write_text(whole)
    assert accounts.by_token(token) is not None


def test_accounts_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    for name, role, message in (("ann", "owner", "'reviewer', 'admin' or 'system'"), ("", "admin", "1 to 64")):
        with pytest.raises(UsageError, match=message):
            add_token(path, name, role)
    for content in ("", "[]", '{"ann": 5}', '{"ann": {"role": "x", "sha256": ""}}'):
        path.write_text(content)
        with pytest.raises(UsageError):
            Accounts(path).all()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["review"]) == 1
    assert "--add-token" in capsys.readouterr().err
    assert main(["review", "--add-token", "ann", "--role", "admin"]) == 0
    token = capsys.readouterr().out.splitlines()[-1]
    account = Accounts(tmp_path / "review-tokens.json").by_token(token)
    assert account is not None
    assert (account.name, account.role) == ("ann", "admin")


def test_a_decision_that_was_not_carried_out_says_so(store: ReviewStore, take: Take) -> None:
    """Karl read "Approved by karl" about a call that was never made: the customer had gone on without it."""
    desk = take(a_refund())
    desk.decide(action="approve")
    ann = desk.client
    assert "Not carried out" not in ann.get(desk.path)[1]
    assert "not carried out" not in ann.get("/history")[1]
    store.note_event("not_carried_out", {"reason": "The conversation went on."}, item=desk.item.id)
    assert "<b>Not carried out.</b> The conversation went on." in ann.get(desk.path)[1]
    assert '<span class="tag reject">not carried out</span><span>The conversation went on.' in ann.get("/history")[1]
    assert '<span class="tag reject">not carried out</span>' in ann.get(f"/history?q={desk.item.id}")[1]
    other = take(a_refund())
    store.cancel(other.item.id, why="The conversation went on.")  # known before the decision
    assert "The conversation went on." in other.client.get(other.path)[1]
    status, text = other.decide(action="respond", text="My words")
    assert (status, "The conversation went on." in text) == (410, True)
    assert f'href="{other.path}' in text, "back to the item"
    assert "My words" in text, "what was written can be copied"


def test_the_page_binds_a_lease_to_the_account(store: ReviewStore, take: Take, site: Starlette) -> None:
    desk, bob = take(held_back()), Client(site).sign_in("bob")
    for path in ("decide", "renew", "release"):
        status, text = bob.post(f"{desk.path}/{path}", lease=desk.lease, action="approve")
        assert (status, "is ann&#39;s, not bob&#39;s" in text) == (409, True), text
    assert store.item(desk.item.id).holder == "ann"


def test_what_was_typed_stays_where_it_was_typed(take: Take) -> None:
    """The pattern of a schema read like a fault of the program, and the error page led away from the edit."""
    order = {"type": "string", "pattern": r"^[A-Z]\d+$", "examples": ["A17"]}
    schema = {**REFUND, "properties": {**REFUND["properties"], "order_id": order}}
    desk = take(a_refund(order_id="A17").model_copy(update={"schemas": {"refund": schema}}))
    sent = {"argument:0:0": "b-18", "argument:0:2": '"broken"', "note": "asked twice", "action": "edit"}
    status, text = desk.decide(**sent)
    assert (status, "order_id: b-18 must look like the pattern ^[A-Z]\\d+$, such as A17" in text) == (400, True), text
    assert "\nb-18</textarea>" in text
    assert 'value="&#34;broken&#34;" selected' in text
    assert 'name="note" maxlength="2000" autocomplete="off" value="asked twice"' in text
    assert '<details class="way" data-key="e" open>' in text
    assert lease_of(text) == desk.lease


def test_the_page_explains_the_tool_the_shares_and_the_reason(take: Take) -> None:
    """A support employee had to guess them."""
    content = a_refund(amount=5.0).model_copy(
        update={
            "alternatives": (("No refund.", 0.2),),
            "schemas": {"refund": {**REFUND, "description": "Pay an order back.\nIn euros. Ask first."}},
            "verdict": verdict(1.5),
        }
    )
    page = take(content).page
    assert '<b>refund</b> <span class="soft">Pay an order back.</span>' in page
    assert "All of the model&#39;s calls, with their shares" in page
    assert '<span class="percent">20 %</span>' in page
    assert "<p>The model&#39;s own answers disagree too much.</p>" in page
    numbers = page.index("discrete_semantic_entropy 1.5 &gt; 0.61")
    assert numbers > page.index("<summary>Details</summary>")
    assert "hand the question to a person" not in page
    assert '<dt>Amount (in euros)</dt><dd class="pre">5</dd>' in page, "80 of what?"
    assert 'inputmode="decimal" autocomplete="off" value="5"' in page
    assert "amount 5," in content.calls_in_words()


def test_a_decision_about_a_call_without_an_artifact_is_a_label(take: Take) -> None:
    says = "The calibration learns from your decision"
    for record, labels in ((None, False), ("r1", True)):
        page = take(a_refund().model_copy(update={"verdict": verdict(record=record)})).page
        assert (says in page) == labels
        assert ("these decisions become the calibration" in page) == labels
        assert (verdict().guarantee in unescape(page)) != labels
