"""The command that tests an artifact on fresh questions, by their labels or by their scores alone: audit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer
from pydantic_core import PydanticUndefined
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import Artifact, CalibrationArtifact, CascadeArtifact, RouterArtifact, load_artifact
from guardrail.describe import Nouns, nouns_of
from guardrail.errors import GuardrailError, UsageError
from guardrail.judges import JudgeSpec
from guardrail.monitor import Alarm, Drift
from guardrail.uncertainty.combine import scale_of

from ..data.formats.read import is_table
from ..data.records import RecordFile, RecordReader, read_records
from ..data.table import RecordTable
from ..evaluation.audit import audit as run_audit
from ..evaluation.audit import audit_cascade, audit_router, prepared
from ..evaluation.promise_test import PromiseTest
from ..spec_syntax import estimator_flags, written
from .frame.app import command
from .frame.files import open_pool, warn_undecided
from .frame.flags import flag, load_settings, with_flags
from .frame.next_commands import fresh_command, listed
from .frame.table_flags import TableFlags
from .frame.terminal import console, finish, print_line, print_warning, quiet, table
from .frame.verdicts import print_audits, print_paths

COLOURS = {"refuted": "red", "supported": "green", "undecided": "yellow"}


class Asked(TableFlags):
    """Settings of a test. Every field is a flag of `audit`."""

    records: tuple[Path, ...] = flag(
        "", "Fresh record file or table; of a cascade one a stage.", PydanticUndefined, "-r", "FILE"
    )
    artifact: Path = flag("", "Artifact to test.", Path("artifact.json"))
    level: float = flag("", "Probability of a false verdict, or of a false alarm.", 0.05)
    anytime: bool = flag("", "Verdicts that hold however often a growing file is audited.", False)
    unlabelled: bool = flag("", "Without labels: compare the scores with those at calibration.", False)
    as_json: bool = flag("", "The result as JSON, for programs.", False, name="--json")


@command("audit", "calibrating.md#audit")
@with_flags(Asked)
def audit(*, given: dict[str, Any]) -> None:
    """Test the promise on new labelled questions; exit with 1 when they refute it.

    Example: calibrate audit -r fresh.jsonl --artifact artifact.json
    Example: calibrate audit -r fresh.jsonl --artifact artifact.json --unlabelled

    The model is not called. Records without scores or labels are scored and labelled as the artifact says, in memory.
    Exit code: 0 supported or undecided, 1 refuted (with --unlabelled: the questions or the model changed), 2 nothing
    could be tested.
    """
    asked = load_settings(Asked, None, given)
    with _two_for_failures(), quiet(asked.as_json):
        gate = load_artifact(asked.artifact)
        if asked.unlabelled:
            refuted, content = _compare_scores(asked, gate)
        elif isinstance(gate, CascadeArtifact):
            refuted, content = _test_cascade(asked, gate)
        elif isinstance(gate, RouterArtifact):
            refuted, content = _test_router(asked, gate)
        else:
            refuted, content = _test_gate(asked, gate)
    if asked.as_json:  # a group's name may hold control characters that a terminal obeys; json escapes them
        typer.echo(json.dumps(content, indent=1))
    if refuted:
        raise typer.Exit(1)


Outcome = tuple[bool, dict[str, Any]]
"""Whether the promise is refuted, or the scores have drifted, and the result for programs."""


def _fresh_records(asked: Asked, gate: CalibrationArtifact, *, labels: bool = True) -> tuple[RecordFile, str]:
    """The records that the fit did not use, with scores and labels, and the key of the scores."""
    file = open_pool(asked.records, asked.columns)
    n = len(file.records)
    file, key = prepared(file, gate, labels=labels)
    if labels:
        if left_out := n - len(file.records):
            print_warning(f"{left_out} of {n} {nouns_of(gate).asked} are left out: the artifact was fitted on them.")
        warn_undecided(file)
    return file, key


def _test_router(asked: Asked, artifact: RouterArtifact) -> Outcome:
    """Test the promise of each group on its own questions; a refuted one refutes all."""
    file, key = _fresh_records(asked, artifact.gates[0])
    audits = audit_router(artifact, file.records, key, level=asked.level, anytime=asked.anytime)
    print_audits(audits)
    content = {name: result.model_dump(mode="json") for name, result in audits.items()}
    return any(result.verdict == "refuted" for result in audits.values()), content


def _test_gate(asked: Asked, artifact: CalibrationArtifact) -> Outcome:
    """Test the promise of one gate."""
    file, key = _fresh_records(asked, artifact)
    result = run_audit(artifact, file.records, key, level=asked.level, anytime=asked.anytime)
    _print_verdict(result)
    print_paths(artifact, file.records)
    refuted = result.verdict == "refuted"
    if refuted:
        finish([], *result.remedies(fresh_command(artifact, key, asked.records, asked.artifact, asked.typed)))
        for path in asked.records:
            for missing in _unwritten(path, artifact, key):
                print_line(f"Before that, as it was done in memory only: {missing}")
    else:
        finish([], f"calibrate report {listed([asked.artifact])}")
    return refuted, result.model_dump(mode="json")


def _test_cascade(asked: Asked, artifact: CascadeArtifact) -> Outcome:
    """Test the answers that the stages give together."""
    files = [read_records(path) for path in asked.records]
    result = audit_cascade(artifact, files, level=asked.level, anytime=asked.anytime)
    _print_verdict(result)
    rows = [(str(i), str(stage.n_accepted), str(stage.n_errors)) for i, stage in enumerate(result.stages, start=1)]
    console.print(table(f"{result.n_questions} fresh questions", ("stage", "answers", "wrong"), rows))
    again = f"calibrate fit {listed(asked.records)} --cascade --alpha {artifact.alpha:g} --out NEW.json"
    refuted = result.verdict == "refuted"
    finish([], again if refuted else f"calibrate report {listed([asked.artifact])}")
    return refuted, result.model_dump(mode="json")


def _print_verdict(result: PromiseTest) -> None:
    """Print what `print(result)` shows, the verdict in a box."""
    text = "\n\n".join(result.findings)
    style = COLOURS[result.verdict]
    console.print(Panel(escape(text), title=result.verdict.capitalize(), title_align="left", border_style=style))
    for line in result.remarks:
        print_line(line)


def _compare_scores(asked: Asked, artifact: Artifact) -> Outcome:
    """Compare the scores of new questions, in their order, with those at calibration."""
    if not isinstance(artifact, CalibrationArtifact):
        raise UsageError(
            f"{asked.artifact} holds several gates, and --unlabelled compares the scores of one. Audit with labels."
        )
    file, key = _fresh_records(asked, artifact, labels=False)
    measured = _compared(artifact, file.records, key)
    if not measured:
        raise UsageError(f"{file.path} has no {key!r} score to compare. Run: calibrate score {file.typed}")
    test = Drift(artifact, delta=asked.level)
    state, _ = test.take(test.start, *measured)
    left_out = len(file.records) - len(measured)
    _print_drift(state.alarm, state.n, left_out, nouns_of(artifact))
    flags = " ".join(f"--records {shlex.quote(str(path))}" for path in asked.records)
    finish([], f"calibrate audit {flags}{asked.typed} --artifact {listed([asked.artifact])} (needs labels)")
    alarm = None if state.alarm is None else state.alarm.shown
    return alarm is not None, {"artifact": artifact.digest, "alarm": alarm, "n": state.n, "left_out": left_out}


def _compared(artifact: CalibrationArtifact, records: RecordTable, key: str) -> list[float]:
    """The numbers of new answers that the drift monitor compares; of two stages the scores of the first call."""
    if scale_of(artifact.estimator) is None:
        numbers = records.compared(key)
        return [float(number) for number in numbers[~np.isnan(numbers)]]
    test = Drift(artifact)
    scores = (record.scores.get(key) for record in records)
    compared = (test.compared(score) for score in scores if score is not None)
    return [number for number in compared if number is not None]


def _print_drift(alarm: Alarm | None, n: int, left_out: int, nouns: Nouns) -> None:
    if alarm is None:
        text = f"{n} scores do not refute that these {nouns.asked} are like the calibration {nouns.asked}."
        console.print(Panel(escape(text), title="No drift found", title_align="left", border_style="green"))
    else:
        text = f"{alarm.detail} The alarm was raised at score {alarm.at} of {n}."
        console.print(Panel(escape(text), title="Drift", title_align="left", border_style="red"))
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


def _unwritten(path: Path, artifact: CalibrationArtifact, key: str) -> list[str]:
    """The commands that give a record file the scores and labels it lacks; a table has them."""
    if is_table(path):
        return []
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
