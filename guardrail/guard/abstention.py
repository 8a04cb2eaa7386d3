"""Abstention paths: a message, an exception, another model, or a person."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from ..bindings import binding_settings
from ..errors import AbstainedError, UnmeasuredError, UsageError
from ..sampling.effects import Effect, Steps, arun, run
from ..sampling.limits import ain_flight, in_flight
from ..types import Bindings
from ..verdict import Verdict, next_step
from .base import GuardedChatModel, is_result

__all__ = [
    "ABSTAINED",
    "ABSTENTION",
    "Abstention",
    "Form",
    "FullHandler",
    "Handler",
    "OnAbstain",
    "Wording",
    "afall_back",
    "fall_back",
    "take_path",
    "worded",
]

ABSTENTION = "I am not sure enough to answer this, so I would rather not guess."
"""Default text of an abstention."""
ABSTAINED = "guardrail_abstained"
"""Key in the ``response_metadata`` of a message that is the text of an abstention and answers nothing.

Only this mark tells it from an answer: the text may differ each time it is worded.
"""


@runtime_checkable
class FullHandler(Protocol):
    """A handler that wants the conversation, too. It must be callable as well, as every handler."""

    def on_abstention(self, abstention: Abstention) -> Any:
        """As a handler: a text, an AIMessage, or None."""

    async def aon_abstention(self, abstention: Abstention) -> Any:
        """The same for async callers."""


Handler = Callable[[Verdict], Any] | Callable[[Verdict, Sequence[BaseMessage]], Any]
"""A hook: takes the verdict, or the verdict and the messages if it has two required positional parameters. Returns (or
awaits) a text, an AIMessage, or None for the abstention message."""
Form = Literal["text", "calls", "format"]
"""What the caller can read: any text; only a tool call; only a text of the calibrated format."""
Wording = str | Callable[[Verdict], str]
"""Text of an abstention: a template (see `worded`), or a function of the verdict."""
OnAbstain = Literal["message", "raise"] | Runnable[Any, Any] | Handler | FullHandler
"""What `Guardrail(on_abstain=...)` takes."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """One abstention that is to be acted on.

    Attributes:
        verdict: Why.
        messages: What the guard received; a Runnable gets the same.
        path: "message", "raise", a Runnable, or a handler.
        wording: Text of the abstention message.
        callbacks: For a Runnable.
        bound: Tools and answer format of the call; a chat model that takes over gets them, too.
        form: What the caller can read: "text"; "calls" where only a tool call is an answer; "format" where the answer's
            text will be parsed. An abstention text would be taken for an answer by the last two, so it is raised.
    """

    verdict: Verdict
    messages: Sequence[BaseMessage]
    path: OnAbstain
    wording: Wording
    callbacks: Callbacks = None
    bound: Bindings | None = None
    form: Form = "text"

    def error(self) -> AbstainedError:
        """The abstention as an exception."""
        return AbstainedError.of(self.verdict, worded(self.wording, self.verdict))

    def answer(self, given: Any) -> AIMessage:
        """What a Runnable or a handler returned, as a message; None is "no help".

        Raises:
            AbstainedError: No help, and a text would be taken for an answer (or the path is "raise").
            UsageError: Something other than an answer.
        """
        if given is None:
            if self.path == "raise" or self.form != "text":
                raise self.error()
            return AIMessage(content=worded(self.wording, self.verdict), response_metadata={ABSTAINED: True})
        message = AIMessage(content=given) if isinstance(given, str) else given
        if not isinstance(message, AIMessage):
            raise UsageError(f"on_abstain returned {type(given).__name__}; return a string, an AIMessage, or None.")
        if self.form == "calls" and not message.tool_calls:
            raise UsageError(
                "on_abstain returned a text, but the caller can only read a tool call. Return an AIMessage with "
                "tool_calls, or None to raise AbstainedError."
            )
        return message


def take_path(abstention: Abstention) -> Steps[AIMessage]:
    """Take the abstention path.

    Raises:
        AbstainedError: Under "raise", and where the caller would take a text for an answer.
        UsageError: An async handler in a sync call, or a handler that returned something else than a text, an
            AIMessage or None.
    """
    path, verdict, given = abstention.path, abstention.verdict, None
    with _as_result(verdict):
        if isinstance(path, Runnable):
            asked = (_takes_over(path, abstention), list(abstention.messages), _config(abstention))
            given = yield Effect(partial(_invoke, *asked), partial(_ainvoke, *asked))
        elif isinstance(path, FullHandler):
            given = yield Effect(partial(path.on_abstention, abstention), partial(path.aon_abstention, abstention))
        elif callable(path):
            what = (path, (verdict, abstention.messages) if _takes_messages(path) else (verdict,))
            given = yield Effect(partial(_ask, *what), partial(_aask, *what))
        return abstention.answer(given)


def fall_back(abstention: Abstention) -> AIMessage:
    """`take_path` in this thread."""
    return run(take_path(abstention))


async def afall_back(abstention: Abstention) -> AIMessage:
    """`take_path` without blocking the event loop."""
    return await arun(take_path(abstention))


def _invoke(path: Runnable[Any, Any], messages: list[BaseMessage], config: RunnableConfig) -> Any:
    with nullcontext() if _counts_itself(path) else in_flight():
        return path.invoke(messages, config)


async def _ainvoke(path: Runnable[Any, Any], messages: list[BaseMessage], config: RunnableConfig) -> Any:
    async with nullcontext() if _counts_itself(path) else ain_flight():
        return await path.ainvoke(messages, config)


def _counts_itself(path: Runnable[Any, Any]) -> bool:
    """Whether the Runnable is a guard, whose model calls are counted one by one."""
    return isinstance(getattr(path, "bound", path), GuardedChatModel)


def _takes_messages(handler: Callable[..., Any]) -> bool:
    """Whether it needs a second argument; a parameter with a default may mean anything, so it does not count."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters) == 2


def _ask(handler: Callable[..., Any], what: tuple[Any, ...]) -> Any:
    given = handler(*what)
    if inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise UsageError("on_abstain is async, but the call was sync. Use ainvoke, or a sync handler.")
    return given


async def _aask(handler: Callable[..., Any], what: tuple[Any, ...]) -> Any:
    """A sync handler runs in a thread, so that a person may take their time."""
    if inspect.iscoroutinefunction(handler):
        given = handler(*what)
    else:
        given = await run_in_executor(None, handler, *what)
    return await given if inspect.isawaitable(given) else given


@contextmanager
def _as_result(verdict: Verdict) -> Iterator[None]:
    """Let no measured abstention look unmeasured because the guard that took over was: a retry would draw it again."""
    try:
        yield
    except UnmeasuredError as error:
        if not is_result(verdict):
            raise
        raise AbstainedError(verdict, error.message, error.ticket) from error


def worded(wording: Wording, verdict: Verdict) -> str:
    """The abstention message.

    Args:
        wording: A function of the verdict, or a text with any of {reason}, {detail}, {uncertainty}, {threshold},
            {alpha}, {estimator}, {calls} and {next}; other braces stay as they are.
        verdict: The abstention.

    Raises:
        UsageError: The function returned no text.
    """
    if callable(wording):
        text: object = wording(verdict)
        if not isinstance(text, str):
            raise UsageError(f"abstain_message returned {type(text).__name__}; it must return a string.")
        return text
    value, threshold = verdict.uncertainty.value, verdict.threshold
    values = {
        "reason": verdict.reason.value,
        "detail": verdict.detail,
        "uncertainty": "unmeasured" if value is None else f"{value:.4g}",
        "threshold": "none" if threshold is None else f"{threshold:.4g}",
        "alpha": f"{verdict.alpha:g}",
        "estimator": verdict.uncertainty.estimator,
        "calls": str(verdict.cost.calls),
        "next": next_step(verdict),
    }
    # One pass, so that braces inside a value are not filled in turn.
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), wording)


def _takes_over(path: Runnable[Any, Any], abstention: Abstention) -> Runnable[Any, Any]:
    """The Runnable; a chat model with the tools and the format that the guarded one had."""
    if abstention.bound is None or not isinstance(path, BaseChatModel):
        return path
    return path.bind(**binding_settings(path, abstention.bound))


def _config(abstention: Abstention) -> RunnableConfig:
    config = RunnableConfig(run_name="guardrail_fallback")
    if abstention.callbacks is not None:
        config["callbacks"] = abstention.callbacks
    return config
