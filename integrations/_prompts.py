"""From LangChain messages to the text and token ids that the model's own chat template makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from guardrail.errors import PromptTooLongError, UsageError

__all__ = ["check_length", "render", "template_messages"]

ROLES = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}


def template_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: role, content, and tool calls with parsed arguments.

    Args:
        messages: System, human, AI and tool messages; ``ChatMessage`` keeps its own role. Text only.

    Raises:
        UsageError: A message holds an image, audio or a file, or its type has no role.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: BaseMessage) -> dict[str, Any]:
    role = ROLES.get(message.type) or getattr(message, "role", None)
    if role is None:
        raise UsageError(f"a {type(message).__name__} has no role in a chat template; use system, human, ai or tool")
    entry: dict[str, Any] = {"role": role, "content": _text(message)}
    if isinstance(message, ToolMessage):
        entry["tool_call_id"] = message.tool_call_id
        if message.name:
            entry["name"] = message.name
    if isinstance(message, AIMessage) and message.tool_calls:
        entry["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    return entry


def _text(message: BaseMessage) -> str:
    """Text of a message; anything else than text is refused, not dropped."""
    if isinstance(message.content, list):
        kinds = {block.get("type") for block in message.content if isinstance(block, dict)}
        if kinds - {"text", "tool_use", "tool_call"}:
            raise UsageError(f"TransformersChat reads text only, got content blocks of type {sorted(map(str, kinds))}")
    return str(message.text)


def render(
    tokenizer: Any,
    messages: Sequence[BaseMessage],
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    chat_template: str | None = None,
) -> str:
    """Prompt text up to and including the header of the assistant's turn.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        messages: The conversation.
        tools: Tools in OpenAI format, or None.
        chat_template: Replaces the tokenizer's own.

    Raises:
        UsageError: The template refuses the conversation (e.g. a system message it does not know).
    """
    entries = template_messages(messages)
    try:
        text = tokenizer.apply_chat_template(
            entries,
            tools=list(tools) if tools else None,
            chat_template=chat_template,
            add_generation_prompt=True,
            tokenize=False,
        )
    except Exception as error:  # templates raise jinja2 errors of every kind, and TypeErrors of their own making
        roles = [entry["role"] for entry in entries]
        raise UsageError(f"the chat template refused the conversation with roles {roles}: {error}") from error
    if tools and not any(json.dumps(tool["function"]["name"])[1:-1] in text for tool in tools):
        raise UsageError(
            "the chat template of this model ignores tools: none of the bound tools is in the prompt. "
            "Use a model whose template takes tools, or pass chat_template=."
        )
    return str(text)


def check_length(prompt: int, answer: int, limit: int | None) -> None:
    """Refuse a prompt that leaves no room for the answer.

    Args:
        prompt: Tokens of the prompt.
        answer: Most tokens of the answer.
        limit: Context window in tokens; None if the model names none.

    Raises:
        PromptTooLongError: prompt + answer > limit.
    """
    if limit is not None and prompt + answer > limit:
        raise PromptTooLongError(
            f"the prompt has {prompt} tokens and the answer may have {answer} (max_tokens), together more than the "
            f"context window of {limit}. Shorten the prompt by {prompt + answer - limit} tokens, or lower max_tokens."
        )
