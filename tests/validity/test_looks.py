"""Several looks at a growing set of labels: declared looks share delta and hold together; undeclared looks do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from calibrate.scoring.reach import spending_parts
from calibrate.thresholds import fit
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


def failure(schedule: tuple[int, ...], alpha: float, deltas: Sequence[float]) -> float:
    """Return the exact P(some look certifies) if every answer is wrong with probability alpha: a walk over labels."""
    limits = np.array([most_errors(n, alpha, delta) for n, delta in zip(schedule, deltas, strict=True)])
    return crossing(np.array(schedule), limits, alpha)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_declared_looks_fail_at_most_delta_of_the_time_together(schedule: tuple[int, ...], alpha: float) -> None:
    parts = spending_parts(schedule)
    assert sum(parts) == pytest.approx(1)
    assert 0.25 * DELTA < failure(schedule, alpha, [DELTA * part for part in parts]) <= DELTA


def test_rising_parts_use_more_of_delta_than_equal_ones() -> None:
    schedule = (100, 200, 300, 400, 500)
    assert spending_parts(schedule) == (0.05, 0.1, 0.15, 0.25, 0.45)
    rising = failure(schedule, 0.1, [DELTA * part for part in spending_parts(schedule)])
    assert rising > failure(schedule, 0.1, [DELTA / 5] * 5) + 0.005


def test_parts_follow_the_share_of_the_labels_that_a_look_has() -> None:
    # 100 of 400 labels are a quarter: .05 + .25 of the way from .05 to .15; 200 are half: half way from .15 to .30.
    assert spending_parts((100, 200, 400)) == (0.075, 0.15, 0.775)
    assert spending_parts((300,)) == (1.0,)


@pytest.mark.parametrize("schedule", SCHEDULES[:2])
def test_negative_control_looking_again_without_a_schedule_fails_more_often(schedule: tuple[int, ...]) -> None:
    assert failure(schedule, 0.1, [DELTA] * len(schedule)) > 1.4 * DELTA


def _ever_certified(deltas: Sequence[float], runs: int) -> int:
    """Count the runs in which any of four looks certifies; the score has no information and the error rate is alpha."""
    rng, certified = np.random.default_rng(8), 0
    for _ in range(runs):
        u, e = rng.random(400), (rng.random(400) < 0.15).astype(int)
        certified += any(
            isinstance(fit(u[:n], e[:n], alpha=0.15, delta=delta, rule="certified", diagnose="fast"), Feasible)
            for n, delta in zip((100, 200, 300, 400), deltas, strict=True)
        )
    return certified


def test_the_same_on_continuous_scores() -> None:
    runs = 800
    rising = [DELTA * part for part in spending_parts((100, 200, 300, 400))]
    assert _ever_certified(rising, runs) <= stats.binom.ppf(1 - 1e-4, runs, DELTA)
    assert _ever_certified([DELTA] * 4, runs) > stats.binom.ppf(1 - 1e-4, runs, DELTA)
