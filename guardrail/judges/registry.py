"""The judges by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from .base import Judge
from .lexical import ExactJudge, TokenF1Judge
from .numeric import NumericJudge
from .tool_call import ToolCallJudge

__all__ = ["available", "make"]

_JUDGES: dict[str, Callable[..., Judge]] = {
    "exact": ExactJudge,
    "numeric": NumericJudge,
    "token_f1": TokenF1Judge,
    "tool_call": ToolCallJudge,
}


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
