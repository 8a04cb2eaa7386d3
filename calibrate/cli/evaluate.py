"""The command that compares rules, estimators and sizes over random splits: evaluate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.notebook import percent

from ..data.progress import bar
from ..data.records import RecordFile
from ..evaluation.choice import AUTO, FEWEST, SHARE
from ..evaluation.grid import evaluate_grid, keys_of
from ..evaluation.paper import ALPHA, DELTA, FIGURE, METHODS, TABLES, Experiment, experiment, rule_with_name
from ..evaluation.results import FEW_NOTE, FIGURES, OF_ITEMS, SHORT, EvaluationGrid, csv_text, few, meaning
from ..report.figures import across_alpha
from ..rules import compared_rules
from .frame.app import command
from .frame.files import keep_inputs, open_files, pool_of, warn_undecided, warn_unlike
from .frame.items import refuse_with_items
from .frame.options import CutOption, ItemsOption, MapOption, RightOption, TableFlags
from .frame.terminal import console, finish, print_line, table

ITEM_ALPHAS = (0.05, 0.1, 0.15, 0.2)
SELECTING = (
    "These figures use the labels of all questions here, so to fit the best score on the same questions is a selection "
    "that no fit counts. Valid ways: --score auto, or fresh labels."
)


class Form(StrEnum):
    """The paper's tables."""

    MAIN = "main"
    RISK_LEVELS = "risk-levels"
    SCORES = "scores"
    SIZES = "sizes"
    ABLATION = "ablation"
    ALL = "all"


@command("evaluate", "calibrating.md#evaluate")
def evaluate(
    records: Annotated[list[Path], typer.Argument(help="Record files or tables with scores and labels.")],
    alpha: Annotated[list[float] | None, typer.Option("--alpha", "-a", help="Targets (0.15, the paper's).")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="NAME or NAME:option=value,... Default: the paper's.")] = None,
    estimator: Annotated[list[str] | None, typer.Option("--score", "-s", help="Default: every score.")] = None,
    n_calibration: Annotated[
        list[int] | None, typer.Option(help="Questions to fit on in each split. Default: half.", min=1)
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits.", min=1)] = 100,
    cluster_by_group: Annotated[bool, typer.Option("--cluster-by-group", help="Keep groups whole in splits.")] = False,
    form: Annotated[list[Form] | None, typer.Option("--table", help="Compare as this table of the paper does.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="PNG with the paper's panels: risk and acceptance by alpha.")
    ] = None,
    csv_path: Annotated[Path | None, typer.Option("--csv", help="Write the table here.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None,
    items: ItemsOption = False,
    map: MapOption = None,
    right: RightOption = None,
    cut: CutOption = None,
) -> None:
    """Compare rules, scores and calibration sizes over many random splits. The model is not called.

    Example: calibrate evaluate records.jsonl -a 0.1 --rule acrc --csv rules.csv
    Example: calibrate evaluate records.jsonl --table all --figure panels.png
    """
    keep_inputs(records, [figure, csv_path, json_path])
    if items:
        refuse_with_items(score=estimator, table=form, figure=figure)
        estimator = [ITEMS]
    if rule and (form or figure):
        raise UsageError("--table and --figure compare the paper's own rules: leave out --rule, or them.")
    columns = TableFlags(map, right, cut)
    files = open_files(records, columns.settings)
    for each in files:
        warn_undecided(each)
    file = pool_of(files)
    keys = keys_of(file, estimator)
    names = [name for name in TABLES if name in (form or ()) or Form.ALL in (form or ())]
    names += [] if figure is None else [FIGURE]
    n = len(file.records)
    asked = {name: experiment(name, n, alphas=alpha or (), sizes=n_calibration or ()) for name in names} or {
        "": _own_experiment(rule, alpha, n_calibration, items=items)
    }
    grids = {
        name: evaluate_grid(
            file,
            keys if each.every_score else keys[:1],
            rules=each.rules,
            alphas=each.alphas,
            sizes=each.sizes,
            splits=splits,
            delta=None if rule or items else DELTA,
            cluster_by_group=cluster_by_group,
            shown=lambda title: bar(console, title, "splits"),
        )
        for name, each in asked.items()
    }
    for name, grid in grids.items():
        if name != FIGURE:
            figures = OF_ITEMS if items else None
            _print_table(grid, TABLES.get(name, "Rules"), names=not (rule or items), figures=figures)
    several = any(len({cell.estimator for cell in grid.cells}) > 1 for grid in grids.values())
    if several:
        print_line(SELECTING, "yellow")
    warn_unlike(files, keys[0])
    score = " --items" if items else _score_to_fit(file, next(iter(grids.values())), several=several)
    following = f"calibrate fit {file.typed}{columns.typed}{score} --alpha {alpha[0] if alpha else 0.1:g}"
    finish(_write(grids, csv_path, json_path, figure), following)


def _own_experiment(
    rules: Sequence[str] | None, alphas: Sequence[float] | None, sizes: Sequence[int] | None, *, items: bool
) -> Experiment:
    """The comparison of these rules, or of the usual ones, with every score."""
    usual, usual_alphas = (compared_rules("item"), ITEM_ALPHAS) if items else (METHODS, (ALPHA,))
    return Experiment(rules or usual, alphas or usual_alphas, sizes or (), every_score=True)


def _print_table(grid: EvaluationGrid, subject: str, *, names: bool, figures: Sequence[str] | None = None) -> None:
    """Print one table of all cells, with the names that rules have in the paper or without; by default what fits."""
    first, wide = grid.cells[0], figures is None and _has_room()
    figures = figures or (FIGURES if wide else SHORT)
    figures = [name for name in figures if name != "complete" or _has_room()]  # as wide as three others
    shown = grid.table(figures, errors=wide, rule=rule_with_name if names else lambda row: row.name)
    evaluation = first.evaluation
    of = "" if "n" in shown.heads else f", fitted on {evaluation.n_calibration} of {evaluation.n} questions"
    title = f"{subject}: {evaluation.splits} splits{of}, %" + (" ± se" if wide else "")
    console.print(table(title, shown.heads, shown.rows, texts=shown.named))
    ranked = "AUROC" in shown.heads or evaluation.auroc is None
    area = "" if ranked else f"{first.estimator}: AUROC {evaluation.area}. "
    print_line(f"{area}Without a gate {percent(evaluation.base_error)} are wrong.")
    print_line(meaning(figures), "dim")
    if any(few(row.n_feasible) for cell in grid.cells for row in cell.evaluation.rows):
        print_line(FEW_NOTE, "yellow")
    console.print()


def _has_room() -> bool:
    """Whether standard errors fit: tables with them have 100 columns. The files always have them."""
    return not console.is_terminal or console.width >= 100


def _score_to_fit(file: RecordFile, grid: EvaluationGrid, *, several: bool) -> str:
    """The flag of the score to fit with, where a file has several.

    It is auto if possible, since the best of several looks too good on these questions.
    """
    if len(file.header.whole_answer_keys) < 2:
        return ""
    best = grid.ranked[0]
    is_auto = several and best.evaluation.n * SHARE >= FEWEST
    return f" --score {AUTO if is_auto else shlex.quote(best.estimator)}"


def _write(
    grids: Mapping[str, EvaluationGrid], csv_path: Path | None, json_path: Path | None, figure: Path | None
) -> list[Path]:
    """Write the rows of all tables, everything as JSON, and the figure, where a path is given; returns the paths."""
    contents: list[tuple[Path, bytes]] = []
    if csv_path is not None:
        rows = [{"table": name} | row if name else row for name, grid in grids.items() for row in grid.records()]
        contents.append((csv_path, csv_text(rows).encode()))
    if json_path is not None:
        content = {name: grid.model_dump(mode="json") for name, grid in grids.items()}
        contents.append((json_path, json.dumps(content.get("", content), indent=1).encode() + b"\n"))
    if figure is not None:
        fields = ("scer", "acceptance", "power", "violation_rate")
        contents.append((figure, across_alpha({"": grids[FIGURE].cells[0].evaluation.rows}, fields, name="panels").png))
    for path, data in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return [path for path, _ in contents]
