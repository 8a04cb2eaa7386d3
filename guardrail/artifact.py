"""The calibration artifact: one JSON file that binds a threshold to everything it is valid for.

It is the only thing that passes from offline to online. It lives here, not in ``calibrate``, so that run time needs
neither scipy nor the calibration code. What it cannot bind is the population of questions: the promise assumes that
run-time questions are drawn like the calibration questions (exchangeable with them).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from uuid import uuid4

from pydantic import Field, ValidationError, model_validator

from .errors import ArtifactFormatError, ArtifactMismatchError, ArtifactTamperedError, MissingDependencyError
from .identity import ModelIdentity
from .outcome import Feasible, Outcome
from .prompting import PromptWrapping
from .types import Frozen, SamplingPlan
from .uncertainty.base import EstimatorSpec

__all__ = ["CalibrationArtifact", "CalibrationScores", "CorrectnessSpec", "DataFingerprint"]


class CorrectnessSpec(Frozen):
    """The rule that decided which calibration answers were correct. Fixed before calibration."""

    name: str
    """Name of the rule, e.g. "token_f1"."""
    version: int
    """Raised by any change that can move a label."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters, e.g. the F1 threshold."""


class DataFingerprint(Frozen):
    """Which labelled questions the threshold was fitted on."""

    name: str
    """Name of the question set, e.g. its file name without folders."""
    sha256: str
    """Hash over the questions that were used, in canonical form."""
    n_questions: int
    """Questions in the calibration part."""
    n_used: int
    """Questions with a score and a label: what the rule saw."""
    n_unmeasured: int
    """Questions whose uncertainty could not be measured. They always abstain and are left out of the fit."""
    n_unlabelled: int
    """Questions whose correctness could not be decided; left out of the fit."""


class CalibrationScores(Frozen):
    """What the rule saw, kept so that another alpha can be fitted without calling the model again."""

    uncertainty: tuple[float, ...]
    """One score a calibration item; higher is less certain."""
    error: tuple[Literal[0, 1], ...]
    """1 where the answer was wrong."""
    group: tuple[str, ...] | None = None
    """Cluster id of each item (conversation, user, document), or None when items are independent."""

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        lengths = {len(self.uncertainty), len(self.error), len(self.group or self.error)}
        if len(lengths) != 1:
            raise ValueError(f"uncertainty, error and group differ in length: {sorted(lengths)}")
        return self


class CalibrationArtifact(Frozen):
    """A threshold, and everything it is valid for.

    Current limitations: the binding is by name and hash of what can be named and hashed. A provider that changes a
    model behind an unchanged name, or a population of questions that drifts, is not noticed here.
    """

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int = 1
    """Version of this file format."""
    created: str
    """When it was fitted, ISO 8601 with time zone."""
    model: ModelIdentity
    """The model whose answers were calibrated."""
    plan: SamplingPlan
    """How outputs are drawn, at calibration and at run time."""
    prompt: PromptWrapping
    """How a question becomes messages."""
    estimator: EstimatorSpec
    """What turns samples into an uncertainty, with its judge and their versions."""
    correctness: CorrectnessSpec
    """What counted as a correct answer."""
    data: DataFingerprint
    """Which questions."""
    outcome: Outcome
    """The fitted threshold with its rule, alpha, counts, diagnostics and guarantee, or why there is none."""
    certificate: Outcome
    """What the certified rule gives on the same scores, whatever rule was chosen: what can be *proved*."""
    calibration: CalibrationScores = Field(repr=False)
    """The scores and errors themselves."""
    packages: dict[str, str]
    """Versions of the packages that made it."""
    lineage: tuple[str, ...] = ()
    """Digests of the artifacts this one was refitted from, oldest first."""

    @property
    def threshold(self) -> float | None:
        """Accept iff uncertainty <= threshold; None when infeasible (nothing is accepted)."""
        return self.outcome.threshold if isinstance(self.outcome, Feasible) else None

    @property
    def alpha(self) -> float:
        """Target error rate among accepted answers."""
        return self.outcome.alpha

    @cached_property
    def digest(self) -> str:
        """``sha256:`` over the canonical JSON of the content (sorted keys, no white space, UTF-8)."""
        return _digest(self.model_dump(mode="json"))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; its digest is its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("digest", None)  # a cached property, which pydantic copies with the fields
        return copied

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact with its digest, atomically: a reader sees the old file or the new one, never half.

        Raises:
            OSError: The folder does not exist or is not writable.
        """
        target = Path(path)
        content = self.model_dump(mode="json")
        text = json.dumps({"digest": _digest(content), **content}, indent=1, ensure_ascii=False, allow_nan=False)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.part")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an artifact and refuse what cannot be trusted.

        Raises:
            ArtifactFormatError: Missing, truncated, not JSON, wrong schema, or from a future version.
            ArtifactTamperedError: The content does not match its digest.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactFormatError(f"{path}: cannot be read ({error}). Make one with `calibrate fit`.") from error
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArtifactFormatError(
                f"{path}: not complete JSON (line {error.lineno}, column {error.colno}: {error.msg}). "
                "The file is truncated or is no artifact; copy it again or run `calibrate fit`."
            ) from error
        return cls._from_content(content, str(path))

    @classmethod
    def _from_content(cls, content: Any, path: str) -> Self:
        if not isinstance(content, dict) or "schema_version" not in content:
            raise ArtifactFormatError(f"{path}: has no schema_version, so it is no calibration artifact.")
        version, supported = content["schema_version"], cls.SCHEMA_VERSION
        if version != supported:
            raise ArtifactFormatError(
                f"{path}: schema version {version!r}; this library reads version {supported}. "
                "Upgrade acrc-guardrail, or calibrate again with this version."
            )
        stored = content.pop("digest", None)
        if stored is None:
            raise ArtifactTamperedError(f"{path}: has no digest. Write artifacts with `save()` or `calibrate fit`.")
        if stored != _digest(content):
            raise ArtifactTamperedError(
                f"{path}: the content gives {_digest(content)}, but the file says {stored}. Somebody edited it. "
                "Do not edit artifacts; use `artifact.at(alpha=...)` or `calibrate fit` to make another one."
            )
        try:
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ArtifactFormatError(
                f"{path}: field {field!r} is wrong: {first['msg']} ({error.error_count()} errors)."
            ) from error

    def check_model(self, running: ModelIdentity) -> None:
        """Refuse another model than the calibrated one.

        Raises:
            ArtifactMismatchError: Naming both sides.
        """
        differences = self.model.differences(running)
        if differences:
            raise ArtifactMismatchError(
                "; ".join(differences) + ". A threshold is valid for the model it was calibrated with: "
                "load that model, or calibrate this one."
            )

    def at(self, *, alpha: float | None = None, delta: float | None = None, rule: str | None = None) -> Self:
        """Fit another alpha, delta or rule on the stored scores; the model is not called. Returns a new artifact.

        Looking at several alphas and picking one after seeing the results weakens any stated delta: choose first.

        Args:
            alpha: Target error rate; default: as before.
            delta: Failure probability; default: as before.
            rule: Threshold rule; default: as before.

        Raises:
            MissingDependencyError: The ``calibrate`` extra is not installed.
        """
        # An entry point, because `guardrail` must not import `calibrate`.
        found = entry_points(group="acrc_guardrail.refit")
        if not found:
            raise MissingDependencyError("refitting needs: pip install 'acrc-guardrail[calibrate]'")
        refit = next(iter(found)).load()
        refitted: Self = refit(self, alpha=alpha, delta=delta, rule=rule)
        return refitted


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
