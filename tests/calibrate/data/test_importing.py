"""Somebody else's generations become records; malformed rows are named or counted."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.formats.field_map import ColumnMap, ImportSettings, parse_map
from calibrate.data.formats.read import import_file, import_rows, write_bad
from calibrate.data.labels import refuse_contradictions
from calibrate.data.records import Record
from calibrate.data.row import RawRow
from calibrate.scoring.compute import score_records
from guardrail.errors import MissingDependencyError, RecordError, UsageError
from guardrail.types import SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator, measure

SPOKEN = [{"text": "Paris", "tokens": ["Pa", "ris"], "logprobs": [-0.25, -0.5]}, {"text": "Rome", "logprobs": [-1.0]}]


def jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def imported_row(path: Path, row: dict[str, Any], *maps: str, **settings: Any) -> Record:
    """The record of the only row of a JSONL file."""
    import_settings = ImportSettings(columns=parse_map(maps), **settings)
    return import_file(jsonl(path / "one.jsonl", [row]), import_settings).file.records[0]


def texts(record: Record) -> list[str]:
    assert record.drawn is not None
    return [sample.text for sample in record.drawn.samples]


def test_fields_of_their_own_names_need_no_mapping(tmp_path: Path) -> None:
    row = {"id": 7, "question": "q?", "references": ["a", 2], "samples": ["B", "b", "c"], "group": "g", "correct": True}
    imported = import_file(jsonl(tmp_path / "own.jsonl", [row]))
    record = imported.file.records[0]
    assert (record.id, record.question, record.references, record.group) == ("7", "q?", ("a", "2"), "g")
    assert (record.answer, texts(record), record.correct) == ("B", ["B", "b", "c"], True)
    header = imported.file.header
    assert (header.plan.n, header.questions_name, header.n_questions) == (3, "own.jsonl", 1)
    assert header.model.provider == "imported"
    assert header.correctness is not None
    assert header.correctness.name == "imported"


@pytest.mark.parametrize(
    ("maps", "settings", "answer", "samples", "planned"),
    [
        ((), {}, "Paris", ["lyon", "Paris", "paris!"], "majority"),  # normalised: two of three; the earlier spelling
        ((), {"primary": "first"}, "lyon", ["Paris", "paris!"], "greedy"),
        ((), {"primary": "sampled"}, "lyon", ["Paris", "paris!"], "sampled"),
        (("answer=greedy",), {}, "Nice", ["lyon", "Paris", "paris!"], "greedy"),
    ],
)
def test_the_answer_is_the_majority_the_first_or_a_column_and_a_guard_gives_out_the_same(
    tmp_path: Path, maps: tuple[str, ...], settings: dict[str, Any], answer: str, samples: list[str], planned: str
) -> None:
    row = {"question": "q?", "samples": ["lyon", "Paris", "paris!"], "greedy": "Nice"}
    path = jsonl(tmp_path / "one.jsonl", [row])
    file = import_file(path, ImportSettings(columns=parse_map(maps), **settings)).file
    assert (file.records[0].answer, texts(file.records[0])) == (answer, samples)
    assert (file.header.plan.primary, file.header.plan.n) == (planned, len(samples))
    assert imported_row(tmp_path, {"question": "q?", "samples": ["b", "a"]}).answer == "b"  # a tie


def test_the_grade_of_a_sample_is_the_grade_of_the_answer(tmp_path: Path) -> None:
    samples = [{"text": "x", "correct": False}, {"text": "y", "correct": True}, {"text": "y", "correct": True}]
    assert imported_row(tmp_path, {"question": "q?", "samples": samples}).correct is True
    assert imported_row(tmp_path, {"question": "q?", "samples": samples}, primary="first").correct is False
    assert imported_row(tmp_path, {"question": "q?", "samples": samples, "correct": False}).correct is False


def test_csv_lists_truths_and_options(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(
        'prompt,gold,s1,s2,A,B,wrong\n"2, 2?",B|b,B,five,0.25,0.75,no\n"3?","[""A"", ""a|b""]",3,,0.5,0.5,1\n'
    )
    columns = parse_map(
        ["question=prompt", "references=gold", "samples=s1,s2", "option_scores=A,B", "error=wrong", "answer=s1"]
    )
    with pytest.raises(RecordError, match=r"answers\.csv:3: field 's2': got nothing"):
        import_file(path, ImportSettings(columns=columns, option_scale="probability"))
    imported = import_file(path, ImportSettings(columns=columns, option_scale="probability", skip_bad=True))
    (record,) = imported.file.records
    assert record.references == ("B", "b")
    assert texts(record) == ["B", "five"]
    assert record.correct is True
    assert record.drawn is not None
    assert record.drawn.options is not None
    assert record.drawn.options.labels == ("A", "B")
    assert record.drawn.options.probabilities == pytest.approx((0.25, 0.75))
    assert imported.n_rows == 2
    assert len(imported.bad) == 1


@pytest.mark.parametrize("word", ["null", "NaN", "None", "nan", "<NA>"])
def test_csv_cells_that_say_they_have_no_value_are_missing_and_counted(tmp_path: Path, word: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "question,references,answer,label,p,note\n"
        f"a?,{word},Paris,1,.9,{word}\nb?,Rome,{word},1,.8,x\nc?,none,none,{word},{word},x\n"
    )
    imported = import_file(path, ImportSettings(columns=parse_map(["correct=label", "confidence=p"])))
    first, second, third = imported.file.records
    assert first.references == ()
    assert (second.answer, second.failed) == (None, True)  # abstains, and is never labelled right by a text "None"
    assert (third.answer, third.references, third.correct) == ("none", ("none",), None)  # "none" can be an answer
    assert third.scores["imported:p"].value is None
    counted = "Cells that say null, None or NaN have no value: answer (1), label (1), p (1), references (1)."
    assert counted in imported.notes
    path.write_text(f"question,s1,s2\na?,x,y\nb?,x,{word}\n")
    listed = ImportSettings(columns=parse_map(["samples=s1,s2"]), skip_bad=True)
    assert [bad.problem.split(": ")[1] for bad in import_file(path, listed).bad] == ["field 's2'"]


@pytest.mark.parametrize(
    ("scale", "given", "read"),
    [
        ("logit", (-1.5, 2.0), (-1.5, 2.0)),
        ("logprob", (-1.5, -0.25), (-1.5, -0.25)),
        ("probability", (0.2, 0.8), (math.log(0.2), math.log(0.8))),
    ],
)
def test_option_scores_make_the_likeliest_option_the_answer(
    tmp_path: Path, scale: str, given: tuple[float, float], read: tuple[float, float]
) -> None:
    row = {"id": "q", "option_scores": dict(zip("AB", given, strict=True)), "references": ["B"], "option_scale": scale}
    record = imported_row(tmp_path, row)
    assert (record.answer, record.options, record.question) == ("B", {"A": "A", "B": "B"}, "(question q)")
    assert record.drawn is not None
    assert record.drawn.options is not None
    assert record.drawn.options.loglikelihoods == pytest.approx(read)


def test_scores_of_every_direction(tmp_path: Path) -> None:
    """A threshold on the wrong side would answer what is least certain."""
    rows = [{"id": "a", "u": 2.5, "c": 0.75, "lp": -2.5}, {"id": "b", "u": 0, "c": None, "lp": math.nan}]
    columns = parse_map(["score=mine:u", "confidence=c", "certainty=lp"])
    imported = import_file(jsonl(tmp_path / "s.jsonl", rows), ImportSettings(columns=columns)).file
    first, second = (
        {key.removeprefix("imported:"): score.value for key, score in record.scores.items()}
        for record in imported.records
    )
    assert first == {"mine": 2.5, "c": 0.25, "lp": 2.5}
    assert second == {"mine": 0, "c": None, "lp": None}  # missing, which abstains
    assert "no value in column 'c'" in imported.records[1].scores["imported:c"].detail
    stored = {key: (spec.unit, spec.params["stored"]) for key, spec in imported.header.estimators.items()}
    assert stored["imported:c"] == ("probability", "1 - value")
    assert stored["imported:lp"] == ("nats", "-value")
    assert imported.records[0].drawn is None


@pytest.mark.parametrize(
    ("row", "maps", "settings", "fragment"),
    [
        ({"question": "", "answer": "x"}, (), {}, "field 'question': got ''; it must be a text"),
        ({"answer": "x"}, (), {}, "field 'question': got nothing; answers need a question or an id"),
        ({"question": "q", "samples": []}, (), {}, "field 'samples': got []; every row must have its samples"),
        ({"question": "q", "samples": ["a", {"x": 1}]}, (), {}, "field 'samples': got {'x': 1}; an answer must have"),
        ({"question": "q", "answer": "x", "correct": 1, "error": 1}, (), {}, "both that it is correct"),
        ({"question": "q", "answer": "x", "references": [""]}, (), {}, "field 'references': got ['']"),
        ({"question": "q", "answer": "x", "group": [1]}, (), {}, "field 'group': got [1]"),
        ({"question": "q", "option_scores": {"A": 1}}, (), {}, "at least two options"),
        ({"question": "q", "option_scores": {"A": 1, "B": 2}}, (), {}, "field 'option_scale': got nothing; say what"),
        (
            {"question": "q", "option_scores": {"A": -1, "B": 1}},
            (),
            {"option_scale": "probability"},
            "field 'option_scores': got -1; a probability must be in [0, 1]",
        ),
        (
            {"question": "q", "option_scores": {"A": -1, "B": 1}},
            (),
            {"option_scale": "logprob"},
            "field 'option_scores': got 1; a log-probability is at most 0",
        ),
        (
            {"question": "q", "option_scores": {"A": 1, "B": 2}, "references": ["C"]},
            (),
            {"option_scale": "logit"},
            "field 'references': got ['C']; one of them must be an option label (A, B)",
        ),
        ({"id": "a", "c": 1.5}, ("confidence=c",), {}, "field 'c': got 1.5; a confidence must be in [0, 1]"),
        ({"id": "a", "c": "high"}, ("score=c",), {}, "field 'c': got 'high'; it must be a finite number"),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, row: dict[str, Any], maps: tuple[str, ...], settings: dict[str, Any], fragment: str
) -> None:
    with pytest.raises(RecordError) as caught:
        imported_row(tmp_path, row, *maps, **settings)
    assert "one.jsonl:1: " in str(caught.value)
    assert fragment in str(caught.value)


def test_rows_that_name_no_model_are_among_the_rows() -> None:
    """Half of these rows are malformed: as four of four, or none of four, --skip-bad 0.5 would decide wrongly."""
    rows = [{"question": f"q{i}", "answer": "a", "model": "m" if i % 2 else None} for i in range(8)]
    imported = import_rows([RawRow(f"g:{i}", row) for i, row in enumerate(rows)], ImportSettings(skip_bad=True))
    assert (len(imported.file.records), len(imported.bad), imported.n_rows) == (4, 4, 8)


@pytest.mark.parametrize(
    ("label", "right", "problem"),
    [
        ("error=bad", (), "labels in 'bad' say neither right nor wrong: 'x' (1), 'z' (1)"),
        ("correct=ba", (), "no row of g has a column 'ba'; there are bad, question, sure. Did you mean 'bad'?"),
        ("correct=ba", "x", "no row of g has a column 'ba'; there are bad, question, sure. Did you mean 'bad'?"),
    ],
)
def test_a_label_that_cannot_be_read_is_named_by_its_column(label: str, right: str, problem: str) -> None:
    rows = [RawRow(f"g:{i}", {"question": f"q{i}", "sure": 0.5, "bad": word}) for i, word in enumerate("xz")]
    settings = ImportSettings(columns=parse_map(["confidence=sure", label]), right=right)
    with pytest.raises(UsageError, match=re.escape(problem)):
        import_rows(rows, settings, name="g")


@pytest.mark.parametrize("answer", [None, "", " "])
def test_a_file_without_any_answer_is_refused(answer: str | None) -> None:
    rows = [RawRow(f"g:{i}", {"question": f"q{i}", "answer": answer}) for i in range(3)]
    with pytest.raises(UsageError, match=r"3 of 3 rows have no answer.*--map answer=COLUMN"):
        import_rows(rows, name="g")
    assert len(import_rows([*rows, RawRow("g:3", {"question": "q", "answer": "a"})], name="g").file.records) == 4


def test_skip_bad_counts_and_lists_every_row_it_leaves_out(tmp_path: Path) -> None:
    good = [{"id": f"r{i}", "question": "q?", "answer": "x"} for i in range(3)]
    bad = ['{"id": "torn', "[1]", {"id": "r1", "question": "again?", "answer": "x"}, {"id": "n", "question": "q?"}]
    path = jsonl(tmp_path / "mixed.jsonl", [good[0], bad[0], good[1], *bad[1:], good[2]])
    with pytest.raises(RecordError, match=r"mixed\.jsonl:2: not JSON"):
        import_file(path)
    imported = import_file(path, ImportSettings(skip_bad=True))
    assert [record.id for record in imported.file.records] == ["r0", "r1", "r2"]
    assert imported.n_rows == 7
    problems = [bad_row.problem for bad_row in imported.bad]
    wheres = [problem.removeprefix(f"{path}:").partition(":")[0] for problem in problems]
    assert wheres == ["2", "4", "5", "6"]
    assert "field 'id': got 'r1'; this id is already at" in problems[2]
    assert "field 'answer': got nothing" not in problems[2]
    listed = tmp_path / "skipped.jsonl"
    write_bad(listed, imported.bad)
    assert [json.loads(line)["row"] for line in listed.read_text().splitlines()] == [None, None, *bad[2:]]
    write_bad(listed, ())
    assert not listed.exists()
    with pytest.raises(UsageError, match="none of 2 rows"):
        import_file(
            jsonl(tmp_path / "all.jsonl", [{"id": "a", "answer": []}, {"id": "b", "answer": []}]),
            ImportSettings(skip_bad=True),
        )


def test_malformed_csv_rows_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text('id,answer\na,x\nb,x,y\nc,"x"y\nd,x\n')
    imported = import_file(path, ImportSettings(skip_bad=True))
    assert [record.id for record in imported.file.records] == ["a", "d"]
    assert "b.csv:3: the row has 3 cells, the header 2 (id, answer)" in imported.bad[0].problem
    assert "b.csv:4: not readable as CSV" in imported.bad[1].problem
    path.write_text("id,answer,id\na,x,b\n")
    with pytest.raises(RecordError, match="column 'id' appears twice"):
        import_file(path)


@pytest.mark.parametrize(
    ("entries", "fragment"),
    [
        (["question"], "names no column"),
        (["qestion=q"], "Did you mean 'question'?"),
        (["question=a", "question=b"], "question is mapped already, to a"),
        (["score=x:a", "confidence=x:b"], "two scores are named 'x'"),
        (["score=a b"], "a score needs a plain name"),
    ],
)
def test_a_bad_mapping_is_refused(entries: list[str], fragment: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_map(entries)
    assert fragment in str(caught.value)


def test_what_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", [{"id": "a", "question": "q?", "references": ["x"]}])
    with pytest.raises(UsageError, match=r"neither an answer, samples.*--format argilla.*calibrate collect"):
        import_file(path)
    answered = jsonl(tmp_path / "a.jsonl", [{"id": "a", "answer": "x", "gold": "x"}])
    with pytest.raises(UsageError, match="has a column 'golds'; there are answer, gold, id"):
        import_file(answered, ImportSettings(columns=parse_map(["references=golds"])))
    with pytest.raises(UsageError, match="no format named 'tsv'"):
        import_file(answered, ImportSettings(format="tsv"))
    with pytest.raises(UsageError, match="no file at"):
        import_file(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="is not a"):
        import_file(jsonl(tmp_path / "a.txt", []))
    with pytest.raises(UsageError, match="holds no row"):
        import_file(jsonl(tmp_path / "empty.jsonl", []))
    with pytest.raises(UsageError, match="one cannot disagree with itself"):
        imported_row(tmp_path, {"question": "q", "samples": ["a"]})
    mixed = [{"id": "a", "option_scores": {"A": 1, "B": 2}}, {"id": "b", "option_scores": {"A": 1, "C": 2}}]
    with pytest.raises(RecordError, match="the rows before have options A, B"):
        import_file(jsonl(tmp_path / "m.jsonl", mixed), ImportSettings(option_scale="logit"))


def test_a_skipped_row_does_not_say_which_options_the_others_have(tmp_path: Path) -> None:
    """A bad first row would take every good row of the file with it."""
    scores = [{"A": "high", "C": 2}, {"A": 1, "B": 2}, {"A": 2, "B": 1}]
    path = jsonl(tmp_path / "m.jsonl", [{"id": f"{i}", "option_scores": each} for i, each in enumerate(scores)])
    imported = import_file(path, ImportSettings(option_scale="logit", skip_bad=True))
    assert [record.answer for record in imported.file.records] == ["B", "A"]


def test_parquet_gives_the_records_of_the_same_jsonl(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"id": "a", "question": "q?", "samples": SPOKEN, "option_scores": {"A": 1.0, "B": None, "C": 2.0}},
        {"id": "b", "question": "r?", "samples": SPOKEN, "option_scores": {"A": 1.5, "B": None, "C": 0.0}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "r.parquet")
    settings = ImportSettings(option_scale="logit")
    ours = import_file(tmp_path / "r.parquet", settings).file.records
    assert ours == import_file(jsonl(tmp_path / "r.jsonl", rows), settings).file.records
    assert ours[0].answer == "C"
    (tmp_path / "bad.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(RecordError, match="not a Parquet file"):
        import_file(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"acrc-guardrail\[data\]"):
        import_file(tmp_path / "a.parquet")


def test_csv_with_a_lone_quote_does_not_swallow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["id", "answer"], ["a", "line\nbreak"], ["b", "x"]])
    assert [record.answer for record in import_file(path).file.records] == ["line\nbreak", "x"]
    path.write_text('id,answer\na,"never closed\nb,x\n')
    with pytest.raises(RecordError, match=r"a\.csv:2: not readable as CSV"):
        import_file(path, ImportSettings(columns=ColumnMap()))


def test_a_json_array_is_read_like_json_lines(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "q?", "answer": "x"}, {"id": "b", "question": "r?", "answer": "y"}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    assert import_file(path).file.records == import_file(jsonl(tmp_path / "rows.jsonl", rows)).file.records
    path.write_text(json.dumps([rows[0], 7, rows[1]]))
    with pytest.raises(RecordError, match=r"rows\.json\[1\]: got 7; each row must be one JSON object"):
        import_file(path)
    assert len(import_file(path, ImportSettings(skip_bad=True)).file.records) == 2
    path.write_text(json.dumps({"id": {"0": "a"}, "answer": {"0": "x"}}))  # df.to_json(path)
    with pytest.raises(RecordError, match=r"must be a list of objects.* orient=.records."):
        import_file(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # as the published files of MedMCQA
    assert len(import_file(path).file.records) == 2
    path.write_text(json.dumps(rows)[:-9])
    with pytest.raises(RecordError, match=r"rows\.json:1: not JSON: .*The file is truncated"):
        import_file(path)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("['9']", ("9",)),
        ("['it\\'s', \"b\"]", ("it's", "b")),
        ('["x", "y"]', ("x", "y")),
        ("['a b' 'c'\n 'd']", ("a b", "c", "d")),  # str(numpy.array(["a b", "c", "d"])): no commas
        ("[1 2.5 -3]", ("1", "2.5", "-3")),
        ("['one', '', None]", ("one",)),  # an empty alias among good ones
        ("", ()),
    ],
)
def test_list_cells_as_pandas_and_numpy_write_them(tmp_path: Path, cell: str, found: tuple[str, ...]) -> None:
    path = tmp_path / "cells.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["question", "references", "answer"], ["q", cell, "x"]])
    imported = import_file(path)
    assert imported.file.records[0].references == found
    assert any("empty accepted answer" in note for note in imported.notes) == ("one" in cell)


@pytest.mark.parametrize("cell", ["['a' ... 'z']", "[a, b]", "['a'", "['a'] + ['b']", "[" * 9999, "['', '']"])
def test_cells_that_are_no_list_are_named(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "cells.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["question", "references", "answer"], ["q", cell, "x"]])
    with pytest.raises(RecordError, match=r"cells\.csv:2: field 'references'"):
        import_file(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.json",
            b'{"columns": ["question", ["samples"]], "data": [["q", ["a", "b"]]]}',
            "neither an answer, samples",
        ),
        ("b.json", b'{"columns": ["question"], "data": [1]}', "each row must be one JSON object"),
        ("c.csv", b"sep=ab\nquestion,samples\nq,a|b\n", "must name one sign"),
        ("d.csv", b"\xff\xfea", "not UTF-16"),
        ("e.jsonl", b'{"question": "q", "u": ' + b"9" * 5000 + b"}\n", "cannot be read as JSON"),
        ("f.json", b"[" * 200_000 + b"]" * 200_000, "cannot be read as JSON"),
        ("g.jsonl", b'{"question": "q", "answer": "x\\ud83d"}\n', r"g\.jsonl:1: a text has half of a character"),
    ],
)
def test_malformed_files_are_refused_and_end_in_no_traceback(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((RecordError, UsageError), match=said):
        import_file(path)


def test_samples_that_are_nan_are_empty_and_agree_on_nothing(tmp_path: Path) -> None:
    """pandas writes NaN where a call failed; as the text "nan" all of them would agree, and look certain."""
    path = tmp_path / "n.jsonl"
    path.write_text('{"question": "q", "samples": [NaN, null, NaN]}\n{"question": "r", "samples": ["a", "b", "c"]}\n')
    imported = import_file(path)
    drawn = imported.file.records[0].drawn
    assert drawn is not None
    assert [sample.text for sample in drawn.samples] == [""] * 3
    assert any(note.startswith("3 samples are null") for note in imported.notes)


def test_a_list_as_text_in_json_is_read_as_a_list_and_said(tmp_path: Path) -> None:
    rows = [{"id": "a", "answer": "9", "references": "['9', 'nine']"}, {"id": "b", "answer": "x", "references": "[1]"}]
    imported = import_file(jsonl(tmp_path / "text.jsonl", rows))
    assert [record.references for record in imported.file.records] == [("9", "nine"), ("[1]",)]  # texts only
    assert any(note.startswith("1 references are lists written as text") for note in imported.notes)


@pytest.mark.parametrize(("name", "said"), [("lps", True), ("token_logprobs", False)])
def test_fields_of_samples_that_are_not_read_are_named(tmp_path: Path, name: str, said: bool) -> None:
    samples = [{"text": "Paris", "tokens": ["Pa", "ris"], name: [-0.25, -0.5]}, {"text": "Rome", "seed": None}]
    imported = import_file(jsonl(tmp_path / "s.jsonl", [{"question": "q?", "samples": samples}]))
    assert any(note.startswith("These fields of the answers were not read: lps.") for note in imported.notes) is said


def test_log_probabilities_of_samples_are_kept(tmp_path: Path) -> None:
    imported = import_file(jsonl(tmp_path / "s.jsonl", [{"question": "q?", "samples": SPOKEN}])).file
    assert imported.header.plan.logprobs is True
    drawn = imported.records[0].drawn
    assert drawn is not None
    assert drawn.primary is not None
    assert (drawn.primary.tokens, drawn.primary.logprobs) == (("Pa", "ris"), (-0.25, -0.5))
    assert (drawn.samples[1].tokens, drawn.samples[1].logprobs) == (("",), (-1.0,))
    scored = score_records(imported, [make_estimator("length_normalised_entropy")]).records[0].scores
    # the mean of -(-0.75/2) and -(-1/1) nats
    assert next(iter(scored.values())).value == pytest.approx((0.375 + 1) / 2)


@pytest.mark.parametrize(
    ("row", "maps"),
    [
        ({"samples": ["Paris", "Rome"], "logprobs": [[-0.25, -0.5], [-1.0]]}, ()),
        ({"samples": ["Paris", "Rome"], "lp": "[[-0.25, -0.5], [-1.0]]"}, ("logprobs=lp",)),
        ({"a": "Paris", "b": "Rome", "c": [-0.25, -0.5], "d": [-1]}, ("samples=a,b", "logprobs=c,d")),
        (
            {
                "samples": [
                    {
                        "content": "Paris",
                        "logprobs": {"content": [{"token": "Pa", "logprob": -0.25}, {"logprob": -0.5}]},
                    },
                    {"text": "Rome", "logprobs": {"tokens": ["Rome"], "token_logprobs": [-1.0]}},
                ]
            },
            (),
        ),
    ],
)
def test_log_probabilities_in_columns_and_as_apis_give_them(
    tmp_path: Path, row: dict[str, Any], maps: tuple[str, ...]
) -> None:
    drawn = imported_row(tmp_path, {"question": "q?", **row}, *maps).drawn
    assert drawn is not None
    assert [sample.logprobs for sample in drawn.samples] == [(-0.25, -0.5), (-1.0,)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"samples": ["a", "b"], "logprobs": [[-1.0]]}, "for each of the 2 samples"),
        ({"samples": ["a", "b"], "logprobs": [-1.0, -2.0]}, "A number for the whole answer is a score"),
        ({"samples": ["a", "b"], "logprobs": [[0.9], [0.8]]}, "Is it a probability?"),
        ({"samples": [{"text": "a", "tokens": ["a", "b"], "logprobs": [-1.0]}, "b"]}, "2 tokens and 1 log-prob"),
    ],
)
def test_log_probabilities_that_do_not_fit_are_named(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match=re.escape(problem)):
        imported_row(tmp_path, {"question": "q?", **row})
    if "logprobs" in row:
        assert imported_row(tmp_path, {"question": "q?", **row}, "logprobs=-", "samples=samples").drawn is not None


def test_a_file_with_several_models_is_read_one_by_one(tmp_path: Path) -> None:
    rows = [
        {"id": q, "question": q, "answer": f"{m} on {q}", "system_name": m}
        for q in ("q1", "q2")
        for m in ("big", "small")
    ]
    path, columns = jsonl(tmp_path / "m.jsonl", rows), parse_map(["model=system_name"])
    chosen = r"--rows \"\[\?system_name == 'big'\]\"\."
    with pytest.raises(UsageError, match=rf"several models: big \(2 rows\), small \(2 rows\).*{chosen}"):
        import_file(path, ImportSettings(columns=columns))
    numbered = jsonl(tmp_path / "0.jsonl", [{**row, "system_name": int(row["system_name"] == "big")} for row in rows])
    with pytest.raises(UsageError, match=r"several models: 1 \(2 rows\), 0 \(2 rows\)"):
        import_file(numbered, ImportSettings(columns=columns))
    imported = import_file(path, ImportSettings(columns=columns, rows="[?system_name == 'small']"))
    assert [record.answer for record in imported.file.records] == ["small on q1", "small on q2"]
    assert imported.file.header.model.model == "small"
    alone = jsonl(tmp_path / "one.jsonl", [{"id": "a", "answer": "x", "model": "m1"}])
    assert import_file(alone).file.header.model.model == "m1"  # a column of the field's name
    assert import_file(alone, ImportSettings(columns=parse_map(["model=-"]))).file.header.model.model == "unnamed"
    nameless = jsonl(tmp_path / "n.jsonl", [*rows[:1], {"id": "a", "answer": "x"}])
    with pytest.raises(RecordError, match=r"n.jsonl:2: .*every row must name its model"):
        import_file(nameless, ImportSettings(columns=columns))


def test_the_user_says_what_a_third_label_is(tmp_path: Path) -> None:
    rows = [{"id": str(i), "answer": "x", "correct": label} for i, label in enumerate(["yes", "unparseable", "no"])]
    path = jsonl(tmp_path / "l.jsonl", rows)
    wrong = import_file(path, ImportSettings(other_labels="wrong"))
    assert [record.correct for record in wrong.file.records] == [True, False, False]
    assert "1 labels are 'unparseable': counted as wrong." in wrong.notes
    left = import_file(path, ImportSettings(other_labels="unlabelled"))
    assert wrong.file.header.correctness != left.file.header.correctness
    errors = imported_row(tmp_path, {"id": "a", "answer": "x", "error": "n/a"}, other_labels="wrong")
    assert errors.correct is False


def test_offered_tools_are_part_of_the_question(tmp_path: Path) -> None:
    send, book = ({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("send", "book"))
    call = {"type": "function", "function": {"name": "send", "arguments": '{"to": "Bob"}'}}
    rows = [
        {"question": "Do it", "answer": {"content": None, "tool_calls": [call]}, "tools": tools, "correct": correct}
        for tools, correct in (([send, book], True), ([send], False))
    ]
    imported = import_file(jsonl(tmp_path / "t.jsonl", rows)).file
    first, second = imported.records
    assert first.id != second.id
    assert first.shown_answer == '[{"arguments":{"to":"Bob"},"name":"send"}]'
    assert imported.header.plan.bindings is None  # they differ
    refuse_contradictions(imported.records)  # does not stop: other tools, another question
    rows[1]["tools"] = [book, send]  # the order does not count
    rows = [{"id": str(i), **row} for i, row in enumerate(rows)]
    same = import_file(jsonl(tmp_path / "t.jsonl", rows)).file.records
    with pytest.raises(UsageError, match=r"the same answer '.*Bob.*send"):
        refuse_contradictions(same)
    alike = import_file(jsonl(tmp_path / "t.jsonl", [rows[0], {**rows[0], "id": "other"}])).file
    assert alike.header.plan.bindings is not None
    assert alike.header.plan.bindings.tool_names == ("send", "book")
    with pytest.raises(RecordError, match="a list of the offered tools"):
        imported_row(tmp_path, {**rows[0], "tools": "send"})


@pytest.mark.parametrize("placeholder", [-9999.0, -1e30, -math.inf, math.nan, None])
def test_placeholders_for_log_probabilities_are_not_measured_and_counted(tmp_path: Path, placeholder: Any) -> None:
    """Otherwise a mean of -3,000 nats turns an entropy of 1.3 into 0, and a wrong answer is accepted."""
    rows: list[dict[str, Any]] = [
        {"question": "q?", "samples": [{"text": "x", "logprobs": [-0.5, value]}, {"text": "y", "logprobs": [-1.0]}]}
        for value in (-0.25, placeholder)
    ]
    rows[1]["question"] = "r?"
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_file(path)
    first, second = (record.drawn.samples for record in imported.file.records if record.drawn is not None)
    assert [sample.logprobs for sample in (*first, *second)] == [(-0.5, -0.25), (-1.0,), None, (-1.0,)]
    assert any(note.startswith("1 answers have log-probabilities that were not measured") for note in imported.notes)


def test_a_score_lower_than_any_can_be_is_a_placeholder(tmp_path: Path) -> None:
    """Otherwise the answer whose score is missing counts as the most certain of all."""
    rows = [{"question": f"{i}?", "answer": "x", "u": value} for i, value in enumerate((-700.0, -9999.0, 9999.0))]
    path = jsonl(tmp_path / "t.jsonl", rows)
    for kind, stored in (("score", [-700.0, None, 9999.0]), ("certainty", [700.0, None, -9999.0])):
        imported = import_file(path, ImportSettings(columns=parse_map([f"{kind}=u:u"])))
        assert [record.scores["imported:u"].value for record in imported.file.records] == stored
        assert any(note.startswith("1 scores have values that were not measured") for note in imported.notes)


def test_a_field_that_only_later_rows_have_is_read_or_named(tmp_path: Path) -> None:
    """Read by the first row alone, answers and ends of all later rows would be dropped without a word."""
    rows = [{"question": "a?", "samples": ["x", "y"]}, {"question": "b?", "samples": ["x", "y"], "answer": "z"}]
    path = jsonl(tmp_path / "late.jsonl", rows)
    with pytest.raises(RecordError, match=r"late\.jsonl:1: field 'answer': got nothing.*leave it out: --map answer=-"):
        import_file(path)
    left_out = import_file(path, ImportSettings(columns=parse_map(["answer=-"]))).file.records
    assert [record.answer for record in left_out] == ["x", "x"]
    path = tmp_path / "late.csv"
    path.write_text("question,answer,finish_reason\na?,x,\nb?,y,stop\n")
    problems = [record.drawn and record.drawn.problem for record in import_file(path).file.records]
    assert problems == [Unmeasured.UNREADABLE, None]  # an empty cell is an unknown end


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("stop", None),
        ("eos", None),
        ("MAX_TOKENS", Unmeasured.CUT_OFF),
        ("error", Unmeasured.MODEL_FAILED),  # more than 1 % of such rows stop a fit
        (None, Unmeasured.UNREADABLE),
        ("", Unmeasured.UNREADABLE),
    ],
)
def test_an_answer_whose_end_is_not_known_good_is_unmeasured_as_at_run_time(
    tmp_path: Path, end: Any, reason: Unmeasured | None
) -> None:
    """A threshold that was fitted on such answers would not be that of the answers a guard gives out."""
    column = imported_row(tmp_path, {"question": "q?", "answer": "Lima", "finish_reason": end, "u": 0.5}, "score=u:u")
    assert column.scores["imported:u"].reason is reason
    sample = {"text": "Lima", "finish_reason": end}
    samples = imported_row(tmp_path, {"question": "q?", "samples": [sample] * 3})
    estimator = make_estimator("discrete_semantic_entropy")
    assert samples.drawn is not None
    assert measure(samples.drawn, estimator, SamplingPlan(n=3)).reason is reason


def test_files_that_say_nothing_of_ends_and_parts_that_count_as_answers_are_measured(tmp_path: Path) -> None:
    """Most files hold texts only; and somebody may have drawn short answers on purpose."""
    assert (
        imported_row(tmp_path, {"question": "q?", "answer": "Lima", "u": 0.5}, "score=u:u")
        .scores["imported:u"]
        .measured
    )
    for end in ("length", None):
        row = {"question": "q?", "answer": "Lima", "finish_reason": end, "u": 0.5}
        assert imported_row(tmp_path, row, "score=u:u", cut_off="measure").scores["imported:u"].measured
