"""The command that calibrates several models as one system: fit-cascade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CascadeArtifact
from guardrail.errors import UsageError
from guardrail.notebook import percent

from ..cascade import fit_cascade as fit_system
from ..data.records import read_records
from ..ledger import Ledger, counted
from ..report.sentences import slots_argument
from .frame.app import app
from .frame.files import keep_inputs, warn_incomplete, warn_undecided
from .frame.options import WithoutFailedOption, chosen_estimator
from .frame.terminal import console, finish, print_line, table
from .frame.verdicts import print_fits

__all__ = ["fit_cascade"]


@app.command("fit-cascade")
def fit_cascade(
    records: Annotated[
        list[Path], typer.Argument(help="A scored and labelled record file for each stage, cheapest model first.")
    ],
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Share of wrong answers you accept among those given.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path("cascade.json"),
    estimator: Annotated[
        list[str] | None,
        typer.Option("--score", "-s", help="For each stage, in order; a single one is for all stages."),
    ] = None,
    rule: Annotated[str, typer.Option(help="lec_joint (most answers) or certified (provable).")] = "lec_joint",
    delta: Annotated[float | None, typer.Option(help="Failure probability of certified (0.1).")] = None,
    price: Annotated[
        float | None, typer.Option(help="Answers given up for a saved call of a later stage (0; certified: 0.1).")
    ] = None,
    cluster_by_group: Annotated[
        bool,
        typer.Option("--cluster-by-group", help="Groups are conversations, users, documents: use one question each."),
    ] = False,
    without_failed: WithoutFailedOption = False,
) -> None:
    """Fit the thresholds of several models together, from records of the same questions.

    The system asks the first model, and the next one only where the first is not certain. Thresholds that are fitted
    one by one do not control the error rate of such a system.

    Example: calibrate fit-cascade small.jsonl large.jsonl --alpha 0.1 --out cascade.json
    """
    keep_inputs([*records, *(estimator or ())], [out])
    files = [read_records(path) for path in records]
    named = list(estimator or ())
    if len(named) not in (0, 1, len(files)):
        raise UsageError(f"give one --score, or one a stage: {len(files)} files, got {len(named)} scores.")
    names: list[str | None] = [*(named * len(files) if len(named) == 1 else named)] or [None for _ in files]
    keys = [chosen_estimator(file, name) for file, name in zip(files, names, strict=True)]
    for file in files:
        warn_incomplete(file)
        warn_undecided(file)
    artifact = fit_system(
        files,
        alpha=alpha,
        estimators=keys,
        rule=rule,
        delta=delta,
        groups="cluster" if cluster_by_group else "category",
        price=price,
        without_failed=without_failed,
    )
    ledger = Ledger(records)
    artifact = counted(artifact, ledger, " > ".join(keys))
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    _print_result(artifact)
    print_fits(artifact, ledger)
    slots = slots_argument(artifact.stages[0])
    finish([out], f"in Python: Cascade(models=[...], artifact={str(out)!r}{slots}), from guardrail.guard.cascade")


def _print_result(artifact: CascadeArtifact) -> None:
    outcome = artifact.outcome
    title, style = ("May answer, within limits", "green") if outcome.feasible else ("Abstains on everything", "red")
    lines = [_headline(artifact), outcome.promise if outcome.feasible else f"Why: {outcome.detail}"]
    if artifact.warning is not None:
        title, style = "This gate stops nothing", "red"
        lines.insert(0, artifact.warning)
    console.print(Panel(escape("\n\n".join(lines)), title=title, title_align="left", border_style=style))
    for line in artifact.promises:
        print_line(line)
    rows = []
    for i, (stage, share) in enumerate(zip(artifact.stages, outcome.stages, strict=True), start=1):
        threshold = "never answers" if share.threshold is None else stage.answer_if.removeprefix("answer if ")
        rows.append((str(i), stage.model.model, threshold, str(share.n_accepted), str(share.n_errors)))
    console.print(table("Stages", ("stage", "model", "answers if", "answers", "wrong"), rows, texts=3))


def _headline(artifact: CascadeArtifact) -> str:
    outcome = artifact.outcome
    if not outcome.feasible:
        return f"no thresholds at alpha = {outcome.alpha:g}."
    return (
        f"{artifact.asked.share(outcome.acceptance)} of questions answered ({outcome.n_accepted} of the {outcome.n} "
        "that could be measured), "
        f"{outcome.n_errors} of them wrong ({percent(outcome.n_errors / outcome.n_accepted)}; "
        f"target {percent(outcome.alpha)})."
    )
