"""`import` on the command line; imported scores are fitted, evaluated and reported, and refused at run time."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest

from calibrate.data.records import read_records, write_records
from calibrate.dataframe import from_frame
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import unguardable
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.testing import ScriptedChat
from tests.calibrate import fakes
from tests.calibrate.commands import run
from tests.calibrate.data.test_question_formats import COQA, document

NAMED = ScriptedChat(default=["greedy", "no", "yes", "yes"], name_of_model="m")
M = f"python:{__name__}:NAMED"
SCRIPTED = "python:tests.calibrate.fakes:model"


def confidences(path: Path, n: int = 300) -> Path:
    """Stated confidences in steps of .1, of which the high ones are mostly right; every 50th is missing."""
    dice = random.Random(3)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "topic", "stated", "ok"])
        for i in range(n):
            confidence = dice.choice([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
            right = dice.random() < confidence**0.2
            writer.writerow([f"c{i}", "xy"[i % 2], "" if i % 50 == 0 else confidence, "yes" if right else "no"])
    return path


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A record file of imported confidences."""
    out = tmp_path / "r.jsonl"
    shown = run(
        *("import", confidences(tmp_path / "c.csv"), "--out", out, "--map", "confidence=stated", "--map", "correct=ok"),
        *("--map", "group=topic", "--model", M),
    )
    assert "300 of 300 rows are records now (read as csv)." in shown
    assert "answers are right" in shown
    assert shown.endswith(f"Wrote {out} Next: calibrate fit {out} --score imported:stated --alpha 0.1")
    return out


def test_imported_scores_are_fitted_evaluated_and_reported(imported: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "a.json"
    shown = run("fit", "--rule", "acrc", imported, "--alpha", "0.15", "--test-fraction", "0.3", "--out", artifact)
    assert shown.split("Next: ")[1].endswith(unguardable(CalibrationArtifact.load(artifact)) or "")
    loaded = CalibrationArtifact.load(artifact)
    assert loaded.threshold is not None
    assert shown.startswith(f"answer if stated >= {1 - loaded.threshold:g} ")
    assert loaded.estimator.name == "imported:stated"
    assert loaded.correctness.name == "imported"
    assert loaded.data.n_unmeasured + loaded.data.n_used == 210
    assert 0 < loaded.data.n_unmeasured <= 6
    shown = run("evaluate", imported, "-a", "0.15", "--rule", "acrc", "--rule", "certified", "--splits", "3")
    assert "Rules: 3 splits" in shown
    page, test = tmp_path / "p.html", tmp_path / "a.test.jsonl"
    run("report", imported, "--artifact", artifact, "--test", test, "--out", page, "--splits", "2")
    html = page.read_text(encoding="utf-8")
    assert "imported:stated" in html
    assert "<b>For evaluation only: no guard can use it</b>" in html
    assert "imported:stated" in run("report", artifact)


def test_commands_take_several_files_as_one(tmp_path: Path) -> None:
    lines = confidences(tmp_path / "all.csv").read_text().splitlines()
    files = []
    for name, part in (("one", lines[1:101]), ("two", lines[101:201]), ("fresh", lines[201:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *part]))
        files.append(tmp_path / f"{name}.jsonl")
        maps = ("--map", "confidence=stated", "--map", "correct=ok", "--map", "group=topic")
        run("import", tmp_path / f"{name}.csv", "--out", files[-1], *maps, "--model", "m")
    first, other, fresh = files
    artifact, page = tmp_path / "a.json", tmp_path / "p.html"
    shown = run("fit", "--rule", "acrc", first, other, "--alpha", "0.15", "--out", artifact)
    assert f"Next: calibrate report {first} {other} --artifact {artifact} No guard can" in shown
    assert CalibrationArtifact.load(artifact).data.n_questions == 200
    shown = run("report", first, other, "--artifact", artifact, "--test", fresh, "--out", page, "--splits", "0")
    assert f"calibrate report {first} {other} --artifact {artifact} --test {fresh}" in page.read_text(encoding="utf-8")
    shown = run("evaluate", first, other, "-a", "0.15", "--rule", "lec", "--splits", "2")
    assert "2 splits, fitted on 100 of 200" in shown  # with the four that have no score: they were asked, too
    run("audit", "-r", first, "-r", other, "--artifact", artifact, code=2)  # the questions of the fit
    run("audit", "-r", fresh, "--artifact", artifact)
    shown = run("label", first, other, "--rule", "exact", code=2)
    assert "2 record files are written as one: name it with --out." in shown
    out = tmp_path / "both.jsonl"
    labels = tmp_path / "labels.csv"
    labels.write_text("id,correct\n" + "".join(f"c{i},yes\n" for i in range(200)))
    run("label", first, other, "--labels", labels, "--out", out)
    assert sum(record.correct is True for record in read_records(out).records) == 200
    assert sum(record.correct is True for record in read_records(first, other).records) < 200  # as they were
    second = read_records(other)
    repeated = [r.model_copy(update={"question": f"(question c{i})"}) for i, r in enumerate(second.records)]
    write_records(other, second.header, repeated)
    # `fit` stops where answers are not on file and the two labels of a question differ.
    for command, code in (
        (("fit", "--rule", "acrc", "--alpha", "0.15"), 2),
        (("evaluate", "-a", ".15", "--rule", "lec", "--splits", "1"), 0),
    ):
        shown = run(command[0], first, other, *command[1:], code=code)
        assert "100 questions are in two of the files under other ids, e.g. 'c0' and 'c100', and count twice." in shown
    shown = run("fit", "--rule", "acrc", first, first, "--alpha", "0.15", "--out", artifact, code=2)
    assert "record 'c0' is in two of the files" in shown


def test_bad_rows_stop_or_are_listed(tmp_path: Path) -> None:
    source, out = tmp_path / "s.jsonl", tmp_path / "r.jsonl"
    lines = [json.dumps({"id": f"q{i}", "answer": "x"}) if i % 2 else f"{{torn {i}" for i in range(60)]
    source.write_text("\n".join([json.dumps({"id": "first", "answer": "x"}), *lines]) + "\n")
    shown = run("import", source, "--out", out, code=1)
    assert "s.jsonl:2: not JSON" in shown
    assert not out.exists()
    shown = run("import", source, "--out", out, "--skip-bad", "0.1", code=1)
    assert "30 of 61 rows are malformed, more than 10%: nothing is imported" in shown
    assert not out.exists()
    assert len((tmp_path / "r.skipped.jsonl").read_text().splitlines()) == 30
    assert "--skip-bad must be a share in [0, 1], got 50" in run("import", source, "--skip-bad", "50", code=2)
    shown = run("import", source, "--out", out, "--skip-bad", "0.5")
    assert "31 of 61 rows are records now" in shown
    assert "30 rows are malformed and left out" in shown
    assert shown.count("not JSON") == 20
    assert len((tmp_path / "r.skipped.jsonl").read_text().splitlines()) == 30
    assert "exists already" in run("import", source, "--out", out, "--skip-bad", "0.1", code=2)
    source.write_text(json.dumps({"id": "first", "answer": "x"}) + "\n")
    run("import", source, "--out", out, "--replace")
    assert not (tmp_path / "r.skipped.jsonl").exists()
    assert len(read_records(out).records) == 1


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--set", "seed=1"), "there is no setting 'seed'"),
        (("--option-scale", "odds"), "'odds' is not one of 'logit', 'logprob', 'probability'"),
        (("--map", "answr=x"), "Did you mean 'answer'?"),
        (("--set", "template=x"), "exactly once"),
    ],
)
def test_bad_flags_are_refused(tmp_path: Path, arguments: tuple[str, ...], fragment: str) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text('{"id": "a", "answer": "x"}\n')
    assert fragment in run("import", source, "--out", tmp_path / "r.jsonl", *arguments, code=2)


def test_a_published_question_set_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    source, out = document(tmp_path / "coqa.json", COQA), tmp_path / "r.jsonl"
    common = ("--model", "python:tests.calibrate.fakes:model", "--set", "allow_identical_samples=true")
    shown = run("collect", source, *common, "--set", "questions_format=coqa", "--out", out)
    assert "3 of 3 questions are on file." in shown
    assert {record.group for record in read_records(out).records} == {"3dr23u6we5exclen4th8uq9rb42tel"}
    assert "no question format named 'quac'" in run(
        "collect", source, *common, "--set", "questions_format=quac", code=2
    )


def test_answers_of_an_unnamed_model_are_named_afterwards(tmp_path: Path) -> None:
    """Import and fit say that no guard loads the artifact, its refusal names the way out, and the way works."""
    source, out, artifact = tmp_path / "mine.csv", tmp_path / "own.jsonl", tmp_path / "a.json"
    with source.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["prompt", "gold", "said", "s1", "s2", "s3"])
        for row in fakes.rows():
            writer.writerow([row["question"], row["references"][0], *map(str, fakes.script()[row["question"]][:4])])
    maps = ("question=prompt", "references=gold", "samples=s1,s2,s3", "answer=said")
    shown = run("import", source, "--out", out, *(part for each in maps for part in ("--map", each)))
    assert f"calibrate import {out} --model MODEL" in shown
    run("score", out, "-s", "graded_disagreement")
    run("label", out, "--rule", "exact")
    shown = run("fit", "--rule", "acrc", out, "--alpha", "0.3", "--out", artifact)
    assert "No guard will load this artifact: the answers were imported without naming their model." in shown
    # The box breaks a long path.
    assert f"`calibrate import {out} --model MODEL`".replace(" ", "") in shown.replace(" ", "")
    with pytest.raises(ArtifactMismatchError, match=r"name it with `calibrate import RECORDS --model MODEL`"):
        Guardrail(model=fakes.model(), artifact=artifact)
    shown = run("import", out, "--model", SCRIPTED)
    assert "The answers are of provider scripted, model scripted." in shown
    assert shown.endswith(f"Next: calibrate fit {out} --alpha 0.1")
    shown = run("fit", "--rule", "acrc", out, "--alpha", "0.3", "--out", artifact)
    assert "No guard" not in shown
    assert "have carried" not in shown  # the same fit
    assert Guardrail(model=fakes.model(), artifact=artifact).assess("plant 1?").uncertainty.measured
    file = read_records(out)
    another = file.header.model.model_copy(update={"model": "another"})
    write_records(out, file.header.model_copy(update={"model": another}), file.records)
    assert "are of 'another' (scripted), not of 'scripted'" in run("import", out, "--model", SCRIPTED, code=2)
    assert "Name the model of its answers with --model" in run("import", out, code=2)
    assert "Leave --out out" in run("import", out, "--model", SCRIPTED, "--out", tmp_path / "copy.jsonl", code=2)


def test_what_columns_may_be_is_proposed(tmp_path: Path) -> None:
    source = tmp_path / "mine.csv"
    source.write_text("prompt,llm_answer,s1,s2,s3,gold\nq,a,b,c,d,e\n")
    shown = run("import", source, "--out", tmp_path / "r.jsonl", code=2)
    assert "--map question=prompt --map answer=llm_answer --map references=gold --map samples=s1,s2,s3" in shown
    with pytest.raises(UsageError, match=r'question="prompt", .*references="gold", samples=\["s1", "s2", "s3"\]'):
        from_frame(list(csv.DictReader(source.read_text().splitlines())))


def test_confidences_that_are_read_wrongly_are_said_before_a_fit(tmp_path: Path) -> None:
    source, out = confidences(tmp_path / "c.csv"), tmp_path / "r.jsonl"
    shown = run("import", source, "--out", out, "--map", "score=stated", "--map", "correct=ok")
    assert "Check imported:stated before you fit: wrong answers have the lower scores (AUROC 0." in shown
    assert "Check" not in run(
        "import", source, "--out", out, "--replace", "--map", "confidence=stated", "--map", "correct=ok"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--map", "question=prompt"),
        ("--right", "yes"),
        ("--cut", "0"),
        ("--set", "temperature=1"),
        ("--format", "jsonl"),
        ("--rows", "data"),
        ("--primary", "first"),
        ("--option-scale", "logit"),
        ("--other-labels", "wrong"),
        ("--skip-bad", "0.1"),
        ("--items", None),
        ("--replace", None),
    ],
)
def test_options_that_read_a_file_are_refused_for_records(imported: Path, option: str, value: str | None) -> None:
    """Somebody who imports labels anew with --right must not believe that the records follow it."""
    before = imported.read_bytes()
    shown = run("import", imported, "--model", M, *filter(None, (option, value)), code=2)
    assert f"{option} is about reading a file of another tool, and {imported} is a record file" in shown
    assert imported.read_bytes() == before
