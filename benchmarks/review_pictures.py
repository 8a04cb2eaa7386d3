"""``python -m benchmarks.review_pictures --out docs/images``: the pictures of the review page in the documentation.

A held-back answer in light colours, a held-back tool call being edited in dark ones, the queue and a call on a phone,
and the page of the monitors with an alarm. Needs Chromium (the extra `dev` brings playwright).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from guardrail.artifact import CalibrationScores
from guardrail.errors import require
from guardrail.review import Candidate, CandidateSet, Content, Monitors, ReviewStore
from guardrail.review.web.app import review_app
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, ToolCall, Uncertainty, canonical_calls
from guardrail.verdict import Reason, Verdict
from tests.review_pages import accounts, served

__all__ = ["main"]

GAP = 24
"""Pixels between two pictures."""
TRANSFER = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "title": "To", "description": "IBAN of the receiver"},
        "amount": {"type": "number", "title": "Amount"},
        "currency": {"enum": ["EUR", "CHF", "USD"], "title": "Currency"},
        "purpose": {"type": "string", "title": "Purpose", "description": "the receiver sees it"},
    },
    "required": ["to", "amount", "currency"],
}
WAVES = ("Virginia Woolf", "Katherine Mansfield", "E. M. Forster", "Henry James")


def held_back(candidate: Candidate) -> Verdict:
    """Return the verdict of a gate that holds a candidate back."""
    return Verdict(
        accepted=False,
        reason=Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=1.36, unit="nats", estimator="semantic_entropy"),
        threshold=0.61,
        alpha=0.1,
        outcome=make_artifact(ScriptedChat(), threshold=0.61).outcome,
        basis=Basis.SAMPLES,
        artifact="",
        candidate=Sample(text=candidate.text, tool_calls=candidate.tool_calls),
    )


def an_answer() -> Content:
    """Return a held-back answer with a calibrated list."""
    shown = CandidateSet(
        answers=((WAVES[0], 0.4), (WAVES[1], 0.3)), epsilon=0.2, attained=True, attainable=0.12, delta=0.1
    )
    return Content(
        question="Who wrote The Waves?",
        candidate=Candidate(text=WAVES[0]),
        verdict=held_back(Candidate(text=WAVES[0])),
        alternatives=tuple(zip(WAVES, (0.4, 0.3, 0.2, 0.1), strict=True)),
        candidate_set=shown,
    )


def a_call() -> Content:
    """Return a held-back tool call."""
    question = "Transfer 2,400 euros to Anna's new account and tell me when it is done."

    def transfer(to: str) -> ToolCall:
        return ToolCall(name="transfer", arguments={"to": to, "amount": 2400, "currency": "EUR"})

    ours, other = transfer("DE89 3704 0044 0532 0130 00"), transfer("DE75 5121 0800 1245 1261 99")
    calls = ((ours, 0.6), (other, 0.3), (ToolCall(name="balance", arguments={}), 0.1))
    contacts = {"name": "contacts", "arguments": {"name": "Anna"}}
    accounts = {"old": other.arguments["to"], "new": ours.arguments["to"]}
    return Content(
        question=question,
        messages=(
            {"role": "human", "content": question},
            {"role": "ai", "content": "", "tool_calls": [contacts]},
            {"role": "tool", "content": json.dumps(accounts)},
        ),
        kind="tool_call",
        candidate=Candidate(tool_calls=(ours,)),
        verdict=held_back(Candidate(tool_calls=(ours,))),
        alternatives=tuple((canonical_calls([call]), share) for call, share in calls),
        agent=True,
        schemas={"transfer": TRANSFER},
    )


def a_label() -> Content:
    """Return an answer that a person labels."""
    answer = Candidate(text="1931")
    return Content(
        question="When was it published?", kind="audit", candidate=answer, allowed=("approve", "edit", "reject")
    )


def sign_in(browser: Any, address: str, name: str, scheme: str) -> Any:
    """Return the page of a signed-in reviewer, in a separate browser profile."""
    page = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme=scheme).new_page()
    page.goto(address)
    page.get_by_label("Your token").fill(f"{name}-token-0123456789ab")
    page.get_by_role("button", name="Sign in").click()
    return page


def picture(browser: Any, content: Content, name: str, scheme: str, keys: str, age: float, **enqueued: Any) -> bytes:
    """Take a picture of one item that a reviewer has claimed, after some key presses."""
    clock = [time.time() - age]
    with tempfile.TemporaryDirectory() as folder, ReviewStore(f"{folder}/reviews.db", clock=lambda: clock[0]) as store:
        item = store.enqueue(content, **enqueued)
        clock[0] += age
        with served(review_app(store, accounts())) as address:
            page = sign_in(browser, address, name, scheme)
            page.goto(f"{address}/items/{item.id}")
            page.wait_for_load_state("load")
            page.keyboard.press("t")
            page.locator("#countdown").wait_for()
            page.wait_for_load_state("load")
            for key in keys:
                page.keyboard.press(key)
            page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            image: bytes = page.screenshot(full_page=True)
            page.context.close()
    return image


def phone_picture(browser: Any, contents: Sequence[Content]) -> bytes:
    """Take a picture of the queue and of its first item on a phone, side by side."""
    clock = [time.time() - 3000]
    with tempfile.TemporaryDirectory() as folder, ReviewStore(f"{folder}/reviews.db", clock=lambda: clock[0]) as store:
        for content in contents:
            clock[0] += 600
            store.enqueue(content, expires_in=7000)
        with served(review_app(store, accounts())) as address:
            page = sign_in(browser, address, "ann", "light")
            page.set_viewport_size({"width": 390, "height": 844})
            shown = [page.screenshot()]
            page.get_by_role("button", name="Take the next").click()
            page.locator("#countdown").wait_for()
            shown.append(page.screenshot())
            page.context.close()
    images = [Image.open(io.BytesIO(image)) for image in shown]
    both = Image.new("RGB", (sum(image.width for image in images) + GAP, images[0].height), "white")
    for place, image in enumerate(images):
        both.paste(image, (place * (images[0].width + GAP), 0))
    written = io.BytesIO()
    both.save(written, "PNG")
    return written.getvalue()


def monitors_picture(browser: Any) -> bytes:
    """Take a picture of a drift monitor whose questions change after 260, and a risk monitor whose guarantee holds."""
    rng, clock = np.random.default_rng(1), [1_780_000_000.0]
    scores = tuple(rng.normal(size=1_000).tolist())
    calibration = CalibrationScores(uncertainty=scores, error=(0,) * len(scores))
    artifact = make_artifact(ScriptedChat()).model_copy(update={"calibration": calibration})
    with tempfile.TemporaryDirectory() as folder, ReviewStore(f"{folder}/reviews.db", clock=lambda: clock[0]) as store:
        drift = Monitors(store).drift("support desk: drift", artifact)
        risk = Monitors(store).risk("support desk: risk", artifact)
        for i, score in enumerate([*rng.normal(size=260), *rng.normal(loc=1.0, size=80)]):
            clock[0] += 3_000.0
            drift.update(score)
            if i % 3 == 0:
                risk.update(bool(rng.random() < 0.05))
        with served(review_app(store, accounts())) as address:
            page = sign_in(browser, address, "eve", "light")
            page.goto(f"{address}/monitor")
            image: bytes = page.screenshot(full_page=True)
            page.context.close()
    return image


def main(argv: Sequence[str] | None = None) -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.review_pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the pictures")
    arguments = parser.parse_args(argv)
    playwright = require("playwright.sync_api", extra="dev")
    with playwright.sync_playwright() as started:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        light = picture(browser, an_answer(), "ann", "light", "", 4000)
        dark = picture(browser, a_call(), "eve", "dark", "e", 2400, expires_in=7000)
        pictures = {"review-light": light, "review-dark": dark, "monitor-page": monitors_picture(browser)}
        pictures["review-phone"] = phone_picture(browser, [a_call(), an_answer(), a_label()])
        for name, image in pictures.items():
            target = arguments.out / f"{name}.png"
            target.write_bytes(image)
            print(f"wrote {target}")
        browser.close()


if __name__ == "__main__":
    main()
