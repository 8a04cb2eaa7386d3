"""Tool calls out of text: ``<tool_call>{...}</tool_call>`` (Qwen, Hermes) and bare JSON (Llama 3.1, Mistral)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

__all__ = ["ParsedText", "parse_tool_calls"]

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ParsedText:
    """Text of an answer and the tool calls found in it."""

    text: str
    """What is left of the text without the calls; all of it if there are none."""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Name and arguments of each call, in order."""
    invalid: tuple[tuple[str, str], ...] = ()
    """Raw text of each call that could not be read, and why. It stays in ``text``, too."""


def parse_tool_calls(text: str, known: Collection[str]) -> ParsedText:
    """Find the tool calls in an answer.

    Tagged calls count whatever tool they name. Bare JSON counts only if the whole text is one or more objects that name
    a known tool, since an answer may be JSON for other reasons.

    Args:
        text: The answer.
        known: Names of the tools the model was offered.
    """
    blocks = TAGGED.findall(text)
    if blocks:
        return _tagged(text, blocks)
    calls = _bare(text.strip(), known)
    return ParsedText("", tuple(calls)) if calls else ParsedText(text)


def _tagged(text: str, blocks: list[str]) -> ParsedText:
    calls: list[tuple[str, dict[str, Any]]] = []
    invalid: list[tuple[str, str]] = []
    for block in blocks:
        try:
            calls.append(_call(json.loads(block)))
        except ValueError as error:
            invalid.append((block.strip(), str(error)))
    return ParsedText(text if invalid else TAGGED.sub("", text).strip(), tuple(calls), tuple(invalid))


def _bare(text: str, known: Collection[str]) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls if the text is nothing but calls (a list, or objects separated by ";" or white space), else None."""
    decoder, values, place = json.JSONDecoder(), list[Any](), 0
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            values.extend(value if isinstance(value, list) else [value])
            while place < len(text) and text[place] in "; \t\r\n":
                place += 1
        calls = [_call(value) for value in values]
    except ValueError:
        return None
    return calls if all(name in known for name, _ in calls) else None


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of one call; ValueError says what is wrong with it."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('a tool call is an object with a "name"')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('a tool call has its "arguments" (or "parameters") as an object')
    return value["name"], arguments
