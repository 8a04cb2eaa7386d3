"""Everything that was drawn for a prompt in the last minutes: another attempt continues the draw and selects nothing.

An attempt that fails, is cancelled or runs out of time leaves its answers here, piece by piece. The next attempt takes
them and asks for the missing ones only. If it drew everything again, draws that need fewer calls (two stages of which
the first decides) would survive more often than others, and the error rate among answers would be what the failures
make of it.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..errors import GuardrailError
from ..plain_json import sha256_hex, spelled
from ..types import Cost, SampleSet
from .effects import Steps, computation
from .limits import new_lock

REMEMBERED = 300.0
"""Seconds for which a draw and its verdict are remembered."""
MOST_BYTES = 64 * 2**20
"""Bytes that a process remembers; the oldest pieces make room."""
FORMAT = "draw1"
"""Version of the stored pieces, part of every name: no version reads the pieces of another one."""


class SharedKeys(Protocol):
    """Keys that several processes share, such as `guardrail.review.keys.ExpiringKeys`."""

    def get(self, name: str) -> str | None:
        """The value of a key that has not ended, or None."""

    def add(self, name: str, value: str, seconds: float) -> str | None:
        """Add a key for so many seconds. A key that exists already stays, and its value is returned."""


class Draws:
    """A memory of draws and verdicts, shared by threads, tasks and the guards that it is given to.

    The first value under a name stays until its time is over: attempts that run side by side end with the same draw. A
    deep copy remembers nothing.

    Args:
        seconds: Lifetime of each piece; 0 remembers nothing.
        most_bytes: Bytes that this process remembers; beyond them the oldest pieces go, and `evicted` counts them.
        shared: Keys that other processes share; None for this process alone.
        report: Called after each write to the shared keys, with its error or None.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        seconds: float = REMEMBERED,
        *,
        most_bytes: int = MOST_BYTES,
        shared: SharedKeys | None = None,
        report: Callable[[GuardrailError | None], object] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self.seconds, self._most_bytes, self._shared, self._clock = seconds, most_bytes, shared, clock
        self._scope = ""
        self._own = _Pieces(most_bytes)

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
            GuardrailError: The other processes' memory cannot be read, so it is unknown whether to draw; or it does not
                take the value, see `add`.
        """
        if self.seconds <= 0:
            return None
        name = self._key(name)
        piece = self._own.get(name, self._clock())
        if piece is not None:
            return self._share(name, piece)
        return self._shared.get(name) if self._shared is not None else None

    def add(self, name: str, value: str) -> str:
        """Remember a value, and return the value under this name: the first one stays.

        Raises:
            GuardrailError: The other processes' memory cannot be written. This process remembers the value, and gives
                it out once they know it: otherwise a process that dies would let them draw again.
        """
        if self.seconds <= 0:
            return value
        name, now = self._key(name), self._clock()
        return self._share(name, self._own.add(name, _Piece(value, now + self.seconds), now))

    def _share(self, name: str, piece: _Piece) -> str:
        """The value of this process after the others know it, or that of another process before it."""
        if self._shared is None or piece.is_shared:
            return piece.value
        try:
            first = self._shared.add(name, piece.value, self.seconds) or piece.value
        except GuardrailError as error:
            self._report(error)
            raise
        self._report(None)
        self._own.share(name, piece, first)
        return first

    def _key(self, name: str) -> str:
        # A digest, because names of databases have a limit and those of pieces do not.
        return f"{FORMAT}:{sha256_hex(f'{self._scope}{name}'.encode())}"


@dataclass(slots=True)
class _Piece:
    """A value, the time of its end, and whether other processes know it."""

    value: str
    end: float
    is_shared: bool = False


class _Pieces:
    """The pieces of one process, in the order in which they end."""

    def __init__(self, most_bytes: int) -> None:
        self._lock = new_lock(self)
        self._pieces: OrderedDict[str, _Piece] = OrderedDict()
        self._most_bytes, self._bytes, self.evicted = most_bytes, 0, 0

    def get(self, name: str, now: float) -> _Piece | None:
        with self._lock:
            self._expire(now)
            return self._pieces.get(name)

    def add(self, name: str, piece: _Piece, now: float) -> _Piece:
        """The piece, or the piece that stood under this name before."""
        with self._lock:
            self._expire(now)
            first = self._pieces.setdefault(name, piece)
            if first is piece:
                self._bytes += len(name) + len(piece.value.encode())
                while self._bytes > self._most_bytes:
                    self._drop_oldest()
                    self.evicted += 1
        return first

    def share(self, name: str, piece: _Piece, value: str) -> None:
        """Take the value that all processes have."""
        with self._lock:
            if self._pieces.get(name) is piece:  # otherwise it made room meanwhile
                self._bytes += len(value.encode()) - len(piece.value.encode())
            piece.value, piece.is_shared = value, True

    def _expire(self, now: float) -> None:
        while self._pieces and next(iter(self._pieces.values())).end <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        name, piece = self._pieces.popitem(last=False)
        self._bytes -= len(name) + len(piece.value.encode())


@dataclass(frozen=True, slots=True)
class Draw:
    """The part of a memory that belongs to one prompt.

    Attributes:
        draws: The memory.
        key: Digest of the prompt and of everything else that makes two draws the same.
    """

    draws: Draws
    key: str

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

    def piece(self, name: str) -> Steps[SampleSet | None]:
        """A part of the draw that has arrived, at no cost; None if it has to be asked for."""
        stored = yield from self.get(name)
        if stored is None:
            return None
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
        first = yield from self.add(name, written)
        if first == written:
            return drawn
        return SampleSet.from_stored(first).model_copy(update={"question": drawn.question, "cost": drawn.cost})


NOTHING = Draw(Draws(0), "")
"""A draw of which nothing is remembered."""
