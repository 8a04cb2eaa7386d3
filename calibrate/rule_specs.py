"""Rules as a user writes them: ``acrc`` or ``acrc:min_accept=1,monotone=false``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardrail.errors import UsageError

from .evaluate import RuleSpec

__all__ = ["parse_rule", "rule_text"]

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}


def parse_rule(text: str) -> RuleSpec:
    """A rule from its text: a name, and after a colon its options, separated by commas.

    Values are whole numbers, numbers, true, false, none, or else text. ``delta`` may be among the options.

    Raises:
        UsageError: An option without a value or given twice. Unknown rules and options are found when it is used.
    """
    name, colon, rest = text.partition(":")
    if not colon:
        return name
    options: dict[str, Any] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise UsageError(f"rule {text!r}: {part!r} is no option. Write name:option=value, e.g. acrc:min_accept=1.")
        if key in options:
            raise UsageError(f"rule {text!r}: option {key!r} is given twice. Remove one.")
        options[key] = _value(value)
    return name, options


def rule_text(name: str, options: Mapping[str, Any]) -> str:
    """The text `parse_rule` reads."""
    shown = ",".join(f"{key}={_shown(value)}" for key, value in options.items())
    return f"{name}:{shown}" if shown else name


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _shown(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
