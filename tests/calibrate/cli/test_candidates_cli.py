"""`calibrate candidates`: what it writes and says, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.candidate_sets import evaluate_candidates, fit_candidates, judge_candidates
from calibrate.cli import app
from calibrate.cli.candidates import _up
from calibrate.correctness import Exact
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.pipeline import fit_artifact, part_header, split
from guardrail.artifact import CalibrationArtifact
from guardrail.review import CandidateRule
from guardrail.specs import CorrectnessSpec
from guardrail.testing import ScriptedChat

ROOT = Path(__file__).parents[3]
KEY = "discrete_semantic_entropy"


@pytest.fixture
def folder(labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`artifact.json`, the records it was fitted on (`old.jsonl`) and others (`fresh.jsonl`)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    old, fresh = split(labelled.records, test_fraction=0.5, seed=3)
    for name, part in (("old.jsonl", old), ("fresh.jsonl", fresh)):
        write_records(Path(name), part_header(labelled.header, part), part)
    fit_artifact(read_records(Path("old.jsonl")), estimator=KEY, alpha=0.1, rule="acrc").save("artifact.json")
    return tmp_path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["candidates", *map(str, arguments), "--artifact", "artifact.json"])
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())


def changed(name: str, **update: Any) -> None:
    """The file's header, changed."""
    file = read_records(Path(name))
    write_records(Path(name), file.header.model_copy(update=update), file.records)


@pytest.mark.parametrize("population", ["held-back", "all"])
def test_it_writes_the_rule_that_python_fits(folder: Path, population: Any) -> None:
    shown = run("fresh.jsonl", "--epsilon", 0.2, "--population", population)
    artifact = CalibrationArtifact.load("artifact.json")
    judged, _ = judge_candidates(read_records(Path("fresh.jsonl")).records, artifact, Exact())
    expected = fit_candidates(judged, artifact, epsilon=0.2, population=population.replace("-", "_"))
    assert expected.quantile is not None
    assert CandidateRule.load("candidates.json") == expected
    evaluation = evaluate_candidates(judged, expected)
    assert f"at least 80 % of {'all questions' if population == 'all' else 'the questions that are held back'}" in shown
    assert f"with 90 % confidence over the draw of {expected.n} questions like these" in shown
    assert f"holds {evaluation.mean_size:.1f} of {evaluation.mean_all:.1f} answers" in shown
    assert "Wrote candidates.json" in shown


def test_what_cannot_be_promised_ends_with_1_and_what_it_suggests_works(folder: Path) -> None:
    shown = run("fresh.jsonl", "--epsilon", 0.001, code=1)
    assert not Path("candidates.json").exists()
    assert "Nothing was written" in shown
    suggested = re.search(r"--epsilon (0\.\d+) can be fitted now", shown)
    assert suggested is not None
    run("fresh.jsonl", "--epsilon", suggested[1])
    rule = CandidateRule.load("candidates.json")
    run("fresh.jsonl", "--epsilon", round(rule.attainable - 0.001, 4), code=1)


def test_the_way_out_says_whether_more_questions_would_help(folder: Path) -> None:
    # No question lacks an acceptable answer but there are few: .95^45 = .0994 is the first power below delta.
    file = read_records(Path("fresh.jsonl"))
    good = [record for record in file.records if record.correct][:9]
    write_records(Path("few.jsonl"), part_header(file.header, good), good)
    shown = run("few.jsonl", "--population", "all", "--epsilon", 0.05, code=1)
    assert "the smallest that can be is 0.226. Of 9 questions 0 have no" in shown
    assert "about 45 would do" in shown
    # A third of the questions has no acceptable answer at all.
    lost = [r.model_copy(update={"references": ("none of these",)}) if i < 3 else r for i, r in enumerate(good)]
    write_records(Path("few.jsonl"), part_header(file.header, lost), lost)
    shown = run("few.jsonl", "--population", "all", "--epsilon", 0.2, code=1)
    assert "Of 9 questions 3 have no" in shown
    assert "More questions will not help" in shown
    nothing = [record.model_copy(update={"references": ("none of these",)}) for record in good]
    write_records(Path("few.jsonl"), part_header(file.header, nothing), nothing)
    assert "can be fitted now" not in run("few.jsonl", "--population", "all", code=1)


def test_rounded_up_and_not_beyond() -> None:
    assert [_up(x) for x in (0.25, 1 - 15 / 20, 0.1 + 0.2, 1 / 3, 1.0)] == [0.25, 0.25, 0.3, 0.334, 1.0]


def test_the_calibration_questions_are_refused_for_held_back_only(folder: Path) -> None:
    assert "fitted on" in run("old.jsonl", code=2)
    assert not Path("candidates.json").exists()
    run("old.jsonl", "--population", "all")
    both = [*read_records(Path("old.jsonl")).records[:5], *read_records(Path("fresh.jsonl")).records]
    write_records(Path("both.jsonl"), part_header(read_records(Path("old.jsonl")).header, both), both)
    assert "5 questions" in run("both.jsonl", "--calibration", "old.jsonl", code=2)


@pytest.mark.parametrize("population", ["held-back", "all"])
def test_records_of_another_plan_are_refused(folder: Path, population: str) -> None:
    plan = read_records(Path("fresh.jsonl")).header.plan
    changed("fresh.jsonl", plan=plan.model_copy(update={"temperature": 0.1}))
    assert "does not fit the artifact: plan" in run("fresh.jsonl", "--population", population, code=2)


def test_unscored_and_unlabelled_records_will_do(folder: Path) -> None:
    run("fresh.jsonl", "--out", "one.json")
    file = read_records(Path("fresh.jsonl"))
    bare = [r.model_copy(update={"scores": {}, "correct": None, "label_detail": ""}) for r in file.records]
    header = file.header.model_copy(update={"estimators": {}, "correctness": None})
    write_records(Path("bare.jsonl"), header, bare)
    run("bare.jsonl", "--out", "two.json")
    assert CandidateRule.load("one.json") == CandidateRule.load("two.json")


def test_misuse(folder: Path) -> None:
    for epsilon in (0, 1, 20):
        assert "must be in (0, 1)" in run("fresh.jsonl", "--epsilon", epsilon, code=2)
    before = Path("artifact.json").read_bytes()
    assert "overwrite" in run("fresh.jsonl", "--out", "./artifact.json", code=2)
    assert "overwrite" in run("fresh.jsonl", "--out", "fresh.jsonl", code=2)
    assert Path("artifact.json").read_bytes() == before
    assert "Leave it out" in run("fresh.jsonl", "--judge-model", "openai:x", code=2)


@pytest.mark.parametrize(
    ("name", "says"), [("given", "cannot label the other answers"), ("chat_judge", "--judge-model")]
)
def test_rules_that_cannot_be_made_here(folder: Path, name: str, says: str) -> None:
    artifact = CalibrationArtifact.load("artifact.json")
    artifact.model_copy(update={"correctness": CorrectnessSpec(name=name, version=1)}).save("artifact.json")
    assert says in run("fresh.jsonl", code=2)


def test_labels_from_reviews_say_what_to_do_instead(folder: Path) -> None:
    artifact = CalibrationArtifact.load("artifact.json")
    spec = CorrectnessSpec(name="given", version=1, params={"source": "reviews", "respond": "wrong"})
    artifact.model_copy(update={"correctness": spec}).save("artifact.json")
    shown = run("fresh.jsonl", code=2)
    assert "people's decisions (learn)" in shown
    assert "collect questions with reference" in shown


def test_a_model_judges_every_shown_answer_and_its_verdicts_are_kept(folder: Path) -> None:
    spec = "python:tests.calibrate.cli.test_candidates_cli:agreeable"
    result = CliRunner().invoke(app, ["label", "fresh.jsonl", "--judge-model", spec])
    assert result.exit_code == 0, result.output
    n_judged = len(Path("fresh.judge.jsonl").read_text().splitlines())
    rule = read_records(Path("fresh.jsonl")).header.correctness
    artifact = CalibrationArtifact.load("artifact.json")
    artifact.model_copy(update={"correctness": rule}).save("artifact.json")
    run("fresh.jsonl", "--judge-model", spec)
    verdicts = Path("fresh.judge.jsonl").read_text()
    assert len(verdicts.splitlines()) > n_judged
    judged = CandidateRule.load("candidates.json")
    run("fresh.jsonl", "--judge-model", spec)
    assert Path("fresh.judge.jsonl").read_text() == verdicts
    assert CandidateRule.load("candidates.json") == judged


def agreeable() -> ScriptedChat:
    """A judge that always agrees."""
    return ScriptedChat(default=("yes",), name_of_model="judge")


def test_the_command_line_loads_no_database_and_without_one_it_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys\n"
        "from calibrate.cli import app\n"
        "print('sqlalchemy' in sys.modules)\n"
        "sys.modules['sqlalchemy'] = None\n"
        "app(['candidates', 'fresh.jsonl', '--artifact', 'artifact.json'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.split()[0] == "False"
    assert ran.returncode == 1
    assert "acrc-guardrail[review]" in ran.stderr
    assert "Traceback" not in ran.stderr
