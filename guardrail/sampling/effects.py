"""Code written once for threads and for event loops: generators that yield slow effects, and the two drivers.

A generator yields an `Effect` wherever it would have to wait, and is sent the result. `run` carries the effects out
in the calling thread, `arun` awaits them. An effect that raises raises inside the generator.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..errors import UsageError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that takes time.

    Attributes:
        run: Carries it out in the calling thread.
        arun: Carries it out without blocking the event loop.
    """

    run: Callable[[], Any]
    arun: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Effect, Any, Result]
"""A computation that yields effects and returns a result."""


def computation(compute: Callable[[], Any], *, slow: bool) -> Effect:
    """A computation; on an event loop it runs in a thread if it may take noticeable time.

    Args:
        compute: What to compute.
        slow: Whether it may take noticeable time.
    """

    async def acompute() -> Any:
        return await asyncio.to_thread(compute) if slow else compute()

    return Effect(compute, acompute)


class AsyncFunctionError(UsageError):
    """A function of the user's is async, and the call that needs it is not."""


def user_call(setting: str, function: Callable[..., Any], *arguments: Any, slow: bool = True) -> Effect:
    """A call of a function of the user's, which may be async.

    Args:
        setting: The setting that gave it, for the error of an async function in a sync call (`AsyncFunctionError`).
        function: The function.
        *arguments: Its arguments.
        slow: Whether it may wait, e.g. for a person or a database; on an event loop it then runs in a thread.
    """

    def call() -> Any:
        result = function(*arguments)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # a coroutine that is never awaited would warn when it is collected
            raise AsyncFunctionError(f"{setting} is async, but the call was sync. Use ainvoke, or a sync function.")
        return result

    async def acall() -> Any:
        from langchain_core.runnables.config import run_in_executor  # slow to import

        if slow and not inspect.iscoroutinefunction(function):
            result = await run_in_executor(None, function, *arguments)
        else:
            result = function(*arguments)
        return await result if inspect.isawaitable(result) else result

    return Effect(call, acall)


def run(steps: Steps[Result]) -> Result:
    """The result of some steps, whose effects are carried out in this thread."""
    resume: Callable[[Any], Effect] = steps.send
    outcome: Any = None
    # The generator is closed here, not when it is collected: its `finally` blocks give back slots and locks. Ctrl-C may
    # arrive between two effects, where no effect raises into the generator.
    with closing(steps):
        while True:
            try:
                effect = resume(outcome)
            except StopIteration as done:
                result: Result = done.value
                return result
            try:
                resume, outcome = steps.send, effect.run()
            except BaseException as error:  # the generator decides which errors it handles
                resume, outcome = steps.throw, error


async def arun(steps: Steps[Result]) -> Result:
    """`run` without blocking the event loop."""
    resume: Callable[[Any], Effect] = steps.send
    outcome: Any = None
    with closing(steps):  # as above
        while True:
            try:
                effect = resume(outcome)
            except StopIteration as done:
                result: Result = done.value
                return result
            try:
                resume, outcome = steps.send, await effect.arun()
            except BaseException as error:
                resume, outcome = steps.throw, error
