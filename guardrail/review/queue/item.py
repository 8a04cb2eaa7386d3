"""What the queue holds: content as it was judged, the state it is in, and the decision. Plain JSON throughout."""

from __future__ import annotations

import json
import math
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from ...files import problem_of
from ...plain_json import json_fault
from ...types import Frozen, Sample, ToolCall
from ...verdict import Verdict
from ..candidates import CandidateSet
from ..errors import ReviewError, UnstorableError
from ..limits import mended

__all__ = [
    "ACTIONS",
    "Action",
    "Candidate",
    "Content",
    "Decision",
    "Event",
    "Item",
    "Kind",
    "State",
    "Stats",
    "frozen",
    "writable",
]

Action = Literal["approve", "edit", "reject", "respond"]
"""What a reviewer may do; the words of LangChain's ``HumanInTheLoopMiddleware``."""
ACTIONS: tuple[Action, ...] = ("approve", "edit", "reject", "respond")
Kind = Literal["answer", "tool_call", "audit"]
"""A held-back answer, a held-back tool call, or an accepted answer that is checked afterwards."""
State = Literal["pending", "claimed", "decided", "expired"]
Edits = Literal["any", "text", "arguments"]
"""What an edit may change: anything; the text of an answer; or tool calls' arguments and the text beside them (of calls
that wait in a LangGraph state, which does not hold every number)."""


class Candidate(Frozen):
    """What would be given out: a text, tool calls, or both."""

    text: str = ""
    """Text of the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls, in order."""

    @classmethod
    def of(cls, sample: Sample) -> Candidate:
        """The part of a sample that would be given out."""
        return cls(text=sample.text, tool_calls=sample.tool_calls)


class Content(Frozen):
    """What a reviewer is shown. Written once, never changed: the decision is about exactly this."""

    question: str
    """What was asked."""
    messages: tuple[dict[str, Any], ...] = ()
    """The conversation so far, as ``{"role": ..., "content": ...}``."""
    kind: Kind = "answer"
    """What is to be decided."""
    candidate: Candidate | None = None
    """What was judged; None where the model failed and there is nothing to approve."""
    verdict: dict[str, Any] | None = None
    """``Verdict.model_dump(mode="json")``."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Other answers of the model with their share among its samples, most frequent first."""
    candidate_set: CandidateSet | None = None
    """Answers that contain an acceptable one with a stated probability, where that was calibrated."""
    allowed: tuple[Action, ...] = ACTIONS
    """Decisions that are possible."""
    edits: Edits = "any"
    """What an edit may change."""
    fixed: tuple[int, ...] = ()
    """Places of the candidate's tool calls, counted from 0, that no edit may change: they are not decided about."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything of the caller's: a thread id, a tenant, the probability with which an audit was drawn."""

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

    def why_not(self, mended: Candidate) -> str | None:
        """Why whoever waits cannot carry out this edit, in words; None where it can."""
        ours = () if self.candidate is None else self.candidate.tool_calls
        theirs = mended.tool_calls
        if self.edits == "text" and theirs:
            return f"an edit gives another text, but this one calls {[c.name for c in theirs]}. Reject it instead."
        if self.edits == "arguments" and [call.name for call in ours] != [call.name for call in theirs]:
            return (
                f"an edit changes arguments, but this one calls {[call.name for call in theirs]} in place of "
                f"{[call.name for call in ours]}. Reject it to make another call."
            )
        if self.edits == "arguments":
            for call in theirs:
                fault = json_fault(call.arguments, packed=True)
                if fault is not None:
                    return f"the arguments of {call.name} hold {fault}. Mend them, or reject the call."
        for place in self.fixed:
            if ours[place : place + 1] != theirs[place : place + 1]:
                return (
                    f"the call of {ours[place].name} passes without a decision, so an edit must leave it as it is. "
                    "Reject the others to stop here."
                )
        return None

    def parsed_verdict(self) -> Verdict | None:
        """The verdict as a value, or None where there is none.

        Raises:
            ReviewError: It cannot be read.
        """
        try:
            return None if self.verdict is None else Verdict.from_stored(self.verdict)
        except ValidationError as error:
            raise ReviewError(
                f"the verdict of this item cannot be read ({problem_of(error)}). Upgrade acrc-guardrail to the version "
                "that stored it."
            ) from error


class Decision(Frozen):
    """What a person decided."""

    action: Action
    """approve, edit, reject or respond."""
    text: str | None = None
    """The person's own answer; with "respond" only, and then required."""
    candidate: Candidate | None = None
    """The mended candidate; with "edit" only, and then required."""
    note: str = ""
    """A remark, for the record; not given to the user."""
    reviewer: str = ""
    """Who decided; the store fills it in."""
    at: float = 0.0
    """When, in seconds since 1970 UTC; the store fills it in."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.action == "respond") != bool(self.text and self.text.strip()):
            raise ValueError('text is the reviewer\'s own answer: it goes with action "respond", which needs one')
        if (self.action == "edit") != (self.candidate is not None):
            raise ValueError('candidate is the mended answer: it goes with action "edit", which needs one')
        if self.candidate is not None and not (self.candidate.text.strip() or self.candidate.tool_calls):
            raise ValueError('an edited candidate needs a text or a tool call. To give nothing, use "reject"')
        return self

    def same_as(self, other: Decision) -> bool:
        """Whether both say the same, whenever they were made."""
        return self.model_copy(update={"at": other.at}) == other

    def outcome(self, content: Content) -> Candidate | None:
        """What goes out: the frozen candidate, the mended one, the person's own answer, or None for "reject"."""
        if self.action == "approve":
            return content.candidate
        if self.action == "edit":
            return self.candidate
        return Candidate(text=self.text or "") if self.action == "respond" else None


class Item(Frozen):
    """One item of the queue, as it is now."""

    id: str
    """Ticket: random, so that it cannot be guessed."""
    number: int
    """Place in order of arrival."""
    key: str
    """The caller's key: enqueuing the same key again gives the same item."""
    content: Content
    """What is to be decided."""
    state: State
    """pending, claimed, decided or expired."""
    created: float
    """When it arrived, in seconds since 1970 UTC."""
    deadline: float | None = None
    """After this nobody waits for the decision; None: no limit."""
    holder: str | None = None
    """Who holds it."""
    lease_until: float | None = None
    """Until when. Of a decided or expired item: until when somebody has it to carry it out, or, if that time is over,
    had it and was not done; see `ReviewStore.take_up`."""
    callback: str | None = None
    """URL that is told about the decision."""
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
    """enqueued, claimed, renewed, released, lease_expired, decided, refused, expired, extended, reopened, cancelled,
    taken_up, handed_over, carried_out, not_carried_out, lapsed, put_down, delivered, delivery_failed, not_queued,
    purged, alarm or alarm_acknowledged."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Particulars."""


class Stats(Frozen):
    """Counters."""

    pending: int
    """Waiting, nobody on it (stale leases included)."""
    claimed: int
    """Held by a reviewer right now."""
    decided: int
    """Decided."""
    expired: int
    """Not decided in time."""
    actions: dict[str, int]
    """Decisions by action."""
    oldest: float | None
    """Age of the oldest undecided item, in seconds; None when there is none."""
    undelivered: int
    """Callbacks not delivered yet."""
    dead: int
    """Callbacks given up."""


# -- Contents and decisions as the texts that are stored: what is read back is what was written, or it is said ---------
# A model can write what no database of text holds: half of a surrogate pair becomes U+FFFD, a number that JSON has not
# (NaN) null. Where the candidate holds such a thing it is shown like this; but it is then no longer what was judged, so
# it can be rejected or answered, not approved or edited. In an audit all is allowed: nothing goes out, and a right
# answer must not be labelled wrong for a character. What is nested deeper than a reader goes is refused.

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_LEFT: tuple[Action, ...] = ("reject", "respond")


def frozen(content: Content) -> Content:
    """The content as it will be read from the database.

    Raises:
        UnstorableError: It cannot be written or read back, or its candidate cannot and nothing is left to decide.
    """
    try:
        read = _through(content.model_dump_json())
    except ValueError:
        read = _mended(content)
    if content.kind == "audit" or _plain(read.candidate) == _plain(content.candidate):
        return read
    allowed = tuple(action for action in content.allowed if action in _LEFT)
    if not allowed:
        raise UnstorableError(
            "the candidate holds what cannot be stored (half of a surrogate pair, or a number like NaN), so it can "
            f"only be rejected or answered; but allowed is {', '.join(content.allowed)}."
        )
    return read.model_copy(update={"allowed": allowed})


def writable(decision: Decision) -> Decision:
    """The decision, if what is read back of it is what was decided.

    Raises:
        UnstorableError: It is not.
    """
    try:
        if _plain(Decision.model_validate_json(decision.model_dump_json())) == _plain(decision):
            return decision
    except (ValueError, RecursionError) as error:
        raise UnstorableError(f"this decision cannot be stored: {_first(error)}.") from error
    raise UnstorableError("this decision cannot be stored: a number of it is not finite.")


def _mended(content: Content) -> Content:
    try:
        return _through(json.dumps(_clean(content.model_dump()), ensure_ascii=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnstorableError(f"this content cannot be stored: {_first(error)}.") from error


def _through(text: str) -> Content:
    return Content.model_validate_json(text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, dict):
        return {mended(str(name)): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    """As pydantic writes it, e.g. a date."""
    return _ANYTHING.dump_python(value, mode="json")


def _plain(value: BaseModel | None) -> str:
    """A text that is the same for values that are the same in JSON, and tells NaN from null."""
    return "" if value is None else json.dumps(value.model_dump(), default=_jsonable)


def _first(error: Exception) -> str:
    if "surrogates not allowed" in str(error):
        return "it holds half of a surrogate pair, which is no character"
    if "depth" in str(error) or "recursion" in str(error):
        return "it is nested too deeply"
    if isinstance(error, ValidationError):
        one = error.errors()[0]
        return " ".join(filter(None, (".".join(str(part) for part in one["loc"]), one["msg"])))
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
