"""Code written once for threads and for event loops: generators that yield slow effects, and the two drivers.

A generator yields an `Effect` wherever it would have to wait, and is sent the result. `run` carries the effects out
in the calling thread, `arun` awaits them. An effect that raises raises inside the generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

__all__ = ["Effect", "Steps", "arun", "computation", "run"]

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
