"""The certificates hold exactly where they are hardest: at a flat risk of alpha, for every first bad threshold.

Negative controls: the Clopper-Pearson scan and the plug-in rule must fail the same checker.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds.anchored import anchored_limits
from calibrate.thresholds.multiple import bonferroni_grid
from calibrate.thresholds.rule import default_min_accept
from calibrate.thresholds.simultaneous import simultaneous_limits
from tests.validity.walks import Counts, anchored_failures, crossing

ROUNDING = 1e-9
CASES = [
    (100, 0.15, 0.05, 34),
    (100, 0.15, 0.1, 19),
    (300, 0.2, 0.1, 15),
    (500, 0.05, 0.1, 59),
    (1000, 0.15, 0.1, 50),
    (1000, 0.15, 0.05, 50),
    (1000, 0.01, 0.1, 299),
    (1000, 0.4, 0.2, 50),
]


def pointwise(k: Counts, alpha: float, level: float) -> Counts:
    """Largest c with P(Bin(k, alpha) <= c) <= level, from scipy.stats."""
    c = np.asarray(stats.binom.ppf(level, k, alpha)).astype(np.int64)
    return np.where(stats.binom.cdf(c, k, alpha) <= level, c, c - 1)


@pytest.mark.parametrize(("n", "alpha", "delta", "k_min"), CASES)
def test_cp_simultaneous_crosses_with_probability_delta(n: int, alpha: float, delta: float, k_min: int) -> None:
    table = simultaneous_limits(n, alpha, delta, k_min)
    exact = crossing(table.k, table.c, alpha)
    assert 0.8 * delta <= exact <= delta + ROUNDING


@pytest.mark.parametrize(("n", "alpha", "delta", "k_min"), CASES)
def test_anchored_holds_for_every_first_bad_threshold(n: int, alpha: float, delta: float, k_min: int) -> None:
    table = anchored_limits(n, alpha, delta, k_min)
    exact = anchored_failures(table.k, table.anchor, table.extension, alpha)
    assert exact.max() <= delta + ROUNDING
    assert exact.max() >= 0.8 * delta


def test_anchored_on_a_grid_holds_for_every_first_bad_grid_point() -> None:
    n, alpha, delta = 20_500, 0.05, 0.1
    table = anchored_limits(n, alpha, delta, default_min_accept(n, alpha))
    assert table.k.size < 2_000  # a grid, not every k
    assert np.all(table.k[1:] <= 1.005 * table.k[:-1])
    exact = anchored_failures(table.k, table.anchor, table.extension, alpha)
    assert 0.8 * delta <= exact.max() <= delta + ROUNDING


def test_cp_simultaneous_on_a_grid() -> None:
    n, alpha, delta = 20_500, 0.05, 0.1
    table = simultaneous_limits(n, alpha, delta, default_min_accept(n, alpha))
    assert 0.8 * delta <= crossing(table.k, table.c, alpha) <= delta + ROUNDING


@pytest.mark.parametrize(("n", "alpha", "delta"), [(100, 0.15, 0.05), (1000, 0.15, 0.1), (1000, 0.05, 0.1)])
def test_sgr_and_bonferroni_and_the_first_step_of_a_fixed_sequence(n: int, alpha: float, delta: float) -> None:
    # SGR fails iff one of its tests passes; until one does its path is fixed: ceil((1 + high)/2) of the last failure.
    steps = int(np.ceil(np.log2(n)))
    path, high = [], n
    for _ in range(steps):
        high = (high + 2) // 2
        path.append(high)
    searched = np.unique(path)
    grid = bonferroni_grid(n, alpha, delta, 20)
    start = np.array([int(np.ceil(0.1 * n))])
    assert crossing(searched, pointwise(searched, alpha, delta / steps), alpha) <= delta + ROUNDING
    assert crossing(grid, pointwise(grid, alpha, delta / grid.size), alpha) <= delta + ROUNDING
    assert crossing(start, pointwise(start, alpha, delta), alpha) <= delta + ROUNDING


@pytest.mark.parametrize(
    ("n", "k_min", "published"),
    # The figures published beside the method (alpha .15, delta .05) scan from k = 34; a scan of every k is worse still.
    [(100, 34, 0.116), (500, 34, 0.230), (1000, 34, 0.274), (1500, 34, 0.299)],
)
def test_negative_control_the_clopper_pearson_scan_is_not_valid(n: int, k_min: int, published: float) -> None:
    k = np.arange(1, n + 1)
    limit = pointwise(k, 0.15, 0.05)
    assert crossing(k[k_min - 1 :], limit[k_min - 1 :], 0.15) == pytest.approx(published, abs=0.001)
    assert crossing(k, limit, 0.15) > published > 2 * 0.05


def test_negative_control_the_plug_in_rule_is_not_valid() -> None:
    k = np.arange(50, 1001)
    exact = crossing(k, np.floor(0.15 * k + 1e-9).astype(np.int64), 0.15)
    assert exact > 0.8


def test_negative_control_extending_with_pointwise_limits_is_not_valid() -> None:
    # Anchors at full scale plus extensions at level delta each: the union is what c2 pays for.
    table = anchored_limits(1000, 0.15, 0.1, 50)
    exact = anchored_failures(table.k, table.anchor, pointwise(table.k, 0.15, 0.1), 0.15)
    assert exact.max() > 0.1 + 0.01


def test_negative_control_anchors_at_one_and_a_half_times_the_scale_are_not_valid() -> None:
    k = np.arange(50, 1001)
    level = np.minimum(0.1, 1.5 * anchored_limits(1000, 0.15, 0.1, 50).scale * (50 / k) ** 1.5)
    c = np.asarray(stats.binom.ppf(level, k, 0.15)).astype(np.int64) - 1
    assert crossing(k, c, 0.15) > 0.1 + 0.01
