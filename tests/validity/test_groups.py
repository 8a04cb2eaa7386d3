"""Grouped items: rules that know the groups keep their promise, and rules that ignore groups fail.

Latent correlation: item i of group g is wrong iff ``sqrt(icc) a_g + sqrt(1 - icc) b_gi < Phi^-1(mu)``, a and b standard
normal. Scores given the error are N(gap, 1) or N(0, 1), so the error rate behind a threshold is known in closed form
and is the same at every icc.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds.fit import request_for
from calibrate.thresholds.groups import Groups, prepare
from tests.validity.test_simulation import true_rate

RUNS, GROUPS, SIZE = 1_200, 70, 15
ALPHA, DELTA = 0.15, 0.1
MU, GAP = 0.286, 1.008
"""Accuracy .714 and AUROC Phi(1.008/sqrt 2) = .762: the paper's CoQA with Qwen."""
LIMIT = int(stats.binom.ppf(1 - 1e-4, RUNS, DELTA))
"""Failures that a rule with failure probability delta exceeds with probability 1e-4: 157 of 1,200."""


def failures(
    rule: str, icc: float, seed: int, runs: int = RUNS, count: int = GROUPS, **options: Any
) -> tuple[int, float]:
    """Return the number of calibrations whose threshold has an error rate of alpha or more, and the mean acceptance."""
    chosen, request = request_for(rule, alpha=ALPHA, delta=DELTA, options=options)
    n = count * SIZE
    groups = Groups(np.repeat(np.arange(count), SIZE), tuple(map(str, range(count))))
    rng, bound = np.random.default_rng(seed), stats.norm.ppf(MU)
    failed, accepted = 0, 0.0
    for _ in range(runs):
        shared = np.repeat(rng.normal(size=count), SIZE)
        error = (np.sqrt(icc) * shared + np.sqrt(1 - icc) * rng.normal(size=n) < bound).astype(np.int8)
        u = rng.normal(size=n) + GAP * error
        prefix, reduced = prepare(chosen, request, u, error, None if chosen.grouping == "none" else groups)
        index = chosen.select(prefix, reduced)
        if index is not None:
            failed += true_rate(float(prefix.score[index]), MU, GAP) >= ALPHA
            accepted += int(prefix.k[index]) / prefix.n
    return failed, accepted / runs


@pytest.mark.parametrize("icc", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
def test_betting_on_all_questions_holds(icc: float) -> None:
    failed, accepted = failures("group_total", icc, 11, runs=50, count=400, largest_group=SIZE)
    assert failed <= stats.binom.ppf(1 - 1e-4, 50, DELTA)
    assert accepted > 0.05  # the price of all questions: 70 groups accept next to nothing


def mean_over_groups(u: np.ndarray, error: np.ndarray, code: np.ndarray, threshold: float) -> float:
    """Return the mean over groups of the share of wrong answers among a group's accepted ones."""
    kept = u <= threshold
    size = np.bincount(code, kept)
    return float((np.bincount(code, kept * error)[size > 0] / size[size > 0]).mean())


def unequal(rng: np.random.Generator, groups: int, flat: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw groups of 1 to 12 questions, wholly right or wrong; long ones more often wrong unless flat."""
    size = rng.integers(1, 13, groups)
    code = np.repeat(np.arange(groups), size)
    risk = np.full(groups, ALPHA + 0.01) if flat else 0.08 + 0.02 * size
    error = (rng.random(groups) < risk)[code].astype(np.int8)
    return rng.normal(size=code.size) + (0 if flat else 1.5) * error, error, code


@pytest.mark.slow
@pytest.mark.parametrize("flat", [True, False])
def test_the_mean_over_groups_holds(flat: bool) -> None:
    rng, runs = np.random.default_rng(21), 300
    truth = unequal(np.random.default_rng(22), 60_000, flat)
    failed = accepted = ignored = 0
    for _ in range(runs):
        u, error, code = unequal(rng, 120, flat)
        for rule, grouped in (("group_mean", Groups.of(code.tolist(), u.size)), ("certified", None)):
            chosen, request = request_for(rule, alpha=ALPHA, delta=DELTA, options={})
            prefix, reduced = prepare(chosen, request, u, error, grouped)
            index = chosen.select(prefix, reduced)
            if index is None:
                continue
            # Below the flat risk a threshold is bad by construction; the large sample would only add noise.
            bad = flat or mean_over_groups(*truth, float(prefix.score[index])) > ALPHA
            failed += bad and grouped is not None
            ignored += bad and grouped is None
            accepted += grouped is not None
    assert failed <= stats.binom.ppf(1 - 1e-4, runs, DELTA)
    assert flat or accepted > 0.5 * runs
    assert ignored > stats.binom.ppf(1 - 1e-4, runs, DELTA)  # negative control: questions as if independent


@pytest.mark.slow
@pytest.mark.parametrize("groups", [16, 18, 20])
def test_few_groups_start_stricter_and_hold(groups: int) -> None:
    """At alpha .15 these are the fewest groups for starts at all, .9 and .8 of them."""
    rng, runs = np.random.default_rng(23), 250
    chosen, request = request_for("group_mean", alpha=ALPHA, delta=DELTA, options={})
    passed = Counter[str]()
    for _ in range(runs):
        size = rng.integers(1, 13, groups)
        code = np.repeat(np.arange(groups), size)
        for name, risk in (("bad", ALPHA + 0.01), ("good", 0.02)):
            error = (rng.random(groups) < risk)[code].astype(np.int8)
            u = np.round(rng.normal(size=code.size), 1)
            prefix, reduced = prepare(chosen, request, u, error, Groups.of(code.tolist(), u.size))
            passed[name] += chosen.select(prefix, reduced) is not None
            certified, plain = request_for("certified", alpha=ALPHA, delta=DELTA, options={})
            passed[f"{name} as if independent"] += (
                certified.select(*prepare(certified, plain, u, error, None)) is not None
            )
    limit = stats.binom.ppf(1 - 1e-4, runs, DELTA)
    assert passed["bad"] <= limit < passed["bad as if independent"]  # the negative control
    assert passed["good"] > 0.4 * runs


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
