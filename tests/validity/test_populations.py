"""Certificates on populations of every shape: rising, confidently wrong, anti-informative, tied.

Scores are uniform and the error rate at score u is a step function r(u), so the true error rate among accepted answers
is an average of steps and known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.thresholds import fit
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason

ALPHA, DELTA, N, RUNS = 0.2, 0.1, 300, 500
FALSE_ALARM = 1e-4
"""Chance that one of these tests fails although the promise holds exactly at its limit."""
MOST = int(stats.binom.ppf(1 - FALSE_ALARM, RUNS, DELTA))
"""More failures than this refute the promise: 77 of 500, where 50 are allowed on average."""

ANY_CURVE = ("fixed_sequence", "sgr", "bonferroni")
RISING_ONLY = ("anchored", "cp_simultaneous", "certified")


@dataclass(frozen=True)
class Steps:
    """P(wrong | u) = rates[i] for u in (edges[i], edges[i + 1]], u uniform on (0, 1]; ``levels`` ties scores."""

    edges: tuple[float, ...]
    rates: tuple[float, ...]
    levels: int | None = None

    def draw(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        u = 1.0 - rng.random(N)
        wrong = rng.random(N) < np.array(self.rates)[np.searchsorted(self.edges[1:], u, side="left")]
        return (u if self.levels is None else np.ceil(u * self.levels) / self.levels), wrong.astype(np.int64)

    def scer(self, threshold: float) -> float:
        """Exact error rate among scores at or below the threshold (which is a level where scores are tied)."""
        widths = np.clip(np.minimum(self.edges[1:], threshold) - np.array(self.edges[:-1]), 0.0, None)
        return float(widths @ np.array(self.rates) / widths.sum())


RISING = Steps((0.0, 0.3, 0.5, 0.7, 1.0), (0.05, 0.15, 0.4, 0.7))
# The 6 % most certain answers are nearly all wrong; then comes a good stretch: .31 at .2, .16 at .5, then worse.
CONFIDENTLY_WRONG = Steps((0.0, 0.06, 0.5, 0.8, 1.0), (0.9, 0.06, 0.3, 0.8))
# Less certain answers are better; the error rate never falls below alpha, and is .29 over all answers.
ANTI_INFORMATIVE = Steps((0.0, 0.25, 0.5, 0.75, 1.0), (0.5, 0.3, 0.2, 0.16))
TIED = Steps(RISING.edges, RISING.rates, levels=20)


def outcomes(population: Steps, rule: str) -> list[Feasible | Infeasible]:
    rng = np.random.default_rng(20261121)
    uses_delta = rule not in ("acrc", "empirical")
    return [
        fit(*population.draw(rng), alpha=ALPHA, rule=rule, delta=DELTA if uses_delta else None, diagnose="fast")
        for _ in range(RUNS)
    ]


def failures(population: Steps, rule: str) -> int:
    fitted = outcomes(population, rule)
    return sum(isinstance(outcome, Feasible) and population.scer(outcome.threshold) > ALPHA for outcome in fitted)


def test_the_populations_are_what_they_are_called() -> None:
    # RISING at .7: (.3 * .05 + .2 * .15 + .2 * .4)/.7 = .125/.7; at 1: (.125 + .21)/1
    assert RISING.scer(0.7) == pytest.approx(0.125 / 0.7)
    assert RISING.scer(1.0) == pytest.approx(0.335)
    # CONFIDENTLY_WRONG at .5: (.054 + .0264)/.5 = .1608, below alpha; at .06: .9
    assert CONFIDENTLY_WRONG.scer(0.5) == pytest.approx(0.1608)
    assert CONFIDENTLY_WRONG.scer(0.06) == pytest.approx(0.9)
    # ANTI_INFORMATIVE is best at 1: (.5 + .3 + .2 + .16)/4 = .29, above alpha
    assert min(ANTI_INFORMATIVE.scer(t) for t in np.linspace(0.01, 1, 100)) == pytest.approx(0.29)


@pytest.mark.parametrize("rule", ANY_CURVE + RISING_ONLY)
@pytest.mark.parametrize("population", [RISING, TIED], ids=["rising", "tied"])
def test_where_risk_rises_every_certificate_holds(population: Steps, rule: str) -> None:
    assert failures(population, rule) <= MOST


@pytest.mark.parametrize("rule", ANY_CURVE)
@pytest.mark.parametrize("population", [CONFIDENTLY_WRONG, ANTI_INFORMATIVE], ids=["confident", "anti"])
def test_whatever_the_curve_these_hold(population: Steps, rule: str) -> None:
    assert failures(population, rule) <= MOST


@pytest.mark.parametrize("population", [RISING, TIED, CONFIDENTLY_WRONG], ids=["rising", "tied", "confident"])
def test_negative_control_the_plug_in_rule_fails(population: Steps) -> None:
    assert failures(population, "empirical") > MOST


def test_on_an_anti_informative_score_certificates_refuse() -> None:
    """No threshold is good: accepting at all is a failure, and nearly never happens."""
    for rule in ANY_CURVE + RISING_ONLY:
        assert sum(isinstance(outcome, Feasible) for outcome in outcomes(ANTI_INFORMATIVE, rule)) <= MOST


def test_a_confidently_wrong_score_is_reported_as_such() -> None:
    """The prefix maximum of A-CRC does not forgive confident errors, and reports the reason."""
    fitted = outcomes(CONFIDENTLY_WRONG, "acrc")
    reasons = [outcome.reason for outcome in fitted if isinstance(outcome, Infeasible)]
    assert len(reasons) > 0.95 * RUNS
    assert reasons.count(InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG) > 0.8 * RUNS
