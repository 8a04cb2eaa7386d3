"""The review page in a real Chromium: mouse, keyboard, two people, hostile text, lost leases, a phone, no scripts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from guardrail.review import Decision, ReviewStore
from guardrail.review.web.app import review_app
from tests.review_pages import HOSTILE, OURS, accounts, held_back, served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    # Playwright's own event loop lives until the end of the module.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Open = Callable[..., Page]
expect.set_options(timeout=20_000)  # a busy machine is slow


def press(page: Page, key: str) -> None:
    """Press a key after the page's script has loaded."""
    page.wait_for_load_state("load")
    page.keyboard.press(key)


def take_next(page: Page) -> None:
    """Take the next item, and return when its page and script have loaded; a key pressed before that does nothing."""
    press(page, "n")
    page.wait_for_url("**/items/*")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_as(browser: Browser, store: ReviewStore) -> Iterator[Open]:
    """Open the page for a reviewer, each in a separate browser profile; fail on any script error."""
    contexts, problems = [], []
    with served(review_app(store, accounts(), lease=600)) as address:

        def opened(name: str, *, strict: bool = True, by_form: bool = False, **how: Any) -> Page:
            context = browser.new_context(base_url=address, **how)
            contexts.append(context)
            page = context.new_page()
            page.set_default_timeout(20_000)
            if strict:
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            if by_form:
                page.goto("/")
                page.get_by_label("Your token").fill(f"{name}-token-0123456789ab")
                page.get_by_role("button", name="Sign in").click()
            else:  # saves drawing the sign-in page
                token = f"{name}-token-0123456789ab"
                context.request.post("/sign-in", form={"token": token}, headers=OURS, max_redirects=0)
                page.goto("/")
            expect(page.get_by_role("heading", name="Waiting for review")).to_be_visible()
            return page

        yield opened
        for context in contexts:
            context.close()
    assert not [problem for problem in problems if "409" not in problem]


def decision_of(store: ReviewStore) -> Decision:
    (item,) = store.items()
    assert item.decision is not None
    return item.decision


def test_review_by_keyboard(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back())
    page = open_as("ann", by_form=True)
    take_next(page)
    expect(page.get_by_role("heading", name="Who wrote The Waves?")).to_be_visible()
    press(page, "e")
    field = page.get_by_label("Edited answer")
    expect(field).to_be_focused()
    expect(field).to_have_value("Virginia Woolf")
    press(page, "End")
    page.keyboard.type(", approximately")  # shortcut letters are plain letters in a field
    press(page, "Control+Enter")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert (decision.action, decision.reviewer) == ("edit", "ann")
    assert decision.candidate is not None
    assert decision.candidate.text == "Virginia Woolf, approximately"


def test_a_digit_gives_out_another_answer(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back())
    page = open_as("ann")
    take_next(page)
    expect(page.get_by_role("button", name="Send this")).to_have_count(2)
    # Every digit is on one button, and a heading says which digits choose.
    assert page.locator("[data-key]").evaluate_all("all => all.map(b => b.dataset.key).join('')") == "arewb12"
    expect(page.get_by_text("1 to 2 choose")).to_be_visible()
    expect(page.get_by_role("button", name="Send this 2")).to_have_accessible_description("Katherine Mansfield")
    press(page, "2")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert decision.candidate is not None
    assert (decision.action, decision.candidate.text, decision.note) == (
        "edit",
        "Katherine Mansfield",
        "[chosen from the list]",
    )


LETTERS, LINES = "漢" * 130_000, ('{"a":' * 10 + "\n") * 9_000
"""Texts of more than a megabyte in a form: Starlette's default limit."""


@pytest.mark.parametrize(
    ("key", "text"),
    [
        pytest.param(
            key, text, id=f"{key}-{name}", marks=() if f"{key}-{name}" in ("a-letters", "e-lines") else pytest.mark.slow
        )
        for key in "ar2e"
        for name, text in (("letters", LETTERS), ("lines", LINES))
    ],
)
def test_however_long_an_answer_is_it_can_be_decided(open_as: Open, store: ReviewStore, key: str, text: str) -> None:
    store.enqueue(held_back(answer=text))
    page = open_as("ann")
    take_next(page)
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    with page.expect_request(re.compile("/decide$"), timeout=60_000) as request:
        press(page, key)
        if key == "e":
            press(page, "Control+End")
            page.keyboard.type("!")
            press(page, "Control+Enter")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible(timeout=60_000)
    decision = decision_of(store)
    assert decision.action == {"a": "approve", "r": "reject", "2": "edit", "e": "edit"}[key]
    if key == "e":
        assert decision.candidate is not None
        assert decision.candidate.text == text + "!"
    else:
        assert len(request.value.post_data or "") < 1000, "only an edit sends the text"


def test_a_note_goes_with_whatever_is_decided(open_as: Open, store: ReviewStore) -> None:
    item = store.enqueue(held_back())
    page = open_as("ann")
    take_next(page)
    page.get_by_label("Note on approve, reject or choose").fill("looked it")
    press(page, "Escape")
    press(page, "w")
    page.keyboard.type("Woolf.")
    note = page.get_by_label("Note on this answer")
    expect(note).to_have_value("looked it")
    note.press("End")
    page.keyboard.type(" up")
    note.press("Enter")  # must not send an answer by accident
    expect(page.get_by_label("Note on approve, reject or choose")).to_have_value("looked it up")
    assert store.item(item.id).decision is None
    press(page, "Control+Enter")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert (decision.action, decision.text, decision.note) == ("respond", "Woolf.", "looked it up")


def test_an_edit_that_changes_nothing_approves(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back(answer="\n two \r\nlines\n"))
    page = open_as("ann")
    take_next(page)
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    press(page, "e")
    press(page, "Control+Enter")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    assert decision_of(store).action == "approve"


def test_digits_in_a_field_are_digits(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back())
    page = open_as("ann")
    take_next(page)
    expect(page.get_by_role("button", name="Send this 2")).to_be_visible()
    for way, label in (
        ("e", "Edited answer"),
        ("w", "Your answer"),
        (None, "Note on approve, reject or choose"),
    ):
        if way is not None:
            press(page, way)
        field = page.get_by_label(label).first
        field.focus()
        page.keyboard.press("End")
        page.keyboard.type("1234")
        assert field.input_value().endswith("1234")
        page.keyboard.press("Escape")
    for key in ("Control+2", "Alt+2", "9"):  # shortcuts of the browser, and a digit that no answer has
        page.keyboard.press(key)
    page.wait_for_load_state("networkidle")
    assert page.url.endswith(store.items()[0].id)
    assert store.items()[0].decision is None


def test_answers_folded_away_have_no_digit(open_as: Open, store: ReviewStore) -> None:
    answers = tuple((f"answer {i}", 1 / 12) for i in range(12))
    store.enqueue(held_back(alternatives=answers, candidate_set=None))
    page = open_as("ann")
    take_next(page)
    expect(page.get_by_role("button", name="Send this")).to_have_count(8)
    page.get_by_text("4 more").click()
    page.get_by_role("button", name="Send this").nth(11).click()
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert decision.candidate is not None
    assert decision.candidate.text == "answer 11"


def test_two_reviewers_at_once_and_one_key_decides(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back("First?"))
    store.enqueue(held_back("Second?"))
    ann, bob = open_as("ann"), open_as("bob")
    take_next(ann)
    expect(ann.get_by_role("heading", name="First?")).to_be_visible()
    take_next(bob)
    expect(bob.get_by_role("heading", name="Second?")).to_be_visible()
    press(ann, "a")
    expect(ann.get_by_text("Second?")).to_be_visible()
    ann.get_by_text("Second?").click()
    expect(ann.get_by_text("bob is reviewing this")).to_be_visible()
    expect(ann.get_by_role("button", name="Approve")).to_have_count(0)
    press(bob, "r")
    expect(bob.get_by_text("Nothing is waiting.")).to_be_visible()
    decided = [(item.content.question, item.decision) for item in store.items()]
    actions = {question: decision and (decision.reviewer, decision.action) for question, decision in decided}
    assert actions == {"First?": ("ann", "approve"), "Second?": ("bob", "reject")}


def test_an_open_page_keeps_its_lease(browser: Browser, store: ReviewStore, now: list[float]) -> None:
    store.enqueue(held_back())
    with served(review_app(store, accounts(), lease=4)) as address:
        context = browser.new_context(base_url=address)
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Your token").fill("ann-token-0123456789ab")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Waiting for review")).to_be_visible()
        take_next(page)
        expect(page.get_by_role("button", name="Approve")).to_be_visible()
        now[0] += 3
        with page.expect_response(re.compile("/renew$"), timeout=20_000) as renewed:
            page.mouse.move(50, 50)
        assert renewed.value.status == 200
        assert store.items()[0].lease_until == now[0] + 4
        context.close()


def test_hostile_text_is_shown_and_does_nothing(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back(HOSTILE, HOSTILE, alternatives=((HOSTILE, 1.0),), metadata={"x": HOSTILE}))
    page = open_as("eve")
    dialogs: list[object] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    assert "owned" not in page.title()
    take_next(page)
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    press(page, "e")
    text = page.get_by_label("Edited answer").input_value()
    assert text.startswith("</div></textarea><script>document.title")
    expect(page.locator("#candidate")).to_contain_text("<script>document.title")
    # All model output on the page is text: it created no element.
    assert page.locator("main script, main img, main a[href^='javascript']").count() == 0
    page.goto("/trail")
    page.goto("/")
    assert not page.title().startswith("owned")
    assert not dialogs


def test_an_inline_script_would_be_refused(open_as: Open) -> None:
    """Negative control of the page's policy: an injected script would not run."""
    page = open_as("ann", strict=False)
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        " document.body.insertAdjacentHTML('beforeend', '<img src=/static/icon.svg onload=\"window.ran = 2\">'); }"
    )
    page.wait_for_load_state("networkidle")
    assert page.evaluate("() => window.ran") is None
    assert any("Content Security Policy" in text for text in refused)


def test_a_phone(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back("Which of " + "very" * 60 + " long words?", "w" * 400))
    page = open_as("ann", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.get_by_role("button", name="Take the next").tap()
    approve = page.get_by_role("button", name="Approve")
    expect(approve).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = approve.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    page.get_by_text("2 more").tap()
    for button in page.get_by_role("button", name="Send this").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    page.get_by_role("button", name="Send this").nth(1).tap()
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert decision.candidate is not None
    assert decision.candidate.text == "Katherine Mansfield"
    for path in ("/history", "/"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_without_javascript(open_as: Open, store: ReviewStore) -> None:
    store.enqueue(held_back())
    page = open_as("ann", by_form=True, java_script_enabled=False)
    page.get_by_role("button", name="Take the next").click()
    page.get_by_text("Write your own answer").click()
    page.get_by_label("Your answer (the user gets exactly this text)", exact=True).fill("By hand.")
    page.get_by_role("button", name="Send my answer").click()
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    assert decision_of(store).text == "By hand."


def test_text_stands_out(open_as: Open, store: ReviewStore) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for the text colours, in both schemes."""
    page = open_as("ann", color_scheme="light")
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    dark = colours(page)
    assert light["back"] != dark["back"]
    for palette in (light, dark):
        pairs = [("ink", "back"), ("ink", "card"), ("soft", "back"), ("soft", "card"), ("brand", "card")]
        pairs += [("soft", "shade"), ("brand-ink", "brand"), ("ink", "shade"), ("warn", "card")]
        pairs += [(name, f"{name}-back") for name in ("ok", "bad", "warn", "info")]
        low = {pair: round(contrast(palette[pair[0]], palette[pair[1]]), 2) for pair in pairs}
        assert min(low.values()) >= 4.5, {pair: value for pair, value in low.items() if value < 4.5}


def colours(page: Page) -> dict[str, str]:
    """Return the colours of the page in its current scheme."""
    values: dict[str, str] = page.evaluate(
        "() => { const s = getComputedStyle(document.documentElement); const r = {};"
        " for (const n of ['back','card','ink','soft','brand','brand-ink','ok','ok-back','bad','bad-back','warn',"
        "'warn-back','info','info-back','shade']) r[n] = s.getPropertyValue('--' + n).trim(); return r; }"
    )
    return values


def contrast(first: str, other: str) -> float:
    """Return the WCAG 2 contrast of two hex colours."""
    lights = sorted((luminance(first), luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_items_are_decided_with_one_key_each(open_as: Open, store: ReviewStore) -> None:
    items = (
        {"path": "/number", "text": '"A-1"', "uncertainty": 0.0, "kept": True},
        {"path": "/total", "text": "12.50", "uncertainty": 0.5, "kept": False},
        {"path": "/buyer", "text": '"Halden"', "uncertainty": 0.4, "kept": False},
        {"path": "/due", "text": '"2026"', "uncertainty": 0.9, "kept": False},
    )
    answer = '{"number": "A-1", "total": 12.50, "buyer": "Halden", "due": "2026"}'
    store.enqueue(held_back("Invoice?", answer, items=items))
    page = open_as("ann")
    take_next(page)
    first = page.get_by_label("total", exact=True)
    expect(first).to_be_focused()
    page.keyboard.press("a")  # right, and on to the next one
    expect(page.get_by_label("buyer", exact=True)).to_be_focused()
    page.keyboard.press("e")
    page.keyboard.type("Halden sea")  # keys are letters in the field
    page.keyboard.press("Enter")
    expect(page.get_by_label("due", exact=True)).to_be_focused()
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Release with these decisions")).to_be_focused()
    page.keyboard.press("s")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    decision = decision_of(store)
    assert [(item.path, item.action, item.text) for item in decision.items] == [
        ("/total", "approve", ""), ("/buyer", "edit", '"Halden sea"'), ("/due", "reject", ""),
    ]  # fmt: skip
    assert decision.candidate is not None
    assert decision.candidate.text == '{"number": "A-1", "total": 12.50, "buyer": "Halden sea"}'


def test_the_field_of_a_replacement_appears_with_the_choice_and_keeps_line_breaks(
    open_as: Open, store: ReviewStore
) -> None:
    address = "Halden Ltd\nSea Road 1\nHalden"
    items = (
        {"path": "/number", "text": '"A-1"', "uncertainty": 0.4, "kept": False},
        {"path": "/address", "text": json.dumps(address), "uncertainty": 0.5, "kept": False},
    )
    store.enqueue(held_back("Invoice?", json.dumps({"number": "A-1", "address": address}), items=items))
    page = open_as("ann")
    take_next(page)
    fields = [page.get_by_label(f"{name}, in its place") for name in ("number", "address")]
    for field in fields:
        expect(field).to_be_hidden()
    page.keyboard.press("a")
    page.keyboard.press("e")
    expect(fields[0]).to_be_hidden()
    expect(fields[1]).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.type(", Norway")
    page.keyboard.press("Enter")  # ends the edit: no line is added
    page.keyboard.press("s")
    expect(page.get_by_text("Nothing is waiting.")).to_be_visible()
    assert json.loads(decision_of(store).items[1].text) == f"{address}, Norway"
