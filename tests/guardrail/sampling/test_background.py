"""Async code for sync callers: one event loop in a thread, with the caller's context, also after a fork."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextvars import ContextVar

import pytest

from guardrail.sampling.background import BackgroundLoop

who: ContextVar[str] = ContextVar("who", default="nobody")


async def thread_and_context() -> tuple[str, str]:
    await asyncio.sleep(0)
    return threading.current_thread().name, who.get()


def test_calls_share_one_thread_and_see_the_context_of_their_caller() -> None:
    loop = BackgroundLoop("test-shared")
    token = who.set("me")
    try:
        assert loop.run(thread_and_context()) == ("test-shared", "me")
    finally:
        who.reset(token)
    assert loop.run(thread_and_context()) == ("test-shared", "nobody")
    assert [thread.name for thread in threading.enumerate()].count("test-shared") == 1


def test_a_sync_call_inside_a_running_event_loop() -> None:
    loop = BackgroundLoop("test-inside")

    async def asks() -> tuple[str, str]:
        return loop.run(thread_and_context())

    assert asyncio.run(asks()) == ("test-inside", "nobody")


def test_a_call_from_its_own_thread_is_an_error_instead_of_a_deadlock() -> None:
    loop = BackgroundLoop("test-own")

    async def nested() -> None:
        waiting = thread_and_context()
        try:
            with pytest.raises(RuntimeError, match="event loop thread"):
                loop.run(waiting)
        finally:
            waiting.close()

    loop.run(nested())


def test_an_iterator_that_is_left_early_closes_its_generator() -> None:
    loop, closed = BackgroundLoop("test-iterate"), threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                yield number
                await asyncio.sleep(0)
        finally:
            closed.set()

    assert list(loop.iterate(numbers())) == list(range(10))
    closed.clear()
    for number in loop.iterate(numbers()):
        if number == 2:
            break
    assert closed.wait(10)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_a_thread_for_itself() -> None:
    loop = BackgroundLoop("test-fork")
    loop.run(thread_and_context())
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            os._exit(0 if loop.run(thread_and_context())[0] == "test-fork" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run(thread_and_context())[0] == "test-fork"
