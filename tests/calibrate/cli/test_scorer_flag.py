"""`--scorer`: from questions to an artifact on the command line, and about answers on file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from calibrate.cli import app
from calibrate.data.records import read_records
from calibrate.pipeline import fit_artifact
from guardrail import CalibrationArtifact, Guardrail, UsageError, scorer
from guardrail.describe import summary
from guardrail.sampling.models import resolve_model
from guardrail.testing import ScriptedChat
from guardrail.uncertainty.scorer import load_scorer

HERE = "tests.calibrate.cli.test_scorer_flag"
MODEL = ScriptedChat(script={f"q{i}": [f"a{i}"] for i in range(200)}, probability=0.5)


@scorer(version=1, higher="certain", params={"of": 200})
def rank(answer: str) -> float:
    return int(answer[1:]) / 200


def made() -> object:
    return rank


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"id": str(i), "question": f"q{i}", "references": [f"a{i}" if i >= 20 else "no"]} for i in range(200)]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("asked", ["collect", "score"])
def test_from_questions_to_a_guard(questions: Path, tmp_path: Path, asked: str) -> None:
    records, artifact = str(tmp_path / "r.jsonl"), str(tmp_path / "a.json")
    flag = ["--scorer", f"{HERE}:rank"]
    drawn = flag if asked == "collect" else ["--score", "verbalised"]
    collected = called("collect", str(questions), "--model", f"python:{HERE}:MODEL", "--out", records, *drawn)
    assert collected.exit_code == 0, collected.output
    assert read_records(records).header.plan.n == 0
    for step in (
        ["score", records, *flag],
        ["label", records, "--rule", "exact"],
        ["fit", records, "--alpha", "0.1", "--rule", "certified", "--out", artifact],
    ):
        result = called(*step)
        assert result.exit_code == 0, result.output
    assert result.output.startswith("answer if score:rank@1 >= ")  # high means certain
    loaded = CalibrationArtifact.load(artifact)
    assert (loaded.estimator.name, loaded.plan.follow_ups) == ("score:rank@1", ("score:rank@1",))
    guard = Guardrail(model=resolve_model(f"python:{HERE}:MODEL"), artifact=loaded, using={"scorer": rank})
    assert [guard.assess(q).accepted for q in ("q0", "q199")] == [False, True]


@scorer(version=1, higher="certain")
def coarse(answer: str) -> float:
    """Two values: half of the answers tie."""
    return 0.9 if int(answer[1:]) >= 100 else 0.5


def test_ties_of_a_scorer_are_broken(questions: Path, tmp_path: Path) -> None:
    records, artifact = str(tmp_path / "r.jsonl"), str(tmp_path / "a.json")
    model = ["--model", f"python:{HERE}:MODEL"]
    collected = called("collect", str(questions), *model, "--out", records, "--score", "sequence_nll")
    assert collected.exit_code == 0, collected.output
    labelled = called("label", records, "--rule", "exact")
    assert labelled.exit_code == 0, labelled.output
    scored = called("score", records, "--scorer", f"{HERE}:coarse", "--score", "ties(score:coarse@1, sequence_nll)")
    assert scored.exit_code == 0, scored.output
    key = "ties(score:coarse@1, sequence_nll, r=0.001)"
    assert key in read_records(records).header.estimators
    fit = ["fit", records, "--score", "ties(score:coarse@1,sequence_nll)", "--alpha", "0.2"]
    result = called(*fit, "--rule", "certified", "--out", artifact)
    assert result.exit_code == 0, result.output
    loaded = CalibrationArtifact.load(artifact)
    assert (loaded.estimator.name, loaded.plan.n, loaded.plan.logprobs) == ("ties", 0, True)
    stricter = fit_artifact(read_records(records), score=key, alpha=0.06, rule="certified")
    assert summary(stricter)[0].startswith("answer if ties <= ")
    assert loaded.plan.follow_ups == ("score:coarse@1",)
    guard = Guardrail(model=resolve_model(f"python:{HERE}:MODEL"), artifact=loaded, using={"scorer": coarse})
    on_file = {record.id: record.scores[key].value for record in read_records(records).records}
    for place in (3, 50, 150, 199):
        assert guard.assess(f"q{place}").uncertainty.value == on_file[str(place)]


def test_run_with_a_scorer(questions: Path, tmp_path: Path) -> None:
    asked = ["run", "--questions", str(questions), "--model", f"python:{HERE}:MODEL", "--scorer", f"{HERE}:rank"]
    settings = ["--correctness", "exact", "--rule", "certified", "--set", "splits=0", "--out", str(tmp_path / "out")]
    result = called(*asked, *settings)
    assert result.exit_code == 0, result.output
    artifact = CalibrationArtifact.load(tmp_path / "out" / "artifact.json")
    assert (artifact.estimator.name, artifact.plan.n) == ("score:rank@1", 0)
    guard = Guardrail(model=MODEL, artifact=artifact, using={"scorer": rank})
    assert [guard.assess(q).accepted for q in ("q0", "q199")] == [False, True]
    for other in (["--score", "auto"], ["--calls", "1"]):
        refused = called(*asked, *settings, *other)
        assert refused.exit_code != 0
        assert "--scorer is the score of the run" in " ".join(refused.output.split())


def test_names_of_scorers() -> None:
    assert load_scorer(f"{HERE}:rank") is load_scorer(f"{HERE}:made") is rank
    with pytest.raises(UsageError, match=r"'rank' names no attribute\. Write MODULE:NAME"):
        load_scorer("rank")
    with pytest.raises(UsageError, match=r"is a ScriptedChat. Decorate the function"):
        load_scorer(f"{HERE}:MODEL")
