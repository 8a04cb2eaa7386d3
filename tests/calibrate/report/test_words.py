"""An artifact in words."""

from __future__ import annotations

import pytest

from calibrate.data.records import RecordFile
from calibrate.evaluation.audit import audit
from calibrate.evaluation.promise_test import Audit
from calibrate.pipeline import fit_artifact
from calibrate.report.assessment import Found, next_steps, ranking, standing, verdict_text
from calibrate.report.facts import describe_spec, facts
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import caveats, summary, unguardable, why_infeasible
from guardrail.notebook import percent
from guardrail.outcome import Feasible, Infeasible
from guardrail.types import Uncertainty, Unmeasured

KEY = "discrete_semantic_entropy"


@pytest.mark.parametrize(
    ("share", "shown"), [(0.153, "15.3 %"), (0.15, "15 %"), (0.0, "0 %"), (1.0, "100 %"), (0.1, "10 %")]
)
def test_percent(share: float, shown: str) -> None:
    assert percent(share) == shown


def test_describe_spec() -> None:
    assert describe_spec("exact", {}) == "exact"
    assert describe_spec("token_f1", {"threshold": 0.5}) == "token_f1 (threshold 0.5)"


def test_feasible_names_the_figures(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    outcome = artifact.outcome
    assert isinstance(outcome, Feasible)
    condition, promise, answers, without = summary(artifact)
    assert condition == f"answer if {KEY} <= {outcome.threshold:.6g} nats"
    assert "above 15 % wrong" in promise
    share, wrong = (percent(k / n) for k, n in ((outcome.n_accepted, 240), (outcome.n_errors, outcome.n_accepted)))
    assert answers == f"answers {share} of all 240 questions; {wrong} of these answers were wrong here"
    assert without == f"without the gate {percent(sum(artifact.calibration.error) / 240)} are wrong"
    rows = dict(facts(artifact))
    assert rows["right answer if"] == "exact"
    assert rows["digest"] == artifact.digest
    assert "10 samples at temperature 0.7" in rows["asked"]
    assert any("Guardrail(" in step for step in next_steps(artifact))
    assert any("exact" in caveat for caveat in caveats(artifact))


def test_infeasible_says_why_and_what_next(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.01, rule="acrc")
    assert summary(artifact)[0] == "answer nothing: no threshold was found"
    # A rule may refuse a cut whose observed errors are within the target, so "no cut keeps the errors" can be false.
    assert summary(artifact)[1] == "1 % wrong answers cannot be promised by rule acrc on these 240 labels"
    assert isinstance(artifact.outcome, Infeasible)
    assert why_infeasible(artifact.outcome).endswith(next_steps(artifact)[0])  # one next step, the same in all places
    assert "Guardrail(" not in " ".join(next_steps(artifact))


def test_the_page_has_the_warnings_that_the_terminal_only_counts(labelled: RecordFile) -> None:
    """Who is told that the report has more warnings looks for them on the page, which shows the next steps."""
    found = Found(unread="5 of 240 answers agree with none of their samples.", doubtful="Of the labels, 9 say wrong.")
    text = verdict_text(fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc"), found=found)
    assert {found.unread, found.doubtful} <= set(text.warnings) <= set(text.steps)


def test_left_out_questions_are_told(labelled: RecordFile) -> None:
    cut = [record.model_copy(update={"correct": None}) for record in labelled.records[:30]]
    file = RecordFile(labelled.path, labelled.header, (*cut, *labelled.records[30:]))
    artifact = fit_artifact(file, score=KEY, alpha=0.15, rule="acrc")
    assert "30 not labelled, of 240" in dict(facts(artifact))["left out"]


@pytest.mark.parametrize("alpha", [0.3, 0.001])
def test_fewer_labels_than_questions_are_explained_beside_their_number(labelled: RecordFile, alpha: float) -> None:
    """84 answers on file and "73 labels" without a reason look like lost questions."""
    lost = Uncertainty(value=None, unit="nats", estimator=KEY, reason=Unmeasured.CUT_OFF)
    cut = [record.model_copy(update={"scores": {KEY: lost}}) for record in labelled.records[:60]]
    bare = [record.model_copy(update={"correct": None}) for record in labelled.records[60:70]]
    file = RecordFile(labelled.path, labelled.header, (*cut, *bare, *labelled.records[70:]))
    artifact = fit_artifact(file, score=KEY, alpha=alpha, rule="acrc")
    assert artifact.calibration.n == 170
    shown = " ".join(summary(artifact))
    assert "170 labels, without 70 of 240 questions: 60 not measured, 10 not labelled" in shown
    data = artifact.data.model_copy(update={"n_cut_off": 11})
    assert "60 not measured (11 cut off)" in " ".join(summary(artifact.model_copy(update={"data": data})))


def audited_at(artifact: CalibrationArtifact, labelled: RecordFile, wrong: float) -> Audit:
    """An audit of questions like those of the fit with a share of wrong labels, spread evenly."""
    ranked = sorted(labelled.records, key=lambda r: (r.scores[KEY].value or 0.0, r.id))
    marked = [int((i + 1) * wrong) > int(i * wrong) for i in range(len(ranked))]
    records = [
        r.model_copy(update={"question": f"new {r.question}", "correct": not bad})
        for r, bad in zip(ranked, marked, strict=True)
    ]
    return audit(artifact, records, KEY)


@pytest.mark.parametrize("rule", ["acrc", "certified"])
def test_the_verdict_reads_the_test_part(labelled: RecordFile, rule: str) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule=rule)
    assert standing(artifact).status == "answers"
    good = audited_at(artifact, labelled, 0.1)
    assert (standing(artifact, good).status, standing(artifact, good).colour) == ("answers", "green")
    assert "Guardrail(" in next_steps(artifact, good)[-1]
    bad = audited_at(artifact, labelled, 0.45)
    assert (standing(artifact, bad).status, standing(artifact, bad).colour) == ("refuted", "red")
    steps = next_steps(artifact, bad, "calibrate fit old new")
    assert "calibrate fit old new" in " ".join(steps[:2])
    assert "Guardrail(" not in " ".join(steps)


def test_a_rule_that_certifies_nothing_may_end_somewhat_above_its_target(labelled: RecordFile) -> None:
    """Half of the gates that aim at alpha lie above it: a large test part refutes alpha, not what the rule promises."""
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    close = audited_at(artifact, labelled, 0.45).model_copy(
        update={"error_p": 0.3, "base_error_p": 0.5, "certified": "undecided"}
    )
    assert (standing(artifact, close).status, standing(artifact, close).colour) == ("above", "yellow")
    assert "--rule certified" in next_steps(artifact, close)[0]
    assert "Guardrail(" not in " ".join(next_steps(artifact, close))
    proven = close.model_copy(update={"rule": "certified"})  # the same counts break a certificate
    assert standing(artifact, proven).status == "refuted"


def test_a_refusal_promises_nothing(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.01, rule="acrc")
    assert dict(facts(artifact))["promise"] == "nothing, so nothing is answered"
    bad = audited_at(artifact, labelled, 0.45)
    assert (standing(artifact, bad).status, standing(artifact, bad).colour) == ("abstains", "red")


def test_an_upside_down_score_is_asked_about_before_reversed_labels(labelled: RecordFile) -> None:
    turned = tuple(record.model_copy(update={"correct": not record.correct}) for record in labelled.records)
    artifact = fit_artifact(RecordFile(labelled.path, labelled.header, turned), score=KEY, alpha=0.15, rule="acrc")
    text = ranking(artifact) or ""
    assert 0 < text.index("upside down") < text.index("labels may be reversed")
    assert "upside down" in next_steps(artifact)[0]


def test_imported_scores_need_another_way(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    assert unguardable(artifact) is None
    spec = artifact.estimator.model_copy(update={"name": "imported:mine"})
    imported = artifact.model_copy(update={"estimator": spec})
    text = unguardable(imported) or ""
    assert "No guard can use this artifact" in text
    assert next_steps(imported)[-1] == text
    assert "Guardrail(" not in " ".join(next_steps(imported))
    verdict = standing(imported)
    assert (verdict.title, verdict.colour) == ("For evaluation only: no guard can use it", "yellow")
    assert standing(artifact).title == "May answer, within limits"
