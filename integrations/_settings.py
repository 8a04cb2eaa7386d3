"""Settings of one plain call: the model's fields, overridden by the call's keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, ValidationError, model_validator

from guardrail.errors import UsageError
from guardrail.types import Frozen

__all__ = ["CallSettings", "openai_tools", "tool_names"]

IGNORED = frozenset({"ls_structured_output_format", "parallel_tool_calls", "strict", "stream_usage"})
"""Keywords that LangChain passes along for tracing or for servers."""


class CallSettings(Frozen):
    """What one plain call asks for."""

    temperature: float = Field(ge=0.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(gt=0.0, le=1.0)
    """Nucleus mass."""
    max_tokens: int = Field(ge=1)
    """Most new tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    seed: int | None = None
    """Seed; None for fresh randomness."""
    logprobs: bool = False
    """Whether log-probabilities are wanted."""
    n: int = Field(default=1, ge=1)
    """Number of answers."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools in OpenAI format."""
    tool_choice: str | bool | dict[str, Any] | None = None
    """"none" hides the tools; anything else cannot be enforced on a local model and leaves the choice to it."""

    @model_validator(mode="after")
    def _several_answers_differ(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n = {self.n} answers at temperature 0 are all equal; pass a temperature above 0")
        return self

    @classmethod
    def resolve(cls, fields: Mapping[str, Any], stop: Sequence[str] | None, call: Mapping[str, Any]) -> CallSettings:
        """Settings of a call.

        Args:
            fields: The chat model's own settings.
            stop: Stop strings of the call; they replace the model's.
            call: Keywords of the call; None means "not given".

        Raises:
            UsageError: A keyword is unknown or its value cannot be used.
        """
        given = {name: value for name, value in call.items() if value is not None and name not in IGNORED}
        merged = {**fields, **given}
        merged["stop"] = tuple(stop if stop is not None else merged.get("stop") or ())
        merged["tools"] = openai_tools(merged.get("tools"))
        if merged.get("tool_choice") == "none":
            merged["tools"] = ()
        try:
            return cls(**merged)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'call'}: {e['msg']}" for e in error.errors())
            raise UsageError(f"TransformersChat cannot do this: {problems}") from error


def openai_tools(tools: Sequence[Any] | None) -> tuple[dict[str, Any], ...]:
    """Tools (functions, classes, LangChain tools, schemas) in OpenAI format."""
    return tuple(convert_to_openai_tool(tool) for tool in tools or ())


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Names of tools in OpenAI format."""
    return frozenset(tool["function"]["name"] for tool in tools)
