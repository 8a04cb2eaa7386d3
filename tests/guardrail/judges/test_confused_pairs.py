"""Pairs of short answers that judges are prone to confuse.

`answer_pairs.jsonl` is taken from two files of such pairs that were made for this project (`source` names them).
`fresh_pairs.jsonl` was written after the judges had been mended, half of it pairs that differ, and before they were run
on it. `judges` are those that must agree with `same`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guardrail.judges import make_judge
from guardrail.uncertainty import cluster

FOLDER = Path(__file__).parent


def pairs(name: str) -> list[tuple[dict[str, Any], str]]:
    rows = [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    return [(row, judge) for row in rows for judge in row["judges"]]


@pytest.mark.parametrize(("pair", "judge"), pairs("answer_pairs.jsonl") + pairs("fresh_pairs.jsonl"))
def test_pairs(pair: dict[str, Any], judge: str) -> None:
    a, b, same = pair["a"], pair["b"], pair["same"]
    assert make_judge(judge).equivalent("", [(a, b), (b, a)]) == [same, same]
    clusters = cluster("", [a, b], make_judge(judge))
    assert clusters is not None
    assert len(clusters.sizes) == (1 if same else 2)


@pytest.mark.parametrize(
    ("question", "a", "b", "same"),
    [
        ("How much profit did it make?", "a profit of $5 million", "$5 million", True),  # the question's own word
        ("How much profit did it make?", "a profit of $5 million", "a loss of $5 million", False),
        ("Is it Windows 7 or iPhone 7?", "Windows 7", "iPhone 7", False),  # both stand in the question
        ("By how much did one of Ann and Bob beat the other?", "Ann beat Bob by 5", "Bob beat Ann by 5", False),
        ("What does it cost?", "The book costs 12", "It costs 12", False),  # another thing, perhaps
        ("What does the book cost?", "The book costs 12", "It costs 12", True),
    ],
)
def test_words_of_the_question_before_a_number(question: str, a: str, b: str, same: bool) -> None:
    assert make_judge("numeric").equivalent(question, [(a, b), (b, a)]) == [same, same]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("1.10", "1.1", False),
        ("1.10", "1.10", True),
        ("The price is 1.10", "1.1", True),  # an amount
        ("1.10 euros", "1.1 euros", True),
        ("$1.10", "1.1", True),
        ("3.50", "3.5", True),  # no version has that many
        ("10/12", "5/6", False),
        ("10/12 cups", "5/6 cups", True),
        ("50/100", "1/2", True),  # no day
        ("5/6", "0.8333333333", True),
    ],
)
def test_digits_that_may_be_a_version_or_a_date(a: str, b: str, same: bool) -> None:
    assert make_judge("numeric").equivalent("", [(a, b), (b, a)]) == [same, same]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("December 10, 1990", "10 December 1990", True),
        ("It was on May 3rd.", "3rd May", True),
        ("December 10", "December 11", False),
        ("December 10", "10 January", False),
        ("December 10", "10", False),
        ("10/12", "12/10", False),  # as digits a date is read in one order only
        ("In May 10 people", "10 May people", False),  # no date
    ],
)
def test_the_order_of_a_day_and_its_month(a: str, b: str, same: bool) -> None:
    assert make_judge("numeric").equivalent("", [(a, b), (b, a)]) == [same, same]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("a 5 km run", "5 km run", True),
        ("It was a 5 km run", "5 km run", True),
        ("A 5 km run", "B 5 km run", False),
        ("Plan A 5 km", "Plan B 5 km", False),
        ("Plan A 5", "Plan 5", False),
        ("A 1", "1", False),
    ],
)
def test_an_article_before_a_number(a: str, b: str, same: bool) -> None:
    assert make_judge("token_f1").equivalent("", [(a, b), (b, a)]) == [same, same]


@pytest.mark.parametrize("sign", ["\u00ad", "\u200b", "\u2060", "\ufeff", "\u200b\u200e"])
def test_an_invisible_sign_inside_a_number_is_not_dropped(sign: str) -> None:
    for judge in ("exact", "numeric", "token_f1", "json"):
        for cut in (f"5{sign}0", f"5{sign}.50"):
            whole = cut.replace(sign, "")
            assert make_judge(judge).equivalent("", [(cut, whole), (f"Par{sign}is 50", "Paris 50")])[0] is False
    assert (
        make_judge("exact").equivalent("", [(f"Par{sign}is 50", "Paris 50"), (f"{sign}50{sign}", "50")]) == [True] * 2
    )


def test_a_call_with_a_field_twice_is_no_call() -> None:
    """A reader of the JSON could take the first of two equal fields, the judge took the last."""
    twice = '{"name": "pay", "arguments": {"to": "eve", "to": "bob"}}'
    once = '{"name": "pay", "arguments": {"to": "bob"}}'
    for options in ({}, {"text": True, "numbers": True}):
        judge = make_judge("tool_call", **options)
        assert judge.equivalent("", [(twice, once), (twice, twice)]) == [False, True]
