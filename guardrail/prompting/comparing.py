"""Prompts that look the same to a reader: the form in which texts are compared, and what makes another question."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from ..plain_json import BLANK, INVISIBLE
from .conversation import is_text, role_of

_NOT_CONTENT = frozenset({"id", "index", "cache_control", "cachePoint"})
"""Keys of a content block that say nothing: LangChain's constructors make a new id each time."""
_MEDIA = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
"""Types of a model's own blocks that make another conversation; its thoughts and signatures differ each time."""


def has_blank(text: str) -> bool:
    """Whether a text has a `BLANK`, which may be shown as a space or as nothing."""
    return BLANK.search(INVISIBLE.sub("", text).replace("\r\n", "\n")) is not None


def letters_of(text: str) -> str:
    """A text without what nobody sees, blanks and white space: equal for texts that may look the same."""
    return "".join(BLANK.sub("", unicodedata.normalize("NFC", INVISIBLE.sub("", text))).split())


def normal_form(text: str) -> str:
    """A text without what nobody sees, for comparison only: texts that look the same have the same form.

    Leaves out `INVISIBLE` characters and white space at the end of a line. Further white space within a line counts as
    one space, at its beginning as so many columns, because code has a meaning there; empty lines count as one. A text
    with a `BLANK` is compared by its `letters_of`.
    """
    if has_blank(text):
        return letters_of(text)
    seen = unicodedata.normalize("NFC", INVISIBLE.sub("", text)).replace("\r\n", "\n")
    lines = [line.rstrip() for line in seen.replace("\u00a0", " ").replace("\u3000", "  ").split("\n")]
    indents = (line[: len(line) - len(line.lstrip())].expandtabs() for line in lines)
    shown = "\n".join(indent + " ".join(line.split()) for indent, line in zip(indents, lines, strict=True))
    return re.sub(r"\n{3,}", "\n\n", shown).strip()


def prompt_content(
    messages: Sequence[BaseMessage],
    question: str | None = None,
    *,
    hide_system: bool = False,
    form: Callable[[str], str] = normal_form,
) -> Any:
    """Everything in a prompt that makes another question, for comparison by ``repr``.

    Ids, response metadata, cache settings and the name of a speaker, which no template shows, do not count, nor
    whether a text stands in a block.

    Args:
        messages: The prompt.
        question: Stands for the text of the last human message.
        hide_system: Leave the text of the system message out.
        form: The form in which texts are compared.
    """
    last = max((index for index, message in enumerate(messages) if role_of(message) == "human"), default=-1)
    content = []
    for index, message in enumerate(messages):
        role = role_of(message)
        text = question if question is not None and index == last else str(message.text)
        # Only the model calls tools: a call on another message reaches no model, so that it makes no other question.
        made = getattr(message, "tool_calls", ()) if role == "ai" else ()
        calls = [(call["name"], _seen(call["args"], form)) for call in made]
        blocks = message.content if isinstance(message.content, list) else []
        others = [
            {name: value for name, value in block.items() if name not in _NOT_CONTENT}
            for block in blocks
            if isinstance(block, dict) and not is_text(block) and (role != "ai" or block.get("type") in _MEDIA)
        ]
        text = "" if hide_system and role == "system" else form(text)
        content.append((role, text, calls, [_seen(block, form) for block in others if block]))
    return content


def _seen(value: Any, form: Callable[[str], str]) -> Any:
    """A JSON value for comparison by ``repr``: texts in one form, members of an object in one order."""
    if isinstance(value, str):
        return form(value)
    if isinstance(value, Mapping):
        return sorted((form(str(name)), repr(_seen(member, form))) for name, member in value.items())
    return [_seen(member, form) for member in value] if isinstance(value, (list, tuple)) else value
