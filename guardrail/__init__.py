"""Guardrail middleware for LLMs: answers only when its error rate is under control.

Offline, ``calibrate`` fits a threshold on labelled questions and writes a `CalibrationArtifact`. Online, `Guardrail`
wraps any chat model, draws the same samples, measures their disagreement and accepts or abstains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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
    "artifact": "CalibrationArtifact CascadeArtifact RouterArtifact load_artifact",
    "bindings": "bindings_for",
    "errors": "ArtifactError ArtifactFormatError ArtifactMismatchError ArtifactTamperedError GuardrailError "
    "MissingDependencyError PromptTooLongError RecordError UsageError",
    "guard.cascade": "Cascade",
    "guard.chat_model": "Guardrail",
    "guard.observers": "SafetySwitch",
    "guard.router": "Router",
    "items.partial": "Partial",
    "judges": "make_judge",
    "outcome": "Feasible Infeasible InfeasibleReason accepts",
    "prompting": "PromptWrapping",
    "types": "Bindings Cost Sample SampleSet SamplingPlan ToolCall Uncertainty Unmeasured",
    "uncertainty": "Scorer make_estimator plan_for rank_mean scorer then ties",
    "verdict": "AbstainedError Meaning Reason UnmeasuredError Verdict",
}
"""Public names by the module that defines them, which is loaded when a name is first used."""


def loading(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names load their module at first use (PEP 562).

    Args:
        package: Its ``__name__``.
        modules: Each module by its path within the package, and the names that it defines, a space between two.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    parts = {module.partition(".")[0] for module in modules}

    def load(name: str) -> Any:
        module = module_of.get(name, name if name in parts else None)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        loaded = import_module(f"{package}.{module}")
        if name not in module_of:
            return loaded
        value = getattr(loaded, name)
        setattr(sys.modules[package], name, value)  # the next use finds it at once
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *module_of})


__getattr__, __dir__ = loading(__name__, _MODULES)
