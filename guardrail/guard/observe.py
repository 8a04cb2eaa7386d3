"""Observe mode: answers are served as they are, and verdicts on them are computed behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types import SamplingPlan

__all__ = ["unlike_plan"]

_NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,
}
"""Values that are the same as leaving a setting out."""
_LIMITS = ("max_tokens", "max_completion_tokens")


def unlike_plan(given: Mapping[str, Any], plan: SamplingPlan, fixed: Mapping[str, Any] | None = None) -> list[str]:
    """Names of the settings by which an answer would be drawn otherwise than the plan's primary answer, sorted.

    Args:
        given: Settings of a call, by OpenAI's names.
        plan: The plan.
        fixed: Settings that every call has beside the plan's.
    """
    greedy = plan.primary == "greedy"
    known: dict[str, Any] = {
        **_NEUTRAL,
        "temperature": 0.0 if greedy else plan.temperature,
        "top_p": plan.top_p,
        "stop": list(plan.stop),
        **dict.fromkeys(_LIMITS, plan.max_tokens),
        **(fixed or {}),
    }

    def same(name: str, value: Any) -> bool:
        if name == "stop" and isinstance(value, str):
            value = [value]
        if name == "top_p" and greedy and value == 1:  # a greedy answer is drawn without truncation
            return True
        return name in known and bool(known[name] == value)

    return sorted(name for name, value in given.items() if not same(name, value))
