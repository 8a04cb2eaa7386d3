"""Question files of our own form, and published data sets, made by hand in the published formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.formats.field_map import parse_map
from calibrate.data.formats.questions import read_questions
from calibrate.data.questions import Question, fingerprint, option_labels, reference_label
from guardrail.errors import RecordError, UsageError

COQA: dict[str, Any] = {
    "version": "1.0",
    "data": [
        {
            "source": "mctest",
            "id": "3dr23u6we5exclen4th8uq9rb42tel",
            "filename": "mc160.test.41",
            "story": "Cotton was a white kitten in a barn.",
            "questions": [
                {"input_text": "What color was Cotton?", "turn_id": 1},
                {"input_text": "Where did she live?", "turn_id": 2},
                {"input_text": "Did she have a dog?", "turn_id": 3},
            ],
            "answers": [
                {"span_start": 13, "span_end": 18, "span_text": "white", "input_text": "white", "turn_id": 1},
                {"span_start": 29, "span_end": 35, "span_text": "a barn", "input_text": "in a barn", "turn_id": 2},
                {"span_start": -1, "span_end": -1, "span_text": "unknown", "input_text": "unknown", "turn_id": 3},
            ],
            "additional_answers": {
                "0": [{"input_text": "white", "turn_id": 1}, {"input_text": "a barn", "turn_id": 2}],
                "1": [{"input_text": "White.", "turn_id": 1}, {"input_text": "the barn", "turn_id": 2}],
            },
            "name": "mc160.test.41",
        }
    ],
}


def medmcqa(cops: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"m{i}",
            "question": f"Which? ({i})",
            "opa": "one",
            "opb": "two",
            "opc": "three",
            "opd": "four",
            "cop": cop,
            "choice_type": "single",
            "exp": None,
            "subject_name": "Anatomy",
            "topic_name": None,
        }
        for i, cop in enumerate(cops)
    ]


def document(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((json.dumps(row) if row else "") + "\n" for row in rows), encoding="utf-8")
    return path


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("format", [None, "coqa"])
def test_coqa_turns_carry_the_story_and_the_gold_history(tmp_path: Path, format: str | None) -> None:
    loaded = read_questions(document(tmp_path / "coqa-dev-v1.0.json", COQA), format)
    name = "3dr23u6we5exclen4th8uq9rb42tel"
    assert [question.id for question in loaded] == [f"{name}-1", f"{name}-2", f"{name}-3"]
    assert {question.group for question in loaded} == {name}
    first, second, third = loaded
    assert first.question == "Cotton was a white kitten in a barn.\n\nQ: What color was Cotton?\nA:"
    assert first.references == ("white", "White.")
    assert second.question.endswith("Q: What color was Cotton?\nA: white\nQ: Where did she live?\nA:")
    assert second.references == ("in a barn", "a barn", "the barn")
    assert third.references == ("unknown",)  # no additional answer for this turn
    assert "A: in a barn\n" in third.question


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        (lambda story: story.pop("story"), "data[0]: field 'story': got nothing"),
        (lambda story: story["questions"][1].pop("turn_id"), "data[0].questions[1]: field 'turn_id': got nothing"),
        (lambda story: story["answers"].pop(), "data[0]: field 'answers': got [1, 2]; there must be one answer"),
        (lambda story: story["answers"][0].update(input_text=" "), "data[0].answers[0]: field 'input_text': got ' '"),
        (
            lambda story: story.update(questions="x"),
            "data[0]: field 'questions': got 'x'; Input should be a valid list",
        ),
        (
            lambda story: story.update(additional_answers=["x"]),
            "data[0]: field 'additional_answers': got ['x']; Input should be a valid dictionary",
        ),
    ],
)
def test_a_malformed_conversation_is_named_by_its_place(tmp_path: Path, change: Any, fragment: str) -> None:
    content = json.loads(json.dumps(COQA))
    change(content["data"][0])
    with pytest.raises(RecordError) as caught:
        read_questions(document(tmp_path / "coqa.json", content), "coqa")
    assert f"coqa.json:{fragment}" in str(caught.value)


def test_medmcqa_counts_from_one_or_from_zero(tmp_path: Path) -> None:
    official = read_questions(lines(tmp_path / "dev.json", medmcqa([1, 4, 2])))
    assert [question.references for question in official] == [("A",), ("D",), ("B",)]
    assert official[0].options == {"A": "one", "B": "two", "C": "three", "D": "four"}
    assert official[0].group == "Anatomy"
    hub = read_questions(lines(tmp_path / "hub.jsonl", medmcqa([1, 0, 2])))
    assert [question.references for question in hub] == [("B",), ("A",), ("C",)]
    unclear = lines(tmp_path / "few.json", medmcqa([1, 2]))
    with pytest.raises(UsageError, match=r"cop is never 0 or 4.*medmcqa-1 or medmcqa-0"):
        read_questions(unclear)
    assert read_questions(unclear, "medmcqa-1")[0].references == ("A",)
    assert read_questions(unclear, "medmcqa-0")[0].references == ("B",)
    with pytest.raises(UsageError, match="two files that count differently"):
        read_questions(lines(tmp_path / "mixed.json", medmcqa([0, 4])))
    with pytest.raises(RecordError, match=r"x\.json:2: field 'cop': got 4; it must be in 0 \.\.\. 3"):
        read_questions(lines(tmp_path / "x.json", medmcqa([0, 4])), "medmcqa-0")


@pytest.mark.parametrize(
    ("cop", "fragment"),
    [(-1, "withheld"), (5, "less than or equal to 4"), ("a", "a valid integer"), (None, "got nothing")],
)
def test_medmcqa_refuses_what_names_no_option(tmp_path: Path, cop: Any, fragment: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_questions(lines(tmp_path / "m.json", medmcqa([1, cop])))
    assert "m.json:2: field 'cop'" in str(caught.value)
    assert fragment in str(caught.value)


def arrow_folder(folder: Path, rows: list[dict[str, Any]], shards: int = 1, **state: Any) -> Path:
    """Write a folder as `Dataset.save_to_disk` does: Arrow stream files, state.json and dataset_info.json."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        part = pyarrow.Table.from_pylist(rows[i::shards])
        with (folder / name).open("wb") as stream, pyarrow.ipc.new_stream(stream, part.schema) as writer:
            writer.write_table(part)
    files = [{"filename": name} for name in names]
    document(folder / "state.json", {"_data_files": files, "_fingerprint": "1", "_split": None, **state})
    return document(folder / "dataset_info.json", {"features": {}}).parent


HUB_COQA = {
    "source": "mctest",
    "story": "A cat.",
    "questions": ["Is it a cat?", "Sure?"],
    "answers": {"input_text": ["yes", "very"], "answer_start": [0, 0], "answer_end": [1, 1]},
}
OWN = {"id": "o1", "question": "Q?", "references": ["A"], "options": {"A": "x", "B": "y"}, "group": "g"}


@pytest.mark.parametrize(
    ("rows", "ids", "references"),
    [
        (medmcqa([0, 3]), ["m0", "m1"], [("A",), ("D",)]),
        ([HUB_COQA], ["coqa-0-1", "coqa-0-2"], [("yes",), ("very",)]),
        ([OWN], ["o1"], [("A",)]),
    ],
)
def test_data_folders_of_the_hub(
    tmp_path: Path, rows: list[dict[str, Any]], ids: list[str], references: list[tuple[str, ...]]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    saved = read_questions(arrow_folder(tmp_path / "saved", rows))
    assert [question.id for question in saved] == ids
    assert [question.references for question in saved] == references
    (tmp_path / "hub" / "data").mkdir(parents=True)
    file = tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    assert read_questions(tmp_path / "hub") == saved
    assert read_questions(file) == saved


def test_splits_are_never_mixed(tmp_path: Path) -> None:
    rows = medmcqa([0, 3, 1, 2])
    both = tmp_path / "both"
    arrow_folder(both / "train", rows, shards=2)
    arrow_folder(both / "validation", rows)
    with pytest.raises(UsageError, match=r"holds several splits \(train, validation\)"):
        read_questions(both)
    # Shards are read in the order that the state file lists: rows 0 and 2, then 1 and 3.
    assert [question.id for question in read_questions(both / "train")] == ["m0", "m2", "m1", "m3"]
    shutil.rmtree(both / "train")
    assert len(read_questions(both)) == 4  # as `DatasetDict.save_to_disk` writes it
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("train-00000-of-00001", "test-00000-of-00001"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    (tmp_path / "flat").mkdir()
    for name in ("train-00000-of-00001", "test-00000-of-00001"):
        (tmp_path / f"{name}.parquet").rename(tmp_path / "flat" / f"{name}.parquet")
    with pytest.raises(UsageError, match=r"several splits \(test, train\)"):
        read_questions(tmp_path / "flat")


def test_folders_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no dataset"):
        read_questions(tmp_path)
    chosen = arrow_folder(tmp_path / "chosen", medmcqa([0]), _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(UsageError, match="flatten_indices"):
        read_questions(chosen)
    broken = arrow_folder(tmp_path / "broken", medmcqa([0]))
    (broken / "data-00000-of-00001.arrow").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(RecordError, match="not an Arrow stream"):
        read_questions(broken)
    other = arrow_folder(tmp_path / "other", [{"text": "x", "label": 1}])
    with pytest.raises(RecordError, match=r"another column of text, label holds it: --map question=COLUMN"):
        read_questions(other)


def test_files_of_no_known_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no question"):
        read_questions(document(tmp_path / "x.json", {"data": []}))
    (tmp_path / "torn.json").write_text('{"data": [')
    with pytest.raises(RecordError, match=r"torn\.json:1: not JSON"):
        read_questions(tmp_path / "torn.json", "coqa")
    with pytest.raises(UsageError, match="no question format named 'quac'"):
        read_questions(tmp_path / "x.json", "quac")
    with pytest.raises(UsageError, match="no file at"):
        read_questions(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"is not a \.jsonl, \.json, \.csv"):
        read_questions(table(tmp_path / "q.txt", "x"))
    twice = {"data": [COQA["data"][0]] * 2}
    with pytest.raises(RecordError, match="this id is already at"):
        read_questions(document(tmp_path / "twice.json", twice))


def test_aliases_in_a_text_are_no_single_answer(tmp_path: Path) -> None:
    """As one answer they would call every right answer wrong. An answer that is such a literal stands in a list."""
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Largest planet?", "references": "[\'Jupiter\', \'Zeus\']"}\n')
    with pytest.raises(RecordError, match=r'Write \["Jupiter", "Zeus"\]; if it is one answer, \[TEXT\]'):
        read_questions(path)
    path.write_text('{"question": "f() ==", "references": ["[\'a\', \'b\']"]}\n')
    assert read_questions(path)[0].references == ("['a', 'b']",)


def test_other_data_sets_are_read_by_paths(tmp_path: Path) -> None:
    """A data set without a format of its own needs no converter."""
    answer = {"Value": "Paris", "Aliases": ["Paris", "City of Light"]}
    path = tmp_path / "trivia.json"
    rows = [{"QuestionId": "t1", "Question": "Capital?", "Answer": answer}]
    path.write_text(json.dumps(rows))
    columns = parse_map(["id=QuestionId", "question=Question", "references=Answer.Aliases"])
    (question,) = read_questions(path, columns=columns)
    assert question == Question(id="t1", question="Capital?", references=("Paris", "City of Light"))
    path.write_text(json.dumps({"Data": rows}))
    with pytest.raises(RecordError, match=r"--rows Data; or save that list as a file"):
        read_questions(path, columns=columns)


# -- Our own form ------------------------------------------------------------------------------------------------------

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
    (question,) = read_questions(lines(tmp_path / "q.jsonl", [row]))
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
    expected = read_questions(lines(tmp_path / "q.jsonl", rows))
    columns = 'question,references,A,B,group\n"Sea, or lake?",Sea|the sea,sea,lake,g\n'
    objects = (
        "question,references,options,group\n"
        '"Sea, or lake?","[""Sea"", ""the sea""]","{""A"": ""sea"", ""B"": ""lake""}",g\n'
    )
    assert read_questions(table(tmp_path / "q.csv", columns)) == expected
    assert read_questions(table(tmp_path / "q.csv", "\ufeff" + objects)) == expected


def test_id_is_a_hash_of_the_content(tmp_path: Path) -> None:
    rows = [
        {"question": "Q?", "references": ["r"]},
        {"question": "Q?", "references": ["A"], "options": {"A": "x", "B": "y"}},
    ]
    first, second = read_questions(lines(tmp_path / "q.jsonl", rows))
    assert first.id.startswith("q-")
    assert first.id != second.id
    assert read_questions(lines(tmp_path / "q.jsonl", [rows[0]]))[0].id == first.id


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
    path = lines(tmp_path / "q.jsonl", [{**GOOD, "id": "first"}, row])
    with pytest.raises(RecordError) as caught:
        read_questions(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: field {field!r}")
    assert fragment in message


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", [GOOD, "", {**GOOD, "question": "Other?"}])
    with pytest.raises(RecordError) as caught:
        read_questions(path)
    assert f"{path}:3: field 'id'" in str(caught.value)
    assert f"{path}:1" in str(caught.value)


def test_references_may_be_waived(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", [{"question": "Q?"}])
    assert read_questions(path, require_references=False)[0].references == ()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("question,references\nQ?,[broken\n", ":2: field 'references'"),
        ("question,references\n,r\n", ":2: field 'question'"),
    ],
)
def test_malformed_csv(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_questions(table(tmp_path / "q.csv", text))
    assert fragment in str(caught.value)


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
