"""Certificates hold for a guarded score: calibrated on collected records, judged by the guard that is served."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate import collect_records, read_records, score_records
from calibrate.data.questions import Question
from calibrate.fitting import fit
from guardrail import Guardrail, accepts, plan_for, scorer
from guardrail.outcome import Feasible
from guardrail.testing import ScriptedChat, make_artifact

pytestmark = pytest.mark.slow

POOL, RUNS, LABELS, ALPHA, DELTA = 600, 400, 200, 0.2, 0.1
FALSE_ALARM = 1e-4
"""Chance that a test here fails although the promise holds exactly at its limit."""
_rng = np.random.default_rng(20261123)
WRONG = (_rng.random(POOL) < 0.3).astype(np.int64)
# Rounded, so that there are ties; one question in twenty has no score, the wrong ones twice as often.
RISK = np.round(stats.norm.cdf(_rng.normal(size=POOL) + 0.8 * WRONG), 2)
SILENT = _rng.random(POOL) < 0.04 * (1 + WRONG)


@scorer(version=1, higher="uncertain")
def risk(question: str) -> float | None:
    place = int(question)
    return None if SILENT[place] else float(RISK[place])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The score of each question on file, and the score that the guard compares; NaN where there is none."""
    model = ScriptedChat(default=["an answer"])
    path = tmp_path_factory.mktemp("scored") / "records.jsonl"
    questions = [Question(id=str(place), question=str(place), references=("x",)) for place in range(POOL)]
    collect_records(questions, model, plan_for([risk.estimator]), path, scorer=risk)
    scored = score_records(read_records(path), [risk.estimator])
    on_file = {int(record.id): record.scores[risk.follow_up].value for record in scored.records}
    guard = Guardrail(
        model=model, artifact=make_artifact(model, estimator=risk.estimator), using={"scorer": risk}, remember=0
    )
    served = [guard.assess(str(place)).uncertainty.value for place in range(POOL)]
    columns = [
        [np.nan if value is None else value for value in side] for side in ([on_file[i] for i in range(POOL)], served)
    ]
    return np.array(columns[0]), np.array(columns[1])


def false_certificates(calibration: NDArray[np.float64], served: NDArray[np.float64], *, learns: bool) -> int:
    """Runs in which the guard's error rate on the pool is above alpha, by labels drawn with replacement.

    Args:
        calibration: Scores that the threshold is fitted on.
        served: Scores that the guard compares with it.
        learns: Whether the score was trained on the labelled questions: it then knows their wrong answers.
    """
    rng, failures = np.random.default_rng(7), 0
    for _ in range(RUNS):
        drawn = rng.integers(POOL, size=LABELS)
        drawn = drawn[~np.isnan(calibration[drawn])]
        scores = calibration[drawn] + (WRONG[drawn] if learns else 0)
        outcome = fit(scores, WRONG[drawn], alpha=ALPHA, delta=DELTA, rule="certified")
        if isinstance(outcome, Feasible):
            answered = accepts(served, outcome.threshold)
            failures += bool(WRONG[answered].mean() > ALPHA)
    return failures


LIMIT = stats.binom.ppf(1 - FALSE_ALARM, RUNS, DELTA)


def test_the_certificate_of_a_score_fails_at_most_delta_of_the_time(
    pool: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    on_file, served = pool
    np.testing.assert_array_equal(on_file, served)  # both sides run the same procedure
    assert np.isnan(served).sum() == SILENT.sum() > 10
    assert false_certificates(on_file, served, learns=False) <= LIMIT


@pytest.mark.slow
def test_negative_control_a_score_that_was_trained_on_the_labels(
    pool: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    # What `trained_on` refuses: the score looks perfect on its own questions and is what it was on all others.
    assert false_certificates(*pool, learns=True) > LIMIT
