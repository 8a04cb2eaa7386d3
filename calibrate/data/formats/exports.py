"""What the exports of evaluation and labelling tools hold, and where: each is a list of paths, and needs no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Export:
    """An export of another tool.

    Args:
        has: Fields by which a row is recognised, in order to propose the format.
        entries: What a user would write after --map.
        rows: Path of the rows in a JSON document that is an object.
        right: Labels that say right, where they are other words than the usual ones.
    """

    def __init__(self, has: str, *entries: str, rows: str | None = None, right: tuple[str, ...] = ()) -> None:
        self.has = frozenset(has.split())
        self.map = entries
        self.rows = rows
        self.right = right


EXPORTS: dict[str, Export] = {
    "argilla": Export(
        "correct.responses",
        *("question=question || fields.question", "answer=answer || fields.answer"),
        'correct="correct.responses" || responses.correct[].value',
    ),
    "deepeval": Export(
        "actualOutput",
        *("id=name", "question=input", "answer=actualOutput", "references=expectedOutput", "correct=success"),
        rows="testCases",
    ),
    "inspect": Export(
        "epoch scores",
        *("question=input", "answer=output.completion", "references=target", "correct=values(scores)[].value"),
        rows="samples",
        right=("C",),
    ),
    "label-studio": Export(
        "data annotations",
        *("question=data.question", "answer=data.answer"),
        "correct=annotations[?!was_cancelled].result[].value.choices[]",
    ),
    "langfuse": Export(
        "input output scores",
        "question=input",
        "answer=output",
        "correct=scores[].[stringValue || string_value || value][]",  # of a category the value is its number
    ),
    "langsmith": Export(
        "inputs outputs",
        *("question=inputs.question", "answer=outputs.answer", "references=reference_outputs.answer", "error=-"),
        'correct=feedback_stats.correctness.avg || "feedback.correctness"',
    ),
    "lm-eval": Export(
        "doc_id resps",
        *("id=doc_id", "question=doc.question", "references=target", "answer=filtered_resps[0]", "correct=exact_match"),
    ),
    "openai-batch": Export("custom_id response", "id=custom_id", "samples=response.body.choices", "error=-"),
    "promptfoo": Export(
        "testIdx vars response",
        *("id=testIdx", "question=vars.question || prompt.raw", "answer=response.output", "references=vars.expected"),
        *("error=-", "correct=(failureReason != `2` && [success]) | [0]"),  # 2: the call failed, there was no answer
        rows="results.results",
    ),
    "ragas": Export("user_input response", "question=user_input", "answer=response", "references=reference"),
}
"""Exports by the name that --format takes; any --map beside it comes first."""


def export_like(values: Mapping[str, Any]) -> str | None:
    """Name of the export whose fields a row has."""
    return next((name for name, export in EXPORTS.items() if export.has <= set(values)), None)
