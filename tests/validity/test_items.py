"""Certificates of items hold where rules that ignore answers, or plug figures in, fail.

Exact: any n + 1 answers, without chance (exchangeability), and enumeration of small populations. Simulated: populations
whose risk lies just above alpha at every threshold, where a rule that certifies anything is wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from calibrate.items.fit import ItemsRule
from calibrate.items.rules import (
    AnswerItems,
    both,
    clean_answers,
    clean_shown,
    start_shown,
    start_wrong_share,
    wrong_share,
)
from calibrate.rules.capital import p_capital
from calibrate.rules.certificate import tail
from guardrail.items.gate import kept, measured

pytestmark = pytest.mark.slow

ALPHA, DELTA = 0.1, 0.1
RUNS = 400
LIMIT = int(stats.binom.ppf(1 - 1e-4, RUNS, DELTA))
"""Failures that a rule with failure probability delta exceeds with probability 1e-4: 64 of 400."""

Answer = tuple[list[float], list[int]]


def packed(answers: list[Answer], cap: int) -> AnswerItems:
    return AnswerItems.of([u for u, _ in answers], [w for _, w in answers], cap=cap)


def is_broken(answer: Answer, tau: float | None, cap: int, allowed: int = 0) -> bool:
    u, wrong = answer
    return int((kept(u, tau, cap) & (np.array(wrong, dtype=bool) if wrong else np.zeros(0, bool))).sum()) > allowed


# -- Exact -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "allowed", "too_many"),
    [*((alpha, allowed, 0) for alpha in (0.1, 0.25, 0.5) for allowed in (0, 1)), (0.1, 0, 1), (0.25, 0, 1)],
)
def test_on_average_exactly(alpha: float, allowed: int, too_many: int) -> None:
    """Of any n + 1 answers at most floor(alpha (n + 1)) break the fit on the others; the control tolerates one more."""
    worst = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        answers: list[Answer] = []
        for _ in range(int(rng.integers(4, 22))):
            size = int(rng.integers(0, 6))
            answers.append(((rng.integers(5, size=size) / 5).tolist(), (rng.random(size) < 0.3).astype(int).tolist()))
        cap, broken = 3, 0
        for j, left_out in enumerate(answers):
            others = packed(answers[:j] + answers[j + 1 :], cap)
            tau = clean_answers(others, alpha=alpha, delta=None, allowed=allowed).threshold
            if too_many:  # the control tolerates one broken answer more
                s = np.sort(others.first_broken(allowed))
                c = math.floor(alpha * (others.n + 1) + 1e-9)
                below = others.scores[others.scores < (s[c] if c < s.size else math.inf)]
                tau = float(below[-1]) if below.size else None
            broken += is_broken(left_out, tau, cap, allowed)
        worst = max(worst, broken - math.floor(alpha * len(answers) + 1e-9))
    assert (worst > 0) == bool(too_many)


TYPES: list[tuple[float, Answer]] = [
    (0.62, ([0.0, 0.0], [0, 0])),
    (0.14, ([0.0, 0.5], [0, 1])),
    (0.12, ([0.0, 0.5], [1, 1])),
    (0.12, ([], [])),
]
"""A population of four kinds of answer with their probabilities. At 0: broken .12 of all and .12/.88 of shown, wrong
.12 * 1 of 1.24 + .14 + .12 items; at .5: broken .26."""


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
    assert 0 < exact_failure(n, lambda some: clean_answers(some, alpha=alpha, delta=DELTA).threshold, bad) <= DELTA

    def plug_in(some: AnswerItems) -> float | None:
        good = [t for t in some.scores.tolist() if (some.first_broken() <= t).mean() <= alpha]
        return max(good, default=None)

    assert exact_failure(n, plug_in, bad) > 0.3


@pytest.mark.parametrize("alpha", [0.13, 0.26])
def test_clean_shown_exactly(alpha: float) -> None:
    """Of shown answers .12/.88 = .136 are broken at 0 and .26/.88 = .295 at .5."""
    risk = {0.0: 0.12 / 0.88, 0.5: 0.26 / 0.88}
    bad = lambda tau: risk[tau] > alpha  # noqa: E731

    def fit(some: AnswerItems) -> float | None:
        return clean_shown(some, alpha=alpha, delta=DELTA, start=0.0).threshold

    assert 0 < exact_failure(22, fit, bad) <= DELTA

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


def start(
    rng: np.random.Generator, population: Callable[..., list[Answer]], n: int, rule: Literal["item", "answer", "shown"]
) -> float | None:
    """Where a rule begins, from unlabelled answers."""
    unlabelled = packed(population(rng, 500), CAP)
    if rule == "shown":
        return start_shown(unlabelled, n, alpha=ALPHA, delta=DELTA, other=True)
    return start_wrong_share(unlabelled, n, alpha=ALPHA, delta=DELTA, per=rule)


def parts_as_independent(some: AnswerItems, start: float) -> float | None:
    """The control: exact binomial tests over items from the same start, as if each item were an answer."""
    best = None
    for tau in some.scores[some.scores >= start]:
        kept_parts, wrong = some.counts(np.array([tau]))
        if tail(int(wrong.sum()), int(kept_parts.sum()), ALPHA) > DELTA:
            break
        best = float(tau)
    return best


def t_test(some: AnswerItems, start: float) -> float | None:
    """The control: a one-sided t-test on Z by answers, which is asymptotic."""
    best = None
    for tau in some.scores[some.scores >= start]:
        kept_parts, wrong = some.counts(np.array([tau]))
        z = (wrong - ALPHA * kept_parts)[:, 0]
        spread = z.std(ddof=1) / math.sqrt(z.size)
        if z.mean() > 0 or (spread > 0 and stats.t.cdf(z.mean() / spread, z.size - 1) > DELTA):
            break
        best = float(tau)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("population", [all_or_nothing, rarely_all_wrong])
def test_wrong_share_holds_in_the_worst_case(population: Callable[..., list[Answer]]) -> None:
    """Any threshold at all is a failure here: the share of wrong items is 10.1 or 10.2 % at every one."""
    rng, n = np.random.default_rng(8), 150
    failed = {"item": 0, "independent": 0, "t": 0}
    for _ in range(RUNS):
        first = start(rng, population, n, "item")
        some = packed(population(rng, n), CAP)
        failed["item"] += wrong_share(some, alpha=ALPHA, delta=DELTA, per="item", start=first).threshold is not None
        late = first if first is not None else 0.5
        failed["independent"] += parts_as_independent(some, late) is not None
        failed["t"] += t_test(some, late) is not None
    assert failed["item"] <= LIMIT
    assert failed["independent"] > LIMIT
    if population is rarely_all_wrong:
        assert failed["t"] > LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["answer", "shown"])
def test_rules_over_answers_hold_in_the_worst_case(rule: Literal["answer", "shown"]) -> None:
    rng, n = np.random.default_rng(9), 150
    failed = plugged = 0
    for _ in range(RUNS):
        first = start(rng, all_or_nothing, n, rule)
        some = packed(all_or_nothing(rng, n), CAP)
        if rule == "answer":
            found = wrong_share(some, alpha=ALPHA, delta=DELTA, per="answer", start=first)
        else:
            found = clean_shown(some, alpha=ALPHA, delta=DELTA, start=first)
        failed += found.threshold is not None
        shown, broken = some.first_kept(), some.first_broken()
        late = some.scores[some.scores >= (first or 0.5)]
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


def true_risks(tau: float, truth: AnswerItems) -> dict[str, float]:
    kept_parts, wrong = (counts[:, 0] for counts in truth.counts(np.array([tau])))
    shown = kept_parts > 0
    return {
        "item": wrong.sum() / max(1, kept_parts.sum()),
        "answer": float((wrong[shown] / kept_parts[shown]).mean()),
        "shown": float((wrong[shown] > 0).mean()),
        "all": float((wrong > 0).mean()),
    }


@pytest.mark.slow
def test_all_rules_hold_where_thresholds_exist_and_start_from_the_calibration_answers() -> None:
    """With starts read off the calibration answers; half of the fits must find a threshold."""
    rng, n, runs = np.random.default_rng(10), 200, 250
    truth = packed(mixed(np.random.default_rng(11), 40_000), CAP)
    limit = int(stats.binom.ppf(1 - 1e-4, runs, DELTA))
    failed = dict.fromkeys(("item", "answer", "shown", "all", "both"), 0)
    found_any = dict.fromkeys(failed, 0)
    alphas = {"item": 0.1, "answer": 0.1, "shown": 0.2, "all": 0.2}
    risks_at: dict[float, dict[str, float]] = {}  # scores have one decimal: few thresholds occur
    for _ in range(runs):
        some = packed(mixed(rng, n), CAP)
        taus: dict[str, float | None] = {}
        for per in ("item", "answer"):
            first = start_wrong_share(some, n, alpha=0.1, delta=DELTA, per=per)
            taus[per] = wrong_share(some, alpha=0.1, delta=DELTA, per=per, start=first).threshold
        first = start_shown(some, n, alpha=0.2, delta=DELTA, other=False)
        taus["shown"] = clean_shown(some, alpha=0.2, delta=DELTA, start=first).threshold
        taus["all"] = clean_answers(some, alpha=0.2, delta=DELTA).threshold
        first = start_wrong_share(some, n, alpha=0.1, delta=DELTA / 2, per="item", share=ItemsRule("both").start)
        share = wrong_share(some, alpha=0.1, delta=DELTA / 2, per="item", start=first)
        taus["both"] = both(share, clean_answers(some, alpha=0.4, delta=DELTA / 2)).threshold
        for name, tau in taus.items():
            if tau is None:
                continue
            if tau not in risks_at:
                risks_at[tau] = true_risks(tau, truth)
            risks = risks_at[tau]
            found_any[name] += 1
            if name == "both":
                failed[name] += risks["item"] > 0.1 or risks["all"] > 0.4
            else:
                failed[name] += risks[name] > alphas[name]
    assert max(failed.values()) <= limit, failed
    assert min(found_any[name] for name in ("item", "answer", "all", "both")) > runs / 2, found_any


def test_one_giant_group_needs_its_size_declared() -> None:
    """One group in a hundred has 40 answers, all wrong: with its size declared nothing false is certified."""
    rng, runs, n_groups = np.random.default_rng(12), 60, 120
    failed = {"declared": 0, "observed": 0}
    for _ in range(runs):
        u: list[list[float]] = []
        wrong: list[list[int]] = []
        groups: list[str] = []
        for g in range(n_groups):
            giant = rng.random() < 0.01
            for _ in range(40 if giant else 1):
                groups.append(str(g))
                u.append(rng.random(CAP if giant else 3).tolist())
                wrong.append([1] * CAP if giant else [0] * 3)
        some = AnswerItems.of(u, wrong, cap=CAP)
        # E[wrong] = .01 * 320 of .01 * 320 + .99 * 3 items: 52 % are wrong at every threshold.
        sizes = np.bincount([int(name) for name in groups], weights=some.size)
        for name, largest in (("declared", 40 * CAP), ("observed", int(sizes.max()))):
            same = len(set(groups)) == len(groups)
            found = wrong_share(
                some,
                alpha=0.3,
                delta=DELTA,
                per="item",
                start=0.5,
                groups=None if same else groups,
                largest_group=None if same else largest,
            )
            if name == "observed" and same:  # the bound that the data show: 3 items
                found = wrong_share(AnswerItems.of(u, wrong, cap=3), alpha=0.3, delta=DELTA, per="item", start=0.5)
            failed[name] += found.threshold is not None
    assert failed["declared"] - failed["observed"] <= 0
    assert failed["observed"] > DELTA * runs


def by_length(rng: np.random.Generator, n: int, order: str) -> bool:
    """Whether a fit that reads answers in this order certifies a share of wrong items that is too high."""
    answers = rarely_all_wrong(rng, n)
    if order == "length":
        answers.sort(key=lambda answer: len(answer[0]))
    some = packed(answers, CAP)
    if order == "hash":
        return wrong_share(some, alpha=ALPHA, delta=DELTA, per="item", start=0.99).threshold is not None
    kept_parts, wrong = some.counts(np.array([0.99]))
    return bool(p_capital(wrong - ALPHA * kept_parts, (1 - ALPHA) * CAP, DELTA)[0] <= DELTA)


def test_the_order_must_not_depend_on_length() -> None:
    """Read by length, the capital has grown before the first wrong answer comes."""
    rng, runs = np.random.default_rng(13), 100
    failed = {order: sum(by_length(rng, 600, order) for _ in range(runs)) for order in ("hash", "length")}
    assert failed["hash"] <= stats.binom.ppf(1 - 1e-4, runs, DELTA)
    assert failed["length"] > 0.5 * runs


def test_items_beyond_the_cap_are_not_kept_at_run_time() -> None:
    """Forgotten at run time, the cap's answers of 30 wrong items count in full."""
    u = [0.0] * 30
    assert kept(u, 0.5, CAP).sum() == CAP
    assert np.isfinite(measured(u, CAP)).sum() == CAP
