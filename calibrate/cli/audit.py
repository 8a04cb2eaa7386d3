"""The command that tests an artifact on fresh labels: audit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import GuardrailError, UsageError

from ..data.records import read_records
from ..evaluation.audit import Audit, prepared
from ..evaluation.audit import audit as run_audit
from ..report import sentences
from ..scoring.names import stored_key
from .frame import app, console, finish, print_line

__all__ = ["audit"]

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
        file = read_records(*records)
        header = file.header
        key = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
        fitted = read_records(*calibration) if calibration else None
        file, key = prepared(file, loaded, key, calibration=fitted)
        found = run_audit(loaded, file.records, key, level=level, target=at_most)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        _print_result(found, loaded, artifact)
    if found.verdict == "refuted":
        raise typer.Exit(1)


@contextmanager
def _two_for_failures() -> Iterator[None]:
    """Exit code 1 means refuted here, so a failure to run the test must not end with it."""
    try:
        yield
    except UsageError:
        raise
    except (GuardrailError, OSError) as error:
        raise UsageError(str(error)) from error


def _print_result(found: Audit, artifact: CalibrationArtifact, path: Path) -> None:
    title, style = TITLES[found.verdict]
    text = "\n\n".join(sentences.audited(found))
    console.print(Panel(escape(text), title=title, title_align="left", border_style=style))
    for line in sentences.shifted(found):
        print_line(line)
    if found.verdict == "refuted":
        alpha = f"{found.target:g}"
        finish([], f"calibrate on the fresh records as well: calibrate fit RECORDS --alpha {alpha}")
    else:
        finish([], f"calibrate inspect {path}")
