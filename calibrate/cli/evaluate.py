"""The command that compares rules, estimators and sizes over random splits: evaluate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import PositiveInt

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
from .frame.flags import Texts, flag, load_settings, with_flags
from .frame.options import refuse_with_items
from .frame.table_flags import TableFlags
from .frame.terminal import console, finish, print_line, table

ITEM_ALPHAS = (0.05, 0.1, 0.15, 0.2)
OWN = ""
"""The name of the one comparison that is none of the paper's; the files written then name no table."""
SELECTING = (
    "These figures use the labels of all questions here, so to fit the best score on the same questions is a selection "
    "that no fit counts. Valid ways: --score auto, or fresh labels."
)


class Comparison(TableFlags):
    """Settings of a comparison. Every field is a flag of `evaluate`."""

    alpha: tuple[float, ...] = flag("", "Targets (0.15, the paper's).", (), "-a", "SHARE")
    rule: Texts = flag("", "NAME or NAME:option=value,... Default: the paper's.", (), metavar="NAME")
    score: Texts = flag("", "Default: every score.", (), "-s", "NAME")
    n_calibration: tuple[PositiveInt, ...] = flag("", "Questions to fit on in each split (half).", (), metavar="N")
    splits: PositiveInt = flag("", "Random splits.", 100)
    cluster_by_group: bool = flag("", "Keep groups whole in splits.", False)
    table: tuple[Literal["main", "risk-levels", "scores", "sizes", "ablation", "all"], ...] = flag(
        "", "Compare as the paper does: main, risk-levels, scores, sizes, ablation, or all.", (), metavar="NAME"
    )
    figure: Path | None = flag("", "PNG with the paper's panels: risk and acceptance by alpha.")
    csv: Path | None = flag("", "Write the table here.")
    json_path: Path | None = flag("", "Write everything here.", name="--json")
    items: bool = flag("", "Keep or hold back each item (field of JSON).", False)

    @property
    def in_paper(self) -> list[str]:
        """The names of the paper's comparisons that are asked for: its tables, and its figure."""
        names = [name for name in TABLES if name in self.table or "all" in self.table]
        return [*names, FIGURE] if self.figure else names

    @property
    def usual_rules(self) -> bool:
        """Whether the paper's rules are compared: at its delta, and shown with their names there."""
        return not self.rule and not self.items

    def experiments(self, n: int) -> dict[str, Experiment]:
        """What is compared on a pool of n questions, by name; without `in_paper` one comparison of every score."""
        if self.in_paper:
            return {name: experiment(name, n, alphas=self.alpha, sizes=self.n_calibration) for name in self.in_paper}
        rules = compared_rules("item") if self.items else METHODS
        alphas = ITEM_ALPHAS if self.items else (ALPHA,)
        return {OWN: Experiment(self.rule or rules, self.alpha or alphas, self.n_calibration, every_score=True)}


@command("evaluate", "calibrating.md#evaluate")
@with_flags(Comparison)
def evaluate(
    *,
    records: Annotated[list[Path], typer.Argument(help="Record files or tables with scores and labels.")],
    given: dict[str, Any],
) -> None:
    """Compare rules, scores and calibration sizes over many random splits. The model is not called.

    Example: calibrate evaluate records.jsonl -a 0.1 --rule acrc --csv rules.csv
    Example: calibrate evaluate records.jsonl --table all --figure panels.png
    """
    asked = load_settings(Comparison, None, given)
    keep_inputs(records, [asked.figure, asked.csv, asked.json_path])
    if asked.items:
        refuse_with_items(score=asked.score, table=asked.table, figure=asked.figure)
    if asked.rule and asked.in_paper:
        raise UsageError("--table and --figure compare the paper's own rules: leave out --rule, or them.")
    files = open_files(records, asked.columns)
    for record_file in files:
        warn_undecided(record_file)
    file = pool_of(files)
    keys = keys_of(file, [ITEMS] if asked.items else asked.score)
    grids = {
        name: evaluate_grid(
            file,
            keys if compared.every_score else keys[:1],
            rules=compared.rules,
            alphas=compared.alphas,
            sizes=compared.sizes,
            splits=asked.splits,
            delta=DELTA if asked.usual_rules else None,
            cluster_by_group=asked.cluster_by_group,
            shown=lambda title: bar(console, title, "splits"),
        )
        for name, compared in asked.experiments(len(file.records)).items()
    }
    for name, grid in grids.items():
        if name != FIGURE:  # the panels show its 35 rows, and --csv has their numbers
            figures = OF_ITEMS if asked.items else None
            _print_table(grid, TABLES.get(name, "Rules"), names=asked.usual_rules, figures=figures)
    several = any(len({cell.estimator for cell in grid.cells}) > 1 for grid in grids.values())
    if several:
        print_line(SELECTING, "yellow")
    warn_unlike(files, keys[0])
    score = " --items" if asked.items else _score_to_fit(file, next(iter(grids.values())), several=several)
    following = f"calibrate fit {file.typed}{asked.typed}{score} --alpha {asked.alpha[0] if asked.alpha else 0.1:g}"
    finish(_write(grids, asked), following)


def _print_table(grid: EvaluationGrid, subject: str, *, names: bool, figures: Sequence[str] | None = None) -> None:
    """Print all cells, with the names that rules have in the paper or without; by default the figures that fit."""
    first = grid.cells[0]
    wide = figures is None and _has_room()
    figures = figures or (FIGURES if wide else SHORT)
    if not _has_room():
        figures = [name for name in figures if name != "complete"]  # as wide as three others
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


def _write(grids: Mapping[str, EvaluationGrid], asked: Comparison) -> list[Path]:
    """Write the rows of all tables, everything as JSON, and the figure, where a path is given; returns the paths."""
    contents: list[tuple[Path, bytes]] = []
    if asked.csv is not None:
        rows = [row if name == OWN else {"table": name} | row for name, grid in grids.items() for row in grid.records()]
        contents.append((asked.csv, csv_text(rows).encode()))
    if asked.json_path is not None:
        content = {name: grid.model_dump(mode="json") for name, grid in grids.items()}
        contents.append((asked.json_path, json.dumps(content.get(OWN, content), indent=1).encode() + b"\n"))
    if asked.figure is not None:
        fields = ("scer", "acceptance", "power", "violation_rate")
        panels = across_alpha({"": grids[FIGURE].cells[0].evaluation.rows}, fields, name="panels")
        contents.append((asked.figure, panels.png))
    for path, data in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return [path for path, _ in contents]
