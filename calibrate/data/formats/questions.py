"""Question files: our own form, the data sets of the paper as published and as on the hub, and others by a map.

A malformed row stops the reading with file, line and field; nothing is skipped, guessed or repaired.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from guardrail.errors import UsageError
from guardrail.judges import canonical_calls
from guardrail.judges.tool_call import read_calls
from guardrail.types import ToolCall

from ..questions import Question, asked_text, content_id
from ..row import RawRow, is_plain, parsed
from ..rows import read_rows
from .build import Builder, read_references, refuse_no_option, repeated
from .field_map import FIELDS, ColumnMap, ImportSettings


def read_questions(
    path: str | Path, format: str | None = None, *, columns: ColumnMap | None = None, require_references: bool = True
) -> list[Question]:
    """Read a question file, or the folder of a Hugging Face dataset.

    Our own form is one object a question with ``question`` (text), ``references`` (list of texts, or one text), and
    optionally ``id``, ``options`` (object, label to text), ``slots`` (object, slot of the prompt to text) and
    ``group``. In place of ``question``, ``messages``: a conversation in OpenAI's form that ends with the question, or
    with the result of a tool where the next step of an agent is asked for. A reference may be a tool call, or a list of
    calls, as objects of ``name`` and ``arguments``.
    Tables: the same as columns; ``references`` separated by "|" or a JSON list; ``options`` as an object,
    or as columns A, B, C, ...; ``slots`` as a JSON object. Other fields are ignored, but a field whose name is nearly
    one of these is taken for a typing error.

    Args:
        path: A file of one row a question (`calibrate.data.rows.open_rows`).
        format: One of `QUESTION_FORMATS`; None recognises it by the fields of the first row.
        columns: Columns, or paths into nested ones, of a file of another form; or None.
        require_references: Whether a question of our own form without references is an error; data sets have them.

    Returns:
        The questions in file order; at least one, with distinct ids.

    Raises:
        RecordError: A malformed row, or two rows with the same id; file, line and field are named.
        UsageError: The file does not exist, is of another kind, or holds no question; or an unknown format.
        MissingDependencyError: Parquet, Arrow or Excel without the extra "data".
    """
    path = Path(path)
    if format is not None and format not in QUESTION_FORMATS:
        raise UsageError(f"no question format named {format!r}. Known: {', '.join(QUESTION_FORMATS)}.")
    rows = list(read_rows(path))
    if not rows:
        raise UsageError(f"{path} holds no question. Write one JSON object a line, or a CSV with a header line.")
    if columns is not None:
        pairs = _mapped(rows, columns)
    else:
        kind = format or _recognised(rows[0])
        if kind == "own":
            pairs = ((row, _own(row, require_references=require_references)) for row in rows)
        else:
            pairs = _READERS[kind](rows)
    first_at: dict[str, str] = {}
    questions = []
    for row, question in pairs:
        if question.id in first_at:
            raise repeated(row, question, first_at[question.id])
        first_at[question.id] = row.where
        questions.append(question)
    return questions


Read = Iterator[tuple[RawRow, Question]]
"""Questions, and the row of each."""


def _recognised(first: RawRow) -> str:
    """The format of a file by the fields of its first row."""
    if set(_MedMCQA.model_fields) - _OPTIONAL <= first.values.keys():
        return "medmcqa"
    return "coqa" if {"story", "questions", "answers"} <= first.values.keys() else "own"


def _mapped(rows: Sequence[RawRow], columns: ColumnMap) -> Read:
    """Questions of rows by a map of their columns, or paths into nested ones."""
    plain = ("id", "question", "references", "options", "group")
    mapped = {name: columns.of(name) for name in plain if columns.mapped(name)}
    only = ColumnMap({**dict.fromkeys(set(FIELDS).difference(plain), ()), **mapped})
    by_field = only.by_field(row.with_paths(sorted(only.named)) for row in rows)
    builder = Builder(ImportSettings(columns=only), only.present(by_field))
    return ((row, builder.build(row).to_question()) for row in by_field)


# -- Our own form ------------------------------------------------------------------------------------------------------

_FIELDS = ("id", "question", "messages", "references", "options", "group", "slots")
_LETTERS = tuple("ABCDEFGHIJ")
_ROLES = {"system", "user", "assistant", "tool"}


def _own(row: RawRow, *, require_references: bool) -> Question:
    """The question of a row with our own fields."""
    _refuse_near_names(row)
    messages = _messages(row)
    text = row.values.get("question")
    if messages is not None:
        text = asked_text(messages)
    if not isinstance(text, str) or not text.strip():
        there = ", ".join(map(str, row.values)) or "nothing"
        rule = f"it must be a non-empty text. If another column of {there} holds it: --map question=COLUMN"
        raise row.fail("question", text, rule)
    options = _options(row)
    references = _references(row)
    if not references and require_references:
        raise row.fail(
            "references", row.values.get("references"), "at least one accepted answer is needed to label the model's "
            "answer. Add it, or let people judge the answers: calibrate collect, score, label --interactive."
        )  # fmt: skip
    slots = _slots(row)
    question = Question(
        id=row.name("id") or content_id(text, options, slots, messages=messages),
        question=text,
        references=references,
        options=options,
        slots=slots,
        group=row.name("group"),
        messages=messages,
    )
    refuse_no_option(row, question)
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
    if not isinstance(value, list) or not set(roles) <= _ROLES or "system" in roles[1:]:
        form = (
            'it must be a list of {"role": "user", "assistant" or "tool", "content": text}, with a system message '
            "first if any"
        )
        raise row.fail("messages", value, form)
    # The content beside calls may be null.
    texts = [message.get("content") for message in value if message.get("content") or not message.get("tool_calls")]
    if roles[-1:] not in (["user"], ["tool"]) or not all(isinstance(text, str) for text in texts):
        way_out = "each content must be a text, and the last message the user's: cut a log before the answer to measure"
        raise row.fail("messages", value, way_out)
    if "tool" not in roles and not any(message.get("tool_calls") for message in value):
        return tuple({"role": message["role"], "content": message["content"]} for message in value)
    from langchain_core.messages import convert_to_messages, convert_to_openai_messages  # slow to import

    try:
        plain: Any = convert_to_openai_messages(convert_to_messages(value))
    except (KeyError, ValueError, TypeError, NotImplementedError) as error:
        raise row.fail("messages", value, f"an agent's step is not in OpenAI's form ({error})") from error
    return tuple(plain)


def _references(row: RawRow) -> tuple[str, ...]:
    """The accepted answers; a tool call, or a list of calls, becomes canonical JSON."""
    written = row.values.get("references")
    listed = [written] if _calls_in(written) or not isinstance(written, list) else written
    calls = [_calls_in(call) for call in listed]
    if not any(calls):
        return read_references(row)
    texts = [canonical_calls(call) if call else text for text, call in zip(listed, calls, strict=True)]
    return read_references(replace(row, values={**row.values, "references": texts}))


def _calls_in(value: Any) -> list[ToolCall] | None:
    return read_calls(json.dumps(value)) if isinstance(value, dict | list) else None


# -- Data sets as published --------------------------------------------------------------------------------------------


class _Published(BaseModel):
    """Base of what is read of a data set."""

    model_config = ConfigDict(str_strip_whitespace=True, str_min_length=1, coerce_numbers_to_str=True)


Row = TypeVar("Row", bound=_Published)


def _read(kind: type[Row], row: RawRow) -> Row:
    """A row as published.

    Raises:
        RecordError: It is not; the place is named by its path: ``dev.json:data[3].questions[0]``.
    """
    try:
        return kind.model_validate(row.values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *above, field = first["loc"]
        path_in_row = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in above)
        got = None if first["type"] == "missing" else first["input"]
        way_out = f"{first['msg']}. Correct the file, or copy it again."
        raise replace(row, where=row.where + path_in_row).fail(str(field), got, way_out) from error


# -- CoQA (Reddy et al. 2019): conversations about a story. Every turn becomes one question: the story, the earlier
# turns with their gold answers, and the turn itself. Turns of a conversation depend on each other, so its id is the
# group (fit with --cluster-by-group).


class _Turn(_Published):
    input_text: str
    turn_id: StrictInt


class _Story(_Published):
    id: str
    story: str
    questions: list[_Turn]
    answers: list[_Turn]
    additional_answers: dict[str, list[_Turn]] = Field(default_factory=dict)


def _coqa(rows: Sequence[RawRow]) -> Read:
    return ((row, question) for i, row in enumerate(rows) for question in _conversation(row, _story(row, i)))


def _story(row: RawRow, number: int) -> _Story:
    """A conversation as published, or as on the hub, which has neither ids nor additional answers."""

    def turns(texts: Any) -> Any:
        listed = enumerate(texts, start=1) if isinstance(texts, list) else ()
        return [{"input_text": text, "turn_id": turn} for turn, text in listed]

    values = row.values
    answers = values.get("answers")
    if isinstance(answers, dict):
        answered = {"questions": turns(values.get("questions")), "answers": turns(answers.get("input_text"))}
        row = replace(row, values={"id": f"coqa-{number}", "story": values.get("story"), **answered})
    return _read(_Story, row)


def _conversation(row: RawRow, story: _Story) -> Iterator[Question]:
    gold = [
        {turn.turn_id: turn.input_text for turn in turns}
        for turns in (story.answers, *story.additional_answers.values())
    ]
    asked = [turn.turn_id for turn in story.questions]
    if sorted(gold[0]) != sorted(asked):
        raise row.fail("answers", sorted(gold[0]), f"there must be one answer for each turn_id of {asked}")
    history = ""
    for turn in story.questions:
        answers = [answer[turn.turn_id] for answer in gold if turn.turn_id in answer]
        yield Question(
            id=f"{story.id}-{turn.turn_id}",
            question=f"{story.story}\n\n{history}Q: {turn.input_text}\nA:",
            references=tuple(dict.fromkeys(answers)),
            group=story.id,
        )
        history += f"Q: {turn.input_text}\nA: {answers[0]}\n"


# -- MedMCQA (Pal et al. 2022): one JSON object a line. The official files count cop, the right option, from 1 (the
# builder of `datasets` subtracts 1), the copy on the hub counts from 0 and its card says otherwise. Nothing in a row
# tells them apart, but the file does: a 0 or a 4 occurs in any real one. Where neither does, the base has to be named
# (medmcqa-1 or medmcqa-0): reading it wrong would shift every label.


class _MedMCQA(_Published):
    id: str
    question: str
    opa: str
    opb: str
    opc: str
    opd: str
    cop: StrictInt = Field(ge=-1, le=4)
    subject_name: str | None = None


_OPTIONAL = {"id", "subject_name"}


def _medmcqa(rows: Sequence[RawRow], base: int | None = None) -> Read:
    """Questions; the group is the subject, and ``base`` what cop counts from (None reads it off the rows)."""
    published = [_read(_MedMCQA, row) for row in rows]
    cops = [item.cop for item in published]
    if -1 in cops:
        raise rows[cops.index(-1)].fail("cop", -1, "the answers of the test part are withheld. Use another part.")
    base = _base(rows, cops) if base is None else base
    for row, item in zip(rows, published, strict=True):
        if not base <= item.cop < base + 4:
            raise row.fail(
                "cop", item.cop, f"it must be in {base} ... {base + 3} where options are counted from {base}"
            )
        options = {"A": item.opa, "B": item.opb, "C": item.opc, "D": item.opd}
        right = tuple(options)[item.cop - base]
        group = item.subject_name
        yield row, Question(id=item.id, question=item.question, references=(right,), options=options, group=group)


def _base(rows: Sequence[RawRow], cops: Sequence[int]) -> int:
    if 0 in cops and 4 in cops:
        zero = rows[cops.index(0)].where
        four = rows[cops.index(4)].where
        raise UsageError(
            f"cop is 0 at {zero} and 4 at {four}: two files that count differently were mixed. Split them."
        )
    if 0 not in cops and 4 not in cops:
        raise UsageError(
            f"in {len(cops)} rows cop is never 0 or 4, so it may count from 1 (official files) or from 0 (the copy "
            "on the hub). Say which: --set questions_format=medmcqa-1 or medmcqa-0."
        )
    return 0 if 0 in cops else 1


_READERS: dict[str, Callable[[Sequence[RawRow]], Read]] = {
    "coqa": _coqa,
    "medmcqa": _medmcqa,
    "medmcqa-0": lambda rows: _medmcqa(rows, 0),
    "medmcqa-1": lambda rows: _medmcqa(rows, 1),
}

QUESTION_FORMATS = ("own", *_READERS)
"""Formats by name; "own" is the one of this project."""
