"""What rising parts of delta at declared looks gain: `python -m benchmarks.looks` (about two minutes).

Five looks at equal steps up to 400 labels, rule `certified` at alpha .1 and delta .1, on the binormal populations of
`benchmarks.few_labels`. Labelling stops at the first look that certifies half of the share that the true threshold
would accept; otherwise the last look stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from calibrate.scoring.reach import spending_parts
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.rule import prefixes

from .few_labels import DELTA, POPULATIONS

ALPHA, SCHEDULE = 0.1, (80, 160, 240, 320, 400)


def share_and_rate(threshold: float, accuracy: float, gap: float) -> tuple[float, float]:
    """Return the share of questions at or below a threshold, and their error rate."""
    wrong = (1 - accuracy) * stats.norm.cdf(threshold - gap)
    share = wrong + accuracy * stats.norm.cdf(threshold)
    return share, wrong / share


def best_share(accuracy: float, gap: float) -> float:
    """Return the share that the largest threshold with an error rate of at most alpha accepts."""
    if 1 - accuracy <= ALPHA:
        return 1.0
    best = optimize.brentq(lambda t: share_and_rate(t, accuracy, gap)[1] - ALPHA, -6, 6)
    return share_and_rate(best, accuracy, gap)[0]


def labelled(
    accuracy: float, auroc: float, parts: Sequence[float], runs: int = 400, seed: int = 11
) -> tuple[float, float, float]:
    """Return mean acceptance in %, mean labels spent, and the share of false certificates."""
    rng, gap = np.random.default_rng(seed), math.sqrt(2) * stats.norm.ppf(auroc)
    wished = best_share(accuracy, gap) / 2
    requests = [request_for("certified", alpha=ALPHA, delta=DELTA * part, options={}) for part in parts]
    accepted = spent = failed = 0.0
    for _ in range(runs):
        error = (rng.random(SCHEDULE[-1]) > accuracy).astype(np.int8)
        u = rng.normal(size=SCHEDULE[-1]) + gap * error
        share = rate = 0.0
        for n, (rule, request) in zip(SCHEDULE, requests, strict=True):
            prefix = prefixes(u[:n], error[:n])
            index = rule.select(prefix, request)
            share, rate = (0.0, 0.0) if index is None else share_and_rate(float(prefix.score[index]), accuracy, gap)
            if index is not None and prefix.k[index] / n >= wished:
                break
        accepted, spent, failed = accepted + share, spent + n, failed + (rate > ALPHA)
    return 100 * accepted / runs, spent / runs, failed / runs


def main() -> None:
    """Print acceptance, labels and false certificates with equal and with rising parts."""
    equal, rising = [1 / len(SCHEDULE)] * len(SCHEDULE), spending_parts(SCHEDULE)
    print("accuracy AUROC  accepted %      labels        false %     (equal -> rising)")
    for accuracy, auroc in POPULATIONS:
        before, now = labelled(accuracy, auroc, equal), labelled(accuracy, auroc, rising)
        print(
            f"{accuracy:8g} {auroc:5g}  {before[0]:4.1f} -> {now[0]:4.1f}    {before[1]:3.0f} -> {now[1]:3.0f}    "
            f"{before[2]:5.1%} -> {now[2]:5.1%}"
        )


if __name__ == "__main__":
    main()
