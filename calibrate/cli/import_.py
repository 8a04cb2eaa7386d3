"""The command that reads files from other tools: import."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from guardrail.errors import RecordError, UsageError
from guardrail.notebook import percent
from guardrail.prompting import PromptWrapping
from guardrail.sampling.models import resolve_model
from guardrail.specs import IMPORTED, identify

from ..data.formats.exports import EXPORTS
from ..data.formats.field_map import SCORE_PREFIX, ImportSettings, OptionScale, OtherLabels, Primary
from ..data.formats.read import Imported, import_file, write_bad
from ..data.records import RecordFile, header_of, rewrite_records, write_records
from ..data.rows import KINDS
from ..data.table import table_of
from ..items.documents import import_documents
from ..scoring.metrics import auroc_interval
from .frame.app import command
from .frame.files import keep_inputs
from .frame.flags import load_settings, with_flags
from .frame.next_commands import listed, next_step
from .frame.options import COLUMNS, MODEL_HELP, flags_under, refuse_options
from .frame.settings import ImportedPlan
from .frame.table_flags import TableFlags
from .frame.terminal import finish, print_line

column_flag = flags_under(COLUMNS)

_SHOWN = 20
"""Malformed rows that are printed; all of them are in the file."""


@command("import", "data.md")
@with_flags(TableFlags)
def import_(
    *,
    source: Annotated[Path, typer.Argument(help="JSON, JSONL, CSV, Excel or Parquet; or a record file to name.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Record file (records.jsonl).")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help=f"Who answered: a name, or {MODEL_HELP}", metavar="MODEL")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a record file that exists.")] = False,
    skip_bad: Annotated[
        float | None, typer.Option(help="Leave malformed rows out, if at most this share.", metavar="SHARE")
    ] = None,
    items: Annotated[bool, typer.Option("--items", help="Answers are JSON, kept or held back by item.")] = False,
    assigned: Annotated[
        list[str] | None, typer.Option("--set", help="How answers were drawn: temperature=1, ...", metavar="NAME=VALUE")
    ] = None,
    format: Annotated[str | None, column_flag(help=f"{', '.join((*KINDS, *EXPORTS))}. Default: by name.")] = None,
    rows: Annotated[str | None, column_flag(help="Path of the rows in a document, or filter.", metavar="PATH")] = None,
    primary: Annotated[
        Primary, column_flag(help="The answer: majority, first or sampled.", metavar="HOW")
    ] = "majority",
    option_scale: Annotated[
        OptionScale | None, column_flag(help="logit, logprob or probability.", metavar="SCALE")
    ] = None,
    other_labels: Annotated[
        OtherLabels | None, column_flag(help="Third labels are: wrong, unlabelled.", metavar="HOW")
    ] = None,
    given: dict[str, Any],
) -> None:
    """Bring your own generations, scores and labels: a file to records that `score`, `label` and `fit` take.

    Example: calibrate import answers.csv --map question=prompt --map samples=a,b
    Example: calibrate import records.jsonl --model openai:gpt-4o

    The second names the model of records that are imported already; scores and labels stay.
    """
    if header_of(source) is not None:
        why = f"is about reading a file of another tool, and {source} is a record file. Leave it out."
        refuse_options(why, replace=replace, skip_bad=skip_bad, items=items, set=assigned, format=format, rows=rows)
        is_primary = primary != "majority"
        refuse_options(why, primary=is_primary, option_scale=option_scale, other_labels=other_labels, **given)
        _name_model(source, out, model)
        return
    out = out or Path("records.jsonl")
    skipped = out.with_name(f"{out.stem}.skipped.jsonl")
    keep_inputs([source], [out], derived=skipped)
    if out.exists() and not replace:
        raise UsageError(f"{out} exists already. Write to another file with --out, or pass --replace.")
    if skip_bad is not None and not 0 <= skip_bad <= 1:
        raise UsageError(f"--skip-bad must be a share in [0, 1], got {skip_bad:g}. Write 0.1 for 10 %.")
    plan = load_settings(ImportedPlan, None, {}, assigned or ())
    table = load_settings(TableFlags, None, given)
    identity = None if model is None or ":" not in model else identify(resolve_model(model))
    settings = ImportSettings(
        format=format,
        columns=table.columns.columns,
        primary=primary,
        option_scale=option_scale,
        rows=rows,
        right=table.right,
        cut=table.cut,
        other_labels=other_labels,
        model=model if identity is None else identity.model,
        provider=IMPORTED if identity is None else identity.provider,
        skip_bad=skip_bad is not None,
        prompt=PromptWrapping(system=plan.system, template=plan.template, other_turns=plan.other_turns),
        **plan.model_dump(exclude={"system", "template", "other_turns"}),
    )
    imported = import_documents(source, settings) if items else import_file(source, settings)
    write_bad(skipped, imported.bad)
    _refuse_bad(imported, skipped, skip_bad or 0)
    header = imported.file.header
    if identity is not None:  # with the revision of its weights
        header = header.model_copy(update={"model": identity})
    write_records(out, header, imported.file.records)
    print_line(
        f"{len(imported.file.records)} of {imported.n_rows} rows are records now (read as "
        f"{format or source.suffix.removeprefix('.') or 'dataset folder'})."
    )
    reversed_areas = _reversed_areas(imported.file)
    _print_result(imported, skipped, out, reversed_areas)
    if items:
        finish([out], f"calibrate score {listed([out])} --items")
        return
    best = min(header.estimators, key=lambda key: (key in reversed_areas, key), default=None)
    finish([out, *([skipped] if imported.bad else [])], next_step(header, out, best))


def _name_model(path: Path, out: Path | None, model: str | None) -> None:
    """Name the model that gave the answers of a record file, in place; a fit on it stays the same fit."""
    if model is None:
        raise UsageError(f"{path} is a record file. Name the model of its answers with --model, or score and fit it.")
    if out is not None:
        raise UsageError(f"{path} is a record file, and --model changes it in place. Leave --out out.")
    identity = identify(resolve_model(model))

    def named(file: RecordFile) -> RecordFile:
        if file.header.model.is_known and file.header.model != identity:
            raise UsageError(
                f"the answers of {file.path} are of {file.header.model.model!r} ({file.header.model.provider}), not of "
                f"{identity.model!r} ({identity.provider}). If that is wrong, import or collect them again."
            )
        return RecordFile(file.path, file.header.model_copy(update={"model": identity}), file.records)

    header = rewrite_records(path, path, named).header
    print_line(f"The answers are of provider {identity.provider}, model {identity.model}.")
    finish([path], next_step(header, path))


def _print_result(imported: Imported, skipped: Path, out: Path, reversed_areas: Mapping[str, float]) -> None:
    """Print notes, the share of right answers, scores that are read the wrong way round, and malformed rows."""
    records = imported.file.records
    for note in imported.notes:
        print_line(f"  {note}", "yellow")
    if not imported.file.header.model.is_known and any(record.drawn is not None for record in records):
        print_line(
            "Which model gave the answers is not named, so no guard will load their artifact. Name it any time before "
            f"you fit: calibrate import {listed([out])} --model MODEL (written as for `collect`).",
            "yellow",
        )
    if imported.file.header.correctness is not None:
        labels = [record.correct for record in records if record.correct is not None]
        right = sum(labels)
        print_line(f"Labels of the file: {right} of {len(labels)} answers are right ({percent(right / len(labels))}).")
    for key, area in reversed_areas.items():
        column = imported.file.header.estimators[key].params["column"]
        print_line(
            f"Check {key} before you fit: wrong answers have the lower scores (AUROC {area:.2f}), and lower must mean "
            "more certain. A number that is higher for certain answers is mapped with "
            f"--map {shlex.quote(f'certainty={key.removeprefix(SCORE_PREFIX)}:{column}')}.",
            "yellow",
        )
    _print_bad(imported, skipped)


def _reversed_areas(file: RecordFile) -> dict[str, float]:
    """The AUROC of each imported score that is lower for wrong answers; a fit on one of these would be wasted."""
    areas: dict[str, float] = {}
    table = table_of(file.records)
    labels = table.counted_labels()
    for key in file.header.estimators if file.header.correctness is not None else ():
        scores = table.scores(key)
        both = ~np.isnan(scores) & (labels >= 0)
        interval = auroc_interval(scores[both], 1 - labels[both]) if both.any() else None
        if interval is not None and interval.verdict == "reversed":
            areas[key] = interval.value
    return areas


def _refuse_bad(imported: Imported, skipped: Path, allowed: float) -> None:
    """Refuse a file of which more than the allowed share of rows is malformed."""
    if len(imported.bad) > allowed * imported.n_rows:
        _print_bad(imported, skipped)
        raise RecordError(
            f"{len(imported.bad)} of {imported.n_rows} rows are malformed, more than {allowed:.0%}: nothing is "
            "imported, since the rest is not a random part of the questions. Correct the --map or the rows, or raise "
            "--skip-bad if you know why they are malformed."
        )


def _print_bad(imported: Imported, skipped: Path) -> None:
    if imported.bad:
        print_line(f"{len(imported.bad)} rows are malformed and left out; all of them are in {skipped}:", "yellow")
        for bad in imported.bad[:_SHOWN]:
            print_line(f"  {bad.problem}", "yellow")
