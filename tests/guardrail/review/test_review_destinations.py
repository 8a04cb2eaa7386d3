"""Messages about the whole queue: what each receiver gets, once, and never the address it goes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from guardrail.__main__ import main
from guardrail.errors import UsageError
from guardrail.monitor import Alarm
from guardrail.review import Candidate, Content, Decision, Destination, ReviewStore
from guardrail.review.destinations import KEPT, SETTLED, announce
from guardrail.review.tables import events, outbox
from guardrail.review.web.accounts import add_token
from tests.guardrail.review.test_review_outbox import Receiver, deliverer_to, receiver
from tests.review_pages import claim

__all__ = ["receiver"]  # a fixture
EVIL = "<!channel> & <https://evil.example|click>\nsecond line"
ALARM = Alarm(monitor="risk", at=3, wealth=20.0, delta=0.05, alpha=0.1, calls=True)


@pytest.fixture
def store(store_url: str, now: list[float]) -> Iterator[ReviewStore]:
    with ReviewStore(store_url, clock=lambda: now[0]) as opened:
        yield opened


def content(question: str = "q", **changes: Any) -> Content:
    values = {"question": question, "candidate": Candidate(text="a"), "metadata": {"thread": 7}, **changes}
    return Content.model_validate(values)


def alarm(store: ReviewStore) -> None:
    store.note_event("alarm", {"name": "errors", **ALARM.numbers})


def test_everything_that_happens_as_json(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    store.enqueue(content("before anybody listened"))
    now[0] += SETTLED + 1
    destination = Destination(receiver.url, page="https://review.example.org/")
    deliverer = deliverer_to(receiver, store, destinations=(destination,))
    assert deliverer.run_once() == 0
    first = store.enqueue(content("secret?"), key="k", expires_in=100)
    late = store.enqueue(content(), expires_in=5)
    store.enqueue(content(kind="audit", allowed=("approve", "reject")))
    alarm(store)
    assert deliverer.run_once() == 3
    created, _, alarmed = receiver.accepted
    assert created == {
        "id": created["id"],
        "type": "review.created",
        "at": now[0],
        "ticket": first.id,
        "key": "k",
        "kind": "answer",
        "deadline": now[0] + 100,
        "metadata": {"thread": 7},
        "link": f"https://review.example.org/items/{first.id}",
    }
    assert (alarmed["type"], alarmed["alarm"]["name"]) == ("monitor.alarm", "errors")
    assert alarmed["link"] == "https://review.example.org/monitor"
    lease = claim(store, "ann", item=first.id)
    store.decide(lease, Decision(action="respond", text="b"))
    now[0] += 10
    assert deliverer.run_once() == 2
    decided, expired = receiver.accepted[3:]
    assert (decided["type"], decided["ticket"], decided["outcome"]["text"]) == ("review.decided", first.id, "b")
    assert (expired["type"], expired["ticket"], expired["outcome"]) == ("review.expired", late.id, None)


def test_what_arrives_while_the_process_starts_is_announced(store: ReviewStore, receiver: Receiver) -> None:
    """Nobody would look at the first question of the morning."""
    store.enqueue(content("asked during the start"))
    assert deliverer_to(receiver, store, destinations=(Destination(receiver.url),)).run_once() == 1


def test_each_message_goes_out_once(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    destination = Destination(receiver.url)
    deliverers = [deliverer_to(receiver, store, destinations=(destination,)) for _ in range(2)]
    deliverers[0].run_once()
    for step in (1, 30, 31, 100, KEPT + 1, 100):
        store.enqueue(content(), key=str(now[0]))
        assert sum(deliverer.run_once() for deliverer in deliverers) == 1
        now[0] += step
    assert sum(deliverer.run_once() for deliverer in deliverers) == 0
    assert len({message["id"] for message in receiver.accepted}) == 6
    with store.database.read() as transaction:
        assert len(transaction.execute(select(outbox)).all()) < 6, "what is old is deleted"


def test_a_line_that_becomes_visible_late_is_not_left_out(store: ReviewStore, now: list[float]) -> None:
    """Two transactions on PostgreSQL, of which the later ends first."""
    destination = Destination("https://example.org/hook")
    announce(store.database, destination)

    def line(number: int) -> None:
        with store.database.write() as transaction:
            values = {"number": number, "item": "", "at": now[0], "who": "system", "what": "alarm", "detail": "{}"}
            transaction.execute(insert(events).values(values))

    line(101)
    assert announce(store.database, destination) == 1
    line(100)
    assert [announce(store.database, destination) for _ in range(2)] == [1, 0]


def test_many_lines_at_once(store: ReviewStore, now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrail.review.destinations._AT_ONCE", 2)
    destination = Destination("https://example.org/hook")
    announce(store.database, destination)
    for _ in range(5):
        alarm(store)
    assert [announce(store.database, destination) for _ in range(4)] == [2, 2, 1, 0]


def test_slack_gets_what_people_must_act_on(store: ReviewStore, receiver: Receiver, now: list[float]) -> None:
    """A model that names its tool <!channel> must not notify everybody; texts stay on the page."""
    chat = Destination(receiver.url, format="slack", page="https://review.example.org")
    deliverer = deliverer_to(receiver, store, destinations=(chat,))
    deliverer.run_once()
    call = {"name": EVIL + "x" * 5000, "arguments": {"amount": 40}}
    item = store.enqueue(content("secret?", kind="tool_call", candidate={"tool_calls": [call]}), expires_in=60)
    now[0] += 61
    assert deliverer.run_once() == 1, "that it expired is no news for a chat"
    (body,) = receiver.plain
    section, actions = body["blocks"]
    assert body["text"] == "A tool call waits for review"
    text = section["text"]["text"]
    assert text.startswith(
        "*A tool call waits for review*\nCall: &lt;!channel&gt; &amp; &lt;https://evil.example|click&gt;"
    )
    assert "secret?" not in text
    assert len(text) == 3000
    assert actions["elements"][0]["url"] == f"https://review.example.org/items/{item.id}"


def runs_of(attachment: dict[str, Any]) -> list[list[str]]:
    """The texts of a card, all of them in blocks that know no Markdown."""
    body = attachment["content"]["body"]
    assert {block["type"] for block in body} == {"RichTextBlock"}
    assert {run["type"] for block in body for run in block["inlines"]} == {"TextRun"}
    return [[run["text"] for run in block["inlines"]] for block in body]


def test_teams_gets_a_card(store: ReviewStore, receiver: Receiver) -> None:
    """Told only that a call waits, people open the page for every refund of 2 euros."""
    deliverer = deliverer_to(receiver, store, destinations=(Destination(receiver.url, format="teams"),))
    deliverer.run_once()
    call = {"name": "[refund](https://evil.example)", "arguments": {"order": "A-17", "amount": 40, "express": True}}
    item = store.enqueue(content("secret?", kind="tool_call", candidate={"tool_calls": [call]}))
    alarm(store)
    assert deliverer.run_once() == 2
    (attachment,) = receiver.plain[0]["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    called = ["Call: ", "[refund](https://evil.example): amount 40"]
    assert runs_of(attachment) == [["A tool call waits for review"], called, ["Ticket: ", item.id]]
    assert "actions" not in attachment["content"]
    assert "secret?" not in str(receiver.plain), "texts stay on the page"
    assert runs_of(receiver.plain[1]["attachments"][0]) == [["Alarm of the monitor errors"], ["What: ", ALARM.detail]]


def test_an_alarm_about_an_item_is_an_alarm(store: ReviewStore, receiver: Receiver) -> None:
    """The receiver would otherwise be told that the item has expired, while a person may still decide it."""
    deliverer = deliverer_to(receiver, store, destinations=(Destination(receiver.url),))
    item = store.enqueue(content())
    store.note_event("alarm", {"name": "errors", **ALARM.numbers}, item=item.id)
    assert deliverer.run_once() == 2
    assert [message["type"] for message in receiver.accepted] == ["review.created", "monitor.alarm"]


@pytest.mark.parametrize("detail", [ALARM.numbers, {"level": 3}, {"detail": 5}], ids=["no name", "other", "no text"])
def test_an_alarm_of_an_application_keeps_no_message_back(
    store: ReviewStore, receiver: Receiver, detail: dict[str, Any]
) -> None:
    """Nobody would hear of anything that happens after it."""
    deliverer = deliverer_to(receiver, store, destinations=(Destination(receiver.url, format="slack"),))
    store.note_event("alarm", detail)
    store.enqueue(content())
    assert deliverer.run_once() == 2


def test_the_address_is_stored_and_shown_nowhere(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    destination = Destination("https://gone.test:9/services/hunter2", format="slack")
    with ReviewStore(tmp_path / "reviews.db") as store:
        receiver.gone = {"gone.test"}
        deliverer = deliverer_to(receiver, store, attempts=1, destinations=(destination,))
        deliverer.run_once()
        store.enqueue(content())
        assert deliverer.run_once() == 0
        (failed,) = [event for event in store.trail() if event.what == "delivery_failed"]
        assert failed.detail["destination"] == "gone.test:9"
        assert "hunter2" not in f"{store.trail()} {vars(deliverer)!r} {destination!r}"
    assert "hunter2" not in caplog.text
    assert all(b"hunter2" not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_process_without_the_destination_leaves_its_messages(store: ReviewStore, receiver: Receiver) -> None:
    destination = Destination(receiver.url)
    announce(store.database, destination)
    store.enqueue(content())
    announce(store.database, destination)
    assert deliverer_to(receiver, store).run_once() == 0
    assert deliverer_to(receiver, store, destinations=(destination,)).run_once() == 1


def test_destinations_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[dict[str, Any]] = [{"url": "ftp://hunter2"}, {"url": "https://hunter2", "format": "irc"}]
    for wrong in cases:
        with pytest.raises(UsageError, match="json, slack, teams") as caught:
            Destination(**wrong)
        assert "hunter2" not in str(caught.value)
    monkeypatch.chdir(tmp_path)
    add_token(tmp_path / "review-tokens.json", "ann", "reviewer")
    monkeypatch.delenv("GUARDRAIL_WEBHOOK_SECRET", raising=False)
    for setting in ("slack=https://hunter2", "https://hunter2", "irc=https://hunter2"):
        monkeypatch.setenv("GUARDRAIL_NOTIFY", setting)
        assert main(["review"]) == 1
        error = capsys.readouterr().err
        assert "GUARDRAIL_NOTIFY" in error
        assert "hunter2" not in error
