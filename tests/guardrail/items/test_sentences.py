"""Sentences as items: split by rule, supported by an entailment model or by the model's own replies."""

from collections.abc import Sequence

import pytest

from calibrate.pipeline import narrowed_plan
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.items.measure import items_estimator, items_measure
from guardrail.items.sentences import SUPPORTED, question, sentence_spec
from guardrail.judges import EntailmentScores, JudgeSpec
from guardrail.judges.base import Item
from guardrail.types import Missing, Sample, SampleSet, ToolCall, Unmeasured
from guardrail.uncertainty import plan_for

TEXT = "Dr. Smith was born in Rome.  He died in 1900.\nHe painted."
SENTENCES = ("Dr. Smith was born in Rome.", "He died in 1900.", "He painted.")


class Contains:
    """A premise entails what it contains; no score for "?"; raises for "!"."""

    spec = JudgeSpec(name="contains", version=1, params={})

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        if any("!" in premise for _, premise, _ in items):
            raise RuntimeError("!")
        return [
            None if "?" in premise else EntailmentScores(0.5 if text in premise else 0.49) for _, premise, text in items
        ]


def drawn(*samples: str, replies: dict[str, str] | None = None) -> SampleSet:
    asked = () if replies is None else tuple(
        SampleSet(question=question("q", SENTENCES, text), primary=Sample(text=reply))
        for text, reply in replies.items()
    )  # fmt: skip
    follow_ups = {SUPPORTED.name: asked} if replies is not None else {}
    texts = tuple(Sample(text=text) for text in samples)
    return SampleSet(question="q", primary=Sample(text=TEXT), samples=texts, follow_ups=follow_ups)


def test_each_sentence_has_its_place_and_its_share_of_samples() -> None:
    measure = items_measure(sentence_spec(5, entailment=Contains()), entailment=Contains())
    items = measure.items(drawn(TEXT, "He painted.", "Nothing."))
    assert isinstance(items, tuple)
    assert [TEXT[item.span[0] : item.span[1]] for item in items if item.span] == list(SENTENCES)
    assert [item.uncertainty for item in items] == [2 / 3, 2 / 3, 1 / 3]


@pytest.mark.parametrize("sample", ["?", "!"])
def test_without_a_score_from_the_model_a_sentence_is_unmeasured(sample: str) -> None:
    items = items_measure(sentence_spec(5, entailment=Contains()), entailment=Contains()).items(drawn(TEXT, sample))
    assert isinstance(items, tuple)
    assert [item.uncertainty for item in items] == [None] * 3


def test_the_models_own_replies() -> None:
    measure = items_measure(sentence_spec(5))
    replies = {"s1": "1. Yes\n2. No\n3. yes.", "s2": "1) no\n\n2: No\n3 - YES"}
    items = measure.items(drawn("s1", "s2", "s1", "", replies=replies))  # a sample without text supports nothing
    assert isinstance(items, tuple)
    assert [item.uncertainty for item in items] == [0.5, 1.0, 0.25]


@pytest.mark.parametrize(
    "reply",
    ["1. Yes\n2. No", "1. Yes\n2. No\n3. Maybe", "1. Yes\n2. No\n2. No\n3. Yes", "Yes\nNo\nYes",
     "1. Yes\n2. No\n4. Yes",
     "1. Yes\n2. No\n3. Yes, partly", "1. Yes\n2. No\n3. Yes\nI hope that helps", ""],
)  # fmt: skip
def test_a_reply_that_cannot_be_read_leaves_every_sentence_unmeasured(reply: str) -> None:
    items = items_measure(sentence_spec(5)).items(
        drawn("s1", "s2", replies={"s1": "1. Yes\n2. Yes\n3. Yes", "s2": reply})
    )
    assert isinstance(items, tuple)
    assert [item.uncertainty for item in items] == [None] * 3
    estimator = items_estimator(items_measure(sentence_spec(5)))
    assert "cannot be read" in items[0].detail
    assert estimator.needs.follow_up is SUPPORTED


def test_a_reply_that_is_missing_leaves_every_sentence_unmeasured() -> None:
    items = items_measure(sentence_spec(5)).items(drawn("s1", "s2", replies={"s1": "1. Yes\n2. Yes\n3. Yes"}))
    assert isinstance(items, tuple)
    assert [item.uncertainty for item in items] == [None] * 3


def test_one_question_for_each_distinct_sample() -> None:
    asked = SUPPORTED.ask([], drawn("s1", "s2", "s1", ""))
    assert [messages[0].text for messages in asked] == [question("q", SENTENCES, text) for text in ("s1", "s2")]
    assert '\n3. "He painted."\n' in asked[0][0].text


def test_the_plan_asks_for_support() -> None:
    estimator = items_estimator(items_measure(sentence_spec(5)))
    plan = plan_for([estimator], n=4)
    assert (plan.n, plan.follow_ups) == (4, ("supported_sentences",))
    wide = plan.model_copy(update={"follow_ups": ("p_true", "supported_sentences")})
    assert narrowed_plan(wide, estimator.spec) == plan, "a guard would ask too little, or pay for p_true"
    assert SUPPORTED.plan(plan).max_tokens == 400
    judged = items_estimator(items_measure(sentence_spec(5, entailment=Contains()), entailment=Contains()))
    assert plan_for([judged], n=4).follow_ups == ()


def test_a_call_has_no_sentences() -> None:
    call = Sample(text="", tool_calls=(ToolCall(name="f", arguments={}),))
    missing = items_measure(sentence_spec(5)).items(SampleSet(question="q", primary=call, samples=(call,)))
    assert isinstance(missing, Missing)
    assert missing.reason is Unmeasured.UNREADABLE


def test_another_entailment_model_is_refused() -> None:
    with pytest.raises(ArtifactMismatchError, match="no entailment model named 'contains'"):
        items_measure(sentence_spec(5, entailment=Contains()))
    other = Contains()
    other.spec = JudgeSpec(name="contains", version=2, params={})
    with pytest.raises(ArtifactMismatchError, match="the entailment model differs"):
        items_measure(sentence_spec(5, entailment=Contains()), entailment=other)
    with pytest.raises(ArtifactMismatchError, match="leave the entailment model out"):
        items_measure(sentence_spec(5), entailment=Contains())
    with pytest.raises(UsageError, match="least must be in"):
        sentence_spec(5, entailment=Contains(), least=0)
