"""The output of a fit: four lines, warnings, tables, and the end of the command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact
from guardrail.describe import answer_if, fits_line, limit, promises, share_of, summary, together, warning
from guardrail.items.spec import ItemsSpec
from guardrail.notebook import percent

from ...data.records import Record
from ...data.table import table_of
from ...evaluation.choice import Chosen
from ...evaluation.promise_test import Audit
from ...items.figures import by_path
from ...report.assessment import MOST_WARNINGS, VerdictText
from ...report.content import score_table
from ...scoring.items import ScoredItems
from .terminal import GAP, console, finish, print_line, table


def print_lines(lines: Sequence[str], *, answers: bool) -> None:
    """Print `guardrail.describe.summary`: threshold and promise on one line where that fits."""
    condition, promise, *others = lines
    together = f"{condition}{GAP}{promise}"
    first, *more = [together] if len(together) <= console.width else [condition, promise]
    print_line(first, "bold" if answers else "bold red")
    for line in (*more, *others):
        print_line(line)


def print_verdict(text: VerdictText, *, most: int | None = MOST_WARNINGS) -> None:
    """Print what was fitted in four lines, the test part, and the gravest warnings; ``most`` of None prints all."""
    print_lines(text.lines, answers=text.verdict.status != "abstains")
    if text.fits is not None:
        print_line(text.fits, "yellow")
    tested = (f"{text.verdict.title}.", *text.tested) if text.speaks_against else text.tested
    for line in tested:
        print_line(line, "bold red" if text.speaks_against else None)
    for index, line in enumerate(text.warnings[:most]):
        grave = index == 0 and text.verdict.colour == "red" and text.verdict.status == "answers"
        print_line(f"Warning: {line}", "red" if grave else "yellow")


def print_more(text: VerdictText) -> None:
    """Print how many warnings stand in the report alone, once there is one."""
    if (more := len(text.warnings) - MOST_WARNINGS) > 0:
        print_line(f"The report has {more} more warning{'s' * (more > 1)}.")


def print_facts(facts: Iterable[tuple[str, str]], caveats: Sequence[str] = ()) -> None:
    """Print what was calibrated, and what the promise does not cover, if that is not said already."""
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows.add_column(style="bold", overflow="fold", max_width=24)
    rows.add_column(overflow="fold")
    for name, value in facts:
        rows.add_row(escape(name), escape(value))
    console.print(rows, highlight=False)
    if caveats:
        console.print("\n[bold]What this does not promise[/bold]")
    for caveat in caveats:
        print_line(f"- {caveat}")


def print_fits(artifact: CalibrationArtifact | CascadeArtifact) -> None:
    """Print what several fits on the same labels do to the promise, if there were several."""
    if (text := fits_line(artifact)) is not None:
        print_line(text, "yellow")


def print_choice(chosen: Chosen, most: int = 10) -> None:
    """Print the comparison by which `--score auto` chose."""
    shown = score_table(chosen.ranking[:most], chosen.estimator)
    n, rest = chosen.choice.n, len(chosen.ranking) - len(shown.rows)
    title = f"Scores on {n} questions that the fit does not use" + (f" ({rest} more rank lower)" if rest else "")
    console.print(table(title, shown.heads, shown.rows))
    print_line(
        f"Chosen: {chosen.estimator}, on {percent(chosen.choice.share)} of the questions. The fit uses the other "
        f"{len(chosen.rest)} questions, so the choice costs labels and nothing of delta."
    )


def conclude(written: Sequence[Path], text: VerdictText, otherwise: str) -> None:
    """Print the files written and the next command: a remedy where the test part speaks against the gate.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise, so that a job that uses the artifact stops.
    """
    finish(written, *(text.steps[:2] if text.speaks_against else [otherwise]))
    if text.at_run_time is not None:
        print_line(text.at_run_time)
    if text.verdict.status == "refuted":
        raise typer.Exit(1)


def print_router(artifact: RouterArtifact) -> None:
    """Print a row for each group, and what all of them promise together."""
    rows = []
    for name, part in artifact.artifacts.items():
        n, k, e = len(part.calibration.error), part.outcome.n_accepted, part.outcome.n_errors
        rows.append(
            (
                name,
                str(n),
                percent(sum(part.calibration.error) / n) if n else "-",
                "nothing" if part.threshold is None else limit(part.estimator, part.threshold),
                percent(part.acceptance),
                share_of(e, k),
            )
        )
    columns = ("group", "labels", "wrong, no gate", "answers if", "answered", "wrong among answered")
    console.print(table("Groups", columns, rows))
    for name, part in artifact.artifacts.items():
        if part.threshold is not None:  # of the others the table says all
            print_line(f"{name}: {promises(part)[0]}")
    print_line(together(artifact), "bold")
    nothing = [name for name, part in artifact.artifacts.items() if part.calibration.error and part.threshold is None]
    if nothing:
        print_line(f"Nothing is answered in: {', '.join(nothing)}. Label more questions of these groups.", "yellow")


def print_paths(artifact: CalibrationArtifact, records: Sequence[Record]) -> None:
    """Print counts of the items of labelled records by field, and which fields err too often; nothing without items."""
    if artifact.items is None:
        return
    scored = ScoredItems.of(table_of(records), ItemsSpec.of(artifact.estimator))
    shown, warnings = by_path(artifact, scored.items, scored.columns)
    if len(shown.rows) > 1:
        console.print(table("Items by path", shown.heads, shown.rows))
    for line in warnings:
        print_line(line, "yellow")


def print_audits(audits: Mapping[str, Audit]) -> None:
    """Print a row for each group that was tested on fresh questions."""
    rows = [
        (
            name,
            str(result.held_out.n),
            percent(result.held_out.acceptance[0]),
            share_of(result.n_errors, result.n),
            result.verdict,
        )
        for name, result in audits.items()
    ]
    columns = ("group", "questions", "answered", "wrong among answered", "its promise")
    console.print(table("Groups on the test questions", columns, rows))


def print_cascade(artifact: CascadeArtifact, path: Path, written: Sequence[Path] = ()) -> None:
    """Print what a cascade promises, what each stage answers, and how it is used."""
    outcome = artifact.outcome
    print_lines(summary(artifact), answers=outcome.feasible)
    if (open_gate := warning(artifact)) is not None:
        print_line(f"Warning: {open_gate}", "red")
    rows = []
    for i, (stage, share) in enumerate(zip(artifact.stages, outcome.stages, strict=True), start=1):
        threshold = "never answers" if share.threshold is None else answer_if(stage).removeprefix("answer if ")
        rows.append((str(i), stage.model.model, threshold, str(share.n_accepted), str(share.n_errors)))
    console.print(table("Stages", ("stage", "model", "answers if", "answers", "wrong"), rows, texts=3))
    if (alone := outcome.last_alone) is not None:  # a cascade saves calls of the last model, and may answer less
        asked = outcome.n - sum(stage.n_accepted for stage in outcome.stages[:-1])
        print_line(
            f"{artifact.stages[-1].model.model} alone would answer {percent(alone.n_accepted / outcome.n)} under the "
            f"same certificate, asked about every question; the cascade answers {percent(outcome.acceptance)} and asks "
            f"it about {percent(asked / outcome.n)}.",
            "yellow" if alone.n_accepted > outcome.n_accepted else None,
        )
    print_fits(artifact)
    finish(written, f"in Python: Cascade(models=[...], artifact={str(path)!r}), from guardrail.guard.cascade")
