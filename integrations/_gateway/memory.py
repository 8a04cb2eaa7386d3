"""Requests that are being answered, or were: an identical one that a client repeats is never drawn again.

A client whose connection breaks, or that waited too long, sends the same request again by itself. Uncertain questions
take longest, so drawing again would select: the error rate among answers would be what the retries make of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import uuid4

from guardrail.errors import GuardrailError

if TYPE_CHECKING:
    from guardrail.review.queue.marks import ExpiringKeys

__all__ = ["FullError", "InFlight", "Shared", "Work"]

LEASE = 30.0
"""Seconds after which a request is free again whose process was killed. A process that lives renews them."""
PAUSE = 0.1
"""Seconds between two looks at what another process is answering."""
log = logging.getLogger("guardrail")


class Result(Protocol):
    """What is remembered."""

    @property
    def settled(self) -> bool:
        """Whether an identical request gets it again."""


T = TypeVar("T", bound=Result)
Start = Callable[[], Coroutine[Any, Any, T]]


class FullError(Exception):
    """No further result can be remembered, so no further question may be measured.

    Attributes:
        seconds: When the oldest result makes room.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class Work(Generic[T]):
    """One request that is being answered.

    Attributes:
        task: Answers it; clients wait for it, and it does not end with them.
        clients: Clients that wait for it.
        stored: Whether its result is in the database that all processes share.
        run: Names it among all processes.
    """

    task: asyncio.Task[T] = field(init=False)
    clients: int = 0
    stored: bool = False
    run: str = field(default_factory=lambda: uuid4().hex)


class InFlight(Generic[T]):
    """Work by request, and results for their time: none is forgotten earlier because of load.

    Args:
        seconds: How long a result is remembered.
        most: Bytes of results that this process remembers; what is in ``shared`` does not count.
        dump: Spells a result as JSON.
        load: Reads it.
        shared: What all processes answer; None for one process.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        seconds: float,
        most: int,
        dump: Callable[[T], bytes],
        load: Callable[[str | bytes], T],
        shared: Shared[T] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._most, self._dump, self._load = seconds, most, dump, load
        self._shared, self._clock = shared, clock
        self._current: dict[str, Work[T]] = {}
        self._known: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # in the order in which they end
        self._size = 0
        self.running: set[asyncio.Task[T]] = set()

    def get(self, key: str, start: Start[T], *, repeated: bool) -> Work[T]:
        """The work for a request: what is known of an identical one, or new. The caller is one of its clients.

        A request that says that it is a repetition joins or gets the result. Any other joins only what runs on after
        its client has gone: two clients that ask the same at once are two questions.

        Args:
            key: Of equal requests.
            start: Begins the work.
            repeated: Whether the client says that it asks again.

        Raises:
            FullError: The result could not be remembered. Nothing was begun.
        """
        now, work = self._clock(), self._current.get(key)
        while self._known and (oldest := next(iter(self._known.items())))[1][0] <= now:
            self._forget(oldest[0])
        if work is None or work.task.cancelling() or not (repeated or not work.clients):
            work = Work()
            create_task = asyncio.get_running_loop().create_task
            if repeated and key in self._known:
                work.task = create_task(self._again(self._known[key][1]))
            else:
                if self._size >= self._most:
                    raise FullError(next(iter(self._known.values()))[0] - now)
                self._forget(key)
                self._current[key] = work
                begun = start() if self._shared is None else self._shared.answer(key, start, work, repeated=repeated)
                work.task = create_task(begun)
                self.running.add(work.task)
                work.task.add_done_callback(partial(self._ended, key, work))
        work.clients += 1
        return work

    async def _again(self, packed: bytes) -> T:
        return self._load(zlib.decompress(packed))

    def _forget(self, key: str) -> None:
        if key in self._known:
            self._size -= len(self._known.pop(key)[1])

    def _ended(self, key: str, work: Work[T], task: asyncio.Task[T]) -> None:
        self.running.discard(task)
        settled = not task.cancelled() and task.exception() is None and task.result().settled
        if self._current.get(key) is not work:
            return  # another question with the same text
        del self._current[key]
        if settled and not work.stored and self._seconds > 0:
            packed = zlib.compress(self._dump(task.result()), 1)
            self._known[key] = (self._clock() + self._seconds, packed)
            self._size += len(packed)

    def leave(self, work: Work[T], *, cancel: bool) -> None:
        """A client has its reply, or is gone; with ``cancel`` nothing is finished that nobody waits for."""
        work.clients -= 1
        if work.clients or work.task.done():
            return
        if cancel:
            work.task.cancel()
        elif self._shared is not None:
            self._shared.left(work.run)


class Shared(Generic[T]):
    """What all processes on a database are answering and have answered, by request.

    A mark of the database holds the run that answers a request, then its result.

    Args:
        marks: The database.
        seconds: How long a result is remembered.
        dump: Spells a result as JSON.
        load: Reads it.
    """

    def __init__(
        self, marks: ExpiringKeys, seconds: float, dump: Callable[[T], bytes], load: Callable[[str | bytes], T]
    ) -> None:
        self._marks, self._seconds, self._dump, self._load = marks, seconds, dump, load
        self._leaving: set[asyncio.Task[object]] = set()

    async def answer(self, key: str, start: Start[T], work: Work[T], *, repeated: bool) -> T:
        """As `InFlight.get`, for the requests of all processes.

        Raises:
            StoreUnavailableError: The database cannot say whether the request is a repetition. Nothing was begun.
        """
        name, mine = f"gateway:{key}", json.dumps({"run": work.run})
        while (found := await asyncio.to_thread(self._marks.add, name, mine, LEASE)) is not None:
            known = json.loads(found)
            if repeated and "result" in known:
                work.stored = True
                return self._load(known["result"])
            if "run" in known and (repeated or await asyncio.to_thread(self._marks.get, _left(known["run"])) == ""):
                repeated = True  # it has joined, and gets that result
                while await asyncio.to_thread(self._marks.get, name) == found:
                    await asyncio.sleep(PAUSE)
            elif await asyncio.to_thread(self._marks.replace, name, found, mine, LEASE):
                break  # another question with the same text
        task = asyncio.ensure_future(start())
        try:
            while not (await asyncio.wait({task}, timeout=LEASE / 3))[0]:
                await self._note(self._marks.replace, name, mine, mine, LEASE)
            result = task.result()
        except BaseException:  # it was stopped: somebody may ask again
            task.cancel()
            await self._note(self._marks.remove, name, mine)
            raise
        if result.settled:
            kept = json.dumps({"result": self._dump(result).decode()})
            work.stored = bool(await self._note(self._marks.replace, name, mine, kept, self._seconds))
        else:
            await self._note(self._marks.remove, name, mine)
        return result

    def left(self, run: str) -> None:
        """The last client of a run is gone: an identical request joins it."""
        note = self._note(self._marks.add, _left(run), "", self._seconds)
        task = asyncio.get_running_loop().create_task(note)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _note(self, change: Callable[..., object], *given: Any) -> object:
        """Change a mark. If the database fails, the answer is right, and this process alone recognises a repetition."""
        try:
            return await asyncio.to_thread(change, *given)
        except GuardrailError as error:
            log.warning("guardrail serve: a verdict could not be shared: %s", error)
            return None


def _left(run: str) -> str:
    return f"gateway-left:{run}"
