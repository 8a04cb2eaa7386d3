"""Estimators against numbers worked out by hand, and the faults that others shipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from numpy.linalg import LinAlgError

from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.judges import ExactJudge, Jaccard, JudgeSpec, make_judge
from guardrail.types import OptionScores, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import Evidence, from_spec, make_estimator, measure, measure_stream
from guardrail.uncertainty.comparing import Clusters
from guardrail.uncertainty.entropy import graded_disagreement
from guardrail.uncertainty.plan import plan_for, unmet_needs

EXACT = ExactJudge()


def sample(text: str, logprobs: Sequence[float] | None) -> Sample:
    if logprobs is None:
        return Sample(text=text)
    return Sample(text=text, tokens=("t",) * len(logprobs), logprobs=tuple(logprobs))


def answers(*texts: str, logprobs: Sequence[Sequence[float]] | None = None, primary: str = "x") -> SampleSet:
    rows: Sequence[Sequence[float] | None] = logprobs or [None] * len(texts)
    samples = tuple(sample(text, row) for text, row in zip(texts, rows, strict=True))
    return SampleSet(question="q", primary=Sample(text=primary), samples=samples)


def score(name: str, drawn: SampleSet, judge: object = EXACT) -> Uncertainty:
    estimator = make_estimator(name, judge=judge if name not in OPTION_OR_LIKELIHOOD else None)  # type: ignore[arg-type]
    options = drawn.options.labels if drawn.options else None
    return measure(drawn, estimator, SamplingPlan(n=len(drawn.samples), options=options))


OPTION_OR_LIKELIHOOD = {"predictive_entropy", "max_softmax", "perplexity"}


def test_discrete_semantic_entropy_by_hand() -> None:
    # shares 1/2, 1/4, 1/4: H = (1/2) ln 2 + (1/4) ln 4 + (1/4) ln 4 = (3/2) ln 2
    assert score("discrete_semantic_entropy", answers("a1", "a1", "b1", "c1")).value == pytest.approx(1.5 * math.log(2))


def test_sum_over_clusters_not_samples() -> None:
    # two clusters of five: ln 2 = .693, while a sum over samples would give 5 * .693 = 3.466
    drawn = answers(*["x1"] * 5, *["y1"] * 5, logprobs=[[-1.0]] * 10)
    for name in ("discrete_semantic_entropy", "semantic_entropy"):
        assert score(name, drawn).value == pytest.approx(math.log(2))


def test_self_consistency_by_hand() -> None:
    assert score("self_consistency", answers("a1", "a1", "a1", "b1")).value == 0.25


def test_semantic_entropy_by_hand() -> None:
    # p(x1) = exp(-(.5 + 1.5)/2) = e^-1, p(y1) = exp(-2): weights e : 1, P = (e/(1+e), 1/(1+e))
    drawn = answers("x1", "y1", logprobs=[[-0.5, -1.5], [-2.0]])
    p = math.e / (1 + math.e)
    assert score("semantic_entropy", drawn).value == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


def test_cluster_probabilities_are_renormalised_and_do_not_underflow() -> None:
    # exp(-745) has no digit left in floating point; only ratios matter: weights e : 1
    drawn = answers("x1", "y1", logprobs=[[-744.0], [-745.0]])
    p = math.e / (1 + math.e)
    assert score("semantic_entropy", drawn).value == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    drawn = answers("x1", "y1", logprobs=[[-745.0], [-745.0]])
    assert score("semantic_entropy", drawn).value == pytest.approx(math.log(2))
    # ten copies of a certain answer sum to 10, not 1: without renormalisation the entropy would be negative
    assert score("semantic_entropy", answers(*["x1"] * 10, logprobs=[[0.0]] * 10)).value == 0.0


def test_perplexity_by_hand_excludes_nothing_else() -> None:
    drawn = SampleSet(question="q", primary=Sample(text="a b", tokens=("a", "b"), logprobs=(-0.2, -0.4)))
    assert score("perplexity", drawn).value == pytest.approx(0.3)


def option_set(*loglikelihoods: float) -> SampleSet:
    scores = OptionScores(labels=("A", "B", "C", "D")[: len(loglikelihoods)], loglikelihoods=loglikelihoods)
    return SampleSet(question="q", primary=Sample(text=scores.best), options=scores)


def test_predictive_entropy_and_max_softmax_by_hand() -> None:
    # p = (1/2, 1/4, 1/8, 1/8): H = 1/2 ln 2 + 1/4 ln 4 + 2/8 ln 8 = 1.75 ln 2
    drawn = option_set(*(math.log(p) for p in (0.5, 0.25, 0.125, 0.125)))
    assert score("predictive_entropy", drawn).value == pytest.approx(1.75 * math.log(2))
    assert score("max_softmax", drawn).value == pytest.approx(0.5)


def test_zero_log_zero_is_zero() -> None:
    assert score("predictive_entropy", option_set(0.0, -745.0)).value == pytest.approx(0.0, abs=1e-300)


# -- fail closed


def test_a_missing_option_is_unmeasured_not_probability_zero() -> None:
    estimator = make_estimator("predictive_entropy")
    result = measure(option_set(-1.0, -2.0, -3.0), estimator, SamplingPlan(n=0, options=("A", "B", "C", "D")))
    assert result.reason is Unmeasured.NO_OPTIONS


def test_one_sample_without_logprobs_makes_the_likelihood_form_unmeasured() -> None:
    drawn = answers("x1", "x1", logprobs=[[-1.0], [-1.0]])
    broken = drawn.model_copy(update={"samples": (drawn.samples[0], Sample(text="x1"))})
    assert score("semantic_entropy", broken).reason is Unmeasured.NO_LOGPROBS
    assert score("discrete_semantic_entropy", broken).value == 0.0


def test_primary_disagreement_by_hand() -> None:
    """Three of four samples agree with each other; one, or three, or none with the answer that is returned."""
    assert score("primary_disagreement", answers("a1", "a1", "a1", "b1", primary="B1.")).value == 0.75
    assert score("primary_disagreement", answers("a1", "a1", "a1", "b1", primary="a1")).value == 0.25
    assert score("primary_disagreement", answers("a1", "a1", "a1", "b1", primary="c1")).value == 1.0


def test_graded_disagreement_by_hand() -> None:
    """Votes first; what the samples have in common with the primary (Jaccard) breaks ties between equal votes."""
    # exact: two of four speak against "new york city"; likeness 1, 1, 2/3 ("york city"), 0: d = 1 - (8/3) / 4 = 1/3
    drawn = answers("New York City", "new york city.", "York City", "Rome", primary="new york city")
    assert score("graded_disagreement", drawn).value == pytest.approx((2 + 1 / 3) / 5, abs=1e-15)
    assert score("graded_disagreement", answers("a1", "A1", "a1.", primary="a1")).value == 0.0
    assert score("graded_disagreement", answers("a1", "b1", "c1", primary="d1")).value == 1.0
    # a judge that calls them the same does not make them alike: no vote against, 3 (1 - 2/3) / 3 of one vote
    same = score("graded_disagreement", answers(*["york city"] * 3, primary="new york city"), make_judge("text"))
    assert same.value == pytest.approx((1 / 3) / 4, abs=1e-15)


def test_a_primary_answer_that_was_not_compared_is_no_agreement() -> None:
    clusters = Clusters(assignment=(0, 0))
    assert graded_disagreement(Evidence(drawn=answers("a", "a"), clusters=clusters)) == 1


def test_graded_disagreement_compares_with_the_primary_only() -> None:
    pairs_rated: list[tuple[str, str]] = []

    class Counted(Jaccard):
        def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
            pairs_rated.extend(pairs)
            return super().similarity(question, pairs)

    drawn = answers("b1", "b1", "c1", "I don't know", "a1", primary="a1")
    result = measure(drawn, make_estimator("graded_disagreement", judge=EXACT, similarity=Counted()), SamplingPlan(n=5))
    assert {frozenset(pair) for pair in pairs_rated} == {frozenset(("a1", "b1")), frozenset(("a1", "c1"))}
    assert len(pairs_rated) == 2
    assert result.value == (4 + 0.8) / 6  # a refusal is like no answer; only "a1" is


def test_the_primary_answer_is_grouped_for_those_alone_that_ask() -> None:
    """One pass, one judge: the primary must not become a meaning of the samples."""
    both = [make_estimator("primary_disagreement", judge=EXACT), make_estimator("num_sets", judge=EXACT)]
    drawn = answers("a1", "a1", "b1", "b1", primary="c1")
    assert [result.value for result in next(measure_stream([drawn], both, SamplingPlan(n=4)))] == [1.0, 2.0]


def test_an_empty_or_refused_primary_is_unmeasured() -> None:
    assert score("self_consistency", answers("a1", "a1", primary=" ")).reason is Unmeasured.EMPTY_ANSWER
    refused = answers("a1", "a1").model_copy(update={"primary": Sample(text="no", refusal=True)})
    assert score("self_consistency", refused).reason is Unmeasured.REFUSED


def test_a_problem_in_the_set_wins() -> None:
    drawn = answers("a1", "a1").model_copy(update={"problem": Unmeasured.MODEL_FAILED, "problem_detail": "503"})
    result = score("self_consistency", drawn)
    assert (result.reason, result.detail) == (Unmeasured.MODEL_FAILED, "503")


def test_refusals_are_one_cluster_of_their_own() -> None:
    drawn = answers("I don't know", "not sure", "Paris", "Paris")
    assert score("self_consistency", drawn).value == 0.5


@pytest.mark.parametrize("error", [ZeroDivisionError("0"), OverflowError("big"), LinAlgError("no convergence")])
def test_a_formula_that_fails_is_unmeasured(error: Exception) -> None:
    def formula(evidence: Evidence) -> float:
        raise error

    broken = replace(make_estimator("self_consistency", judge=EXACT), formula=formula)
    result = measure(answers("a1", "a1"), broken, SamplingPlan(n=2))
    assert result.reason is Unmeasured.NOT_FINITE


# -- sharing, names and specs


def test_make_refuses_what_it_cannot_make() -> None:
    given: list[tuple[str, dict[str, object], str]] = [
        ("entropy", {}, "no score named 'entropy'"),
        ("num_sets:exact", {}, "in Python the judge is an argument: judge="),
        ("perplexity", {"judge": EXACT}, "takes no judge; leave judge out"),
        ("degree", {"judge": EXACT}, r"takes no judge; pass similarity=from_judge\(judge\)"),
        ("semantic_entropy", {"similarity": Jaccard()}, "takes no similarity"),
        ("degree", {"entailment": EXACT}, "takes no entailment model"),
    ]
    for name, arguments, said in given:
        with pytest.raises(UsageError, match=said):
            make_estimator(name, **arguments)  # type: ignore[arg-type]


def test_from_spec_round_trips_and_refuses_another_version() -> None:
    spec = make_estimator("semantic_entropy").spec
    assert from_spec(spec).spec == spec
    with pytest.raises(ArtifactMismatchError, match="score differs"):
        from_spec(spec.model_copy(update={"version": 99}))
    with pytest.raises(ArtifactMismatchError, match="does not have"):
        from_spec(spec.model_copy(update={"name": "kernel_language_entropy_2"}))
    unknown = spec.model_copy(update={"judge": JudgeSpec(name="my_nli", version=1, params={})})
    with pytest.raises(ArtifactMismatchError, match="Pass the judge object"):
        from_spec(unknown)


def test_plan_is_derived_from_needs() -> None:
    plan = plan_for([make_estimator("semantic_entropy"), make_estimator("self_consistency")])
    assert (plan.n, plan.logprobs, plan.options) == (10, True, None)
    plan = plan_for([make_estimator("predictive_entropy")], options=["A", "B"])
    assert (plan.n, plan.logprobs, plan.options) == (0, False, ("A", "B"))
    with pytest.raises(UsageError, match="no option labels were given"):
        plan_for([make_estimator("max_softmax")])


def test_one_sample_is_compared_with_the_primary_answer_and_with_nothing_else() -> None:
    same, other = answers("a1", primary="a1"), answers("b1", primary="a1")
    assert score("primary_disagreement", same).value == 0
    assert score("primary_disagreement", other).value == 1
    # (k + d) / (n + 1) with n = 1: k = d = 0 where the texts are equal; k = 1, d = 1 without a common word
    assert score("graded_disagreement", same).value == 0
    assert score("graded_disagreement", other).value == 1
    assert score("self_consistency", other).reason is Unmeasured.SAMPLING_SHORTFALL
    assert score("discrete_semantic_entropy", other).reason is Unmeasured.SAMPLING_SHORTFALL


def test_a_plan_of_one_sample_is_for_estimators_that_compare_it_with_the_answer() -> None:
    assert plan_for([make_estimator("graded_disagreement")], n=1).n == 1
    assert plan_for([make_estimator("sequence_nll")], n=1).n == 0
    with pytest.raises(UsageError, match="semantic_entropy needs at least 2 samples, got n = 1"):
        plan_for([make_estimator("graded_disagreement"), make_estimator("semantic_entropy")], n=1)
    single = SamplingPlan(n=1)
    assert unmet_needs(make_estimator("primary_disagreement"), single) == []
    assert unmet_needs(make_estimator("num_sets"), single)[0][0] == "samples"


@pytest.mark.parametrize("name", ["semantic_entropy", "length_normalised_entropy", "token_sar", "perplexity"])
@pytest.mark.parametrize("zero", [0.0, -0.0, -1e-7])
def test_two_answers_cannot_both_be_certain(name: str, zero: float) -> None:
    """A server that writes 0 for each token it did not compute would have wrong answers accepted as the surest."""
    estimator = make_estimator(name, judge=EXACT) if name == "semantic_entropy" else make_estimator(name)
    plan = SamplingPlan(n=3, logprobs=True)
    own = sample("Lima", [zero, zero])

    def measured(*others: Sample) -> Uncertainty:
        return measure(SampleSet(question="q", primary=own, samples=others), estimator, plan)

    unmeasured = measured(sample("Lima", [zero, zero]), sample("Oslo", [zero]), sample("Lima", [zero]))
    assert (unmeasured.value, unmeasured.reason) == (None, Unmeasured.NO_LOGPROBS)
    # The same answer each time, one that ends earlier, and one with an unlikely token: all of these can be.
    possible = measured(sample("Lima", [zero]), sample("Lima.", [zero, zero]), sample("Oslo", [-16.0]))
    assert "log-probability 0" not in possible.detail


def test_an_equal_sample_does_not_hide_zeros_of_the_answer() -> None:
    """Zeros of a greedy answer stand beside an equal sample with real values: a perplexity of 0 would be accepted."""
    short = answers("Lima", "Oslo", logprobs=[[-0.7], [-0.9]]).model_copy(update={"primary": sample("Lima", [0.0])})
    assert score("perplexity", short).reason is Unmeasured.NO_LOGPROBS
    text, real = "Lima is the capital of Peru", [-0.1] * 6
    long = answers(text, logprobs=[real]).model_copy(update={"primary": sample(text, [0.0] * 6)})
    assert score("perplexity", long).reason is Unmeasured.NO_LOGPROBS


def test_an_answer_cannot_be_certain_if_another_one_was_likely() -> None:
    """Log-probabilities after a temperature of 0 are 0 for each token: the perplexity of every answer would be 0."""
    drawn = answers("Oslo", "Bern", logprobs=[[-0.7], [-0.9]]).model_copy(update={"primary": sample("Lima", [0.0])})
    assert score("perplexity", drawn).reason is Unmeasured.NO_LOGPROBS
    bare = answers("Oslo", "Bern").model_copy(update={"primary": sample("Lima", [0.0])})
    assert score("perplexity", bare).reason is Unmeasured.NO_LOGPROBS
    assert score("perplexity", bare.model_copy(update={"samples": ()})).value == 0.0
