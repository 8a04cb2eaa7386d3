"""Invariants of clustering and of scores, for any samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import ExactJudge, Judge, JudgeSpec, TextJudge, from_judge, make_similarity
from guardrail.judges.similarity import rouge_l
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, list_estimators, measure, measure_stream
from guardrail.uncertainty import make_estimator as make

WORDS = ["Paris", "It is Paris", "paris!", "Rome", "12", "1,2", "no", "I don't know", "a b c d", "a b"]
UNCERTAIN = -0.01
"""Largest log-probability of these answers: several certain answers to one question are impossible, so not measured."""
TEXTS = st.lists(
    st.sampled_from(WORDS),
    min_size=2,
    max_size=12,
)


class Neighbours(Judge):
    """A judge that is not transitive: integers are equivalent if they differ by at most one."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="neighbours", version=1, params={})

    n_asked = 0

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.n_asked += len(pairs)
        return [abs(int(a) - int(b)) <= 1 for a, b in pairs]


def drawn(texts: list[str], logprobs: list[float] | None = None) -> SampleSet:
    samples = tuple(
        Sample(text=text, tokens=(text,), logprobs=(logprobs[i] if logprobs else -1.0,)) for i, text in enumerate(texts)
    )
    return SampleSet(question="q", primary=Sample(text="x"), samples=samples)


@given(TEXTS, st.sampled_from([ExactJudge(), TextJudge()]))
def test_clusters_are_a_partition(texts: list[str], judge: ExactJudge) -> None:
    clusters = cluster("q", texts, judge)
    assert clusters is not None
    assert len(clusters.assignment) == len(texts)
    assert sum(clusters.sizes) == len(texts)
    assert all(size > 0 for size in clusters.sizes)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=10), st.randoms(use_true_random=False))
def test_components_do_not_depend_on_order_even_when_the_judge_is_not_transitive(
    numbers: list[int], shuffle: random.Random
) -> None:
    estimator = make("discrete_semantic_entropy", judge=Neighbours())
    texts = [str(number) for number in numbers]
    plan = SamplingPlan(n=len(texts))
    before = measure(drawn(texts), estimator, plan)
    shuffle.shuffle(texts)
    assert measure(drawn(texts), estimator, plan) == before


def bounds(m: int) -> dict[str, tuple[float, float]]:
    """The range of scores of m samples, as their docstrings state it."""
    entropy, share, weighed = (0.0, math.log(m)), (0.0, 1 - 1 / m), (-math.log(1 + (m - 1) / 0.001), math.inf)
    return {
        **dict.fromkeys(("semantic_entropy", "discrete_semantic_entropy", "kernel_language_entropy"), entropy),
        **dict.fromkeys(("self_consistency", "degree"), share),
        **dict.fromkeys(("num_sets", "eigenvalue"), (1.0, float(m))),
        **dict.fromkeys(("sar", "sentence_sar", "word_sequence_entropy"), weighed),
        **dict.fromkeys(("primary_disagreement", "graded_disagreement", "lexical_similarity"), (0.0, 1.0)),
        **dict.fromkeys(("token_sar", "selfcheck_ngram", "length_normalised_entropy"), (0.0, math.inf)),
        "eccentricity": (0.0, math.sqrt(m - 1)),
    }


@given(
    st.lists(st.sampled_from([*WORDS, "red fox", "the red fox ran", "not red", "7 red", "[]"]), min_size=2, max_size=8),
    st.sampled_from(["guarded_jaccard", "jaccard", "rouge_l"]),
    st.randoms(use_true_random=False),
)
def test_scores_are_bit_equal_under_permutation_and_bounded(
    texts: list[str], similarity: str, shuffle: random.Random
) -> None:
    """A score that depended on the order would have ties fall apart, and a gate accept one order of equal samples."""
    made = [make(name) for name in list_estimators()]
    made = [each for each in made if each.needs.samples and each.needs.follow_up is None and not each.needs.entailment]
    made = [replace(each, similarity=each.similarity and make_similarity(similarity)) for each in made]
    logprobs = [-shuffle.uniform(-UNCERTAIN, 50) for _ in texts]
    whole, plan = drawn(texts, logprobs), SamplingPlan(n=len(texts))
    other = whole.model_copy(update={"samples": tuple(shuffle.sample(whole.samples, len(texts)))})
    values, again = ([score.value for score in row] for row in measure_stream([whole, other], made, plan))
    assert values == again
    for each, value in zip(made, values, strict=True):
        low, high = bounds(len(texts)).get(each.name, (-math.inf, math.inf))
        assert value is not None, each.name
        assert low - 1e-9 <= value <= high + 1e-9, each.name


@given(TEXTS, st.floats(-50, UNCERTAIN))
def test_equal_likelihoods_give_the_discrete_form(texts: list[str], logprob: float) -> None:
    plan = SamplingPlan(n=len(texts))
    sample_set = drawn(texts, [logprob] * len(texts))
    likelihood = measure(sample_set, make("semantic_entropy"), plan).value
    discrete = measure(sample_set, make("discrete_semantic_entropy"), plan).value
    assert likelihood is not None
    assert discrete is not None
    assert abs(likelihood - discrete) < 1e-12


@given(TEXTS, st.floats(-20, 0))
def test_scaling_all_likelihoods_changes_nothing(texts: list[str], shift: float) -> None:
    plan = SamplingPlan(n=len(texts))
    base = [UNCERTAIN - (i % 5) / 3 for i in range(len(texts))]
    value = measure(drawn(texts, base), make("semantic_entropy"), plan).value
    moved = measure(drawn(texts, [b + shift for b in base]), make("semantic_entropy"), plan).value
    assert value is not None
    assert moved is not None
    assert abs(value - moved) < 1e-9


@given(TEXTS)
def test_zero_one_similarities_give_the_cluster_scores(texts: list[str]) -> None:
    plan = SamplingPlan(n=len(texts))
    similarity = from_judge(ExactJudge())  # transitive, so that W is block-diagonal
    sets = measure(drawn(texts), make("num_sets", judge=ExactJudge()), plan).value
    entropy = measure(drawn(texts), make("discrete_semantic_entropy", judge=ExactJudge()), plan).value
    assert sets is not None
    assert entropy is not None
    expected = {"eigenvalue": sets, "eccentricity": math.sqrt(sets - 1), "kernel_language_entropy": entropy}
    for name, value in expected.items():
        score = measure(drawn(texts), make(name, similarity=similarity), plan).value
        assert score is not None
        assert abs(score - value) < 1e-9


@given(st.lists(st.text("ab ", max_size=9), min_size=2, max_size=2))
def test_rouge_l_counts_the_longest_common_subsequence(texts: list[str]) -> None:
    """The oracle is the usual table of the dynamic programme."""
    ours, theirs = ([f"{word}x" for word in text.split()] for text in texts)
    table = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, word in enumerate(ours):
        for j, other in enumerate(theirs):
            table[i + 1][j + 1] = table[i][j] + 1 if word == other else max(table[i][j + 1], table[i + 1][j])
    if ours and theirs:
        expected = 2 * table[-1][-1] / (len(ours) + len(theirs))
        assert rouge_l(" ".join(ours), " ".join(theirs)) == expected
