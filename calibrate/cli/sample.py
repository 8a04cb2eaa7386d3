"""The command that draws what to label: sample."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data.records import read_records, write_records
from ..report.sentences import percent
from ..scoring.reach import draw_to_label
from .fit import EstimatorOption, chosen_estimator
from .frame import app, finish, keep_inputs, print_line

__all__ = ["sample"]


@app.command()
def sample(
    records: Annotated[Path, typer.Option("--records", help="Scored records without labels.")],
    n: Annotated[int, typer.Option("--n", "--labels", help="Questions to label.")],
    reach: Annotated[float, typer.Option(help="Share of the lowest scores to draw from; 1 for all questions.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file to write.")] = Path("to-label.jsonl"),
    estimator: EstimatorOption = None,
    fixed_beforehand: Annotated[
        bool,
        typer.Option("--fixed-beforehand", help="The reach was fixed before anybody looked at these scores."),
    ] = False,
) -> None:
    """Draw what to label, where labels matter: at random from the share of the lowest scores.

    Questions above the cut will never be answered, so a label on them is wasted. The file that is written remembers how
    it was drawn; `label` and `fit` take it, and acceptance is counted over all questions. `plan --records` compares
    reaches.

    Example: [cyan]calibrate sample --records scored.jsonl --reach 0.5 --n 300 --out to-label.jsonl[/cyan]
    """
    keep_inputs([records], [out])
    file = read_records(records)
    key = chosen_estimator(file, estimator)
    drawn = draw_to_label(file, key, share=reach, n=n, seed=seed, fixed_beforehand=fixed_beforehand)
    write_records(out, drawn.header, drawn.records)
    found = drawn.header.reach
    assert found is not None, "draw_to_label sets it"
    print_line(
        f"{n} of {found.n_within} questions with {key} <= {found.cut:.6g}, the lowest "
        f"{percent(found.n_within / found.n_pool)} of {found.n_pool}. Nothing above will be answered."
    )
    finish([out], f"calibrate label {out}, then calibrate fit {out} --rule certified --alpha ALPHA")
