"""What each setting of a model call does: the one table behind every list of settings that pass or are refused.

An artifact fixes how answers are drawn. So every wrapper of a model has to know which settings of a call the artifact's
plan fixes already, which change an answer in a way that no artifact records, and which only say how a request travels.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["LONGEST_ANSWER", "STOP_STRINGS", "TABLE", "CallSetting", "Effect", "names"]


class Effect(Enum):
    """What a setting does."""

    PLAN = "fixed by the plan"
    """The plan says how answers are drawn (`guardrail.types.SamplingPlan`)."""
    BINDING = "fixed by the plan's bindings"
    """The plan says which tools and which answer format every call carries (`guardrail.types.Bindings`)."""
    SHAPING = "shapes the answer"
    """Changes the distribution of answers, and no artifact records it."""
    TRANSPORT = "transport"
    """How a request travels, is billed, stored, traced or repeated. It cannot change an answer."""
    INTERNAL = "not sent"
    """Keywords that LangChain passes along for tracing or for other classes; no server receives them."""


class CallSetting(NamedTuple):
    """One row of the table."""

    name: str
    effect: Effect
    allowed_in: frozenset[str]
    """Which calls may carry it.

    Calls that a plan makes: "openai" (chat completions), "frameworks" (a model of any agent framework).
    Requests that a guard receives: "langchain" (agents), "openai-agents", "pydantic-ai", "litellm" (a proxy).
    """


LONGEST_ANSWER = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
"""Names of the longest answer in tokens; the first is the plan's."""
STOP_STRINGS = ("stop", "stop_sequences")
"""Names of the stop strings; the first is the plan's."""

_ROWS = (
    (Effect.PLAN, "temperature", "openai frameworks"),
    (Effect.PLAN, "top_p", "openai frameworks"),
    (Effect.PLAN, "max_tokens", "openai frameworks"),
    (Effect.PLAN, "max_completion_tokens", "openai"),
    (Effect.PLAN, "max_output_tokens", ""),
    (Effect.PLAN, "num_predict", ""),
    (Effect.PLAN, "stop", "openai"),
    (Effect.PLAN, "stop_sequences", ""),
    (Effect.PLAN, "seed", "openai"),
    (Effect.PLAN, "n", "openai"),
    (Effect.PLAN, "logprobs", "openai frameworks"),
    (Effect.PLAN, "top_logprobs", "openai openai-agents"),
    (Effect.PLAN, "openai_logprobs", "pydantic-ai"),
    (Effect.PLAN, "openai_top_logprobs", "pydantic-ai"),
    (Effect.BINDING, "tools", "openai frameworks litellm"),
    (Effect.BINDING, "tool_choice", "openai frameworks openai-agents pydantic-ai litellm"),
    (Effect.BINDING, "response_format", "openai frameworks litellm"),
    (Effect.SHAPING, "best_of", ""),
    (Effect.SHAPING, "extra_body", ""),
    (Effect.SHAPING, "frequency_penalty", "openai"),
    (Effect.SHAPING, "logit_bias", "openai"),
    (Effect.SHAPING, "min_p", ""),
    (Effect.SHAPING, "mirostat", ""),
    (Effect.SHAPING, "model_kwargs", ""),
    (Effect.SHAPING, "parallel_tool_calls", "openai"),
    (Effect.SHAPING, "presence_penalty", "openai"),
    (Effect.SHAPING, "reasoning_effort", "openai"),
    (Effect.SHAPING, "repeat_penalty", ""),
    (Effect.SHAPING, "repetition_penalty", ""),
    (Effect.SHAPING, "top_k", ""),
    (Effect.SHAPING, "typical_p", ""),
    (Effect.TRANSPORT, "cache", "pydantic-ai"),
    (Effect.TRANSPORT, "cache_control", "langchain"),
    (Effect.TRANSPORT, "extra_headers", "langchain openai-agents pydantic-ai"),
    (Effect.TRANSPORT, "extra_query", "langchain"),
    (Effect.TRANSPORT, "first_event_timeout", "pydantic-ai"),
    (Effect.TRANSPORT, "guardrails", "litellm"),
    (Effect.TRANSPORT, "headers", "langchain"),
    (Effect.TRANSPORT, "include_usage", "openai-agents"),
    (Effect.TRANSPORT, "litellm_metadata", "litellm"),
    (Effect.TRANSPORT, "max_retries", "pydantic-ai"),
    (Effect.TRANSPORT, "metadata", "langchain openai-agents litellm"),
    (Effect.TRANSPORT, "preserve_raw_usage", "openai-agents"),
    (Effect.TRANSPORT, "prompt_cache_key", "langchain litellm"),
    (Effect.TRANSPORT, "prompt_cache_options", "openai-agents"),
    (Effect.TRANSPORT, "prompt_cache_retention", "langchain openai-agents"),
    (Effect.TRANSPORT, "request_timeout", "langchain pydantic-ai"),
    (Effect.TRANSPORT, "response_include", "openai-agents"),
    (Effect.TRANSPORT, "retry", "openai-agents"),
    (Effect.TRANSPORT, "safety_identifier", "langchain litellm"),
    (Effect.TRANSPORT, "service_tier", "langchain pydantic-ai litellm"),
    (Effect.TRANSPORT, "store", "langchain openai-agents litellm"),
    (Effect.TRANSPORT, "stream", "openai litellm"),
    (Effect.TRANSPORT, "stream_options", "openai litellm"),
    (Effect.TRANSPORT, "tags", "litellm"),
    (Effect.TRANSPORT, "timeout", "langchain openai-agents pydantic-ai litellm"),
    (Effect.TRANSPORT, "user", "langchain openai litellm"),
    (Effect.INTERNAL, "ls_structured_output_format", ""),
    (Effect.INTERNAL, "strict", ""),
    (Effect.INTERNAL, "stream_usage", ""),
)

TABLE = {name: CallSetting(name, effect, frozenset(calls.split())) for effect, name, calls in _ROWS}
"""Every known setting by name."""


def names(*effects: Effect, allowed_in: str | None = None) -> frozenset[str]:
    """Names of the settings with one of these effects.

    Args:
        *effects: The effects; none for all.
        allowed_in: Only settings that these calls may carry, e.g. "openai"; None for all.
    """
    return frozenset(
        row.name
        for row in TABLE.values()
        if (not effects or row.effect in effects) and (allowed_in is None or allowed_in in row.allowed_in)
    )
