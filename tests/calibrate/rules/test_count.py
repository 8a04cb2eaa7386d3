"""Losses that only grow: exact by counting, certified and on average, with ties."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.rules import Feasible, Infeasible
from calibrate.rules.count import count_threshold, crc_joint
from guardrail.errors import UsageError

# c at delta .1, published beside the method: the number of lost units that are tolerated; -1 for none.
CERTIFIED = {
    0.1: {21: -1, 22: 0, 50: 1, 100: 5, 300: 22, 1000: 87},
    0.2: {10: -1, 11: 0, 50: 5, 100: 14, 300: 50},
}


@pytest.mark.parametrize("alpha", CERTIFIED)
def test_published_counts(alpha: float) -> None:
    for n, c in CERTIFIED[alpha].items():
        assert count_threshold(np.arange(n), alpha, 0.1) == (None if c < 0 else c)  # the (c + 1)-th of 0, 1, 2, ...


def test_on_average_by_hand() -> None:
    # n = 9, alpha .1: floor(1) - 1 = 0; n = 8: -1; n = 29: floor(3) - 1 = 2.
    assert [count_threshold(np.arange(n), 0.1) for n in (8, 9, 29)] == [None, 0.0, 2.0]
    assert count_threshold([np.inf] * 10, 0.1) == np.inf  # nothing is ever lost: no limit


def test_no_more_than_alpha_of_exchangeable_units_are_lost() -> None:
    """The average promise, exactly: of n + 1 units each in turn is the new one, and at most alpha (n + 1) are lost."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, alpha = int(rng.integers(5, 40)), float(rng.choice([0.1, 0.2, 0.3]))
        s = rng.choice([*range(6), np.inf], n + 1)
        limits = [count_threshold(np.delete(s, i), alpha) for i in range(n + 1)]
        # The largest threshold below the limit loses unit i iff s_i is below the limit.
        lost = sum(limit is not None and s[i] < limit for i, limit in enumerate(limits))
        assert lost <= alpha * (n + 1) + 1e-9


def test_the_certified_count_fails_in_at_most_delta_exactly() -> None:
    """At a true share of just above alpha a bad threshold is chosen iff at most c of n are lost."""
    for n in (22, 60, 150):
        limit = count_threshold(np.arange(n), 0.1, 0.1)
        assert limit is not None
        assert 0.04 < stats.binom.cdf(int(limit), n, 0.1) <= 0.1
        assert stats.binom.cdf(int(limit) + 1, n, 0.1) > 0.1


def test_crc_joint_by_hand() -> None:
    u, wrong = np.arange(1.0, 11), [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]

    def accepted(alpha: float) -> int | str:
        found = crc_joint(u, wrong, alpha)
        return found.k if isinstance(found, Feasible) else found.reason

    assert accepted(0.3) == 8  # (e + 1) / 11 <= .3 iff e <= 2.3
    assert accepted(1 / 11) == 4
    assert accepted(0.09) == "too_few_items"
    first = crc_joint([1.0] * 5 + [2.0] * 5, [1] * 5 + [0] * 5, 0.2)
    assert isinstance(first, Infeasible)
    assert first.reason == "risk_never_low_enough"


def test_refusals() -> None:
    for s in ([], [1.0, float("nan")]):
        with pytest.raises(UsageError, match="not NaN"):
            count_threshold(s, 0.1)
    with pytest.raises(UsageError, match="alpha"):
        count_threshold([1.0], 2)
