"""The artifact of a cascade: thresholds that were chosen together, and everything they are valid for."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ._persisted import Persisted
from .artifact import CalibrationArtifact
from .outcome import InfeasibleReason
from .types import Frozen

__all__ = ["CascadeArtifact", "CascadeOutcome", "StageShare"]


class StageShare(Frozen):
    """What one stage does on the calibration questions."""

    threshold: float | None
    """The stage answers iff its uncertainty <= threshold; None: it never answers."""
    n_accepted: int
    """Questions that this stage answers (and no stage before it)."""
    n_errors: int
    """Wrong answers among them."""


class CascadeOutcome(Frozen):
    """Thresholds of all stages, or why there are none."""

    rule: str
    """Name of the rule."""
    alpha: float
    """Target error rate among the answers of the whole system."""
    delta: float | None
    """Failure probability of the statement; None for rules that do not make one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options the rule was called with, resolved."""
    n: int
    """Calibration questions."""
    guarantee: str
    """What the rule promises of the system, in one sentence, including what it assumes."""
    stages: tuple[StageShare, ...]
    """One entry a stage; no stage has a threshold when the outcome is infeasible."""
    interval: tuple[float, float] | None
    """95 % Clopper-Pearson interval of the error rate among accepted calibration answers. Post-selection: it describes
    these questions and is not a certificate. None when nothing is accepted."""
    reason: InfeasibleReason | None = None
    """Why no thresholds satisfy the rule; None when some do."""
    detail: str = ""
    """The reason in words."""

    @property
    def feasible(self) -> bool:
        """Whether any stage may answer."""
        return self.reason is None

    @property
    def n_accepted(self) -> int:
        """Calibration questions answered by any stage."""
        return sum(stage.n_accepted for stage in self.stages)

    @property
    def n_errors(self) -> int:
        """Wrong answers among them."""
        return sum(stage.n_errors for stage in self.stages)

    @property
    def acceptance(self) -> float:
        """Share of calibration questions answered."""
        return self.n_accepted / self.n


class CascadeArtifact(Persisted):
    """One system: models asked in order, with thresholds that control the error rate of their answers together."""

    kind: Literal["cascade"] = "cascade"
    """Tells the file apart from the artifact of a single guard."""
    created: str
    """When it was fitted, ISO 8601 with time zone."""
    stages: tuple[CalibrationArtifact, ...] = Field(min_length=2)
    """What each stage's threshold is valid for: model, plan, prompt, estimator, labels and scores. Their promise is the
    system's; a stage alone promises nothing."""
    outcome: CascadeOutcome
    """The thresholds in force."""
    certificate: CascadeOutcome
    """What the certified rule gives on the same questions, whatever rule was chosen."""
    packages: dict[str, str]
    """Versions of the packages that made it."""

    @model_validator(mode="after")
    def _one_system(self) -> Self:
        if len(self.stages) != len(self.outcome.stages):
            raise ValueError(f"{len(self.stages)} stages but {len(self.outcome.stages)} thresholds")
        for i, (stage, share) in enumerate(zip(self.stages, self.outcome.stages, strict=True), start=1):
            if stage.threshold != share.threshold:
                raise ValueError(f"stage {i} has threshold {stage.threshold}, the outcome says {share.threshold}")
        return self

    @property
    def alpha(self) -> float:
        """Target error rate among the system's answers."""
        return self.outcome.alpha
