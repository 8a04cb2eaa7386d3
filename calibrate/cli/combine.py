"""The commands that make one score of others, fitted on a part of the questions: ensemble, two-stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError
from guardrail.judges import default_judge
from guardrail.types import Frozen
from guardrail.uncertainty.ensemble import EnsembleParams
from guardrail.uncertainty.two_stage import FEWEST

from ..data.records import Record, RecordFile, write_records
from ..data.split import Groups
from ..pipeline import part_header
from ..scoring.ensemble import EnsembleFile, ScoreFile, cut_for_training, fit_ensemble, fit_members
from ..scoring.names import parse_estimator, stored_key
from ..scoring.two_stage import WEIGHT, cut_for_scale, make_two_stage
from ..spec_syntax import cut
from .frame.app import app
from .frame.files import keep_inputs, read_pool
from .frame.next_commands import listed
from .frame.options import RecordsArgument
from .frame.terminal import console, finish, print_line, table

__all__ = ["ensemble", "two_stage"]

ClustersOption = Annotated[
    bool, typer.Option("--cluster-by-group", help="Groups are conversations, users, documents: keep them whole.")
]


@app.command()
def ensemble(
    records: RecordsArgument,
    members: Annotated[str, typer.Option("--members", "-m", help="Estimators to combine: a,b,c, as scored.")],
    train_fraction: Annotated[
        float,
        typer.Option(help="Share of the questions to fit the weights on; calibration cannot use them."),
    ] = 0.3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Ensemble to write; ends in .json.")] = Path("ensemble.json"),
    cluster_by_group: ClustersOption = False,
    seed: Annotated[int, typer.Option(help="Seed of the cut and of cross-validation.")] = 0,
) -> None:
    """Combine several estimators into one, with weights fitted on a training part of the questions.

    The other questions are written next to it (ensemble.rest.jsonl): score and calibrate those. A training question in
    a calibration file is refused.

    Example: calibrate ensemble records.jsonl -m degree,semantic_entropy --train-fraction 0.3
    """
    file = _read(records, out)
    groups: Groups = "cluster" if cluster_by_group else "category"
    names = [name.strip() for name in cut(members, ",") if name.strip()]
    specs = fit_members(file, [stored_key(file.header.estimators, name, file.header.plan.bindings) for name in names])
    train, rest = cut_for_training(file.records, train_fraction=train_fraction, groups=groups, seed=seed)
    fitted = fit_ensemble(train, specs, groups=groups, seed=seed)
    _print_result(fitted)
    _write(fitted, out, file, rest)


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
    cluster_by_group: ClustersOption = False,
    seed: Annotated[int, typer.Option(help="Seed of the cut.")] = 0,
) -> None:
    """Make a score in two stages: one call, and samples only where that call does not decide.

    The scale comes from questions without labels where there are enough. The other questions are written next to it
    (two_stage.rest.jsonl): score and calibrate those. A question of the scale in a calibration file is refused.

    Example: calibrate two-stage records.jsonl --out two_stage.json
    """
    file = _read(records, out)
    plan = file.header.plan
    groups: Groups = "cluster" if cluster_by_group else "category"
    scaled, rest = cut_for_scale(file.records, size=questions, groups=groups, seed=seed)
    stages = (parse_estimator(cheap), parse_estimator(second, judge=default_judge(plan.bindings)))
    estimator = make_two_stage(scaled, plan, *stages, weight=weight)
    print_line(f"The scale has {len(scaled)} questions; {len(rest)} others are left to calibrate on.")
    _write(ScoreFile(spec=estimator.spec), out, file, rest)


def _rest_of(out: Path) -> Path:
    return out.with_suffix(".rest.jsonl")


def _read(records: Sequence[Path], out: Path) -> RecordFile:
    """The records, after a look at the paths that will be written."""
    if out.suffix != ".json":
        raise UsageError(f"--out must end in .json, got {str(out)!r}: `--estimator` recognises a score by it.")
    keep_inputs(records, [out, _rest_of(out)])
    return read_pool(records)


def _write(score: Frozen, out: Path, file: RecordFile, rest: Sequence[Record]) -> None:
    """Write the score, and next to it the questions that are left to calibrate on."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(score.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_records(_rest_of(out), part_header(file.header, rest), rest)
    rest_name, score_name = listed([_rest_of(out)]), listed([out])
    finish([out, _rest_of(out)], f"calibrate score {rest_name} --estimator {score_name}")
    print_line(f"      calibrate fit {rest_name} --estimator {score_name} --alpha 0.1 --rule certified")


def _print_result(ensemble: EnsembleFile) -> None:
    params, fit = EnsembleParams.model_validate(ensemble.spec.params), ensemble.fit
    weights = {key: "0 (left out)" for key in fit.dropped}
    remaining = [key for key in fit.single_auroc if key not in fit.dropped]
    weights |= {key: f"{member.weight:.3f}" for key, member in zip(remaining, params.members, strict=True)}
    rows = [[key, weights[key], f"{fit.single_auroc[key]:.3f}"] for key in fit.single_auroc]
    rows.append(["together (cross-validated)", "", f"{fit.ensemble_auroc:.3f}"])
    console.print(table("Members on the training part", ["uncertainty", "weight", "AUROC"], rows))
    print_line(f"Fitted on {fit.n} training questions, {fit.errors} of them wrong (penalty {fit.penalty:g}).")
    if fit.n_left_out:
        print_line(f"{fit.n_left_out} training questions had no label or an unmeasured member.", "yellow")
    best = fit.single_auroc[fit.best_single]
    if fit.ensemble_auroc <= best:
        print_line(
            f"It ranks no better than {fit.best_single} alone (AUROC {best:.3f}): use that one, and keep the training "
            "questions for calibration.",
            "yellow",
        )
