"""The command that compares rules, estimators and sizes over random splits: evaluate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from guardrail.errors import UsageError
from guardrail.notebook import percent

from ..data.formats import is_table
from ..data.progress import bar
from ..evaluation.choice import AUTO, FEWEST, SHARE
from ..evaluation.evaluate import FEW_NOTE, FIGURES, MEANING, Estimate, cells, csv_text, few
from ..evaluation.grid import Cell, EvaluationGrid, Source, evaluate_grid, sources
from ..fitting import DEFAULT_DELTA
from ..report.paper import DELTA, FIGURE, TABLES, paper_pool, paper_tables
from ..rules import compared_rules
from ..spec_syntax import parse_rule
from .frame.app import command
from .frame.files import keep_inputs, open_files, warn_repeated, warn_undecided, warn_unlike
from .frame.items import evaluate_by_items, refuse_with_items
from .frame.options import CutOption, ItemsOption, MapOption, RightOption, table_flags, table_settings
from .frame.terminal import console, finish, print_line, table

__all__ = ["evaluate"]

ALPHAS = (0.05, 0.1, 0.15, 0.2)
SELECTING = (
    "These figures use the labels of all questions here, so to fit the best score on the same questions is a selection "
    "that no fit counts. Valid ways: --score auto, or fresh labels."
)


class Form(StrEnum):
    """The paper's tables."""

    MAIN = "main"
    RISK_LEVELS = "risk-levels"
    ESTIMATORS = "scores"
    SIZES = "sizes"
    ABLATION = "ablation"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class _EvaluateOptions:
    """The settings of the comparison, as flags name them."""

    alphas: Sequence[float]
    sizes: Sequence[int]
    estimators: Sequence[str] | None
    splits: int
    seed: int
    delta: float | None
    cluster_by_group: bool


@command("evaluate", "calibrating.md#evaluate")
def evaluate(
    records: Annotated[list[Path], typer.Argument(help="Record files or tables with scores and labels.")],
    alpha: Annotated[
        list[float] | None, typer.Option("--alpha", "-a", help="May be repeated (0.05 0.1 0.15 0.2).")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:option=value,... May be repeated. Default: the ones a report compares."),
    ] = None,
    estimator: Annotated[
        list[str] | None, typer.Option("--score", "-s", help="May be repeated. Default: every one with scores.")
    ] = None,
    n_calibration: Annotated[
        list[int] | None, typer.Option(help="Questions to fit on in each split. May be repeated. Default: half.", min=1)
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits.", min=1)] = 100,
    delta: Annotated[float | None, typer.Option(help="Failure probability, for rules that have one (0.1).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    apart: Annotated[
        bool, typer.Option("--apart", help="Each file is a separate data set or model; do not pool.")
    ] = False,
    cluster_by_group: Annotated[
        bool, typer.Option("--cluster-by-group", help="Keep groups whole when splitting.")
    ] = False,
    form: Annotated[
        list[Form] | None, typer.Option("--table", help="Print a table in the form of the paper instead.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the paper's four-panel figure here (PNG): risk and acceptance by alpha.")
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
    Example: calibrate evaluate graded.csv   (prints the paper's main table)
    """
    keep_inputs(records, [figure, csv_path, json_path])
    if items:
        refuse_with_items(
            estimator=estimator, apart=apart, table=form, figure=figure, cluster_by_group=cluster_by_group
        )
        if n_calibration and len(n_calibration) > 1:
            raise UsageError(f"--items compares one calibration size at a time, got {n_calibration}: name one.")
        evaluate_by_items(
            records,
            alphas=alpha or ALPHAS,
            rules=rule or (),
            delta=DEFAULT_DELTA if delta is None else delta,
            n_calibration=None if not n_calibration else n_calibration[0],
            splits=splits,
            seed=seed,
            csv_path=csv_path,
            json_path=json_path,
        )
        return
    files = open_files(records, table_settings(map, right, cut))
    for file in files:
        warn_undecided(file)
    pools = sources(files, apart=apart)
    for pool in pools:
        warn_repeated(pool.file)
    settings = _EvaluateOptions(alpha or (), n_calibration or (), estimator, splits, seed, delta, cluster_by_group)
    if not (rule or form or figure) and all(is_table(path) for path in records):
        form = [Form.MAIN]
    columns, first = table_flags(map, right, cut), pools[0].file.path
    following = (
        f"fit {shlex.quote(str(first))}{columns} --alpha 0.1"
        if is_table(first)
        else f"evaluate {shlex.quote(str(first))}"
    )
    if form or figure is not None:
        if rule:
            raise UsageError("--table and --figure compare the paper's own rules: leave out --rule, or them.")
        _paper(pools, settings, form or [], figure, csv_path, json_path, following)
        return
    grid = evaluate_grid(
        pools,
        estimator,
        rules=[parse_rule(text) for text in rule or compared_rules()],
        alphas=alpha or ALPHAS,
        sizes=n_calibration,
        splits=splits,
        seed=seed,
        delta=delta,
        cluster_by_group=cluster_by_group,
        shown=lambda title: bar(console, title, "splits"),
    )
    for cell in grid.cells:
        _print_result(cell, named=apart)
    if len({cell.estimator for cell in grid.cells}) > 1:
        print_line(SELECTING, "yellow")
    if not apart:
        warn_unlike(files, grid.cells[0].estimator)
    written = _write(csv_path, json_path, grid.table(), grid.model_dump(mode="json"))
    flags = f"--score {shlex.quote(_following(grid))} --alpha {(alpha or (0.1,))[0]:g}"
    finish(written, f"calibrate fit {pools[0].file.typed}{columns} {flags}")


def _paper(
    pools: Sequence[Source],
    settings: _EvaluateOptions,
    forms: Sequence[Form],
    figure: Path | None,
    csv_path: Path | None,
    json_path: Path | None,
    following: str,
) -> None:
    names = [name for name in TABLES if name in forms or Form.ALL in forms]
    asked = [*names, *([FIGURE] if figure is not None else [])]
    with bar(console, "the paper's experiments", "pools") as progress:
        paper = paper_tables(
            [paper_pool(pool, settings.estimators, cluster_by_group=settings.cluster_by_group) for pool in pools],
            asked,
            alphas=settings.alphas,
            sizes=settings.sizes,
            splits=settings.splits,
            seed=settings.seed,
            delta=DELTA if settings.delta is None else settings.delta,
            progress=progress,
        )
    for name in names:
        heads, cells = paper.printed(name, errors=_has_room())
        console.print(table(paper.title(name), heads, cells, texts=paper.texts(name)))
        if any(few(row.feasible) for row in paper.rows[name]):
            print_line(FEW_NOTE, "yellow")
    rows = [row for name in names or (FIGURE,) for row in paper.flat(name)]
    written = _write(csv_path, json_path, rows, paper.model_dump(mode="json"))
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(paper.figure().png)
        written.append(figure)
    finish(written, f"calibrate {following}")


def _print_result(cell: Cell, *, named: bool) -> None:
    """Print the table of one pool, estimator and size."""
    evaluation = cell.evaluation
    wide = _has_room()
    columns = ("rule", "alpha", "wrong", "sd", *list(FIGURES)[1:])
    rows = []
    for row in evaluation.rows:
        wrong, *others = cells(row, errors=wide)
        spread = "-" if row.scer_sd is None else f"{100 * row.scer_sd:.1f}"
        rows.append([row.name, f"{row.alpha:g}", wrong, spread, *others])
    source = f"{cell.dataset}, {cell.model}, " if named else ""
    sizes = f"fitted on {evaluation.n_calibration} of {evaluation.n}"
    title = f"{source}{cell.estimator}: {evaluation.splits} splits, {sizes}, %" + (" ± se" if wide else "")
    console.print(table(title, columns, rows))
    area = "-" if evaluation.auroc is None else f"{evaluation.auroc:.3f}"
    spread = "" if evaluation.test_auroc is None else f" (test parts {_plain(evaluation.test_auroc)})"
    print_line(
        f"AUROC {area}{spread}, AURC {evaluation.aurc:.4f} ({_plain(evaluation.test_aurc)}), "
        f"excess AURC {evaluation.excess_aurc:.4f} ({_plain(evaluation.test_excess_aurc)}), "
        f"error without gate {percent(evaluation.base_error)}"
    )
    print_line(MEANING, "dim")
    if any(few(row.n_feasible) for row in evaluation.rows):
        print_line(FEW_NOTE, "yellow")
    console.print()


def _has_room() -> bool:
    """Whether standard errors fit: tables with them have 100 columns. The files always have them."""
    return not console.is_terminal or console.width >= 100


def _plain(value: Estimate) -> str:
    return f"{value.value:.4f}" + ("" if value.se is None else f"±{value.se:.4f}")


def _following(grid: EvaluationGrid) -> str:
    """The estimator to fit with: auto if possible, since the best of several looks too good on these questions."""
    best = max(grid.cells, key=lambda cell: cell.evaluation.auroc or 0.0)
    several = len({cell.estimator for cell in grid.cells}) > 1
    return AUTO if several and best.evaluation.n * SHARE >= FEWEST else best.estimator


def _write(csv_path: Path | None, json_path: Path | None, rows: list[dict[str, Any]], content: Any) -> list[Path]:
    written = []
    for path in (csv_path, json_path):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = csv_text(rows) if path is csv_path else json.dumps(content, indent=1) + "\n"
            path.write_text(text, encoding="utf-8", newline="")
            written.append(path)
    return written
