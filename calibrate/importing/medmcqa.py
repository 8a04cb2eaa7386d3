"""MedMCQA (Pal et al. 2022): one JSON object a line with question, opa ... opd and cop, the correct option.

The official files count cop from 1 (the builder of `datasets` subtracts 1), the copy on the hub counts from 0 and its
card says otherwise. Nothing in a row tells them apart, but the file does: a 0 or a 4 occurs in any real one. Where
neither does, the base has to be named (medmcqa-1 or medmcqa-0): reading it wrong would shift every label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guardrail.errors import UsageError

from ..datasets import Question, Row
from .cells import get_name, get_text

__all__ = ["is_medmcqa", "medmcqa_questions"]

_COLUMNS = {"A": "opa", "B": "opb", "C": "opc", "D": "opd"}


def is_medmcqa(values: dict[str, Any]) -> bool:
    """Whether a row is of MedMCQA."""
    return {"question", "cop", *_COLUMNS.values()} <= set(values)


def medmcqa_questions(rows: Sequence[Row], base: int | None = None) -> list[Question]:
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
    return [_question(row, number, base) for row, number in zip(rows, numbers, strict=True)]


def _cop(row: Row) -> int:
    value = row.values.get("cop")
    if isinstance(value, bool) or not isinstance(value, int):
        raise row.fail("cop", value, "it must be the number of the correct option")
    if value == -1:
        raise row.fail("cop", value, "the answers of the test part are withheld. Use the train or dev part.")
    if not 0 <= value <= 4:
        raise row.fail("cop", value, "it must be in 1 ... 4, or 0 ... 3 in the copy on the hub")
    return value


def _base(rows: Sequence[Row], numbers: Sequence[int]) -> int:
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


def _question(row: Row, number: int, base: int) -> Question:
    options = {label: get_text(row, column) for label, column in _COLUMNS.items()}
    if not 0 <= number - base < len(options):
        raise row.fail("cop", number, f"it must be in {base} ... {base + 3} where options are counted from {base}")
    return Question(
        id=get_text(row, "id"),
        question=get_text(row, "question"),
        references=(tuple(options)[number - base],),
        options=options,
        group=get_name(row, "subject_name"),
    )
