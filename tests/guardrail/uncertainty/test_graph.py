"""Estimators over the graph of samples, and likelihood-only ones, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from guardrail.errors import ArtifactMismatchError
from guardrail.items.gate import gate_of
from guardrail.judges import ExactJudge, Jaccard, JudgeSpec, Similarity, from_judge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
from guardrail.uncertainty import EstimatorSpec, from_spec, list_estimators, make_estimator, measure
from guardrail.uncertainty.base import Evidence
from guardrail.uncertainty.comparing import matrix
from guardrail.uncertainty.graph import eccentricity

GRAPH = ("degree", "eccentricity", "eigenvalue", "kernel_language_entropy", "lexical_similarity")
FOUR = ["Paris", "Paris", "Rome", "Rome"]


def answers(texts: Sequence[str], logprobs: Sequence[Sequence[float]] | None = None) -> SampleSet:
    samples = tuple(
        Sample(text=text)
        if logprobs is None
        else Sample(text=text, tokens=("t",) * len(logprobs[i]), logprobs=tuple(logprobs[i]))
        for i, text in enumerate(texts)
    )
    return SampleSet(question="q", primary=Sample(text="x"), samples=samples)


def score(name: str, texts: Sequence[str]) -> float:
    value = measure(answers(texts), make_estimator(name), SamplingPlan(n=len(texts))).value
    assert value is not None
    return value


# Columns: all five alike; none of four alike; two groups of two; groups of three and one.
# degree: mean of 1 - W over all m^2 pairs: 0; 12/16; 8/16; 6/16. lexical: over the 12 ordered pairs: 1; 8/12; 6/12.
# eigenvalue = blocks; eccentricity = sqrt(blocks - 1); kernel = entropy of the shares.
@pytest.mark.parametrize(
    ("name", "same", "different", "halves", "three_one"),
    [
        ("num_sets", 1, 4, 2, 2),
        ("degree", 0, 0.75, 0.5, 0.375),
        ("lexical_similarity", 0, 1, 8 / 12, 0.5),
        ("eigenvalue", 1, 4, 2, 2),
        ("eccentricity", 0, math.sqrt(3), 1, 1),
        (
            "kernel_language_entropy",
            0,
            math.log(4),
            math.log(2),
            -0.75 * math.log(0.75) - 0.25 * math.log(0.25),
        ),
    ],
)
def test_blocks_by_hand(name: str, same: float, different: float, halves: float, three_one: float) -> None:
    assert score(name, ["Paris"] * 5) == pytest.approx(same, abs=1e-9)
    assert score(name, ["Paris", "Rome", "Oslo", "Bern"]) == pytest.approx(different, abs=1e-9)
    assert score(name, FOUR) == pytest.approx(halves, abs=1e-9)
    assert score(name, ["Paris", "Rome", "Paris", "Paris"]) == pytest.approx(three_one, abs=1e-9)


def test_two_half_alike_answers_by_hand() -> None:
    # "red fox" and "red": Jaccard 1/2, ROUGE-L 2 * 1 / 3. W = [[1, 1/2], [1/2, 1]], D = 3/2: the eigenvalues of
    # D^-1/2 W D^-1/2 are 1 and 1/3, so lambda = 0 and 2/3, both below .9: all of the plane is kept, norm sqrt(2 - 1).
    texts = ["red fox", "red"]
    assert score("degree", texts) == 0.25
    assert score("lexical_similarity", texts) == pytest.approx(1 / 3)
    assert score("eigenvalue", texts) == pytest.approx(4 / 3)
    assert score("eccentricity", texts) == pytest.approx(1)
    # K has eigenvalues 1 and h = exp(-.3 * 2/3) on (1, 1) and (1, -1): equal diagonals and shares, so rho has
    # eigenvalues 1 / (1 + h) and h / (1 + h).
    h = math.exp(-0.2)
    p = 1 / (1 + h)
    assert score("kernel_language_entropy", texts) == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


def test_eccentricity_leaves_out_eigenvectors_above_the_cut() -> None:
    # W = [[1, w], [w, 1]]: lambda = 0 and 1 - (1 - w) / (1 + w). w = .1: 1 - .9 / 1.1 = .18, kept; w = .95:
    # 1 - .05 / 1.95 = .974, left out, so that only the constant eigenvector remains, which is 0 once centred.
    alike, apart = (((1.0, w), (w, 1.0)) for w in (0.95, 0.1))
    assert eccentricity(Evidence(answers(["a1", "b1"]), matrix=alike)) == 0
    assert eccentricity(Evidence(answers(["a1", "b1"]), matrix=apart)) == pytest.approx(1)


@pytest.mark.parametrize("name", list_estimators())
def test_no_evidence_is_no_score(name: str) -> None:
    """A score of 0, that of a certain answer, would let an answer pass that was compared with nothing."""
    assert make_estimator(name).score(Evidence(SampleSet(question="q", primary=Sample(text="x")))).value is None


def test_the_matrix_by_hand() -> None:
    # sorted: "Red." < "not red" < "red fox" (a refusal sorts first, by its key)
    texts = ["red fox", "Red.", "unknown", "not red", "I don't know"]
    pairs, read = matrix(answers(texts), Jaccard())
    W = read(Jaccard().similarity("q", pairs))["matrix"]
    third, half = 1 / 3, 1 / 2
    expected = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, half, half], [0, 0, half, 1, third], [0, 0, half, third, 1]]
    assert [list(row) for row in W] == [pytest.approx(row) for row in expected]


# -- likelihoods only


def test_sequence_nll_and_length_normalised_entropy_by_hand() -> None:
    primary = Sample(text="a b", tokens=("a", "b"), logprobs=(-0.2, -0.4))
    drawn = SampleSet(question="q", primary=primary)
    assert measure(drawn, make_estimator("sequence_nll"), SamplingPlan(n=0)).value == pytest.approx(0.6)
    # means -1 and -2.5: (1 + 2.5) / 2
    drawn = answers(["a", "b"], [[-0.5, -1.5], [-2.5]])
    assert measure(drawn, make_estimator("length_normalised_entropy"), SamplingPlan(n=2)).value == pytest.approx(1.75)


@pytest.mark.parametrize("broken", [Sample(text="a"), Sample(text="a", tokens=(), logprobs=())])
def test_missing_tokens_are_unmeasured_not_certain(broken: Sample) -> None:
    drawn = answers(["a", "b"], [[-1.0], [-1.0]])
    drawn = drawn.model_copy(update={"samples": (drawn.samples[0], broken), "primary": broken})
    reason = Unmeasured.NO_LOGPROBS if broken.logprobs is None else Unmeasured.EMPTY_ANSWER
    for name in ("sequence_nll", "length_normalised_entropy"):
        assert measure(drawn, make_estimator(name), SamplingPlan(n=2)).reason is reason


# -- fail closed, sharing, specs


class Rated(Similarity):
    """A similarity that always says the same, or raises, and counts how often it is asked."""

    def __init__(self, value: float | None, error: Exception | None = None) -> None:
        self.value, self.error, self.calls = value, error, 0

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="rated", version=1, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        self.calls += 1
        if self.error:
            raise self.error
        return [self.value] * len(pairs)


class Short(Rated):
    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return []


@pytest.mark.parametrize(
    "similarity",
    [Rated(None), Rated(math.nan), Rated(1.2), Rated(-0.1), Short(0.5), Rated(0.5, RuntimeError("down"))],
)
@pytest.mark.parametrize("name", GRAPH)
def test_a_similarity_without_a_rating_is_unmeasured(name: str, similarity: Rated) -> None:
    score = measure(answers(FOUR), make_estimator(name, similarity=similarity), SamplingPlan(n=4))
    assert (score.value, score.reason) == (None, Unmeasured.JUDGE_FAILED)


@pytest.mark.parametrize("name", [*GRAPH, "num_sets", "length_normalised_entropy"])
def test_a_shortfall_or_an_empty_sample_is_unmeasured(name: str) -> None:
    assert measure(answers(["a1"] * 3), make_estimator(name), SamplingPlan()).reason is Unmeasured.SAMPLING_SHORTFALL
    assert measure(answers(["", ""]), make_estimator(name), SamplingPlan(n=2)).reason is Unmeasured.EMPTY_ANSWER


@pytest.mark.parametrize("name", GRAPH)
def test_from_spec_round_trips_and_refuses_another_similarity(name: str) -> None:
    for similarity in (None, Jaccard(), from_judge(ExactJudge())):
        spec = make_estimator(name, similarity=similarity).spec
        assert from_spec(EstimatorSpec.model_validate_json(spec.model_dump_json())).spec == spec
    with pytest.raises(ArtifactMismatchError, match="score differs"):
        from_spec(make_estimator(name, similarity=Jaccard()).spec, similarity=from_judge(ExactJudge()))
    with pytest.raises(ArtifactMismatchError, match="Pass the similarity object"):
        from_spec(make_estimator(name, similarity=Rated(0.5)).spec)
    stale = make_estimator(name).spec.model_copy(
        update={"similarity": JudgeSpec(name="rouge_l", version=99, params={})}
    )
    with pytest.raises(ArtifactMismatchError, match="score differs"):
        from_spec(stale)
    assert from_spec(make_estimator(name, similarity=Rated(0.5)).spec, similarity=Rated(0.5)).similarity is not None


# -- tool calls as answers


def calls(*arguments: dict[str, object]) -> SampleSet:
    samples = tuple(Sample(text="", tool_calls=(ToolCall(name="book", arguments=each),)) for each in arguments)
    return SampleSet(question="q", primary=samples[0], samples=samples)


def measured(name: str, drawn: SampleSet) -> Uncertainty:
    return measure(drawn, make_estimator(name), SamplingPlan(n=len(drawn.samples)))


def test_tool_calls_are_the_same_only_exactly() -> None:
    # With the default judge these share most words: word overlap must not make them one.
    different = calls({"city": "Paris", "day": 1}, {"city": "Rome", "day": 1})
    assert measured("self_consistency", different).value == 0.5
    assert measured("num_sets", different).value == 2
    assert measured("lexical_similarity", different).value == 1
    assert measured("eigenvalue", different).value == 2
    same = calls({"city": "Paris", "day": 1.0}, {"day": 1, "city": "Paris"})
    assert measured("self_consistency", same).value == 0
    assert measured("degree", same).value == 0


@pytest.mark.parametrize(
    ("a", "b"), [([1, 200], [1200]), ("a", "the"), ("50%", "50"), (1, "1"), (1, True), (2**53, 2**53 + 1)]
)
def test_normalising_must_not_merge_tool_calls(a: object, b: object) -> None:
    assert measured("num_sets", calls({"x": a}, {"x": b})).value == 2


def test_a_verdict_shows_proposed_calls() -> None:
    model = ScriptedChat()
    drawn = calls({"x": 1}, {"x": 1}, {"x": 2})
    shown = gate_of(make_artifact(model, n=3)).decide(drawn).alternatives
    assert shown == (('[{"arguments":{"x":1},"name":"book"}]', 2 / 3), ('[{"arguments":{"x":2},"name":"book"}]', 1 / 3))
