"""JSON documents of other tools as records: what is read, and what is refused with its row."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from calibrate import from_frame
from calibrate.data.records import read_records
from guardrail.errors import RecordError
from tests.calibrate.cli.test_items_cli import called, labels_of, printed

CARDS = """id,prompt,gold,s1,s2,s3
1,one,"{""a"": 1, ""b"": ""x|y""}","{""a"": 1, ""b"": ""x|y""}","{""a"": 1, ""b"": ""z""}","{""a"": 1, ""b"": ""x|y""}"
2,two,"{""a"": 5, ""b"": ""q""}","{""a"": 5, ""b"": ""q""}",oops,"{""a"": 5, ""b"": ""q""}"
"""


def test_one_row_an_answer(tmp_path: Path) -> None:
    (tmp_path / "cards.csv").write_text(CARDS)
    path = tmp_path / "cards.jsonl"
    columns = ("--map", "question=prompt", "--map", "references=gold", "--map", "samples=s1,s2,s3")
    printed(called("import", tmp_path / "cards.csv", "--items", *columns, "--out", path))
    printed(called("score", path, "--items", "--cap", "2"))
    printed(called("label", path, "--items"))
    records = read_records(path).records
    shares = {record.id: {item.path: item.uncertainty for item in record.items or ()} for record in records}
    assert shares == {"1": {"/a": 0.0, "/b": 1 / 3}, "2": {"/a": 1 / 3, "/b": 1 / 3}}
    assert all(all(labels_of(record)) for record in records)


def test_a_reference_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "cards.jsonl").write_text('{"question": "q", "references": "{", "samples": ["{}"]}\n')
    result = called("import", tmp_path / "cards.jsonl", "--items", "--out", tmp_path / "r.jsonl")
    assert result.exit_code != 0
    assert "a reference must be a JSON document" in result.output


def test_malformed_rows_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    good = [{"question": f"q{i}", "references": "{}", "samples": ["{}", "{}"]} for i in range(3)]
    bad = ["{torn", json.dumps({"question": "q9", "references": "{", "samples": ["{}"]})]
    path, out = tmp_path / "cards.jsonl", tmp_path / "r.jsonl"
    path.write_text("\n".join([*map(json.dumps, good), *bad]))
    assert "3 of 5 rows are records now" in printed(
        called("import", path, "--items", "--skip-bad", "0.4", "--out", out)
    )
    skipped = (tmp_path / "r.skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["problem"].split(": ")[0] for line in skipped] == [f"{path}:4", f"{path}:5"]


@pytest.mark.parametrize("column", ["references", "answer", "samples"])
def test_a_value_that_json_cannot_hold_is_named(column: str) -> None:
    value = {"a": date(2024, 1, 2)}
    row = {"question": "q", "references": {"a": 1}, "answer": {"a": 1}, "samples": [{"a": 1}] * 2}
    frame = [{**row, column: [value, value] if column == "samples" else value}]
    with pytest.raises(RecordError, match=r"^frame:1: .*2024.*JSON cannot hold it.*Write it as the model does"):
        from_frame(frame, items=True)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("column", ["references", "answer", "samples"])
def test_a_document_with_nan_is_refused_not_read_as_null(tmp_path: Path, column: str, number: str) -> None:
    plain = {"question": "q", "references": {"a": [1]}, "answer": {"a": [1]}, "samples": [{"a": [1]}] * 2}
    bad = {**plain, column: [{"a": [float(number)]}, {"a": [1]}] if column == "samples" else {"a": [float(number)]}}
    way_out = "JSON cannot hold it .* and null where there is no value"
    with pytest.raises(RecordError, match=rf"^frame:2: field '{column}': .*{way_out}"):
        from_frame([plain, bad], items=True)
    path = tmp_path / "log.jsonl"
    # json.dumps writes the number that 1e999 is read as.
    path.write_text("".join(json.dumps(row).replace(json.dumps(float(number)), number) + "\n" for row in (plain, bad)))
    result = called("import", path, "--items", "--out", tmp_path / "r.jsonl")
    shown = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code != 0
    assert f"{column}" in shown
    assert "and null where there is no value" in shown
    assert "log.jsonl:2" in shown.replace(" ", "")
    assert not (tmp_path / "r.jsonl").exists()


def test_a_reference_written_with_nan_is_refused_and_a_sample_stays_what_the_model_wrote(tmp_path: Path) -> None:
    path = tmp_path / "cards.jsonl"
    text = '{"a": NaN}'
    path.write_text(json.dumps({"question": "q", "references": text, "answer": "{}", "samples": ["{}"]}))
    refused = called("import", path, "--items", "--out", tmp_path / "r.jsonl")
    assert refused.exit_code != 0
    rule = "a reference must be a JSON document, null where there is no value (NaN is not JSON)"
    assert rule in " ".join(refused.output.replace("│", " ").split())
    path.write_text(json.dumps({"question": "q", "references": "{}", "answer": "{}", "samples": [text, "{}"]}))
    printed(called("import", path, "--items", "--out", tmp_path / "r.jsonl"))
    (record,) = read_records(tmp_path / "r.jsonl").records
    assert record.drawn is not None
    assert [sample.text for sample in record.drawn.samples] == [text, "{}"]


@pytest.mark.parametrize("nothing", ["", None, float("nan")])
def test_empty_samples_are_counted(tmp_path: Path, nothing: object) -> None:
    others: list[list[object]] = [[nothing, nothing], [nothing, {"a": 1}], [{"a": 1}, {"a": 2}], [{}, {}]]
    frame = [
        {"question": f"q{n}", "references": {"a": 1}, "answer": {"a": 1}, "samples": [{"a": 1}, *drawn]}
        for n, drawn in enumerate(others)
    ]
    said = "Empty samples were left out: 3 (in 2 of 4 rows). Where the model answered nothing, write {}, which supports"
    records = from_frame(frame, items=True)
    assert [note for note in records.notes if note.startswith(said)]
    assert [len(record.drawn.samples) for record in records.file.records if record.drawn] == [1, 2, 3, 3]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in frame))
    assert said in printed(called("import", path, "--items", "--out", tmp_path / "r.jsonl"))
    path.write_text("".join(json.dumps(row) + "\n" for row in frame[2:]))
    told = printed(called("import", path, "--items", "--out", tmp_path / "r.jsonl", "--replace"))
    assert "Empty samples" not in told


def test_an_answer_that_is_a_list_is_one_document() -> None:
    listed = [{"a": 1}, {"a": 2}]
    frame = [{"question": "q", "references": [listed], "answer": listed, "samples": [listed, [{"a": 1}]]}]
    records = from_frame(frame, items=True)
    records.score_items(cap=3).label_items()
    (record,) = records.file.records
    assert record.drawn is not None
    assert record.drawn.primary is not None
    assert json.loads(record.drawn.primary.text) == listed
    assert [item.uncertainty for item in (record.items or ())] == [0.5]
    assert labels_of(record) == (True,)


def test_a_document_may_stand_at_a_path(tmp_path: Path) -> None:
    row = {"question": "q", "gold": {"json": {"a": 1}}, "runs": [{"json": {"a": 1}}, {"json": {"a": 2}}]}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row))
    columns = ("--map", "references=gold.json", "--map", "samples=runs[].json")
    printed(called("import", path, "--items", *columns, "--out", tmp_path / "r.jsonl"))
    (record,) = read_records(tmp_path / "r.jsonl").records
    assert record.drawn is not None
    assert record.references == ('{"a": 1}',)
    assert [sample.text for sample in record.drawn.samples] == ['{"a": 1}', '{"a": 2}']
