"""The drift monitor of two stages compares the score of the first call, which early verdicts have, with the scale."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from guardrail import Guardrail, UsageError
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.monitor import Drift
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Uncertainty
from guardrail.uncertainty import Estimator, make_estimator, then
from guardrail.verdict import Verdict
from tests.combinations import ranks_of

CHEAP, SECOND = make_estimator("sequence_nll"), make_estimator("primary_disagreement")
MODEL = ScriptedChat(default=["Oslo"], probability=0.5)


def ordering(scale: list[float]) -> Estimator:
    return then(CHEAP, SECOND, ranks=ranks_of(scale))


def artifact(scale: list[float], threshold: float = 0.5) -> CalibrationArtifact:
    own = make_artifact(MODEL, threshold=threshold, estimator=ordering(scale), n=2)
    # Another distribution than the scale's: the monitor must not compare with it.
    return own.model_copy(update={"calibration": CalibrationScores(uncertainty=(1.0,) * 50, error=(0,) * 50)})


@pytest.mark.parametrize(("threshold", "saved"), [(1.0, 2), (0.5, 0), (0.1, 2)])
def test_early_and_late_verdicts_are_counted_by_their_first_call(threshold: float, saved: int) -> None:
    """The monitor of a cheap first stage would otherwise see only the questions for which more was drawn."""
    # "Oslo" has nll ln 2, and half of the scale lies below: with disagreement d the score is .5 + .2 d. At 1.0 it is
    # accepted whatever d is (.7 <= 1.0), at .1 held back (.5 > .1), and at .5 it takes the two samples to know d.
    own = artifact([0.0] * 150 + [5.0] * 150, threshold)
    judged = Guardrail(model=MODEL, artifact=own).assess("q?")
    assert judged.cost.saved == saved
    assert judged.uncertainty.is_bound == bool(saved)
    assert judged.uncertainty.first == pytest.approx(math.log(2))
    assert Drift(own).score(judged) == judged.uncertainty.first
    assert Verdict.model_validate_json(judged.model_dump_json()).uncertainty.first == judged.uncertainty.first


@pytest.mark.slow
def test_false_alarms_are_rare_and_a_shift_is_found() -> None:
    """At most delta of the streams of questions like the scale's may ever alarm; those 1 nat less certain soon do."""
    streams, delta, rng = 200, 0.1, random.Random(28)
    alarms = {0.0: 0, 1.0: 0}
    for stream in range(streams):
        own = artifact([rng.gauss(0, 1) for _ in range(300)])
        for shift in alarms:
            test = Drift(own, delta=delta, seed=stream)
            values = [rng.gauss(shift, 1) for _ in range(200)]
            scores = [Uncertainty(value=0.4, unit="probability", estimator="then", first=c) for c in values]
            compared = [number for score in scores if (number := test.compared(score)) is not None]
            state, _ = test.take(test.start, *compared)
            assert state.n == 200
            alarms[shift] += state.alarm is not None
    assert alarms[0.0] <= stats.binom.ppf(1 - 1e-4, streams, delta)
    assert alarms[1.0] > 0.9 * streams


def test_a_score_that_was_stored_without_its_first_call_is_refused() -> None:
    reference = Drift(artifact([0.0] * 300))
    with pytest.raises(UsageError, match="first call"):
        reference.compared(Uncertainty(value=0.4, unit="probability", estimator="then"))


def test_a_whole_answer_is_compared_by_its_own_score() -> None:
    """Its one item is no field of an answer: a monitor that averaged items would not see what an observer changed."""
    plain = make_artifact(MODEL)
    verdict = Guardrail(model=MODEL, artifact=plain).assess("q")
    changed = verdict.model_copy(update={"uncertainty": verdict.uncertainty.model_copy(update={"value": 0.75})})
    assert changed.items
    assert Drift(plain).score(changed) == 0.75
