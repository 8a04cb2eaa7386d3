"""Several models as one system: counts along a path by brute force, and the certificate on scores that say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.rules import Feasible, Infeasible, certified
from calibrate.rules.cascade import Policy, certified_cascade, matched_path, path_counts
from guardrail.errors import UsageError


def test_a_path_by_hand() -> None:
    u = np.array([[0.1, 5.0], [0.2, 6.0], [0.3, 7.0], [np.inf, 8.0]])
    # Three of four are measured at stage 1; ratio 1/2: ranks 1, 1, 2, 2 of it against 1, 2, 3, 4 of stage 2.
    assert matched_path(u, 0.5).tolist() == [[0.1, 5.0], [0.1, 6.0], [0.2, 7.0], [0.2, 8.0]]
    assert matched_path(u, 1.0).tolist() == [[0.1, 5.0], [0.2, 6.0], [0.3, 7.0], [0.3, 8.0]]
    assert matched_path(u, 0.0).tolist() == [[-np.inf, t] for t in (5.0, 6.0, 7.0, 8.0)]


def test_counts_are_those_of_asking_stage_by_stage() -> None:
    """A wrong count would certify another system than the one that answers."""
    rng = np.random.default_rng(0)
    for stages in (2, 3):
        u = rng.integers(0, 8, (60, stages)).astype(float)
        u[rng.random(u.shape) < 0.2] = np.inf
        wrong = (rng.random(u.shape) < 0.3).astype(int)
        path = matched_path(u, 0.7)
        k, e = path_counts(u, wrong, path)
        for row, thresholds in enumerate(path):
            answers = [
                next((int(wrong[i, s]) for s in range(stages) if u[i, s] <= thresholds[s]), None) for i in range(60)
            ]
            assert k[row] == sum(answer is not None for answer in answers)
            assert e[row] == sum(answer == 1 for answer in answers)


def test_with_a_silent_first_stage_it_is_the_certificate_of_the_last() -> None:
    rng = np.random.default_rng(1)
    u = rng.random((300, 2))
    wrong = (rng.random(u.shape) < 0.3 * u).astype(int)
    found, alone = certified_cascade(u, wrong, 0.1, ratio=0.0), certified(u[:, 1], wrong[:, 1], 0.1)
    assert isinstance(found, Policy)
    assert isinstance(alone, Feasible)
    assert found.thresholds == (-np.inf, alone.threshold)
    assert (found.k, found.e, found.n, found.start) == (alone.k, alone.e, alone.n, alone.start)


def test_infeasible_outcomes() -> None:
    u, wrong = np.arange(200.0).reshape(100, 2), np.zeros((100, 2), dtype=int)
    short = certified_cascade(u[:20], wrong[:20], 0.1)
    bad = certified_cascade(u, wrong + 1, 0.1)
    assert isinstance(short, Infeasible)
    assert isinstance(bad, Infeasible)
    assert (short.reason, bad.reason) == ("too_few_items", "risk_never_low_enough")


@pytest.mark.parametrize("own", [True, False])
def test_a_cascade_of_useless_scores_is_seldom_certified(own: bool) -> None:
    """Every policy is wrong in a share barely above alpha, by quantiles of the labelled questions or of others."""
    rng = np.random.default_rng(2)
    failed = 0
    for _ in range(400):
        u, wrong = rng.random((200, 2)), (rng.random((200, 2)) < 0.1001).astype(int)
        path = None if own else matched_path(rng.random((200, 2)))
        failed += isinstance(certified_cascade(u, wrong, 0.1, path=path), Policy)
    assert 10 < failed <= stats.binom.isf(1e-4, 400, 0.1)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="two stages or more"):
        matched_path(np.zeros((5, 1)))
    with pytest.raises(UsageError, match="ratio"):
        matched_path(np.zeros((5, 2)), 1.5)
    with pytest.raises(UsageError, match="must be 0"):
        certified_cascade(np.zeros((5, 2)), np.full((5, 2), 2), 0.1)
