"""Foreign rows to records and a header that every later step accepts."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Literal

from guardrail.errors import RecordError, UsageError, did_you_mean
from guardrail.files import atomic_write
from guardrail.prompting import PromptWrapping
from guardrail.specs import IMPORTED, CorrectnessSpec, ModelIdentity
from guardrail.types import MAX_TOKENS, Bindings, SamplingPlan

from ..collect import package_versions
from ..questions import RawRow, fingerprint, get_name
from ..records import Record, RecordFile, RecordHeader
from .build import Builder, OptionScale, OtherLabels, Primary, check_references
from .field_map import FIELDS, ColumnMap, overlooked
from .layouts import LAYOUTS, Layout, detect
from .rows import KINDS, Found, open_rows

__all__ = ["Bad", "ImportSettings", "Imported", "import_file", "import_rows", "write_bad"]


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """A user's description of a foreign file.

    Attributes:
        format: A kind of file, or a published layout; None recognises it.
        columns: Which column holds what; None: columns of the fields' own names, or the layout's.
        primary: Which sample is the answer, where no column holds one.
        answer: Column with the answer.
        option_scale: What option scores are; None: the file says so.
        other_labels: What a label is that says neither right nor wrong; None: its row is malformed.
        system: Which system to read, from a layout with several, or a value of the column "model".
        model: Name of the model; default: the system, the column "model", or the name of the file.
        provider: Who serves it. With the provider and model of a running chat model the artifact loads there.
        temperature: Temperature of the samples; None: the layout's, or 0.7.
        top_p: Nucleus mass of the samples.
        max_tokens: Longest answer.
        cut_off: Whether an answer that was cut off, or whose end is stated as unknown, is unmeasured or like others.
        prompt: How the questions were asked.
        exclude: Ids of records to leave out; each must be there.
        skip_bad: Count malformed rows instead of stopping at the first.
    """

    format: str | None = None
    columns: ColumnMap = field(default_factory=ColumnMap)
    primary: Primary = "majority"
    answer: str | None = None
    option_scale: OptionScale | None = None
    other_labels: OtherLabels | None = None
    system: str | None = None
    model: str | None = None
    provider: str = IMPORTED
    temperature: float | None = None
    top_p: float = 0.9
    max_tokens: int = MAX_TOKENS
    cut_off: Literal["abstain", "measure"] = "abstain"
    prompt: PromptWrapping = field(default_factory=PromptWrapping)
    exclude: tuple[str, ...] = ()
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that was left out.

    Attributes:
        problem: File, line, field, value, rule and way out.
        row: Its values; None when it could not be read at all.
    """

    problem: str
    row: object = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A file that was read.

    Attributes:
        file: Header and records, in memory.
        layout: Name of the layout, or the kind of file.
        bad: Rows that were left out because they are malformed.
        notes: Cautions.
        n_rows: Rows of this system: records, bad ones and excluded ones.
    """

    file: RecordFile
    layout: str
    bad: tuple[Bad, ...]
    notes: tuple[str, ...]
    n_rows: int


def import_file(path: str | Path, settings: ImportSettings | None = None) -> Imported:
    """Read generations, scores and labels from another tool.

    Raises:
        RecordError: A malformed row (without ``skip_bad``); file, line and field are named.
        UsageError: A missing file, an unknown layout, system or column, several models, or nothing to import.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path, settings = Path(path), settings or ImportSettings()
    kind, layout = _kind(settings.format, path)
    source = open_rows(path, kind)
    first, rows = _first_row(source.rows)
    if first is None:
        raise UsageError(f"{path} holds no row that can be read. Each row must be one question.")
    if layout is None and settings.format is None and not settings.columns.columns and not settings.columns.scores:
        layout = detect(path, first.values)
    name = kind or path.suffix.removeprefix(".") or "dataset folder"
    return _imported(rows, settings, path, name, layout, first, textual=source.textual)


def import_rows(rows: Iterable[Found], settings: ImportSettings | None = None, *, name: str = "rows") -> Imported:
    """As `import_file`, of rows in memory: the values of each are as in JSON.

    Args:
        rows: The rows; each says in errors where it is.
        settings: What the rows hold.
        name: Name of the questions, and of the model if nothing else names it.

    Raises:
        RecordError: A malformed row (without ``skip_bad``).
        UsageError: As `import_file`.
    """
    return _imported(rows, settings or ImportSettings(), Path(name), "rows", None, None, textual=False)


def _imported(
    rows: Iterable[Found],
    settings: ImportSettings,
    path: Path,
    kind: str,
    layout: Layout | None,
    first: RawRow | None,
    *,
    textual: bool,
) -> Imported:
    system = layout.choose(first.values, settings.system) if layout is not None and first is not None else None
    columns = _columns(settings, layout)
    builder = Builder(
        columns,
        settings.primary,
        settings.option_scale,
        textual=textual and layout is None,
        other_labels=settings.other_labels,
        cut_off=settings.cut_off,
    )
    reader = _Reader(builder, layout, settings.system if layout is None else system, settings.skip_bad)
    try:
        records = reader.read(rows)
    except RecordError:
        if layout is None and reader.seen:  # a missing model has an error of its own, and so has a bad first row
            named = {name: mapped for name, mapped in columns.columns.items() if name != "model"}
            _refuse_unseen(path, ColumnMap(named, columns.scores), reader.seen)
        raise
    model = reader.model(path)
    if not records:
        if layout is None:
            _refuse_unseen(path, columns, reader.seen)
        if not reader.bad:
            raise UsageError(f"{path} holds no row that can be read. Each row must be one question.")
        raise UsageError(f"none of {reader.n_rows} rows of {path} can be read. The first: {reader.bad[0].problem}")
    remaining = _without(records, settings.exclude)
    header = _header(path, settings, layout, model, builder, remaining, reader.seen)
    _refuse_unseen(path, columns, reader.seen)
    unread = () if layout is not None else overlooked(reader.seen, columns)
    notes = [
        *reader.notes(),
        *builder.notes(),
        *unread,
        *_notes(settings, layout, remaining, header.plan),
        *_excluded(settings),
    ]
    name = layout.name if layout is not None else kind
    return Imported(RecordFile(path, header, tuple(remaining)), name, tuple(reader.bad), tuple(notes), reader.n_rows)


def write_bad(path: Path, bad: Sequence[Bad]) -> None:
    """Write the rows that were left out, one JSON object a line; without any, remove what an earlier import wrote."""
    if not bad:
        path.unlink(missing_ok=True)
        return
    lines = (
        json.dumps({"problem": bad_row.problem, "row": bad_row.row}, ensure_ascii=False, default=str) for bad_row in bad
    )
    atomic_write(path, (f"{line}\n".encode() for line in lines), private=True)


class _Reader:
    """Builds records row by row; stops at the first malformed row, or counts it.

    Of rows with a model column only those of one model are read. All are counted, so that an error can list them.
    """

    def __init__(self, builder: Builder, layout: Layout | None, system: str | None, skip_bad: bool) -> None:
        self.bad: list[Bad] = []
        self.n_rows = 0
        self.seen: set[str] = set()
        self._builder, self._layout, self._system, self._skip = builder, layout, system, skip_bad
        self._ids: dict[str, str] = {}
        self._models: Counter[str] = Counter()
        self._n_left_out = 0

    def read(self, rows: Iterable[Found]) -> list[Record]:
        """All records of the system."""
        records = []
        for row in rows:
            try:
                if isinstance(row, RecordError):
                    raise row
                plain = self._adapted(row)
                if plain is not None:
                    self.n_rows += 1
                    records.append(self._one(plain))
            except RecordError as error:
                self.n_rows += isinstance(row, RecordError)
                if not self._skip:
                    # The first cell may be missing because its column is: only all rows can tell.
                    self.seen.update(name for later in rows if isinstance(later, RawRow) for name in later.values)
                    raise
                self.bad.append(Bad(str(error), None if isinstance(row, RecordError) else dict(row.values)))
        return records

    def model(self, path: Path) -> str | None:
        """The model that was read, as the file names it.

        Raises:
            UsageError: The file holds several and none was chosen, or it lacks the chosen one.
        """
        there = ", ".join(f"{name} ({count} rows)" for name, count in self._models.items())
        if self._layout is not None:
            return self._system or None
        if self._system is not None and not self._models:
            raise UsageError(
                "--system is for layouts with several systems (nq, mmlu-pro) and files with a column of models "
                "(--map model=COLUMN); use --map for other files"
            )
        if self._system is not None and self._system not in self._models:
            raise UsageError(f"--system {self._system}: {path} holds the models {there}. Choose one of them.")
        if self._system is None and len(self._models) > 1:
            raise UsageError(
                f"{path} holds several models: {there}. A threshold is valid for one: choose it with --system NAME, "
                "and import each to its own file."
            )
        return self._system or next(iter(self._models), None)

    def notes(self) -> Iterator[str]:
        """Sentences about rows that were left out on purpose."""
        if self._n_left_out and self._layout is not None:
            yield f"{self._n_left_out} {self._layout.left_out} were left out."
        others = sum(count for name, count in self._models.items() if name != self._system)
        if self._system is not None and others:
            yield f"{others} rows of other models were left out."

    def _adapted(self, row: RawRow) -> RawRow | None:
        """The row in plain form; None for one to leave out."""
        if self._layout is not None:
            values = self._layout.adapt(row, self._system or "")
            self._n_left_out += values is None
            return None if values is None else RawRow(row.where, values)
        self.seen.update(row.values)
        column = next(iter(self._builder.columns.of("model")), "")
        if column not in row.values and not (self._builder.columns.mapped("model") and column):
            return row
        name = get_name(row, column)
        if name is None:
            raise row.fail(column, None, "every row must name its model")
        self._models[name] += 1
        return row if name == (self._system or next(iter(self._models))) else None

    def _one(self, plain: RawRow) -> Record:
        self.seen.update(plain.values)
        if not self._builder.ready:
            self._builder.expect(plain)
            _refuse_empty(self._builder, plain)
        record = self._builder.build(plain)
        check_references(plain, record)
        if record.id in self._ids:
            raise _twice(plain, self._builder.columns, record, self._ids[record.id])
        self._ids[record.id] = plain.where
        return record


def _twice(row: RawRow, columns: ColumnMap, record: Record, first: str) -> RecordError:
    """The error of a row whose id, or whose question where rows have no id, is already taken."""
    column = next(iter(columns.of("id")), "")
    if get_name(row, column) is not None:
        return row.fail(column, record.id, f"this id is already at {first}. Remove one of the rows or correct its id.")
    column = next(iter(columns.of("question")), "question")
    return row.fail(
        column,
        record.question,
        f"this question is already at {first}, and a question is measured once. Remove one of the rows; if they differ "
        "in another column, give each an id: --map id=COLUMN.",
    )


def _kind(format: str | None, path: Path) -> tuple[str | None, Layout | None]:
    if format is None or format in KINDS:
        return format, None
    if format not in LAYOUTS:
        raise UsageError(
            f"no format named {format!r}. Kinds of file: {', '.join(KINDS)}. Layouts: {', '.join(LAYOUTS)}."
        )
    return None if path.suffix.lower().removeprefix(".") in KINDS else LAYOUTS[format].kind, LAYOUTS[format]


def _first_row(rows: Iterator[Found]) -> tuple[RawRow | None, Iterator[Found]]:
    """The first row that can be read, and all rows."""
    before: list[Found] = []
    for row in rows:
        before.append(row)
        if isinstance(row, RawRow):
            return row, chain(before, rows)
    if before and isinstance(before[0], RecordError):
        raise before[0]
    return None, iter(())


def _columns(settings: ImportSettings, layout: Layout | None) -> ColumnMap:
    mapped = settings.columns
    base = layout.columns if layout is not None else ColumnMap()
    columns = {**base.columns, **mapped.columns}
    if settings.answer is not None:
        columns["answer"] = (settings.answer,)
    return ColumnMap(columns, mapped.scores or base.scores)


def _refuse_empty(builder: Builder, first: RawRow) -> None:
    if builder.expected & {"answer", "samples", "option_scores"} or builder.columns.scores:
        return
    raise UsageError(
        f"{first.where}: there is neither an answer, samples, option scores nor a score among the columns "
        f"{', '.join(map(str, first.values))}. Map them ({_proposed(first) or '--map samples=COLUMN'}, --map "
        f"score=NAME:COLUMN, ...), or name the layout: --format {', '.join(LAYOUTS)}. Questions alone go to `calibrate "
        "collect`."
    )


_USUAL_NAMES = {
    "question": r"prompt|query|input|instruction",
    "references": r"gold|reference|target|truth|expected",
    "answer": r"answer|response|output|completion",
}
"""Parts of the names that columns often have, by field."""


def _proposed(first: RawRow) -> str:
    """Options that fit the columns by their names, for an error; "" without any."""
    names = [str(name) for name in first.values]
    numbered = {
        stem: [name for name in names if re.fullmatch(re.escape(stem) + r"\d+", name)]
        for stem in (re.sub(r"\d+$", "", name) for name in names if re.search(r"\D\d+$", name))
    }
    samples = max(numbered.values(), key=len, default=[])
    left = [name for name in names if name not in samples and name not in FIELDS]
    options = []
    for target, pattern in _USUAL_NAMES.items():
        name = next((name for name in left if re.search(pattern, name, re.I)), None)
        if name is not None:
            options.append(f"--map {shlex.quote(f'{target}={name}')}")
            left.remove(name)
    return " ".join([*options, *([f"--map samples={','.join(samples)}"] if len(samples) > 1 else [])])


def _refuse_unseen(path: Path, columns: ColumnMap, seen: set[str]) -> None:
    mapped = {name for names in columns.columns.values() for name in names} | {score.column for score in columns.scores}
    missing = sorted(mapped - seen)
    if missing:
        hint = did_you_mean(missing[0], sorted(seen))
        raise UsageError(
            f"no row of {path} has a column {missing[0]!r}; there are {', '.join(sorted(seen))}. {hint}Correct the "
            "--map."
        )


def _without(records: Sequence[Record], exclude: Sequence[str]) -> list[Record]:
    missing = set(exclude) - {record.id for record in records}
    if missing:
        raise UsageError(f"--exclude {min(missing)}: no record has this id. Correct it or leave it out.")
    return [record for record in records if record.id not in exclude]


def _header(
    path: Path,
    settings: ImportSettings,
    layout: Layout | None,
    model: str | None,
    builder: Builder,
    records: Sequence[Record],
    seen: Collection[str],
) -> RecordHeader:
    columns = builder.columns
    questions = [record.to_question() for record in records]
    return RecordHeader(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=ModelIdentity(provider=settings.provider, model=settings.model or model or path.stem),
        plan=_plan(settings, layout, records, builder.planned, seen),
        prompt=settings.prompt,
        questions_name=path.name,
        questions_sha256=fingerprint(questions),
        n_questions=len(questions),
        correctness=_correctness(settings, columns, records),
        estimators={score.key: score.spec for score in columns.scores},
        packages=package_versions(),
    )


def _plan(
    settings: ImportSettings,
    layout: Layout | None,
    records: Sequence[Record],
    primary: Literal["greedy", "sampled", "majority"],
    seen: Collection[str],
) -> SamplingPlan:
    n = max((len(record.drawn.samples) for record in records if record.drawn is not None), default=0)
    if n == 1:
        raise UsageError(
            "there is one sample a question, and one cannot disagree with itself. Map at least two, --map "
            "samples=COLUMN,COLUMN; or, if it is the answer, --map answer=COLUMN and a score of your own, --map "
            f"confidence=NAME:COLUMN. There are the columns {', '.join(sorted(seen))}."
        )
    scored = next((r.drawn.options for r in records if r.drawn is not None and r.drawn.options is not None), None)
    stated = layout.temperature if layout is not None else None
    plan = SamplingPlan(
        n=n,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        cut_off=settings.cut_off,
        logprobs=any(_has_logprobs(record) for record in records),
        bindings=_bindings(records),
        primary=primary,
    )
    temperature = settings.temperature if settings.temperature is not None else stated
    if temperature is not None:
        plan = SamplingPlan(**{**plan.model_dump(), "temperature": temperature})
    return plan if scored is None else SamplingPlan(**{**plan.model_dump(), "options": scored.labels})


def _has_logprobs(record: Record) -> bool:
    """Whether an answer has log-probabilities."""
    drawn = record.drawn
    return drawn is not None and any(
        sample.logprobs is not None for sample in (drawn.primary, *drawn.samples) if sample
    )


def _bindings(records: Sequence[Record]) -> Bindings | None:
    """The tools, if every question was offered the same: a guard then has to offer them, too."""
    tools = records[0].tools
    if not tools or any(record.tools != tools for record in records):
        return None
    try:
        return Bindings.model_validate({"tools": tools})
    except ValueError:  # names, or another form than OpenAI's: known on the records only
        return None


def _correctness(settings: ImportSettings, columns: ColumnMap, records: Sequence[Record]) -> CorrectnessSpec | None:
    """The labelling rule that the artifact stores for labels of the file; None without labels."""
    if all(record.correct is None for record in records):
        return None
    names = [next(iter(columns.of(name)), "(none)") for name in ("correct", "error")]
    params = {"columns": " or not ".join(names)}
    if settings.other_labels is not None:
        params["other_labels"] = settings.other_labels
    return CorrectnessSpec(name="imported", version=1, params=params)


def _notes(
    settings: ImportSettings, layout: Layout | None, records: Sequence[Record], plan: SamplingPlan
) -> Iterator[str]:
    if layout is not None and layout.note:
        yield layout.note
    short = sum(r.drawn is not None and len(r.drawn.samples) < plan.n for r in records)
    if short:
        yield f"{short} records have fewer than {plan.n} samples; what needs samples is not measured for them."
    bare = sum(not _has_logprobs(record) for record in records)
    if plan.logprobs and bare:
        yield f"{bare} records have no log-probabilities; what needs them is not measured for them."
    none = sum(r.drawn is not None and r.drawn.primary is None for r in records)
    if none:
        yield f"{none} records have no answer and will abstain."
    stated = layout is not None and layout.temperature is not None
    if plan.n and settings.temperature is None and not stated:
        yield f"How samples were drawn is not in the file; temperature {plan.temperature:g} is noted (--temperature)."


def _excluded(settings: ImportSettings) -> list[str]:
    n = len(settings.exclude)
    return [f"{n} records were left out by --exclude: {', '.join(settings.exclude)}."] if n else []
