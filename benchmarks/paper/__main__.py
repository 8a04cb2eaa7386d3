"""``python -m benchmarks.paper --data DIR``: run the paper's experiments, write the tables of docs/paper.md.

Without DIR, or where it lacks a file, the tables on recorded outputs stay as they are.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.paper.figure import STYLES, risk_retention
from benchmarks.paper.markdown import across, beside, compact, form, table, with_blocks
from benchmarks.paper.pools import Pool, pairs, recorded_pools, simulated_pools
from benchmarks.paper.printed import ABLATION, ESTIMATORS, MAIN, RISK_LEVELS, SIZES
from benchmarks.paper.protocol import METHODS, VARIANTS, Held, Row, average, held, run
from guardrail.errors import UsageError

__all__ = ["experiments", "main"]

ALPHAS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25)
"""Targets of the figure; every second one is a row of the table of risk levels."""
CALIBRATIONS = (100, 250, 500, 1_000, 1_500)
HELD_DELTA, HELD_RUNS = 0.1, 300


def experiments(pools: Sequence[Pool], *, splits: int, seed: int) -> dict[str, list[Row]]:
    """The paper's experiments on the first score of each pool, one list of rows an experiment; means over models.

    Sizes that leave less than a quarter of a pool to test on are left out.
    """
    shown = {label: METHODS[label] for label in STYLES}
    rows: dict[str, list[Row]] = {"main": [], "levels": [], "sizes": [], "ablation": []}
    for number, pool in enumerate(pools, start=1):
        print(f"\r{number} of {len(pools)} pools", end="", file=sys.stderr, flush=True)
        rows["main"] += run(pool, METHODS, splits=splits, seed=seed)
        rows["levels"] += run(pool, shown, ALPHAS, splits=splits, seed=seed)
        rows["ablation"] += run(pool, VARIANTS, splits=splits, seed=seed)
        for n in CALIBRATIONS:
            if 4 * n <= 3 * pool.error.size:
                rows["sizes"] += run(pool, {f"{n:,}": METHODS["A-CRC-QA"]}, n=n, splits=splits, seed=seed)
    print(file=sys.stderr)
    return rows | {
        "pairs": average(rows["main"], lambda row: (row.dataset, row.model, row.label)),
        **{
            name: average(rows[name], lambda row: (row.dataset, row.label, row.alpha))
            for name in ("main", "levels", "sizes", "ablation")
        },
    }


def estimators(pools: Sequence[Pool], *, splits: int, seed: int) -> list[Row]:
    """A-CRC by score, a row for each model and score."""
    rows = [
        row
        for pool in pools
        for score in pool.uncertainty
        for row in run(pool, {score: METHODS["A-CRC-QA"]}, score=score, splits=splits, seed=seed)
    ]
    return average(rows, lambda row: (row.dataset, row.model, row.label))


def levels(rows: Sequence[Row], label: str) -> list[Row]:
    """The rows of one method at the paper's five targets, labelled by the target."""
    return [replace(row, label=f"{row.alpha:.2f}") for row in rows if row.label == label and row.alpha in ALPHAS[::2]]


def overall(rows: Sequence[Row]) -> str:
    """Means over all pairs, a line a method."""
    means = average(rows, lambda row: (row.label,))
    worst = {row.label: max(other.violations for other in rows if other.label == row.label) for row in means}
    body = []
    for row in means:
        body.append([row.label, f"{100 * row.acceptance:.1f}", f"{100 * row.power:.1f}", f"{100 * row.violations:.0f}"])
        body[-1] += [f"{100 * worst[row.label]:.0f}", f"{100 * row.infeasible:.0f}"]
    return table(["method", "AR", "Power", "VR", "largest VR of a pair", "IF"], body, 1)


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


def recorded_blocks(folder: Path, *, splits: int, seed: int) -> tuple[dict[str, str], bytes]:
    """The tables and the figure on recorded outputs.

    Raises:
        UsageError: A file is missing.
    """
    pools = pairs(folder)
    others = recorded_pools(folder)
    rows = experiments(pools, splits=splits, seed=seed)
    cells = [
        held(pool, n, alpha, HELD_DELTA, HELD_RUNS, seed)
        for n in (100, 300, 1_000)
        for alpha in (0.1, 0.15, 0.2)
        for pool in pools
    ]
    columns = ["SCER", "AR", "Power", "VR", "IF"]
    return {
        "recorded overall": overall(rows["pairs"]),
        "recorded main": form(rows["main"], columns, "method"),
        "recorded pairs": compact(rows["pairs"]),
        "recorded levels": form(levels(rows["levels"], "A-CRC-QA"), columns, "alpha"),
        "recorded levels certified": across(levels(rows["levels"], "certified"), columns),
        "recorded scores": form(
            estimators(others, splits=splits, seed=seed), ["AUROC", "SCER", "AR", "Power"], "score"
        ),
        "recorded sizes": form(rows["sizes"], ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "recorded ablation": form(rows["ablation"], ["SCER", "AR", "VR"], "variant"),
        "recorded certificates": certificates(cells),
    }, risk_retention(rows["levels"])


def simulated_blocks(pools: Sequence[Pool], *, splits: int, seed: int) -> tuple[dict[str, str], bytes]:
    """The tables beside the printed ones, and the figure, on populations with the paper's accuracy and AUROC."""
    rows = experiments(pools, splits=splits, seed=seed)
    scores = estimators(pools, splits=splits, seed=seed)
    return {
        "simulated main": beside(rows["pairs"], MAIN, ["SCER", "AR", "Power", "VR"], "method"),
        "simulated levels": beside(
            levels(rows["levels"], "A-CRC-QA"), RISK_LEVELS, ["SCER", "AR", "Power", "VR", "IF"], "alpha"
        ),
        "simulated scores": beside(scores, ESTIMATORS, ["AUROC", "SCER", "AR", "Power"], "score"),
        "simulated sizes": beside(rows["sizes"], SIZES, ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "simulated ablation": beside(rows["ablation"], ABLATION, ["SCER", "AR", "VR"], "variant"),
    }, risk_retention(rows["levels"])


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
    for name, blocks, picture in results:
        page.write_text(with_blocks(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")
        (arguments.docs / "images" / f"paper-{name}.png").write_bytes(picture)
    print(f"wrote {page} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
