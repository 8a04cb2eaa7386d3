"""SelfCheckGPT's estimators by hand: sentences, n-grams, contradiction, and a model that is asked yes or no."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import Entailment, EntailmentScores, Item, JudgeSpec
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
from guardrail.uncertainty import make_estimator, measure
from guardrail.uncertainty.selfcheck import MAX_QUESTIONS, sentences, support_question


def answers(primary: str, *texts: str) -> SampleSet:
    samples = tuple(Sample(text=text) for text in texts)
    return SampleSet(question="q", primary=Sample(text=primary), samples=samples)


def score(name: str, drawn: SampleSet) -> Uncertainty:
    return measure(drawn, make_estimator(name), SamplingPlan(n=len(drawn.samples)))


# -- sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", ("Paris",)),
        ("It is Paris. It was Rome!  Was it?", ("It is Paris.", "It was Rome!", "Was it?")),
        ("It rose 3.5 % to 1,000.25 in 2.1 s.", ("It rose 3.5 % to 1,000.25 in 2.1 s.",)),
        ("Dr. J. Smith of the U.S. came. He left.", ("Dr. J. Smith of the U.S. came.", "He left.")),
        ("No. It is not.", ("No.", "It is not.")),
        ('He said "Go." Then he left.', ('He said "Go."', "Then he left.")),
        ("- one\n- two\n\n- three", ("- one", "- two", "- three")),
        ("东京。大阪！京都", ("东京。", "大阪！", "京都")),
        ("Wait... what?", ("Wait...", "what?")),
        (" \n ", ()),
    ],
)
def test_sentences(text: str, expected: tuple[str, ...]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet='aB .!?\n。é")', max_size=30))
def test_sentences_lose_nothing_but_white_space(text: str) -> None:
    parts = sentences(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part and part == part.strip() for part in parts)


# -- n-grams


def test_ngram_by_hand() -> None:
    # words: paris x3, rome x1 -> T = 4, V = 2; p(paris) = (3 + 1) / 6
    assert score("selfcheck_ngram", answers("Paris", "Paris.", "paris", "Rome")).value == pytest.approx(math.log(6 / 4))


def test_ngram_takes_the_rarest_word_of_each_sentence_and_the_mean_over_sentences() -> None:
    # "Red fox. Red hen." and "red fox": red 3, fox 2, hen 1, T = 6, V = 3; rarest: fox 3/9, hen 2/9
    result = score("selfcheck_ngram", answers("Red fox. Red hen.", "red fox", "red fox"))
    # with the second sample: red 4, fox 3, hen 1, T = 8, V = 3 -> fox 4/11, hen 2/11
    assert result.value == pytest.approx((math.log(11 / 4) + math.log(11 / 2)) / 2)


def test_ngram_is_zero_when_all_say_the_same_word_and_finite_when_none_does() -> None:
    assert score("selfcheck_ngram", answers("Paris", "Paris", "Paris")).value == 0.0
    # source: k = 0 gives infinity for a word that was never counted; here T = 3, V = 3, p = 2/6
    assert score("selfcheck_ngram", answers("Paris", "Rome", "Oslo")).value == pytest.approx(math.log(3))


def test_ngram_of_symbols_is_measured() -> None:
    assert score("selfcheck_ngram", answers("😀", "😀", "😀")).value == 0.0


# -- contradiction


class Rated(Entailment):
    """An entailment model that reads its probabilities off the last digit of premise and hypothesis."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="rated", version=1, params={})

    def compare(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        return [self._scores(premise, hypothesis) for _, premise, hypothesis in items]

    def _scores(self, premise: str, hypothesis: str) -> EntailmentScores:
        if premise == "yes" and "Paris" in hypothesis:
            return EntailmentScores(entailment=0.6, neutral=0.2, contradiction=0.2)
        return EntailmentScores(entailment=0.1, neutral=0.6, contradiction=0.3)


def contradicted(drawn: SampleSet, model: Rated) -> Uncertainty:
    estimator = replace(make_estimator("selfcheck_nli"), entailment=model)
    return measure(drawn, estimator, SamplingPlan(n=len(drawn.samples)))


def test_nli_by_hand_over_entailment_and_contradiction_only() -> None:
    # sentence 1 "It is Paris.": yes -> .2/.8 = .25, no -> .3/.4 = .75; sentence 2: .75, .75. Mean = 2.5/4
    drawn = answers("It is Paris. I know.", "yes", "no")
    assert contradicted(drawn, Rated()).value == pytest.approx(0.625)


# -- the model is asked


def with_replies(primary: str, said: dict[tuple[str, str], str], *texts: str) -> SampleSet:
    """Replies for (sentence, sample)."""
    drawn = answers(primary, *texts)
    replies = tuple(
        SampleSet(question=support_question("q", sentence, text), primary=Sample(text=word))
        for (sentence, text), word in said.items()
    )
    return drawn.model_copy(update={"follow_ups": {"selfcheck_prompt": replies}})


def test_prompt_by_hand_counts_equal_samples_as_often_as_they_occur() -> None:
    # sentence 1: Yes Yes No -> 1/3; sentence 2: No No No -> 3/3; together 4/6
    words = {("Aye.", "s"): "Yes", ("Aye.", "t"): "no.", ("Bee.", "s"): "No, it is not.", ("Bee.", "t"): "No"}
    assert score("selfcheck_prompt", with_replies("Aye. Bee.", words, "s", "s", "t")).value == pytest.approx(4 / 6)


@pytest.mark.parametrize("word", ["Yes", "yes.", " YES ", '"Yes"', "**Yes**", "Yes, it is.", "Yes\nbecause", "(yes)"])
def test_plain_yes_counts_zero(word: str) -> None:
    assert score("selfcheck_prompt", with_replies("A", {("A", "s"): word}, "s", "s")).value == 0.0


@pytest.mark.parametrize(
    "word", ["not sure", "None", "no idea", "N/A", "yes/no", "Yes or No", "yesterday", "", "maybe"]
)
def test_anything_else_is_unmeasured_not_one_half(word: str) -> None:
    result = score("selfcheck_prompt", with_replies("A", {("A", "s"): word}, "s", "s"))
    assert result.reason is Unmeasured.JUDGE_FAILED


def test_a_pair_that_was_not_asked_is_unmeasured() -> None:
    result = score("selfcheck_prompt", with_replies("A", {("A", "s"): "Yes"}, "s", "t"))
    assert result.reason is Unmeasured.SAMPLING_SHORTFALL


def test_a_reply_that_failed_is_unmeasured_with_its_reason() -> None:
    drawn = answers("A", "s", "s")
    failed = SampleSet(
        question=support_question("q", "A", "s"),
        primary=None,
        problem=Unmeasured.MODEL_FAILED,
        problem_detail="TimeoutError: slow",
    )
    result = score("selfcheck_prompt", drawn.model_copy(update={"follow_ups": {"selfcheck_prompt": (failed,)}}))
    assert (result.reason, result.detail) == (Unmeasured.MODEL_FAILED, "selfcheck_prompt: TimeoutError: slow")


def test_too_many_questions_are_unmeasured() -> None:
    texts = [f"s{i}" for i in range(MAX_QUESTIONS // 2 + 1)]
    result = score("selfcheck_prompt", answers("Aye. Bee.", *texts))
    assert result.reason is Unmeasured.JUDGE_FAILED
    assert "more than" in result.detail


def test_tool_calls_are_put_as_text() -> None:
    call = Sample(text="", tool_calls=(ToolCall(name="f", arguments={"x": 1}),))
    drawn = SampleSet(question="q", primary=call, samples=(call, call))
    canonical = '[{"arguments":{"x":1},"name":"f"}]'
    reply = SampleSet(question=support_question("q", canonical, canonical), primary=Sample(text="Yes"))
    assert score("selfcheck_prompt", drawn.model_copy(update={"follow_ups": {"selfcheck_prompt": (reply,)}})).value == 0
