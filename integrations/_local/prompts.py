"""From LangChain messages to the prompt of a model's chat template, its options, and the settings of a plain call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from guardrail.errors import PromptTooLongError, UsageError
from guardrail.sampling.call_settings import INTERNAL
from guardrail.types import Frozen, StopString

ROLES = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}


def template_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: role, content, and tool calls with parsed arguments.

    Args:
        messages: System, human, AI and tool messages; ``ChatMessage`` keeps its role. Text only.

    Raises:
        UsageError: A message has an image, audio or a file, or its type has no role.
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
    """Text of a message; other content is refused, not dropped."""
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

    Raises:
        UsageError: The template refuses the conversation (e.g. a system message), or ignores the tools.
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
    except Exception as error:  # templates raise all kinds of jinja2 errors, and TypeErrors
        roles = [entry["role"] for entry in entries]
        raise UsageError(f"the chat template refused the conversation with roles {roles}: {error}") from error
    if tools and not any(json.dumps(tool["function"]["name"])[1:-1] in text for tool in tools):
        raise UsageError(
            "the chat template of this model ignores tools: none of the bound tools is in the prompt. "
            "Use a model whose template takes tools, or pass chat_template=."
        )
    return str(text)


def check_length(prompt: int, answer: int, limit: int | None) -> None:
    """Refuse a prompt that leaves no room for the answer, in tokens; a limit of None is unknown.

    Raises:
        PromptTooLongError: prompt + answer > limit.
    """
    if limit is not None and prompt + answer > limit:
        raise PromptTooLongError(
            f"the prompt has {prompt} tokens and the answer may have {answer} (max_tokens), together more than the "
            f"context window of {limit}. Shorten the prompt by {prompt + answer - limit} tokens, or lower max_tokens."
        )


# -- the tokens of answer options after a prompt -----------------------------------------------------------------------
# They come from the tokenizer in context: those of encode(prompt + label) after encode(prompt). So the template and the
# tokenizer together decide whether the model writes "A" or " A" after its assistant header.


class UnreadableOptionError(ValueError):
    """An option that the tokenizer cannot express after this prompt."""


def option_ids(
    prompt: str,
    labels: Sequence[str],
    *,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    unknown: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each label as the tokenizer continues the prompt with it.

    If the label merges with the end of the prompt, the label is encoded alone, plain and with a leading space. The
    result is the first variant that adds exactly the label (ignoring white space) to the decoded prompt. ``encode``
    adds no special tokens, and ``decode`` keeps them.

    Raises:
        UnreadableOptionError: A label has no tokens, or two labels have the same tokens.
    """
    before = encode(prompt)
    label_of: dict[tuple[int, ...], str] = {}
    for label in labels:
        ids = _in_context(prompt, before, label, encode, decode)
        if ids is None or unknown in ids:
            raise UnreadableOptionError(f"option {label!r} cannot be expressed in this model's tokens after the prompt")
        if ids in label_of:
            raise UnreadableOptionError(f"options {label_of[ids]!r} and {label!r} have the same tokens {list(ids)}")
        label_of[ids] = label
    return tuple(label_of)


def _in_context(
    prompt: str,
    before: list[int],
    label: str,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
) -> tuple[int, ...] | None:
    """Ids that continue the prompt with the label, or None if no variant adds exactly the label."""
    together = encode(prompt + label)
    variants = [together[len(before) :]] if together[: len(before)] == before else []
    variants += [encode(label), encode(" " + label)]
    start = decode(before)
    for ids in variants:
        text = decode(before + ids)
        if ids and text.startswith(start) and text[len(start) :].strip() == label.strip():
            return tuple(ids)
    return None


# -- settings of one plain call: the model's fields, overridden by the call's keywords ---------------------------------

IGNORED = INTERNAL | {"parallel_tool_calls"}
"""Keywords that LangChain passes along for tracing or for servers; a local model writes as many calls as it likes."""


class CallSettings(Frozen):
    """Settings of one plain call."""

    temperature: float = Field(ge=0.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(gt=0.0, le=1.0)
    """Nucleus mass."""
    max_tokens: int = Field(ge=1)
    """Most new tokens."""
    stop: tuple[StopString, ...] = ()
    """Strings that end the answer."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """Tokens that end the answer."""
    seed: int | None = None
    """Seed; None for fresh randomness."""
    logprobs: bool = False
    """Whether to return log-probabilities."""
    n: int = Field(default=1, ge=1)
    """Number of answers."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools in OpenAI format."""
    tool_choice: str | bool | dict[str, Any] | None = None
    """"none" hides the tools. Nothing else can be enforced on a local model, so the model decides."""

    @model_validator(mode="after")
    def _several_answers_differ(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n = {self.n} answers at temperature 0 are all equal; pass a temperature above 0")
        return self

    @classmethod
    def resolve(cls, fields: Mapping[str, Any], stop: Sequence[str] | None, call: Mapping[str, Any]) -> CallSettings:
        """The chat model's fields, replaced by the stop strings and keywords of a call that are not None.

        Raises:
            UsageError: A keyword is unknown or its value cannot be used.
        """
        sent = {name: value for name, value in call.items() if value is not None and name not in IGNORED}
        merged = {**fields, **sent}
        stop = stop if stop is not None else merged.get("stop") or ()
        merged["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        merged["stop_token_ids"] = tuple(merged.get("stop_token_ids") or ())
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
