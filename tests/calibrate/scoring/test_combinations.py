"""Expressions of scores, the questions that their ranks come from, and a fit that leaves those out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import Record, RecordFile, read_records
from calibrate.narrowing import narrowed_plan
from calibrate.pipeline import fit_artifact
from calibrate.scoring.apart import ranks_from, without_ranked
from calibrate.scoring.compute import score_records
from calibrate.scoring.names import estimator_key, parse_estimator, stored_key, usual_estimator
from guardrail import CalibrationArtifact, Guardrail, rank_mean, then
from guardrail.errors import UsageError
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.combine import Parts
from guardrail.uncertainty.plan import plan_for
from tests.combinations import ranks_of

CHEAP, DEAR = make_estimator("sequence_nll"), make_estimator("primary_disagreement")
EXPRESSION = "then(sequence_nll, primary_disagreement, w=0.2, m=2)"
PLAN = SamplingPlan(n=2, logprobs=True, cut_off="abstain")


def record(number: int, *, correct: bool | None = None, logprobs: bool = True) -> Record:
    answer = Sample(text=f"a{number}")
    if logprobs:
        answer = Sample(text=f"a{number}", tokens=(f"a{number}",), logprobs=(-number / 100,))
    drawn = SampleSet(question=f"q{number}?", primary=answer, samples=(Sample(text="b"),) * 2)
    return Record(id=f"r{number}", question=f"q{number}?", drawn=drawn, correct=correct)


def file_of(labelled: RecordFile, records: list[Record]) -> RecordFile:
    header = labelled.header.model_copy(update={"plan": PLAN, "estimators": {}, "n_questions": len(records)})
    return RecordFile(labelled.path, header, tuple(records))


def model() -> ScriptedChat:
    """Questions 0 to 799; the larger the number, the less certain and the more often wrong is the answer."""
    script = {}
    for i in range(800):
        text, wrong = f"place{i}", i % 10 < i // 100
        tokens = {"content": [{"token": text, "logprob": -i / 100}]}
        answer = AIMessage(text, response_metadata={"finish_reason": "stop", "logprobs": tokens})
        script[f"Where is {i}?"] = [answer, f"other{i}" if wrong else text, text]
    return ScriptedChat(script=script)


# -- Expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("then(sequence_nll,primary_disagreement)", EXPRESSION),
        (" then( sequence_nll , primary_disagreement:exact, m = 4,w=.5)", EXPRESSION.replace(
            "disagreement, w=0.2, m=2", "disagreement:exact, w=0.5, m=4")),
        ("ties(verbalised, sequence_nll)", "ties(verbalised, sequence_nll, r=0.001)"),
        ("rank_mean(num_sets, degree, sequence_nll)", "rank_mean(num_sets, degree, sequence_nll)"),
        ("rank_mean(degree, num_sets:text(threshold=0.9))",) * 2,
    ],
)  # fmt: skip
def test_an_expression_is_read_as_it_is_shown(text: str, key: str) -> None:
    made = parse_estimator(text)
    assert estimator_key(made) == key
    assert parse_estimator(key).spec == made.spec
    known = {key: made.spec, "degree": make_estimator("degree").spec}
    assert stored_key(known, text) == key


def test_what_an_expression_leaves_open_is_the_default() -> None:
    specs = {estimator_key(each): each.spec for each in (then(CHEAP, DEAR), then(CHEAP, DEAR, m=4))}
    assert stored_key(specs, "then(sequence_nll, primary_disagreement)") == EXPRESSION
    assert stored_key(specs, "then(sequence_nll, primary_disagreement, m=4)") == EXPRESSION.replace("m=2", "m=4")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("then(sequence_nll)", "Write then"),
        ("ties(sequence_nll, num_sets, degree)", "Write then"),
        ("then(sequence_nll, primary_disagreement, x=2)", "Write then"),
        ("then(sequence_nll, primary_disagreement, w=two)", "'w=two'.*not a number"),
        ("rank_mean(sequence_nll,)", "a score is missing"),
        ("rank_mean(sequence_nll, nonsense)", "no score named 'nonsense'"),
        ("rank_mean(sequence_nll, ties(degree, num_sets))", "a combination itself"),
        ("rank_mean(sequence_nll, imported:c)", "came with an imported file"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_estimator(text)


def test_calls_name_scores_and_samples() -> None:
    for calls, name, n in (
        (1, "answer_word_nll", 0),
        (1.4, "then(answer_word_nll, primary_disagreement)", 2),
        (3, "graded_disagreement", 2),
        (11, "semantic_entropy", 10),
    ):
        assert usual_estimator(calls, options=False) == name
        assert plan_for([parse_estimator(name)], calls=calls).n == n
    with pytest.raises(UsageError, match=r"calls must be one of 1, 1.4, 3, 11, got 2"):
        usual_estimator(2, options=False)
    with pytest.raises(UsageError, match="for open answers"):
        usual_estimator(1, options=True)
    with pytest.raises(UsageError, match=r"semantic_entropy needs samples, and calls = 1 draws 0"):
        plan_for([make_estimator("semantic_entropy")], calls=1)


# -- Ranks -------------------------------------------------------------------------------------------------------------


def test_ranks_are_the_sorted_scores_of_unlabelled_questions_where_there_are_enough(labelled: RecordFile) -> None:
    """Otherwise labels that a fit needs would be spent where none is read."""
    mixed = [record(i, correct=True if i < 200 else None) for i in range(800)]
    ranks = ranks_from(file_of(labelled, mixed), then(CHEAP, DEAR), EXPRESSION)
    assert len(ranks.questions.ids) == 330  # 300 and a tenth
    assert min(ranks.scores[0]) >= 2.0  # record i has the score i/100
    assert list(ranks.scores[0]) == sorted(ranks.scores[0])
    assert ranks == ranks_from(file_of(labelled, mixed[::-1]), then(CHEAP, DEAR), EXPRESSION)
    rest = without_ranked(then(CHEAP, DEAR, ranks=ranks).spec, mixed)
    assert len(rest) == 470
    few = [record(i, correct=True if i < 600 else None) for i in range(800)]
    assert min(ranks_from(file_of(labelled, few), then(CHEAP, DEAR), EXPRESSION).scores[0]) < 2.0
    both = ranks_from(file_of(labelled, mixed), rank_mean(CHEAP, DEAR), "")
    assert (both.scores[0], set(both.scores[1])) == (ranks.scores[0], {1.0})


def test_undecided_answers_are_not_taken_for_unlabelled_ones(labelled: RecordFile) -> None:
    """A fit counts them as wrong: ranks that took them would leave out of the fit the answers that err most."""
    doubt = {"references": ("x",), "label_detail": "in doubt"}
    records = [record(i, correct=True) if i < 400 else record(i).model_copy(update=doubt) for i in range(800)]
    ranks = ranks_from(file_of(labelled, records), then(CHEAP, DEAR), EXPRESSION)
    rest = without_ranked(then(CHEAP, DEAR, ranks=ranks).spec, records)
    assert len(rest) == 470
    assert 195 < sum(each.is_undecided for each in rest) < 275  # half of what is left, as of all


def test_too_few_questions_are_refused_with_their_number(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match="330 others, which a fit then leaves out, and there are only 300"):
        ranks_from(file_of(labelled, [record(i) for i in range(300)]), then(CHEAP, DEAR), EXPRESSION)
    bare = [record(i, logprobs=i % 10 != 0) for i in range(400)]
    with pytest.raises(UsageError, match=r"2\d\d of 330 answers have a score by sequence_nll, and then needs 300"):
        ranks_from(file_of(labelled, bare), then(CHEAP, DEAR), EXPRESSION)


def test_an_equal_question_or_a_cluster_of_the_ranks_is_left_out_too(labelled: RecordFile) -> None:
    records = [record(i).model_copy(update={"group": f"g{i % 400}"}) for i in range(800)]
    ranks = ranks_from(file_of(labelled, records), then(CHEAP, DEAR), EXPRESSION)
    spec = then(CHEAP, DEAR, ranks=ranks).spec
    again = [each.model_copy(update={"id": f"again-{each.id}"}) for each in records]
    assert len(without_ranked(spec, [*records, *again])) == 2 * 470
    groups = {each.group for each in without_ranked(spec, records, groups="cluster")}
    ranked = {each.group for each in records} - groups
    left = {each.id for each in without_ranked(spec, records)}
    assert {each.group for each in records if each.id not in left} == ranked


def test_other_records_are_ranked_alike(labelled: RecordFile) -> None:
    """A test part ranked among itself would have other scores than a guard computes."""
    estimator = then(CHEAP, DEAR)
    calibration = score_records(file_of(labelled, [record(i) for i in range(700)]), [estimator])
    fresh = score_records(file_of(labelled, [record(i) for i in range(700, 710)]), [estimator], ranks=calibration)
    assert fresh.header.estimators == calibration.header.estimators
    again = score_records(calibration, [estimator])
    assert again.header.estimators == calibration.header.estimators
    stored = Parts.from_stored(fresh.header.estimators[EXPRESSION].params)
    assert stored.ranks is not None
    # c = 7.0 is above all ranks of 0 to 6.99, and no sample agrees: 1 + .2
    assert fresh.records[0].scores[EXPRESSION].value == pytest.approx(1.2)


def test_a_guard_draws_only_what_the_score_reads() -> None:
    ranks = ranks_of(range(300))
    collected = SamplingPlan(n=10, logprobs=True)
    assert narrowed_plan(collected, then(CHEAP, DEAR, ranks=ranks).spec).n == 2
    mean = rank_mean(CHEAP, make_estimator("num_sets"), ranks=ranks_of(range(300), range(300)))
    assert (narrowed_plan(collected, mean.spec).n, narrowed_plan(collected, mean.spec).logprobs) == (10, True)


def test_run_makes_two_stages_and_the_guard_serves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"r{i}", "question": f"Where is {i}?", "references": [f"place{i}"]} for i in range(800)]
    for i, row in enumerate(rows):
        if i % 10 < i // 100:
            row["references"] = ["elsewhere"]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "run --questions q.jsonl --calls 1.4 --alpha .2 --test-fraction .1 --set splits=0 --correctness token_f1"
    asked = [*command.split(), "--model", f"python:{__name__}:model", "--out", "out"]
    outcome = CliRunner().invoke(app, asked)
    assert outcome.exit_code == 0, outcome.output
    assert "then ranks answers by 330 questions, which the fit leaves out" in " ".join(outcome.output.split())
    artifact = CalibrationArtifact.load("out/artifact.json")
    assert (artifact.estimator.name, artifact.plan.n) == ("then", 2)
    assert artifact.data.n_questions == 720 - 330
    guard = Guardrail(model=model(), artifact=artifact)
    calls = sum(guard.assess(f"Where is {i}?").cost.calls for i in range(0, 800, 8))
    assert 100 < calls < 200  # of 300
    again = CliRunner().invoke(app, asked)
    assert again.exit_code == 0, again.output
    assert CalibrationArtifact.load("out/artifact.json").estimator == artifact.estimator  # a resumed run ranks alike
    file = read_records("out/records.jsonl")
    key = stored_key(file.header.estimators, "then(answer_word_nll, primary_disagreement)")
    assert fit_artifact(file, score=key, alpha=0.2).outcome == artifact.outcome
    assert read_records("out/test-records.jsonl").header.estimators[key] == artifact.estimator
