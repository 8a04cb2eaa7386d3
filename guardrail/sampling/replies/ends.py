"""The reasons why answers ended, in the words of servers and of LangChain's integrations.

Known good ends pass; any other end, known or not, is not that of a whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from langchain_core.messages import AIMessage

from ...plain_json import spelled

_ENDED = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason", "completionReason")
"""Keys under which LangChain's integrations store the reason why an answer ended: OpenAI, Gemini, Mistral, Groq and
Cohere; Anthropic; Bedrock Converse; Ollama; the last two are those of Google's and Amazon's own replies."""
_WHOLE = frozenset({
    "stop",  # OpenAI, Gemini, Mistral, Groq, Ollama, vLLM, llama.cpp
    "endturn", "stopsequence",  # Anthropic, Bedrock; the second also Cohere, Text Generation Inference and watsonx
    "complete", "completed",  # Cohere; status of OpenAI's Responses API
    "eos", "eostoken",  # Together; Text Generation Inference, watsonx
    "finish", "finished", "stopcriteriamet",  # Titan
})  # fmt: skip
"""Finish reasons of a whole answer; letters only, as in `_CUT`. Any other reason, known or not, is not one of them:
"pause_turn" (Anthropic), and those of `_BROKEN_OFF`."""
_BROKEN_OFF = frozenset({"error", "abort", "insufficientsystemresource"})
"""Finish reasons of a server that failed (OpenRouter, Mistral; vLLM; DeepSeek); letters only, as in `_CUT`. Under load
they take the place of an HTTP status, so they say nothing about the question."""
_CALLED = frozenset({"functioncall", "toolcall", "toolcalls", "tooluse"})
"""Finish reasons of a whole answer that has tool calls."""
_REFUSED = frozenset({
    "content_filter", "refusal",  # OpenAI; Anthropic
    "blocklist", "model_armor", "prohibited_content", "recitation", "safety", "spii",  # Gemini
    "content_filtered", "guardrail_intervened",  # Bedrock
    "error_toxic",  # Cohere
})  # fmt: skip
"""Finish reasons of a model or server that refused, or removed the answer."""
_CUT = frozenset({
    "incomplete", "length", "maxlength", "maxnewtokens", "maxoutputtokens", "maxtokens", "truncated",
    "contextlengthexceeded", "contextwindowexceeded", "modelcontextwindowexceeded", "modellength",  # of the model
    "timelimit", "tokenlimit",  # watsonx
    "errorlimit",  # Cohere
})  # fmt: skip
"""Finish reasons of a partial answer; letters only: providers write "max_tokens", "MAX_TOKENS", "maxTokens"."""


def end_of(message: AIMessage) -> str | None:
    """The reason why an answer ended, in the server's words; None if none is stated.

    Of several, one of a partial answer comes first.
    """
    ended = _ended(message.response_metadata)
    return next(filter(is_cut, ended), next(iter(ended), None))


def is_cut(reason: str | None) -> bool:
    """Whether a finish reason says that the answer ended because it became too long."""
    return reason is not None and _letters(reason) in _CUT


def is_whole(reason: str | None, *, calls: bool) -> bool:
    """Whether a finish reason says that the answer is whole.

    Args:
        reason: The reason; None if none is stated.
        calls: Whether the answer has tool calls: a model that ended to call a tool has made a call.
    """
    return reason is not None and (_letters(reason) in _WHOLE or (calls and _letters(reason) in _CALLED))


_LONGEST_REASON = 60
"""Characters of a finish reason that are quoted."""


def end_fault(reason: str | None, calls: bool) -> str | None:
    """The fault of a stated end: neither the end of a whole answer nor that of an answer that became too long."""
    if reason is None or is_cut(reason) or is_whole(reason, calls=calls):
        return None
    lost = ", and has no tool call that can be read" if _letters(reason) in _CALLED else ""
    return f"the answer ended with finish_reason {spelled(reason[:_LONGEST_REASON])!r}{lost}, so it may not be whole"


def _ended(metadata: Mapping[str, Any]) -> list[str]:
    """The reasons why an answer ended, in the server's words, from each place of the metadata that states one."""
    partly = metadata.get("incomplete_details")  # OpenAI's Responses API, which may leave the reason out
    partly_reason = partly.get("reason") if partly and isinstance(partly, Mapping) else None
    status = metadata.get("status")
    reasons = [stated(metadata.get(name)) for name in _ENDED]
    reasons.append(stated(partly_reason) or ("incomplete" if status == "incomplete" else None))
    # Other providers have a status beside the reason, e.g. that of HTTP.
    return [reason for reason in reasons if reason is not None] or [*filter(None, [stated(status)])]


def stated(reason: Any) -> str | None:
    """A finish reason as a text; None if nothing is stated: null, or a text without a letter, digit or mark."""
    return None if reason is None else str(reason).strip() or None


@lru_cache(maxsize=64)  # a server has few reasons, and each answer of each question is asked about several times
def _letters(reason: str) -> str:
    """A reason in the spelling of `_WHOLE` and `_CUT`; any mark but those that join words makes another reason."""
    return re.sub(r"[\s_-]", "", _folded(reason))


def _folded(reason: str) -> str:
    """A reason in one spelling: "SAFETY", and "FinishReason.SAFETY" as Python writes a member of an enum, are equal."""
    return re.sub(r"^(?:finish|stop|done|completion)_?reason\.", "", reason.lower())


def is_broken_off(reason: str | None) -> bool:
    """Whether a finish reason says that the server failed."""
    return _letters(reason or "") in _BROKEN_OFF


def is_refusal(reason: str | None) -> bool:
    """Whether a finish reason says that the model or its server refused to answer."""
    return reason is not None and _folded(reason) in _REFUSED


def refused(message: AIMessage) -> bool:
    """Whether a message says that the model or its server refused to answer."""
    if message.additional_kwargs.get("refusal") or any(map(is_refusal, _ended(message.response_metadata))):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)
