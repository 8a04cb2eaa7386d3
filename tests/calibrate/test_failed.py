"""Questions whose server failed are neither right nor wrong, and what could not be measured is part of every share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cascade import fit_cascade
from calibrate.cli import app
from calibrate.data import columns
from calibrate.data.columns import open_records
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.data.table import table_of
from calibrate.dataframe import Records
from calibrate.evaluation.audit import audit
from calibrate.judging import at_calibration, held_out
from calibrate.pipeline import fit_artifact
from calibrate.prediction_powered import artifact_with_people
from calibrate.scope import draw_to_label
from guardrail import doctor
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import describe, promises
from guardrail.errors import UsageError
from guardrail.types import Uncertainty, Unmeasured
from tests.calibrate import fakes

KEY = "semantic_entropy"
MODEL = "python:tests.calibrate.fakes:overloaded"


def unmeasured(file: RecordFile, why: Unmeasured, numbers: Sequence[int], *, answer: bool = False) -> RecordFile:
    """The file with records whose draw came to nothing; with ``answer`` their answer and its label stay."""
    records = list(file.records)
    for i in numbers:
        drawn = records[i].drawn
        assert drawn is not None
        lost: dict[str, Any] = {"problem": why, "problem_detail": "HTTP 503"}
        if not answer:
            lost |= {"primary": None, "samples": ()}
        score = Uncertainty(value=None, reason=why, detail="HTTP 503", estimator=KEY, unit="nats")
        update: dict[str, Any] = {"drawn": drawn.model_copy(update=lost), "scores": {KEY: score}}
        if not answer:
            update |= {"correct": None, "label_detail": "no answer"}
        records[i] = records[i].model_copy(update=update)
    return replace(file, records=table_of(records))


@pytest.fixture
def failed(labelled: RecordFile) -> RecordFile:
    """3 of 240 failed: 1.25 %."""
    return unmeasured(labelled, Unmeasured.MODEL_FAILED, [5, 50, 150])


def test_a_fit_on_what_an_overload_left_stops_and_names_the_way_out(failed: RecordFile) -> None:
    # Who fits on the questions that an overloaded server answered gets a certificate for the easy ones.
    with pytest.raises(UsageError, match=r"3 of 240 questions \(1.2 %\).*HTTP 503.*collect.*--without-failed"):
        fit_artifact(failed, score=KEY, alpha=0.2, rule="acrc")
    with pytest.raises(UsageError, match="3 of 240"):
        Records(failed).fit(alpha=0.2, rule="acrc", score=KEY)
    with pytest.raises(UsageError, match="3 of 240"):
        fit_cascade([failed, failed], alpha=0.2, scores=[KEY, KEY])
    blank = [record.model_copy(update={"correct": None, "label_detail": ""}) for record in failed.records]
    with pytest.raises(UsageError, match="3 of 240"):
        draw_to_label(replace(failed, records=table_of(blank)), KEY, share=1, n=50)


def test_one_in_a_hundred_may_fail(labelled: RecordFile) -> None:
    artifact = fit_artifact(unmeasured(labelled, Unmeasured.MODEL_FAILED, [5, 50]), score=KEY, alpha=0.2, rule="acrc")
    assert (artifact.data.n_failed, artifact.data.n_unmeasured) == (2, 2)
    assert "failed" not in " ".join(promises(artifact))


def test_a_fit_without_them_states_their_share_wherever_its_promise_stands(failed: RecordFile, tmp_path: Path) -> None:
    artifact = Records(failed).fit(alpha=0.2, rule="acrc", score=KEY, without_failed=True)
    assert (artifact.data.n_failed, artifact.data.n_unmeasured) == (3, 3)
    assert "1.2 % of the questions asked for the calibration failed" in promises(artifact)[0]
    again = CalibrationArtifact.load(artifact.save(tmp_path / "a.json"))
    assert "1.2 % of the questions asked" in describe(again)
    found = {each.check: each for each in doctor.examine(str(tmp_path / "a.json"))}["failed questions"]
    assert (found.status, found.detail[:5]) == ("warn", "1.2 %")
    cascade = fit_cascade([failed, failed], alpha=0.2, scores=[KEY, KEY], without_failed=True)
    assert (cascade.outcome.n, cascade.n_unmeasured, cascade.n_failed) == (240, 3, 3)
    assert "% of the questions asked for the calibration failed" in promises(cascade)[0]


def test_what_the_question_itself_caused_is_a_result_and_stops_no_fit(labelled: RecordFile) -> None:
    artifact = fit_artifact(unmeasured(labelled, Unmeasured.REFUSED, range(60)), score=KEY, alpha=0.2, rule="acrc")
    assert (artifact.data.n_failed, artifact.data.n_unmeasured) == (0, 60)


def test_questions_without_a_score_count_where_the_walk_begins_and_in_every_share(labelled: RecordFile) -> None:
    """Dropped, the surest 25 % would be of the easy questions only, and "answers X %" would be of those.

    140 of 240 questions have no score. At alpha .2, delta .1 the tests begin past 60 accepted of 240, and at 25 of 100.
    The surest 30 of the 100 measured ones are right, all others wrong: a certificate for 100, and none for 240.
    """
    file = unmeasured(labelled, Unmeasured.REFUSED, range(100, 240))
    records = list(file.records)
    for place in range(100):
        score = Uncertainty(value=float(place), estimator=KEY, unit="nats")
        records[place] = records[place].model_copy(update={"correct": place < 30, "scores": {KEY: score}})
    outcome = fit_artifact(replace(file, records=table_of(records)), score=KEY, alpha=0.2).outcome
    assert (outcome.n, outcome.n_accepted) == (240, 0)
    alone = fit_artifact(replace(file, records=table_of(records[:100])), score=KEY, alpha=0.2)
    assert (alone.outcome.n, alone.outcome.n_accepted >= 30) == (100, True)
    # Half of the measured questions have a label, so half of the others belong to them: 50 + 70.
    for place in range(1, 100, 2):
        records[place] = records[place].model_copy(update={"correct": None, "label_detail": ""})
    part = fit_artifact(replace(file, records=table_of(records)), score=KEY, alpha=0.4)
    assert part.outcome.n == 120
    assert part.acceptance == part.outcome.n_accepted / 120


def test_columns_of_large_files_know_what_failed(
    failed: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, failed.header, unmeasured(failed, Unmeasured.REFUSED, [7]).records)
    monkeypatch.setattr(columns, "LARGE", 0)
    large, small = open_records(path).records, read_records(path).records
    assert np.flatnonzero(large.failed(KEY)).tolist() == np.flatnonzero(small.failed(KEY)).tolist() == [5, 50, 150]
    assert np.isnan(large.scores(KEY)).sum() == 4


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("\u2502", " ").split())


def test_run_stops_and_the_same_command_asks_only_the_failed_ones_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rerun counted the questions that had failed as "on file" and certified the rest.
    questions, out = fakes.write_questions(tmp_path / "q.jsonl", size=60), tmp_path / "out"
    quick = ("--test-fraction", "0", "--set", "splits=0")
    asked = ("run", "--questions", questions, "--model", MODEL, "--out", out, *quick)
    monkeypatch.setattr(fakes, "DOWN", {20, 30, 40})
    shown = command(*asked, "--alpha", "0.3", "--correctness", "exact", code=2)
    assert "57 of 60 questions are on file." in shown
    assert "3 of 60 questions (5 %)" in shown
    assert not (out / "artifact.json").exists()
    shown = command(*asked, "--alpha", "0.3", "--correctness", "exact", "--without-failed")
    assert "5 % of the questions asked for the calibration failed" in shown
    monkeypatch.setattr(fakes, "DOWN", set())
    shown = command(*asked, "--alpha", "0.3", "--correctness", "exact")
    assert "57 of 60 are on file" in shown
    assert "60 of 60 questions are on file (57 were there already)" in shown
    assert CalibrationArtifact.load(out / "artifact.json").data.n_failed == 0


# -- shares are of all questions asked


def test_every_share_is_of_all_questions_asked(labelled: RecordFile, tmp_path: Path) -> None:
    # 60 of 240 questions could not be measured: a gate that answers 90 of the other 180 answers 37.5 % and not 50 %.
    file = unmeasured(labelled, Unmeasured.REFUSED, range(0, 240, 4))
    artifact = fit_artifact(file, score=KEY, alpha=0.2, rule="acrc")
    k = artifact.outcome.n_accepted
    share = f"{100 * k / 240:.1f}".removesuffix(".0")
    assert k > 0
    assert artifact.acceptance == pytest.approx(k / 240)
    assert f"It answers {share} % of all questions" in promises(artifact)[0]
    assert at_calibration(artifact).acceptance[0] == pytest.approx(k / 240)
    path, out = tmp_path / "r.jsonl", tmp_path / "a.json"
    write_records(path, file.header, file.records)
    for shown in (
        command("fit", "--rule", "acrc", path, "--alpha", "0.2", "--out", out),
        command("report", out),
        describe(artifact),
        " ".join(each.detail for each in doctor.examine(str(out))),
    ):
        assert f"{share} % of all questions" in shown or f"answers {share} % of all 240 questions" in shown
        assert f"{100 * k / 180:.1f} %" not in shown


def test_unlabelled_questions_are_no_abstentions(labelled: RecordFile) -> None:
    # 120 of 240 are labelled, and a quarter of all could not be measured: the labelled 90 stand for 120.
    file = unmeasured(labelled, Unmeasured.REFUSED, range(0, 240, 4))
    records = [
        record if i % 8 < 4 else record.model_copy(update={"correct": None}) for i, record in enumerate(file.records)
    ]
    file = replace(file, records=table_of(records))
    artifact = fit_artifact(file, score=KEY, alpha=0.25, rule="acrc")
    assert (artifact.data.n_used, artifact.outcome.n_accepted > 0) == (90, True)
    assert artifact.acceptance == pytest.approx(artifact.outcome.n_accepted / 120)
    counts = held_out(artifact.model_copy(update={"data": artifact.data.model_copy(update={"questions": ()})}),
                      file.records, KEY)  # fmt: skip
    assert (counts.n, counts.n_asked) == (90, 120)


def test_a_test_part_counts_what_could_not_be_measured(labelled: RecordFile) -> None:
    half = [record for i, record in enumerate(labelled.records) if i % 2]
    rest = [record for i, record in enumerate(labelled.records) if not i % 2]
    artifact = fit_artifact(labelled, score=KEY, alpha=0.2, rule="acrc", part=half)
    for answer in (False, True):  # whether a label is known of what could not be measured
        test = unmeasured(replace(labelled, records=table_of(rest)), Unmeasured.CUT_OFF, range(30), answer=answer)
        counts = audit(artifact, test.records, KEY).held_out
        assert (counts.n_asked, counts.n) == (120, 120 if answer else 90)
        assert counts.acceptance[0] == pytest.approx(counts.n_accepted / 120)


def test_labels_by_people_stand_for_all_questions(failed: RecordFile, tmp_path: Path) -> None:
    labels = tmp_path / "people.jsonl"
    labels.write_text("".join(f'{{"id": "p{i}", "correct": true}}\n' for i in range(60, 120)), encoding="utf-8")
    from calibrate.data.labels import read_labels

    with pytest.raises(UsageError, match="3 of 240"):
        artifact_with_people(failed, read_labels(labels), score=KEY, alpha=0.3)
