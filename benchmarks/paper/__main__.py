"""``python -m benchmarks.paper --data DIR --out docs``: measure, and write the page and its figure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.paper.figure import STYLES, risk_retention
from benchmarks.paper.page import Measured, page
from benchmarks.paper.pools import recorded_pools, simulated_pools
from calibrate.data.progress import Progress, bar
from calibrate.evaluation.tables import RecordPool, TableRow, average, methods, run, tables
from guardrail.errors import require

__all__ = ["curves", "main"]

_FIGURE = "images/paper-risk-retention.png"
_ALPHAS = tuple(round(float(alpha), 3) for alpha in np.arange(0.05, 0.2501, 0.025))


def curves(pools: Sequence[RecordPool], *, splits: int, seed: int, progress: Progress) -> tuple[TableRow, ...]:
    """Return the rows of the figure: a few methods at many targets, means over pools and models."""
    shown = {label: rule for label, rule in methods(0.05).items() if label in STYLES}
    rows: list[TableRow] = []
    for done, pool in enumerate(pools, start=1):
        estimator = next(iter(pool.uncertainty))
        rows += run(pool, estimator, shown, _ALPHAS, pool.n_calibration or 1_000, splits, seed)
        progress(done, len(pools))
    return average(rows, over_models=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything; a quarter of an hour on two busy cores with 40 pools."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the recorded outputs")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for paper.md and images/")
    parser.add_argument("--pools", type=int, default=40, help="simulated pools of each population")
    parser.add_argument("--splits", type=int, default=100, help="random splits of each pool")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    recorded = recorded_pools(arguments.data)
    simulated = simulated_pools(arguments.pools, seed=arguments.seed)
    console = require("rich.console", extra="calibrate").Console(stderr=True)
    settings = {"splits": arguments.splits, "seed": arguments.seed}
    with bar(console, "simulated", "pools") as progress:
        on_simulated = tables(simulated, progress=progress, **settings)
    with bar(console, "recorded", "pools") as progress:
        on_recorded = tables(recorded, progress=progress, **settings)
    with bar(console, "figure", "pools") as progress:
        picture = risk_retention(curves(simulated, progress=progress, **settings))
    (arguments.out / "images").mkdir(parents=True, exist_ok=True)
    (arguments.out / _FIGURE).write_bytes(picture)
    measured = Measured(on_simulated, on_recorded, arguments.pools, arguments.splits, arguments.seed)
    (arguments.out / "paper.md").write_text(page(measured, _FIGURE), encoding="utf-8")
    console.print(f"wrote {arguments.out / 'paper.md'} and {arguments.out / _FIGURE}")


if __name__ == "__main__":
    main()
