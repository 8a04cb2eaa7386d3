"""Judge labels corrected by people's: the outcome, the artifact and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from calibrate.data.labels import read_labels
from calibrate.data.records import RecordFile, read_records
from calibrate.fitting import fit
from calibrate.prediction_powered import artifact_with_people, fit_prediction_powered, p_people, prediction_powered
from calibrate.report import write_report
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import guarantee, why_infeasible
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason
from tests.calibrate.commands import run

# -- The test --------------------------------------------------------------------------------------------------------


def test_people_without_an_error_by_hand() -> None:
    # With the adverse answer: mean 1/61, standard error 1/61; at alpha = (1 + z) / 61, z = 1.2816, p = Phi(-z) = .1.
    for judge_only in ([], [1, 0, 1]):
        assert p_people([0] * 60, [0] * 60, judge_only, (1 + 1.2815515655) / 61) == pytest.approx(0.1)


def test_a_judge_that_always_agrees_by_hand() -> None:
    # k = 4, K = 4, H = J = 0 0 1 1: var(J) = cov = 1/4, weight 1 / (1 + 4/4) = 1/2.
    # Residuals H - J/2 = 0 0 .5 .5 and the adverse 1: mean .4, variance .175. Judge only 0 0 0 1: mean .25, 3/16.
    alpha = 0.4 + 0.125 + 1.2815515655 * (0.175 / 5 + 0.25 * (3 / 16) / 4) ** 0.5
    assert p_people([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], alpha) == pytest.approx(0.1)


def test_a_contrary_judge_is_ignored() -> None:
    people, rest = np.array([0] * 95 + [1] * 5), np.tile([0, 1], 500)
    assert p_people(people, 1 - people, rest, 0.1) == p_people(people, people, [], 0.1)


def test_a_judge_that_agrees_narrows_the_test_and_a_useless_one_costs_nothing() -> None:
    people = np.array([0] * 95 + [1] * 5)
    rest = np.tile(people, 20)
    alone = p_people(people, people, [], 0.1)
    assert p_people(people, people, rest, 0.1) < alone / 2
    assert p_people(people, np.tile([0, 1], 50), np.tile([0, 1], 500), 0.1) == pytest.approx(alone, rel=0.5)


RUNS = 200
SHAPES: dict[str, tuple[float, Callable[[NDArray[np.float64]], NDArray[np.float64]], Callable[[float], float]]] = {
    # name: alpha, error rate at u, error rate among all up to t; u is uniform.
    "flat": (0.149, lambda u: np.full(u.size, 0.15), lambda t: 0.15),
    "rising": (0.1, lambda u: 0.03 + 0.3 * u, lambda t: 0.03 + 0.15 * t),
    "steep": (0.05, lambda u: 0.6 * u**3, lambda t: 0.15 * t**3),
}


def bad(outcome: Feasible | Infeasible, shape: str) -> bool:
    alpha, _, rate = SHAPES[shape]
    return isinstance(outcome, Feasible) and rate(outcome.threshold) > alpha


@pytest.mark.parametrize(
    "shape", ["flat", *(pytest.param(shape, marks=pytest.mark.slow) for shape in ("rising", "steep"))]
)
def test_error_rate_is_seldom_above_alpha(shape: str) -> None:
    """The judge finds half of the errors and 2 % false ones: its labels alone must fail the same check."""
    alpha, at, _ = SHAPES[shape]
    rng = np.random.default_rng(5)
    failed = misled = feasible = 0
    for _ in range(RUNS):
        u = rng.random(1500)
        truth = rng.random(u.size) < at(u)
        judge = np.where(truth, rng.random(u.size) < 0.5, rng.random(u.size) < 0.02).astype(int)
        people = [int(label) if i < 300 else None for i, label in enumerate(truth)]
        outcome = fit_prediction_powered(u, judge, people, alpha=alpha, delta=0.1)
        failed += bad(outcome, shape)
        feasible += isinstance(outcome, Feasible)
        misled += bad(fit(u, judge, alpha=alpha, rule="certified", delta=0.1), shape)
    limit = stats.binom.isf(1e-4, RUNS, 0.1)
    assert failed <= limit
    assert misled > limit  # negative control: the judge's labels alone
    assert shape == "flat" or feasible > RUNS / 4


def test_outcomes() -> None:
    u = np.arange(1000.0)
    judge = u >= 600
    people = [int(judge[i]) if i % 2 else None for i in range(1000)]
    outcome = fit_prediction_powered(u, judge.astype(int), people, alpha=0.1)
    assert isinstance(outcome, Feasible)
    # Thresholds accept 50, 100, ... items; among 650 the rate is 50/650 = .077, among 700 it is .143.
    assert outcome.threshold in (599.0, 649.0)
    assert (outcome.n, outcome.n_accepted) == (500, (int(outcome.threshold) + 1) // 2)
    assert outcome.n_errors == sum(1 for i in range(1, 1000, 2) if 600 <= i <= outcome.threshold)
    assert "not a certificate" in guarantee(outcome)
    few = fit_prediction_powered(u, judge.astype(int), [0] * 20 + [None] * 980, alpha=0.1)
    assert isinstance(few, Infeasible)
    assert few.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert "needs 44 accepted ones" in why_infeasible(few)  # twice the zero-error floor of 22
    bad = fit_prediction_powered(u, np.ones(1000), [1] * 500 + [None] * 500, alpha=0.1)
    assert isinstance(bad, Infeasible)
    assert bad.reason is InfeasibleReason.RISK_NEVER_LOW_ENOUGH
    # The first 1/20 of 1,000.
    assert "50 of the 50 accepted answers that people labelled are wrong" in why_infeasible(bad)
    # 100 of 1,100 were not measured: half of them belong to the half that people labelled.
    scores, judged = [*u, *[math.inf] * 100], [*judge.astype(int), *[0] * 100]
    missing = fit_prediction_powered(scores, judged, [*people, *[None] * 100], alpha=0.1)
    assert (missing.n, missing.options) == (550, {"people": 500, "judge_only": 500})
    with pytest.raises(UsageError, match="people has 3 entries"):
        fit_prediction_powered(u, judge.astype(int), [1, 0, None], alpha=0.1)
    with pytest.raises(UsageError, match="one shape"):
        prediction_powered(u, judge, 0.1, judge=judge, sampled=[True])
    with pytest.raises(UsageError, match="people labelled 1"):
        fit_prediction_powered(u, judge.astype(int), [1] + [None] * 999, alpha=0.1)


# -- The artifact and the command --------------------------------------------------------------------------------------


def human_file(file: RecordFile, path: Path, every: int = 2) -> Path:
    """People agree with the rule, on every second record."""
    rows = [{"id": r.id, "correct": r.correct} for i, r in enumerate(file.records) if i % every == 0]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_artifact_is_bound_to_peoples_labels(labelled: RecordFile, tmp_path: Path) -> None:
    labels = read_labels(human_file(labelled, tmp_path / "people.jsonl"))
    artifact, sample = artifact_with_people(labelled, labels, score="semantic_entropy", alpha=0.2)
    assert artifact.outcome.rule == "prediction_powered"
    assert artifact.correctness == labels.spec
    assert artifact.outcome.options["judge"] == "exact"
    assert artifact.outcome.n == len(artifact.calibration.error) == len(sample.records) == 120
    path = artifact.save(tmp_path / "a.json")
    assert CalibrationArtifact.load(path).digest == artifact.digest
    page, *_ = write_report(tmp_path / "r.html", artifact, sample.records, estimator="semantic_entropy")
    assert "not a certificate" in page.read_text(encoding="utf-8")
    bare = RecordFile(labelled.path, labelled.header.model_copy(update={"correctness": None}), labelled.records)
    with pytest.raises(UsageError, match="no labels by a judge"):
        artifact_with_people(bare, labels, score="semantic_entropy", alpha=0.2)


def test_an_answer_that_people_skipped_counts_as_wrong(labelled: RecordFile, tmp_path: Path) -> None:
    path = human_file(labelled, tmp_path / "people.jsonl")
    before, _ = artifact_with_people(labelled, read_labels(path), score="semantic_entropy", alpha=0.2)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    skipped = next(row for row in rows if row["correct"])
    answers = {record.id: record.answer for record in labelled.records}
    skipped |= {"correct": None, "judged": answers[skipped["id"]]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    after, sample = artifact_with_people(labelled, read_labels(path), score="semantic_entropy", alpha=0.2)
    assert after.outcome.n == len(sample.records) == before.outcome.n
    assert sum(after.calibration.error) == sum(before.calibration.error) + 1
    assert after.outcome.diagnostics.base_error > before.outcome.diagnostics.base_error
    assert after.data.n_undecided == 1


def test_command(labelled: RecordFile, records_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    people = human_file(labelled, tmp_path / "people.jsonl")

    out = tmp_path / "a.json"
    shown = run("fit", records_path, "-a", "0.2", "--human-labels", people, "-s", "semantic_entropy", "-o", out)
    assert "asymptotic, not a certificate" in shown
    assert "random sample, and only" not in shown
    assert read_records(tmp_path / "a.human.jsonl").header.correctness == read_labels(people).spec
    run("report", tmp_path / "a.human.jsonl", "--artifact", out, "--out", tmp_path / "r.html", "--splits", "2")
    shown = run("fit", records_path, "-a", "0.2", "--human-labels", people, "--rule", "lec", "-o", out, code=2)
    assert "brings its own rule" in shown
    certain = sorted(labelled.records, key=lambda r: r.scores["semantic_entropy"].value or 0.0)[:100]
    chosen = human_file(RecordFile(labelled.path, labelled.header, tuple(certain)), tmp_path / "chosen.jsonl", every=1)
    shown = run("fit", records_path, "-a", "0.2", "--human-labels", chosen, "-s", "semantic_entropy", "-o", out, code=2)
    assert "not a random sample, and only a random one corrects the judge" in shown
