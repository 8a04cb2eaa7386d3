"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and files of the same form; and the rows of the copies on the hub.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 0}], "is_impossible": false}]}]}]}

The paragraph stands before the question; the article is the group. Questions that the paragraph does not answer
(is_impossible) are left out and counted, because whether "unanswerable" is a right answer depends on whether the prompt
offers it. Format squad-unanswerable keeps them, with the reference "unanswerable": say so in the prompt then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..datasets import Question, Row
from .cells import get_name, get_text
from .tree import children, document, texts, unique

__all__ = ["UNANSWERABLE", "is_squad", "is_squad_hub", "read_squad", "read_squad_hub"]

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


def read_squad_hub(rows: Iterable[Row], *, unanswerable: bool = False) -> tuple[list[Question], int]:
    """Questions of rows as on the hub (no answer means unanswerable), and how many were left out."""
    return _kept((_hub(row) for row in rows), unanswerable)


def _kept(found: Iterable[Question], unanswerable: bool) -> tuple[list[Question], int]:
    questions = list(found)
    if unanswerable:
        return questions, 0
    kept = [question for question in questions if question.references != (UNANSWERABLE,)]
    return kept, len(questions) - len(kept)


def _all(path: Path) -> Iterator[Question]:
    for article in children(document(path), "data"):
        for paragraph in children(article, "paragraphs"):
            context = get_text(paragraph, "context")
            for asked in children(paragraph, "qas"):
                impossible = asked.values.get("is_impossible", False)
                if not isinstance(impossible, bool):
                    raise asked.fail("is_impossible", impossible, "it must be true or false")
                answers = unique(get_text(answer, "text") for answer in children(asked, "answers"))
                if not impossible and not answers:
                    raise asked.fail("answers", [], 'there is none; mark it "is_impossible": true or add one')
                yield _question(asked, context, () if impossible else answers, get_name(article, "title"))


def _hub(row: Row) -> Question:
    answers = unique(texts(Row(f"{row.where}.answers", row.values["answers"]), "text"))
    return _question(row, get_text(row, "context"), answers, get_name(row, "title"))


def _question(row: Row, context: str, answers: tuple[str, ...], title: str | None) -> Question:
    text = f"{context}\n\nQuestion: {get_text(row, 'question')}"
    return Question(id=get_text(row, "id"), question=text, references=answers or (UNANSWERABLE,), group=title)
