"""Abstention paths: a message, an exception, another model, or a person."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ..bindings import binding_settings
from ..errors import UsageError
from ..items.partial import is_partial
from ..prompting import copies_of
from ..sampling.effects import Effect, Steps, user_call
from ..sampling.limits import take_slot
from ..types import Bindings
from ..verdict import AbstainedError, UnmeasuredError, Verdict
from .messages import HANDOFF

ABSTENTION = "I am not sure enough to answer this, so I would rather not guess."
"""Default text of an abstention."""
ABSTAINED = "guardrail_abstained"
"""Key in the ``response_metadata`` of a message that is the text of an abstention and answers nothing.

Only this mark tells it from an answer: the text may differ each time it is worded.
"""
Handoff = Literal["text", "person", "judged_answer", "unjudged_answer"]
"""What stands in place of an answer that was held back, in the ``handoff`` of the verdict's metadata.

"text" answers nothing. "person": a person answered, or will (then the message is the text of an abstention, with a
ticket). A Runnable gave a "judged_answer" if it is a guard that accepted it, otherwise an "unjudged_answer", which no
promise covers.
"""


@runtime_checkable
class FullHandler(Protocol):
    """A handler that takes the whole abstention."""

    def steps(self, abstention: Abstention, kept: AIMessage | None = None) -> Steps[Any]:
        """Return a text, an AIMessage, or None, as a handler does.

        Args:
            abstention: The abstention.
            kept: The message with the items of the answer that are kept, if some are. For None, the caller gets it.
        """


Handler = Callable[[Verdict], Any] | Callable[[Verdict, Sequence[BaseMessage]], Any]
"""A hook: takes the verdict, or the verdict and the messages if it has two required positional parameters. Returns (or
awaits) a text, an AIMessage, or None for the abstention message."""
Form = Literal["text", "calls", "format"]
"""The answers that the caller can read: any text; only a tool call; only a text of the calibrated format."""
Wording = str | Callable[[Verdict], str]
"""Text of an abstention, or a function of the verdict that gives it."""
OnAbstain = Literal["message", "raise"] | Runnable[Any, Any] | Handler | FullHandler
"""Values of `Guardrail(on_abstain=...)`."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """One abstention, and the way to answer the caller instead.

    Attributes:
        verdict: The verdict that abstains.
        messages: The messages that the guard received; a Runnable gets the same.
        path: "message", "raise", a Runnable, or a handler.
        wording: Text of the abstention message.
        callbacks: For a Runnable.
        bound: Tools and answer format of the call; a chat model that takes over gets them, too.
        form: The answers that the caller can read: "text"; "calls" if only a tool call is an answer; "format" if the
            answer's text will be parsed. The last two would take an abstention text for an answer, so it is raised.
    """

    verdict: Verdict
    messages: Sequence[BaseMessage]
    path: OnAbstain
    wording: Wording
    callbacks: Callbacks = None
    bound: Bindings | None = None
    form: Form = "text"

    @property
    def copied(self) -> Abstention:
        """Another one, for functions of the user's: what they change must not reach the caller or a reviewer."""
        return replace(self, verdict=self.verdict.model_copy(deep=True), messages=copies_of(self.messages))

    def error(self) -> AbstainedError:
        """The abstention as an exception."""
        return AbstainedError.of(self.verdict, worded(self.wording, self.verdict))

    def answer(self, reply: Any) -> AIMessage:
        """The reply of a Runnable or a handler as a message; for None, the abstention message.

        Raises:
            AbstainedError: The reply is None, and a text would be taken for an answer (or the path is "raise").
            UsageError: The reply is not an answer.
        """
        if reply is None:
            if self.path == "raise" or self.form != "text":
                raise self.error()
            return AIMessage(content=worded(self.wording, self.verdict), response_metadata={ABSTAINED: True})
        message = AIMessage(content=reply) if isinstance(reply, str) else reply
        if not isinstance(message, AIMessage):
            raise UsageError(f"on_abstain returned {type(reply).__name__}; return a string, an AIMessage, or None.")
        if isinstance(self.path, Runnable) and self._is_held(message):
            return self.answer(None).model_copy(update={"usage_metadata": message.usage_metadata})
        if self.form == "calls" and not message.tool_calls:
            raise UsageError(
                "on_abstain returned a text, but the caller can only read a tool call. Return an AIMessage with "
                "tool_calls, or None to raise AbstainedError."
            )
        return message

    def _is_held(self, message: AIMessage) -> bool:
        """Whether a guard that took over gave no answer that the caller can read as one.

        Of a part of its answer the caller would not learn what is missing: the verdict is that of this abstention.
        """
        return is_partial(message) or (self.form != "text" and bool(message.response_metadata.get(ABSTAINED)))


def take_path(abstention: Abstention) -> Steps[AIMessage]:
    """Take the abstention path.

    Raises:
        AbstainedError: Under "raise", and where the caller would take a text for an answer.
        UsageError: An async handler in a sync call, or a handler that returned something else than a text, an
            AIMessage or None.
    """
    path, reply = abstention.path, None
    with _as_result(abstention.verdict):
        if isinstance(path, Runnable):
            reply = yield from _invoke(path, abstention)
        elif isinstance(path, FullHandler):
            reply = yield from path.steps(abstention.copied)
        elif callable(path):
            handed = abstention.copied
            more = (handed.messages,) if _takes_messages(path) else ()
            reply = yield user_call("on_abstain", path, handed.verdict, *more)
        return _handed_off(path, abstention.answer(reply))


def _handed_off(path: OnAbstain, message: AIMessage) -> AIMessage:
    """The message of an abstention path, with what it stands for."""
    metadata = message.response_metadata
    judged = metadata.get("guardrail")
    handoff: Handoff = "person"
    if metadata.get(ABSTAINED):
        handoff = "person" if isinstance(path, FullHandler) else "text"
    elif isinstance(path, Runnable):
        accepted = isinstance(judged, Mapping) and judged.get("accepted") is True
        handoff = "judged_answer" if accepted else "unjudged_answer"
    return message.model_copy(update={"response_metadata": {**metadata, HANDOFF: handoff}})


def complete(abstention: Abstention, message: AIMessage) -> Steps[AIMessage]:
    """The message with the kept items of an answer, after the path has seen those that are held back.

    Only a `FullHandler` (the review queue) is told; every other path leaves the message as it is.
    """
    path = abstention.path
    if not isinstance(path, FullHandler):
        return message
    return (yield from path.steps(abstention.copied, message)) or message


def _invoke(path: Runnable[Any, Any], abstention: Abstention) -> Steps[Any]:
    """Ask the Runnable; a chat model with the tools and the format that the guarded one had."""
    is_guard = getattr(getattr(path, "bound", path), "guardrail_judges", False)
    if abstention.bound is not None and isinstance(path, BaseChatModel):
        path = path.bind(**binding_settings(path, abstention.bound))
    messages = copies_of(abstention.messages)
    config = RunnableConfig(run_name="guardrail_fallback", callbacks=abstention.callbacks)
    with ExitStack() as slots:
        if not is_guard:  # the calls of a guard are counted one by one
            yield take_slot(slots)
        return (yield Effect(partial(path.invoke, messages, config), partial(path.ainvoke, messages, config)))


def _takes_messages(handler: Callable[..., Any]) -> bool:
    """Whether a handler needs a second argument. A parameter with a default does not count: it may mean anything."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in parameters) == 2


@contextmanager
def _as_result(verdict: Verdict) -> Iterator[None]:
    """Report a measured abstention as measured even if the fallback was not: a retry would draw it again."""
    try:
        yield
    except UnmeasuredError as error:
        if not verdict.is_result:
            raise
        raise AbstainedError(verdict, error.message, error.ticket) from error


def worded(wording: Wording, verdict: Verdict) -> str:
    """The abstention message.

    Raises:
        UsageError: The function returned no text.
    """
    text: object = wording if isinstance(wording, str) else wording(verdict.model_copy(deep=True))
    if not isinstance(text, str):
        raise UsageError(f"abstain_message returned {type(text).__name__}; it must return a string.")
    return text
