"""The paper's rule, its baselines and its ablations on ten items small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrate.rules import RULES, Feasible, Infeasible
from calibrate.rules.counts import counts
from guardrail.errors import UsageError

U = [float(k) for k in range(1, 11)]
E = [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]
# k       1    2    3    4    5    6    7    8    9   10
# e       0    0    0    0    1    1    1    2    3    4
# C     -.3  -.6  -.9 -1.2  -.5  -.8 -1.1  -.4  +.3 +1.0   at alpha = .3; correction .7 * 10/11 = .636
ZERO = [0] * 10


def accepted(rule: str, wrong: list[int], alpha: float = 0.3, delta: float = 0.1, **settings: Any) -> int | str:
    outcome = RULES[rule].choose(U[: len(wrong)], wrong, alpha, delta, **settings)
    return outcome.k if isinstance(outcome, Feasible) else outcome.reason


def test_fixed_quantile() -> None:
    assert accepted("fixed_quantile", E) == 5
    assert accepted("fixed_quantile", E, quantile=0.3) == 3  # .3 * 10 is 3 though floats may say 2.9999...
    assert accepted("fixed_quantile", E, quantile=1) == 10
    assert accepted("fixed_quantile", E, quantile=0.05) == "too_few_items"


def test_empirical() -> None:
    assert accepted("empirical", E) == 8
    assert accepted("empirical", [0, 0, 1], alpha=1 / 3) == 3  # C = 1 - 3/3 = 0 counts as feasible
    assert accepted("empirical", [1, 1, 1]) == "risk_never_low_enough"


def test_lec() -> None:
    assert accepted("lec", E) == 7
    assert accepted("lec", ZERO, alpha=0.1) == 10  # C_10 = -1 exactly
    assert accepted("lec", ZERO, alpha=0.05) == "too_few_items"


def test_acrc_and_its_ablations() -> None:
    assert accepted("acrc", E, k_min=4) == 4  # C_5 + .636 > 0 and the maximum remembers it
    assert accepted("acrc", E, k_min=4, monotone=False) == 7  # C_7 = -1.1 <= -.636 < C_8
    assert accepted("acrc", E, k_min=4, correction=False) == 8
    assert accepted("acrc", E, k_min=4, envelope=True, correction=False) == 4  # until the first error
    assert accepted("acrc", E, k_min=6) == 7  # the violation at 5 lies below k_min
    assert accepted("acrc", E) == "risk_never_low_enough"  # k_min = ceil(ln .05 / ln .7) = 9, and C_9 > 0
    assert accepted("acrc", [0, 1, 1, 0, 0, 0, 0, 0, 0, 0], k_min=3) == "risk_never_low_enough"


@pytest.mark.parametrize("settings", [{"k_min": 1}, {"envelope": True}])
def test_the_rules_that_accept_nothing_say_so(settings: dict[str, Any]) -> None:
    """The paper's rule as printed, and its envelope, accept nothing on untied scores even without an error."""
    assert accepted("acrc", ZERO, **settings) == "too_few_items"


def test_acrc_as_printed_accepts_when_many_share_the_lowest_score() -> None:
    # One block of 4 right answers: C = -1.2 <= -.636.
    outcome = RULES["acrc"].choose([1.0] * 4 + U[4:], [0] * 4 + E[4:], 0.3, k_min=1)
    assert isinstance(outcome, Feasible)
    assert (outcome.k, outcome.threshold) == (4, 1.0)


def test_acrc_starts_at_the_first_threshold_past_k_min() -> None:
    # Blocks of 5: C_5 = -1.5, C_10 = 1 - 3 = -2.
    outcome = RULES["acrc"].choose([1.0] * 5 + [2.0] * 5, [0] * 9 + [1], 0.3, k_min=3)
    assert isinstance(outcome, Feasible)
    assert (outcome.k, outcome.e, outcome.n, outcome.threshold) == (10, 1, 10, 2.0)


def test_clopper_pearson() -> None:
    # k = 4: .7^4 = .2401. k = 7, one error: .7^7 + 7 * .3 * .7^6 = .3294. k = 8, two: .5518.
    assert accepted("clopper_pearson", E, delta=0.3) == 4
    assert accepted("clopper_pearson", E, delta=0.33) == 7
    assert accepted("clopper_pearson", E, delta=0.24) == "risk_never_low_enough"
    assert accepted("clopper_pearson", ZERO, delta=0.02) == "too_few_items"  # .7^10 = .028


def test_hoeffding() -> None:
    # Without errors sqrt(ln(1/.3) / 20) = .2454 at k = 10, .2586 at k = 9.
    assert accepted("hoeffding", ZERO, delta=0.3) == 10
    assert accepted("hoeffding", ZERO, alpha=0.2454, delta=0.3) == 10
    assert accepted("hoeffding", ZERO, alpha=0.2453, delta=0.3) == "too_few_items"


def test_counts_keep_ties_together_and_the_unmeasured_in_n() -> None:
    """A threshold inside a tie, or an infinite one, would accept what nobody tested or measured."""
    at = counts([2.0, np.inf, 0.0, 2.0, -0.0, np.inf], [1, 0, 0, 0, 1, 1])
    assert at.n == 6
    assert (at.threshold.tolist(), at.k.tolist(), at.e.tolist()) == ([0.0, 2.0], [2, 4], [1, 2])


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.reads_groups])
def test_nothing_measured_is_infeasible_and_nothing_unmeasured_is_accepted(rule: str) -> None:
    assert isinstance(RULES[rule].choose([np.inf] * 50, [0] * 50, 0.2), Infeasible)
    outcome = RULES[rule].choose([1.0] * 100 + [np.inf] * 100, [0] * 200, 0.2)
    assert isinstance(outcome, Feasible)
    assert (outcome.k, outcome.n, outcome.acceptance) == (100, 200, 0.5)


@pytest.mark.parametrize(
    ("u", "wrong", "alpha", "message"),
    [
        ([1.0, float("nan")], [0, 1], 0.1, r"u\[1\] is nan"),
        ([-np.inf, 1.0], [0, 1], 0.1, r"u\[0\] is -inf"),
        ([1.0, 2.0], [0, 2], 0.1, r"wrong\[1\] must be 0 \(right\) or 1"),
        ([1.0, 2.0], [0, float("nan")], 0.1, r"wrong\[1\] must be 0 .*, got nan"),
        (["low", "high"], [0, 1], 0.1, "u and wrong must be numbers"),
        ([1.0, 2.0], [0], 0.1, r"one shape \(n,\)"),
        ([], [], 0.1, r"n >= 1"),
        ([1.0], [0], 15, r"alpha must be in \(0, 1\), got 15"),
    ],
)
@pytest.mark.parametrize("rule", ["certified", "acrc", "crc_joint"])
def test_refusals(rule: str, u: list[Any], wrong: list[Any], alpha: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RULES[rule].choose(u, wrong, alpha)
