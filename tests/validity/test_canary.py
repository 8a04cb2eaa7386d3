"""The canary: false alarms over its whole life, detection of changed answers, and what would not be valid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.monitor import CanaryState, Drift, jump
from guardrail.monitor.canary import BASELINE
from guardrail.monitor.drift import SLOPES, Grid, gains_of, uniforms
from tests.validity.test_monitor import DELTA, artifact_with, ever

STREAMS, ROUNDS = 300, 40
FALSE_ALARMS = DELTA + 3.1 * math.sqrt(DELTA * (1 - DELTA) / STREAMS)
"""Largest allowed share of alarms: a valid canary exceeds it in fewer than one of a thousand runs (binomial)."""
HARD = (0.05, 0.3, 0.6, 0.95)
"""How uncertain each of four known questions is: the chance of each of eight samples to differ."""


def scores_of(rng: np.random.Generator, n: int, hard: tuple[float, ...] = HARD) -> NDArray[np.float64]:
    """Scores of n rounds, on few levels and with many ties; shape (n, questions)."""
    return rng.binomial(8, hard, size=(n, len(hard))).astype(float)


def p_values_of(scores: NDArray[np.float64], seed: int, *, counted: bool = True) -> NDArray[np.float64]:
    """The p-values of the rounds after the baseline, question by question; shape (rounds, questions).

    Without ``counted`` every score is ranked in the baseline alone.
    """
    columns = []
    for i, column in enumerate(scores.T):
        grid, counts, p_values = Grid.of(column[:BASELINE].tolist(), seed + i), (0,) * (BASELINE + 1), list[float]()
        for k, score in enumerate(column[BASELINE:].tolist()):
            p, after = grid.take(counts, score, *uniforms(seed + i, str(k)))
            p_values.append(p)
            counts = after if counted else counts
        columns.append(p_values)
    return np.array(columns).T


def share_of_alarms(*, counted: bool) -> float:
    """Share of streams without a change whose wealth ever reaches 1/delta."""
    streams = [scores_of(np.random.default_rng(seed), BASELINE + ROUNDS) for seed in range(STREAMS)]
    p = np.stack([p_values_of(scores, 7 * seed, counted=counted).ravel() for seed, scores in enumerate(streams)], 1)
    return ever(1 + np.array(SLOPES) * (row[:, None] - 0.5) for row in p)


def test_an_unchanged_model_is_rarely_called_changed_over_the_whole_run() -> None:
    assert share_of_alarms(counted=True) <= FALSE_ALARMS


def test_without_counting_later_scores_there_would_be_too_many_false_alarms() -> None:
    """Negative control: the baseline alone is a small sample, so p-values against it are not independent."""
    assert share_of_alarms(counted=False) > 1.5 * FALSE_ALARMS


def test_the_state_bets_on_these_p_values_and_leaves_out_what_is_missing() -> None:
    scores = scores_of(np.random.default_rng(5), BASELINE + 10)
    expected = p_values_of(scores, 11)
    state, listed = CanaryState.start(len(HARD), delta=DELTA, seed=11), list[float]()
    for row in scores.tolist():
        state, bets = state.take(row)
        listed += [bet.chance for bet in bets]
        failed, _ = state.take([None] * len(HARD))
        assert failed == state.model_copy(update={"rounds": state.rounds + 1})
    assert listed == pytest.approx(expected.ravel())
    capital = np.full(len(SLOPES), 1 / len(SLOPES))
    for p in expected.ravel():
        capital = jump(capital, gains_of(p))
    assert state.log_wealth == pytest.approx(math.log(capital.sum()))


def after(state: CanaryState, scores: NDArray[np.float64]) -> CanaryState:
    for row in scores.tolist():
        state, _ = state.take(row)
    return state


@pytest.mark.parametrize(
    ("before", "changed_to"), [((0.05, 0.3, 0.6, 0.6), (0.4, 0.6, 0.9, 0.9)), ((0.6,) * 4, (0.2,) * 4)]
)
def test_a_changed_model_is_found_in_both_directions(before: tuple[float, ...], changed_to: tuple[float, ...]) -> None:
    found = []
    for stream in range(20):
        rng = np.random.default_rng(stream)
        quiet = after(CanaryState.start(len(before), seed=stream), scores_of(rng, 2 * BASELINE, before))
        changed = after(quiet, scores_of(rng, 12, changed_to))
        found.append(quiet.alarm is None and changed.alarm is not None)
    assert sum(found) >= 18


def test_comparing_known_questions_with_the_calibration_would_alarm_without_a_change() -> None:
    """Negative control: the drift monitor's reference is other questions, so it finds a drift that is none."""
    calibration = np.random.default_rng(9).binomial(8, 0.3, size=200).astype(float)
    drift = Drift(artifact_with(calibration), delta=DELTA)
    known = scores_of(np.random.default_rng(1), 60, (0.6, 0.7, 0.8, 0.9)).ravel().tolist()
    assert drift.take(drift.start, *known)[0].alarm is not None


def test_p_values_of_equal_questions_do_not_depend_on_each_other() -> None:
    """With common tie-breakers, questions that always tie would have equal p-values, and bets would be repeated."""
    state, pairs = CanaryState.start(2, seed=3), list[list[float]]()
    for _ in range(200 + BASELINE):
        state, bets = state.take([1.0, 1.0])
        pairs += [[bet.chance for bet in bets]] if bets else []
    correlation = np.corrcoef(np.array(pairs).T)[0, 1]
    assert abs(correlation) < 4 / math.sqrt(len(pairs))


def test_the_alarm_names_the_rounds_and_other_numbers_of_scores_are_refused() -> None:
    changed = np.repeat([[0.0], [1.0]], [BASELINE, 10], axis=0) * np.ones(4)
    alarm = after(CanaryState.start(4, seed=1), changed).alarm
    assert alarm is not None
    assert alarm.rounds is not None
    assert BASELINE < alarm.rounds < BASELINE + 10
    assert f"{alarm.at} scores in {alarm.rounds} rounds" in alarm.detail
    with pytest.raises(UsageError, match="the canary has 4 questions, got 3 scores"):
        CanaryState.start(4).take([1.0] * 3)
