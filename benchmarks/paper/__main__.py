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
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from PIL import Image

from benchmarks.paper.markdown import across, beside, compact, form, table, with_blocks
from benchmarks.paper.pools import pairs, recorded_pools, simulated_pools
from benchmarks.paper.printed import ABLATION, ESTIMATORS, MAIN, RISK_LEVELS, SIZES
from calibrate.report.paper import FIGURE, PaperPool, PaperRow, PaperTables, average, paper_tables
from calibrate.rules import Feasible, certified
from guardrail.errors import UsageError

__all__ = ["Held", "held", "main"]

HELD_DELTA, HELD_RUNS = 0.1, 300


@dataclass(frozen=True, slots=True)
class Held:
    """What `certified` did on one pool at one n and alpha."""

    pool: PaperPool
    n: int
    alpha: float
    acceptance: float
    """Mean accepted share of the pool, 0 where there is no threshold."""
    false: float
    """Share of calibrations whose threshold has an error rate above alpha in the pool."""


def held(pool: PaperPool, n: int, alpha: float, delta: float, runs: int, seed: int = 0) -> Held:
    """Draw calibrations from a pool with replacement: they are independent, and the pool's error rate is the truth."""
    u = next(iter(pool.uncertainty.values()))
    order = np.argsort(u, kind="stable")
    u, wrong = u[order], pool.error[order]
    errors = np.append(0, np.cumsum(wrong))
    rng, accepted, false = np.random.default_rng([seed, n]), 0.0, 0
    for _ in range(runs):
        drawn = np.sort(rng.integers(0, u.size, n))
        outcome = certified(u[drawn], wrong[drawn], alpha, delta)
        if isinstance(outcome, Feasible):
            k = int(np.searchsorted(u, outcome.threshold, side="right"))
            accepted += k / u.size
            false += errors[k] > alpha * k
    return Held(pool, n, alpha, accepted / runs, false / runs)


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


def tables(pools: Sequence[PaperPool], names: Sequence[str], *, splits: int, seed: int) -> PaperTables:
    """The paper's experiments on the pools; each is counted in the terminal."""

    def progress(done: int, total: int, note: str = "") -> None:
        print(f"\r{done} of {total} pools", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return paper_tables(pools, names, splits=splits, seed=seed, progress=progress)


def levels(paper: PaperTables, label: str) -> list[PaperRow]:
    """The rows of one method at the paper's targets, labelled by the target."""
    return [row.model_copy(update={"label": f"{row.alpha:.2f}"}) for row in paper.rows[FIGURE] if row.label == label]


def overall(rows: Sequence[PaperRow]) -> str:
    """Means over all pairs, a line a method."""
    body = []
    for label in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == label]
        rates = [[row.acceptance.value, row.power.value if row.power else 0.0] for row in own]
        violations = [row.violation_rate.value for row in own]
        body.append([label, *(f"{100 * fmean(column):.1f}" for column in zip(*rates, strict=True))])
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
    paper = tables(pools, ["main", "sizes", "ablation", FIGURE], splits=splits, seed=seed)
    cells = [
        held(pool, n, alpha, HELD_DELTA, HELD_RUNS, seed)
        for n in (100, 300, 1_000)
        for alpha in (0.1, 0.15, 0.2)
        for pool in pools
    ]
    return {
        "recorded overall": overall(paper.rows["main"]),
        "recorded main": form(average(paper.rows["main"], over_models=True), COLUMNS, "method"),
        "recorded pairs": compact(paper.rows["main"]),
        "recorded levels": form(levels(paper, "A-CRC-QA"), COLUMNS, "alpha"),
        "recorded levels certified": across(levels(paper, "certified"), COLUMNS),
        "recorded scores": form(tables(others, ["scores"], splits=splits, seed=seed).rows["scores"], SCORES, "score"),
        "recorded sizes": form(paper.rows["sizes"], ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "recorded ablation": form(paper.rows["ablation"], ["SCER", "AR", "VR"], "variant"),
        "recorded certificates": certificates(cells),
    }, paper.figure().png


def simulated_blocks(pools: Sequence[PaperPool], *, splits: int, seed: int) -> tuple[dict[str, str], bytes]:
    """The tables beside the printed ones, and the figure, on populations with the paper's accuracy and AUROC."""
    paper = tables(pools, ["main", "scores", "sizes", "ablation", FIGURE], splits=splits, seed=seed)
    return {
        "simulated main": beside(paper.rows["main"], MAIN, ["SCER", "AR", "Power", "VR"], "method"),
        "simulated levels": beside(levels(paper, "A-CRC-QA"), RISK_LEVELS, COLUMNS, "alpha"),
        "simulated scores": beside(paper.rows["scores"], ESTIMATORS, SCORES, "score"),
        "simulated sizes": beside(paper.rows["sizes"], SIZES, ["SCER ± sd", "AR", "VR", "IF"], "n"),
        "simulated ablation": beside(paper.rows["ablation"], ABLATION, ["SCER", "AR", "VR"], "variant"),
    }, paper.figure().png


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
        image = Image.open(io.BytesIO(picture)).quantize(128)  # a quarter of the size
        image.save(arguments.docs / "images" / f"paper-{name}.png", optimize=True)
    print(f"wrote {page} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
