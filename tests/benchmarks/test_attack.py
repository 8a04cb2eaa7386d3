"""The attacks on a guard and a gateway find nothing, and would find a fault; `python -m benchmarks.attack` runs all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.attack import ATTACKS, Attempts
from guardrail.sampling.replies import read
from integrations._gateway import answers


@pytest.mark.parametrize("name", ATTACKS)
def test_a_share_of_each_attack_finds_nothing(name: str) -> None:
    attempts: Attempts = asyncio.run(ATTACKS[name](0.05, 1))
    assert attempts.outcomes.total() > 30
    assert attempts.findings == []


def test_an_attack_finds_replies_that_are_taken_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Any = lambda reason, calls: None  # noqa: E731
    monkeypatch.setattr(read, "end_fault", whole)
    attempts: Attempts = asyncio.run(ATTACKS["replies"](0.1, 1))
    assert any("accepted without whole answers" in each for each in attempts.findings)


def test_an_attack_finds_words_that_were_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_item", lambda item, answered: dict(item))
    attempts: Attempts = asyncio.run(ATTACKS["items"](0.05, 1))
    assert any("leaked" in each for each in attempts.findings)
