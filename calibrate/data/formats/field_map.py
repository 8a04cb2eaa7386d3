"""Columns of a foreign file and the fields that they hold: as a user maps them, or as their names say."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from guardrail.errors import UsageError
from guardrail.types import Unit
from guardrail.uncertainty import EstimatorSpec

from ...spec_syntax import assignment
from ..row import RawRow

__all__ = [
    "FIELDS",
    "IMPORTED",
    "ColumnMap",
    "ScoreColumn",
    "column_names",
    "overlooked",
    "parse_map",
    "proposed",
    "read_as",
    "recognised",
]

FIELDS = (
    *("id", "question", "references", "group"),
    *("answer", "samples", "logprobs", "tokens", "options", "option_scores", "option_scale", "correct", "error"),
    *("tools", "model", "finish_reason"),
)
"""Fields a column can be mapped to; a column of the same name needs no mapping."""

_LABELS = ("correct", "error")
"""Fields of labels."""

_SCORES = ("score", "confidence", "certainty")
"""What a column with a number for each answer can hold."""

_RECOGNISED = ("id", "question", "references", "answer", *_LABELS, "group")
"""Fields that are recognised beside scores in a table that has its scores and labels."""

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

    def column(self, name: str) -> str:
        """The first column of a field; "" if the map leaves the field out."""
        return next(iter(self.of(name)), "")

    def mapped(self, name: str) -> bool:
        """Whether a field was mapped, so that it must be there."""
        return name in self.columns

    @property
    def named(self) -> set[str]:
        """The columns, or paths into them, that a user named."""
        return {name for names in self.columns.values() for name in names} | {score.column for score in self.scores}

    @property
    def read(self) -> set[str]:
        """Every column, or path, that is read where a row has it."""
        return {name for field in FIELDS for name in self.of(field)} | self.named

    def without(self, *names: str) -> ColumnMap:
        """The map with fields that the file does not have, whatever its columns are called."""
        return ColumnMap({**self.columns, **dict.fromkeys(names, ())}, self.scores)


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
        if name in _SCORES:
            scores.append(_score(entry, column, name))
            continue
        _refuse_unknown(entry, name)
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


def _score(entry: str, text: str, kind: str) -> ScoreColumn:
    name, _, column = (part.strip() for part in text.partition(":"))
    if not name or " " in name or "/" in name:
        raise UsageError(f"--map {entry!r}: a score needs a plain name. Write score=NAME:COLUMN.")
    return ScoreColumn(name, column or name, kind == "confidence", certain=kind == "certainty")


def _refuse_unknown(entry: str, name: str) -> None:
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join((*FIELDS, *_SCORES))}."
        raise UsageError(f"--map {entry!r}: unknown field {name!r}. {hint}")


# -- What the names of columns say -------------------------------------------------------------------------------------


def column_names(rows: Iterable[RawRow]) -> list[str]:
    """All columns of the rows, in order of appearance."""
    return list(dict.fromkeys(str(name) for row in rows for name in row.values))


def recognised(rows: Sequence[RawRow], columns: ColumnMap) -> ColumnMap:
    """The map with the columns that are not mapped and have a usual name, such as "confidence" or "is_correct".

    A confidence above 1, as a percentage, is read as a number that is higher for certain answers.
    """
    names = column_names(rows)
    fields, scores = dict(columns.columns), list(columns.scores)
    read, known = _taken(columns, names)
    for name in names:
        field = _usual_field(name)
        if field is None or name in read or field in known:
            continue
        if field in _SCORES:
            if field == "confidence" and any((row.number_or_none(row.values.get(name)) or 0) > 1 for row in rows):
                field = "certainty"
            scores.append(_score(name, f"{'_'.join(name.split())}:{name}", field))
        elif field in _RECOGNISED:
            fields[field] = (name,)
            known |= set(_LABELS) if field in _LABELS else {field}
    return ColumnMap(fields, tuple(scores))


def read_as(columns: ColumnMap, names: Sequence[str]) -> str:
    """The sentence that says which column was taken for what.

    Args:
        columns: The map with the recognised columns.
        names: All columns of the file.
    """
    said: list[str] = []
    used: set[str] = set()
    for score in columns.scores:
        direction = "lower" if not score.confidence and not score.certain else "higher"
        said.append(f"score {score.column} ({direction} is more certain)")
        used.add(score.column)
    for holds in FIELDS:
        for name in columns.of(holds):
            if name in names or columns.mapped(holds):
                said.append(name if name == holds else f"{holds} {name}")
                used.add(name)
    unread = [name for name in names if name and name not in used]
    return f"Read as {', '.join(said)}" + (f"; not read: {', '.join(unread)}." if unread else ".")


def overlooked(seen: Collection[str], columns: ColumnMap) -> Iterator[str]:
    """A hint for each unread column whose name is nearly that of a field that has no column: the ``--map`` to use it.

    Args:
        seen: Columns of the rows.
        columns: The map they were read with.
    """
    read, known = _taken(columns, seen)
    for column in sorted(set(seen) - read):
        near = difflib.get_close_matches(_plain(column), FIELDS, n=1, cutoff=0.8)
        field = _usual_field(column) or next(iter(near), None)
        if field is not None and field not in known:
            holds = _HOLDS.get(field, f"the field {field}")
            mapping = shlex.quote(f"{field}={column}")
            yield f"Column {column!r} was not read. If it holds {holds}: --map {mapping}"


def proposed(names: Sequence[str]) -> str:
    """Options that fit columns by their names, for an error; "" without any."""
    numbered: dict[str, list[str]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*\D)\d+", name):
            numbered.setdefault(match[1], []).append(name)
    samples = max(numbered.values(), key=len, default=[])
    left = [name for name in reversed(names) if name not in samples and name not in FIELDS]
    # A name such as llm_answer says at its end what it holds.
    usual = {_usual_field(name) or _usual_field(re.split("[ _-]", name)[-1]): name for name in left}
    options = [
        f"--map {shlex.quote(f'{field}={usual[field]}')}"
        for field in ("question", "references", "answer")
        if field in usual
    ]
    return " ".join([*options, *([f"--map samples={','.join(samples)}"] if len(samples) > 1 else [])])


def _taken(columns: ColumnMap, names: Collection[str]) -> tuple[set[str], set[str]]:
    """The columns that are read, and the fields that have one; a label and its opposite are one, and so are scores."""
    read = columns.read | {_ROOT.split(path, maxsplit=1)[0] for path in columns.read}
    fields = {field for field in FIELDS if columns.mapped(field) or any(name in names for name in columns.of(field))}
    fields |= set(_LABELS) if fields & set(_LABELS) else set()
    return read, fields | (set(_SCORES) if columns.scores else set())


def _usual_field(column: str) -> str | None:
    """The field that a column of this name usually holds; None for other names."""
    plain = _plain(column)
    return plain if plain in FIELDS else next((name for name, names in _OTHER_NAMES.items() if plain in names), None)


def _plain(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")
