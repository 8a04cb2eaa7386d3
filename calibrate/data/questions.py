"""Question files: JSONL or a table with question (or messages), references, optional options and group.

A malformed row stops the reading with file, line and field; nothing is skipped, guessed or repaired.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from guardrail.errors import UsageError
from guardrail.judges import normalise
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

from .row import RawRow, is_plain, parsed, read_list
from .rows import read_rows

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from guardrail.prompting import PromptWrapping

__all__ = [
    "Question",
    "asked_of",
    "content_id",
    "fingerprint",
    "option_labels",
    "question_of",
    "read_questions",
    "read_references",
    "reference_label",
    "refuse_no_option",
    "slot_names",
    "system_of",
]

_FIELDS = ("id", "question", "messages", "references", "options", "group", "slots")
_LETTERS = tuple("ABCDEFGHIJ")


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
        said = self.messages or ()
        return said[:-1] if said and said[-1].get("content") == self.question else ()

    @property
    def in_words(self) -> str:
        """The question for people and judges to read: after what was said before it, a line each."""
        said = [f"{turn['role']}: {turn['content']}" for turn in self.before if turn["role"] != "system"]
        return "\n".join([*said, f"user: {self.question}"]) if said else self.question

    def messages_in(self, prompt: PromptWrapping) -> list[BaseMessage]:
        """The messages for a model: the question in its prompt, after the turns before it.

        Raises:
            UsageError: The prompt has slots, and the question no texts for them.
        """
        from langchain_core.messages import SystemMessage, convert_to_messages  # slow to import

        *system, wrapped = prompt.messages(self.question, self.options, self.slots)
        if self.messages and self.messages[-1].get("content") != self.question:  # recorded by an agent, as it was sent
            said = convert_to_messages(list(self.messages))
        else:
            said = [*convert_to_messages(list(self.before)), wrapped]
        return said if isinstance(said[0], SystemMessage) else [*system, *said]


def read_questions(path: str | Path, *, require_references: bool = True) -> list[Question]:
    """Read a question file.

    JSONL or a JSON array: one object a question with ``question`` (text), ``references`` (list of texts, or one text),
    and optionally ``id``, ``options`` (object, label to text), ``slots`` (object, slot of the prompt to text) and
    ``group``. In place of ``question``, ``messages``: a conversation in OpenAI's form that ends with the question.
    Tables: the same as columns; ``references`` separated by "|" or a JSON list; ``options`` as an object,
    or as columns A, B, C, ...; ``slots`` as a JSON object. Other fields are ignored, but a field whose name is nearly
    one of these is taken for a typing error.

    Args:
        path: A file of one row a question (`calibrate.data.rows.open_rows`).
        require_references: Whether a question without references is an error.

    Returns:
        The questions in file order; at least one.

    Raises:
        RecordError: A malformed row, or two rows with the same id; file, line and field are named.
        UsageError: The file does not exist, is of another kind, or holds no question.
    """
    path = Path(path)
    first_at: dict[str, str] = {}
    questions = []
    for row in read_rows(path):
        question = question_of(row, require_references=require_references)
        if question.id in first_at:
            repeats = "this id" if row.values.get("id") not in (None, "") else "this question (with these options)"
            raise row.fail(
                "id", question.id, f"{repeats} is already at {first_at[question.id]}. Remove one or give it an id."
            )
        first_at[question.id] = row.where
        questions.append(question)
    if not questions:
        raise UsageError(f"{path} holds no question. Write one JSON object a line, or a CSV with a header line.")
    return questions


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
    first = questions[0]
    for question in questions:
        if set(question.slots or ()) != set(first.slots or ()):
            raise UsageError(
                f"question {question.id!r} has the slots {tuple(question.slots or ())}, question {first.id!r} has "
                f"{tuple(first.slots or ())}. Give every question a text for each slot of the prompt."
            )
    return tuple(first.slots or ())


def option_labels(questions: Sequence[Question]) -> tuple[str, ...] | None:
    """The option labels shared by all questions, or None when no question has options.

    Raises:
        UsageError: Only some have options, or labels differ: a plan reads the same labels for every question.
    """
    first = questions[0]
    labels = tuple(first.options) if first.options is not None else None
    for question in questions:
        own = tuple(question.options) if question.options is not None else None
        if own != labels:
            raise UsageError(
                f"question {question.id!r} has option labels {own}, question {first.id!r} has {labels}. One plan reads "
                "the same labels for every question: split the file by number of options and calibrate each part."
            )
    return labels


def system_of(questions: Sequence[Question]) -> str | None:
    """The system message that the questions' conversations begin with; None if none has one.

    Raises:
        UsageError: They differ: one calibration is of one system message.
    """
    first: dict[str | None, str] = {}
    for question in questions:
        opening = (question.messages or ({},))[0]
        first.setdefault(opening["content"] if opening.get("role") == "system" else None, question.id)
    if len(first) > 1:
        one, other, *_ = first.values()
        raise UsageError(
            f"the conversations of questions {one!r} and {other!r} begin with different system messages. Give all the "
            "same, or none and --system; what changes in it is a slot."
        )
    return next(iter(first), None)


def reference_label(question: Question) -> str | None:
    """Label of the right option: a reference that is a label, else the one option whose text a reference equals."""
    options = question.options or {}
    for reference in question.references:
        if reference.strip() in options:
            return reference.strip()
    accepted = {normalise(reference) for reference in question.references}
    matching = [label for label, text in options.items() if normalise(text) in accepted]
    return matching[0] if len(matching) == 1 else None


def question_of(row: RawRow, *, require_references: bool) -> Question:
    """The question of a row with our own fields.

    Raises:
        RecordError: A field is malformed, or nearly has the name of one; file, line and field are named.
    """
    _refuse_near_names(row)
    messages, text = _messages(row), row.values.get("question")
    if messages is not None:
        text = messages[-1]["content"]
    if not isinstance(text, str) or not text.strip():
        raise row.fail("question", text, "it must be a non-empty text")
    options = _options(row)
    references = read_references(row, "references")
    if not references and require_references:
        raise row.fail(
            "references", row.values.get("references"), "at least one accepted answer is needed to label the model's "
            "answer. Add it, or let people judge the answers: calibrate collect, score, label --interactive."
        )  # fmt: skip
    slots = _slots(row)
    name = row.name("id") or content_id(text, options, slots, messages=messages)
    question = Question(
        id=name,
        question=text,
        references=references,
        options=options,
        slots=slots,
        group=row.name("group"),
        messages=messages,
    )
    refuse_no_option(row, "references", question)
    return question


def _refuse_near_names(row: RawRow) -> None:
    names = {name: name for name in _FIELDS if name != "id"}
    names |= {"reference": "references", "answer": "references", "answers": "references", "choices": "options"}
    for name in row.values:
        if name in _FIELDS or not isinstance(name, str):
            continue
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.8)
        if near and names[near[0]] not in row.values:
            raise row.fail(name, row.values[name], f"unknown field. Rename it to {names[near[0]]!r}.")


def read_references(row: RawRow, column: str, repaired: Counter[str] | None = None) -> tuple[str, ...]:
    """The accepted answers of a row; () without any.

    Args:
        row: The row.
        column: Its column with them.
        repaired: Counts, as sentences, what is read otherwise than it is written; None: that is refused.

    Raises:
        RecordError: They are no texts, or what would be repaired.
    """
    written = row.values.get(column)
    inner = read_list(written) if isinstance(written, str) and written.lstrip().startswith("[") else None
    items = row.listed(column)
    if not row.textual and inner and all(isinstance(item, str) for item in inner):
        if repaired is None:
            as_list = json.dumps(inner, ensure_ascii=False)
            rule = f"this text reads as a list of answers. Write {as_list}; if it is one answer, [TEXT]"
            raise row.fail(column, written, rule)
        items = inner
        repaired['references are lists written as text (["a", "b"]) and were read as lists.'] += 1
    good = [item for item in items if item is not None and str(item).strip()]
    for item in good if good and repaired is not None else items:
        if not is_plain(item) or not str(item).strip():
            raise row.fail(column, items, f"every accepted answer must be a non-empty text; {item!r} is not")
    if repaired is not None and len(good) < len(items):
        repaired["rows have an empty accepted answer among others; it was left out."] += 1
    return tuple(str(item).strip() for item in good)


def refuse_no_option(row: RawRow, column: str, question: Question) -> None:
    """Refuse a question with options of which no reference names one.

    Raises:
        RecordError: None of them is a label, or the text of exactly one option.
    """
    if question.options and question.references and reference_label(question) is None:
        rule = f"one of them must be an option label ({', '.join(question.options)}) or the text of exactly one option"
        raise row.fail(column, list(question.references), rule)


def _options(row: RawRow) -> dict[str, str] | None:
    labelled = row.labelled("options", keep=row.values.get("options") or ())  # null is refused below
    if labelled is None and row.textual:  # a column for each
        labelled = {letter: row.values[letter] for letter in _LETTERS if letter in row.values} or None
    for label, text in (labelled or {}).items():
        if not label or not is_plain(text) or text == "":
            raise row.fail("options", labelled, f"option {label!r} must be a non-empty text, got {text!r}")
    return None if labelled is None else {label: str(text) for label, text in labelled.items()}


def _slots(row: RawRow) -> dict[str, str] | None:
    value = parsed(row.values.get("slots"))
    if value is None or value == {}:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise row.fail("slots", value, 'it must be an object from slot to text, e.g. {"context": "..."}')
    return value


def _messages(row: RawRow) -> tuple[dict[str, Any], ...] | None:
    value = row.values.get("messages")
    if value is None:
        return None
    if row.values.get("question"):
        raise row.fail("question", row.values["question"], "messages hold the question: leave this field out")
    roles = [message.get("role") if isinstance(message, dict) else None for message in value or ()]
    if not isinstance(value, list) or not set(roles) <= {"system", "user", "assistant"} or "system" in roles[1:]:
        form = (
            'it must be a list of {"role": "user" or "assistant", "content": text}, with a system message first if any'
        )
        raise row.fail("messages", value, form)
    if roles[-1:] != ["user"] or not all(isinstance(message.get("content"), str) for message in value):
        way_out = "each content must be a text, and the last message the user's: cut a log before the answer to measure"
        raise row.fail("messages", value, way_out)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


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


def asked_of(row: Any) -> str:
    """`Question.asked` of a question, or of what has its fields; that of a bare question needs no JSON."""
    text = str(row.question.strip())
    if row.options is row.slots is row.tools is row.messages is None:
        return text
    return "\0" + canonical_json([text, row.options, _sorted_tools(row.tools), row.slots, row.messages])


def _sorted_tools(tools: Sequence[Mapping[str, Any] | str] | None) -> list[str] | None:
    return None if tools is None else sorted(canonical_json(tool) for tool in tools)
