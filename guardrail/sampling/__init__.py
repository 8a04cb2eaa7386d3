"""From messages to a `SampleSet`: native samplers, and concurrent calls for every other chat model."""

from __future__ import annotations

from typing import Any

from .native import NativeSampler, is_native, request_seed
from .sampler import Sampler, draw

__all__ = ["NativeSampler", "Sampler", "draw", "is_native", "plan_for", "request_seed"]


def __getattr__(name: str) -> Any:
    # `plan_for` reads estimators, which build on sampling; this path is documented, so it is resolved on demand.
    if name == "plan_for":
        from guardrail.uncertainty.plan import plan_for

        return plan_for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
