"""The monitors' page: what it shows, whom it lets act, and that a strict content policy can serve it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from guardrail.review import ReviewStore
from guardrail.review.monitors import Monitors, MonitorStep
from guardrail.review.web.app import review_app
from guardrail.review.web.pages import BOTTOM, RIGHT, TOP, wealth_plot
from guardrail.testing import ScriptedChat, make_artifact
from tests.review_pages import OURS, accounts

ARTIFACT = make_artifact(ScriptedChat())
ADMIN, REVIEWER = "eve-token-0123456789ab", "ann-token-0123456789ab"
HOSTILE = '<script>alert(1)</script> "quoted"'


@pytest.fixture
def client(store: ReviewStore) -> Iterator[TestClient]:
    with TestClient(review_app(store, accounts(), hosts=("testserver",)), headers=OURS) as opened:
        yield opened


def sign_in(client: TestClient, token: str) -> None:
    client.post("/sign-in", data={"token": token})


def alarmed(store: ReviewStore, name: str) -> None:
    monitor = Monitors(store).risk(name, ARTIFACT)
    for _ in range(3):
        monitor.update(True)


def test_the_page_needs_a_sign_in_and_is_empty_at_first(client: TestClient) -> None:
    assert client.get("/monitor", follow_redirects=False).headers["location"] == "/sign-in"
    sign_in(client, REVIEWER)
    assert "Nothing is watched" in client.get("/monitor").text


def test_monitors_are_shown_in_words_and_escaped(client: TestClient, store: ReviewStore) -> None:
    Monitors(store).risk("calm", ARTIFACT, min_audit_rate=0.5).update(False)
    alarmed(store, HOSTILE)
    sign_in(client, REVIEWER)
    answer = client.get("/monitor")
    page = answer.text
    assert "Are more than 10 % of the accepted answers wrong? 1 audited answers so far, 0.0 % of them wrong" in page
    assert page.index("&lt;script&gt;") < page.index("calm")  # alarms first
    assert "alert(1)</script>" not in page
    assert "exceeds the promised 10 %" in page
    assert "An administrator can acknowledge this alarm" in page
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"\sstyle=|<style|\son\w+=", page)
    assert page.count("<script") == 1  # the page's own file


def test_only_an_administrator_acknowledges_and_only_by_the_form(client: TestClient, store: ReviewStore) -> None:
    alarmed(store, "risk")
    switch = Monitors(store).switch(every=0.0)
    sign_in(client, REVIEWER)
    assert client.post("/monitor/acknowledge", data={"name": "risk"}).status_code == 403
    client.cookies.clear()
    sign_in(client, ADMIN)
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert client.post("/monitor/acknowledge", data={"name": "risk"}, headers=foreign).status_code == 403
    assert switch.objection()
    assert client.post("/monitor/acknowledge", data={"name": "risk"}).status_code == 200
    assert switch.objection() is None
    assert "alarm, seen" in client.get("/monitor").text
    assert client.post("/monitor/acknowledge", data={"name": "nobody"}).status_code == 400
    assert [event.who for event in store.trail() if event.what == "alarm_acknowledged"] == ["eve"]


def test_the_plot_puts_points_where_they_belong() -> None:
    top = math.log(100) * 1.12
    steps = [
        MonitorStep(n=n, at=0.0, value=0, chance=1, log_wealth=value) for n, value in ((1, -0.5), (2, math.log(100)))
    ]
    drawn = wealth_plot(steps, 0.01)
    zero = BOTTOM - 0.5 / (top + 0.5) * (BOTTOM - TOP)
    alarm = BOTTOM - (math.log(100) + 0.5) / (top + 0.5) * (BOTTOM - TOP)
    assert drawn["points"] == f"10.0,{zero:.1f} 318.0,{BOTTOM:.1f} {RIGHT:.1f},{alarm:.1f}"
