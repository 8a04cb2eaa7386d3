"""What both monitors share: the alarm, and the life of a monitor apart from its bets."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from ..errors import UsageError
from ..files import atomic_write
from ..types import Frozen
from .betting import BettingState, amount

__all__ = ["Alarm", "Monitor", "check_unit", "read_state"]

State = TypeVar("State", bound=BettingState)


class Alarm(Frozen):
    """What an alarm says."""

    monitor: Literal["risk", "drift"]
    """Which monitor raised it."""
    at: int
    """After how many updates."""
    wealth: float
    """The betting wealth then; the alarm line is 1/delta. Of a state that was loaded, the largest it has been."""
    delta: float
    """Probability of a false alarm over the whole life of the monitor is at most this."""
    detail: str
    """What was found, and what to do."""


class Monitor:
    """What both monitors do besides betting: report an alarm once, save, load. Updates are thread-safe.

    An alarm that stands in a state to continue from is reported at once: whoever listens has not heard it yet.
    """

    kind: Literal["risk", "drift"]
    state: BettingState

    def __init__(self, on_alarm: Callable[[Alarm], object] | None) -> None:
        self._on_alarm = on_alarm
        self._lock = threading.Lock()

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return bool(self.state.alarmed)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm that was raised, if any, in the words of now."""
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
        """Report the alarm, if there is one."""
        alarm = self.alarm
        if alarm is not None and self._on_alarm is not None:
            self._on_alarm(alarm)

    def _detail(self) -> str:
        """What an alarm says was found, and what to do."""
        raise NotImplementedError


def check_unit(name: str, value: float) -> None:
    """Refuse what is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")


def read_state(path: str | os.PathLike[str], kind: type[State]) -> State:
    """What `Monitor.save` wrote.

    Raises:
        UsageError: The file cannot be read, is damaged, or is of the other monitor.
    """
    way_out = "Copy the file again, or start a new monitor."
    try:
        return kind.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise UsageError(
            f"{path}: {field}: {first['msg']} (no {kind.__name__} that `save` wrote). {way_out}"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: no monitor state can be read ({error}). {way_out}") from error
