"""One judging pass for many sets and estimators gives what each gives alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrail.judges import Item, Judge, JudgeSpec, NumericJudge, Similarity
from guardrail.judges.similarity import jaccard
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, measure, measure_stream, ties
from guardrail.uncertainty import make_estimator as make


class Words(Similarity):
    """A similarity by word overlap that fails on some texts."""

    def __init__(self, fails: Callable[[str], object] = lambda text: None) -> None:
        self.fails = fails

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="counted", version=1, params={})

    def compare(self, items: Sequence[Item]) -> list[float | None]:
        values: list[float | None] = []
        for _, a, b in items:
            trouble = self.fails(a) or self.fails(b)
            if isinstance(trouble, Exception):
                raise trouble
            values.append(None if trouble else jaccard(a, b))
        return values


class SameWords(Judge):
    """A judge of the same kind."""

    def __init__(self, words: Words) -> None:
        self.words = words

    @property
    def spec(self) -> JudgeSpec:
        return self.words.spec

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        return [None if value is None else value >= 0.5 for value in self.words.compare(items)]


def of_all_kinds(similar: Words) -> list[Estimator]:
    judge = SameWords(similar)
    return [
        make("num_sets"),
        make("semantic_entropy"),
        make("self_consistency", judge=NumericJudge()),
        make("degree"),
        make("perplexity"),
        make("selfcheck_ngram"),
        make("selfcheck_nli"),
        make("word_sequence_entropy"),
        ties(make("num_sets"), make("degree")),
        make("num_sets", judge=judge),
        make("graded_disagreement", judge=judge, similarity=similar),
        make("token_sar", similarity=similar),
    ]


def sample(text: str) -> Sample:
    words = text.split()
    tokens = tuple(word if i == 0 else f" {word}" for i, word in enumerate(words))
    return Sample(text=text, tokens=tokens, logprobs=tuple(-0.1 * len(word) for word in words))


TEXTS = st.sampled_from(
    ["Paris", "paris.", "in Paris", "Rome", "the old Rome", "50%", "50", "7 ships", "I don't know", "", "broken"]
)
SETS = st.lists(st.tuples(st.sampled_from(["q1", "q2"]), TEXTS, st.lists(TEXTS, min_size=1, max_size=5)), max_size=6)


@given(
    SETS,
    st.sampled_from([None, "no verdict", RuntimeError("down")]),
)
@settings(deadline=None, max_examples=60)
def test_one_pass_gives_what_each_record_gives_alone(sets: list[tuple[str, str, list[str]]], trouble: object) -> None:
    words = Words(lambda text: trouble if "broken" in text else None)
    estimators, plan = of_all_kinds(words), SamplingPlan(n=3, logprobs=True)
    drawns = [
        SampleSet(question=question, primary=sample(primary), samples=tuple(map(sample, texts)))
        for question, primary, texts in sets
    ]
    together = list(measure_stream(drawns, estimators, plan))
    for drawn, values in zip(drawns, together, strict=True):
        for estimator, score in zip(estimators, values, strict=True):
            alone = measure(drawn, estimator, plan)
            assert (score.value, score.reason) == (alone.value, alone.reason), (estimator.name, drawn)
