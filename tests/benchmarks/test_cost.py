"""The table of calls and acceptance: splits, two stages and their calls, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import cost
from calibrate.data.records import Record
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.ensemble import Training
from guardrail.uncertainty.two_stage import TwoStageParams


def test_a_score_that_knows_is_certified_and_one_that_does_not_is_not() -> None:
    rng = np.random.default_rng(0)
    error = (np.arange(1_000) >= 600).astype(np.int64)  # 40 % wrong
    scores = [cost.Score("knows", 1, np.arange(1_000.0)), cost.Score("guesses", 11, rng.random(1_000))]
    rows = cost.certified(cost.Pool("p", error, scores), 300, (0.1,), splits=10)
    # At most 10 % wrong among the accepted: 600 / .9 = 666 of 1,000; the certificate stays below that.
    knows = rows["knows", 0.1]
    assert 0.58 < knows.accepted < 0.667
    assert (knows.infeasible, knows.violated, knows.calls) == (0, 0, 1)
    assert rows["guesses", 0.1].accepted < 0.02
    assert rows["guesses", 0.1].infeasible > 0.8


def test_two_stages_are_ordered_as_by_the_estimator_and_a_failed_sample_disagrees() -> None:
    rng = np.random.default_rng(1)
    cheap, second = rng.random(700), rng.choice([0.0, 0.5, 1.0, np.nan], size=700)
    cheap[5] = np.nan
    score = cost.Score("staged", 1, cheap, second=second, weight=0.2, more=2)
    scale = np.arange(400, 700)
    u, place = cost._ordered(score, scale)
    none = Training(ids=(), questions=())
    specs = (make_estimator("sequence_nll").spec, make_estimator("primary_disagreement").spec)
    params = TwoStageParams(
        weight=0.2, scale=tuple(np.sort(cheap[scale]).tolist()), cheap=specs[0], second=specs[1], training=none
    )
    for i in range(400):
        if i == 5:
            assert math.isnan(u[i])
            continue
        assert place[i] == params.place(cheap[i])
        assert u[i] == params.order(cheap[i], 1.0 if math.isnan(second[i]) else second[i])


def test_calls_of_two_stages_count_the_questions_that_the_first_leaves_open() -> None:
    error = np.zeros(1_000, dtype=np.int64)
    error[900:] = 1
    # Nobody disagrees, so u = F0(c), and the certificate accepts the right 900 and some more.
    score = cost.Score("staged", 1, np.arange(1_000.0), second=np.zeros(1_000), weight=0.2, more=2)
    row = cost.certified(cost.Pool("p", error, [score]), 300, (0.05,), splits=5)["staged", 0.05]
    assert 0.85 < row.accepted < 0.95
    assert row.calls == pytest.approx(1 + 2 * 0.2, abs=0.05)  # w = .2 of the questions draw two samples


def test_scores_read_as_many_samples_as_they_pay_for() -> None:
    def record(i: int) -> Record:
        def answer(text: str) -> Sample:
            return Sample(text=text, tokens=(text,), logprobs=(-0.5,))

        samples = tuple(answer("Oslo" if j < i else "Rome") for j in range(10))
        return Record(
            id=f"{i}", question="Where?", drawn=SampleSet(question="Where?", primary=answer("Oslo"), samples=samples)
        )

    scores = {each.name: each for each in cost.scores_of([record(i) for i in range(11)], SamplingPlan(logprobs=True))}
    assert scores["sequence_nll"].values.tolist() == [0.5] * 11
    assert (scores["sequence_nll"].calls, scores["sequence_nll"].tokens) == (1, 1)
    assert (scores["semantic_entropy"].calls, scores["semantic_entropy"].tokens) == (11, 11)
    # (k + d) / (n + 1) with d = k / n here: of two samples 2 - i differ while i < 2
    assert scores["graded_disagreement, n = 2"].values.tolist()[:3] == pytest.approx([1, 1.5 / 3, 0])
    staged = scores["two stages, sequence_nll"]
    assert staged.second is not None
    assert staged.second.tolist()[:3] == [1, 0.5, 0]
