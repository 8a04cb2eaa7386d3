"""Question files: what is read, and how a malformed row is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.formats.questions import read_questions
from calibrate.data.questions import Question, fingerprint, option_labels, reference_label
from guardrail.errors import RecordError, UsageError


def jsonl(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "q.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "q.csv"
    path.write_text(text, encoding="utf-8")
    return path


GOOD = {"id": "a", "question": "Capital of France?", "references": ["Paris"]}


def test_reads_every_field(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "question": "2 + 2?",
        "references": "B",
        "options": {"A": "3", "B": 4},
        "group": "maths",
        "source": "x",
    }
    (question,) = read_questions(jsonl(tmp_path, row))
    assert question == Question(
        id="7", question="2 + 2?", references=("B",), options={"A": "3", "B": "4"}, group="maths"
    )


def test_csv_forms_equal_the_jsonl_form(tmp_path: Path) -> None:
    rows = [
        {
            "question": "Sea, or lake?",
            "references": ["Sea", "the sea"],
            "options": {"A": "sea", "B": "lake"},
            "group": "g",
        }
    ]
    expected = read_questions(jsonl(tmp_path, *rows))
    columns = 'question,references,A,B,group\n"Sea, or lake?",Sea|the sea,sea,lake,g\n'
    objects = (
        "question,references,options,group\n"
        '"Sea, or lake?","[""Sea"", ""the sea""]","{""A"": ""sea"", ""B"": ""lake""}",g\n'
    )
    assert read_questions(csv_file(tmp_path, columns)) == expected
    assert read_questions(csv_file(tmp_path, "\ufeff" + objects)) == expected


def test_id_is_a_hash_of_the_content(tmp_path: Path) -> None:
    rows = [
        {"question": "Q?", "references": ["r"]},
        {"question": "Q?", "references": ["A"], "options": {"A": "x", "B": "y"}},
    ]
    first, second = read_questions(jsonl(tmp_path, *rows))
    assert first.id.startswith("q-")
    assert first.id != second.id
    assert read_questions(jsonl(tmp_path, rows[0]))[0].id == first.id


@pytest.mark.parametrize(
    ("row", "field", "fragment"),
    [
        ({**GOOD, "question": "  "}, "question", "non-empty"),
        ({"id": "b", "references": ["x"]}, "question", "got nothing"),
        ({**GOOD, "references": []}, "references", "calibrate collect"),
        ({**GOOD, "references": ["x", ""]}, "references", "''"),
        ({**GOOD, "references": {"x": 1}}, "references", "must be a list"),
        ({**GOOD, "references": True}, "references", "must be a list"),
        ({**GOOD, "options": ["a", "b"]}, "options", "object from label to text"),
        ({**GOOD, "options": {"A": "Paris"}}, "options", "at least two"),
        ({**GOOD, "options": {"A": "Paris", "B": None, "C": "Rome"}}, "options", "option 'B' must be a non-empty text"),
        ({**GOOD, "references": ["E"], "options": {"A": "x", "B": "y"}}, "references", "A, B"),
        ({**GOOD, "group": ["g"]}, "group", "must be a text"),
        ({**GOOD, "id": 1.5}, "id", "must be a text"),
        ({"id": "b", "question": "Q?", "answer": "x"}, "answer", "Rename it to 'references'"),
        ({**GOOD, "gruop": "g"}, "gruop", "Rename it to 'group'"),
    ],
)  # fmt: skip
def test_malformed_row_names_file_line_and_field(
    tmp_path: Path, row: dict[str, Any], field: str, fragment: str
) -> None:
    path = jsonl(tmp_path, {**GOOD, "id": "first"}, row)
    with pytest.raises(RecordError) as caught:
        read_questions(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: field {field!r}")
    assert fragment in message


@pytest.mark.parametrize(
    ("line", "fragment"),
    [('{"question": "Q?"', "not JSON"), ("[1, 2]", "one JSON object"), ('"text"', "one JSON object")],
)
def test_malformed_line_names_file_and_line(tmp_path: Path, line: str, fragment: str) -> None:
    path = jsonl(tmp_path, GOOD, line)
    with pytest.raises(RecordError, match=fragment) as caught:
        read_questions(path)
    assert f"{path}:2" in str(caught.value)


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    path = jsonl(tmp_path, GOOD, "", {**GOOD, "question": "Other?"})
    with pytest.raises(RecordError) as caught:
        read_questions(path)
    assert f"{path}:3: field 'id'" in str(caught.value)
    assert f"{path}:1" in str(caught.value)


def test_references_may_be_waived(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "Q?"})
    assert read_questions(path, require_references=False)[0].references == ()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("question,references\nQ?,r,extra\n", ":2: the row has 3 cells, the header 2"),
        ("question,references\nQ?\n", ":2: the row has 1 cells, the header 2"),
        ("question,question\nQ?,r\n", ":1: column 'question' appears twice"),
        ("question,references\nQ?,[broken\n", ":2: field 'references'"),
        ("question,references\n,r\n", ":2: field 'question'"),
    ],
)
def test_malformed_csv(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_questions(csv_file(tmp_path, text))
    assert fragment in str(caught.value)


def test_unusable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file at"):
        read_questions(tmp_path / "missing.jsonl")
    (tmp_path / "q.txt").write_text("x")
    with pytest.raises(UsageError, match=r"is not a \.jsonl, \.json, \.csv"):
        read_questions(tmp_path / "q.txt")
    with pytest.raises(UsageError, match="holds no question"):
        read_questions(jsonl(tmp_path, ""))
    (tmp_path / "latin.jsonl").write_bytes('{"question": "é"}'.encode("latin-1"))
    with pytest.raises(RecordError, match="UTF-8"):
        read_questions(tmp_path / "latin.jsonl")


def test_fingerprint_ignores_order_and_notices_every_change() -> None:
    a, b = Question(id="a", question="A?", references=("x",)), Question(id="b", question="B?", references=("y",))
    assert fingerprint([a, b]) == fingerprint([b, a])
    changes = ({"references": ("z",)}, {"question": "C?"}, {"group": "g"}, {"options": {"A": "1", "B": "2"}})
    prints = {fingerprint([a.model_copy(update=change), b]) for change in changes}
    assert len(prints | {fingerprint([a, b])}) == 5


def test_option_labels_must_agree() -> None:
    two = Question(id="a", question="A?", options={"A": "1", "B": "2"})
    three = Question(id="b", question="B?", options={"A": "1", "B": "2", "C": "3"})
    assert option_labels([two, two]) == ("A", "B")
    assert option_labels([Question(id="c", question="C?")]) is None
    with pytest.raises(UsageError, match=r"'b' has option labels \('A', 'B', 'C'\)"):
        option_labels([two, three])


@pytest.mark.parametrize(
    ("references", "expected"), [(("B",), "B"), (("the Lake",), "B"), (("x", "A"), "A"), (("x",), None)]
)
def test_reference_label(references: tuple[str, ...], expected: str | None) -> None:
    question = Question(id="a", question="?", references=references, options={"A": "sea", "B": "lake"})
    assert reference_label(question) == expected
