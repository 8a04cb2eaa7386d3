"""Which column of a foreign file holds what."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from guardrail.errors import UsageError
from guardrail.types import Unit
from guardrail.uncertainty import EstimatorSpec

from ...spec_syntax import assignment

__all__ = [
    "FIELDS",
    "IMPORTED",
    "LABELS",
    "SCORES",
    "ColumnMap",
    "ScoreColumn",
    "overlooked",
    "parse_map",
    "taken",
    "usual_field",
]

FIELDS = (
    *("id", "question", "references", "group"),
    *("answer", "samples", "logprobs", "tokens", "options", "option_scores", "option_scale", "correct", "error"),
    *("tools", "model", "finish_reason"),
)
"""Fields a column can be mapped to; a column of the same name needs no mapping."""

LABELS = ("correct", "error")
"""Fields of labels."""

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


def taken(columns: ColumnMap, names: Collection[str]) -> tuple[set[str], set[str]]:
    """The columns that are read, and the fields that have one; a label and its opposite are one, and so are scores.

    Args:
        columns: The map.
        names: Columns of the rows.
    """
    read = {name for field in FIELDS for name in columns.of(field)} | {score.column for score in columns.scores}
    read |= {_ROOT.split(path, maxsplit=1)[0] for path in read}
    fields = {field for field in FIELDS if columns.mapped(field) or any(name in names for name in columns.of(field))}
    fields |= set(LABELS) if fields & set(LABELS) else set()
    return read, fields | (set(SCORES) if columns.scores else set())


def overlooked(seen: Collection[str], columns: ColumnMap) -> Iterator[str]:
    """A hint for each unread column whose name is nearly that of a field that has no column: the ``--map`` to use it.

    Args:
        seen: Columns of the rows.
        columns: The map they were read with.
    """
    read, used = taken(columns, seen)
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
