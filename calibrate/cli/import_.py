"""The command that reads files from other tools: import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import typer

from guardrail.errors import RecordError, UsageError
from guardrail.notebook import percent
from guardrail.prompting import PromptWrapping
from guardrail.sampling.models import resolve_model
from guardrail.specs import IMPORTED
from guardrail.specs import identify as identity_of
from guardrail.types import MAX_TOKENS

from ..data.formats import EXPORTS, KINDS, Imported, ImportSettings, Primary, import_file, parse_map, write_bad
from ..data.records import RecordFile, rewrite_records, write_records
from ..evaluation.label_checks import auroc_interval
from ..items.documents import import_documents
from ..scoring.scores import labels_of, values_of
from .frame.app import app
from .frame.files import keep_inputs
from .frame.next_commands import listed, next_step
from .frame.options import MODEL_HELP, RecordsArgument
from .frame.terminal import finish, print_line

__all__ = ["identify", "import_"]

_SHOWN = 20
"""Malformed rows that are printed; all of them are in the file."""


@app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(help="A .jsonl, .json, .csv or .parquet file, or a Hugging Face `datasets` folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file to write.")] = Path("records.jsonl"),
    format: Annotated[
        str | None,
        typer.Option(
            help=f"Kind of file, or the tool that wrote it: {', '.join((*KINDS, *EXPORTS))}. Default: by name."
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Path of the list of rows in a JSON document, e.g. results.results.")
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="FIELD=COLUMN, or a path into a nested column (answer=response.output), for question, references, "
            "samples, logprobs, tokens, answer, options, option_scores, correct, error, tools, model, group, id "
            "(FIELD=- for none); score=NAME:COLUMN or confidence=NAME:COLUMN. May be repeated.",
        ),
    ] = None,
    primary: Annotated[
        str,
        typer.Option(
            help="The answer: first (greedy), sampled (the first, drawn like the others) or majority of the "
            "samples, or the column that holds it."
        ),
    ] = "majority",
    option_scale: Annotated[
        str | None, typer.Option(help="Option scores are: logit, logprob (log-probabilities) or probability.")
    ] = None,
    score_direction: Annotated[
        str,
        typer.Option(help="Of --map score= columns: higher-is-uncertain, or higher-is-certain (log-probabilities)."),
    ] = "higher-is-uncertain",
    right: Annotated[
        list[str] | None,
        typer.Option(help="Label that says right, if it is not a usual word (yes, pass, 1). May be repeated."),
    ] = None,
    cut: Annotated[float | None, typer.Option(help="Labels are grades, and right from this number on.")] = None,
    other_labels: Annotated[
        str | None, typer.Option(help="What a third value of a label ('unparseable') counts as: wrong or unlabelled.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Which system or model to read, in files with several.")] = None,
    unit: Annotated[str, typer.Option(help="Unit of scores: nats or probability.")] = "nats",
    model: Annotated[str | None, typer.Option(help="Name of the model. Default: the system, or the file.")] = None,
    provider: Annotated[str, typer.Option(help="Who serves it, as LangChain names it.")] = IMPORTED,
    temperature: Annotated[float | None, typer.Option(help="Temperature the samples were drawn at.")] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus mass they were drawn with.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = MAX_TOKENS,
    cut_off: Annotated[
        Literal["abstain", "measure"],
        typer.Option(help="An answer that was cut off (finish_reason): abstain, or measure it like others."),
    ] = "abstain",
    system_message: Annotated[str | None, typer.Option(help="System message the model was given.")] = None,
    template: Annotated[str, typer.Option(help="Human message; {question} stands for the question.")] = "{question}",
    exclude: Annotated[list[str] | None, typer.Option(help="Id of a record to leave out. May be repeated.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count and list malformed rows, do not stop.")] = False,
    max_bad: Annotated[
        float, typer.Option(help="With --skip-bad: largest share of malformed rows; above it nothing is imported.")
    ] = 0.1,
    items: Annotated[
        bool,
        typer.Option(
            "--items",
            help="References, samples and the answer are JSON documents, one row an answer (objects, or texts).",
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a record file that exists.")] = False,
) -> None:
    """Bring your own generations, scores and labels: a file to records that `score`, `label` and `fit` take.

    Example: calibrate import answers.csv --map question=prompt --map references=gold --map samples=s1,s2,s3

    Example: calibrate import graded.csv --map question=prompt --map correct=ok --map confidence=stated:sure

    Example: calibrate import cards.csv --items --map references=gold --map samples=s1,s2,s3
    """
    skipped = out.with_name(f"{out.stem}.skipped.jsonl")
    keep_inputs([source], [out, skipped])
    if out.exists() and not replace:
        raise UsageError(f"{out} exists already. Write to another file with --out, or pass --replace.")
    if not 0 <= max_bad <= 1:
        raise UsageError(f"--max-bad must be in [0, 1], got {max_bad:g}. Write 0.1 for 10 %.")
    chosen = next((name for name in get_args(Primary) if name == primary), None)
    settings = ImportSettings(
        format=format,
        columns=parse_map(
            map or (),
            unit=_one_of("--unit", unit, "nats", "probability"),
            certain=_one_of("--score-direction", score_direction, "higher-is-uncertain", "higher-is-certain")
            == "higher-is-certain",
        ),
        primary=chosen or "majority",
        answer=None if chosen else primary,
        option_scale=None
        if option_scale is None
        else _one_of("--option-scale", option_scale, "logit", "logprob", "probability"),
        rows=rows,
        right=tuple(right or ()),
        cut=cut,
        other_labels=None if other_labels is None else _one_of("--other-labels", other_labels, "wrong", "unlabelled"),
        system=system,
        model=model,
        provider=provider,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        cut_off=cut_off,
        prompt=PromptWrapping(system=system_message, template=template),
        exclude=tuple(exclude or ()),
        skip_bad=skip_bad,
    )
    imported = import_documents(source, settings) if items else import_file(source, settings)
    write_bad(skipped, imported.bad)
    if len(imported.bad) > max_bad * imported.n_rows:
        _print_bad(imported, skipped)
        raise RecordError(
            f"{len(imported.bad)} of {imported.n_rows} rows are malformed, more than {max_bad:.0%}: nothing is "
            "imported, since the rest is not a random item of the questions. Correct the --map or the rows, or raise "
            "--max-bad if you know why they are malformed."
        )
    header = imported.file.header
    write_records(out, header, imported.file.records)
    reversed_keys = _print_result(imported, skipped, out)
    if items:
        finish([out], f"calibrate score {listed([out])} --items")
        return
    best = min(header.estimators, key=lambda key: (key in reversed_keys, key), default=None)
    finish([out, *([skipped] if imported.bad else [])], next_step(header, out, best))


@app.command()
def identify(
    records: RecordsArgument,
    model: Annotated[str, typer.Option("--model", "-m", help=f"The model that gave the answers: {MODEL_HELP}")],
) -> None:
    """Name the model that gave imported answers, so that a guard with that model can load their artifact.

    Changes the record files in place; scores and labels stay. Fit again afterwards: it is the same fit.

    Example: calibrate identify own.jsonl --model openai:gpt-4o-mini
    """
    identity = identity_of(resolve_model(model))

    def named(file: RecordFile) -> RecordFile:
        if file.header.model.is_known and file.header.model != identity:
            raise UsageError(
                f"the answers of {file.path} are of {file.header.model.model!r} ({file.header.model.provider}), not of "
                f"{identity.model!r} ({identity.provider}). If that is wrong, import or collect them again."
            )
        return RecordFile(file.path, file.header.model_copy(update={"model": identity}), file.records, file.torn)

    for path in records:
        header = rewrite_records(path, named).header
    print_line(f"The answers are of provider {identity.provider}, model {identity.model}.")
    finish(records, next_step(header, records[0]))


def _one_of(flag: str, value: str, *allowed: str) -> Any:
    for name in allowed:
        if value == name:
            return name
    raise UsageError(f"{flag} must be {' or '.join(allowed)}, got {value!r}")


def _print_result(imported: Imported, skipped: Path, out: Path) -> set[str]:
    """Print what was read; return the scores that are lower for wrong answers."""
    reversed_keys = set[str]()
    records = imported.file.records
    print_line(f"{len(records)} of {imported.n_rows} rows are records now (read as {imported.layout}).")
    for note in imported.notes:
        print_line(f"  {note}", "yellow")
    if not imported.file.header.model.is_known and any(record.drawn is not None for record in records):
        print_line(
            "Which model gave the answers is not named, so no guard will load their artifact. Name it any time before "
            f"you fit: calibrate identify {listed([out])} --model MODEL (written as for `collect`); or import with "
            "--provider and --model as `guardrail doctor --model MODEL` shows them.",
            "yellow",
        )
    if imported.file.header.correctness is not None:
        labels = [record.correct for record in records if record.correct is not None]
        right = sum(labels)
        print_line(f"Labels of the file: {right} of {len(labels)} answers are right ({percent(right / len(labels))}).")
        reversed_keys = _print_reversed(imported.file)
    _print_bad(imported, skipped)
    return reversed_keys


def _print_reversed(file: RecordFile) -> set[str]:
    """Warn of imported scores that are lower for wrong answers, before a fit on them is counted; return their keys."""
    reversed_keys = set[str]()
    for key in file.header.estimators:
        scores, labels = values_of(file.records, key), labels_of(file.records)
        both = ~np.isnan(scores) & (labels >= 0)
        interval = auroc_interval(scores[both], 1 - labels[both]) if both.any() else None
        if interval is not None and interval.verdict == "reversed":
            reversed_keys.add(key)
            print_line(
                f"Check {key} before you fit: wrong answers have the lower scores (AUROC {interval.value:.2f}), and "
                "lower must mean more certain. Import a confidence with --map confidence=NAME:COLUMN, or another score "
                "with --score-direction higher-is-certain.",
                "yellow",
            )
    return reversed_keys


def _print_bad(imported: Imported, skipped: Path) -> None:
    if imported.bad:
        print_line(f"{len(imported.bad)} rows are malformed and left out; all of them are in {skipped}:", "yellow")
        for bad in imported.bad[:_SHOWN]:
            print_line(f"  {bad.problem}", "yellow")
