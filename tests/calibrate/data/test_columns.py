"""Columns beside a record file: the results of the records, and never those of another file."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.correctness import label_records, make_rule
from calibrate.correctness.registry import structured_advice
from calibrate.data import column_build, columns
from calibrate.data.columns import ColumnRecords, open_records
from calibrate.data.formats import ImportSettings, import_file
from calibrate.data.labels import contradictions, refuse_contradictions
from calibrate.data.questions import question_digest, row_digest, rows_fingerprint
from calibrate.data.records import Record, RecordFile, read_records, rewrite_records, write_records
from calibrate.data.split import Groups, one_per_cluster, split
from calibrate.data.table import CUT, DTYPES, among
from calibrate.evaluation.audit import audit, prepared
from calibrate.evaluation.choice import rank_estimators
from calibrate.evaluation.grid import evaluate_grid, sources
from calibrate.evaluation.label_checks import missed, suspicious
from calibrate.pipeline import (
    at_calibration,
    calibration_part,
    fit_artifact,
    held_out,
    question_hashes,
    refuse_fitted,
    without,
)
from calibrate.report import compare_rules, parts_of, write_report
from calibrate.report.content import Part, categories, reading
from calibrate.scope import waiting_of, waits_for_label
from calibrate.scoring.scores import Scored, arrays, score_records, supported
from calibrate.segments import BySegment
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import RecordError, UsageError

pytest.importorskip("msgspec")
pytest.importorskip("pyarrow")

KEY = "discrete_semantic_entropy"
SHARED = Path(__file__).parents[4] / "shared" / "data"
GROUPS: tuple[Groups, ...] = ("category", "cluster")


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE", 0)
    monkeypatch.setattr(column_build, "_BATCH", 5_000)  # several reads, which end within a line
    monkeypatch.setattr(columns, "_PIECE", 7)


def in_columns(path: Path) -> tuple[RecordFile, ColumnRecords]:
    file = open_records(path)
    assert isinstance(file.records, ColumnRecords)
    return file, file.records


def outcome(call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result or the error of a call, as a value that can be compared."""
    try:
        result = call(*given, **more)
    except UsageError as error:
        return str(error)
    if isinstance(result, Scored):
        named = None if result.group is None else tuple(result.group)
        counts = (result.n_records, result.n_unmeasured, result.n_unlabelled)
        return tuple(result.ids), result.uncertainty.tolist(), result.error.tolist(), named, counts
    return result


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def assert_read(path: Path, key: str) -> tuple[RecordFile, RecordFile, ColumnRecords]:
    """The same records by columns."""
    plain = read_records(path)
    file, records = in_columns(path)
    assert (file.header, file.torn, len(records)) == (plain.header, plain.torn, len(plain.records))
    assert list(records) == list(plain.records)
    assert list(records.ids) == ids(plain.records)
    assert outcome(lambda: arrays(records, key)) == outcome(lambda: arrays(plain.records, key))
    questions = [record.to_question() for record in plain.records]
    rows = rows_fingerprint(sorted(map(row_digest, questions)))
    assert (records.fingerprint(), plain.records.fingerprint()) == (rows, rows)
    digests = [int.from_bytes(question_digest(question)) for question in questions]
    assert (question_hashes(records).tolist(), question_hashes(plain.records).tolist()) == (digests, digests)
    return plain, file, records


def assert_same(path: Path, key: str) -> None:
    """Everything that a fit reads, by columns and by records."""
    plain, _, records = assert_read(path, key)
    waiting = [waits_for_label(record) for record in plain.records]
    assert [waiting_of(some).tolist() for some in (records, plain.records)] == [waiting] * 2
    undecided = [record.is_undecided for record in plain.records]
    assert [some.undecided().tolist() for some in (records, plain.records)] == [undecided] * 2
    for name in DTYPES:
        assert records.numbers(name).tolist() == plain.records.numbers(name).tolist(), name
    for some in (records, plain.records):
        facts = [(record.cut_off, "label" if record.correct is None else record.correct) for record in plain.records]
        cut, labels = (some.flags() & CUT != 0).tolist(), some.labels().tolist()
        assert [(a, "label" if b < 0 else b == 1) for a, b in zip(cut, labels, strict=True)] == facts
    assert outcome(lambda: refuse_contradictions(records)) == outcome(lambda: refuse_contradictions(plain.records))
    assert records.both_ways()[1] == plain.records.both_ways()[1] == len(contradictions(plain.records))
    for rule in ("exact", "tool_call"):
        assert structured_advice(records, rule) == structured_advice(plain.records, rule)
    assert suspicious(records, key) == suspicious(plain.records, key)
    for groups in GROUPS:

        def cut(some: Sequence[Record], groups: Groups = groups) -> list[list[str]]:
            return [ids(part) for part in split(some, test_fraction=0.3, groups=groups)]

        assert outcome(cut, records) == outcome(cut, plain.records)
    assert outcome(lambda: ids(one_per_cluster(records))) == outcome(lambda: ids(one_per_cluster(plain.records)))


def content(file: RecordFile, key: str, **asked: Any) -> Any:
    artifact = fit_artifact(file, estimator=key, alpha=0.2, **asked)
    return {name: value for name, value in artifact.content.items() if name != "created"}


def test_a_fit_is_that_of_the_records(records_path: Path) -> None:
    assert_same(records_path, KEY)
    plain, (file, _) = read_records(records_path), in_columns(records_path)
    for rule in ("acrc", "certified"):
        assert content(file, KEY, rule=rule) == content(plain, KEY, rule=rule)
    part, rest = split(file.records, test_fraction=0.4)
    ours, theirs = split(plain.records, test_fraction=0.4)
    assert content(file, KEY, part=part) == content(plain, KEY, part=ours)
    artifact = fit_artifact(plain, estimator=KEY, alpha=0.2, rule="acrc", part=ours)
    assert held_out(artifact, rest, KEY) == held_out(artifact, theirs, KEY)


# -- Random small files ------------------------------------------------------------------------------------------------

_TEXTS = st.sampled_from(["a", "b ", "é\n", '"x"', '{"k": 1}'])
_REASON = {"value": None, "unit": "nats", "estimator": "e", "reason": "refused"}


@st.composite
def _records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Records as JSON, with few texts, so that questions and answers coincide."""
    rows: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 12))):
        score = st.one_of(
            st.just(_REASON),
            st.sampled_from([0.0, 0.5, 1, 2.5]).map(lambda value: {"value": value, "unit": "nats", "estimator": "e"}),
        )
        calls = draw(st.lists(st.just({"name": "f", "arguments": {"x": 1.5}}), max_size=1))
        primary = st.fixed_dictionaries(
            {"text": _TEXTS, "tool_calls": st.just(calls), "finish_reason": st.sampled_from([None, "stop", "length"])}
        )
        drawn = st.fixed_dictionaries(
            {"question": _TEXTS, "primary": st.none() | primary, "problem": st.sampled_from([None, None, "refused"])}
        )
        rows.append(
            {
                "id": f"{draw(_TEXTS)}{number}",
                "question": draw(_TEXTS),
                "references": draw(st.lists(_TEXTS, max_size=2)),
                "rejected": draw(st.lists(_TEXTS, max_size=1)),
                "options": draw(st.none() | st.just({"B": "x", "A": "y"})),
                "slots": draw(st.none() | st.just({"context": "c"})),
                "group": draw(st.none() | st.sampled_from(["g", "h"])),
                "tools": draw(st.none() | st.just([{"name": "f"}, "g"])),
                "turns": draw(st.none() | st.just("human")),
                "drawn": draw(st.none() | drawn),
                "scores": draw(st.dictionaries(st.sampled_from([KEY, "degree"]), score)),
                "correct": draw(st.sampled_from([None, True, False, "false"])),
                "label_detail": draw(st.sampled_from(["", "why"])),
            }
        )
    return rows


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=_records())
def test_random_files_read_alike(records: list[dict[str, Any]], labelled: RecordFile, tmp_path: Path) -> None:
    path = tmp_path / "random.jsonl"
    first = labelled.path.read_bytes().partition(b"\n")[0]
    path.write_bytes(b"\n".join([first, *(json.dumps(row).encode() for row in records)]) + b"\n")
    assert_same(path, KEY)


# -- What becomes of the log -------------------------------------------------------------------------------------------


def test_torn_lines_of_a_gateway_are_left_out_of_the_columns(
    labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(column_build, "RANGE", 70_000)
    path, torn = tmp_path / "observed.jsonl", b'{"id": "torn", "quest\n'
    write_records(path, labelled.header.model_copy(update={"questions_name": "observed: m"}), labelled.records)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], torn, *lines[3:70], torn, torn, *lines[70:], torn[:-1]]))
    plain, file, _ = assert_read(path, KEY)
    assert (len(plain.records), file.torn) == (len(labelled.records), True)
    counted = [int(number) for number in re.findall(r"(\d+) torn lines were left out", caplog.text)]
    assert counted[0] == sum(counted[1:]) == 3  # by records, and by the parts of the columns
    path.write_bytes(b"".join([*lines[:3], b'{"id": 7}\n', torn, *lines[3:]]))
    with pytest.raises(RecordError, match=":4: field 'id'"):  # written whole
        in_columns(path)
    path.write_bytes(b"".join([lines[0].replace(b"observed: m", b"mine"), *lines[1:3], torn, *lines[3:]]))
    with pytest.raises(RecordError, match=":4: not JSON"):
        in_columns(path)


def test_columns_follow_a_log_that_grows_and_is_rewritten(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_build, "RANGE", 70_000)  # several files of columns
    whole = records_path.read_bytes().splitlines(keepends=True)
    built: list[int] = []
    build_part = column_build.build_part

    def counted(path: Path, folder: Path, start: int, *rest: Any) -> None:
        built.append(start)
        build_part(path, folder, start, *rest)

    monkeypatch.setattr(column_build, "build_part", counted)
    records_path.write_bytes(b"".join(whole[:60]))
    assert_read(records_path, KEY)
    n = len(built)
    assert n > 2
    assert_read(records_path, KEY)
    assert len(built) == n  # nothing is built twice
    with records_path.open("ab") as log:
        log.write(b"".join(whole[60:80]) + whole[80][:50])
    assert_read(records_path, KEY)  # the torn line is left out, and said to be
    assert n < len(built) < 2 * n  # only what is new
    with records_path.open("ab") as log:
        log.write(whole[80][50:] + b"\n" + whole[81].rstrip())
    assert_read(records_path, KEY)  # a last line without its end is whole if it is a record
    n = len(built)
    rewrite_records(records_path, lambda file: RecordFile(file.path, file.header, file.records[::-1]))
    assert_read(records_path, KEY)
    assert len(built) > n + 2
    content = records_path.read_bytes()
    with records_path.open("r+b") as same:  # in place, same size
        same.seek(content.index(b'"correct":true'))
        same.write(b'"correct":null')
    os.utime(records_path, ns=(1, 1))
    assert_read(records_path, KEY)
    (records_path.parent / "records.jsonl.cols" / "000000000000000.parquet").write_bytes(b"not Parquet")
    assert_read(records_path, KEY)


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
def test_no_file_of_columns_is_deleted_or_replaced_while_it_is_open(
    records_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses both."""
    monkeypatch.setattr(column_build, "RANGE", 70_000)
    whole = records_path.read_bytes().splitlines(keepends=True)
    touched: list[tuple[str, bool]] = []
    unlink, replace = Path.unlink, os.replace

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        touched.append(("deleted", str(path.resolve()) in open_files()))
        unlink(path, missing_ok)

    def replaced(source: Path, target: Path) -> None:
        if Path(target).exists():
            touched.append(("replaced", str(Path(target).resolve()) in open_files()))
        replace(source, target)

    records_path.write_bytes(b"".join(whole[:60]))
    in_columns(records_path)
    monkeypatch.setattr(Path, "unlink", unlinked)
    monkeypatch.setattr(os, "replace", replaced)
    with records_path.open("ab") as log:
        log.write(b"".join(whole[60:62]))
    in_columns(records_path)
    with records_path.open("ab") as log:
        log.write(b"".join(whole[62:64]))
    in_columns(records_path)  # the short last file is built again
    records_path.write_bytes(b"".join(whole[:1] + whole[:0:-1]))
    in_columns(records_path)  # all files belong to another log
    assert set(touched) == {("deleted", False), ("replaced", False)}


def test_a_killed_build_is_continued(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_build, "RANGE", records_path.stat().st_size // 4)
    _, records = in_columns(records_path)
    expected = list(records.ids)
    *_, before, last = sorted(records_path.with_name(f"{records_path.name}.cols").glob("*.parquet"))
    for lost in ((last,), (before,), (before, last)):
        for path in lost:
            path.unlink()
        assert list(in_columns(records_path)[1].ids) == expected


def test_a_bad_line_is_refused_as_by_the_records(records_path: Path) -> None:
    whole = records_path.read_bytes().splitlines(keepends=True)
    for bad in (
        b"{]\n",
        b"[]\n",
        b'{"id": "x"}\n',
        whole[3].replace(b'"scores":{', b'"scores":{"x":{"value":1e999},'),
        whole[5],
    ):
        records_path.write_bytes(b"".join([*whole[:20], bad, *whole[20:30]]))
        with pytest.raises(RecordError) as plain:
            read_records(records_path)
        with pytest.raises(RecordError) as lazy:
            open_records(records_path)
        assert str(lazy.value) == str(plain.value)


def test_ids_in_two_files_are_refused(records_path: Path) -> None:
    other = records_path.with_name("other.jsonl")
    whole = records_path.read_bytes().splitlines(keepends=True)
    other.write_bytes(whole[0] + whole[7].replace(b'{"id":"', b'{"id":"new-') + whole[9])
    with pytest.raises(UsageError) as plain:
        read_records(records_path, other)
    with pytest.raises(UsageError) as lazy:
        open_records(records_path, other)
    assert str(lazy.value) == str(plain.value)
    other.write_bytes(whole[0] + whole[7].replace(b'{"id":"', b'{"id":"new-'))
    pooled, ours = open_records(records_path, other), read_records(records_path, other)
    assert list(pooled.records) == list(ours.records)
    assert content(pooled, KEY) == content(ours, KEY)


@pytest.mark.slow
def test_a_line_of_fifty_megabytes(records_path: Path) -> None:
    whole = records_path.read_bytes().splitlines(keepends=True)
    long = whole[1].replace(b'"question":"', b'"question":"' + b"x" * 50 * 2**20, 1)
    records_path.write_bytes(b"".join([whole[0], long, *whole[2:5]]))
    _, records = in_columns(records_path)
    assert len(records) == 4
    assert len(records[0].question) > 50 * 2**20
    assert records[1].id == json.loads(whole[2])["id"]


def test_a_full_disk_costs_time_and_no_result(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plain = read_records(records_path)
    monkeypatch.setattr(column_build, "atomic_write", full)
    with pytest.warns(UserWarning, match="cannot be written .*No space left on device.*whole records are read"):
        assert open_records(records_path) == plain
    monkeypatch.undo()
    monkeypatch.setattr(columns, "LARGE", 0)
    assert_read(records_path, KEY)


def test_two_commands_on_one_log(records_path: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        jobs = [both.submit(open_records, records_path) for _ in range(2)]
        files = [job.result() for job in jobs]
    assert [list(file.records) for file in files] == [list(read_records(records_path).records)] * 2


def test_an_open_file_stays_what_it_was_when_the_log_is_replaced(records_path: Path) -> None:
    plain, (_, records) = read_records(records_path), in_columns(records_path)
    write_records(records_path, plain.header, plain.records[:3])
    in_columns(records_path)  # builds the columns of the new file
    assert list(records) == list(plain.records)
    assert int((records.labels() >= 0).sum()) == len(plain.records)


def test_small_files_and_files_without_the_extra_are_read_as_before(
    records_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "find_spec", lambda name: None)
    assert open_records(records_path) == read_records(records_path)
    monkeypatch.undo()
    assert open_records(records_path) == read_records(records_path)
    assert not (records_path.parent / "records.jsonl.cols").exists()


# -- Commands ----------------------------------------------------------------------------------------------------------


def test_what_evaluate_audit_and_the_report_show_is_that_of_the_records(records_path: Path) -> None:
    plain, (file, records) = read_records(records_path), in_columns(records_path)
    settings_of: dict[str, Any] = {"rules": ["acrc", "certified"], "alphas": [0.2], "splits": 3}
    for more in ({}, {"cluster_by_group": True}):
        ours, theirs = (
            outcome(evaluate_grid, sources([each], apart=False), [KEY], **settings_of, **more) for each in (file, plain)
        )
        assert ours == theirs
    groups = split(plain.records, test_fraction=0.5)
    artifact = fit_artifact(plain, estimator=KEY, alpha=0.2, rule="acrc", part=groups[0])
    fresh = split(records, test_fraction=0.5)[1]
    assert audit(artifact, fresh, KEY) == audit(artifact, groups[1], KEY)
    for calibrations in ((None, None), (file, plain)):
        both = [
            outcome(prepared, each, artifact, KEY, calibration=old)
            for each, old in zip((file, plain), calibrations, strict=True)
        ]
        assert isinstance(both[0], str)  # the questions of the fit are among them
        assert both[0] == both[1]
    whole = fit_artifact(plain, estimator=KEY, alpha=0.2, rule="acrc")
    looked = []
    for some in (records, plain.records):
        part = Part("calibration", some, at_calibration(whole))
        ranked = rank_estimators(some, [KEY, "semantic_entropy"])
        read = reading(whole, some, KEY), categories(whole, [part], KEY), missed(some, "exact")
        looked.append((compare_rules(whole, some, KEY, splits=2), ranked, read, without(some, fresh[:9])[0]))
    assert looked[0] == looked[1]
    by = BySegment("together", "others", 30)
    assert outcome(content, file, KEY, rule="certified", by=by) == outcome(content, plain, KEY, rule="certified", by=by)
    segments = fit_artifact(plain, estimator=KEY, alpha=0.4, rule="certified", by=by, part=groups[0])
    audits = [audit(segments, some, KEY) for some in (fresh, groups[1])]
    assert audits[0].segments
    assert audits[0] == audits[1]


def test_questions_of_the_fit_are_found_by_columns(records_path: Path) -> None:
    plain, (_, records) = read_records(records_path), in_columns(records_path)
    assert question_hashes(records).tolist() == question_hashes(plain.records).tolist()
    fitted, rest = split(plain.records, test_fraction=0.4)
    artifact = fit_artifact(plain, estimator=KEY, alpha=0.2, rule="acrc", part=fitted)
    assert len(artifact.data.hashes) == len(fitted)
    for groups in (None, [plain.records[0].group]):  # clusters belong to the part as a whole
        scores = artifact.calibration.model_copy(update={"group": groups})
        of_fit = artifact.model_copy(update={"calibration": scores})
        ours, theirs = calibration_part(of_fit, records, KEY), calibration_part(of_fit, plain.records, KEY)
        assert [ids(part) for part in ours] == [ids(part) for part in theirs]
        assert all(isinstance(part, ColumnRecords) and part for part in ours)
    named_test = records[5:90], plain.records[5:90]
    for test in ((), named_test):
        parts = [
            parts_of(artifact, some, KEY, test[i] if test else ()) for i, some in enumerate((records, plain.records))
        ]
        assert [ids(part.fitted) for part in parts] == [ids(fitted)] * 2
        assert ids(parts[0].test) == ids(parts[1].test) == ids(named_test[1] if test else rest)
        assert parts[0].n_left_out == parts[1].n_left_out
    assert parts[0].n_left_out > 0
    refused = [outcome(refuse_fitted, artifact, some, "test") for some in (records, plain.records)]
    assert refused[0].startswith(f"{len(fitted)} of {len(plain.records)} test records")
    assert refused[0] == refused[1]
    refuse_fitted(artifact, split(records, test_fraction=0.4)[1], "test")  # the control


def test_questions_in_two_files_are_found_by_columns(records_path: Path) -> None:
    whole = records_path.read_bytes().splitlines(keepends=True)
    other = records_path.with_name("other.jsonl")
    renamed = [line.replace(b'{"id":"', b'{"id":"new-', 1) for line in whole[3:6]]
    in_context = renamed[2].replace(b'"slots":null', b'"slots":{"context":"c"}', 1)
    assert in_context != renamed[2]
    new = [line.replace(b'"question":"', b'"question":"another ', 1) for line in whole[10:12]]
    new = [line.replace(b'{"id":"', b'{"id":"also-', 1) for line in new]
    other.write_bytes(b"".join([whole[0], *new, *renamed[:2], in_context]))
    ours, theirs = open_records(records_path, other), read_records(records_path, other)
    assert isinstance(ours.records, ColumnRecords)
    assert ours.repeated == theirs.repeated
    assert len(ours.repeated) == 2  # in another context it is another question
    other.write_bytes(b"".join([whole[0], *new]))
    assert open_records(records_path, other).repeated == ()


def test_scores_of_a_large_fit_are_packed(
    labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fit_artifact(labelled, estimator=KEY, alpha=0.2, rule="acrc")
    assert isinstance(plain.content["calibration"]["uncertainty"], list | tuple)
    monkeypatch.setattr("guardrail.artifact.PACKED_FROM", 100)
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.2, rule="acrc")
    path = artifact.save(tmp_path / "artifact.json")
    content = json.loads(path.read_text())
    stored = content["calibration"]
    assert (list(stored["uncertainty"]), list(stored["error"])) == (["d"], ["b"])
    assert list(content["data"]["questions"]) == ["Q"]
    loaded = CalibrationArtifact.load(path)
    for scores in (artifact.calibration, loaded.calibration):  # 8 bytes a score, where a tuple of floats has 32
        assert (scores.uncertainty, scores.error) == (
            array("d", plain.calibration.uncertainty),
            array("b", plain.calibration.error),
        )
    assert (type(plain.calibration.uncertainty), loaded.data.hashes) == (tuple, plain.data.hashes)
    assert (loaded.digest, loaded.calibration) == (artifact.digest, artifact.calibration)
    assert pickle.loads(pickle.dumps(artifact)).digest == artifact.digest
    scores_given = {"uncertainty": plain.calibration.uncertainty, "error": plain.calibration.error}
    assert CalibrationScores(**scores_given) == artifact.calibration
    with pytest.raises(ValueError, match="error"):
        CalibrationScores(**{**scores_given, "error": array("b", [2] * len(scores_given["error"]))})
    stored["error"] = {"b": "AAAA"}
    with pytest.raises(ValueError, match="cannot be read"):
        CalibrationScores.from_stored(stored)
    for wrong in ({"Q": "AAAA"}, {}):
        with pytest.raises(ValueError, match="packed numbers have one field of b, d"):
            CalibrationScores.from_stored({**stored, "error": wrong})


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="needs Linux")
def test_columns_that_were_read_do_not_stay_in_memory(records_path: Path) -> None:
    _, records = in_columns(records_path)
    assert records.fingerprint()
    assert f"{records_path.name}.cols" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("few", [1, 10**6])
def test_columns_of_some_records_are_theirs(records_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(column_build, "RANGE", records_path.stat().st_size // 5)
    monkeypatch.setattr(columns, "_FEW", few)  # all of them are few, or none
    _, records = in_columns(records_path)
    assert len(records.logs[0].parts) > 3
    whole = list(records)
    groups, names_of, n = np.array([record.group for record in whole], dtype=object), np.array(ids(whole)), len(whole)
    for places in (np.array([1, n - 1]), np.arange(n)[::-2], np.array([n // 2] * 2), np.ones(n, dtype=np.bool_)):
        codes, names = (some := records.take(places)).coded("group")
        expected = groups[places].tolist()
        assert [names[code] for code in codes.tolist()] == list(some.groups) == expected
        assert set(names) == set(expected)
        assert some.groups[0] == expected[0]
        assert list(some.ids) == names_of[places].tolist()
        assert some[0] == whole[np.arange(n)[places][0]]
        assert some.flags().tolist() == records.flags()[places].tolist()


def test_values_among_known_ones() -> None:
    ranked = np.array([1, 3, 3, 7], dtype=np.uint64)
    values = np.array([9, 3, 0, 7, 2, 3], dtype=np.uint64)
    assert among(values, ranked).tolist() == [False, True, False, True, False, True]
    assert among(values, ranked[:0]).tolist() == [False] * 6
    assert among(values[:0], ranked).tolist() == []


@pytest.mark.slow
def test_the_report_is_that_of_the_records(records_path: Path) -> None:
    plain, (_, records) = read_records(records_path), in_columns(records_path)
    artifact, page = fit_artifact(plain, estimator=KEY, alpha=0.2, rule="acrc"), records_path.with_name("report.html")
    pages = []
    for some in (records, plain.records):
        write_report(page, artifact, some, estimator=KEY, evaluation=compare_rules(artifact, some, KEY, splits=2))
        pages.append(page.read_text())
    assert pages[0] == pages[1]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of published outputs is not here")
def test_published_outputs_read_alike(tmp_path: Path) -> None:
    systems = {"nq-human-labels.jsonl": "gpt4", "mmlu-pro-confidence.csv": "gpt-4.1"}
    names = [path.name for path in sorted(SHARED.iterdir()) if path.suffix in (".jsonl", ".csv")]
    for name in names:
        if name.startswith("answer-pairs"):  # pairs of answers, not a model's outputs
            continue
        file = import_file(SHARED / name, ImportSettings(system=systems.get(name))).file
        if not file.header.estimators:
            file = score_records(file, supported(file.header.plan)[:1])
        if file.header.correctness is None:
            rule = make_rule("option" if file.records[0].options else "token_f1")
            header = file.header.model_copy(update={"correctness": rule.spec})
            file = RecordFile(file.path, header, tuple(label_records(file.records, rule)))
        path = tmp_path / f"{name}.records.jsonl"
        write_records(path, file.header, file.records)
        key = sorted(file.header.estimators)[0]
        assert_same(path, key)
        plain, lazy = read_records(path), in_columns(path)[0]
        assert outcome(content, lazy, key) == outcome(content, plain, key)
