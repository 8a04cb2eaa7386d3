"""Labels that people gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.data.labels import apply_labels, read_labels
from calibrate.data.records import Record
from guardrail.errors import RecordError, UsageError


def labels_file(tmp_path: Path, text: str, name: str = "labels.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_and_jsonl_say_the_same(tmp_path: Path) -> None:
    table = read_labels(labels_file(tmp_path, "id,correct\na,yes\nb,0\nc,Wrong\n"))
    rows = '{"id": "c", "correct": false}\n{"id": "a", "correct": 1}\n{"id": "b", "correct": "no"}\n'
    lines = read_labels(labels_file(tmp_path, rows, "labels.jsonl"))
    assert table.given == lines.given == {("a", None): True, ("b", None): False, ("c", None): False}
    assert table.spec.params["sha256"] == lines.spec.params["sha256"]
    assert (table.spec.name, table.spec.params["file"]) == ("given", "labels.csv")


def test_records_without_a_label_wait_for_one(tmp_path: Path) -> None:
    labels = read_labels(labels_file(tmp_path, "id,correct\na,yes\n"))
    applied = apply_labels([Record(id="a", question="?"), Record(id="b", question="?", correct=True)], labels)
    assert [record.correct for record in applied] == [True, None]
    assert applied[1].label_detail == ""
    with pytest.raises(UsageError, match="labels 1 records that are not in the record file"):
        apply_labels([Record(id="b", question="?")], labels)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("id,correct\na,maybe\n", ":2: field 'correct': got 'maybe'; write true or false"),
        ("id,correct\n,yes\n", ":2: field 'id'"),
        ("id,correct\na,yes\na,no\n", ":3: field 'id': got 'a'; it has a label already"),
        ("id,label\na,yes\n", ":2: field 'correct': got nothing"),
    ],
)
def test_malformed_rows(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_labels(labels_file(tmp_path, text))
    assert fragment in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no label"):
        read_labels(labels_file(tmp_path, "id,correct\n"))
