"""What the models of every framework's tests say, and the decisions of people about it."""

from __future__ import annotations

from typing import Any

Reply = str | tuple[str, dict[str, Any]]

SURE: list[Reply] = [("pay", {"amount": 5})]
SPELLED: list[Reply] = [("pay", {"amount": 5}), ("pay", {"amount": 5.0})]
UNSURE: list[Reply] = [("pay", {"amount": n}) for n in (5, 50, 500, 55, 505)]
SURE_TEXT: list[Reply] = ["Paris", "Paris", "paris", "Paris.", "Paris"]
UNSURE_TEXT: list[Reply] = ["Rome", "Oslo", "Bern", "Riga", "Kiev"]

EDIT = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 7}}}
ANSWER_EDIT = {"type": "edit", "edited_action": {"name": "answer", "args": {"text": "Poseidonis"}}}
JSON_EDIT = {"type": "edit", "edited_action": {"name": "answer", "args": {"text": '{"name": "Roma"}'}}}
TO_THE_USER = {"type": "answer", "message": "Please call us."}

OUTCOMES: dict[str, tuple[dict[str, Any], list[int], str]] = {
    "approve": ({"type": "approve"}, [5], "paid 5"),
    "edit": (EDIT, [7], "Note: a person changed this call before it ran; it ran with amount=7."),
    "reject": (
        {"type": "reject", "message": "too much"},
        [],
        "A person rejected this call of pay; it was not run. Do not call it again unless the user asks for it. "
        "The reason: too much",
    ),
    "respond": ({"type": "respond", "message": "I paid it by hand"}, [], "I paid it by hand"),
}
"""Decisions about `UNSURE`'s first call: the decision, what is paid, and how the text begins that the model reads."""
REVIEWED: dict[str, tuple[dict[str, Any], str]] = {
    "approve": ({"type": "approve"}, "Rome"),
    "edit": (ANSWER_EDIT, "Poseidonis"),
    "respond": ({"type": "respond", "message": "It sank."}, "It sank."),
    "reject": ({"type": "reject", "message": "Not the capital, ask Bob."}, "Not sure."),
}
"""Decisions about `UNSURE_TEXT`'s first answer: the decision, and what the user gets."""


def decide_in(store: Any, item: Any, decision: Any) -> None:
    """Decide about an item of the review queue."""
    store.decide(store.claim("ann", item=item.id), decision)
