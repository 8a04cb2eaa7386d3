"""Recorded calls of the leaderboard as items: what is read, what is right, and which samples support it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.items import CATEGORIES, OTHERS, bank_pool, recorded_calls

ACCEPTED = {
    "simple_0": {"geo.area": {"base": [10], "unit": ["cm", "centimetres", ""]}},
    "simple_1": {"geo.area": {"base": [10, 10.5], "tags": [["a", "b"]]}},
    "simple_2": {"geo.area": {"base": [1], "shape": [{"kind": ["round"]}]}},
    "simple_3": {"geo.area": {"base": [1], "unit": ["m"]}},
    "simple_4": {"geo.area": {"base": [1], "unit": ["m"]}},
    "simple_5": {"geo.area": {"base": [1], "unit": ["m"]}},
}
WRITTEN: dict[str, Any] = {
    "simple_0": "<|start|>[geo.area(base=10, unit='Centimetres')]",
    "simple_1": "[geo.area(base=10.50, tags=['b', 'c'])]",
    "simple_2": "[geo.area(base=1, shape={'kind': 'round'})]",  # accepted values are objects
    "simple_3": "[geo.volume(base=1, unit='m')]",
    "simple_4": "[geo.area(base=1, unit='m'), geo.area(base=2, unit='m')]",
    "simple_5": "[geo.area(1, 'm')]",
}
NATIVE: dict[str, Any] = {
    "simple_0": [{"geo_area": '{"base": 10, "unit": "cm"}'}],
    "simple_1": [{"geo_area": {"base": 10.5, "tags": ["c", "b"]}}],
    "simple_3": [{"geo_area": {"base": 1, "unit": "m"}}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(path: Path, rows: list[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    for model, calls in {**dict.fromkeys(OTHERS, NATIVE), "written": WRITTEN}.items():
        for category in CATEGORIES:
            rows = [{"id": key, "result": result} for key, result in calls.items() if key.startswith(category)]
            write(tmp_path / "result" / model / f"gorilla_openfunctions_v1_test_{category}_result.json", rows)
    errors = [{"prompt": {"id": key}, "possible_answer": answer} for key, answer in ACCEPTED.items()]
    write(tmp_path / "score" / "written" / "simple_score.json", [{"accuracy": 0.1}, *errors])
    return tmp_path


def test_arguments_are_right_if_they_are_accepted(folder: Path) -> None:
    (pool,) = recorded_calls(folder, ["written"])
    # Left out: objects among the accepted values, two calls, and a call without names of its arguments.
    assert pool.items.size.tolist() == [2, 3, 2]
    assert pool.items.wrong.tolist() == [0, 0, 0, 0, 1, 1, 1]  # "c" is no tag, and another tool makes both wrong
    assert pool.wrong.tolist() == [0, 1, 1]


def test_samples_support_an_argument_by_tool_and_value(folder: Path) -> None:
    (pool,) = recorded_calls(folder, ["written"], cap=9)
    assert pool.items.uncertainty.tolist() == [0, 1, 0, 0, 0, 1, 1]  # "cm" is another text than "Centimetres"
    assert pool.whole.tolist() == [1, 0, 1]


def test_transfers_of_the_bank_agent_have_two_arguments() -> None:
    pool = bank_pool(40)
    assert pool.items.size.tolist() == [2] * 40
    assert 0 < pool.items.wrong.mean() < 0.3
    assert pool.items.uncertainty.max() > 0.2
