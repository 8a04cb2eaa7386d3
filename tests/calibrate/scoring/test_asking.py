"""Scorers from collection to artifact: asked while collecting, about answers on file, and about logged answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrate import collect_records, fit_artifact, from_frame, label_records, read_records, score_records
from calibrate.correctness import make_rule
from calibrate.data.questions import Question
from calibrate.data.records import RecordFile
from calibrate.data.table import table_of
from calibrate.dataframe import Records
from guardrail import Guardrail, PromptWrapping, Scorer, plan_for, scorer
from guardrail.errors import UsageError
from guardrail.testing import ScriptedChat
from guardrail.types import SamplingPlan, Uncertainty, Unmeasured

N = 200
MODEL = ScriptedChat(script={f"q{i}": [f"a{i}"] for i in range(N)})
QUESTIONS = [Question(id=f"id{i}", question=f"q{i}", references=(f"a{i}" if i >= 20 else "other",)) for i in range(N)]
KEY = "score:rank@1"


class Rank:
    """A scorer of answers "a0", ..., "a199" by their number, which counts its calls."""

    def __init__(self, **settings: Any) -> None:
        self.calls: list[str] = []

        @scorer(**{"version": 1, "higher": "certain", "params": {"of": N}, **settings})
        def rank(answer: str) -> float:
            self.calls.append(answer)
            return int(answer[1:]) / N

        self.scorer: Scorer = rank


def collected(path: Path, rank: Rank, **options: Any) -> RecordFile:
    plan = plan_for([rank.scorer.estimator])
    collect_records(QUESTIONS, MODEL, plan, path, scorer=rank.scorer, **options)
    return read_records(path)


def scores_of(file: RecordFile) -> dict[str, Mapping[str, Uncertainty]]:
    """By id: a collection writes records as they are answered."""
    return {record.id: record.scores for record in file.records}


def test_what_is_collected_is_what_the_guard_computes(tmp_path: Path) -> None:
    rank = Rank()
    records = Records(collected(tmp_path / "r.jsonl", rank)).score(rank.scorer).label("exact")
    assert sorted(rank.calls) == sorted(f"a{i}" for i in range(N))  # once each, and not again by score
    artifact = records.fit(alpha=0.1, rule="certified")
    assert (artifact.plan.n, artifact.plan.follow_ups, artifact.estimator.name) == (0, (KEY,), KEY)
    guard = Guardrail(model=MODEL, artifact=artifact, using={"scorer": rank.scorer})
    for record in records.file.records[::10]:
        verdict = guard.assess(record.question)
        assert verdict.uncertainty.value == record.scores[KEY].value
        assert verdict.cost.calls == 2
    assert artifact.threshold is not None


def test_answers_on_file_are_rated_as_fresh_ones_are(tmp_path: Path) -> None:
    live, later = Rank(), Rank()
    fresh = Records(collected(tmp_path / "live.jsonl", live)).score(live.scorer)
    collect_records(QUESTIONS, MODEL, SamplingPlan(n=0), tmp_path / "bare.jsonl")
    on_file = Records.read(tmp_path / "bare.jsonl").score(later.scorer)
    assert scores_of(on_file.file) == scores_of(fresh.file)
    assert on_file.file.header.plan.follow_ups == fresh.file.header.plan.follow_ups == (KEY,)
    assert on_file.file.header.estimators == fresh.file.header.estimators


def test_an_answer_is_rated_once_unless_the_transport_failed(tmp_path: Path) -> None:
    asked: list[str] = []
    failing = {"a3": ConnectionResetError(), "a4": ValueError()}

    @scorer(version=1, higher="certain")
    def rank(answer: str) -> float:
        asked.append(answer)
        if answer in failing:
            raise failing[answer]
        return int(answer[1:]) / N

    collect_records(QUESTIONS[:10], MODEL, SamplingPlan(n=0), tmp_path / "r.jsonl")
    first = score_records(read_records(tmp_path / "r.jsonl"), [rank.estimator])
    reasons = {id: scores[KEY].reason for id, scores in scores_of(first).items()}
    assert (reasons["id3"], reasons["id4"], reasons["id5"]) == (Unmeasured.MODEL_FAILED, Unmeasured.JUDGE_FAILED, None)
    del failing["a3"]
    asked.clear()
    again = score_records(first, [rank.estimator])
    assert asked == ["a3"]
    assert scores_of(again)["id3"][KEY].value == 1 - 3 / N
    assert scores_of(again)["id4"][KEY].reason is Unmeasured.JUDGE_FAILED


def test_another_scorer_of_the_same_name_rates_again(tmp_path: Path) -> None:
    first, second = Rank(), Rank(params={"of": "other"})
    file = score_records(collected(tmp_path / "r.jsonl", first), [first.scorer.estimator])
    again = score_records(file, [second.scorer.estimator])
    assert len(second.calls) == N
    assert again.header.estimators[KEY] == second.scorer.estimator.spec


def test_logged_answers(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": f"a{i}", "correct": i >= 20} for i in range(N)]
    rank = Rank()
    records = from_frame(rows, model=MODEL).score(rank.scorer)
    artifact = records.fit(alpha=0.1, rule="certified", score=KEY)
    artifact.save(tmp_path / "a.json")
    guard = Guardrail(model=MODEL, artifact=tmp_path / "a.json", using={"scorer": rank.scorer})
    assert guard.assess("q199").accepted
    assert not guard.assess("q0").accepted


def test_slots_and_messages_are_those_that_were_sent(tmp_path: Path) -> None:
    prompt = PromptWrapping(
        system="Be brief.", template="{context}\n---\n{question}", slots=("context",), question_slots=("context",)
    )
    seen: list[tuple[Any, ...]] = []

    @scorer(version=1, higher="certain")
    def grounded(question: str, slots: dict[str, str], messages: list[Any]) -> float:
        seen.append((question, slots["context"], [message.text for message in messages]))
        return 0.5

    talk = ({"role": "user", "content": "before"}, {"role": "assistant", "content": "reply"})
    questions = [
        Question(id="1", question="q?", slots={"context": "this"}, references=("a",)),
        Question(id="2", question="r?", slots={"context": "that"}, messages=(*talk, {"role": "user", "content": "r?"})),
    ]
    plan, model = plan_for([grounded.estimator]), ScriptedChat(default=["a"])
    collect_records(questions, model, plan, tmp_path / "live.jsonl", prompt=prompt, scorer=grounded)
    collect_records(questions, model, SamplingPlan(n=0), tmp_path / "bare.jsonl", prompt=prompt)
    score_records(read_records(tmp_path / "bare.jsonl"), [grounded.estimator])
    first = ("q?", "this", ["Be brief.", "this\n---\nq?"])
    assert sorted(seen) == [first] * 2 + [("r?", "that", ["Be brief.", "before", "reply", "that\n---\nr?"])] * 2


def test_messages_that_no_record_has_leave_the_answer_unrated(tmp_path: Path) -> None:
    asked = [Question(id="1", question="q?", references=("a",))]
    collect_records(asked, ScriptedChat(default=["a"]), SamplingPlan(n=0), tmp_path / "r.jsonl")
    file = read_records(tmp_path / "r.jsonl")
    longer = replace(file, records=table_of([r.model_copy(update={"turns": "human,ai,human"}) for r in file.records]))

    @scorer(version=1, higher="certain")
    def whole(messages: list[Any]) -> float:
        raise AssertionError("must not be asked")

    @scorer(version=1, higher="certain")
    def last(question: str) -> float:
        return float(question == "q?")

    file = score_records(longer, [whole.estimator, last.estimator])
    assert file.records[0].scores["score:whole@1"].reason is Unmeasured.NOT_RECORDED
    assert file.records[0].scores["score:last@1"].value == 0


@pytest.mark.parametrize("named", ["id7", "Q7 "])
def test_questions_that_the_score_was_trained_on_are_refused(tmp_path: Path, named: str) -> None:
    ids = tmp_path / "fit-ids.txt"
    ids.write_text(f"{named}\n")
    rank = Rank(trained_on=ids)
    file = score_records(collected(tmp_path / "r.jsonl", rank), [rank.scorer.estimator])
    labelled = label_records(file.records, make_rule("exact"))
    header = file.header.model_copy(update={"correctness": make_rule("exact").spec})
    whole = RecordFile(file.path, header, table_of(labelled))
    with pytest.raises(UsageError, match=r"1 of 200 calibration records .* scorer score:rank@1 was trained on .* id7"):
        fit_artifact(whole, score=KEY, alpha=0.1, rule="certified")
    rest = RecordFile(file.path, header, table_of([r for r in labelled if r.id != "id7"]))
    artifact = fit_artifact(rest, score=KEY, alpha=0.1, rule="certified")
    ids.unlink()  # it need not exist where answers are served
    assert Guardrail(model=MODEL, artifact=artifact, using={"scorer": Rank().scorer}).assess("q199").accepted


def test_a_plan_with_a_scorer_needs_it_and_no_engine_has_it(tmp_path: Path) -> None:
    rank = Rank()
    plan = plan_for([rank.scorer.estimator])
    with pytest.raises(UsageError, match=r"was not given\. Pass it as scorer="):
        collect_records(QUESTIONS, MODEL, plan, tmp_path / "r.jsonl")
    engine: Any = object()
    with pytest.raises(UsageError, match="calibrate score --scorer"):
        collect_records(QUESTIONS, MODEL, plan, tmp_path / "r.jsonl", scorer=rank.scorer, engine=engine)
