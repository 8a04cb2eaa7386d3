"""What a graph's state keeps about a judged message: frozen values, as plain JSON or as one packed string.

Plain JSON is what lies in checkpoints. A graph also shows its state in several streams, where a held-back candidate
must not be readable: there it is packed (`integrations._agents.state`). Packing is not encryption.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage
from pydantic import Field, ValidationError, field_validator

from guardrail.errors import UsageError
from guardrail.files import check_version, problem_of
from guardrail.plain_json import json_fault, sha256_hex, spelled
from guardrail.types import Frozen, ToolCall, canonical_calls
from guardrail.verdict import Verdict

from .decisions import ALL_DECISIONS, Decision, DecisionType

__all__ = [
    "FrozenMessage",
    "GuardState",
    "HeldMessage",
    "ReviewTarget",
    "ToolCallOrder",
    "answered",
    "call_digest",
    "edit_note",
    "from_json",
    "order_for",
    "pack",
    "possible",
    "review_request",
    "same_call",
    "targets_of",
    "to_json",
    "unpack",
]

REQUEST_FORMAT = 1
"""Version of what an interrupt asks; without one it is the first."""
LAYOUT = "acrc-guardrail/1"
"""Name of a note's layout, with its version. It stands before a packed note and in a plain one."""
_NOTE = "the guardrail's note in the state of this thread"
_WAY_OUT = "ask again in a new thread (this one keeps what was held back)"


class FrozenMessage(Frozen):
    """A model's message, frozen."""

    text: str
    """Its text."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Its tool calls in LangChain's form: name, args, id, type."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Its ``response_metadata``."""
    usage: dict[str, int] | None = None
    """Its ``usage_metadata``."""

    @classmethod
    def of(cls, message: AIMessage) -> FrozenMessage:
        """A message as it will be released."""
        usage = message.usage_metadata
        return cls(
            text=str(message.text),
            tool_calls=tuple(dict(call) for call in message.tool_calls),
            metadata=json.loads(json.dumps(message.response_metadata, default=repr)),
            usage=None if usage is None else {k: v for k, v in usage.items() if isinstance(v, int)},
        )

    def to_message(self) -> AIMessage:
        """The message again."""
        calls: Any = [dict(call) for call in self.tool_calls]
        usage: Any = self.usage
        return AIMessage(
            content=self.text, tool_calls=calls, response_metadata=dict(self.metadata), usage_metadata=usage
        )


class ReviewTarget(Frozen):
    """One thing in a message that a person may decide about."""

    name: str
    """Name of the tool, or "answer"."""
    call_id: str | None
    """Id of the tool call; None for an answer."""
    args: dict[str, Any]
    """Arguments of the call; for an answer {"text": ...}."""
    is_answer: bool = False
    """Whether the call is the structured answer, which no tool runs."""
    verdict: Verdict
    """What its artifact says about the message it is part of."""


class HeldMessage(Frozen):
    """A message that was held back, and what each artifact said about it."""

    question: str
    """Text of the last human message."""
    message: FrozenMessage
    """The candidate, to be released as it is when a person approves."""
    judged: tuple[ReviewTarget, ...]
    """What a person decides about, in the message's order: the answer, or every gated call. At least one."""
    verdict: Verdict
    """The verdict that held the message back."""

    @field_validator("question")
    @classmethod
    def _shown(cls, question: str) -> str:
        return spelled(question)  # it is shown, not given out

    @property
    def empty(self) -> bool:
        """Whether there is nothing that could be approved or edited."""
        return not (self.message.text or self.message.tool_calls)

    @property
    def kind(self) -> Literal["answer", "tool_call"]:
        """Whether it is about an answer or about tool calls."""
        return "answer" if self.judged[0].call_id is None else "tool_call"


class ToolCallOrder(Frozen):
    """What the tool node does with one call."""

    digest: str
    """Of the call as it was judged: another call under the same id is not run."""
    decision: Literal["accepted", "exempt", "not_gated", "approve", "edit", "reject", "respond"]
    """The gate's or the person's."""
    args: dict[str, Any] | None = None
    """Arguments to run it with instead, after an edit."""
    message: str | None = None
    """What the model reads instead of a result, after a rejection or a response."""


class GuardState(Frozen):
    """What the state holds about the agent's last message.

    A node that writes the note anew keeps only the fields this version knows.
    """

    phase: Literal["held", "released", "done"]
    """Waiting for a person; decided, and to be given out by the model node; given out."""
    placeholder: str | None = None
    """Id of the message that stands in the conversation while held."""
    asked: str | None = None
    """Id of the last human message when it was decided."""
    held: HeldMessage | None = None
    """The message and its verdicts, while held."""
    message: FrozenMessage | None = None
    """What the model node gives out, while released."""
    orders: dict[str, ToolCallOrder] = Field(default_factory=dict)
    """Tool calls that were decided about, by id. A gated call that is not among them is not run."""


def targets_of(
    message: AIMessage, verdicts: Mapping[str, Verdict], answers: Collection[str], whole: Verdict
) -> tuple[ReviewTarget, ...]:
    """What a person decides about: the judged calls of a message and a structured answer beside them, or the answer.

    Args:
        message: The candidate.
        verdicts: What is said about calls, by tool name; of others a person is not asked.
        answers: Tools whose call is the answer.
        whole: What is said about the message.
    """
    found = tuple(
        ReviewTarget(
            name=call["name"],
            call_id=str(call["id"]),
            args=dict(call["args"]),
            is_answer=call["name"] in answers,
            verdict=verdicts[call["name"]],
        )
        for call in message.tool_calls
        if call["name"] in verdicts
    )
    if not all(one.is_answer for one in found):
        return found
    text = json.dumps(found[0].args, ensure_ascii=False) if len(message.tool_calls) == len(found) == 1 else message.text
    return (ReviewTarget(name="answer", call_id=None, args={"text": str(text)}, is_answer=bool(found), verdict=whole),)


def call_digest(call: Mapping[str, Any]) -> str:
    """Sixteen hex digits of a call's name and arguments; empty, which equals no other, if they are not plain JSON."""
    if json_fault([call["name"], call["args"]]) is not None:
        return ""
    text = canonical_calls([ToolCall(name=str(call["name"]), arguments=dict(call["args"]))])
    return sha256_hex(text, 16)


def same_call(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two calls have the same name and arguments; False where either is empty or not plain JSON."""
    return bool(a and b and call_digest(a)) and call_digest(a) == call_digest(b)


def to_json(note: GuardState) -> dict[str, Any]:
    """A note as plain JSON: objects, lists, texts, numbers, true, false and null."""
    return {"layout": LAYOUT, **note.model_dump(mode="json")}


def from_json(value: object) -> GuardState | None:
    """The note of its plain JSON; None where it is not a note (then nothing was judged).

    Raises:
        UsageError: A note of another layout, or a damaged one. To ignore it would lose what waits for a person.
    """
    layout = value.get("layout") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not _is_layout(layout):
        return None
    check_version(layout, LAYOUT, _NOTE, _WAY_OUT)
    return _read({name: part for name, part in value.items() if name != "layout"})


def pack(note: GuardState) -> str:
    """A note as one string."""
    # In ASCII, so that metadata with broken characters, which a server may send, do not stop anything.
    text = json.dumps(note.model_dump(mode="json"), separators=(",", ":"))
    return f"{LAYOUT}:{base64.b64encode(zlib.compress(text.encode())).decode()}"


def unpack(packed: object) -> GuardState | None:
    """The note of a packed string; None where it is not a note (then nothing was judged).

    Raises:
        UsageError: As `from_json`.
    """
    if not isinstance(packed, str) or not _is_layout(packed):
        return None
    layout, _, content = packed.partition(":")
    check_version(layout, LAYOUT, _NOTE, _WAY_OUT)
    try:
        return _read(json.loads(zlib.decompress(base64.b64decode(content))))
    except (ValueError, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_NOTE} is damaged ({type(error).__name__}), so nothing is released: {_WAY_OUT}.") from error


def _is_layout(text: object) -> bool:
    return isinstance(text, str) and text.startswith(LAYOUT.rstrip("0123456789"))


def _read(content: Mapping[str, Any]) -> GuardState:
    try:
        return GuardState.from_stored(content)
    except ValidationError as error:
        raise UsageError(f"{_NOTE} is damaged ({problem_of(error)}), so nothing is released: {_WAY_OUT}.") from error


# -- What a person is asked about it, and what becomes of a call after the decision ------------------------------------

EDITED = "Note: a person changed this call before it ran; it ran with {args}. Do not repeat the original call."
"""Text put before the result of a tool call that a reviewer edited."""


def review_request(held: HeldMessage, allowed: Sequence[DecisionType] = ALL_DECISIONS) -> dict[str, Any]:
    """What the person is shown: the value of the interrupt, plain JSON.

    ``action_requests`` and ``review_configs`` are those of ``HumanInTheLoopMiddleware``, so its clients can read it;
    question, candidate, verdict and alternatives come on top. It shows what was held back: it is for the reviewer, not
    for the end user.
    """
    verdict = held.verdict
    return {
        "type": "guardrail_review",
        "format": REQUEST_FORMAT,
        "kind": held.kind,
        "question": held.question,
        "candidate": {
            "text": held.message.text,
            "tool_calls": [{"name": c["name"], "args": c["args"]} for c in held.message.tool_calls],
        },
        "verdict": verdict.without_answers(),
        "alternatives": [{"text": text, "share": share} for text, share in verdict.alternatives],
        "meanings": [meaning.model_dump(mode="json") for meaning in verdict.meanings],
        "action_requests": [
            {"name": one.name, "args": one.args, "description": detail}
            for one in held.judged
            for detail in [verdict.detail if one.verdict.accepted else one.verdict.detail]
        ],
        "review_configs": [
            {"action_name": one.name, "allowed_decisions": list(possible(held, allowed))} for one in held.judged
        ],
    }


def possible(held: HeldMessage, allowed: Sequence[DecisionType]) -> tuple[DecisionType, ...]:
    """Decisions that make sense: where the model gave nothing, there is nothing to approve or edit."""
    if not held.empty:
        return tuple(allowed)
    return tuple(one for one in allowed if one in ("reject", "respond")) or ("reject",)


def order_for(call: Mapping[str, Any], decision: Decision) -> ToolCallOrder:
    """What becomes of a call after a person's decision."""
    digest = call_digest(call)
    if decision["type"] == "edit":
        edited = {"name": call["name"], "args": decision["edited_action"]["args"]}
        if same_call(call, edited):  # only the text beside it, or another call of the message, was changed
            return ToolCallOrder(digest=digest, decision="approve")
        return ToolCallOrder(digest=digest, decision="edit", args=edited["args"])
    if decision["type"] == "approve":
        return ToolCallOrder(digest=digest, decision="approve")
    said = decision.get("message")
    if decision["type"] == "respond":
        return ToolCallOrder(digest=digest, decision="respond", message=said)
    if decision["type"] == "lapse":
        return ToolCallOrder(
            digest=digest, decision="reject", message=f"This call of {call['name']} was not run: {said}"
        )
    reason = f" The reason: {said}" if said else ""
    said = (
        f"A person rejected this call of {call['name']}; it was not run.{reason} Do not call it again unless the "
        "user asks for it."
    )
    return ToolCallOrder(digest=digest, decision="reject", message=said)


def answered(held: HeldMessage, decision: Decision, refusal: Callable[[Verdict], str]) -> FrozenMessage:
    """A held-back answer as it goes out after a person's decision.

    Args:
        held: The answer.
        decision: About it. An edit of a structured answer is JSON; other text goes out as text.
        refusal: Text of a rejected answer, where the person gives none.
    """
    if decision["type"] == "approve":
        return held.message
    if decision["type"] == "edit":
        text = decision["edited_action"]["args"]["text"]
        calls = _structured_anew(held.message, text) if held.judged[0].is_answer else ()
        return held.message.model_copy(update={"text": "" if calls else text, "tool_calls": calls})
    text = decision.get("message") or refusal(held.verdict)
    return held.message.model_copy(update={"text": str(text), "tool_calls": ()})


def _structured_anew(message: FrozenMessage, text: str) -> tuple[dict[str, Any], ...]:
    """The structured answer with the arguments that a person wrote as JSON; none where it is other text."""
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    plain = isinstance(args, dict) and len(message.tool_calls) == 1 and json_fault(args, packed=True) is None
    return ({**message.tool_calls[0], "args": args},) if plain else ()


def edit_note(args: Mapping[str, Any] | None) -> str:
    """What the model reads before the result of a call that a person edited."""
    return EDITED.format(args=", ".join(f"{name}={value!r}" for name, value in (args or {}).items()))
