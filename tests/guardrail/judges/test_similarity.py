"""Similarities and the numeric and tool-call judges, by hand."""

from __future__ import annotations

import pytest

from guardrail.errors import UsageError
from guardrail.judges import (
    ExactJudge,
    GuardedJaccard,
    NumericJudge,
    RougeL,
    Similarity,
    ToolCallJudge,
    canonical_calls,
    from_judge,
    is_canonical_call,
    list_similarities,
    make_similarity,
)
from guardrail.judges.similarity import jaccard, rouge_l
from guardrail.types import ToolCall
from guardrail.uncertainty import cluster


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # words: police killed gunman / police kill gunman: LCS police, gunman = 2 of 3 and 3 -> 4/6
        ("Police killed the gunman", "police kill the gunman", 4 / 6),
        # gunman kill police: LCS is 1 (either "police" or "gunman") -> 2/6
        ("police killed the gunman", "the gunman kill police", 2 / 6),
        ("x y z w", "y w", 2 * 2 / 6),
        ("Paris", "the Paris!", 1),
        ("[]", "{}", 0),
        ("[]", "[]", 1),
        ("Paris", "[]", 0),
    ],
)
def test_rouge_l_by_hand(a: str, b: str, expected: float) -> None:
    assert rouge_l(a, b) == rouge_l(b, a) == pytest.approx(expected)


def test_jaccard_by_hand() -> None:
    # {red, fox} and {red, dog, cat}: 1 of 4; order and repetition play no part
    assert jaccard("red fox", "dog red cat red") == 0.25
    assert jaccard("?", "!") == 0


def test_the_guards_of_guarded_jaccard() -> None:
    pairs = [("in 1945", "in 1944"), ("it is safe", "it is not safe"), ("red fox", "red")]
    assert GuardedJaccard().similarity("q", pairs) == [0, 0, 0.5]
    assert make_similarity("jaccard").similarity("q", pairs) == pytest.approx([1 / 3, 3 / 4, 1 / 2])


def test_an_answer_that_repeats_the_question_is_like_no_answer_that_says_more() -> None:
    asked, echo = "What is the capital of Eritrea?", "The capital of Eritrea is Eritrea."
    full = "The capital of Eritrea is Asmara."
    similarity = make_similarity("guarded_jaccard")
    assert similarity.similarity(asked, [(echo, full), (full, echo)]) == [0.0, 0.0]
    assert similarity.similarity(asked, [(echo, "It is Eritrea.")]) == [0.0]  # neither has own words
    assert similarity.similarity(asked, [(full, "Asmara")]) == [1.0]


def test_from_judge() -> None:
    similarity = from_judge(ExactJudge())
    assert similarity.similarity("q", [("A cat", "cat"), ("cat", "dog")]) == [1.0, 0.0]
    assert isinstance(similarity, Similarity)
    assert from_judge(NumericJudge()).identity(" 50  % ") == "50 %"
    assert from_judge(ExactJudge()).identity("The Beatles.") == "beatles"


def test_similarities_by_name() -> None:
    assert {"from_judge", "guarded_jaccard", "jaccard", "rouge_l"} <= set(list_similarities())
    assert make_similarity("rouge_l").spec == RougeL().spec
    with pytest.raises(UsageError, match="no similarity named 'oracle'"):
        make_similarity("oracle")
    with pytest.raises(UsageError, match="does not take the parameters"):
        make_similarity("jaccard", n=2)
    with pytest.raises(UsageError, match="does not take the parameters"):
        make_similarity("from_judge")


def test_canonical_calls_by_hand() -> None:
    calls = [
        ToolCall(name="f", arguments={"b": 1.0, "a": [2.50, {"d": True, "c": None}]}),
        ToolCall(name="g", arguments={}),
    ]
    text = '[{"arguments":{"a":[2.5,{"c":null,"d":true}],"b":1},"name":"f"},{"arguments":{},"name":"g"}]'
    assert canonical_calls(calls) == text
    assert canonical_calls(calls[::-1]) != text
    assert is_canonical_call(text)
    assert not is_canonical_call(text.replace(",", ", "))
    assert not is_canonical_call('[{"arguments":')


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ('{"name": "f", "arguments": {"x": 1.0, "y": 2}}', '[{"arguments":{"y":2,"x":1},"name":"f"}]', True),
        ('{"name": "f", "arguments": {"x": 1}, "id": "7"}', '{"name": "f", "arguments": {"x": 1}}', True),
        ('{"name": "f", "arguments": {"x": "A"}}', '{"name": "f", "arguments": {"x": "a"}}', False),
        ('{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "arguments": {"x": 1}, "on": "prod"}', False),
        ("Paris", "paris", False),
        ("Paris ", "Paris", True),
        ("[]", "[ ]", False),
    ],
)
def test_tool_call_judge(a: str, b: str, same: bool) -> None:
    assert ToolCallJudge().equivalent("q", [(a, b), (b, a)]) == [same, same]
    clusters = cluster("q", [a, b], ToolCallJudge())
    assert clusters is not None
    assert (len(clusters.sizes) == 1) is same
