"""The certificate: by hand, exactly on every label sequence of small sets, and by simulation on six risk shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.rules import Feasible, Infeasible, certified, smallest
from calibrate.rules.certificate import fewest_accepted, interval, most_errors, tail, upper_bound, walk
from calibrate.rules.plug_in import clopper_pearson


def test_tail_and_bounds_by_hand() -> None:
    assert tail([0, 1, 3, 0], [2, 2, 3, 0], 0.5).tolist() == pytest.approx([0.25, 0.75, 1.0, 1.0])
    assert upper_bound(0, 22, 0.1) == pytest.approx(1 - 0.1 ** (1 / 22))
    assert upper_bound(2, 2, 0.1) == upper_bound(0, 0, 0.1) == 1.0
    ends = [*interval(0, 10), *interval(10, 10), *interval(0, 0)]
    assert ends == pytest.approx([0.0, 1 - 0.025**0.1, 0.025**0.1, 1.0, 0.0, 1.0])


def test_how_many_errors_pass() -> None:
    # alpha = delta = .1: .9^21 = .109, .9^22 = .098; one error from 38, two from 52 (published beside the method: 35
    # of 100 have a level of .025, 38 of .095).
    assert fewest_accepted([0, 1, 2], 0.1, 0.1).tolist() == [22, 38, 52]
    assert fewest_accepted(0, 0.05, 0.1) == 45
    assert most_errors(52, 0.1, 0.1)[[0, 21, 22, 37, 38, 51, 52]].tolist() == [-1, -1, 0, 0, 1, 1, 2]
    assert tail(0, 35, 0.1) == pytest.approx(0.025, abs=5e-4)
    assert tail(1, 38, 0.1) == pytest.approx(0.095, abs=5e-4)
    assert fewest_accepted(0, 0.5, 0.25) == 2  # exactly delta passes


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.45, 0.3), (0.01, 0.9), (0.9, 0.01)])
def test_the_table_of_errors_is_the_test(alpha: float, delta: float) -> None:
    e, k = np.meshgrid(np.arange(121), np.arange(121))
    assert ((e <= most_errors(120, alpha, delta)[k]) == (stats.binom.cdf(e, k, alpha) <= delta))[e <= k].all()


def test_walk() -> None:
    passed = np.array([False, True, True, False, True])
    assert [walk(passed, first) for first in range(6)] == [None, 2, 2, None, 4, None]


def outcome(wrong: list[int], alpha: float, **settings: Any) -> Feasible | Infeasible:
    return certified(np.arange(len(wrong), dtype=float), wrong, alpha, **settings)


def test_the_walk_begins_at_its_start_and_ends_before_the_first_failure() -> None:
    # n = 100, alpha = delta = .1: start 38, where one error passes; two pass from 52 on, three from 65.
    clean = [0] * 38
    found = outcome(clean + [1, 1] + [0] * 60, 0.1)  # two errors at k = 40
    assert isinstance(found, Feasible)
    assert (found.k, found.e, found.start, found.bound, found.threshold) == (39, 1, 38, 0.1, 38.0)
    late = outcome(clean + [1] + [0] * 12 + [1] + [0] * 48, 0.1)  # the second at k = 52
    assert isinstance(late, Feasible)
    assert (late.k, late.e) == (100, 2)
    blocked = outcome([1, 1] + [0] * 98, 0.1)
    assert isinstance(blocked, Infeasible)
    assert (blocked.reason, blocked.start) == ("risk_never_low_enough", 38)


def test_too_few_items() -> None:
    for n in (14, 15):  # .85^14 = .103, .85^15 = .087
        assert isinstance(outcome([0] * n, 0.15), Feasible if n == 15 else Infeasible)
    short = outcome([0] * 14, 0.15)
    assert isinstance(short, Infeasible)
    assert short.reason == "too_few_items"
    assert isinstance(short.first, Feasible)
    assert short.first.k == 4  # a quarter of 14, rounded up
    mostly_unmeasured = smallest([0.0] * 20 + [np.inf] * 80, [0] * 100)
    assert isinstance(mostly_unmeasured, Infeasible)
    assert mostly_unmeasured.reason == "too_few_items"
    hopeless = smallest([0.0] * 10, [1] * 10)
    assert isinstance(hopeless, Infeasible)
    assert hopeless.reason == "risk_never_low_enough"


def test_one_block_is_one_binomial_test() -> None:
    # P(Bin(30, .2) <= 2) = .0442, P(Bin(30, .2) <= 3) = .1227.
    for errors, kind in ((2, Feasible), (3, Infeasible)):
        assert isinstance(certified([0.0] * 30, [1] * errors + [0] * (30 - errors), 0.2), kind)


# -- Exactly: every label sequence of twelve items, summed with its probability ----------------------------------------

N, ALPHA, DELTA = 12, 0.45, 0.3
BLOCKS = {"untied": [1] * N, "tied": [3, 1, 4, 2, 2], "coarse": [5, 7]}


def worst(rule: Callable[..., Feasible | Infeasible], sizes: list[int]) -> float:
    """The largest probability, over every first bad threshold, of accepting it or more.

    The errors up to the first bad threshold (K0 items) are Bin(K0, alpha), in the order in which most is accepted: as
    late as possible. Later items are wrong with probability alpha each.
    """
    score = np.repeat(np.arange(len(sizes), dtype=np.float64), sizes)

    @cache
    def accepted(labels: tuple[int, ...]) -> int:
        found = rule(score, labels, ALPHA, DELTA)
        return found.k if isinstance(found, Feasible) else 0

    failures = []
    for k0 in np.cumsum(sizes).tolist():
        failed = 0.0
        for errors in range(k0 + 1):
            for later in product((0, 1), repeat=N - k0):
                labels = (0,) * (k0 - errors) + (1,) * errors + later
                chance = comb(k0, errors) * ALPHA ** sum(labels) * (1 - ALPHA) ** (N - sum(labels))
                failed += chance * (accepted(labels) >= k0)
        failures.append(failed)
    return max(failures)


@pytest.mark.parametrize("ties", BLOCKS)
def test_no_bad_threshold_is_certified_with_more_than_delta(ties: str) -> None:
    assert 0.3 * DELTA < worst(certified, BLOCKS[ties]) <= DELTA


def test_negative_control_the_scan_exceeds_delta() -> None:
    assert worst(clopper_pearson, BLOCKS["untied"]) > 1.25 * DELTA


# -- Simulated: six risk shapes, scores uniform on [0, 1], the true error rate of each threshold known -----------------

Reals = np.ndarray[Any, np.dtype[np.float64]]
SHAPES: dict[str, Callable[[Reals], Reals]] = {
    "flat": lambda u: np.full(u.shape, 0.1001),
    "rising": lambda u: 0.02 + 0.3 * u,
    "late step": lambda u: np.where(u < 0.6, 0.08, 0.5),
    "surest are the worst": lambda u: np.where(u < 0.1, 0.5, 0.02),
    "two humps": lambda u: np.where(np.floor(u * 8) % 2 == 0, 0.05, 0.16),
    "ten levels": lambda u: 0.03 + 0.02 * np.floor(u * 10),
}
GRID = (np.arange(200_000) + 0.5) / 200_000


def failures(
    shape: str, n: int, runs: int, rule: Callable[..., Feasible | Infeasible] = certified, delta: float = 0.1
) -> tuple[int, int]:
    """Calibrations whose true error rate exceeds .1, and calibrations that accept anything."""
    risk = SHAPES[shape]
    rate = np.cumsum(risk(GRID)) / np.arange(1, GRID.size + 1)
    rng = np.random.default_rng(n)
    failed = feasible = 0
    for _ in range(runs):
        u = rng.random(n)
        wrong = rng.random(n) < risk(u)
        found = rule(np.floor(u * 10) / 10 if shape == "ten levels" else u, wrong, 0.1, delta)
        if isinstance(found, Feasible):
            reach = found.threshold + 0.1 if shape == "ten levels" else found.threshold
            failed += rate[min(GRID.size, round(reach * GRID.size)) - 1] > 0.1
            feasible += 1
    return failed, feasible


@pytest.mark.parametrize("n", [100, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_certificate_is_false_in_at_most_delta(shape: str, n: int) -> None:
    failed, feasible = failures(shape, n, 500)
    assert failed <= stats.binom.isf(1e-4, 500, 0.1)
    if n == 300 and shape in ("rising", "late step", "ten levels"):
        assert feasible > 100  # it does not hold by accepting nothing
    if shape == "flat":
        assert failed > 25  # and it uses much of delta


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 300, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_certificate_is_false_in_at_most_delta_of_20_000(shape: str, n: int) -> None:
    failed, _ = failures(shape, n, 20_000)
    assert failed <= stats.binom.isf(1e-4, 20_000, 0.1)


@pytest.mark.parametrize(("n", "low", "high"), [(100, 0.1, 0.21), (1000, 0.24, 0.36)])
def test_negative_control_the_scan_is_false_in_14_to_29_percent(n: int, low: float, high: float) -> None:
    failed, _ = failures("flat", n, 600, clopper_pearson, 0.05)
    assert low < failed / 600 < high


@pytest.mark.parametrize("shape", ["flat", "rising", "surest are the worst"])
def test_the_smallest_alpha_is_above_the_true_rate(shape: str) -> None:
    """`--alpha smallest` promises the bound it prints; picking any other threshold by its bound would not."""
    rate = np.cumsum(SHAPES[shape](GRID)) / np.arange(1, GRID.size + 1)
    rng, failed = np.random.default_rng(5), 0
    for _ in range(500):
        u = rng.random(200)
        found = smallest(u, rng.random(200) < SHAPES[shape](u))
        assert isinstance(found, Feasible)
        assert found.bound is not None
        failed += rate[int(found.threshold * GRID.size)] > found.bound
    assert failed <= stats.binom.isf(1e-4, 500, 0.1)
