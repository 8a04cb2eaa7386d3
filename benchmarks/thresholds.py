"""Speed of the threshold rules, as multiples of sorting the scores in the same run: `python -m benchmarks.thresholds`.

Cold is the first fit at (n, alpha, delta); warm repeats it. Both
figures include validation, sorting and diagnosis ("fast": without the search for the smallest feasible alpha).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.evaluation.evaluate import evaluate
from calibrate.fitting import fit
from calibrate.rules import RULES

SIZES = (1_000, 20_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Budget:
    """Time limits of a rule at one size."""

    cold: float | None
    """Limit of the first fit, in seconds."""
    warm: float | None
    """Limit of a later fit, in multiples of sorting."""


BUDGETS = {
    ("acrc", 1_000_000): Budget(None, 4),
    ("lec", 1_000_000): Budget(None, 4),
    ("clopper_pearson", 1_000_000): Budget(None, 12),
    ("certified", 1_000): Budget(0.2, None),
    ("certified", 1_000_000): Budget(5, None),
}


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Return the seconds of the fastest of a few runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def population(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return untied scores and errors: about one answer in five is wrong, more often at high scores."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n)
    return u, (rng.random(n) < 1 / (1 + np.exp(1.8 - 1.5 * u))).astype(np.int64)


def measure(n: int) -> bool:
    """Print one table; return whether every rule stayed within its budget."""
    (u, e), within_budget = population(n, 0), True
    sorting = seconds(lambda: np.argsort(u))
    print(f"\nn = {n:,}: np.argsort {sorting * 1e3:.2f} ms")
    print(f"{'rule':24}{'cold s':>10}{'warm s':>10}{'x argsort':>11}  budget")
    for rule in sorted(RULES):
        cold = seconds(lambda rule=rule: fit(u, e, alpha=0.15, rule=rule), 1)  # type: ignore[misc]
        warm = seconds(lambda rule=rule: fit(u, e, alpha=0.15, rule=rule))  # type: ignore[misc]
        budget = BUDGETS.get((rule, n), Budget(None, None))
        fine = (budget.cold is None or cold <= budget.cold) and (budget.warm is None or warm <= budget.warm * sorting)
        within_budget &= fine
        limit = [f"cold <= {budget.cold:g} s"] if budget.cold else []
        limit += [f"warm <= {budget.warm:g} x"] if budget.warm else []
        note = f"{', '.join(limit)}: {'kept' if fine else 'EXCEEDED'}" if limit else ""
        print(f"{rule:24}{cold:10.3f}{warm:10.4f}{warm / sorting:11.1f}  {note}")
    return within_budget


def protocol() -> bool:
    """Time the evaluation protocol: 100 splits, all rules, a pool of 4,000; at most 20 s."""
    u, e = population(4_000, 1)
    spent = seconds(lambda: evaluate(u, e, rules=list(RULES), alphas=[0.1], n_calibration=1_000), 1)
    print(f"\nevaluate, 100 splits, {len(RULES)} rules, pool of 4,000: {spent:.2f} s  budget <= 20 s")
    return spent <= 20


def main() -> int:
    """Print every table; return 1 if a budget was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thresholds", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of calibration items")
    arguments = parser.parse_args()
    results = [measure(n) for n in arguments.sizes]
    results.append(protocol())
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
