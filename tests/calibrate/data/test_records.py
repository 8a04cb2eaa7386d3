"""Record files: what is written is read back, a torn line costs nothing, and two writers never meet."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.data.questions import Question, fingerprint
from calibrate.data.records import (
    Record,
    RecordFile,
    RecordHeader,
    open_writer,
    pooled,
    read_records,
    rewrite_records,
    write_records,
)
from calibrate.data.table import table_of
from guardrail.errors import RecordError, UsageError
from guardrail.outcome import Scope
from guardrail.prompting import PromptWrapping
from guardrail.specs import CorrectnessSpec, EstimatorSpec, ModelIdentity
from guardrail.types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured

QUESTIONS = [Question(id=f"q{i}", question=f"number {i}?", references=("x",), group="g") for i in range(4)]


def header(**changes: object) -> RecordHeader:
    base = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="p", model="m"),
        plan=SamplingPlan(),
        prompt=PromptWrapping(),
        questions_name="q.jsonl",
        questions_sha256=fingerprint(QUESTIONS),
        n_questions=len(QUESTIONS),
    )
    return base.model_copy(update=changes)


def record(i: int, text: str = "\u00fcber\n\u2028x") -> Record:
    drawn = SampleSet(
        question="?",
        primary=Sample(text=text, tokens=("a", "b"), logprobs=(-0.1, -1e-17)),
        samples=(Sample(text="x"), Sample(text="y")),
    )
    return Record.of(QUESTIONS[i], drawn)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    scores = {
        "e": Uncertainty(value=0.1 + 0.2, unit="nats", estimator="e"),
        "f": Uncertainty(value=None, unit="nats", estimator="f", reason=Unmeasured.NO_LOGPROBS, detail="none"),
    }
    records = (record(0).model_copy(update={"scores": scores, "correct": False}), record(1))
    write_records(tmp_path / "r.jsonl", header(), records)
    file = read_records(tmp_path / "r.jsonl")
    assert tuple(file.records) == records
    assert file.header == header()


def test_a_tear_anywhere_in_the_last_line_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0), record(1)])
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    for cut in [*range(start, len(whole) - 2, 3), len(whole) - 2, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        complete = cut == len(whole) - 1  # only the newline is missing: the record is whole and is kept
        file = read_records(path)
        assert [r.id for r in file.records] == (["q0", "q1"] if complete else ["q0"])
        with open_writer(path, header()) as (append, existing):
            assert len(existing.records) == len(file.records)
            append([] if complete else [record(1)])
        assert path.read_bytes() == whole


def test_a_malformed_line_that_is_not_the_last_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0), record(1)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:30] + b"\n" + lines[2])
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"r\.jsonl:2: not JSON"):
        read_records(path)
    with pytest.raises(RecordError), open_writer(path, header()):
        pytest.fail("a damaged file was opened for writing")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "field"),
    [({"correct": "maybe"}, "correct"), ({"drawn": {"question": "?"}}, "drawn.primary"), ({"group": 1}, "group")],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0)])
    row = record(1).model_dump(mode="json") | change
    path.write_bytes(path.read_bytes() + json.dumps(row).encode() + b"\n")
    with pytest.raises(RecordError) as caught:
        read_records(path)
    assert f"{path}:3: field {field!r}" in str(caught.value)


def test_duplicate_records_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0), record(1), record(0)])
    with pytest.raises(RecordError, match=r":4: field 'id': got 'q0', which is already at line 2"):
        read_records(path)


def test_what_is_no_record_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record file"):
        read_records(tmp_path / "missing.jsonl")
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "?"}\n')
    with pytest.raises(RecordError, match="Is this a question file"):
        read_records(path)
    path.write_text("\n")
    with pytest.raises(RecordError, match="the file is empty"):
        read_records(path)
    path.write_text('{"header": {"format": 2}}\n')
    with pytest.raises(RecordError, match=r":1: the file has format version '2'"):
        read_records(path)


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"model": ModelIdentity(provider="p", model="other")}, ("'m'", "'other'")),
        ({"plan": SamplingPlan(temperature=1.0)}, ("plan.temperature", "0.7", "1.0")),
        ({"prompt": PromptWrapping(system="Be brief.")}, ("prompt.system", "None", "'Be brief.'")),
        ({"questions_sha256": "f" * 64, "n_questions": 9}, ("4 questions", "9 questions")),
    ],
)
def test_resuming_another_collection_is_refused(
    tmp_path: Path, changes: dict[str, object], fragments: tuple[str, ...]
) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0)])
    with pytest.raises(UsageError) as caught, open_writer(path, header(**changes)):
        pytest.fail("another collection was opened for writing")
    assert all(fragment in str(caught.value) for fragment in (*fragments, "questions x 11 calls. Labels of equal"))


def test_a_second_writer_is_refused_and_the_lock_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_writer(path, header()) as (append, _):
        append([record(0)])
        with pytest.raises(UsageError, match="being written by another process"), open_writer(path, header()):
            pytest.fail("two writers")
        with pytest.raises(UsageError, match="being written by another process"):
            write_records(path, header(), [])
    with open_writer(path, header()) as (append, existing):
        assert [r.id for r in existing.records] == ["q0"]
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_no_writer_gets_between_reading_and_rewriting(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0)])

    def change(file: RecordFile) -> RecordFile:
        with pytest.raises(UsageError, match="being written"), open_writer(path, header()):
            pytest.fail("a writer got in")
        labelled = tuple(r.model_copy(update={"correct": True}) for r in file.records)
        return RecordFile(file.path, file.header, labelled)

    assert rewrite_records(path, path, change).records == read_records(path).records
    assert [r.correct for r in read_records(path).records] == [True]


def test_a_failed_rewrite_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, header(), [record(0)])
    before = path.read_bytes()

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_records(path, header(), [record(1)])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def batch(path: Path, ids: str, **changes: object) -> RecordFile:
    """A labelled file with scores "a"."""
    records = tuple(Record(id=name, question=f"question {name}?", correct=True) for name in ids)
    base = header(
        questions_name=path.name,
        questions_sha256=fingerprint(record.to_question() for record in records),
        n_questions=len(records),
        correctness=CorrectnessSpec(name="exact", version=1, params={}),
        estimators={"a": score_spec("a")},
    )
    file = RecordFile(path, base.model_copy(update=changes), records)
    write_records(path, file.header, file.records)
    return file


def score_spec(name: str, version: int = 1) -> EstimatorSpec:
    return EstimatorSpec(name=name, version=version, unit="nats")


def by_people(name: str) -> CorrectnessSpec:
    return CorrectnessSpec(name="given", version=1, params={"file": name, "sha256": 64 * name})


DRAWN = Scope(
    score="a",
    share=1,
    cut=1,
    n_asked=9,
    n_pool=9,
    n_within=9,
    n=1,
    seed=0,
    drawn_sha256="",
)


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    more = {name: score_spec(name) for name in "ab"}
    first, two = batch(tmp_path / "one.jsonl", "xy"), batch(tmp_path / "t wo.jsonl", "z", estimators=more)
    pool = read_records(first.path, two.path)
    assert [record.id for record in pool.records] == ["x", "y", "z"]
    assert pool.header.n_questions == 3
    assert list(pool.header.estimators) == ["a"]  # b is not in both
    assert pool.header.questions_name == "one.jsonl + t wo.jsonl"
    assert pool.header.questions_sha256 == fingerprint(record.to_question() for record in pool.records)
    assert shlex.split(str(pool.path)) == [str(first.path), str(two.path)]  # as a command takes them
    assert read_records(first.path) == first


def test_a_question_that_is_in_two_files_under_other_ids_is_counted(tmp_path: Path) -> None:
    first, two = batch(tmp_path / "one.jsonl", "xyv"), batch(tmp_path / "two.jsonl", "zw")
    x, y, v = first.records
    z, w = two.records
    again = [z.model_copy(update={"question": x.question}), w.model_copy(update={"question": f" {y.question}"})]
    context = {"context": "another"}
    other = [again[0].model_copy(update={"slots": context}), w]  # the same words about another text
    same = x.model_copy(update={"id": "own", "question": y.question})  # a file may repeat its own questions
    assert pooled([first, replace(two, records=table_of(again))]).repeated == ((x.id, z.id), (y.id, w.id))
    assert pooled([first, replace(two, records=table_of(other))]).repeated == ()
    assert pooled([replace(first, records=table_of([y, v, same])), two]).repeated == ()


def test_labels_that_people_gave_in_several_files_are_one_kind(tmp_path: Path) -> None:
    files = [batch(tmp_path / f"{name}.jsonl", name, correctness=by_people(name)) for name in "pq"]
    correctness = pooled(files).header.correctness
    assert correctness is not None
    assert (correctness.name, correctness.params["file"]) == ("given", "p + q")
    assert correctness != pooled(files[::-1]).header.correctness


@pytest.mark.parametrize(
    ("changes", "ids", "problem"),
    [
        ({"model": ModelIdentity(provider="p", model="other")}, "z", "cannot be one pool"),
        ({"plan": SamplingPlan(n=3)}, "z", "cannot be one pool"),
        ({"prompt": PromptWrapping(system="Be short.")}, "z", "cannot be one pool"),
        ({"correctness": CorrectnessSpec(name="numeric", version=1, params={})}, "z", "cannot be one pool"),
        ({"correctness": None}, "z", "two.jsonl has no labels. Run: calibrate label"),
        ({"estimators": {}}, "z", "no scores in common"),
        ({"estimators": {"a": score_spec("a", version=2)}}, "z", "no scores in common"),
        ({}, "y", "record 'y' is in two of the files"),
        ({"scope": DRAWN}, "z", "drawn by `calibrate sample`"),
    ],
)
def test_files_that_differ_are_not_pooled(tmp_path: Path, changes: dict[str, object], ids: str, problem: str) -> None:
    first, two = batch(tmp_path / "one.jsonl", "xy"), batch(tmp_path / "two.jsonl", ids, **changes)
    with pytest.raises(UsageError, match=problem):
        read_records(first.path, two.path)
