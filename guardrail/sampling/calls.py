"""Concurrent calls to any chat model, in threads or on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config

from ..foreign_errors import describe_error
from ..types import Cost, SampleSet
from .call_settings import carried
from .callbacks import drop_streaming_handlers, without_tokens
from .draws import Draw
from .effects import Effect, Steps, arun, run
from .limits import DEFAULT_CONCURRENCY, adopt_limits, current_limits, limits_for_threads, take_slot
from .replies.failures import cause_of
from .replies.read import read_reply

SAMPLE_INDEX = "guardrail_sample"
"""Run metadata key that numbers a call: -1 for the primary answer, 0 ... n - 1 for the samples."""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chat model.

    Attributes:
        messages: The prompt.
        params: Settings of the answer, by the plan's names.
        index: Number of the sample; -1 for a primary answer.
        name: Purpose of a primary answer, for traces.
        piece: Name of the answer within its draw.
    """

    messages: list[BaseMessage]
    params: dict[str, Any]
    index: int
    name: str = "primary"
    piece: str = ""

    def settings(self, ambient: RunnableConfig) -> dict[str, Any]:
        """Arguments of `BaseChatModel.generate` for tracing."""
        return {
            "run_name": f"guardrail_{self.name}" if self.index < 0 else f"guardrail_sample_{self.index}",
            "callbacks": ambient.get("callbacks"),
            "tags": ambient.get("tags"),
            "metadata": {**ambient.get("metadata", {}), SAMPLE_INDEX: self.index},
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one call.

    Attributes:
        answer: The answer or the cause of the failure, with calls and tokens; without a call if it was remembered.
        started: Time when the call began.
        ended: Time when it ended.
    """

    answer: SampleSet
    started: float = 0.0
    ended: float = 0.0


def make_calls(
    model: BaseChatModel, calls: Sequence[Call], callbacks: Callbacks, max_concurrency: int | None, draw: Draw
) -> Steps[list[Reply]]:
    """Make the calls that a draw misses, at the same time; a failed call is reported in its reply, never raised.

    Raises:
        UsageError: The model does not take a setting (`guardrail.sampling.call_settings.carried`).
    """
    ready = with_settings(model, (call.params for call in calls))
    ambient = _ambient(callbacks)

    def make(index: int) -> Steps[Reply]:
        call, (quiet, params) = calls[index], ready[index]
        remembered = yield from draw.piece(call.piece)
        if remembered is not None:
            return Reply(remembered)
        settings = {**call.settings(ambient), **params}
        with ExitStack() as slots:
            yield take_slot(slots)
            slots.enter_context(as_sample())
            started = time.perf_counter()
            try:
                result: LLMResult = yield Effect(
                    partial(quiet.generate, [call.messages], **settings),
                    partial(quiet.agenerate, [call.messages], **settings),
                )
                answer = _answer(result)
            except Exception as error:  # any error of a model is a missing measurement, which abstains
                answer = failed(error)
        ended = time.perf_counter()
        return Reply((yield from draw.note(call.piece, answer)), started, ended)

    replies: list[Reply] = yield at_once(make, range(len(calls)), _most_at_once(max_concurrency))
    return replies


def at_once(steps: Callable[[Item], Steps[Made]], items: Sequence[Item], most: int) -> Effect:
    """The results of ``steps`` for each item, in order, at most ``most`` at once, in threads or in tasks."""

    async def gathered() -> list[Made]:
        workers = asyncio.Semaphore(most)

        async def work(item: Item) -> Made:
            async with workers:
                return await arun(steps(item))

        return await asyncio.gather(*map(work, items))

    return Effect(lambda: side_by_side(lambda item: run(steps(item)), items, most), gathered)


_in_sample: ContextVar[bool] = ContextVar("guardrail_in_sample", default=False)


@contextmanager
def as_sample() -> Iterator[None]:
    """Mark the code inside as a call that draws, see `in_sample`."""
    token = _in_sample.set(True)
    try:
        yield
    finally:
        _in_sample.reset(token)


def in_sample() -> bool:
    """Whether the code runs inside a call that draws: the answers of a guard in there must vary, as samples do."""
    return _in_sample.get()


def side_by_side(work: Callable[[Item], Made], items: Sequence[Item], workers: int) -> list[Made]:
    """``work`` of each item, at most ``workers`` at once, each in a copy of the caller's context.

    The threads belong to this call alone: guards within guards cannot wait for each other's threads, and a forked
    process has none to lose.

    Args:
        work: The function; it should return an `Exception` as a result, because raising one ends the whole.
        items: Its arguments, one for each call.
        workers: Most calls at once.

    Returns:
        The results, in the order of the items.
    """
    if workers == 1 or len(items) < 2:
        return [work(item) for item in items]
    limits = limits_for_threads()
    pool = ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="guardrail")
    try:
        futures: list[Future[Made]] = []
        for item in items:
            context = copy_context()
            context.run(adopt_limits, limits)
            try:
                futures.append(pool.submit(context.run, work, item))
            except RuntimeError:  # the interpreter ends and starts no thread any more: this one makes the call
                futures.append(Future())
                futures[-1].set_result(context.run(work, item))
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:  # raises the error of a failed one before waiting for any other
            future.result()
        return [future.result() for future in futures]
    finally:  # after Ctrl-C nothing further begins; calls under way go on, and nothing waits for them
        pool.shutdown(wait=False, cancel_futures=True)


QUIET = "guardrail_quiet"
"""Class attribute of models that draw through this package themselves: nothing inside them is copied."""
LEVELS, MOST_INSIDE = 2, 64
"""Depth and length of the lists and dicts that are searched for models: those that hold models are short and flat."""


def quiet_copy(model: BaseChatModel, fields: Mapping[str, Any] | None = None) -> BaseChatModel:
    """A copy that neither reads a response cache (samples would be equal) nor streams (samples would leak).

    The models inside it are copied likewise: those in its fields and private attributes, also within lists, dicts and
    Runnables. A model that only a function refers to is not reached; the probe finds its cache
    (`guardrail.sampling.probe.later_call`).

    Args:
        model: The chat model; it is not changed.
        fields: Other fields of the copy.
    """
    copied: BaseChatModel = _quiet(model.model_copy(update=fields) if fields else model, {})
    return copied


def _quiet(value: Any, copies_by_id: dict[int, Any], levels: int = LEVELS) -> Any:
    """The value, or a copy of it if there is a model inside it."""
    if id(value) in copies_by_id:
        return copies_by_id[id(value)]
    if type(value) in (list, tuple, dict) and levels and len(value) <= MOST_INSIDE:
        items = list(value.values() if type(value) is dict else value)
        copies = [_quiet(item, copies_by_id, levels - 1) for item in items]
        if all(copy is item for copy, item in zip(copies, items, strict=True)):
            return value
        return dict(zip(value, copies, strict=True)) if type(value) is dict else type(value)(copies)
    if not isinstance(value, BaseLanguageModel | RunnableSerializable) or getattr(type(value), QUIET, False):
        return value
    copies_by_id[id(value)] = value  # before its fields are searched: one of them may refer back to it
    fields = {name: getattr(value, name, None) for name in type(value).model_fields}
    changed = {name: copy for name, inner in fields.items() if (copy := _quiet(inner, copies_by_id)) is not inner}
    hidden = value.__pydantic_private__ or {}
    private = {name: copy for name, inner in hidden.items() if (copy := _quiet(inner, copies_by_id)) is not inner}
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
        copies_by_id[id(value)] = copied
    return copies_by_id[id(value)]


def with_settings(
    model: BaseChatModel, calls: Iterable[Mapping[str, Any]]
) -> list[tuple[BaseChatModel, dict[str, Any]]]:
    """For the settings of each call a quiet copy with those that the model's class takes as fields, and the others.

    The others are keywords of the call. Calls with equal fields share a copy, and so the client that it may make.

    Raises:
        UsageError: The model does not take one of them.
    """
    ready: list[tuple[BaseChatModel, dict[str, Any]]] = []
    copies: list[tuple[dict[str, Any], BaseChatModel]] = []
    for settings in calls:
        fields, keywords = carried(model, settings)
        quiet = next((copy for own, copy in copies if own == fields), None)
        if quiet is None:
            quiet = quiet_copy(model, fields)
            copies.append((fields, quiet))
        ready.append((quiet, keywords))
    return ready


def _most_at_once(requested: int | None) -> int:
    """Calls in flight at once: as many as requested, within the tightest limit of the context."""
    limits = current_limits()
    if not limits:
        return requested or DEFAULT_CONCURRENCY
    return min(requested or limits[0].n, limits[0].n)


def _ambient(callbacks: Callbacks) -> RunnableConfig:
    """The caller's run configuration, as `invoke` would find it; `generate`, which is called directly, does not look.

    Handlers that stream are always dropped here: they would show samples that have not been judged.
    """
    config = ensure_config(None if callbacks is None else RunnableConfig(callbacks=callbacks))
    config["callbacks"] = drop_streaming_handlers(config.get("callbacks"))
    return config


def _answer(result: LLMResult) -> SampleSet:
    generation = result.generations[0][0]
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        raise TypeError(f"the chat model gave a {type(message or generation).__name__} instead of an AIMessage")
    return SampleSet(question="", primary=read_reply(message), cost=cost_of(message))


def cost_of(message: AIMessage) -> Cost:
    """The cost of the call that gave a message: its tokens as far as they are stated."""
    used = message.usage_metadata
    tokens = {} if used is None else {name: used.get(name, 0) for name in ("input_tokens", "output_tokens")}
    return Cost(calls=1, **tokens)


def failed(error: Exception, question: str = "", *, calls: int = 1) -> SampleSet:
    """The set of a call that raised, and may count as so many calls."""
    detail = describe_error(error, asking=True)
    cost = Cost(calls=calls)
    cause = cause_of(error)
    return SampleSet(question=question, primary=None, cost=cost, problem=cause, problem_detail=detail)
