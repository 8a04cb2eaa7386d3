"""A certificate holds if the estimator was chosen on other questions, and breaks if on the same questions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.evaluation.choice import SHARE
from calibrate.fitting import fit
from calibrate.scoring.metrics import auroc
from guardrail.outcome import Feasible

pytestmark = pytest.mark.slow

RUNS, N, CANDIDATES = 600, 240, 12
ALPHA = DELTA = 0.1
FALSE_ALARM = 1e-4
"""Chance that the first test fails although the promise holds exactly at its limit."""
Columns = dict[str, NDArray[np.float64]]


def failures(*, apart: bool) -> int:
    """Count the runs in which a certificate of the chosen score accepts anything.

    No score depends on the errors, and every answer is wrong with probability alpha. In this hardest case each
    certificate that accepts counts as a failure. The highest AUROC of several such scores is above .5 on the questions
    that it was chosen on, and on no others.
    """
    rng, failed, cut = np.random.default_rng(20260102), 0, round(SHARE * N)
    for _ in range(RUNS):
        error = (rng.random(N) < ALPHA).astype(np.int64)
        scores: Columns = {str(i): rng.random(N) for i in range(CANDIDATES)}
        chosen_on, fitted_on = (slice(0, cut), slice(cut, N)) if apart else (slice(0, N), slice(0, N))
        best = max(scores, key=lambda name: auroc(scores[name][chosen_on], error[chosen_on]) or 0.0)
        outcome = fit(scores[best][fitted_on], error[fitted_on], alpha=ALPHA, delta=DELTA, rule="certified")
        failed += isinstance(outcome, Feasible)
    return failed


def test_an_estimator_chosen_on_other_questions_keeps_the_promise() -> None:
    assert failures(apart=True) <= stats.binom.ppf(1 - FALSE_ALARM, RUNS, DELTA)


def test_negative_control_an_estimator_chosen_on_the_questions_of_the_fit_breaks_it() -> None:
    assert failures(apart=False) > stats.binom.ppf(1 - FALSE_ALARM, RUNS, DELTA)
