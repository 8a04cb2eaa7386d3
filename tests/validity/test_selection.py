"""Several fits on the same labels: counted and paid for they keep the stated confidence; in silence they break it."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.data.records import Record
from calibrate.data.split import Repeats, one_per_question
from calibrate.data.table import table_of
from calibrate.evaluation.promise_test import RateTest
from calibrate.fitting import fit
from calibrate.judging import GateCounts
from calibrate.prediction_powered import fit_prediction_powered, group_unlike_sample, selection_p
from calibrate.reviews import ReviewedItem, learn
from calibrate.scope import SELECTED
from guardrail.outcome import Feasible
from tests.calibrate.reviewing import ARTIFACT, pool_of, simulated

pytestmark = pytest.mark.slow

ALPHA = DELTA = 0.1
FALSE_ALARM = 1e-4
"""Chance that a test fails although the promise holds exactly at its limit."""
RUNS, N = 500, 150
"""Simulated calibrations, and labels of each."""


def limit(delta: float) -> float:
    """Return the most failures that a promise at delta passes with."""
    return float(stats.binom.ppf(1 - FALSE_ALARM, RUNS, delta))


# -- questions that are in a file several times ------------------------------------------------------------------------


def false_of_repeated(n_questions: int, times: int, repeats: Repeats) -> int:
    """Count false certificates where each question is in the file several times, and right or wrong each time."""
    records = [Record(id=f"{i}-{k}", question=f"Question {i}? ") for i in range(n_questions) for k in range(times)]
    used = one_per_question(records) if repeats == "once" else table_of(records)
    place = {record.id: i for i, record in enumerate(records)}
    kept = [place[name] for name in used.ids]
    rng, failed = np.random.default_rng(20262), 0
    for _ in range(RUNS):
        error = np.repeat((rng.random(n_questions) < ALPHA).astype(np.int64), times)
        u = np.repeat(rng.random(n_questions), times) + 1e-9 * rng.random(n_questions * times)
        outcome = fit(u[kept], error[kept], alpha=ALPHA, delta=DELTA, rule="certified")
        failed += isinstance(outcome, Feasible)
    return failed


@pytest.mark.parametrize(("n_questions", "times"), [(60, 5), (150, 2)])
def test_a_repeated_question_counts_once(n_questions: int, times: int) -> None:
    assert false_of_repeated(n_questions, times, "once") <= limit(DELTA)


@pytest.mark.parametrize(("n_questions", "times"), [(60, 5), (150, 2)])
def test_negative_control_a_repeated_question_counts_each_time(n_questions: int, times: int) -> None:
    assert false_of_repeated(n_questions, times, "all") > 1.2 * limit(DELTA)


# -- people's labels on answers that the judge's labels chose ----------------------------------------------------------

Labels = NDArray[np.bool_]


def judged(rng: np.random.Generator, *, chosen: bool) -> tuple[NDArray[np.float64], Labels, Labels, Labels]:
    """Return scores, errors by people (28.6 %), by the judge, and which of 2,000 answers people labelled.

    Chosen: people labelled only answers that the judge calls right.
    """
    n = 2_000
    wrong = rng.random(n) < 0.286
    judge = np.where(wrong, rng.random(n) < 0.8, rng.random(n) < 0.05)
    weight = np.where(judge, 0.0, 0.3) if chosen else np.full(n, 0.2)
    return np.zeros(n), wrong, judge, rng.random(n) < weight  # one score, so that all are accepted or none


def refused_and_certified(*, chosen: bool, runs: int) -> tuple[int, int]:
    """Count samples of people that are refused, and those whose threshold for alpha = .15 is above the target."""
    rng, refused, certified = np.random.default_rng(20263), 0, 0
    for _ in range(runs):
        u, wrong, judge, sampled = judged(rng, chosen=chosen)
        refused += selection_p(judge, sampled) < SELECTED
        people = [int(error) if looked else None for error, looked in zip(wrong, sampled, strict=True)]
        outcome = fit_prediction_powered(u, judge.astype(int), people, alpha=0.15)
        certified += isinstance(outcome, Feasible)
    return refused, certified


def test_labels_of_people_that_the_judge_chose_are_refused() -> None:
    refused, certified = refused_and_certified(chosen=True, runs=60)
    assert certified > 45  # what the refusal is good for: 28.6 % are wrong, and 15 % is shown
    assert refused == 60


def test_negative_control_a_random_sample_is_refused_once_in_a_thousand() -> None:
    refused, certified = refused_and_certified(chosen=False, runs=200)
    assert refused <= stats.binom.ppf(1 - FALSE_ALARM, 200, SELECTED)
    assert certified == 0


@pytest.mark.parametrize("chosen", [True, False])
def test_labels_of_people_that_leave_out_the_group_where_the_judge_errs_are_refused(chosen: bool) -> None:
    """The judge calls as many answers wrong there, so that its labels tell nothing: 25 % are wrong, people see 10 %."""
    rng, by_group, by_judge, runs = np.random.default_rng(20264), 0, 0, 40
    for _ in range(runs):
        n = 800
        group = rng.random(n) < 0.3
        judge = rng.random(n) < 0.1
        sampled = rng.random(n) < (np.where(group, 0.0, 0.3) if chosen else np.full(n, 0.2))
        names = np.where(group, "medicine", "geography").tolist()
        by_judge += selection_p(judge, sampled) < SELECTED
        by_group += group_unlike_sample(names, sampled) is not None
    assert by_judge <= 1  # the test of the judge's labels alone would let it pass
    assert by_group == (runs if chosen else 0)


# -- an audit that is repeated while labels come in --------------------------------------------------------------------

LEVEL, AUDITS = 0.05, 20


def ever(*, anytime: bool, runs: int = 2_000) -> tuple[float, float]:
    """Return the shares of gates at exactly alpha that twenty audits, one after every 50 labels, ever refute, "
    "support."""
    rng, step = np.random.default_rng(20264), 50
    found: dict[tuple[int, int], str] = {}
    refuted = supported = 0
    for _ in range(runs):
        errors = np.cumsum(rng.random(AUDITS * step) < ALPHA)[step - 1 :: step]
        verdicts = set()
        for n, wrong in zip(range(step, AUDITS * step + 1, step), errors.tolist(), strict=True):
            if (n, wrong) not in found:
                found[n, wrong] = RateTest.of(wrong, n, ALPHA, LEVEL, anytime=anytime).verdict
            verdicts.add(found[n, wrong])
        refuted, supported = refuted + ("refuted" in verdicts), supported + ("supported" in verdicts)
    return refuted / runs, supported / runs


def test_an_anytime_audit_may_be_repeated() -> None:
    assert max(ever(anytime=True)) <= stats.binom.ppf(1 - FALSE_ALARM, 2_000, LEVEL) / 2_000


def test_negative_control_an_audit_for_one_look_is_repeated() -> None:
    assert min(ever(anytime=False)) > 0.1


def test_an_anytime_audit_decides_in_both_directions() -> None:
    assert RateTest.of(2, 200, ALPHA, LEVEL, anytime=True).verdict == "supported"
    assert RateTest.of(40, 200, ALPHA, LEVEL, anytime=True).verdict == "refuted"
    open_yet = RateTest.of(3, 60, ALPHA, LEVEL, anytime=True)
    assert open_yet.verdict == "undecided"
    assert open_yet.needed is not None
    n = 60 + open_yet.needed
    assert RateTest.of(round(0.05 * n), n, ALPHA, LEVEL, anytime=True).verdict == "supported"


# -- the second turn of learning from reviews --------------------------------------------------------------------------


def reviewed(rng: np.random.Generator, n: int) -> tuple[ReviewedItem, ...]:
    """Return decided items: scores say nothing, and 15 % of the answers are wrong."""
    names = [f"{rng.integers(2**60)}" for _ in range(n)]
    items = [simulated(name, float(rng.random()), bool(rng.random() >= 0.15), 1.0) for name in names]
    return tuple(replace(item, question=f"Question {item.id}?") for item in items)


def rates_of_the_gate_in_force(runs: int = 40) -> tuple[float, float, int]:
    """Return its error rate on the test part of the second turn, on the items of its fit, and answers in the test part.

    Another seed cuts the second turn, so that items of the first fit would be drawn for the test.
    """
    rng = np.random.default_rng(20266)
    tested, fitted = np.zeros(2), np.zeros(2)
    for _ in range(runs):
        items = reviewed(rng, 40)
        first = learn(pool_of(*items), ARTIFACT, name="reviews", seed=0)
        gate = first.artifact
        if gate.threshold is None:
            continue
        again = learn(pool_of(*items, *reviewed(rng, 300)), gate, name="reviews", seed=1)
        assert not set(table_of(again.test).asked_hashes().tolist()) & set(gate.data.hashes)
        assert isinstance(again.old, GateCounts)
        tested += again.old.n_errors, again.old.n_accepted
        fitted += gate.outcome.n_errors, gate.outcome.n_accepted
    return tested[0] / tested[1], fitted[0] / fitted[1], int(tested[1])


@pytest.mark.slow
def test_the_second_turn_measures_the_gate_in_force_without_bias() -> None:
    rate, on_its_fit, n = rates_of_the_gate_in_force()
    # Rule empirical takes the largest threshold at or below .15 on its own items, where all scores are alike.
    assert abs(rate - 0.15) < 4 * sqrt(0.15 * 0.85 / n)
    assert on_its_fit < 0.15 - 3 * sqrt(0.15 * 0.85 / n)  # the negative control: its own items flatter it
