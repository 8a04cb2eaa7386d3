"""Grouped items: sums over groups, the cluster-robust sequence, one item a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.evaluation.evaluate import RuleSpec, evaluate
from calibrate.thresholds import fit
from calibrate.thresholds.clusters import Groups, _within_quantile, cluster_sums, one_of_each, t_statistic
from calibrate.thresholds.rule import Prefix, prefixes
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason


def grouped(u: Any, e: Any, ids: list[Any]) -> Prefix:
    scores, labels = np.asarray(u, dtype=np.float64), np.asarray(e, dtype=np.int8)
    plain = prefixes(scores, labels)
    sums = cluster_sums(scores, labels, Groups.of(ids, len(ids)).code, plain.k)
    return Prefix(plain.n, plain.score, plain.k, plain.e, sums)


def test_sums_over_groups_by_hand() -> None:
    #   u    1  2  2  3  4     groups a b a b b
    #   E    0  1  1  0  1     blocks end at k = 1, 3, 4, 5
    # k = 1: a (m 1, e 0).           k = 3: a (2, 1), b (1, 1).
    # k = 4: a (2, 1), b (2, 1).     k = 5: a (2, 1), b (3, 2).
    sums = grouped([3, 2, 1, 4, 2], [0, 1, 0, 1, 1], ["b", "b", "a", "b", "a"]).clusters
    assert sums is not None
    assert sums.number.tolist() == [1, 2, 2, 2]
    assert sums.ee.tolist() == [0, 2, 2, 5]
    assert sums.em.tolist() == [0, 3, 4, 8]
    assert sums.mm.tolist() == [1, 5, 8, 13]


def test_t_statistic_agrees_with_scipy_on_the_groups_sums() -> None:
    rng = np.random.default_rng(5)
    u, e, ids = rng.integers(0, 40, 200), rng.integers(0, 2, 200), rng.integers(0, 25, 200)
    prefix = grouped(u, e, ids.tolist())
    measured = t_statistic(prefix, 0.3)
    for index, score in enumerate(prefix.score):
        accepted = u <= score
        z = [float((e[accepted & (ids == g)] - 0.3).sum()) for g in np.unique(ids[accepted])]
        assert measured[index] == pytest.approx(stats.ttest_1samp(z, 0.0).statistic)


def test_t_statistic_without_spread() -> None:
    # Two groups of one right item each: Z = (-.3, -.3). Two wrong ones: (.7, .7). One group: no test.
    assert t_statistic(grouped([1, 1], [0, 0], ["a", "b"]), 0.3).tolist() == [-np.inf]
    assert t_statistic(grouped([1, 1], [1, 1], ["a", "b"]), 0.3).tolist() == [np.inf]
    assert t_statistic(grouped([1, 2], [0, 0], ["a", "a"]), 0.3).tolist() == [0.0, 0.0]


def clean(groups: int, size: int = 2) -> tuple[list[float], list[int], list[int]]:
    n = groups * size
    return [float(i) for i in range(n)], [0] * n, [i % groups for i in range(n)]


def test_one_wrong_group_weighs_as_a_group() -> None:
    # 30 groups of two, alpha .2. Four wrong answers among 60: in one go (two groups wholly wrong) or in four groups.
    # t = sum Z / sqrt(G/(G-1) (sum Z^2 - (sum Z)^2/G)), sum Z = 4 - 12 = -8, (sum Z)^2/G = 64/30 = 2.1333.
    # Two groups (Z = 1.6) and 28 (Z = -.4): sum Z^2 = 5.12 + 4.48 = 9.6: t = -8/sqrt(30/29 * 7.4667) = -2.8785.
    # Four groups (Z = .6), 26 (Z = -.4): 1.44 + 4.16 = 5.6:              t = -8/sqrt(30/29 * 3.4667) = -4.2245.
    u, e, ids = clean(30)
    together, apart = list(e), list(e)
    for i in (0, 1):
        together[i] = together[i + 30] = 1
    for i in (0, 1, 2, 3):
        apart[i] = 1
    assert t_statistic(grouped(u, together, ids), 0.2)[-1] == pytest.approx(-2.8785, abs=5e-5)
    assert t_statistic(grouped(u, apart, ids), 0.2)[-1] == pytest.approx(-4.2245, abs=5e-5)
    # t(29) quantiles: -2.756 at .005, -2.867 at .0038. P(Bin(60, .2) <= 4) = .00393.
    settings: dict[str, Any] = {"alpha": 0.2, "rule": "cluster_fixed_sequence", "start": 60, "min_clusters": 30}
    assert isinstance(fit(u, together, delta=0.005, groups=ids, **settings), Feasible)
    assert isinstance(fit(u, apart, delta=0.005, groups=ids, **settings), Feasible)
    assert isinstance(fit(u, apart, delta=0.0038, groups=ids, **settings), Infeasible)  # the binomial test alone


def test_the_robust_test_alone_can_fail() -> None:
    # 30 groups of ten, three wholly wrong: P(Bin(300, .15) <= 30) = .007, but t = (30 - 45)/sqrt(30/29 * (3 * 72.25 +
    # 27 * 2.25 - 7.5)) = -.8975, far from t(29)'s -1.31 at .1.
    u, e, ids = clean(30, 10)
    e = [int(i % 30 < 3) for i in range(300)]
    settings: dict[str, Any] = {"alpha": 0.15, "start": 300}
    assert t_statistic(grouped(u, e, ids), 0.15)[-1] == pytest.approx(-0.8975, abs=5e-5)
    assert isinstance(fit(u, e, rule="fixed_sequence", groups="ignore", **settings), Feasible)
    assert isinstance(fit(u, e, rule="cluster_fixed_sequence", groups=ids, **settings), Infeasible)


def test_a_sequence_stops_at_the_first_failure() -> None:
    u, e, ids = clean(50, 4)
    e[120:150] = [1] * 30  # C is fine until 120 and never again at alpha .1, until the end
    outcome = fit(u, e, alpha=0.1, rule="cluster_fixed_sequence", start=60, groups=ids)
    assert isinstance(outcome, Feasible)
    assert 120 <= outcome.n_accepted < 130
    assert outcome.options["min_clusters"] == 22  # ln .1 / ln .9 = 21.85
    assert (outcome.n, outcome.options["items"], outcome.options["groups"]) == (200, 200, 50)
    assert "Asymptotic" in outcome.guarantee
    assert "50 groups" in outcome.guarantee


def test_too_few_groups() -> None:
    u, e, ids = clean(19, 20)
    outcome = fit(u, e, alpha=0.2, rule="cluster_fixed_sequence", groups=ids)
    assert isinstance(outcome, Infeasible)
    assert outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "19 groups" in outcome.detail
    u, e, ids = clean(20, 20)
    assert isinstance(fit(u, e, alpha=0.2, rule="cluster_fixed_sequence", groups=ids), Feasible)
    assert isinstance(fit(u, e, alpha=0.1, rule="cluster_fixed_sequence", groups=ids), Infeasible)  # 22 needed


def test_the_start_waits_for_enough_groups() -> None:
    # The first 15 items are one group: the sequence begins where 20 groups are in, at 15 + 19 items, not at k0 = 10.
    u = [float(i) for i in range(100)]
    ids = [0] * 15 + list(range(1, 86))
    early = [1] * 4 + [0] * 96  # at 10 items 4 wrong would stop it; at 34 it passes
    assert isinstance(fit(u, early, alpha=0.3, rule="cluster_fixed_sequence", start=10, groups=ids), Feasible)
    late = [0] * 20 + [1] * 14 + [0] * 66  # fails at 34; alone, all 100 would pass (t = -2.88)
    outcome = fit(u, late, alpha=0.3, rule="cluster_fixed_sequence", start=10, groups=ids)
    assert isinstance(outcome, Infeasible)
    assert outcome.reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
    assert "14 of the 34 most certain items, from 20 groups" in outcome.detail


def test_one_of_each_ignores_scores_labels_and_the_order_of_groups() -> None:
    ids = [f"user {i % 40}" for i in range(200)]
    sampled = one_of_each(Groups.of(ids, 200))
    assert sorted(ids[i] for i in sampled) == sorted(set(ids))
    order = np.argsort([int(name[5:]) for name in ids], kind="stable")[::-1]
    order = order.reshape(40, 5)[:, ::-1].ravel()  # groups reversed, items of a group in their old order
    again = one_of_each(Groups.of([ids[i] for i in order], 200))
    assert sorted(order[again].tolist()) == sampled.tolist()
    assert one_of_each(Groups.of(ids, 200), seed=1).tolist() != sampled.tolist()


def test_every_item_of_a_group_is_equally_likely() -> None:
    # 6,000 groups of three: each position 2,000 times, sd 36.5; 5 sd is a false alarm of 2e-6.
    sampled = one_of_each(Groups.of([i // 3 for i in range(18_000)], 18_000))
    counts = np.bincount(sampled % 3, minlength=3)
    assert np.abs(counts - 2_000).max() < 183


@pytest.mark.parametrize("rule", ["certified", "one_per_group"])
def test_a_certificate_uses_one_item_of_each_group(rule: str) -> None:
    rng = np.random.default_rng(2)
    ids = np.repeat(np.arange(300), 4)
    u = rng.normal(size=1200)
    e = (rng.random(1200) < 1 / (1 + np.exp(3 - 1.5 * u))).astype(int)
    outcome = fit(u, e, alpha=0.2, rule=rule, groups=ids.tolist())
    sampled = one_of_each(Groups.of(ids.tolist(), 1200))
    alone = fit(u[sampled], e[sampled], alpha=0.2, rule="anchored")
    assert isinstance(outcome, Feasible)
    assert isinstance(alone, Feasible)
    assert (outcome.n, outcome.n_accepted, outcome.n_errors) == (300, alone.n_accepted, alone.n_errors)
    assert outcome.threshold == alone.threshold
    assert (outcome.options["items"], outcome.options["groups"]) == (1200, 300)
    assert "Of 1200 questions in 300 groups one of each" in outcome.guarantee
    assert "Asymptotic" not in outcome.guarantee


def test_without_repeated_groups_nothing_changes() -> None:
    u, e, _ = clean(60, 1)
    for rule in ("certified", "one_per_group", "cluster_fixed_sequence"):
        plain = fit(u, e, alpha=0.2, rule=rule)
        assert fit(u, e, alpha=0.2, rule=rule, groups=list(range(60))) == plain
        assert isinstance(plain, Feasible)
        assert "items" not in plain.options


def test_refusals() -> None:
    u, e, ids = clean(30)
    with pytest.raises(UsageError, match=r"'certified' .* or 'cluster_fixed_sequence'"):
        fit(u, e, alpha=0.2, rule="anchored", groups=ids)
    with pytest.raises(UsageError, match=r"min_clusters of rule 'cluster_fixed_sequence' must be .* got 1"):
        fit(u, e, alpha=0.2, rule="cluster_fixed_sequence", groups=ids, min_clusters=1)
    with pytest.raises(UsageError, match="start of rule 'cluster_fixed_sequence'"):
        fit(u, e, alpha=0.2, rule="cluster_fixed_sequence", groups=ids, start=0)
    with pytest.raises(UsageError, match=r"seed of rule 'one_per_group' must be a whole number, got 0\.5"):
        fit(u, e, alpha=0.2, rule="one_per_group", groups=ids, seed=0.5)


def test_evaluation_gives_groups_to_the_rules_that_read_them() -> None:
    # Six of 100 groups of ten are wholly wrong. Of 500 items 30 are wrong: P(Bin(500, .1) <= 30) = .001. Of 50 groups
    # three: P(Bin(50, .1) <= 3) = .25, and t = (30 - 50)/sqrt(50/49 * 282) = -1.2, above the quantile of -1.3.
    rng = np.random.default_rng(4)
    wrong = np.arange(100) % 17 == 0
    u, e = rng.normal(size=1000), np.repeat(wrong, 10).astype(int)
    ids = np.repeat(np.arange(100), 10).tolist()
    late = {"start": 0.9}
    rules: list[RuleSpec] = ["certified", ("fixed_sequence", late), ("cluster_fixed_sequence", late)]
    settings: dict[str, Any] = {"rules": rules, "alphas": [0.1], "n_calibration": 500, "splits": 40}
    measured = [row.acceptance.value for row in evaluate(u, e, groups=ids, **settings).rows]
    plain = [row.acceptance.value for row in evaluate(u, e, **settings).rows]
    assert plain[0] > 0.9
    assert measured[0] < 0.8
    assert measured[2] < measured[1] - 0.15
    assert plain[2] == pytest.approx(plain[1], abs=0.02)


@pytest.mark.parametrize("level", [0.01, 0.1, 0.5, 0.9])
def test_shortcut_of_the_quantile_agrees_with_scipy(level: float) -> None:
    rng = np.random.default_rng(0)
    df = np.sort(rng.integers(1, 300, 2000))
    t = rng.normal(stats.norm.ppf(level), 1.0, 2000)
    assert np.array_equal(_within_quantile(t, df, level), t <= stats.t.ppf(level, df))
