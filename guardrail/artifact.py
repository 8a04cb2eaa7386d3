"""The calibration artifact: one JSON file that binds a threshold to everything it is valid for.

It is the only thing that passes from offline to online. It lives here, not in ``calibrate``, so that run time needs
neither scipy nor the calibration code. What it cannot bind is the population of questions: the promise assumes that
run-time questions are drawn like the calibration questions (exchangeable with them).
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ._persisted import Persisted
from .errors import ArtifactMismatchError, MissingDependencyError
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


class CalibrationArtifact(Persisted):
    """A threshold, and everything it is valid for.

    Current limitations: the binding is by name and hash of what can be named and hashed. A provider that changes a
    model behind an unchanged name, or a population of questions that drifts, is not noticed here.
    """

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
