"""Output of the demo: tables and panels, no logic."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from calibrate.cli.frame.terminal import VisibleConsole
from calibrate.evaluation.results import Evaluation
from calibrate.judging import GateCounts
from guardrail import CalibrationArtifact, Feasible
from guardrail.describe import guarantee, why_infeasible
from guardrail.outcome import Outcome
from guardrail.plain_json import visible

__all__ = ["CONSOLE", "examples_table", "labels_line", "outcome_line", "share", "splits_line", "title", "verdict_panel"]

CONSOLE = VisibleConsole(width=min(80, shutil.get_terminal_size().columns), highlight=False)


def title(text: str, below: str = "") -> None:
    """Print a heading."""
    CONSOLE.print()
    CONSOLE.rule(f"[bold]{text}", align="left")
    if below:
        CONSOLE.print(below)


def share(rate: tuple[float, float, float] | None) -> str:
    """Return a share with its 95 % interval, in per cent."""
    return "none" if rate is None else f"{rate[0]:.1%} ({rate[1]:.1%} to {rate[2]:.1%})"


def outcome_line(outcome: Outcome) -> str:
    """Return one line about a fitted rule."""
    if isinstance(outcome, Feasible):
        return (
            f"threshold {outcome.threshold:.4g}: {outcome.n_accepted:,} of {outcome.n:,} calibration questions "
            f"accepted, {outcome.n_errors} wrong"
        )
    return f"infeasible ({outcome.reason.value}): {why_infeasible(outcome)}"


def verdict_panel(
    artifact: CalibrationArtifact,
    average: CalibrationArtifact,
    everything: GateCounts,
    gated: GateCounts,
    on_average: GateCounts,
) -> None:
    """Print the error before and after the gate, its cost, and the promise.

    Args:
        artifact: The artifact in use.
        average: The artifact of a rule that holds on average.
        everything: The test questions without a gate.
        gated: The test questions through the guard.
        on_average: The same through the gate of the average rule.
    """
    error = gated.error_rate
    colour = "green" if error is not None and error[1] <= artifact.alpha else "red"
    table = Table(show_edge=False, expand=True, box=SIMPLE_HEAD)
    for column in ("", "no gate", f"guard, rule {artifact.outcome.rule}", f"rule {average.outcome.rule}"):
        table.add_column(column, no_wrap=True)
    rows = (everything, gated, on_average)
    table.add_row(f"error among answers (aim: {artifact.alpha:.0%})", *(share(row.error_rate) for row in rows))
    table.add_row("acceptance: questions answered", *(share(row.acceptance) for row in rows))
    table.add_row("power: right answers kept", *(share(row.power) for row in rows))
    heading = f"{gated.n:,} test questions through the guard"
    CONSOLE.print(Panel(table, title=heading, title_align="left", border_style=colour, padding=(1, 1)))
    for outcome in (artifact.outcome, average.outcome):
        CONSOLE.print(f"[bold]{outcome.rule}[/]  {outcome_line(outcome)}")
        CONSOLE.print(Text(f"  promises: {guarantee(outcome)}", style="dim"))


def splits_line(evaluation: Evaluation) -> None:
    """Print the results of the rules over many random halves of the calibration questions: one split is one draw."""
    CONSOLE.print(f"\n[bold]the same over {evaluation.splits} random halves of the calibration questions[/]")
    for row in evaluation.rows:
        if row.rule in ("acrc", "certified") and row.scer is not None:
            CONSOLE.print(
                f"  {row.rule:<10} error among answers {row.scer.value:.1%} on average, above the aim in "
                f"{row.violation_rate.value:.0%} of splits, acceptance {row.acceptance.value:.1%}",
                style="dim",
            )


def labels_line(labels: int, scope: float, at_random: float, within: float) -> None:
    """Print what a few labels certify: drawn from all questions, and from the lowest scores only."""
    CONSOLE.print(f"\n[bold]certified with {labels} labels[/] (mean of 30 draws; docs/label-where-it-matters.md)")
    CONSOLE.print(
        f"  labels on random questions answer {at_random:.1%} of all, on the {scope:.0%} with the lowest scores "
        f"{within:.1%}",
        style="dim",
    )


def examples_table(heading: str, rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    """Print a table of examples; texts are shown literally, never as markup."""
    table = Table(title=heading, title_justify="left", title_style="bold", show_lines=False, expand=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    CONSOLE.print(table)
