"""Which column of a foreign file holds what."""

from __future__ import annotations

import ast
import difflib
import io
import json
import math
import re
import shlex
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from guardrail.errors import UsageError
from guardrail.types import Unit, is_logprob
from guardrail.uncertainty import EstimatorSpec

from ...spec_syntax import assignment
from ..rows import RawRow

__all__ = [
    "FIELDS",
    "IMPORTED",
    "SCORES",
    "ColumnMap",
    "ScoreColumn",
    "get_list",
    "get_logprob",
    "get_number",
    "get_object",
    "get_text",
    "is_above_one",
    "is_infinite",
    "overlooked",
    "parse_map",
    "read_list",
    "usual_field",
]

FIELDS = (
    *("id", "question", "references", "group"),
    *("answer", "samples", "logprobs", "tokens", "options", "option_scores", "option_scale", "correct", "error"),
    *("tools", "model", "finish_reason"),
)
"""Fields a column can be mapped to; a column of the same name needs no mapping."""

SCORES = ("score", "confidence", "certainty")
"""What a column with a number for each answer can hold."""

_HOLDS = {
    "question": "the question",
    "references": "the accepted answers",
    "answer": "the answer that is judged",
    "samples": "the sampled answers",
    "correct": "whether the answer is right",
    "error": "whether the answer is wrong",
    "confidence": "a confidence in [0, 1]",
    "certainty": "a number that is higher for more certain answers",
    "score": "an uncertainty (higher is less certain)",
}

_SEVERAL = ("samples", "logprobs", "tokens", "option_scores")
"""Fields that may have several columns."""

_OTHER_NAMES = {
    "question": ("prompt", "query", "input", "instruction"),
    "references": (
        "ref",
        "reference",
        "gold",
        "gold_answer",
        "golden_answer",
        "ground_truth",
        "target",
        "expected",
        "expected_answer",
    ),
    "answer": ("response", "output", "prediction", "completion", "model_answer", "reply"),
    "samples": ("generations", "completions", "responses"),
    "correct": ("is_correct", "right", "ok", "label", "passed"),
    "error": ("is_error", "wrong", "incorrect"),
    "confidence": ("confidence", "conf", "probability", "prob", "p_true"),
    "certainty": ("certainty", "logprob", "mean_logprob", "log_likelihood"),
    "score": ("score", "uncertainty", "entropy", "semantic_entropy", "perplexity"),
}
"""Names that columns of a field often have. An import needs a mapping all the same, because a guess may be wrong."""

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
        certain: Whether higher is more certain (a log-probability, a logit), so that the negative is stored.
    """

    name: str
    column: str
    confidence: bool = False
    unit: Unit = "nats"
    certain: bool = False

    @property
    def key(self) -> str:
        """Its key among the scores of a record."""
        return IMPORTED + self.name

    @property
    def spec(self) -> EstimatorSpec:
        """The stored specification. No estimator has this name, so the artifact cannot be used at run time."""
        stored = "1 - value" if self.confidence else "-value" if self.certain else "value"
        params = {"column": self.column, "stored": stored}
        unit: Unit = "probability" if self.confidence else self.unit
        return EstimatorSpec(name=self.key, version=1, unit=unit, params=params)


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Columns by field, and columns with scores.

    Attributes:
        columns: Field to columns; an empty tuple says that the field is not in the file. Several are allowed for
            samples with their log-probabilities and tokens (one each) and option scores (their names are the labels).
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


def parse_map(entries: Iterable[str]) -> ColumnMap:
    """A column map from how a user writes it: "question=prompt", "samples=s1,s2,s3", "score=NAME:COLUMN".

    Args:
        entries: One text a mapping; "-" for a field that is not in the file, though a column has its name. "score" is
            an uncertainty (higher is less certain), "certainty" the opposite, and "confidence" one in [0, 1].

    Raises:
        UsageError: An entry that is not a mapping, an unknown field, or a field that is mapped twice.
    """
    columns: dict[str, tuple[str, ...]] = {}
    scores: list[ScoreColumn] = []
    for entry in entries:
        name, column = assignment(entry)
        if not column:
            raise UsageError(f"--map {entry!r} names no column. Write FIELD=COLUMN, e.g. question=prompt.")
        if name in SCORES:
            scores.append(_score(entry, column, name))
            continue
        _known(entry, name)
        if name in columns:
            raise UsageError(f"--map {entry!r}: {name} is mapped already, to {','.join(columns[name])}. Leave one out.")
        several = [part.strip() for part in _SEPARATE.findall(column)] if name in _SEVERAL else [column.strip()]
        columns[name] = () if column == "-" else tuple(part for part in several if part)
    twice = [score.name for score in scores if [other.name for other in scores].count(score.name) > 1]
    if twice:
        raise UsageError(f"--map: two scores are named {twice[0]!r}. Give each its own name: score=NAME:COLUMN.")
    return ColumnMap(columns, tuple(scores))


_SEPARATE = re.compile(r"""(?:'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|\([^)]*\)|\{[^}]*\}|[^,])+""")
"""Columns between commas, which in the brackets and quotes of a path do not separate."""
_ROOT = re.compile(r"[.\[| ]")
"""End of the column that a path begins with."""


def overlooked(seen: Collection[str], columns: ColumnMap) -> Iterator[str]:
    """A hint for each unread column whose name is nearly that of a field that has no column: the ``--map`` to use it.

    Args:
        seen: Columns of the rows.
        columns: The map they were read with.
    """
    read = {name for field in FIELDS for name in columns.of(field)} | {score.column for score in columns.scores}
    read |= {_ROOT.split(path, maxsplit=1)[0] for path in read}
    used = {field for field in FIELDS if columns.mapped(field) or any(name in seen for name in columns.of(field))}
    used |= {"correct", "error"} if used & {"correct", "error"} else set()
    used |= set(SCORES) if columns.scores else set()
    for column in sorted(set(seen) - read):
        near = difflib.get_close_matches(_plain(column), FIELDS, n=1, cutoff=0.8)
        field = usual_field(column) or next(iter(near), None)
        if field is not None and field not in used:
            holds = _HOLDS.get(field, f"the field {field}")
            mapping = shlex.quote(f"{field}={column}")
            yield f"Column {column!r} was not read. If it holds {holds}: --map {mapping}"


def usual_field(column: str) -> str | None:
    """The field that a column of this name usually holds; None for other names."""
    plain = _plain(column)
    return plain if plain in FIELDS else next((name for name, names in _OTHER_NAMES.items() if plain in names), None)


def _plain(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _score(entry: str, text: str, kind: str) -> ScoreColumn:
    name, _, column = (part.strip() for part in text.partition(":"))
    if not name or " " in name or "/" in name:
        raise UsageError(f"--map {entry!r}: a score needs a plain name. Write score=NAME:COLUMN.")
    return ScoreColumn(name, column or name, kind == "confidence", certain=kind == "certainty")


def _known(entry: str, name: str) -> None:
    if name in FIELDS:
        return
    near = difflib.get_close_matches(name, FIELDS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join((*FIELDS, *SCORES))}."
    raise UsageError(f"--map {entry!r}: unknown field {name!r}. {hint}")


# -- Values of foreign rows: texts, lists, truths and numbers, or an error that names field, value, rule and way out ---
# CSV cells are texts, so lists and objects are parsed there: JSON, as Python writes them, or "a | b" for lists.


def get_text(
    row: RawRow,
    column: str,
    *,
    empty: bool = False,
    way_out: str = "Correct the row, map another column, or pass --skip-bad 0.1.",
) -> str:
    """A text (numbers are written out); ``empty`` allows the empty one."""
    value = row.values.get(column)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and (empty or str(value).strip()):
        return str(value).strip()
    raise row.fail(column, value, f"it must be a text. {_inside(column, value) or way_out}")


def _inside(column: str, value: object) -> str:
    """The way into an object, for an error."""
    names = list(value) if isinstance(value, dict) else []
    return f"Name the path to it: {' or '.join(f'{column}.{name}' for name in names[:4])}." if names else ""


def get_list(row: RawRow, column: str, *, textual: bool) -> list[Any]:
    """A list; one text counts as a list of one, except in CSV, where it is JSON or separated by "|"."""
    value = row.values.get(column)
    if value is None:
        return []
    if textual and isinstance(value, str):
        value = _list_cell(row, column, value) if value.lstrip().startswith("[") else value.split("|")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple):
        raise row.fail(column, value, 'it must be a list, e.g. ["Paris", "Paris, France"]')
    return list(value)


def read_list(text: str) -> list[Any] | None:
    """The list in a text: JSON, or as pandas writes list cells ("['a', 'b']") and arrays ("['a' 'b']"); else None."""
    value = _literal(text)
    return value if isinstance(value, list) and ... not in value else None


def get_object(row: RawRow, column: str, *, textual: bool, keep: Collection[str] = ()) -> dict[str, Any] | None:
    """An object from label to value; None if absent.

    Labels whose value is null are left out, because Parquet pads with them, except those to keep.
    """
    value = row.values.get(column)
    if value is None:
        return None
    if textual and isinstance(value, str):
        value = _literal(value)
    if not isinstance(value, dict):
        written = row.values[column]
        raise row.fail(column, written, 'it must be an object from option label to value, e.g. {"A": 0.7, "B": 0.3}')
    labelled = {str(label).strip(): item for label, item in value.items() if item is not None or label in keep}
    if len(labelled) < 2:
        raise row.fail(column, value, "there must be at least two options")
    return labelled


def get_number(row: RawRow, column: str, value: object) -> float:
    """A finite number, from a number or its text; in a table with semicolons also with a decimal comma."""
    number = _number(row, value)
    if number is None or not math.isfinite(number):
        raise row.fail(column, value, "it must be a finite number. Correct the row, or leave the value out.")
    return number


def is_infinite(row: RawRow, value: object) -> bool:
    """Whether a value is minus or plus infinity, which tools write where they could not measure."""
    number = _number(row, value)
    return number is not None and math.isinf(number)


def is_above_one(row: RawRow, value: object) -> bool:
    """Whether a value is a number above 1, which no confidence is."""
    number = _number(row, value)
    return number is not None and number > 1


def _number(row: RawRow, value: object) -> float | None:
    if isinstance(value, str) and row.decimal_comma and "." not in value:
        value = value.replace(",", ".")
    try:
        return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def get_logprob(row: RawRow, column: str, value: object) -> float | None:
    """A log-probability, from a number or its text; None if it was not measured: null, NaN, -inf or a placeholder."""
    try:
        number = None if value is None or isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.inf
    if isinstance(value, bool) or (number is not None and number > 1e-6):
        raise row.fail(column, value, "a log-probability is a number of at most 0. Is it a probability?")
    return number if number is not None and is_logprob(number) else None


def _list_cell(row: RawRow, column: str, cell: str) -> list[Any]:
    items = read_list(cell)
    if items is None:
        raise row.fail(column, cell, "it is not a list, as JSON or as Python writes it. A long array may be cut (...)")
    return items


def _literal(text: str) -> Any:
    """The value that a text writes, as JSON or as Python's repr or NumPy's str does; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(_with_commas(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError):
        return None


_OPEN, _CLOSE = frozenset("[({"), frozenset("])}")


def _with_commas(text: str) -> str:
    """Python source with a comma between neighbours: "['a' 'b']" of a NumPy array would be read as one text 'ab'."""
    parts: list[str] = []
    ended = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        value = token.type in (tokenize.STRING, tokenize.NUMBER)
        if ended and (value or token.string in _OPEN or token.string == "-"):
            parts.append(",")
        if value or token.type in (tokenize.OP, tokenize.NAME):
            parts.append(token.string)
            ended = value or token.string in _CLOSE
        elif token.type in (tokenize.COMMENT, tokenize.ERRORTOKEN):
            raise ValueError("not a literal")
    return " ".join(parts)
