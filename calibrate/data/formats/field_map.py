"""A user's description of a foreign file: which column holds what, and what its values mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from guardrail.errors import UsageError, did_you_mean
from guardrail.prompting import PromptWrapping
from guardrail.specs import IMPORTED
from guardrail.types import MAX_TOKENS, Unit
from guardrail.uncertainty import EstimatorSpec

from ...spec_syntax import assignment
from ..row import RawRow, is_nan

FIELDS = (
    *("id", "question", "references", "group"),
    *("answer", "samples", "logprobs", "tokens", "options", "option_scores", "option_scale", "correct", "error"),
    *("tools", "model", "finish_reason"),
)
"""Fields a column can be mapped to; a column of the same name needs no mapping."""

ScoreKind = Literal["score", "confidence", "certainty"]
SCORES: tuple[ScoreKind, ...] = get_args(ScoreKind)
"""Kinds of columns with a number for each answer; see `ScoreColumn`."""

_SEVERAL = ("samples", "logprobs", "tokens", "option_scores")
"""Fields that may have several columns."""

Primary = Literal["first", "sampled", "majority"]
"""Which sample is the answer, where no column holds one.

* first: the first sample, which is then no longer a sample (for files that put the greedy answer first).
* sampled: the same, for files whose first sample was drawn like the others.
* majority: the most frequent sample (`guardrail.judges.majority`). All stay samples.

The plan records it, and a guard draws its answers in the same way.
"""

OptionScale = Literal["logit", "logprob", "probability"]
"""What option scores are: logits (any common offset), log-probabilities (at most 0), or probabilities."""

OtherLabels = Literal["wrong", "unlabelled"]
"""What a label is that says neither right nor wrong, such as "unparseable"."""

SCORE_PREFIX = "imported:"
"""What the names of imported scores begin with: no estimator of the library has such a name."""


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """A column with an uncertainty that another tool computed.

    Attributes:
        name: Name of the score, without "imported:".
        column: The column.
        holds: "score" for an uncertainty, which is stored; "confidence" for a number in [0, 1], of which 1 minus it is
            stored; "certainty" for any other number that is higher where an answer is more certain (a log-probability,
            a logit), of which the negative is stored.
    """

    name: str
    column: str
    holds: ScoreKind = "score"

    @property
    def key(self) -> str:
        """Its key among the scores of a record."""
        return SCORE_PREFIX + self.name

    @property
    def spec(self) -> EstimatorSpec:
        """The stored specification. No estimator has this name, so the artifact cannot be used at run time."""
        stored = {"score": "value", "confidence": "1 - value", "certainty": "-value"}[self.holds]
        # The unit of other numbers is unknown and never shown; "nats" is stored as one that has no upper limit.
        unit: Unit = "probability" if self.holds == "confidence" else "nats"
        return EstimatorSpec(name=self.key, version=1, unit=unit, params={"column": self.column, "stored": stored})


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
        """Return whether a field was mapped, so that it must be there."""
        return name in self.columns

    @property
    def named(self) -> set[str]:
        """The columns, or paths into them, that a user named."""
        return {name for names in self.columns.values() for name in names} | {score.column for score in self.scores}

    def by_field(self, rows: Iterable[RawRow]) -> list[RawRow]:
        """The rows with their values by field, and by key of the scores; errors name the columns.

        With samples=s1,s2 and confidence=sure:p, {"s1": "a", "s2": "b", "p": .9} becomes
        {"samples": ["a", "b"], "imported:sure": .9}.

        The values of several columns are a list, those of option scores an object. NaN is no value, as in data frames.

        Args:
            rows: Rows with the values at the paths that the map names (`RawRow.with_paths`).
        """
        columns_of = {name: self.of(name) for name in FIELDS}
        columns_of |= {score.key: (score.column,) for score in self.scores}
        in_errors = {name: ",".join(columns) for name, columns in columns_of.items()}

        def values_of(row: RawRow) -> Iterator[tuple[str, Any]]:
            cells = {column: value for column, value in row.values.items() if not is_nan(value)}
            for name, columns in columns_of.items():
                if len(columns) == 1 and columns[0] in cells:
                    yield name, cells[columns[0]]
                elif len(columns) > 1 and any(column in cells for column in columns):
                    several = {column: cells.get(column) for column in columns}
                    yield name, several if name == "option_scores" else list(several.values())

        return [replace(row, values=dict(values_of(row)), columns=in_errors) for row in rows]

    def present(self, rows: Iterable[RawRow]) -> frozenset[str]:
        """The fields that are mapped, or that some row has, of rows by field: all rows are read for them."""
        with_values = {name for row in rows for name in row.values}
        return frozenset(name for name in FIELDS if self.of(name) and (self.mapped(name) or name in with_values))


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """A user's description of a foreign file.

    Attributes:
        format: A kind of file, or an export of another tool (`EXPORTS`); None: the kind that the file's name says.
        columns: Which column, or path into nested columns, holds what; others are columns of the fields' own names.
        rows: Path of the rows in a JSON document that is not a list of them; a filter of the rows of other files.
        primary: Which sample is the answer, where no column holds one.
        option_scale: What option scores are; None: the file says so.
        right: Labels that say right (or one), where they are not usual words such as "yes", "pass" and 1.
        cut: Labels are grades, and right from this number on.
        other_labels: What a label is that says neither right nor wrong; None: the file is refused.
        model: Name of the model; default: the column "model", or `UNNAMED`.
        provider: Who serves it. With the provider and model of a running chat model the artifact loads there.
        temperature: Temperature of the samples; None: 0.7.
        top_p: Nucleus mass of the samples.
        max_tokens: Longest answer.
        cut_off: Whether an answer that was cut off, or whose end is stated as unknown, is unmeasured or like others.
        prompt: How the questions were asked.
        skip_bad: Count malformed rows instead of stopping at the first.
    """

    format: str | None = None
    columns: ColumnMap = field(default_factory=ColumnMap)
    rows: str | None = None
    primary: Primary = "majority"
    option_scale: OptionScale | None = None
    right: str | Sequence[str] = ()
    cut: float | None = None
    other_labels: OtherLabels | None = None
    model: str | None = None
    provider: str = IMPORTED
    temperature: float | None = None
    top_p: float = 0.9
    max_tokens: int = MAX_TOKENS
    cut_off: Literal["abstain", "measure"] = "abstain"
    prompt: PromptWrapping = field(default_factory=PromptWrapping)
    skip_bad: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The words of ``right``."""
        return (self.right,) if isinstance(self.right, str) else tuple(self.right)


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
            scores.append(score_column(entry, column, name))
            continue
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS) or f"Known: {', '.join((*FIELDS, *SCORES))}."
            raise UsageError(f"--map {entry!r}: unknown field {name!r}. {hint}")
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


def score_column(entry: str, text: str, holds: str) -> ScoreColumn:
    """The column that NAME:COLUMN, or a column that is its own name, says; ``holds`` is one of `SCORES`."""
    name, _, column = (part.strip() for part in text.partition(":"))
    if not name or " " in name or "/" in name:
        raise UsageError(f"--map {entry!r}: a score needs a plain name. Write score=NAME:COLUMN.")
    return ScoreColumn(name, column or name, cast(ScoreKind, holds))
