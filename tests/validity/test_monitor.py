"""The monitors: false alarms over long streams, detection of real changes, and refused input."""

from __future__ import annotations

import json
import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import UsageError
from guardrail.guard.observers import SafetySwitch
from guardrail.monitor import Alarm, CanaryState, Drift, RiskState, jump
from guardrail.monitor.drift import SLOPES, Grid, gains_of
from guardrail.monitor.state import STAKES
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Uncertainty
from guardrail.verdict import Reason, Verdict

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
STREAMS, STEPS, DELTA = 3_000, 2_000, 0.1
FALSE_ALARMS = DELTA + 3.1 * math.sqrt(DELTA * (1 - DELTA) / STREAMS)
"""Largest allowed share of alarms: a valid monitor exceeds it in fewer than one of a thousand runs (binomial)."""


def artifact_with(scores: NDArray[np.float64]) -> CalibrationArtifact:
    """Return an artifact that was calibrated on these scores; its errors do not matter here."""
    calibration = CalibrationScores(uncertainty=tuple(scores.tolist()), error=(0,) * scores.size)
    return make_artifact(ScriptedChat()).model_copy(update={"calibration": calibration})


def ever(gains: Iterable[NDArray[np.float64]]) -> float:
    """Return the share of streams whose wealth ever reaches 1/delta; each of the gains has shape (streams, bets)."""
    capital, alarmed = np.zeros(0), np.zeros(0, dtype=bool)
    for gain in gains:
        if not capital.size:
            capital, alarmed = np.full(gain.shape, 1 / gain.shape[1]), np.zeros(len(gain), dtype=bool)
        capital = jump(capital, gain)
        alarmed = alarmed | (capital.sum(axis=1) >= 1 / DELTA)
    return float(alarmed.mean())


def risk_gains(rate: float, alpha: float, audit: NDArray[np.float64], seed: int) -> Iterator[NDArray[np.float64]]:
    """Return the gains of audited answers; the audit rates vary from answer to answer."""
    rng = np.random.default_rng(seed)
    for q in audit:
        error, audited = rng.random(STREAMS) < rate, rng.random(STREAMS) < q
        yield 1 + np.array(STAKES) * (audit.min() / alpha) * np.where(audited, (error - alpha) / q, 0.0)[:, None]


@pytest.mark.parametrize("varied", [False, True])
def test_a_promise_that_just_holds_is_rarely_called_broken(varied: bool) -> None:
    audit = np.random.default_rng(5).uniform(0.1, 0.9, STEPS) if varied else np.full(STEPS, 0.3)
    assert ever(risk_gains(0.1, 0.1, audit, seed=1)) <= FALSE_ALARMS


def test_a_broken_promise_is_found_with_audits_of_three_in_ten() -> None:
    assert ever(risk_gains(0.2, 0.1, np.full(STEPS, 0.3), seed=2)) > 0.99


@pytest.mark.slow
def test_ignoring_the_audit_rates_would_raise_false_alarms() -> None:
    """Negative control: wrong answers are audited more often, so unweighted bets see too many errors."""

    def gains(*, weighted: bool) -> Iterator[NDArray[np.float64]]:
        rng, largest = np.random.default_rng(3), 2.0 if weighted else 10.0
        for _ in range(STEPS):
            error = rng.random(STREAMS) < 0.1
            hard = rng.random(STREAMS) < np.where(error, 0.7, 0.4)  # a feature known before the audit
            rate = np.where(hard, 0.6, 0.2)
            won = np.where(rng.random(STREAMS) < rate, (error - 0.1) / (rate if weighted else 1.0), 0.0)
            yield 1 + np.array(STAKES) * largest * won[:, None]

    assert ever(gains(weighted=False)) > 2 * FALSE_ALARMS
    assert ever(gains(weighted=True)) <= FALSE_ALARMS


def test_exchangeable_scores_are_rarely_called_drifted_though_they_tie() -> None:
    """The p-values are ranks among calibration and stream, exactly as in the monitor, on a few levels only."""

    def gains() -> Iterator[NDArray[np.float64]]:
        rng, rows, n = np.random.default_rng(4), np.arange(STREAMS), 100
        counts = rng.multinomial(n, [1 / 8] * 8, size=STREAMS)
        for t in range(600):
            score = rng.integers(0, 8, size=STREAMS)
            above = (counts * (np.arange(8) > score[:, None])).sum(axis=1)
            p = (above + rng.random(STREAMS) * (1 + counts[rows, score])) / (n + t + 1)
            yield 1 + np.array(SLOPES) * (p[:, None] - 0.5)
            np.add.at(counts, (rows, score), 1)

    assert ever(gains()) <= FALSE_ALARMS


def places_of(order: tuple[int, ...], n_calibration: int, cells: int) -> list[tuple[Fraction, Fraction, int]]:
    """Return, for each score of a stream, its cell and the ends of the interval in which its p-value is uniform.

    ``order`` ranks calibration and stream; the grid is the library's.
    """
    grid = Grid.of([float(u) for u in order[:n_calibration]], seed=0, cells=cells)
    places: list[tuple[Fraction, Fraction, int]] = []
    counts = (0,) * len(grid.gaps)
    for u in order[n_calibration:]:
        low, _ = grid.take(counts, float(u), 0.5, 0.0)
        high, after = grid.take(counts, float(u), 0.5, 1.0)
        (cell,) = (i for i, (before, now) in enumerate(zip(counts, after, strict=True)) if now > before)
        places.append((Fraction(low).limit_denominator(100), Fraction(high).limit_denominator(100), cell))
        counts = after
    return places


def is_exact(streams: list[list[tuple[Fraction, Fraction, int]]]) -> bool:
    """Return whether the p-values of equally likely streams are uniform given the earlier cells."""
    steps = len(streams[0])
    for t in range(steps):
        by_past: dict[tuple[int, ...], list[tuple[Fraction, Fraction]]] = {}
        for stream in streams:
            by_past.setdefault(tuple(cell for _, _, cell in stream[:t]), []).append(stream[t][:2])
        for intervals in by_past.values():
            ends = sorted({end for interval in intervals for end in interval})
            if ends[0] != 0 or ends[-1] != 1:
                return False
            for start, end in pairwise(ends):  # the density between two ends
                inside = [1 / (high - low) for low, high in intervals if low <= start and end <= high]
                if sum(inside) != len(intervals):
                    return False
    return True


@pytest.mark.parametrize(("n_calibration", "steps", "cells"), [(3, 3, 256), (4, 2, 2), (1, 4, 256)])
def test_p_values_from_counts_on_the_grid_are_exactly_uniform_and_independent(
    n_calibration: int, steps: int, cells: int
) -> None:
    """Every order of calibration and stream is equally likely; the test counts all of them in fractions."""
    streams = [places_of(order, n_calibration, cells) for order in permutations(range(n_calibration + steps))]
    assert is_exact(streams)


def test_counting_calibration_scores_in_cells_would_not_be_exact() -> None:
    """Negative control: the usual conformal p-value on the same cells, which the calibration scores define."""
    n_calibration, steps = 3, 2
    streams = []
    for order in permutations(range(n_calibration + steps)):
        grid = Grid.of([float(u) for u in order[:n_calibration]], seed=0)
        cells = [bisect_left(grid.bounds, (float(u), 0.5)) for u in order]
        stream = []
        for t in range(n_calibration, n_calibration + steps):
            above = sum(cell > cells[t] for cell in cells[:t])
            equal = sum(cell == cells[t] for cell in cells[:t])
            stream.append((Fraction(above, t + 1), Fraction(above + equal + 1, t + 1), cells[t]))
        streams.append(stream)
    assert not is_exact(streams)


def test_ties_are_broken_at_random_by_scores_that_are_never_equal() -> None:
    """Equal scores take every place among themselves equally often: their tie-breakers are exchangeable."""
    n_calibration, levels = 3, (0.0, 0.0, 1.0, 0.0)
    grids = [Grid.of(levels[:n_calibration], seed) for seed in range(4_000)]
    draws = np.random.default_rng(1).random(len(grids))
    cells = [bisect_left(grid.bounds, (levels[n_calibration], tie)) for grid, tie in zip(grids, draws, strict=True)]
    share = np.bincount(cells, minlength=4) / len(cells)
    assert np.abs(share[:3] - 1 / 3).max() < 4 * math.sqrt(2 / 9 / len(cells))
    assert share[3] == 0


def test_p_values_of_the_drift_monitor_are_uniform_with_ties() -> None:
    rng = np.random.default_rng(6)
    levels = (rng.integers(0, 4, size=600) / 4).tolist()
    test = Drift(artifact_with(np.array(levels[:100])))
    state, bets = test.take(test.start, *levels[100:])
    p = np.sort([bet.chance for bet in bets])
    distance = np.abs(p - (np.arange(p.size) + 0.5) / p.size).max()
    assert distance < 1.95 / math.sqrt(p.size)  # Kolmogorov-Smirnov at .001
    assert state.alarm is None


def test_the_state_stays_small() -> None:
    test = Drift(artifact_with(np.random.default_rng(8).normal(size=2_000)))
    state, _ = test.take(test.start, 0.0)
    billions = state.model_copy(update={"counts": tuple(10**9 for _ in state.counts)})
    assert len(billions.model_dump_json()) < 5_000


@pytest.mark.parametrize(("moved", "way"), [(1.0, "less"), (-1.0, "more")])
def test_a_shift_is_found_once_and_its_direction_named(moved: float, way: str) -> None:
    rng = np.random.default_rng(7)
    test = Drift(artifact_with(rng.normal(size=300)), delta=0.01)
    quiet, _ = test.take(test.start, *rng.normal(size=200))
    assert quiet.alarm is None
    state, _ = test.take(quiet, *rng.normal(moved, 1.0, size=300))
    assert state.alarm is not None
    assert 200 < state.alarm.at < 300
    assert state.alarm.wealth >= 100
    assert state.alarm.detail.startswith(f"Questions are answered {way} certainly than at calibration: ")
    later, _ = test.take(state, *rng.normal(size=200))
    assert later.alarm == state.alarm, "a quiet period withdraws nothing"


RISK = RiskState.start("sha256:a", 0.1, 0.05, 1.0)


def after(state: RiskState, *errors: object) -> RiskState:
    for error in errors:
        state, _ = state.take(error)  # type: ignore[arg-type]
    return state


def test_an_alarm_is_numbers_whose_words_are_about_answers_or_calls() -> None:
    """A fifth of the money grows by 5.5 with each error: about 6 after two, then 33, above the line at 20."""
    assert after(RISK, True, True).alarm is None
    alarm = after(RISK, True, True, True, False).alarm
    assert alarm is not None
    assert (alarm.monitor, alarm.at, alarm.alpha, alarm.calls) == ("risk", 3, 0.1, False)
    assert alarm.detail.startswith("The error rate among accepted answers exceeds the promised 10 %: 3 audits refute")
    assert "Audits suggest 100 % (bounds " in alarm.detail
    assert "calibrate again on recent questions." in alarm.detail
    stored = alarm.model_dump(mode="json")
    assert not [value for value in stored.values() if isinstance(value, str) and " " in value], "no prose is stored"
    of_tool = after(RISK.model_copy(update={"calls": True}), True, True, True).alarm
    assert of_tool is not None
    assert "among accepted calls" in of_tool.detail
    for alarmed in (of_tool, Alarm(monitor="drift", at=9, wealth=20.0, delta=0.05, calls=True, less_certain=True)):
        assert not re.search("answer|question", alarmed.detail)


def verdict_of(artifact: CalibrationArtifact, score: float, detail: str = "") -> Verdict:
    return Verdict(
        accepted=True,
        reason=Reason.WITHIN_THRESHOLD,
        uncertainty=Uncertainty(value=score, unit="nats", estimator="e", detail=detail),
        threshold=0.5,
        alpha=0.1,
        outcome=artifact.outcome,
        basis=Basis.SAMPLES,
        artifact=artifact.digest,
        candidate=None,
    )


def test_drift_leaves_out_what_another_artifact_judged(caplog: pytest.LogCaptureFixture) -> None:
    own, other = artifact_with(np.arange(3.0)), artifact_with(np.arange(4.0))
    test = Drift(own)
    with caplog.at_level(logging.WARNING, logger="guardrail"):
        assert [test.score(verdict_of(own, score)) for score in (0.1, 0.2)] == [0.1, 0.2]
        assert [test.score(verdict_of(other, 9.0)) for _ in range(2)] == [None, None]
    (line,) = caplog.messages
    assert own.digest in line
    assert other.digest in line


@pytest.mark.skipif(not (DATA / "mmlu-pro-confidence.csv").is_file(), reason="the shared data are not here")
def test_a_real_shift_of_topic_is_found_soon_and_no_shift_seldom_is() -> None:
    """Real scores, seeded streams: after the change MMBench has only spatial relations, MMLU-Pro only law."""
    from benchmarks.monitoring import Change, drift, mmbench, mmlu_pro

    for data, topic in ((mmbench(DATA, "v1.6-34b"), "spatial_relationship"), (mmlu_pro(DATA, "gpt-4.1"), "law")):
        shifted = [drift(Change(data, topic, 0.1, frozenset({topic})), seed)[0] for seed in range(12)]
        quiet = [drift(Change(data, "none", 0.1), seed)[0] for seed in range(12)]
        delays = sorted(run.delay for run in shifted if run.delay is not None)
        assert len(delays) >= 9
        assert delays[len(delays) // 2] <= 40
        assert sum(run.early or run.delay is not None for run in quiet) <= 4  # delta .05: P(Bin(12, .05) > 4) < .001


def test_one_bet_by_hand() -> None:
    """Equal capital on 5 stakes that sum to .805; alpha .1, audit rate 1: an error multiplies stake s by 1 + 9 s."""
    assert after(RISK, True).log_wealth == pytest.approx(math.log(1 + 9 * 0.805 / 5))
    # A fifth of 1, 1.225, 1.72, 2.8 and 5.5 of 12.245 in all, spread by .002, and then each bet again.
    before = [1, 1.225, 1.72, 2.8, 5.5]
    spread = [(0.998 * money + 0.002 * 12.245 / 5) / 5 for money in before]
    expected = math.log(sum(m * g for m, g in zip(spread, before, strict=True)))
    assert after(RISK, True, True).log_wealth == pytest.approx(expected)
    assert after(RISK, False).log_wealth == pytest.approx(math.log(1 - 0.805 / 5))
    assert gains_of(0.75) == pytest.approx([0.55, 0.75, 0.9, 0.96, 0.9875, 1, 1.0125, 1.04, 1.1, 1.25, 1.45])


@pytest.mark.slow
def test_the_interval_covers_at_every_time_and_narrows() -> None:
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(40):
        state, outside = RISK, False
        for errors in (rng.random((10, 40)) < 0.2).tolist():
            state = after(state, *errors)
            assert state.interval is not None
            outside |= not state.interval[1] <= 0.2 <= state.interval[2]
        missed += outside
        assert state.interval is not None
        assert state.interval[2] - state.interval[1] < 0.25
    assert missed <= 6  # 5 % of 40 is 2; more than 6 has probability .004 at most


def test_an_unweighted_interval_is_centred_on_the_share() -> None:
    assert RISK.interval is None
    interval = after(RISK, 1, 0, 0, 0).interval
    assert interval is not None
    assert interval[0] == 0.25
    assert 0 <= interval[1] < 0.25 < interval[2] <= 1


def test_a_switch_holds_back_until_it_is_released() -> None:
    switch = SafetySwitch()
    assert switch.objection() is None
    switch.hold("too many errors")
    assert switch.objection() == "too many errors"
    switch.release()
    assert switch.objection() is None


TEST = Drift(artifact_with(np.zeros(3)))


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: RiskState.start("a", 10, 0.05, 1.0), r"alpha must be in \(0, 1\), got 10\."),
        (lambda: RiskState.start("a", 0.1, 1, 1.0), r"delta must be in \(0, 1\), got 1\."),
        (lambda: RiskState.start("a", 0.1, 0.05, 0), "min_audit_rate"),
        (lambda: CanaryState.start(10, delta=math.nan), r"delta must be in \(0, 1\), got nan\."),
        (lambda: Drift(artifact_with(np.zeros(3)), delta=5.0), r"delta must be in \(0, 1\), got 5\.0\."),
        (lambda: RiskState.start("a", 0.1, 0.05, 0.5).take(True, 0.1), "0.5"),
        (lambda: TEST.take(TEST.start, math.nan), "finite"),
        (lambda: after(RISK, math.nan), "got nan"),
        (lambda: after(RISK, "no"), "got 'no'"),
        (lambda: after(RISK, None), "got None"),
    ],
)
def test_misuse_is_refused_by_name(call: Callable[[], object], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        call()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"log_wealth": None}, "log_wealth"),
        ({"alpha": "0.1 or so"}, "alpha"),
        ({"unknown": 1}, "unknown"),
        ({"format": 2}, "format version"),
    ],
)
def test_a_damaged_state_is_refused_in_words(change: dict[str, object], part: str) -> None:
    """A state without its alarm would let a guard go on as if nothing had been found."""
    state = after(RISK, False).model_dump(mode="json")
    assert RiskState.read(json.dumps(state), "here") == after(RISK, False)
    with pytest.raises(UsageError, match=part):
        RiskState.read(json.dumps({**state, **change}), "monitor 'risk'")
    for text in ("[1]", json.dumps(state)[:40], "null"):
        with pytest.raises(UsageError, match=r"monitor 'risk'.*[Ss]tart a new monitor"):
            RiskState.read(text, "monitor 'risk'")
