"""Metrics on a handful of items, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calibrate.scoring.metrics import (
    acceptance,
    aurc,
    auroc,
    excess_aurc,
    fisher_exact,
    power,
    risk_coverage_curve,
    scer,
)
from guardrail.errors import UsageError
from guardrail.gate import accepts

U = [0.1, 0.4, 0.4, 0.9]
E = [0, 1, 0, 1]


def test_rates_among_the_accepted() -> None:
    accepted = accepts(np.array(U), 0.4)
    assert accepted.tolist() == [True, True, True, False]
    assert scer(E, accepted) == pytest.approx(1 / 3)
    assert acceptance(accepted) == 0.75
    assert power(E, accepted) == 1.0
    assert power(E, [False, True, True, True]) == 0.5


def test_ratios_without_a_denominator_are_none() -> None:
    assert scer(E, [False] * 4) is None
    assert power([1, 1], [True, False]) is None
    assert acceptance([]) is None
    assert auroc([1.0, 2.0], [0, 0]) is None
    assert acceptance([False] * 4) == 0.0


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match="one of each"):
        scer(E, [True])


def test_auroc() -> None:
    # Wrong .4 and .9 against right .1 and .4: 1 + .5 + 1 + 1 of 4.
    assert auroc(U, E) == pytest.approx(3.5 / 4)
    assert auroc([-u for u in U], E) == pytest.approx(0.5 / 4)
    assert auroc([1.0] * 4, E) == 0.5


def test_auroc_of_untied_scores_counts_pairs() -> None:
    rng = np.random.default_rng(2)
    u, e = rng.normal(size=60), (rng.random(60) < 0.4).astype(int)
    pairs = [a > b for a in u[e == 1] for b in u[e == 0]]
    assert auroc(u, e) == pytest.approx(sum(pairs) / len(pairs))


def test_curve_has_one_point_a_score() -> None:
    curve = risk_coverage_curve(U, E)
    assert curve.threshold.tolist() == [0.1, 0.4, 0.9]
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])


def test_aurc() -> None:
    # One item at 0, two at 1/3, one at 1/2: (0 + 2/3 + 1/2)/4 = 7/24. Perfect: 0, 0, 1/3, 1/2 -> 5/24.
    assert aurc(U, E) == pytest.approx(7 / 24)
    assert excess_aurc(U, E) == pytest.approx(2 / 24)


def test_aurc_extremes() -> None:
    assert aurc([1.0, 2.0, 3.0], [0, 0, 0]) == excess_aurc([1.0, 2.0, 3.0], [0, 0, 0]) == 0.0
    assert aurc([1.0, 2.0], [1, 1]) == 1.0
    assert excess_aurc([1.0, 2.0], [1, 1]) == 0.0
    assert aurc([1.0] * 4, E) == 0.5  # a constant score has the base error everywhere
    assert excess_aurc([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]) == 0.0


def test_the_perfect_area_is_near_its_approximation() -> None:
    # mu + (1 - mu) ln(1 - mu) for mu = .2: .2 - .8 * .22314 = .02149.
    u = np.arange(5000.0)
    e = (u >= 4000).astype(int)
    assert aurc(u, e) == pytest.approx(0.2 + 0.8 * math.log(0.8), abs=2e-4)


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
