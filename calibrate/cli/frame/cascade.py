"""Cascades on the command line: several models fitted as one system, said in words, and tested on fresh questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CascadeArtifact
from guardrail.describe import answer_if, summary, warning
from guardrail.errors import UsageError
from guardrail.notebook import percent

from ...cascade import fit_cascade
from ...data.records import read_records
from ...evaluation.audit import CascadeAudit, audit_cascade
from ...ledger import Ledger, counted
from ...report.sentences import slots_argument
from .files import keep_inputs, warn_incomplete, warn_undecided
from .next_commands import listed
from .options import chosen_estimator
from .terminal import console, finish, print_line, print_words, table
from .verdicts import print_fits, print_lines

__all__ = ["audit_stages", "fit_stages", "is_cascade", "say_cascade"]


def is_cascade(path: Path) -> bool:
    """Whether a file says that it is a cascade's artifact. Any other fault shows when it is loaded."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == "cascade"


def fit_stages(
    records: Sequence[Path],
    out: Path,
    *,
    alpha: float,
    estimators: Sequence[str],
    delta: float,
    share: float,
    cluster_by_group: bool,
    without_failed: bool,
) -> None:
    """Fit the thresholds of several models together, from a record file each, and write the artifact.

    Raises:
        UsageError: Another number of scores than one for all stages, or one a stage.
    """
    keep_inputs(records, [out])
    files = [read_records(path) for path in records]
    if len(estimators) not in (0, 1, len(files)):
        raise UsageError(f"give one score for all stages, or one a stage: {len(files)} files, got {len(estimators)}.")
    names: list[str | None] = [*(estimators if len(estimators) > 1 else [*estimators, None][:1] * len(files))]
    keys = [chosen_estimator(file, name) for file, name in zip(files, names, strict=True)]
    for file in files:
        warn_incomplete(file)
        warn_undecided(file)
    artifact = fit_cascade(
        files,
        alpha=alpha,
        scores=keys,
        delta=delta,
        share=share,
        groups="cluster" if cluster_by_group else "category",
        without_failed=without_failed,
    )
    ledger = Ledger(records)
    artifact = counted(artifact, ledger)
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    _print_system(artifact)
    print_fits(artifact)
    finish([out], _in_python(artifact, out))


def say_cascade(path: Path, *, as_json: bool) -> None:
    """Print what a cascade's artifact promises, and what each stage answers."""
    artifact = CascadeArtifact.load(path)
    if as_json:
        typer.echo(json.dumps({"digest": artifact.digest, **artifact.content}, indent=1))
        return
    _print_system(artifact)
    finish([], _in_python(artifact, path))


def audit_stages(
    records: Sequence[Path], path: Path, *, level: float, target: float | None, anytime: bool, as_json: bool
) -> CascadeAudit:
    """Test a cascade's artifact on fresh records, one file a stage, and print the verdict."""
    artifact = CascadeArtifact.load(path)
    files = [read_records(each) for each in records]
    result = audit_cascade(artifact, files, level=level, target=target, anytime=anytime)
    if as_json:
        typer.echo(result.model_dump_json(indent=1))
        return result
    style = {"refuted": "red", "supported": "green", "undecided": "yellow"}[result.verdict]
    panel = Panel(escape(_audited(result)), title=result.verdict.capitalize(), title_align="left", border_style=style)
    console.print(panel)
    rows = [(str(i), str(stage.n_accepted), str(stage.n_errors)) for i, stage in enumerate(result.stages, start=1)]
    console.print(table(f"{result.n_questions} fresh questions", ("stage", "answers", "wrong"), rows))
    following = f"calibrate report {listed([path])}"
    if result.verdict == "refuted":
        following = f"calibrate fit {listed(records)} --cascade --alpha {artifact.alpha:g} --out NEW.json"
    finish([], following)
    return result


def _audited(result: CascadeAudit) -> str:
    target = percent(result.target)
    if not result.n:
        return "The system answers none of these questions, so nothing can be said about its error rate."
    seen = (
        f"{result.n_errors} of {result.n} answers of the system were wrong ({percent(result.n_errors / result.n)}; "
        f"target {target})."
    )
    sure = percent(1 - result.level)
    if result.verdict == "refuted":
        return (
            f"{seen} If the error rate were {target} or less, so many errors would have a probability of at most "
            f"{result.p_refute:.2g}. The promise does not hold on these questions."
        )
    if result.verdict == "supported":
        return f"{seen} The error rate is at most {percent(result.upper or result.target)} with {sure} confidence."
    more = "" if result.needed is None else f" About {result.needed:,} more answers would decide it at this rate."
    return f"{seen} That neither refutes nor proves an error rate of {target} at {sure} confidence.{more}"


def _in_python(artifact: CascadeArtifact, path: Path) -> str:
    slots = slots_argument(artifact.stages[0])
    return f"in Python: Cascade(models=[...], artifact={str(path)!r}{slots}), from guardrail.guard.cascade"


def _print_system(artifact: CascadeArtifact) -> None:
    outcome = artifact.outcome
    print_lines(summary(artifact), answers=outcome.feasible)
    if (open_gate := warning(artifact)) is not None:
        print_words(f"Warning: {open_gate}", "red")
    rows = []
    for i, (stage, share) in enumerate(zip(artifact.stages, outcome.stages, strict=True), start=1):
        threshold = "never answers" if share.threshold is None else answer_if(stage).removeprefix("answer if ")
        rows.append((str(i), stage.model.model, threshold, str(share.n_accepted), str(share.n_errors)))
    console.print(table("Stages", ("stage", "model", "answers if", "answers", "wrong"), rows, texts=3))
    _print_last_alone(artifact)


def _print_last_alone(artifact: CascadeArtifact) -> None:
    """What the last model alone would answer and cost: a cascade saves calls of it, and may answer less."""
    outcome, alone = artifact.outcome, artifact.outcome.last_alone
    if alone is None:
        return
    asked = outcome.n - sum(stage.n_accepted for stage in outcome.stages[:-1])
    print_line(
        f"{artifact.stages[-1].model.model} alone would answer {percent(alone.n_accepted / outcome.n)} under the same "
        f"certificate, asked about every question; the cascade answers {percent(outcome.acceptance)} and asks it about "
        f"{percent(asked / outcome.n)}.",
        "yellow" if alone.n_accepted > outcome.n_accepted else None,
    )
