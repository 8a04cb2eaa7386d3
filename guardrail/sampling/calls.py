"""The generic sampler: n + 1 concurrent calls to any chat model, and how its replies are read."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from ..bindings import call_settings
from ..errors import told
from ..prompting import question_text
from ..types import Cost, Sample, SampleSet, SamplingPlan, Unmeasured
from .callbacks import without_streams
from .limits import bound_for_threads, current_bound
from .replies import read_reply

__all__ = ["SAMPLE_INDEX", "acall_concurrently", "call_concurrently", "side_by_side"]

DEFAULT_CONCURRENCY = 16
"""Calls in flight at once, unless the caller says otherwise."""
SAMPLE_INDEX = "guardrail_sample"
"""Run metadata key that numbers a call: -1 for the primary answer, 0 ... n - 1 for the samples."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: which prompt it belongs to and how it is made."""

    prompt: int
    index: int
    messages: list[BaseMessage]
    params: dict[str, Any]
    name: str = "primary"

    def settings(self, ambient: RunnableConfig) -> dict[str, Any]:
        """Arguments of `BaseChatModel.generate`: how the run is traced, and how the answer is drawn."""
        return {
            "run_name": f"guardrail_{self.name}" if self.index < 0 else f"guardrail_sample_{self.index}",
            "callbacks": ambient.get("callbacks"),
            "tags": ambient.get("tags"),
            "metadata": {**ambient.get("metadata", {}), SAMPLE_INDEX: self.index},
            **self.params,
        }


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came back: a sample or an error, with what it used."""

    sample: Sample | None
    error: Exception | None
    usage: UsageMetadata | None
    started: float
    ended: float


def call_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    first: int = -1,
) -> list[SampleSet]:
    """Draw sample sets by separate calls in threads; a call that fails is reported in its set, never raised.

    ``first`` is the number of the first call: from 0 on there is no primary answer, only samples ``first`` to n - 1.
    """
    quiet, ambient = quiet_copy(model), _ambient(callbacks)
    calls = _calls(prompts, plan, name, first, call_settings(model, plan.bindings))
    bound = bound_for_threads()

    def run(call: _Call) -> _Reply:
        started = time.perf_counter()
        try:
            return _reply(quiet.generate([call.messages], **call.settings(ambient)), started)
        except Exception as error:  # whatever a model raises is a missing measurement, which abstains
            return _error(error, started)

    if bound is None:
        return _assemble(prompts, plan, calls, side_by_side(run, calls, max_concurrency or DEFAULT_CONCURRENCY))
    bound.draws()

    def run_in_slot(call: _Call) -> _Reply:
        with bound.in_flight():
            return run(call)

    workers = min(max_concurrency or bound.n, bound.n)
    return _assemble(prompts, plan, calls, side_by_side(run_in_slot, calls, workers))


async def acall_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    first: int = -1,
) -> list[SampleSet]:
    """`call_concurrently` on the event loop."""
    quiet, ambient = quiet_copy(model), _ambient(callbacks)
    calls = _calls(prompts, plan, name, first, call_settings(model, plan.bindings))
    bound = current_bound()
    default = DEFAULT_CONCURRENCY if bound is None else bound.n
    slots = asyncio.Semaphore(max_concurrency or default)

    async def run(call: _Call) -> _Reply:
        async with slots, nullcontext() if bound is None else bound.ain_flight():
            started = time.perf_counter()
            try:
                return _reply(await quiet.agenerate([call.messages], **call.settings(ambient)), started)
            except Exception as error:
                return _error(error, started)

    if bound is not None:
        bound.draws()
    return _assemble(prompts, plan, calls, await asyncio.gather(*(run(call) for call in calls)))


def quiet_copy(model: BaseChatModel) -> BaseChatModel:
    """A copy that neither reads a response cache (samples would be equal) nor streams (samples would leak)."""
    return model.model_copy(update={"cache": False, "disable_streaming": True})


def _calls(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, name: str, first: int, bound: dict[str, Any]
) -> list[_Call]:
    common: dict[str, Any] = {**bound, "max_tokens": plan.max_tokens}
    if plan.stop:
        common["stop"] = list(plan.stop)
    if plan.logprobs:
        common["logprobs"] = True
    primary = {**common, "temperature": 0.0}
    sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
    return [
        _Call(i, index, list(messages), primary if index < 0 else sampled, name)
        for i, messages in enumerate(prompts)
        for index in range(first, plan.n)
    ]


def _ambient(callbacks: Callbacks) -> RunnableConfig:
    """The caller's run configuration, as `invoke` would find it: `generate` is the same without its detours.

    Handlers that stream are left out here, whoever draws: they would show samples that nobody has judged.
    """
    found = ensure_config(None if callbacks is None else RunnableConfig(callbacks=callbacks))
    found["callbacks"] = without_streams(found.get("callbacks"))
    return found


def _reply(result: LLMResult, started: float) -> _Reply:
    generation = result.generations[0][0]
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        raise TypeError(f"the chat model gave a {type(message or generation).__name__} instead of an AIMessage")
    return _Reply(read_reply(message), None, message.usage_metadata, started, time.perf_counter())


def _error(error: Exception, started: float) -> _Reply:
    return _Reply(None, error, None, started, time.perf_counter())


def _assemble(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, calls: list[_Call], replies: list[_Reply]
) -> list[SampleSet]:
    by_prompt: list[list[tuple[_Call, _Reply]]] = [[] for _ in prompts]
    for call, reply in zip(calls, replies, strict=True):
        by_prompt[call.prompt].append((call, reply))
    return [_sample_set(messages, plan, pairs) for messages, pairs in zip(prompts, by_prompt, strict=True)]


def _sample_set(messages: Sequence[BaseMessage], plan: SamplingPlan, pairs: list[tuple[_Call, _Reply]]) -> SampleSet:
    primary = next((reply.sample for call, reply in pairs if call.index < 0), None)
    samples = tuple(reply.sample for call, reply in pairs if call.index >= 0 and reply.sample is not None)
    problem, detail = _problem(pairs, samples)
    used = [reply.usage for _, reply in pairs if reply.usage is not None]
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        cost=Cost(
            calls=len(pairs),
            input_tokens=sum(usage["input_tokens"] for usage in used),
            output_tokens=sum(usage["output_tokens"] for usage in used),
            seconds=max(reply.ended for _, reply in pairs) - min(reply.started for _, reply in pairs),
        ),
        problem=problem,
        problem_detail=detail,
    )


def _problem(pairs: list[tuple[_Call, _Reply]], samples: Sequence[Sample]) -> tuple[Unmeasured | None, str]:
    errors = [reply.error for _, reply in pairs if reply.error is not None]
    if errors:
        first = told(errors[0], asking=True)
        return Unmeasured.MODEL_FAILED, f"{len(errors)} of {len(pairs)} calls failed, the first with {first}"
    refused = sum(sample.refusal for sample in samples)
    if refused:
        return Unmeasured.REFUSED, f"{refused} of {len(samples)} samples are refusals or were filtered"
    return None, ""


# -- Calls side by side in threads, without making a fast model pay for threads that it does not need ------------------

Call = TypeVar("Call")
Reply = TypeVar("Reply")
PATIENCE = 0.002
"""Seconds in which the caller has to get two answers, or threads take part."""
REST = 150
"""Looks of the lookout at nothing before it goes to sleep."""
MOST_HELPERS = 256
"""Threads that all sync guards of a process share; started as they are needed."""
_helpers = ThreadPoolExecutor(MOST_HELPERS, thread_name_prefix="guardrail")


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised."""

    error: BaseException


def side_by_side(run: Callable[[Call], Reply], calls: Sequence[Call], workers: int) -> list[Reply]:
    """Run calls at once, the caller and at most ``workers - 1`` threads; see `_Crew`.

    Args:
        run: Makes one call. An `Exception` should be a reply; whatever is raised ends the whole.
        calls: What to run.
        workers: Most calls in flight.

    Returns:
        The replies, in the order of the calls.
    """
    crew = _Crew(run, calls, workers)
    try:
        if len(calls) > 1 and workers > 1:
            _lookout.watch(crew)
        crew.work()
        return crew.replies()
    except BaseException:  # Ctrl-C while calling or waiting: what has not begun is not begun
        crew.stop()
        raise


class _Crew(Generic[Call, Reply]):
    """The caller takes one call after the other, and threads of a shared pool help it.

    Handing every call to a thread would cost several times as much as a call to a fast model does. So the lookout calls
    them once the caller makes little progress: a fast model answers everything by itself, while calls that wait for a
    server run at once. As the caller helps itself, a pool that is busy (guards within guards, many batches) makes a
    call slower but cannot block it.
    """

    def __init__(self, run: Callable[[Call], Reply], calls: Sequence[Call], workers: int) -> None:
        self._run = run
        self._workers = workers
        self._context = copy_context()
        self._waiting = deque(enumerate(calls))
        self._made: SimpleQueue[tuple[int, Reply | _Raised]] = SimpleQueue()
        self._n = len(calls)
        self._seen: int | None = None

    def work(self) -> None:
        """Take calls until none is left."""
        while True:
            try:
                place, call = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._made.put((place, self._context.copy().run(self._run, call)))
            except BaseException as error:  # no Exception, which is a reply: the process is to end
                self.stop()
                self._made.put((place, _Raised(error)))

    def stop(self) -> None:
        """Start no further call; those under way go on, and nobody waits for them."""
        self._waiting.clear()

    def looked_after(self) -> bool:
        """Whether nothing is left to watch: all calls are taken, or helpers were called as the caller is slow."""
        before, self._seen = self._seen, self._made.qsize()
        if before is not None and self._seen < before + 2:  # one answer after the other would be slower
            for _ in range(min(len(self._waiting), self._workers - 1)):
                _helpers.submit(self.work)
            return True
        return not self._waiting

    def replies(self) -> list[Reply]:
        """All replies in the order of the calls, once they are there; what ends the process is raised at once."""
        found: dict[int, Reply] = {}
        while len(found) < self._n:
            place, reply = self._made.get()
            if isinstance(reply, _Raised):
                raise reply.error
            found[place] = reply
        return [found[place] for place in range(self._n)]


class _Lookout:
    """One thread that looks at every crew now and then, and sleeps while there are none.

    A thread of their own would cost crews of a fast model more than their calls do: waking it takes its time from them.
    """

    def __init__(self) -> None:
        self._new: deque[_Crew[Any, Any]] = deque()
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, crew: _Crew[Any, Any]) -> None:
        """Look after a crew from now on."""
        self._new.append(crew)
        if not self._awake.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._look, name="guardrail-lookout", daemon=True)
                    self._thread.start()
                self._awake.set()

    def _look(self) -> None:
        crews: list[_Crew[Any, Any]] = []
        idle = 0
        while True:
            self._awake.wait()
            time.sleep(PATIENCE)
            idle = 0 if self._new or crews else idle + 1
            while self._new:
                crews.append(self._new.popleft())
            try:
                crews = [crew for crew in crews if not crew.looked_after()]
            except RuntimeError:  # the interpreter ends, and starts no thread any more: callers do it all themselves
                crews = []
            if idle > REST:
                idle = 0
                self._awake.clear()
                if self._new:  # added between the look and the sleep
                    self._awake.set()


_lookout = _Lookout()


def _hire() -> None:
    """New threads after a fork: a child process has none of its parent's, and nothing would notice."""
    global _helpers, _lookout
    _helpers = ThreadPoolExecutor(MOST_HELPERS, thread_name_prefix="guardrail")
    _lookout = _Lookout()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hire)
