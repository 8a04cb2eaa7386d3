"""``python -m benchmarks.paper --data DIR``: run the paper's experiments, write the tables of docs/paper.md.

Without DIR, or where it lacks a file, the tables on recorded outputs stay as they are.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image

from benchmarks.paper.markdown import across, beside, compact, form, table, with_blocks
from benchmarks.paper.pools import Pool, pairs, recorded_pools, simulated_pools
from benchmarks.paper.printed import ABLATION, ESTIMATORS, MAIN, RISK_LEVELS, SIZES
from benchmarks.paper.protocol import Held, Row, average, held, run
from calibrate.evaluation.paper import FIGURE
from calibrate.report.figures import across_alpha
from guardrail.errors import UsageError

__all__ = ["experiments", "main"]

HELD_DELTA, HELD_RUNS = 0.1, 300


def certificates(cells: Sequence[Held]) -> str:
    """How often `certified` was false: one line for each n and alpha, over all pairs."""
    limit = HELD_DELTA + 3 * math.sqrt(HELD_DELTA * (1 - HELD_DELTA) / HELD_RUNS)
    body = []
    for n, alpha in dict.fromkeys((cell.n, cell.alpha) for cell in cells):
        own = [cell for cell in cells if (cell.n, cell.alpha) == (n, alpha)]
        worst = max(own, key=lambda cell: cell.false)
        body.append([f"{n:,}", f"{alpha:.2f}", f"{100 * fmean(cell.acceptance for cell in own):.1f}"])
        body[-1] += [f"{100 * fmean(cell.false for cell in own):.1f}", f"{100 * worst.false:.1f}"]
        body[-1].append(f"{worst.pool.dataset}, {worst.pool.model}")
    head = ["n", "alpha", "AR", "false, mean", "false, largest", "pair"]
    rows = table(head, body, 0).replace("--:|\n", ":--|\n", 1)
    above = sum(cell.false > limit for cell in cells)
    return f"{rows}\n\nCells above delta + 3 standard errors ({100 * limit:.1f} %): {above} of {len(cells)}."


def experiments(pools: Sequence[Pool], names: Sequence[str], *, splits: int, seed: int) -> dict[str, list[Row]]:
    """Rows of the paper's tables and its figure on the pools; means over models, but for "main" and "scores"."""
    rows: dict[str, list[Row]] = {name: [] for name in names}
    for number, pool in enumerate(pools, start=1):
        print(f"\r{number} of {len(pools)} pools", end="", file=sys.stderr, flush=True)
        for name in names:
            rows[name] += run(pool, name, splits=splits, seed=seed)
    print(file=sys.stderr)
    return {name: average(found, by_model if name in ("main", "scores") else by_data) for name, found in rows.items()}


def by_model(row: Row) -> tuple[Any, ...]:
    """Pools of one model and data set are repetitions."""
    return row.dataset, row.model, row.label, row.figures.alpha


def by_data(row: Row) -> tuple[Any, ...]:
    """What a mean over models has in common."""
    return row.dataset, row.label, row.figures.alpha


def levels(rows: Sequence[Row], label: str) -> list[Row]:
    """The rows of one method at the paper's targets, labelled by the target."""
    return [replace(row, label=f"{row.figures.alpha:.2f}") for row in rows if row.label == label]


def picture(rows: Sequence[Row]) -> bytes:
    """Error rate and acceptance against alpha, two panels a data set, as PNG."""
    datasets = dict.fromkeys(row.dataset for row in rows)
    pools = {name: [row.figures for row in rows if row.dataset == name] for name in datasets}
    return across_alpha(pools, ("scer", "acceptance")).png


def overall(rows: Sequence[Row]) -> str:
    """Means over all pairs, a line a method."""
    body = []
    for label in dict.fromkeys(row.label for row in rows):
        own = [row.figures for row in rows if row.label == label]
        violations = [row.violation_rate.value for row in own]
        body.append([label, f"{100 * fmean(row.acceptance.value for row in own):.1f}"])
        body[-1].append(f"{100 * fmean(row.power.value if row.power else 0.0 for row in own):.1f}")
        body[-1] += [f"{100 * fmean(violations):.0f}", f"{100 * max(violations):.0f}"]
        body[-1].append(f"{100 * fmean(row.infeasible_rate.value for row in own):.0f}")
    return table(["method", "AR", "Power", "VR", "largest VR of a pair", "IF"], body, 1)


COLUMNS = ["SCER", "AR", "Power", "VR", "IF"]
SCORES = ["AUROC", "SCER", "AR", "Power"]


def recorded_blocks(folder: Path, *, splits: int, seed: int) -> tuple[dict[str, str], bytes]:
    """The tables and the figure on recorded outputs.

    Raises:
        UsageError: A file is missing.
    """
    pools = pairs(folder)
    others = recorded_pools(folder)
    rows = experiments(pools, ["main", "sizes", "ablation", FIGURE], splits=splits, seed=seed)
    scores = experiments(others, ["scores"], splits=splits, seed=seed)["scores"]
    cells = [
        held(pool, n, alpha, HELD_DELTA, HELD_RUNS, seed)
        for n in (100, 300, 1_000)
        for alpha in (0.1, 0.15, 0.2)
        for pool in pools
    ]
    return {
        "recorded overall": overall(rows["main"]),
        "recorded main": form(average(rows["main"], by_data), COLUMNS, "method"),
        "recorded pairs": compact(rows["main"]),
        "recorded levels": form(levels(rows[FIGURE], "A-CRC-QA"), COLUMNS, "alpha"),
        "recorded levels certified": across(levels(rows[FIGURE], "certified"), COLUMNS),
        "recorded scores": form(scores, SCORES, "score"),
        "recorded sizes": form(rows["sizes"], ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "recorded ablation": form(rows["ablation"], ["SCER", "AR", "VR"], "variant"),
        "recorded certificates": certificates(cells),
    }, picture(rows[FIGURE])


def simulated_blocks(pools: Sequence[Pool], *, splits: int, seed: int) -> tuple[dict[str, str], bytes]:
    """The tables beside the printed ones, and the figure, on populations with the paper's accuracy and AUROC."""
    rows = experiments(pools, ["main", "scores", "sizes", "ablation", FIGURE], splits=splits, seed=seed)
    return {
        "simulated main": beside(rows["main"], MAIN, ["SCER", "AR", "Power", "VR"], "method"),
        "simulated levels": beside(levels(rows[FIGURE], "A-CRC-QA"), RISK_LEVELS, COLUMNS, "alpha"),
        "simulated scores": beside(rows["scores"], ESTIMATORS, SCORES, "score"),
        "simulated sizes": beside(rows["sizes"], SIZES, ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "simulated ablation": beside(rows["ablation"], ABLATION, ["SCER", "AR", "VR"], "variant"),
    }, picture(rows[FIGURE])


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything; a few minutes on one core."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the recorded outputs")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of paper.md and images/")
    parser.add_argument("--pools", type=int, default=20, help="simulated pools of each population")
    parser.add_argument("--splits", type=int, default=100, help="random splits of each pool")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    began, page = time.monotonic(), arguments.docs / "paper.md"
    settings = {"splits": arguments.splits, "seed": arguments.seed}
    results = [("simulated", *simulated_blocks(simulated_pools(arguments.pools, seed=arguments.seed), **settings))]
    try:
        if arguments.data is None:
            raise UsageError("no --data")
        results.append(("recorded", *recorded_blocks(arguments.data, **settings)))
    except UsageError as missing:
        print(f"The tables on recorded outputs stay as they are: {missing}")
    for name, blocks, png in results:
        page.write_text(with_blocks(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")
        image = Image.open(io.BytesIO(png)).quantize(128)  # a quarter of the size
        image.save(arguments.docs / "images" / f"paper-{name}.png", optimize=True)
    print(f"wrote {page} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
