"""Answers that a rule cannot decide: counted as wrong they keep the promise, dropped they break it.

The population is a file of records, so the error rate behind a threshold is exact. The rule leaves most wrong answers
undecided and few right ones, as rules of words do; what it decides, it decides correctly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

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


# -- deciding them in order, with skips and ties, until enough is certified


GRID = 12
"""Distinct scores: every threshold is a tie of many questions."""
Decide = Callable[[bool, np.random.Generator], bool]
"""Whether a person decides an answer, which may depend on whether it is wrong; otherwise it is skipped."""
PEOPLE: dict[str, Decide] = {
    "decides all": lambda wrong, rng: True,
    "skips every other one": lambda wrong, rng: rng.random() < 0.5,
    "skips what is wrong": lambda wrong, rng: not wrong,
    "skips what is right": lambda wrong, rng: wrong,
}
ORDERS: dict[str, Callable[[NDArray[np.bool_]], NDArray[np.float64]]] = {
    "as in the file": lambda wrong: np.zeros(len(wrong)),
    "right ones first among ties": lambda wrong: wrong.astype(float),
    "wrong ones first among ties": lambda wrong: -wrong.astype(float),
}


def certified(u: NDArray[np.float64], error: NDArray[np.int64]) -> tuple[float, float]:
    """Threshold and accepted share; -1 and 0 without a threshold."""
    outcome = fit(u, error, alpha=ALPHA, rule="certified", delta=DELTA)
    return (outcome.threshold, float(np.mean(u <= outcome.threshold))) if isinstance(outcome, Feasible) else (-1.0, 0.0)


@dataclass(frozen=True)
class Session:
    """A session of deciding: the thresholds after each decision, up to the one at which it stops."""

    thresholds: list[float]
    certified_share: float
    left_out: float
    """Threshold if skipped answers, and those behind the stop, are left out instead of counting as wrong."""


def session(person: Decide, order: str, goal: float, rng: np.random.Generator, n: int = 300) -> tuple[Session, float]:
    """Decide undecided answers, most certain first, until the goal is certified; also the threshold of all labels."""
    u = np.ceil(rng.random(n) * GRID) / GRID
    wrong = rng.random(n) < 0.01 + 0.3 * u
    undecided = np.where(wrong, rng.random(n) < 0.7, rng.random(n) < 0.3)
    error = np.where(undecided, 1, wrong).astype(np.int64)
    counted = ~undecided
    queue = np.flatnonzero(undecided)
    threshold, share = certified(u, error)
    thresholds = [threshold]
    for place in queue[np.lexsort((ORDERS[order](wrong)[queue], u[queue]))]:
        if share >= goal:
            break
        if person(bool(wrong[place]), rng):
            error[place], counted[place] = wrong[place], True
            if not wrong[place]:
                threshold, share = certified(u, error)
            thresholds.append(threshold)
    left_out, _ = certified(u[counted], error[counted])
    return Session(thresholds, share, left_out), certified(u, wrong.astype(np.int64))[0]


def rate(threshold: float) -> float:
    """The exact error rate among the answers up to a threshold."""
    levels = np.arange(1, round(threshold * GRID) + 1) / GRID
    return float(np.mean(0.01 + 0.3 * levels)) if len(levels) else 0.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("who", PEOPLE)
def test_whatever_a_person_skips_the_threshold_only_grows_up_to_that_of_all_labels(who: str, order: str) -> None:
    rng = np.random.default_rng(7)
    for goal in (0.2, 0.5, 1.0):
        decided, whole = session(PEOPLE[who], order, goal, rng)
        assert decided.thresholds == sorted(decided.thresholds)
        assert decided.thresholds[-1] <= whole


def test_stopping_when_enough_is_certified_keeps_the_promise_and_leaving_skipped_answers_out_breaks_it() -> None:
    rng = np.random.default_rng(8)
    failed: Counter[str] = Counter()
    for _ in range(40):
        decided, _ = session(PEOPLE["skips what is wrong"], "right ones first among ties", 0.4, rng, 600)
        failed["counted as wrong"] += rate(decided.thresholds[-1]) > ALPHA
        failed["left out"] += rate(decided.left_out) > ALPHA  # the negative control
        failed["certified"] += decided.certified_share > 0
    limit = stats.binom.isf(FALSE_ALARM, 40, DELTA)
    assert failed["certified"] > 20
    assert failed["counted as wrong"] <= limit < failed["left out"]
