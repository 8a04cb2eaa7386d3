"""Messages to chats and other systems about the whole queue: something waits, was decided or expired, or an alarm.

The messages come from the audit trail, so that they need nothing from the processes that add items. A place in the
trail is kept for each destination. On PostgreSQL a line gets its number before others can see it, so a line may appear
below a line that was read already. The lines of the latest minute are therefore read again, and the id of a message,
which names its line, prevents a second message.
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
"""Seconds after which every line of the trail that was begun before is visible."""
_AT_ONCE = 200
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

    def message(self, identity: str, line: Row[Any], item: Item | None) -> dict[str, Any]:
        """The body about one line of the trail; ``item`` is None for an alarm."""
        place = "/monitor" if item is None else f"/items/{item.id}"
        link = None if self.page is None else self.page.rstrip("/") + place
        if self.format == "json":
            return {**_facts(identity, line, item), "link": link}
        return (_slack if self.format == "slack" else _teams)(*_said(line, item), link)


def _facts(identity: str, line: Row[Any], item: Item | None) -> dict[str, Any]:
    shared = {"id": identity, "type": _TYPES[line.what], "at": line.at}
    if item is None:
        return {**shared, "alarm": _alarm(line)}
    if line.what == "enqueued":
        some = {"ticket": item.id, "key": item.key, "kind": item.content.kind, "deadline": item.deadline}
        return {**shared, **some, "metadata": item.content.metadata}
    told = item if line.what == "decided" else item.model_copy(update={"decision": None})
    return rows.body_of(told, identity, line.at)


def _alarm(line: Row[Any]) -> dict[str, Any]:
    """The alarm in a line of the trail, with the name of its monitor and its words."""
    numbers = json.loads(line.detail)
    try:
        alarm = Alarm.from_stored({field: value for field, value in numbers.items() if field != "name"})
    except ValidationError:  # a line that an application wrote; the next messages must not wait for it
        return {"name": "", "detail": line.detail, **numbers}
    return {**numbers, "detail": alarm.detail}


def _said(line: Row[Any], item: Item | None) -> tuple[str, dict[str, str]]:
    """Title and facts for people: something waits, or an alarm."""
    if item is None:
        alarm = _alarm(line)
        return f"Alarm of the monitor {alarm['name']}", {"What": alarm["detail"]}
    facts = {"Ticket": item.id}
    if called := item.content.calls_in_words(texts=False):
        facts = {"Call": visible(called, one_line=True), **facts}
    if item.deadline is not None:
        facts["Decide by"] = f"{datetime.fromtimestamp(item.deadline, UTC):%Y-%m-%d %H:%M UTC}"
    what = item.content.what
    return f"{'An' if what.startswith('a') else 'A'} {what} waits for review", facts


def _slack(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
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


def _teams(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
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


def announce(database: Database, destination: Destination) -> int:
    """Put a message about each new line of the trail into the outbox, once. Returns their number.

    A destination that is new begins with the lines of the latest minute, so that it misses nothing that arrives while
    the first process starts.
    """
    with database.write() as transaction:
        now = transaction.now
        place = _place(transaction, destination)
        identity = literal(destination.name.removeprefix(PREFIX) + "-") + cast(events.c.number, String)
        new_lines = (
            select(events, identity.label("identity"))
            .outerjoin(items, items.c.id == events.c.item)
            .where(events.c.number > place, events.c.what.in_(destination.events))
            .where(or_(items.c.kind != "audit", and_(events.c.item == "", events.c.what == "alarm")))
            .where(~exists().where(outbox.c.id == identity))
            .order_by(events.c.number)
            .limit(_AT_ONCE)
        )
        lines = transaction.execute(new_lines).all()
        for line in lines:
            item = rows.as_item(rows.fetch(transaction, line.item), now) if line.item else None
            body = destination.message(line.identity, line, item)
            rows.send(transaction, line.identity, destination.name, destination.name, body)
        if len(lines) < _AT_ONCE:
            settled = select(func.max(events.c.number)).where(events.c.number > place, events.c.at < now - SETTLED)
            if (until := transaction.execute(settled).scalar_one()) is not None:
                transaction.execute(update(meta).where(meta.c.name == destination.name).values(value=str(until)))
            # After the place has moved on: without its message, a line would count as new.
            old = and_(outbox.c.url == destination.name, outbox.c.created < now - KEPT)
            transaction.execute(delete(outbox).where(old))
        return len(lines)


def _place(transaction: Transaction, destination: Destination) -> int:
    """Number of the last line of the trail that is announced; the row that holds it is locked."""
    query = select(meta.c.value).where(meta.c.name == destination.name).with_for_update()
    place = transaction.execute(query).scalar_one_or_none()
    if place is None:
        earlier = select(func.max(events.c.number)).where(events.c.at < transaction.now - SETTLED)
        place = str(transaction.execute(earlier).scalar_one() or 0)
        transaction.execute(insert(meta).values(name=destination.name, value=place))
    return int(place)
