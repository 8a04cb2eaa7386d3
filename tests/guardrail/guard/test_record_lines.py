"""A record file that a running program writes: a full disk must not tear it in the middle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.records import read_records
from guardrail.guard.record_lines import RecordLines
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.types import Sample, SampleSet, SamplingPlan


def test_a_line_that_a_full_disk_took_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plan = tmp_path / "observed.jsonl", SamplingPlan(n=2)
    lines = RecordLines(
        path, name="t", model=ModelIdentity(provider="p", model="m"), plan=plan, prompt=PromptWrapping()
    )
    drawn = SampleSet(question="q", primary=Sample(text="a"), samples=(Sample(text="a"), Sample(text="b")))
    lines.append("1", "q", drawn, {})
    whole, write = path.read_bytes(), os.write

    def full(opened: int, content: Any) -> int:
        return write(opened, content[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="only 10 of"):
        lines.append("2", "q", drawn, {})
    assert path.read_bytes() == whole
    monkeypatch.setattr(os, "write", write)
    lines.append("3", "q", drawn, {})
    assert [record.id for record in read_records(path).records] == ["1", "3"]
