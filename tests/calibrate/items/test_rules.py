"""Rules for items: the method's check values, the reference in plain numpy, and every refusal."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.fitting import fit, rule_for
from calibrate.rules import RULES, compared_rules
from calibrate.rules.capital import certified_groups
from calibrate.rules.certificate import start
from calibrate.rules.counts import Feasible, Infeasible, Result
from calibrate.rules.items import AnswerItems, clean_answers, clean_shown, wrong_share, wrong_share_per_answer
from guardrail.errors import UsageError

ITEM_RULES = compared_rules("item")
BY_NAME = {rule.__name__: rule for rule in (wrong_share, wrong_share_per_answer, clean_shown, clean_answers)}

FOUND = [path for folder in Path(__file__).parents if (path := folder / "shared" / "parts_reference.py").is_file()]


def threshold(found: Result) -> float | None:
    return found.threshold if isinstance(found, Feasible) else None


def random_answers(
    rng: np.random.Generator, n: int, *, levels: int = 6, risk: float = 0.3, most: int = 7
) -> tuple[list[list[float | None]], list[list[int]]]:
    """Answers with ties, unmeasured items and undecided labels."""
    uncertainties: list[list[float | None]] = []
    wrong: list[list[int]] = []
    for _ in range(n):
        values = rng.integers(levels, size=int(rng.integers(1, most))) / levels
        uncertainties.append([None if rng.random() < 0.1 else float(u) for u in values])
        wrong.append([int(rng.choice([0, 1, -1], p=[1 - risk, risk * 0.9, risk * 0.1])) for _ in values])
    return uncertainties, wrong


def wholly(*wrong: bool) -> AnswerItems:
    """Answers of one item each at the same score."""
    return AnswerItems.of([[0.0]] * len(wrong), [[int(each)] for each in wrong], cap=1)


# -- The method's check values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "n", "c"),
    [
        *((0.1, n, c) for n, c in ((21, -1), (22, 0), (50, 1), (100, 5), (300, 22), (1000, 87))),
        *((0.2, n, c) for n, c in ((10, -1), (11, 0), (50, 5), (100, 14), (300, 50))),
    ],
)
def test_broken_answers_that_clean_answers_tolerates(alpha: float, n: int, c: int) -> None:
    """A threshold is found with c answers broken there, and none with c + 1."""
    for broken, feasible in ((c, c >= 0), (c + 1, False)):
        some = wholly(*[True] * max(0, broken), *[False] * (n - max(0, broken)))
        found = clean_answers(some, alpha, 0.1)
        assert isinstance(found, Feasible) == feasible


@pytest.mark.parametrize(("n", "feasible"), [(24, False), (25, True)])
def test_answers_that_a_share_per_answer_needs(n: int, feasible: bool) -> None:
    """.9 * .1/.9 = .1 is the gain of a right answer: 1.1**-24 = .1015 and 1.1**-25 = .0923."""
    assert isinstance(wrong_share_per_answer(wholly(*[False] * n), 0.1, 0.1), Feasible) == feasible


@pytest.mark.parametrize(("share", "needed"), [(1.0, 25), (0.5, 48), (0.25, 94)])
def test_answers_that_a_share_per_item_needs(share: float, needed: int) -> None:
    """At alpha .1 and delta .1, by the mean of K / cap."""
    size = round(share * 4)
    for n in (needed - 1, needed):
        some = AnswerItems.of([[0.0] * size] * n, [[0] * size] * n, cap=4)
        found = wrong_share(some, 0.1, 0.1)
        assert isinstance(found, Feasible) == (n == needed)
        if isinstance(found, Infeasible):
            assert found.start == needed


# -- Equal to the reference --------------------------------------------------------------------------------------------


def reference() -> Any:
    if not FOUND:
        pytest.skip("no parts_reference.py in a folder `shared` beside this repository")
    spec = importlib.util.spec_from_file_location("parts_reference", FOUND[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parts_reference"] = module
    spec.loader.exec_module(module)
    return module


def in_their_order(items: list[Any], order: list[int]) -> list[Any]:
    """Arrange answers so that the reference, which shuffles positions, reads them in ``order``."""
    theirs = np.random.default_rng(0).permutation(len(items))
    arranged: list[Any] = [None] * len(items)
    for t, place in enumerate(theirs):
        arranged[place] = items[order[t]]
    return arranged


def hashed(ids: list[str]) -> list[int]:
    return sorted(range(len(ids)), key=lambda i: hashlib.sha256(ids[i].encode()).digest())


@pytest.mark.parametrize("block", range(4))
def test_rules_are_those_of_the_reference(block: int) -> None:
    R = reference()
    feasible = 0
    for seed in range(50 * block, 50 * block + 50):
        rng = np.random.default_rng(seed)
        n, cap = int(rng.integers(20, 160)), int(rng.integers(2, 7))
        alpha, delta = float(rng.choice([0.1, 0.2, 0.3])), float(rng.choice([0.05, 0.1]))
        u, w = random_answers(rng, n, levels=int(rng.choice([5, 10, 1000])), risk=float(rng.choice([0.02, 0.1, 0.3])))
        items = AnswerItems.of(u, w, cap=cap)
        theirs = [([math.nan if x is None else x for x in a], b) for a, b in zip(u, w, strict=True)]
        grid = items.scores
        for level in (None, delta):
            ours = clean_answers(items, alpha, level)
            assert threshold(ours) == R.clean_answers(theirs, alpha, level, cap=cap).tau
            feasible += isinstance(ours, Feasible)
        shown = np.searchsorted(np.sort(items.first_kept()), grid, side="right")
        first = int(np.searchsorted(shown, start(n, alpha, delta)))
        weights = (np.arange(grid.size) == first).astype(float)
        ours = clean_shown(items, alpha, delta)
        assert threshold(ours) == R.shown_clean(theirs, alpha, delta, grid, cap=cap, weights=weights).tau
        feasible += isinstance(ours, Feasible)
        read = in_their_order(theirs, hashed([str(name) for name in items.names]))
        begin = int(rng.integers(grid.size))
        weights = (np.arange(grid.size) == begin).astype(float)
        for per, theirs_is in (("item", "part"), ("answer", "answer")):
            most = cap if per == "item" else None
            rows = items.uncertainty, items.wrong
            ours = certified_groups(*rows, alpha, delta, group=items.group, most=most, begin=float(grid[begin]))
            expected = R.wrong_share(read, alpha, delta, grid, cap=cap, per=theirs_is, weights=weights)
            assert threshold(ours) == expected.tau
            feasible += isinstance(ours, Feasible)
    assert feasible > 100  # the comparison must not be one of refusals


# -- Edge cases --------------------------------------------------------------------------------------------------------


def test_what_could_not_be_measured_is_never_kept_and_undecided_is_wrong() -> None:
    items = AnswerItems.of([[0.1, None, math.inf, 0.0, 0.0], [math.nan]], [[0, 1, 0, -1, None], [0]], cap=2)
    assert items.uncertainty.tolist() == [math.inf, math.inf, math.inf, 0, 0, math.inf]
    assert items.wrong.tolist() == [0, 1, 0, 1, 1, 0]
    K, W = items.counts(1.0)
    assert (K.tolist(), W.tolist()) == ([2, 0], [2, 0])
    assert items.counts(None)[0].tolist() == [0, 0]
    assert items.first_broken().tolist() == [0.0, math.inf]
    assert items.first_kept().tolist() == [0.0, math.inf]


def test_answers_that_keep_nothing_stay_in_n() -> None:
    """22 answers are needed at .1/.1: with only 21 that are measured, and one that is not, there are 22."""
    u: list[list[float | None]] = [[0.5]] * 21
    assert isinstance(clean_answers(AnswerItems.of(u, [[0]] * 21, cap=1), 0.1, 0.1), Infeasible)
    found = clean_answers(AnswerItems.of([*u, [None]], [[0]] * 22, cap=1), 0.1, 0.1)
    assert (threshold(found), found.n) == (0.5, 22)


def test_taking_answers_keeps_their_items() -> None:
    u, w = random_answers(np.random.default_rng(1), 30)
    items = AnswerItems.of(u, w, cap=3)
    places = np.array([7, 3, 12])
    some = items.take(places)
    direct = AnswerItems.of([u[i] for i in places], [w[i] for i in places], cap=3, ids=["7", "3", "12"])
    assert some.names == direct.names
    assert np.array_equal(some.answer, direct.answer)
    assert np.array_equal(some.uncertainty, direct.uncertainty)
    assert np.array_equal(some.wrong, direct.wrong)
    assert items.take(np.zeros(30, dtype=np.bool_)).n == 0


def test_items_that_nobody_decided_count_as_wrong_and_never_loosen_a_threshold() -> None:
    """People are asked up to an uncertainty of .6 only: what passes is what passes below, or less."""
    rng = np.random.default_rng(3)
    u = [list(np.round(rng.random(5), 2)) for _ in range(200)]
    right = AnswerItems.of(u, [[0] * 5 for _ in u], cap=5)
    asked = AnswerItems.of(u, [[None if x > 0.6 else 0 for x in some] for some in u], cap=5)
    for rule in ITEM_RULES:
        everything, below = (threshold(BY_NAME[rule](items, 0.1, 0.1)) for items in (right, asked))
        assert everything == right.scores[-1]
        assert below is not None
        assert everything is not None
        assert below < 0.8 < everything


@pytest.mark.parametrize("rule", ITEM_RULES)
def test_counts_of_a_result_are_answers(rule: Any) -> None:
    u, w = random_answers(np.random.default_rng(7), 200, risk=0.02)
    items = AnswerItems.of(u, w, cap=7)
    found = BY_NAME[rule](items, 0.3, 0.1)
    assert isinstance(found, Feasible)
    K, W = items.counts(found.threshold)
    assert (found.n, found.k, found.e) == (200, (K > 0).sum(), (W > 0).sum())


def test_reasons() -> None:
    bad = AnswerItems.of([[0.0, 0.1]] * 100, [[1, 1]] * 100, cap=2)
    for rule in ITEM_RULES:
        found = BY_NAME[rule](bad, 0.1, 0.1)
        assert isinstance(found, Infeasible)
        assert found.reason == "risk_never_low_enough"
        few = BY_NAME[rule](wholly(*[False] * 12), 0.1, 0.1)
        assert isinstance(few, Infeasible)
        assert few.reason == "too_few_items"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cap": 0}, "cap must be a whole number of items, at least 1, got 0"),
        ({"cap": True}, "cap must be a whole number"),
        ({"wrong": [[0], [0, 0]]}, "answer '1' has 1 uncertainties and 2 labels"),
        ({"uncertainties": [[0.0], []], "wrong": [[0], []]}, "answer '1' has 0 uncertainties"),
        ({"ids": ["a", "a"]}, "an id occurs twice"),
        ({"uncertainties": [], "wrong": []}, "no answers"),
    ],
)
def test_bad_answers_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"uncertainties": [[0.0], [0.5]], "wrong": [[0], [0]], "cap": 1} | change
    with pytest.raises(UsageError, match=message):
        AnswerItems.of(given.pop("uncertainties"), given.pop("wrong"), **given)


@pytest.mark.parametrize("rule", ITEM_RULES)
@pytest.mark.parametrize(("name", "values"), [("alpha", (15, 0.1)), ("delta", (0.1, 0))])
def test_bad_targets_are_refused(rule: Any, name: str, values: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match=f"{name} must be in"):
        fit([0.0, 0.0], [0, 0], alpha=values[0], delta=values[1], rule=rule, groups=[0, 1], cap=1)


def test_a_rule_of_the_other_unit_is_refused_with_the_names() -> None:
    assert rule_for("item", None) is RULES["wrong_share"]
    with pytest.raises(
        UsageError, match=r"'certified' is about whole answers, .* of items\. Choose one of: wrong_share, "
    ):
        rule_for("item", "certified")
    with pytest.raises(UsageError, match="'clean_shown' is about items of answers"):
        rule_for("answer", "clean_shown")


def test_items_of_arrays_are_rows_whose_group_is_their_answer() -> None:
    """60 answers of two items: the surer one is right, the other wrong. Of kept items at 0 none is wrong."""
    u, wrong, answers = [0.0, 1.0] * 60, [0, 1] * 60, [i // 2 for i in range(120)]
    found = fit(u, wrong, alpha=0.2, rule="wrong_share", groups=answers, cap=2)
    assert (found.threshold, found.n, found.n_accepted, found.n_errors) == (0.0, 60, 60, 0)
    assert (found.options, found.diagnostics.base_error) == ({"cap": 2}, 1.0)  # every answer has a wrong item
    for given, message in (({"cap": 1}, "an answer has 2 measured items, more than cap = 1"), ({}, "need cap")):
        with pytest.raises(UsageError, match=message):
            fit(u, wrong, alpha=0.2, rule="wrong_share", groups=answers, **given)
    with pytest.raises(UsageError, match="is of rule 'certified'"):
        fit(u, wrong, alpha="smallest", rule="wrong_share", groups=answers, cap=2)
