"""A guard's configuration as plain JSON, and back: no pickle, no secret, no model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..artifact import CalibrationArtifact
from ..errors import ArtifactTamperedError, UsageError
from ..files import check_version
from .base import GuardedChatModel

__all__ = ["from_config", "to_config"]

Guard = TypeVar("Guard", bound=GuardedChatModel)

FORMAT = "acrc-guardrail/guard/1"
PLAIN = (
    "on_abstain",
    "abstain_message",
    "probe",
    "turns",
    "remember",
    "remember_slots",
    "max_concurrency",
)
OBJECTS = ("using", "on_verdict")


def to_config(guard: GuardedChatModel, own: CalibrationArtifact, path: str | Path | None) -> dict[str, Any]:
    """The guard's settings as a dict for JSON.

    Args:
        guard: What to write down. Its model is only named: models hold weights or keys.
        own: Its artifact.
        path: Path to write instead of the artifact's content; its digest is kept and checked on the way back.

    Returns:
        "format", "model" (its identity), "artifact", "settings", and "needs": what JSON cannot hold (a Runnable, a
        handler, a judge object) and has to be given to `from_config` again.
    """
    settings: dict[str, Any] = {}
    needs = [name for name in OBJECTS if getattr(guard, name)]
    for name in PLAIN:
        value = getattr(guard, name)
        if value is None or isinstance(value, str | int | float | tuple):
            settings[name] = value
        else:
            needs.append(name)
    stored: dict[str, Any] = {"digest": own.digest}
    stored |= {"path": str(path)} if path is not None else {"content": own.content}
    identity = own.model.model_dump(mode="json")
    config = {"format": FORMAT, "model": identity, "artifact": stored, "settings": settings, "needs": sorted(needs)}
    plain: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    return plain


def from_config(cls: type[Guard], config: Mapping[str, Any], model: Any, given: Mapping[str, Any]) -> Guard:
    """A guard from `to_config`'s dict.

    Args:
        cls: The class to make.
        config: The dict.
        model: The chat model, or a text that names it.
        given: Settings that replace those of the dict, and the objects it "needs".

    Raises:
        UsageError: Not such a dict, or an object it needs was not given.
        ArtifactError: The artifact differs from the stored one, or does not fit the model.
    """
    version = config.get("format")
    if not isinstance(version, str) or not version.startswith(FORMAT.rstrip("0123456789")):
        raise UsageError(f"config has the format {version!r}; this library reads {FORMAT!r} (to_config()).")
    check_version(version, FORMAT, "config", "write it again with this version's to_config()")
    missing = sorted(set(config.get("needs", ())) - given.keys())
    if missing:
        raise UsageError(
            f"this guard was configured with objects that are not JSON: give {', '.join(missing)} again, e.g. "
            f"Guardrail.from_config(config, model=..., {missing[0]}=...)."
        )
    settings = config.get("settings", {})
    unknown = sorted(set(settings) - set(PLAIN))
    if unknown:
        raise UsageError(f"config has unknown settings {unknown}; known are {', '.join(PLAIN)}.")
    return cls(model=model, artifact=_artifact(config.get("artifact", {})), **{**settings, **given})


def _artifact(stored: Mapping[str, Any]) -> CalibrationArtifact:
    if "path" in stored:
        artifact = CalibrationArtifact.load(stored["path"])
    elif isinstance(stored.get("content"), Mapping):
        content = {**stored["content"], "digest": stored.get("digest")}
        artifact = CalibrationArtifact._from_content(content, "config")
    else:
        raise UsageError('config["artifact"] has neither a path nor a content; write it with to_config().')
    if artifact.digest != stored.get("digest"):
        raise ArtifactTamperedError(
            f"the artifact at {stored.get('path')} is {artifact.digest}, but the config was written for "
            f"{stored.get('digest')}. Put that file back, or write the config again."
        )
    return artifact
