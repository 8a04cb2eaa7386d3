"""An artifact round-trips, and is refused when it cannot be trusted, naming both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, Made
from guardrail.errors import ArtifactFormatError, ArtifactMismatchError, ArtifactTamperedError
from guardrail.files import Persisted, _digest
from guardrail.review.candidates import CandidateRule
from guardrail.specs import ModelIdentity
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


@pytest.mark.parametrize("version", [0, 2, True, "1", None])
def test_another_version_is_refused_with_the_way_out(saved: Path, version: object) -> None:
    """A field of another version could narrow the promise, and a guard that ignores it would answer too much."""
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "schema_version": version}))
    refused = f"format version '{version}'; this version of acrc-guardrail reads '1'. Upgrade acrc-guardrail"
    with pytest.raises(ArtifactFormatError, match=refused):
        CalibrationArtifact.load(saved)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"plan": {**ARTIFACT.content["plan"], "temperature": 0.0}}, "'plan' is wrong: .*temperature must be above 0"),
        ({"plan": {**ARTIFACT.content["plan"], "more": 1}}, r"'plan\.more' is wrong: Extra inputs are not permitted"),
        ({"more": None}, "'more' is wrong: Extra inputs are not permitted"),
    ],
)
def test_wrong_and_unknown_fields_are_refused_by_name(saved: Path, change: dict[str, Any], problem: str) -> None:
    """An unknown field could narrow the promise, as another version's."""
    content = {**ARTIFACT.content, **change}
    saved.write_text(json.dumps({"digest": _digest(content), **content}))
    with pytest.raises(ArtifactFormatError, match=f"field {problem}"):
        CalibrationArtifact.load(saved)


SAVED = json.dumps(ARTIFACT.model_dump(mode="json"))
UNREADABLE = {
    "NaN": (SAVED.replace('"threshold": 0.25', '"threshold": NaN'), r"field 'outcome\.threshold' holds the number nan"),
    "infinity": (SAVED.replace('"threshold": 0.25', '"threshold": 1e999'), r"'outcome\.threshold' holds the number"),
    "half a character": (SAVED.replace('"at": "', '"at": "\\ud83d'), r"field 'made.at' holds half of a surr"),
    "half a character in a name": (SAVED.replace('"made"', '"\\ud83d"'), "it holds half of a surrogate pair"),
    "brackets": ('{"schema_version": 1, "x": ' + "[" * 100_000, "cannot be read as JSON"),
    "levels": ('{"schema_version": 1, "x": ' + "[" * 400 + "]" * 400 + "}", "field 'x' holds values nested more than"),
    "digits": ('{"schema_version": 1' + "0" * 5000 + "}", "cannot be read as JSON"),
}
"""Contents that Python's JSON reader takes, or fails on in its own way, with what is said of them."""


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("kind", [CalibrationArtifact, CascadeArtifact, CandidateRule])
def test_what_no_digest_can_be_made_of_is_refused_with_its_place(saved: Path, name: str, kind: type[Persisted]) -> None:
    content, problem = UNREADABLE[name]
    assert content != SAVED
    saved.write_text(content)
    with pytest.raises(ArtifactFormatError, match=rf"calibration\.json: .*{problem}.*calibrate fit`\.") as caught:
        kind.load(saved)
    str(caught.value).encode()  # it can be printed
    with pytest.raises(ArtifactFormatError, match=problem):
        Guardrail(model=ScriptedChat(), artifact=saved)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactFormatError, match="calibrate fit"):
        CalibrationArtifact.load(tmp_path / "none.json")


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
    changed = ARTIFACT.model_copy(update={"made": Made(at="2001-01-01T00:00:00+00:00", packages={})})
    assert changed.digest != ARTIFACT.digest
    assert changed.model_copy(update={"made": ARTIFACT.made}).digest == ARTIFACT.digest


def test_repr_does_not_print_thousands_of_scores() -> None:
    assert "uncertainty=(" not in repr(ARTIFACT)


def test_a_threshold_outside_its_scope_is_refused(tmp_path: Path) -> None:
    artifact = ARTIFACT
    path = artifact.save(tmp_path / "artifact.json")
    content = {**artifact.content, "outcome": {**artifact.content["outcome"], "scope": {"cut": 0.1}}}
    path.write_text(json.dumps({**content, "digest": _digest(content)}))
    with pytest.raises(ArtifactFormatError, match=r"above the cut 0\.1 of the scope"):
        CalibrationArtifact.load(path)
