"""A new threshold rule or correctness rule, added as CONTRIBUTING.md says: the rule and one row of a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike

from calibrate import evaluate, fit, label_records, make_rule, plan
from calibrate.correctness import CorrectnessRule, Label, available_rules
from calibrate.correctness.registry import RULES as CORRECTNESS
from calibrate.data.questions import Question
from calibrate.data.records import RecordFile, read_records
from calibrate.evaluation.audit import audit
from calibrate.pipeline import fit_artifact
from calibrate.report import compare_rules
from calibrate.report.content import rule_table
from calibrate.rules import RULES, Result, Rule
from calibrate.rules.counts import counts
from guardrail.describe import guarantee
from guardrail.errors import UsageError
from guardrail.outcome import Feasible
from guardrail.specs import CorrectnessSpec
from guardrail.types import Sample, SampleSet, ToolCall
from tests.calibrate.commands import run

KEY = "discrete_semantic_entropy"


def first_block_of(u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1) -> Result:
    """Accept the most certain block of equal scores, and call that a certificate."""
    return counts(u, wrong).at(0)


FIRST_BLOCK = Rule("first_block", first_block_of, "none, honestly", certifies=True, uses_delta=True)


class Shouted(CorrectnessRule):
    """Right iff the answer is in capitals; reads tool calls as JSON."""

    reads_tool_calls = True
    spec = CorrectnessSpec(name="shouted", version=1, params={})

    def label(self, answer: str, question: Question) -> Label:
        """No reference is read."""
        return Label(answer.isupper())


@pytest.fixture
def first_block(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(RULES, FIRST_BLOCK.name, FIRST_BLOCK)
    return FIRST_BLOCK.name


@pytest.fixture
def shouted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(CORRECTNESS, "shouted", Shouted)
    return "shouted"


def test_a_new_rule_fits_and_is_evaluated(first_block: str) -> None:
    result = fit([0.1, 0.1, 0.5], [0, 1, 1], alpha=0.2, rule=first_block)
    assert isinstance(result, Feasible)
    assert (result.threshold, result.n_accepted, result.delta) == (0.1, 2, 0.1)
    assert guarantee(result).startswith("With probability at least 90 % over calibrations the error rate")
    rng = np.random.default_rng(0)
    table = evaluate(rng.random(60), rng.integers(0, 2, 60), rules=[first_block], alphas=[0.2], n_calibration=30)
    assert [(row.rule, row.delta, row.infeasible_rate.value < 1) for row in table.rows] == [(first_block, 0.1, True)]
    planned = plan(0.2, accuracy=0.7, auroc=0.8, rules=[first_block], sizes=[50], repetitions=2)
    assert [row.rule for row in planned.rows] == [first_block]


def test_a_new_rule_is_compared_in_the_report(first_block: str, labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    compared = compare_rules(artifact, labelled.records, KEY, splits=2)
    promised = {name: promise for name, *_, promise in rule_table(compared, artifact).rows}
    assert promised[first_block] == "none, honestly, 90 % sure"
    assert promised["acrc"] == "in the limit, on average"


def test_what_a_new_rule_states_decides_what_an_audit_says(first_block: str, labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.01, rule=first_block)
    wrong = [
        record.model_copy(update={"question": f"new {record.question}", "correct": False})
        for record in labelled.records
    ]
    result = audit(artifact, wrong, KEY)
    assert (result.verdict, result.population) == ("refuted", "accepted")
    assert "A certificate fails for a share delta of calibrations" in result.findings[1]


def test_a_new_rule_is_on_the_command_line(first_block: str, records_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    run("fit", records_path, "--score", KEY, "--alpha", "0.2", "--rule", first_block, "--out", out)
    assert json.loads(out.read_text())["outcome"]["rule"] == first_block
    assert first_block in run("evaluate", records_path, "-s", KEY, "-a", "0.2", "--rule", first_block, "--splits", "2")
    guess = ("--accuracy", "0.7", "--auroc", "0.8")
    sizes = ("--rule", first_block, "--n", "50", "--repetitions", "2")
    assert first_block in run("plan", "--alpha", "0.2", *guess, *sizes)


def test_a_rule_of_ones_own_is_passed_as_an_object(labelled: RecordFile) -> None:
    mine = FIRST_BLOCK
    result = fit([0.1, 0.1, 0.5], [0, 1, 1], alpha=0.2, rule=mine)
    assert isinstance(result, Feasible)
    assert (result.rule, result.threshold, result.delta) == ("first_block", 0.1, 0.1)
    rng = np.random.default_rng(0)
    items: dict[str, Any] = {"uncertainty": rng.random(60), "error": rng.integers(0, 2, 60)}
    table = evaluate(**items, rules=[mine, "acrc"], alphas=[0.2], n_calibration=30, splits=3, delta=0.3)
    assert [(row.rule, row.delta) for row in table.rows] == [("first_block", 0.3), ("acrc", None)]
    artifact = fit_artifact(labelled, score=KEY, alpha=0.2, rule=mine)
    assert artifact.outcome.rule == "first_block"
    assert {promise for name, *_, promise in rule_table(table, artifact).rows if name == "first_block"} == {
        "rule of your own"
    }


def test_what_a_rule_of_ones_own_cannot_be(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match="'acrc' is the name of another rule"):
        fit([0.1], [0], alpha=0.2, rule=replace(FIRST_BLOCK, name="acrc"))
    with pytest.raises(UsageError, match=r"unknown rule <function .*as an object: calibrate\.Rule"):
        fit([0.1], [0], alpha=0.2, rule=cast(Any, first_block_of))
    with pytest.raises(UsageError, match=r"unknown rule 'first_block'.*Pass a rule of your own as an object"):
        fit_artifact(labelled, score=KEY, alpha=0.2, rule="first_block")


def test_a_new_correctness_rule_labels_and_states_what_it_reads(shouted: str, records_path: Path) -> None:
    assert shouted in available_rules()
    rule = make_rule(shouted)
    record = read_records(records_path).records[0]
    loud, call = Sample(text="YES"), Sample(text="YES", tool_calls=(ToolCall(name="pay", arguments={}),))
    drawn = [SampleSet(question="?", primary=primary, samples=()) for primary in (loud, call)]
    labelled = label_records([record.model_copy(update={"drawn": each}) for each in drawn], rule)
    assert [each.correct for each in labelled] == [True, False]  # of the second it reads the call, in small letters
    assert "Rule shouted: " in run("label", records_path, "--rule", shouted)
    assert read_records(records_path).header.correctness == rule.spec
