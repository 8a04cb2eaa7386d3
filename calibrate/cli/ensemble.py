"""The command that combines estimators: ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError
from guardrail.uncertainty.ensemble import EnsembleParams

from ..data.records import write_records
from ..data.split import Groups
from ..pipeline import part_header
from ..scoring.ensemble import EnsembleFile, cut_for_training, fit_ensemble, fit_members
from ..scoring.names import stored_key
from ..spec_syntax import cut
from .frame.app import app
from .frame.files import keep_inputs, read_pool
from .frame.next_commands import listed
from .frame.options import RecordsArgument
from .frame.terminal import console, finish, print_line, table

__all__ = ["ensemble"]


@app.command()
def ensemble(
    records: RecordsArgument,
    members: Annotated[str, typer.Option("--members", "-m", help="Estimators to combine: a,b,c, as scored.")],
    train_fraction: Annotated[
        float,
        typer.Option(help="Share of the questions to fit the weights on; calibration cannot use them."),
    ] = 0.3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Ensemble to write; ends in .json.")] = Path("ensemble.json"),
    cluster_by_group: Annotated[
        bool, typer.Option("--cluster-by-group", help="Groups are conversations, users, documents: keep them whole.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the cut and of cross-validation.")] = 0,
) -> None:
    """Combine several estimators into one, with weights fitted on a training part of the questions.

    The other questions are written next to it (ensemble.rest.jsonl): score and calibrate those. A training question in
    a calibration file is refused.

    Example: calibrate ensemble records.jsonl -m degree,semantic_entropy --train-fraction 0.3
    """
    if out.suffix != ".json":
        raise UsageError(f"--out must end in .json, got {str(out)!r}: `--estimator` recognises an ensemble by it.")
    rest_path = out.with_suffix(".rest.jsonl")
    keep_inputs(records, [out, rest_path])
    file = read_pool(records)
    groups: Groups = "cluster" if cluster_by_group else "category"
    names = [name.strip() for name in cut(members, ",") if name.strip()]
    specs = fit_members(file, [stored_key(file.header.estimators, name, file.header.plan.bindings) for name in names])
    train, rest = cut_for_training(file.records, train_fraction=train_fraction, groups=groups, seed=seed)
    fitted = fit_ensemble(train, specs, groups=groups, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(fitted.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_records(rest_path, part_header(file.header, rest), rest)
    _print_result(fitted)
    rest_name, ensemble_name = listed([rest_path]), listed([out])
    finish([out, rest_path], f"calibrate score {rest_name} --estimator {ensemble_name}")
    print_line(f"      calibrate fit {rest_name} --estimator {ensemble_name} --alpha 0.1")


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
