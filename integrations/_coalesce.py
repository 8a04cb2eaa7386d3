"""Leader and followers: concurrent threads share one batch, without a background thread and without waiting in vain.

A thread that finds the model idle becomes the leader: it takes waiting work, its own and that of others, runs it as
one batch, and hands the results out. A thread that arrives meanwhile queues up and is served by the next leader. An
idle model thus starts at once (no gathering delay), and a busy one gathers whatever arrives while it works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Coalescer"]

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Ticket(Generic[Work, Result]):
    """One piece of work and what became of it."""

    work: Work
    done: bool = False
    result: Result | None = None
    error: BaseException | None = None


class Coalescer(Generic[Work, Result]):
    """Runs work of many threads in shared batches, one batch at a time.

    Args:
        select: Picks the next batch among waiting work: the indices to run, at least one.
        run: Runs a batch; one result for each piece of work, in order. An exception from it reaches every thread whose
            work was in the batch.
    """

    def __init__(
        self, select: Callable[[Sequence[Work]], Sequence[int]], run: Callable[[Sequence[Work]], Sequence[Result]]
    ) -> None:
        self._select = select
        self._run = run
        self._state = threading.Condition()
        self._busy = False
        self._waiting: list[_Ticket[Work, Result]] = []

    def submit(self, works: Sequence[Work]) -> list[Result]:
        """Run all ``works`` and return their results in order; blocks until they are there."""
        tickets = [_Ticket[Work, Result](work) for work in works]
        with self._state:
            self._waiting.extend(tickets)
        try:
            while not all(ticket.done for ticket in tickets):
                self._lead_or_follow(tickets)
        finally:
            with self._state:
                self._waiting = [ticket for ticket in self._waiting if ticket not in tickets]
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error
        return [ticket.result for ticket in tickets]  # type: ignore[misc]

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the model alone, between batches."""
        with self._state:
            while self._busy:
                self._state.wait()
            self._busy = True
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._state:
            self._busy = False
            self._state.notify_all()

    def _lead_or_follow(self, tickets: Sequence[_Ticket[Work, Result]]) -> None:
        """Run one batch if the model is idle, otherwise wait until something has changed."""
        with self._state:
            if all(ticket.done for ticket in tickets):
                return
            if self._busy:
                self._state.wait()
                return
            self._busy = True
        try:
            self._run_batch(self._take())
        finally:
            self._release()

    def _take(self) -> list[_Ticket[Work, Result]]:
        """Take the next batch out of the waiting work."""
        with self._state:
            chosen = set(self._select([ticket.work for ticket in self._waiting]))
            batch = [ticket for place, ticket in enumerate(self._waiting) if place in chosen]
            self._waiting = [ticket for place, ticket in enumerate(self._waiting) if place not in chosen]
            return batch

    def _run_batch(self, batch: list[_Ticket[Work, Result]]) -> None:
        """Run a batch and mark its tickets. If the leader itself is interrupted, the others' work goes back in line."""
        try:
            results = self._run([ticket.work for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result, ticket.done = result, True
        except Exception as error:
            for ticket in batch:
                ticket.error, ticket.done = error, True
        except BaseException:
            with self._state:
                self._waiting = batch + self._waiting
            raise
