"""Properties of every threshold rule on arbitrary scores, tied or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrate.fitting import fit
from calibrate.rules import RULES
from guardrail.describe import why_infeasible
from guardrail.outcome import Feasible, InfeasibleReason, accepts

Scores = NDArray[np.float64]
Labels = NDArray[np.int64]
ALPHAS = st.sampled_from([0.05, 0.1, 0.2, 0.3, 0.5, 0.8])
QUICK = settings(max_examples=15)
OF_ANSWERS = sorted(name for name, rule in RULES.items() if rule.unit == "answer")
MORE_ERRORS_NEVER_HELP = [name for name in OF_ANSWERS if name != "fixed_quantile"]
LARGER_ALPHA_NEVER_HURTS = [
    ("empirical", {}),
    ("lec", {}),
    ("hoeffding", {}),
    ("clopper_pearson", {}),
    ("crc_joint", {}),
    ("acrc", {"k_min": 5}),
    ("acrc", {"k_min": 5, "monotone": False}),
]


@st.composite
def items(draw: st.DrawFn) -> tuple[Scores, Labels]:
    """Draw up to 60 items; half of the sets have few distinct scores, some unmeasured items; any share of errors."""
    n = draw(st.integers(1, 60))
    score = st.integers(0, 6).map(float) if draw(st.booleans()) else st.floats(-1e6, 1e6, allow_nan=False)
    u = np.array(draw(st.lists(score | st.just(np.inf) if draw(st.booleans()) else score, min_size=n, max_size=n)))
    noise = np.array(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    return u, (noise < draw(st.floats(0, 1))).astype(np.int64)


def count(u: Scores, e: Labels, alpha: float, rule: str, **options: Any) -> int:
    outcome = fit(u, e, alpha=alpha, rule=rule, **options)
    return outcome.n_accepted if isinstance(outcome, Feasible) else 0


@pytest.mark.parametrize("rule", OF_ANSWERS)
@given(data=items(), alpha=ALPHAS)
@QUICK
def test_the_gate_recounts_what_the_fit_reports(rule: str, data: tuple[Scores, Labels], alpha: float) -> None:
    u, e = data
    outcome = fit(u, e, alpha=alpha, rule=rule)
    if not isinstance(outcome, Feasible):
        assert outcome.reason in InfeasibleReason
        assert why_infeasible(outcome)
        return
    accepted = accepts(u, outcome.threshold)
    assert outcome.threshold in u[np.isfinite(u)]
    assert outcome.n == u.size
    assert (int(accepted.sum()), int(e[accepted].sum())) == (outcome.n_accepted, outcome.n_errors)
    assert outcome.tie_block == int((u == outcome.threshold).sum())
    assert outcome.interval[0] <= outcome.error_rate <= outcome.interval[1]


# Items without a group are read in the order given: one that labels decide would be no certificate.
@pytest.mark.parametrize("rule", sorted(set(OF_ANSWERS) - {"certified_groups"}))
@given(data=items(), alpha=ALPHAS, seed=st.integers(0, 2**32 - 1))
@QUICK
def test_the_order_of_the_items_does_not_matter(
    rule: str, data: tuple[Scores, Labels], alpha: float, seed: int
) -> None:
    u, e = data
    order = np.random.default_rng(seed).permutation(u.size)
    assert fit(u[order], e[order], alpha=alpha, rule=rule) == fit(u, e, alpha=alpha, rule=rule)


@pytest.mark.parametrize("rule", OF_ANSWERS)
@given(data=items(), alpha=ALPHAS)
@QUICK
def test_only_the_ranks_of_the_scores_matter(rule: str, data: tuple[Scores, Labels], alpha: float) -> None:
    u, e = data
    ranks = np.where(np.isfinite(u), np.unique(u, return_inverse=True)[1], np.inf)
    assert count(ranks, e, alpha, rule) == count(u, e, alpha, rule)


@pytest.mark.parametrize("rule", MORE_ERRORS_NEVER_HELP)
@given(data=items(), alpha=ALPHAS, which=st.integers(0, 59))
@QUICK
def test_one_more_error_never_accepts_more(rule: str, data: tuple[Scores, Labels], alpha: float, which: int) -> None:
    u, e = data
    worse = e.copy()
    worse[which % u.size] = 1
    assert count(u, worse, alpha, rule) <= count(u, e, alpha, rule)


@pytest.mark.parametrize(("rule", "options"), LARGER_ALPHA_NEVER_HURTS)
@given(data=items(), alphas=st.tuples(ALPHAS, ALPHAS))
@QUICK
def test_a_larger_alpha_never_accepts_less(
    rule: str, options: dict[str, Any], data: tuple[Scores, Labels], alphas: tuple[float, float]
) -> None:
    u, e = data
    assert count(u, e, min(alphas), rule, **options) <= count(u, e, max(alphas), rule, **options)


@pytest.mark.parametrize("rule", [name for name in OF_ANSWERS if name not in ("fixed_quantile", "crc_joint")])
@given(n=st.integers(1, 200), alpha=ALPHAS)
@QUICK
def test_nothing_is_accepted_when_everything_is_wrong(rule: str, n: int, alpha: float) -> None:
    assert count(np.arange(float(n)), np.ones(n, dtype=np.int64), alpha, rule) == 0
