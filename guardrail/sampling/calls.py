"""Calls to any chat model, side by side: in threads, or on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config

from ..call_settings import carried
from ..types import Sample
from .callbacks import drop_streaming_handlers, without_tokens
from .limits import adopt_limits, ain_flight, current_limits, in_flight, limits_for_threads
from .replies import read_reply

__all__ = [
    "SAMPLE_INDEX",
    "Call",
    "Reply",
    "amake_calls",
    "as_sample",
    "in_sample",
    "make_calls",
    "quiet_copy",
    "side_by_side",
    "with_settings",
]

DEFAULT_CONCURRENCY = 16
"""Calls in flight at once, unless the caller says otherwise."""
SAMPLE_INDEX = "guardrail_sample"
"""Run metadata key that numbers a call: -1 for the primary answer, 0 ... n - 1 for the samples."""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chat model.

    Attributes:
        messages: The prompt.
        params: How the answer is drawn, in the plan's words.
        index: Number of the sample; -1 for a primary answer.
        name: What a primary answer is for, in traces.
    """

    messages: list[BaseMessage]
    params: dict[str, Any]
    index: int
    name: str = "primary"

    def settings(self, ambient: RunnableConfig) -> dict[str, Any]:
        """Arguments of `BaseChatModel.generate` that say how the run is traced."""
        return {
            "run_name": f"guardrail_{self.name}" if self.index < 0 else f"guardrail_sample_{self.index}",
            "callbacks": ambient.get("callbacks"),
            "tags": ambient.get("tags"),
            "metadata": {**ambient.get("metadata", {}), SAMPLE_INDEX: self.index},
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: a sample or an error, with what it used."""

    sample: Sample | None
    error: Exception | None
    usage: UsageMetadata | None
    started: float
    ended: float


def make_calls(
    model: BaseChatModel, calls: Sequence[Call], callbacks: Callbacks, max_concurrency: int | None
) -> list[Reply]:
    """Make calls in threads; a call that fails is reported in its reply, never raised.

    Raises:
        UsageError: The model does not take a setting (`guardrail.bindings.carried`).
    """
    ready, ambient = _with_settings(model, calls), _ambient(callbacks)

    def make(place: int) -> Reply:
        call, (quiet, params) = calls[place], ready[place]
        with in_flight(), as_sample():
            started = time.perf_counter()
            try:
                return _reply(quiet.generate([call.messages], **call.settings(ambient), **params), started)
            except Exception as error:  # any error of a model is a missing measurement, which abstains
                return _error(error, started)

    return side_by_side(make, range(len(calls)), _at_once(max_concurrency))


async def amake_calls(
    model: BaseChatModel, calls: Sequence[Call], callbacks: Callbacks, max_concurrency: int | None
) -> list[Reply]:
    """`make_calls` on the event loop."""
    ready, ambient = _with_settings(model, calls), _ambient(callbacks)
    slots = asyncio.Semaphore(_at_once(max_concurrency))

    async def make(call: Call, quiet: BaseChatModel, params: dict[str, Any]) -> Reply:
        async with slots, ain_flight():
            _in_sample.set(True)  # in this task alone
            started = time.perf_counter()
            try:
                return _reply(await quiet.agenerate([call.messages], **call.settings(ambient), **params), started)
            except Exception as error:
                return _error(error, started)

    return await asyncio.gather(*(make(call, *one) for call, one in zip(calls, ready, strict=True)))


_in_sample: ContextVar[bool] = ContextVar("guardrail_in_sample", default=False)


@contextmanager
def as_sample() -> Iterator[None]:
    """Mark what runs inside as a call that draws, see `in_sample`."""
    token = _in_sample.set(True)
    try:
        yield
    finally:
        _in_sample.reset(token)


def in_sample() -> bool:
    """Whether the code runs inside a call that draws: a guard in there is a model whose answers have to vary."""
    return _in_sample.get()


def side_by_side(run: Callable[[Item], Made], items: Sequence[Item], workers: int) -> list[Made]:
    """``run`` of each item, at most ``workers`` at once, each in a copy of the caller's context.

    The threads belong to this call alone: guards within guards cannot wait for each other's threads, and a forked
    process has none to lose.

    Args:
        run: An `Exception` should be a result; anything it raises ends the whole.
        items: What to run it on.
        workers: Most at once.

    Returns:
        The results, in the order of the items.
    """
    if workers == 1 or len(items) < 2:
        return [run(item) for item in items]
    limits = limits_for_threads()
    pool = ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="guardrail")
    try:
        futures: list[Future[Made]] = []
        for item in items:
            context = copy_context()
            context.run(adopt_limits, limits)
            try:
                futures.append(pool.submit(context.run, run, item))
            except RuntimeError:  # the interpreter ends and starts no thread any more: this one makes the call
                futures.append(Future())
                futures[-1].set_result(context.run(run, item))
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:  # what one of them raised, before waiting for any other
            future.result()
        return [future.result() for future in futures]
    finally:  # after Ctrl-C nothing further begins; calls under way go on, and nothing waits for them
        pool.shutdown(wait=False, cancel_futures=True)


QUIET = "guardrail_quiet"
"""Class attribute of models that draw through this package themselves: nothing inside them is copied."""
LEVELS, MOST_INSIDE = 2, 64
"""How deep models are looked for in lists and dicts, and in how long ones: what holds models is short and flat."""


def quiet_copy(model: BaseChatModel, fields: Mapping[str, Any] | None = None) -> BaseChatModel:
    """A copy that neither reads a response cache (samples would be equal) nor streams (samples would leak).

    So are the models inside it: those in its fields and private attributes, also within lists, dicts and Runnables. One
    that only a function holds is not reached; the probe finds its cache (`guardrail.sampling.probe.later_call`).

    Args:
        model: The chat model; it is not changed.
        fields: Other fields of the copy.
    """
    copied: BaseChatModel = _quiet(model.model_copy(update=fields) if fields else model, {})
    return copied


def _quiet(value: Any, seen: dict[int, Any], levels: int = LEVELS) -> Any:
    """The value, or a copy of it if a model inside it has to be quiet."""
    if id(value) in seen:
        return seen[id(value)]
    if type(value) in (list, tuple, dict) and levels and len(value) <= MOST_INSIDE:
        held = list(value.values() if type(value) is dict else value)
        made = [_quiet(one, seen, levels - 1) for one in held]
        if all(a is b for a, b in zip(made, held, strict=True)):
            return value
        return dict(zip(value, made, strict=True)) if type(value) is dict else type(value)(made)
    if not isinstance(value, BaseLanguageModel | RunnableSerializable) or getattr(type(value), QUIET, False):
        return value
    seen[id(value)] = value  # a model that holds itself
    fields = {name: getattr(value, name, None) for name in type(value).model_fields}
    changed = {name: made for name, one in fields.items() if (made := _quiet(one, seen)) is not one}
    hidden = value.__pydantic_private__ or {}
    private = {name: made for name, one in hidden.items() if (made := _quiet(one, seen)) is not one}
    if isinstance(value, BaseLanguageModel):
        changed["cache"] = False
    if isinstance(value, BaseChatModel):
        changed["disable_streaming"] = True
    if changed or private:
        copied = value.model_copy(update=changed)
        if copied.__pydantic_private__ is not None:
            copied.__pydantic_private__.update(private)
        if isinstance(copied, BaseChatModel):
            for name in ("_generate", "_agenerate"):  # of the class: a copy of a copy must not call the first one
                object.__setattr__(copied, name, without_tokens(getattr(type(copied), name).__get__(copied)))
        seen[id(value)] = copied
    return seen[id(value)]


def with_settings(model: BaseChatModel, settings: Mapping[str, Any]) -> tuple[BaseChatModel, dict[str, Any]]:
    """A quiet copy with those settings that the model's class takes as fields, and the others as keywords of a call.

    Raises:
        UsageError: The model does not take one of them.
    """
    fields, call = carried(model, settings)
    return quiet_copy(model, fields), call


def _with_settings(model: BaseChatModel, calls: Sequence[Call]) -> list[tuple[BaseChatModel, dict[str, Any]]]:
    """`with_settings` of each call; calls with equal fields share a copy, and so the client that it may make."""
    found: list[tuple[BaseChatModel, dict[str, Any]]] = []
    copies: list[tuple[dict[str, Any], BaseChatModel]] = []
    for one in calls:
        fields, call = carried(model, one.params)
        quiet = next((copy for known, copy in copies if known == fields), None)
        if quiet is None:
            quiet = quiet_copy(model, fields)
            copies.append((fields, quiet))
        found.append((quiet, call))
    return found


def _at_once(wanted: int | None) -> int:
    """Calls in flight at once: as many as wanted, within the tightest limit of the context."""
    limits = current_limits()
    if not limits:
        return wanted or DEFAULT_CONCURRENCY
    return min(wanted or limits[0].n, limits[0].n)


def _ambient(callbacks: Callbacks) -> RunnableConfig:
    """The caller's run configuration, as `invoke` would find it: `generate` is the same without its detours.

    Handlers that stream are always left out here: they would show samples that have not been judged.
    """
    found = ensure_config(None if callbacks is None else RunnableConfig(callbacks=callbacks))
    found["callbacks"] = drop_streaming_handlers(found.get("callbacks"))
    return found


def _reply(result: LLMResult, started: float) -> Reply:
    generation = result.generations[0][0]
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        raise TypeError(f"the chat model gave a {type(message or generation).__name__} instead of an AIMessage")
    return Reply(read_reply(message), None, message.usage_metadata, started, time.perf_counter())


def _error(error: Exception, started: float) -> Reply:
    return Reply(None, error, None, started, time.perf_counter())
