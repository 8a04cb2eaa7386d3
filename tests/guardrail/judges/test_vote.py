"""The vote of the samples."""

from __future__ import annotations

import pytest

from guardrail.judges import majority, with_majority
from guardrail.types import Sample, SampleSet, ToolCall


def texts(*answers: str) -> list[Sample]:
    return [Sample(text=answer) for answer in answers]


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (("Rome", "Paris", "paris."), 1),  # 2 of 3 by their normal form; the first wording
        (("Rome", "Paris", "Rome", "Paris"), 0),  # a tie: the earliest
        (("7", "18", "18.0"), 1),  # the same number
        (("7", "1,000", "1000.00", "1000"), 1),
        (("x", "9007199254740993", "9007199254740992"), 0),  # one float, two numbers
        (("x", "1e400", "1e500"), 0),  # both are infinite as floats
        (("x", "0.1", "0.10000000000000000555"), 0),
        (("x", "007", "7"), 0),  # a number by which something is called
        (("x", "nan", "NaN"), 1),  # one word
        (("x", "inf", "infinity", "1e999"), 0),  # and no numbers
        (("", "", "Paris"), 0),  # an empty answer is one, which a guard then refuses
        (("Rome",), 0),
        ((), None),
    ],
)
def test_the_most_frequent_answer_wins(answers: tuple[str, ...], place: int | None) -> None:
    assert majority(texts(*answers)) == place


def test_tool_calls_are_compared_by_their_arguments_and_not_by_the_text_beside_them() -> None:
    def call(to: str, text: str) -> Sample:
        return Sample(text=text, tool_calls=(ToolCall(name="pay", arguments={"to": to}),))

    assert majority([call("bob", "ok"), call("al", "ok"), call("al", "sure")]) == 1


def test_a_set_gets_the_vote_as_its_answer_and_keeps_every_sample() -> None:
    drawn = SampleSet(question="?", primary=None, samples=tuple(texts("a", "b", "b")))
    voted = with_majority(drawn)
    assert (voted.primary, voted.samples) == (drawn.samples[1], drawn.samples)
    assert with_majority(SampleSet(question="?", primary=None)).primary is None
