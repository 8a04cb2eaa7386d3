"""The evaluation protocol: same splits for all, whole groups, nothing coded as 0 or NaN."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrate.evaluation.evaluate import SplitCounts, evaluate, row_of
from calibrate.evaluation.results import Cell, Estimate, Evaluation, EvaluationGrid, csv_text, few
from calibrate.fitting import Target, fit
from calibrate.rules import RULES, Infeasible, Rule
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, accepts


def pool(n: int = 400, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=n)
    return u, (rng.random(n) < 1 / (1 + np.exp(1.5 - 1.5 * u))).astype(np.int64)


def test_row_figures_by_hand() -> None:
    # Four splits of 10 test items: accepted 5, 0, 2, 4; wrong 1, 0, 1, 0; right in the test part 6, 6, 0, 8.
    patterns = [(6, 5, 1), (6, 0, 0), (0, 2, 1), (8, 4, 0)]
    splits = [SplitCounts(10, *pattern, violated=pattern[0] == 0, above=False) for pattern in patterns]
    row = row_of(Target.of("empirical", alpha=0.2), {}, splits)
    assert row.scer is not None
    assert row.scer.value == pytest.approx((0.2 + 0.5 + 0.0) / 3)
    assert row.scer_sd == pytest.approx(np.std([0.2, 0.5, 0.0], ddof=1))
    assert row.scer.se == pytest.approx(np.std([0.2, 0.5, 0.0], ddof=1) / np.sqrt(3))
    assert row.pooled is not None
    assert row.pooled.value == pytest.approx(2 / 11)
    # residuals e - (2/11) a = 1/11, 0, 7/11, -8/11: sum of squares 114/121, sd = sqrt(114/363); mean accepted 2.75.
    assert row.pooled.se == pytest.approx(np.sqrt(114 / 363) / 2 / 2.75)
    assert row.acceptance.value == pytest.approx((0.5 + 0 + 0.2 + 0.4) / 4)
    assert row.power is not None
    assert row.power.value == pytest.approx((4 / 6 + 0 + 4 / 8) / 3)
    assert (row.violation_rate.value, row.pool_violation_rate.value) == (0.25, 0.0)
    assert row.infeasible_rate.value == 0.25


def test_matches_fits_made_one_by_one() -> None:
    u, e = pool()
    result = evaluate(u, e, rules=["acrc"], alphas=[0.15], n_calibration=100, splits=7, seed=3)
    rates, shares, above = [], [], []
    for child in np.random.SeedSequence(3).spawn(7):
        calibration = np.random.default_rng(child).permutation(400)[:100]
        test = np.setdiff1d(np.arange(400), calibration)
        assert (calibration.size, test.size) == (100, 300)
        outcome = fit(u[calibration], e[calibration], alpha=0.15, rule="acrc")
        accepted = accepts(u[test], outcome.threshold) if isinstance(outcome, Feasible) else np.zeros(300, dtype=bool)
        shares.append(accepted.mean())
        above.append(isinstance(outcome, Feasible) and e[u <= outcome.threshold].mean() > 0.15)
        if accepted.any():
            rates.append(e[test][accepted].mean())
    row = result.rows[0]
    assert row.scer is not None
    assert row.scer.value == pytest.approx(np.mean(rates))
    assert row.violation_rate.value == pytest.approx(sum(rate > 0.15 for rate in rates) / 7)
    assert row.acceptance.value == pytest.approx(np.mean(shares))
    assert row.infeasible_rate.value == pytest.approx(1 - len(rates) / 7)
    assert row.n_feasible == len(rates)
    assert row.pool_violation_rate is not None
    assert row.pool_violation_rate.value == pytest.approx(np.mean(above))
    assert 0 < sum(above) < 7  # both kinds occur, or the line above shows little


def test_splits_computed_at_the_same_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Evaluation:
        return evaluate(*pool(), rules=["acrc", "certified"], alphas=[0.15, 0.3], n_calibration=100, splits=20)

    alone = run()
    monkeypatch.setattr("calibrate.evaluation.evaluate.THREADS_FROM", 1)
    assert run() == alone


def test_the_whole_pool_does_not_err_against_the_part_fitted_on() -> None:
    """Exactly alpha = .2 at every threshold of a pool: a test half is above it in about half of the splits."""
    u, e = np.repeat(np.arange(20.0), 10), np.tile([1, 1] + [0] * 8, 20)
    row = evaluate(u, e, rules=["fixed_quantile"], alphas=[0.2], n_calibration=100, splits=40).rows[0]
    assert row.violation_rate.value > 0.2
    assert row.pool_violation_rate == Estimate(value=0.0, se=0.0)


def test_means_of_few_splits_are_marked() -> None:
    u, e = pool()
    for splits, mark in ((9, "*"), (10, "")):
        row = evaluate(u, e, rules=["fixed_quantile"], alphas=[0.2], n_calibration=200, splits=splits).rows[0]
        assert few(row.n_feasible) == mark
    nothing = evaluate(np.arange(50.0), np.ones(50), rules=["lec"], alphas=[0.1], n_calibration=20, splits=4).rows[0]
    assert few(nothing.n_feasible) == ""  # there is no mean to mark


def test_all_rules_see_the_same_splits_whatever_their_company() -> None:
    u, e = pool()
    specs = ["lec", "certified", "acrc:k_min=1", "clopper_pearson:delta=0.05"]
    together = evaluate(u, e, rules=specs, alphas=[0.1, 0.2], n_calibration=150, splits=5)
    for i, spec in enumerate(specs):
        alone = evaluate(u, e, rules=[spec], alphas=[0.1, 0.2], n_calibration=150, splits=5)
        assert alone.rows == together.rows[2 * i : 2 * i + 2]
    assert [row.alpha for row in together.rows] == [0.1, 0.2] * 4
    assert together.rows[4].options == {"k_min": 1}
    assert (together.rows[2].delta, together.rows[6].delta) == (0.1, 0.05)


def test_delta_applies_where_a_rule_uses_one() -> None:
    u, e = pool()
    result = evaluate(u, e, rules=["acrc", "certified"], alphas=[0.2], n_calibration=150, splits=2, delta=0.3)
    assert [row.delta for row in result.rows] == [None, 0.3]


def test_seeds() -> None:
    u, e = pool()
    settings: dict[str, Any] = {"rules": ["empirical"], "alphas": [0.2], "n_calibration": 150, "splits": 5}
    assert evaluate(u, e, seed=1, **settings) == evaluate(u, e, seed=1, **settings)
    assert evaluate(u, e, seed=1, **settings).rows != evaluate(u, e, seed=2, **settings).rows


def test_nothing_accepted_is_none_and_not_zero() -> None:
    result = evaluate(np.arange(50.0), np.ones(50), rules=["lec"], alphas=[0.1], n_calibration=20, splits=4)
    row = result.rows[0]
    assert row.scer is None
    assert row.scer_sd is None
    assert row.pooled is None
    assert row.power is None
    assert row.acceptance.value == 0.0
    assert row.violation_rate.value == 0.0
    assert row.infeasible_rate.value == 1.0
    assert result.auroc is None


def test_one_split_has_no_standard_error() -> None:
    u, e = pool()
    row = evaluate(u, e, rules=["fixed_quantile"], alphas=[0.2], n_calibration=200, splits=1).rows[0]
    assert row.scer is not None
    assert row.scer.se is None
    assert row.scer_sd is None
    assert row.acceptance.se is None


def test_groups_stay_whole() -> None:
    groups, fitted = [i // 7 for i in range(400)], []

    def spy(u: NDArray[np.float64], wrong: object, alpha: float, delta: float, *, group: object = None) -> Infeasible:
        if u.size > 1:  # the settings of a rule are tried on one item
            fitted.append(u.astype(int))
        return Infeasible(u.size, "risk_never_low_enough")

    scores, rule = np.random.default_rng(0).permutation(400), Rule("spy", spy)
    evaluation = evaluate(scores, pool()[1], rules=[rule], alphas=[0.2], n_calibration=100, splits=10, groups=groups)
    assert evaluation.grouped
    assert len(fitted) == 10
    group_of = dict(zip(scores.tolist(), groups, strict=True))
    for part in fitted:
        inside = {group_of[score] for score in part.tolist()}
        assert part.size == sum(groups.count(group) for group in inside)
        assert 94 <= part.size <= 100


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="every group has more than n_calibration = 10"):
        evaluate(*pool(), rules=["lec"], alphas=[0.2], n_calibration=10, groups=[i // 20 for i in range(400)])
    with pytest.raises(UsageError, match="groups has 2 ids"):
        evaluate(*pool(), rules=["lec"], alphas=[0.2], n_calibration=10, groups=["a", "b"])


def test_files(tmp_path: Path) -> None:
    u, e = pool()
    result = evaluate(u, e, rules=["lec", "acrc:k_min=1"], alphas=[0.15], n_calibration=150, splits=5)
    grid = EvaluationGrid(cells=(Cell(dataset="d", model="m", estimator="s", evaluation=result),))
    rows = list(csv.DictReader(io.StringIO(csv_text(grid.records()))))
    assert [row["rule"] for row in rows] == ["lec", "acrc"]
    assert rows[1]["options"] == "k_min=1"
    assert rows[1]["scer"] == rows[1]["scer_se"] == ""
    assert result.rows[0].scer is not None
    assert float(rows[0]["scer"]) == result.rows[0].scer.value
    assert float(rows[0]["acceptance_se"]) == result.rows[0].acceptance.se
    text = result.to_json(tmp_path / "all.json")
    assert Evaluation.from_stored((tmp_path / "all.json").read_bytes()) == result
    assert "NaN" not in text


def test_progress_is_reported_after_each_split() -> None:
    steps: list[tuple[int, int]] = []

    def report(done: int, total: int, note: str = "") -> None:
        steps.append((done, total))

    evaluate(*pool(), rules=["lec"], alphas=[0.2], n_calibration=100, splits=3, progress=report)
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": []}, "at least one rule"),
        ({"alphas": []}, "at least one rule and one alpha"),
        ({"rules": "lec"}, r"Write \['lec'\]"),
        ({"rules": ["leck"]}, "Did you mean 'lec'"),
        ({"rules": ["lec:delta=0.1"]}, "makes no statement with a delta"),
        ({"alphas": [10]}, "Write 0.1 for 10 %"),
        ({"n_calibration": 400}, "between 1 and 399"),
        ({"splits": 0}, "splits must be at least 1"),
    ],
)
def test_misuse(settings: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"rules": ["lec"], "alphas": [0.2], "n_calibration": 100, "splits": 2}
    with pytest.raises(UsageError, match=message):
        evaluate(*pool(), **{**usual, **settings})


def test_every_rule_runs() -> None:
    rules = sorted(name for name, rule in RULES.items() if rule.unit == "answer")
    result = evaluate(*pool(), rules=rules, alphas=[0.2], n_calibration=200, splits=2)
    assert [row.rule for row in result.rows] == rules


def test_unmeasured_items_are_in_every_split_and_in_no_answer() -> None:
    """Evaluated without them, a rule would begin its tests elsewhere than the fit does, and answer twice the share."""
    result = evaluate([*range(100), *[np.inf] * 100], [0] * 200, rules=["certified"], alphas=[0.2], n_calibration=100)
    (row,) = result.rows
    assert (result.n, result.base_error, row.infeasible_rate.value) == (200, 0, 0)
    # Of a test part all measured items are accepted but those above the largest calibration score, about 1 of 50.
    assert 0.47 < row.acceptance.value < 0.51
    with pytest.raises(UsageError, match="none of 8 items could be measured"):
        evaluate([np.inf] * 8, [0] * 8, rules=["certified"], alphas=[0.2], n_calibration=4)
