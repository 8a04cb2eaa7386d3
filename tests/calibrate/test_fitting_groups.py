"""Grouped items: betting on whole groups, one item a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrate.evaluation.evaluate import evaluate
from calibrate.fitting import fit, one_of_each
from guardrail.describe import guarantee
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible


def clean(groups: int, size: int = 2) -> tuple[list[float], list[int], list[int]]:
    n = groups * size
    return [float(i) for i in range(n)], [0] * n, [i % groups for i in range(n)]


def test_one_of_each_ignores_scores_labels_and_the_order_of_groups() -> None:
    ids = [f"user {i % 40}" for i in range(200)]
    sampled = one_of_each(ids)
    assert sorted(ids[i] for i in sampled) == sorted(set(ids))
    order = np.argsort([int(name[5:]) for name in ids], kind="stable")[::-1]
    order = order.reshape(40, 5)[:, ::-1].ravel()  # groups reversed, items of a group in their old order
    again = one_of_each([ids[i] for i in order])
    assert sorted(order[again].tolist()) == sampled.tolist()


def test_every_item_of_a_group_is_equally_likely() -> None:
    # 6,000 groups of three: each position 2,000 times, sd 36.5; 5 sd is a false alarm of 2e-6.
    sampled = one_of_each([i // 3 for i in range(18_000)])
    counts = np.bincount(sampled % 3, minlength=3)
    assert np.abs(counts - 2_000).max() < 183


@pytest.mark.parametrize("rule", ["certified", "acrc"])
def test_a_rule_of_independent_items_gets_one_item_of_each_group(rule: str) -> None:
    """Ten equal questions of one document are no ten draws: counted each, they certify what one document shows."""
    rng = np.random.default_rng(2)
    ids = np.repeat(np.arange(300), 4)
    u = rng.normal(size=1200)
    e = (rng.random(1200) < 1 / (1 + np.exp(3 - 1.5 * u))).astype(int)
    outcome = fit(u, e, alpha=0.2, rule=rule, groups=ids.tolist())
    sampled = one_of_each(ids.tolist())
    alone = fit(u[sampled], e[sampled], alpha=0.2, rule=rule)
    assert isinstance(outcome, Feasible)
    assert isinstance(alone, Feasible)
    assert (outcome.n, outcome.n_accepted, outcome.threshold) == (300, alone.n_accepted, alone.threshold)
    assert (outcome.options["items"], outcome.options["groups"]) == (1200, 300)
    assert "Of 1200 questions in 300 groups one of each" in guarantee(outcome)


def test_a_rule_of_groups_reads_every_item() -> None:
    """Without an error ln 10 / G must be at most ln(1 + .9 / 9), so 25 groups suffice and 24 do not."""
    for groups, found in ((24, Infeasible), (25, Feasible)):
        u, e, ids = clean(groups, 20)
        outcome = fit(u, e, alpha=0.1, rule="certified_groups", groups=ids)
        assert isinstance(outcome, found)
        assert "as a mean over groups" in guarantee(outcome)
    u, e, ids = clean(100, 3)
    total = fit(u, e, alpha=0.1, rule="certified_groups", groups=ids, most=3)
    assert (total.n, total.n_accepted) == (300, 300)
    assert "as a mean over groups" not in guarantee(total)
    with pytest.raises(UsageError, match="a group has 3 measured items, more than most = 2"):
        fit(u, e, alpha=0.1, rule="certified_groups", groups=ids, most=2)


def test_without_repeated_groups_nothing_changes() -> None:
    u, e, _ = clean(60, 1)
    for rule in ("certified", "certified_groups"):
        alone = fit(u, e, alpha=0.2, rule=rule)
        assert fit(u, e, alpha=0.2, rule=rule, groups=list(range(60))) == alone
        assert isinstance(alone, Feasible)
        assert "items" not in alone.options


def test_evaluation_gives_groups_to_the_rules_that_read_them() -> None:
    # Six of 100 groups of ten are wholly wrong. Of 500 items 30 are wrong: P(Bin(500, .1) <= 30) = .001. Of 50 groups
    # three: P(Bin(50, .1) <= 3) = .25, and a bettor on 50 groups seldom sees enough either.
    rng = np.random.default_rng(4)
    wrong = np.arange(100) % 17 == 0
    u, e = rng.normal(size=1000), np.repeat(wrong, 10).astype(int)
    ids = np.repeat(np.arange(100), 10).tolist()
    rules = ["certified", "certified_groups"]
    settings: dict[str, Any] = {"rules": rules, "alphas": [0.1], "n_calibration": 500, "splits": 40}
    measured = [row.acceptance.value for row in evaluate(u, e, groups=ids, **settings).rows]
    alone = [row.acceptance.value for row in evaluate(u, e, **settings).rows]
    assert alone[0] > 0.9
    assert measured[0] < 0.8
    assert measured[1] < alone[1] - 0.15
