"""Guardrail middleware for LLMs: answers only when its error rate is under control.

Offline, ``calibrate`` fits a threshold on labelled questions and writes a `CalibrationArtifact`. Online, `Guardrail`
wraps any chat model, draws the same samples, measures their disagreement and accepts or abstains.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact, load_artifact
    from .bindings import bindings_for
    from .errors import (
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
    from .guard.cascade import Cascade
    from .guard.chat_model import Guardrail
    from .guard.observers import SafetySwitch
    from .guard.router import Router
    from .items.partial import Partial
    from .judges import make_judge
    from .outcome import Feasible, Infeasible, InfeasibleReason, accepts
    from .prompting import PromptWrapping
    from .types import Bindings, Cost, Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty, Unmeasured
    from .uncertainty import Scorer, make_estimator, plan_for, rank_mean, scorer, then, ties
    from .verdict import AbstainedError, Meaning, Reason, UnmeasuredError, Verdict

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
    "Router",
    "RouterArtifact",
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
    "load_artifact",
    "make_estimator",
    "make_judge",
    "plan_for",
    "rank_mean",
    "scorer",
    "then",
    "ties",
]

_MODULES = {
    "AbstainedError": "verdict",
    "ArtifactError": "errors",
    "ArtifactFormatError": "errors",
    "ArtifactMismatchError": "errors",
    "ArtifactTamperedError": "errors",
    "Bindings": "types",
    "CalibrationArtifact": "artifact",
    "Cascade": "guard.cascade",
    "CascadeArtifact": "artifact",
    "Cost": "types",
    "Feasible": "outcome",
    "Guardrail": "guard.chat_model",
    "GuardrailError": "errors",
    "Infeasible": "outcome",
    "InfeasibleReason": "outcome",
    "Meaning": "verdict",
    "MissingDependencyError": "errors",
    "Partial": "items.partial",
    "PromptTooLongError": "errors",
    "PromptWrapping": "prompting",
    "Reason": "verdict",
    "RecordError": "errors",
    "Router": "guard.router",
    "RouterArtifact": "artifact",
    "SafetySwitch": "guard.observers",
    "Sample": "types",
    "SampleSet": "types",
    "SamplingPlan": "types",
    "Scorer": "uncertainty",
    "ToolCall": "types",
    "Uncertainty": "types",
    "Unmeasured": "types",
    "UnmeasuredError": "verdict",
    "UsageError": "errors",
    "Verdict": "verdict",
    "accepts": "outcome",
    "bindings_for": "bindings",
    "load_artifact": "artifact",
    "make_estimator": "uncertainty",
    "make_judge": "judges",
    "plan_for": "uncertainty",
    "rank_mean": "uncertainty",
    "scorer": "uncertainty",
    "then": "uncertainty",
    "ties": "uncertainty",
}
"""Public names and the modules that define them, loaded when a name is first used."""
_PARTS = {module.partition(".")[0] for module in _MODULES.values()}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used (PEP 562)."""
    module = _MODULES.get(name, name if name in _PARTS else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = import_module(f".{module}", __name__)
    if name not in _MODULES:
        return loaded
    value = globals()[name] = getattr(loaded, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
