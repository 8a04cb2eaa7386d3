"""What the report of a gate of items has beside that of whole answers: fields by path, and answers field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import figures_lines
from guardrail.items.spec import ItemsSpec
from guardrail.notebook import Table

from ..data.record import Record
from ..data.table import table_of
from ..items.figures import path_rows, path_warnings, paths_table
from ..scoring.items import ScoredItems
from .content import Part

__all__ = ["FieldShown", "ItemSection", "item_sections"]

MOST_EXAMPLES = 12
"""Answers to read."""
PATHS = ("path", "items", "wrong", "kept", "wrong among kept")


@dataclass(frozen=True, slots=True)
class FieldShown:
    """A field of an answer to read."""

    name: str
    text: str
    kept: bool
    label: str
    score: str


@dataclass(frozen=True, slots=True)
class ItemSection:
    """The items of one part.

    Attributes:
        name: Of the part.
        lines: Counts in sentences.
        warnings: Fields that err too often.
        paths: Counts by path.
        answers: Question and fields of answers chosen evenly over the part, not by hand.
    """

    name: str
    lines: Sequence[str]
    warnings: Sequence[str]
    paths: Table
    answers: Sequence[tuple[str, Sequence[FieldShown]]]


def item_sections(artifact: CalibrationArtifact, parts: Sequence[Part]) -> list[ItemSection]:
    """The items of each part, the test part first."""
    return [_section(artifact, part) for part in reversed(parts)]


def _section(artifact: CalibrationArtifact, part: Part) -> ItemSection:
    scored = ScoredItems.of(table_of(part.records), ItemsSpec.of(artifact.estimator))
    rows = path_rows(scored.items, artifact.threshold, scored.columns)
    kept = iter(scored.items.kept(artifact.threshold).tolist())
    shown = [(record.question, tuple(_fields(record, kept))) for record in scored.records]
    return ItemSection(
        name=part.name,
        lines=figures_lines(part.counts.items or artifact.items, artifact.outcome.rule),
        warnings=path_warnings(artifact, rows),
        paths=Table(PATHS, tuple(paths_table(rows)), prose=PATHS[:1]),
        answers=shown[:: max(1, len(shown) // MOST_EXAMPLES)][:MOST_EXAMPLES],
    )


def _fields(record: Record, kept: Iterator[bool]) -> Iterator[FieldShown]:
    labels = () if record.item_labels is None else record.item_labels.right
    for item, label in zip(record.items or (), labels, strict=True):
        yield FieldShown(
            name=item.path,
            text="(left out)" if item.absent else item.text,
            kept=next(kept),
            label={True: "", False: "wrong", None: "undecided"}[label],
            score="not measured" if item.uncertainty is None else f"{item.uncertainty:.2g}",
        )
