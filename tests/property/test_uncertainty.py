"""Invariants of clustering and of the entropies, for any samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import ExactJudge, Judge, JudgeSpec, TextJudge, from_judge, make_similarity
from guardrail.judges.similarity import rouge_l
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, measure, measure_stream
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
        Sample(text=text, tokens=("t",), logprobs=(logprobs[i] if logprobs else -1.0,)) for i, text in enumerate(texts)
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


@given(TEXTS, st.randoms(use_true_random=False), st.data())
def test_scores_are_bit_equal_under_permutation_and_bounded(
    texts: list[str], shuffle: random.Random, data: st.DataObject
) -> None:
    logprobs = data.draw(st.lists(st.floats(-50, UNCERTAIN), min_size=len(texts), max_size=len(texts)))
    order = list(range(len(texts)))
    shuffle.shuffle(order)
    plan = SamplingPlan(n=len(texts))
    for name in ("semantic_entropy", "discrete_semantic_entropy", "self_consistency"):
        value = measure(drawn(texts, logprobs), make(name), plan).value
        again = measure(drawn([texts[i] for i in order], [logprobs[i] for i in order]), make(name), plan).value
        assert value is not None
        assert value == again
        assert 0 <= value <= math.log(len(texts)) + 1e-12


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


ALIKE = ["red fox", "red", "the red fox ran", "fox", "not red", "7 red", "unknown", "[]"]


@given(
    st.lists(st.sampled_from(ALIKE), min_size=2, max_size=12),
    st.sampled_from(["guarded_jaccard", "jaccard", "rouge_l"]),
    st.randoms(use_true_random=False),
)
def test_graph_scores_are_bit_equal_under_permutation_and_bounded(
    texts: list[str], similarity: str, shuffle: random.Random
) -> None:
    m = len(texts)
    bounds = {
        "degree": (0.0, 1 - 1 / m),
        "eccentricity": (0.0, math.sqrt(m - 1)),
        "eigenvalue": (1.0, float(m)),
        "kernel_language_entropy": (0.0, math.log(m)),
        "lexical_similarity": (0.0, 1.0),
    }
    estimators = [make(name, similarity=make_similarity(similarity)) for name in bounds]
    values = [score.value for score in next(measure_stream([drawn(texts)], estimators, SamplingPlan(n=m)))]
    shuffle.shuffle(texts)
    assert [score.value for score in next(measure_stream([drawn(texts)], estimators, SamplingPlan(n=m)))] == values
    for value, (low, high) in zip(values, bounds.values(), strict=True):
        assert value is not None
        assert low - 1e-9 <= value <= high + 1e-9


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


@given(TEXTS, st.data(), st.randoms(use_true_random=False))
def test_length_normalised_entropy_is_bit_equal_under_permutation(
    texts: list[str], data: st.DataObject, shuffle: random.Random
) -> None:
    logprobs = data.draw(st.lists(st.floats(-50, UNCERTAIN), min_size=len(texts), max_size=len(texts)))
    plan = SamplingPlan(n=len(texts))
    value = measure(drawn(texts, logprobs), make("length_normalised_entropy"), plan).value
    assert value is not None
    assert min(-p for p in logprobs) - 1e-9 <= value <= max(-p for p in logprobs) + 1e-9
    shuffle.shuffle(logprobs)
    assert measure(drawn(texts, logprobs), make("length_normalised_entropy"), plan).value == value


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
