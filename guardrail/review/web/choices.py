"""The model's answers as a list to choose from: the decision of a click on each answer, and its key in the form.

The page posts a digest, never the text of an answer; the text is looked up in the item's frozen content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...judges.tool_call import is_canonical_call, read_calls
from ...plain_json import sha256_hex
from ...types import ToolCall, canonical_calls
from ..item import Candidate, Content, Decision

__all__ = ["CHOSEN", "Choice", "choices_of", "choose"]

CHOSEN = "[chosen from the list]"
"""End of the decision's note, so that the record distinguishes a choice from a typed answer."""
UNFOLDED = 8
"""Number of answers shown unfolded without a calibrated list; the others have no keyboard shortcut."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of the list.

    Attributes:
        text: The answer, in the candidate's wording if it is the candidate; tool calls as their canonical JSON.
        share: Its share among the samples.
        key: Its key in the form: 32 hex digits of the SHA-256 of the text in the content.
        gives: The candidate that choosing it returns; the frozen one if the answer is the judged candidate.
        judged: Whether it is the candidate (apart from case, white space and a final full stop).
        decision: The decision that choosing it makes; None if it cannot be chosen.
        folded: Whether the page shows it only when the reviewer asks for more.
        digit: Its shortcut on the keyboard, "1" to "9", or empty.
    """

    text: str
    share: float
    key: str
    gives: Candidate
    judged: bool
    decision: Decision | None
    folded: bool
    digit: str


def choices_of(content: Content) -> list[Choice]:
    """The answers of an item, and what choosing each of them decides.

    The calibrated list comes first and unfolded, if there is one; the model's other answers follow. Answers that differ
    in case, white space and a final full stop only are one answer.

    * The candidate itself: approve, so that learning counts it as right.
    * Another answer: edit, since the choice says that the candidate is wrong and what is right; respond, if the item
      does not allow edit.
    * These cannot be chosen: an empty text; a text with a character that could not be read or stored (U+FFFD), unless
      it is the candidate; a decision that the item does not allow; and an answer that the caller cannot use. A caller
      that waits for a text cannot use tool calls, a caller that waits for tool calls cannot use a text, and an agent
      accepts changed arguments but not other tools.
    * No answer can be chosen if the decision is a label (`Content.blind`): the list appears after it.
    """
    likely = () if content.candidate_set is None else content.candidate_set.answers
    answers = dict[str, tuple[str, float]]()
    for text, share in likely:
        answers.setdefault(_comparable(text), (text, share))
    calibrated = set(answers)
    for text, share in content.alternatives:
        form = _comparable(text)
        if form not in calibrated:
            first, before = answers.get(form, (text, 0.0))
            answers[form] = (first, before + share)
    unfolded = len(calibrated) or UNFOLDED
    choices: list[Choice] = []
    digits = iter("123456789")
    for index, (text, share) in enumerate(answers.values()):
        gives, judged = _given_by(content, text)
        decision = _decision(content, gives, judged)
        folded = index >= unfolded
        digit = "" if decision is None or folded else next(digits, "")
        shown = _text_of(gives) if judged else text
        choices.append(Choice(shown, share, sha256_hex(text, 32), gives, judged, decision, folded, digit))
    return choices


def choose(content: Content, key: str, note: str = "") -> Decision | None:
    """The decision for an answer in the item's list; None if the key belongs to no answer that can be chosen.

    Args:
        content: The item's frozen content.
        key: `Choice.key`.
        note: The reviewer's remark.
    """
    chosen = next((choice.decision for choice in choices_of(content) if choice.key == key), None)
    if chosen is None:
        return None
    noted = note if chosen.action == "approve" else f"{note} {CHOSEN}".strip()
    return chosen.model_copy(update={"note": noted})


def _given_by(content: Content, text: str) -> tuple[Candidate, bool]:
    """The candidate that choosing an answer returns, and whether it is the judged candidate."""
    candidate = content.candidate
    if candidate is not None and text.strip() and _comparable(text) == _comparable(_text_of(candidate)):
        return candidate, True
    calls = read_calls(text) if is_canonical_call(text) else None
    judged = () if candidate is None else candidate.tool_calls
    return Candidate(text=text) if calls is None else Candidate(tool_calls=_arranged(calls, judged)), False


def _decision(content: Content, gives: Candidate, judged: bool) -> Decision | None:
    if content.blind:
        return None
    if judged:
        return Decision(action="approve") if "approve" in content.allowed else None
    if "\ufffd" in f"{gives.model_dump()}" or not _is_usable(content, gives):
        return None
    if "edit" in content.allowed:
        return Decision(action="edit", candidate=gives)
    return Decision(action="respond", text=gives.text) if "respond" in content.allowed and gives.text else None


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
