"""The paper's five tables and figure in form, from pools of scores and errors and from record files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.data.records import RecordFile
from calibrate.evaluation.evaluate import Estimate, evaluate
from calibrate.evaluation.grid import sources
from calibrate.evaluation.planning import Binormal
from calibrate.report.paper import (
    FIGURE,
    TABLES,
    PaperPool,
    PaperRow,
    PaperTables,
    average,
    paper_pool,
    paper_tables,
    rule_of,
)
from guardrail.errors import UsageError


def small_pool(model: str = "a", seed: int = 1, **settings: Any) -> PaperPool:
    u, e = Binormal(0.75, 0.8).draw(np.random.default_rng(seed), 400)
    return PaperPool("toy", model, e, {"first": u, "second": np.round(u, 1)}, **settings)


@pytest.fixture(scope="module")
def small() -> PaperTables:
    return paper_tables([small_pool("a"), small_pool("b", 2)], splits=4, sizes=(100, 300))


def test_tables_in_form(small: PaperTables) -> None:
    assert [(row.model, row.label) for row in small.rows["main"][:8]] == [
        ("a", "Fixed-50"),
        ("a", "Empirical"),
        ("a", "UCB-HFD"),
        ("a", "UCB-CLP"),
        ("a", "LEC-Direct"),
        ("a", "A-CRC-QA"),
        ("a", "certified"),
        ("b", "Fixed-50"),
    ]
    assert [(row.model, row.label) for row in small.rows["risk-levels"]] == [
        (None, label) for label in ("0.05", "0.10", "0.15", "0.20", "0.25")
    ]
    assert [(row.model, row.label) for row in small.rows["scores"]] == [
        (model, name) for model in "ab" for name in ("first", "second")
    ]
    assert [row.label for row in small.rows["sizes"]] == ["100", "300"]
    assert [row.n_calibration for row in small.rows["sizes"]] == [100, 300]
    assert [row.label for row in small.rows["ablation"]][-1] == "Full A-CRC-QA"
    envelope = next(row for row in small.rows["ablation"] if row.label == "Instance-wise envelope")
    assert (envelope.scer, envelope.acceptance.value, envelope.infeasible_rate.value) == (None, 0.0, 1.0)
    assert PaperTables.model_validate_json(small.model_dump_json()) == small


def test_a_row_is_the_evaluation_of_its_pool(small: PaperTables) -> None:
    pool = small_pool("b", 2)
    rules: list[Any] = ["empirical", ("clopper_pearson", {"delta": 0.05}), ("certified", {"delta": 0.05})]
    rows = evaluate(pool.uncertainty["first"], pool.error, rules=rules, alphas=[0.15], n_calibration=200, splits=4).rows
    by_label = {row.label: row for row in small.rows["main"] if row.model == "b"}
    for label, row in zip(("Empirical", "UCB-CLP", "certified"), rows, strict=True):
        assert by_label[label].scer == row.scer
        assert by_label[label].acceptance == row.acceptance
        assert by_label[label].violation_rate == row.violation_rate
        assert by_label[label].acceptance_sd == pytest.approx((row.acceptance.se or 0) * 2)  # se = sd / sqrt(4)


def test_whole_groups_are_kept_on_one_side() -> None:
    grouped = paper_tables([small_pool(groups=[i // 2 for i in range(400)])], ["main"], splits=3).rows["main"]
    assert grouped[0].acceptance != paper_tables([small_pool()], ["main"], splits=3).rows["main"][0].acceptance


def row(model: str, scer: float | None, ar: float, se: float) -> PaperRow:
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
    return PaperRow(model=model, scer=rate, acceptance=Estimate(value=ar, se=se), **settings, **figures, **spread)


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
        paper_tables([])
    with pytest.raises(UsageError, match="at least one score"):
        paper_tables([PaperPool("d", "m", [0, 1], {})])


def test_the_papers_names_stand_beside_those_of_commands() -> None:
    assert rule_of("A-CRC-QA") == "acrc (A-CRC-QA)"
    assert rule_of("UCB-CLP") == "clopper_pearson (UCB-CLP)"
    assert rule_of("Without monotonization") == "acrc:monotone=false (Without monotonization)"
    assert rule_of("certified") == "certified"


def test_tables_of_record_files(labelled: RecordFile) -> None:
    model = labelled.header.model.model_copy(update={"model": "another"})
    other = RecordFile(Path("other.jsonl"), labelled.header.model_copy(update={"model": model}), labelled.records)
    keys = ("semantic_entropy", "self_consistency")
    pools = [paper_pool(source, keys) for source in sources([labelled, other], apart=True)]
    with pytest.raises(UsageError, match="no 'max_softmax' scores"):
        paper_pool(sources([labelled], apart=False)[0], ["max_softmax"])
    paper = paper_tables(pools, [*TABLES, FIGURE], splits=3)
    assert [row.label for row in paper.rows["scores"]] == [*keys, *keys]
    assert [row.n_calibration for row in paper.rows["sizes"]] == [30, 60, 120]  # too few items for the paper's sizes
    assert len(paper.rows[FIGURE]) == 5 * 7
    for name in TABLES:
        heads, cells = paper.printed(name)
        assert {len(line) for line in cells} == {len(heads)}
        assert str(paper.alpha) in paper.title(name) or name == "risk-levels"
        assert all({"scer", "scer_se", "acceptance_se", "violation_rate_se"} <= set(row) for row in paper.flat(name))
    same = paper.rows["main"][5].acceptance
    assert f"{100 * same.value:.1f}±{100 * (same.se or 0):.1f}" in paper.printed("main")[1][5]
    assert paper.figure().png.startswith(b"\x89PNG")
    own = paper_tables(pools[:1], alphas=[0.2, 0.3], sizes=[50, 70], splits=2)
    assert [row.alpha for row in own.rows["risk-levels"]] == [0.2, 0.3]
    assert [row.n_calibration for row in own.rows["sizes"]] == [50, 70]
    assert {row.alpha for row in own.rows["main"]} == {0.2}
    assert FIGURE not in own.rows
