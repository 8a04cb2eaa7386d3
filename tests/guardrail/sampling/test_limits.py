"""Calls in flight: `max_concurrency` of a configuration bounds a call and a whole batch, and nothing locks up."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import ValidationError

from guardrail import Guardrail, UsageError
from guardrail.guard.cascade import Cascade
from guardrail.judges.chat import ChatJudge
from guardrail.sampling import effects, limits, prober
from guardrail.sampling.limits import (
    Limit,
    ain_flight,
    bounded,
    current_limits,
    limit_of,
    take_slot,
)
from guardrail.sampling.prober import probe
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator
from tests.guardrail.guard.test_routing import artifact as cascade_artifact

PATIENCE = 30
"""Seconds after which a test counts as locked up."""


class Seen:
    """Calls in flight now and at most; each call lingers a moment, so that one too many would meet it."""

    def __init__(self) -> None:
        self.now = self.peak = self.calls = 0
        self._more = threading.Condition()

    def enter(self) -> None:
        with self._more:
            self.now += 1
            self.calls += 1
            self.peak = max(self.peak, self.now)
            self._more.notify_all()

    def leave(self) -> None:
        with self._more:
            self.now -= 1

    def linger(self, crowd: int) -> None:
        """Wait until there is a crowd, which must not come."""
        with self._more:
            self._more.wait_for(lambda: self.now >= crowd, timeout=0.004)


class Busy(ScriptedChat):
    seen: Any
    crowd: int = 99

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        self.seen.enter()
        try:
            self.seen.linger(self.crowd)
            return super()._generate(messages, stop, run_manager, **kwargs)
        finally:
            self.seen.leave()

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        self.seen.enter()
        try:
            await asyncio.sleep(0.001)
            return super()._generate(messages, stop, run_manager, **kwargs)
        finally:
            self.seen.leave()


def guard_and_traffic(n: int = 3, **settings: Any) -> tuple[Guardrail, Seen]:
    traffic = Seen()
    model = Busy(default=["a", "b", "c"], seen=traffic, crowd=n + 1)
    settings = {"remember": 0, **settings}
    return Guardrail(model=model, artifact=make_artifact(model), **settings), traffic


def cascade_and_traffic(n: int = 3) -> tuple[Cascade, Seen]:
    traffic = Seen()
    models = [Busy(name_of_model=name, default=["a", "b"], seen=traffic, crowd=n + 1) for name in ("small", "large")]
    return Cascade(models, artifact=cascade_artifact(0.0, 0.0)), traffic


def soon(run: Callable[[], Any]) -> Any:
    """The result of a call that must not lock up."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(run).result(PATIENCE)
    finally:
        pool.shutdown(wait=False)


async def collected(stream: Any) -> list[Any]:
    return [item async for item in stream]


@contextmanager
def in_flight() -> Iterator[None]:
    """One model call of a thread, in a slot of every limit of the context."""
    with ExitStack() as slots:
        take_slot(slots).run()
        yield


QUESTIONS: list[Any] = ["q", "r", "s"]
"""Three questions: repeats of one would share what is drawn."""

Way = Callable[[Any, Any], Any]
SYNC: dict[str, Way] = {
    "invoke": lambda guard, config: guard.invoke("q", config),
    "assess": lambda guard, config: guard.assess("q", config),
    "stream": lambda guard, config: list(guard.stream("q", config)),
    "batch": lambda guard, config: guard.batch(QUESTIONS, config),
    "batch_of_configs": lambda guard, config: guard.batch(QUESTIONS, [config] * 3),
    "batch_as_completed": lambda guard, config: list(guard.batch_as_completed(QUESTIONS, config)),
    "chain": lambda guard, config: (guard.prompt | guard).invoke({"question": "q"}, config),
    "chain_batch": lambda guard, config: (guard.prompt | guard).batch(
        [{"question": text} for text in QUESTIONS], config
    ),
    "with_config": lambda guard, config: guard.with_config(**config).invoke("q"),
    "inside_a_run": lambda guard, config: RunnableLambda(lambda _: guard.assess("q").accepted).invoke("q", config),
}
ASYNC: dict[str, Way] = {
    "ainvoke": lambda guard, config: guard.ainvoke("q", config),
    "aassess": lambda guard, config: guard.aassess("q", config),
    "astream": lambda guard, config: collected(guard.astream("q", config)),
    "astream_events": lambda guard, config: collected(guard.astream_events("q", config, version="v2")),
    "abatch": lambda guard, config: guard.abatch(QUESTIONS, config),
    "abatch_as_completed": lambda guard, config: collected(guard.abatch_as_completed(QUESTIONS, config)),
    "chain_abatch": lambda guard, config: (guard.prompt | guard).abatch(
        [{"question": text} for text in QUESTIONS], config
    ),
}


@pytest.mark.parametrize("made", [guard_and_traffic, cascade_and_traffic])
@pytest.mark.parametrize("way", SYNC)
def test_the_configuration_bounds_threads(made: Callable[[], tuple[Any, Seen]], way: str) -> None:
    guard, traffic = made()
    soon(lambda: SYNC[way](guard, {"max_concurrency": 3}))
    assert traffic.calls % 11 == 0
    assert traffic.peak <= 3
    assert current_limits() == ()


class Meeting(ScriptedChat):
    """The first calls wait for each other."""

    barrier: Any
    first: Any

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if next(self.first) < self.barrier.parties:
            self.barrier.wait(PATIENCE)
        return super()._generate(messages, stop, run_manager, **kwargs)


@pytest.mark.parametrize("way", ["invoke", "batch"])
def test_threads_use_the_whole_limit(way: str) -> None:
    model = Meeting(barrier=threading.Barrier(3), first=itertools.count())
    guard = Guardrail(model=model, artifact=make_artifact(model))
    soon(lambda: SYNC[way](guard, {"max_concurrency": 3}))
    assert not model.barrier.broken


@pytest.mark.parametrize("made", [guard_and_traffic, cascade_and_traffic])
@pytest.mark.parametrize("way", ASYNC)
def test_the_configuration_bounds_tasks(made: Callable[[], tuple[Any, Seen]], way: str) -> None:
    guard, traffic = made()

    async def run() -> Any:
        reply = await asyncio.wait_for(ASYNC[way](guard, {"max_concurrency": 3}), PATIENCE)
        assert current_limits() == ()
        return reply

    asyncio.run(run())
    assert traffic.peak == 3


def test_without_it_the_calls_of_each_question_are_bounded_as_before() -> None:
    guard, traffic = guard_and_traffic()
    asyncio.run(guard.ainvoke("q"))
    assert traffic.peak == 11
    guard, traffic = guard_and_traffic(max_concurrency=2)
    asyncio.run(guard.abatch(["q"] * 3))
    assert traffic.peak == 6
    guard, traffic = guard_and_traffic(max_concurrency=2)
    asyncio.run(guard.abatch(QUESTIONS, {"max_concurrency": 5}))
    assert 2 < traffic.peak <= 5


def test_a_wider_limit_than_the_default_is_used() -> None:
    model = Busy(default=["a", "b", "c"], seen=Seen())
    guard = Guardrail(model=model, artifact=make_artifact(model, n=30), remember=0)
    asyncio.run(guard.ainvoke("q"))
    assert model.seen.peak == 16
    asyncio.run(guard.ainvoke("q", {"max_concurrency": 25}))
    assert model.seen.peak == 25


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_a_limit_that_is_none_is_refused(n: Any) -> None:
    guard, traffic = guard_and_traffic()
    with pytest.raises(UsageError, match="max_concurrency must be a whole number of at least 1"):
        guard.invoke("q", {"max_concurrency": n})
    assert traffic.calls == 0


# -- guards within guards


class Inside(BaseChatModel):
    """A chat model that asks a guard, as an agent does."""

    guard: Any
    blocking: bool = False
    guardrail_trusted: Any = True

    @property
    def _llm_type(self) -> str:
        return "inside"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.guard.invoke(messages))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.blocking:  # a sync call on the event loop: not nice, but it must end
            return self._generate(messages)
        return ChatResult(generations=[ChatGeneration(message=await self.guard.ainvoke(messages))])


def nested(n: int, **settings: Any) -> tuple[Guardrail, Seen]:
    guard, traffic = guard_and_traffic(n)
    model = Inside(guard=guard, **settings)
    outer = Guardrail(model=model, artifact=make_artifact(model), probe="off", remember=0)
    return outer, traffic


@pytest.mark.parametrize("n", [1, 2])
def test_guards_within_guards_share_the_limit_and_do_not_block_each_other(n: int) -> None:
    guard, traffic = nested(n)
    soon(lambda: guard.batch(["q"] * 2, {"max_concurrency": n}))
    assert traffic.calls == 2 * 11 * 11
    assert traffic.peak <= n
    guard, traffic = nested(n)

    async def run() -> None:
        await asyncio.wait_for(guard.abatch(["q"] * 2, {"max_concurrency": n}), PATIENCE)

    asyncio.run(run())
    assert traffic.calls == 2 * 11 * 11
    assert traffic.peak == n


def test_a_blocking_guard_on_the_event_loop_ends() -> None:
    guard, traffic = nested(2, blocking=True)
    soon(lambda: asyncio.run(guard.abatch(["q"] * 2, {"max_concurrency": 2})))
    assert traffic.calls == 2 * 11 * 11
    assert traffic.peak <= 2  # the loop is held up, so one at a time, each with a limit of its own


def test_a_fallback_is_counted() -> None:
    guard, traffic = guard_and_traffic(2, on_abstain="message")
    counted = guard.model_copy(update={"on_abstain": guard.model})
    soon(lambda: counted.batch(["q"] * 4, {"max_concurrency": 2}))
    assert traffic.calls == 4 * 12
    assert traffic.peak <= 2
    asyncio.run(asyncio.wait_for(counted.abatch(["q"] * 4, {"max_concurrency": 2}), PATIENCE))
    assert traffic.peak == 2


class Untrusted(Busy):
    """An endpoint that is probed before it is believed."""

    guardrail_trusted: ClassVar[bool] = False


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
def test_the_probe_is_counted(n: int, depth: int) -> None:
    def guarded() -> tuple[Guardrail, Seen]:
        model = Untrusted(seen=Seen(), crowd=n + 1)
        guard = Guardrail(model=model, artifact=make_artifact(model))
        inside = Inside(guard=guard)
        outer = Guardrail(model=inside, artifact=make_artifact(inside), probe="off")
        return (outer if depth else guard), model.seen

    guard, traffic = guarded()
    soon(lambda: guard.batch(["q"] * 2, {"max_concurrency": n}))
    assert traffic.calls >= 4 + 2
    assert traffic.peak <= n
    guard, traffic = guarded()

    async def run() -> None:
        await asyncio.wait_for(guard.abatch(["q"] * 2, {"max_concurrency": n}), PATIENCE)

    asyncio.run(run())
    assert traffic.calls >= 4 + 2
    assert traffic.peak <= n


def test_a_probe_that_waits_for_a_slot_keeps_nobody_waiting_who_holds_it() -> None:
    """A guard inside a call (which holds the last slot) and one beside it meet at the same endpoint for the first time.

    If the one beside it announced its probe before it has a slot, the one inside would wait for that probe for ever.
    """
    model = Untrusted(seen=Seen())
    plan = SamplingPlan(n=2)

    def both() -> list[Any]:
        with bounded(1), ThreadPoolExecutor(1) as pool:
            (limit,) = current_limits()
            beside = copy_context()
            with in_flight():
                waiting = pool.submit(beside.run, probe, model, plan)
                while not limit._queue and not _probing(model):
                    time.sleep(0.001)
                inside = probe(model, plan)
            return [inside, waiting.result(PATIENCE)]

    (report, cost), (same, nothing) = soon(both)
    assert report is not None
    assert (cost.calls > 0, nothing.calls, same) == (True, 0, report)


def _probing(model: BaseChatModel) -> bool:
    """Whether some thread probes this model."""
    return any(not turn._free for turn in prober._of(model).turns.values())


def test_a_chat_model_that_judges_is_counted() -> None:
    traffic = Seen()
    answers = [*"abcdefgh"]
    model = Busy(default=answers, seen=traffic, crowd=3)
    judge = ChatJudge(Busy(default=["yes"], seen=traffic, crowd=3))
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    artifact = make_artifact(model).model_copy(update={"estimator": spec})
    guard = Guardrail(model=model, artifact=artifact, using={"judge": judge})
    (message, _) = soon(lambda: guard.batch(["q"] * 2, {"max_concurrency": 2}))
    assert message.response_metadata["guardrail"]["accepted"]
    assert traffic.calls > 2 * (11 + 7)
    assert traffic.peak <= 2


# -- the limit itself


def test_a_call_inside_a_call_waits_for_its_turn_there_and_takes_no_further_slot() -> None:
    with bounded(3), bounded(5), bounded(2):  # the tightest inside counts outside too
        limits = current_limits()
        assert [limit.n for limit in limits] == [2, 3]
        with in_flight(), bounded(5), in_flight(), in_flight():
            assert [limit._free for limit in limits] == [1, 2]
        assert [limit._free for limit in limits] == [2, 3]
    assert current_limits() == ()


def test_slots_survive_cancelled_and_interrupted_waiting() -> None:
    async def run() -> None:
        limit = Limit(1)
        await effects.arun(limit.acquire())
        waiting = [asyncio.create_task(effects.arun(limit.acquire())) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        limit.release()  # to the second, which is cancelled before it learns of it
        waiting[1].cancel()
        await asyncio.wait_for(waiting[2], PATIENCE)
        limit.release()
        assert limit._free == 1
        assert [task.cancelled() for task in waiting] == [True, True, False]

    asyncio.run(run())


def test_slots_go_to_whoever_waited_longest_and_still_waits() -> None:
    limit = Limit(1)
    effects.run(limit.acquire())
    withdrawn, first, second = (limit._turn() for _ in range(3))
    assert withdrawn is not None
    assert first is not None
    assert second is not None
    limit._withdraw(withdrawn)
    limit.release()
    assert [turn.done() for turn in (first, second)] == [True, False]


def test_an_interrupted_thread_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(limits, "Future", Interrupted)
    with bounded(3), bounded(2):
        inner, outer = current_limits()
        for _ in range(3):
            effects.run(outer.acquire())
        with pytest.raises(KeyboardInterrupt), in_flight():
            raise AssertionError("there was no slot")
    assert inner._free == 2  # taken before the wait for the outer one
    outer.release()
    assert outer._free == 1


def test_a_cancelled_task_keeps_no_slot() -> None:
    async def enter() -> None:
        async with ain_flight():
            raise AssertionError("there was no slot")

    async def run() -> None:
        with bounded(3), bounded(2):
            inner, outer = current_limits()
            for _ in range(3):
                effects.run(outer.acquire())
            task = asyncio.create_task(enter())
        await asyncio.sleep(0)
        assert inner._free == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert inner._free == 2

    asyncio.run(run())


def test_a_limit_as_tight_is_shared() -> None:
    with bounded(2):
        around = current_limits()
        with bounded(2):
            assert current_limits() is around


def test_the_limit_is_read_like_langchain_reads_it() -> None:
    assert limit_of(None) is None
    assert limit_of({"max_concurrency": 4}) == 4
    assert limit_of([{"max_concurrency": 4}, {}]) == 4
    assert limit_of([]) is None

    def inner(_: Any) -> Iterator[int | None]:
        yield limit_of(None)

    assert list(RunnableLambda(inner).stream("x", {"max_concurrency": 7})) == [7]


def test_the_field_is_no_limit_of_a_cascade() -> None:
    with pytest.raises(ValidationError, match=r"stage_settings=.*max_concurrency"):
        Cascade([], artifact=cascade_artifact(0.5, 0.5), max_concurrency=2)


def test_results_come_as_they_are_completed_without_keeping_the_limit() -> None:
    guard, _ = guard_and_traffic()
    results = guard.batch_as_completed([[HumanMessage("q")]] * 2, {"max_concurrency": 3})
    next(results)
    assert current_limits() == ()
    assert len(list(results)) == 1
