"""Every rule on ten items small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from calibrate.thresholds import conformal_selection, fit, rules
from calibrate.thresholds.registry import RULES, certifies, compared_rules, planned_rules, swept_rules
from guardrail.outcome import Feasible, Infeasible

U = [float(k) for k in range(1, 11)]
E = [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]
# k       1    2    3    4    5    6    7    8    9   10
# e_k     0    0    0    0    1    1    1    2    3    4
# C_k   -.3  -.6  -.9 -1.2  -.5  -.8 -1.1  -.4  +.3 +1.0   at alpha = .3; correction .7 * 10/11 = .636
ZERO = [0] * 10


def accepted(rule: str, error: list[int], alpha: float = 0.3, **settings: Any) -> int | None:
    outcome = fit(U[: len(error)], error, alpha=alpha, rule=rule, **settings)
    return outcome.n_accepted if isinstance(outcome, Feasible) else None


def test_names() -> None:
    means = ["fixed_quantile", "empirical", "lec", "acrc", "crc_joint"]
    bounds = ["hoeffding", "clopper_pearson"]
    certificates = ["cp_simultaneous", "anchored", "fixed_sequence", "sgr", "bonferroni", "certified"]
    clusters = ["one_per_group", "group_mean", "group_total"]
    assert rules() == tuple(sorted(means + bounds + certificates + clusters))


def test_where_each_rule_is_shown() -> None:
    baselines = ("empirical", "lec", "clopper_pearson", "hoeffding", "fixed_quantile")
    certificates = ("certified", "cp_simultaneous", "fixed_sequence")
    assert compared_rules() == ("acrc", *baselines, *certificates, "crc_joint")
    assert swept_rules() == ("certified",)
    assert planned_rules() == ("acrc", *certificates, "sgr")
    assert not certifies("prediction_powered")  # not a threshold rule, and asymptotic
    words = {name: rule.promise.split(",")[0] for name, rule in RULES.items()}
    assert {name for name, promise in words.items() if promise == "certificate"} == {
        name for name, rule in RULES.items() if rule.certifies
    }


def test_what_alpha_is_a_share_of() -> None:
    assert [name for name, rule in RULES.items() if rule.population == "all"] == ["crc_joint"]


def test_fixed_quantile() -> None:
    assert accepted("fixed_quantile", E) == 5
    assert accepted("fixed_quantile", E, quantile=0.3) == 3  # .3 * 10 is 3 though floats may say 2.9999...
    assert accepted("fixed_quantile", E, quantile=1) == 10
    assert accepted("fixed_quantile", E, quantile=0.05) is None


def test_empirical() -> None:
    assert accepted("empirical", E) == 8
    assert accepted("empirical", [0, 0, 1], alpha=1 / 3) == 3  # C_3 = 1 - 3/3 = 0 counts as feasible


def test_lec() -> None:
    assert accepted("lec", E) == 7
    assert accepted("lec", ZERO, alpha=0.1) == 10  # C_10 = -1 exactly


def test_acrc() -> None:
    assert accepted("acrc", E, min_accept=4) == 4  # C_5 + .636 > 0 and the maximum remembers it
    assert accepted("acrc", E, min_accept=4, monotone=False) == 7  # C_7 = -1.1 <= -.636 < C_8
    assert accepted("acrc", E, min_accept=4, correction=False) == 8
    assert accepted("acrc", E, min_accept=6) == 7  # the violation at 5 lies below k_min
    assert accepted("acrc", E) is None  # default k_min = 9 at alpha = .3, and C_9 > 0
    assert accepted("acrc", E, min_accept=4, envelope=True) is None


def test_acrc_starts_at_the_first_block_end_past_k_min() -> None:
    u = [1.0] * 5 + [2.0] * 5
    outcome = fit(u, [0] * 9 + [1], alpha=0.3, rule="acrc", min_accept=3)
    # Block ends 5 and 10: C_5 = -1.5, C_10 = 1 - 3 = -2.
    assert isinstance(outcome, Feasible)
    assert (outcome.n_accepted, outcome.tie_block, outcome.threshold) == (10, 5, 2.0)


def test_clopper_pearson() -> None:
    # k = 4: .7^4 = .2401. k = 7, one error: .7^7 + 7 * .3 * .7^6 = .3294. k = 8, two: .5518.
    assert accepted("clopper_pearson", E, delta=0.3) == 4
    assert accepted("clopper_pearson", E, delta=0.33) == 7
    assert accepted("clopper_pearson", E, delta=0.24) is None


def test_hoeffding() -> None:
    # Without errors sqrt(ln(1/.3) / 20) = .2454 at k = 10, .2586 at k = 9.
    assert accepted("hoeffding", ZERO, delta=0.3) == 10
    assert accepted("hoeffding", ZERO, alpha=0.2454, delta=0.3) == 10
    assert accepted("hoeffding", ZERO, alpha=0.2453, delta=0.3) is None


def test_crc_joint() -> None:
    # (e + 1) / 11 <= .3 iff e <= 2.3.
    assert accepted("crc_joint", E) == 8
    assert accepted("crc_joint", E, alpha=1 / 11) == 4
    assert accepted("crc_joint", E, alpha=0.09) is None


def test_fixed_sequence() -> None:
    # At delta .3: k = 4 passes (.2401), k = 5 with one error has .168 + .360 = .528; k = 3 has .343.
    assert accepted("fixed_sequence", E, delta=0.3, start=4) == 4
    assert accepted("fixed_sequence", E, delta=0.3, start=0.4) == 4
    assert accepted("fixed_sequence", E, delta=0.3, start=3) is None
    assert accepted("fixed_sequence", ZERO, delta=0.3, start=4) == 10
    assert accepted("fixed_sequence", ZERO, delta=0.3) is None  # default start: ceil(.1 * 10) = 1, and .7 > .3


def test_sgr() -> None:
    # n = 8: three steps at delta/3 = .1. Without errors at alpha .5: mid 5 (.031), 7, 8 all pass.
    assert accepted("sgr", [0] * 8, alpha=0.5, delta=0.3) == 8
    # One error at the sixth: mid 5 passes, mid 7 with 1 error (1 + 7)/128 = .0625 passes, mid 8: 9/256 passes.
    assert accepted("sgr", [0, 0, 0, 0, 0, 1, 0, 0], alpha=0.5, delta=0.3) == 8
    # Errors at six to eight: mid 7 (2 errors, 29/128) fails, mid 6 (1 error, 7/64 = .109) fails: 5.
    assert accepted("sgr", [0, 0, 0, 0, 0, 1, 1, 1], alpha=0.5, delta=0.3) == 5
    # At alpha .3 even without errors mid 5 has .168, 3 and 2 more.
    assert accepted("sgr", [0] * 8, delta=0.3) is None


def test_bonferroni() -> None:
    # n = 8, two points, alpha .5, delta .2: floor ceil(ln .1 / ln .5) = 4, grid {4, 8}, level .1 each.
    assert accepted("bonferroni", [0, 0, 0, 0, 1, 1, 1, 1], alpha=0.5, delta=0.2, points=2) == 4  # 1/16; 163/256
    # Two errors of 8: 37/256 = .145 is above .1 but, after 1/16 <= .1, within Holm's second level .2.
    assert accepted("bonferroni", [0, 0, 0, 0, 1, 1, 0, 0], alpha=0.5, delta=0.2, points=2) == 4
    assert accepted("bonferroni", [0, 0, 0, 0, 1, 1, 0, 0], alpha=0.5, delta=0.2, points=2, holm=True) == 8
    assert accepted("bonferroni", [0, 0, 0], alpha=0.5, delta=0.2, points=2) is None


def test_cp_simultaneous_with_one_candidate_is_a_single_test() -> None:
    # min_accept = n leaves one k, so the level is delta itself: .7^10 = .0282, with one error .1493, with two .3828.
    assert accepted("cp_simultaneous", [0] * 9 + [1], delta=0.15, min_accept=10) == 10
    assert accepted("cp_simultaneous", [0] * 9 + [1], delta=0.14, min_accept=10) is None


def test_cp_simultaneous_pays_for_two_candidates() -> None:
    # alpha .5, k in {2, 3}: P(S_2 = 0) = 1/4, P(S_3 = 0) = 1/8, P(S_3 <= 1) = 1/2. A level in [1/4, 1/2) gives limits
    # (0, 0), which a walk meets with probability 1/4 <= .3; a level in [1/8, 1/4) gives (none, 0), met with 1/8 <= .2.
    assert accepted("cp_simultaneous", [0, 0, 1], alpha=0.5, delta=0.3, min_accept=2) == 2
    assert accepted("cp_simultaneous", [0, 0, 1], alpha=0.5, delta=0.2, min_accept=2) is None
    assert accepted("cp_simultaneous", [0, 0, 0], alpha=0.5, delta=0.2, min_accept=2) == 3


@pytest.mark.parametrize("rule", ["certified", "anchored", "one_per_group"])
def test_certified_extends_from_its_anchor(rule: str) -> None:
    # alpha .5, k in {2, 3, 4}, G = 1, .8165, .5884. From the right at delta .3: P(S_4 <= 0) = 1/16 <= .1765 and
    # P(S_4 <= 1) = 5/16 > .3, so c1(4) = c2(4) = 0. At k = 3: 1/16 + 1/8 * 1/2 = 1/8 <= .245 for no error, one error
    # adds 3/8: c1(3) = c2(3) = 0. At k = 2: 1/8 + 1/4 * 1/2 = 1/4 <= .3, one error adds 1/2: c1(2) = c2(2) = 0.
    # At delta .32 one error at k = 4 is too many for an anchor (5/16 > .188) but not for an extension (5/16 <= .32).
    assert accepted(rule, [0, 0, 0, 1], alpha=0.5, delta=0.3, min_accept=2) == 3
    assert accepted(rule, [0, 0, 0, 1], alpha=0.5, delta=0.32, min_accept=2) == 4
    assert accepted(rule, [0, 1, 0, 0], alpha=0.5, delta=0.3, min_accept=2) is None


def test_one_block_end_is_one_binomial_test() -> None:
    # P(Bin(30, .2) <= 2) = .0442, P(Bin(30, .2) <= 3) = .1227.
    def outcome(errors: int) -> Feasible | Infeasible:
        return fit([0.0] * 30, [1] * errors + [0] * (30 - errors), alpha=0.2, rule="certified", delta=0.1)

    assert isinstance(outcome(2), Feasible)
    assert isinstance(outcome(3), Infeasible)


def test_a_feasible_outcome_describes_its_threshold() -> None:
    outcome = fit([3.0, 1.0, 2.0, 2.0, 0.5], [1, 0, 0, 1, 0], alpha=0.4, rule="empirical")
    # Sorted: .5 1 | 2 2 | 3, e = 0 0 . 1 2: C_4 = 1 - 1.6, C_5 = 2 - 2 = 0: everything.
    assert isinstance(outcome, Feasible)
    assert (outcome.threshold, outcome.n_accepted, outcome.n_errors, outcome.tie_block) == (3.0, 5, 2, 1)
    assert (outcome.acceptance, outcome.error_rate) == (1.0, 0.4)
    stricter = fit([3.0, 1.0, 2.0, 2.0, 0.5], [1, 0, 0, 1, 0], alpha=0.3, rule="empirical")
    assert isinstance(stricter, Feasible)
    assert (stricter.threshold, stricter.n_accepted, stricter.n_errors, stricter.tie_block) == (2.0, 4, 1, 2)


def test_negative_zero_ties_with_zero() -> None:
    outcome = fit([0.0, -0.0, 1.0], [0, 1, 0], alpha=0.4, rule="empirical")
    assert isinstance(outcome, Feasible)
    assert outcome.n_accepted == 3  # C_2 = 1 - .8 > 0, so the tie at zero cannot be split to accept one item
    assert isinstance(fit([0.0, -0.0], [0, 1], alpha=0.4, rule="empirical"), Infeasible)


def test_conformal_selection() -> None:
    # Wrong calibration items at 7 and 9, n = 9: p = .1 .1 .2 .3. BH at .2 over m = 4: .05 .1 .15 .2 -> two.
    u, e = [float(k) for k in range(1, 10)], [0, 0, 0, 0, 0, 0, 1, 0, 1]
    chosen = conformal_selection(u, e, [7.5, 0.5, 10.0, 6.0], 0.2)
    assert chosen.p_value.tolist() == pytest.approx([0.2, 0.1, 0.3, 0.1])
    assert chosen.accepted.tolist() == [False, True, False, True]
    assert chosen.n_accepted == 2
    assert conformal_selection(u, e, [7.5, 0.5, 10.0, 6.0], 0.09).n_accepted == 0
    assert conformal_selection(u, e, [7.0], 0.2).p_value.tolist() == [0.2]  # a tie counts against the question
    assert conformal_selection(u, e, [], 0.2).n_accepted == 0


def test_guarantees_are_honest() -> None:
    def says(rule: str) -> str:
        return fit(U, E, alpha=0.3, rule=rule).guarantee

    for rule in ("fixed_quantile", "empirical", "hoeffding", "clopper_pearson"):
        assert says(rule).startswith("None")
    assert "about 40 %" in says("acrc")
    assert "Asymptotic" in says("acrc")
    assert "share of all questions" in says("crc_joint")
    assert "does not fall as more are accepted" in says("anchored") == says("cp_simultaneous")
    for rule in ("fixed_sequence", "sgr", "bonferroni"):
        assert "whatever the shape" in says(rule)


@pytest.mark.parametrize("rule", rules())
def test_only_certificates_say_at_most(rule: str) -> None:
    """What a verdict quotes as its guarantee; "on average" is a rule's promise, or its verdict adds it."""
    outcome = fit(U, E, alpha=0.3, rule=rule)
    assert outcome.certifies is RULES[rule].certifies
    if not outcome.certifies:
        assert "at most" not in outcome.guarantee
        assert "at most" not in RULES[rule].promise
