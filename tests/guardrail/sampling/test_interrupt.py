"""Ctrl-C: no further call begins, and the caller gets it at once; and calls while the interpreter ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from typing import Any

import pytest

from guardrail import Guardrail
from guardrail.sampling.effects import Effect, arun, run
from guardrail.testing import ScriptedChat, make_artifact

PATIENCE = 30


class Interrupted(ScriptedChat):
    """Its fourth call is interrupted."""

    numbers: Any

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if next(self.numbers) == 3:
            raise KeyboardInterrupt
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_no_further_call_begins() -> None:
    model = Interrupted(default=[*"abcdefghijk"], numbers=itertools.count())
    guard = Guardrail(model=model, artifact=make_artifact(model), max_concurrency=1, on_abstain="raise")
    with pytest.raises(KeyboardInterrupt):
        guard.invoke("q")
    assert next(model.numbers) == 4
    assert guard.model_copy(update={"on_abstain": "message"}).invoke("q").content  # the guard can be asked again


class Waiting(ScriptedChat):
    """The first two calls wait; once both have begun, one of them presses Ctrl-C."""

    begun: Any
    release: Any

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        number = next(self.begun)
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if number < 2:
            self.release.wait(PATIENCE)
        return super()._generate(messages, stop, run_manager, **kwargs)


@pytest.mark.parametrize("config", [{}, {"max_concurrency": 2}])
def test_a_signal_reaches_a_caller_whose_calls_are_under_way(config: Any) -> None:
    assert threading.current_thread() is threading.main_thread()
    model = Waiting(begun=itertools.count(), release=threading.Event())
    guard = Guardrail(model=model, artifact=make_artifact(model), max_concurrency=2)
    try:
        with pytest.raises(KeyboardInterrupt):
            guard.invoke("q", config)
        assert not model.release.is_set()  # raised while both calls are still under way
    finally:
        model.release.set()
    for thread in threading.enumerate():  # the two threads end without another call
        if thread.name.startswith("guardrail_"):  # of the pool of calls; others last as long as the process
            thread.join(PATIENCE)
    assert next(model.begun) == 2


class InterruptedSteps(Generator[Effect, Any, None]):
    """Steps that Ctrl-C keeps from going on: it arrives between their effect and its result."""

    def __init__(self, steps: Generator[Effect, Any, None]) -> None:
        self._steps = steps

    def send(self, given: Any) -> Effect:
        if given is not None:
            raise KeyboardInterrupt
        return self._steps.send(None)

    def throw(self, *error: Any) -> Effect:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_are_closed_before_the_caller_gets_it(asynchronous: bool) -> None:
    closed = []

    async def answer() -> int:
        return 1

    def steps() -> Generator[Effect, Any, None]:
        try:
            yield Effect(lambda: 1, answer)
        finally:
            closed.append(True)

    interrupted = InterruptedSteps(steps())
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(arun(interrupted)) if asynchronous else run(interrupted)
    assert closed


LAST = """
import threading, time
from guardrail import Guardrail
from guardrail.testing import ScriptedChat, make_artifact

model = ScriptedChat(default=["an answer"])
guard = Guardrail(model=model, artifact=make_artifact(model))

def ask():
    threading.main_thread().join()
    print(guard.invoke("q").content)

threading.Thread(target=ask).start()
"""


def test_a_thread_that_outlives_the_main_one_gets_its_answers() -> None:
    """The interpreter waits for the thread, but gives a pool no further threads."""
    process = subprocess.run([sys.executable, "-c", LAST], capture_output=True, text=True, timeout=PATIENCE * 4)
    assert process.stdout == "an answer\n", process.stderr
