"""The promise of the loop over 20 seeds, with what breaks it as controls."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette", reason="the serve extra is not installed")

from benchmarks import loop as benchmark
from calibrate.data.questions import read_questions
from examples.demo import loop
from examples.demo.embedded import TASKS


@pytest.mark.slow
def test_at_most_one_seed_in_ten_breaks_the_promise(tmp_path: Path) -> None:
    """At delta .1, more than 5 of 20 seeds break it with probability .011 at most (binomial tail)."""
    sizes, questions = loop.Sizes(), read_questions(TASKS[0].questions)
    file = benchmark.observed(questions, tmp_path, sizes)
    assert len(file.records) == len(questions)
    rows = benchmark.over_seeds(file, questions, range(20), sizes)
    broken = {kind: sum(row.error[kind] > sizes.alpha for row in rows) for kind in benchmark.RULES}
    assert broken["certified"] <= 5
    assert min(row.answered["certified"] for row in rows) > 0  # no seed keeps it by answering nothing
    assert broken["empirical"] > 5
    assert all(row.refused for row in rows)
