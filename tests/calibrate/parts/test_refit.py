"""Another alpha, delta or rule on the parts stored in an artifact; drift of the answers' parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import RecordFile
from calibrate.parts.answers import label_parts, measure_records
from calibrate.parts.fit import PartsRule, fit_parts_artifact, refit_parts
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.monitor import DriftMonitor
from guardrail.parts.json_fields import json_spec
from guardrail.parts.measure import parts_measure
from tests.calibrate.parts.cards import invoices, record_file

KEY = "parts_json"
RULES = (
    PartsRule(),
    PartsRule(per="answer"),
    PartsRule(name="clean_shown", allowed=1),
    PartsRule(name="clean_answers"),
    PartsRule(name="both", clean_alpha=0.4),
    PartsRule(name="both"),
    PartsRule(bands=(2,), band_delta="each"),
)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    file = record_file(path, invoices(240))
    return label_parts(measure_records(file, parts_measure(json_spec(file.header.plan.bindings))), KEY)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.per}-{rule.allowed}-{rule.bands}")
def test_another_alpha_is_the_fit_from_records_at_that_alpha(labelled: RecordFile, rule: PartsRule) -> None:
    first = fit_parts_artifact(labelled, alpha=0.2, rule=rule)
    again, fresh = first.at(alpha=0.12), fit_parts_artifact(labelled, alpha=0.12, rule=rule)
    assert again.parts is not None
    assert fresh.parts is not None
    no_recall = {"reference": None, "recalled": None, "recall_interval": None}
    assert fresh.parts.figures is not None
    figures = fresh.parts.figures.model_copy(update=no_recall)
    assert again.parts == fresh.parts.model_copy(update={"figures": figures})
    assert again.outcome == fresh.outcome
    assert again.lineage == (first.digest,)
    assert CalibrationArtifact.model_validate_json(again.model_dump_json()).parts == again.parts


def test_another_rule_and_what_is_refused(labelled: RecordFile) -> None:
    first = fit_parts_artifact(labelled, alpha=0.2)
    other = first.at(rule="clean_shown")
    assert other.parts is not None
    assert other.selection is not None
    assert other.selection.fits == 2  # another certificate on the same labels
    assert "One of 2 fits on these labels" in other.parts.promise
    wider = first.at(delta=0.2)
    assert wider.parts is not None
    assert wider.outcome.threshold == fit_parts_artifact(labelled, alpha=0.2, delta=0.2).threshold
    assert other.outcome.rule == other.parts.rule == "clean_shown"
    with pytest.raises(UsageError, match="no rule for parts named 'certified'"):
        first.at(rule="certified")
    assert first.parts is not None
    planned = first.parts.model_copy(update={"options": {**first.parts.options, "planned": 300}})
    with pytest.raises(UsageError, match="one of several planned looks"):
        refit_parts(first.model_copy(update={"parts": planned}), alpha=0.1)


def test_drift_is_found_where_some_field_gets_less_certain_and_not_elsewhere(
    labelled: RecordFile, tmp_path: Path
) -> None:
    artifact = fit_parts_artifact(labelled, alpha=0.2)
    artifact.save(tmp_path / "artifact.json")
    record_file(tmp_path / "same.jsonl", invoices(200, seed=7, prefix="same"))
    worse = []
    for record in invoices(200, seed=8, prefix="worse"):
        assert record.drawn is not None
        dice = random.Random(record.id)
        samples = tuple(
            sample.model_copy(update={"text": sample.text.replace("2026-01", f"2026-{dice.randrange(10, 99)}")})
            for sample in record.drawn.samples
        )
        worse.append(record.model_copy(update={"drawn": record.drawn.model_copy(update={"samples": samples})}))
    record_file(tmp_path / "worse.jsonl", worse)
    codes = {}
    for name in ("same", "worse"):
        command = ["drift", str(tmp_path / f"{name}.jsonl"), "--artifact", str(tmp_path / "artifact.json")]
        result = CliRunner().invoke(app, command)
        codes[name] = result.exit_code, result.output
    assert codes["same"][0] == 0, codes["same"][1]
    assert codes["worse"][0] == 1, codes["worse"][1]


@pytest.mark.slow
def test_false_alarms_of_drift_on_means_of_parts_stay_below_delta(labelled: RecordFile) -> None:
    artifact = fit_parts_artifact(labelled, alpha=0.2)
    scores = list(artifact.answer_scores)
    alarms = changed = 0
    for seed in range(60):
        dice = random.Random(seed)
        pool = dice.sample(scores, len(scores))
        half = len(scores) // 2
        monitor = DriftMonitor(_with_means(artifact, pool[:half]), delta=0.2, seed=seed)
        moved = DriftMonitor(_with_means(artifact, pool[:half]), delta=0.2, seed=seed)
        for value in pool[half:]:
            monitor.update(value)
            moved.update(min(1.0, value + 0.3))
        alarms += monitor.alarm is not None
        changed += moved.alarm is not None
    assert alarms <= 20  # P(Bin(60, .2) > 20) = .4 %
    assert changed >= 55


def _with_means(artifact: CalibrationArtifact, means: list[float]) -> CalibrationArtifact:
    """The artifact with answers of one part each, whose uncertainties are these."""
    gate = artifact.parts
    assert gate is not None
    scores = gate.scores.model_copy(
        update={
            "sizes": (1,) * len(means),
            "uncertainty": tuple(means),
            "wrong": (0,) * len(means),
            "ids": (),
            "group": None,
        }
    )
    return artifact.model_copy(update={"parts": gate.model_copy(update={"scores": scores})})
