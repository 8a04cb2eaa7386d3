"""The scale of a two-stage score: which questions it takes, and that no threshold is fitted on them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.run import _two_stage, load_config
from calibrate.data.records import Record, read_records, write_records
from calibrate.scoring.names import parse_estimator
from calibrate.scoring.scores import usual_estimators
from calibrate.scoring.two_stage import cut_for_scale, make_two_stage
from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UsageError
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for

PLAN = SamplingPlan(n=2, logprobs=True, cut_off="abstain")
CHEAP, SECOND = make_estimator("sequence_nll"), make_estimator("primary_disagreement")


def record(number: int, *, correct: bool | None = None, logprobs: bool = True) -> Record:
    answer = (
        Sample(text=f"a{number}", tokens=(f"a{number}",), logprobs=(-number / 100,)) if logprobs else Sample(text="a")
    )
    drawn = SampleSet(question=f"q{number}?", primary=answer, samples=(Sample(text="b"),) * 2)
    return Record(id=f"r{number}", question=f"q{number}?", drawn=drawn, correct=correct)


def model() -> ScriptedChat:
    """Questions 0 to 799; the larger the number, the less certain and the more often wrong is the answer."""
    script = {}
    for i in range(800):
        text, wrong = f"place{i}", i % 10 < i // 100
        tokens = {"content": [{"token": text, "logprob": -i / 100}]}
        answer = AIMessage(text, response_metadata={"finish_reason": "stop", "logprobs": tokens})
        script[f"Where is {i}?"] = [answer, f"other{i}" if wrong else text, text]
    return ScriptedChat(script=script)


def test_the_scale_takes_unlabelled_questions_where_there_are_enough() -> None:
    mixed = [record(i, correct=True if i < 200 else None) for i in range(800)]
    scaled, rest = cut_for_scale(mixed)
    assert len(scaled) == 330  # 300 and a tenth
    assert all(each.correct is None for each in scaled)
    assert {each.id for each in scaled}.isdisjoint({each.id for each in rest})
    assert len(rest) == 470
    few = [record(i, correct=True if i < 600 else None) for i in range(800)]
    assert any(each.correct for each in cut_for_scale(few)[0])
    assert [each.id for each in cut_for_scale(few)[0]] != [each.id for each in cut_for_scale(few, seed=1)[0]]
    with pytest.raises(UsageError, match="330 questions that the fit does not use, and there are 300"):
        cut_for_scale(mixed[:300])


def test_a_question_asked_twice_is_not_on_both_sides() -> None:
    twice = [record(i) for i in range(500)]
    twice += [each.model_copy(update={"id": f"again-{each.id}"}) for each in twice]
    scaled, rest = cut_for_scale(twice)
    assert {each.question for each in scaled}.isdisjoint({each.question for each in rest})


def test_the_scale_is_the_sorted_cheap_scores() -> None:
    scaled = [record(i) for i in reversed(range(310))] + [record(900, logprobs=False)]
    estimator = make_two_stage(scaled, PLAN, CHEAP, SECOND, weight=0.5)
    assert estimator.params["scale"] == pytest.approx([i / 100 for i in range(310)])
    assert estimator.params["weight"] == 0.5
    with pytest.raises(UsageError, match="299 of 300 answers have a score by sequence_nll"):
        make_two_stage([*[record(i) for i in range(299)], record(900, logprobs=False)], PLAN, CHEAP, SECOND)
    with pytest.raises(UsageError, match="weight must be a number above 0"):
        make_two_stage(scaled, PLAN, CHEAP, SECOND, weight=math.nan)


def test_calls_name_estimators_and_samples() -> None:
    for calls, names, n in (
        (1, ["answer_word_nll"], 0),
        (1.4, ["answer_word_nll", "primary_disagreement"], 2),
        (3, ["graded_disagreement"], 2),
        (11, ["semantic_entropy"], 10),
    ):
        assert usual_estimators(calls, options=False) == names
        assert plan_for([make_estimator(name) for name in names], calls=calls).n == n
    with pytest.raises(UsageError, match=r"calls must be one of 1, 1.4, 3, 11, got 2"):
        usual_estimators(2, options=False)
    with pytest.raises(UsageError, match="for open answers"):
        usual_estimators(1, options=True)
    with pytest.raises(UsageError, match=r"semantic_entropy needs samples, and calls = 1 draws 0"):
        plan_for([make_estimator("semantic_entropy")], calls=1)


def test_run_makes_two_stages_and_the_guard_serves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"r{i}", "question": f"Where is {i}?", "references": [f"place{i}"]} for i in range(800)]
    for i, row in enumerate(rows):
        if i % 10 < i // 100:
            row["references"] = ["elsewhere"]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "run --questions q.jsonl --calls 1.4 --alpha 0.2 --rule certified --test-fraction 0.1 --splits 0"
    outcome = CliRunner().invoke(
        app, [*command.split(), "--correctness", "token_f1", "--model", f"python:{__name__}:model", "--out", "out"]
    )
    assert outcome.exit_code == 0, outcome.output
    artifact = CalibrationArtifact.load("out/artifact.json")
    assert (artifact.estimator.name, artifact.plan.n) == ("two_stage", 2)
    assert artifact.data.n_questions == 720 - 330
    on_scale = parse_estimator("out/two_stage.json")
    assert on_scale.spec == artifact.estimator
    guard = Guardrail(model=model(), artifact=artifact)
    whole = Guardrail(model=model(), artifact=artifact)
    calls = 0
    for i in range(0, 800, 8):
        verdict = guard.assess(f"Where is {i}?")
        assert verdict.accepted == whole.assess(f"Where is {i}?").accepted
        calls += verdict.cost.calls
    assert 100 < calls < 200  # of 300
    again = CliRunner().invoke(
        app, [*command.split(), "--correctness", "token_f1", "--model", f"python:{__name__}:model", "--out", "out"]
    )
    assert again.exit_code == 0, again.output
    assert CalibrationArtifact.load("out/artifact.json").estimator == artifact.estimator  # a resumed run cuts the same
    header = read_records("out/records.jsonl").header
    assert any(key.startswith("two_stage:") for key in header.estimators)


@pytest.mark.slow
def test_a_threshold_is_not_fitted_on_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"r{i}", "question": f"Where is {i}?", "references": [f"place{i}"]} for i in range(800)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def calibrate(command: str) -> str:
        return " ".join(CliRunner().invoke(app, command.split()).output.replace("│", " ").split())

    calibrate(f"collect q.jsonl --calls 1.4 -m python:{__name__}:model -o r.jsonl")
    assert "330 questions; 470 others" in calibrate("two-stage r.jsonl --cheap sequence_nll")
    for name in ("two_stage.rest.jsonl", "r.jsonl"):
        calibrate(f"score {name} -e two_stage.json")
        calibrate(f"label {name}")
    refused = calibrate("fit r.jsonl -e two_stage.json --alpha 0.2")
    assert (
        "330 of 800 calibration records are among the 330 questions the two-stage score has its scale from" in refused
    )
    assert "Wrote artifact.json" in calibrate("fit two_stage.rest.jsonl -e two_stage.json --alpha 0.2")


def test_a_resumed_run_cuts_the_same_scale_although_some_answers_have_labels_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text(
        "".join(json.dumps({"question": f"Where is {i}?", "references": ["x"]}) + "\n" for i in range(800))
    )
    collected = CliRunner().invoke(app, ["collect", "q.jsonl", "--calls", "1.4", "-m", f"python:{__name__}:model"])
    assert collected.exit_code == 0, collected.output
    settings = load_config(None, {"questions": "q.jsonl", "model": "scripted", "calls": 1.4})
    _, fresh = _two_stage(settings, Path("records.jsonl"), "category")
    half = [
        each.model_copy(update={"correct": True}) if i % 2 else each
        for i, each in enumerate(read_records("records.jsonl").records)
    ]
    write_records("records.jsonl", read_records("records.jsonl").header, half)
    _, resumed = _two_stage(settings, Path("records.jsonl"), "category")
    assert resumed == fresh
    assert len(fresh) == 470


def test_the_scale_does_not_take_undecided_answers_for_unlabelled_ones() -> None:
    """A fit counts them as wrong: a scale that took them would leave out of the fit the answers that err most."""
    doubt = {"references": ("x",), "label_detail": "in doubt"}
    records = [record(i, correct=True) if i < 400 else record(i).model_copy(update=doubt) for i in range(800)]
    _, rest = cut_for_scale(records)
    undecided = sum(each.is_undecided for each in rest)
    assert len(rest) == 470
    assert 200 < undecided < 270  # half of what is left, as of all
