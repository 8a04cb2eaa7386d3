"""Ties broken by a second score: by hand, as an order, and bound by an artifact and a guard."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail import Guardrail, UsageError, plan_for, scorer
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactMismatchError
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Missing, Sample, SampleSet, Unmeasured
from guardrail.uncertainty import Estimator, from_spec, make_estimator, measure, tie_break
from guardrail.uncertainty.ties import TieBreakParams
from guardrail.verdict import Reason

NLL = make_estimator("sequence_nll")
MODEL = ScriptedChat(script={"sure?": ["Oslo"], "unsure?": ["Rome, Italy"]}, probability=0.5)


@scorer(version=1, higher="certain")
def stated(question: str) -> float | None:
    return {"sure?": 0.9, "unsure?": 0.9, "silent?": None}.get(question, 0.8)


TIES = tie_break(stated.estimator, NLL, resolution=0.01)


def params(resolution: float = 0.01) -> TieBreakParams:
    return TieBreakParams(resolution=resolution, first=stated.estimator.spec, second=NLL.spec)


def order(first: float, second: float, resolution: float = 0.01) -> float:
    score = params(resolution).order(first, second)
    assert isinstance(score, float)
    return score


def test_by_hand() -> None:
    # .1 is 10 steps of .01; s(0) = 1/2, s(1) = (1 + 1/2)/2 = 3/4, s(-3) = (1 - 3/4)/2 = 1/8
    assert order(0.1, 0) == pytest.approx(0.105)
    assert order(0.1, 1) == pytest.approx(0.1075)
    assert order(0.1, -3) == pytest.approx(0.10125)
    # 1 - .9 is .09999999999999998: a tie with .1, whose second score then counts
    assert order(1 - 0.9, 1) == order(0.1, 1)
    assert order(0, 0) == pytest.approx(0.005)


SCORES = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.integers(-(2**20) + 1, 2**20 - 2)


@given(st.floats(1e-9, 1e9), STEPS, SCORES, SCORES)
def test_no_second_score_outweighs_a_step_of_the_first(resolution: float, step: int, low: float, high: float) -> None:
    assert order(step * resolution, high, resolution) < order((step + 1) * resolution, low, resolution)


@given(st.floats(1e-9, 1e9), STEPS, SCORES, SCORES)
def test_among_ties_the_second_score_never_reverses(resolution: float, step: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    first = step * resolution
    assert order(first, low, resolution) <= order(first, high, resolution)


@given(STEPS, st.floats(0, 100), st.floats(0, 100))
def test_scores_of_usual_size_are_told_apart(step: int, a: float, b: float) -> None:
    if abs(a - b) > 1e-3:  # s moves by more than 4e-8 there, far above 2**-30
        assert (order(step * 0.01, a) < order(step * 0.01, b)) == (a < b)


@pytest.mark.parametrize("first", [2**20 * 0.01, -(2**20) * 0.01, 1e300])
def test_a_first_score_beyond_the_steps_is_unmeasured(first: float) -> None:
    assert isinstance(params().order(first, 0.0), Missing)


@pytest.mark.parametrize("resolution", [0, -1, math.nan, math.inf])
def test_a_wrong_resolution_is_refused(resolution: float) -> None:
    with pytest.raises(UsageError, match="resolution"):
        tie_break(NLL, make_estimator("answer_word_nll"), resolution=resolution)


def test_scores_that_cannot_be_combined_are_refused() -> None:
    @scorer(version=1, higher="certain")
    def other(question: str) -> float:
        return 0.5

    with pytest.raises(UsageError, match="one scorer"):
        tie_break(stated.estimator, other.estimator)
    with pytest.raises(UsageError, match="made of other"):
        tie_break(TIES, NLL)
    with pytest.raises(UsageError, match="its own ties"):
        tie_break(NLL, NLL)


def guard(estimator: Estimator = TIES, threshold: float = 0.1075, **settings: object) -> Guardrail:
    artifact = make_artifact(MODEL, threshold=threshold, estimator=estimator)
    return Guardrail(model=MODEL, artifact=artifact, **{"scorer": stated, **settings})


def test_the_guard_orders_ties_by_the_second_score() -> None:
    # "Oslo" is one token of probability 1/2 (nll .69), "Rome, Italy" has more; both state .9.
    sure, unsure = (guard().assess(question) for question in ("sure?", "unsure?"))
    assert sure.uncertainty.value is not None
    assert unsure.uncertainty.value is not None
    assert 0.105 < sure.uncertainty.value < 0.1075 < unsure.uncertainty.value < 0.11
    assert (sure.accepted, unsure.accepted) == (True, False)
    assert sure.cost.calls == 2  # the answer and its score
    assert guard().artifact.plan.n == 0


def test_without_either_score_the_answer_is_held_back() -> None:
    silent = guard().assess("silent?")
    assert silent.reason is Reason.UNMEASURED
    plain = tie_break(make_estimator("perplexity"), NLL)
    bare = SampleSet(question="q?", primary=Sample(text="Oslo"))
    assert measure(bare, plain, plan_for([plain])).reason is Unmeasured.NO_LOGPROBS
    unasked = SampleSet(question="q?", primary=Sample(text="Oslo", tokens=("Oslo",), logprobs=(-0.5,)))
    assert measure(unasked, TIES, plan_for([TIES])).reason is Unmeasured.SAMPLING_SHORTFALL  # no reply of the scorer


def test_the_artifact_binds_everything(tmp_path: Path) -> None:
    path = tmp_path / "ties.json"
    make_artifact(MODEL, threshold=0.1, estimator=TIES).save(path)
    artifact = CalibrationArtifact.load(path)
    assert Guardrail(model=MODEL, artifact=artifact, scorer=stated).assess("sure?").uncertainty.measured
    with pytest.raises(ArtifactMismatchError, match="score:stated@1"):
        Guardrail(model=MODEL, artifact=artifact)

    @scorer(version=2, higher="certain", name="stated")
    def newer(question: str) -> float:
        return 0.9

    with pytest.raises(ArtifactMismatchError, match="score:stated@1"):
        Guardrail(model=MODEL, artifact=artifact, scorer=newer)
    spec = artifact.estimator
    changed = {
        "version": spec.model_copy(update={"version": 2}),
        "unit": spec.model_copy(update={"unit": "nats"}),
        "resolution": spec.model_copy(update={"params": {**spec.params, "resolution": 0}}),
        "second": spec.model_copy(
            update={"params": {**spec.params, "second": NLL.spec.model_copy(update={"version": 99}).model_dump()}}
        ),
    }
    for wrong in changed.values():
        with pytest.raises(ArtifactMismatchError):
            from_spec(wrong, scorer=stated)
    plain = tie_break(NLL, make_estimator("answer_word_nll"))
    assert from_spec(plain.spec).spec == plain.spec
    with pytest.raises(ArtifactMismatchError, match="Leave scorer out"):
        from_spec(plain.spec, scorer=stated)


def test_a_wrong_spec_names_the_field_alone() -> None:
    spec = tie_break(make_estimator("verbalised"), make_estimator("sequence_nll")).spec
    with pytest.raises(ArtifactMismatchError) as refusal:
        from_spec(spec.model_copy(update={"params": {"resolution": -1}}))
    fault = "field 'resolution': Input should be greater than 0"
    assert str(refusal.value) == f"the spec of a score with broken ties is wrong: {fault}. Fit it again."
