"""The model's answers as a list to choose from: what one click on each of them decides, and the name it is posted by.

The page never posts a text and calls it "one of the list": it posts a digest, and the text is looked up in the item's
frozen content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...judges.tool_call import is_canonical_call, read_calls
from ...plain_json import sha256_hex
from ...types import ToolCall, canonical_calls
from ..queue.item import Action, Candidate, Content, Decision

__all__ = ["CHOSEN", "Choice", "Choices", "choices_of", "choose"]

CHOSEN = "[chosen from the list]"
"""Stands at the end of the decision's note, so that the record tells a choice from a typed answer."""
SHOWN = 8
"""Alternatives the page shows at once; the rest is folded away and has no digits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a list.

    Attributes:
        text: The answer, in the candidate's wording where it is the candidate; tool calls as their canonical JSON.
        share: Its share among the samples.
        key: Names it in the form: 32 hex digits of the SHA-256 of the text in the content.
        gives: What goes out when it is chosen: the frozen candidate where it is the candidate.
        judged: Whether it is the candidate (but for case, white space and a closing full stop).
        action: What choosing it decides; None where it cannot be chosen.
        digit: Its key on the keyboard, "1" to "9", or empty.
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
    """The answers an item shows.

    Attributes:
        likely: The calibrated candidate set; empty where there is none.
        others: The distinct answers among the samples. Those of the candidate set cannot be chosen here again.
        more: What is left of them after the first eight.
    """

    likely: tuple[Choice, ...]
    others: tuple[Choice, ...]
    more: tuple[Choice, ...]

    def __iter__(self) -> Iterator[Choice]:
        yield from (*self.likely, *self.others, *self.more)

    @property
    def another(self) -> bool:
        """Whether an answer that is not the candidate can be chosen."""
        return any(one.action is not None and not one.judged for one in self)


def choices_of(content: Content) -> Choices:
    """The answers an item shows, and what choosing each of them decides.

    * The candidate itself: approve, so that learning counts it as right.
    * Another answer: edit, since it says that the candidate is wrong and what is right; where the item does not allow
      edit, respond.
    * None of these: an empty text; one with a character that could not be read or stored (U+FFFD), unless it is the
      candidate; the same answer a second time; what the item does not allow; and what its caller could not use. A
      caller that waits for a text cannot use tool calls, one that waits for tool calls cannot use a text, and an agent
      takes changed arguments, but no other tools. In an audit nobody waits: all can be chosen.
    """
    seen: set[str] = set()
    digits = iter("123456789")

    def listed(answers: tuple[tuple[str, float], ...], *, unfolded: int) -> tuple[Choice, ...]:
        found = []
        for place, (text, share) in enumerate(answers):
            one = _choice(content, text, share)
            if one.action is not None:
                again = _same(text) in seen
                seen.add(_same(text))
                one = replace(one, action=None) if again else one
            if one.action is not None and place < unfolded:
                one = replace(one, digit=next(digits, ""))
            found.append(one)
        return tuple(found)

    answers = () if content.candidate_set is None else content.candidate_set.answers
    likely = listed(answers, unfolded=len(answers))
    others = listed(content.alternatives, unfolded=SHOWN)
    return Choices(likely, others[:SHOWN], others[SHOWN:])


def choose(content: Content, key: str, note: str = "") -> Decision | None:
    """The decision for an answer of the item's lists; None where no answer that can be chosen has this key.

    Args:
        content: The item's frozen content.
        key: `Choice.key`.
        note: The reviewer's remark.
    """
    one = next((one for one in choices_of(content) if one.key == key and one.action is not None), None)
    if one is None or one.action is None:
        return None
    if one.action == "approve":
        return Decision(action="approve", note=note)
    noted = f"{note} {CHOSEN}".strip()
    if one.action == "edit":
        return Decision(action="edit", candidate=one.gives, note=noted)
    return Decision(action="respond", text=one.gives.text, note=noted)


def _choice(content: Content, text: str, share: float) -> Choice:
    candidate = content.candidate
    key = sha256_hex(text, 32)
    if candidate is not None and text.strip() and _same(text) == _same(_text_of(candidate)):
        action: Action | None = "approve" if "approve" in content.allowed else None
        return Choice(_text_of(candidate), share, key, candidate, True, action)
    calls = read_calls(text) if is_canonical_call(text) else None
    judged = () if candidate is None else candidate.tool_calls
    gives = Candidate(text=text) if calls is None else Candidate(tool_calls=_arranged(calls, judged))
    return Choice(text, share, key, gives, False, _action(content, gives))


def _action(content: Content, gives: Candidate) -> Action | None:
    """What giving out something else than the candidate is; None where that makes no sense or is not allowed."""
    if not (gives.text.strip() or gives.tool_calls) or not (content.kind == "audit" or _usable(content, gives)):
        return None
    if "\ufffd" in f"{gives.model_dump()}":
        return None
    if "edit" in content.allowed:
        return "edit"
    return "respond" if "respond" in content.allowed and gives.text else None


def _usable(content: Content, gives: Candidate) -> bool:
    """Whether whoever waits for the item can use it: a text for a text, the same tools for tool calls."""
    judged = () if content.candidate is None else content.candidate.tool_calls
    fits = (content.kind == "tool_call") == bool(judged) and _names(gives.tool_calls) == _names(judged)
    return fits and content.why_not(gives) is None


def _arranged(calls: Sequence[ToolCall], judged: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Calls with their arguments in the candidate's order (canonical JSON sorts them), so that the eye can compare."""
    if _names(calls) != _names(judged):
        return tuple(calls)
    pairs = [(ours.name, ours.arguments, theirs.arguments) for ours, theirs in zip(calls, judged, strict=True)]
    return tuple(
        ToolCall(name=name, arguments={key: ours[key] for key in (*theirs, *ours) if key in ours})
        for name, ours, theirs in pairs
    )


def _names(calls: Sequence[ToolCall]) -> list[str]:
    return [call.name for call in calls]


def _text_of(candidate: Candidate) -> str:
    return canonical_calls(candidate.tool_calls) if candidate.tool_calls else candidate.text


def _same(text: str) -> str:
    """Equal for texts that differ in case, white space and a closing full stop only; tool calls stay as they are.

    Closer than the judges' `normalise`, which takes "C++" for "C": a click must not give out another answer.
    """
    if is_canonical_call(text):
        return text
    folded = " ".join(text.split()).casefold()
    return folded.removesuffix(".") or folded
