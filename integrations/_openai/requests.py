"""Requests to an OpenAI-compatible endpoint: messages, settings, tools and answer formats as the body of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

from guardrail.errors import UsageError
from guardrail.sampling.call_settings import INTERNAL

TOP_LOGPROBS = 20
"""Most alternatives for a token (OpenAI's limit)."""
PLANNED = frozenset({
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "logprobs",
    "top_logprobs",
})  # fmt: skip
"""Settings of a call that the plan fixes."""
BOUND = frozenset({"tools", "tool_choice", "response_format"})
"""Those that its bindings fix."""
SHAPING = frozenset({"frequency_penalty", "logit_bias", "parallel_tool_calls", "presence_penalty", "reasoning_effort"})
"""Those that change an answer otherwise."""
TRANSPORT = frozenset({
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    "stream", "stream_options", "user",
})  # fmt: skip
"""Those that cannot change an answer."""
CALL_SETTINGS = (PLANNED | BOUND | SHAPING | TRANSPORT) - {"stop"}
"""Settings a call may carry; stop strings are a separate argument. Everything else belongs into ``extra_body``."""


def body_of(
    messages: Sequence[BaseMessage],
    settings: Mapping[str, Any],
    stop: Sequence[str] | None = None,
    *,
    limit_name: str = "max_tokens",
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Body of a chat-completions request; a setting of None is not sent.

    Servers that do not know ``max_completion_tokens`` ignore it silently, so ``max_tokens`` is the safe name of the
    limit; OpenAI's reasoning models need the other.

    Raises:
        UsageError: A setting is unknown.
    """
    fields = one_limit({name: value for name, value in settings.items() if value is not None and name not in INTERNAL})
    unknown = sorted(fields.keys() - CALL_SETTINGS - {"model"})
    if unknown:
        raise UsageError(
            f"OpenAICompatibleChat does not know {', '.join(unknown)}. Fields of a particular server go into "
            "extra_body, e.g. OpenAICompatibleChat(model=..., extra_body={...}); timeout and default_headers are its "
            "own fields."
        )
    body: dict[str, Any] = {"messages": convert_to_openai_messages(list(messages)), **fields}
    if "max_tokens" in body and limit_name != "max_tokens":
        body[limit_name] = body.pop("max_tokens")
    if body.get("tools"):
        body["tools"] = openai_tools(body["tools"])
    else:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            body.pop(name, None)
    if stop:
        body["stop"] = list(stop)
    return {**body, **(extra or {})}


def one_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the token limit as ``max_tokens``, also if they have its newer name."""
    renamed = dict(settings)
    if "max_completion_tokens" in renamed:
        renamed["max_tokens"] = renamed.pop("max_completion_tokens")
    return renamed


def openai_tools(tools: Iterable[Any], *, strict: bool | None = None) -> list[dict[str, Any]]:
    """Tools (functions, classes, LangChain tools, schemas) in OpenAI format."""
    return [convert_to_openai_tool(tool, strict=strict) for tool in tools]


def normal_tool_choice(choice: Any, names: Sequence[str]) -> Any:
    """A tool choice in OpenAI's words.

    Args:
        choice: "auto", "none", "any", "required" or True (some tool), the name of a tool, a dict (unchanged), None or
            False.
        names: The offered tools.

    Raises:
        UsageError: The named tool is not offered.
    """
    if choice is None or choice is False:
        return None
    if choice in ("any", True):
        return "required"
    if isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    if choice in names:
        return {"type": "function", "function": {"name": choice}}
    raise UsageError(f"tool_choice {choice!r} is not an offered tool; the tools are {', '.join(names) or 'none'}.")
