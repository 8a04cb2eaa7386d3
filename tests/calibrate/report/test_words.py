"""An artifact in words."""

from __future__ import annotations

import pytest

from calibrate.data.records import RecordFile
from calibrate.pipeline import fit_artifact
from calibrate.report.sentences import caveats, certificate, describe_spec, facts, headline, next_steps, percent
from guardrail.outcome import Feasible

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
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.15)
    outcome = artifact.outcome
    assert isinstance(outcome, Feasible)
    text = headline(artifact)
    assert f"{outcome.n_errors} of {outcome.n_accepted}" in text
    assert "target 15 %" in text
    rows = dict(facts(artifact))
    assert rows["threshold"] == f"accept if uncertainty <= {outcome.threshold:.6g}"
    assert rows["right answer if"] == "exact"
    assert rows["digest"] == artifact.digest
    assert "10 samples at temperature 0.7" in rows["asked"]
    assert any("Guardrail(" in step for step in next_steps(artifact))
    assert any("exact" in caveat for caveat in caveats(artifact))


def test_infeasible_says_why_and_what_next(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.01)
    assert "abstains on everything" in headline(artifact)
    assert "Nothing can be certified at 1 % with 90 % confidence" in certificate(artifact)
    assert "no threshold" in dict(facts(artifact))
    steps = " ".join(next_steps(artifact))
    smallest = artifact.outcome.diagnostics.smallest_feasible_alpha
    assert smallest is not None
    assert f"alpha {smallest:g}" in steps
    assert "Guardrail(" not in steps


def test_a_score_without_signal_is_called_out(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, estimator="perplexity", alpha=0.15)  # the fakes give every word probability .5
    assert any("Use another estimator" in step for step in next_steps(artifact))


def test_left_out_questions_are_told(labelled: RecordFile) -> None:
    cut = [record.model_copy(update={"correct": None}) for record in labelled.records[:30]]
    file = RecordFile(labelled.path, labelled.header, (*cut, *labelled.records[30:]))
    assert "30 not labelled, of 240" in dict(facts(fit_artifact(file, estimator=KEY, alpha=0.15)))["left out"]
