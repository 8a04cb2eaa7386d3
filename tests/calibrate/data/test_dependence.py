"""Questions that are hardly independent are named beside the certificate, with the option that counts them once."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

import calibrate
from calibrate.data.record import Record
from calibrate.data.split import Dependence, dependence
from guardrail.types import Sample, SampleSet


def record(number: int, question: str, answer: str, group: str | None = None) -> Record:
    drawn = SampleSet(question=question, primary=Sample(text=answer), samples=())
    return Record(id=f"r{number}", question=question, group=group, drawn=drawn)


def variants(kinds: int = 10, each: int = 4, group: bool = False) -> Iterator[Record]:
    """Each kind is one question in several wordings of one word, and has one answer."""
    for kind in range(kinds):
        for i in range(each):
            text = f"What does lease number {kind} say about pets and flat {kind}, variant {i}?"
            yield record(kind * each + i, text, f"clause {kind}", f"lease {kind}" if group else None)


def test_variants_of_a_question_are_found() -> None:
    assert dependence(list(variants())) == Dependence(40, 10, ("r0", "r1"), grouped=False)
    assert dependence(list(variants(group=True))) == Dependence(40, 10, ("r0", "r1"), grouped=True)


def test_the_nearly_equal_questions_themselves_are_counted() -> None:
    """8 % are nearly equal: who has four pairs among 100 labels is told, as from 5 % on."""
    others = [record(100 + i, f"{i} words that differ, in {i}, by {i}?", "a") for i in range(92)]
    assert dependence([*variants(4, 2), *others]) == Dependence(8, 4, ("r0", "r1"), grouped=False)
    assert dependence([*variants(2, 2), *others]) is None  # 4 of 96


@pytest.mark.parametrize(
    "records",
    [
        # One template, and a different answer to each: independent draws, as in most test sets.
        [record(i, f"What is the capital of country number {i} in one word?", f"city {i}") for i in range(50)],
        # The same answer, and other questions.
        [record(i, f"Is {i} a prime number, and is {i + 1} one, {i * i}?", "yes") for i in range(50)],
        # Short questions, of which one word is all.
        [record(i, f"{i} * 0?", "0") for i in range(50)],
        # Two of a hundred are no pattern.
        [*list(variants(1, 2)), *(record(100 + i, f"{i} words that differ, in {i}, by {i}?", "a") for i in range(98))],
        [],
    ],
)
def test_other_questions_count_as_independent(records: list[Record]) -> None:
    assert dependence(records) is None


def test_groups_that_are_known_are_named() -> None:
    grouped = [record(i, f"q{i}?", "a", f"user {i // 3}") for i in range(30)]
    assert dependence(grouped) == Dependence(30, 10)
    assert dependence([record(i, f"q{i}?", "a", f"user {i}") for i in range(30)]) is None


def test_a_fit_says_so_with_the_argument_that_helps(caplog: pytest.LogCaptureFixture) -> None:
    """30 documents with ten near-equal questions each gave a certificate from "300" labels."""
    dice, rows = random.Random(2), []
    for kind in range(60):
        right = kind % 10 > 0
        for i in range(5):
            text = f"What does lease number {kind} say about pets and flat {kind}, variant {i}?"
            row = {"question": text, "answer": f"clause {kind}", "correct": right, "group": f"{kind}"}
            rows.append({**row, "score": dice.random() if right else 0.8 + dice.random()})
    records = calibrate.from_frame(rows)
    with caplog.at_level(logging.WARNING):
        records.fit(alpha=0.2)
    assert "300 questions are of 60 kinds" in caplog.text
    assert 'Fit with groups="cluster"' in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert records.fit(alpha=0.2, groups="cluster").outcome.n == 60
    assert "kinds" not in caplog.text
