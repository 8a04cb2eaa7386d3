"""A question: what is asked, and what makes two questions the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from guardrail.errors import UsageError
from guardrail.judges import normalise
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from guardrail.prompting import PromptWrapping


class Question(Frozen):
    """One labelled question."""

    id: str
    """Unique name within the file: given, or "q-" and 12 hex digits of a hash of question and options."""
    question: str
    """The question as asked, without its options."""
    references: tuple[str, ...] = ()
    """Accepted answers (aliases). For multiple choice the label, or the text, of the right option."""
    rejected: tuple[str, ...] = Field(default=(), exclude_if=lambda rejected: not rejected)
    """Answers that people rejected without saying what is right; read where no reference is given."""
    options: dict[str, str] | None = None
    """Option label to option text, in display order; None for an open question."""
    slots: dict[str, str] | None = Field(default=None, exclude_if=lambda slots: slots is None)
    """Texts of the prompt's slots beside the question, by name, e.g. {"context": "..."}; None if it has none."""
    group: str | None = None
    """A category such as "arithmetic" (for reports), or a cluster such as a conversation (`--cluster-by-group`)."""
    tools: tuple[dict[str, Any] | str, ...] | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """Tools that were offered with this question, in recorded data where they differ from question to question; None
    where they are the plan's. `collect` asks every question with the plan's."""
    messages: tuple[dict[str, Any], ...] | None = Field(default=None, exclude_if=lambda messages: messages is None)
    """The conversation that ends with the question, in OpenAI's form; None for a question by itself. A system message
    of its own must be the prompt's; without one the prompt's is put before it."""

    @property
    def asked(self) -> str:
        """Everything that a model is asked: text, options, slots, conversation and offered tools, these in any order.

        Questions with equal values are the same, under any id.
        """
        return asked_of(self)

    @property
    def before(self) -> tuple[dict[str, Any], ...]:
        """The turns before the question; empty without any, or if the question is a text of all of them."""
        turns = self.messages or ()
        return turns[:-1] if turns and turns[-1].get("content") == self.question else ()

    @property
    def in_words(self) -> str:
        """The question for people and judges to read: after what was said before it, a line each."""
        lines = [f"{turn['role']}: {turn['content']}" for turn in self.before if turn["role"] != "system"]
        return "\n".join([*lines, f"user: {self.question}"]) if lines else self.question

    def messages_in(self, prompt: PromptWrapping) -> list[BaseMessage]:
        """The messages for a model: the question in its prompt, after the turns before it.

        Raises:
            UsageError: The prompt has slots, and the question no texts for them.
        """
        from langchain_core.messages import SystemMessage, convert_to_messages  # slow to import

        *system, wrapped = prompt.messages(self.question, self.options, self.slots)
        if self.messages and self.messages[-1].get("content") != self.question:  # recorded by an agent, as it was sent
            turns = convert_to_messages(list(self.messages))
        else:
            turns = [*convert_to_messages(list(self.before)), wrapped]
        return turns if isinstance(turns[0], SystemMessage) else [*system, *turns]


def fingerprint(questions: Iterable[Question]) -> str:
    """SHA-256 over the canonical rows, sorted by id: the same questions in another order or format give the same."""
    digest = hashlib.sha256()
    for question in sorted(questions, key=lambda q: q.id):
        digest.update(canonical_json(question.model_dump(), compact=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def slot_names(questions: Sequence[Question]) -> tuple[str, ...]:
    """Names of the slots that all questions have a text for.

    Raises:
        UsageError: Questions have different slots: one prompt has the same slots for every question.
    """
    way_out = "Give every question a text for each slot of the prompt."
    _refuse_other(questions, lambda question: tuple(sorted(question.slots or ())), "the slots", way_out)
    return tuple(questions[0].slots or ())


def option_labels(questions: Sequence[Question]) -> tuple[str, ...] | None:
    """The option labels shared by all questions, or None when no question has options.

    Raises:
        UsageError: Only some have options, or labels differ: a plan reads the same labels for every question.
    """

    def labels(question: Question) -> tuple[str, ...] | None:
        return None if question.options is None else tuple(question.options)

    way_out = (
        "One plan reads the same labels for every question: split the file by number of options and calibrate each "
        "part."
    )
    _refuse_other(questions, labels, "option labels", way_out)
    return labels(questions[0])


def system_of(questions: Sequence[Question]) -> str | None:
    """The system message that the questions' conversations begin with; None if none has one.

    Raises:
        UsageError: They differ: one calibration is of one system message.
    """

    def system(question: Question) -> str | None:
        first = (question.messages or ({},))[0]
        return first["content"] if first.get("role") == "system" else None

    way_out = "Give all the same, or none and --system; what changes in it is a slot."
    _refuse_other(questions, system, "the system message", way_out)
    return system(questions[0])


def _refuse_other(
    questions: Sequence[Question], value_of: Callable[[Question], object], what: str, way_out: str
) -> None:
    """Refuse questions that differ in what one calibration has once."""
    first = questions[0]
    expected = value_of(first)
    for question in questions:
        value = value_of(question)
        if value != expected:
            raise UsageError(
                f"question {question.id!r} has {what} {value!r:.80}, question {first.id!r} has {expected!r:.80}. "
                f"{way_out}"
            )


def reference_label(question: Question) -> str | None:
    """Label of the right option: a reference that is a label, else the one option whose text a reference equals."""
    options = question.options or {}
    for reference in question.references:
        if reference.strip() in options:
            return reference.strip()
    accepted = {normalise(reference) for reference in question.references}
    matching = [label for label, text in options.items() if normalise(text) in accepted]
    return matching[0] if len(matching) == 1 else None


def content_id(
    text: str,
    options: Mapping[str, str] | None,
    slots: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any] | str] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Id of a question that was given none: "q-" and 12 hex digits of a hash of what is asked."""
    parts: list[Any] = [text, dict(options) if options else None, *([dict(slots)] if slots else ())]
    if tools:
        parts.append(_sorted_tools(tools))
    if messages:
        parts.append(list(messages))
    canonical = json.dumps(parts, ensure_ascii=False)
    return "q-" + sha256_hex(canonical, 12)


def asked_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The question of a conversation: the user's last text, or the whole where an agent's steps are part of it."""
    role = messages[-1]["role"]
    content = messages[-1]["content"]
    has_steps = any(turn["role"] == "tool" or turn.get("tool_calls") for turn in messages)
    if role == "user" and isinstance(content, str) and not has_steps:
        return content
    from langchain_core.messages import convert_to_messages  # slow to import

    from guardrail.prompting import conversation_text

    return conversation_text(convert_to_messages([dict(turn) for turn in messages if turn["role"] != "system"]))


def asked_of(row: Any) -> str:
    """`Question.asked` of a question, or of what has its fields; that of a bare question needs no JSON."""
    text = str(row.question.strip())
    if row.options is row.slots is row.tools is row.messages is None:
        return text
    return "\0" + canonical_json([text, row.options, _sorted_tools(row.tools), row.slots, row.messages])


def _sorted_tools(tools: Sequence[Mapping[str, Any] | str] | None) -> list[str] | None:
    return None if tools is None else sorted(canonical_json(tool) for tool in tools)
