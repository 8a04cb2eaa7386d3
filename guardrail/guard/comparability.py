"""Comparison of a served answer with the plan: a verdict is about it only if the plan draws in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from ..bindings import bindings_for
from ..sampling.call_settings import PLANNED, SHAPING
from ..sampling.replies.ends import end_of, is_whole
from ..types import Bindings, SamplingPlan

_NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "n": 1,
}
"""Values that are the same as leaving a setting out."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_READ = frozenset({"logprobs", "top_logprobs"})
"""Settings that say what is reported, not how it is drawn."""


def unlike_plan(settings: Mapping[str, Any], plan: SamplingPlan, fixed: Mapping[str, Any] | None = None) -> list[str]:
    """Names of the settings that make a call draw differently than the plan's primary answer is drawn, sorted.

    Args:
        settings: Settings of the call, by OpenAI's names.
        plan: The plan.
        fixed: Settings that every call has beside the plan's.
    """
    if plan.primary == "majority":  # no single call draws the vote of several samples
        return ["primary"]
    greedy = plan.primary == "greedy"
    planned: dict[str, Any] = {
        **_NEUTRAL,
        "temperature": 0.0 if greedy else plan.temperature,
        "top_p": plan.top_p,
        "stop": list(plan.stop),
        **dict.fromkeys(_LIMITS, plan.max_tokens),
        **(fixed or {}),
    }

    def same(name: str, value: Any) -> bool:
        if name == "stop":
            value = list(value) if isinstance(value, list | tuple) else [value]
        if name == "top_p" and greedy and value == 1:  # a greedy answer is drawn without truncation
            return True
        # A setting that the plan does not know may change the answer, so it counts as different.
        return name in planned and bool(planned[name] == value)

    return sorted(name for name, value in settings.items() if not same(name, value))


def unlike_served(
    settings: Mapping[str, Any],
    plan: SamplingPlan,
    *,
    finish: str | None,
    tokens: int | None,
    fixed: Mapping[str, Any] | None = None,
) -> list[str]:
    """`unlike_plan` for an answer that was served: a setting that the request left out has the server's default.

    An answer that ended by itself within the plan's length is the same under any limit.

    Args:
        settings: Settings of the request; None counts as absent. A seed does not matter.
        plan: The plan.
        finish: Why the answer ended.
        tokens: Its length; None if unknown.
        fixed: Settings that every call has beside the plan's; the request must have them, too.
    """
    sent = {name: value for name, value in settings.items() if value is not None and name != "seed"}
    limits = [sent.pop(name) for name in _LIMITS if name in sent]
    # OpenAI's default is 1 for both. A request without stop strings differs from a plan that has some.
    stop = {"stop": ()} if plan.stop else {}
    wrong = unlike_plan({"temperature": 1.0, "top_p": 1.0, **stop, **sent}, plan, fixed)
    wrong += [name for name in fixed or () if name not in sent]
    ended = is_whole(finish, calls=True) and tokens is not None and tokens <= plan.max_tokens
    if not ended and (not limits or any(limit != plan.max_tokens for limit in limits)):
        wrong.append("max_tokens")
    return sorted(wrong)


def unlike_calls(
    model: BaseChatModel,
    plan: SamplingPlan,
    stop: Sequence[str] | None,
    call: Mapping[str, Any],
    message: AIMessage,
) -> list[str]:
    """`unlike_served` for a call of a LangChain model: settings of the call come before the model's own fields.

    Fields that no plan fixes count neither way, since a guard's calls have them as well.

    Args:
        model: The model.
        plan: The plan.
        stop: Stop strings of the call.
        call: Further arguments of the call.
        message: The answer.

    Raises:
        UsageError: The tools of the call cannot be described.
    """
    bound = {name: call.get(name) for name in ("tool_choice", "response_format")}
    if bindings_for(call.get("tools") or (), **bound).digest != (plan.bindings or Bindings()).digest:
        return ["tools"]
    settings = {name: getattr(model, name, None) for name in PLANNED - {"stop"}}
    settings |= {name: value for name, value in call.items() if name in PLANNED | SHAPING}
    settings["stop"] = (stop if stop is not None else getattr(model, "stop", None)) or None
    usage = message.usage_metadata
    return unlike_served(
        {name: value for name, value in settings.items() if name not in _READ},
        plan,
        finish=end_of(message),
        tokens=None if usage is None else usage["output_tokens"],
    )
