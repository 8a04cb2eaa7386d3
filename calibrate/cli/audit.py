"""The commands that test an artifact on fresh questions: audit (labels), drift (scores)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import GuardrailError, UsageError
from guardrail.monitor import Alarm, DriftMonitor

from ..data.columns import pool
from ..data.records import read_records
from ..evaluation.audit import Audit, prepared
from ..evaluation.audit import audit as run_audit
from ..report import sentences
from ..scoring.names import stored_key
from .fit import merged_command
from .frame import RecordsArgument, app, console, finish, open_files, print_line

__all__ = ["audit", "drift"]

TITLES = {
    "refuted": ("Refuted", "red"),
    "supported": ("Supported", "green"),
    "undecided": ("Undecided", "yellow"),
}


@app.command()
def audit(
    records: Annotated[
        list[Path],
        typer.Option(
            "--records", "-r", help="Fresh record file: collected like the calibration records. May be repeated."
        ),
    ],
    artifact: Annotated[Path, typer.Option("--artifact", help="Artifact to test.")] = Path("artifact.json"),
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            help="Record file of the fit; any question it shares with the fresh ones is refused. May be repeated."
        ),
    ] = None,
    at_most: Annotated[
        float | None, typer.Option(help="Error rate to test instead of the artifact's alpha, e.g. alpha plus a margin.")
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of refuting a gate that is just good enough.")] = 0.05,
    estimator: Annotated[str | None, typer.Option("--estimator", "-e", help="Key of the scores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, for programs.")] = False,
) -> None:
    """Test the promise on new labelled questions; exit with 1 when they refute it.

    The model is not called. Records without scores or labels are scored and labelled as the artifact says, in memory.
    Exit code: 0 supported or undecided, 1 refuted, 2 nothing could be tested.

    Example: [cyan]calibrate audit --records fresh.jsonl --artifact artifact.json[/cyan]
    """
    with _two_for_failures():
        loaded = CalibrationArtifact.load(artifact)
        file = pool(open_files(records))
        header = file.header
        key = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
        fitted = pool(open_files(calibration)) if calibration else None
        file, key = prepared(file, loaded, key, calibration=fitted)
        found = run_audit(loaded, file.records, key, level=level, target=at_most)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        old = "RECORDS" if fitted is None else str(fitted.path)
        bare = header.correctness is None or key not in header.estimators
        _print_result(found, loaded, artifact, key, old, str(file.path), missing=bare)
    if found.verdict == "refuted":
        raise typer.Exit(1)


@app.command()
def drift(
    records: RecordsArgument,
    artifact: Annotated[
        Path, typer.Option("--artifact", help="Artifact whose calibration scores are compared.")
    ] = Path("artifact.json"),
    delta: Annotated[float, typer.Option(help="Probability of an alarm if nothing has changed.")] = 0.05,
    estimator: Annotated[str | None, typer.Option("--estimator", "-e", help="Key of the scores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, for programs.")] = False,
) -> None:
    """Compare the uncertainty of new questions with that at calibration, by the drift monitor; labels are not needed.

    Records are read in the order of the file, and scored as the artifact says where that is missing. Exit code: 0 no
    alarm, 1 an alarm (the questions or the model changed), 2 nothing could be compared.

    Example: [cyan]calibrate drift fresh.jsonl --artifact artifact.json[/cyan]
    """
    with _two_for_failures():
        loaded, file = CalibrationArtifact.load(artifact), read_records(*records)
        header = file.header
        key = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
        file, key = prepared(file, loaded, key, labels=False)
        scores = [score.value for record in file.records if (score := record.scores.get(key)) is not None]
        measured = [value for value in scores if value is not None]
        if not measured:
            raise UsageError(f"{file.path} has no {key!r} score to compare. Run: calibrate score {file.path}")
        monitor = DriftMonitor(loaded, delta=delta)
        for value in measured:
            monitor.update(value)
    alarm, left_out = monitor.alarm, len(file.records) - len(measured)
    if as_json:
        found = {"alarm": None if alarm is None else alarm.model_dump(), "n": monitor.state.n, "left_out": left_out}
        typer.echo(json.dumps({"artifact": loaded.digest, **found}, indent=1))
    else:
        _print_drift(alarm, monitor.state.n, left_out)
        finish([], f"calibrate audit --records {file.path} --artifact {artifact}" + " (needs labels)")
    if alarm is not None:
        raise typer.Exit(1)


def _print_drift(alarm: Alarm | None, n: int, left_out: int) -> None:
    text = f"{n} scores do not refute that these questions are like the calibration questions."
    title, style = "No drift found", "green"
    if alarm is not None:
        title, style, text = "Drift", "red", f"{alarm.detail} The alarm was raised at score {alarm.at} of {n}."
    console.print(Panel(escape(text), title=title, title_align="left", border_style=style))
    if left_out:
        print_line(f"{left_out} records have no score and are left out; if their share has grown, something changed.")


@contextmanager
def _two_for_failures() -> Iterator[None]:
    """Exit code 1 means refuted here, so a failure to run the test must not end with it."""
    try:
        yield
    except UsageError:
        raise
    except (GuardrailError, OSError) as error:
        raise UsageError(str(error)) from error


def _print_result(
    found: Audit, artifact: CalibrationArtifact, path: Path, key: str, fitted: str, fresh: str, *, missing: bool
) -> None:
    title, style = TITLES[found.verdict]
    text = "\n\n".join(sentences.audited(found))
    console.print(Panel(escape(text), title=title, title_align="left", border_style=style))
    for line in sentences.shifted(found):
        print_line(line)
    if found.verdict != "refuted":
        finish([], f"calibrate inspect {path}")
        return
    if missing:
        print_line(f"{fresh} is scored and labelled in memory only: run `calibrate score` and `calibrate label` on it.")
    first, *others = sentences.advice(found, merged_command(artifact, key, fitted, fresh, path))
    finish([], first)
    for other in others:
        print_line(f"      {other}")
