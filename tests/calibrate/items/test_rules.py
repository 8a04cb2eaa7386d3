"""Rules for items: the method's check values, a reference in plain numpy, and every refusal."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.items.rules import (
    AnswerItems,
    both,
    clean_answers,
    clean_shown,
    reading_order,
    start_shown,
    start_wrong_share,
    tolerated,
    wrong_share,
)
from calibrate.rules.capital import p_capital
from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

REFERENCE = Path(__file__).parents[4] / "shared" / "parts_reference.py"


def random_answers(
    rng: np.random.Generator, n: int, *, levels: int = 6, risk: float = 0.3, most: int = 7
) -> tuple[list[list[float | None]], list[list[int]]]:
    """Answers with ties, unmeasured items and undecided labels; some have no items."""
    uncertainties: list[list[float | None]] = []
    wrong: list[list[int]] = []
    for _ in range(n):
        size = int(rng.integers(0, most))
        values = rng.integers(levels, size=size) / levels
        uncertainties.append([None if rng.random() < 0.1 else float(u) for u in values])
        wrong.append([int(rng.choice([0, 1, -1], p=[1 - risk, risk * 0.9, risk * 0.1])) for _ in values])
    return uncertainties, wrong


# -- The method's check values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "n", "c"),
    [
        *((0.1, n, c) for n, c in ((21, -1), (22, 0), (50, 1), (100, 5), (300, 22), (1000, 87))),
        *((0.2, n, c) for n, c in ((10, -1), (11, 0), (50, 5), (100, 14), (300, 50))),
    ],
)
def test_broken_answers_that_are_tolerated(alpha: float, n: int, c: int) -> None:
    assert tolerated(n, alpha, 0.1) == c


def wholly(*wrong: bool) -> AnswerItems:
    """Answers of one item each at the same score."""
    return AnswerItems.of([[0.0]] * len(wrong), [[int(each)] for each in wrong], cap=1)


def test_p_values_of_the_method() -> None:
    """.9 * .1/.9 = .1 is the gain of a right answer: 1.1**-24 = .1015 and 1.1**-25 = .0923."""
    for n, p in ((24, 0.1015), (25, 0.0923)):
        excess = np.full((n, 1), -0.1)
        assert p_capital(excess, 0.9, 0.1)[0] == pytest.approx(p, abs=5e-5)
        found = wrong_share(wholly(*[False] * n), alpha=0.1, delta=0.1, per="answer", start=0.0)
        assert (found.threshold is not None) == (p <= 0.1)
    tenth_wrong = np.full((60, 1), -0.1)
    tenth_wrong[9] = 0.9
    assert p_capital(tenth_wrong, 0.9, 0.1)[0] == pytest.approx(0.0362, abs=5e-5)


@pytest.mark.parametrize(("share", "needed"), [(1.0, 25), (0.5, 48), (0.25, 94)])
def test_answers_needed_without_an_error(share: float, needed: int) -> None:
    """At alpha .1 and delta .1, by the mean of K / cap."""
    cap = 4
    size = round(share * cap)
    for n in (needed - 1, needed):
        some = AnswerItems.of([[0.0] * size] * n, [[0] * size] * n, cap=cap)
        found = wrong_share(some, alpha=0.1, delta=0.1, per="item", start=0.0)
        assert (found.threshold is not None) == (n == needed)


# -- Equal to the reference --------------------------------------------------------------------------------------------


def reference() -> Any:
    if not REFERENCE.is_file():
        pytest.skip("the reference lies outside the repository")
    spec = importlib.util.spec_from_file_location("parts_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parts_reference"] = module
    spec.loader.exec_module(module)
    return module


def in_their_order(items: list[Any], order: np.ndarray) -> list[Any]:
    """Arrange answers so that the reference, which shuffles positions, reads them in ``order``."""
    theirs = np.random.default_rng(0).permutation(len(items))
    arranged: list[Any] = [None] * len(items)
    for t, place in enumerate(theirs):
        arranged[place] = items[order[t]]
    return arranged


@pytest.mark.parametrize("block", range(10))
def test_rules_are_those_of_the_reference(block: int) -> None:
    R = reference()
    feasible = 0
    for seed in range(50 * block, 50 * block + 50):
        rng = np.random.default_rng(seed)
        n, cap, allowed = int(rng.integers(20, 160)), int(rng.integers(2, 7)), int(rng.integers(0, 2))
        alpha, delta = float(rng.choice([0.1, 0.2, 0.3])), float(rng.choice([0.05, 0.1]))
        u, w = random_answers(rng, n, levels=int(rng.choice([5, 10, 1000])), risk=float(rng.choice([0.02, 0.1, 0.3])))
        items = AnswerItems.of(u, w, cap=cap)
        theirs = [([math.nan if x is None else x for x in a], b) for a, b in zip(u, w, strict=True)]

        for level in (None, delta):
            ours = clean_answers(items, alpha=alpha, delta=level, allowed=allowed)
            assert ours.threshold == R.clean_answers(theirs, alpha, level, allowed=allowed, cap=cap).tau
            feasible += ours.threshold is not None

        grid = np.arange(11) / 10
        weights = np.zeros(11)
        weights[2] = 1.0
        ours = clean_shown(items, alpha=alpha, delta=delta, start=grid[2], grid=grid, allowed=allowed)
        expected = R.shown_clean(theirs, alpha, delta, grid, allowed=allowed, cap=cap, weights=weights)
        assert ours.threshold == expected.tau
        assert list(ours.certified) == expected.detail["certified"]
        feasible += ours.threshold is not None

        read = in_their_order(theirs, reading_order(items.ids))
        for per in ("item", "answer"):
            share = wrong_share(items, alpha=alpha, delta=delta, per=per, start=grid[2], grid=grid)
            expected = R.wrong_share(read, alpha, delta, grid, cap=cap, per=per, weights=weights)
            assert share.threshold == expected.tau
            assert list(share.certified) == expected.detail["certified"]
            feasible += share.threshold is not None
            clean = clean_answers(items, alpha=alpha, delta=delta)
            assert both(share, clean).threshold == R.both(expected, R.clean_answers(theirs, alpha, delta, cap=cap))
    assert feasible > 40  # the comparison must not be one of refusals


# Thresholds by the method's reference implementation (shared/parts_reference.py), so that they are checked where it is
# absent too: seed, clean_answers on average and at delta .1, clean_shown, wrong_share per item and per answer; alpha
# .2, delta .1, cap 5, grid k/10 from .2.
ORACLE = (
    (0, 0.9, 0.9, 1.0, 1.0, 1.0),
    (1, 0.9, 0.9, 1.0, 1.0, 1.0),
    (2, 0.9, 0.7, None, None, None),
    (3, 0.2, 0.1, None, None, None),
    (4, 0.9, 0.9, 1.0, 1.0, 1.0),
    (5, 0.9, 0.9, 0.7, 1.0, 1.0),
    (6, 0.7, 0.4, None, 1.0, 1.0),
    (7, 0.4, 0.2, None, None, None),
)


@pytest.mark.parametrize(("seed", "average", "clean", "shown", "item", "answer"), ORACLE)
def test_thresholds_of_the_reference(
    seed: int, average: float | None, clean: float | None, shown: float | None, item: float | None, answer: float | None
) -> None:
    risk = (0.02, 0.05, 0.1, 0.2)[seed % 4]
    u, w = random_answers(np.random.default_rng(1000 + seed), 120, levels=10, risk=risk)
    items, grid = AnswerItems.of(u, w, cap=5), np.arange(11) / 10
    assert clean_answers(items, alpha=0.2, delta=None).threshold == average
    assert clean_answers(items, alpha=0.2, delta=0.1).threshold == clean
    assert clean_shown(items, alpha=0.2, delta=0.1, start=0.2, grid=grid).threshold == shown
    for per, expected in (("item", item), ("answer", answer)):
        assert wrong_share(items, alpha=0.2, delta=0.1, per=per, start=0.2, grid=grid).threshold == expected  # type: ignore[arg-type]


# -- Edge cases --------------------------------------------------------------------------------------------------------


def test_what_could_not_be_measured_is_never_kept_and_undecided_is_wrong() -> None:
    items = AnswerItems.of([[0.1, None, math.inf, 0.0, 0.0], [math.nan]], [[0, 1, 0, -1, None], [0]], cap=2)
    assert items.uncertainty.tolist() == [math.inf, math.inf, math.inf, 0, 0, math.inf]
    assert items.wrong.tolist() == [0, 1, 0, 1, 1, 0]
    kept, wrong = items.counts(np.array([0.0, 1.0]))
    assert kept.tolist() == [[2, 2], [0, 0]]
    assert wrong.tolist() == [[2, 2], [0, 0]]
    assert items.first_broken().tolist() == [0.0, math.inf]
    assert items.first_broken(2).tolist() == [math.inf, math.inf]
    assert items.first_kept().tolist() == [0.0, math.inf]


def test_answers_that_keep_nothing_stay_in_n() -> None:
    """22 answers are needed at .1/.1: with only 21 that have an item, and one that has none, there are 22."""
    u: list[list[float | None]] = [[0.5]] * 21
    assert clean_answers(AnswerItems.of(u, [[0]] * 21, cap=1), alpha=0.1, delta=0.1).threshold is None
    assert clean_answers(AnswerItems.of([*u, []], [*[[0]] * 21, []], cap=1), alpha=0.1, delta=0.1).threshold == 0.5


def test_counts_at_every_score_agree_with_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    u, w = random_answers(rng, 40, levels=50)
    items = AnswerItems.of(u, w, cap=4)
    kept, wrong = items.counts(items.scores)
    starts = np.concatenate([[0], np.cumsum(items.size)])
    for i in range(items.n):
        own = slice(starts[i], starts[i + 1])
        for j, tau in enumerate(items.scores):
            below = items.uncertainty[own] <= tau
            assert kept[i, j] == below.sum()
            assert wrong[i, j] == (below & (items.wrong[own] == 1)).sum()


def test_taking_answers_keeps_their_items() -> None:
    u, w = random_answers(np.random.default_rng(1), 30)
    items = AnswerItems.of(u, w, cap=3)
    places = np.array([7, 3, 12])
    some = items.take(places)
    direct = AnswerItems.of([u[i] for i in places], [w[i] for i in places], cap=3, ids=["7", "3", "12"])
    assert some.ids == direct.ids
    assert np.array_equal(some.uncertainty, direct.uncertainty)
    assert np.array_equal(some.wrong, direct.wrong)
    assert items.take(np.zeros(30, dtype=np.bool_)).n == 0


def test_a_cut_is_never_exceeded_and_its_labels_play_no_part() -> None:
    rng = np.random.default_rng(3)
    u = [list(np.round(rng.random(5), 2)) for _ in range(200)]
    right: list[list[int | None]] = [[0] * 5 for _ in u]
    above = [[None if x > 0.6 else 0 for x in some] for some in u]
    for labels in (right, above):
        items = AnswerItems.of(u, labels, cap=5, cut=0.6)
        start = start_wrong_share(items, items.n, alpha=0.1, delta=0.1, per="item")
        share = wrong_share(items, alpha=0.1, delta=0.1, per="item", start=start, grid=np.arange(21) / 20)
        assert share.threshold == pytest.approx(0.6)
        assert clean_answers(items, alpha=0.1, delta=0.1).threshold == 0.6


def test_one_look_with_planned_stakes_and_the_last_look_agree() -> None:
    """The running maximum at n of n planned answers is the plain p-value in the order given."""
    rng = np.random.default_rng(4)
    u = [list(np.round(rng.random(4), 1)) for _ in range(120)]
    w = [[int(rng.random() < 0.03) for _ in some] for some in u]
    items = AnswerItems.of(u, w, cap=4)
    last = wrong_share(items, alpha=0.2, delta=0.1, per="item", start=0.4, planned=120)
    early = wrong_share(items.take(np.arange(80)), alpha=0.2, delta=0.1, per="item", start=0.4, planned=120)
    assert last.threshold is not None
    assert early.threshold is not None
    assert early.threshold <= last.threshold
    with pytest.raises(UsageError, match="planned must be at least the 120 answers"):
        wrong_share(items, alpha=0.2, delta=0.1, per="item", start=0.4, planned=100)


def test_groups_need_a_declared_size() -> None:
    items = AnswerItems.of([[0.0, 0.0]] * 60, [[0, 0]] * 60, cap=2)
    groups = [str(i // 2) for i in range(60)]
    call = {"alpha": 0.2, "delta": 0.1, "per": "item", "start": 0.0, "groups": groups}
    with pytest.raises(UsageError, match="needs largest_group, the most items"):
        wrong_share(items, **call)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a group has 4 items, more than largest_group = 3"):
        wrong_share(items, largest_group=3, **call)  # type: ignore[arg-type]
    assert wrong_share(items, largest_group=4, **call).threshold == 0.0  # type: ignore[arg-type]
    # Twelve groups without an error, of at most 4 items: (1 + .9 * .2/.8)**12 = 11.4 > 10; eleven give 9.3.
    for count, feasible in ((11, False), (12, True)):
        some = items.take(np.arange(2 * count))
        found = wrong_share(some, **{**call, "groups": groups[: 2 * count]}, largest_group=4)  # type: ignore[arg-type]
        assert (found.threshold is not None) == feasible


def test_start_needs_no_labels_and_says_when_nothing_can_pass() -> None:
    u, w = random_answers(np.random.default_rng(2), 100)
    one, other = (AnswerItems.of(u, labels, cap=6) for labels in (w, [[1] * len(some) for some in w]))
    for per in ("item", "answer"):
        starts = [start_wrong_share(some, 100, alpha=0.2, delta=0.1, per=per) for some in (one, other)]
        assert starts[0] == starts[1] is not None
        assert start_wrong_share(one, 5, alpha=0.2, delta=0.1, per=per) is None
    needed = start_shown(one, 100, alpha=0.2, delta=0.1, other=False)
    spare = start_shown(one, 100, alpha=0.2, delta=0.1, other=True)
    assert needed is not None
    assert spare is not None
    assert needed <= spare
    assert (one.first_kept() <= needed).sum() >= 11  # ln .1 / ln .8 = 10.3
    assert start_shown(one, 10, alpha=0.2, delta=0.1, other=False) is None
    rising = AnswerItems.of([[place / 100] for place in range(100)], [[0]] * 100, cap=1)
    starts = [start_shown(rising, 100, alpha=0.2, delta=0.1, other=others) for others in (False, True)]
    assert starts == [0.10, 0.17]  # the 11th answer; and with two standard deviations the 18th, 11 + 2 sqrt(11) = 17.6
    found = wrong_share(one, alpha=0.2, delta=0.1, per="item", start=None)
    assert (found.threshold, found.reason) == (None, InfeasibleReason.TOO_FEW_ITEMS)


def test_the_start_is_the_first_threshold_with_enough_items() -> None:
    """alpha = delta = .1, n = 100, cap 4: ln 10 / ln(1 + .1 k) <= 80 from k = .292 on, so 116.8 of 400 items.

    With half of the answers, 50, it is k = .471 and 188.5 items.
    """
    scores = [(4 * i + j) / 1000 for i in range(100) for j in range(4)]
    items = AnswerItems.of([scores[4 * i : 4 * i + 4] for i in range(100)], [[0] * 4] * 100, cap=4)
    assert start_wrong_share(items, 100, alpha=0.1, delta=0.1, per="item") == 0.116  # the 117th item
    assert start_wrong_share(items, 100, alpha=0.1, delta=0.1, per="item", share=0.5) == 0.188  # the 189th item


def test_reasons() -> None:
    bad = AnswerItems.of([[0.0, 0.1]] * 100, [[1, 1]] * 100, cap=2)
    assert clean_answers(bad, alpha=0.1, delta=0.1).reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
    for found in (
        wrong_share(bad, alpha=0.1, delta=0.1, per="item", start=0.0),
        clean_shown(bad, alpha=0.1, delta=0.1, start=0.0),
    ):
        assert found.reason is InfeasibleReason.RISK_NEVER_LOW_ENOUGH
        assert "p = 1 > 0.1" in found.detail
    few = clean_answers(AnswerItems.of([[0.0]] * 21, [[0]] * 21, cap=1), alpha=0.1, delta=0.1)
    assert few.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "it takes 22" in few.detail


def test_reading_order_is_fixed_and_ignores_the_order_of_the_file() -> None:
    names = [f"q{i}" for i in range(50)]
    first = [names[i] for i in reading_order(names)]
    assert first == [names[::-1][i] for i in reading_order(names[::-1])]
    assert first != names
    assert first != [names[i] for i in reading_order(names, seed=1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cap": 0}, "cap must be a whole number of items, at least 1, got 0"),
        ({"cap": True}, "cap must be a whole number"),
        ({"wrong": [[0], [0, 0]]}, "answer '1' has 1 uncertainties and 2 labels"),
        ({"wrong": [[0]]}, "2 answers have uncertainties, 1 have labels"),
        ({"ids": ["a", "a"]}, "answer 'a' occurs twice"),
        ({"uncertainties": [], "wrong": []}, "no answers"),
    ],
)
def test_bad_answers_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"uncertainties": [[0.0], [0.5]], "wrong": [[0], [0]], "cap": 1} | change
    with pytest.raises(UsageError, match=message):
        AnswerItems.of(given.pop("uncertainties"), given.pop("wrong"), **given)


@pytest.mark.parametrize("alpha", [0, 1, 15])
def test_bad_targets_are_refused(alpha: float) -> None:
    items = wholly(False, False)
    with pytest.raises(UsageError, match="alpha must be in"):
        clean_answers(items, alpha=alpha, delta=0.1)


def test_bad_options_are_refused() -> None:
    items = wholly(False, False)
    with pytest.raises(UsageError, match="delta must be in"):
        clean_shown(items, alpha=0.1, delta=0, start=0.0)
    with pytest.raises(UsageError, match="allowed must be a whole number"):
        clean_answers(items, alpha=0.1, delta=0.1, allowed=-1)
    with pytest.raises(UsageError, match="per must be 'item' or 'answer'"):
        wrong_share(items, alpha=0.1, delta=0.1, per="claim", start=0.0)  # type: ignore[arg-type]
