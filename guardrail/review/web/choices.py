"""The model's answers as a list to choose from: the decision of a click on each answer, and its key in the form.

The page posts a digest, never the text of an answer; the text is looked up in the item's frozen content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...judges.tool_call import is_canonical_call, read_calls
from ...plain_json import sha256_hex
from ...types import ToolCall, canonical_calls
from ..item import Action, Candidate, Content, Decision

__all__ = ["CHOSEN", "SHOWN", "Choice", "Choices", "choices_of", "choose"]

CHOSEN = "[chosen from the list]"
"""End of the decision's note, so that the record distinguishes a choice from a typed answer."""
SHOWN = 8
"""Number of alternatives shown unfolded; the others have no keyboard shortcut."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a list.

    Attributes:
        text: The answer, in the candidate's wording if it is the candidate; tool calls as their canonical JSON.
        share: Its share among the samples.
        key: Its key in the form: 32 hex digits of the SHA-256 of the text in the content.
        gives: The candidate that choosing it returns; the frozen one if the answer is the judged candidate.
        judged: Whether it is the candidate (apart from case, white space and a final full stop).
        action: The decision that choosing it makes; None if it cannot be chosen.
        digit: Its shortcut on the keyboard, "1" to "9", or empty.
    """

    text: str
    share: float
    key: str
    gives: Candidate
    judged: bool
    action: Action | None
    digit: str = ""


@dataclass(frozen=True, slots=True)
class Choices:
    """The answers of an item.

    Attributes:
        likely: The calibrated candidate set; empty without a calibration.
        others: The distinct answers among the samples. Answers of the candidate set cannot be chosen here.
    """

    likely: tuple[Choice, ...]
    others: tuple[Choice, ...]

    def __iter__(self) -> Iterator[Choice]:
        yield from (*self.likely, *self.others)


def choices_of(content: Content) -> Choices:
    """The answers of an item, and what choosing each of them decides.

    * The candidate itself: approve, so that learning counts it as right.
    * Another answer: edit, since the choice says that the candidate is wrong and what is right; respond, if the item
      does not allow edit.
    * These cannot be chosen: an empty text; a text with a character that could not be read or stored (U+FFFD), unless
      it is the candidate; the same answer a second time; a decision that the item does not allow; and an answer that
      the caller cannot use. A caller that waits for a text cannot use tool calls, a caller that waits for tool calls
      cannot use a text, and an agent accepts changed arguments but not other tools.
    * No answer can be chosen if the decision is a label (`Content.blind`): the list appears after it.
    """
    listed_before: set[str] = set()  # of both lists: an answer can be chosen in one of them only
    digits = iter("123456789")

    def listed(answers: tuple[tuple[str, float], ...], unfolded: int) -> tuple[Choice, ...]:
        choices = []
        for place, (text, share) in enumerate(answers):
            choice = _choice(content, text, share)
            if choice.action is not None and _comparable(text) in listed_before:
                choice = replace(choice, action=None)
            elif choice.action is not None:
                listed_before.add(_comparable(text))
                choice = replace(choice, digit=next(digits, "") if place < unfolded else "")
            choices.append(choice)
        return tuple(choices)

    answers = () if content.candidate_set is None else content.candidate_set.answers
    return Choices(listed(answers, len(answers)), listed(content.alternatives, SHOWN))


def choose(content: Content, key: str, note: str = "") -> Decision | None:
    """The decision for an answer in the item's lists; None if the key belongs to no answer that can be chosen.

    Args:
        content: The item's frozen content.
        key: `Choice.key`.
        note: The reviewer's remark.
    """
    noted = f"{note} {CHOSEN}".strip()
    for choice in (choice for choice in choices_of(content) if choice.key == key):
        if choice.action == "approve":
            return Decision(action="approve", note=note)
        if choice.action == "edit":
            return Decision(action="edit", candidate=choice.gives, note=noted)
        if choice.action is not None:
            return Decision(action="respond", text=choice.gives.text, note=noted)
    return None


def _choice(content: Content, text: str, share: float) -> Choice:
    candidate, key = content.candidate, sha256_hex(text, 32)
    action: Action | None = None
    if candidate is not None and text.strip() and _comparable(text) == _comparable(_text_of(candidate)):
        action = "approve" if "approve" in content.allowed and not content.blind else None
        return Choice(_text_of(candidate), share, key, candidate, True, action)
    calls = read_calls(text) if is_canonical_call(text) else None
    judged = () if candidate is None else candidate.tool_calls
    gives = Candidate(text=text) if calls is None else Candidate(tool_calls=_arranged(calls, judged))
    if not content.blind and "\ufffd" not in f"{gives.model_dump()}" and _is_usable(content, gives):
        if "edit" in content.allowed:
            action = "edit"
        elif "respond" in content.allowed and gives.text:
            action = "respond"
    return Choice(text, share, key, gives, False, action)


def _is_usable(content: Content, gives: Candidate) -> bool:
    """Whether the caller can use the answer: a text in place of a text, the same tools in place of tool calls."""
    judged = () if content.candidate is None else content.candidate.tool_calls
    fits = (content.kind == "tool_call") == bool(judged) and _names(gives.tool_calls) == _names(judged)
    return bool(gives.text.strip() or gives.tool_calls) and fits and content.why_not(gives) is None


def _arranged(calls: Sequence[ToolCall], judged: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Calls with arguments in the candidate's order (canonical JSON sorts them), so that people can compare them."""
    if _names(calls) != _names(judged):
        return tuple(calls)
    return tuple(
        ToolCall(name=ours.name, arguments={name: ours.arguments[name] for name in order if name in ours.arguments})
        for ours, theirs in zip(calls, judged, strict=True)
        for order in [(*theirs.arguments, *ours.arguments)]
    )


def _names(calls: Sequence[ToolCall]) -> list[str]:
    return [call.name for call in calls]


def _text_of(candidate: Candidate) -> str:
    return canonical_calls(candidate.tool_calls) if candidate.tool_calls else candidate.text


def _comparable(text: str) -> str:
    """A form that is equal for texts that differ only in case, white space and a final full stop.

    Tool calls are compared unchanged. The form is stricter than the judges' `normalise`, which equates "C++" and "C": a
    click must not return another answer.
    """
    if is_canonical_call(text):
        return text
    folded = " ".join(text.split()).casefold()
    return folded.removesuffix(".") or folded
