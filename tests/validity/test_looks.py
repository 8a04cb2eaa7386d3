"""Several looks at a growing set of labels: declared looks share delta and hold together; undeclared looks do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds import fit
from guardrail.artifact import Looks
from guardrail.outcome import Feasible

from .walks import crossing

DELTA = 0.1
SCHEDULES = [(100, 200, 400), (50, 100, 150, 200, 250), (60, 61, 62), (300,)]


def most_errors(n: int, alpha: float, delta: float) -> int:
    """Return the most errors with which n answers of equal score are certified; -1 for none."""

    def certified(errors: int) -> bool:
        labels = [1] * errors + [0] * (n - errors)
        return isinstance(
            fit(np.zeros(n), labels, alpha=alpha, delta=delta, rule="certified", diagnose="fast"), Feasible
        )

    return next((errors - 1 for errors in range(n + 1) if not certified(errors)), n)


def failure(schedule: tuple[int, ...], alpha: float, delta_of_each: float) -> float:
    """Return the exact P(some look certifies) if every answer is wrong with probability alpha: a walk over labels."""
    limits = np.array([most_errors(n, alpha, delta_of_each) for n in schedule])
    return crossing(np.array(schedule), limits, alpha)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_declared_looks_fail_at_most_delta_of_the_time_together(schedule: tuple[int, ...], alpha: float) -> None:
    each = Looks(schedule=schedule, look=1).part_of(DELTA)
    assert 0.1 * DELTA < failure(schedule, alpha, each) <= DELTA


@pytest.mark.parametrize("schedule", SCHEDULES[:2])
def test_negative_control_looking_again_without_a_schedule_fails_more_often(schedule: tuple[int, ...]) -> None:
    assert failure(schedule, 0.1, DELTA) > 1.4 * DELTA


def _ever_certified(delta_of_each: float, runs: int) -> int:
    """Count the runs in which any of four looks certifies; the score has no information and the error rate is alpha."""
    rng, certified = np.random.default_rng(8), 0
    for _ in range(runs):
        u, e = rng.random(400), (rng.random(400) < 0.15).astype(int)
        certified += any(
            isinstance(fit(u[:n], e[:n], alpha=0.15, delta=delta_of_each, rule="certified", diagnose="fast"), Feasible)
            for n in (100, 200, 300, 400)
        )
    return certified


def test_the_same_on_continuous_scores() -> None:
    runs = 800
    assert _ever_certified(DELTA / 4, runs) <= stats.binom.ppf(1 - 1e-4, runs, DELTA)
    assert _ever_certified(DELTA, runs) > stats.binom.ppf(1 - 1e-4, runs, DELTA)
