"""Guardrail middleware for LLMs: answers only when its error rate is under control.

Offline, ``calibrate`` fits a threshold on labelled questions and writes a `CalibrationArtifact`. Online, `Guardrail`
wraps any chat model, draws the same samples, measures their disagreement and accepts or abstains.
"""

from __future__ import annotations

from .artifact import CalibrationArtifact
from .chat_model import Guardrail
from .errors import (
    AbstainedError,
    ArtifactError,
    ArtifactFormatError,
    ArtifactMismatchError,
    ArtifactTamperedError,
    GuardrailError,
    MissingDependencyError,
    PromptTooLongError,
    RecordError,
    UsageError,
)
from .gate import accepts
from .outcome import Feasible, Infeasible, InfeasibleReason
from .prompting import PromptWrapping
from .types import Cost, Reason, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured, Verdict

__all__ = [
    "AbstainedError",
    "ArtifactError",
    "ArtifactFormatError",
    "ArtifactMismatchError",
    "ArtifactTamperedError",
    "CalibrationArtifact",
    "Cost",
    "Feasible",
    "Guardrail",
    "GuardrailError",
    "Infeasible",
    "InfeasibleReason",
    "MissingDependencyError",
    "PromptTooLongError",
    "PromptWrapping",
    "Reason",
    "RecordError",
    "Sample",
    "SampleSet",
    "SamplingPlan",
    "Uncertainty",
    "Unmeasured",
    "UsageError",
    "Verdict",
    "accepts",
]
