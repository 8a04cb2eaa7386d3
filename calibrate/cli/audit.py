"""The command that tests an artifact on fresh questions, by their labels or by their scores alone: audit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact, RouterArtifact, load_artifact
from guardrail.describe import Nouns, nouns_of
from guardrail.errors import GuardrailError, UsageError
from guardrail.items.spec import ITEMS, mean_uncertainty
from guardrail.judges import JudgeSpec
from guardrail.monitor import Alarm, DriftMonitor
from guardrail.monitor.drift import Reference

from ..data.records import RecordFile, RecordReader
from ..evaluation.audit import Audit, audit_router, prepared
from ..evaluation.audit import audit as run_audit
from ..report import sentences
from ..scoring.names import stored_key
from ..spec_syntax import estimator_flags, written
from .frame.app import command
from .frame.cascade import audit_stages, is_cascade
from .frame.files import open_pool, warn_undecided
from .frame.items import audit_by_items
from .frame.next_commands import fresh_command, listed
from .frame.terminal import console, finish, print_line
from .frame.verdicts import print_audits

__all__ = ["audit"]

TITLES = {
    "refuted": ("Refuted", "red"),
    "supported": ("Supported", "green"),
    "undecided": ("Undecided", "yellow"),
}


@command("audit", "calibrating.md#audit")
def audit(
    records: Annotated[
        list[Path],
        typer.Option(
            "--records",
            "-r",
            help="Fresh record file: collected like the calibration records. May be repeated; a cascade: one a stage.",
        ),
    ],
    artifact: Annotated[Path, typer.Option("--artifact", help="Artifact to test.")] = Path("artifact.json"),
    at_most: Annotated[
        float | None, typer.Option(help="Error rate to test instead of the artifact's alpha, e.g. alpha plus a margin.")
    ] = None,
    level: Annotated[
        float,
        typer.Option(
            help="Probability of refuting a gate that is just good enough, or of an alarm if nothing has changed."
        ),
    ] = 0.05,
    estimator: Annotated[str | None, typer.Option("--score", "-s", help="Key of the scores.")] = None,
    anytime: Annotated[
        bool,
        typer.Option(
            "--anytime",
            help="Verdicts that hold however often you audit the growing file; needs more labels.",
        ),
    ] = False,
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled", help="Needs no labels: compare the scores with those at calibration, by the drift monitor."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, for programs.")] = False,
) -> None:
    """Test the promise on new labelled questions; exit with 1 when they refute it.

    Example: calibrate audit -r fresh.jsonl --artifact artifact.json
    Example: calibrate audit -r fresh.jsonl --artifact artifact.json --unlabelled

    The model is not called. Records without scores or labels are scored and labelled as the artifact says, in memory.
    Exit code: 0 supported or undecided, 1 refuted (with --unlabelled: the questions or the model changed), 2 nothing
    could be tested.
    """
    if unlabelled:
        _compare_scores(records, artifact, delta=level, estimator=estimator, as_json=as_json)
        return
    with _two_for_failures():
        if is_cascade(artifact):
            tested = audit_stages(records, artifact, level=level, target=at_most, anytime=anytime, as_json=as_json)
            raise typer.Exit(int(tested.verdict == "refuted"))
        loaded = load_artifact(artifact)
        file = open_pool(records)
        if isinstance(loaded, RouterArtifact):
            _audit_router(loaded, file, estimator, level=level, target=at_most, anytime=anytime, as_json=as_json)
            return
        if not isinstance(loaded, CalibrationArtifact):
            raise UsageError(
                f"{artifact} is the artifact of a cascade, which has records for each stage. Audit it by "
                "its verdicts: guardrail monitor."
            )
        if loaded.kind == "items":
            audit_by_items(loaded, file, level=level, target=at_most, as_json=as_json)
            return
        header = file.header
        key = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
        asked = len(file.records)
        file, key = prepared(file, loaded, key)
        if left_out := asked - len(file.records):
            print_line(
                f"{left_out} of {asked} {nouns_of(loaded).asked} are left out: the artifact was fitted on them.",
                "yellow",
            )
        warn_undecided(file)
        result = run_audit(loaded, file.records, key, level=level, target=at_most, anytime=anytime)
    if as_json:
        # A group's name may hold control characters that a terminal obeys; pydantic writes them raw, json escapes.
        typer.echo(json.dumps(json.loads(result.model_dump_json()), indent=1))
    else:
        _print_result(result, artifact, nouns_of(loaded))
        if result.verdict == "refuted":
            _print_what_helps(result, loaded, artifact, key, records)
    if result.verdict == "refuted":
        raise typer.Exit(1)


def _audit_router(
    router: RouterArtifact,
    file: RecordFile,
    estimator: str | None,
    *,
    level: float,
    target: float | None,
    anytime: bool,
    as_json: bool,
) -> None:
    """Test the promise of each group, and exit with 1 if one is refuted."""
    first, header = next(iter(router.artifacts.values())), file.header
    key = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
    file, key = prepared(file, first, key)
    warn_undecided(file)
    audits = audit_router(router, file.records, key, level=level, target=target, anytime=anytime)
    if as_json:
        shown = {name: json.loads(result.model_dump_json()) for name, result in audits.items()}
        typer.echo(json.dumps(shown, indent=1))
    else:
        print_audits(audits)
    if any(result.verdict == "refuted" for result in audits.values()):
        raise typer.Exit(1)


def _compare_scores(
    records: Sequence[Path], artifact: Path, *, delta: float, estimator: str | None, as_json: bool
) -> None:
    """Compare the scores of new questions, in their order, with those at calibration, by the drift monitor."""
    with _two_for_failures():
        loaded, file = CalibrationArtifact.load(artifact), open_pool(records)
        header = file.header
        asked = None if estimator is None else stored_key(header.estimators, estimator, header.plan.bindings)
        file, key = prepared(file, loaded, asked, labels=False)
        reference, stored = Reference(loaded), (record.scores.get(key) for record in file.records)
        scores = [reference.compared(score) for score in stored if score is not None]
        if key == ITEMS:
            scores = [mean_uncertainty([item.uncertainty for item in record.items or ()]) for record in file.records]
        measured = [value for value in scores if value is not None]
        if not measured:
            raise UsageError(f"{file.path} has no {key!r} score to compare. Run: calibrate score {file.typed}")
        monitor = DriftMonitor(loaded, delta=delta)
        for value in measured:
            monitor.update(value)
    alarm, left_out = monitor.alarm, len(file.records) - len(measured)
    if as_json:
        report = {"alarm": None if alarm is None else alarm.model_dump(), "n": monitor.state.n, "left_out": left_out}
        typer.echo(json.dumps({"artifact": loaded.digest, **report}, indent=1))
    else:
        _print_drift(alarm, monitor.state.n, left_out)
        finish([], f"{_audit_command(records, artifact)} (needs labels)")
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
    """Turn failures into misuse, which exits with 2: exit code 1 means that the test ran and refuted."""
    try:
        yield
    except UsageError:
        raise
    except (GuardrailError, OSError) as error:
        raise UsageError(str(error)) from error


def _print_result(result: Audit, artifact: Path, nouns: Nouns) -> None:
    title, style = TITLES[result.verdict]
    text = "\n\n".join(sentences.audited(result, nouns))
    console.print(Panel(escape(text), title=title, title_align="left", border_style=style))
    for line in sentences.shifted(result, nouns):
        print_line(line)
    if result.verdict != "refuted":
        finish([], f"calibrate report {listed([artifact])}")


def _print_what_helps(
    refuted: Audit, loaded: CalibrationArtifact, artifact: Path, key: str, fresh: Sequence[Path]
) -> None:
    """Print remedies for a refutation, as commands that can be pasted."""
    finish([], *sentences.advice(refuted, fresh_command(loaded, key, fresh, artifact)))
    for path in fresh:
        for missing in _unwritten(path, loaded, key):
            print_line(f"Before that, as it was done in memory only: {missing}")


def _audit_command(records: Sequence[Path], artifact: Path) -> str:
    flags = " ".join(f"--records {shlex.quote(str(path))}" for path in records)
    return f"calibrate audit {flags} --artifact {shlex.quote(str(artifact))}"


def _unwritten(path: Path, artifact: CalibrationArtifact, key: str) -> list[str]:
    """The commands that give a record file the scores and labels it lacks."""
    with path.open("rb") as stream:
        header = RecordReader(path, stream).header
    name = shlex.quote(str(path))
    commands = [] if key in header.estimators else [f"calibrate score {name} {estimator_flags(key)}"]
    if header.correctness is None:
        spec = artifact.correctness
        params = {key: value for key, value in spec.params.items() if key != "undecided"}
        rule = written(JudgeSpec(name=spec.name, version=spec.version, params=params))
        commands.append(f"calibrate label {name} --rule {shlex.quote(rule)}")
        if "undecided" in spec.params:
            commands.append(f"calibrate label {name} --undecided --interactive")
    return commands
