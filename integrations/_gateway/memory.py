"""Requests in flight and their results: an identical request that a client repeats is never drawn again.

A client whose connection breaks, or that waited too long, sends the same request again by itself. Uncertain questions
take longest, so drawing them again would select among their draws, and the promised error rate would not hold.
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
    from guardrail.review.queue.expiring_keys import ExpiringKeys

__all__ = ["FullError", "InFlight", "Shared", "Work"]

LEASE = 30.0
"""Seconds for which a process holds a request. A living process renews its lease; that of a killed process ends."""
PAUSE = 0.1
"""Seconds between two looks at a request that another process is answering."""
log = logging.getLogger("guardrail")


class Result(Protocol):
    """A result that can be remembered."""

    @property
    def settled(self) -> bool:
        """Whether an identical request gets this result again."""


T = TypeVar("T", bound=Result)
Start = Callable[[], Coroutine[Any, Any, T]]


class FullError(Exception):
    """No further result can be remembered, so no further question may be measured.

    Attributes:
        seconds: Seconds until the oldest result makes room.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(eq=False)
class Work(Generic[T]):
    """One request that is being answered.

    Attributes:
        task: Answers the request; clients wait for it, and it does not end with them.
        clients: Number of clients that wait for it.
        stored: Whether its result is in the database that all processes share.
        run: Id among all processes.
    """

    task: asyncio.Task[T] = field(init=False)
    clients: int = 0
    stored: bool = False
    run: str = field(default_factory=lambda: uuid4().hex)


class InFlight(Generic[T]):
    """Work by request, and results until their time is over: no result is forgotten earlier because of load.

    Args:
        seconds: Seconds for which a result is remembered.
        most: Bytes of results that this process remembers; results in ``shared`` do not count.
        dump: Writes a result as JSON.
        load: Reads it.
        shared: Work of all processes on a database; None for one process.
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
        """The work for a request: that of an identical request, or new work. The caller is one of its clients.

        A request that says that it is a repetition joins the running work or gets its result. Any other request joins
        only work whose clients have left: two clients that ask the same at the same time are two questions.

        Args:
            key: Key that only equal requests share.
            start: Begins the work.
            repeated: Whether the client says that it asks again.

        Raises:
            FullError: The result could not be remembered. Nothing was begun.
        """
        now, work = self._clock(), self._current.get(key)
        while self._known and (oldest := next(iter(self._known.items())))[1][0] <= now:
            self._forget(oldest[0])
        if work is None or work.task.cancelling() or not (repeated or not work.clients):  # nothing to join
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
        """Count a client off that has its reply or is gone; with ``cancel``, stop work that nobody waits for."""
        work.clients -= 1
        if work.clients or work.task.done():
            return
        if cancel:
            work.task.cancel()
        elif self._shared is not None:
            self._shared.left(work.run)


class Shared(Generic[T]):
    """Work and results of all processes on a database, by request.

    The value of an expiring key is the run that answers the request, and later its result.

    Args:
        keys: The keys of the database.
        seconds: Seconds for which a result is remembered.
        dump: Writes a result as JSON.
        load: Reads it.
    """

    def __init__(
        self, keys: ExpiringKeys, seconds: float, dump: Callable[[T], bytes], load: Callable[[str | bytes], T]
    ) -> None:
        self._keys, self._seconds, self._dump, self._load = keys, seconds, dump, load
        self._leaving: set[asyncio.Task[object]] = set()

    async def answer(self, key: str, start: Start[T], work: Work[T], *, repeated: bool) -> T:
        """`InFlight.get` for the requests of all processes.

        Raises:
            StoreUnavailableError: The database cannot say whether the request is a repetition. Nothing was begun.
        """
        name, mine = f"gateway:{key}", json.dumps({"run": work.run})
        while (stored := await asyncio.to_thread(self._keys.add, name, mine, LEASE)) is not None:
            entry = json.loads(stored)
            if repeated and "result" in entry:
                work.stored = True
                return self._load(entry["result"])
            if "run" in entry and (repeated or await asyncio.to_thread(self._keys.get, _left(entry["run"])) == ""):
                repeated = True  # it has joined that run, and gets its result
                while await asyncio.to_thread(self._keys.get, name) == stored:
                    await asyncio.sleep(PAUSE)
            elif await asyncio.to_thread(self._keys.replace, name, stored, mine, LEASE):
                break  # another question with the same text
        task = asyncio.ensure_future(start())
        try:
            while not (await asyncio.wait({task}, timeout=LEASE / 3))[0]:
                await self._note(self._keys.replace, name, mine, mine, LEASE)
            result = task.result()
        except BaseException:  # stopped without a result: a repetition starts anew
            task.cancel()
            await self._note(self._keys.remove, name, mine)
            raise
        if result.settled:
            value = json.dumps({"result": self._dump(result).decode()})
            work.stored = bool(await self._note(self._keys.replace, name, mine, value, self._seconds))
        else:
            await self._note(self._keys.remove, name, mine)
        return result

    def left(self, run: str) -> None:
        """Note that the last client of a run is gone, so that an identical request joins the run."""
        note = self._note(self._keys.add, _left(run), "", self._seconds)
        task = asyncio.get_running_loop().create_task(note)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _note(self, change: Callable[..., object], *arguments: Any) -> object:
        """Change a key. If the database fails, the answer stands, and only this process recognises a repetition."""
        try:
            return await asyncio.to_thread(change, *arguments)
        except GuardrailError as error:
            log.warning("guardrail serve: a verdict could not be shared: %s", error)
            return None


def _left(run: str) -> str:
    return f"gateway-left:{run}"
