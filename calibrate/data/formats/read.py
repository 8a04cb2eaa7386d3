"""Foreign files to records and a header that every later step accepts: bytes, rows, records, file."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from guardrail.errors import RecordError, UsageError, did_you_mean
from guardrail.files import atomic_write
from guardrail.plain_json import canonical_json, has_visible
from guardrail.specs import CorrectnessSpec, ModelIdentity
from guardrail.types import Bindings, SamplingPlan

from ..record import Record, RecordHeader
from ..records import LONGEST_HEADER, RecordFile
from ..row import RawRow
from ..rows import KINDS, Found, open_rows
from .build import Builder, repeated
from .exports import EXPORTS, export_like
from .field_map import ColumnMap, ImportSettings, parse_map
from .names import column_names, proposed, read_as, recognised

UNNAMED = "unnamed"
"""Model of answers of which nothing says who gave them: two such files can be read as one."""


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
        bad: Rows that were left out because they are malformed.
        notes: Cautions.
    """

    file: RecordFile
    bad: tuple[Bad, ...]
    notes: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """Rows: records and bad ones."""
        return len(self.file.records) + len(self.bad)


Changed = Callable[[RawRow], RawRow]
"""Changes the values of a row by field."""


def import_file(
    path: str | Path, settings: ImportSettings | None = None, *, change: Changed = lambda row: row
) -> Imported:
    """Read generations, scores and labels from another tool.

    Args:
        path: The file.
        settings: What it holds.
        change: Applied to every row by field before it becomes a record.

    Raises:
        RecordError: A malformed row (without ``skip_bad``); file, line and field are named.
        UsageError: A missing file, an unknown layout, system or column, several models, or nothing to import.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path = Path(path)
    kind, settings = _resolved(path, settings or ImportSettings())
    source = open_rows(path, kind, settings.rows)
    imported = import_rows(source.rows, settings, name=path, change=change)
    return replace(imported, notes=(*source.notes, *imported.notes))


def _resolved(path: Path, settings: ImportSettings) -> tuple[str | None, ImportSettings]:
    """The kind of a file, and the settings with the paths of the export that they name."""
    if settings.format is None or settings.format in KINDS:
        return settings.format, settings
    if settings.format not in EXPORTS:
        raise UsageError(
            f"no format named {settings.format!r}. Kinds of file: {', '.join(KINDS)}. Exports: {', '.join(EXPORTS)}."
        )
    export = EXPORTS[settings.format]
    columns = {**parse_map(export.map).columns, **settings.columns.columns}
    mapped = ColumnMap(columns, settings.columns.scores)
    in_document = export.rows if path.suffix.lower() == ".json" else None
    return None, replace(
        settings, columns=mapped, right=settings.right or export.right, rows=settings.rows or in_document
    )


def import_rows(
    rows: Iterable[Found],
    settings: ImportSettings | None = None,
    *,
    name: str | Path = "rows",
    change: Changed = lambda row: row,
) -> Imported:
    """As `import_file`, of rows in memory, or of a file that is open already: values are as in JSON.

    Args:
        rows: The rows, which say in errors where they are, and the errors of those that cannot be read.
        settings: What the rows hold.
        name: Name of the questions, for messages, too.
        change: As `import_file`.

    Raises:
        RecordError: A malformed row (without ``skip_bad``).
        UsageError: As `import_file`.
    """
    path = Path(name)
    settings = settings or ImportSettings()
    columns = settings.columns
    is_export = settings.format in EXPORTS
    read = list(rows)
    good = [row for row in read if isinstance(row, RawRow)]
    wanted = sorted(columns.named)
    whole = [row.with_paths(wanted) for row in good]
    names = column_names(good)
    # A path that leads nowhere in every row is as wrong as a column that no row has.
    seen = {*names, *(name for row in whole for name in wanted if row.values.get(name) is not None)}
    mapped = columns.by_field(whole)
    builder = Builder(settings, columns.present(mapped))
    if good:
        _refuse_empty(good[0], builder.fields, columns, names)
        if not is_export:  # an export may lack what nobody labelled, or what an older version wrote
            _refuse_unseen(path, columns, seen)
    model = _model_of(path, mapped, columns)
    records, bad = _records(read, mapped, change, builder, settings.skip_bad)
    if not records:
        raise _nothing_read(path, bad)
    builder.labels.finish(next((columns.of(name)[0] for name in ("correct", "error") if name in builder.fields), ""))
    _refuse_unanswered(path, records)
    records = _by_content(records, builder.numbered)
    header = _header(path, settings, model, _plan(settings, records, builder.planned, seen), records)
    maps = "" if is_export else proposed(sorted(seen), columns)
    cautions = [
        *builder.cautions.notes(),
        *builder.labels.notes(),
        *([f"Columns were not read that may hold fields: {maps}"] if maps else []),
        *_notes(settings, records, header.plan),
    ]
    return Imported(RecordFile(path, header, records), tuple(bad), tuple(cautions))


def write_bad(path: Path, bad: Sequence[Bad]) -> None:
    """Write the rows that were left out, one JSON object a line; without any, remove what an earlier import wrote."""
    if not bad:
        path.unlink(missing_ok=True)
        return
    lines = (
        json.dumps({"problem": bad_row.problem, "row": bad_row.row}, ensure_ascii=False, default=str) for bad_row in bad
    )
    atomic_write(path, (f"{line}\n".encode() for line in lines), private=True)


def _records(
    read: Sequence[Found], mapped: Iterable[RawRow], change: Changed, builder: Builder, skip_bad: bool
) -> tuple[list[Record], list[Bad]]:
    """The records of rows, and the malformed rows.

    ``read`` are the rows as they are in the file, and errors; ``mapped`` those that are none, by field.

    Raises:
        RecordError: The first malformed row, without ``skip_bad``.
    """
    records: list[Record] = []
    bad: list[Bad] = []
    first_at: dict[str, str] = {}
    by_field = iter(mapped)  # one for each row in `read` that is not an error
    for raw in read:
        try:
            if isinstance(raw, RecordError):
                raise raw
            row = next(by_field)
            if "model" in builder.fields and row.name("model") is None:
                raise row.fail("model", None, "every row must name its model")
            record = builder.build(change(row))
            if record.id in first_at:
                raise repeated(row, record, first_at[record.id])
        except RecordError as error:
            if not skip_bad:
                raise
            bad.append(Bad(str(error), None if isinstance(raw, RecordError) else dict(raw.values)))
        else:
            first_at[record.id] = row.where
            records.append(record)
    return records, bad


def _model_of(path: Path, rows: Iterable[RawRow], columns: ColumnMap) -> str | None:
    """The model that rows by field name; None if they name none. Several are refused."""
    named = (row.values.get("model") for row in rows)
    models = Counter(text for name in named if name is not None and (text := str(name).strip()))
    if len(models) > 1:
        there = ", ".join(f"{name} ({count} rows)" for name, count in models.items())
        (column,) = columns.of("model")
        raise UsageError(
            f"{path} holds several models: {there}. A threshold is valid for one, so import each to its own file: "
            f"--rows \"[?{column} == '{next(iter(models))}']\"."
        )
    return next(iter(models), None)


def _refuse_empty(first: RawRow, fields: Collection[str], columns: ColumnMap, names: Collection[str]) -> None:
    """Refuse rows with neither answers nor scores, and name the options that fit the columns."""
    if not {"answer", "samples", "option_scores"}.isdisjoint(fields) or columns.scores:
        return
    name = export_like(first.values)
    if name is not None:
        raise UsageError(f"{first.where}: the fields are those of {name}. Read it so: --format {name}")
    options = proposed(names, columns) or "--map samples=COLUMN"
    raise UsageError(
        f"{first.where}: there is neither an answer, samples, option scores nor a score among the columns "
        f"{', '.join(names)}. Map a score (--map confidence=COLUMN if high is sure, --map score=COLUMN if high is "
        f"unsure), or answers ({options}), or name the tool that wrote the file: --format {', '.join(EXPORTS)}. "
        "Questions alone go to `calibrate collect`."
    )


def _refuse_unseen(path: Path, columns: ColumnMap, seen: Collection[str]) -> None:
    """Refuse a map that names a column, or a path, that no row has."""
    missing = sorted(columns.named - set(seen))
    if missing:
        hint = did_you_mean(missing[0], sorted(seen))
        raise UsageError(
            f"no row of {path} has a column {missing[0]!r}; there are {', '.join(sorted(seen))}. {hint}Correct the "
            "--map."
        )


def _nothing_read(path: Path, bad: Sequence[Bad]) -> UsageError:
    if not bad:
        return UsageError(f"{path} holds no row that can be read. Each row must be one question.")
    return UsageError(f"none of {len(bad)} rows of {path} can be read. The first: {bad[0].problem}")


def _by_content(records: list[Record], numbered: Collection[str]) -> list[Record]:
    """Records of numbered rows under ids that rows of other files do not have, but the same file has again.

    The number is followed by a digest of the answers and scores of the rows up to this one, of the first 50 at least,
    so that the first rows of other files do not match by chance. Labels may be corrected, and rows added at the end of
    50 or more, the fewest that a fit takes without --few. A shorter file that grows is another file: by fewer rows, say
    of two values each, it could not be told from others, and a test on those would be refused as one on the fit's.
    """
    indices = [index for index, record in enumerate(records) if record.id in numbered]
    digest_so_far = sha256()
    digests: list[str] = []
    for index in indices:
        record = records[index]
        answers = None if record.drawn is None else record.drawn.model_dump(mode="json", exclude={"question"})
        scores = [record.scores[key].value for key in sorted(record.scores)]
        digest_so_far.update(canonical_json([answers, scores]).encode())
        digests.append(digest_so_far.hexdigest()[:12])
    named = list(records)
    for number, index in enumerate(indices):
        record = records[index]
        name = f"{record.id}-{digests[min(max(number, 49), len(digests) - 1)]}"
        text = f"(question {name})"
        drawn = None if record.drawn is None else record.drawn.model_copy(update={"question": text})
        named[index] = record.model_copy(update={"id": name, "question": text, "drawn": drawn})
    return named


def _refuse_unanswered(path: Path, records: Sequence[Record]) -> None:
    """Refuse answers of which none is there: no later step could use the file."""
    drawn = [record.drawn for record in records if record.drawn is not None]
    answers = (answer for draw in drawn for answer in (draw.primary, *draw.samples) if answer is not None)
    if drawn and not any(answer.tool_calls or has_visible(answer.text) for answer in answers):
        raise UsageError(
            f"{path}: {len(drawn)} of {len(records)} rows have no answer, so nothing can be measured or judged. Name "
            "the column that holds the answers: --map answer=COLUMN."
        )


def _header(
    path: Path, settings: ImportSettings, model: str | None, plan: SamplingPlan, records: Sequence[Record]
) -> RecordHeader:
    columns = settings.columns
    return RecordHeader.of(
        [record.to_question() for record in records],
        model=ModelIdentity(provider=settings.provider, model=settings.model or model or UNNAMED),
        plan=plan,
        prompt=settings.prompt,
        questions_name=path.name,
        correctness=_correctness(settings, records),
        estimators={score.key: score.spec for score in columns.scores},
    )


def _plan(
    settings: ImportSettings,
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
    chosen = {} if settings.temperature is None else {"temperature": settings.temperature}
    return SamplingPlan(
        n=n,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        cut_off=settings.cut_off,
        logprobs=any(_has_logprobs(record) for record in records),
        bindings=_bindings(records),
        primary=primary,
        options=None if scored is None else scored.labels,
        **chosen,
    )


def _has_logprobs(record: Record) -> bool:
    """Return whether an answer has log-probabilities."""
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


def _correctness(settings: ImportSettings, records: Sequence[Record]) -> CorrectnessSpec | None:
    """The labelling rule that the artifact stores for labels of the file; None without labels."""
    if all(record.correct is None for record in records):
        return None
    names = [next(iter(settings.columns.of(name)), "(none)") for name in ("correct", "error")]
    params: dict[str, Any] = {"columns": " or not ".join(names)}
    for name, value in (("right", settings.words), ("cut", settings.cut), ("other_labels", settings.other_labels)):
        if value not in (None, ()):
            params[name] = list(value) if isinstance(value, tuple) else value
    return CorrectnessSpec(name="imported", version=1, params=params)


def _notes(settings: ImportSettings, records: Sequence[Record], plan: SamplingPlan) -> Iterator[str]:
    labelled = sum(record.correct is not None for record in records)
    if 0 < labelled < len(records):
        n = len(records)
        yield f"{n - labelled} of {n} rows have no label; a fit speaks of the labelled ones alone."
    short = sum(r.drawn is not None and len(r.drawn.samples) < plan.n for r in records)
    if short:
        yield f"{short} records have fewer than {plan.n} samples; what needs samples is not measured for them."
    bare = sum(not _has_logprobs(record) for record in records)
    if plan.logprobs and bare:
        yield f"{bare} records have no log-probabilities; what needs them is not measured for them."
    none = sum(r.drawn is not None and r.drawn.primary is None for r in records)
    if none:
        yield f"{none} records have no answer and will abstain."
    if plan.n and settings.temperature is None:
        noted = f"temperature {plan.temperature:g} is noted (--set temperature=T)"
        yield f"How samples were drawn is not in the file; {noted}."


# -- Tables with scores and labels: the columns are recognised by their names ------------------------------------------


def is_table(path: Path) -> bool:
    """Return whether a file holds rows of another tool, and no records: a table by its name, or lines without a header.

    What is neither is read as records, whose reader says what is wrong with it.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind in ("csv", "tsv", "xlsx", "xls", "parquet", "json"):
        return True
    if kind not in ("jsonl", "ndjson") or not path.is_file():
        return False
    with path.open("rb") as stream:
        line = stream.readline(LONGEST_HEADER)
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and "header" not in first and "drawn" not in first


def graded_file(path: Path, settings: ImportSettings | None = None) -> tuple[Imported, str]:
    """Records of a table with a score and a label in each row, and which column was taken for what, in one sentence.

    Args:
        path: JSON, JSONL, CSV, Excel or Parquet.
        settings: What is not recognised: columns, and the words or the grade that say right.

    Raises:
        UsageError: No column is recognised as the score, or none as the label; the way out names the columns.
        RecordError: A row cannot be read.
    """
    settings = settings or ImportSettings()
    source = open_rows(path)
    rows = list(source.rows)
    good = [row for row in rows if isinstance(row, RawRow)]
    graded = with_recognised(good, settings)
    if graded is None and good:
        raise _ungraded(path, good[0], column_names(good), recognised(good, settings.columns))
    settings, sentence = graded or (settings, "")  # without rows, or with faulty ones, the import says so
    imported = import_rows(rows, settings, name=path)
    return replace(imported, notes=(*source.notes, *imported.notes)), sentence


def with_recognised(rows: Sequence[RawRow], settings: ImportSettings) -> tuple[ImportSettings, str] | None:
    """The settings with the columns of usual names, and the sentence that says them; None without scores and labels.

    Raises:
        UsageError: The label is mapped as the score.
    """
    names = column_names(rows)
    columns = recognised(rows, settings.columns)
    labels = {name for field in ("correct", "error") for name in columns.of(field)}
    both = [score.column for score in columns.scores if score.column in labels]
    if both:
        raise UsageError(
            f"column {both[0]!r} is the label, so it cannot be the score: nothing says it of a new answer. Map another "
            "column, e.g. --map confidence=COLUMN."
        )
    has_labels = bool(labels & set(names)) or columns.mapped("correct") or columns.mapped("error")
    if not columns.scores or not has_labels:
        return None
    return replace(settings, columns=columns), read_as(columns, names)


def _ungraded(path: Path, first: RawRow, names: Sequence[str], columns: ColumnMap) -> UsageError:
    """The error of a table without scores or without labels, with the option that names the columns."""
    name = export_like(first.values)
    if name is not None:
        source = shlex.quote(str(path))
        return UsageError(
            f"{path} is an export of {name}. Make records of it: calibrate import {source} --format {name}"
        )
    lacks = "score"
    way_out = (
        "--map confidence=COLUMN (in [0, 1]), --map certainty=COLUMN (higher is more certain) or --map score=COLUMN "
        "(higher is less certain). Answers without a score go to `calibrate import`, questions to `calibrate collect`."
    )
    if columns.scores:
        lacks = "label that says which answers are right"
        way_out = (
            "--map correct=COLUMN; compare answers with references by a rule: `calibrate import`, then `calibrate "
            "label`; or join labels of another file by id: `calibrate import`, then `calibrate label --labels FILE`."
        )
    return UsageError(f"{path} has no column with a {lacks}, among {', '.join(names)}. Name it: {way_out}")
