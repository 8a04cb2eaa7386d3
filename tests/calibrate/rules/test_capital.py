"""The betting capital: by hand, and against dependence that breaks every rule that counts answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.rules import Feasible, Infeasible, certified
from calibrate.rules.capital import (
    capital,
    certified_groups,
    excess_mean,
    excess_total,
    first_to_test,
    p_capital,
)
from calibrate.rules.certificate import tail
from guardrail.errors import UsageError

DELTA = 0.1


def test_published_p_values() -> None:
    """Per answer, alpha = delta = .1: 24 right answers .1015, 25 .0923; 60 of which only the tenth is wrong .0362."""
    right = np.full(60, -0.1)
    assert p_capital(right[:24], 0.9)[0] == pytest.approx(0.1015, abs=5e-5)
    assert p_capital(right[:25], 0.9)[0] == pytest.approx(0.0923, abs=5e-5)
    right[9] = 0.9
    assert p_capital(right, 0.9)[0] == pytest.approx(0.0362, abs=5e-5)


def test_two_units_by_hand() -> None:
    # Gains -Z/most = .1/.9 = 1/9 and -1. First stake: v = .0025, n = 2, sqrt(2 ln 10 / .005) > .9, so .9; capital 1.1.
    # Second: mean (0 + 1/9)/2, v = (.0025 + 1/81)/2 - (1/18)^2 = .004336, again .9; capital 1.1 * .1 = .11.
    assert np.exp(capital([-0.1, 0.9], 0.9)).ravel() == pytest.approx([1.1, 0.11])
    assert p_capital([-0.1, 0.9], 0.9) == pytest.approx([1 / 1.1])
    assert p_capital([0.9], 0.9) == [1.0]


def test_later_units_do_not_move_what_was_seen() -> None:
    z = np.random.default_rng(0).choice([-0.1, 0.9], 50, p=[0.95, 0.05])
    assert capital(z[:20], 0.9, planned=50)[:, 0] == pytest.approx(capital(z, 0.9, planned=50)[:20, 0])


def test_what_counts_as_excess() -> None:
    assert excess_mean([0, 4, 2], [0, 1, 2], 0.1).tolist() == pytest.approx([0.0, 0.15, 0.9])
    assert excess_total([0, 4, 2], [0, 1, 2], 0.1).tolist() == pytest.approx([0.0, 0.6, 1.8])


def test_refusals() -> None:
    for z in ([0.0, 0.91], [float("nan")]):
        with pytest.raises(UsageError, match=r"Z must be at most 0\.9"):
            capital(z, 0.9)
    with pytest.raises(UsageError, match=r"each of the 2 items, got 1"):
        certified_groups([0.1, 0.2], [0, 0], 0.1, group=["a"])
    with pytest.raises(UsageError, match=r"2 measured items, more than most = 1"):
        certified_groups([0.1, 0.2, 0.3], [0, 0, 0], 0.1, group=["a", "a", "b"], most=1)
    # What was not measured is never accepted, so it needs no room.
    certified_groups([0.1, np.inf], [0, 0], 0.1, group=["a", "a"], most=1)


def test_where_a_walk_of_groups_begins() -> None:
    # 100 units: half do without an error where r >= (10^(1/50) - 1) * .9 / .09 = .471. 40: (10^(1/20) - 1) * 10 = 1.22,
    # .8 of them (10^(1/32) - 1) * 10 = .746. 26: .8 of them 1.17, all (10^(1/26) - 1) * 10 = .926. 24: 1.007.
    reach = np.array([0.4, 0.5, 0.75, 1.0])
    assert [first_to_test(reach, units, 0.1, 0.1) for units in (100, 40, 26, 24)] == [1, 2, 3, 4]


def test_groups_by_hand() -> None:
    """30 groups of two right items each: enough, where 24 groups are too few, however many items each has."""

    def outcome(groups: int, wrong: int = 0, **settings: Any) -> Feasible | Infeasible:
        group = np.repeat(np.arange(groups), 2)
        u = np.tile([0.0, 1.0], groups)
        return certified_groups(u, [0] * (2 * groups - wrong) + [1] * wrong, 0.1, group=group.tolist(), **settings)

    for settings in ({}, {"most": 2}):
        found = outcome(30, **settings)
        assert isinstance(found, Feasible)
        assert (found.threshold, found.k, found.e, found.n, found.bound) == (1.0, 60, 0, 60, 0.1)
        few = outcome(24, **settings)
        assert isinstance(few, Infeasible)
        assert few.reason == "too_few_items"
    bad = outcome(40, 30)
    assert isinstance(bad, Infeasible)
    assert (bad.reason, bad.start) == ("risk_never_low_enough", 40)
    later = outcome(40, begin=0.5)
    assert isinstance(later, Feasible)
    assert later.start == 80


def test_a_group_with_nothing_measured_counts() -> None:
    """Leaving such conversations out would certify the rate of those that could be measured as if they were all."""
    u, group = [0.0] * 25 + [np.inf] * 25, list(range(50))
    found = certified_groups(u, [0] * 50, 0.1, group=group)
    assert isinstance(found, Feasible)
    assert (found.k, found.n) == (25, 50)
    # Half as many units are staked on as are there: all 25 accepted ones are needed, as without the others.
    assert isinstance(certified_groups(u[1:], [0] * 49, 0.1, group=group[1:]), Infeasible)


# -- Against dependence ------------------------------------------------------------------------------------------------


def cluster(rng: np.random.Generator, groups: int = 80, size: int = 8) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Conversations with one score that are right or wrong as a whole; it says nothing, the rate is barely above .1."""
    wrong = np.repeat(rng.random(groups) < 0.101, size)
    return np.repeat(rng.random(groups), size), wrong.astype(int), np.repeat(np.arange(groups), size).tolist()


def giants(rng: np.random.Generator, groups: int = 120) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Long conversations (twelve turns, one in twenty) go wrong as a whole, short ones (two turns) seldom."""
    long = rng.random(groups) < 0.05
    size = np.where(long, 12, 2)
    group = np.repeat(np.arange(groups), size)
    wrong = np.where(long[group], rng.random(groups)[group] < 0.395, rng.random(group.size) < 0.003)
    return rng.random(group.size), wrong.astype(int), group.tolist()


RUNS = 300
LIMIT = stats.binom.isf(1e-4, RUNS, DELTA)


def test_groups_that_are_wrong_as_a_whole() -> None:
    """Every threshold is bad. Counting the answers as independent certifies one far too often."""
    rng = np.random.default_rng(3)
    failed = {"mean": 0, "total": 0, "as independent": 0}
    for _ in range(RUNS):
        u, wrong, group = cluster(rng)
        failed["mean"] += isinstance(certified_groups(u, wrong, 0.1, group=group), Feasible)
        failed["total"] += isinstance(certified_groups(u, wrong, 0.1, group=group, most=8), Feasible)
        failed["as independent"] += isinstance(certified(u, wrong, 0.1), Feasible)
    assert max(failed["mean"], failed["total"]) <= LIMIT
    assert failed["as independent"] > 1.5 * LIMIT


def test_long_groups_that_go_wrong() -> None:
    """Wrong items of a group: .05 * 12 * .395 + .95 * 2 * .003 = .243 of 2.5, so .097: at alpha .09 all is bad."""
    rng = np.random.default_rng(4)
    failed = 0
    for _ in range(RUNS):
        u, wrong, group = giants(rng)
        failed += isinstance(certified_groups(u, wrong, 0.09, group=group, most=12), Feasible)
    assert failed <= LIMIT


def test_audits_may_be_looked_at_every_time() -> None:
    """Audits follow the risk, the error rate is .1: a binomial test at every look breaks the level."""
    rng = np.random.default_rng(5)
    hard = rng.random((400, 2_000)) < 0.5
    wrong = rng.random(hard.shape) < np.where(hard, 0.18, 0.02)
    probability = np.where(hard, 0.8, 0.2)
    audited = rng.random(hard.shape) < probability
    z = np.where(audited, (wrong - 0.1) / probability, 0.0)
    limit = stats.binom.isf(1e-4, 2_000, DELTA)
    assert (p_capital(z, 0.9 / 0.2) <= DELTA).sum() <= limit
    looks = tail(np.cumsum(wrong, axis=0), np.arange(1, 401)[:, None], 0.1)
    assert (looks.min(axis=0) <= DELTA).sum() > 2 * limit
