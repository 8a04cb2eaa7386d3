"""The same question with the same answer, labelled right in one record and wrong in another."""

from __future__ import annotations

import json
from collections.abc import Iterable

from guardrail.errors import UsageError

from ..records import Record

__all__ = ["contradictions", "refuse_contradictions"]


def contradictions(records: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Pairs of records that label one answer to one question both ways, in file order.

    Questions are the same if their text and options are; answers are if their text (surrounding white space apart) and
    tool calls are, whatever the references: they differ where a data set holds a question twice with two golds. Records
    that were imported without answers are compared by their question alone. Each record is in one pair at most, with
    the first record of the other label.
    """
    first: dict[tuple[str, bool], Record] = {}
    found = []
    for record in records:
        if record.correct is None:
            continue
        key = _key(record)
        other = first.get((key, not record.correct))
        if other is not None:
            found.append((other, record))
        first.setdefault((key, record.correct), record)
    return found


def refuse_contradictions(records: Iterable[Record]) -> None:
    """Stop where `contradictions` finds a pair.

    Raises:
        UsageError: Naming both records of the first pair and the number of pairs.
    """
    found = contradictions(records)
    if not found:
        return
    right, wrong = sorted(found[0], key=lambda record: not record.correct)
    more = f" ({len(found)} such pairs in all)" if len(found) > 1 else ""
    answer = "" if right.answer is None else f" and the same answer {right.answer[:80]!r}"
    raise UsageError(
        f"records {right.id!r} and {wrong.id!r} have the same question {right.question[:80]!r}{answer}, but the first "
        f"is labelled right and the second wrong{more}. One of the labels (or its reference) is a mistake: correct it "
        "and label again, or leave a record out (calibrate import --exclude ID)."
    )


def _key(record: Record) -> str:
    primary = record.drawn.primary if record.drawn is not None else None
    calls = [call.model_dump() for call in primary.tool_calls] if primary is not None else []
    answer = None if primary is None else primary.text.strip()
    return json.dumps([record.question.strip(), record.options, answer, calls], sort_keys=True, ensure_ascii=False)
