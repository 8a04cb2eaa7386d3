"""Several models as one system: matching of records, the joint rules, the command line, and the system at run time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from calibrate.cascade import certified_cascade, counts, fit_cascade, matched, matched_path, path_counts
from calibrate.cli import app
from calibrate.data.records import Record, RecordFile, read_records
from calibrate.rules import Feasible, Infeasible, certified
from calibrate.scoring.apart import training_of
from guardrail.artifact import GOES_ON, CascadeArtifact
from guardrail.describe import promises, why_infeasible
from guardrail.errors import ArtifactFormatError, ArtifactTamperedError, UsageError
from guardrail.guard.cascade import Cascade
from guardrail.outcome import InfeasibleReason
from guardrail.specs import EstimatorSpec
from guardrail.types import Unmeasured
from tests.calibrate import fakes
from tests.calibrate.commands import run

NAME = "discrete_semantic_entropy"
INF = float("inf")


def test_counts_by_hand() -> None:
    """The first stage answers the 1st (right) and the 2nd (wrong), the second stage the 3rd, and nobody the 4th."""
    u = np.array([[0.1, 0.1], [0.2, 0.1], [0.9, 0.3], [0.9, INF]])
    error = np.array([[0, 1], [1, 0], [1, 0], [1, 0]])
    first, second = counts(u, error, [0.2, 0.5])
    assert (first.n_accepted, first.n_errors, second.n_accepted, second.n_errors) == (2, 1, 1, 0)
    silent, alone = counts(u, error, [None, 0.1])
    assert (silent.n_accepted, alone.n_accepted, alone.n_errors) == (0, 2, 1)


# -- the path of policies ----------------------------------------------------------------------------------------------


def test_a_path_by_hand() -> None:
    u = np.array([[0.1, 5.0], [0.2, 6.0], [0.3, 7.0], [np.inf, 8.0]])
    # Three of four are measured at stage 1; ratio 1/2: ranks 1, 1, 2, 2 of it against 1, 2, 3, 4 of stage 2.
    assert matched_path(u, 0.5).tolist() == [[0.1, 5.0], [0.1, 6.0], [0.2, 7.0], [0.2, 8.0]]
    assert matched_path(u, 1.0).tolist() == [[0.1, 5.0], [0.2, 6.0], [0.3, 7.0], [0.3, 8.0]]
    assert matched_path(u, 0.0).tolist() == [[-np.inf, t] for t in (5.0, 6.0, 7.0, 8.0)]


def test_counts_are_those_of_asking_stage_by_stage() -> None:
    """A wrong count would certify another system than the one that answers."""
    rng = np.random.default_rng(0)
    for stages in (2, 3):
        u = rng.integers(0, 8, (60, stages)).astype(float)
        u[rng.random(u.shape) < 0.2] = np.inf
        wrong = (rng.random(u.shape) < 0.3).astype(int)
        path = matched_path(u, 0.7)
        k, e = path_counts(u, wrong, path)
        for row, thresholds in enumerate(path):
            answers = [
                next((int(wrong[i, s]) for s in range(stages) if u[i, s] <= thresholds[s]), None) for i in range(60)
            ]
            assert k[row] == sum(answer is not None for answer in answers)
            assert e[row] == sum(answer == 1 for answer in answers)


def test_with_a_silent_first_stage_it_is_the_certificate_of_the_last() -> None:
    rng = np.random.default_rng(1)
    u = rng.random((300, 2))
    wrong = (rng.random(u.shape) < 0.3 * u).astype(int)
    found, alone = certified_cascade(u, wrong, 0.1, ratio=0.0), certified(u[:, 1], wrong[:, 1], 0.1)
    assert isinstance(alone, Feasible)
    assert found == (-np.inf, alone.threshold)


def test_infeasible_outcomes() -> None:
    u, wrong = np.arange(200.0).reshape(100, 2), np.zeros((100, 2), dtype=int)
    short = certified_cascade(u[:20], wrong[:20], 0.1)
    bad = certified_cascade(u, wrong + 1, 0.1)
    assert isinstance(short, Infeasible)
    assert isinstance(bad, Infeasible)
    assert (short.reason, bad.reason) == ("too_few_items", "risk_never_low_enough")


@pytest.mark.parametrize("own", [True, False])
def test_a_cascade_of_useless_scores_is_seldom_certified(own: bool) -> None:
    """Every policy is wrong in a share barely above alpha, by quantiles of the labelled questions or of others."""
    rng = np.random.default_rng(2)
    failed = 0
    for _ in range(400):
        u, wrong = rng.random((200, 2)), (rng.random((200, 2)) < 0.1001).astype(int)
        path = None if own else matched_path(rng.random((200, 2)))
        failed += isinstance(certified_cascade(u, wrong, 0.1, path=path), tuple)
    assert 10 < failed <= stats.binom.isf(1e-4, 400, 0.1)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="two stages or more"):
        matched_path(np.zeros((5, 1)))
    with pytest.raises(UsageError, match="ratio"):
        matched_path(np.zeros((5, 2)), 1.5)
    with pytest.raises(UsageError, match="must be 0"):
        certified_cascade(np.zeros((5, 2)), np.full((5, 2), 2), 0.1)


# -- records -----------------------------------------------------------------------------------------------------------


def better(file: RecordFile) -> RecordFile:
    """The same questions asked of a better model: half of the wrong answers are put right, with little doubt."""

    def change(i: int, record: Record) -> Record:
        if record.correct or i % 2:
            return record
        assert record.drawn is not None
        assert record.drawn.primary is not None
        right = record.drawn.primary.model_copy(update={"text": record.references[0]})
        drawn = record.drawn.model_copy(update={"primary": right, "samples": (right,) * len(record.drawn.samples)})
        score = record.scores[NAME].model_copy(update={"value": 0.0})
        return record.model_copy(update={"drawn": drawn, "scores": {**record.scores, NAME: score}, "correct": True})

    model = file.header.model.model_copy(update={"model": "better"})
    header = file.header.model_copy(update={"model": model})
    return RecordFile(file.path, header, tuple(change(i, record) for i, record in enumerate(file.records)))


def test_records_are_matched_by_id_whatever_their_order(labelled: RecordFile) -> None:
    large = better(labelled)
    turned = RecordFile(large.path, large.header, large.records[::-1])
    turned_first = RecordFile(labelled.path, labelled.header, labelled.records[::-1])
    in_order = matched([labelled, large], [NAME, NAME])
    for files in ([labelled, turned], [turned_first, large], [turned_first, turned]):
        reordered = matched(files, [NAME, NAME])
        assert in_order.ids == reordered.ids
        assert (in_order.uncertainty == reordered.uncertainty).all()
        assert (in_order.error == reordered.error).all()
    assert in_order.uncertainty.shape == (240, 2)


@pytest.mark.parametrize("groups", ["category", "cluster"])
def test_the_same_answers_give_the_same_cascade_in_whatever_order_they_arrived(
    labelled: RecordFile, groups: Literal["category", "cluster"]
) -> None:
    grouped = tuple(
        record.model_copy(update={"group": f"g{number // 2}"}) for number, record in enumerate(labelled.records)
    )
    small = RecordFile(labelled.path, labelled.header, grouped)
    large = better(small)
    places = np.random.default_rng(5).permutation(len(grouped))
    arrived = [
        RecordFile(file.path, file.header, tuple(file.records[int(i)] for i in places)) for file in (small, large)
    ]
    outcomes = [
        fit_cascade(files, alpha=0.2, scores=[NAME, NAME], groups=groups).outcome for files in ([small, large], arrived)
    ]
    assert outcomes[0].feasible
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("reason", Unmeasured)
def test_unmeasured_and_unlabelled_questions(labelled: RecordFile, reason: Unmeasured) -> None:
    large = better(labelled)
    estimator = labelled.records[0].scores[NAME].model_copy(update={"value": None, "reason": reason, "detail": "down"})
    changed = [
        labelled.records[0].model_copy(update={"scores": {NAME: estimator}}),
        labelled.records[1].model_copy(update={"correct": None}),
        *labelled.records[2:],
    ]
    small = RecordFile(labelled.path, labelled.header, tuple(changed))
    matches = matched([small, large], [NAME, NAME])
    assert "p1" not in matches.ids  # the one without a label is left out
    if reason in GOES_ON:
        assert matches.uncertainty[0, 0] == INF  # the one without a score goes to the second stage, as at run time
        assert np.isfinite(matches.uncertainty[0, 1])
        return
    assert not np.isfinite(matches.uncertainty[0]).any()  # nobody answers it, as at run time, but it is one of the n
    assert (matches.ids[0], matches.n_unmeasured) == ("p0", 1)
    assert np.isfinite(matches.last[0][0])  # the last model alone would answer it
    turned = matched([large, small], [NAME, NAME])
    assert np.isfinite(turned.uncertainty[0, 0])
    assert turned.uncertainty[0, 1] == INF


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": slice(0, 239)}, "different questions .1 only in"),
        ({"question": "another?"}, "question 'p0' has question"),
        ({"prompt": "Answer briefly."}, "questions were asked differently"),
    ],
)
def test_records_of_other_questions_are_refused(labelled: RecordFile, change: dict[str, Any], message: str) -> None:
    large = better(labelled)
    if "records" in change:
        large = RecordFile(large.path, large.header, large.records[change["records"]])
    elif "question" in change:
        first = large.records[0].model_copy(update=change)
        large = RecordFile(large.path, large.header, (first, *large.records[1:]))
    else:
        prompt = large.header.prompt.model_copy(update={"system": change["prompt"]})
        large = RecordFile(large.path, large.header.model_copy(update={"prompt": prompt}), large.records)
    with pytest.raises(UsageError, match=message):
        fit_cascade([labelled, large], alpha=0.1, scores=[NAME, NAME])


@pytest.mark.parametrize("groups", ["category", "cluster"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_is_not_fitted_on_what_its_score_was_trained_on(
    labelled: RecordFile, stage: int, groups: Literal["category", "cluster"]
) -> None:
    """A training question itself, and with clusters another question of its cluster."""
    records = [record.model_copy(update={"group": f"g{i}"}) for i, record in enumerate(labelled.records)]
    trained = records[7] if groups == "category" else records[7].model_copy(update={"id": "t", "question": "another?"})
    params = {"reads": [], "training": training_of([trained]).model_dump(mode="json")}
    spec = labelled.header.estimators[NAME].model_copy(update={"name": "score:ours", "params": params})
    file = RecordFile(labelled.path, labelled.header, tuple(records))
    header = file.header.model_copy(update={"estimators": {**file.header.estimators, NAME: spec}})
    files = [file, file]
    files[stage] = RecordFile(file.path, header, file.records)
    with pytest.raises(UsageError, match=r"1 of 240 calibration records are among the 1 questions the scorer.*p7"):
        fit_cascade(files, alpha=0.15, scores=[NAME, NAME], groups=groups)


def test_the_outcome_is_that_of_the_certified_rule_and_of_the_last_model_alone(labelled: RecordFile) -> None:
    files = [labelled, better(labelled)]
    outcome = fit_cascade(files, alpha=0.2, scores=[NAME, NAME]).outcome
    pool = matched(files, [NAME, NAME])
    policy, alone = certified_cascade(pool.uncertainty, pool.error, 0.2), certified(*pool.last, 0.2)
    assert isinstance(alone, Feasible)
    assert tuple(-INF if stage.threshold is None else stage.threshold for stage in outcome.stages) == policy
    k, e = path_counts(pool.uncertainty, pool.error, np.array([policy]))
    assert (outcome.n, outcome.n_accepted, outcome.n_errors) == (240, k[0], e[0])
    assert outcome.last_alone is not None
    assert (outcome.last_alone.threshold, outcome.last_alone.n_accepted) == (alone.threshold, alone.k)


def test_the_last_model_alone_is_asked_what_the_first_stage_ended(labelled: RecordFile) -> None:
    """The first stage could not decide 60 questions, which ends them in the cascade and not for the model alone."""
    score = (
        labelled.records[0]
        .scores[NAME]
        .model_copy(update={"value": None, "reason": Unmeasured.JUDGE_FAILED, "detail": "down"})
    )
    ended = [record.model_copy(update={"scores": {NAME: score}}) for record in labelled.records[:60]]
    small = RecordFile(labelled.path, labelled.header, (*ended, *labelled.records[60:]))
    large = better(labelled)
    outcome = fit_cascade([small, large], alpha=0.2, scores=[NAME, NAME], without_failed=True).outcome
    alone = fit_cascade([labelled, large], alpha=0.2, scores=[NAME, NAME]).outcome.last_alone
    assert outcome.last_alone == alone
    assert alone is not None
    assert outcome.n_accepted < alone.n_accepted


def first(file: RecordFile, n: int) -> RecordFile:
    """The file with its first n records alone."""
    return RecordFile(file.path, file.header, file.records[:n])


def test_infeasible_says_why(labelled: RecordFile) -> None:
    few = fit_cascade([first(labelled, 10)] * 2, alpha=0.15, scores=[NAME] * 2).outcome
    assert (few.reason, few.n_accepted, few.interval) == (InfeasibleReason.TOO_FEW_ITEMS, 0, None)
    assert "It takes 15 questions without an error at alpha = 0.15; there are 10." in why_infeasible(few)
    bad = fit_cascade([labelled] * 2, alpha=0.01, scores=[NAME] * 2).outcome
    assert bad.reason in (InfeasibleReason.RISK_NEVER_LOW_ENOUGH, InfeasibleReason.TOO_FEW_ITEMS)
    assert not bad.feasible


def test_the_artifact_round_trips_and_is_refused_when_edited(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_cascade([labelled, better(labelled)], alpha=0.15, scores=[NAME, NAME])
    assert artifact.outcome.feasible
    assert [stage.threshold for stage in artifact.stages] == [stage.threshold for stage in artifact.outcome.stages]
    path = artifact.save(tmp_path / "cascade.json")
    again = CascadeArtifact.load(path)
    assert again == artifact
    assert again.digest == artifact.digest
    content = json.loads(path.read_text())
    content["outcome"]["alpha"] = 0.5
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactTamperedError):
        CascadeArtifact.load(path)
    with pytest.raises(ArtifactFormatError):
        CascadeArtifact.load(artifact.stages[0].save(tmp_path / "single.json"))


def test_the_system_does_at_run_time_what_the_records_say(labelled: RecordFile) -> None:
    """One scripted model plays both stages: it answers as recorded, so decisions can be foretold."""
    artifact = fit_cascade([labelled, labelled], alpha=0.2, scores=[NAME, NAME])
    model = fakes.model()
    system = Cascade(models=[model, model], artifact=artifact)
    thresholds = [stage.threshold for stage in artifact.stages]
    for record in labelled.records[:25]:
        score = record.scores[NAME].value
        assert score is not None
        answering = next((i for i, t in enumerate(thresholds) if t is not None and score <= t), None)
        verdict = system.assess(record.question)
        assert verdict.accepted == (answering is not None)
        if answering is not None:
            assert verdict.stage == answering + 1


def test_three_stages_with_a_score_each_do_at_run_time_what_the_records_say(labelled: RecordFile) -> None:
    names = [NAME, "sequence_nll", "semantic_entropy"]
    artifact = fit_cascade([labelled] * 3, alpha=0.3, scores=names)
    model = fakes.model()
    system = Cascade([model] * 3, artifact=artifact)
    thresholds = [stage.threshold for stage in artifact.stages]
    assert [stage.estimator.name for stage in artifact.stages] == names
    answered = set()
    for record in labelled.records[:60]:
        scores = [record.scores[name].value for name in names]
        rated = list(enumerate(zip(scores, thresholds, strict=True), 1))
        answering = next((i for i, (u, t) in rated if t is not None and u is not None and u <= t), None)
        verdict = system.assess(record.question)
        assert (verdict.stage if verdict.accepted else None) == answering
        answered.add(answering)
    assert {1, 2} <= answered  # two of the stages answer


def test_on_the_command_line(records_path: Path, tmp_path: Path, labelled: RecordFile) -> None:
    from calibrate.data.records import write_records

    large, out = tmp_path / "large.jsonl", tmp_path / "cascade.json"
    improved = better(labelled)
    write_records(large, improved.header, improved.records)
    arguments = ["fit", str(records_path), str(large), "--cascade", "-a", "0.15", "-s", NAME, "-o", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "better" in result.output
    loaded = CascadeArtifact.load(out)
    assert loaded.outcome.rule == "certified"
    assert read_records(large).header.model == loaded.stages[1].model
    refused = CliRunner().invoke(app, [*arguments, "-s", NAME, "-s", NAME])
    assert refused.exit_code == 2


def test_audit_and_report_take_the_artifact_of_a_cascade(tmp_path: Path, labelled: RecordFile) -> None:
    """Fitted on the first 160 questions, tested on the other 80; on answers that are all wrong it is refuted."""
    from calibrate.data.records import write_records
    from calibrate.pipeline import part_header

    files = [labelled, better(labelled)]
    artifact = fit_cascade([first(file, 160) for file in files], alpha=0.2, scores=[NAME, NAME])
    out = artifact.save(tmp_path / "cascade.json")
    records: list[str] = []
    for number, file in enumerate(files):
        fresh = file.records[160:]
        write_records(tmp_path / f"{number}.jsonl", part_header(file.header, fresh), fresh)
        records += ["--records", str(tmp_path / f"{number}.jsonl")]

    shown = json.loads(run("audit", *records, "--artifact", str(out), "--json"))
    pool = matched([read_records(tmp_path / f"{number}.jsonl") for number in (0, 1)], [NAME, NAME])
    by_hand = counts(pool.uncertainty, pool.error, [stage.threshold for stage in artifact.outcome.stages])
    assert [stage["n_accepted"] for stage in shown["stages"]] == [stage.n_accepted for stage in by_hand]
    assert shown["n_questions"] == 80
    assert "labelled accepted answers were wrong" in run("audit", *records, "--artifact", str(out))
    assert "got 1 record files" in run("audit", *records[:2], "--artifact", str(out), code=2)
    for number, file in enumerate(files):
        wrong = [record.model_copy(update={"correct": False}) for record in file.records[160:]]
        write_records(tmp_path / f"{number}.jsonl", part_header(file.header, wrong), wrong)
    assert "The promise does not hold on these questions." in run("audit", *records, "--artifact", str(out), code=1)
    assert "alone would answer" in run("report", str(out))
    assert json.loads(run("report", str(out), "--json"))["kind"] == "cascade"
    assert "a cascade has no page" in run("report", str(tmp_path / "0.jsonl"), "--artifact", str(out), code=2)


def test_the_command_counts_fits_on_the_labels(records_path: Path, tmp_path: Path, labelled: RecordFile) -> None:
    from calibrate.data.records import write_records

    small, large, out = tmp_path / "small.jsonl", tmp_path / "large.jsonl", tmp_path / "cascade.json"
    small.write_bytes(records_path.read_bytes())
    write_records(large, better(labelled).header, better(labelled).records)

    both = ("fit", small, large, "--cascade", "-s", NAME, "-o", out)
    assert "have used" not in run(*both, "-a", "0.15")
    shown = run(*both, "-a", "0.15", "--delta", "0.2")
    assert "2 fits have used these labels; whichever of them you use, its promise holds with 70 %" in shown
    loaded = CascadeArtifact.load(out)
    assert loaded.spent is not None
    assert loaded.spent.delta == pytest.approx(0.1 + 0.2)
    assert "with 70 % confidence" in " ".join(promises(loaded))
    # A threshold of one stage's model is another fit on these labels, and the cascade counts for it.
    alone = ("fit", large, "-s", NAME, "-o", out, "-a", "0.15")
    assert "3 fits have used these labels" in run(*alone)
    assert "have used" not in run(*alone, "--rule", "acrc")  # it has no confidence to lose


def test_a_stage_prints_its_condition_in_the_direction_of_its_own_score() -> None:
    # A confidence is stored as 1 - value: "conf <= 0.0859" was printed for answers from 0.9141 on.
    def spec(**params: str) -> EstimatorSpec:
        return EstimatorSpec(name="imported:conf", version=1, unit="probability", params={"column": "conf", **params})

    assert spec(stored="1 - value").condition(0.25) == "conf >= 0.75"
    assert spec(stored="-value").condition(-3.5) == "conf >= 3.5"
    assert spec(stored="value").condition(0.25) == "conf <= 0.25"
    entropy = EstimatorSpec(name="semantic_entropy", version=1, unit="nats")
    assert entropy.condition(0.5) == "semantic_entropy <= 0.5 nats"
    sure = EstimatorSpec(name="score:sure@1", version=1, unit="probability", params={"higher": "certain"})
    assert sure.condition(0.25) == "score:sure@1 >= 0.75"
