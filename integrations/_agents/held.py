"""The one note about a judged message, and the held-back message in it; as one packed string for a graph's state.

A graph shows its state in several streams, where a held-back candidate must not be readable. Packing is not encryption.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field, ValidationError

from guardrail.bindings import schemas_of
from guardrail.errors import UsageError
from guardrail.files import check_version, problem_of
from guardrail.plain_json import json_fault, spelled
from guardrail.prompting import plain_turns, question_text
from guardrail.types import Bindings, Frozen
from guardrail.verdict import Verdict

from .calls import call_subject, conversation_digest

HOLDING = "A person is checking this before it goes out."
"""Text that stands in for a held-back message until it is decided."""
LONGEST_TEXT, LONGEST_TALK = 20_000, 200_000
"""Characters of a text that a reviewer sees of a conversation, and of all of it."""
LAYOUT = "acrc-guardrail/1"
"""Name of a note's layout, with its version; it stands before a packed note."""
_NOTE = "the guardrail's note in the state of this thread"
_WAY_OUT = "ask again in a new thread (this one keeps what was held back)"


class Conversation(Frozen):
    """The conversation before a held-back message, as a reviewer sees it."""

    question: str = ""
    """Text of the last human message."""
    messages: tuple[dict[str, Any], ...] = ()
    """The turns and results of tools up to the message, without the system message; see `plain_turns`. Longer texts are
    cut at `LONGEST_TEXT`, and the oldest messages left out above `LONGEST_TALK`; both are marked."""
    digest: str = ""
    """Digest of all of it, uncut: the same words are another question in another conversation."""
    schemas: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """JSON schemas of the arguments of the tools that the agent offers, by name, as far as they are known."""

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], bindings: Bindings | None = None) -> Conversation:
        """The conversation before a message, and the tools that the agent offers."""
        turns = [_cut(turn) for turn in plain_turns([message for message in messages if message.type != "system"])]
        room = LONGEST_TALK
        shown = 0
        for turn in reversed(turns):
            room -= len(json.dumps(turn))
            if room >= 0 or shown == 0:
                shown += 1
        older = len(turns) - shown
        mark = [{"role": "", "content": f"[{older} earlier messages are left out]"}] if older else []
        # Stored and shown, never sent to a model, so the question may be rewritten to fit UTF-8.
        return cls(
            question=spelled(question_text(messages)),
            messages=(*mark, *turns[older:]),
            digest=conversation_digest(messages),
            schemas=schemas_of(bindings),
        )


def _cut(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn that any checkpoint can store and any page can show."""
    calls = [
        {"name": spelled(call["name"]), "arguments": _cut_arguments(call["arguments"])}
        for call in turn.get("tool_calls", ())
    ]
    return {**turn, "content": _cut_text(turn["content"]), **({"tool_calls": calls} if calls else {})}


def _cut_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if json_fault(arguments, packed=True) is not None:
        return {"not plain JSON": _cut_text(repr(arguments))}
    text = json.dumps(arguments, ensure_ascii=False)
    return dict(arguments) if len(text) <= LONGEST_TEXT else {"cut": _cut_text(text)}


def _cut_text(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    return spelled(text if more <= 0 else f"{text[:LONGEST_TEXT]}\n[{more} more characters are left out]")


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
    """True if the call is the structured answer, which no tool runs."""


class HeldMessage(Frozen):
    """A message that was held back, with the verdict on it."""

    conversation: Conversation
    """The conversation before the message."""
    message: FrozenMessage
    """The candidate, released unchanged when a person approves."""
    judged: tuple[ReviewTarget, ...]
    """The targets of the decision, in the message's order: the answer, or every gated call. At least one."""
    verdict: Verdict
    """The verdict that held the message back."""

    @classmethod
    def of(
        cls,
        message: AIMessage,
        verdict: Verdict,
        *,
        conversation: Conversation,
        gated: Collection[str] = (),
        answers: Collection[str] = (),
    ) -> HeldMessage:
        """Freeze a message that its gates hold back.

        Args:
            message: The candidate.
            verdict: The verdict on the whole message.
            conversation: What the message answers.
            gated: Names of the tools whose calls a person decides about.
            answers: Tools whose call is the answer.
        """
        judged = tuple(
            ReviewTarget(
                name=call["name"],
                call_id=str(call["id"]),
                args=dict(call["args"]),
                is_answer=call["name"] in answers,
            )
            for call in message.tool_calls
            if call["name"] in gated
        )
        if all(call.is_answer for call in judged):  # a person decides about the text, or about the structured answer
            alone = len(message.tool_calls) == len(judged) == 1
            text = json.dumps(judged[0].args, ensure_ascii=False) if alone else str(message.text)
            judged = (ReviewTarget(name="answer", call_id=None, args={"text": text}, is_answer=bool(judged)),)
        called = {target.name for target in judged if not target.is_answer}
        schemas = {name: schema for name, schema in conversation.schemas.items() if name in called}
        conversation = conversation.model_copy(update={"schemas": schemas})
        return cls(conversation=conversation, message=FrozenMessage.of(message), judged=judged, verdict=verdict)

    @property
    def empty(self) -> bool:
        """True if nothing can be approved or edited: no text and no calls, or a call of a tool that does not exist."""
        not_offered = self.kind == "answer" and bool(self.message.tool_calls) and self.verdict.candidate is None
        return not_offered or not (self.message.text or self.message.tool_calls)

    @property
    def kind(self) -> Literal["answer", "tool_call"]:
        """The kind of thing that a person decides about."""
        return "answer" if self.judged[0].call_id is None else "tool_call"


Ordered = Literal["accepted", "exempt", "given", "held", "approve", "edit", "reject", "respond", "answer"]
"""The fate of a call, by the gate or a person; "given" by a person or another model on the abstention path."""


class ToolCallOrder(Frozen):
    """Order to the runner of tools, about one call."""

    digest: str
    """Digest of the call as it was judged: another call under the same id is not run."""
    decision: Ordered
    """Its fate."""
    args: dict[str, Any] | None = None
    """Arguments that replace the call's, after an edit."""
    message: str | None = None
    """Text that the model reads instead of a result, after a rejection or a response."""

    @classmethod
    def of(cls, call: Mapping[str, Any], decision: Ordered, **more: Any) -> ToolCallOrder:
        """The order about a judged call."""
        return cls(digest=call_subject(call["name"], call["args"]), decision=decision, **more)


class MessageNote(Frozen):
    """Everything known about a judged message, for as long as a person may take to decide.

    A graph keeps the note about its last message in its state, packed. Frameworks without a state of their own keep
    one for each call in a `VerdictStore`. A held message waits (no ``decisions``), or is decided and goes out next:
    `decisions.released` makes the message and the orders of both. Afterwards the ``orders`` are left.
    """

    held: HeldMessage | None = None
    """The message that waits for a person, or was decided."""
    decisions: tuple[dict[str, Any], ...] = ()
    """A person's decision about each target of ``held``."""
    orders: dict[str, ToolCallOrder] = Field(default_factory=dict)
    """Orders about tool calls, by id. A gated call without an order is not run."""
    placeholder: str | None = None
    """In a graph: id of the message that stands in the conversation while this one is held."""
    asked: str | None = None
    """In a graph: id of the last human message when it was decided."""
    verdict: Verdict | None = None
    """In a store: the verdict on an answer that went out, or on a call that a framework's own approvals ask about."""
    ends: bool = True
    """In a store: whether a person's text can end the turn in place of the call."""
    given: bool = False
    """In a store: whether an answer went out as one, or goes out next: the call that stands for it has run."""

    @property
    def decision(self) -> dict[str, Any] | None:
        """In a store: a person's decision about the call or answer; None without one."""
        return self.decisions[0] if self.decisions else None


def held_message(held: HeldMessage) -> AIMessage:
    """Placeholder in the conversation while a person decides: no answer, no calls, the verdict in the metadata."""
    metadata = {**held.message.metadata, "guardrail_held": True}
    return AIMessage(content=HOLDING, response_metadata=metadata, id=f"guardrail-held-{uuid4()}")


def pack(note: MessageNote) -> str:
    """A note as one string."""
    # ASCII: a server may send metadata with half of a surrogate pair, which UTF-8 refuses.
    text = json.dumps(note.model_dump(mode="json"), separators=(",", ":"))
    return f"{LAYOUT}:{base64.b64encode(zlib.compress(text.encode())).decode()}"


def unpack(packed: object) -> MessageNote | None:
    """Read a note; None for any other value, which means that nothing was judged.

    Raises:
        UsageError: A note of another layout, or a damaged one. To ignore it would lose a message that waits.
    """
    if not isinstance(packed, str) or not packed.startswith(LAYOUT.rstrip("0123456789")):
        return None
    layout, _, content = packed.partition(":")
    check_version(layout, LAYOUT, _NOTE, _WAY_OUT)
    try:
        return MessageNote.from_stored(json.loads(zlib.decompress(base64.b64decode(content))))
    except (ValueError, zlib.error) as error:
        problem = problem_of(error) if isinstance(error, ValidationError) else type(error).__name__
        raise UsageError(f"{_NOTE} is damaged ({problem}), so nothing is released: {_WAY_OUT}.") from error
