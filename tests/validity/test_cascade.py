"""The certificate of a cascade of two, three or four stages: share of calibrations whose true error rate exceeds alpha.

Each population is a finite table of 50,000 questions from which calibrations are drawn with replacement, so the true
error rate of a set of thresholds is known exactly. A valid rule fails in at most delta = .1 of calibrations. Of 150
calibrations a rule that fails in exactly 10 % exceeds 26 with probability 0.002 a population; the runs are seeded,
so a test fails always or never. Small populations on a fixed path are enumerated instead, without a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from calibrate.cascade import certified_cascade, matched_path, path_counts
from calibrate.rules.certificate import tail

pytestmark = pytest.mark.slow

ALPHA, DELTA, RUNS, N = 0.15, 0.1, 150, 400
POOL = 50_000
MOST = 26


Population = tuple[np.ndarray, np.ndarray]
"""Scores and errors of all questions, each of shape (questions, stages)."""
Choose = Callable[[np.ndarray, np.ndarray, float], list[float]]
"""Thresholds for scores, errors and alpha."""


def flat(rng: np.random.Generator, stages: int) -> Population:
    """Scores without information; all models err slightly more than alpha, so every threshold is bad."""
    return rng.random((POOL, stages)), (rng.random((POOL, stages)) < ALPHA + 0.003).astype(np.int64)


def sloped(rng: np.random.Generator, stages: int) -> Population:
    """Models from weak to strong whose scores are informative."""
    hard = rng.normal(size=POOL)
    u = hard[:, None] + rng.normal(size=(POOL, stages))
    skill = np.linspace(1.2, 2.0, stages)
    wrong = rng.random((POOL, stages)) < 1 / (1 + np.exp(skill - 1.2 * hard[:, None]))
    return u, wrong.astype(np.int64)


def humped(rng: np.random.Generator, stages: int) -> Population:
    """Risk curves that are not monotone: the most certain answers are bad, then good, then bad."""
    u = rng.random((POOL, stages)).round(2)
    risk = np.where(u < 0.1, 0.3, np.where(u < 0.5, 0.1, 0.35))
    return u, (rng.random((POOL, stages)) < risk).astype(np.int64)


def true_rate(u: np.ndarray, error: np.ndarray, thresholds: list[float]) -> float:
    """Error rate among all answers of a system, 0 if it answers nothing."""
    left, answered, wrong = np.ones(len(u), dtype=bool), 0, 0
    for stage, threshold in enumerate(thresholds):
        here = left & (u[:, stage] <= threshold)
        answered, wrong, left = answered + here.sum(), wrong + error[here, stage].sum(), left & ~here
    return float(wrong / max(1, answered))


def certified(u: np.ndarray, error: np.ndarray, alpha: float) -> list[float]:
    """The thresholds of the certified policy."""
    result = certified_cascade(u, error, alpha, DELTA)
    return list(result) if isinstance(result, tuple) else [-np.inf] * u.shape[1]


def plug_in(u: np.ndarray, error: np.ndarray, alpha: float) -> list[float]:
    """The loosest policy of the same path with an observed error rate of at most alpha: certifies nothing."""
    path = matched_path(u)
    k, e = path_counts(u, error, path)
    good = np.flatnonzero((k > 0) & (e <= alpha * k))
    return path[good[-1]].tolist() if good.size else [-np.inf] * u.shape[1]


def best_of_all_pairs(u: np.ndarray, error: np.ndarray, alpha: float) -> list[float]:
    """Return the pair that answers most under LEC's inequality; the first is one of 40 quantiles."""
    best, pair, grid = 0, (-np.inf, -np.inf), np.quantile(u, np.linspace(0, 1, 40), axis=0)
    order = np.argsort(u[:, 1])
    for first in (-np.inf, *grid[:, 0]):
        a = u[order, 0] <= first
        answered = a.sum() + np.cumsum(~a)
        wrong = error[order, 0][a].sum() + np.cumsum(np.where(a, 0, error[order, 1]))
        feasible = np.flatnonzero(wrong - alpha * answered <= -1)
        if feasible.size and answered[feasible[-1]] > best:
            best, pair = answered[feasible[-1]], (first, u[order, 1][feasible[-1]])
    return [float(threshold) for threshold in pair]


def failures(population: Population, choose: Choose, *, alpha: float = ALPHA) -> tuple[int, int]:
    """Count calibrations whose true error rate exceeds alpha, and calibrations that accept something."""
    u, error = population
    failed = feasible = 0
    for run in range(RUNS):
        drawn = np.random.default_rng(1_000 + run).integers(0, POOL, N)
        thresholds = choose(u[drawn], error[drawn], alpha)
        feasible += max(thresholds) > -np.inf
        failed += true_rate(u, error, thresholds) > alpha
    return failed, feasible


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("make", [flat, sloped, humped])
def test_the_certificate_holds(make: Callable[[np.random.Generator, int], Population], stages: int) -> None:
    failed, feasible = failures(make(np.random.default_rng(7), stages), certified)
    assert failed <= MOST
    if make is sloped:
        assert feasible > RUNS / 2  # the certificate does not hold by accepting nothing


@pytest.mark.parametrize("choose", [plug_in, best_of_all_pairs])
def test_negative_control_thresholds_without_a_certificate_fail_the_same_checker(choose: Choose) -> None:
    failed, _ = failures(flat(np.random.default_rng(7), 2), choose)
    assert failed > MOST


# -- Exactly: all calibrations of a small population, on a fixed path of thresholds ------------------------------------

PATH = np.array([(0.0, -np.inf, -np.inf), (0.0, 0.0, -np.inf), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)])
KINDS = np.array([[0, 9, 9], [0, 9, 9], [1, 0, 9], [1, 0, 9], [9, 9, 0], [9, 9, 0]], dtype=np.float64)
"""Scores of the kinds of questions by stage: two are for each stage. The last point of the path hands those of the
second stage to the first one."""
WRONG = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]])
"""Errors by stage: of the two kinds of a stage the first is answered wrongly. The first stage errs on the second's."""
SMALL, HIGH = 12, 0.3
"""Questions of a calibration, and its target."""


def calibrations(kinds: int, left: int = SMALL) -> Iterator[tuple[int, ...]]:
    """All counts of the kinds among some questions."""
    if kinds == 1:
        yield (left,)
        return
    for first in range(left + 1):
        yield from ((first, *rest) for rest in calibrations(kinds - 1, left - first))


def walked(u: np.ndarray, wrong: np.ndarray) -> int | None:
    """The point of the path that the certificate takes; None for none."""
    result = certified_cascade(u, wrong, HIGH, DELTA, path=PATH)
    return PATH.tolist().index(list(result)) if isinstance(result, tuple) else None


def last_that_passes(u: np.ndarray, wrong: np.ndarray) -> int | None:
    """The last point that passes its own test, wherever it lies: not a valid rule."""
    k, e = path_counts(u, wrong, PATH)
    good = np.flatnonzero((k > 0) & (np.asarray(tail(e, k, HIGH)) <= DELTA))
    return int(good[-1]) if good.size else None


def false_certificate(share: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], int | None]) -> float:
    """Exact probability that a rule chooses a point of the path whose error rate is above the target."""
    each = [path_counts(KINDS[[kind]], WRONG[[kind]], PATH) for kind in range(len(KINDS))]
    answered, wrong = (np.array([one[i] for one in each]) for i in (0, 1))
    bad = share @ wrong > HIGH * (share @ answered) + 1e-12
    table = np.array(list(calibrations(len(KINDS))))
    total = 0.0
    for counts, weight in zip(table, stats.multinomial(SMALL, share).pmf(table), strict=True):
        if weight > 1e-9:
            chosen = choose(np.repeat(KINDS, counts, axis=0), np.repeat(WRONG, counts, axis=0))
            total += weight * (chosen is not None and bool(bad[chosen]))
    return total


SHARES = [
    np.outer(by_stage, [rate, 1 - rate]).ravel()
    for by_stage in ([1 / 3, 1 / 3, 1 / 3], [0.6, 0.2, 0.2], [0.45, 0.5, 0.05], [0.1, 0.6, 0.3])
    for rate in (HIGH + 1e-6, 0.35)
]
"""Populations whose every point is bad, by the share of each stage; the first stage is bad, or slightly worse."""


@pytest.mark.parametrize("share", SHARES)
def test_no_bad_point_of_a_path_of_three_stages_is_certified_with_more_than_delta(share: np.ndarray) -> None:
    assert false_certificate(share, walked) <= DELTA


def test_negative_control_tests_in_no_sequence_fail_the_exact_checker() -> None:
    assert max(false_certificate(share, last_that_passes) for share in SHARES[:3]) > DELTA


def test_negative_control_stages_that_are_certified_one_by_one_exceed_delta() -> None:
    """Three stages answer a third of 300 questions each, wrong with probability .101: delta is spent three times."""
    errors = np.arange(101)
    passes = np.asarray(tail(errors, np.full(101, 100), 0.1)) <= DELTA
    once = float(stats.binom.pmf(errors, 100, 0.101)[passes].sum())
    assert once <= DELTA
    assert 1 - (1 - once) ** 3 > 1.5 * DELTA
