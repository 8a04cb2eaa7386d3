"""Prompt wrapping: how a question becomes messages, the same way at calibration and at run time.

The wrapping is part of the artifact. The guard never rewrites what it is given; it checks that the messages it
receives look like the wrapping says and refuses them otherwise, naming both sides.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import Field, field_validator, model_validator

from .errors import ArtifactMismatchError, UsageError
from .plain_json import BLANK, INVISIBLE
from .types import Bindings, Frozen, ToolCall, canonical_calls

if TYPE_CHECKING:
    from langchain_core.prompts import ChatPromptTemplate

__all__ = [
    "ONE_QUESTION",
    "PromptWrapping",
    "conversation_text",
    "copies_of",
    "has_blank",
    "letters_of",
    "normal_form",
    "plain_turns",
    "prompt_content",
    "question_text",
    "role_of",
    "turns_of",
]

ONE_QUESTION = "human"
"""Turns of a prompt that is one question; see `turns_of`."""
_ROLES = {"user": "human", "assistant": "ai", "model": "ai", "developer": "system", "function": "tool"}
_NOT_CONTENT = frozenset({"id", "index", "cache_control", "cachePoint"})
"""Keys of a content block that say nothing: LangChain's constructors make a new id each time."""
_MEDIA = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
"""Types of a model's own blocks that make another conversation; its thoughts and signatures differ each time."""
_CLASSES = (
    (SystemMessage, "system"),
    (HumanMessage, "human"),
    (AIMessage, "ai"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
)


def role_of(message: BaseMessage) -> str:
    """The speaker: "system", "human", "ai" or "tool" for each class of message; another role by its own name."""
    if isinstance(message, ChatMessage):
        name = message.role.strip().casefold()
        return _ROLES.get(name, name)
    return next((role for kind, role in _CLASSES if isinstance(message, kind)), message.type)


def _not_text(message: BaseMessage) -> list[str]:
    """Types of a message's content other than text and cache points, each once: "image_url", "document"."""
    blocks = message.content if isinstance(message.content, list) else []
    others = (block for block in blocks if isinstance(block, dict) and block.keys() - {"cachePoint"})
    kinds = {str(block.get("type") or next(iter(block))) for block in others if not _is_text(block)}
    return sorted(kinds)


def _is_text(block: Mapping[str, Any]) -> bool:
    """Whether ``message.text`` has all the content of a block."""
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def turns_of(messages: Sequence[BaseMessage], bindings: Bindings | None = None) -> str:
    """The speakers of a prompt, in order, without the system message: "human" or "human,ai,human".

    A human message that holds more than text names the types: "human+image_url".

    Args:
        messages: The prompt.
        bindings: Bindings of the plan. If it has tools, calls of tools and their results do not count: they are steps
            to the answer of one question, and their number varies.
    """
    tools = bindings is not None and bool(bindings.tools)
    listed = []
    for message in messages:
        role = role_of(message)
        step = role == "tool" or (role == "ai" and bool(getattr(message, "tool_calls", ())))
        if role != "system" and not (tools and step):
            listed.append("+".join([role, *(_not_text(message) if role == "human" else ())]))
    return ",".join(listed)


def question_text(messages: Sequence[BaseMessage]) -> str:
    """The question for judges: text of the last human message, or of the last message if no human speaks."""
    human = [message for message in messages if role_of(message) == "human"]
    chosen = human[-1] if human else messages[-1]
    return str(chosen.text)


def copies_of(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Deep copies, for functions of the user's: what these change reaches neither the model nor the conversation.

    The ``artifact`` of a tool's message is shared: no model reads it, and it may be a large table or a connection.
    """
    artifacts = [getattr(message, "artifact", None) for message in messages]
    return copy.deepcopy(list(messages), {id(artifact): artifact for artifact in artifacts})


def has_blank(text: str) -> bool:
    """Whether a text has a `BLANK`, which may be shown as a space or as nothing."""
    return BLANK.search(INVISIBLE.sub("", text).replace("\r\n", "\n")) is not None


def letters_of(text: str) -> str:
    """A text without what nobody sees, blanks and white space: equal for texts that may look the same."""
    return "".join(BLANK.sub("", unicodedata.normalize("NFC", INVISIBLE.sub("", text))).split())


def normal_form(text: str) -> str:
    """A text without what nobody sees, for comparison only: texts that look the same have the same form.

    Leaves out `INVISIBLE` characters and white space at the end of a line. Further white space within a line counts as
    one space, at its beginning as so many columns, because code has a meaning there; empty lines count as one. A text
    with a `BLANK` is compared by its `letters_of`.
    """
    if has_blank(text):
        return letters_of(text)
    seen = unicodedata.normalize("NFC", INVISIBLE.sub("", text)).replace("\r\n", "\n")
    lines = [line.rstrip() for line in seen.replace("\u00a0", " ").replace("\u3000", "  ").split("\n")]
    indents = (line[: len(line) - len(line.lstrip())].expandtabs() for line in lines)
    shown = "\n".join(indent + " ".join(line.split()) for indent, line in zip(indents, lines, strict=True))
    return re.sub(r"\n{3,}", "\n\n", shown).strip()


def prompt_content(
    messages: Sequence[BaseMessage],
    question: str | None = None,
    *,
    hide_system: bool = False,
    form: Callable[[str], str] = normal_form,
) -> Any:
    """Everything in a prompt that makes another question, for comparison by ``repr``.

    Ids, response metadata, cache settings and the name of a speaker, which no template shows, do not count, nor
    whether a text stands in a block.

    Args:
        messages: The prompt.
        question: Stands for the text of the last human message.
        hide_system: Leave the text of the system message out.
        form: The form in which texts are compared.
    """
    last = max((place for place, message in enumerate(messages) if role_of(message) == "human"), default=-1)
    content = []
    for place, message in enumerate(messages):
        role = role_of(message)
        text = question if question is not None and place == last else str(message.text)
        # Only the model calls tools: a call on another message reaches no model, so that it makes no other question.
        made = getattr(message, "tool_calls", ()) if role == "ai" else ()
        calls = [(call["name"], _seen(call["args"], form)) for call in made]
        blocks = message.content if isinstance(message.content, list) else []
        others = [
            {name: value for name, value in block.items() if name not in _NOT_CONTENT}
            for block in blocks
            if isinstance(block, dict) and not _is_text(block) and (role != "ai" or block.get("type") in _MEDIA)
        ]
        text = "" if hide_system and role == "system" else form(text)
        content.append((role, text, calls, [_seen(block, form) for block in others if block]))
    return content


def _seen(value: Any, form: Callable[[str], str]) -> Any:
    """A JSON value for comparison by ``repr``: texts in one form, members of an object in one order."""
    if isinstance(value, str):
        return form(value)
    if isinstance(value, Mapping):
        return sorted((form(str(name)), repr(_seen(member, form))) for name, member in value.items())
    return [_seen(member, form) for member in value] if isinstance(value, (list, tuple)) else value


def plain_turns(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """A conversation for people, as ``{"role": ..., "content": ..., "tool_calls": ...}``, the last if any.

    Pictures and documents are named in brackets: ``[image_url]``.
    """
    return [_plain_turn(message) for message in messages]


def _plain_turn(message: BaseMessage) -> dict[str, Any]:
    others = [f"[{kind}]" for kind in _not_text(message) if message.type != "ai"]
    turn = {"role": message.type, "content": "\n".join(filter(None, (str(message.text), *others)))}
    calls = [{"name": call["name"], "arguments": call["args"]} for call in getattr(message, "tool_calls", ())]
    return {**turn, "tool_calls": calls} if calls else turn


def conversation_text(messages: Sequence[BaseMessage]) -> str:
    """A conversation as the text of a question: one line a message; `question_text` for a single message."""
    if len(messages) == 1:
        return question_text(messages)
    return "\n".join(_spoken(message) for message in messages)


def _spoken(message: BaseMessage) -> str:
    calls = getattr(message, "tool_calls", [])
    calls_text = canonical_calls(ToolCall(name=call["name"], arguments=call["args"]) for call in calls) if calls else ""
    return f"{message.type}: {' '.join(part for part in (str(message.text), calls_text) if part)}"


class PromptWrapping(Frozen):
    """Fixed text around a question: a system message and a template for the human message."""

    system: str | None = None
    """System message, or None for no system message. May hold slots."""
    template: str = "{question}"
    """Human message; ``{question}`` stands for the question (with its options, if any). May hold slots; any other text
    in braces is literal."""
    option_template: str = Field(default="{label}) {text}")
    """One line for each option of a multiple-choice question, appended to the question."""
    slots: tuple[str, ...] = ()
    """Names of what else changes from call to call, e.g. ("context",) for ``{context}`` in system message or template.
    Their place is bound, their content is not, and judges do not read it as part of the question."""
    question_slots: tuple[str, ...] = ()
    """Those of `slots` whose content makes another question, as a document or a user does; a clock does not. A prompt
    with slots must say it, () for none. A question that is asked again gets its first verdict, whatever the other slots
    hold; if a clock counted, each attempt would draw again, and select."""
    other_turns: Literal["refuse", "mark"] = "refuse"
    """The answer of a guard to a conversation whose turns were not calibrated, such as a second question to an artifact
    of single ones: "refuse" raises `TurnsMismatchError`; "mark" gives out what the gate accepts, with a verdict that is
    not accepted (`Reason.OTHER_TURNS`) and names the turns (``verdict.turns``): the promise does not cover it."""

    @field_validator("template")
    @classmethod
    def _one_question(cls, template: str) -> str:
        if template.count("{question}") != 1:
            raise ValueError(f"template must contain {{question}} exactly once, got {template!r}")
        return template

    @model_validator(mode="after")
    def _readable_slots(self) -> Self:
        for name in self.slots:
            if not name.isidentifier() or name == "question" or self.slots.count(name) > 1:
                raise ValueError(f"a slot must have a name of its own, letters and digits, got {self.slots!r}")
            if (self.system or "").count(f"{{{name}}}") + self.template.count(f"{{{name}}}") != 1:
                raise ValueError(f"the slot {{{name}}} must be in the system message or the template, exactly once")
        for text, names in ((self.system or "", self.slots), (self.template, ("question", *self.slots))):
            if "" in _parts(text, names)[2:-2:2]:
                raise ValueError(f"there must be text between two slots, to tell where one ends, got {text!r}")
        return self

    @model_validator(mode="after")
    def _declared_slots(self) -> Self:
        if self.slots and "question_slots" not in self.model_fields_set:
            listed = ", ".join(map(repr, self.slots))
            raise ValueError(
                f"the prompt has the slots {listed}: say which of them make another question, as a document or a user "
                f"does and a clock does not. All of them: question_slots=[{listed}]; none: question_slots=[]. A "
                "question that is asked again gets its first verdict, whatever the slots hold that are left out"
            )
        if unknown := sorted(set(self.question_slots) - set(self.slots)):
            raise ValueError(f"question_slots names {unknown}, but the prompt has the slots {sorted(self.slots)}")
        return self

    def wraps_like(self, other: PromptWrapping) -> bool:
        """Whether both make the same messages: what is declared about slots and turns may differ."""
        declared = {"question_slots", "other_turns"}
        return self.model_dump(exclude=declared) == other.model_dump(exclude=declared)

    def render(
        self, question: str, options: Mapping[str, str] | None = None, slots: Mapping[str, str] | None = None
    ) -> str:
        """Text of the human message for a question, its options (label to text) and its slots (name to text)."""
        lines = [question]
        for label, text in (options or {}).items():
            lines.append(self.option_template.replace("{label}", label).replace("{text}", text))
        return _filled(self.template, {**self._all(slots), "question": "\n".join(lines)})

    def messages(
        self, question: str, options: Mapping[str, str] | None = None, slots: Mapping[str, str] | None = None
    ) -> list[BaseMessage]:
        """Messages for a question: the system message, if any, and the rendered human message.

        Raises:
            UsageError: A slot without a text, or a text for what is not a slot.
        """
        human = HumanMessage(self.render(question, options, slots))
        return [human] if self.system is None else [SystemMessage(_filled(self.system, self._all(slots))), human]

    def to_prompt(self) -> ChatPromptTemplate:
        """The wrapping as a LangChain prompt of the variable ``question`` and the slots: ``guard.prompt | guard``."""

        def escaped(text: str, *names: str) -> str:
            parts = [part.replace("{", "{{").replace("}", "}}") for part in _parts(text, names)]
            return "".join(f"{{{part}}}" if place % 2 else part for place, part in enumerate(parts))

        human = ("human", escaped(self.template, "question", *self.slots))
        system = [] if self.system is None else [("system", escaped(self.system, *self.slots))]
        from langchain_core.prompts import ChatPromptTemplate  # slow to import, and seldom needed

        return ChatPromptTemplate.from_messages([*system, human])

    def check(self, messages: Sequence[BaseMessage], options: Sequence[str] | None = None) -> None:
        """Refuse messages that are not wrapped as at calibration.

        Args:
            messages: What the guard received.
            options: Labels whose lines the question must end with, for artifacts that read options.

        Raises:
            ArtifactMismatchError: The system message differs or is not the first, the last human message does not fit
                the template, or it has no line for each option.
            UsageError: No messages.
        """
        if not messages:
            raise UsageError("there are no messages to answer. Give a question: a text, or at least one message.")
        systems = [_whole_text(message) for message in messages if role_of(message) == "system"]
        expected = [] if self.system is None else [self.system]
        fits = len(systems) == len(expected) and (
            self.system is None
            or (role_of(messages[0]) == "system" and _values(self.system, self.slots, systems[0]) is not None)
        )
        if not fits:
            late = bool(systems) and role_of(messages[0]) != "system"
            after = " after another message" if late else ""
            where = (
                "An extra message of role system is not in the calibrated prompt."
                if len(systems) > len(expected)
                else "The system message is missing."
                if not systems
                else "The system message is not the first message."
                if late
                else "The system message differs from the calibrated one."
            )
            raise ArtifactMismatchError(
                f"system message differs from calibration: calibrated with {expected!r}, received {systems!r}{after}.",
                "Use `guard.prompt | guard`, or calibrate again with the prompt you want.",
                public=where,
            )
        text = question_text(messages)
        values = _values(self.template, ("question", *self.slots), text)
        if values is None:
            raise ArtifactMismatchError(
                f"the human message does not fit the calibrated template {self.template!r}: received {text[:200]!r}.",
                "Use `guard.prompt | guard`, or calibrate again with the prompt you want.",
                public="The text around the question differs from the calibrated one.",
            )
        if options is not None and not self._has_lines_of(options, values["question"]):
            example = self.option_template.replace("{label}", options[0]).replace("{text}", "...")
            raise ArtifactMismatchError(
                f"this artifact was calibrated for questions with the options {tuple(options)}, one line each (like "
                f"{example!r}) after the question; received {text[:200]!r}.",
                "Make the messages with `guard.artifact.prompt.messages(question, {label: text, ...})`, or use an "
                "artifact for open questions.",
                public="The question does not end with one line for each calibrated option.",
            )

    def question_of(self, messages: Sequence[BaseMessage]) -> str:
        """The question for judges: the last human message, or its text for ``{question}`` if the prompt has slots."""
        text = question_text(messages)
        values = _values(self.template, ("question", *self.slots), text) if self.slots else None
        return text if values is None else values["question"]

    def slots_of(self, messages: Sequence[BaseMessage]) -> dict[str, str]:
        """The texts of the slots in messages that `check` admits, by name."""
        texts: dict[str, str] = {}
        if self.system is not None and messages:
            texts |= _values(self.system, self.slots, _whole_text(messages[0])) or {}
        texts |= _values(self.template, ("question", *self.slots), question_text(messages)) or {}
        return {name: texts[name] for name in self.slots if name in texts}

    def _all(self, slots: Mapping[str, str] | None) -> Mapping[str, str]:
        """The text of each slot."""
        values = slots or {}
        if set(values) != set(self.slots):
            raise UsageError(
                f"the prompt has the slots {self.slots}, got texts for {tuple(values)}. Give each slot one text: "
                "prompt.messages(question, slots={name: text})."
            )
        return values

    def _has_lines_of(self, options: Sequence[str], text: str) -> bool:
        """Whether the text is a question followed by one line for each option, in order, as `render` writes them."""
        end = len(text)
        for label in reversed(options):
            before, _, after = self.option_template.replace("{label}", label).partition("{text}")
            mark = f"\n{before}" if before.strip() else after
            place = text.rfind(mark, 0, end)
            own_text = text[place + len(mark) : end] if before.strip() else text[:place].rpartition("\n")[2]
            if place < 0 or not own_text.strip():
                return False
            end = place
        return bool(text[:end].strip())


def _whole_text(message: BaseMessage) -> str:
    """A message's text, or all of its content if that is more than text."""
    return repr(message.content) if _not_text(message) else str(message.text)


def _parts(template: str, names: Collection[str]) -> list[str]:
    """Literal texts (even places) and the names of slots (odd places) of a template."""
    return re.split(r"\{(" + "|".join(map(re.escape, names)) + r")\}", template) if names else [template]


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """A template with the texts of its slots, in one pass: a text may look like a slot."""
    return "".join(texts[part] if place % 2 else part for place, part in enumerate(_parts(template, texts)))


def _values(template: str, names: Collection[str], text: str) -> dict[str, str] | None:
    """The text of each slot of a template, found in linear time; None if the text does not fit the template.

    Raises:
        ArtifactMismatchError: The text fits in several ways, so that a slot's content could pose as another's.
    """
    (first, *parts), last = _parts(template, names), ""
    if parts:
        *parts, last = parts
    elif text != first:
        return None
    inner = text[len(first) : len(text) - len(last)]
    if first + inner + last != text:
        return None
    ends, literals = [0], parts[1::2]
    for literal in literals:
        place = inner.find(literal, ends[-1])
        if place < 0:
            return None
        ends += [place, place + len(literal)]
    end = len(inner)
    for place, literal in zip(reversed(ends[1::2]), reversed(literals), strict=True):
        end = inner.rfind(literal, 0, end)
        if end != place:
            raise ArtifactMismatchError(
                f"the text {literal!r}, which separates two slots of the calibrated template, also occurs within a "
                f"slot, so it is not clear where one ends: received {text[:200]!r}.",
                "Remove it there, or calibrate with separators that no document contains.",
                public="The text that separates two slots of the prompt also occurs within a slot.",
            )
    ends.append(len(inner))
    return {name: inner[ends[2 * i] : ends[2 * i + 1]] for i, name in enumerate(parts[::2])}
