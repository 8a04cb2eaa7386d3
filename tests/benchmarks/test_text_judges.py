"""The benchmark of light judges, and what it must show on the recorded answers of a real model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.text_judges import merges, ranking, records_of
from calibrate.data.records import Record
from guardrail.judges import Judge, JudgeSpec, TextJudge, make_judge


class MergesAll(Judge):
    is_slow = False
    spec = JudgeSpec(name="all", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return [True] * len(pairs)


@pytest.fixture(scope="module")
def records() -> Sequence[Record]:
    return records_of("smollm2")[:600]


def ranks_well(records: Sequence[Record], judge: Judge) -> bool:
    ours, exact = ranking(records, judge), ranking(records, make_judge("exact"))
    assert ours is not None
    assert exact is not None
    return ours > max(0.75, exact + 0.05)


def test_the_default_judge_ranks_the_answers_of_a_real_model(records: Sequence[Record]) -> None:
    """A judge that splits every sentence (`exact`) or merges all would make the default score useless."""
    assert ranks_well(records, TextJudge())
    assert not ranks_well(records, MergesAll())


def test_false_merges_and_false_splits_are_told_apart(tmp_path: Path) -> None:
    pairs = [("Paris", "It is Paris.", True), ("Paris", "Rome", False), ("one", "1", True)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b, "same": same}) + "\n" for a, b, same in pairs))
    assert merges(path, TextJudge()) == ([], [("one", "1")])
    assert merges(path, MergesAll()) == ([("Paris", "Rome")], [])
