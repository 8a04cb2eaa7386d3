"""The table of what labels certify: the scope, and the page it is written into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import labels, segments


def test_labels_within_reach_certify_more() -> None:
    qwen = list(labels.populations())[1]
    rule = labels.rule("certified", 0.15)
    plain, within = (labels.acceptance(qwen, rule, 150, share, 60) for share in (1.0, labels.SCOPE))
    assert plain is not None
    assert within is not None
    assert within > 1.2 * plain
    assert labels.acceptance(qwen, rule, 5_000, labels.SCOPE, 1) is None  # 3,000 of 6,000 are within the scope


def test_the_tables_are_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{labels.MARKS[0]}\nold\n{labels.MARKS[1]}\nafter\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["labels", "--sizes", "60", "--repetitions", "1", "--write", str(page)])
    labels.main()
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("CoQA, Qwen2.5-7B (simulated)") == 1  # one alpha


def test_segments_are_compared_on_the_same_test_questions() -> None:
    """One threshold accepts all of both segments at alpha .3 (25 % wrong); "hard" (45 %) is then above, surely.

    The hard ones have the larger scores; within a segment the score says nothing.
    """
    rng = np.random.default_rng(0)
    hard = np.arange(2000) % 2 == 1
    error = (rng.random(2000) < np.where(hard, 0.45, 0.05)).astype(np.int64)
    data = segments.Data("made up", 0.3, (hard + rng.random(2000)) / 2, error, np.where(hard, "hard", "easy"))
    one, together, each = segments.compare(data, splits=2)
    assert one.acceptance > 0.99
    assert (one.above, one.surely, one.silent) == (1.0, 1.0, 0.0)
    assert one.worst > 0.4
    for row in (together, each):
        assert 0.49 < row.acceptance <= 0.5
        assert (row.above, row.silent) == (0.0, 1.0)
    assert "| one threshold | " in segments.markdown(data, [one])
