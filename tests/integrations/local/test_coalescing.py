"""Threads share batches: nothing waits on a timer, nobody's error is another's, nothing is lost on an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from guardrail.errors import PromptTooLongError
from guardrail.types import SamplingPlan
from integrations._local.decoding import Row, prefill
from integrations._local.engine import BatchQueue, DecodingRequest
from tests.integrations.conftest import tiny_chat
from tests.integrations.local.test_draw_samples import texts

PLAN = SamplingPlan(n=3, temperature=1.2, max_tokens=6)


class Gate:
    """A batch runner that holds its first batch until it is told to go on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, works: Sequence[int]) -> list[int]:
        self.batches.append(list(works))
        if len(self.batches) == 1:
            self.entered.set()
            assert self.go.wait(30)
        if 13 in works:
            raise ValueError("13")
        return [work * 10 for work in works]


def wait_until_queued(queue: BatchQueue[Any, Any], count: int) -> None:
    """Block until ``count`` pieces of work wait (polling a condition, not a delay)."""
    with queue._state:
        while len(queue._waiting) < count:
            queue._state.wait(0.001)


def in_threads(pool: ThreadPoolExecutor, queue: BatchQueue[int, int], gate: Gate, works: list[list[int]]) -> Any:
    first = pool.submit(queue.submit, [0])
    assert gate.entered.wait(30)
    others = [pool.submit(queue.submit, work) for work in works]
    wait_until_queued(queue, sum(map(len, works)))
    gate.go.set()
    return first, others


def test_what_arrives_while_the_model_works_becomes_one_batch() -> None:
    gate = Gate()
    queue = BatchQueue[int, int](lambda waiting: range(len(waiting)), gate)
    with ThreadPoolExecutor(8) as pool:
        first, others = in_threads(pool, queue, gate, [[1], [2, 3], [4]])
        assert first.result(30) == [0]
        assert sorted(other.result(30) for other in others) == [[10], [20, 30], [40]]
    assert [sorted(batch) for batch in gate.batches] == [[0], [1, 2, 3, 4]]


def test_an_error_reaches_its_batch_and_nobody_else() -> None:
    gate = Gate()
    queue = BatchQueue[int, int](lambda waiting: [0], gate)  # one piece of work in a batch
    with ThreadPoolExecutor(8) as pool:
        _, (bad, good) = in_threads(pool, queue, gate, [[13], [2]])
        with pytest.raises(ValueError, match="13"):
            bad.result(30)
        assert good.result(30) == [20]
    assert queue.submit([5]) == [50]


def test_an_interrupted_leader_leaves_the_work_of_others_in_line() -> None:
    """Two threads in one batch; whichever leads is interrupted, and the other one still gets its result."""
    calls: list[list[int]] = []

    def run(works: Sequence[int]) -> list[int]:
        calls.append(sorted(works))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [work * 10 for work in works]

    queue = BatchQueue[int, int](lambda waiting: range(len(waiting)), run)
    with ThreadPoolExecutor(2) as pool:
        with queue.exclusive():
            futures = [pool.submit(queue.submit, [work]) for work in (1, 2)]
            wait_until_queued(queue, 2)
        errors = [future.exception(30) for future in futures]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", "NoneType"]
    served = next(place for place, error in enumerate(errors) if error is None)
    assert futures[served].result() == [10 * (served + 1)]
    assert calls == [[1, 2], [served + 1]]
    assert queue._waiting == []


def test_exclusive_use_waits_for_the_batch_and_blocks_the_next() -> None:
    gate = Gate()
    queue = BatchQueue[int, int](lambda waiting: range(len(waiting)), gate)
    order: list[str] = []

    def alone() -> None:
        with queue.exclusive():
            order.append(f"alone after {len(gate.batches)}")

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(queue.submit, [0])
        assert gate.entered.wait(30)
        single = pool.submit(alone)
        assert not single.done()
        gate.go.set()
        first.result(30)
        single.result(30)
    assert order == ["alone after 1"]
    with queue.exclusive(), ThreadPoolExecutor(1) as pool:
        later = pool.submit(queue.submit, [1])
        wait_until_queued(queue, 1)
        assert not later.done()
        queue._release()  # what leaving the block would do; the pool's exit waits for the thread
        assert later.result(30) == [10]


def test_concurrent_draws_share_prefills_and_equal_sequential_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads behind a held model: two prefills, not sixteen; the results are those of one at a time."""
    chat = tiny_chat()
    prompts = [[HumanMessage(f"question {'x' * place}")] for place in range(16)]
    expected = [texts(chat.draw_samples([p], PLAN, seeds=[i])[0]) for i, p in enumerate(prompts)]
    batches: list[int] = []

    def counted(model: Any, ids: Any) -> Any:
        batches.append(len(ids))
        return prefill(model, ids)

    monkeypatch.setattr("integrations._local.engine.prefill", counted)
    turns = chat._engine.turns
    with ThreadPoolExecutor(16) as pool:
        with turns.exclusive():
            futures = [pool.submit(chat.draw_samples, [p], PLAN, seeds=[i]) for i, p in enumerate(prompts)]
            with turns._state:
                while len(turns._waiting) < 16:
                    turns._state.wait(0.001)
        drawn = [texts(future.result(60)[0]) for future in futures]
    assert batches == [16]
    assert drawn == expected


def test_the_token_budget_splits_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 rows of at most 21 + 6 tokens are 108: a budget of 220 takes two requests, however many are waiting."""
    chat = tiny_chat(max_batch_tokens=220)
    batches: list[int] = []

    def counted(model: Any, ids: Any) -> Any:
        batches.append(len(ids))
        return prefill(model, ids)

    monkeypatch.setattr("integrations._local.engine.prefill", counted)
    prompts = [[HumanMessage("x" * 18)] for _ in range(5)]
    assert len(chat.draw_samples(prompts, PLAN, seeds=range(5))) == 5
    assert batches == [2, 2, 1]


def test_neighbours_in_length_share_a_batch() -> None:
    """To save padding, the oldest request shares its batch with requests of its length, not with the next in line."""
    engine = tiny_chat(max_batch_tokens=500)._engine
    rows = (Row(5),)
    waiting = [DecodingRequest(tuple(range(length)), rows) for length in (100, 10, 99, 11, 101, 100)]
    assert sorted(engine.select(waiting)) == [0, 2, 4, 5]


def test_a_prompt_that_is_too_long_fails_alone() -> None:
    chat = tiny_chat()
    with ThreadPoolExecutor(4) as pool:
        with chat._engine.turns.exclusive():
            good = [pool.submit(chat.draw_samples, [[HumanMessage("fine")]], PLAN, seeds=[i]) for i in range(3)]
            with pytest.raises(PromptTooLongError):
                chat.draw_samples([[HumanMessage("x" * 400)]], PLAN, seeds=[0])
        assert [len(future.result(60)[0].samples) for future in good] == [3, 3, 3]


def test_batch_of_plain_calls_from_threads() -> None:
    chat = tiny_chat(max_tokens=8)
    prompts: list[Any] = [f"number {place}" for place in range(12)]
    alone = [chat.invoke(prompt).content for prompt in prompts]
    assert [m.content for m in chat.batch(prompts, config={"max_concurrency": 12})] == alone
