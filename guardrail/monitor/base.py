"""Base of both monitors: the alarm, its report, and the saved state."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar, cast

from pydantic import ValidationError

from ..errors import UsageError
from ..files import atomic_write, check_version, problem_of
from ..types import Frozen
from .betting import FORMAT, BettingState, amount

__all__ = ["Alarm", "Monitor", "check_unit", "parse_state", "read_state"]

_WAY_OUT = "Copy the file again, or start a new monitor."

State = TypeVar("State", bound=BettingState)


class Alarm(Frozen):
    """An alarm of a monitor."""

    monitor: Literal["risk", "drift"]
    """The monitor that raised it."""
    at: int
    """Number of updates at which it was raised."""
    wealth: float
    """The betting wealth at that time; the alarm line is 1/delta. For a loaded state, the largest wealth so far."""
    delta: float
    """Upper bound on the probability of a false alarm over the whole life of the monitor."""
    detail: str
    """The finding, and the next step."""


class Monitor:
    """Base of both monitors: reports an alarm once, saves and loads. Updates are thread-safe.

    A state that already has an alarm reports it at once, because this listener has not received it yet. A listener that
    raises is called again at the next update, because it may not have acted on the alarm.
    """

    kind: Literal["risk", "drift"]
    state: BettingState

    def __init__(self, on_alarm: Callable[[Alarm], object] | None) -> None:
        self._on_alarm = on_alarm
        self._reported = False
        self._lock = threading.Lock()

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return bool(self.state.alarmed)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if one was raised; its text describes the current state."""
        state = self.state
        if state.alarmed_at is None:
            return None
        wealth = amount(state.peak_log_wealth)
        return Alarm(monitor=self.kind, at=state.alarmed_at, wealth=wealth, delta=state.delta, detail=self._detail())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the state as JSON, atomically."""
        target = Path(path)
        atomic_write(target, self.state.model_dump_json() + "\n")
        return target

    def _report(self) -> None:
        """Report an alarm that was not reported yet."""
        if self._on_alarm is None or not self.alarmed:
            return
        with self._lock:
            # Taken and set in one step, so that two threads cannot both report; the listener runs outside the lock.
            reported, self._reported = self._reported, True
        if reported:
            return
        try:
            self._on_alarm(cast(Alarm, self.alarm))
        # BaseException: a listener that was interrupted may not have acted on the alarm either.
        except BaseException:
            self._reported = False
            raise

    def _detail(self) -> str:
        """Text of the alarm: the finding, and the next step."""
        raise NotImplementedError


def check_unit(name: str, value: float) -> None:
    """Refuse a value that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")


def read_state(path: str | os.PathLike[str], kind: type[State]) -> State:
    """Read a state that `Monitor.save` wrote.

    Raises:
        UsageError: The file cannot be read, is damaged, belongs to another monitor, or is of another version.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a monitor state ({error}). {_WAY_OUT}") from error
    return parse_state(text, kind, str(path))


def parse_state(text: str, kind: type[State], where: str) -> State:
    """A state from its JSON.

    Raises:
        UsageError: As `read_state`.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: cannot be read as a monitor state ({error}). {_WAY_OUT}") from error
    if isinstance(content, dict):
        check_version(content.get("format"), FORMAT, where, "start a new monitor")
    try:
        return kind.from_stored(content)
    except ValidationError as error:
        raise UsageError(
            f"{where}: {problem_of(error)} (not a {kind.__name__} that `save` wrote). {_WAY_OUT}"
        ) from error
