"""Why nothing was accepted, and the figures that go with every fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from calibrate.thresholds import fit, rules
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason


def infeasible(error: list[int], u: list[float] | None = None, **settings: Any) -> Infeasible:
    scores = [float(i) for i in range(len(error))] if u is None else u
    outcome = fit(scores, error, **settings)
    assert isinstance(outcome, Infeasible)
    return outcome


@pytest.mark.parametrize("rule", ["clopper_pearson", "cp_simultaneous", "anchored", "fixed_sequence", "sgr"])
def test_too_few_items(rule: str) -> None:
    # .9^10 = .35 > .1 even without an error; 22 clean items are needed (.9^22 = .0985).
    outcome = infeasible([0] * 10, alpha=0.1, rule=rule)
    assert outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "22 error-free" in outcome.detail
    assert outcome.diagnostics.zero_error_floor == 22


def test_too_few_items_for_acrc() -> None:
    outcome = infeasible([0] * 18, alpha=0.15)  # k_min = 19
    assert outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert outcome.options["min_accept"] == 19


def test_most_confident_items_are_wrong() -> None:
    # 10 of the first 19 are wrong, then 81 are right: C_19 = 10 - 2.85 > 0, C_100 = 10 - 15 = -5.
    outcome = infeasible([1] * 10 + [0] * 90, alpha=0.15)
    assert outcome.reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
    assert "Of the 19 most certain items 10 are wrong" in outcome.detail


def test_the_literal_rule_says_why_it_never_accepts_untied_scores() -> None:
    for alpha in (0.05, 0.15, 0.25, 0.45):
        outcome = infeasible([0] * 100, alpha=alpha, min_accept=1)
        assert outcome.reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
        assert "C_1/n >=" in outcome.detail
        assert "never forgets" in outcome.detail
        assert "Leave min_accept at its default" in outcome.detail
    assert isinstance(fit(np.arange(100.0), [0] * 100, alpha=0.51, min_accept=1), Feasible)  # n/(2n + 1) < .51


def test_the_literal_rule_works_with_ties_of_ten_sample_entropy() -> None:
    # Ten samples agree: entropy 0, 60 items with 2 wrong. Nine agree: .325, 20 items with 6. Eight: .500, 20 with 12.
    u = [0.0] * 60 + [0.325083] * 20 + [0.500402] * 20
    error = [1] * 2 + [0] * 58 + [1] * 6 + [0] * 14 + [1] * 12 + [0] * 8
    outcome = fit(u, error, alpha=0.15, min_accept=1)
    # C_60 = 2 - 9 = -7, C_80 = 8 - 12 = -4, C_100 = 20 - 15 = 5; correction .85 * 100/101 = .84.
    assert isinstance(outcome, Feasible)
    assert (outcome.n_accepted, outcome.n_errors, outcome.threshold) == (80, 8, 0.325083)


def test_the_envelope_never_holds() -> None:
    outcome = infeasible([0] * 100, alpha=0.15, envelope=True)
    assert outcome.reason is InfeasibleReason.RISK_NEVER_LOW_ENOUGH
    assert "never negative" in outcome.detail
    assert outcome.diagnostics.smallest_feasible_alpha is None


def test_a_fixed_sequence_that_stops_at_its_first_test() -> None:
    # From ceil(.1 * 100) = 10 items; .75^10 = .056, so ten clean items would have passed.
    outcome = infeasible([1] * 5 + [0] * 95, alpha=0.25, rule="fixed_sequence")
    assert outcome.reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
    assert "5 of the 10 most certain items are wrong" in outcome.detail


def test_a_fixed_sequence_that_starts_where_nothing_can_pass() -> None:
    # .85^10 = .197 > .1 >= .85^15 = .087: fifteen clean items are needed.
    outcome = infeasible([0] * 100, alpha=0.15, rule="fixed_sequence")
    assert outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "Fix a start of 15 or more" in outcome.detail
    assert isinstance(fit(np.arange(100.0), [0] * 100, alpha=0.15, rule="fixed_sequence", start=15), Feasible)


def test_a_binary_search_that_missed() -> None:
    # At level .1/7 and alpha .1 it takes 41 clean items (.9^41 = .0133). The first 44 are clean and would pass; the
    # search tests 51 items (7 wrong), then 26 and fewer, which are too few.
    outcome = infeasible([0] * 44 + [1] * 36 + [0] * 20, alpha=0.1, rule="sgr")
    assert outcome.reason is InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
    assert "44 most certain" in outcome.detail


@pytest.mark.parametrize("rule", [name for name in rules() if name not in ("fixed_quantile", "crc_joint")])
def test_nothing_is_feasible_when_everything_is_wrong(rule: str) -> None:
    outcome = infeasible([1] * 400, alpha=0.15, rule=rule)
    assert outcome.reason is InfeasibleReason.RISK_NEVER_LOW_ENOUGH
    assert outcome.diagnostics.max_acceptance == 0.0
    assert outcome.diagnostics.auroc is None


def test_the_joint_rule_accepts_a_few_wrong_answers_even_then() -> None:
    # 60/401 <= .15 < 61/401: a joint rate, so 59 wrong answers of 400 keep its promise.
    outcome = fit(np.arange(400.0), [1] * 400, alpha=0.15, rule="crc_joint")
    assert isinstance(outcome, Feasible)
    assert outcome.n_accepted == 59


def test_tie_block_too_large_for_acrc() -> None:
    # Blocks 10 (clean) and 90 (20 wrong): C_100 = 5. Spread evenly, 19 items hold 2 errors: 2 - 2.85 = -.85 <= -.842.
    outcome = infeasible([0] * 10 + [1] * 20 + [0] * 70, [0.0] * 10 + [1.0] * 90, alpha=0.15)
    assert outcome.reason is InfeasibleReason.TIE_BLOCK_TOO_LARGE
    assert "90 of 100 items (90%) share the score 1" in outcome.detail


def test_tie_block_too_large_for_others() -> None:
    # (20 + 1)/101 > .15 for the only block; a cut inside it would do.
    constant = infeasible([1] * 20 + [0] * 80, [0.0] * 100, alpha=0.15, rule="crc_joint")
    assert constant.reason is InfeasibleReason.TIE_BLOCK_TOO_LARGE
    half = infeasible([0, 0, 0, 1], [0.0, 0.0, 0.0, 1.0], alpha=0.15, rule="fixed_quantile")
    assert half.reason is InfeasibleReason.TIE_BLOCK_TOO_LARGE


def test_figures() -> None:
    # Errors at ranks 3, 4, 6 of 6: pairs (wrong above right): 2 + 2 + 3 = 7 of 9.
    outcome = fit([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0, 0, 1, 1, 0, 1], alpha=0.25, rule="clopper_pearson", delta=0.5)
    figures = outcome.diagnostics
    assert figures.base_error == 0.5
    assert figures.auroc == pytest.approx(7 / 9)
    assert figures.max_acceptance == pytest.approx(0.5 / 0.75)
    assert figures.zero_error_floor == 3  # .75^2 = .5625, .75^3 = .42
    assert fit([1.0, 2.0], [0, 1], alpha=0.25, rule="lec").diagnostics.zero_error_floor is None


def test_auroc_counts_ties_half() -> None:
    # Wrong at 1 and 2, right at 1, 1 and 0: pairs (1,1) (1,1) half, (1,0) one; (2, .) three: 1 + 1 + 3 of 6.
    outcome = fit([1.0, 1.0, 1.0, 2.0, 0.0], [1, 0, 0, 1, 0], alpha=0.5, rule="empirical")
    assert outcome.diagnostics.auroc == pytest.approx(5 / 6)


U = [float(k) for k in range(1, 11)]
E = [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("rule", "settings", "smallest"),
    [
        ("empirical", {}, 0.001),  # the first item is right: e_1 = 0
        ("lec", {}, 0.25),  # (e + 1)/k: 1/4 at k = 4, 2/7 at k = 7
        ("crc_joint", {}, 0.091),  # 1/11 = .0909...
        ("clopper_pearson", {"delta": 0.3}, 0.26),  # 1 - .3^(1/4) = .2599
        ("hoeffding", {"delta": 0.3}, 0.388),  # sqrt(ln(1/.3)/8) = .38796
        ("fixed_sequence", {"delta": 0.3, "start": 2}, 0.453),  # 1 - sqrt(.3) = .4523
        ("cp_simultaneous", {"delta": 0.3, "min_accept": 10}, 0.533),  # one test: 4 wrong of 10, see below
        ("fixed_quantile", {}, None),  # takes no notice of alpha
    ],
)
@pytest.mark.parametrize("alpha", [0.02, 0.3, 0.9])
def test_smallest_feasible_alpha(rule: str, settings: dict[str, Any], smallest: float | None, alpha: float) -> None:
    # sum_{j <= 4} C(10, j) p^j (1 - p)^(10 - j) is .3011 at p = .532 and .2989 at p = .533.
    outcome = fit(U, E, alpha=alpha, rule=rule, **settings)
    assert outcome.diagnostics.smallest_feasible_alpha == smallest


@pytest.mark.parametrize("rule", [name for name in rules() if name != "fixed_quantile"])
def test_the_smallest_feasible_alpha_is_just_feasible(rule: str) -> None:
    rng = np.random.default_rng(11)
    u = rng.normal(size=300)
    error = (rng.random(300) < 1 / (1 + np.exp(2.0 - 1.5 * u))).astype(int)
    smallest = fit(u, error, alpha=0.1, rule=rule).diagnostics.smallest_feasible_alpha
    assert smallest is not None
    assert isinstance(fit(u, error, alpha=smallest, rule=rule), Feasible)
    if smallest > 0.001:
        assert isinstance(fit(u, error, alpha=round(smallest - 0.001, 3), rule=rule), Infeasible)


def test_fast_diagnosis_skips_the_search_and_says_so() -> None:
    outcome = fit(U, E, alpha=0.3, rule="empirical", diagnose="fast")
    assert outcome.diagnostics.smallest_feasible_alpha is None
    assert outcome.options["diagnose"] == "fast"
    assert fit(U, E, alpha=0.3, rule="empirical").options["diagnose"] == "full"


def test_an_outcome_survives_json() -> None:
    for rule in rules():
        outcome = fit(U, E, alpha=0.3, rule=rule)
        assert type(outcome).model_validate_json(outcome.model_dump_json()) == outcome


def test_the_reason_names_what_came_closest_and_not_a_lucky_first_item() -> None:
    # Untied, the first right, then every second one wrong: 1 of 1 is the lowest rate, and says nothing.
    error = [0] + [1, 0] * 99 + [1]
    outcome = infeasible(error, alpha=0.1)
    smallest = outcome.diagnostics.smallest_feasible_alpha
    assert smallest is not None
    there = fit(range(200), error, alpha=smallest)
    assert isinstance(there, Feasible)
    assert f"Accepting the {there.n_accepted} most certain came closest, with {there.n_errors} wrong" in outcome.detail
    assert "the 1 most certain" not in outcome.detail
    fast = infeasible(error, alpha=0.1, diagnose="fast")  # the alpha is unknown, and k_min = 29 still holds
    match = re.search(r"Accepting the (\d+) most certain", fast.detail)
    assert match is not None
    assert int(match[1]) >= 29


def test_the_reason_ends_with_the_step_that_helps() -> None:
    good = [0] * 40 + [1] * 60
    assert infeasible([1] * 50 + [0] * 50, alpha=0.1, rule="clopper_pearson").detail.endswith(
        "Check whether the score is upside down: higher must mean less certain (AUROC 0.00, and 0.5 is guessing)."
    )
    mixed = [0, 1] * 50
    another = infeasible([0, *mixed], alpha=0.1).detail
    assert "Use another uncertainty score" in another
    assert another.endswith("Fit another score on fresh labels: a second fit on these is a selection, and is paid for.")
    few = infeasible([0] * 20 + [1] + [0] * 14 + [1] * 5, alpha=0.1, rule="certified")  # 1 of 35 is not yet shown
    assert few.detail.endswith(
        "Label more questions: that rate is within the target, but the items are too few to show it."
    )
    outcome = infeasible([0, 0, 0, 1] * 20 + good, alpha=0.1)
    assert f"Ask for alpha = {outcome.diagnostics.smallest_feasible_alpha:g} or more" in outcome.detail


@pytest.mark.parametrize("rule", rules())
def test_reasons_hold_no_python(rule: str) -> None:
    """They are printed by the command line."""
    rng = np.random.default_rng(0)
    sets = [rng.integers(0, 2, 300), np.ones(300, dtype=int), np.array([1] * 30 + [0] * 270), np.zeros(12, dtype=int)]
    few = np.array([0] * 20 + [1] + [0] * 14 + [1] * 5)  # certificates end with "Label more questions" at 10 %
    for error, alpha in [*((error, 0.05) for error in sets), (few, 0.1)]:
        outcome = fit(np.arange(error.size), error, alpha=alpha, rule=rule)
        if isinstance(outcome, Infeasible):
            assert not re.search(r"smallest_feasible|=None|=True|=False|rule=", outcome.detail)
