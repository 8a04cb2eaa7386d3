"""The ensemble as an estimator: a weighted sum worked out by hand, one judging pass, and refusals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from guardrail.errors import ArtifactMismatchError
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, EstimatorSpec, from_spec, make_estimator, measure, measure_many
from guardrail.uncertainty.ensemble import EnsembleParams, Member, Training, combined, ensemble, expanded
from guardrail.uncertainty.plan import plan_for

TRAINING = Training(ids=("a",), questions=("b",))


def member(estimator: Estimator, mean: float, scale: float, weight: float) -> Member:
    return Member(spec=estimator.spec, mean=mean, scale=scale, weight=weight)


def together(*estimators: Estimator, intercept: float = -1.0) -> Estimator:
    """Means .1, .2, ..., scales .5, weights 2, 3, ..."""
    members = [member(estimator, 0.1 * (i + 1), 0.5, 2.0 + i) for i, estimator in enumerate(estimators)]
    params = EnsembleParams(intercept=intercept, members=tuple(members), training=TRAINING)
    return ensemble(params, estimators)


def drawn(*texts: str, logprob: float | None = None) -> SampleSet:
    def sample(text: str) -> Sample:
        return Sample(text=text) if logprob is None else Sample(text=text, tokens=(text,), logprobs=(logprob,))

    return SampleSet(question="q", primary=sample("x"), samples=tuple(map(sample, texts)))


def test_the_weighted_sum_by_hand() -> None:
    # a1 a1 a1 b1: self_consistency 1/4, num_sets 2.
    # -1 + 2 (.25 - .1) / .5 + 3 (2 - .2) / .5 = -1 + .6 + 10.8 = 10.4
    exact = ExactJudge()
    both = together(make_estimator("self_consistency", judge=exact), make_estimator("num_sets", judge=exact))
    score = measure(drawn("a1", "a1", "a1", "b1"), both, SamplingPlan(n=4))
    assert score.value == pytest.approx(10.4)
    assert (score.unit, score.estimator) == ("nats", "ensemble")


def test_an_unmeasured_member_makes_it_unmeasured_and_is_named() -> None:
    both = together(make_estimator("self_consistency"), make_estimator("perplexity"))
    score = measure(drawn("a1", "b1"), both, SamplingPlan(n=2))
    assert (score.value, score.reason) == (None, Unmeasured.NO_LOGPROBS)
    assert score.detail.startswith("perplexity: ")
    assert measure(drawn("a1", "b1", logprob=-1.0), both, SamplingPlan(n=2)).value is not None


class Counting(ExactJudge):
    calls = 0

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="counting", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        Counting.calls += 1
        return super().equivalent(question, pairs)


def test_members_are_measured_in_the_same_judging_pass() -> None:
    judge = Counting()
    first, second = make_estimator("self_consistency", judge=judge), make_estimator("num_sets", judge=judge)
    Counting.calls = 0
    scores = measure_many([drawn("a1", "b1")], [first, together(first, second), second], SamplingPlan(n=2))
    assert Counting.calls == 1
    assert [score.estimator for score in scores[0]] == ["self_consistency", "ensemble", "num_sets"]
    assert [score.value for score in scores[0]] == [0.5, pytest.approx(-1 + 2 * 0.4 / 0.5 + 3 * 1.8 / 0.5), 2.0]


def test_scores_go_to_the_estimators_they_belong_to() -> None:
    first, second = make_estimator("self_consistency"), make_estimator("num_sets")
    three = [together(second, first), first, together(first)]
    assert [each.name for each in expanded(three)] == ["num_sets", *["self_consistency"] * 3][:4]
    sets = drawn("a1", "b1")
    flat = measure_many([sets], expanded(three), SamplingPlan(n=2))[0]
    scores = combined(sets, three, flat)
    # -1 + 2 (2 - .1) / .5 + 3 (.5 - .2) / .5; .5; -1 + 2 (.5 - .1) / .5
    assert [score.value for score in scores] == [pytest.approx(8.4), 0.5, pytest.approx(0.6)]


def test_needs_are_the_union_of_the_members() -> None:
    plan = plan_for([together(make_estimator("self_consistency"), make_estimator("perplexity"))])
    assert (plan.n, plan.logprobs, plan.options) == (10, True, None)
    plan = plan_for(
        [together(make_estimator("predictive_entropy"), make_estimator("self_consistency"))], options=["A", "B"]
    )
    assert (plan.n, plan.logprobs, plan.options) == (10, False, ("A", "B"))


def test_the_spec_alone_remakes_it() -> None:
    ensemble = together(make_estimator("self_consistency", judge=ExactJudge()), make_estimator("degree"))
    stored = EstimatorSpec.model_validate_json(ensemble.spec.model_dump_json())
    again = from_spec(stored)
    assert again.spec == ensemble.spec
    sets, plan = drawn("red fox", "red", "blue"), SamplingPlan(n=3)
    assert measure(sets, again, plan) == measure(sets, ensemble, plan)


def test_another_version_of_a_member_is_refused() -> None:
    ensemble = together(make_estimator("self_consistency"), make_estimator("degree"))
    stale = ensemble.spec.model_dump(mode="json")
    stale["params"]["members"][1]["spec"]["version"] = 99
    with pytest.raises(ArtifactMismatchError, match="estimator differs"):
        from_spec(EstimatorSpec.model_validate(stale))


def test_a_member_with_a_judge_that_has_no_name_takes_the_object() -> None:
    spec = together(make_estimator("self_consistency", judge=Counting()), make_estimator("num_sets")).spec
    with pytest.raises(ArtifactMismatchError, match="counting"):
        from_spec(spec)
    assert from_spec(spec, judge=Counting()).spec == spec  # and num_sets keeps its own judge


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [("members", [], "members"), ("intercept", None, "intercept"), ("training", {}, "training")],
)
def test_wrong_parameters_are_refused(field: str, value: object, match: str) -> None:
    spec = together(make_estimator("self_consistency")).spec.model_dump(mode="json")
    spec["params"][field] = value
    with pytest.raises(ArtifactMismatchError, match=match):
        from_spec(EstimatorSpec.model_validate(spec))


def test_an_ensemble_of_ensembles_is_refused() -> None:
    inner = together(make_estimator("self_consistency"))
    with pytest.raises(ValueError, match="ensemble itself"):
        together(inner)
