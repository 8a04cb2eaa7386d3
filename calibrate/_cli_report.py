"""Commands that compare and show: evaluate, report."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError

from ._cli_app import app, console, finish, say, table
from ._cli_fit import chosen_estimator
from .evaluate import Estimate, Evaluation
from .evaluate import evaluate as run_protocol
from .pipeline import require_same
from .progress import bar
from .records import Record, RecordFile, read_records
from .report import compare_rules, default_rules, write_report
from .scoring import arrays
from .words import percent

__all__ = ["estimator_of", "evaluate", "report", "tell_evaluation"]


@app.command()
def evaluate(
    records: Annotated[list[Path], typer.Argument(help="Record files with scores and labels; pooled.")],
    alpha: Annotated[
        list[float] | None, typer.Option("--alpha", "-a", help="May be repeated (0.05 0.1 0.15 0.2).")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="May be repeated. Default: the ones a report compares.")
    ] = None,
    estimator: Annotated[
        list[str] | None, typer.Option("--estimator", "-e", help="May be repeated. Default: every one with scores.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits.", min=1)] = 100,
    n_calibration: Annotated[int | None, typer.Option(help="Questions to fit on in each split (half).", min=1)] = None,
    delta: Annotated[float | None, typer.Option(help="Failure probability, for rules that have one (0.1).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    cluster_by_group: Annotated[
        bool, typer.Option("--cluster-by-group", help="Keep groups whole when splitting.")
    ] = False,
    csv_path: Annotated[Path | None, typer.Option("--csv", help="Write the table here.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None,
) -> None:
    """Compare rules and estimators over many random calibration/test splits. The model is not called.

    Example: [cyan]calibrate evaluate records.jsonl -a 0.1 --csv rules.csv[/cyan]
    """
    files = [read_records(path) for path in records]
    pool = _pooled(files)
    keys = estimator or sorted(set.intersection(*(set(file.header.estimators) for file in files)))
    if not keys:
        raise UsageError(f"{records[0]} has no scores. Run: calibrate score {records[0]}")
    found: dict[str, Evaluation] = {}
    for key in keys:
        scored = arrays(pool, key)
        if cluster_by_group and scored.group is None:
            raise UsageError("--cluster-by-group needs a group for every question. Add groups, or leave it out.")
        with bar(console, key, "splits") as progress:
            found[key] = run_protocol(
                scored.uncertainty,
                scored.error,
                rules=rule or default_rules(),
                alphas=alpha or (0.05, 0.1, 0.15, 0.2),
                n_calibration=n_calibration or len(scored.ids) // 2,
                splits=splits,
                seed=seed,
                delta=delta,
                groups=scored.group if cluster_by_group else None,
                support=files[0].header.estimators[key].support,
                progress=progress,
            )
    for key, evaluation in found.items():
        tell_evaluation(key, evaluation)
    finish(
        _write_tables(found, csv_path, json_path), f"calibrate fit {records[0]} --estimator {_best(found)} --alpha 0.1"
    )


@app.command()
def report(
    records: Annotated[Path, typer.Argument(help="Record file the artifact was fitted on.")],
    artifact: Annotated[Path, typer.Option("--artifact", help="Artifact that `fit` wrote.")] = Path("artifact.json"),
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file; figures go next to it as PNG.")] = Path(
        "report.html"
    ),
    test: Annotated[Path | None, typer.Option(help="Record file that was kept out of the fit.")] = None,
    estimator: Annotated[
        str | None, typer.Option("--estimator", "-e", help="Key of the scores, if several fit the artifact.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits for the table of rules; 0 leaves it out.", min=0)] = 100,
) -> None:
    """Write one HTML page that shows what the gate does: figures, tables, answers to read.

    Example: [cyan]calibrate report records.jsonl --artifact artifact.json --out report.html[/cyan]
    """
    file, loaded = read_records(records), CalibrationArtifact.load(artifact)
    key = estimator_of(file, loaded, estimator)
    require_same(loaded, file, key)
    tested: tuple[Record, ...] = ()
    if test is not None:
        test_file = read_records(test)
        require_same(loaded, test_file, key)
        tested = test_file.records
    evaluation = None
    if splits:
        pool = {record.id: record for record in (*file.records, *tested)}
        with bar(console, "comparing rules", "splits") as progress:
            evaluation = compare_rules(loaded, list(pool.values()), key, splits=splits, progress=progress)
    tail = f" --test {test}" if test is not None else ""
    commands = (
        f"calibrate fit {records} --estimator {key} --alpha {loaded.alpha:g} --rule {loaded.outcome.rule} --out "
        f"{artifact}",
        f"calibrate report {records} --artifact {artifact}{tail} --out {out}",
    )
    written = write_report(
        out, loaded, file.records, estimator=key, test=tested, evaluation=evaluation, commands=commands
    )
    finish(written, f"open {out} in a browser")


def estimator_of(file: RecordFile, artifact: CalibrationArtifact, name: str | None) -> str:
    """Key of the artifact's estimator in a record file."""
    if name is not None:
        return name
    keys = [key for key, spec in file.header.estimators.items() if spec == artifact.estimator]
    return keys[0] if keys else chosen_estimator(file, None)


def tell_evaluation(key: str, evaluation: Evaluation) -> None:
    """The table of one estimator."""
    auroc = "-" if evaluation.auroc is None else f"{evaluation.auroc:.3f}"
    columns = (
        "rule",
        "alpha",
        "answered",
        "wrong among them",
        "splits over alpha",
        "nothing answered",
        "right ones given",
    )
    rows = [
        [
            row.rule,
            f"{row.alpha:g}",
            _shown(row.acceptance),
            _shown(row.pooled),
            _shown(row.violation_rate),
            _shown(row.infeasible_rate),
            _shown(row.power),
        ]
        for row in evaluation.rows
    ]
    title = f"{key}: {evaluation.splits} splits, fitted on {evaluation.n_calibration} of {evaluation.n}, % \u00b1 se"
    console.print(table(title, columns, rows))
    say(f"AUROC {auroc}, error without gate {percent(evaluation.base_error)}, AURC {evaluation.aurc:.4f}")


def _shown(value: Estimate | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value.value:.1f}" + ("" if value.se is None else f"\u00b1{100 * value.se:.1f}")


def _pooled(files: Sequence[RecordFile]) -> list[Record]:
    pool: dict[str, Record] = {}
    for file in files:
        for record in file.records:
            if record.id in pool:
                raise UsageError(f"{file.path}: record {record.id!r} is in two of the files; give each question once")
            pool[record.id] = record
    return list(pool.values())


def _best(found: dict[str, Evaluation]) -> str:
    return max(found, key=lambda key: found[key].auroc or 0.0)


def _write_tables(found: dict[str, Evaluation], csv_path: Path | None, json_path: Path | None) -> list[Path]:
    written = []
    if csv_path is not None:
        rows = [{"estimator": key, **row} for key, evaluation in found.items() for row in evaluation.table()]
        csv_path.parent.mkdir(parents=True, exist_ok=True)
        with csv_path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        written.append(csv_path)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        content = {key: evaluation.model_dump(mode="json") for key, evaluation in found.items()}
        json_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        written.append(json_path)
    return written
