"""What few labels and a declared share certify: `python -m benchmarks.few_labels` (about three minutes).

Binormal scores, so the error rate behind a threshold is known: of accuracy p and AUROC a, scores of right answers are
N(0, 1) and of wrong ones N(sqrt(2) Phi^-1(a), 1).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from calibrate.thresholds.bounds import zero_error_floor
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.rule import default_min_accept, prefixes

DELTA = 0.1
POPULATIONS = (
    (0.77, 0.78),
    (0.714, 0.762),
    (0.55, 0.70),
    (0.62, 0.76),
    (0.85, 0.7),
    (0.9, 0.7),
    (0.9, 0.85),
    (0.7, 0.9),
)
"""Accuracy and AUROC."""


def accepted(
    n: int, accuracy: float, auroc: float, alpha: float, options: dict[str, float], runs: int, seed: int
) -> tuple[float, float]:
    """Return acceptance in % of the population, and the share of calibrations whose error rate is above alpha."""
    rule, request = request_for("certified", alpha=alpha, delta=DELTA, options=dict(options))
    rng, gap = np.random.default_rng(seed), math.sqrt(2) * stats.norm.ppf(auroc)
    total = failed = 0.0
    for _ in range(runs):
        error = (rng.random(n) > accuracy).astype(np.int8)
        prefix = prefixes(rng.normal(size=n) + gap * error, error)
        index = rule.select(prefix, request)
        if index is not None:
            threshold = prefix.score[index]
            wrong = (1 - accuracy) * stats.norm.cdf(threshold - gap)
            share = wrong + accuracy * stats.norm.cdf(threshold)
            total += share
            failed += wrong / share > alpha
    return 100 * total / runs, failed / runs


def main() -> None:
    """Print acceptance with the former and the present k_min, and with a declared share."""
    better = worse = 0
    cells: list[tuple[float, float]] = []
    worst = 0.0
    for alpha in (0.05, 0.1, 0.15, 0.2):
        for multiple in (1.1, 1.3, 1.6, 2.0, 2.5, 2.95):
            n = math.ceil(multiple * zero_error_floor(alpha, DELTA))
            for population in POPULATIONS:
                former, _ = accepted(n, *population, alpha, {"min_accept": default_min_accept(n, alpha)}, 200, 7)
                present, failed = accepted(n, *population, alpha, {}, 200, 7)
                better, worse, worst = better + (present > former), worse + (present < former), max(worst, failed)
                cells.append((former, present))
    former, present = np.mean(cells, axis=0)
    print(f"{len(cells)} cells: {better} better, {worse} worse; {former:.1f} -> {present:.1f} % accepted;")
    print(f"largest share of false certificates in a cell: {worst:.1%}")
    for population in POPULATIONS:
        plain, declared = (accepted(440, *population, 0.1, options, 1500, 3)[0] for options in ({}, {"expect": 0.15}))
        print(f"accuracy {population[0]}, AUROC {population[1]}: {plain:.1f} % -> {declared:.1f} % with expect .15")


if __name__ == "__main__":
    main()
