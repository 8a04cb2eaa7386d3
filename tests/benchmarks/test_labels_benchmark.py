"""The table of acceptance by labels: version 1 of the rule, the reach, and the page that holds the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import labels, segments
from calibrate.thresholds.rule import prefixes
from tests.validity.walks import anchored_failures


def test_version_1_had_its_promise() -> None:
    anchor, extension = labels._limits_1(120, 0.15, 0.1, 19)
    failures = anchored_failures(np.arange(19, 121), anchor, extension, 0.15)
    assert 0.08 < failures.max() <= 0.1 + 1e-9
    wrong = prefixes(np.arange(120.0), np.ones(120, dtype=np.int8))
    assert labels.version_1(0.15, 0.1, discrete=False)(wrong) is None


def test_version_1_for_few_values_is_the_fixed_sequence_from_k_min() -> None:
    # Blocks of 20, 20 and 60 with 0, 4 and 30 errors; alpha .15, delta .1. P(Bin(20, .15) <= 0) = .0388 passes;
    # P(Bin(40, .15) <= 4) = .263 does not.
    u, e = np.repeat([0.0, 1.0, 2.0], [20, 20, 60]), np.zeros(100, dtype=np.int8)
    e[20:24] = e[40:70] = 1
    assert labels.version_1(0.15, 0.1, discrete=True)(prefixes(u, e)) == 0


def test_labels_within_reach_certify_more() -> None:
    qwen = list(labels.populations())[1]
    rule = labels.rule("certified", 0.15)
    plain, within = (labels.acceptance(qwen, rule, 150, share, 60) for share in (1.0, labels.REACH))
    assert plain is not None
    assert within is not None
    assert within > 1.2 * plain
    assert labels.acceptance(qwen, rule, 5_000, labels.REACH, 1) is None  # 3,000 of 6,000 are within reach


def test_the_tables_are_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{labels.MARKS[0]}\nold\n{labels.MARKS[1]}\nafter\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["labels", "--sizes", "60", "--repetitions", "1", "--write", str(page)])
    labels.main()
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("CoQA, Qwen2.5-7B (simulated)") == 4  # two rules, two alphas


def test_segments_are_compared_on_the_same_test_questions() -> None:
    """One threshold accepts all of both segments at alpha .3 (25 % wrong); "hard" (45 %) then lies surely above."""
    rng = np.random.default_rng(0)
    hard = np.arange(2000) % 2 == 1
    error = (rng.random(2000) < np.where(hard, 0.45, 0.05)).astype(np.int64)
    data = segments.Data("made up", 0.3, rng.random(2000), error, np.where(hard, "hard", "easy"))
    whole, together, each = segments.compare(data, splits=2)
    assert whole.acceptance > 0.99
    assert (whole.above, whole.surely, whole.silent) == (1.0, 1.0, 0.0)
    assert whole.worst > 0.4
    for row in (together, each):
        assert 0.49 < row.acceptance <= 0.5
        assert (row.above, row.silent) == (0.0, 1.0)
    assert "| one threshold | " in segments.markdown(data, [whole])
