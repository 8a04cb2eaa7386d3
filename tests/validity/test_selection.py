"""Several fits on the same labels: counted and paid for they keep the stated confidence; in silence they break it."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
from scipy import stats

from calibrate.thresholds import fit
from guardrail.outcome import Feasible

ALPHA = DELTA = 0.1
FALSE_ALARM = 1e-4
"""Chance that a test fails although the promise holds exactly at its limit."""
RUNS, N = 500, 150
"""Simulated calibrations, and labels of each."""
SCORES = 12


def paid(number: int) -> float:
    """Return the delta of a fit that was not declared, by its number."""
    return DELTA * (1.0 if number == 1 else 6 / (pi * number) ** 2)


def false_certificates(deltas: Sequence[float]) -> int:
    """Count the runs in which any of several scores that say nothing is certified, where each answer errs with alpha."""
    rng, failed = np.random.default_rng(20261), 0
    for _ in range(RUNS):
        error = (rng.random(N) < ALPHA).astype(np.int64)
        failed += any(
            isinstance(fit(rng.random(N), error, alpha=ALPHA, delta=delta, rule="certified", diagnose="fast"), Feasible)
            for delta in deltas
        )
    return failed


def limit(delta: float) -> float:
    """Return the most failures that a promise at delta passes with."""
    return float(stats.binom.ppf(1 - FALSE_ALARM, RUNS, delta))


def test_fits_that_are_paid_for_keep_the_confidence_that_is_stated() -> None:
    deltas = [paid(number) for number in range(1, SCORES + 1)]
    assert sum(deltas) < 1.4 * DELTA
    assert false_certificates(deltas) <= limit(sum(deltas))


def test_declared_scores_keep_delta_together() -> None:
    assert false_certificates([DELTA / SCORES] * SCORES) <= limit(DELTA)


def test_negative_control_the_best_of_twelve_in_silence() -> None:
    assert false_certificates([DELTA] * SCORES) > 3 * RUNS * DELTA
