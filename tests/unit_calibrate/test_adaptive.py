"""Adaptive plans at calibration: the rule is applied to recorded sets, and the guard that is fitted follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate._cli import app
from calibrate.pipeline import fit_artifact
from calibrate.records import read_records
from calibrate.scoring import adaptive, score_records
from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UsageError
from guardrail.uncertainty import make

from . import fakes

NAME = "discrete_semantic_entropy"


def test_score_applies_the_rule_and_drops_scores_of_another(records_path: Path) -> None:
    before = read_records(records_path)
    after = score_records(adaptive(before, 3), [make(NAME)])
    assert set(after.header.estimators) == {NAME}
    changed = 0
    for old, new in zip(before.records, after.records, strict=True):
        assert old.drawn is not None
        first = [sample.text for sample in old.drawn.samples[:3]]
        if len(set(first)) == 1:  # the fakes' answers are single words: equal or different
            assert new.scores[NAME].value == 0
            changed += old.scores[NAME].value != 0
        else:
            assert new.scores[NAME] == old.scores[NAME]
    assert changed > 5
    back = score_records(adaptive(after, None), [make(NAME)])
    assert [r.scores[NAME] for r in back.records] == [r.scores[NAME] for r in before.records]


def test_a_fitted_guard_draws_by_the_rule_and_scores_as_recorded(records_path: Path) -> None:
    file = score_records(adaptive(read_records(records_path), 3), [make(NAME)])
    artifact = fit_artifact(file, estimator=NAME, alpha=0.2)
    assert artifact.plan.unanimous_at == 3
    guard = Guardrail(model=fakes.model(), artifact=artifact, early_stopping="off")
    saved = 0
    for record in file.records[:40]:
        verdict = guard.assess(record.question)
        assert verdict.uncertainty == record.scores[NAME]
        saved += verdict.cost.saved
    assert saved > 0


def test_on_the_command_line(records_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["score", str(records_path), "-e", NAME, "--unanimous-at", "4"])
    assert result.exit_code == 0, result.output
    out = tmp_path / "artifact.json"
    result = CliRunner().invoke(app, ["fit", str(records_path), "-e", NAME, "-a", "0.2", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert CalibrationArtifact.load(out).plan.unanimous_at == 4


def test_a_rule_without_room_is_refused(records_path: Path) -> None:
    with pytest.raises(UsageError, match="from 2 to 9 for records with 10 samples, got 10"):
        adaptive(read_records(records_path), 10)
