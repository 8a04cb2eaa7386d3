"""CoQA (Reddy et al. 2019): conversations about a story. The official JSON, and the rows of its copy on the hub.

    {"data": [{"id": ..., "story": ..., "questions": [{"input_text": ..., "turn_id": 1}, ...],
               "answers": [{"input_text": ..., "turn_id": 1, "span_text": ...}, ...],
               "additional_answers": {"0": [{"input_text": ..., "turn_id": 1}, ...], ...}}]}

Every turn becomes one question: the story, the earlier turns with their gold answers, and the turn itself. Turns of a
conversation depend on each other, so its id is the group (fit with --cluster-by-group).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets import Question, Row
from .cells import get_text
from .tree import children, document, unique

__all__ = ["is_coqa", "is_coqa_hub", "read_coqa", "read_coqa_hub"]


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
    found: list[Question] = []
    for story in children(document(path), "data"):
        found += _questions(get_text(story, "id"), get_text(story, "story"), _turns(story))
    return found


def read_coqa_hub(rows: Iterable[Row]) -> list[Question]:
    """Questions of rows as on the hub, which have neither ids nor additional answers.

    Raises:
        RecordError: A row has not as many answers as questions.
    """
    found: list[Question] = []
    for number, row in enumerate(rows):
        asked, answers = row.values["questions"], row.values["answers"].get("input_text")
        if not isinstance(answers, list) or len(answers) != len(asked):
            raise row.fail("answers", answers, f"there must be one input_text for each of {len(asked)} questions")
        turns = [_Turn(i, str(q), (str(a),)) for i, (q, a) in enumerate(zip(asked, answers, strict=True), start=1)]
        found += _questions(f"coqa-{number}", get_text(row, "story"), turns)
    return found


def _turns(story: Row) -> list[_Turn]:
    asked = children(story, "questions")
    answers = [{_number(answer): get_text(answer, "input_text") for answer in children(story, "answers")}]
    more = story.values.get("additional_answers") or {}
    if not isinstance(more, dict):
        raise story.fail("additional_answers", more, "it must be an object of lists, as published; or absent")
    for name in more:
        given = children(Row(f"{story.where}.additional_answers", more), name)
        answers.append({_number(answer): get_text(answer, "input_text") for answer in given})
    turns = []
    for question in asked:
        number = _number(question)
        if number not in answers[0]:
            raise question.fail("turn_id", number, "there is no answer with this turn_id. Copy the file again.")
        gold = unique(given[number] for given in answers if number in given)
        turns.append(_Turn(number, get_text(question, "input_text"), gold))
    return turns


def _number(row: Row) -> int:
    value = row.values.get("turn_id")
    if not isinstance(value, int) or isinstance(value, bool):
        raise row.fail("turn_id", value, "it must be a whole number, as published")
    return value


def _questions(name: str, story: str, turns: Sequence[_Turn]) -> list[Question]:
    found, history = [], ""
    for turn in turns:
        asked = f"{story}\n\n{history}Q: {turn.question}\nA:"
        found.append(Question(id=f"{name}-{turn.number}", question=asked, references=turn.answers, group=name))
        history += f"Q: {turn.question}\nA: {turn.answers[0]}\n"
    return found
