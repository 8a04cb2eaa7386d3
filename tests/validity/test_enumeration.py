"""Every label sequence of a small calibration set, run through the rules themselves and summed with its probability.

Nothing is simulated and no internals are used: for a flat risk of alpha and every first bad number of items K0, the
probability that a certified rule accepts K0 items or more is at most delta, with and without ties.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest

from calibrate.thresholds import fit, rules
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.registry import rule_named
from calibrate.thresholds.rule import Prefix, prefixes
from guardrail.notebook import percent
from guardrail.outcome import Feasible

N = 12
ALPHA, DELTA = 0.45, 0.3
BLOCKS = {"untied": [1] * N, "tied": [3, 1, 4, 2, 2], "coarse": [5, 7]}
CERTIFIED: list[tuple[str, dict[str, Any]]] = [
    ("cp_simultaneous", {"min_accept": 3}),
    ("anchored", {"min_accept": 3}),
    ("certified", {"min_accept": 2}),
    ("fixed_sequence", {"start": 3}),
    ("certified", {"min_accept": 3}),
    ("bonferroni", {"points": 3}),
    ("bonferroni", {"points": 3, "holm": True}),
    ("sgr", {}),
]


def worst(
    rule: str, options: dict[str, Any], sizes: list[int], alpha: float = ALPHA, delta: float | None = DELTA
) -> float:
    """Return the largest probability, over every first bad block end K0, of accepting K0 items or more.

    The number of errors among the first K0 items is Bin(K0, alpha) and later items are flat. Below K0 the order
    is unknown, so the worst case counts: every error as late as possible.
    """
    delta = delta if rule_named(rule).uses_delta else None
    chosen, request = request_for(rule, alpha=alpha, delta=delta, options=options)
    score = np.repeat(np.arange(len(sizes), dtype=np.float64), sizes)

    def accepted(labels: tuple[int, ...]) -> int:
        fitted = prefixes(score, np.array(labels, dtype=np.int8))
        index = chosen.select(fitted, request)
        return 0 if index is None else int(fitted.k[index])

    return max(_failure(k0, accepted, alpha) for k0 in np.cumsum(sizes).tolist())


def _failure(k0: int, accepted: Callable[[tuple[int, ...]], int], alpha: float) -> float:
    total = failed = 0.0
    for errors in range(k0 + 1):
        start = (0,) * (k0 - errors) + (1,) * errors
        for later in product((0, 1), repeat=N - k0):
            wrong = errors + sum(later)
            chance = comb(k0, errors) * alpha**wrong * (1 - alpha) ** (N - wrong)
            total += chance
            failed += chance * (accepted(start + later) >= k0)
    assert total == pytest.approx(1.0)
    return failed


LONG = ("bonferroni", "sgr")
"""Rules that take seconds on untied scores; ties and the other rules stay in `make test`."""


@pytest.mark.parametrize(
    ("rule", "options", "ties"),
    [
        pytest.param(rule, options, ties, marks=pytest.mark.slow if rule in LONG and ties == "untied" else ())
        for rule, options in CERTIFIED
        for ties in BLOCKS
    ],
)
def test_certified_rules_fail_with_probability_at_most_delta(rule: str, options: dict[str, Any], ties: str) -> None:
    assert worst(rule, options, BLOCKS[ties]) <= DELTA + 1e-9


@pytest.mark.parametrize("expect", [None, 0.75])
@pytest.mark.parametrize("ties", BLOCKS)
def test_the_default_of_few_items_and_an_expected_share_hold(ties: str, expect: float | None) -> None:
    # Twelve items are fewer than 3 f = 15 at alpha .3, delta .2: five may be accepted, where the default was nine.
    assert worst("certified", {"expect": expect}, BLOCKS[ties], alpha=0.3, delta=0.2) <= 0.2 + 1e-9
    assert worst("certified", {}, BLOCKS["untied"], alpha=0.3, delta=0.2) > 0.15


@pytest.mark.parametrize("ties", BLOCKS)
def test_the_bound_is_nearly_used_up(ties: str) -> None:
    assert worst("certified", {"min_accept": 3}, BLOCKS[ties]) >= 0.6 * DELTA  # twelve items: steps are coarse


@pytest.mark.parametrize("rule", ["clopper_pearson", "empirical"])
def test_negative_controls_fail_the_same_checker(rule: str) -> None:
    assert worst(rule, {}, BLOCKS["untied"]) > DELTA + 0.05


# -- which rules certify -----------------------------------------------------------------------------------------------


def promised(rule: str) -> str | None:
    """Return a rule's promise for all but a share delta of calibrations, in finite samples; None if it makes none.

    This sentence is in every artifact that the rule makes.
    """
    chosen = rule_named(rule)
    delta = DELTA if chosen.uses_delta else None
    guarantee = fit([0.0] * 50, [0] * 50, alpha=ALPHA, rule=rule, delta=delta).guarantee
    start = (
        f"With probability at least {percent(1 - DELTA)} over calibrations the error rate among accepted answers is at "
        "most"
    )
    return guarantee if guarantee.startswith(f"{start} {ALPHA:g}") and "in finite samples" in guarantee else None


def test_the_rules_that_certify_are_those_that_promise_it() -> None:
    assert {rule for rule in rules() if promised(rule)} == {rule for rule in rules() if rule_named(rule).certifies}


@cache
def flat_risk() -> list[tuple[Prefix, float]]:
    """Return every sequence of N labels, and its probability if each label is wrong with probability alpha."""
    score = np.arange(N, dtype=np.float64)
    return [
        (prefixes(score, np.array(labels, dtype=np.int8)), ALPHA ** sum(labels) * (1 - ALPHA) ** (N - sum(labels)))
        for labels in product((0, 1), repeat=N)
    ]


@pytest.mark.parametrize("rule", rules())
def test_a_rule_that_certifies_fails_rarely_and_accepts_something(rule: str) -> None:
    """At a flat risk of alpha a rule may accept with probability delta only; it does accept certain answers.

    Hoeffding's bound is so wide that twelve items do not show that it fails as a scan.
    """
    chosen = rule_named(rule)
    delta = DELTA if chosen.uses_delta else None
    _, request = request_for(rule, alpha=ALPHA, delta=delta, options={})
    failed = sum(chance for fitted, chance in flat_risk() if chosen.select(fitted, request) is not None)
    if chosen.certifies:
        assert failed <= DELTA + 1e-9
        assert isinstance(fit([0.0] * 50, [0] * 50, alpha=ALPHA, rule=rule, delta=delta), Feasible)
    elif rule != "hoeffding":
        assert failed > DELTA + 0.05
