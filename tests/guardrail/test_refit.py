"""`artifact.at()` reaches the calibration code through its entry point, without importing it."""

from __future__ import annotations

import numpy as np
import pytest

from guardrail import CalibrationArtifact, Feasible, MissingDependencyError, UsageError
from guardrail.artifact import CalibrationScores
from guardrail.testing import ScriptedChat, make_artifact


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """400 untied scores 1..400, wrong from the 301st on: e_k = max(0, k - 300)."""
    scores = CalibrationScores(
        uncertainty=tuple(float(u) for u in range(1, 401)), error=tuple(int(u > 300) for u in range(1, 401))
    )
    base = make_artifact(ScriptedChat())
    return base.model_copy(update={"calibration": scores})


def test_at_refits_on_the_stored_scores(artifact: CalibrationArtifact) -> None:
    # empirical: the largest k with (k - 300)/k <= alpha, that is k <= 300/(1 - alpha)
    for alpha in (0.05, 0.1, 0.2):
        outcome = artifact.at(alpha=alpha, rule="empirical").outcome
        assert isinstance(outcome, Feasible)
        assert outcome.n_accepted == int(np.floor(300 / (1 - alpha) + 1e-9))
        assert outcome.threshold == outcome.n_accepted
        assert (outcome.tie_block, outcome.tie_share) == (1, 1 / 400)


def test_a_refit_is_a_new_artifact_that_knows_where_it_comes_from(artifact: CalibrationArtifact) -> None:
    before = artifact.digest
    refitted = artifact.at(alpha=0.2, rule="acrc")
    assert refitted.lineage == (before,)
    assert refitted.digest != before
    assert artifact.digest == before
    assert (refitted.plan, refitted.model, refitted.estimator) == (artifact.plan, artifact.model, artifact.estimator)
    assert refitted.at(alpha=0.1).lineage == (before, refitted.digest)


def test_bad_alpha_is_refused(artifact: CalibrationArtifact) -> None:
    with pytest.raises(UsageError, match=r"Write 0\.15 for 15 %"):
        artifact.at(alpha=15, rule="acrc")


def test_without_the_calibration_code_the_extra_is_named(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardrail.artifact.entry_points", lambda group: [])
    with pytest.raises(MissingDependencyError, match=r"pip install 'acrc-guardrail\[calibrate\]'"):
        artifact.at(alpha=0.1)
