"""The data sets of the paper as questions: CoQA and MedMCQA, as published and as copied to the hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError

from ..questions import Question
from ..rows import RawRow, get_name, json_document
from .field_map import get_text

__all__ = [
    "children",
    "document",
    "is_coqa",
    "is_coqa_hub",
    "is_medmcqa",
    "medmcqa_questions",
    "read_coqa",
    "read_coqa_hub",
    "unique",
]


# -- JSON documents whose parts are named by their path in error messages: ``dev.json:data[3].questions[0]`` -----------


def document(path: Path) -> RawRow:
    """The JSON object in a file.

    Raises:
        RecordError: It is not one.
    """
    content = json_document(path, "The file is truncated or not a JSON document; copy it again.")
    if not isinstance(content, dict):
        raise RecordError(f"{path}: got a {type(content).__name__}; the document must be one JSON object, {{...}}")
    return RawRow(f"{path}:", content)


def children(row: RawRow, field: str) -> list[RawRow]:
    """The objects in a list field, each named by its place.

    Raises:
        RecordError: The field is not a list of objects.
    """
    items = row.values.get(field)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise row.fail(field, items, "it must be a list of objects, as published")
    start = row.where if row.where.endswith(":") else f"{row.where}."
    return [RawRow(f"{start}{field}[{i}]", item) for i, item in enumerate(items)]


def _text(row: RawRow, field: str) -> str:
    """The text in a field; files of questions have no map and leave no row out."""
    return get_text(row, field, way_out="Correct the file, or copy it again.")


def unique(items: Iterable[str]) -> tuple[str, ...]:
    """Texts without repetitions, in order."""
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


# -- CoQA (Reddy et al. 2019), conversations about a story: the official JSON, and the rows of its copy on the hub -----
#     {"data": [{"id": ..., "story": ..., "questions": [{"input_text": ..., "turn_id": 1}, ...],
#                "answers": [{"input_text": ..., "turn_id": 1, "span_text": ...}, ...],
#                "additional_answers": {"0": [{"input_text": ..., "turn_id": 1}, ...], ...}}]}
#
# Every turn becomes one question: the story, the earlier turns with their gold answers, and the turn itself. Turns of a
# conversation depend on each other, so its id is the group (fit with --cluster-by-group).


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    question: str
    answers: tuple[str, ...]


def is_coqa(values: dict[str, Any]) -> bool:
    """Whether a JSON document is CoQA."""
    data = values.get("data")
    return (
        isinstance(data, list) and bool(data) and isinstance(data[0], dict) and {"story", "questions"} <= set(data[0])
    )


def is_coqa_hub(values: dict[str, Any]) -> bool:
    """Whether a row is a conversation as on the hub: lists of questions and answers."""
    return "story" in values and isinstance(values.get("questions"), list) and isinstance(values.get("answers"), dict)


def read_coqa(path: Path) -> list[Question]:
    """Questions of the official file.

    Raises:
        RecordError: A part is not as published; it is named by its path.
    """
    questions: list[Question] = []
    for story in children(document(path), "data"):
        questions += _questions(_text(story, "id"), _text(story, "story"), _turns(story))
    return questions


def read_coqa_hub(rows: Iterable[RawRow]) -> list[Question]:
    """Questions of rows as on the hub, which have neither ids nor additional answers.

    Raises:
        RecordError: A row has not as many answers as questions.
    """
    questions: list[Question] = []
    for number, row in enumerate(rows):
        turns_asked, answers = row.values["questions"], row.values["answers"].get("input_text")
        if not isinstance(answers, list) or len(answers) != len(turns_asked):
            raise row.fail("answers", answers, f"there must be one input_text for each of {len(turns_asked)} questions")
        turns = [
            _Turn(i, str(q), (str(a),)) for i, (q, a) in enumerate(zip(turns_asked, answers, strict=True), start=1)
        ]
        questions += _questions(f"coqa-{number}", _text(row, "story"), turns)
    return questions


def _turns(story: RawRow) -> list[_Turn]:
    questions = children(story, "questions")
    answers = [{_number(answer): _text(answer, "input_text") for answer in children(story, "answers")}]
    more = story.values.get("additional_answers") or {}
    if not isinstance(more, dict):
        raise story.fail("additional_answers", more, "it must be an object of lists, as published; or absent")
    for name in more:
        more_answers = children(RawRow(f"{story.where}.additional_answers", more), name)
        answers.append({_number(answer): _text(answer, "input_text") for answer in more_answers})
    turns = []
    for question in questions:
        number = _number(question)
        if number not in answers[0]:
            raise question.fail("turn_id", number, "no answer has this turn_id. Copy the file again.")
        gold = unique(by_turn[number] for by_turn in answers if number in by_turn)
        turns.append(_Turn(number, _text(question, "input_text"), gold))
    return turns


def _number(row: RawRow) -> int:
    value = row.values.get("turn_id")
    if not isinstance(value, int) or isinstance(value, bool):
        raise row.fail("turn_id", value, "it must be a whole number, as published")
    return value


def _questions(name: str, story: str, turns: Sequence[_Turn]) -> list[Question]:
    questions, history = [], ""
    for turn in turns:
        prompt = f"{story}\n\n{history}Q: {turn.question}\nA:"
        questions.append(Question(id=f"{name}-{turn.number}", question=prompt, references=turn.answers, group=name))
        history += f"Q: {turn.question}\nA: {turn.answers[0]}\n"
    return questions


# -- MedMCQA (Pal et al. 2022): one JSON object a line with question, opa ... opd and cop, the correct option ----------
# The official files count cop from 1 (the builder of `datasets` subtracts 1), the copy on the hub counts from 0 and its
# card says otherwise. Nothing in a row tells them apart, but the file does: a 0 or a 4 occurs in any real one. Where
# neither does, the base has to be named (medmcqa-1 or medmcqa-0): reading it wrong would shift every label.

_COLUMNS = {"A": "opa", "B": "opb", "C": "opc", "D": "opd"}


def is_medmcqa(values: dict[str, Any]) -> bool:
    """Whether a row is of MedMCQA."""
    return {"question", "cop", *_COLUMNS.values()} <= set(values)


def medmcqa_questions(rows: Sequence[RawRow], base: int | None = None) -> list[Question]:
    """Questions; the group is the subject.

    Args:
        rows: All rows of a file.
        base: What cop counts from; None reads it off the rows.

    Raises:
        RecordError: A field is missing or malformed, or the answers are withheld (cop -1: the test part).
        UsageError: The rows do not tell the base.
    """
    numbers = [_cop(row) for row in rows]
    base = _base(rows, numbers) if base is None else base
    return [_medmcqa_question(row, number, base) for row, number in zip(rows, numbers, strict=True)]


def _cop(row: RawRow) -> int:
    value = row.values.get("cop")
    if isinstance(value, bool) or not isinstance(value, int):
        raise row.fail("cop", value, "it must be the number of the correct option")
    if value == -1:
        raise row.fail("cop", value, "the answers of the test part are withheld. Use the train or dev part.")
    if not 0 <= value <= 4:
        raise row.fail("cop", value, "it must be in 1 ... 4, or 0 ... 3 in the copy on the hub")
    return value


def _base(rows: Sequence[RawRow], numbers: Sequence[int]) -> int:
    if 0 in numbers and 4 in numbers:
        zero, four = rows[numbers.index(0)].where, rows[numbers.index(4)].where
        raise UsageError(
            f"cop is 0 at {zero} and 4 at {four}: two files that count differently were mixed. Split them."
        )
    if 0 not in numbers and 4 not in numbers:
        raise UsageError(
            f"in {len(numbers)} rows cop is never 0 or 4, so it may count from 1 (official files) or from 0 (the copy "
            "on the hub). Say which: --set questions_format=medmcqa-1 or medmcqa-0."
        )
    return 0 if 0 in numbers else 1


def _medmcqa_question(row: RawRow, number: int, base: int) -> Question:
    options = {label: _text(row, column) for label, column in _COLUMNS.items()}
    if not 0 <= number - base < len(options):
        raise row.fail("cop", number, f"it must be in {base} ... {base + 3} where options are counted from {base}")
    return Question(
        id=_text(row, "id"),
        question=_text(row, "question"),
        references=(tuple(options)[number - base],),
        options=options,
        group=get_name(row, "subject_name"),
    )
