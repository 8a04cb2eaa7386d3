"""Abstention paths: a message, an exception, another model, or a person."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from .errors import AbstainedError, UsageError
from .types import Verdict

__all__ = ["ABSTENTION", "Handler", "OnAbstain", "afall_back", "fall_back"]

ABSTENTION = "I am not sure enough to answer this, so I would rather not guess."
"""Default text of an abstention."""

Handler = Callable[[Verdict], Any] | Callable[[Verdict], Awaitable[Any]]
"""A human hook: takes the verdict, returns a text, an AIMessage, or None for the abstention message."""
OnAbstain = Literal["message", "raise"] | Runnable[Any, Any] | Handler
"""What `Guardrail(on_abstain=...)` takes."""


def fall_back(
    verdict: Verdict, messages: Sequence[BaseMessage], path: OnAbstain, text: str, callbacks: Callbacks
) -> AIMessage:
    """Take the abstention path.

    Args:
        verdict: The abstention.
        messages: What the guard received; a Runnable gets the same.
        path: "message", "raise", a Runnable, or a handler.
        text: Template of the abstention message.
        callbacks: For a Runnable.

    Raises:
        AbstainedError: Under "raise".
        UsageError: An async handler in a sync call, or a handler that returned something else than a text, an
            AIMessage or None.
    """
    if isinstance(path, Runnable):
        return _as_message(path.invoke(list(messages), _config(callbacks)), verdict, text)
    if callable(path):
        given = path(verdict)
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise UsageError("on_abstain is async, but the call was sync. Use ainvoke, or a sync handler.")
        return _as_message(given, verdict, text)
    return _without_help(verdict, path, text)


async def afall_back(
    verdict: Verdict, messages: Sequence[BaseMessage], path: OnAbstain, text: str, callbacks: Callbacks
) -> AIMessage:
    """`fall_back` for async callers; a sync handler runs in a thread, so a person may take their time."""
    if isinstance(path, Runnable):
        return _as_message(await path.ainvoke(list(messages), _config(callbacks)), verdict, text)
    if callable(path):
        given = path(verdict) if inspect.iscoroutinefunction(path) else await run_in_executor(None, path, verdict)
        return _as_message(await given if inspect.isawaitable(given) else given, verdict, text)
    return _without_help(verdict, path, text)


def _without_help(verdict: Verdict, path: Any, text: str) -> AIMessage:
    if path == "raise":
        raise AbstainedError(verdict)
    return AIMessage(content=_fill(text, verdict))


def _config(callbacks: Callbacks) -> RunnableConfig:
    config = RunnableConfig(run_name="guardrail_fallback")
    if callbacks is not None:
        config["callbacks"] = callbacks
    return config


def _as_message(given: Any, verdict: Verdict, text: str) -> AIMessage:
    if given is None:
        return AIMessage(content=_fill(text, verdict))
    if isinstance(given, AIMessage):
        return given
    if isinstance(given, str):
        return AIMessage(content=given)
    raise UsageError(f"on_abstain returned {type(given).__name__}; return a string, an AIMessage, or None.")


def _fill(text: str, verdict: Verdict) -> str:
    values = {
        "{reason}": verdict.reason.value,
        "{uncertainty}": "unmeasured" if verdict.uncertainty.value is None else f"{verdict.uncertainty.value:.4g}",
        "{threshold}": "none" if verdict.threshold is None else f"{verdict.threshold:.4g}",
        "{alpha}": f"{verdict.alpha:g}",
    }
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
