"""An agent's structured answer: which tool's call it is, and whether a decided message can still be one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage

from guardrail.errors import require

if TYPE_CHECKING:
    from langchain.agents.structured_output import ProviderStrategy, ProviderStrategyBinding, ToolStrategy
else:
    _module = require("langchain.agents.structured_output", extra="agents")
    ProviderStrategy, ProviderStrategyBinding, ToolStrategy = (
        _module.ProviderStrategy,
        _module.ProviderStrategyBinding,
        _module.ToolStrategy,
    )

__all__ = ["fits", "structured_names"]


def structured_names(response_format: Any) -> tuple[str, ...]:
    """Names of the tools whose call is the structured answer."""
    specs = getattr(response_format, "schema_specs", None)
    if specs is not None:
        return tuple(spec.name for spec in specs)
    schema = getattr(response_format, "schema", response_format)
    name = getattr(schema, "__name__", None) or (schema.get("title") if isinstance(schema, dict) else None)
    return () if name is None else (str(name),)


def fits(response_format: Any, message: AIMessage) -> bool:
    """Whether LangChain can read a decided message in the agent's response format; else it would raise, for good.

    A person's own words, and a refusal, are no JSON of the schema. They go out as text, without structured response.
    """
    if response_format is None or message.tool_calls or isinstance(response_format, ToolStrategy):
        return True
    schema = getattr(response_format, "schema", response_format)
    try:
        ProviderStrategyBinding.from_schema_spec(ProviderStrategy(schema=schema).schema_spec).parse(message)
    except Exception:  # whatever the schema's own code raises
        return False
    return True
