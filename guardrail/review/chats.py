"""Messages in the forms of chats: a title, facts by their names, and a link to the review page or None."""

from __future__ import annotations

from typing import Any

__all__ = ["slack_message", "teams_message"]


def slack_message(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
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


def teams_message(title: str, facts: dict[str, str], link: str | None) -> dict[str, Any]:
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
