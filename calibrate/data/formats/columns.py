"""Which column of a foreign file holds what."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guardrail.errors import UsageError
from guardrail.types import Unit
from guardrail.uncertainty import EstimatorSpec

from ...grammar import assignment
from ..questions import Row

__all__ = [
    "FIELDS",
    "IMPORTED",
    "ColumnMap",
    "ScoreColumn",
    "get_list",
    "get_number",
    "get_object",
    "get_text",
    "get_truth",
    "parse_map",
]

FIELDS = (
    *("id", "question", "references", "group"),
    *("answer", "samples", "options", "option_scores", "option_scale", "correct", "error"),
)
"""Fields a column can be mapped to; a column of the same name needs no mapping."""

IMPORTED = "imported:"
"""What the names of imported scores begin with: no estimator of the library has such a name."""


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """A column with an uncertainty that another tool computed.

    Attributes:
        name: Name of the score, without "imported:".
        column: The column.
        confidence: Whether the column holds a confidence in [0, 1], of which 1 minus it is stored.
        unit: Unit of the stored value.
    """

    name: str
    column: str
    confidence: bool = False
    unit: Unit = "nats"

    @property
    def key(self) -> str:
        """Its key among the scores of a record."""
        return IMPORTED + self.name

    @property
    def spec(self) -> EstimatorSpec:
        """What the artifact stores. No estimator has this name, so the artifact cannot be used at run time."""
        params = {"column": self.column, "stored": "1 - value" if self.confidence else "value"}
        unit: Unit = "probability" if self.confidence else self.unit
        return EstimatorSpec(name=self.key, version=1, unit=unit, params=params)


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Columns by field, and columns with scores.

    Attributes:
        columns: Field to columns; an empty tuple says that the field is not in the file. Several are allowed for
            samples (one each) and option scores (their names are the labels).
        scores: Columns with uncertainties.
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scores: tuple[ScoreColumn, ...] = ()

    def of(self, name: str) -> tuple[str, ...]:
        """Columns of a field: as mapped, else the column of the same name."""
        return self.columns.get(name, (name,))

    def mapped(self, name: str) -> bool:
        """Whether a field was mapped, so that it must be there."""
        return name in self.columns


def parse_map(entries: Iterable[str], *, unit: Unit = "nats") -> ColumnMap:
    """A column map from how a user writes it: "question=prompt", "samples=s1,s2,s3", "score=NAME:COLUMN".

    Args:
        entries: One text a mapping. "score" is an uncertainty (higher is less certain), "confidence" the opposite.
        unit: Unit of every "score"; a "confidence" is a probability.

    Raises:
        UsageError: An entry that is not a mapping, an unknown field, or a field that is mapped twice.
    """
    columns: dict[str, tuple[str, ...]] = {}
    scores: list[ScoreColumn] = []
    for entry in entries:
        name, column = assignment(entry)
        if not column:
            raise UsageError(f"--map {entry!r} names no column. Write FIELD=COLUMN, e.g. question=prompt.")
        if name in ("score", "confidence"):
            scores.append(_score(entry, column, name == "confidence", unit))
            continue
        _known(entry, name)
        if name in columns:
            raise UsageError(f"--map {entry!r}: {name} is mapped already, to {','.join(columns[name])}. Leave one out.")
        columns[name] = tuple(part.strip() for part in column.split(",") if part.strip())
        if len(columns[name]) > 1 and name not in ("samples", "option_scores"):
            raise UsageError(f"--map {entry!r}: only samples and option_scores may have several columns")
    twice = [score.name for score in scores if [other.name for other in scores].count(score.name) > 1]
    if twice:
        raise UsageError(f"--map: two scores are named {twice[0]!r}. Give each its own name: score=NAME:COLUMN.")
    return ColumnMap(columns, tuple(scores))


def _score(entry: str, text: str, confidence: bool, unit: Unit) -> ScoreColumn:
    name, _, column = (part.strip() for part in text.partition(":"))
    if not name or " " in name or "/" in name:
        raise UsageError(f"--map {entry!r}: a score needs a plain name. Write score=NAME:COLUMN.")
    return ScoreColumn(name, column or name, confidence, unit)


def _known(entry: str, name: str) -> None:
    if name in FIELDS:
        return
    near = difflib.get_close_matches(name, FIELDS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join((*FIELDS, 'score', 'confidence'))}."
    raise UsageError(f"--map {entry!r}: unknown field {name!r}. {hint}")


# -- Values of foreign rows: texts, lists, truths and numbers, or an error that names field, value, rule and way out ---
# CSV cells are texts, so lists and objects are parsed there: JSON, or "a | b" for lists.

_WORDS = {
    **{word: True for word in ("true", "1", "1.0", "yes", "right", "correct")},
    **{word: False for word in ("false", "0", "0.0", "no", "wrong", "incorrect")},
}


def get_text(row: Row, column: str, *, empty: bool = False) -> str:
    """A text (numbers are written out); ``empty`` allows the empty one."""
    value = row.values.get(column)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and (empty or str(value).strip()):
        return str(value).strip()
    raise row.fail(column, value, "it must be a text. Correct the row, map another column, or pass --skip-bad.")


def get_list(row: Row, column: str, *, textual: bool) -> list[Any]:
    """A list; one text counts as a list of one, except in CSV, where it is JSON or separated by "|"."""
    value = row.values.get(column)
    if value is None:
        return []
    if textual and isinstance(value, str):
        value = _json(row, column, value) if value.lstrip().startswith("[") else value.split("|")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list):
        raise row.fail(column, value, 'it must be a list, e.g. ["Paris", "Paris, France"]')
    return value


def get_object(row: Row, column: str, *, textual: bool) -> dict[str, Any] | None:
    """An object from label to value, without labels whose value is null (Parquet pads with them); None if absent."""
    value = row.values.get(column)
    if value is None:
        return None
    if textual and isinstance(value, str):
        value = _json(row, column, value)
    if not isinstance(value, dict):
        raise row.fail(column, value, 'it must be an object from option label to value, e.g. {"A": 0.7, "B": 0.3}')
    kept = {str(label).strip(): item for label, item in value.items() if item is not None}
    if len(kept) < 2:
        raise row.fail(column, value, "there must be at least two options")
    return kept


def get_truth(row: Row, column: str) -> bool | None:
    """True or false in any usual spelling; None when it is absent."""
    value = row.values.get(column)
    if value is None:
        return None
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise row.fail(column, value, "write true or false (also 1/0, yes/no, right/wrong), or leave it out")
    return _WORDS[word]


def get_number(row: Row, column: str, value: object) -> float:
    """A finite number, from a number or its text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise row.fail(column, value, "it must be a finite number. Correct the row, or leave the value out.")
    return number


def _json(row: Row, column: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except json.JSONDecodeError as error:
        raise row.fail(column, cell, f"it is not JSON ({error.msg} at column {error.colno})") from error
