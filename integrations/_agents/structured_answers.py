"""An agent's structured answer: which tool's call it is, and whether a decided message can still be one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage

from guardrail.errors import require

__all__ = ["fits", "readable", "structured_names"]

if TYPE_CHECKING:
    from langchain.agents.structured_output import (
        OutputToolBinding,
        ProviderStrategy,
        ProviderStrategyBinding,
        ToolStrategy,
    )
else:
    _module = require("langchain.agents.structured_output", extra="agents")
    OutputToolBinding, ProviderStrategy, ProviderStrategyBinding, ToolStrategy = (
        _module.OutputToolBinding,
        _module.ProviderStrategy,
        _module.ProviderStrategyBinding,
        _module.ToolStrategy,
    )


def structured_names(response_format: Any) -> tuple[str, ...]:
    """Names of the tools whose call is the structured answer."""
    specs = getattr(response_format, "schema_specs", None)
    if specs is not None:
        return tuple(spec.name for spec in specs)
    schema = getattr(response_format, "schema", response_format)
    name = getattr(schema, "__name__", None) or (schema.get("title") if isinstance(schema, dict) else None)
    return () if name is None else (str(name),)


def readable(response_format: Any, message: AIMessage) -> AIMessage:
    """A decided message; a structured answer in it that does not fit its schema (as a person edited it) becomes text.

    LangChain would raise at it, or ask the model again.
    """
    bad = [call for call in message.tool_calls if not _call_fits(response_format, call)]
    if not bad:
        return message
    texts = [str(message.text), *(json.dumps(call["args"], ensure_ascii=False) for call in bad)]
    left = [call for call in message.tool_calls if call not in bad]
    return message.model_copy(update={"content": "\n".join(filter(None, texts)), "tool_calls": left})


def _call_fits(response_format: Any, call: Any) -> bool:
    if call["name"] not in structured_names(response_format):
        return True
    known = isinstance(response_format, ToolStrategy)
    strategy = response_format if known else ToolStrategy(schema=getattr(response_format, "schema", response_format))
    try:
        spec = next(one for one in strategy.schema_specs if one.name == call["name"])
        OutputToolBinding.from_schema_spec(spec).parse(call["args"])
    except Exception:  # any error of the schema's own code
        return False
    return True


def fits(response_format: Any, message: AIMessage) -> bool:
    """Whether LangChain can read a decided message in the agent's response format; else it would raise, for good.

    A person's own words, and a refusal, are not JSON of the schema. They go out as text, without structured response.
    """
    if response_format is None or message.tool_calls or isinstance(response_format, ToolStrategy):
        return True
    schema = getattr(response_format, "schema", response_format)
    try:
        ProviderStrategyBinding.from_schema_spec(ProviderStrategy(schema=schema).schema_spec).parse(message)
    except Exception:  # any error of the schema's own code
        return False
    return True
