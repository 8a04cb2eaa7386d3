"""The forecast of `calibrate run`: what is left, by its measured time, and a scorer's calls apart from the model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.cli.frame.collecting import asking, judging
from calibrate.cli.frame.settings import CollectSettings
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records, write_records
from guardrail import plan_for, scorer
from guardrail.judges import ExactJudge
from guardrail.judges.cache import PairCache
from guardrail.testing import ScriptedChat
from guardrail.types import Cost
from guardrail.uncertainty import make_estimator

PLAN = plan_for([make_estimator("discrete_semantic_entropy", judge=ExactJudge())], n=3)
QUESTIONS = [Question(id=f"q{i}", question=f"question {i}?", references=("a",)) for i in range(40)]


@scorer(version=1, higher="certain", calls=2)
def rated(answer: str) -> float:
    return 0.5


@scorer(version=1, higher="certain", calls=0)
def free(answer: str) -> float:
    return 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten of the forty questions on file; the draw of each took 6 seconds."""
    path = tmp_path / "records.jsonl"
    model = ScriptedChat(script={question.question: ["a", "b", "c"] for question in QUESTIONS})
    collect_records(QUESTIONS[:10], model, PLAN, path, allow_identical_samples=True)
    file = read_records(path)
    timed = [
        each.model_copy(update={"drawn": each.drawn.model_copy(update={"cost": Cost(calls=4, seconds=6.0)})})
        for each in file.records
        if each.drawn is not None
    ]
    write_records(path, file.header, timed)
    return path


def test_answers_on_file_cost_nothing_and_say_how_long_the_others_take(path: Path) -> None:
    (line,) = asking([(QUESTIONS, path)], PLAN, [], CollectSettings(), local=False, price=0.5)
    # 30 left, 4 calls each; 16 calls at once are 4 questions beside each other: 30 * 6 s / 4 = 45 s.
    assert "30 questions (10 of 40 are on file) x 4 calls = 120 calls, 60.00 at 0.5 a call; about 1 min" in line
    assert "by the time of the 10 on file" in line
    assert "assumed" not in line
    (line,) = asking([(QUESTIONS, path)], PLAN, [], CollectSettings(max_concurrency=4), local=False, price=None)
    assert "about 3 min" in line  # one question after the other: 180 s
    (line,) = asking([(QUESTIONS[:10], path)], PLAN, [], CollectSettings(), local=False, price=1.0)
    assert line == "1. Asking: no calls; the answers to all 10 questions are on file."


def test_only_the_time_of_local_weights_is_assumed(tmp_path: Path) -> None:
    """An endpoint is timed by its probe, which comes next: an assumed second a call may be wrong by a factor of ten."""
    parts = [(QUESTIONS, tmp_path / "none.jsonl")]
    (line,) = asking(parts, PLAN, [], CollectSettings(max_concurrency=2), local=False, price=None)
    assert line.startswith("1. Asking: 40 questions x 4 calls = 160 calls. Stop it")
    (line,) = asking(parts, PLAN, [], CollectSettings(), local=True, price=None)
    assert "about 3 min if an answer takes 1 s, which is assumed" in line  # local weights: one after the other


def test_a_run_says_how_many_questions_follow_as_a_test(tmp_path: Path) -> None:
    parts = [(QUESTIONS[:28], tmp_path / "none"), (QUESTIONS[28:], tmp_path / "none")]
    (line,) = asking(parts, PLAN, [], CollectSettings(), local=False, price=None)
    assert "40 questions (28 to calibrate, then 12 to test) x 4 calls" in line


def test_a_scorer_is_not_a_call_of_the_model(tmp_path: Path) -> None:
    plan = plan_for([rated.estimator, free.estimator])
    shown = asking([(QUESTIONS, tmp_path / "none")], plan, [rated, free], CollectSettings(), local=False, price=0.5)
    assert "40 questions x 1 call = 40 calls, 20.00 at 0.5 a call" in shown[0]
    assert shown[1] == (
        "   Scorer rated: one score a question, 2 calls each by its own account = 80 calls, which the price leaves out."
    )
    assert shown[2] == "   Scorer free: 40 scores, no model calls."


def test_questions_about_the_answer_are_calls() -> None:
    plan = plan_for([make_estimator("p_true")], n=3)
    (line,) = asking([(QUESTIONS, Path("none"))], plan, [], CollectSettings(), local=False, price=None)
    assert "x 5 calls, 1 of them a question about the answers = 200 calls" in line


def test_models_that_judge_are_named_and_their_replies_on_file_counted(tmp_path: Path) -> None:
    class Slow(ExactJudge):
        is_slow = True

    replies = tmp_path / "records.judge.sqlite"
    PairCache(replies).store({bytes([number]): "yes" for number in range(15)})
    slow = make_estimator("discrete_semantic_entropy", judge=Slow())
    line = judging(40, PLAN, [slow], [replies, tmp_path / "none"])
    assert "asks a model about up to 6 pairs of answers a question" in line  # 4 answers
    assert "up to 25 calls of the model that judges" in line
    line = judging(40, PLAN, [make_estimator("discrete_semantic_entropy", judge=ExactJudge())], None)
    assert "Scoring: seconds, no calls. Labels: seconds, no calls." in line
