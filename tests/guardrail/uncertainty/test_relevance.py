"""WSE and SAR against hand-derived numbers, an independent re-derivation, and the faults that others shipped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import JudgeSpec, Similarity
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
from guardrail.uncertainty import make_estimator, measure
from guardrail.uncertainty.alignment import Level, spans, without, words
from guardrail.uncertainty.relevance import weighted_nll

ALL = ("word_sequence_entropy", "sar", "token_sar", "sentence_sar")
T = 0.001


@dataclass
class Table(Similarity):
    """A similarity read off a table of unordered pairs; what is not listed is ``other``."""

    values: Mapping[tuple[str, str], float]
    other: float = 0.0
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="table", version=1, params={})

    def identity(self, text: str) -> str:
        return text

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        self.asked += [(question, a, b) for a, b in pairs]
        return [self.values.get((a, b), self.values.get((b, a), self.other)) for a, b in pairs]


def sample(*tokens: str, logprobs: Sequence[float]) -> Sample:
    return Sample(text="".join(tokens).strip(), tokens=tokens, logprobs=tuple(logprobs))


def drawn(*samples: Sample) -> SampleSet:
    return SampleSet(question="x", primary=samples[0], samples=samples)


def value(name: str, one: SampleSet, similarity: Table) -> float:
    result = score(name, one, similarity)
    assert result.value is not None, result
    return result.value


def score(name: str, one: SampleSet, similarity: Table) -> Uncertainty:
    return measure(one, make_estimator(name, similarity=similarity), SamplingPlan(n=len(one.samples)))


# -- pieces


def rests(answer: Sample, level: Level) -> list[str]:
    """The answer without each of its pieces."""
    return [without(answer.text, span, level) for span in (words if level == "word" else spans)(answer)]


def test_one_occurrence_is_taken_out_at_its_place() -> None:
    """The authors' code calls ``.replace``, which takes out every "the", and also the "the" of "other"."""
    answer = sample("the", " other", " the", " end", logprobs=[-1, -1, -1, -1])
    assert rests(answer, "word") == ["other the end", "the the end", "the other end", "the other the"]
    assert rests(sample("New", " Yo", "rk", logprobs=[-1, -2, -4]), "token") == ["York", "Newrk", "New Yo"]


def test_neighbours_stay_one_space_apart() -> None:
    assert rests(sample("a", "\n\n", "b", "  c", logprobs=[-1] * 4), "word") == ["b  c", "a\n\nc", "a\n\nb"]


# -- the weighted NLL


def test_weighted_nll_by_hand() -> None:
    # R = (1 - .8, 1 - .2) = (.2, .8), normalised the same; U = .2 * 1 + .8 * 3 = 2.6
    assert weighted_nll([1.0, 3.0], [0.8, 0.2]) == pytest.approx(2.6)
    assert weighted_nll([1.0, 3.0], [1.0, 1.0]) == 2.0  # no piece matters: uniform weights, not NaN
    assert [weighted_nll([3.0], [alike]) for alike in (0.0, 0.5, 1.0)] == [3.0, 3.0, 3.0]  # a single piece


# -- the estimators

PARIS = sample("It", " is", " Paris", logprobs=[-0.1, -0.2, -1.5])
ROME = sample("Rome", logprobs=[-0.7])
TABLE = Table(
    {
        ("It is Paris", "is Paris"): 0.9,
        ("It is Paris", "It Paris"): 0.9,
        ("It is Paris", "It is"): 0.2,
        ("It is Paris", "It is Paris"): 1.0,
        ("It is Paris", "Rome"): 0.4,
    },
)


def test_word_sequence_entropy_by_hand() -> None:
    # R = (.1, .1, .8), sum 1: U(Paris) = .01 + .02 + 1.2 = 1.23; Rome is one word: U = .7
    # p' = e^-1.23, e^-.7; score = -(1/2) [ln(e^-1.23 + 400 e^-.7) + ln(e^-.7 + 400 e^-1.23)]
    expected = -0.5 * (
        math.log(math.exp(-1.23) + 400 * math.exp(-0.7)) + math.log(math.exp(-0.7) + 400 * math.exp(-1.23))
    )
    assert value("word_sequence_entropy", drawn(PARIS, ROME), TABLE) == pytest.approx(expected, rel=1e-12)


def test_token_sar_by_hand() -> None:
    # tokens: " is" out of "It is Paris" leaves "It Paris", " Paris" leaves "It is", "It" leaves "is Paris"
    assert value("token_sar", drawn(PARIS, ROME), TABLE) == pytest.approx((1.23 + 0.7) / 2, rel=1e-12)


def test_sentence_sar_by_hand() -> None:
    # p = e^-1.8, e^-.7: whole answers, not length-normalised
    expected = -0.5 * (
        math.log(math.exp(-1.8) + 400 * math.exp(-0.7)) + math.log(math.exp(-0.7) + 400 * math.exp(-1.8))
    )
    assert value("sentence_sar", drawn(PARIS, ROME), TABLE) == pytest.approx(expected, rel=1e-12)


def test_duplicates_support_each_other_but_no_sample_supports_itself() -> None:
    # three equal answers with p = e^-1: -ln(e^-1 + 2 * 1000 e^-1) = 1 - ln 2001, the lower bound's neighbour
    same = [sample("x1", logprobs=[-1.0])] * 3
    for name in ("sentence_sar", "sar", "word_sequence_entropy"):
        assert value(name, drawn(*same), Table({})) == pytest.approx(1 - math.log(2001), rel=1e-12)


def test_answers_of_a_thousand_tokens_do_not_underflow() -> None:
    # p = e^-2000 is 0 in floating point; -ln(p + 1000 p) = 2000 - ln 1001
    long = sample(*["a "] * 999, "a", logprobs=[-2.0] * 1000)
    assert value("sentence_sar", drawn(long, long), Table({})) == pytest.approx(2000 - math.log(1001), rel=1e-12)


def test_word_and_token_level_differ_where_words_are_several_tokens() -> None:
    split = drawn(*[sample("Pa", "ris", " now", logprobs=[-1.0, -3.0, -1.0])] * 2)
    # words: R(Paris) = R(now) = .5: U = .5 * 4 + .5 * 1 = 2.5; tokens: all matter alike: U = 5/3
    table = Table({}, other=0.5)
    assert value("sar", split, table) - value("word_sequence_entropy", split, table) == pytest.approx(5 / 3 - 2.5)


def test_the_question_is_handed_to_the_similarity_for_pieces_and_for_pairs() -> None:
    table = Table({}, other=0.5)
    value("word_sequence_entropy", drawn(PARIS, ROME), table)
    assert {question for question, _, _ in table.asked} == {"x"}
    assert {frozenset((a, b)) for _, a, b in table.asked} >= {
        frozenset(("It is Paris", "It is")),
        frozenset(("It is Paris", "Rome")),
    }


def test_sentence_sar_needs_every_log_probability() -> None:
    assert score("sentence_sar", drawn(ROME, Sample(text="Paris")), Table({})).reason is Unmeasured.NO_LOGPROBS


# -- an independent re-derivation

WORDS = ("ja", "no", "12", "Ré", "ü")
ANSWERS = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.floats(-8, -0.01)), min_size=1, max_size=4), min_size=2, max_size=5
)
"""No token is certain: two different answers of certain tokens are not measured."""


def alike(a: str, b: str) -> float:
    """A smooth made-up similarity: symmetric, 1 for equal strings."""
    return 1.0 if a == b else (sum(map(ord, a)) * sum(map(ord, b)) % 97) / 100


class Smooth(Table):
    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return [alike(a, b) for a, b in pairs]


def answer_set(answers: list[list[tuple[str, float]]]) -> SampleSet:
    return drawn(
        *[
            sample(*[(" " if i else "") + word for i, (word, _) in enumerate(row)], logprobs=[lp for _, lp in row])
            for row in answers
        ]
    )


def by_numpy(name: str, answers: list[list[tuple[str, float]]]) -> float:
    """Word- and token-level coincide here: every token is a word with the space before it."""
    texts = [" ".join(word for word, _ in row) for row in answers]
    costs = []
    for row, text in zip(answers, texts, strict=True):
        nll = -np.array([lp for _, lp in row])
        rest = [" ".join(w for j, (w, _) in enumerate(row) if j != i) for i in range(len(row))]
        r = np.array([1 - (alike(text, other) if other else 0.0) for other in rest])
        weights = np.ones(1) if len(r) == 1 else (r / r.sum() if r.sum() > 0 else np.full(len(r), 1 / len(r)))
        costs.append(nll.sum() if name == "sentence_sar" else float(weights @ nll))
    if name == "token_sar":
        return float(np.mean(costs))
    p = np.exp(-np.array(costs))
    g = np.array([[alike(a, b) for b in texts] for a in texts])
    np.fill_diagonal(g, 0.0)
    return float(np.mean(-np.log(p + g @ p / T)))


@given(ANSWERS)
def test_all_four_agree_with_numpy(answers: list[list[tuple[str, float]]]) -> None:
    for name in ALL:
        assert value(name, answer_set(answers), Smooth({})) == pytest.approx(
            by_numpy(name, answers), rel=1e-9, abs=1e-9
        )


# -- the words of the answer that the question has not


def own_words(question: str, answer: Sample) -> Uncertainty:
    plan = SamplingPlan(n=0, logprobs=True)
    return measure(SampleSet(question=question, primary=answer), make_estimator("answer_word_nll"), plan)


def test_only_words_that_are_new_and_no_function_words_are_counted() -> None:
    answer = sample(
        "The", " capital", " of", " Peru", " is", " Li", "ma", ".", logprobs=[-64, -32, -16, -8, -4, -2, -1, -0.5]
    )
    assert own_words("What is the capital of Peru?", answer).value == 2 + 1 + 0.5  # "Lima."
    assert own_words("Which city is it?", answer).value == 32 + 8 + 2 + 1 + 0.5  # "capital", "Peru", "Lima."


def test_marks_and_case_do_not_make_a_word_new() -> None:
    answer = sample('"PERU"', ",", " Lima", logprobs=[-4, -2, -1])
    assert own_words("Where is Peru?", answer).value == 1


def test_an_echo_is_unmeasured() -> None:
    echo = sample("The", " capital", " of", " Peru", " is", " Peru", ".", logprobs=[-0.1] * 7)
    score = own_words("What is the capital of Peru?", echo)
    assert score.value is None
    assert score.reason is Unmeasured.EMPTY_ANSWER
    assert "repeats" in score.detail


def test_an_answer_of_function_words_counts_whole() -> None:
    assert own_words("Is Peru an island?", sample("No", ".", logprobs=[-2, -1])).value == 3


def test_without_words_or_their_likelihoods_there_is_no_answer_word_nll() -> None:
    for answer in (
        Sample(text="Lima"),
        Sample(text="Lima", tokens=("Li",), logprobs=(-1.0,)),
        Sample(text="Lima", tokens=("Lima",), logprobs=(-1.0,), tool_calls=(ToolCall(name="look", arguments={}),)),
    ):
        assert own_words("x", answer).reason is Unmeasured.NO_LOGPROBS


@given(st.lists(st.tuples(st.sampled_from(["ab", "cd", "the", "q"]), st.floats(-9, 0)), min_size=1, max_size=8))
def test_answer_word_nll_is_at_most_sequence_nll(tokens: list[tuple[str, float]]) -> None:
    answer = sample(*(f" {token}" for token, _ in tokens), logprobs=[logprob for _, logprob in tokens])
    value = own_words("q", answer).value
    whole = measure(
        SampleSet(question="q", primary=answer), make_estimator("sequence_nll"), SamplingPlan(n=0, logprobs=True)
    ).value
    assert whole is not None
    if {token for token, _ in tokens} & {"ab", "cd"}:
        by_hand = math.fsum(-logprob for token, logprob in tokens if token in ("ab", "cd"))
        assert value == pytest.approx(by_hand)
        assert by_hand <= whole + 1e-9
    elif "q" in {token for token, _ in tokens}:
        assert value is None  # an echo
    else:
        assert value == pytest.approx(whole)
