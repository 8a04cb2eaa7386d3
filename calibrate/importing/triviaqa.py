"""TriviaQA (Joshi et al. 2017): the official JSON, and the rows of its copy on the hub.

    {"Data": [{"QuestionId": ..., "Question": ...,
               "Answer": {"Value": ..., "Aliases": [...], "NormalizedAliases": [...], "HumanAnswers": [...]}}]}

References are the value and all aliases, as in the official evaluation. Evidence documents are not read: the question
is asked closed-book.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guardrail.judges import normalise

from ..datasets import Question, Row
from .cells import get_text
from .tree import children, document, texts, unique

__all__ = ["is_triviaqa", "is_triviaqa_hub", "read_triviaqa", "read_triviaqa_hub"]

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
    return [_question(row, _OFFICIAL) for row in children(document(path), "Data")]


def read_triviaqa_hub(rows: Iterable[Row]) -> list[Question]:
    """Questions of rows as on the hub."""
    return [_question(row, _HUB) for row in rows]


def _question(row: Row, names: tuple[str, str, str, str, tuple[str, ...]]) -> Question:
    identity, question, answer, value, aliases = names
    given = row.values.get(answer)
    if not isinstance(given, dict):
        raise row.fail(answer, given, "every question needs its answer. The test part has none: use train or dev.")
    inner = Row(f"{row.where}.{answer}", given)
    first = get_text(inner, value)
    if first == "<unk>":
        raise inner.fail(value, first, "the answers of the test part are withheld. Use the train or validation part.")
    found: dict[str, str] = {}
    for text in unique([first, *(text for name in aliases for text in texts(inner, name))]):
        found.setdefault(normalise(text), text)  # normalised aliases add nothing where the alias itself is there
    return Question(id=get_text(row, identity), question=get_text(row, question), references=tuple(found.values()))
