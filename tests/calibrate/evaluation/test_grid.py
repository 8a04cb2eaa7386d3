"""Grids of evaluations, and rules as text."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.data.records import RecordFile, pooled
from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.grid import evaluate_grid
from calibrate.evaluation.paper import ALPHAS, experiment, rule_with_name
from calibrate.evaluation.populations import Population
from calibrate.evaluation.results import EvaluationGrid, csv_text
from calibrate.scoring.metrics import auroc
from calibrate.scoring.scores import arrays
from calibrate.spec_syntax import parse_rule, rule_text
from guardrail.errors import UsageError

KEYS = ("semantic_entropy", "self_consistency")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("acrc", ("acrc", {})),
        ("acrc:k_min=1", ("acrc", {"k_min": 1})),
        ("acrc:monotone=false,correction=true", ("acrc", {"monotone": False, "correction": True})),
        ("fixed_quantile:q=0.3", ("fixed_quantile", {"q": 0.3})),
        ("x: a = none , b=word", ("x", {"a": None, "b": "word"})),
    ],
)
def test_rules_as_text(text: str, spec: object) -> None:
    assert parse_rule(text) == spec
    if isinstance(spec, tuple):
        assert parse_rule(rule_text(*spec)) == spec


@pytest.mark.parametrize("text", ["acrc:", "acrc:k_min", "acrc:k_min=", "acrc:=1", "acrc:a=1,a=2"])
def test_rules_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="rule 'acrc:"):
        parse_rule(text)


def test_every_cell_is_the_evaluation_of_its_own(labelled: RecordFile) -> None:
    grid = evaluate_grid(labelled, KEYS, rules=["acrc", "lec"], alphas=[0.2], sizes=[80, 120], splits=4)
    assert [(cell.estimator, cell.evaluation.n_calibration) for cell in grid.cells] == [
        (key, size) for key in KEYS for size in (80, 120)
    ]
    pool = arrays(labelled.records, KEYS[1])
    alone = evaluate(
        pool.uncertainty,
        pool.error,
        rules=["acrc", "lec"],
        alphas=[0.2],
        n_calibration=80,
        splits=4,
    )
    assert grid.cells[2].evaluation == alone
    assert alone.auroc is not None
    assert f"{alone.auroc:.3f}" in str(grid)
    assert EvaluationGrid.model_validate_json(grid.model_dump_json()) == grid
    rows = list(csv.DictReader(io.StringIO(csv_text(grid.records()))))
    assert len(rows) == 8
    assert rows[4]["dataset"] == "questions"
    assert float(rows[4]["scer_se"]) == (alone.rows[0].scer.se if alone.rows[0].scer else None)
    assert float(rows[4]["test_aurc"]) == alone.test_aurc.value
    assert "test_aurc_se" in rows[4]


def test_ranking_of_the_test_parts_by_hand() -> None:
    # Two halves of a pool of four; with one item to fit on, three are left to test.
    u, e = [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1]
    evaluation = evaluate(u, e, rules=["lec"], alphas=[0.5], n_calibration=1, splits=200)
    # Without one right answer: u 1|2 3 -> AUROC 1, AURC (0 + 1/2 + 2/3)/3; without one wrong one: (0 + 0 + 1/3)/3.
    assert evaluation.test_auroc is not None
    assert evaluation.test_auroc.value == 1.0
    first_area, second_area = (0 + 1 / 2 + 2 / 3) / 3, (1 / 3) / 3
    share = (evaluation.test_aurc.value - second_area) / (first_area - second_area)
    assert 0.4 < share < 0.6  # about half of the splits leave out a right answer
    assert evaluation.test_aurc.se is not None
    assert (
        0.5 < evaluation.test_aurc.se * 200**0.5 / ((first_area - second_area) / 2) < 1.1
    )  # a coin has half the distance as its sd
    assert evaluation.test_excess_aurc.value == pytest.approx(0.0, abs=1e-12)
    assert evaluation.auroc == auroc(u, e)
    assert evaluation.aurc == (0 + 0 + 1 / 3 + 2 / 4) / 4  # the error rates of the first one, two, three, four


def other_model(file: RecordFile) -> RecordFile:
    model = file.header.model.model_copy(update={"model": "another"})
    return RecordFile(Path("other.jsonl"), file.header.model_copy(update={"model": model}), file.records)


def test_pooling_refuses_what_does_not_belong_together(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match="cannot be one pool") as caught:
        pooled([labelled, other_model(labelled)])
    assert "another" in str(caught.value)
    with pytest.raises(UsageError, match="is in two of the files"):
        pooled([labelled, labelled])
    bare = tuple(r.model_copy(update={"group": None}) for r in labelled.records)
    lonely = RecordFile(labelled.path, labelled.header, bare)
    with pytest.raises(UsageError, match="needs a group"):
        evaluate_grid(lonely, KEYS, rules=["lec"], alphas=[0.2], splits=1, cluster_by_group=True)


def test_one_table_shows_what_differs(labelled: RecordFile) -> None:
    """A reader compares rows; columns that say the same on each row, or differ with the input, hide that."""
    settings: dict[str, Any] = {"rules": ["acrc"], "alphas": [0.2], "splits": 2}
    one = evaluate_grid(labelled, KEYS[:1], **settings)
    table = one.table(("wrong", "given"), errors=False)
    assert (table.heads, table.named, len(table.rows)) == (("rule", "alpha", "wrong", "given"), 1, 1)
    several = evaluate_grid(labelled, KEYS, sizes=[40, 80], **settings)
    table = several.table(("wrong",))
    assert (table.heads, table.named) == (("score", "rule", "AUROC", "n", "alpha", "wrong"), 2)
    assert [(row[0], row[3]) for row in table.rows[-2:]] == [(KEYS[1], "40"), (KEYS[1], "80")]


def test_the_papers_experiments_fit_the_pool() -> None:
    """4,000 questions take the paper's sizes; of 240 an eighth, a quarter and a half are fitted on."""
    assert experiment("sizes", 4000).sizes == [100, 250, 500, 1000, 1500]
    assert experiment("main", 4000).sizes == [1000]
    assert (experiment("sizes", 240).sizes, experiment("main", 240).sizes) == ([30, 60, 120], [120])
    assert experiment("risk-levels", 240).alphas == ALPHAS
    own = experiment("main", 240, alphas=[0.2, 0.3], sizes=[50])
    assert (own.alphas, own.sizes) == ([0.2], [50])
    assert experiment("risk-levels", 240, alphas=[0.2, 0.3]).alphas == [0.2, 0.3]
    assert experiment("scores", 240).every_score
    assert not experiment("ablation", 240).every_score


def test_the_papers_names_stand_beside_those_of_commands() -> None:
    u, e = Population.binormal(0.75, 0.8).draw(np.random.default_rng(1), 400)
    rules = ["acrc", "clopper_pearson", "acrc:monotone=false", "acrc:envelope=true", "certified"]
    rows = evaluate(u, e, rules=rules, alphas=[0.15], n_calibration=200, splits=4).rows
    assert [rule_with_name(row) for row in rows] == [
        "acrc (A-CRC-QA)",
        "clopper_pearson (UCB-CLP)",
        "acrc:monotone=false (Without monotonization)",
        "acrc:envelope=true (Instance-wise envelope)",
        "certified",
    ]
    assert (rows[3].scer, rows[3].acceptance.value, rows[3].infeasible_rate.value) == (None, 0.0, 1.0)
