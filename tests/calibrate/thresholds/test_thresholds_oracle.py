"""Agreement with an independent reference implementation, and with values published beside the method."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds import anchored, fit
from calibrate.thresholds.anchored import fewest_accepted, spending_limits
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.rule import default_min_accept
from calibrate.thresholds.simultaneous import simultaneous_limits
from guardrail.errors import UsageError
from guardrail.outcome import Feasible
from tests.golden.oracle import call, cases

CASES = cases()


# The reference's "anchored" is version 1 of that rule; the present one has another reference below.
# "certified" there is that of calibrate.rules.
@pytest.mark.parametrize(
    "key", sorted(key for key in CASES[0].expected if not key.startswith(("anchored", "certified")))
)
def test_every_oracle_case(key: str) -> None:
    rule, settings = call(key)
    feasible = 0
    for case in CASES:
        outcome = fit(case.uncertainty, case.error, alpha=case.alpha, rule=rule, diagnose="fast", **settings)
        expected = case.expected[key]
        if outcome.status == "infeasible":
            assert expected is None
        else:
            assert expected == {"threshold": outcome.threshold, "n_accepted": outcome.n_accepted}
            feasible += 1
    assert len(CASES) == 36
    assert (feasible > 0) == (key != "acrc min_accept=1")


def test_simultaneous_levels() -> None:
    assert simultaneous_limits(100, 0.15, 0.05, 34).level == pytest.approx(0.0187, abs=5e-5)
    assert simultaneous_limits(1000, 0.15, 0.05, 50).level == pytest.approx(0.0059, abs=5e-5)


Limits = dict[int, tuple[int, int]]

# Published beside the method: n, alpha, k_min and (c1, c2) at some numbers of items, delta .1, every k a block end.
UNTIED: list[tuple[int, float, int, Limits]] = [
    (100, 0.15, 19, {19: (0, 0), 25: (0, 0), 38: (1, 2), 50: (2, 3), 100: (6, 10)}),
    (300, 0.15, 19, {38: (1, 2), 75: (4, 6), 150: (10, 16), 300: (26, 36)}),
    (1000, 0.15, 50, {50: (1, 1), 100: (8, 9), 250: (23, 29), 500: (49, 64), 1000: (114, 135)}),
    (1000, 0.10, 50, {50: (-1, -1), 100: (4, 5), 250: (13, 18), 500: (28, 40), 1000: (70, 87)}),
]


@pytest.mark.parametrize(("n", "alpha", "k_min", "expected"), UNTIED)
def test_limits_of_untied_scores(n: int, alpha: float, k_min: int, expected: Limits) -> None:
    ours = spending_limits(np.arange(k_min, n + 1), alpha, 0.1, k_min)
    assert {k: (ours.anchor[k - k_min], ours.extension[k - k_min]) for k in expected} == expected


def test_limits_of_tied_scores() -> None:
    ours = spending_limits(np.array([60, 150, 151, 300, 400]), 0.15, 0.1, default_min_accept(400, 0.15))
    assert ours.anchor.tolist() == [5, 10, 10, 26, 37]
    assert ours.extension.tolist() == [5, 16, 16, 36, 50]


def test_limits_of_many_items_need_no_table_of_factorials(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, solve = np.array([60, 150, 151, 300, 400], dtype=np.int64).tobytes(), anchored._limits.__wrapped__
    by_table = solve(ends, 0.15, 0.1, 60)
    monkeypatch.setattr(anchored, "EXACT_LIMIT", 100)
    directly = solve(ends, 0.15, 0.1, 60)
    assert (directly.anchor.tolist(), directly.extension.tolist()) == (
        by_table.anchor.tolist(),
        by_table.extension.tolist(),
    )


def reference(ends: list[int], alpha: float, delta: float, k_min: int) -> Limits:
    """Section 3a of the method, word by word: whole distributions, no windows, no cache."""
    later = np.zeros(ends[-1] + 1)  # h at the block end that is looked at
    limits: Limits = {}
    for i in range(len(ends) - 1, -1, -1):
        k = ends[i]
        weight = stats.binom.pmf(np.arange(k + 1), k, alpha)
        spent = np.concatenate(([weight @ later], weight @ later + np.cumsum(weight * (1 - later))))
        share = min(1.0, np.exp(-(k / k_min - 1) / 1.5) + 0.15 * k_min / k)
        c1, c2 = (int((spent <= level).sum()) - 2 for level in (delta * share if i else delta, delta))
        limits[k] = (c1, c2)
        if i:
            steps = k - ends[i - 1]
            ahead = np.where(np.arange(k + 1) <= c1, 1.0, later)
            step = stats.binom.pmf(np.arange(steps + 1), steps, alpha)
            later = np.array([step @ ahead[s : s + steps + 1] for s in range(ends[i - 1] + 1)])
    return limits


@pytest.mark.parametrize("seed", range(12))
def test_certified_is_the_reference_item_for_item(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 220))
    u = rng.normal(size=n) if seed % 3 == 0 else rng.integers(0, int(rng.integers(3, 60)), n).astype(float)
    e = (rng.random(n) < 0.3 / (1 + np.exp(-(u - np.median(u)) / u.std()))).astype(int)
    alpha, delta = float(rng.choice([0.1, 0.2, 0.3])), float(rng.choice([0.05, 0.1, 0.3]))
    k_min = fewest_accepted(n, request_for("certified", alpha=alpha, delta=delta, options={})[1])
    values, counts = np.unique(u, return_counts=True)
    ends, errors = np.cumsum(counts), np.array([int(e[u <= value].sum()) for value in values])
    eligible = ends >= k_min
    limits = reference(ends[eligible].tolist(), alpha, delta, k_min)
    rows = [
        (value, k, wrong, *limits[k])
        for value, k, wrong in zip(values[eligible], ends[eligible], errors[eligible], strict=True)
    ]
    anchors = [i for i, (_, _, wrong, c1, _) in enumerate(rows) if wrong <= c1]
    ours = fit(u, e, alpha=alpha, rule="certified", delta=delta, diagnose="fast")
    if not anchors:
        assert ours.status == "infeasible"
        return
    chosen = anchors[-1]
    while chosen + 1 < len(rows) and rows[chosen + 1][2] <= rows[chosen + 1][4]:
        chosen += 1
    assert isinstance(ours, Feasible)
    assert (ours.threshold, ours.n_accepted) == (rows[chosen][0], rows[chosen][1])


def test_default_min_accept() -> None:
    # ln .05 / ln .85 = 18.43 -> 19; .05 * 1000 = 50; ln .05 / ln .99 = 298.07 -> 299; .05 * 380 = 19 exactly.
    assert [default_min_accept(n, 0.15) for n in (10, 380, 1000)] == [19, 19, 50]
    assert default_min_accept(1000, 0.01) == 299


def k_min(n: int, alpha: float, delta: float, **options: float) -> int:
    return fewest_accepted(n, request_for("certified", alpha=alpha, delta=delta, options=options)[1])


def test_few_labels_may_accept_as_few_as_pass_without_an_error() -> None:
    # ln .1 / ln .9 = 21.85 -> f = 22, used below 66; ln .05 / ln .9 = 28.4 -> 29 from there on.
    assert [k_min(n, 0.1, 0.1) for n in (22, 65, 66, 1000)] == [22, 22, 29, 50]
    assert k_min(25, 0.1, 0.05) == 29  # f is no smaller at delta .05: nothing changes
    assert k_min(25, 0.1, 0.02) == 29
    assert fit(np.arange(25), np.zeros(25), alpha=0.1, rule="certified").status == "feasible"
    assert fit(np.arange(21), np.zeros(21), alpha=0.1, rule="certified").status == "infeasible"


def test_an_expected_share_is_the_least_that_a_threshold_accepts() -> None:
    assert [k_min(440, 0.1, 0.1, expect=share) for share in (0.01, 0.15, 0.7)] == [29, 66, 308]
    assert k_min(440, 0.1, 0.1, min_accept=40) == 40
    outcome = fit(np.arange(440), np.zeros(440), alpha=0.1, rule="certified", expect=0.15)
    assert (outcome.options["min_accept"], outcome.options["expect"], outcome.options["version"]) == (66, 0.15, 3)


@pytest.mark.parametrize("expect", [0, 1, 70, "0.7", True])
def test_an_expected_share_is_a_share(expect: object) -> None:
    with pytest.raises(UsageError, match="the share of answers that you expect"):
        fit([0.0], [0], alpha=0.1, rule="certified", expect=expect)


def test_expect_and_min_accept_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="Leave out one of the two"):
        fit([0.0], [0], alpha=0.1, rule="certified", expect=0.5, min_accept=20)
