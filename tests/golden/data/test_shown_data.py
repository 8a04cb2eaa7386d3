"""Files that are read: the records of every layout, whole, and every refusal with its words."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.formats import (
    LAYOUTS,
    QUESTION_FORMATS,
    ImportSettings,
    import_file,
    import_rows,
    load_questions,
    parse_map,
    write_bad,
)
from calibrate.data.formats.layouts import detect
from calibrate.data.questions import RawRow, option_labels, read_questions, slot_names
from guardrail.errors import RecordError

from .story import Story, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


def table(path: str, rows: list[list[object]]) -> Path:
    """Write a CSV file as spreadsheets do."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return Path(path)


def imported(
    story: Story, title: str, path: Path, *maps: str, unit: Any = "nats", certain: bool = False, **settings: Any
) -> None:
    """Tell what an import reads."""
    columns = parse_map(maps, unit=unit, certain=certain)
    result = import_file(path, ImportSettings(columns=columns, **settings))
    header = result.file.header
    story.head(title)
    story.show("layout", f"{result.layout}, {result.n_rows} rows, {len(result.bad)} bad")
    story.show("header", header.model_copy(update={"created": "", "packages": {}}))
    story.say(*(f"record: {spelled(record)}" for record in result.file.records))
    story.say(*(f"note: {note}" for note in result.notes))
    story.say(*(f"bad: {spelled(bad)}" for bad in result.bad))


def test_fields_that_are_read() -> None:
    story = Story("import_fields.txt")
    own = [
        {
            "id": 7,
            "question": " q? ",
            "references": ["a", 2],
            "samples": ["B", "b", "c"],
            "group": "g",
            "correct": True,
        },
        {"id": "8", "question": "r?", "references": "x", "samples": ["c"], "error": "yes", "group": 5},
        {
            "id": "9",
            "question": "s?",
            "references": ["x", "", None],
            "samples": [1, 2.5, ""],
            "correct": float("nan"),
            "group": "h",
        },
    ]
    imported(story, "fields of their own names", write("own.jsonl", own))
    imported(story, "the first sample is the answer", write("own.jsonl", own), primary="first")
    imported(story, "the first sample was drawn as the others were", write("own.jsonl", own), primary="sampled")
    imported(
        story,
        "another answer, temperature, model and prompt",
        write("own.jsonl", own),
        answer="group",
        exclude=("8", "9"),
        temperature=1.2,
        top_p=0.5,
        max_tokens=77,
        provider="openai",
        model="gpt",
    )
    cells: list[list[object]] = [
        ["prompt", "gold", "s1", "s2", "A", "B", "wrong", "p", "Answer", "conf"],
        ["2, 2?", "B|b", "B", "five", "0.25", "0.75", "no", "0.5", "x", "1"],
        ["3?", '["A", "a|b"]', "3", "", "0.5", "0.5", "1", "", "", ""],
        ["4?", "['B' 'b']", "3", "4", "1.004", "1e-3", "unparseable", "NaN", "x", "0"],
        ["5?", "A", "null", "4", "1", "1", "0", "1.0", "null", "<NA>"],
        ["6?", "A", "3", "4", "0", "1", "0", "1.0", "x", "1"],
    ]
    maps = ("question=prompt", "references=gold", "samples=s1,s2", "option_scores=A,B", "error=wrong", "answer=s1")
    for other in ("wrong", "unlabelled"):
        imported(
            story,
            f"CSV, {other} labels",
            table("cells.csv", cells),
            *maps,
            "confidence=p",
            "score=own:conf",
            option_scale="probability",
            skip_bad=True,
            other_labels=other,
        )
    imported(
        story,
        "a CSV table whose columns have other names",
        table(
            "near.csv",
            [
                ["id", "prompt", "response", "gold answer", "score", "is_correct", "Certainty", "grp", "sample"],
                ["a", "q?", "r", "g", "1", "1", "0.5", "x", "y"],
            ],
        ),
        "answer=response",
    )
    scored = [
        {"id": "a", "u": 2.5, "c": 0.9, "lp": -3, "correct": 1},
        {"id": "b", "u": 0, "c": None, "lp": "-0.5", "correct": "incorrect"},
        {"id": "c", "u": " ", "c": 1, "lp": 2},
    ]
    imported(story, "scores of another tool", write("scores.jsonl", scored), "score=u", "confidence=stated:c")
    imported(
        story,
        "distances that are high for certain answers",
        write("scores.jsonl", scored),
        "score=lp",
        unit="distance",
        certain=True,
    )
    options = [
        {"id": "q", "option_scores": {"A": -1.5, "B": 2.0, "C": None}, "references": ["B"], "option_scale": "logit"},
        {
            "id": "r",
            "option_scores": {"B": -1.5, "A": 2.0},
            "references": ["a"],
            "option_scale": "logprob",
            "options": {"A": "a", "B": "b"},
        },
    ]
    imported(story, "scores of options", write("options.jsonl", options), skip_bad=True)
    options[0]["options"] = {"A": "one", "B": "two", "C": None}
    options[1]["option_scores"] = {"B": -1.5, "A": 0.0}
    imported(story, "scores and texts of options", write("options.jsonl", options), skip_bad=True)
    call = {"name": "search", "arguments": {"q": "x"}}
    spoken: list[dict[str, Any]] = [
        {"text": "Paris", "tokens": ["Pa", "ris"], "logprobs": [-0.25, -0.5], "seed": 3, "correct": True},
        {
            "content": "Rome",
            "logprobs": {"content": [{"token": "Ro", "logprob": -1}, {"token": None, "logprob": 0}]},
            "finish_reason": "length",
            "correct": False,
            "index": 1,
        },
        {"tool_calls": [{"function": {"name": "search", "arguments": '{"q": "x"}'}}], "observation": 12},
        {
            "tool_calls": [{"name": "search", "args": {}}],
            "text": None,
            "log_probs": {"tokens": ["a"], "token_logprobs": [-2]},
        },
    ]
    rows: list[dict[str, Any]] = [
        {"question": "q?", "samples": spoken, "tools": [{"type": "function", "function": {"name": "search"}}]},
        {
            "question": "q?",
            "samples": [{"text": "Paris", "token_logprobs": "[-0.5]"}, call | {"text": "Paris"}],
            "tools": '["search", "other"]',
        },
        {"question": "r?", "samples": ["x", "y"], "answer": None},
    ]
    imported(story, "samples as objects, with tokens, tool calls and labels", write("samples.jsonl", rows))
    function = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
    for row in rows:
        row["tools"] = [function]
    rows[1] |= {"question": "s?", "samples": ["x"]}
    imported(story, "the same tools for all", write("samples.jsonl", rows[:2]))
    beside = [
        {
            "question": "q?",
            "samples": ["Paris", "Rome"],
            "logprobs": [[-0.25, -0.5], [-1.0]],
            "tokens": "[['P', 'aris'], ['Rome']]",
        },
        {"question": "r?", "samples": ["Paris", "Rome"]},
    ]
    imported(story, "log-probabilities beside the samples", write("beside.jsonl", beside))
    flat = [{"question": "q?", "response": "x", "logprobs": "[-0.5, -1]", "tokens": ["a", "b"], "ok": "Right "}]
    imported(story, "log-probabilities of one answer", write("flat.jsonl", flat), "answer=response", "correct=ok")
    imported(story, "a column that is another thing", write("flat.jsonl", flat), "answer=response", "logprobs=-")
    several = [{"id": f"{i}", "model": ("gpt", "llama")[i % 2], "answer": f"a{i}"} for i in range(5)]
    imported(story, "one model of several", write("models.jsonl", several), system="llama")
    imported(story, "a column with the name of the model", write("models.jsonl", several[::2]), "model=model")
    listed = [
        {"id": "a", "answer": "9", "references": "['9', 'nine']"},
        {"id": "b", "answer": "x", "references": "[1]"},
    ]
    imported(story, "lists as text", write("lists.json", listed))
    story.head("rows in memory")
    result = import_rows(
        [RawRow("row 1", {"question": "q?", "answer": "x", "gold": "y"}), RecordError("row 2: torn")],
        ImportSettings(skip_bad=True),
        name="frame",
    )
    story.show("layout", f"{result.layout}, {result.n_rows} rows, {len(result.bad)} bad")
    story.show("model", result.file.header.model)
    story.show("name", result.file.header.questions_name)
    story.show("notes", result.notes)
    write_bad(Path("bad.jsonl"), result.bad)
    story.show("bad.jsonl", Path("bad.jsonl").read_text())
    write_bad(Path("bad.jsonl"), ())
    story.show("bad.jsonl of an import without bad rows", str(Path("bad.jsonl").exists()))
    story.compare()


NQ = [
    {
        "question": "who?",
        "golden_answer": "Ann/Anna",
        "answer_fid": "Ann",
        "judge_fid": True,
        "answer_gpt": "Bob",
        "judge_gpt": False,
        "answer_llama": "Ann",
        "judge_llama": True,
        "improper": False,
    },
    {
        "question": "what?",
        "golden_answer": "x",
        "answer_fid": "y",
        "judge_fid": False,
        "answer_gpt": None,
        "judge_gpt": True,
        "answer_llama": "",
        "judge_llama": False,
        "improper": True,
    },
    {
        "question": "when?",
        "golden_answer": 1999,
        "answer_fid": "1999",
        "judge_fid": True,
        "answer_gpt": None,
        "judge_gpt": True,
        "answer_llama": 5,
        "judge_llama": False,
        "improper": False,
    },
]
GATHERED = [
    {
        "id": 4,
        "question": "who?",
        "references": ["Ann"],
        "answers": {
            "fid": {"text": "Ann", "correct": True},
            "gpt": {"text": "Bob", "correct": False},
            "llama": {"text": "Eve", "correct": False},
        },
    },
]
LAYOUT_FILES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "triviaqa20": (
        "triviaqa-20samples-x.jsonl",
        [
            {
                "id": "t1",
                "question": "q?",
                "references": ["a"],
                "samples": [{"text": "a"}, {"text": "b"}, {"text": "a"}],
            },
        ],
        {},
    ),
    "gsm8k13": (
        "g.jsonl",
        [
            {
                "id": "g1",
                "question": "1+1?",
                "references": ["2"],
                "samples": [{"text": "2", "variant": 1}, {"text": "3", "variant": 2}],
            },
        ],
        {},
    ),
    "cruxeval": (
        "c.jsonl",
        [
            {
                "id": "c1",
                "question": "f(1)?",
                "references": ["2"],
                "samples": [
                    {"text": "2", "correct": True},
                    {"text": "3", "correct": False},
                    {"text": "2", "correct": True},
                ],
            },
        ],
        {},
    ),
    "nq": ("nq.json", NQ, {"system": "gpt"}),
    "medqa": (
        "m.jsonl",
        [
            {"id": "m1", "question": "q?", "options": {"A": 1.5, "B": -2}, "option_scale": "logit", "correct": True},
        ],
        {},
    ),
    "mmbench": (
        "mmb.jsonl",
        [
            {
                "id": "m1",
                "question": "q?",
                "options": {"A": 0.5, "B": 0.25},
                "option_scale": "probability",
                "reference": "A",
            },
        ],
        {},
    ),
    "mmlu-pro": (
        "mmlu.csv",
        [
            ["id", "group", "a/error", "a/stated_confidence", "a/logit_confidence", "b/error", "b/stated_confidence"],
            [0, "law", 0, 0.9, 0.8, 1, 0.7],
            [1, "law", 1, 0.25, "", 1, 0.7],
        ],
        {"system": "a"},
    ),
    "intercode": (
        "i.jsonl",
        [
            {
                "id": "i1",
                "question": "q?",
                "primary": {"text": "", "tool_calls": [{"name": "sql", "args": {"q": "x"}}], "observation": "1"},
                "samples": [
                    {"tool_calls": [{"name": "sql", "args": {"q": "y"}}], "observation": "1"},
                    {"tool_calls": [{"name": "sql", "args": {"q": "z"}}], "observation": "2"},
                ],
                "correct": True,
            },
        ],
        {},
    ),
}


def test_layouts_of_published_files() -> None:
    story = Story("import_layouts.txt")
    for name, (file, rows, settings) in LAYOUT_FILES.items():
        path = table(file, rows) if file.endswith(".csv") else write(file, rows)
        imported(story, f"{name}, recognised", path, **settings)
        layout = LAYOUTS[name]
        story.show("kind", layout.kind)
        renamed = path.rename(f"{path.stem}.dat")
        result = import_file(renamed, ImportSettings(format=name, **settings)) if file != "nq.json" else None
        story.show(
            "named",
            ""
            if result is None
            else f"{result.layout}, {len(result.file.records)} records, {result.file.header.model.model}",
        )
    imported(story, "nq with the answers gathered", write("gathered.jsonl", GATHERED), system="fid")
    story.head("recognised by the first row")
    firsts: dict[str, dict[str, Any]] = {
        "samples of texts in a file of another name": {"samples": [{"text": "a"}]},
        "samples with more fields": {"samples": [{"text": "a", "correct": True, "seed": 1}]},
        "answers that are no objects": {"answers": {"fid": "x"}},
        "a golden answer without judges": {"golden_answer": "x"},
        "no option scale": {"options": {"A": 1}, "correct": True},
        "options and neither reference nor label": {"options": {"A": 1}, "option_scale": "logit"},
        "tool calls without a primary answer": {"samples": [{"text": "", "tool_calls": []}]},
        "an empty row": {},
    }
    for name, values in firsts.items():
        found = detect(Path("file.jsonl"), values)
        story.show(name, "none" if found is None else found.name)
    story.head("refused")
    for title, path, settings in [
        ("no system", write("nq.json", NQ), {}),
        ("an unknown system", write("nq.json", NQ), {"system": "claude"}),
        ("a system of a file that has one", write("c.jsonl", LAYOUT_FILES["cruxeval"][1]), {"system": "gpt"}),
        (
            "answers that are no object",
            write("text.jsonl", [*GATHERED, {"id": 5, "question": "q?", "answers": "x"}]),
            {"system": "fid"},
        ),
        (
            "an answer of another system",
            write("n.jsonl", [*GATHERED, {"id": 5, "question": "q?", "answers": {"fid": {"text": "a"}, "gpt": None}}]),
            {"system": "gpt"},
        ),
    ]:
        story.refused(title, lambda path=path, settings=settings: import_file(path, ImportSettings(**settings)))  # type: ignore[misc]
    story.compare()


Q = {"question": "q?"}
GOOD = {"id": "good", "question": "g?"}
SAMPLED = Q | {"samples": ["a", "b"]}
BAD_ROWS: list[tuple[str, list[Any], tuple[str, ...], dict[str, Any]]] = [
    ("an empty question", [{"question": " ", "answer": "x"}], (), {}),
    ("a question that is true", [{"question": True, "answer": "x"}], (), {}),
    ("neither question nor id", [{"answer": "x"}], (), {}),
    ("an id that is a list", [Q | {"id": [1], "answer": "x"}], (), {}),
    ("no samples", [Q | {"samples": []}], (), {}),
    ("samples that are an object", [Q | {"samples": {"a": 1}}], (), {}),
    ("samples that are a truth", [Q | {"samples": True}], (), {}),
    ("a sample without text", [Q | {"samples": ["a", {"x": 1}]}], (), {}),
    ("a sample that is true", [Q | {"samples": ["a", True]}], (), {}),
    ("a text that is true", [Q | {"samples": ["a", {"text": True}]}], (), {}),
    ("a sample that is right by a word", [Q | {"samples": ["a", {"text": "b", "correct": "yes"}]}], (), {}),
    ("a text in a place of columns", [Q | {"a": "x", "b": None}], ("samples=a,b",), {}),
    ("a tool call without a name", [Q | {"samples": ["a", {"tool_calls": [{"arguments": {}}]}]}], (), {}),
    ("a tool call that is a text", [Q | {"samples": ["a", {"tool_calls": ["search"]}]}], (), {}),
    ("arguments that are no JSON", [Q | {"samples": [{"tool_calls": [{"name": "f", "arguments": "{x"}]}]}], (), {}),
    ("a positive log-probability", [Q | {"samples": [{"text": "a", "logprobs": [-1, 0.5]}, "b"]}], (), {}),
    ("a sum of log-probabilities", [Q | {"samples": [{"text": "a", "logprobs": -3.5}, "b"]}], (), {}),
    ("a log-probability that is a word", [Q | {"samples": [{"text": "a", "logprobs": ["x"]}, "b"]}], (), {}),
    ("an infinite log-probability", [Q | {"samples": [{"text": "a", "logprobs": [float("-inf")]}, "b"]}], (), {}),
    (
        "fewer tokens than log-probabilities",
        [Q | {"samples": [{"text": "a", "logprobs": [-1, -2], "tokens": ["a"]}]}],
        (),
        {},
    ),
    ("too few lists of log-probabilities", [SAMPLED | {"logprobs": [[-1]]}], (), {}),
    ("tokens that are a word", [SAMPLED | {"tokens": "x"}], (), {}),
    (
        "log-probabilities of two columns for three samples",
        [Q | {"samples": ["a", "b", "c"], "c": [-1], "d": [-1]}],
        ("logprobs=c,d",),
        {},
    ),
    ("an ending that is a number", [Q | {"samples": [{"text": "a", "finish_reason": 3}]}], (), {}),
    ("an unknown label", [Q | {"answer": "x", "correct": "maybe"}], (), {}),
    ("an unknown error", [Q | {"answer": "x", "error": 2}], (), {}),
    ("right and an error", [Q | {"answer": "x", "correct": 1, "error": 1}], (), {}),
    ("an answer that is a list", [Q | {"answer": ["x"]}], (), {}),
    ("no answer where others have one", [GOOD | {"answer": "x"}, Q], (), {}),
    ("references that are empty", [Q | {"answer": "x", "references": [""]}], (), {}),
    ("references that are an object", [Q | {"answer": "x", "references": {"a": 1}}], (), {}),
    ("a reference that is true", [Q | {"answer": "x", "references": ["a", True]}], (), {}),
    ("a group that is a list", [Q | {"answer": "x", "group": [1]}], (), {}),
    ("tools that are a number", [Q | {"answer": "x", "tools": 3}], (), {}),
    ("tools that hold a number", [Q | {"answer": "x", "tools": ["search", 3]}], (), {}),
    ("tools that are a word", [Q | {"answer": "x", "tools": "search"}], (), {}),
    ("one option", [Q | {"option_scores": {"A": 1, "B": None}}], (), {"option_scale": "logit"}),
    ("options that are a list", [Q | {"option_scores": [1, 2]}], (), {"option_scale": "logit"}),
    ("no scale", [Q | {"option_scores": {"A": 1, "B": 2}}], (), {}),
    ("an unknown scale", [Q | {"option_scores": {"A": 1, "B": 2}, "option_scale": "odds"}], (), {}),
    ("a probability of 0", [Q | {"option_scores": {"A": 0, "B": 1}}], (), {"option_scale": "probability"}),
    ("a probability above 1", [Q | {"option_scores": {"A": 0.5, "B": 1.02}}], (), {"option_scale": "probability"}),
    ("a log-probability above 0", [Q | {"option_scores": {"A": 0.01, "B": -1}}], (), {"option_scale": "logprob"}),
    (
        "no scores of options where others have some",
        [GOOD | {"option_scores": {"A": 1, "B": 2}}, Q],
        (),
        {"option_scale": "logit"},
    ),
    (
        "other options than before",
        [GOOD | {"option_scores": {"A": 1, "B": 2}}, Q | {"option_scores": {"A": 1, "C": 2}}],
        (),
        {"option_scale": "logit"},
    ),
    (
        "no options where others have some",
        [GOOD | {"answer": "A", "options": {"A": "x", "B": "y"}}, Q | {"answer": "A"}],
        (),
        {},
    ),
    ("options that are a text", [Q | {"answer": "A", "options": "A"}], (), {}),
    (
        "a reference that names no option",
        [Q | {"option_scores": {"A": 1, "B": 2}, "references": ["C"]}],
        (),
        {"option_scale": "logit"},
    ),
    ("a confidence of 1.5", [{"id": "a", "c": 1.5}], ("confidence=c",), {}),
    ("a confidence below 0", [{"id": "a", "c": -0.1}], ("confidence=c",), {}),
    ("a score that is a word", [{"id": "a", "c": "high"}], ("score=c",), {}),
    ("a score that is true", [{"id": "a", "c": True}], ("score=c",), {}),
    ("an id twice", [GOOD | {"answer": "x"}, GOOD | {"answer": "y"}], (), {}),
    ("a question twice", [Q | {"answer": "x"}, Q | {"answer": "y"}], (), {}),
    (
        "a question of another column twice",
        [{"p": "q?", "answer": "x"}, {"p": "q?", "answer": "y"}],
        ("question=p",),
        {},
    ),
    ("a torn line", [GOOD | {"answer": "x"}, '{"id": "torn'], (), {}),
    ("a line that is a list", [GOOD | {"answer": "x"}, "[1]"], (), {}),
    ("a row without a model", [GOOD | {"answer": "x", "m": "gpt"}, Q | {"answer": "x"}], ("model=m",), {}),
    ("nothing but bad rows", [{"id": "a", "answer": []}, {"id": "b", "answer": []}], (), {"skip_bad": True}),
    ("nothing but lists", ["[1]", "[2]"], (), {"skip_bad": True}),
    ("questions alone", [GOOD | {"references": ["x"]}], (), {}),
    (
        "columns of usual names",
        [{"prompt": "q?", "gold_answer": "a", "sample1": "a", "sample2": "b", "s3": "x", "Model Output": "a"}],
        (),
        {},
    ),
    ("one sample", [Q | {"samples": ["a"], "Conf": 1}], (), {}),
    ("a column that is not there", [GOOD | {"answer": "x", "gold": "x"}], ("references=golds",), {}),
    ("a column of a score that is not there", [GOOD | {"answer": "x", "gold": "x"}], ("score=zzz",), {}),
    (
        "a column of questions that is not there",
        [{"id": "a", "answer": "x"}, {"id": "b", "text": "q?"}],
        ("question=prompt",),
        {},
    ),
    (
        "a column of questions that is not there, without bad rows",
        [{"id": "a", "answer": "x"}],
        ("question=prompt",),
        {"skip_bad": True},
    ),
    ("several models", [GOOD | {"answer": "x", "model": "gpt"}, Q | {"answer": "x", "model": "llama"}], (), {}),
    (
        "a model that is not there",
        [GOOD | {"answer": "x", "model": "gpt"}, GOOD | {"answer": "x", "model": "llama"}],
        (),
        {"system": "claude"},
    ),
    ("a system without a column of models", [GOOD | {"answer": "x"}], (), {"system": "gpt"}),
    ("an excluded id that is not there", [GOOD | {"answer": "x"}], (), {"exclude": ("c", "b", "good")}),
    ("an unknown format", [GOOD | {"answer": "x"}], (), {"format": "tsv"}),
    ("empty", [], (), {}),
]


def test_rows_and_files_that_cannot_be_imported() -> None:
    story = Story("import_refused.txt")
    story.head("rows")
    for title, rows, maps, settings in BAD_ROWS:
        path = write("rows.jsonl", rows)
        story.refused(title, lambda: import_file(path, ImportSettings(columns=parse_map(maps), **settings)))  # noqa: B023
    story.head("CSV cells")
    for cell in ("['a' ... 'z']", "[a, b]", "['a'", "['a'] + ['b']", "['', '']", "[1] # two", "{'a': 1}|"):
        path = table(
            "cells.csv", [["question", "references", "answer", "options"], ["q", cell, "x", "{'a': 1, 'b': 2}"]]
        )
        story.refused(cell, lambda: import_file(path))  # noqa: B023
    story.head("files")
    files: dict[str, tuple[str, Any]] = {
        "another number of cells": ("a.csv", "id,answer\na,x\nb,x,y\n"),
        "a lone quote": ("a.csv", 'id,answer\na,"never closed\nb,x\n'),
        "a quote within a cell": ("a.csv", 'id,answer\na,x\nc,"x"y\n'),
        "a column twice": ("a.csv", "id,answer,id\na,x,b\n"),
        "semicolons": ("a.csv", "id;answer\na;x\n"),
        "tabs": ("a.csv", "id\tanswer\na\tx\n"),
        "bars": ("a.csv", "id|answer\na|x\n"),
        "a header that is not UTF-8": ("a.csv", b"id,\xffanswer\na,x\n"),
        "a cell that is not UTF-8": ("a.csv", b"id,answer\n" + b"b,y" + b" " * 99_999 + b"\na,\xff\n"),
        "an empty table": ("a.csv", ""),
        "a header alone": ("a.csv", "id,answer\n"),
        "an Excel file": ("a.xlsx", b"PK\x03\x04..."),
        "an old Excel file with another name": ("a.csv", b"\xd0\xcf\x11\xe0..."),
        "JSON lines called JSON": ("a.json", '{"id": "a"}\n{"id": "b"}\n'),
        "columns of pandas": ("a.json", {"id": {"0": "a"}, "answer": {"0": "x"}}),
        "a text": ("a.json", '"x"'),
        "an array that holds a number": ("a.json", [GOOD | {"answer": "x"}, 7]),
        "not UTF-8": ("a.json", b"[\xff]"),
        "a line that is not UTF-8": ("a.jsonl", b'{"id": "a", "answer": "x"}\n\xff\n'),
        "another kind": ("a.txt", "x"),
        "no kind": ("name", "x"),
        "a Git LFS pointer": ("a.parquet", "version https://git-lfs.github.com/spec/v1\n"),
        "a folder without data": ("empty/readme.md", "x"),
        "a folder whose state is torn": ("torn/state.json", "{"),
        "a folder whose state is a list": ("list/state.json", []),
        "a folder that lists no file": ("none/state.json", {"_data_files": []}),
        "a selection of rows": ("chosen/state.json", {"_indices_data_files": [{"filename": "i.arrow"}]}),
        "an old selection of rows": ("old/state.json", {"_indices_files": [{"filename": "i.arrow"}]}),
        "a folder whose file is not Arrow": ("lfs/state.json", {"_data_files": [{"filename": "state.json"}]}),
        "no split": ("splits/dataset_dict.json", {}),
        "two splits": ("splits/dataset_dict.json", {"splits": ["train", "test"]}),
    }
    for title, (name, content) in files.items():
        file = write(name, content)
        story.refused(title, lambda: import_file(file.parent if "/" in name else file))  # noqa: B023
    for name in ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.parquet"):
        write(name, b"")
    story.refused("Parquet files of two splits", lambda: import_file("data"))
    story.refused("no file", lambda: import_file("nothing.jsonl"))
    story.head("maps")
    for entries in (
        ["question"],
        ["question="],
        ["qestion=q"],
        ["zzz=q"],
        ["question=a", "question=b"],
        ["question=a,b"],
        ["score=x:a", "confidence=x:b"],
        ["score=a b"],
        ["score=:a"],
        ["score=a/b"],
        ["samples=a, ,b", "samples=c"],
    ):
        story.refused(" ".join(entries), lambda: parse_map(entries))  # noqa: B023
    story.show("samples=a, ,b", parse_map(["samples=a, ,b", "group=-", "score= x : y "]))
    story.compare()


COQA = {
    "version": "1.0",
    "data": [
        {
            "id": "3d",
            "story": "A white kitten in a barn.",
            "questions": [
                {"input_text": "What color?", "turn_id": 1},
                {"input_text": "Where?", "turn_id": 2},
                {"input_text": "Alone?", "turn_id": 3},
            ],
            "answers": [
                {"input_text": "white", "turn_id": 1},
                {"input_text": "in a barn", "turn_id": 2},
                {"input_text": "unknown", "turn_id": 3},
            ],
            "additional_answers": {
                "0": [{"input_text": "White.", "turn_id": 1}, {"input_text": "in a barn", "turn_id": 2}],
                "1": [{"input_text": "White.", "turn_id": 1}, {"input_text": "the barn", "turn_id": 2}],
            },
        }
    ],
}
TRIVIA = {
    "Data": [
        {
            "QuestionId": "tc_33",
            "Question": "Which musical?",
            "Answer": {
                "Value": "Sunset Boulevard",
                "Aliases": ["Sunset Blvd", " "],
                "HumanAnswers": ["Sunset Bl"],
                "NormalizedAliases": ["sunset blvd", "sunset strip", "sunset boulevard"],
            },
        }
    ]
}
SQUAD = {
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": "They came from Normandy.",
                    "qas": [
                        {
                            "id": "a1",
                            "question": "Whence?",
                            "answers": [{"text": "Normandy"}, {"text": "from Normandy"}, {"text": "Normandy"}],
                            "is_impossible": False,
                        },
                        {
                            "id": "a2",
                            "question": "Who ruled?",
                            "answers": [],
                            "plausible_answers": [{"text": "They"}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        },
        {"paragraphs": [{"context": "C.", "qas": [{"id": "a3", "question": "Q?", "answers": [{"text": "c"}]}]}]},
    ]
}


def medmcqa(*cops: object) -> list[Any]:
    return [
        {
            "id": f"m{i}",
            "question": f"Which? ({i})",
            "opa": "one",
            "opb": "two",
            "opc": "three",
            "opd": 4,
            "cop": cop,
            "subject_name": "Anatomy" if i else None,
        }
        for i, cop in enumerate(cops)
    ]


OWN = [
    {"id": 5, "question": "Q?", "references": ["A", 2.5], "options": {" A ": "x", "B": 3}, "group": "g", "note": "x"},
    {"question": "R?", "references": 7, "slots": {"context": "c"}},
    {"question": "S?", "references": "x", "slots": {}, "options": None, "id": ""},
]
HUB = {
    "coqa": [{"story": "A cat.", "questions": ["Is it?", "Sure?"], "answers": {"input_text": ["yes", "very"]}}],
    "triviaqa": [
        {
            "question": "Who?",
            "question_id": "tc_1",
            "answer": {"value": "Ann", "aliases": ["Anna"], "normalized_aliases": ["ann", "anna", "annie"]},
        }
    ],
    "squad": [
        {"id": "s1", "title": "T", "context": "C.", "question": "Q?", "answers": {"text": ["x", "x", "y"]}},
        {"id": "s2", "title": "T", "context": "C.", "question": "R?", "answers": {"text": []}},
    ],
    "medmcqa": medmcqa(0, 3)[1:] + medmcqa(0)[:1],
    "own": [{"id": "o1", "question": "Q?", "references": ["x"], "options": {"A": "x", "B": "y"}, "group": "g"}],
}


def asked(story: Story, title: str, path: str | Path, format: str | None = None, **settings: Any) -> None:
    """Tell which questions a file holds."""
    loaded = load_questions(path, format, **settings)
    story.head(title)
    story.show("format", loaded.format)
    story.say(*(f"question: {spelled(question)}" for question in loaded.questions))
    story.say(*(f"note: {note}" for note in loaded.notes))


def parquet(path: str, rows: list[Any]) -> str:
    writer = pytest.importorskip("pyarrow.parquet")
    for row in rows:
        row |= {name: str(value) for name, value in row.items() if name == "opd"}
    writer.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    return path


def test_question_files() -> None:
    story = Story("questions.txt")
    story.show("formats", list(QUESTION_FORMATS))
    asked(story, "CoQA", write("coqa.json", COQA))
    asked(story, "TriviaQA", write("trivia.json", TRIVIA))
    asked(story, "SQuAD", write("squad.json", SQUAD))
    asked(story, "SQuAD with unanswerable questions", "squad.json", "squad-unanswerable")
    asked(story, "MedMCQA, official", write("med.jsonl", medmcqa(1, 4, 2)))
    asked(
        story,
        "MedMCQA, official, called JSON",
        write("lines.json", "".join(spelled(row) + "\n" for row in medmcqa(1, 4))),
    )
    asked(story, "MedMCQA, from 0", write("med.jsonl", medmcqa(0, 3)))
    asked(story, "MedMCQA, said to be from 1", write("med.jsonl", medmcqa(1, 2)), "medmcqa-1")
    asked(story, "MedMCQA, said to be from 0", "med.jsonl", "medmcqa-0")
    asked(story, "our own, JSON lines", write("own.ndjson", OWN))
    asked(story, "our own, JSON", write("own.json", OWN))
    rows: list[list[object]] = [
        ["id", "question ", "references", "A", "B", "slots", "group"],
        ["1", "Q?", "x|a", "x", "y", "", "g"],
        ["", "R?", '["A"]', "x", "", "", ""],
    ]
    rows[2][4] = "z"
    asked(story, "our own, CSV with a column for each option", table("own.csv", rows))
    asked(
        story,
        "our own, CSV with lists and objects",
        table(
            "own.csv",
            [["question", "references", "options", "slots"], ["Q?", "A", '{"A": "x", "B": "y"}', '{"context": "c"}']],
        ),
    )
    asked(
        story,
        "without references",
        write("bare.jsonl", [Q, Q | {"id": "x", "references": []}]),
        require_references=False,
    )
    for name, content in HUB.items():
        asked(story, f"{name}, a copy on the hub", parquet(f"{name}.parquet", content))
    asked(story, "SQuAD on the hub with unanswerable questions", "squad.parquet", "squad-unanswerable")
    asked(story, "SQuAD on the hub, named", "squad.parquet", "squad")
    asked(story, "MedMCQA on the hub, named", "medmcqa.parquet", "medmcqa")
    story.compare()


def changed(content: Any, *path: object, to: Any = None) -> Any:
    """A copy of a document with one value changed, or left out."""
    import copy

    content = copy.deepcopy(content)
    part = content
    for step in path[:-1]:
        part = part[step]
    if to is None:
        del part[path[-1]]
    else:
        part[path[-1]] = to
    return content


DATA = ("data", 0)
QAS = (*DATA, "paragraphs", 0, "qas")
BAD_DOCUMENTS: list[tuple[str, str, Any]] = [
    ("coqa", "no story", changed(COQA, *DATA, "story")),
    ("coqa", "no id", changed(COQA, *DATA, "id")),
    ("coqa", "no turn_id", changed(COQA, *DATA, "questions", 1, "turn_id")),
    ("coqa", "a turn_id that is true", changed(COQA, *DATA, "answers", 1, "turn_id", to=True)),
    ("coqa", "no answer to a turn", changed(COQA, *DATA, "answers", 2)),
    ("coqa", "an empty answer", changed(COQA, *DATA, "answers", 0, "input_text", to=" ")),
    ("coqa", "questions that are a text", changed(COQA, *DATA, "questions", to="x")),
    ("coqa", "more answers that are a list", changed(COQA, *DATA, "additional_answers", to=["x"])),
    ("coqa", "more answers that hold texts", changed(COQA, *DATA, "additional_answers", "1", to=["x"])),
    ("coqa", "a list", [1]),
    ("triviaqa", "no answer", changed(TRIVIA, "Data", 0, "Answer")),
    ("triviaqa", "a withheld answer", changed(TRIVIA, "Data", 0, "Answer", "Value", to="<unk>")),
    ("triviaqa", "aliases that are a text", changed(TRIVIA, "Data", 0, "Answer", "Aliases", to="x")),
    ("triviaqa", "a question twice", {"Data": TRIVIA["Data"] * 2}),
    ("triviaqa", "nothing", {"Data": []}),
    ("squad", "no mark of what has no answer", changed(SQUAD, *QAS, 1, "is_impossible")),
    ("squad", "a mark that is a word", changed(SQUAD, *QAS, 1, "is_impossible", to="yes")),
    ("squad", "no context", changed(SQUAD, *DATA, "paragraphs", 0, "context")),
    (
        "squad",
        "nothing but unanswerable questions",
        {
            "data": [
                {
                    "paragraphs": [
                        {"context": "c", "qas": [{"id": "1", "question": "q", "answers": [], "is_impossible": True}]}
                    ]
                }
            ]
        },
    ),
    ("medmcqa", "withheld answers", medmcqa(1, -1)),
    ("medmcqa", "an option that is not there", medmcqa(1, 5)),
    ("medmcqa", "a letter", medmcqa(1, "a")),
    ("medmcqa", "nothing", medmcqa(1, None)),
    ("medmcqa", "true", medmcqa(1, True)),
    ("medmcqa", "a base that is not clear", medmcqa(1, 2)),
    ("medmcqa", "two bases", medmcqa(0, 4)),
    ("medmcqa-0", "4, counted from 0", medmcqa(0, 4)),
    ("medmcqa-1", "0, counted from 1", medmcqa(4, 0)),
    ("medmcqa", "no rows", []),
    ("medmcqa", "a torn line", ["{"]),
    ("quac", "an unknown format", "{}"),
]
BAD_QUESTIONS: list[tuple[str, list[Any]]] = [
    ("no question", [{"references": ["x"]}]),
    ("an empty question", [{"question": " ", "references": ["x"]}]),
    ("a question that is a number", [{"question": 5, "references": ["x"]}]),
    ("a near name", [{"qestion": "q", "references": ["x"]}]),
    ("a singular", [Q | {"reference": "x"}]),
    ("another name of references", [Q | {"answers": ["x"]}]),
    ("another name of options", [Q | {"references": ["x"], "Choices": {"A": "x"}}]),
    ("no reference", [Q]),
    ("an empty list of references", [Q | {"references": []}]),
    ("an object of references", [Q | {"references": {"a": 1}}]),
    ("an empty reference", [Q | {"references": ["x", " "]}]),
    ("a reference that is true", [Q | {"references": True}]),
    ("a reference in a list that is true", [Q | {"references": ["x", True]}]),
    ("a list of options", [Q | {"references": ["x"], "options": ["x", "y"]}]),
    ("one option", [Q | {"references": ["x"], "options": {"A": "x"}}]),
    ("an empty option", [Q | {"references": ["x"], "options": {"A": "x", "B": ""}}]),
    ("an option without a label", [Q | {"references": ["x"], "options": {"A": "x", " ": "y"}}]),
    ("an option that is true", [Q | {"references": ["x"], "options": {"A": "x", "B": True}}]),
    ("a reference that names no option", [Q | {"references": ["z"], "options": {"A": "x", "B": "y"}}]),
    ("a reference that names two options", [Q | {"references": ["z"], "options": {"A": "z", "B": "z"}}]),
    ("slots that are a list", [Q | {"references": ["x"], "slots": ["x"]}]),
    ("a slot that is a number", [Q | {"references": ["x"], "slots": {"a": 1}}]),
    ("a group that is true", [Q | {"references": ["x"], "group": True}]),
    ("an id that is a number with a point", [Q | {"references": ["x"], "id": 1.5}]),
    ("an id twice", [Q | {"references": ["x"], "id": 1}, {"question": "r", "references": ["x"], "id": "1"}]),
    ("a question twice", [Q | {"references": ["x"]}, Q | {"references": ["x"], "id": ""}]),
    ("nothing", []),
    ("a line that is no JSON", ["{" + "x" * 200]),
    ("a line that is a number", ["7"]),
]


def test_question_files_that_are_refused() -> None:
    story = Story("questions_refused.txt")
    story.head("published data sets")
    for format, title, content in BAD_DOCUMENTS:
        lines = format.startswith("medmcqa")
        path = write("med.jsonl" if lines else "document.json", content)
        story.refused(f"{format}: {title}", lambda: load_questions(path, format))  # noqa: B023
    story.refused("a document of no known format", lambda: load_questions(write("x.json", {"data": []})))
    story.refused("a torn document of no known format", lambda: load_questions(write("x.json", '{"data": [')))
    story.refused("a torn document", lambda: load_questions(write("x.json", '{"data": ['), "squad"))
    story.refused("no file", lambda: load_questions("none.json"))
    hub: dict[str, list[Any]] = {
        "columns of another kind": [{"text": "x", "label": 1}],
        "no answer for a question": [
            {"story": "A cat.", "questions": ["Is it?", "Sure?"], "answers": {"input_text": ["yes"]}}
        ],
        "a withheld answer": [{"question": "Who?", "question_id": "1", "answer": {"value": "<unk>", "aliases": ["x"]}}],
        "no reference": [{"question": "q", "references": [""], "id": "a"}],
        "a reference that names no option": [{"question": "q", "references": ["z"], "options": {"A": "x", "B": "y"}}],
        "no id": [{"context": "c", "question": "q", "answers": {"text": ["x"]}}],
    }
    for title, rows in hub.items():
        story.refused(f"hub: {title}", lambda: load_questions(parquet("hub.parquet", rows)))  # noqa: B023
    story.refused(
        "hub: nothing but unanswerable questions", lambda: load_questions(parquet("hub.parquet", HUB["squad"][1:]))
    )
    story.head("our own format")
    for title, rows in BAD_QUESTIONS:
        path = write("own.jsonl", rows)
        story.refused(title, lambda: read_questions(path))  # noqa: B023
    cells: dict[str, list[list[object]]] = {
        "references that are no JSON": [["question", "references"], ["q", "[x"]],
        "slots that are no JSON": [["question", "references", "slots"], ["q", "x", "y"]],
        "options that are no JSON": [["question", "references", "options"], ["q", "x", "y"]],
        "a column twice": [["question", "question"], ["q", "x"]],
        "too many cells": [["question", "references"], ["q", "x", "y"]],
        "too few cells": [["question", "references"], ["q"]],
        "one option": [["question", "references", "A"], ["q", "x", "y"]],
        "semicolons": [["question;references"], ["q;x"]],
        "a header alone": [["question", "references"]],
    }
    for title, lines_of in cells.items():
        file = table("own.csv", lines_of)
        story.refused(title, lambda: read_questions(file))  # noqa: B023
    files: dict[str, tuple[str, Any]] = {
        "a lone quote": ("q.csv", 'question,references\n"q,x\n'),
        "not UTF-8": ("q.csv", b"question,references\n\xff,x\n"),
        "a line that is not UTF-8": ("q.jsonl", b"\xff\n"),
        "another kind": ("q.txt", "x"),
        "an array that holds a number": ("q.json", [7]),
        "an Excel file": ("q.xlsx", b"PK\x03\x04"),
    }
    for title, (name, content) in files.items():
        file = write(name, content)
        story.refused(title, lambda: read_questions(file))  # noqa: B023
    story.refused("no file", lambda: read_questions("none.jsonl"))
    story.head("questions that do not fit each other")
    mixed = read_questions(write("mixed.jsonl", OWN))
    story.refused("slots", lambda: slot_names(mixed))
    story.refused("options", lambda: option_labels(mixed))
    story.show("slots of one", slot_names(mixed[1:2]))
    story.show("slots of none", slot_names(mixed[2:]))
    story.show("options of one", option_labels(mixed[:1]))
    story.show("options of none", option_labels(mixed[1:]))
    story.compare()


def arrow(folder: str, rows: list[Any], shards: int = 1) -> Path:
    """A folder as `Dataset.save_to_disk` writes it."""
    pyarrow = pytest.importorskip("pyarrow")
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    write(f"{folder}/state.json", {"_data_files": [{"filename": name} for name in names]})
    for i, name in enumerate(names):
        part = pyarrow.Table.from_pylist(rows[i::shards])
        with Path(folder, name).open("wb") as stream, pyarrow.ipc.new_stream(stream, part.schema) as writer:
            writer.write_table(part)
    return Path(folder)


def test_folders_of_data_sets() -> None:
    story = Story("folders.txt")
    rows = [{"id": f"q{i}", "question": f"q{i}?", "answer": "x", "references": ["x"]} for i in range(5)]
    imported(story, "a saved data set in two files", arrow("saved", rows, 2))
    arrow("splits/test", rows[:2])
    write("splits/dataset_dict.json", {"splits": ["test"]})
    imported(story, "a saved data set of one split", Path("splits"))
    Path("hub/data").mkdir(parents=True)
    parquet("hub/data/test-00000-of-00002.parquet", rows[:2])
    parquet("hub/data/test-00001-of-00002.parquet", rows[2:4])
    imported(story, "Parquet files of one split", Path("hub"))
    imported(story, "one Parquet file", Path("hub/data/test-00000-of-00002.parquet"))
    asked(story, "questions of a folder", "saved")
    imported(story, "empty lines in a table", write("gaps.csv", "id,answer\n\na,x\n\nb,y\n"))
    imported(story, "a table with a mark at its begin", write("mark.csv", "\ufeffid,answer\na,x\n"))
    imported(
        story,
        "lines of another name",
        write("lines.ndjson", [{"id": "a", "answer": "x"}, "", {"id": "b", "answer": "y"}]),
    )
    imported(story, "a kind that is named", write("rows.txt", "id,answer\na,x\n"), format="csv")
    imported(
        story,
        "an object in a cell",
        write("object.csv", "id,option_scores\na,\"{'A': 0.25, 'B': 0.75}\"\n"),
        option_scale="probability",
    )
    story.compare()
