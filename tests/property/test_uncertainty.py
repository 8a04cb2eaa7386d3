"""Invariants of clustering and of the entropies, for any samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import ExactJudge, JudgeSpec, TokenF1Judge
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, make, measure

WORDS = ["Paris", "It is Paris", "paris!", "Rome", "12", "1,2", "no", "I don't know", "a b c d", "a b"]
TEXTS = st.lists(
    st.sampled_from(WORDS),
    min_size=2,
    max_size=12,
)


class Neighbours:
    """Not transitive: integers are 'the same' when they differ by at most one."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="neighbours", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return [abs(int(a) - int(b)) <= 1 for a, b in pairs]


def drawn(texts: list[str], logprobs: list[float] | None = None) -> SampleSet:
    samples = tuple(
        Sample(text=text, tokens=("t",), logprobs=(logprobs[i] if logprobs else -1.0,)) for i, text in enumerate(texts)
    )
    return SampleSet(question="q", primary=Sample(text="x"), samples=samples)


@given(TEXTS, st.sampled_from([ExactJudge(), TokenF1Judge()]), st.sampled_from(["components", "greedy"]))
def test_clusters_are_a_partition(texts: list[str], judge: ExactJudge, method: str) -> None:
    clusters = cluster("q", texts, judge, method)  # type: ignore[arg-type]
    assert clusters is not None
    assert len(clusters.assignment) == len(texts)
    assert sum(clusters.sizes) == len(texts)
    assert all(size > 0 for size in clusters.sizes)
    distinct = len(set(texts))
    assert clusters.judged_pairs <= distinct * (distinct - 1) // 2


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


def test_greedy_does_depend_on_order_and_never_claims_twice() -> None:
    # 1 ~ 2 ~ 3 but not 1 ~ 3: from 1: {1, 2}, {3}; from 2: {2, 1, 3}
    judge = Neighbours()
    first = cluster("q", ["1", "2", "3"], judge, "greedy")
    second = cluster("q", ["2", "1", "3"], judge, "greedy")
    assert first is not None
    assert second is not None
    assert (first.sizes, second.sizes) == ((2, 1), (3,))


@given(TEXTS, st.randoms(use_true_random=False), st.data())
def test_scores_are_bit_equal_under_permutation_and_bounded(
    texts: list[str], shuffle: random.Random, data: st.DataObject
) -> None:
    logprobs = data.draw(st.lists(st.floats(-50, 0), min_size=len(texts), max_size=len(texts)))
    order = list(range(len(texts)))
    shuffle.shuffle(order)
    plan = SamplingPlan(n=len(texts))
    for name in ("semantic_entropy", "discrete_semantic_entropy", "self_consistency"):
        value = measure(drawn(texts, logprobs), make(name), plan).value
        again = measure(drawn([texts[i] for i in order], [logprobs[i] for i in order]), make(name), plan).value
        assert value is not None
        assert value == again
        assert 0 <= value <= math.log(len(texts)) + 1e-12


@given(TEXTS, st.floats(-50, 0))
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
    base = [-(i % 5) / 3 for i in range(len(texts))]
    value = measure(drawn(texts, base), make("semantic_entropy"), plan).value
    moved = measure(drawn(texts, [b + shift for b in base]), make("semantic_entropy"), plan).value
    assert value is not None
    assert moved is not None
    assert abs(value - moved) < 1e-9
