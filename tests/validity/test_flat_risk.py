"""The certificates hold exactly where they are hardest: at a flat risk of alpha, for every first bad threshold.

Negative controls: the Clopper-Pearson scan and the plug-in rule must fail the same checker.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds.anchored import _candidates, spending_limits
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
    """Return the largest c with P(Bin(k, alpha) <= c) <= level, from scipy.stats."""
    c = np.asarray(stats.binom.ppf(level, k, alpha)).astype(np.int64)
    return np.where(stats.binom.cdf(c, k, alpha) <= level, c, c - 1)


@pytest.mark.parametrize(("n", "alpha", "delta", "k_min"), CASES)
def test_cp_simultaneous_crosses_with_probability_delta(n: int, alpha: float, delta: float, k_min: int) -> None:
    table = simultaneous_limits(n, alpha, delta, k_min)
    exact = crossing(table.k, table.c, alpha)
    assert 0.8 * delta <= exact <= delta + ROUNDING


def ties(n: int, k_min: int, kind: str) -> Counts:
    """Return block ends at or past k_min: all, or those of a discrete score; n is always a block end."""
    rng = np.random.default_rng(n)
    values = {"untied": n, "few": 6, "ten samples": 42, "coarse and fine": n // 3}[kind]
    if kind == "untied":
        return np.arange(k_min, n + 1)
    sizes = rng.multinomial(n, rng.dirichlet(np.full(values, 0.4 if kind == "coarse and fine" else 1.5)))
    ends = np.unique(np.append(np.cumsum(sizes), n))
    return ends[ends >= k_min].astype(np.int64)


@pytest.mark.parametrize("kind", ["untied", "few", "ten samples", "coarse and fine"])
@pytest.mark.parametrize(("n", "alpha", "delta", "k_min"), CASES)
def test_certified_holds_for_every_first_bad_threshold(
    n: int, alpha: float, delta: float, k_min: int, kind: str
) -> None:
    ends = ties(n, k_min, kind)
    table = spending_limits(ends, alpha, delta, k_min)
    exact = anchored_failures(ends, table.anchor, table.extension, alpha)
    assert exact.max() <= delta + ROUNDING
    if kind == "untied":
        assert exact.max() >= 0.8 * delta


@pytest.mark.parametrize("kind", ["few", "ten samples"])
def test_negative_control_limits_of_untied_scores_waste_or_void_on_other_ends(kind: str) -> None:
    # Limits are constants only because they are solved for the block ends that occur. Spending the whole of delta at
    # every block end instead (G = 1 and no account of later anchors) is not valid.
    ends = ties(1000, 50, kind)
    limit = pointwise(ends, 0.15, 0.1)
    assert anchored_failures(ends, limit, limit, 0.15).max() > 0.1 + 0.02


def test_certified_on_a_thinned_set_of_block_ends() -> None:
    n, alpha, delta = 20_500, 0.05, 0.1
    k_min = default_min_accept(n, alpha)
    candidates = _candidates(np.arange(1, n + 1), n, k_min) + 1
    assert candidates[-1] == n
    assert np.all(candidates[:-1] <= candidates[1:] / 1.005)
    assert np.all(candidates[:-1] >= candidates[1:] / 1.005 - 1)
    table = spending_limits(candidates, alpha, delta, k_min)
    exact = anchored_failures(candidates, table.anchor, table.extension, alpha)
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
    # Anchors plus extensions at level delta each: the union is what c2 pays for.
    k = np.arange(50, 1001)
    table = spending_limits(k, 0.15, 0.1, 50)
    assert anchored_failures(k, table.anchor, pointwise(k, 0.15, 0.1), 0.15).max() > 0.1 + 0.01


def test_negative_control_one_more_error_everywhere_is_not_valid() -> None:
    k = np.arange(50, 1001)
    table = spending_limits(k, 0.15, 0.1, 50)
    assert anchored_failures(k, table.anchor + 1, table.extension + 1, 0.15).max() > 0.1 + 0.01
