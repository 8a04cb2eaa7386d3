"""The paper's five tables in form, from any pools of scores and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calibrate.evaluation.evaluate import Estimate, evaluate
from calibrate.evaluation.planning import Binormal
from calibrate.evaluation.tables import PaperTables, RecordPool, TableRow, average, tables
from guardrail.errors import UsageError


def small_pool(model: str = "a", seed: int = 1, **settings: Any) -> RecordPool:
    u, e = Binormal(0.75, 0.8).draw(np.random.default_rng(seed), 400)
    return RecordPool("toy", model, e, {"first": u, "second": np.round(u, 1)}, **settings)


@pytest.fixture(scope="module")
def small() -> PaperTables:
    return tables([small_pool("a"), small_pool("b", 2)], n_calibration=200, splits=4, sizes=(100, 300, 301))


def test_tables_in_form(small: PaperTables) -> None:
    assert [(row.model, row.label) for row in small.main[:8]] == [
        ("a", "Fixed-50"),
        ("a", "Empirical"),
        ("a", "UCB-HFD"),
        ("a", "UCB-CLP"),
        ("a", "LEC-Direct"),
        ("a", "A-CRC-QA"),
        ("a", "certified"),
        ("b", "Fixed-50"),
    ]
    assert [(row.model, row.label) for row in small.risk_levels] == [
        (None, label) for label in ("0.05", "0.10", "0.15", "0.20", "0.25")
    ]
    assert [(row.model, row.label) for row in small.estimators] == [
        (model, name) for model in "ab" for name in ("first", "second")
    ]
    assert [row.label for row in small.calibration_sizes] == ["100", "300"]  # 301 of 400 leaves less than a quarter
    assert [row.n_calibration for row in small.calibration_sizes] == [100, 300]
    assert [row.label for row in small.ablation][-1] == "Full A-CRC-QA"
    envelope = next(row for row in small.ablation if row.label == "Instance-wise envelope")
    assert (envelope.scer, envelope.acceptance.value, envelope.infeasible_rate.value) == (None, 0.0, 1.0)
    assert PaperTables.model_validate_json(small.model_dump_json()) == small


def test_a_row_is_the_evaluation_of_its_pool(small: PaperTables) -> None:
    pool = small_pool("b", 2)
    rules: list[Any] = ["empirical", ("clopper_pearson", {"delta": 0.05}), ("certified", {"delta": 0.05})]
    rows = evaluate(pool.uncertainty["first"], pool.error, rules=rules, alphas=[0.15], n_calibration=200, splits=4).rows
    by_label = {row.label: row for row in small.main if row.model == "b"}
    for label, row in zip(("Empirical", "UCB-CLP", "certified"), rows, strict=True):
        assert by_label[label].scer == row.scer
        assert by_label[label].acceptance == row.acceptance
        assert by_label[label].violation_rate == row.violation_rate
        assert by_label[label].acceptance_sd == pytest.approx((row.acceptance.se or 0) * 2)  # se = sd / sqrt(4)


def test_a_pools_own_settings_are_used() -> None:
    ids = [i // 2 for i in range(400)]
    own = tables(small_pool(n_calibration=120, groups=ids), n_calibration=200, splits=3).main
    assert {row.n_calibration for row in own} == {120}
    ignoring = tables(small_pool(n_calibration=120), n_calibration=200, splits=3).main
    assert own[0].acceptance != ignoring[0].acceptance  # other splits: whole groups


def row(model: str, scer: float | None, ar: float, se: float) -> TableRow:
    none = Estimate(value=0.0, se=se)
    rate = None if scer is None else Estimate(value=scer, se=se)
    settings: dict[str, Any] = {
        "dataset": "d",
        "label": "m",
        "alpha": 0.15,
        "n_calibration": 10,
        "pools": 1,
        "feasible": 1,
    }
    figures: dict[str, Any] = {"power": None, "violation_rate": none, "infeasible_rate": none}
    spread: dict[str, Any] = {"accuracy": 0.7, "auroc": 0.8, "scer_sd": 0.02, "acceptance_sd": 0.1}
    return TableRow(model=model, scer=rate, acceptance=Estimate(value=ar, se=se), **settings, **figures, **spread)


def test_averages_by_hand() -> None:
    # Two pools of x: AR .2 and .4, mean .3, se = sd / sqrt 2 = .1414 / 1.4142 = .1. One pool of y: AR .5, se .03.
    rows = [row("x", 0.1, 0.2, 0.01), row("y", None, 0.5, 0.03), row("x", 0.2, 0.4, 0.01)]
    x, y = average(rows)
    assert x.scer is not None
    assert (x.model, x.pools) == ("x", 2)
    assert x.scer.value == pytest.approx(0.15)
    assert x.acceptance.value == pytest.approx(0.3)
    assert x.acceptance.se == pytest.approx(0.1)
    assert y == rows[1]
    (both,) = average(rows, over_models=True)
    assert both.scer is not None
    assert (both.model, both.pools) == (None, 3)
    assert both.acceptance.value == pytest.approx(0.4)
    assert both.acceptance.se == pytest.approx(math.sqrt(0.1**2 + 0.03**2) / 2)
    assert both.scer.value == pytest.approx(0.15)  # y accepted nothing and has no error rate


def test_refusals() -> None:
    with pytest.raises(UsageError, match="at least one pool"):
        tables([])
    with pytest.raises(UsageError, match="at least one score"):
        tables(RecordPool("d", "m", [0, 1], {}))
