"""A record file that a running program writes: a full disk must not tear it in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.data.records import read_records
from guardrail.errors import UsageError
from guardrail.guard.record_lines import RecordLines
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.types import Sample, SampleSet, SamplingPlan


def test_a_disk_that_is_really_full_tears_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, plan = tmp_path / "observed.jsonl", SamplingPlan(n=2)
    identity = ModelIdentity(provider="p", model="m")
    lines = RecordLines(path, name="t", model=identity, plan=plan, prompt=PromptWrapping())
    drawn = SampleSet(question="q", primary=Sample(text="a"), samples=(Sample(text="a"), Sample(text="b")))
    lines.append("1", "q", drawn, {})
    whole, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (10, 0):  # a part of a line fits, or nothing
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + room, limits[1]))
        try:
            with pytest.raises(OSError, match="only 10 of" if room else "File too large"):
                lines.append("2", "q", drawn, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
    lines.append("3", "q", drawn, {})
    assert [record.id for record in read_records(path).records] == ["1", "3"]


def test_a_file_that_cannot_be_begun_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path, identity = tmp_path / "file" / "observed.jsonl", ModelIdentity(provider="p", model="m")
    with pytest.raises(UsageError, match=r"observed\.jsonl: records cannot be written here \(Not a directory\)"):
        RecordLines(path, name="t", model=identity, plan=SamplingPlan(n=2), prompt=PromptWrapping())
