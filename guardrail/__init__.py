"""Guardrail middleware for LLMs: answers only when its error rate is under control.

Offline, ``calibrate`` fits a threshold on labelled questions and writes a `CalibrationArtifact`. Online, `Guardrail`
wraps any chat model, draws the same samples, measures their disagreement and accepts or abstains.
"""

from __future__ import annotations

from .artifact import CalibrationArtifact, CascadeArtifact
from .bindings import bindings_for
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
    UnmeasuredError,
    UsageError,
)
from .gate import accepts
from .guard.cascade import Cascade
from .guard.chat_model import Guardrail
from .judges import make_judge
from .monitor import SafetySwitch
from .outcome import Feasible, Infeasible, InfeasibleReason
from .parts.partial import Partial
from .prompting import PromptWrapping
from .types import Bindings, Cost, Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
from .uncertainty import Scorer, make_estimator, plan_for, scorer
from .verdict import Meaning, Reason, Verdict

__all__ = [
    "AbstainedError",
    "ArtifactError",
    "ArtifactFormatError",
    "ArtifactMismatchError",
    "ArtifactTamperedError",
    "Bindings",
    "CalibrationArtifact",
    "Cascade",
    "CascadeArtifact",
    "Cost",
    "Feasible",
    "Guardrail",
    "GuardrailError",
    "Infeasible",
    "InfeasibleReason",
    "Meaning",
    "MissingDependencyError",
    "Partial",
    "PromptTooLongError",
    "PromptWrapping",
    "Reason",
    "RecordError",
    "SafetySwitch",
    "Sample",
    "SampleSet",
    "SamplingPlan",
    "Scorer",
    "ToolCall",
    "Uncertainty",
    "Unmeasured",
    "UnmeasuredError",
    "UsageError",
    "Verdict",
    "accepts",
    "bindings_for",
    "make_estimator",
    "make_judge",
    "plan_for",
    "scorer",
]
