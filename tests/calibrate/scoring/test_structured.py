"""Answers in a format, and tool calls: compared as values by default, from `collect` to the artifact."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.correctness import JsonValues, Option, Stated, ToolCalls, default_rule, make_rule
from calibrate.correctness.advice import structured_advice
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import Record, read_records
from calibrate.scoring.names import parse_estimator
from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.judges import JsonJudge
from guardrail.specs import CorrectnessSpec
from guardrail.testing import ScriptedChat
from guardrail.types import Bindings, Sample, SampleSet, ToolCall
from guardrail.uncertainty.plan import plan_for

CITIES = ("Paris", "Lyon", "Rome", "Oslo", "Bern")
SIZE = 60


class City(BaseModel):
    capital: str


FORMAT = bindings_for(response_format=City)


def look_up(city: str) -> str:
    """Look a city up."""
    return city


def calling(city: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look_up", "args": {"city": city}, "id": "1", "type": "tool_call"}])


def right(i: int) -> str:
    return CITIES[i % len(CITIES)]


def chat() -> ScriptedChat:
    """Answers {"capital": ...}; every third question gets a wrong one from it, and varied samples."""
    dice = random.Random(3)
    script = {}
    for i in range(SIZE):
        cities = [dice.choice(CITIES) for _ in range(11)] if i % 3 == 0 else [right(i)] * 10 + ["Lyon"]
        cities[0] = right(i + 1) if i % 3 == 0 else right(i)
        script[f"{i}?"] = [json.dumps({"capital": city}) for city in cities]
    return ScriptedChat(script=script, probability=0.9)


MODEL = f"python:{__name__}:chat"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    rows = [{"id": str(i), "question": f"{i}?", "references": [json.dumps({"capital": right(i)})]} for i in range(SIZE)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "format.json").write_text(FORMAT.model_dump_json())
    return tmp_path


def shown(*command: str) -> str:
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def label(answer: str, *references: str) -> bool | None:
    return JsonValues().label(answer, Question(id="1", question="?", references=references)).correct


def record(name: str, sample: Sample, correct: bool | None = False, options: dict[str, str] | None = None) -> Record:
    drawn = SampleSet(question="?", primary=sample)
    return Record(id=name, question="?", references=("x",), drawn=drawn, correct=correct, options=options)


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        ('{"capital": "Rome"}', '{ "capital":"Rome" }', True),
        ('{"capital": "Lyon"}', '{"capital": "Rome"}', False),
        ('{"capital": "Rome", "sure": true}', '{"capital": "Rome"}', False),
        ('{"capital": "Rome"}', "rome", True),  # the only field against a plain reference
        ('{"capital": "Rome"}', '"Rome"', True),
        ('{"capital": "Lyon"}', "Rome", False),
        ('{"n": 42}', "42.0", True),
        ('{"n": "42"}', "42", True),
        ('{"n": 42}', "43", False),
        ('{"n": 42}', "forty-two", False),
        ('{"n": true}', "true", True),
        ('{"n": [1]}', "[1]", False),
        ('{"n": "[1]"}', "[1]", False),
        ('{"a": "Rome", "b": "Rome"}', "Rome", False),
        ("Rome", '{"capital": "Rome"}', False),
        ("Rome.", "rome", True),
        ('{"capital": "Ro', '{"capital": "Rome"}', False),
    ],
)
def test_right_is_the_same_value(answer: str, reference: str, correct: bool) -> None:
    assert label(answer, reference) is correct
    assert label(answer, "something else", reference) is correct


def test_the_rule_is_named_and_stored() -> None:
    assert make_rule("json") == JsonValues()
    assert JsonValues().spec == CorrectnessSpec(name="json", version=4, params={})


def test_the_default_rule_depends_on_the_plan_and_the_questions() -> None:
    open_, closed = Record(id="a", question="?"), Record(id="b", question="?", options={"A": "1", "B": "2"})
    tools = bindings_for([look_up])
    both = tools.model_copy(update={"response_format": FORMAT.response_format})
    assert default_rule([open_], FORMAT) == default_rule([open_], both) == JsonValues()
    intended = Record(id="c", question="?", references=('{"name": "look_up", "arguments": {}}',))
    assert isinstance(default_rule([open_, intended], tools), ToolCalls)
    assert default_rule([open_], tools) == Stated()  # no reference is a call: questions that are answered in words
    assert default_rule([intended]) == Stated()
    assert default_rule([closed], FORMAT) == default_rule([closed], tools) == Option()
    assert default_rule([open_], Bindings()) == default_rule([open_]) == Stated()


def test_run_compares_answers_in_a_format_as_values_by_default(folder: Path) -> None:
    output = shown(
        *f"run --questions q.jsonl --model {MODEL} --tools format.json --alpha 0.2 --out out --set splits=0".split()
    )
    assert "Rule json:" in output
    assert "compares words" not in output
    artifact = CalibrationArtifact.load(folder / "out" / "artifact.json")
    assert artifact.correctness == JsonValues().spec
    assert artifact.estimator.judge == JsonJudge().spec
    records = read_records(folder / "out" / "records.jsonl").records
    assert all(each.correct == (int(each.id) % 3 != 0) for each in records)


def test_the_steps_compare_answers_in_a_format_as_values_by_default(folder: Path) -> None:
    shown(*f"collect q.jsonl --model {MODEL} --tools format.json --out r.jsonl".split())
    shown(*["score", "r.jsonl", "-s", "semantic_entropy"])
    shown(*["score", "r.jsonl", "-s", "semantic_entropy:exact", "-s", "num_sets:text"])
    assert "Rule json: 40 of 60" in shown("label", "r.jsonl")
    fit = "fit r.jsonl --rule acrc --alpha 0.2 --out"
    shown(*f"{fit} by-default.json".split())
    shown(*f"{fit} by-name.json --score semantic_entropy".split())
    for name in ("by-default.json", "by-name.json"):
        assert CalibrationArtifact.load(folder / name).estimator.judge == JsonJudge().spec


def test_a_rule_or_judge_of_words_that_is_named_is_used_with_one_warning(folder: Path) -> None:
    words = "--correctness token_f1 --score semantic_entropy:text"
    command = (
        f"run --questions q.jsonl --model {MODEL} --tools format.json {words} --alpha 0.2 --out out --set splits=0"
    )
    output = shown(*command.split())
    assert output.count("rule token_f1 compares words") == output.count("judge text compares words") == 1
    assert "--correctness json" in output
    artifact = CalibrationArtifact.load(folder / "out" / "artifact.json")
    assert artifact.correctness.name == "token_f1"
    assert shown("label", "out/records.jsonl", "--rule", "exact").count("rule exact compares words") == 1


TOOL_CALL = Sample(text="", tool_calls=(ToolCall(name="look_up", arguments={"city": "Rome"}),))
OBJECT, TEXT = Sample(text='{"capital": "Rome"}'), Sample(text="Rome")


@pytest.mark.parametrize(
    ("sample", "rule", "correct", "better"),
    [
        (TOOL_CALL, "token_f1", False, "--rule tool_call"),
        (TOOL_CALL, "chat_judge", False, "--rule tool_call"),
        (OBJECT, "token_f1", True, "--rule json"),
        (OBJECT, "numeric", False, "--rule json"),
        (OBJECT, "tool_call", False, "--rule json"),
        (TEXT, "tool_call", False, "--rule stated"),
        (TOOL_CALL, "tool_call", False, "References must be JSON of the same form"),
    ],
)
def test_the_better_rule_is_named(sample: Sample, rule: str, correct: bool, better: str) -> None:
    [output] = structured_advice([record(str(i), sample, correct) for i in range(3)], rule)
    assert better in output


@pytest.mark.parametrize(
    ("sample", "rule", "correct"),
    [
        (TOOL_CALL, "tool_call", True),
        (OBJECT, "json", True),
        (OBJECT, "numeric", True),
        (OBJECT, "given", False),
        (TEXT, "token_f1", False),
        (TEXT, "tool_call", True),
    ],
)
def test_a_rule_that_fits_is_left_alone(sample: Sample, rule: str, correct: bool) -> None:
    assert structured_advice([record("1", sample, correct)], rule) == []


def test_tool_calls_are_labelled_by_tool_call_by_default(tmp_path: Path) -> None:
    call = json.dumps([{"name": "look_up", "arguments": {"city": "Rome"}}])
    questions = [Question(id=str(i), question=f"{i}?", references=(call,)) for i in range(3)]
    message = ScriptedChat(default=[calling("Rome"), calling("Oslo"), calling("Rome")])
    plan = plan_for([parse_estimator("discrete_semantic_entropy")], n=2, bindings=bindings_for([look_up]))
    path = tmp_path / "r.jsonl"
    collect_records(questions, message, plan, path)
    assert "Rule tool_call: 3 of 3" in shown("label", str(path))
    assert "Use rule tool_call" in shown("label", str(path), "--rule", "token_f1")
