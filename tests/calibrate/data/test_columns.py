"""Columns beside a record file: the results of the records, and never those of another file."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.data import columns
from calibrate.data.columns import open_records
from calibrate.data.record import was_looked_at
from calibrate.data.records import Record, RecordFile, read_records, rewrite_records, write_records
from calibrate.data.split import split
from calibrate.data.table import CUT, DIGESTS, NUMBERS, RecordTable, among, table_of
from calibrate.judging import held_out
from calibrate.pipeline import fit_artifact
from calibrate.scope import waiting_of
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import RecordError, UsageError
from guardrail.plain_json import canonical_json

pytest.importorskip("msgspec")

KEY = "discrete_semantic_entropy"


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE", 0)
    monkeypatch.setattr(columns, "_BATCH", 3)  # several reads


def in_columns(path: Path) -> tuple[RecordFile, RecordTable]:
    file = open_records(path)
    assert path.with_name(f"{path.name}.columns.npz").is_file()
    return file, file.records


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def assert_read(path: Path, key: str) -> tuple[RecordFile, RecordFile, RecordTable]:
    """The same records and the same arrays by columns: whatever reads arrays can then not differ."""
    plain = read_records(path)
    file, records = in_columns(path)
    assert (file.header, len(records)) == (plain.header, len(plain.records))
    assert list(records) == list(plain.records)
    for name in (*NUMBERS, *DIGESTS, f"score:{key}", "score:unknown"):
        np.testing.assert_array_equal(records.column(name), plain.records.column(name), err_msg=name)
    assert records.ids == ids(plain.records)
    assert records.groups == [record.group for record in plain.records]
    assert records.coded("turns")[1] == plain.records.coded("turns")[1]
    assert records.score_keys() == plain.records.score_keys()
    assert records.fingerprint() == plain.records.fingerprint()
    return plain, file, records


def assert_columns(records: RecordTable) -> None:
    """Each column is what its description says of the records."""
    rows = sorted(sha256(canonical_json(r.to_question().model_dump()).encode()).digest()[:16] for r in records)
    assert records.fingerprint() == sha256(b"".join(rows)).hexdigest()
    waiting = [record.correct is None and not was_looked_at(record.label_detail) for record in records]
    assert waiting_of(records).tolist() == waiting
    assert records.undecided().tolist() == [record.is_undecided for record in records]
    assert (records.flags() & CUT != 0).tolist() == [record.cut_off for record in records]
    assert [None if label < 0 else label == 1 for label in records.labels()] == [record.correct for record in records]
    both = {True: set[str](), False: set[str]()}
    for record in records:
        if record.correct is not None:
            answer = None if record.drawn is None or record.drawn.primary is None else record.drawn.primary
            said = None if answer is None else [answer.text.strip(), [call.model_dump() for call in answer.tool_calls]]
            both[record.correct].add(canonical_json([record.to_question().asked, said]))
    assert (records.both_ways()[1] > 0) is bool(both[True] & both[False])
    for hashes, texts in ((records.asked_hashes(), [record.to_question().asked for record in records]),):
        assert len(set(hashes.tolist())) == len(set(texts)) == len(set(zip(hashes.tolist(), texts, strict=True)))


def content(file: RecordFile, key: str, **asked: Any) -> Any:
    artifact = fit_artifact(file, score=key, alpha=0.2, **asked)
    return {name: value for name, value in artifact.content.items() if name != "made"}


def test_a_fit_is_that_of_the_records(records_path: Path) -> None:
    plain, file, records = assert_read(records_path, KEY)
    assert_columns(records)
    for rule in ("acrc", "certified"):
        assert content(file, KEY, rule=rule) == content(plain, KEY, rule=rule)
    part, rest = split(file.records, test_fraction=0.4)
    ours, theirs = split(plain.records, test_fraction=0.4)
    assert content(file, KEY, part=part) == content(plain, KEY, part=ours)
    artifact = fit_artifact(plain, score=KEY, alpha=0.2, rule="acrc", part=ours)
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
    assert_columns(assert_read(path, KEY)[2])


# -- What becomes of the log -------------------------------------------------------------------------------------------


def test_torn_lines_of_a_gateway_are_left_out_of_the_columns(
    labelled: RecordFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, torn = tmp_path / "observed.jsonl", b'{"id": "torn", "quest\n'
    write_records(path, labelled.header.model_copy(update={"questions_name": "observed: m"}), labelled.records)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], torn, *lines[3:70], torn, torn, *lines[70:], torn[:-1]]))
    assert len(assert_read(path, KEY)[0].records) == len(labelled.records)
    counted = re.findall(r"(\d+) torn lines were left out", caplog.text)
    assert counted == ["3", "3"]  # by records, and by columns
    path.write_bytes(b"".join([*lines[:3], b'{"id": 7}\n', torn, *lines[3:]]))
    with pytest.raises(RecordError, match=":4: field 'id'"):  # written whole
        in_columns(path)
    path.write_bytes(b"".join([lines[0].replace(b"observed: m", b"mine"), *lines[1:3], torn, *lines[3:]]))
    with pytest.raises(RecordError, match=":4: not JSON"):
        in_columns(path)


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


# -- Tables ------------------------------------------------------------------------------------------------------------


def test_scores_of_a_large_fit_are_packed(
    labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fit_artifact(labelled, score=KEY, alpha=0.2, rule="acrc")
    assert isinstance(plain.content["calibration"]["uncertainty"], list | tuple)
    monkeypatch.setattr("guardrail.artifact.PACKED_FROM", 100)
    artifact = fit_artifact(labelled, score=KEY, alpha=0.2, rule="acrc")
    path = artifact.save(tmp_path / "artifact.json")
    content = json.loads(path.read_text())
    stored = content["calibration"]
    assert (list(stored["uncertainty"]), list(stored["error"])) == (["d"], ["b"])
    assert list(content["data"]["questions"]) == ["Q"]
    loaded = CalibrationArtifact.load(path)
    assert isinstance(plain.calibration, CalibrationScores)
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


def test_columns_are_made_again_when_the_log_has_changed(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of another version of the file would be certified otherwise."""
    made: list[Any] = []
    make = columns._made

    def counted(*given: Any) -> Any:
        made.append(given)
        return make(*given)

    monkeypatch.setattr(columns, "_made", counted)
    whole = records_path.read_bytes().splitlines(keepends=True)
    records_path.write_bytes(b"".join(whole[:60]))
    for _ in range(2):
        assert_read(records_path, KEY)
    assert len(made) == 1  # the second time they are read
    with records_path.open("ab") as log:
        log.write(b"".join(whole[60:80]) + whole[80][:50])
    assert len(assert_read(records_path, KEY)[0].records) == 79  # without the header and the torn line
    with records_path.open("ab") as log:
        log.write(whole[80][50:] + b"\n" + whole[81].rstrip())
    assert_read(records_path, KEY)  # a last line without its end is whole if it is a record
    assert len(made) == 3
    rewrite_records(records_path, records_path, lambda file: RecordFile(file.path, file.header, file.records[::-1]))
    assert_read(records_path, KEY)
    content = records_path.read_bytes()
    with records_path.open("r+b") as same:  # in place, with the same size
        same.seek(content.index(b'"correct":true'))
        same.write(b'"correct":null')
    os.utime(records_path, ns=(1, 1))
    assert_read(records_path, KEY)
    assert len(made) == 5
    records_path.with_name("records.jsonl.columns.npz").write_bytes(b"something else")
    assert_read(records_path, KEY)
    assert len(made) == 6


def test_a_full_disk_costs_time_and_no_result(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(columns, "atomic_write", full)
    with pytest.warns(UserWarning, match="cannot be kept .*No space left on device"):
        assert open_records(records_path) == read_records(records_path)


def test_small_files_and_files_without_the_extra_are_read_in_memory(
    records_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "find_spec", lambda name: None)
    assert open_records(records_path) == read_records(records_path)
    monkeypatch.undo()
    assert open_records(records_path) == read_records(records_path)
    assert [path.name for path in records_path.parent.iterdir()] == [records_path.name]


def test_parts_of_a_table(records_path: Path) -> None:
    """Selections, slices and pools have the records and arrays of their places, in memory and by columns."""
    plain, _, records = assert_read(records_path, KEY)
    whole, n = list(records), len(records)
    pools = [records, plain.records, records[:7].joined([plain.records[3:5], records]), records.joined([records])]
    expected = [whole, whole, [*whole[:7], *whole[3:5], *whole], [*whole, *whole]]
    for table, rows in zip(pools, expected, strict=True):
        assert list(table) == rows
        for places in (np.array([1, n - 1]), np.arange(n)[::-2], np.array([n // 2] * 2), np.array([], np.int64)):
            some, chosen = table.take(places), [rows[place] for place in places]
            assert list(some) == chosen
            assert some.ids == ids(chosen)
            codes, names = some.coded("group")
            assert [names[code] for code in codes] == [record.group for record in chosen]
            assert some.flags().tolist() == table.flags()[places].tolist()
        assert table[-1] == rows[-1]
        with pytest.raises(IndexError):
            table[len(rows)]
    assert table_of(whole).repeated() is None
    assert table_of([*whole, whole[3]]).repeated() == (3, n)


def test_values_among_known_ones() -> None:
    ranked = np.array([1, 3, 3, 7], dtype=np.uint64)
    values = np.array([9, 3, 0, 7, 2, 3], dtype=np.uint64)
    assert among(values, ranked).tolist() == [False, True, False, True, False, True]
    assert among(values, ranked[:0]).tolist() == [False] * 6
    assert among(values[:0], ranked).tolist() == []
