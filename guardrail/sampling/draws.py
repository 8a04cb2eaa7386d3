"""Everything that was drawn for a prompt in the last minutes: another attempt continues the draw and selects nothing.

An attempt that fails, is cancelled or runs out of time leaves its answers here, piece by piece. The next attempt takes
them and asks for the missing ones only. If it drew everything again, draws that need fewer calls (samples that agree,
under an adaptive plan) would survive more often than others, and the error rate among answers would be what the
failures make of it.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ..errors import GuardrailError
from ..plain_json import sha256_hex, spelled
from ..types import Cost, SampleSet
from .effects import Steps, computation
from .limits import new_lock

__all__ = ["MOST_BYTES", "NOTHING", "REMEMBERED", "Draw", "Draws", "SharedKeys"]

REMEMBERED = 300.0
"""Seconds for which a draw and its verdict are remembered."""
MOST_BYTES = 64 * 2**20
"""Bytes that a process remembers; the oldest pieces make room."""
FORMAT = "draw1"
"""Version of the stored pieces, part of every name: no version reads the pieces of another one."""
log = logging.getLogger("guardrail")


class SharedKeys(Protocol):
    """Keys that several processes share, such as `guardrail.review.queue.expiring_keys.ExpiringKeys`."""

    def get(self, name: str) -> str | None:
        """The value of a key that has not ended, or None."""

    def add(self, name: str, value: str, seconds: float) -> str | None:
        """Add a key for so many seconds. A key that exists already stays, and its value is returned."""

    def replace(self, name: str, before: str, value: str, seconds: float) -> bool:
        """Give a key another value and end, if its value is still ``before``. Returns whether it was."""


class Draws:
    """A memory of draws and verdicts, shared by threads, tasks and the guards that it is given to.

    The first value under a name stays until its time is over: attempts that run side by side end with the same draw. A
    deep copy remembers nothing.

    Args:
        seconds: Lifetime of each piece; 0 remembers nothing.
        most_bytes: Bytes that this process remembers; beyond them the oldest pieces go, and `evicted` counts them.
        shared: Keys that other processes share; None for this process alone.
        report: Called after each write to the shared keys, with its error or None; default: errors are logged.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        seconds: float = REMEMBERED,
        *,
        most_bytes: int = MOST_BYTES,
        shared: SharedKeys | None = None,
        report: Callable[[GuardrailError | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report or _log
        self.seconds, self._most_bytes, self._shared, self._clock = seconds, most_bytes, shared, clock
        self._scope = ""
        self._own = _Pieces()

    def __deepcopy__(self, memo: dict[int, Any]) -> Draws:
        kept: dict[str, Any] = {"shared": self._shared, "report": self._report, "clock": self._clock}
        return Draws(self.seconds, most_bytes=self._most_bytes, **kept)

    def scoped(self, scope: str) -> Draws:
        """The same memory for other callers, e.g. those with another credential: no piece is in two scopes."""
        scoped = copy.copy(self)
        scoped._scope = f"{self._scope}{scope}:"
        return scoped

    @property
    def evicted(self) -> int:
        """Pieces that made room before their time was over."""
        return self._own.evicted

    @property
    def is_slow(self) -> bool:
        """Whether a look may wait for a database."""
        return self._shared is not None

    def get(self, name: str) -> str | None:
        """The value under a name, or None.

        Raises:
            GuardrailError: The other processes' memory cannot be read, so it is unknown whether to draw.
        """
        if self.seconds <= 0:
            return None
        name = self._key(name)
        value = self._own.get(name, self._clock())
        return self._shared.get(name) if value is None and self._shared is not None else value

    def add(self, name: str, value: str) -> str:
        """Remember a value, and return the value under this name: the first one stays."""
        if self.seconds <= 0:
            return value
        name = self._key(name)
        if self._shared is not None:
            try:
                value = self._shared.add(name, value, self.seconds) or value
                self._report(None)
            except GuardrailError as error:  # the draw stands, and only this process can continue it
                self._report(error)
        now = self._clock()
        return self._own.add(name, value, now, now + self.seconds, self._most_bytes)

    def change(self, name: str, change: Callable[[str | None], str | None], *, unless: str = "") -> None:
        """Give a name another value, for the whole lifetime again. Changes by several processes do not mix.

        Where the other processes' memory fails, the value stays as it is, and the error is reported as that of `add`.

        Args:
            name: A name to which nothing is added in another way.
            change: The new value for the present one; None for no change.
            unless: Nothing changes if this name has a value; "" for no such name.
        """
        if self.seconds <= 0:
            return
        try:
            if unless and self.get(unless) is not None:
                return
            name = self._key(name)
            if self._shared is None:
                now = self._clock()
                self._own.change(name, change, now, now + self.seconds, self._most_bytes)
                return
            while not self._changed(self._shared, name, change):
                pass
            self._report(None)
        except GuardrailError as error:
            self._report(error)

    def _changed(self, shared: SharedKeys, name: str, change: Callable[[str | None], str | None]) -> bool:
        """Change a shared value; False if another process has changed it meanwhile."""
        before = shared.get(name)
        after = change(before)
        if after is None:
            return True
        if before is None:
            return shared.add(name, after, self.seconds) is None
        return shared.replace(name, before, after, self.seconds)

    def _key(self, name: str) -> str:
        # A digest, because names of databases have a limit and those of pieces do not.
        return f"{FORMAT}:{sha256_hex(f'{self._scope}{name}'.encode())}"


def _log(error: GuardrailError | None) -> None:
    if error is not None:
        log.warning("guardrail: a draw could not be shared: %s", error)


class _Pieces:
    """The pieces of one process, in the order in which they end."""

    def __init__(self) -> None:
        self._lock = new_lock(self)
        self._ends: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._bytes = 0
        self.evicted = 0

    def get(self, name: str, now: float) -> str | None:
        with self._lock:
            self._expire(now)
            piece = self._ends.get(name)
        return None if piece is None else piece[1]

    def add(self, name: str, value: str, now: float, end: float, most_bytes: int) -> str:
        with self._lock:
            self._expire(now)
            if name in self._ends:
                return self._ends[name][1]
            self._put(name, value, end, most_bytes)
        return value

    def change(
        self, name: str, change: Callable[[str | None], str | None], now: float, end: float, most_bytes: int
    ) -> None:
        with self._lock:
            self._expire(now)
            _, before = self._ends.get(name, (end, None))
            after = change(before)
            if after is not None:
                if before is not None:
                    self._drop(name)  # it ends later now, so it goes behind the others
                self._put(name, after, end, most_bytes)

    def _put(self, name: str, value: str, end: float, most_bytes: int) -> None:
        self._ends[name] = (end, value)
        self._bytes += _size(name, value)
        while self._bytes > most_bytes:
            self._drop(next(iter(self._ends)))
            self.evicted += 1

    def _expire(self, now: float) -> None:
        while self._ends and next(iter(self._ends.values()))[0] <= now:
            self._drop(next(iter(self._ends)))

    def _drop(self, name: str) -> None:
        _, value = self._ends.pop(name)
        self._bytes -= _size(name, value)


def _size(name: str, value: str) -> int:
    return len(name) + len(value.encode())


@dataclass(frozen=True, slots=True)
class Draw:
    """The part of a memory that belongs to one prompt.

    Attributes:
        draws: The memory.
        key: Digest of the prompt and of everything else that makes two draws the same.
        begun: Names of the parts that an attempt has taken from the memory or added to it.
    """

    draws: Draws
    key: str
    begun: set[str] = field(default_factory=set, compare=False, repr=False)

    def get(self, name: str) -> Steps[str | None]:
        """The value under a name, or None."""
        if self.draws.seconds <= 0:
            return None
        value: str | None = yield computation(partial(self.draws.get, f"{self.key}:{name}"), slow=self.draws.is_slow)
        return value

    def add(self, name: str, value: str) -> Steps[str]:
        """Remember a value, and return the value under this name: the first one stays."""
        first: str = yield computation(partial(self.draws.add, f"{self.key}:{name}", value), slow=self.draws.is_slow)
        return first

    def change(self, name: str, change: Callable[[str | None], str | None], *, unless: str = "") -> Steps[None]:
        """Give a name another value, even if the caller is cancelled meanwhile; see `Draws.change`.

        Args:
            name: The name.
            change: The new value for the present one; None for no change.
            unless: Whole name, key included, of a value with which nothing changes.
        """
        changing = partial(self.draws.change, f"{self.key}:{name}", change, unless=unless)
        yield computation(changing, slow=self.draws.is_slow, to_its_end=True)

    def piece(self, name: str) -> Steps[SampleSet | None]:
        """A part of the draw that has arrived, at no cost; None if it has to be asked for."""
        stored = yield from self.get(name)
        if stored is None:
            return None
        self.begun.add(name)
        # Frozen JSON, not objects: what is remembered takes the bytes that are counted, and nobody can change it.
        return SampleSet.from_stored(stored)

    def note(self, name: str, drawn: SampleSet) -> Steps[SampleSet]:
        """Remember a part of the draw, and return it, or the part that another attempt has noted before it.

        Of a part in which the transport failed, only the answers are remembered. A failure that depends on the question
        is a result, and stays.
        """
        if self.draws.seconds <= 0:
            return drawn
        # A question or an error may hold broken text, which JSON cannot.
        detail = spelled(drawn.problem_detail)
        stored = drawn.model_copy(update={"question": "", "problem_detail": detail, "cost": Cost()})
        if drawn.problem is not None and not drawn.problem.depends_on_question:
            if drawn.primary is None and not drawn.samples and drawn.options is None:
                return drawn
            stored = stored.model_copy(update={"problem": None, "problem_detail": ""})
        written = stored.model_dump_json()
        self.begun.add(name)
        first = yield from self.add(name, written)
        if first == written:
            return drawn
        return SampleSet.from_stored(first).model_copy(update={"question": drawn.question, "cost": drawn.cost})


NOTHING = Draw(Draws(0), "")
"""A draw of which nothing is remembered."""
