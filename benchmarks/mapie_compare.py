"""MAPIE's precision control beside our certified rules, on the same inputs: `python -m benchmarks.mapie_compare`.

MAPIE is needed here only, and lives in a separate environment:

    python3 -m venv mapie-venv && mapie-venv/bin/pip install "mapie==1.6.*"
    python -m benchmarks.mapie_compare --mapie mapie-venv/bin/python

Population: binormal, accuracy .714 and AUROC .762 (the base paper's CoQA with Qwen); alpha .15 is precision .85, delta
.1 is confidence .9. MAPIE gets the true P(right | u) as its probability, the best case for its default grid. Acceptance
and violations are the population's, not a test sample's. Memory is the peak of one call by tracemalloc, numpy's arrays
included; times are medians over the seeds. A second table has the same population with tied scores: `TIED` values, as
votes of that many samples have.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA, DELTA = 0.15, 0.1
ACCURACY, AUROC = 0.714, 0.762
RUNS = {4_000: 200, 100_000: 20}
"""Seeds by number of calibration items."""
GRIDS = (("default", 100), ("quantiles", 100), ("quantiles", 1_000))
"""MAPIE's thresholds: as shipped (0, .01, ... .99), or quantiles of the calibration probabilities."""
TIED = 20
"""Different values of the tied scores."""
HEAVY = 3
"""Seeds of a setting whose calls take a gigabyte each."""
OURS: tuple[tuple[str, dict[str, Any]], ...] = (("certified", {}),)

Array = NDArray[np.float64]


class Untied:
    """The population's own scores."""

    def __init__(self, population: Any) -> None:
        from calibrate.evaluation.populations import gap

        self.gap = gap(population.auroc)

    def scores(self, u: Array) -> Array:
        """Return the scores that a rule sees."""
        return u

    def probability(self, scores: Array) -> Array:
        """Return P(right | score) in the population."""
        odds = (1 - ACCURACY) / ACCURACY * np.exp(self.gap * scores - self.gap**2 / 2)
        return np.asarray(1 / (1 + odds))

    def threshold(self, least: float) -> float:
        """Return the score at which P(right | score) is ``least``."""
        if least <= 0:
            return float("inf")
        return float((np.log((1 - least) / least * ACCURACY / (1 - ACCURACY)) + self.gap**2 / 2) / self.gap)


class Tied:
    """Each score replaced by the upper end of its cell; the cells are equally likely in the population."""

    def __init__(self, population: Any) -> None:
        shares = np.arange(1, TIED) / TIED
        self.ends = np.append(np.quantile(population.scores, shares), 40.0)
        right = np.array([population.acceptance(end) * (1 - population.scer(end)) for end in self.ends])
        self.right = np.diff(right, prepend=0.0) * TIED

    def scores(self, u: Array) -> Array:
        """Return the scores that a rule sees."""
        return np.asarray(self.ends[np.searchsorted(self.ends[:-1], u)])

    def probability(self, scores: Array) -> Array:
        """Return P(right | score) in the population."""
        return np.asarray(self.right[np.searchsorted(self.ends, scores)])

    def threshold(self, least: float) -> float:
        """Return the largest score whose P(right | score) is at least ``least``."""
        fits = self.ends[self.right >= least]
        return float(fits[-1]) if fits.size else float("-inf")


def timed(call: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median seconds, and the peak memory of one call in MB."""
    spent = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(np.median(spent)), peak / 1e6


def worker(path: str) -> None:
    """Run under MAPIE's interpreter: read the inputs, print one JSON line with the results of every setting."""
    control = importlib.import_module("mapie.risk_control")
    warnings.simplefilter("ignore")
    stored = np.load(path)
    right, p = stored["right"], stored["p"]
    results = []
    for grid, size in GRIDS:
        runs = min(HEAVY, len(p)) if size * p.shape[1] >= 10**8 else len(p)
        for method in ("bonferroni_holm", "fixed_sequence"):
            least = []
            for proba, label in zip(p[:runs], right[:runs], strict=True):
                best = controller(control, proba, grid, size, method).calibrate(proba, label).best_predict_param
                least.append(None if best is None else float(best))
            first = controller(control, p[0], grid, size, method)
            seconds, peak = timed(lambda first=first: first.calibrate(p[0], right[0]), 3)  # type: ignore[misc]
            results.append({"name": f"MAPIE {method}, {size:,} {grid}", "least": least, "s": seconds, "mb": peak})
    print(json.dumps(results))


def controller(control: Any, proba: Array, grid: str, size: int, method: str) -> Any:
    """Return a new controller whose "model" returns its input, the probabilities."""
    settings: dict[str, Any] = {"fwer_method": method}
    if grid == "quantiles":
        settings["list_predict_params"] = np.quantile(proba, np.linspace(0, 1, size, endpoint=False))
    return control.BinaryClassificationController(
        predict_function=lambda x: np.column_stack((1 - np.asarray(x), x)),
        risk="precision",
        target_level=1 - ALPHA,
        confidence_level=1 - DELTA,
        **settings,
    )


def run_mapie(interpreter: str, p: Array, error: NDArray[np.int8]) -> list[dict[str, Any]]:
    """Run the worker and return its results."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inputs.npz"
        np.savez(path, p=p, right=1 - error)
        ran = subprocess.run(
            [interpreter, __file__, "--worker", str(path)], capture_output=True, text=True, check=False
        )
    if ran.returncode:
        raise SystemExit(
            f"{ran.stderr.splitlines()[-1]}\nMAPIE did not run under {interpreter}. How to install it:\n{__doc__}"
        )
    listed: list[dict[str, Any]] = json.loads(ran.stdout)
    return listed


def compare(n: int, interpreter: str, kind: type[Untied] | type[Tied]) -> None:
    """Print one table."""
    from calibrate.evaluation.populations import Population
    from calibrate.fitting import fit
    from guardrail.outcome import Feasible

    population = Population.binormal(ACCURACY, AUROC)
    scoring = kind(population)
    drawn = [population.draw(np.random.default_rng([20260715, seed]), n) for seed in range(RUNS[n])]
    drawn = [(scoring.scores(u), error) for u, error in drawn]
    u, error = np.stack([each[0] for each in drawn]), np.stack([each[1] for each in drawn])
    ceiling = population.ceiling(ALPHA)
    if isinstance(scoring, Tied):
        ceiling = max(0.0, *(population.acceptance(end) for end in scoring.ends if population.scer(end) <= ALPHA))
    values = f", {TIED} values" if isinstance(scoring, Tied) else ""
    print(f"\nn = {n:,}{values}, {RUNS[n]} seeds; an oracle accepts {ceiling:.1%}")
    print(f"{'':42}{'s':>9}{'MB':>8}{'accepted %':>12}{'se':>6}{'infeasible %':>14}{'violated %':>12}{'seeds':>7}")

    def show(name: str, thresholds: list[float | None], seconds: float, peak: float) -> None:
        shares = np.array([0.0 if t is None else population.acceptance(t) for t in thresholds])
        bad = [t is not None and population.scer(t) > ALPHA for t in thresholds]
        none, se = np.mean([t is None for t in thresholds]), shares.std(ddof=1) / np.sqrt(shares.size)
        line = f"{100 * shares.mean():12.1f}{100 * se:6.1f}{100 * none:14.1f}{100 * np.mean(bad):12.1f}{shares.size:7}"
        print(f"{name:42}{seconds:9.4f}{peak:8.1f}{line}")

    for rule, options in OURS:
        start = time.perf_counter()
        fit(u[0], error[0], alpha=ALPHA, rule=rule, **options)
        cold = time.perf_counter() - start
        outcomes = [fit(*each, alpha=ALPHA, delta=DELTA, rule=rule, **options) for each in drawn]
        call = lambda: fit(u[0], error[0], alpha=ALPHA, rule=rule, **options)  # noqa: E731, B023
        name = f"{rule}{' holm, 100' if options else ''} (first call {cold:.2f} s)"
        show(name, [o.threshold if isinstance(o, Feasible) else None for o in outcomes], *timed(call, 5))
    for setting in run_mapie(interpreter, scoring.probability(u), error):
        thresholds = [None if least is None else scoring.threshold(least) for least in setting["least"]]
        show(setting["name"], thresholds, setting["s"], setting["mb"])


def main() -> None:
    """Compare at every size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mapie_compare", description=__doc__)
    parser.add_argument("--mapie", default=sys.executable, help="a Python interpreter that has MAPIE 1.6")
    parser.add_argument("--sizes", type=int, nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    for n in arguments.sizes:
        for kind in (Untied, Tied):
            compare(n, arguments.mapie, kind)


if __name__ == "__main__":
    main()
