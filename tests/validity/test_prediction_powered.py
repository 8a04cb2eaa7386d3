"""Thresholds from a judge and a sample labelled by people: rarely above alpha; the judge's labels alone mislead.

Populations are known, so the error rate of a threshold is exact. The judge finds half of the errors and
reports 2 % of right answers as errors: its labels, taken as the truth, must fail the same check.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.fitting import fit
from calibrate.prediction_powered import fit_prediction_powered
from guardrail.outcome import Feasible, Infeasible

pytestmark = pytest.mark.slow

RUNS = 200
DELTA = 0.1
FALSE_ALARM = 1e-4
SHAPES: dict[str, tuple[float, Callable[[NDArray[np.float64]], NDArray[np.float64]], Callable[[float], float]]] = {
    # name: alpha, error rate at u, error rate among all up to t; u is uniform.
    "flat": (0.149, lambda u: np.full(u.size, 0.15), lambda t: 0.15),
    "rising": (0.1, lambda u: 0.03 + 0.3 * u, lambda t: 0.03 + 0.15 * t),
    "steep": (0.05, lambda u: 0.6 * u**3, lambda t: 0.15 * t**3),
}


def bad(outcome: Feasible | Infeasible, shape: str) -> bool:
    alpha, _, rate = SHAPES[shape]
    return isinstance(outcome, Feasible) and rate(outcome.threshold) > alpha


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_error_rate_is_seldom_above_alpha(shape: str) -> None:
    alpha, at, _ = SHAPES[shape]
    rng = np.random.default_rng(5)
    failed = misled = feasible = 0
    for _ in range(RUNS):
        u = rng.random(1500)
        truth = rng.random(u.size) < at(u)
        judge = np.where(truth, rng.random(u.size) < 0.5, rng.random(u.size) < 0.02).astype(int)
        people = [int(label) if i < 300 else None for i, label in enumerate(truth)]
        outcome = fit_prediction_powered(u, judge, people, alpha=alpha, delta=DELTA)
        failed += bad(outcome, shape)
        feasible += isinstance(outcome, Feasible)
        misled += bad(fit(u, judge, alpha=alpha, rule="certified", delta=DELTA), shape)
    limit = stats.binom.isf(FALSE_ALARM, RUNS, DELTA)
    assert failed <= limit
    assert misled > limit  # negative control: the judge's labels alone
    assert shape == "flat" or feasible > RUNS / 4
