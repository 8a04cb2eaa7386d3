"""Two stages as one ordering: by hand, with failed samples, and with verdicts that the first call cannot change."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.gate import accepts
from guardrail.guard.decide import Gate, by_first_call
from guardrail.judges import ExactJudge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import Estimator, from_spec, make_estimator, measure
from guardrail.uncertainty.ensemble import Training
from guardrail.uncertainty.two_stage import TwoStageParams, two_stage

CHEAP, SECOND = make_estimator("sequence_nll"), make_estimator("primary_disagreement", judge=ExactJudge())
PLAN = SamplingPlan(n=2, logprobs=True, cut_off="abstain")


def params(scale: Sequence[float], weight: float = 0.2) -> TwoStageParams:
    none = Training(ids=(), questions=())
    return TwoStageParams(weight=weight, scale=tuple(scale), cheap=CHEAP.spec, second=SECOND.spec, training=none)


def ordering(weight: float = 0.2) -> Estimator:
    """Scale 0, 1, ..., 299: F0(c) = (floor(c) + 1) / 300."""
    return two_stage(params(range(300), weight), CHEAP, SECOND)


def drawn(nll: float, *samples: str, problem: Unmeasured | None = None) -> SampleSet:
    primary = Sample(text="Oslo", tokens=("Oslo",), logprobs=(-nll,))
    texts = tuple(Sample(text=text) for text in samples)
    return SampleSet(question="q", primary=primary, samples=texts, problem=problem, problem_detail="lost")


def after_first_call(drawn: SampleSet, estimator: Estimator, threshold: float) -> Uncertainty | None:
    artifact = make_artifact(ScriptedChat(), threshold=threshold).model_copy(update={"plan": PLAN})
    settled = by_first_call(drawn, [Gate(artifact, estimator)])
    return None if settled is None else settled[artifact.digest]


def test_both_stages_by_hand() -> None:
    # F0(149.5) = 150/300 = .5; d = 0, 1/2, 1 with w = .2
    for samples, expected in ((("Oslo", "Oslo"), 0.5), (("Oslo", "Rome"), 0.6), (("Rome", "Bern"), 0.7)):
        assert measure(drawn(149.5, *samples), ordering(), PLAN).value == pytest.approx(expected)
    assert measure(drawn(149, "Oslo", "Oslo"), ordering(), PLAN).value == pytest.approx(0.5)  # at most, not below
    assert measure(drawn(0, "Oslo", "Oslo"), ordering(), PLAN).value == pytest.approx(1 / 300)
    assert measure(drawn(1e9, "Rome", "Rome"), ordering(), PLAN).value == pytest.approx(1.2)


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
    assert measure(failed, ordering(), PLAN).value == pytest.approx(0.7)


def test_a_judge_that_fails_is_full_disagreement() -> None:
    class Broken(ExactJudge):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            raise RuntimeError

    second = make_estimator("primary_disagreement", judge=Broken())
    broken = two_stage(params(range(300)), CHEAP, second)
    assert measure(drawn(149.5, "Oslo", "Rome"), broken, PLAN).value == pytest.approx(0.7)


def test_without_a_primary_answer_or_its_score_nothing_is_measured() -> None:
    whole = drawn(1, "Oslo", "Oslo")
    assert whole.primary is not None
    gone = whole.model_copy(update={"primary": None, "problem": Unmeasured.MODEL_FAILED})
    assert measure(gone, ordering(), PLAN).reason is Unmeasured.MODEL_FAILED
    bare = whole.model_copy(update={"primary": Sample(text="Oslo")})
    assert measure(bare, ordering(), PLAN).reason is Unmeasured.NO_LOGPROBS
    cut = whole.model_copy(update={"primary": whole.primary.model_copy(update={"finish_reason": "length"})})
    assert measure(cut, ordering(), PLAN).reason is Unmeasured.CUT_OFF


@pytest.mark.parametrize("problem", [Unmeasured.DEGENERATE_SAMPLES, Unmeasured.MISCONFIGURED])
def test_an_endpoint_that_is_not_trusted_holds_everything_back(problem: Unmeasured) -> None:
    assert measure(drawn(0, problem=problem), ordering(), PLAN).reason is problem
    cheap = after_first_call(drawn(0, problem=problem), ordering(), 1.5)
    assert cheap is not None
    assert cheap.reason is problem


def test_decisions_after_the_first_call_change_no_verdict_in_200_000_cases() -> None:
    """Thresholds lie where rounding could matter: at reachable scores, and one float beside them."""
    rng = random.Random(5)
    seen = {"accepted": 0, "held": 0, "drawn": 0}
    for _ in range(200):
        size, m = rng.randrange(300, 700), rng.randrange(1, 11)
        chosen = params(sorted(rng.gauss(0, 1) for _ in range(size)), rng.uniform(0.01, 1.5))
        for _ in range(1_000):
            cheap, votes = rng.gauss(0, 1), rng.randint(0, m)
            score = chosen.order(cheap, votes / m)
            near = chosen.order(rng.choice(chosen.scale), rng.randint(0, m) / m)
            centre = rng.choice((score, near, near - chosen.weight, near + chosen.weight))
            threshold = rng.choice((math.nextafter(centre, -9), centre, math.nextafter(centre, 9)))
            if accepts(chosen.order(cheap, 1.0), threshold):
                assert accepts(score, threshold)
                seen["accepted"] += 1
            elif not accepts(chosen.order(cheap, 0.0), threshold):
                assert not accepts(score, threshold)
                seen["held"] += 1
            else:
                seen["drawn"] += 1
    assert min(seen.values()) > 10_000


def test_the_guard_decides_after_the_first_call_as_with_all_samples() -> None:
    rng = random.Random(3)
    for _ in range(500):
        estimator = ordering(rng.choice((0.1, 0.2, 0.5)))
        texts = [rng.choice(("Oslo", "Rome", "")) for _ in range(rng.choice((0, 1, 2, 2)))]
        whole = drawn(rng.uniform(0, 301) if rng.random() > 0.1 else 1e6, *texts) if rng.random() > 0.05 else drawn(0)
        threshold = rng.choice((rng.uniform(0, 1.5), 150 / 300 + 0.2, 0.5))
        full = measure(whole, estimator, PLAN)
        cheap = after_first_call(whole.model_copy(update={"samples": ()}), estimator, threshold)
        if cheap is None:
            continue
        assert (cheap.value is None) == (full.value is None)
        if cheap.value is not None and full.value is not None:
            assert cheap.is_bound
            assert accepts(cheap.value, threshold) == accepts(full.value, threshold)


def test_the_artifact_stores_it_whole() -> None:
    estimator = ordering()
    again = from_spec(type(estimator.spec).from_stored(estimator.spec.model_dump_json()))
    assert again.spec == estimator.spec
    whole = drawn(149.5, "Oslo", "Rome")
    assert measure(whole, again, PLAN).value == measure(whole, estimator, PLAN).value
    broken = estimator.spec.model_copy(update={"params": {**estimator.spec.params, "weight": -1}})
    with pytest.raises(ArtifactMismatchError, match="calibrate two-stage"):
        from_spec(broken)


def test_stages_that_cannot_be_stages_are_refused() -> None:
    with pytest.raises(UsageError, match="more than the first call"):
        two_stage(params(range(300)), SECOND, SECOND)
    with pytest.raises(UsageError, match="does not compare samples with the answer"):
        two_stage(params(range(300)), CHEAP, make_estimator("num_sets", judge=ExactJudge()))
    with pytest.raises(ValidationError, match="at least 300"):
        params(range(299))
    with pytest.raises(ValidationError, match="ascend"):
        params([*range(299), 0])
    with pytest.raises(ValidationError, match="ascend"):
        params([*range(299), float("nan")])
