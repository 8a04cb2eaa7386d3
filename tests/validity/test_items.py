"""Certificates of items hold where rules that ignore answers, or plug figures in, fail.

Exact: any n + 1 answers, without chance (exchangeability), and enumeration of small populations. Simulated: populations
whose risk lies just above alpha at every threshold, where a rule that certifies anything is wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from calibrate.rules.certificate import tail
from calibrate.rules.counts import Feasible, Result
from calibrate.rules.items import AnswerItems, clean_answers, clean_shown, wrong_share, wrong_share_per_answer
from guardrail.items.spec import kept, measured

pytestmark = pytest.mark.slow

ALPHA, DELTA = 0.1, 0.1
RUNS = 400
BY_NAME = {rule.__name__: rule for rule in (wrong_share, wrong_share_per_answer, clean_shown, clean_answers)}
RULES = tuple(BY_NAME)
LIMIT = int(stats.binom.ppf(1 - 1e-4, RUNS, DELTA))
"""Failures that a rule with failure probability delta exceeds with probability 1e-4: 64 of 400."""

Answer = tuple[list[float], list[int]]


def packed(answers: list[Answer], cap: int) -> AnswerItems:
    return AnswerItems.of([u for u, _ in answers], [w for _, w in answers], cap=cap)


def threshold(found: Result) -> float | None:
    return found.threshold if isinstance(found, Feasible) else None


def is_broken(answer: Answer, tau: float | None, cap: int) -> bool:
    u, wrong = answer
    return bool((kept(u, tau, cap) & np.array(wrong, dtype=bool)).any())


# -- Exact -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "too_many"), [(0.1, 0), (0.25, 0), (0.5, 0), (0.1, 1), (0.25, 1)])
def test_on_average_exactly(alpha: float, too_many: int) -> None:
    """Of any n + 1 answers at most floor(alpha (n + 1)) break the fit on the others; the control tolerates one more."""
    worst = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        answers: list[Answer] = []
        for _ in range(int(rng.integers(4, 22))):
            size = int(rng.integers(1, 6))
            answers.append(((rng.integers(5, size=size) / 5).tolist(), (rng.random(size) < 0.3).astype(int).tolist()))
        cap, broken = 3, 0
        for j, left_out in enumerate(answers):
            others = packed(answers[:j] + answers[j + 1 :], cap)
            tau = threshold(clean_answers(others, alpha, None))
            if too_many:  # the control tolerates one broken answer more
                s = np.sort(others.first_broken())
                c = math.floor(alpha * (others.n + 1) + 1e-9)
                below = others.scores[others.scores < (s[c] if c < s.size else math.inf)]
                tau = float(below[-1]) if below.size else None
            broken += is_broken(left_out, tau, cap)
        worst = max(worst, broken - math.floor(alpha * len(answers) + 1e-9))
    assert (worst > 0) == bool(too_many)


TYPES: list[tuple[float, Answer]] = [
    (0.62, ([0.0, 0.0], [0, 0])),
    (0.14, ([0.0, 0.5], [0, 1])),
    (0.12, ([0.0, 0.5], [1, 1])),
    (0.12, ([math.inf], [0])),
]
"""A population of four kinds of answer with their probabilities; nothing is kept of the last. At 0: broken .12 of all
and .12/.88 of shown; at .5: broken .26."""


def exact_failure(n: int, fit: Callable[[AnswerItems], float | None], bad: Callable[[float], bool]) -> float:
    """Probability that a fit on n answers of `TYPES` takes a threshold that is bad, summed over all counts.

    The answers of each kind are interchangeable for rules that do not read order.
    """
    total = 0.0
    probabilities = [p for p, _ in TYPES]
    for counts in itertools.product(range(n + 1), repeat=len(TYPES)):
        if sum(counts) != n:
            continue
        answers = [answer for count, (_, answer) in zip(counts, TYPES, strict=True) for _ in range(count)]
        tau = fit(packed(answers, 2))
        if tau is not None and bad(tau):
            total += float(stats.multinomial.pmf(counts, n, probabilities))
    return total


@pytest.mark.parametrize(("alpha", "n"), [(0.11, 24), (0.25, 20)])
def test_clean_answers_exactly(alpha: float, n: int) -> None:
    """alpha just below the risk .12 at 0 (any threshold is bad), and just below .26 at .5."""
    risk = {0.0: 0.12, 0.5: 0.26}
    bad = lambda tau: risk[tau] > alpha  # noqa: E731
    assert 0 < exact_failure(n, lambda some: threshold(clean_answers(some, alpha, DELTA)), bad) <= DELTA

    def plug_in(some: AnswerItems) -> float | None:
        good = [t for t in some.scores.tolist() if (some.first_broken() <= t).mean() <= alpha]
        return max(good, default=None)

    assert exact_failure(n, plug_in, bad) > 0.3


@pytest.mark.parametrize("alpha", [0.13, 0.26])
def test_clean_shown_exactly(alpha: float) -> None:
    """Of shown answers .12/.88 = .136 are broken at 0 and .26/.88 = .295 at .5."""
    risk = {0.0: 0.12 / 0.88, 0.5: 0.26 / 0.88}
    bad = lambda tau: risk[tau] > alpha  # noqa: E731
    assert 0 < exact_failure(22, lambda some: threshold(clean_shown(some, alpha, DELTA)), bad) <= DELTA

    def plug_in(some: AnswerItems) -> float | None:
        shown, broken = some.first_kept(), some.first_broken()
        good = [t for t in some.scores.tolist() if (broken <= t).sum() <= alpha * (shown <= t).sum()]
        return max(good, default=None)

    assert exact_failure(22, plug_in, bad) > 0.3


# -- Simulated: the risk is just above alpha at every threshold --------------------------------------------------------

CAP = 8


def all_or_nothing(rng: np.random.Generator, n: int) -> list[Answer]:
    """Answers of 8 items, wholly wrong with probability a little above alpha: as dependent as items can be."""
    wrong = rng.random(n) < ALPHA + 0.002
    scores = np.round(rng.random((n, CAP)), 2).tolist()
    return [(u, [int(bad)] * CAP) for u, bad in zip(scores, wrong, strict=True)]


def rarely_all_wrong(rng: np.random.Generator, n: int) -> list[Answer]:
    """One answer in 70 is long and wholly wrong, the others short and right: the mean rests on answers rarely seen."""
    wrong = rng.random(n) < 0.0139  # .0139 * 8 wrong of .0139 * 8 + .9861 items: 10.1 %
    scores = np.round(rng.random((n, CAP)), 2).tolist()
    return [(u, [1] * CAP) if bad else (u[:1], [0]) for u, bad in zip(scores, wrong, strict=True)]


def items_as_independent(some: AnswerItems) -> bool:
    """The control: an exact binomial test over items at the median score, as if each item were an answer."""
    K, W = some.counts(float(np.median(some.scores)))
    return bool(tail(int(W.sum()), int(K.sum()), ALPHA) <= DELTA)


@pytest.mark.parametrize("population", [all_or_nothing, rarely_all_wrong])
def test_wrong_share_holds_in_the_worst_case(population: Callable[..., list[Answer]]) -> None:
    """Any threshold at all is a failure here: the share of wrong items is 10.1 or 10.2 % at every one."""
    rng, failed, independent = np.random.default_rng(8), 0, 0
    for _ in range(RUNS):
        some = packed(population(rng, 150), CAP)
        failed += threshold(wrong_share(some, ALPHA, DELTA)) is not None
        independent += items_as_independent(some)
    assert failed <= LIMIT
    assert independent > LIMIT


@pytest.mark.parametrize("rule", ["wrong_share_per_answer", "clean_shown"])
def test_rules_over_answers_hold_in_the_worst_case(rule: str) -> None:
    rng, failed, plugged = np.random.default_rng(9), 0, 0
    for _ in range(RUNS):
        some = packed(all_or_nothing(rng, 150), CAP)
        failed += threshold(BY_NAME[rule](some, ALPHA, DELTA)) is not None
        shown, broken = some.first_kept(), some.first_broken()
        late = some.scores[some.scores >= 0.05]
        plugged += any((broken <= t).sum() <= ALPHA * (shown <= t).sum() for t in late)
    assert failed <= LIMIT
    assert plugged > 0.3 * RUNS


def mixed(rng: np.random.Generator, n: int) -> list[Answer]:
    """Scores that rank errors, answers with a quality of their own that all their items share."""
    answers: list[Answer] = []
    for _ in range(n):
        size = int(rng.integers(1, CAP + 3))
        quality = rng.beta(1, 4)
        u = np.clip(np.round(rng.beta(2, 4, size) * (0.4 + 1.2 * quality), 1), 0, 1)
        answers.append((u.tolist(), (rng.random(size) < 0.03 + 0.6 * u * quality * 2).astype(int).tolist()))
    return answers


def test_all_rules_hold_where_thresholds_exist() -> None:
    """Half of the fits must find a threshold; the risk at it is that of 40,000 other answers."""
    rng, runs = np.random.default_rng(10), 250
    truth = packed(mixed(np.random.default_rng(11), 40_000), CAP)
    limit = int(stats.binom.ppf(1 - 1e-4, runs, DELTA))
    alphas = {"wrong_share": 0.1, "wrong_share_per_answer": 0.1, "clean_shown": 0.2, "clean_answers": 0.2}
    risks: dict[float, dict[str, float]] = {}  # scores have one decimal: few thresholds occur
    failed, found = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0)
    for _ in range(runs):
        some = packed(mixed(rng, 200), CAP)
        for rule in RULES:
            tau = threshold(BY_NAME[rule](some, alphas[rule], DELTA))
            if tau is None:
                continue
            if tau not in risks:
                K, W = truth.counts(tau)
                per_answer, broken = float((W[K > 0] / K[K > 0]).mean()), float((W[K > 0] > 0).mean())
                values = (W.sum() / K.sum(), per_answer, broken, float((W > 0).mean()))
                risks[tau] = dict(zip(RULES, values, strict=True))
            found[rule] += 1
            failed[rule] += risks[tau][rule] > alphas[rule]
    assert max(failed.values()) <= limit, failed
    assert min(found[rule] for rule in ("wrong_share", "wrong_share_per_answer", "clean_answers")) > runs / 2, found


def test_items_beyond_the_cap_are_not_kept_at_run_time() -> None:
    """Forgotten at run time, the cap's answers of 30 wrong items count in full."""
    u = [0.0] * 30
    assert sum(kept(u, 0.5, CAP)) == CAP
    assert np.isfinite(measured(u, CAP)).sum() == CAP
