"""Certificates by segment: they hold in every segment at once where one threshold for all fails in the hard one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from calibrate.candidate_sets import judge_candidates
from calibrate.cli import app
from calibrate.cli.frame.next_commands import fit_flags
from calibrate.correctness import Exact
from calibrate.data.records import Record, RecordFile
from calibrate.evaluation.audit import audit, audit_counts
from calibrate.pipeline import accepted_of, fit_artifact, held_out
from calibrate.report import write_report
from calibrate.report.sentences import facts, headline, next_steps, promise, standing
from calibrate.segments import BySegment, segment_rows, with_segments
from calibrate.thresholds import fit
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import UsageError
from guardrail.gate import Scope
from guardrail.outcome import Feasible, InfeasibleReason
from guardrail.testing import ScriptedChat, make_artifact

KEY = "discrete_semantic_entropy"
ALPHA, DELTA, RUNS = 0.2, 0.1, 300
# P(wrong | u) = slope * u, u uniform on (0, 1): the error rate at or below t is slope * t / 2.
SLOPES = {"easy": 0.4, "middle": 0.8, "hard": 1.0}
SIZES = {"easy": 600, "middle": 300, "hard": 300}
BASE = make_artifact(ScriptedChat())


def drawn(seed: int) -> tuple[CalibrationArtifact, list[str]]:
    """A calibration of the population, with one certified threshold."""
    rng = np.random.default_rng(seed)
    names = [name for name, n in SIZES.items() for _ in range(n)]
    u = rng.random(len(names))
    error = (rng.random(len(names)) < np.array([SLOPES[name] for name in names]) * u).astype(int)
    outcome = fit(u, error, alpha=ALPHA, rule="certified", delta=DELTA)
    calibration = CalibrationScores(uncertainty=tuple(u.tolist()), error=tuple(error.tolist()))
    return BASE.model_copy(update={"outcome": outcome, "calibration": calibration}), names


def test_all_certificates_hold_at_once_where_one_threshold_fails_in_the_hard_segment() -> None:
    together = each = undivided = accepted = 0
    for seed in range(RUNS):
        artifact, names = drawn(seed)

        def fails(outcome: Any, name: str) -> bool:
            return isinstance(outcome, Feasible) and SLOPES[name] * outcome.threshold / 2 > ALPHA

        divided = with_segments(artifact, names, BySegment()).segments
        alone = with_segments(artifact, names, BySegment(share="each")).segments
        assert divided is not None
        assert alone is not None
        together += any(fails(outcome, name) for name, outcome in divided.outcomes.items())
        each += sum(fails(outcome, name) for name, outcome in alone.outcomes.items())
        undivided += any(fails(artifact.outcome, name) for name in SLOPES)
        accepted += all(isinstance(outcome, Feasible) for outcome in divided.outcomes.values())
    # More than these refute the promise; the chance of a false alarm is one in ten thousand.
    assert together <= stats.binom.ppf(1 - 1e-4, RUNS, DELTA)
    assert each <= stats.binom.ppf(1 - 1e-4, len(SLOPES) * RUNS, DELTA)
    assert accepted > RUNS / 5  # the promise is not kept by accepting nothing
    assert undivided > 0.9 * RUNS  # the negative control: one threshold for all


def test_delta_is_divided_among_the_thresholds_that_are_fitted(labelled: RecordFile) -> None:
    def deltas(**given: Any) -> tuple[float | None, set[float | None]]:
        artifact = fit_artifact(labelled, estimator=KEY, alpha=0.3, rule="certified", by=BySegment(**given))
        assert artifact.segments is not None
        return artifact.outcome.delta, {outcome.delta for outcome in artifact.segments.outcomes.values()}

    assert deltas(min_labels=80)[1] == {0.1 / 3}  # no question is left over
    assert deltas(share="each")[1] == {0.1}
    with pytest.raises(UsageError, match="no category has 81 labelled questions: the largest"):
        deltas(min_labels=81)


def few_of_one(labelled: RecordFile) -> RecordFile:
    """Most questions of "herbs" lose their group, so that it is too small to be a segment."""
    records = [
        record.model_copy(update={"group": None}) if record.group == "herbs" and index % 9 else record
        for index, record in enumerate(labelled.records)
    ]
    return RecordFile(labelled.path, labelled.header, tuple(records))


@pytest.fixture(scope="module")
def artifact(labelled: RecordFile) -> CalibrationArtifact:
    return fit_artifact(few_of_one(labelled), estimator=KEY, alpha=0.3, rule="certified", by=BySegment())


def test_small_groups_and_questions_without_one_are_all_others(
    labelled: RecordFile, artifact: CalibrationArtifact
) -> None:
    own = artifact.segments
    assert own is not None
    assert list(own.outcomes) == ["shrubs", "trees"]
    assert (artifact.outcome.n, artifact.outcome.delta) == (80, 0.1 / 3)
    trees = [record for record in labelled.records if record.group == "trees"]
    scores = [record.scores[KEY].value or 0.0 for record in trees]
    wrong = [int(not record.correct) for record in trees]
    assert own.outcomes["trees"] == fit(scores, wrong, alpha=0.3, rule="certified", delta=0.1 / 3)
    abstains = fit_artifact(
        few_of_one(labelled), estimator=KEY, alpha=0.3, rule="certified", by=BySegment(unknown="abstain")
    )
    assert abstains.threshold is None
    assert abstains.outcome.delta == 0.05  # nothing is spent on the others
    assert getattr(abstains.outcome, "reason", None) is InfeasibleReason.UNKNOWN_SEGMENT


def test_records_are_accepted_by_the_threshold_of_their_segment(
    labelled: RecordFile, artifact: CalibrationArtifact
) -> None:
    for record in labelled.records[:60]:
        threshold = artifact.in_segment(record.group).threshold
        score = record.scores[KEY].value
        assert accepted_of(artifact, [record], KEY)[0] == (
            threshold is not None and score is not None and score <= threshold
        )
    others = renamed(few_of_one(labelled).records)
    assert held_out(artifact, others, KEY).n_accepted == artifact.n_accepted
    assert sum(row.own[0] for row in segment_rows(artifact)) == artifact.n_accepted
    assert audit(artifact, others, KEY).shift.calibration == artifact.acceptance


def renamed(records: Sequence[Record]) -> list[Record]:
    """The same records as of other questions."""
    return [record.model_copy(update={"id": f"new-{record.id}"}) for record in records]


def test_each_segments_promise_is_tested_on_its_own_questions(
    labelled: RecordFile, artifact: CalibrationArtifact
) -> None:
    """One segment breaks its promise, and all answers together keep it."""
    accepted: Counter[str | None] = Counter()
    fresh = []
    for record in renamed(few_of_one(labelled).records):
        right = True
        if accepted_of(artifact, [record], KEY)[0]:
            accepted[record.group] += 1
            right = record.group != "shrubs" or accepted["shrubs"] % 5 > 2  # 3 of 5 wrong, in one segment
        fresh.append(record.model_copy(update={"correct": right}))
    result = audit(artifact, fresh, KEY)
    assert audit_counts(result.n_errors, result.n, 0.3, 0.05)[0] != "refuted"  # the pool would hide it
    assert [name for name, segment in result.segments.items() if segment.verdict == "refuted"] == ["shrubs"]
    assert result.verdict == "refuted"
    assert result.worst is result.segments["shrubs"]
    assert result.worst.level == 0.05 / 4  # two segments, all others and the pool
    assert sum(segment.n for segment in result.segments.values()) == result.n
    assert standing(artifact, result).status == "refuted"
    assert "In segment shrubs" in headline(artifact, result)
    good = audit(artifact, [record.model_copy(update={"correct": True}) for record in fresh], KEY)
    assert good.verdict == "supported"
    assert standing(artifact, good).status == "answers"
    untested = audit(artifact, [r for r in fresh if r.group == "trees"], KEY)
    assert untested.verdict == "undecided"  # nothing is known of the other segments
    assert set(untested.segments) == {"trees"}


@pytest.mark.parametrize("level", [0.05, 0.2])
def test_segments_that_keep_their_promise_are_refuted_with_probability_at_most_the_level(level: float) -> None:
    """Exact: K independent segments whose rates are exactly the target, n answers each, and their pool."""
    n, target, k = 12, 0.3, 2
    pmf = stats.binom(n, target).pmf(np.arange(n + 1))

    def false_alarm(spent: float) -> float:
        alarm = 0.0
        for first, second in product(range(n + 1), repeat=k):
            tests = [(first, n), (second, n), (first + second, 2 * n)]
            if any(audit_counts(errors, size, target, spent)[0] == "refuted" for errors, size in tests):
                alarm += float(pmf[first] * pmf[second])
        return alarm

    assert false_alarm(level / (k + 1)) <= level
    assert false_alarm(level) > level  # each at the whole level would be too much


def test_what_segments_cannot_be_fitted_on_is_refused(labelled: RecordFile, artifact: CalibrationArtifact) -> None:
    with pytest.raises(UsageError, match="certifies nothing"):
        fit_artifact(labelled, estimator=KEY, alpha=0.3, rule="acrc", by=BySegment())
    with pytest.raises(UsageError, match="on clusters"):
        fit_artifact(labelled, estimator=KEY, alpha=0.3, rule="certified", groups="cluster", by=BySegment())
    with pytest.raises(UsageError, match="must be at least 1"):
        fit_artifact(labelled, estimator=KEY, alpha=0.3, rule="certified", by=BySegment(min_labels=0))
    whole = fit_artifact(labelled, estimator=KEY, alpha=0.3, rule="certified")
    scope = Scope(
        score=KEY,
        share=0.5,
        cut=1.0,
        n_asked=9,
        n_pool=9,
        n_within=6,
        n=3,
        seed=0,
        fixed_beforehand=True,
        drawn_sha256="",
    )
    with pytest.raises(UsageError, match="by their scores"):
        with_segments(
            whole.model_copy(update={"outcome": whole.outcome.model_copy(update={"scope": scope})}),
            ["a"] * 240,
            BySegment(),
        )
    with pytest.raises(UsageError, match="cannot tell segments apart"):
        judge_candidates(labelled.records, artifact, Exact())


def test_words_say_what_is_promised_for_each_segment(artifact: CalibrationArtifact) -> None:
    assert "in every segment at once" in promise(artifact)
    assert "3 certificates share delta" in promise(artifact)
    assert "segments have a threshold" in headline(artifact)
    assert {"in trees", "in shrubs", "in all others"} <= {name for name, _ in facts(artifact)}
    assert "segment=" in next_steps(artifact)[-1]
    assert artifact.segments is not None
    each = artifact.segments.model_copy(update={"share": "each"})
    assert "up to 0.3 fail on average" in promise(artifact.model_copy(update={"segments": each}))


def test_the_commands_fit_print_and_report_segments(records_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "artifact.json"
    command = ["fit", str(records_path), "--alpha", "0.3", "--by", "group", "-e", KEY, "--out", str(out)]
    result = CliRunner().invoke(app, [*command, "--test-fraction", "0.2"])
    assert result.exit_code == 0, result.output
    assert "Segments on the test questions" in result.output
    assert "one: under one threshold for all questions" in result.output
    artifact = CalibrationArtifact.load(out)
    assert artifact.segments is not None
    assert artifact.outcome.rule == "certified"
    assert json.loads(out.read_text())["segments"]["unknown"] == "others"
    page = tmp_path / "report.html"
    command = ["report", str(records_path), "--artifact", str(out), "--out", str(page), "--splits", "0"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "They are the test part here." in " ".join(result.output.split())  # said where the command runs, too
    text = page.read_text(encoding="utf-8")
    assert "each segment against its own promise" in text  # the part kept out is in the file
    assert "<h2>By segment</h2>" in text
    assert "one threshold: wrong" in text
    assert f"calibrate fit {records_path}" not in text  # without the part kept out it would be another fit
    assert fit_flags(artifact, KEY).endswith(
        "--rule certified --delta 0.1 --by group --segment-delta together --unknown-segment others --min-labels 50"
    )
    fit_by = ["fit", str(records_path), "--alpha", "0.3", "--by", "group", "--out", str(out)]
    for wrong in (["--cluster-by-group"], ["--rule", "acrc"]):
        assert CliRunner().invoke(app, [*fit_by, *wrong]).exit_code == 2, wrong


def test_reports_take_an_artifact_that_accepts_nothing(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.01, rule="certified", by=BySegment())
    assert artifact.n_accepted == 0
    assert "abstains on everything" in headline(artifact)
    write_report(tmp_path / "report.html", artifact, labelled.records, estimator=KEY)
