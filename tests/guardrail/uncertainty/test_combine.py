"""Combinations of scores: values by hand, orders that hold for all numbers, and what an artifact binds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from guardrail import Guardrail, UsageError, plan_for, scorer
from guardrail.artifact import CalibrationArtifact
from guardrail.decision import ThresholdGate, by_first_call
from guardrail.errors import ArtifactMismatchError
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.outcome import accepts
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Missing, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import (
    Estimator,
    EstimatorSpec,
    from_spec,
    make_estimator,
    measure,
    measure_stream,
    rank_mean,
    then,
    ties,
)
from guardrail.uncertainty.combine import then_order, tie_order
from guardrail.verdict import Reason
from tests.combinations import ranks_of

CHEAP, DEAR = make_estimator("sequence_nll"), make_estimator("primary_disagreement", judge=ExactJudge())
PLAN = SamplingPlan(n=2, logprobs=True, cut_off="abstain")
RANKS = ranks_of(range(300))  # F(c) = (floor(c) + 1) / 300
MODEL = ScriptedChat(script={"sure?": ["Oslo"], "unsure?": ["Rome, Italy"]}, probability=0.5)


@scorer(version=1, higher="certain")
def stated(question: str) -> float | None:
    return {"sure?": 0.9, "unsure?": 0.9, "silent?": None}.get(question, 0.8)


TIES = ties(stated.estimator, CHEAP, r=0.01)


def staged(w: float = 0.2, m: int = 2) -> Estimator:
    return then(CHEAP, DEAR, w=w, m=m, ranks=RANKS)


def drawn(nll: float, *samples: str, problem: Unmeasured | None = None) -> SampleSet:
    primary = Sample(text="Oslo", tokens=("Oslo",), logprobs=(-nll,))
    texts = tuple(Sample(text=text) for text in samples)
    return SampleSet(question="q", primary=primary, samples=texts, problem=problem, problem_detail="lost")


# -- then --------------------------------------------------------------------------------------------------------------


def test_both_stages_by_hand() -> None:
    # F(149.5) = 150/300 = .5; d = 0, 1/2, 1 with w = .2
    for samples, expected in ((("Oslo", "Oslo"), 0.5), (("Oslo", "Rome"), 0.6), (("Rome", "Bern"), 0.7)):
        assert measure(drawn(149.5, *samples), staged(), PLAN).value == pytest.approx(expected)
    assert measure(drawn(149, "Oslo", "Oslo"), staged(), PLAN).value == pytest.approx(0.5)  # at most, not below
    assert measure(drawn(0, "Oslo", "Oslo"), staged(), PLAN).value == pytest.approx(1 / 300)
    assert measure(drawn(700, "Rome", "Rome"), staged(), PLAN).value == pytest.approx(1.2)


def test_only_the_first_m_samples_count_so_that_records_with_more_give_what_a_guard_computes() -> None:
    more = SamplingPlan(n=4, logprobs=True)
    assert measure(drawn(149.5, "Oslo", "Rome", "Rome", "Rome"), staged(), more).value == pytest.approx(0.6)
    assert measure(drawn(149.5, "Oslo", "Oslo", "Rome", "Rome"), staged(m=4), more).value == pytest.approx(0.6)
    assert plan_for([staged(m=3)]).n == 3
    assert plan_for([staged(m=3), make_estimator("num_sets")]).n == 10


@pytest.mark.parametrize(
    "failed",
    [
        drawn(149.5),
        drawn(149.5, "Oslo"),
        drawn(149.5, "Oslo", ""),
        drawn(149.5, "Oslo", "Oslo", problem=Unmeasured.MODEL_FAILED),
        drawn(149.5, "Oslo", "Oslo", problem=Unmeasured.REFUSED),
        drawn(149.5, "Oslo", problem=Unmeasured.REJECTED),
    ],
)
def test_a_failure_after_the_first_call_is_full_disagreement(failed: SampleSet) -> None:
    assert measure(failed, staged(), PLAN).value == pytest.approx(0.7)


def test_a_judge_that_fails_is_full_disagreement() -> None:
    class Broken(ExactJudge):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            raise RuntimeError

    broken = then(CHEAP, make_estimator("primary_disagreement", judge=Broken()), ranks=RANKS)
    assert measure(drawn(149.5, "Oslo", "Rome"), broken, PLAN).value == pytest.approx(0.7)


def test_without_a_primary_answer_or_its_score_nothing_is_measured() -> None:
    whole = drawn(1, "Oslo", "Oslo")
    assert whole.primary is not None
    gone = whole.model_copy(update={"primary": None, "problem": Unmeasured.MODEL_FAILED})
    assert measure(gone, staged(), PLAN).reason is Unmeasured.MODEL_FAILED
    bare = whole.model_copy(update={"primary": Sample(text="Oslo")})
    assert measure(bare, staged(), PLAN).reason is Unmeasured.NO_LOGPROBS
    cut = whole.model_copy(update={"primary": whole.primary.model_copy(update={"finish_reason": "length"})})
    assert measure(cut, staged(), PLAN).reason is Unmeasured.CUT_OFF


def after_first_call(drawn: SampleSet, estimator: Estimator, threshold: float) -> Uncertainty | None:
    artifact = make_artifact(ScriptedChat(), threshold=threshold).model_copy(update={"plan": PLAN})
    settled = by_first_call(drawn, [ThresholdGate(artifact, estimator)])
    return None if settled is None else settled[artifact.digest]


@pytest.mark.parametrize("problem", [Unmeasured.DEGENERATE_SAMPLES, Unmeasured.MISCONFIGURED])
def test_an_endpoint_that_is_not_trusted_holds_everything_back(problem: Unmeasured) -> None:
    assert measure(drawn(0, problem=problem), staged(), PLAN).reason is problem
    cheap = after_first_call(drawn(0, problem=problem), staged(), 1.5)
    assert cheap is not None
    assert cheap.reason is problem


def test_decisions_after_the_first_call_change_no_verdict_in_200_000_cases() -> None:
    """Thresholds lie where rounding could matter: at reachable scores, and one float beside them."""
    rng = random.Random(5)
    seen = {"accepted": 0, "held": 0, "drawn": 0}
    for _ in range(200):
        m, w = rng.randrange(1, 11), rng.uniform(0.01, 1.5)
        values = [rng.gauss(0, 1) for _ in range(rng.randrange(300, 700))]
        ranks = ranks_of(values)
        for _ in range(1_000):
            cheap, votes = rng.gauss(0, 1), rng.randint(0, m)
            score = then_order(ranks, w, cheap, votes / m)
            near = then_order(ranks, w, rng.choice(values), rng.randint(0, m) / m)
            centre = rng.choice((score, near, near - w, near + w))
            threshold = rng.choice((math.nextafter(centre, -9), centre, math.nextafter(centre, 9)))
            if accepts(then_order(ranks, w, cheap, 1.0), threshold):
                assert accepts(score, threshold)
                seen["accepted"] += 1
            elif not accepts(then_order(ranks, w, cheap, 0.0), threshold):
                assert not accepts(score, threshold)
                seen["held"] += 1
            else:
                seen["drawn"] += 1
    assert min(seen.values()) > 10_000


def test_the_guard_decides_after_the_first_call_as_with_all_samples() -> None:
    rng = random.Random(3)
    for _ in range(500):
        estimator = staged(rng.choice((0.1, 0.2, 0.5)))
        texts = [rng.choice(("Oslo", "Rome", "")) for _ in range(rng.choice((0, 1, 2, 2)))]
        whole = drawn(rng.uniform(0, 301) if rng.random() > 0.1 else 700, *texts) if rng.random() > 0.05 else drawn(0)
        threshold = rng.choice((rng.uniform(0, 1.5), 150 / 300 + 0.2, 0.5))
        full = measure(whole, estimator, PLAN)
        cheap = after_first_call(whole.model_copy(update={"samples": ()}), estimator, threshold)
        if cheap is None:
            continue
        assert (cheap.value is None) == (full.value is None)
        if cheap.value is not None and full.value is not None:
            assert cheap.is_bound
            assert accepts(cheap.value, threshold) == accepts(full.value, threshold)


# -- ties --------------------------------------------------------------------------------------------------------------


def order(first: float, second: float, r: float = 0.01) -> float:
    score = tie_order(r, first, second)
    assert isinstance(score, float)
    return score


def test_ties_by_hand() -> None:
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
def test_no_second_score_outweighs_a_step_of_the_first(r: float, step: int, low: float, high: float) -> None:
    assert order(step * r, high, r) < order((step + 1) * r, low, r)


@given(st.floats(1e-9, 1e9), STEPS, SCORES, SCORES)
def test_among_ties_the_second_score_never_reverses(r: float, step: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert order(step * r, low, r) <= order(step * r, high, r)


@given(STEPS, st.floats(0, 100), st.floats(0, 100))
def test_scores_of_usual_size_are_told_apart(step: int, a: float, b: float) -> None:
    if abs(a - b) > 1e-3:  # s moves by more than 4e-8 there, far above 2**-30
        assert (order(step * 0.01, a) < order(step * 0.01, b)) == (a < b)


@pytest.mark.parametrize("first", [2**20 * 0.01, -(2**20) * 0.01, 1e300])
def test_a_first_score_beyond_the_steps_is_unmeasured(first: float) -> None:
    with pytest.raises(Missing, match="of ties"):
        tie_order(0.01, first, 0.0)


def test_the_guard_orders_ties_by_the_second_score() -> None:
    # "Oslo" is one token of probability 1/2 (nll .69), "Rome, Italy" has more; both state .9.
    artifact = make_artifact(MODEL, threshold=0.1075, estimator=TIES)
    guard = Guardrail(model=MODEL, artifact=artifact, using={"scorer": stated})
    sure, unsure = (guard.assess(question) for question in ("sure?", "unsure?"))
    assert sure.uncertainty.value is not None
    assert unsure.uncertainty.value is not None
    assert 0.105 < sure.uncertainty.value < 0.1075 < unsure.uncertainty.value < 0.11
    assert (sure.accepted, unsure.accepted) == (True, False)
    assert sure.cost.calls == 2  # the answer and its score
    assert artifact.plan.n == 0
    assert guard.assess("silent?").reason is Reason.UNMEASURED


# -- rank_mean, and what all of them share -----------------------------------------------------------------------------


def test_the_mean_of_ranks_by_hand() -> None:
    both = rank_mean(DEAR, CHEAP, ranks=ranks_of([0.0] * 150 + [1.0] * 150, range(300)))
    # d = 1/2: 150 of 300 are at most .5; c = 149.5: 150 of 300. d = 1: all of them.
    assert measure(drawn(149.5, "Oslo", "Rome"), both, PLAN).value == pytest.approx(0.5)
    assert measure(drawn(149.5, "Rome", "Rome"), both, PLAN).value == pytest.approx(0.75)
    assert measure(drawn(299, "Rome", "Rome"), both, PLAN).value == 1.0


def test_an_unmeasured_part_makes_it_unmeasured_and_is_named() -> None:
    both = rank_mean(DEAR, CHEAP, ranks=ranks_of(range(300), range(300)))
    bare = SampleSet(question="q", primary=Sample(text="x"), samples=(Sample(text="x"),) * 2)
    score = measure(bare, both, PLAN)
    assert (score.value, score.reason) == (None, Unmeasured.NO_LOGPROBS)
    assert score.detail.startswith("sequence_nll: ")
    unasked = SampleSet(question="q?", primary=Sample(text="Oslo", tokens=("Oslo",), logprobs=(-0.5,)))
    assert measure(unasked, TIES, plan_for([TIES])).reason is Unmeasured.SAMPLING_SHORTFALL  # no reply of the scorer


class Counting(ExactJudge):
    calls = 0
    spec = JudgeSpec(name="counting", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        Counting.calls += 1
        return super().equivalent(question, pairs)


def test_parts_are_measured_in_one_judging_pass_and_scores_go_where_they_belong() -> None:
    first, second = (make_estimator(name, judge=Counting()) for name in ("self_consistency", "num_sets"))
    Counting.calls = 0
    three = [first, ties(second, first), second]
    scores = next(measure_stream([drawn(1, "a1", "b1")], three, SamplingPlan(n=2, logprobs=True)))
    assert Counting.calls == 1
    # s(1/2) = (1 + 1/3)/2 = 2/3
    assert [score.value for score in scores] == [0.5, pytest.approx(0.001 * (2000 + 2 / 3)), 2.0]


def test_what_cannot_be_combined_is_refused() -> None:
    @scorer(version=1, higher="certain")
    def other(question: str) -> float:
        return 0.5

    with pytest.raises(UsageError, match="more than the first call"):
        then(DEAR, DEAR)
    with pytest.raises(UsageError, match="does not compare samples with the answer"):
        then(CHEAP, make_estimator("num_sets", judge=ExactJudge()))
    for w in (0, -1, 11, math.nan):
        with pytest.raises(UsageError, match="w must be in"):
            then(CHEAP, DEAR, w=w)
    with pytest.raises(UsageError, match="whole number of samples"):
        then(CHEAP, DEAR, m=0)
    for r in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="r must be a number above 0"):
            ties(CHEAP, DEAR, r=r)
    with pytest.raises(UsageError, match="one scorer"):
        ties(stated.estimator, other.estimator)
    with pytest.raises(UsageError, match="a combination itself"):
        ties(TIES, CHEAP)
    with pytest.raises(UsageError, match="its own ties"):
        ties(CHEAP, CHEAP)
    for parts in ((CHEAP,), (CHEAP, CHEAP)):
        with pytest.raises(UsageError, match="two different scores"):
            rank_mean(*parts)
    with pytest.raises(ValidationError, match="at least 300"):
        ranks_of(range(299))


def test_without_ranks_it_plans_but_neither_measures_nor_loads() -> None:
    bare = then(CHEAP, DEAR)
    assert (plan_for([bare]).n, plan_for([bare]).logprobs) == (2, True)
    assert measure(drawn(1, "Oslo", "Oslo"), bare, PLAN).reason is Unmeasured.NOT_RECORDED
    with pytest.raises(ArtifactMismatchError, match="ranks are missing"):
        from_spec(bare.spec)


@pytest.mark.parametrize("estimator", [staged(), rank_mean(DEAR, CHEAP, ranks=ranks_of(range(300), range(300)))])
def test_the_artifact_stores_it_whole(estimator: Estimator) -> None:
    again = from_spec(EstimatorSpec.from_stored(estimator.spec.model_dump_json()))
    assert again.spec == estimator.spec
    whole = drawn(149.5, "Oslo", "Rome")
    assert measure(whole, again, PLAN) == measure(whole, estimator, PLAN)
    settings, ranks = estimator.spec.params["settings"], estimator.spec.params["ranks"]
    wrong: list[dict[str, object]] = [
        {"settings": {**settings, "w": -1}},
        {"settings": {**settings, "x": 1}},
        {"ranks": {**ranks, "scores": ranks["scores"] * 2}},
        {"ranks": {**ranks, "scores": [ranks["scores"][0][::-1]]}},
        {"parts": []},
    ]
    for change in wrong:
        broken = estimator.spec.model_copy(update={"params": {**estimator.spec.params, **change}})
        with pytest.raises(ArtifactMismatchError, match="Fit it again"):
            from_spec(broken)


def test_the_artifact_binds_the_scorer_and_every_version(tmp_path: Path) -> None:
    artifact = CalibrationArtifact.load(make_artifact(MODEL, threshold=0.1, estimator=TIES).save(tmp_path / "t.json"))
    assert Guardrail(model=MODEL, artifact=artifact, using={"scorer": stated}).assess("sure?").uncertainty.measured

    @scorer(version=2, higher="certain", name="stated")
    def newer(question: str) -> float:
        return 0.9

    for given_scorer in (None, newer):
        with pytest.raises(ArtifactMismatchError, match="score:stated@1"):
            Guardrail(model=MODEL, artifact=artifact, using={"scorer": given_scorer})
    spec = artifact.estimator
    old = [spec.params["parts"][0], {**spec.params["parts"][1], "version": 99}]
    for change in ({"version": 2}, {"unit": "nats"}, {"params": {**spec.params, "parts": old}}):
        with pytest.raises(ArtifactMismatchError):
            from_spec(spec.model_copy(update=change), scorer=stated)
    plain = ties(CHEAP, make_estimator("answer_word_nll"))
    with pytest.raises(ArtifactMismatchError, match="Leave scorer out"):
        from_spec(plain.spec, scorer=stated)


def test_a_part_with_a_judge_that_has_no_name_takes_the_object() -> None:
    spec = ties(make_estimator("self_consistency", judge=Counting()), make_estimator("num_sets")).spec
    with pytest.raises(ArtifactMismatchError, match="counting"):
        from_spec(spec)
    assert from_spec(spec, judge=Counting()).spec == spec  # and num_sets keeps its own judge
