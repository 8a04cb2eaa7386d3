"""Messages to chats and other systems about the whole queue: something waits, was decided or expired, or an alarm.

The messages come from the audit trail, so that they need nothing from the processes that add items. The number of the
last announced event is kept for each destination. On PostgreSQL an event gets its number before others can see it, so
one may appear below another that was read already. The events of the latest minute are therefore read again, and the id
of a message, which has the number of its event, prevents a second message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from pydantic import ValidationError
from sqlalchemy import Row, String, and_, cast, delete, exists, func, insert, literal, or_, select, update

from ..errors import UsageError
from ..monitor import Alarm
from ..plain_json import sha256_hex, visible
from . import rows
from .database import Database, Transaction
from .item import Item
from .tables import events, items, meta, outbox

__all__ = ["PREFIX", "Destination", "Format", "announce"]

Format = Literal["json", "slack", "teams"]
"""Format of a message."""
PREFIX = "destination:"
"""Beginning of the name that the outbox holds in place of a destination's URL, which is a secret."""
KEPT = 86_400.0
"""Seconds for which messages are kept, delivered or not."""
SETTLED = 60.0
"""Seconds after which every event of the trail that was begun before is visible."""
_AT_ONCE = 200
"""Most events that one call of `announce` reads."""
_TYPES = {
    "enqueued": "review.created",
    "decided": "review.decided",
    "expired": "review.expired",
    "alarm": "monitor.alarm",
}
"""The type of a message by the event of the trail that it is about."""
_FOR_PEOPLE = ("enqueued", "alarm")
"""Events that people must act on."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A receiver of messages about the queue: all events as JSON; to a chat those that people must act on.

    Audits, which may come by the hundred, are left out. A chat gets the tool of a call and the arguments that are
    numbers, such as the amount; questions and other texts stay on the page.

    Attributes:
        url: http(s) address; for Slack that of an incoming webhook, for Teams that of a workflow ("when a webhook
            request is received"). It is stored nowhere and logged nowhere.
        format: "json" (as in docs/review.md), "slack" or "teams".
        page: Address of the review page, for links; None for messages without.
    """

    url: str = field(repr=False)
    format: Format = "json"
    page: str | None = None

    def __post_init__(self) -> None:
        if self.format not in get_args(Format) or not self.url.startswith(("http://", "https://")):
            raise UsageError(
                f"a destination has one of the formats {', '.join(get_args(Format))} and an address that begins with "
                "http:// or https://. The one given is not repeated here, as it is a secret."
            )

    @property
    def name(self) -> str:
        """Stands in the outbox in place of the URL."""
        return PREFIX + sha256_hex(f"{self.format} {self.url}", 32)

    @property
    def events(self) -> tuple[str, ...]:
        """The events of the trail that are sent."""
        return tuple(_TYPES) if self.format == "json" else _FOR_PEOPLE

    def message(self, identity: str, event: Row[Any], item: Item | None) -> dict[str, Any]:
        """The body about one event of the trail; ``item`` is None for an alarm."""
        path = "/monitor" if item is None else f"/items/{item.id}"
        link = None if self.page is None else self.page.rstrip("/") + path
        if self.format == "json":
            return {**_facts(identity, event, item), "link": link}
        title, facts = _alarm_in_words(event) if item is None else _item_in_words(item)
        in_its_form = _slack_message if self.format == "slack" else _teams_message
        return in_its_form(title, facts, link)


def _facts(identity: str, event: Row[Any], item: Item | None) -> dict[str, Any]:
    """The body of a JSON message, without its link."""
    shared = {"id": identity, "type": _TYPES[event.what], "at": event.at}
    if item is None:
        return {**shared, "alarm": _alarm(event)}
    if event.what == "enqueued":
        content = {"kind": item.content.kind, "deadline": item.deadline, "metadata": item.content.metadata}
        return {**shared, "ticket": item.id, "key": item.key, **content}
    # An item that expired may have been decided since; the message is about what happened then.
    then = item if event.what == "decided" else item.model_copy(update={"decision": None})
    return rows.body_of(then, identity, event.at)


def _alarm(event: Row[Any]) -> dict[str, Any]:
    """The alarm of an event, with the name of its monitor and its words.

    Applications write alarms, too (`ReviewStore.note_event`), with any fields. Theirs have no words and may have no
    name; an error about them would keep back all messages after them.
    """
    numbers = {"name": "", **json.loads(event.detail)}
    try:
        alarm = Alarm.from_stored({field: value for field, value in numbers.items() if field != "name"})
    except ValidationError:
        return {"detail": event.detail, **numbers}
    return {**numbers, "detail": alarm.detail}


def _alarm_in_words(event: Row[Any]) -> tuple[str, dict[str, str]]:
    """Title and facts of an alarm, for people."""
    alarm = _alarm(event)
    return f"Alarm of the monitor {alarm['name']}", {"What": str(alarm["detail"])}


def _item_in_words(item: Item) -> tuple[str, dict[str, str]]:
    """Title and facts of an item that waits, for people."""
    facts = {"Ticket": item.id}
    call = item.content.calls_in_words(texts=False)
    if call:
        facts = {"Call": visible(call, one_line=True), **facts}
    if item.deadline is not None:
        facts["Decide by"] = f"{datetime.fromtimestamp(item.deadline, UTC):%Y-%m-%d %H:%M UTC}"
    what = item.content.what
    return f"{'An' if what.startswith('a') else 'A'} {what} waits for review", facts


def announce(database: Database, destination: Destination) -> int:
    """Put a message about each new event of the trail into the outbox, once. Returns their number.

    A destination that is new begins with the events of the latest minute, so that it misses nothing that arrives while
    the first process starts.
    """
    with database.write() as transaction:
        now = transaction.now
        announced = _last_announced(transaction, destination)
        identity = literal(destination.name.removeprefix(PREFIX) + "-") + cast(events.c.number, String)
        new_events = (
            select(events, identity.label("identity"))
            .outerjoin(items, items.c.id == events.c.item)
            .where(events.c.number > announced, events.c.what.in_(destination.events))
            # Alarms, and what happened to items: not to audits, of which a draw queues hundreds, nor to items that are
            # purged by now, whose kind is null here.
            .where(or_(events.c.what == "alarm", items.c.kind != "audit"))
            .where(~exists().where(outbox.c.id == identity))
            .order_by(events.c.number)
            .limit(_AT_ONCE)
        )
        read = transaction.execute(new_events).all()
        for event in read:
            # An application may write an alarm about an item; the message is about the alarm.
            item = None if event.what == "alarm" else rows.as_item(rows.fetch(transaction, event.item), now)
            body = destination.message(event.identity, event, item)
            rows.send(transaction, event.identity, destination.name, destination.name, body)
        if len(read) < _AT_ONCE:
            settled = select(func.max(events.c.number)).where(events.c.number > announced, events.c.at < now - SETTLED)
            last_settled = transaction.execute(settled).scalar_one()
            if last_settled is not None:
                moved_on = update(meta).where(meta.c.name == destination.name).values(value=str(last_settled))
                transaction.execute(moved_on)
            # Only now: without its message, an event above the number of the last announced one would count as new.
            old = and_(outbox.c.url == destination.name, outbox.c.created < now - KEPT)
            transaction.execute(delete(outbox).where(old))
        return len(read)


def _last_announced(transaction: Transaction, destination: Destination) -> int:
    """Number of the last event that needs no further look; the row that holds it is locked."""
    query = select(meta.c.value).where(meta.c.name == destination.name).with_for_update()
    number = transaction.execute(query).scalar_one_or_none()
    if number is None:
        earlier = select(func.max(events.c.number)).where(events.c.at < transaction.now - SETTLED)
        number = str(transaction.execute(earlier).scalar_one() or 0)
        transaction.execute(insert(meta).values(name=destination.name, value=number))
    return int(number)


# -- the forms of chats: a title, facts by their names, and a link to the review page or None --------------------------


def _slack_message(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
    """Blocks of Slack. Escaped, since ``<!channel>`` in the name of a tool would notify everybody."""

    def plain(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    lines = [f"*{plain(title)}*", *(f"{name}: {plain(value)}" for name, value in facts.items())]
    # Verbatim: Slack makes no links of addresses and no mentions of names.
    text = {"type": "mrkdwn", "text": "\n".join(lines)[:3000], "verbatim": True}
    blocks: list[dict[str, Any]] = [{"type": "section", "text": text}]
    if link is not None:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open"}, "url": link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": plain(title), "blocks": blocks}


def _teams_message(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
    """An adaptive card in a message, as Teams workflows take it.

    All text is in rich text blocks, which show it unchanged. Text blocks and facts render Markdown, so the name of a
    tool could show a link.
    """

    def block(bold: str, plain: str = "") -> dict[str, Any]:
        runs = [{"type": "TextRun", "text": bold, "weight": "Bolder"}, {"type": "TextRun", "text": plain}]
        return {"type": "RichTextBlock", "inlines": runs if plain else runs[:1]}

    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [block(title), *(block(f"{name}: ", value) for name, value in facts.items())],
    }
    if link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": link}]
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }
