"""A judge everywhere, people on a random sample: seldom above alpha; the judge's labels alone mislead."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.rules import Feasible, Infeasible, certified
from calibrate.rules.prediction_powered import p_people, prediction_powered
from guardrail.errors import UsageError


def test_people_without_an_error_by_hand() -> None:
    # With the adverse answer: mean 1/61, standard error 1/61; at alpha = (1 + z) / 61, z = 1.2816, p = Phi(-z) = .1.
    for judge_only in ([], [1, 0, 1]):
        assert p_people([0] * 60, [0] * 60, judge_only, (1 + 1.2815515655) / 61) == pytest.approx(0.1)


def test_a_judge_that_always_agrees_by_hand() -> None:
    # k = 4, K = 4, H = J = 0 0 1 1: var(J) = cov = 1/4, weight 1 / (1 + 4/4) = 1/2.
    # Residuals H - J/2 = 0 0 .5 .5 and the adverse 1: mean .4, variance .175. Judge only 0 0 0 1: mean .25, 3/16.
    alpha = 0.4 + 0.125 + 1.2815515655 * (0.175 / 5 + 0.25 * (3 / 16) / 4) ** 0.5
    assert p_people([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], alpha) == pytest.approx(0.1)


def test_a_contrary_judge_is_ignored() -> None:
    people, rest = np.array([0] * 95 + [1] * 5), np.tile([0, 1], 500)
    assert p_people(people, 1 - people, rest, 0.1) == p_people(people, people, [], 0.1)


def test_a_judge_that_agrees_narrows_the_test_and_a_useless_one_costs_nothing() -> None:
    people = np.array([0] * 95 + [1] * 5)
    rest = np.tile(people, 20)
    alone = p_people(people, people, [], 0.1)
    assert p_people(people, people, rest, 0.1) < alone / 2
    assert p_people(people, np.tile([0, 1], 50), np.tile([0, 1], 500), 0.1) == pytest.approx(alone, rel=0.5)


N = 1_000


def population(
    rng: np.random.Generator, rate: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Scores that say nothing, labels, and a judge that finds half of the errors and 2 % that are none."""
    u, truth = rng.random(N), (rng.random(N) < rate).astype(int)
    judge = np.where(truth == 1, rng.random(N) < 0.5, rng.random(N) < 0.02).astype(int)
    return u, truth, judge


def test_error_rate_is_seldom_above_alpha() -> None:
    rng = np.random.default_rng(5)
    sampled = np.arange(N) < 300
    failed = misled = feasible = 0
    for _ in range(200):
        u, truth, judge = population(rng, 0.15)
        failed += isinstance(prediction_powered(u, truth * sampled, 0.149, judge=judge, sampled=sampled), Feasible)
        misled += isinstance(certified(u, judge, 0.149), Feasible)
        u, truth, judge = population(rng, 0.06)
        feasible += isinstance(prediction_powered(u, truth * sampled, 0.149, judge=judge, sampled=sampled), Feasible)
    limit = stats.binom.isf(1e-4, 200, 0.1)
    assert failed <= limit
    assert misled > limit  # negative control: the judge's labels alone
    assert feasible > 100


def test_the_outcome_counts_people() -> None:
    sampled = np.arange(400) % 2 == 0
    u, none = np.arange(400.0), np.zeros(400, dtype=int)
    found = prediction_powered(u, none, 0.15, judge=none, sampled=sampled)
    assert isinstance(found, Feasible)
    # 30 labels by people are reached at the threshold that accepts 60; the last one accepts all.
    assert (found.threshold, found.n, found.k, found.e, found.start, found.bound) == (399.0, 200, 200, 0, 30, None)
    few = prediction_powered(u, none, 0.15, judge=none, sampled=np.arange(400) < 29)
    assert isinstance(few, Infeasible)
    assert few.reason == "too_few_items"
    bad = prediction_powered(u, none + 1, 0.15, judge=none + 1, sampled=sampled)
    assert isinstance(bad, Infeasible)
    assert bad.reason == "risk_never_low_enough"
    with pytest.raises(UsageError, match="one shape"):
        prediction_powered(u, none, 0.15, judge=none, sampled=[True])
