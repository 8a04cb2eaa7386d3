"""The command that estimates how many questions to label, before any is labelled: plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data.progress import bar
from ..evaluation.planning import DEFAULT_SIZES, Plan
from ..evaluation.planning import plan as simulate
from ..thresholds.registry import planned_rules
from .frame import app, console, finish, print_line, table

__all__ = ["plan"]


@app.command()
def plan(
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Share of wrong answers you accept among those given.")],
    accuracy: Annotated[float, typer.Option(help="Share of right answers, guessed (0.7).")],
    auroc: Annotated[float, typer.Option(help="AUROC of the score, guessed (0.75); a small pilot gives both.")],
    delta: Annotated[float, typer.Option(help="Failure probability, for rules that have one.")] = 0.1,
    acceptance: Annotated[
        float | None, typer.Option(help="Share of questions you want answered. Default: half of what is possible.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated. Default: {', '.join(planned_rules())}.")
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option(
            help=f"Number of labelled questions; may be repeated. Default: {', '.join(map(str, DEFAULT_SIZES))}."
        ),
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Simulated calibrations.", min=2)] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None,
) -> None:
    """Estimate how many questions to label for a wanted acceptance, by simulation with each rule. No model, no data.

    Example: [cyan]calibrate plan --alpha 0.1 --accuracy 0.7 --auroc 0.8 --acceptance 0.3[/cyan]
    """
    with bar(console, "simulating", "calibrations") as progress:
        found = simulate(
            alpha,
            delta,
            accuracy=accuracy,
            auroc=auroc,
            target_acceptance=acceptance,
            rules=rule or None,
            sizes=n or DEFAULT_SIZES,
            repetitions=repetitions,
            seed=seed,
            progress=progress,
        )
    _print_result(found)
    written = []
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
        written.append(json_path)
    finish(written, "calibrate collect QUESTIONS --model MODEL --out records.jsonl")


def _print_result(found: Plan) -> None:
    sizes = sorted({row.n for row in found.rows})
    cells = {(row.rule, row.n): row for row in found.rows}
    rows = []
    for rule in dict.fromkeys(row.rule for row in found.rows):
        shown = []
        for size in sizes:
            row = cells[rule, size]
            nothing = row.infeasible_rate.value
            shown.append(f"{100 * row.acceptance.value:.0f}" + (f" ({100 * nothing:.0f})" if nothing >= 0.005 else ""))
        rows.append([rule, *shown])
    title = "Answered, % (calibrations that answer nothing, %), by number of labelled questions"
    console.print(table(title, ["rule", *map(str, sizes)], rows))
    said = {each.sentence for each in found.needed}
    opening = found.sentence
    for sentence in said:
        opening = opening.replace(sentence, "")
    print_line(opening.strip())
    for each in found.needed:
        if each.sentence in found.sentence:
            print_line(f"- {each.sentence}")
    print_line(
        f"Simulated: {found.repetitions} calibrations of normal scores with accuracy {found.accuracy:g} and AUROC "
        f"{found.auroc:g}. Real scores differ; take the numbers as orders of magnitude.",
        "dim",
    )
