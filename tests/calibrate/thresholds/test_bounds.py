"""Exact bounds against finite sums, closed forms and printed tables."""

from __future__ import annotations

from math import comb, log, sqrt

import numpy as np
import pytest

from calibrate.thresholds.bounds import (
    binomial_tail,
    clopper_pearson_interval,
    clopper_pearson_upper,
    hoeffding_upper,
    zero_error_floor,
)
from guardrail.errors import UsageError


def tail(e: int, k: int, p: float) -> float:
    return sum(comb(k, j) * p**j * (1 - p) ** (k - j) for j in range(e + 1))


@pytest.mark.parametrize(("k", "p"), [(1, 0.5), (7, 0.3), (25, 0.15), (60, 0.02)])
def test_the_tail_is_the_finite_sum(k: int, p: float) -> None:
    for e in range(k + 1):
        assert binomial_tail(e, k, p) == pytest.approx(tail(e, k, p), rel=1e-11)


def test_the_tail_outside_its_range_and_on_arrays() -> None:
    assert binomial_tail(-1, 5, 0.3) == 0.0
    assert binomial_tail(5, 5, 0.3) == 1.0
    both = binomial_tail(np.array([-1, 0, 5, 9]), 5, 0.3)
    assert np.asarray(both).tolist() == pytest.approx([0.0, 0.7**5, 1.0, 1.0])


@pytest.mark.parametrize(("e", "k", "delta"), [(0, 10, 0.1), (3, 40, 0.05), (17, 90, 0.2)])
def test_the_upper_bound_inverts_the_tail(e: int, k: int, delta: float) -> None:
    assert tail(e, k, clopper_pearson_upper(e, k, delta)) == pytest.approx(delta, rel=1e-9)


def test_closed_forms() -> None:
    assert clopper_pearson_upper(0, 19, 0.05) == pytest.approx(1 - 0.05 ** (1 / 19))
    assert clopper_pearson_upper(4, 4, 0.05) == 1.0
    assert clopper_pearson_interval(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson_interval(10, 10) == pytest.approx((0.025**0.1, 1.0))


def test_a_textbook_interval() -> None:
    # 5 of 20 at 95 %: 8.66 % to 49.10 % in printed tables of exact limits.
    assert clopper_pearson_interval(5, 20) == pytest.approx((0.0866, 0.4910), abs=5e-5)


def test_hoeffding() -> None:
    assert hoeffding_upper(10, 100, 0.05) == pytest.approx(0.1 + sqrt(log(20) / 200))
    assert hoeffding_upper(3, 4, 0.05) == 1.0
    assert hoeffding_upper(10, 100, 0.05) > clopper_pearson_upper(10, 100, 0.05)


def test_zero_error_floor() -> None:
    assert [zero_error_floor(alpha, 0.05) for alpha in (0.15, 0.05, 0.01)] == [19, 59, 299]
    assert zero_error_floor(0.5, 0.25) == 2  # .5^2 = .25 exactly
    assert zero_error_floor(0.9, 0.5) == 1


@pytest.mark.parametrize(("e", "k"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts(e: int, k: int) -> None:
    with pytest.raises(UsageError, match=f"got {e} of {k}"):
        clopper_pearson_upper(e, k, 0.1)
    with pytest.raises(UsageError):
        clopper_pearson_interval(e, k)
    with pytest.raises(UsageError):
        hoeffding_upper(e, k, 0.1)


@pytest.mark.parametrize("delta", [0, 1, 1.5, float("nan")])
def test_impossible_levels(delta: float) -> None:
    with pytest.raises(UsageError, match="delta must be in"):
        clopper_pearson_upper(1, 5, delta)
    with pytest.raises(UsageError, match="confidence must be in"):
        clopper_pearson_interval(1, 5, delta)
    with pytest.raises(UsageError, match="alpha must be in"):
        zero_error_floor(delta, 0.1)
