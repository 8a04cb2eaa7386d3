"""Several models as one system: matching of records, the joint rules, the command line, and the system at run time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from calibrate.cascade import certified_cascade, counts, fit_cascade, matched, matched_path, path_counts
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.pipeline import part_header
from calibrate.rules import Feasible, Infeasible, certified
from calibrate.scoring.apart import training_of
from guardrail.artifact import GOES_ON, CascadeArtifact
from guardrail.describe import promises, why_infeasible
from guardrail.errors import ArtifactFormatError, UsageError
from guardrail.guard.cascade import Cascade
from guardrail.outcome import InfeasibleReason
from guardrail.types import Unmeasured
from tests.calibrate import fakes
from tests.calibrate.commands import Command, run

NAME = "discrete_semantic_entropy"
INF = float("inf")


def answering(scores: Sequence[float | None], thresholds: Sequence[float | None]) -> int | None:
    """The first stage, from 1 on, whose score is within its threshold: a cascade in one line."""
    stages = enumerate(zip(scores, thresholds, strict=True), 1)
    return next((stage for stage, (u, t) in stages if u is not None and t is not None and u <= t), None)


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


@pytest.mark.parametrize("stages", [2, 3])
def test_counts_are_those_of_asking_stage_by_stage(stages: int) -> None:
    """A wrong count would certify another system than the one that answers."""
    rng = np.random.default_rng(stages)
    u = rng.integers(0, 8, (60, stages)).astype(float)
    u[rng.random(u.shape) < 0.2] = INF
    wrong = (rng.random(u.shape) < 0.3).astype(int)
    path = matched_path(u, 0.7)
    for thresholds, k, e in zip(path, *path_counts(u, wrong, path), strict=True):
        asked = [(row, answering(row_u, thresholds)) for row, row_u in zip(wrong, u, strict=True)]
        answers = [row[stage - 1] for row, stage in asked if stage is not None]
        assert (k, e) == (len(answers), sum(answers))


def test_with_a_silent_first_stage_it_is_the_certificate_of_the_last() -> None:
    rng = np.random.default_rng(1)
    u = rng.random((300, 2))
    wrong = (rng.random(u.shape) < 0.3 * u).astype(int)
    found = certified_cascade(u, wrong, 0.1, path=matched_path(u, 0.0))
    alone = certified(u[:, 1], wrong[:, 1], 0.1)
    assert isinstance(alone, Feasible)
    assert found == (-np.inf, alone.threshold)


@pytest.mark.parametrize(("n", "wrong", "reason"), [(20, 0, "too_few_items"), (100, 1, "risk_never_low_enough")])
def test_no_policy_is_certified_on_few_or_on_wrong_answers(n: int, wrong: int, reason: str) -> None:
    found = certified_cascade(np.arange(2.0 * n).reshape(n, 2), np.full((n, 2), wrong), 0.1)
    assert isinstance(found, Infeasible)
    assert found.reason == reason


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


def with_records(file: RecordFile, records: Sequence[Record]) -> RecordFile:
    """The file with these records instead of its own."""
    return RecordFile(file.path, file.header, tuple(records))


def unmeasured(file: RecordFile, n: int, reason: Unmeasured) -> RecordFile:
    """The file with a score that failed on its first n questions."""
    score = file.records[0].scores[NAME].model_copy(update={"value": None, "reason": reason, "detail": "down"})
    failed = [record.model_copy(update={"scores": {NAME: score}}) for record in file.records[:n]]
    return with_records(file, [*failed, *file.records[n:]])


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
    records = tuple(change(i, record) for i, record in enumerate(file.records))
    return RecordFile(file.path, file.header.model_copy(update={"model": model}), records)


@pytest.mark.parametrize("groups", ["category", "cluster"])
def test_the_same_answers_give_the_same_cascade_in_whatever_order_they_arrived(
    labelled: RecordFile, groups: Literal["category", "cluster"]
) -> None:
    grouped = [record.model_copy(update={"group": f"g{i // 2}"}) for i, record in enumerate(labelled.records)]
    small = with_records(labelled, grouped)
    large = better(small)
    places = np.random.default_rng(5).permutation(len(grouped))
    arrived = [with_records(file, [file.records[int(i)] for i in places]) for file in (small, large)]
    outcomes = [
        fit_cascade(files, alpha=0.2, scores=[NAME, NAME], groups=groups).outcome for files in ([small, large], arrived)
    ]
    assert outcomes[0].feasible
    assert outcomes[0] == outcomes[1]


def test_a_question_without_a_label_at_one_stage_is_left_out(labelled: RecordFile) -> None:
    first = labelled.records[0].model_copy(update={"correct": None})
    small = with_records(labelled, [first, *labelled.records[1:]])
    ids = matched([small, better(labelled)], [NAME, NAME]).ids
    assert set(ids) == {f"p{i}" for i in range(1, 240)}


@pytest.mark.parametrize("reason", sorted(GOES_ON))
def test_a_question_that_goes_on_at_run_time_goes_on_in_the_fit(labelled: RecordFile, reason: Unmeasured) -> None:
    first, second = matched([unmeasured(labelled, 1, reason), better(labelled)], [NAME, NAME]).uncertainty[0]
    assert first == INF
    assert np.isfinite(second)


@pytest.mark.parametrize("reason", sorted(set(Unmeasured) - GOES_ON))
def test_a_question_that_ends_at_run_time_is_answered_by_nobody_and_still_counted(
    labelled: RecordFile, reason: Unmeasured
) -> None:
    small, large = unmeasured(labelled, 1, reason), better(labelled)
    matches = matched([small, large], [NAME, NAME])
    assert (matches.ids[0], matches.n_unmeasured, len(matches.ids)) == ("p0", 1, 240)
    assert matches.uncertainty[0].tolist() == [INF, INF]
    assert np.isfinite(matches.last[0][0])  # the last model alone would answer it
    first, last = matched([large, small], [NAME, NAME]).uncertainty[0]  # the last stage ends nothing before it
    assert np.isfinite(first)
    assert last == INF


def without_the_last(file: RecordFile) -> RecordFile:
    return with_records(file, file.records[:-1])


def another_question(file: RecordFile) -> RecordFile:
    first = file.records[0].model_copy(update={"question": "another?"})
    return with_records(file, [first, *file.records[1:]])


def another_prompt(file: RecordFile) -> RecordFile:
    prompt = file.header.prompt.model_copy(update={"system": "Answer briefly."})
    return RecordFile(file.path, file.header.model_copy(update={"prompt": prompt}), file.records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_the_last, "different questions .1 only in"),
        (another_question, "question 'p0' has question"),
        (another_prompt, "questions were asked differently"),
    ],
)
def test_records_of_other_questions_are_refused(
    labelled: RecordFile, change: Callable[[RecordFile], RecordFile], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fit_cascade([labelled, change(better(labelled))], alpha=0.1, scores=[NAME, NAME])


@pytest.mark.parametrize(("files", "scores"), [(2, 1), (2, 3), (1, 1)])
def test_in_python_each_stage_needs_its_score(labelled: RecordFile, files: int, scores: int) -> None:
    """Who forgets a score must read what a cascade takes, and no error about the arguments of zip."""
    with pytest.raises(UsageError, match=f"two stages with a score each, got {files} files and {scores} scores"):
        fit_cascade([labelled] * files, alpha=0.1, scores=[NAME] * scores)


@pytest.mark.parametrize(("groups", "changes"), [("category", {}), ("cluster", {"id": "t", "question": "another?"})])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_is_not_fitted_on_what_its_score_was_trained_on(
    labelled: RecordFile, stage: int, groups: Literal["category", "cluster"], changes: dict[str, str]
) -> None:
    """A training question itself, and with clusters another question of its cluster."""
    records = [record.model_copy(update={"group": f"g{i}"}) for i, record in enumerate(labelled.records)]
    trained = records[7].model_copy(update=changes)
    params = {"reads": [], "training": training_of([trained]).model_dump(mode="json")}
    spec = labelled.header.estimators[NAME].model_copy(update={"name": "score:ours", "params": params})
    file = with_records(labelled, records)
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
    small, large = unmeasured(labelled, 60, Unmeasured.JUDGE_FAILED), better(labelled)
    outcome = fit_cascade([small, large], alpha=0.2, scores=[NAME, NAME], without_failed=True).outcome
    alone = fit_cascade([labelled, large], alpha=0.2, scores=[NAME, NAME]).outcome.last_alone
    assert outcome.last_alone == alone
    assert alone is not None
    assert outcome.n_accepted < alone.n_accepted


def test_infeasible_says_why(labelled: RecordFile) -> None:
    few = fit_cascade([with_records(labelled, labelled.records[:10])] * 2, alpha=0.15, scores=[NAME] * 2).outcome
    assert (few.reason, few.n_accepted, few.interval) == (InfeasibleReason.TOO_FEW_ITEMS, 0, None)
    assert "It takes 15 questions without an error at alpha = 0.15; there are 10." in why_infeasible(few)
    # Who measured 10 of 240 would look for better scores, which help nothing, and not for what measures more.
    lost = [unmeasured(labelled, 230, Unmeasured.JUDGE_FAILED)] * 2
    outcome = fit_cascade(lost, alpha=0.15, scores=[NAME] * 2, without_failed=True).outcome
    assert outcome.reason == InfeasibleReason.TOO_FEW_ITEMS
    assert "It takes 60 questions without an error at alpha = 0.15; of 240 fewer could be measured." in (
        why_infeasible(outcome)
    )
    bad = fit_cascade([labelled] * 2, alpha=0.01, scores=[NAME] * 2).outcome
    assert (bad.reason, bad.feasible) == (InfeasibleReason.RISK_NEVER_LOW_ENOUGH, False)


def test_each_stage_has_its_threshold_and_the_file_of_one_stage_is_not_a_cascade(
    labelled: RecordFile, tmp_path: Path
) -> None:
    artifact = fit_cascade([labelled, better(labelled)], alpha=0.15, scores=[NAME, NAME])
    assert artifact.outcome.feasible
    assert [stage.threshold for stage in artifact.stages] == [stage.threshold for stage in artifact.outcome.stages]
    with pytest.raises(ArtifactFormatError):
        CascadeArtifact.load(artifact.stages[0].save(tmp_path / "single.json"))


@pytest.mark.parametrize(
    ("names", "alpha", "some"),
    [([NAME, NAME], 0.2, {1, None}), ([NAME, "sequence_nll", "semantic_entropy"], 0.3, {1, 2})],
    ids=["one score", "a score each"],
)
def test_the_system_does_at_run_time_what_the_records_say(
    labelled: RecordFile, names: list[str], alpha: float, some: set[int | None]
) -> None:
    """One scripted model plays every stage: it answers as recorded, so decisions can be foretold."""
    artifact = fit_cascade([labelled] * len(names), alpha=alpha, scores=names)
    assert [stage.estimator.name for stage in artifact.stages] == names
    system = Cascade(models=[fakes.model()] * len(names), artifact=artifact)
    thresholds = [stage.threshold for stage in artifact.stages]
    answered = set()
    for record in labelled.records[:60]:
        foretold = answering([record.scores[name].value for name in names], thresholds)
        verdict = system.assess(record.question)
        assert (verdict.stage if verdict.accepted else None) == foretold
        answered.add(foretold)
    assert answered >= some


# -- the command line --------------------------------------------------------------------------------------------------


def written(path: Path, file: RecordFile) -> Path:
    write_records(path, part_header(file.header, file.records), file.records)
    return path


@pytest.fixture
def fitting(labelled: RecordFile, records_path: Path, tmp_path: Path) -> Command:
    """The words of a fit of both models."""
    large = written(tmp_path / "large.jsonl", better(labelled))
    return ("fit", records_path, large, "--cascade", "-a", "0.15", "-s", NAME, "-o", tmp_path / "cascade.json")


def test_fit_writes_a_cascade_and_shows_its_models(fitting: Command, tmp_path: Path) -> None:
    assert "better" in run(*fitting)
    loaded = CascadeArtifact.load(tmp_path / "cascade.json")
    assert loaded.outcome.rule == "certified"
    assert loaded.stages[1].model == read_records(tmp_path / "large.jsonl").header.model


def test_three_scores_for_two_stages_are_refused(fitting: Command) -> None:
    assert "one a stage: 2 files, got 3" in run(*fitting, "-s", NAME, "-s", NAME, code=2)


def test_each_fit_on_the_same_labels_is_counted(fitting: Command, tmp_path: Path) -> None:
    assert "have used" not in run(*fitting)
    shown = run(*fitting, "--rule", "certified:delta=0.2")
    assert "2 fits have used these labels; whichever of them you use, its promise holds with 70 %" in shown
    loaded = CascadeArtifact.load(tmp_path / "cascade.json")
    assert loaded.spent is not None
    assert loaded.spent.delta == pytest.approx(0.1 + 0.2)
    assert "with 70 % confidence" in " ".join(promises(loaded))


def test_a_threshold_of_one_stage_is_another_fit_on_its_labels(fitting: Command, tmp_path: Path) -> None:
    run(*fitting)
    alone = ("fit", tmp_path / "large.jsonl", "-s", NAME, "-o", tmp_path / "alone.json", "-a", "0.15")
    assert "2 fits have used these labels" in run(*alone)
    assert "have used" not in run(*alone, "--rule", "acrc")  # it has no confidence to lose


def both(labelled: RecordFile, questions: slice) -> list[RecordFile]:
    """The records of both models on some of the questions."""
    return [with_records(file, file.records[questions]) for file in (labelled, better(labelled))]


@pytest.fixture
def saved(labelled: RecordFile, tmp_path: Path) -> Path:
    """A cascade fitted on the first 160 questions."""
    artifact = fit_cascade(both(labelled, slice(160)), alpha=0.2, scores=[NAME, NAME])
    return artifact.save(tmp_path / "cascade.json")


def auditing(saved: Path, files: Sequence[RecordFile]) -> Command:
    """The words of an audit of a cascade on these records."""
    paths = [written(saved.with_name(f"{i}.jsonl"), file) for i, file in enumerate(files)]
    return ("audit", "--artifact", saved, *(word for path in paths for word in ("--records", path)))


def test_an_audit_counts_what_each_stage_answers(saved: Path, labelled: RecordFile) -> None:
    fresh = both(labelled, slice(160, None))
    command = auditing(saved, fresh)
    shown = json.loads(run(*command, "--json"))
    pool = matched(fresh, [NAME, NAME])
    stages = CascadeArtifact.load(saved).outcome.stages
    by_hand = counts(pool.uncertainty, pool.error, [stage.threshold for stage in stages])
    assert [stage["n_accepted"] for stage in shown["stages"]] == [stage.n_accepted for stage in by_hand]
    assert shown["n_questions"] == 80
    assert "labelled accepted answers were wrong" in run(*command)


def test_an_audit_refutes_the_promise_on_wrong_answers(saved: Path, labelled: RecordFile) -> None:
    wrong = [record.model_copy(update={"correct": False}) for record in labelled.records[160:]]
    stages = [with_records(file, wrong) for file in (labelled, better(labelled))]
    assert "The promise does not hold on these questions." in run(*auditing(saved, stages), code=1)


def test_an_audit_of_one_stage_alone_is_refused(saved: Path, labelled: RecordFile) -> None:
    assert "got 1 record files" in run(*auditing(saved, [labelled]), code=2)


def test_report_describes_a_cascade_but_has_no_page_of_it(saved: Path, labelled: RecordFile) -> None:
    assert "alone would answer" in run("report", saved)
    assert json.loads(run("report", saved, "--json"))["kind"] == "cascade"
    assert "a cascade has no page" in run("report", labelled.path, "--artifact", saved, code=2)
