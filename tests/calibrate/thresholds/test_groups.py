"""Grouped items: betting on whole groups, one item a group."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from calibrate.evaluation.evaluate import RuleSpec, evaluate
from calibrate.rules.capital import p_capital
from calibrate.thresholds import fit
from calibrate.thresholds.groups import Groups, one_of_each
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason


def test_betting_by_hand() -> None:
    # Published beside the method, alpha and delta .1: 24 and 25 right answers, and 60 of which only the tenth is wrong.
    def p_value(wrong: list[int]) -> float:
        return float(p_capital((np.array(wrong) - 0.1)[:, None], 0.9, 0.1)[0])

    assert p_value([0] * 24) == pytest.approx(0.1015, abs=5e-5)
    assert p_value([0] * 25) == pytest.approx(0.0923, abs=5e-5)
    assert p_value([0] * 9 + [1] + [0] * 50) == pytest.approx(0.0362, abs=5e-5)


def one_by_one(excess: np.ndarray, most: float, delta: float) -> float:
    """Return the p-value of one column by a bettor who goes from group to group and updates a running variance."""
    capital = best = mean = 0.0
    variance, seen = 0.0025, 1
    for value in excess:
        stake = min(0.9, np.sqrt(2 * np.log(1 / delta) / (len(excess) * variance)))
        gain = -value / most
        capital += np.log1p(stake * gain)
        best = max(best, capital)
        seen += 1
        step = gain - mean
        mean += step / seen
        variance += (step * (gain - mean) - variance) / seen
    return float(min(1.0, np.exp(-best)))


def test_betting_is_the_bettor_who_goes_from_group_to_group() -> None:
    rng = np.random.default_rng(3)
    excess = np.where(rng.random((120, 9)) < 0.7, rng.random((120, 9)) * rng.integers(0, 2, (120, 9)) - 0.1, 0.0)
    expected = [one_by_one(column, 0.9, 0.1) for column in excess.T]
    assert p_capital(excess, 0.9, 0.1) == pytest.approx(expected)


def clean(groups: int, size: int = 2) -> tuple[list[float], list[int], list[int]]:
    n = groups * size
    return [float(i) for i in range(n)], [0] * n, [i % groups for i in range(n)]


def plain(u: Any, e: Any, ids: Any, alpha: float, delta: float, rule: str, largest: int = 0) -> int:
    """Return the number of accepted items, group by group and threshold by threshold, with nothing shared."""
    u, e, ids = np.asarray(u), np.asarray(e), np.asarray(ids)
    order = sorted(set(ids.tolist()), key=lambda name: hashlib.sha256(f"0:{name}".encode()).digest()[:8])
    most, accepted, started = (1 - alpha) * (largest or 1), 0, False
    shares, p_values, counts = [], [], []
    for threshold in np.unique(u):
        kept = u <= threshold
        size = np.array([(kept & (ids == name)).sum() for name in order], dtype=float)
        wrong = np.array([(kept & (ids == name) & (e == 1)).sum() for name in order], dtype=float)
        mean = rule == "group_mean"
        excess = np.where(size > 0, wrong / np.maximum(size, 1) - alpha, 0) if mean else wrong - alpha * size
        shares.append((size > 0).mean() if mean else size.mean() / largest)
        p_values.append(one_by_one(excess, most, delta))
        counts.append(int(kept.sum()))
    for part in (0.5, 0.8, 0.9, 1.0):
        needed = np.expm1(np.log(1 / delta) / (part * len(order))) * (1 - alpha) / (0.9 * alpha)
        if started := max(shares) >= needed - 1e-9:
            break
    for share, p_value, count in zip(shares, p_values, counts, strict=True):
        if started and share >= needed - 1e-9:
            if p_value > delta:
                break
            accepted = count
    return accepted


@pytest.mark.parametrize("rule", ["group_mean", "group_total"])
@pytest.mark.parametrize("seed", range(6))
def test_a_group_rule_is_the_plain_walk(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 60, 240)
    u = rng.integers(0, 40, 240).astype(float) if seed % 2 else rng.normal(size=240)
    e = (rng.random(240) < 0.25 / (1 + np.exp(-2 * (u - u.mean()) / u.std()))).astype(int)
    largest = int(np.bincount(ids).max()) if rule == "group_total" else 0
    options: dict[str, Any] = {"largest_group": largest} if largest else {}
    outcome = fit(u, e, alpha=0.25, rule=rule, groups=ids.tolist(), **options)
    assert outcome.n_accepted == plain(u, e, ids, 0.25, 0.1, rule, largest)
    assert (outcome.n, outcome.options["groups"]) == (240, len(set(ids.tolist())))


def test_a_sequence_stops_at_the_first_failure() -> None:
    u, e, ids = clean(50, 4)
    e[120:150] = [1] * 30  # fine until 120 and never again at alpha .1
    outcome = fit(u, e, alpha=0.1, rule="group_mean", groups=ids)
    assert isinstance(outcome, Feasible)
    assert 120 <= outcome.n_accepted < 135
    assert "as a mean over groups" in outcome.guarantee


def test_too_few_groups() -> None:
    # ln 10 / G must be at most ln(1 + .9 / 9): G >= 24.2.
    u, e, ids = clean(24, 20)
    outcome = fit(u, e, alpha=0.1, rule="group_mean", groups=ids)
    assert isinstance(outcome, Infeasible)
    assert outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "24 groups" in outcome.detail
    u, e, ids = clean(25, 20)
    assert isinstance(fit(u, e, alpha=0.1, rule="group_mean", groups=ids), Feasible)


def test_the_largest_group_is_declared() -> None:
    u, e, ids = clean(100, 3)
    with pytest.raises(UsageError, match="needs largest_group"):
        fit(u, e, alpha=0.1, rule="group_total", groups=ids)
    with pytest.raises(UsageError, match="a group has 3 questions, more than largest_group = 2"):
        fit(u, e, alpha=0.1, rule="group_total", groups=ids, largest_group=2)
    outcome = fit(u, e, alpha=0.1, rule="group_total", groups=ids, largest_group=3)
    assert outcome.n_accepted == 300
    assert "none has more than 3 questions" in outcome.guarantee


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
    for rule in ("certified", "one_per_group", "group_mean", "group_total"):
        alone = fit(u, e, alpha=0.2, rule=rule)
        assert fit(u, e, alpha=0.2, rule=rule, groups=list(range(60))) == alone
        assert isinstance(alone, Feasible)
        assert "items" not in alone.options


def test_refusals() -> None:
    u, e, ids = clean(30)
    with pytest.raises(UsageError, match=r"'certified' .* 'group_mean' or 'group_total'"):
        fit(u, e, alpha=0.2, rule="anchored", groups=ids)
    with pytest.raises(UsageError, match=r"seed of rule 'one_per_group' must be a whole number, got 0\.5"):
        fit(u, e, alpha=0.2, rule="one_per_group", groups=ids, seed=0.5)
    with pytest.raises(UsageError, match="seed of rule 'group_mean' must be a whole number, got True"):
        fit(u, e, alpha=0.2, rule="group_mean", groups=ids, seed=True)


def test_evaluation_gives_groups_to_the_rules_that_read_them() -> None:
    # Six of 100 groups of ten are wholly wrong. Of 500 items 30 are wrong: P(Bin(500, .1) <= 30) = .001. Of 50 groups
    # three: P(Bin(50, .1) <= 3) = .25, and a bettor on 50 groups seldom sees enough either.
    rng = np.random.default_rng(4)
    wrong = np.arange(100) % 17 == 0
    u, e = rng.normal(size=1000), np.repeat(wrong, 10).astype(int)
    ids = np.repeat(np.arange(100), 10).tolist()
    rules: list[RuleSpec] = ["certified", ("fixed_sequence", {"start": 0.9}), "group_mean"]
    settings: dict[str, Any] = {"rules": rules, "alphas": [0.1], "n_calibration": 500, "splits": 40}
    measured = [row.acceptance.value for row in evaluate(u, e, groups=ids, **settings).rows]
    alone = [row.acceptance.value for row in evaluate(u, e, **settings).rows]
    assert alone[0] > 0.9
    assert measured[0] < 0.8
    assert measured[2] < alone[2] - 0.15
