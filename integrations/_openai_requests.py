"""What is sent to an OpenAI-compatible endpoint: messages, settings and tools as the body of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

from guardrail.errors import UsageError

__all__ = ["CALL_SETTINGS", "TOP_LOGPROBS", "body_of", "normal_tool_choice", "openai_tools"]

TOP_LOGPROBS = 20
"""Most alternatives an endpoint gives for a token (OpenAI's limit)."""
CALL_SETTINGS = frozenset(
    {
        "temperature",
        "top_p",
        "max_tokens",
        "seed",
        "n",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "user",
        "reasoning_effort",
        "stream",
        "stream_options",
    }
)
"""Settings a call may carry. Anything else belongs into ``extra_body``."""
IGNORED = frozenset({"ls_structured_output_format", "strict", "stream_usage"})
"""Keywords that LangChain passes along for tracing or for other classes."""


def body_of(
    messages: Sequence[BaseMessage],
    settings: Mapping[str, Any],
    stop: Sequence[str] | None = None,
    *,
    limit_name: str = "max_tokens",
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Body of a chat-completions request.

    Args:
        messages: The prompt.
        settings: ``model`` and settings of the call; None means "not given".
        stop: Stop strings.
        limit_name: Name under which the longest answer is sent. Servers that do not know ``max_completion_tokens``
            ignore it silently, so ``max_tokens`` is the safe choice; OpenAI's reasoning models want the other.
        extra: Further fields of the body.

    Raises:
        UsageError: A setting this library does not know.
    """
    given = {name: value for name, value in settings.items() if value is not None and name not in IGNORED}
    if "max_completion_tokens" in given:  # the newer name of the same limit
        given["max_tokens"] = given.pop("max_completion_tokens")
    unknown = sorted(given.keys() - CALL_SETTINGS - {"model"})
    if unknown:
        raise UsageError(
            f"OpenAICompatibleChat does not know {', '.join(unknown)}. Fields of a particular server go into "
            "extra_body, e.g. OpenAICompatibleChat(model=..., extra_body={...})."
        )
    body: dict[str, Any] = {"messages": convert_to_openai_messages(list(messages)), **given}
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


def openai_tools(tools: Iterable[Any], *, strict: bool | None = None) -> list[dict[str, Any]]:
    """Tools (functions, classes, LangChain tools, schemas) in OpenAI format."""
    return [convert_to_openai_tool(tool, strict=strict) for tool in tools]


def normal_tool_choice(choice: Any, names: Sequence[str]) -> Any:
    """A tool choice in OpenAI's words.

    Args:
        choice: "auto", "none", "any"/"required"/True (some tool), the name of a tool, a dict as it is, or None/False.
        names: The tools on offer.

    Raises:
        UsageError: The name of a tool that is not on offer.
    """
    if choice is None or choice is False:
        return None
    if choice in ("any", True):
        return "required"
    if isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    if choice in names:
        return {"type": "function", "function": {"name": choice}}
    raise UsageError(f"tool_choice {choice!r} names no tool on offer; the tools are {', '.join(names) or 'none'}.")
