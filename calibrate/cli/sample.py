"""The command that draws what to label: sample."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError

from ..data.records import write_records
from ..report.sentences import percent
from ..scoring.reach import draw_to_label
from .fit import LooksOption, parsed_looks
from .frame import app, finish, keep_inputs, print_line, read_pool
from .score import EstimatorOption, chosen_estimator

__all__ = ["sample"]


@app.command()
def sample(
    records: Annotated[list[Path], typer.Option("--records", help="Scored records without labels. May be repeated.")],
    n: Annotated[
        int | None, typer.Option("--n", "--labels", help="Questions to label. Default: the last of --looks.")
    ] = None,
    reach: Annotated[float, typer.Option(help="Share of the lowest scores to draw from; 1 for all questions.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file to write.")] = Path("to-label.jsonl"),
    estimator: EstimatorOption = None,
    fixed_beforehand: Annotated[
        bool,
        typer.Option("--fixed-beforehand", help="The reach was fixed before anybody looked at these scores."),
    ] = False,
    looks: LooksOption = None,
) -> None:
    """Draw what to label, where labels matter: at random from the share of the lowest scores.

    Questions above the cut will never be answered, so a label on them is wasted. The file that is written remembers how
    it was drawn; `label` and `fit` take it, and acceptance is counted over all questions. `plan --records` compares
    reaches. With --looks you may stop labelling as soon as enough is certified (`label --until certified`).

    Example: [cyan]calibrate sample --records scored.jsonl --reach 0.5 --n 300 --out to-label.jsonl[/cyan]
    """
    keep_inputs(records, [out])
    schedule = parsed_looks(looks)
    if n is None and not schedule:
        raise UsageError("say how many questions to label: --n 300, or --looks 100,200,400.")
    file = read_pool(records)
    key = chosen_estimator(file, estimator)
    drawn = draw_to_label(
        file,
        key,
        share=reach,
        n=schedule[-1] if n is None else n,
        seed=seed,
        fixed_beforehand=fixed_beforehand,
        looks=schedule,
    )
    write_records(out, drawn.header, drawn.records)
    found = drawn.header.reach
    assert found is not None, "draw_to_label sets it"
    print_line(
        f"{found.n} of {found.n_within} questions with {key} <= {found.cut:.6g}, the lowest "
        f"{percent(found.n_within / found.n_pool)} of {found.n_pool}. Nothing above will be answered."
    )
    if schedule:
        finish([out], f"calibrate label {out} --interactive --until certified --alpha ALPHA")
    else:
        finish([out], f"calibrate label {out}, then calibrate fit {out} --rule certified --alpha ALPHA")
