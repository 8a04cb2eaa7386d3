"""Published data sets as questions: CoQA, MedMCQA, SQuAD and TriviaQA, as published and as copied to the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError
from guardrail.judges import normalise

from ..questions import Question
from ..rows import RawRow, get_name, json_document
from .field_map import get_text

__all__ = [
    "UNANSWERABLE",
    "children",
    "document",
    "is_coqa",
    "is_coqa_hub",
    "is_medmcqa",
    "is_squad",
    "is_squad_hub",
    "is_triviaqa",
    "is_triviaqa_hub",
    "medmcqa_questions",
    "read_coqa",
    "read_coqa_hub",
    "read_squad",
    "read_squad_hub",
    "read_triviaqa",
    "read_triviaqa_hub",
    "texts",
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


def texts(row: RawRow, field: str) -> list[str]:
    """The texts in a list field; none when the field is absent.

    Raises:
        RecordError: It is not a list of texts.
    """
    items: Any = row.values.get(field)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise row.fail(field, items, "it must be a list of texts")
    return [_text(RawRow(row.where, {field: item}), field) for item in items if item.strip()]


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
            "on the hub). Say which: --questions-format medmcqa-1 or medmcqa-0."
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


# -- SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), files of the same form, and the rows of the copies on the hub ----
#     {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
#         {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 0}], "is_impossible": false}]}]}]}
#
# The paragraph stands before the question; the article is the group. Questions that the paragraph does not answer
# (is_impossible) are left out and counted, because whether "unanswerable" is a right answer depends on whether the
# prompt offers it. Format squad-unanswerable keeps them, with the reference "unanswerable": say so in the prompt
# then.

UNANSWERABLE = "unanswerable"
"""Reference of a question that its paragraph does not answer."""


def is_squad(values: Mapping[str, Any]) -> bool:
    """Whether a JSON document is of SQuAD's form."""
    data = values.get("data")
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "paragraphs" in data[0]


def is_squad_hub(values: Mapping[str, Any]) -> bool:
    """Whether a row is of a copy on the hub."""
    answers = values.get("answers")
    return {"context", "question"} <= set(values) and isinstance(answers, dict) and "text" in answers


def read_squad(path: Path, *, unanswerable: bool = False) -> tuple[list[Question], int]:
    """Questions of a file, and how many unanswerable ones were left out.

    Args:
        path: The file.
        unanswerable: Keep them.

    Raises:
        RecordError: A part is not as published; it is named by its path.
    """
    return _kept(_all(path), unanswerable)


def read_squad_hub(rows: Iterable[RawRow], *, unanswerable: bool = False) -> tuple[list[Question], int]:
    """Questions of rows as on the hub (no answer means unanswerable), and how many were left out."""
    return _kept((_hub(row) for row in rows), unanswerable)


def _kept(found: Iterable[Question], unanswerable: bool) -> tuple[list[Question], int]:
    questions = list(found)
    if unanswerable:
        return questions, 0
    answerable = [question for question in questions if question.references != (UNANSWERABLE,)]
    return answerable, len(questions) - len(answerable)


def _all(path: Path) -> Iterator[Question]:
    for article in children(document(path), "data"):
        for paragraph in children(article, "paragraphs"):
            context = _text(paragraph, "context")
            for question in children(paragraph, "qas"):
                impossible = question.values.get("is_impossible", False)
                if not isinstance(impossible, bool):
                    raise question.fail("is_impossible", impossible, "it must be true or false")
                answers = unique(_text(answer, "text") for answer in children(question, "answers"))
                if not impossible and not answers:
                    raise question.fail("answers", [], 'there is none; mark it "is_impossible": true or add one')
                yield _squad_question(question, context, () if impossible else answers, get_name(article, "title"))


def _hub(row: RawRow) -> Question:
    answers = unique(texts(RawRow(f"{row.where}.answers", row.values["answers"]), "text"))
    return _squad_question(row, _text(row, "context"), answers, get_name(row, "title"))


def _squad_question(row: RawRow, context: str, answers: tuple[str, ...], title: str | None) -> Question:
    text = f"{context}\n\nQuestion: {_text(row, 'question')}"
    return Question(id=_text(row, "id"), question=text, references=answers or (UNANSWERABLE,), group=title)


# -- TriviaQA (Joshi et al. 2017): the official JSON, and the rows of its copy on the hub ------------------------------
#     {"Data": [{"QuestionId": ..., "Question": ...,
#                "Answer": {"Value": ..., "Aliases": [...], "NormalizedAliases": [...], "HumanAnswers": [...]}}]}
#
# References are the value and all aliases, as in the official evaluation. Evidence documents are not read: the question
# is asked closed-book.

_OFFICIAL = ("QuestionId", "Question", "Answer", "Value", ("Aliases", "HumanAnswers", "NormalizedAliases"))
_HUB = ("question_id", "question", "answer", "value", ("aliases", "human_answers", "normalized_aliases"))


def is_triviaqa(values: Mapping[str, Any]) -> bool:
    """Whether a JSON document is TriviaQA."""
    data = values.get("Data")
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "QuestionId" in data[0]


def is_triviaqa_hub(values: Mapping[str, Any]) -> bool:
    """Whether a row is of the copy on the hub."""
    answer = values.get("answer")
    return "question_id" in values and isinstance(answer, dict) and "aliases" in answer


def read_triviaqa(path: Path) -> list[Question]:
    """Questions of an official file.

    Raises:
        RecordError: A part is not as published (the test files have no answers); it is named by its path.
    """
    return [_triviaqa_question(row, _OFFICIAL) for row in children(document(path), "Data")]


def read_triviaqa_hub(rows: Iterable[RawRow]) -> list[Question]:
    """Questions of rows as on the hub."""
    return [_triviaqa_question(row, _HUB) for row in rows]


def _triviaqa_question(row: RawRow, names: tuple[str, str, str, str, tuple[str, ...]]) -> Question:
    identity, question, answer, value, aliases = names
    answers = row.values.get(answer)
    if not isinstance(answers, dict):
        raise row.fail(answer, answers, "every question needs its answer. The test part has none: use train or dev.")
    inner = RawRow(f"{row.where}.{answer}", answers)
    first = _text(inner, value)
    if first == "<unk>":
        raise inner.fail(value, first, "the answers of the test part are withheld. Use the train or validation part.")
    aliases_of: dict[str, str] = {}
    for text in unique([first, *(text for name in aliases for text in texts(inner, name))]):
        aliases_of.setdefault(normalise(text), text)  # normalised aliases add nothing where the alias itself is there
    return Question(id=_text(row, identity), question=_text(row, question), references=tuple(aliases_of.values()))
