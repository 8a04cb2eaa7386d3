"""The judging benchmark counts correctly; its speed is not tested."""

from __future__ import annotations

import pytest

from benchmarks import judging
from benchmarks.judging import Question

QUESTIONS = [
    Question("Which city is the capital of France?", ("Paris", "Paris", "Rome", "Lyon")),
    Question("When did the war end?", ("1945", "1945", "1945", "1945")),
]
"""Three distinct answers to the first question, and one to the second."""


def test_counts_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """u = 3 and u = 1: all pairs 9 + 1, other pairs 6 + 0, each question in one pass."""
    table = judging.run(QUESTIONS, rounds=1, hidden=32, layers=1)
    everything = table["all pairs, as lm-polygraph"]
    assert (everything["judgements"], everything["forwards"]) == (10, 2)
    others = table["all other pairs, as UQ-NLG"]
    assert (others["judgements"], others["forwards"]) == (6, 1)
    one_by_one = table["greedy, one pair a pass, as the Nature code"]
    assert one_by_one["judgements"] == one_by_one["forwards"] >= 2 * 3 + 2 * 3, "every founder meets all later samples"
    for name in ("ours", "ours, one question at a time"):
        assert 3 <= table[name]["judgements"] <= 6, "three pairs, the second direction where the first was entailed"
        assert table[name]["forwards"] <= 2
    assert table["ours"]["ratio"] == 1
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(table)
