"""The certificate of a cascade: simulated share of calibrations whose true error rate exceeds alpha.

Each population is a finite table of 50,000 questions from which calibrations are drawn with replacement, so the true
error rate of a pair of thresholds is known exactly. A valid rule fails in at most delta = .1 of calibrations. Of 150
calibrations a rule that fails in exactly 10 % exceeds 26 with probability 0.002 a population; the runs are seeded,
so a test fails always or never.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrate.thresholds.stages import fit_stages
from guardrail.artifact import CascadeOutcome

ALPHA, DELTA, RUNS, N = 0.15, 0.1, 150, 400
POOL = 50_000
MOST = 26


def flat(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores without information; both models err slightly more than alpha, so every threshold is bad."""
    return rng.random((POOL, 2)), (rng.random((POOL, 2)) < ALPHA + 0.003).astype(np.int64)


def sloped(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A weak and a strong model whose scores are informative."""
    hard = rng.normal(size=POOL)
    u = hard[:, None] + rng.normal(size=(POOL, 2))
    wrong = rng.random((POOL, 2)) < 1 / (1 + np.exp(np.array([1.2, 2.0]) - 1.2 * hard[:, None]))
    return u, wrong.astype(np.int64)


def humped(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Risk curves that are not monotone: the most certain answers are bad, then good, then bad."""
    u = rng.random((POOL, 2)).round(2)
    risk = np.where(u < 0.1, 0.3, np.where(u < 0.5, 0.1, 0.35))
    return u, (rng.random((POOL, 2)) < risk).astype(np.int64)


def weak(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two models whose scores have little information (AUROC .58), 13 and 11 % wrong, often on the same questions."""
    latent = np.sqrt(0.5) * (rng.normal(size=(POOL, 1)) + rng.normal(size=(POOL, 2)))
    error = (latent < stats.norm.ppf([0.13, 0.11])).astype(np.int64)
    return rng.normal(size=(POOL, 2)) + np.sqrt(2) * stats.norm.ppf(0.58) * error, error


def true_rate(outcome: CascadeOutcome, u: np.ndarray, error: np.ndarray) -> float:
    first, second = (-np.inf if stage.threshold is None else stage.threshold for stage in outcome.stages)
    a = u[:, 0] <= first
    b = ~a & (u[:, 1] <= second)
    return float((error[a, 0].sum() + error[b, 1].sum()) / (a.sum() + b.sum()))


def failures(population: tuple[np.ndarray, np.ndarray], rule: str, *, alpha: float = ALPHA) -> tuple[int, int]:
    """Count calibrations whose true error rate exceeds alpha, and calibrations that accept something."""
    u, error = population
    failed = feasible = 0
    for run in range(RUNS):
        drawn = np.random.default_rng(1_000 + run).integers(0, POOL, N)
        outcome = fit_stages(u[drawn], error[drawn], alpha=alpha, rule=rule)
        if outcome.feasible:
            feasible += 1
            failed += true_rate(outcome, u, error) > alpha
    return failed, feasible


@pytest.mark.parametrize("make", [flat, sloped, humped])
def test_the_certificate_holds(make: object) -> None:
    population = make(np.random.default_rng(7))  # type: ignore[operator]
    failed, feasible = failures(population, "certified")
    assert failed <= MOST
    if make is sloped:
        assert feasible > RUNS / 2  # the certificate does not hold by accepting nothing
    if make is flat:
        assert feasible > RUNS * DELTA / 2  # and it uses up much of delta


def test_negative_control_a_rule_without_a_certificate_fails_the_same_checker() -> None:
    failed, _ = failures(flat(np.random.default_rng(7)), "lec_joint")
    assert failed > MOST


def best_of_all_pairs(u: np.ndarray, error: np.ndarray, alpha: float) -> tuple[float, float]:
    """Return the pair that answers most under LEC's inequality, as version 1 did: the first is one of 40 quantiles."""
    best, pair, grid = 0, (-np.inf, -np.inf), np.quantile(u, np.linspace(0, 1, 40), axis=0)
    order = np.argsort(u[:, 1])
    for first in (-np.inf, *grid[:, 0]):
        a = u[order, 0] <= first
        answered = a.sum() + np.cumsum(~a)
        wrong = error[order, 0][a].sum() + np.cumsum(np.where(a, 0, error[order, 1]))
        feasible = np.flatnonzero(wrong - alpha * answered <= -1)
        if feasible.size and answered[feasible[-1]] > best:
            best, pair = answered[feasible[-1]], (first, u[order, 1][feasible[-1]])
    return pair


def test_lec_joint_is_above_alpha_about_half_the_time_on_a_weak_pair_too() -> None:
    """150 calibrations: a rule above alpha in half of them is outside these limits with probability .0004.

    Negative control: the best of all pairs.
    """
    u, error = weak(np.random.default_rng(7))
    failed, feasible = failures((u, error), "lec_joint", alpha=0.1)
    assert feasible > 120
    assert 53 <= failed <= 97
    above = 0
    for run in range(RUNS):
        drawn = np.random.default_rng(1_000 + run).integers(0, POOL, N)
        first, second = best_of_all_pairs(u[drawn], error[drawn], 0.1)
        a = u[:, 0] <= first
        b = ~a & (u[:, 1] <= second)
        above += (error[a, 0].sum() + error[b, 1].sum()) / max(1, a.sum() + b.sum()) > 0.1
    assert above > 97
