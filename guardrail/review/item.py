"""Items of the queue: the judged content, its state, and the decision. Plain JSON throughout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from ..bindings import arguments_fault
from ..errors import UsageError
from ..files import problem_of
from ..items.item import ItemVerdict
from ..items.release import release
from ..plain_json import json_fault
from ..types import Frozen, Sample, ToolCall
from ..verdict import Verdict
from .candidates import CandidateSet
from .errors import UnstorableError
from .limits import without_surrogates

__all__ = [
    "ACTIONS",
    "Action",
    "Candidate",
    "Content",
    "Decision",
    "Event",
    "Item",
    "ItemDecision",
    "Kind",
    "State",
    "Stats",
    "by_items",
    "frozen",
    "plain_number",
    "writable",
]

Action = Literal["approve", "edit", "reject", "respond", "answer"]
"""Actions of a reviewer; the words of LangChain's ``HumanInTheLoopMiddleware``, and "answer": of an agent's call, where
"respond" goes to the agent, a text to the user that ends the agent's turn."""
ACTIONS: tuple[Action, ...] = ("approve", "edit", "reject", "respond")
"""Actions about what has no agent."""
Kind = Literal["answer", "tool_call", "audit"]
"""A held-back answer, a held-back tool call, or an accepted answer that is audited."""
State = Literal["pending", "claimed", "decided", "expired"]


_EXACT = 2**53
"""Below this a float has no gaps between whole numbers."""
_LONGEST_VALUE = 60
"""Characters of an argument in a line about its call."""


class Candidate(Frozen):
    """The answer that would be returned to the user: a text, tool calls, or both."""

    text: str = ""
    """Text of the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls, in order."""

    @classmethod
    def of(cls, sample: Sample) -> Candidate:
        """The item of a sample that would be returned."""
        return cls(text=sample.text, tool_calls=sample.tool_calls)


class Content(Frozen):
    """Everything that a reviewer sees. Written once and never changed: the decision is about exactly this."""

    question: str
    """The question."""
    messages: tuple[dict[str, Any], ...] = ()
    """The conversation so far, as ``{"role": ..., "content": ...}``."""
    kind: Kind = "answer"
    """Kind of the item."""
    candidate: Candidate | None = None
    """The judged candidate; None if the model failed, so that it cannot be approved."""
    verdict: Verdict | None = None
    """The verdict of the guard; None for an answer that a person judges for a calibration."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Other answers of the model with their share among its samples, most frequent first."""
    candidate_set: CandidateSet | None = None
    """Answers that contain an acceptable one with a stated probability, if that was calibrated."""
    allowed: tuple[Action, ...] = ACTIONS
    """Decisions that are possible."""
    agent: bool = False
    """Whether the run of an agent waits: an edit keeps the tools that are called, with arguments that a LangGraph state
    can hold, which cannot hold every number."""
    schemas: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """JSON schema of the arguments of each tool, by its name, as far as the caller knows it: the page makes a form of
    it, and an edit that does not fit it is refused."""
    fixed: tuple[int, ...] = ()
    """Indices of the candidate's tool calls, from 0, that an edit must not change: they need no decision."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Data of the caller: a thread id, a tenant, the probability with which an audit was drawn."""
    items: tuple[ItemVerdict, ...] = ()
    """The items of the candidate, in order; those that are held back are decided one by one, the others stay as they
    are. Empty if the whole candidate is decided."""

    @model_validator(mode="after")
    def _decidable(self) -> Self:
        if not self.allowed or len(set(self.allowed)) != len(self.allowed):
            raise ValueError(f"allowed must name at least one decision, each once, got {self.allowed}")
        if self.candidate is None and set(self.allowed) & {"approve", "edit"}:
            raise ValueError(
                f"allowed is {self.allowed}, but without a candidate there is nothing to approve or edit. "
                'Use ("reject", "respond").'
            )
        return self

    @property
    def to_label(self) -> bool:
        """Whether a person labels the answer for a calibration: nobody waits, and nothing may hint at its score."""
        return self.kind == "audit" and self.verdict is None

    @property
    def noun(self) -> Literal["answer", "call"]:
        """What is decided, in a word."""
        calls = self.kind == "tool_call" or (self.candidate is not None and self.candidate.tool_calls)
        return "call" if calls else "answer"

    @property
    def what(self) -> str:
        """What waits, for people: an answer, a tool call, a spot check, or an answer that nobody waits for."""
        if self.to_label:
            return f"{self.noun} to judge"
        return {"answer": "answer", "tool_call": "tool call", "audit": "spot check"}[self.kind]

    @property
    def has_agent(self) -> bool:
        """Whether an agent waits to run the call, so that it can be told why the call is rejected."""
        return self.kind == "tool_call" and self.agent

    @property
    def blind(self) -> bool:
        """Whether the decision is a label: of an audit, for a calibration, or of a call whose samples are collected.

        Until it is made nothing may hint at the score, or labels lean towards it.
        """
        return self.kind == "audit" or (self.verdict is not None and self.verdict.record is not None)

    def calls_in_words(self, *, texts: bool = True) -> str:
        """The candidate's tool calls in one line, such as ``refund: order A-17, amount 40``; empty without calls.

        Args:
            texts: Whether to name all arguments; otherwise only those that are numbers.
        """
        calls = () if self.candidate is None else self.candidate.tool_calls
        return "; ".join(_in_words(call, texts) for call in calls)

    def why_not(self, edited: Candidate) -> str | None:
        """Why the caller cannot carry out this edit; None if it can."""
        ours = () if self.candidate is None else self.candidate.tool_calls
        theirs = edited.tool_calls
        before, after = [call.name for call in ours], [call.name for call in theirs]
        if self.agent and before != after:
            return (
                f"an edit keeps the tools that are called, but this one calls {after} in place of {before}. Reject it "
                "instead."
            )
        for call in theirs:
            if self.agent and (fault := json_fault(call.arguments, packed=True)) is not None:
                return f"the arguments of {call.name} hold {fault}. Correct them, or reject the call."
            if call.name in self.schemas and call not in ours:
                fault = arguments_fault(self.schemas[call.name], call.arguments)
                if fault is not None:
                    return f"the arguments do not fit the tool {call.name}: {fault}. Correct them, or reject the call."
        for place in self.fixed:
            if ours[place : place + 1] != theirs[place : place + 1]:
                return (
                    f"the call of {ours[place].name} needs no decision, so an edit must leave it unchanged. "
                    "Reject the others to stop here."
                )
        return None


def plain_number(value: Any) -> Any:
    """A value for a reader: 5.0 as 5, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and abs(value) < _EXACT and value.is_integer() else value


def _in_words(call: ToolCall, texts: bool) -> str:
    named = []
    for name, value in call.arguments.items():
        if texts or (isinstance(value, int | float) and not isinstance(value, bool)):
            shown = _brief(value)
            named.append(f"{name} {shown if len(shown) <= _LONGEST_VALUE else shown[:_LONGEST_VALUE] + '…'}")
    return f"{call.name}: {', '.join(named)}" if named else call.name


def _brief(value: Any) -> str:
    """A value in a line: yes and no, a list in brackets; JSON for what is nested."""
    value = plain_number(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and not any(isinstance(each, list | dict) for each in value):
        return f"({', '.join(map(_brief, value))})"
    return json.dumps(value, ensure_ascii=False)


class ItemDecision(Frozen):
    """The decision of a person about one item that was held back."""

    path: str
    """The path of the item."""
    action: Literal["approve", "edit", "reject"]
    """Whether the item is right, is replaced, or stays held back."""
    text: str = ""
    """What replaces the item: JSON for a field, words for a sentence; required for "edit", only allowed there."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.action == "edit") != bool(self.text.strip()):
            raise ValueError(f'text replaces the item {self.path}: "edit" requires it, other actions do not take it')
        return self


class Decision(Frozen):
    """The decision of a person."""

    action: Action
    """approve, edit, reject, respond or answer."""
    text: str | None = None
    """For "respond" and "answer" the text that the reviewer wrote; it is required. For "reject" of an agent's call the
    words that the agent gets as the reason; the agent is told that the call was not run. Others take no text."""
    candidate: Candidate | None = None
    """The edited candidate; required for "edit", and only allowed there."""
    note: str = ""
    """A remark for other reviewers. It stays in the store: no user, model, callback or system gets it."""
    reviewer: str = ""
    """Name of the person who decided; the store fills it in."""
    at: float = 0.0
    """When, in seconds since 1970 UTC; the store fills it in."""
    items: tuple[ItemDecision, ...] = ()
    """The decisions item by item from which action and candidate follow (`by_items`); empty for a decision about the
    whole candidate."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        written = bool(self.text and self.text.strip())
        if written != (self.action in ("respond", "answer")) and not (written and self.action == "reject"):
            raise ValueError(
                'text is the reviewer\'s own answer, or the reason of a rejected call: actions "respond" and "answer" '
                'require it, "reject" of an agent\'s call may have it, other actions do not take it'
            )
        if (self.action == "edit") != (self.candidate is not None):
            raise ValueError('candidate is the edited answer: action "edit" requires it, other actions do not take it')
        if self.candidate is not None and not (self.candidate.text.strip() or self.candidate.tool_calls):
            raise ValueError('an edited candidate needs a text or a tool call. To return nothing, use "reject"')
        return self

    def same_as(self, other: Decision) -> bool:
        """Whether both are the same decision, apart from the time."""
        return self.model_copy(update={"at": other.at}) == other

    def objection(self, content: Content) -> str | None:
        """Why this content cannot be decided so; None if it can.

        Raises:
            UsageError: Decisions about other items than those that were held back.
        """
        if self.action not in content.allowed:
            return f"this item does not allow {self.action!r}; it allows {', '.join(content.allowed)}."
        if self.action == "reject" and self.text and not content.has_agent:
            return "the reason of a rejection goes to an agent, and no agent waits here. Write a note."
        if self.items:
            derived = by_items(content, self.items)
            if (derived.action, derived.candidate) != (self.action, self.candidate):
                return "the decision is not the one that follows from those about its items (by_items)."
        elif content.items and self.action == "edit":
            return "this item is edited item by item (by_items): the items that were kept stay as they are."
        return None if self.candidate is None else content.why_not(self.candidate)

    def outcome(self, content: Content) -> Candidate | None:
        """The answer to return: the frozen or the edited candidate, the reviewer's own text, or None for "reject"."""
        if self.action == "approve":
            return content.candidate
        if self.action == "edit":
            return self.candidate
        return Candidate(text=self.text or "") if self.action in ("respond", "answer") else None


def by_items(content: Content, items: Sequence[ItemDecision], note: str = "") -> Decision:
    """The decision that follows from those about every item that was held back.

    The released answer is the frozen candidate with these decisions carried out and nothing else: items that were kept
    stay, approved ones are added, edited ones have the new value, rejected ones stay out. All approved is "approve".
    Nothing left is "reject", and so is any rejected argument of a tool call, which must not run without it.

    Raises:
        UsageError: The decisions are not about exactly the items that were held back, or an edit is not JSON.
    """
    held = [item.path for item in content.items if not item.kept]
    if sorted(held) != sorted(item.path for item in items) or content.candidate is None or not held:
        raise UsageError(
            f"decide about each item that was held back, once: {held}; got {[item.path for item in items]}."
        )
    actions = {item.path: item.action for item in items}
    approved = [path for path, action in actions.items() if action == "approve"]
    edits = {item.path: item.text for item in items if item.action == "edit"}
    decided = [item.model_copy(update={"kept": item.kept or item.path in approved}) for item in content.items]
    common: dict[str, Any] = {"note": note, "items": tuple(items)}
    if len(approved) == len(held):
        return Decision(action="approve", **common)
    stops_the_call = content.kind == "tool_call" and "reject" in actions.values()
    if stops_the_call or (not edits and not any(item.kept for item in decided)):
        return Decision(action="reject", **common)
    frozen_answer = Sample(text=content.candidate.text, tool_calls=content.candidate.tool_calls)
    try:
        left = release(frozen_answer, decided, edits)
    except ValueError as error:
        raise UsageError(f"an edited field is JSON (a text in quotes): {error}") from error
    return Decision(action="edit", candidate=Candidate.of(left), **common)


class Item(Frozen):
    """One item of the queue in its current state."""

    id: str
    """The ticket: random, so that it cannot be guessed."""
    number: int
    """Place in order of arrival."""
    key: str
    """The caller's key: enqueuing the same key again gives the same item."""
    content: Content
    """The question, the candidate and everything else that the reviewer sees."""
    state: State
    """pending, claimed, decided or expired."""
    created: float
    """When it arrived, in seconds since 1970 UTC."""
    deadline: float | None = None
    """After this nobody waits for the decision; None for no deadline."""
    holder: str | None = None
    """Name of the reviewer who holds it."""
    lease_until: float | None = None
    """End of the lease. For a decided or expired item: until when a worker has it to carry it out; if that time has
    passed, the worker did not finish. See `ReviewStore.lease`."""
    callback: str | None = None
    """URL that receives the decision."""
    decision: Decision | None = None
    """The decision, once there is one."""


class Event(Frozen):
    """One line of the audit trail."""

    number: int
    """Order of writing."""
    item: str
    """Id of the item; empty for events about no single item."""
    at: float
    """When, in seconds since 1970 UTC."""
    who: str
    """Reviewer, or "system"."""
    what: str
    """enqueued, claimed, renewed, released, decided, refused, expired, extended, reopened, cancelled,
    taken_up, handed_over, carried_out, not_carried_out, lapsed, put_down, delivered, delivery_failed, not_queued,
    purged, alarm or alarm_acknowledged."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Particulars."""


class Stats(Frozen):
    """Counters."""

    pending: int
    """Waiting and not held by a reviewer (ended leases included)."""
    claimed: int
    """Held by a reviewer right now."""
    decided: int
    """Decided."""
    expired: int
    """Not decided in time."""
    actions: dict[str, int]
    """Decisions by action."""
    oldest: float | None
    """Age of the oldest undecided item, in seconds; None if every item is decided or expired."""
    undelivered: int
    """Callbacks not delivered yet."""
    dead: int
    """Callbacks that failed too often and are not tried again."""


# Freezing. A model can write values that a text column cannot hold: half of a surrogate pair becomes U+FFFD, and a
# number that JSON lacks (NaN) becomes null. A candidate with such a value is shown in this form, but it is no longer
# the candidate that was judged, so it can only be rejected or answered. In an audit everything is allowed: nothing is
# returned to the user, and a right answer must not be labelled wrong because of a character. Values nested too deeply
# to be read back are refused.

_AS_JSON = partial(TypeAdapter(Any).dump_python, mode="json")
"""A value that JSON lacks, e.g. a date, as JSON."""
_LEFT: tuple[Action, ...] = ("reject", "respond")


def frozen(content: Content) -> Content:
    """The content as it will be read from the database.

    Raises:
        UnstorableError: It cannot be written or read back, or its candidate cannot and no other decision is allowed.
    """
    try:
        text = json.dumps(content.model_dump(), ensure_ascii=False, default=_AS_JSON)
        plain = json.loads(without_surrogates(text), parse_constant=lambda _: None)  # NaN and infinities
        read = Content.model_validate_json(json.dumps(plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnstorableError(f"this content cannot be stored: {_first_problem(error)}.") from error
    if content.kind == "audit" or json_fault(_values(content.candidate)) is None:
        return read
    allowed = tuple(action for action in content.allowed if action in _LEFT)
    if not allowed:
        raise UnstorableError(
            "the candidate holds a value that cannot be stored (half of a surrogate pair, or a number like NaN), so it "
            f"can only be rejected or answered; but allowed is {', '.join(content.allowed)}."
        )
    return read.model_copy(update={"allowed": allowed, "items": ()})


def writable(decision: Decision) -> Decision:
    """The decision, if it can be written and read back unchanged.

    Raises:
        UnstorableError: It cannot.
    """
    texts = [decision.text, decision.note, decision.reviewer, *(item.text for item in decision.items)]
    fault = json_fault([*texts, _values(decision.candidate)])
    if fault is not None:
        raise UnstorableError(f"this decision cannot be stored: it holds {fault}.")
    return decision


def _values(candidate: Candidate | None) -> list[Any]:
    if candidate is None:
        return []
    return [candidate.text, *((call.name, call.arguments) for call in candidate.tool_calls)]


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = problem_of(error)
        too_deep = problem.startswith("Invalid JSON: recursion limit")
    else:
        problem = str(error).partition("\n")[0].removesuffix(".") or type(error).__name__
        too_deep = isinstance(error, RecursionError) or "(depth exceeded)" in problem  # pydantic's words for it
    return "it is nested too deeply" if too_deep else problem
