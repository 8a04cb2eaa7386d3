"""The command that shows what a gate does: report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from guardrail.artifact import CalibrationArtifact

from ..data.columns import pool
from ..data.progress import bar
from ..data.records import Record, RecordFile
from ..evaluation.audit import audit
from ..evaluation.label_checks import judge_to_look_at
from ..pipeline import require_same, without, without_choice
from ..report import compare_rules, sentences, write_report
from ..scoring.names import stored_key
from ..scoring.scores import arrays
from .fit import exit_if_refuted, merged_command, print_verdict, segment_flags
from .frame import app, console, finish, keep_inputs, open_files, print_line
from .score import chosen_estimator, pair_cache

__all__ = ["estimator_of", "report"]


@app.command()
def report(
    records: Annotated[list[Path], typer.Argument(help="Record files the artifact was fitted on.")],
    artifact: Annotated[Path, typer.Option("--artifact", help="Artifact that `fit` wrote.")] = Path("artifact.json"),
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file; figures go next to it as PNG.")] = Path(
        "report.html"
    ),
    test: Annotated[
        list[Path] | None, typer.Option(help="Record file that was kept out of the fit. May be repeated.")
    ] = None,
    estimator: Annotated[
        str | None, typer.Option("--estimator", "-e", help="Key of the scores, if several fit the artifact.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits for the table of rules; 0 leaves it out.", min=0)] = 100,
) -> None:
    """Write one HTML page that shows what the gate does: figures, tables, answers to read.

    With --test the verdict depends on those questions as well; exit code 1 if they refute the promise.

    Example: [cyan]calibrate report records.jsonl --artifact artifact.json --out report.html[/cyan]
    """
    keep_inputs([*records, artifact, *(test or ())], [out])
    file, loaded = pool(open_files(records)), CalibrationArtifact.load(artifact)
    key = estimator_of(file, loaded, estimator)
    require_same(loaded, file, key)
    tested: Sequence[Record] = ()
    audited, fresh = None, ""
    if test:
        test_file = pool(open_files(test))
        require_same(loaded, test_file, key)
        tested = test_file.records
        audited = audit(loaded, tested, key)
        fresh = str(test_file.path)
    fitted = without(without_choice(loaded, file.records), tested)
    if (extra := sentences.not_fitted_on(loaded, len(arrays(fitted, key).ids))) is not None:
        print_line(extra, "yellow")
    evaluation = None
    if splits:
        with bar(console, "comparing rules", "splits") as progress:
            evaluation = compare_rules(loaded, fitted, key, splits=splits, progress=progress)
    tail = "".join(f" --test {shlex.quote(str(path))}" for path in test or ())
    commands = (
        f"calibrate fit {file.path} --estimator {shlex.quote(key)} --alpha {loaded.alpha:g} "
        f"--rule {loaded.outcome.rule}{segment_flags(loaded)} --out {artifact}",
        f"calibrate report {file.path} --artifact {artifact}{tail} --out {out}",
    )
    inside = len(without(file.records, tested)) < len(file.records)  # merged already
    merged = merged_command(loaded, key, str(file.path), "" if inside else fresh, artifact)
    written = write_report(
        out,
        loaded,
        file.records,
        estimator=key,
        test=tested,
        evaluation=evaluation,
        commands=commands,
        merged=merged,
        judge=judge_to_look_at(loaded.estimator.judge, pair_cache(file.path)),
    )
    if audited is not None:
        print_verdict(loaded, audited, merged)
    finish(written, f"open {out} in a browser")
    exit_if_refuted(loaded, audited)


def estimator_of(file: RecordFile, artifact: CalibrationArtifact, name: str | None) -> str:
    """Key of the artifact's estimator in a record file."""
    if name is not None:
        return stored_key(file.header.estimators, name, file.header.plan.bindings)
    keys = [key for key, spec in file.header.estimators.items() if spec == artifact.estimator]
    return keys[0] if keys else chosen_estimator(file, None)
