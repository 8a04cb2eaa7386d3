"""Identity of a tool call and of a conversation: every digest by which an agent's gate knows them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic_core import to_jsonable_python

from guardrail.judges.json_value import unique_fields
from guardrail.plain_json import canonical_json, json_fault, sha256_hex
from guardrail.prompting import prompt_content
from guardrail.types import ToolCall, canonical_calls

ANSWER_TOOL = "guardrail_answer"
"""Name of the call that stands for a held-back answer until a person decides. No model is offered it."""


def call_subject(name: str, arguments: Mapping[str, Any]) -> str:
    """Identity of a judged call, stored in its order: a digest of the arguments, and the tool.

    Empty, which is no call's, if they are not plain JSON.
    """
    if json_fault([name, arguments]) is not None:
        return ""
    return f"{sha256_hex(canonical_calls([ToolCall(name='', arguments=dict(arguments))]), 32)}:{name}"


def is_of_call(subject: str, name: str | None, arguments: Mapping[str, Any]) -> bool:
    """True if a subject is that of this very call; ``name`` is None where the framework does not say which tool."""
    digest, _, tool = subject.partition(":")
    return bool(digest) and name in (None, tool) and call_subject(tool, arguments) == f"{digest}:{tool}"


def same_call(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """True if two calls have the same name and arguments; False where either is empty or not plain JSON."""
    return bool(a and b) and is_of_call(call_subject(a["name"], a["args"]), b["name"], b["args"])


def arguments_of(text: object) -> dict[str, Any]:
    """Arguments of a tool call as an object; none for None and for a text without any.

    Raises:
        ValueError: They are not a JSON object, or have a field twice: the tool might read the other one.
    """
    arguments: Any = {} if text is None else text
    if isinstance(text, str):
        try:
            arguments = json.loads(text, object_pairs_hook=unique_fields) if text.strip() else {}
        except RecursionError as error:
            raise ValueError("arguments of a tool call are nested too deeply") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments of a tool call must be a JSON object, got {str(arguments)[:80]!r}")
    return arguments


# Both digests of a conversation are stored in verdict stores and histories. They leave out system messages, which the
# artifact fixes, and ids, which change from run to run. (`Assessor` tells prompts apart by everything the model reads;
# its digest lives in memory only.)


def conversation_digest(messages: Sequence[BaseMessage]) -> str:
    """Thirty-two hex digits of a whole conversation, tool calls and pictures included."""
    spoken = [message for message in messages if message.type != "system"]
    turns = [
        (
            message.type,
            str(message.text),
            [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())],
            pictures,
        )
        for message, (*_, pictures) in zip(spoken, prompt_content(spoken), strict=True)
    ]
    return _text_digest(repr(turns))


def answer_key(asked: Sequence[BaseMessage], content: Any) -> str:
    """Key of an answer: of the conversation up to its last question, and of the answer's text or its object's JSON.

    Tool calls and results after the question are left out: frameworks show their guardrails the input of a run, not
    the messages that the run added to it.
    """
    last = max((index for index, message in enumerate(asked) if message.type == "human"), default=len(asked))
    turns = [(message.type, str(message.text)) for message in asked[: last + 1] if message.type != "system"]
    plain = content if isinstance(content, str) else to_jsonable_python(content, fallback=repr)
    return f"answer:{_text_digest(canonical_json([turns, plain]))}"


def _text_digest(text: str) -> str:
    # A question may hold half of a surrogate pair, which plain UTF-8 refuses.
    return sha256_hex(text.encode("utf-8", "surrogatepass"), 32)
