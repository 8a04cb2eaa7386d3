"""Acceptance beside calls: one fit, two stages, what draws support, and the part that no fit uses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from calibrate import collect_records, make_rule, read_records
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordFile
from calibrate.evaluation import calls
from calibrate.evaluation.calls import (
    Score,
    calls_beside_fit,
    calls_of_part,
    certified_once,
    contradiction,
    ordered,
)
from calibrate.fitting import Target
from calibrate.scoring.scores import score_records
from guardrail.errors import UsageError
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.combine import then_order
from tests.combinations import ranks_of


def test_two_stages_are_ordered_as_by_the_estimator_and_a_failed_sample_disagrees() -> None:
    rng = np.random.default_rng(1)
    cheap, second = rng.random(700), rng.choice([0.0, 0.5, 1.0, np.nan], size=700)
    cheap[5] = np.nan
    score = Score("staged", 1, cheap, second=second, weight=0.2, more=2)
    scale = cheap[400:]
    u, place = ordered(score, scale)
    ranks = ranks_of(scale)
    for i in range(400):
        if i == 5:
            assert math.isnan(u[i])
            continue
        assert place[i] == ranks.place(0, cheap[i])
        assert u[i] == then_order(ranks, 0.2, cheap[i], 1.0 if math.isnan(second[i]) else second[i])


def test_one_fit_reads_its_labels_alone() -> None:
    error = np.r_[np.zeros(200), np.ones(200)].astype(np.int64)
    score = Score("s", 3, np.arange(400.0))
    target = Target.of("certified", alpha=0.1, delta=0.1)
    fitted = np.arange(0, 400, 2)
    accepted, spent = certified_once(score, ordered(score, np.empty(0)), error, fitted, target)
    assert 0.4 < accepted.mean() < 0.6
    assert spent == 3
    turned = np.where(np.isin(np.arange(400), fitted), error, 1 - error)  # other labels outside the fit
    again, _ = certified_once(score, ordered(score, np.empty(0)), turned, fitted, target)
    assert (again == accepted).all()
    nothing, spent = certified_once(score, ordered(score, np.empty(0)), np.ones_like(error), fitted, target)
    assert not nothing.any()
    assert spent == 3


def test_contradiction_is_large_where_samples_tell_and_small_where_they_do_not() -> None:
    rng = np.random.default_rng(2)
    place, error = rng.random(2_000), (rng.random(2_000) < 0.4).astype(np.int64)
    told = np.where(rng.random(2_000) < 0.3, error, rng.random(2_000))
    assert contradiction(place, told, error) > 5
    assert abs(contradiction(place, rng.random(2_000), error)) < 3
    # Samples that only repeat what the first call says, between strata: nothing within them.
    steps = (np.floor(place * 5) + 0.5) / 5
    assert contradiction(steps, steps, error) == pytest.approx(0, abs=1e-6)


def record(i: int) -> Record:
    """Wrong answers have twice the nll, and samples that contradict them."""
    wrong = i % 3 == 0

    def answer(text: str) -> Sample:
        return Sample(text=text, tokens=(text,), logprobs=(-(1.0 + wrong + (i % 7) / 100),))

    samples = tuple(answer("Rome" if wrong and j < 5 else "Oslo") for j in range(10))
    drawn = SampleSet(question=f"{i}?", primary=answer("Oslo"), samples=samples)
    return Record(id=f"id{i}", question=f"{i}?", references=("Oslo",), drawn=drawn, correct=not wrong)


@pytest.fixture
def file(tmp_path: Path) -> RecordFile:
    plan, path = SamplingPlan(n=10, logprobs=True), tmp_path / "one.jsonl"
    model = ScriptedChat(default=["a", "b"], probability=0.5)
    collect_records(
        [Question(id="1", question="1?", references=("1",))], model, plan, path, allow_identical_samples=True
    )
    header = read_records(path).header.model_copy(update={"correctness": make_rule("exact").spec})
    return RecordFile(path, header, tuple(record(i) for i in range(1_200)), False)


def test_the_table_comes_from_a_part_that_the_fit_does_not_use(file: RecordFile) -> None:
    result = calls_beside_fit(file, alphas=(0.1, 0.2))
    assert result is not None
    table, rest = result
    used = {each.id for each in rest}
    assert table.n + len(used) == 1_200
    assert table.n_fit == len(used)
    # No label of the rest is read: turned around, the table is the same.
    turned = tuple(
        each.model_copy(update={"correct": not each.correct}) if each.id in used else each for each in file.records
    )
    other = calls_beside_fit(RecordFile(file.path, file.header, turned, False), alphas=(0.1, 0.2))
    assert other is not None
    assert other[0] == table
    # And labels of the part are: turned around there, it is not.
    wrong = tuple(
        each if each.id in used else each.model_copy(update={"correct": not each.correct}) for each in file.records
    )
    changed = calls_beside_fit(RecordFile(file.path, file.header, wrong, False), alphas=(0.1, 0.2))
    assert changed is not None
    assert changed[0] != table


def test_every_score_that_the_draws_support_has_a_row(file: RecordFile) -> None:
    result = calls_beside_fit(file, alphas=(0.1,))
    assert result is not None
    rows = {row.score: row for row in result[0].rows}
    assert set(rows) == {
        "answer_word_nll", "sequence_nll", "two stages, answer_word_nll", "semantic_entropy",
        "graded_disagreement, n = 2", "graded_disagreement, n = 10",
    }  # fmt: skip
    assert (rows["sequence_nll"].calls, rows["semantic_entropy"].calls) == (1, 11)
    # A third is wrong and every wrong answer has the higher nll: 2/3 are right, 2/3 / .9 may be answered.
    assert 0.66 <= rows["sequence_nll"].answered[0] < 0.75
    assert str(result[0]).count("\n") >= len(rows)


def test_scores_on_file_are_read(file: RecordFile) -> None:
    scored = score_records(file, [make_estimator("self_consistency")])
    result = calls_beside_fit(scored, alphas=(0.1,))
    assert result is not None
    assert ("self_consistency", 11) in {(row.score, row.calls) for row in result[0].rows}


@pytest.mark.parametrize("part_drawn", [False, True])
def test_without_all_draws_only_scores_on_file_have_a_row(file: RecordFile, part_drawn: bool) -> None:
    """Of a plan with options, or where a draw is missing, no score is made from the draws."""
    scored = score_records(file, [make_estimator("self_consistency")])
    header, records = scored.header, tuple(scored.records)
    if part_drawn:
        records = tuple(each.model_copy(update={"drawn": None}) if i % 2 else each for i, each in enumerate(records))
    else:
        plan = header.plan.model_copy(update={"options": ("A", "B")})
        header = header.model_copy(update={"plan": plan})
    result = calls_of_part(records[:600], records[600:], header, alphas=(0.1,), n_fit=300)
    assert [row.score for row in result.rows] == ["self_consistency"]


def test_few_labels_make_no_table(file: RecordFile) -> None:
    with pytest.raises(UsageError, match=str(calls.FEWEST)):
        calls_of_part(file.records[:50], file.records[50:], file.header, alphas=(0.1,), n_fit=300)
    assert calls_beside_fit(RecordFile(file.path, file.header, file.records[:150], False), alphas=(0.1,)) is None
