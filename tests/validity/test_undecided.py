"""Answers that a rule cannot decide: counted as wrong they keep the promise, dropped they break it.

The population is a file of records, so the error rate behind a threshold is exact. The rule leaves most wrong answers
undecided and few right ones, as rules of words do; what it decides, it decides correctly.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.data.record import Record
from calibrate.data.table import RecordTable, table_of
from calibrate.fitting import fit
from calibrate.scoring.scores import arrays
from guardrail.outcome import Feasible
from guardrail.types import Sample, SampleSet, Uncertainty

pytestmark = pytest.mark.slow

ALPHA, DELTA, RUNS, N, FALSE_ALARM = 0.1, 0.1, 100, 800, 1e-4
SIZE = 4000
Population = tuple[RecordTable, NDArray[np.bool_]]
DRAWN = SampleSet(question="?", primary=Sample(text="an answer"))


@pytest.fixture(scope="module")
def population() -> Population:
    """Records, and which of their answers are truly wrong."""
    rng = np.random.default_rng(3)
    u = (np.arange(SIZE) + 0.5) / SIZE
    wrong = rng.random(SIZE) < 0.02 + 0.3 * u
    undecided = np.where(wrong, rng.random(SIZE) < 0.7, rng.random(SIZE) < 0.01)
    records = table_of(
        [
            Record(
                id=str(i),
                question="?",
                references=("a reference",),
                drawn=DRAWN,
                scores={"score": Uncertainty(value=u[i], unit="nats", estimator="score")},
                correct=None if undecided[i] else not wrong[i],
                label_detail="no sentence states a reference" if undecided[i] else "",
            )
            for i in range(SIZE)
        ]
    )
    return records, wrong


@pytest.mark.slow
@pytest.mark.parametrize("drops", [False, True], ids=["counted as wrong", "dropped"])
def test_undecided_answers_keep_the_promise_only_if_they_count_as_wrong(population: Population, drops: bool) -> None:
    records, wrong = population
    rng = np.random.default_rng(4)
    rate_up_to = np.cumsum(wrong) / np.arange(1, SIZE + 1)
    pool = records.take(records.labels() >= 0) if drops else records
    places = np.flatnonzero(records.labels() >= 0) if drops else np.arange(SIZE)
    failed = feasible = 0
    for _ in range(RUNS):
        scored = arrays(pool.take(rng.integers(len(places), size=N)), "score")
        outcome = fit(scored.uncertainty, scored.error, alpha=ALPHA, rule="certified", delta=DELTA)
        if isinstance(outcome, Feasible):
            feasible += 1
            failed += bool(rate_up_to[int(outcome.threshold * SIZE)] > ALPHA)
    limit = stats.binom.isf(FALSE_ALARM, RUNS, DELTA)
    assert feasible > RUNS / 2
    assert bool(failed > limit) is drops  # dropped is the negative control
