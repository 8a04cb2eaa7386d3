"""Judges: whether two answers mean the same. The light ones live here, the others in `integrations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from .base import Judge, JudgeSpec
from .lexical import ExactJudge, TokenF1Judge, token_f1
from .normalise import is_refusal, normalise, words

__all__ = [
    "ExactJudge",
    "Judge",
    "JudgeSpec",
    "TokenF1Judge",
    "available",
    "is_refusal",
    "make",
    "normalise",
    "token_f1",
    "words",
]

_JUDGES: dict[str, Callable[..., Judge]] = {"exact": ExactJudge, "token_f1": TokenF1Judge}


def available() -> tuple[str, ...]:
    """Names of the judges that can be made by name, sorted."""
    return tuple(sorted(_JUDGES))


def make(name: str, **params: Any) -> Judge:
    """Make a judge by name, e.g. ``make("token_f1", threshold=0.6)``.

    Raises:
        UsageError: No judge of that name.
    """
    if name not in _JUDGES:
        raise UsageError(f"no judge named {name!r}; choose one of {', '.join(available())}")
    return _JUDGES[name](**params)
