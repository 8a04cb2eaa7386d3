"""An artifact round-trips, and is refused when it cannot be trusted, naming both sides."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactFormatError, ArtifactMismatchError, ArtifactTamperedError
from guardrail.identity import ModelIdentity
from guardrail.testing import ScriptedChat, make_artifact

ARTIFACT = make_artifact(ScriptedChat(), threshold=0.25)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return ARTIFACT.save(tmp_path / "calibration.json")


def test_round_trip(saved: Path) -> None:
    loaded = CalibrationArtifact.load(saved)
    assert loaded == ARTIFACT
    assert loaded.digest == ARTIFACT.digest
    assert loaded.threshold == 0.25


def test_infeasible_round_trips_and_has_no_threshold(tmp_path: Path) -> None:
    path = make_artifact(ScriptedChat(), threshold=None).save(tmp_path / "x.json")
    assert CalibrationArtifact.load(path).threshold is None


@pytest.mark.parametrize("field", ["outcome", "alpha_inside", "calibration", "model"])
def test_any_edit_is_noticed(saved: Path, field: str) -> None:
    content = json.loads(saved.read_text())
    if field == "outcome":
        content["outcome"]["threshold"] = 9.0
    elif field == "alpha_inside":
        content["outcome"]["alpha"] = 0.01
    elif field == "calibration":
        content["calibration"]["error"][0] = 1
    else:
        content["model"]["model"] = "another"
    saved.write_text(json.dumps(content))
    with pytest.raises(ArtifactTamperedError, match=r"the content gives sha256:.* but the file says sha256:"):
        CalibrationArtifact.load(saved)


def test_reformatting_is_no_edit(saved: Path) -> None:
    saved.write_text(json.dumps(json.loads(saved.read_text()), sort_keys=True, indent=7))
    assert CalibrationArtifact.load(saved) == ARTIFACT


def test_a_removed_digest_is_refused(saved: Path) -> None:
    content = json.loads(saved.read_text())
    del content["digest"]
    saved.write_text(json.dumps(content))
    with pytest.raises(ArtifactTamperedError, match="no digest"):
        CalibrationArtifact.load(saved)


def test_every_truncation_is_refused(saved: Path) -> None:
    text = saved.read_text().rstrip("\n")
    for length in range(0, len(text), 97):
        saved.write_text(text[:length])
        with pytest.raises(ArtifactFormatError):
            CalibrationArtifact.load(saved)


def test_a_future_version_is_refused(saved: Path) -> None:
    content = json.loads(saved.read_text())
    content["schema_version"] = 2
    saved.write_text(json.dumps(content))
    with pytest.raises(ArtifactFormatError, match="schema version 2; this library reads version 1"):
        CalibrationArtifact.load(saved)


def test_unknown_and_missing_fields_are_refused_by_name(saved: Path) -> None:
    from guardrail._persisted import _digest

    content = json.loads(saved.read_text())
    content.pop("digest")
    content["plan"]["temperature"] = 0.0
    saved.write_text(json.dumps({"digest": _digest(content), **content}))
    with pytest.raises(ArtifactFormatError, match=r"field 'plan' is wrong: .*temperature must be above 0"):
        CalibrationArtifact.load(saved)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactFormatError, match="calibrate fit"):
        CalibrationArtifact.load(tmp_path / "none.json")


def test_saving_is_atomic(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_text()

    def broken(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        make_artifact(ScriptedChat(), threshold=0.9).save(saved)
    assert saved.read_text() == before
    assert list(saved.parent.iterdir()) == [saved]


def identity(model: str = "m", revision: str | None = None, provider: str = "transformers") -> ModelIdentity:
    return ModelIdentity(provider=provider, model=model, revision=revision)


def test_another_model_is_refused_naming_both_sides() -> None:
    with pytest.raises(ArtifactMismatchError, match="calibrated 'scripted', running 'gpt-5'"):
        ARTIFACT.check_model(identity("gpt-5", provider="scripted"))


def test_same_weights_under_another_folder_name_are_the_same_model() -> None:
    assert identity("a", "sha256:1").differences(identity("b", "sha256:1")) == []
    assert identity("a", "sha256:1").differences(identity("a", "sha256:2")) == [
        "model revision: calibrated 'sha256:1', running 'sha256:2'"
    ]
    assert identity("a", "sha256:1").differences(identity("a", None)) != []


def test_a_changed_copy_has_its_own_digest() -> None:
    assert ARTIFACT.digest.startswith("sha256:")
    changed = ARTIFACT.model_copy(update={"created": "2001-01-01T00:00:00+00:00"})
    assert changed.digest != ARTIFACT.digest
    assert changed.model_copy(update={"created": ARTIFACT.created}).digest == ARTIFACT.digest


def test_repr_does_not_print_thousands_of_scores() -> None:
    assert "uncertainty=(" not in repr(ARTIFACT)
