"""Grouped items: the exact rule holds exactly, the asymptotic rule nearly, and rules that ignore groups fail.

Latent correlation: item i of group g is wrong iff ``sqrt(icc) a_g + sqrt(1 - icc) b_gi < Phi^-1(mu)``, a and b standard
normal. Scores given the error are N(gap, 1) or N(0, 1), so the error rate behind a threshold is known in closed form
and is the same at every icc.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds.clusters import Groups, prepare
from calibrate.thresholds.fit import request_for
from tests.validity.test_simulation import true_rate

RUNS, GROUPS, SIZE = 1_200, 70, 15
ALPHA, DELTA = 0.15, 0.1
MU, GAP = 0.286, 1.008
"""Accuracy .714 and AUROC Phi(1.008/sqrt 2) = .762: the paper's CoQA with Qwen."""
LIMIT = int(stats.binom.ppf(1 - 1e-4, RUNS, DELTA))
"""Failures that a rule with failure probability delta exceeds with probability 1e-4: 157 of 1,200."""


def failures(rule: str, icc: float, seed: int, **options: Any) -> tuple[int, float]:
    """Return the number of calibrations whose threshold has an error rate of alpha or more, and the mean acceptance."""
    chosen, request = request_for(rule, alpha=ALPHA, delta=DELTA, options=options)
    n = GROUPS * SIZE
    groups = Groups(np.repeat(np.arange(GROUPS), SIZE), tuple(map(str, range(GROUPS))))
    rng, bound = np.random.default_rng(seed), stats.norm.ppf(MU)
    failed, accepted = 0, 0.0
    for _ in range(RUNS):
        shared = np.repeat(rng.normal(size=GROUPS), SIZE)
        error = (np.sqrt(icc) * shared + np.sqrt(1 - icc) * rng.normal(size=n) < bound).astype(np.int8)
        u = rng.normal(size=n) + GAP * error
        prefix, reduced = prepare(chosen, request, u, error, None if chosen.grouping == "none" else groups)
        index = chosen.select(prefix, reduced)
        if index is not None:
            failed += true_rate(float(prefix.score[index]), MU, GAP) >= ALPHA
            accepted += int(prefix.k[index]) / prefix.n
    return failed, accepted / RUNS


@pytest.mark.parametrize(
    "icc", [0.0, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(0.2, marks=pytest.mark.slow), 0.4]
)
def test_cluster_robust_sequence_holds_nearly(icc: float) -> None:
    failed, accepted = failures("cluster_fixed_sequence", icc, 11)
    assert failed <= LIMIT
    assert accepted > 0.4  # 58 % is possible: the rule is not idle


@pytest.mark.parametrize("icc", [0.0, 0.4])
def test_one_item_a_group_holds(icc: float) -> None:
    failed, accepted = failures("one_per_group", icc, 12)
    assert failed <= LIMIT
    assert 0.05 < accepted < 0.2  # the price of 70 items in place of 1,050


@pytest.mark.parametrize("rule", ["clopper_pearson", "anchored", "fixed_sequence"])
def test_negative_control_ignoring_groups_fails(rule: str) -> None:
    assert failures(rule, 0.4, 11)[0] > LIMIT


def exact(rule: str, groups: int, size: int, alpha: float, delta: float, *, aware: bool) -> float:
    """Return P(anything is accepted) when all items of a group are alike and the risk is alpha everywhere.

    Every label vector of the groups is run through the rule and summed with its probability.
    """
    options = {"min_accept": 4} if rule != "clopper_pearson" else {}
    chosen, request = request_for(rule, alpha=alpha, delta=delta, options=options)
    # Neighbours in score come from one group: a run of right answers is one group, not as many items.
    u = np.arange(groups * size, dtype=np.float64)
    ids = Groups.of(np.repeat(np.arange(groups), size).tolist(), u.size) if aware else None
    total = 0.0
    for labels in product((0, 1), repeat=groups):
        prefix, reduced = prepare(chosen, request, u, np.repeat(np.array(labels, dtype=np.int8), size), ids)
        wrong = sum(labels)
        if chosen.select(prefix, reduced) is not None:
            total += alpha**wrong * (1 - alpha) ** (groups - wrong)
    return total


def test_one_item_a_group_is_exact_when_groups_are_wholly_right_or_wrong() -> None:
    probability = exact("one_per_group", 10, 3, 0.45, 0.3, aware=True)
    assert 0.2 < probability <= 0.3 + 1e-9
    assert exact("certified", 10, 3, 0.45, 0.3, aware=True) == pytest.approx(probability)


@pytest.mark.parametrize("rule", ["anchored", "cp_simultaneous", "clopper_pearson"])
def test_negative_control_ignoring_whole_groups_fails_exactly(rule: str) -> None:
    assert exact(rule, 10, 3, 0.45, 0.3, aware=False) > 0.3 + 0.05
