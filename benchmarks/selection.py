"""How often the certificate for the smallest feasible alpha is false: `python -m benchmarks.selection` (15 seconds).

Another alpha on the same labels is not counted as another fit. Here somebody walks up a list of alphas and takes the
first at which rule `certified` finds a threshold, on the binormal populations of `benchmarks.few_labels`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from calibrate.thresholds.fit import request_for
from calibrate.thresholds.rule import prefixes

from .few_labels import DELTA, POPULATIONS
from .looks import share_and_rate

ALPHAS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3)
LABELS = (150, 400)


def false_share(n: int, accuracy: float, auroc: float, runs: int = 400, seed: int = 5) -> float:
    """Return the share of calibrations whose error rate is above the alpha that was taken."""
    rng, gap = np.random.default_rng(seed), math.sqrt(2) * stats.norm.ppf(auroc)
    requests = [request_for("certified", alpha=alpha, delta=DELTA, options={}) for alpha in ALPHAS]
    failed = 0
    for _ in range(runs):
        error = (rng.random(n) > accuracy).astype(np.int8)
        prefix = prefixes(rng.normal(size=n) + gap * error, error)
        for rule, request in requests:
            index = rule.select(prefix, request)
            if index is not None:
                failed += share_and_rate(float(prefix.score[index]), accuracy, gap)[1] > request.alpha
                break
    return failed / runs


def main() -> None:
    """Print the share of each cell, and the largest."""
    shares = {}
    for n in LABELS:
        for population in POPULATIONS:
            shares[n, *population] = false_share(n, *population)
            print(f"{n} labels, accuracy {population[0]}, AUROC {population[1]}: {shares[n, *population]:.1%}")
    print(f"largest of {len(shares)} cells at delta {DELTA:g}: {max(shares.values()):.1%}")


if __name__ == "__main__":
    main()
