"""Threads share batches: nobody's error is another's, an interrupted call takes its work away."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from guardrail.types import SamplingPlan
from integrations._local.decoding import Decoder, Row
from integrations._local.engine import DecodingRequest, Engine, Response
from tests.integrations.conftest import tiny_chat
from tests.integrations.local.test_draw_samples import texts

PLAN = SamplingPlan(n=3, temperature=1.2, max_tokens=6)


@contextmanager
def holding(engine: Engine) -> Iterator[None]:
    """Keep the model busy, so that requests wait."""
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert release.wait(60)

    engine._model_thread.submit(hold)
    assert entered.wait(60)
    try:
        yield
    finally:
        release.set()


def wait_until_queued(engine: Engine, count: int) -> None:
    """Block until ``count`` requests wait (polling a condition, not a delay)."""
    ticker = threading.Event()
    for _ in range(30_000):
        if len(engine._waiting) >= count:
            return
        ticker.wait(0.001)
    raise AssertionError(f"{len(engine._waiting)} requests wait, not {count}")


def request(length: int, tokens: int = 1) -> DecodingRequest:
    return DecodingRequest(tuple(range(3, 3 + length)), (Row(tokens),))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of prompts in each batch."""
    sizes: list[int] = []

    class Counted(Decoder):
        def __init__(self, model: Any, prompts: Any, *rest: Any, **settings: Any) -> None:
            sizes.append(len(prompts))
            super().__init__(model, prompts, *rest, **settings)

    monkeypatch.setattr("integrations._local.engine.Decoder", Counted)
    return sizes


def test_concurrent_draws_share_a_batch_and_equal_sequential_ones(batches: list[int]) -> None:
    """Sixteen threads behind a busy model read their prompts at once, not one after the other."""
    chat = tiny_chat()
    prompts = [[HumanMessage(f"question {'x' * place}")] for place in range(16)]
    expected = [texts(chat.draw_samples([p], PLAN, seeds=[i])[0]) for i, p in enumerate(prompts)]
    batches.clear()
    with ThreadPoolExecutor(16) as pool:
        with holding(chat._engine):
            futures = [pool.submit(chat.draw_samples, [p], PLAN, seeds=[i]) for i, p in enumerate(prompts)]
            wait_until_queued(chat._engine, 16)
        drawn = [texts(future.result(60)[0]) for future in futures]
    assert batches == [16]
    assert drawn == expected


def test_an_error_reaches_its_batch_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the model serves on."""
    engine = tiny_chat()._engine
    run = engine._run_together

    def failing(requests: Sequence[DecodingRequest]) -> list[Response]:
        if any(len(request.prompt) == 13 for request in requests):
            raise RuntimeError("13")
        return run(requests)

    monkeypatch.setattr(engine, "_run_together", failing)
    monkeypatch.setattr(engine, "select", lambda waiting: [0])  # one request in a batch
    with ThreadPoolExecutor(2) as pool:
        with holding(engine):
            bad = pool.submit(engine.submit, [request(13)])
            wait_until_queued(engine, 1)
            good = pool.submit(engine.submit, [request(4)])
            wait_until_queued(engine, 2)
        with pytest.raises(RuntimeError, match="13"):
            bad.result(60)
        assert good.result(60)[0].failure is None
    assert engine.submit([request(5)])[0].failure is None


def test_an_error_while_a_batch_is_chosen_reaches_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their callers would otherwise wait for ever, and so would those of every later request."""
    engine = tiny_chat()._engine
    futures = [Future[Response](), Future[Response]()]
    engine._waiting = [(request(4), future) for future in futures]
    with monkeypatch.context() as patched:
        patched.setattr("integrations._local.engine.batch_tokens", lambda requests: 1 // 0)
        engine.alone(engine._turn)
    assert [type(future.exception(timeout=0)) for future in futures] == [ZeroDivisionError] * 2
    assert engine.submit([request(5)])[0].failure is None


def test_requests_left_over_stay_in_front_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest request is in every batch, so one that lost its place could wait for ever on a busy server."""
    engine = tiny_chat()._engine
    oldest, left, late = ((request(length), Future[Response]()) for length in (4, 5, 6))
    engine._waiting = [oldest, left]

    def select_while_another_arrives(waiting: Sequence[DecodingRequest]) -> list[int]:
        engine._waiting.append(late)
        return [0]

    monkeypatch.setattr(engine, "select", select_while_another_arrives)
    engine.alone(engine._turn)
    assert oldest[1].result(timeout=0).failure is None
    assert engine._waiting == [left, late]


def test_an_interrupted_call_takes_its_requests_away(monkeypatch: pytest.MonkeyPatch, batches: list[int]) -> None:
    """Ctrl-C while the model is busy: nobody would read the answers."""
    engine = tiny_chat()._engine
    waits = Future.result

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return waits(self, timeout)

    with holding(engine):
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.submit([request(4, 50)])
        monkeypatch.undo()
    assert engine.alone(lambda: 1) == 1
    assert engine._waiting == []
    assert batches == []


def test_the_token_budget_splits_batches(batches: list[int]) -> None:
    """4 rows of at most 21 + 6 tokens are 108: a budget of 220 takes two requests, however many are waiting."""
    chat = tiny_chat(max_batch_tokens=220)
    batches.clear()
    prompts = [[HumanMessage("x" * 18)] for _ in range(5)]
    assert len(chat.draw_samples(prompts, PLAN, seeds=range(5))) == 5
    assert batches == [2, 2, 1]


def test_neighbours_in_length_share_a_batch() -> None:
    """To save padding, the oldest request shares its batch with requests of its length, not with the next in line."""
    engine = tiny_chat(max_batch_tokens=500)._engine
    waiting = [request(length, 5) for length in (100, 10, 99, 11, 101, 100)]
    assert sorted(engine.select(waiting)) == [0, 2, 4, 5]
