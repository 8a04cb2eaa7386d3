"""A record file that running programs write: neither a full disk nor another process costs a record."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrate.data.records import read_records
from guardrail.errors import UsageError
from guardrail.guard import record_lines
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


def opened(path: Path) -> RecordLines:
    """The file as another process of the same program opens it."""
    model = ModelIdentity(provider="p", model="m")
    return RecordLines(path, name="t", model=model, plan=SamplingPlan(n=2), prompt=PromptWrapping())


def test_processes_that_begin_a_file_together_lose_no_record(tmp_path: Path) -> None:
    """The workers of a gateway start at once: one that replaces the file of another throws its answers away."""
    workers, drawn = 8, SampleSet(question="q", primary=Sample(text="a"), samples=(Sample(text="a"), Sample(text="b")))
    start = threading.Barrier(workers)

    def work(path: Path, number: int) -> None:
        start.wait()
        opened(path).append(str(number), "q", drawn, {})

    for attempt in range(10):
        path = tmp_path / f"{attempt}.jsonl"
        path.touch()  # an empty file is begun like one that does not exist
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, [path] * workers, range(workers)))
        assert {record.id for record in read_records(path).records} == set(map(str, range(workers)))


def test_a_torn_line_is_cut_off_without_a_record_that_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts again must not delete the answer that another one writes meanwhile."""
    path, drawn = tmp_path / "observed.jsonl", SampleSet(question="q", primary=Sample(text="a"), samples=())
    other = opened(path)
    appending = threading.Thread(target=other.append, args=("1", "q", drawn, {}))

    def read(line: bytes) -> Any:
        """Reads the header, while the other process appends or waits for the lock."""
        appending.start()
        appending.join(timeout=0.2)
        return json.loads(line)

    monkeypatch.setattr(record_lines, "json", SimpleNamespace(loads=read, dumps=json.dumps))
    opened(path)
    appending.join()
    assert [record.id for record in read_records(path).records] == ["1"]


@pytest.mark.parametrize("torn", [b'{"header": {"form', b'{"header": {}}'])
def test_a_header_that_a_kill_tore_is_written_again(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "observed.jsonl"
    path.write_bytes(torn)
    opened(path)
    assert read_records(path).header.model.model == "m"


@pytest.mark.parametrize("content", [b"notes", b"notes\n", b"[]\n", b'{"header": 7}\n'])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"notes\.txt is not a record file"):
        opened(path)
    assert path.read_bytes() == content
