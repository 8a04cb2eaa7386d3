"""Metrics on a handful of items, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calibrate.evaluation.populations import Population
from calibrate.rules.counts import counts
from calibrate.scoring.metrics import auroc, auroc_interval, fisher_exact, ranking_of

U = [0.1, 0.4, 0.4, 0.9]
E = [0, 1, 0, 1]


def test_auroc() -> None:
    # Wrong .4 and .9 against right .1 and .4: 1 + .5 + 1 + 1 of 4.
    assert auroc(U, E) == pytest.approx(3.5 / 4)
    assert auroc([-u for u in U], E) == pytest.approx(0.5 / 4)
    assert auroc([1.0] * 4, E) == 0.5
    assert auroc([1.0, 2.0], [0, 0]) is None  # one class only


def test_auroc_of_untied_scores_counts_pairs() -> None:
    rng = np.random.default_rng(2)
    u, e = rng.normal(size=60), (rng.random(60) < 0.4).astype(int)
    pairs = [a > b for a in u[e == 1] for b in u[e == 0]]
    assert auroc(u, e) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("u", "e", "area", "excess"),
    [
        # One item at 0, two at 1/3, one at 1/2: (0 + 2/3 + 1/2)/4 = 7/24. Perfect: 0, 0, 1/3, 1/2 -> 5/24.
        (U, E, 7 / 24, 2 / 24),
        ([1.0, 2.0, 3.0], [0, 0, 0], 0, 0),
        ([1.0, 2.0], [1, 1], 1, 0),
        ([1.0] * 4, E, 0.5, 0.5 - 5 / 24),  # a constant score has the base error everywhere
        ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], 5 / 24, 0),
    ],
)
def test_areas(u: list[float], e: list[int], area: float, excess: float) -> None:
    """A wrong area would rank one score above another in the tables of `calibrate evaluate`."""
    assert ranking_of(counts(u, e))[1:] == pytest.approx((area, excess))


def test_the_perfect_area_is_near_its_approximation() -> None:
    # mu + (1 - mu) ln(1 - mu) for mu = .2: .2 - .8 * .22314 = .02149.
    u = np.arange(5000.0)
    assert ranking_of(counts(u, u >= 4000))[1] == pytest.approx(0.2 + 0.8 * math.log(0.8), abs=2e-4)


def test_fishers_exact_test_is_that_of_scipy() -> None:
    """A wrong p-value would miss labels that were chosen by looking, or an acceptance that has changed."""
    for a, n, b, m in (
        (0, 5, 5, 5),
        (3, 10, 4, 12),
        (10, 10, 0, 10),
        (0, 3, 0, 4),
        (7, 100, 3, 100),
        (40, 900, 9, 100),
    ):
        expected = stats.fisher_exact(np.array([[a, n - a], [b, m - b]])).pvalue
        assert fisher_exact(a, n, b, m) == pytest.approx(expected, rel=1e-9)
    assert fisher_exact(0, 5, 5, 5) == pytest.approx(2 / 252)  # one of 252 tables, and its mirror image


# -- The interval of an AUROC ------------------------------------------------------------------------------------------


def test_delong_by_hand() -> None:
    # Wrong answers at 2 and 4, right ones at 1 and 3. Of the right ones 2 lies above one of two, 4 above both: .5, 1.
    # Of the wrong ones, 1 lies below both and 3 below one: 1, .5. AUROC .75; each variance .125, over 2: .0625.
    interval = auroc_interval([1, 2, 3, 4], [0, 1, 0, 1])
    assert interval is not None
    assert interval.value == 0.75
    reach = 1.959964 * math.sqrt(0.125) / (0.75 * 0.25)
    assert interval.low == pytest.approx(1 / (1 + math.exp(-(math.log(3) - reach))), abs=1e-6)
    assert interval.high == pytest.approx(1 / (1 + math.exp(-(math.log(3) + reach))), abs=1e-6)


def test_delong_with_ties_by_hand() -> None:
    # Wrong at 1, 2; right at 0, 1. Shares below with ties half: .75, 1 and (above) 1, .75. AUROC .875.
    interval = auroc_interval([1, 2, 0, 1], [1, 1, 0, 0])
    assert interval is not None
    assert interval.value == 0.875
    reach = 1.959964 * math.sqrt(2 * 0.25**2 / 2 / 2) / (0.875 * 0.125)
    assert interval.low == pytest.approx(1 / (1 + math.exp(-(math.log(7) - reach))), abs=1e-6)


def test_a_perfect_ranking_has_an_interval_all_the_same() -> None:
    # Newcombe at value 1: the lower end A solves (1 - A)^2 = z^2 V(A), 2 wrong and 2 right: N* - 1 = 1.
    interval = auroc_interval([1, 2, 3, 4], [0, 0, 1, 1])
    assert interval is not None
    assert (interval.value, interval.high) == (1.0, 1.0)
    a, z = interval.low, 1.959964
    assert (1 - a) ** 2 == pytest.approx(z**2 * a * (1 - a) * (1 + (1 - a) / (2 - a) + a / (1 + a)) / 4, rel=1e-5)
    assert interval.verdict == "unclear"  # four items prove nothing
    many = auroc_interval(np.arange(60.0), np.arange(60) >= 30)
    assert many is not None
    assert many.verdict == "ranks"


def test_verdicts() -> None:
    u = np.arange(200.0)
    e = (np.arange(200) % 3 == 0).astype(int)
    for scores, errors, verdict in ((u, e, "unclear"), (u, u >= 120, "ranks"), (-u, u >= 120, "reversed")):
        interval = auroc_interval(scores, np.asarray(errors).astype(int))
        assert interval is not None
        assert interval.verdict == verdict
    constant = auroc_interval(np.zeros(40), [0, 1] * 20)
    assert constant is not None
    assert (constant.value, constant.verdict) == (0.5, "unclear")
    assert auroc_interval([1, 2], [1, 1]) is None
    single = auroc_interval([1, 2, 3], [0, 0, 1])  # one error: no sample variance
    assert single is not None
    assert single.low < 0.5 < single.high


@pytest.mark.parametrize(("auroc", "n"), [(0.75, 150), (0.95, 100), (0.5, 80)])
def test_coverage(auroc: float, n: int) -> None:
    population = Population.binormal(0.7, auroc)
    runs, hit = 400, 0
    for seed in range(runs):
        u, e = population.draw(np.random.default_rng(seed), n)
        interval = auroc_interval(u, e)
        assert interval is not None
        hit += interval.low <= auroc <= interval.high
    # 95 % coverage up to a percent of approximation; a correct interval fails this in 1 of 10,000 seeds.
    assert hit >= stats.binom.ppf(1e-4, runs, 0.94)
    assert hit <= runs - 4  # and it does not cover everything
