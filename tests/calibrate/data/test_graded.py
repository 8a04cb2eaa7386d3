"""A table with scores and labels goes to `fit` as it is: what its columns were taken for, four lines, and no more."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import calibrate
from calibrate.cli import app
from calibrate.cli.frame.terminal import console
from calibrate.data.formats.read import is_table
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import answer_if, limit
from guardrail.errors import UsageError
from guardrail.specs import EstimatorSpec


def rows(n: int = 300, seed: int = 5) -> list[dict[str, Any]]:
    """Confidences of which the high ones are mostly right."""
    dice = random.Random(seed)
    drawn = [round(dice.betavariate(5, 1), 4) for _ in range(n)]
    return [{"question": f"q{i}", "confidence": c, "correct": dice.random() < c} for i, c in enumerate(drawn)]


def table(path: Path, content: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, content[0])
        writer.writeheader()
        writer.writerows(content)
    return path


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 400)


def run(*arguments: object, code: int = 0, columns: int = 400) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_a_table_is_fitted_in_one_command_and_four_lines(tmp_path: Path) -> None:
    """The first thing somebody with a graded file tries; nothing else has to be learned for it."""
    content, out = rows(), tmp_path / "a.json"
    path = table(tmp_path / "graded.csv", [{**row, "topic": "x"} for row in content])
    shown = run("fit", path, "--alpha", 0.1, "--out", out).splitlines()
    assert shown[0] == (
        f"{path}: 300 rows. Read as score confidence (higher is more certain), question, correct; not read: topic."
    )
    condition, promise = shown[1].split("    ")
    assert promise == "at most 10 % of the answers given are wrong, with 90 % confidence"
    least = float(condition.removeprefix("answer if confidence >= "))
    given = [row for row in content if row["confidence"] >= least]
    share, wrong = len(given) / 300, sum(not row["correct"] for row in given) / len(given)
    assert shown[2] == (
        f"answers {100 * share:.3g} % of all 300 questions; {100 * wrong:.2g} % of these answers were wrong here"
    )
    assert shown[3] == f"without the gate {100 * sum(not row['correct'] for row in content) / 300:.3g} % are wrong"
    assert shown[4] == f"Wrote {out}    Next: calibrate report {out} | docs/start/scores.md"
    assert len(shown) == 6  # the last line says how a guard would compute the score
    assert "Write the score as a @scorer" in shown[5]
    assert run("report", out).startswith(condition)


@pytest.mark.parametrize("name", ["error", "is_wrong", "wrong"])
def test_labels_that_say_wrong_give_the_same_threshold(tmp_path: Path, name: str) -> None:
    """Read the other way round, or not at all, such a file would certify the opposite of what it says."""
    content = rows()
    turned = [
        {"question": row["question"], "confidence": row["confidence"], name: not row["correct"]} for row in content
    ]
    mapped = ["--map", f"error={name}"] if name == "is_wrong" else []
    shown = [
        run("fit", table(tmp_path / f"{i}.csv", each), "--alpha", 0.1, "--out", tmp_path / "a.json", *more).splitlines()
        for i, (each, more) in enumerate([(content, []), (turned, mapped)])
    ]
    assert f"error {name}" in shown[1][0] or name == "error"
    assert shown[0][1:4] == shown[1][1:4]


@pytest.mark.parametrize("digits", [2, 3, 4, 17])
@pytest.mark.parametrize("kind", ["confidence", "certainty", "uncertainty"])
def test_the_printed_condition_accepts_exactly_the_counted_rows(kind: str, digits: int) -> None:
    """A user who applies the line to the table would otherwise answer a row that the promise does not count."""
    for seed in range(6):
        dice = random.Random(seed)
        content = []
        for i in range(120):
            c = round(dice.uniform(0.05, 0.95), digits)
            value = {"confidence": c, "certainty": 100 * c, "uncertainty": 1 - c}[kind]
            content.append({"id": i, kind: value, "correct": dice.random() < 0.4 + 0.6 * c})
        artifact = calibrate.from_frame(content).fit(alpha=0.3, rule="acrc")
        said = re.fullmatch(rf"answer if {kind} ([<>])= (\S+)", answer_if(artifact))
        assert said is not None, answer_if(artifact)
        limit = float(said[2])
        accepted = [row[kind] <= limit if said[1] == "<" else row[kind] >= limit for row in content]
        assert sum(accepted) == artifact.outcome.n_accepted > 0


@pytest.mark.parametrize("c", [0.3, 0.1, 0.29999999999999993, 0.05, 1e-12, 0.7, 0.0, 1.0])
def test_a_confidence_is_at_its_own_limit(c: float) -> None:
    """1 - c is rounded, so that 1 - (1 - c) may lie above c."""
    spec = EstimatorSpec(name="imported:c", version=1, unit="probability", params={"stored": "1 - value"})
    assert c >= float(limit(spec, 1 - c).removeprefix(">= "))


def test_names_of_columns_are_recognised_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"Prompt": f"p{i}", "reply": "x", "gold": "x", "is_correct": "yes" if i % 9 else "no", "Entropy": i % 7 / 7}
        for i in range(90)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    shown = run("fit", path, "-a", 0.3, "--out", tmp_path / "a.json")
    read = "score Entropy (lower is more certain), question Prompt, references gold, answer reply, correct is_correct"
    assert read in " ".join(shown.split())


def test_percentages_are_a_score_of_their_own_scale(tmp_path: Path) -> None:
    path = table(tmp_path / "p.csv", [{**row, "confidence": round(100 * row["confidence"])} for row in rows()])
    shown = run("fit", path, "-a", 0.1, "--out", tmp_path / "a.json")
    assert re.search(r"answer if confidence >= \d\d(\.0)?    at most", shown)


def test_other_names_and_grades_are_named(tmp_path: Path) -> None:
    content = [{"q": row["question"], "sure": row["confidence"], "grade": 5 if row["correct"] else 2} for row in rows()]
    path, out = table(tmp_path / "g.csv", content), tmp_path / "a.json"
    assert "no column with a score, among q, sure, grade. Name it: --map confidence=COLUMN" in (
        " ".join(run("fit", path, "-a", 0.1, code=2).replace("│", " ").split())
    )
    names = ("--map", "confidence=sure", "--map", "correct=grade")
    assert "--cut" in run("fit", path, "-a", 0.1, *names, code=2)
    run("fit", path, "-a", 0.1, *names, "--cut", 4, "--out", out)
    same = table(tmp_path / "h.csv", rows())
    run("fit", same, "-a", 0.1, "--out", tmp_path / "b.json")
    first, second = CalibrationArtifact.load(out), CalibrationArtifact.load(tmp_path / "b.json")
    assert first.outcome == second.outcome


def test_fewer_than_fifty_labels_are_refused_and_two_hundred_are_no_longer_provisional(tmp_path: Path) -> None:
    content, out = rows(200), tmp_path / "a.json"
    few = table(tmp_path / "few.csv", content[:49])
    assert "has 49 labels, and a promise needs at least 50" in " ".join(run("fit", few, "-a", 0.3, code=2).split())
    assert "provisional: 49 labels" in run("fit", few, "-a", 0.3, "--few", "--out", out)
    more = table(tmp_path / "more.csv", content[:50])
    assert "provisional: 50 labels" in run("fit", more, "-a", 0.3, "--out", out)
    assert "provisional" not in run("fit", table(tmp_path / "all.csv", content), "-a", 0.3, "--out", out)
    with pytest.raises(UsageError, match="few=True"):
        calibrate.from_frame(content[:49]).fit(alpha=0.3)
    assert calibrate.from_frame(content[:49]).fit(alpha=0.3, few=True).outcome.n == 49


def test_a_frame_that_is_graded_needs_no_argument() -> None:
    records = calibrate.from_frame(rows())
    artifact = records.fit(alpha=0.1)
    assert answer_if(artifact).startswith("answer if confidence >= ")
    assert records.notes[0] == "Read as score confidence (higher is more certain), question, correct."


def test_two_scores_are_chosen_by_name(tmp_path: Path) -> None:
    content = [{**row, "entropy": 1 - row["confidence"]} for row in rows()]
    with pytest.raises(UsageError, match=r'has 2 scores. Choose one: score="confidence" or score="entropy"\.'):
        calibrate.from_frame(content).fit(alpha=0.1)
    assert answer_if(calibrate.from_frame(content).fit(alpha=0.1, score="entropy")).startswith("answer if entropy <= ")
    path = table(tmp_path / "two.csv", content)
    assert "--score confidence or --score entropy" in " ".join(run("fit", path, "-a", 0.1, code=2).split())
    run("fit", path, "-a", 0.1, "--score", "entropy", "--out", tmp_path / "a.json")


def test_one_output_states_one_confidence(tmp_path: Path) -> None:
    """After two fits both halves of what is printed speak of both, or a reader takes the better number."""
    path, out = table(tmp_path / "graded.csv", rows()), tmp_path / "a.json"
    for alpha in (0.15, 0.1):
        run("fit", path, "--alpha", alpha, "--out", out)
    assert (tmp_path / "graded.ledger.jsonl").is_file()
    shown = run("report", out)
    assert "with 80 % confidence" in shown
    assert "With probability at least 80 %" in shown
    assert "90 %" not in shown.split("AUROC")[0].replace("90 % of all", "")


def test_commands_after_a_mapped_table_are_mapped_as_well(tmp_path: Path) -> None:
    content = [{"logit": row.pop("confidence"), **row} for row in rows()]
    path, out = table(tmp_path / "graded.csv", content), tmp_path / "a.json"
    shown = run("evaluate", path, "--map", "confidence=logit", "--splits", 2)
    assert f"calibrate fit {path} --map confidence=logit --alpha 0.1" in shown
    run("fit", path, "--map", "confidence=logit", "--alpha", 0.1, "--test-fraction", 0.3, "--out", out)
    run("report", path, "--map", "confidence=logit", "--artifact", out, "--splits", 0, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "--map confidence=logit --artifact" in page
    assert "calibrate audit --records" in " ".join(
        run("report", out, "--test", tmp_path / "a.test.jsonl", code=2).split()
    )


def test_rows_without_text_are_enough(tmp_path: Path) -> None:
    path = table(tmp_path / "bare.csv", [{"score": 1 - row["confidence"], "correct": row["correct"]} for row in rows()])
    assert "300 rows have neither id nor question: the number of the row stands for both." in (
        run("fit", path, "-a", 0.1, "--out", tmp_path / "a.json")
    )


def test_numbered_rows_of_other_files_are_other_questions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By their numbers alone all fresh rows would be those of the fit: refused by `fit`, and left out by an audit."""
    bare = [[{"conf": round(row["confidence"], 1), "ok": row["correct"]} for row in rows(300, seed)] for seed in (5, 9)]
    old, new = (table(tmp_path / name, content) for name, content in zip(("a.csv", "b.csv"), bare, strict=True))
    out = tmp_path / "a.json"
    run("fit", old, "-a", 0.2, "--test", new, "--out", out)
    assert "left out" not in run("audit", "-r", new, "--artifact", out)
    assert "holds only questions that the artifact was fitted on" in run("audit", "-r", old, "--artifact", out, code=2)
    artifact = CalibrationArtifact.load(out)
    # The file of the fit again, which has grown, and of which a label was corrected.
    grown = [{**bare[0][0], "ok": not bare[0][0]["ok"]}, *bare[0][1:], *bare[1]]
    calibrate.from_frame(grown).audit(artifact)
    assert "300 of 600 questions are left out: the artifact was fitted on them." in caplog.text


def test_an_audit_of_a_table_reads_and_prints_its_columns(tmp_path: Path) -> None:
    """A table of columns with other names can be audited, and the command after a refutation reads it as well."""

    def graded(name: str, seed: int, *, reverse: bool = False) -> Path:
        content = [
            {
                "frage": f"{name} {i}",
                "sicher": row["confidence"],
                "urteil": "ja" if row["correct"] != reverse else "nein",
            }
            for i, row in enumerate(rows(600, seed))
        ]
        return table(tmp_path / name, content)

    out, columns = tmp_path / "a.json", "--map question=frage --map confidence=sicher --map correct=urteil --right ja"
    run("fit", graded("a.csv", 5), *columns.split(), "--alpha", 0.2, "--out", out)
    assert "labelled accepted answers were wrong" in run(
        "audit", "-r", graded("b.csv", 9), *columns.split(), "--artifact", out
    )
    bad = graded("c.csv", 9, reverse=True)
    shown = " ".join(run("audit", "-r", bad, *columns.split(), "--artifact", out, code=1).split())
    command = re.search(f"calibrate (fit {re.escape(str(bad))} .*? --out [^ ]+)", shown)
    assert command is not None, shown
    assert f"{columns} --score" in command[1]
    run(*command[1].split())
    shown = " ".join(
        run(
            *("fit", tmp_path / "a.csv", *columns.split(), "--alpha", 0.2, "--test", bad, "--out", out, "--few"), code=1
        ).split()
    )
    assert f"calibrate fit {bad} {columns} --score" in shown


def test_evaluate_prints_the_main_table_of_the_paper(tmp_path: Path) -> None:
    path = table(tmp_path / "graded.csv", rows())
    shown = run("evaluate", path, "--splits", 5)
    for method in ("Fixed-50", "Empirical", "UCB-HFD", "UCB-CLP", "LEC-Direct", "A-CRC-QA", "certified"):
        assert method in shown
    assert f"Next: calibrate fit {path} --alpha 0.1" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("content", "way_out"),
    [
        ([{"question": "q", "confidence": 0.5}], "--map correct=COLUMN"),
        ([{"question": "q", "answer": "a"}], "questions to `calibrate collect`"),
        ([{"user_input": "q", "response": "a"}], "calibrate import {path} --format ragas"),
    ],
)
def test_a_table_that_is_not_graded_says_what_to_do(
    content: list[dict[str, Any]], way_out: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.csv", content)
    shown = " ".join(run("fit", path, "-a", 0.1, code=2, columns=400).replace("│", " ").split())
    assert way_out.format(path=path) in shown


def test_records_are_no_table(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    records.write_text('{"header": {"format": 1}}\n')
    assert not is_table(records)
    assert not is_table(tmp_path / "missing.jsonl")


def test_labels_without_a_score_are_not_counted_as_those_of_a_promise(tmp_path: Path) -> None:
    """Otherwise a promise on 49 answers is printed as one on 200."""
    path = table(tmp_path / "g.csv", [row | {"confidence": ""} if i >= 49 else row for i, row in enumerate(rows(200))])
    assert "has 49 labels of answers with a score" in " ".join(run("fit", path, "-a", 0.3, code=2).split())


def test_a_few_other_words_among_usual_labels_are_not_proposed_as_right(tmp_path: Path) -> None:
    """Whoever did what the refusal said would count the undecided answers as the right ones."""
    content = [row | {"correct": "undecided"} if i < 9 else row for i, row in enumerate(rows(200))]
    shown = run("fit", table(tmp_path / "g.csv", content), "-a", 0.3, code=2)
    assert "--other-labels wrong or --other-labels unlabelled (of `calibrate import`)" in shown
    assert "--right" not in shown


def test_the_label_is_no_score(tmp_path: Path) -> None:
    """A gate on it looks perfect, and no new answer has it."""
    path = table(tmp_path / "g.csv", rows(200))
    assert "column 'correct' is the label" in run("fit", path, "-a", 0.3, "--map", "certainty=correct", code=2)


@pytest.mark.parametrize("names", [["question", 0, "correct"], ["question", "correct", "correct"]])
def test_a_frame_whose_column_names_are_no_names_is_refused_with_the_way_out(names: list[Any]) -> None:
    """As pandas makes them of a file without a header, or of two frames side by side."""
    frame = pytest.importorskip("pandas").DataFrame([row.values() for row in rows(60)], columns=names)
    with pytest.raises(UsageError, match=r"column.* Rename the column: frame\.columns"):
        calibrate.from_frame(frame)
