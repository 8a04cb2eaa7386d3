"""The command that makes a two-stage score: two-stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError
from guardrail.judges import default_judge
from guardrail.uncertainty.two_stage import FEWEST

from ..data.records import write_records
from ..data.split import Groups
from ..pipeline import part_header
from ..scoring.ensemble import ScoreFile
from ..scoring.names import parse_estimator
from ..scoring.two_stage import WEIGHT, cut_for_scale, make_two_stage
from .frame.app import app
from .frame.files import keep_inputs, read_pool
from .frame.next_commands import listed
from .frame.options import RecordsArgument
from .frame.terminal import finish, print_line

__all__ = ["two_stage"]


@app.command("two-stage")
def two_stage(
    records: RecordsArgument,
    questions: Annotated[int, typer.Option(help="Questions of the scale; calibration cannot use them.")] = FEWEST,
    cheap: Annotated[str, typer.Option(help="Score of the first call: answer_word_nll, sequence_nll.")] = (
        "answer_word_nll"
    ),
    second: Annotated[
        str, typer.Option(help="Disagreement of the samples with the answer: primary_disagreement[:JUDGE].")
    ] = "primary_disagreement",
    weight: Annotated[
        float, typer.Option(help="How far samples move a question; about the share that draws samples.")
    ] = WEIGHT,
    out: Annotated[Path, typer.Option("--out", "-o", help="Score to write; ends in .json.")] = Path("two_stage.json"),
    cluster_by_group: Annotated[
        bool, typer.Option("--cluster-by-group", help="Groups are conversations, users, documents: keep them whole.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the cut.")] = 0,
) -> None:
    """Make a score in two stages: one call, and samples only where that call does not decide.

    The scale comes from questions without labels where there are enough. The other questions are written next to it
    (two_stage.rest.jsonl): score and calibrate those. A question of the scale in a calibration file is refused.

    Example: calibrate two-stage records.jsonl --out two_stage.json
    """
    if out.suffix != ".json":
        raise UsageError(f"--out must end in .json, got {str(out)!r}: `--estimator` recognises a score by it.")
    rest_path = out.with_suffix(".rest.jsonl")
    keep_inputs(records, [out, rest_path])
    file = read_pool(records)
    plan = file.header.plan
    groups: Groups = "cluster" if cluster_by_group else "category"
    scaled, rest = cut_for_scale(file.records, size=questions, groups=groups, seed=seed)
    stages = (parse_estimator(cheap), parse_estimator(second, judge=default_judge(plan.bindings)))
    estimator = make_two_stage(scaled, plan, *stages, weight=weight)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(ScoreFile(spec=estimator.spec).model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_records(rest_path, part_header(file.header, rest), rest)
    print_line(f"The scale has {len(scaled)} questions; {len(rest)} others are left to calibrate on.")
    rest_name, score_name = listed([rest_path]), listed([out])
    finish([out, rest_path], f"calibrate score {rest_name} --estimator {score_name}")
    print_line(f"      calibrate fit {rest_name} --estimator {score_name} --alpha 0.1 --rule certified")
