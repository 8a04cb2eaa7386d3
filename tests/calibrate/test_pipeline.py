"""Fitting artifacts from records, refitting them, splitting, and testing on what was kept out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import pytest

from calibrate.cascade import matched
from calibrate.data.labels import refuse_contradictions
from calibrate.data.records import Record, RecordFile
from calibrate.data.split import one_per_cluster, split
from calibrate.evaluation.audit import audit
from calibrate.evaluation.choice import choose_score
from calibrate.evaluation.label_checks import suspicious
from calibrate.fitting import fit
from calibrate.judging import held_out, require_same
from calibrate.pipeline import fit_artifact, part_header
from calibrate.report.assessment import undecided_answers
from calibrate.scoring.scores import arrays
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.outcome import Feasible
from guardrail.plain_json import canonical_json
from guardrail.prompting import PromptWrapping
from guardrail.sampling.probe import ProbeReport
from guardrail.specs import ModelIdentity
from guardrail.types import Uncertainty

KEY = "discrete_semantic_entropy"


@pytest.fixture(scope="module")
def artifact(labelled: RecordFile) -> CalibrationArtifact:
    return fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")


def test_artifact_binds_what_the_records_say(labelled: RecordFile, artifact: CalibrationArtifact) -> None:
    header = labelled.header
    assert artifact.model == header.model
    assert artifact.prompt == header.prompt
    assert artifact.estimator == header.estimators[KEY]
    assert artifact.correctness == header.correctness
    assert artifact.data.name == "questions.jsonl"
    assert (artifact.data.n_questions, artifact.data.n_used) == (240, 240)
    rows = sorted(
        hashlib.sha256(canonical_json(record.to_question().model_dump()).encode()).digest()[:16]
        for record in labelled.records
    )
    assert artifact.data.sha256 == hashlib.sha256(b"".join(rows)).hexdigest()
    assert artifact.calibration.group is None  # a category is not a cluster
    assert artifact.fingerprint is None  # a local model was not probed
    probed = header.model_copy(update={"probe": ProbeReport(greedy=((("a", -0.5),),))})
    of_endpoint = fit_artifact(RecordFile(labelled.path, probed, labelled.records), score=KEY, alpha=0.15, rule="acrc")
    assert of_endpoint.fingerprint == ((("a", -0.5),),)


def test_outcome_is_that_of_the_rule_on_the_arrays(labelled: RecordFile, artifact: CalibrationArtifact) -> None:
    columns = arrays(labelled.records, KEY)
    assert artifact.outcome == fit(columns.uncertainty, columns.error, alpha=0.15, rule="acrc")


def test_run_time_draws_no_more_than_the_estimator_reads(labelled: RecordFile, artifact: CalibrationArtifact) -> None:
    assert labelled.header.plan.logprobs
    assert (artifact.plan.n, artifact.plan.logprobs) == (10, False)
    perplexity = fit_artifact(labelled, score="perplexity", alpha=0.15, rule="acrc")
    assert (perplexity.plan.n, perplexity.plan.logprobs) == (0, True)
    entropy = fit_artifact(labelled, score="semantic_entropy", alpha=0.15, rule="acrc")
    assert entropy.plan == labelled.header.plan


def test_fit_names_the_missing_step(labelled: RecordFile) -> None:
    unlabelled = RecordFile(labelled.path, labelled.header.model_copy(update={"correctness": None}), labelled.records)
    with pytest.raises(UsageError, match="calibrate label"):
        fit_artifact(unlabelled, score=KEY, alpha=0.1, rule="acrc")
    with pytest.raises(UsageError, match="calibrate score"):
        fit_artifact(labelled, score="max_softmax", alpha=0.1, rule="acrc")
    with pytest.raises(UsageError, match=r"Write 0\.15 for 15 %"):
        fit_artifact(labelled, score=KEY, alpha=15, rule="acrc")


def test_clusters_give_one_record_each_whatever_the_order(labelled: RecordFile) -> None:
    representatives = one_per_cluster(labelled.records)
    assert sorted(str(record.group) for record in representatives) == ["herbs", "shrubs", "trees"]
    assert {r.id for r in one_per_cluster(labelled.records[::-1])} == {r.id for r in representatives}
    clustered = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc", groups="cluster")
    assert clustered.data.n_questions == 3
    assert clustered.calibration.group is not None
    without = labelled.records[0].model_copy(update={"group": None})
    with pytest.raises(UsageError, match="no group"):
        one_per_cluster([without])


def test_split_is_seeded_complete_and_ignores_order(labelled: RecordFile) -> None:
    records = labelled.records
    calibration, test = split(records, test_fraction=0.25, seed=1)
    assert (len(calibration), len(test)) == (180, 60)
    assert {r.id for r in calibration} | {r.id for r in test} == {r.id for r in records}
    _, backwards = split(records[::-1], test_fraction=0.25, seed=1)
    assert {r.id for r in backwards} == {r.id for r in test}
    _, other = split(records, test_fraction=0.25, seed=2)
    assert {r.id for r in other} != {r.id for r in test}


def test_split_keeps_clusters_whole(labelled: RecordFile) -> None:
    calibration, test = split(labelled.records, test_fraction=0.34, groups="cluster")
    assert {r.group for r in calibration}.isdisjoint({r.group for r in test})
    assert (len(calibration), len(test)) == (160, 80)
    with pytest.raises(UsageError, match="3 clusters cannot be cut"):
        split(labelled.records, test_fraction=0.01, groups="cluster")
    with pytest.raises(UsageError, match=r"0\.3 for 30 %"):
        split(labelled.records, test_fraction=30)


def scored(i: int, value: float | None, correct: bool | None) -> Record:
    score = Uncertainty.model_construct(value=value, unit="nats", estimator=KEY, reason=None, detail="")
    return Record.model_construct(id=str(i), question="?", scores={KEY: score}, correct=correct, drawn=None, group=None)


def test_held_out_counts_by_hand(artifact: CalibrationArtifact) -> None:
    assert isinstance(artifact.outcome, Feasible)
    tau = artifact.outcome.threshold
    # 5 labelled: accepted are the two at or below tau, one wrong; the unmeasured one abstains; 3 are right.
    records = [
        scored(0, tau, True),
        scored(1, tau, False),
        scored(2, np.nextafter(tau, 9), True),
        scored(3, None, True),
        scored(4, 9.0, False),
        scored(5, 0.0, None),
    ]
    counts = held_out(artifact, records, KEY)
    assert (counts.n, counts.n_accepted, counts.n_errors, counts.n_correct) == (5, 2, 1, 3)
    assert counts.error_rate is not None
    assert counts.error_rate[0] == 0.5
    assert counts.acceptance[0] == pytest.approx(2 / 5)
    assert counts.power is not None
    assert counts.power[0] == pytest.approx(1 / 3)
    # Clopper-Pearson for 1 of 2: the ends solve p^2 = .975 and (1-p)^2 = .975.
    assert counts.error_rate[1:] == pytest.approx((1 - 0.975**0.5, 0.975**0.5))
    nothing = held_out(artifact, records[4:5], KEY)
    assert nothing.error_rate is None
    assert nothing.power is None
    with pytest.raises(UsageError, match="no test record has a label"):
        held_out(artifact, records[5:], KEY)


def test_records_made_otherwise_are_refused(labelled: RecordFile, artifact: CalibrationArtifact) -> None:
    require_same(artifact, labelled, KEY)
    header = labelled.header
    changes: list[tuple[dict[str, object], str]] = [
        ({"model": ModelIdentity(provider="p", model="other")}, "'other'"),
        ({"prompt": PromptWrapping(system="Be brief.")}, "Be brief."),
        ({"plan": header.plan.model_copy(update={"n": 5})}, "plan.n: artifact 10, records 5"),
        ({"correctness": None}, "correctness rule: artifact"),
        ({"estimators": {}}, "score: artifact"),
    ]
    for change, fragment in changes:
        other = RecordFile(labelled.path, header.model_copy(update=change), labelled.records)
        with pytest.raises(UsageError, match="does not fit the artifact") as caught:
            require_same(artifact, other, KEY)
        assert fragment in str(caught.value)


def test_the_header_of_a_part_describes_the_part(labelled: RecordFile) -> None:
    part = labelled.records[:7]
    header = part_header(labelled.header, part)
    assert header.n_questions == 7
    assert header.questions_sha256 != labelled.header.questions_sha256
    assert part_header(labelled.header, labelled.records) == labelled.header


def test_undecided_answers_count_as_wrong_wherever_labels_are_used(labelled: RecordFile) -> None:
    """The same records with every third answer undecided, and with these answers labelled wrong, give the same."""
    key, other = "semantic_entropy", "discrete_semantic_entropy"

    def labelled_as(changes: Mapping[str, object]) -> RecordFile:
        records = [r.model_copy(update=changes) if i % 3 == 0 else r for i, r in enumerate(labelled.records)]
        return RecordFile(labelled.path, labelled.header, records)

    files = [labelled_as({"correct": None, "label_detail": "in doubt"}), labelled_as({"correct": False})]
    undecided, wrong = files
    scored = [arrays(file.records, key) for file in files]
    assert [scores.n_undecided for scores in scored] == [int(undecided.records.undecided().sum()), 0]
    assert 60 < scored[0].n_undecided <= 80
    assert scored[0].error.tolist() == scored[1].error.tolist()
    artifacts = [fit_artifact(file, score=key, alpha=0.6, rule="acrc", part=file.records[:120]) for file in files]
    assert artifacts[0].outcome == artifacts[1].outcome
    assert (artifacts[0].data.n_unlabelled, artifacts[1].data.n_undecided) == (0, 0)
    tests = [file.records[120:] for file in files]
    assert held_out(artifacts[0], tests[0], key) == held_out(artifacts[1], tests[1], key)
    audits = [audit(artifact, test, key) for artifact, test in zip(artifacts, tests, strict=True)]
    assert audits[0].n_errors == audits[1].n_errors > 0
    assert audits[0].held_out == audits[1].held_out
    assert choose_score(undecided).ranking == choose_score(wrong).ranking
    assert matched(files[:1] * 2, [key, other]).error.tolist() == matched(files[1:] * 2, [key, other]).error.tolist()

    # What people read or compare is not counted as wrong: the answers to look at again, and labels that contradict.
    names = {record.id for record in suspicious(undecided.records, key, k=1000).wrong}
    assert names.isdisjoint(record.id for record in undecided.records[::3])
    refuse_contradictions([labelled.records[1], undecided.records[0].model_copy(update={"id": "again"})])
    text = undecided_answers(artifacts[0])
    assert text is not None
    assert f"{artifacts[0].data.n_undecided} of {artifacts[0].data.n_used} answers are undecided" in text
    assert undecided_answers(artifacts[1]) is None


def test_an_answer_that_nobody_labelled_yet_is_not_undecided(labelled: RecordFile) -> None:
    def changed(changes: Mapping[str, object]) -> RecordFile:
        return RecordFile(
            labelled.path, labelled.header, [labelled.records[0].model_copy(update=changes), *labelled.records[1:]]
        )

    waiting = ({"correct": None}, {"correct": None, "references": (), "label_detail": "there is no reference"})
    for changes in waiting:
        scored = arrays(changed(changes).records, "semantic_entropy")
        assert (scored.n_unlabelled, scored.n_undecided) == (1, 0)
    unanswered = {"correct": None, "label_detail": "there is no answer to label", "drawn": None}
    assert not changed(unanswered).records.undecided().any()
