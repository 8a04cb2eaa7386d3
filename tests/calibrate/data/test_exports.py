"""Each line of docs/exports.md reads its format: the questions, answers and labels that a person sees in the file."""

from __future__ import annotations

import csv
import json
import re
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.formats.field_map import ImportSettings, parse_map
from calibrate.data.formats.read import import_file
from calibrate.data.labels import read_labels
from calibrate.data.records import Record, read_records
from guardrail.errors import RecordError, UsageError
from guardrail.types import Unmeasured

PAGE = Path(__file__).parents[3] / "docs" / "exports.md"
LINES = [match for match in re.findall(r"\|`(calibrate import [^|`]+)`\|", PAGE.read_text(encoding="utf-8"))]

ASKED = ("Highest peak of Africa?", "Author of Emma?", "Colour of malachite?")
SAID = ("Kilimanjaro", "Bronte", "green")
GOLD = ("Kilimanjaro", "Austen", "green")
OK = (True, False, True)
TRIPLES = tuple(zip(ASKED, SAID, GOLD, OK, strict=True))


def choice(text: str, index: int = 0) -> dict[str, Any]:
    content = [{"token": text, "logprob": -0.2, "top_logprobs": []}]
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "logprobs": {"content": content}, "finish_reason": "stop"}


def annotation(*labels: str, cancelled: bool = False) -> dict[str, Any]:
    results = [{"type": "choices", "value": {"choices": [label]}} for label in labels]
    return {"was_cancelled": cancelled, "result": results}


GREETING = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
PROMPTFOO = [
    {
        "testIdx": i, "vars": {"question": q, "expected": gold}, "success": ok, "failureReason": 0 if ok else 1,
        "response": {"output": said}, "error": None if ok else "assertion failed",
    }
    for i, (q, said, gold, ok) in enumerate(TRIPLES)
]  # fmt: skip
PROMPTFOO[2] |= {"success": False, "failureReason": 2, "error": "503 overloaded", "response": {}}
MLFLOW = {"columns": ["inputs", "outputs", "score"], "data": [[q, s, 5 if ok else 1] for q, s, _, ok in TRIPLES]}
DATA: dict[str, Any] = {
    "label-studio.json": [
        {"id": i, "data": {"question": q, "answer": said}, "annotations": notes}
        for i, (q, said, notes) in enumerate(
            (
                (ASKED[0], SAID[0], [annotation("correct"), annotation("correct")]),
                (ASKED[1], SAID[1], [annotation("correct"), annotation("wrong")]),  # two people disagree
                (ASKED[2], SAID[2], [annotation("correct", cancelled=True), annotation()]),
            )
        )
    ],
    "promptfoo.jsonl": PROMPTFOO,
    "promptfoo.json": {"evalId": "e", "results": {"results": PROMPTFOO, "prompts": []}},
    "promptfoo.csv": [
        {"question": q, "[m] Answer": said, "Status": "PASS" if ok else "FAIL"} for q, said, _, ok in TRIPLES
    ],
    "langsmith.csv": [
        {
            "id": f"e{i}", "inputs": json.dumps({"question": q}), "outputs": json.dumps({"answer": said}),
            "reference_outputs": json.dumps({"answer": gold}), "feedback.correctness": float(ok),
        }
        for i, (q, said, gold, ok) in enumerate(TRIPLES)
    ],
    "langsmith.jsonl": [
        {
            "id": f"r{i}", "inputs": {"question": q}, "outputs": {"answer": said}, "error": None,
            "feedback_stats": {"correctness": {"n": 1, "avg": float(ok)}},
        }
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ],
    "langsmith-sdk.csv": [
        {"": i, "input.question": q, "outputs.output": said, "feedback.correctness": float(ok), "error": ""}
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ],
    "langfuse.jsonl": [
        {
            "id": f"t{i}", "input": {"messages": [{"role": "user", "content": q}]},
            "output": {"role": "assistant", "content": said}, "scores": [{"name": "human", "value": int(ok)}],
        }
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ],
    "mlflow.json": MLFLOW,
    "deepeval.json": {
        "testFile": "t.py",
        "testCases": [
            {"name": f"case {i}", "input": q, "actualOutput": said, "expectedOutput": gold, "success": ok}
            for i, (q, said, gold, ok) in enumerate(TRIPLES)
        ],
    },
    "inspect.json": {
        "status": "success",
        "samples": [
            {
                "id": i, "epoch": 1, "input": q, "target": gold, "output": {"completion": said},
                "scores": {"match": {"value": "C" if ok else "I"}},
            }
            for i, (q, said, gold, ok) in enumerate(TRIPLES)
        ],
    },
    "argilla.jsonl": [
        {"id": f"a{i}", "question": q, "answer": said, "correct.responses": ["yes" if ok else "no"]}
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ],
    "ragas.csv": [
        {"user_input": q, "response": said, "reference": gold, "faithfulness": 0.75 if ok else 0.25}
        for q, said, gold, ok in TRIPLES
    ],
    "lm-eval.jsonl": [
        {
            "doc_id": i, "doc": {"question": q}, "target": gold, "resps": [[said]],
            "filtered_resps": [said], "exact_match": float(ok),
        }
        for i, (q, said, gold, ok) in enumerate(TRIPLES)
    ],
    "lm-eval-k.jsonl": [
        {
            "doc_id": i, "doc": {"question": q}, "target": gold, "resps": [[said], ["none"], [said]],
            "filtered_resps": [said], "exact_match": float(ok),
        }
        for i, (q, said, gold, ok) in enumerate(TRIPLES)
    ],
    "phoenix.csv": [
        {
            "context.span_id": f"s{i}", "attributes.input.value": q, "attributes.output.value": said,
            "eval.Correctness.label": "correct" if ok else "incorrect",
        }
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ],
    "openai-batch.jsonl": [
        {"custom_id": q, "response": {"body": {"choices": [choice(said), choice(said, 1)]}}, "error": None}
        for q, said, _, _ in TRIPLES
    ],
    "choices.jsonl": [{"question": q, "choices": [choice(said), choice(said, 1)]} for q, said, _, _ in TRIPLES],
    "messages.jsonl": [
        {
            "question": [*GREETING, {"role": "user", "content": q}],
            "answer": {"content": [{"type": "thinking", "text": "hm"}, {"type": "text", "text": said}]},
            "correct": ok,
        }
        for q, said, _, ok in TRIPLES
    ],
}  # fmt: skip
"""The example of each format, as its tool writes it."""

LABELS: dict[str, tuple[bool | None, ...]] = {
    "label-studio.json": (True, None, None),
    "promptfoo.jsonl": (True, False, None),
    "promptfoo.json": (True, False, None),
    "openai-batch.jsonl": (None, None, None),
    "choices.jsonl": (None, None, None),
}
"""Labels where they differ from `OK`."""


def write(path: Path, rows: Any) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_every_example_has_its_line() -> None:
    assert sorted(line.split()[2] for line in LINES) == sorted(DATA)


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_page_reads_its_format(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is a JSON text, a failed call that counts as wrong, or labels turned round would be certified."""
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)[2:]
    write(tmp_path / name, DATA[name])
    result = CliRunner().invoke(app, ["import", name, *arguments])
    assert result.exit_code == 0, result.output
    records = read_records("records.jsonl").records
    asked = [record.id if name.startswith("openai") else record.question for record in records]
    assert asked == list(ASKED)
    assert [record.answer for record in records] == [*SAID[:2], None if name.startswith("promptfoo.js") else SAID[2]]
    assert [record.correct for record in records] == list(LABELS.get(name, OK))
    unlabelled = sum(label is None for label in LABELS.get(name, OK))
    assert (f"{unlabelled} of 3 rows have no label" in result.output) is (unlabelled in (1, 2))


def test_repeats_choices_and_conversations_are_kept(tmp_path: Path) -> None:
    def read(name: str, *maps: str, **settings: Any) -> Record:
        path = write(tmp_path / name, DATA[name])
        return import_file(path, ImportSettings(columns=parse_map(maps), **settings)).file.records[0]

    def texts(record: Record) -> list[str]:
        return [] if record.drawn is None else [sample.text for sample in record.drawn.samples]

    repeats = read("lm-eval-k.jsonl", "samples=resps[]", format="lm-eval")
    assert texts(repeats) == ["Kilimanjaro", "none", "Kilimanjaro"]
    drawn = read("choices.jsonl", "samples=choices").drawn
    assert drawn is not None
    assert [(sample.text, sample.logprobs, sample.finish_reason) for sample in drawn.samples] == [
        ("Kilimanjaro", (-0.2,), "stop")
    ] * 2
    messages = read("messages.jsonl").messages
    assert messages is not None
    assert [message["content"] for message in messages] == ["Hello", "Hi", ASKED[0]]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("label-studio.json", "--format label-studio"),
        ("promptfoo.jsonl", "--format promptfoo"),
        ("promptfoo.json", "--rows results.results"),
        ("deepeval.json", "--rows testCases"),
        ("langfuse.jsonl", "--format langfuse"),
        ("openai-batch.jsonl", "--format openai-batch"),
    ],
)
def test_a_file_without_its_format_is_refused_with_a_hint_that_leads_on(tmp_path: Path, name: str, hint: str) -> None:
    path = write(tmp_path / name, DATA[name])
    with pytest.raises((RecordError, UsageError)) as caught:
        import_file(path)
    assert hint in str(caught.value)
    flag, value = hint.split()
    if flag == "--format":
        import_file(path, ImportSettings(format=value))
    else:  # the rows are found, and the next hint names their columns
        with pytest.raises(UsageError, match=r"Read it so: --format (promptfoo|deepeval)"):
            import_file(path, ImportSettings(rows=value))


def test_json_in_a_cell_is_not_a_question(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", DATA["langsmith.csv"])
    columns = parse_map(["question=inputs", "answer=outputs"])
    with pytest.raises(RecordError, match=r"field 'inputs': .*Name the path to it: inputs\.question"):
        import_file(path, ImportSettings(columns=columns))


# -- Labels ------------------------------------------------------------------------------------------------------------


def labels(tmp_path: Path, *values: object, **settings: Any) -> list[bool | None]:
    rows = [{"id": i, "answer": "x", "correct": value} for i, value in enumerate(values)]
    path = write(tmp_path / "labels.jsonl", rows)
    return [record.correct for record in import_file(path, ImportSettings(**settings)).file.records]


@pytest.mark.parametrize(
    ("values", "settings", "expected"),
    [
        (("PASS", "FAIL", None), {}, [True, False, None]),
        (("Y", "n", ""), {}, [True, False, None]),
        ((1, 0, 1.0), {}, [True, False, True]),
        ((True, False, "True"), {}, [True, False, True]),
        (("C", "I", "C"), {"right": ("C",)}, [True, False, True]),
        (("ja", "nein", "Ja"), {"right": ("ja",)}, [True, False, True]),
        (("C", "I", "N"), {"right": ("C",), "other_labels": "unlabelled"}, [True, None, None]),
        ((0.5, 0.49, "1"), {"cut": 0.5}, [True, False, True]),
        ((["yes", "yes"], ["yes", "no"], []), {}, [True, None, None]),
    ],
)
def test_labels_as_people_write_them(
    tmp_path: Path, values: tuple[object, ...], settings: dict[str, Any], expected: list[bool | None]
) -> None:
    assert labels(tmp_path, *values, **settings) == expected


def test_the_word_that_says_right_says_it_in_a_column_of_errors_too(tmp_path: Path) -> None:
    """All answers of a user who follows the hint would be wrong: no threshold is found for a model that is right."""
    rows = [{"id": i, "answer": "x", "error": value} for i, value in enumerate(("none", "bad", "none"))]
    path = write(tmp_path / "labels.jsonl", rows)
    with pytest.raises(UsageError, match="--right bad, or --right none"):
        import_file(path, ImportSettings())
    read = import_file(path, ImportSettings(right=("none",))).file.records
    assert [record.correct for record in read] == [True, False, True]


@pytest.mark.parametrize(
    ("values", "settings", "hint"),
    [
        (("C", "I", "C"), {}, "--right C, or --right I"),
        ((0.25, 0.75, 1), {}, "--cut 0.5"),
        (("a", "b", "c"), {}, "--right VALUE"),
        (("C", "I", "N"), {"right": ("C",)}, "--other-labels wrong or --other-labels unlabelled"),
        (("C", "I"), {"right": ("K",)}, "there are 'C', 'I'"),
    ],
)
def test_labels_that_are_not_understood_are_refused_with_the_option_that_reads_them(
    tmp_path: Path, values: tuple[object, ...], settings: dict[str, Any], hint: str
) -> None:
    """They must not become wrong answers: a file of right ones would be certified as hopeless."""
    with pytest.raises(UsageError) as caught:
        labels(tmp_path, *values, **settings)
    assert hint in str(caught.value)


def test_an_id_of_zero_is_an_id(tmp_path: Path) -> None:
    path = write(tmp_path / "labels.jsonl", [{"id": 0, "correct": False}, {"id": 1, "correct": True}])
    assert read_labels(path).given == {("0", None): False, ("1", None): True}
    path = write(tmp_path / "labels.csv", [{"id": 0, "correct": "FAIL"}, {"id": 1, "correct": "1.0"}])
    assert read_labels(path).given == {("0", None): False, ("1", None): True}
    with pytest.raises(RecordError, match="every label needs the id"):
        read_labels(write(tmp_path / "no.jsonl", [{"correct": True}]))


# -- Tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("separator", "encoding", "first"),
    [
        (",", "utf-8", ""),
        (",", "utf-8-sig", ""),
        (";", "utf-8", ""),
        ("\t", "utf-16", ""),
        ("|", "utf-8", ""),
        (";", "cp1252", ""),
        (";", "utf-8", "sep=;\n"),
    ],
)
def test_tables_as_programs_write_them(tmp_path: Path, separator: str, encoding: str, first: str) -> None:
    rows = [["question", "answer", "correct", "sure"], ["Où?", "là, ici", "1", "0,9" if separator == ";" else "0.9"]]
    text = first + "".join(separator.join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    imported = import_file(path, ImportSettings(columns=parse_map(["confidence=sure"])))
    (record,) = imported.file.records
    assert (record.question, record.answer, record.correct) == ("Où?", "là, ici", True)
    assert record.scores["imported:sure"].value == pytest.approx(0.1)
    assert any("Windows-1252" in note for note in imported.notes) is (encoding == "cp1252")


def test_a_cell_of_any_length_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"question": "q?", "answer": "x" * 200_000, "context": "y" * 200_000}])
    assert len(import_file(path).file.records[0].answer or "") == 200_000


def workbook(path: Path, *rows: str) -> None:
    """A workbook of one sheet, whose rows are cells in SpreadsheetML: the parts that a reader needs, and no more."""
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = "".join(f'<row r="{i}">{cells}</row>' for i, cells in enumerate(rows, start=1))
    with zipfile.ZipFile(path, "w") as parts:
        for name, target, kind in (
            ("_rels/.rels", "xl/workbook.xml", "officeDocument"),
            ("xl/_rels/workbook.xml.rels", "worksheets/sheet1.xml", "worksheet"),
        ):
            relation = f'<Relationship Id="r1" Type="{office}/{kind}" Target="{target}"/>'
            parts.writestr(name, f'<Relationships xmlns="{package}/relationships">{relation}</Relationships>')
        sheets = '<sheets><sheet name="s" sheetId="1" r:id="r1"/></sheets>'
        parts.writestr("xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{office}">{sheets}</workbook>')
        parts.writestr(
            "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{main}"><sheetData>{sheet}</sheetData></worksheet>'
        )
        parts.writestr("[Content_Types].xml", f'<Types xmlns="{package}/content-types"/>')


def test_excel_files_are_read_by_their_content(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")

    def cells(row: int, *texts: str) -> str:
        named = zip("ABCD", texts, strict=True)
        return "".join(
            f'<c r="{column}{row}"><v>{text}</v></c>'
            if text.isdigit()
            else f'<c r="{column}{row}" t="inlineStr"><is><t>{text}</t></is></c>'
            for column, text in named
        )

    path = tmp_path / "t.csv"  # the name may be wrong
    workbook(
        path,
        cells(1, "id", "question", "answer", "correct"),
        cells(2, "7", "q?", "x", "yes"),
        cells(3, "8", "r?", "4", "no"),
    )
    found = [(record.id, record.answer, record.correct) for record in import_file(path).file.records]
    assert found == [("7", "x", True), ("8", "4", False)]
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(RecordError, match="not a readable Excel file"):
        import_file(path)


# -- What was not measured ---------------------------------------------------------------------------------------------


def test_infinite_scores_and_empty_answers_are_not_measured(tmp_path: Path) -> None:
    """An empty answer that was labelled right would lower the certified rate; a guard never gives it out."""
    rows = [
        {"question": "a?", "answer": "x", "lp": -0.5, "correct": 1},
        {"question": "b?", "answer": "x", "lp": "-inf", "correct": 1},
        {"question": "c?", "answer": " ", "lp": -0.1, "correct": 1},
    ]
    columns = parse_map(["certainty=lp"])
    imported = import_file(write(tmp_path / "s.jsonl", rows), ImportSettings(columns=columns))
    scores = [record.scores["imported:lp"] for record in imported.file.records]
    assert [(score.value, score.reason) for score in scores] == [
        (0.5, None),
        (None, Unmeasured.NOT_RECORDED),
        (None, Unmeasured.EMPTY_ANSWER),
    ]
    assert any(note.startswith("1 scores have values that were not measured") for note in imported.notes)


# -- Remedies ----------------------------------------------------------------------------------------------------------

QA = {"question": "Highest peak of Africa?", "answer": "Kilimanjaro"}


@pytest.mark.parametrize(
    ("rows", "given", "remedy"),
    [
        ([{**QA, "correct": "C"}, {"question": "b?", "answer": "x", "correct": "I"}], "", "--right C"),
        ([{**QA, "correct": 0.25}], "", "--cut 0.5"),
        (
            [{"question": f"{i}?", "answer": "x", "correct": word} for i, word in enumerate("CIN")],
            "--right C",
            "--other-labels unlabelled",
        ),
        ([{**QA, "sure": 55}], "--map confidence=sure", "--map certainty=sure"),
        ([{**QA, "model": "a"}, {**QA, "model": "b"}], "", "--rows \"[?model == 'a']\""),
        ([{"question": "a?", "option_scores": {"A": 3, "B": 2}}], "", "--option-scale logit"),
        ([{"question": "a?", "option_scores": {"A": 3, "B": 2}}], "--option-scale logprob", "--option-scale logit"),
        ([{"question": "a?", "option_scores": {"A": 3, "B": 2}}], "--option-scale probability", "--option-scale logit"),
        ([{"question": "a?", "samples": ["x", "y"], "logprobs": [0.5]}], "", "--map logprobs=-"),
        ([{**QA, "question": {"text": "a?", "lang": "en"}}], "", "--map question=question.text"),
        ([{**QA, "answer": {"said": "a?", "lang": "en"}}], "", "--map answer=answer.said"),
        ([{**QA, "correct": {"value": True, "by": "me"}}], "", "--map correct=correct.value"),
        ([QA, {"question": " ", "answer": "x"}], "", "--skip-bad 0.1"),
        ([{**QA, "run": "a"}, {**QA, "run": "b"}], "", "--map id=COLUMN"),
        ([{"prompt": "a?", "output": "x"}], "", "--map question=prompt --map answer=output"),
        ([{"prompt": "a?", "gen1": "x", "gen2": "y"}], "", "--map question=prompt --map samples=gen1,gen2"),
        ([{**QA, "lp": -0.5}], "--map logprobs=lp", "--map certainty=NAME:COLUMN"),
    ],
)
def test_the_way_out_of_an_error_is_one(rows: list[dict[str, Any]], given: str, remedy: str, tmp_path: Path) -> None:
    """Somebody who follows a hint and meets the same wall gives up, or labels everything wrong."""
    path, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "records.jsonl"
    start = ["import", str(path), "--out", str(out), "--replace"]
    refused = CliRunner().invoke(app, [*start, *given.split()])
    shown = " ".join(refused.output.replace("│", " ").split())
    assert refused.exit_code in (1, 2)
    words = remedy.replace("--map question=question", "question").replace("--map answer=answer", "answer")
    assert words.replace("--map correct=correct", "correct") in shown
    followed = {"--skip-bad 0.1": "--skip-bad 0.5", "--map id=COLUMN": "--map id=run"}
    way = followed.get(remedy, remedy).replace("NAME:COLUMN", "lp")
    kept = [] if "certainty" in way or "logit" in way else given.split()
    done = CliRunner().invoke(app, [*start, *kept, *shlex.split(way)])
    assert done.exit_code == 0, done.output


def test_a_column_that_was_not_read_is_read_as_the_note_says(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [{**QA, "Confidence": 0.5, "gold answer": "Kilimanjaro"}])
    notes = import_file(path).notes
    (note,) = (note for note in notes if "not read" in note)
    maps = [word for word in shlex.split(note.partition(": ")[2]) if word != "--map"]
    assert sorted(maps) == ["confidence=Confidence", "references=gold answer"]
    (record,) = import_file(path, ImportSettings(columns=parse_map(maps))).file.records
    assert record.references == ("Kilimanjaro",)
    assert record.scores["imported:Confidence"].value == 0.5


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"A": -0.1, "B": float("-inf")}, "logprob"),
        ({"A": -0.1, "B": None}, "logprob"),
        ({"A": 1.0, "B": 0.0}, "probability"),
        ({"A": 5.0, "B": -9999.0}, "logit"),
        ({"A": -0.1, "B": -9999.0}, "logprob"),
    ],
)
def test_an_option_without_a_likelihood_leaves_the_question_unmeasured(
    options: dict[str, Any], scale: str, tmp_path: Path
) -> None:
    """An entropy over the options that have one would rank the question as certain."""
    usual = {"A": 0.5, "B": 0.25} if scale == "probability" else {"A": -0.5, "B": -1.5}
    rows = [
        {"question": "a?", "option_scores": usual, "option_scale": scale},
        {"question": "b?", "option_scores": options, "option_scale": scale},
    ]
    imported = import_file(write(tmp_path / "o.jsonl", rows))
    problems = [record.drawn and record.drawn.problem for record in imported.file.records]
    assert problems == [None, Unmeasured.NO_OPTIONS]
    assert any(note.startswith("1 rows have scores of options that were not measured") for note in imported.notes)


def test_percent_signs_and_whole_numbers_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", [{"id": 7.0, "sure": "85 %"}, {"id": 8.0, "sure": "40%"}])
    records = import_file(path, ImportSettings(columns=parse_map(["confidence=sure"]))).file.records
    assert [record.scores["imported:sure"].value for record in records] == pytest.approx([0.15, 0.6])
    path = write(tmp_path / "p.jsonl", [{"id": 7.0, "answer": "x"}])
    assert import_file(path).file.records[0].id == "7"


# -- What other people reported about these exports --------------------------------------------------------------------


def test_a_category_of_langfuse_is_read_by_its_name(tmp_path: Path) -> None:
    """Its value is the number of the category: 0 for "correct", which would read as wrong."""
    rows = [
        {
            "id": f"t{i}", "input": q, "output": said,
            "scores": [{"name": "verdict", "value": 1 - ok, "stringValue": "correct" if ok else "incorrect"}],
        }
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ]  # fmt: skip
    path = write(tmp_path / "t.jsonl", rows)
    assert [r.correct for r in import_file(path, ImportSettings(format="langfuse")).file.records] == list(OK)


@pytest.mark.parametrize("tool", ["langfuse", "inspect"])
def test_the_first_of_several_scores_is_not_taken_for_the_label(tool: str, tmp_path: Path) -> None:
    """A score such as toxicity may stand first. Where the scores of an answer disagree, a person has to name one."""
    if tool == "langfuse":
        scores: Any = [{"name": "polite", "value": 1}, {"name": "human", "value": 0}]
        path = write(tmp_path / "t.jsonl", [{"id": "a", "input": "q?", "output": "x", "scores": scores}])
        named, label = "scores[?name=='human'].value | [0]", False
    else:
        scores = {"polite": {"value": "I"}, "human": {"value": "C"}}
        sample = {"id": "a", "epoch": 1, "input": "q?", "target": "y", "output": {"completion": "x"}, "scores": scores}
        path = write(tmp_path / "t.json", {"samples": [sample]})
        named, label = "scores.human.value", True
    imported = import_file(path, ImportSettings(format=tool))
    assert [record.correct for record in imported.file.records] == [None]
    assert "1 rows have labels that disagree; they are unlabelled." in imported.notes
    settings = ImportSettings(format=tool, columns=parse_map([f"correct={named}"]))
    assert [record.correct for record in import_file(path, settings).file.records] == [label]


def test_rows_are_chosen_where_a_question_has_one_for_each_filter_or_epoch(tmp_path: Path) -> None:
    rows = [{**row, "filter": name} for name in ("strict-match", "flexible") for row in DATA["lm-eval.jsonl"]]
    path = write(tmp_path / "lm.jsonl", rows)
    with pytest.raises(RecordError, match=r"doc_id.*already at .*--rows \"\[\?NAME == 'VALUE'\]\""):
        import_file(path, ImportSettings(format="lm-eval"))
    chosen = ImportSettings(format="lm-eval", rows="[?filter == 'strict-match']")
    assert [record.correct for record in import_file(path, chosen).file.records] == list(OK)
    with pytest.raises(UsageError, match="keeps no row"):
        import_file(path, ImportSettings(format="lm-eval", rows="[?filter == 'none']"))
    samples = [{**sample, "epoch": epoch} for epoch in (1, 2) for sample in DATA["inspect.json"]["samples"]]
    path = write(tmp_path / "inspect.json", {"samples": samples})
    chosen = ImportSettings(format="inspect", rows="samples[?epoch == `2`]")
    assert [record.correct for record in import_file(path, chosen).file.records] == list(OK)


def test_a_failed_line_of_a_batch_is_a_question_without_an_answer(tmp_path: Path) -> None:
    """A refused request stands under status 400 with "error": null, an expired one without a response."""
    rows = [
        DATA["openai-batch.jsonl"][0],
        {"custom_id": "b", "response": {"status_code": 400, "body": {"error": {"message": "too long"}}}, "error": None},
        {"custom_id": "c", "response": None, "error": {"code": "batch_expired"}},
    ]
    imported = import_file(write(tmp_path / "b.jsonl", rows), ImportSettings(format="openai-batch"))
    problems = [record.drawn and record.drawn.problem for record in imported.file.records]
    assert problems == [None, Unmeasured.MODEL_FAILED, Unmeasured.MODEL_FAILED]


def test_records_of_argilla_with_their_fields_and_responses(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"a{i}",
            "fields": {"question": q, "answer": said},
            "responses": {"correct": [{"value": "yes" if ok else "no"}]},
        }
        for i, (q, said, _, ok) in enumerate(TRIPLES)
    ]
    records = import_file(write(tmp_path / "a.jsonl", rows), ImportSettings(format="argilla")).file.records
    assert [(record.question, record.answer, record.correct) for record in records] == list(
        zip(ASKED, SAID, OK, strict=True)
    )


def test_columns_of_mlflow_and_an_index_of_pandas(tmp_path: Path) -> None:
    name = "answer_correctness/v1/score"
    columns = ["inputs", "outputs", name]
    path = write(tmp_path / "m.json", {"columns": columns, "data": [["q?", "x", 5], ["r?", "y", None]]})
    maps = parse_map(["question=inputs", "answer=outputs", f"correct={name}"])
    imported = import_file(path, ImportSettings(columns=maps, cut=4))
    assert [record.correct for record in imported.file.records] == [True, None]
    path = write(tmp_path / "i.csv", [{"": i, "question": f"q{i}", "confidence": 0.5} for i in range(2)])
    records = import_file(path, ImportSettings(columns=parse_map(["confidence=confidence"]))).file.records
    assert [record.question for record in records] == ["q0", "q1"]
