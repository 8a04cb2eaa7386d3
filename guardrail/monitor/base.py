"""Base of all monitors: the bets, the state they leave, and the alarm.

Money that starts at 1 bets against a promise. While the promise holds no bet has a positive expected gain, so the money
is a non-negative supermartingale, and by Ville's inequality it ever reaches 1/delta with probability at most delta.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..errors import UsageError
from ..files import check_version, problem_of
from ..types import Frozen

__all__ = [
    "STAKES",
    "Alarm",
    "Bet",
    "BettingState",
    "Keeper",
    "Monitor",
    "Taking",
    "amount",
    "check_unit",
    "jump",
    "parse_state",
]

STAKES = (0.0, 0.025, 0.08, 0.2, 0.5)
"""Bets as fractions of the largest safe one, which cannot lose everything; 0 keeps the money."""
MIXED = 0.002
"""Share of the money that is spread over all bets before each bet. Without it every bet loses its money during a long
quiet period, and a late change would be detected late."""
_FORMAT = 1


class Alarm(Frozen):
    """An alarm of a monitor."""

    monitor: Literal["risk", "drift"]
    """The monitor that raised it."""
    at: int
    """Number of updates at which it was raised."""
    wealth: float
    """The largest betting wealth until then; the alarm line is 1/delta."""
    delta: float
    """Upper bound on the probability of a false alarm over the whole life of the monitor."""
    detail: str
    """The finding, and the next step."""


class Bet(NamedTuple):
    """One update of a monitor."""

    value: float
    """Drift, canary: the score. Risk: 1 for a wrong answer, 0 for a right one."""
    chance: float
    """Drift, canary: the p-value. Risk: the probability with which the answer was audited."""
    log_wealth: float
    """Natural logarithm of the betting wealth after it."""


def jump(capital: NDArray[np.float64], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread a share of the money over all bets, then bet: c_b <- (.998 c_b + .002 mean(c)) gain_b.

    Args:
        capital: Money in each bet, shape (..., B).
        gains: What a unit of money in each bet becomes, shape (..., B); >= 0, expectation <= 1 while the promise holds.

    Returns:
        The money after the bet, same shape. Its sum is the wealth.
    """
    spread = (1 - MIXED) * capital + MIXED * capital.mean(axis=-1, keepdims=True)
    return np.asarray(spread * gains, dtype=np.float64)


def amount(log_wealth: float) -> float:
    """The wealth; infinity if it exceeds what a float can hold."""
    return math.exp(log_wealth) if log_wealth < 700 else math.inf  # exp overflows a float above 709


class BettingState(Frozen):
    """What the states of all monitors have in common. Plain JSON."""

    BETS: ClassVar[int]
    """Number of bets over which the money is divided."""

    format: int = _FORMAT
    """Version of this layout."""
    delta: float
    """Probability of ever raising a false alarm."""
    n: int = 0
    """Updates so far."""
    log_wealth: float = 0.0
    """Natural logarithm of the betting wealth; starts at 0."""
    peak_log_wealth: float = 0.0
    """Its largest value so far."""
    shares: tuple[float, ...]
    """The share of the wealth in each bet; sums to 1."""
    alarmed_at: int | None = None
    """Update at which the wealth first reached 1/delta; None before that. The monitor keeps its alarm."""

    @classmethod
    def even(cls) -> tuple[float, ...]:
        """Money divided equally over the bets."""
        return (1 / cls.BETS,) * cls.BETS

    @property
    def wealth(self) -> float:
        """The betting wealth."""
        return amount(self.log_wealth)

    @property
    def alarmed(self) -> bool:
        """Whether the wealth has ever reached 1/delta."""
        return self.alarmed_at is not None

    def bet(self, gains: NDArray[np.float64], **changed: Any) -> Self:
        """The state after one bet.

        Args:
            gains: What a unit of money in each bet becomes, shape (B,).
            changed: Other fields that change.
        """
        capital = jump(np.array(self.shares), gains)
        total = capital.sum()
        # Shares and log-wealth apart: the money itself would leave the range of a float in a long stream.
        n, log_wealth = self.n + 1, self.log_wealth + math.log(total)
        alarms = self.alarmed_at is None and log_wealth >= -math.log(self.delta)
        return self.model_copy(
            update={
                "n": n,
                "log_wealth": log_wealth,
                "peak_log_wealth": max(self.peak_log_wealth, log_wealth),
                "shares": tuple((capital / total).tolist()),
                "alarmed_at": n if alarms else self.alarmed_at,
                **changed,
            }
        )


State = TypeVar("State", bound=BettingState)
Taking: TypeAlias = Callable[[State], tuple[State, Sequence[Bet]]]
"""A bet: the state after it, from the state before it, and the lines of its history."""


class Keeper(Generic[State]):
    """Keeps the state of a monitor in this process. A review store keeps it for all processes: `guardrail.review`."""

    def __init__(self, state: State | None = None) -> None:
        self._state = state

    def begin(self, start: State) -> State:
        """The state that is kept; ``start`` if there is none yet."""
        self._state = start if self._state is None else self._state
        return self._state

    def read(self) -> State:
        """The current state."""
        assert self._state is not None, "begin comes first"
        return self._state

    def change(
        self,
        take: Taking[State],
        key: str | None,
        within: float | None,
        alarm_of: Callable[[State], Alarm | None],
    ) -> State:
        """Replace the state by what ``take`` makes of it, and return it.

        Args:
            take: Bets; returns the next state and its bets.
            key: Names the update, so that a second one with this key changes nothing.
            within: Seconds it may take, in a database.
            alarm_of: The alarm of a state, which a database stores.
        """
        if key is not None:
            raise UsageError("a key counts once in a review store only: use guardrail.review.Monitors, or leave it out")
        self._state, _ = take(self.read())
        return self._state

    def alarm(self, alarm_of: Callable[[State], Alarm | None]) -> Alarm | None:
        """The alarm that holds answers back, or None."""
        return alarm_of(self.read())


class Monitor(Generic[State]):
    """Base of all monitors: takes in values and reports an alarm once. Updates are thread-safe.

    A state that already has an alarm reports it at once, because this listener has not received it yet. A listener that
    raises is called again at the next update, because it may not have acted on the alarm.
    """

    kind: ClassVar[Literal["risk", "drift"]]

    def __init__(self, start: State, keeper: Keeper[State], on_alarm: Callable[[Alarm], object] | None) -> None:
        self._start, self._keeper, self._on_alarm = start, keeper, on_alarm
        self._reported = False
        self._lock = threading.Lock()
        self._adopted(keeper.begin(start))
        self._report()

    @property
    def state(self) -> State:
        """The current state."""
        return self._adopted(self._keeper.read())

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return self.state.alarmed

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if one was raised and, in a review store, nobody has acknowledged it."""
        return self._keeper.alarm(self.alarm_of)

    def alarm_of(self, state: State) -> Alarm | None:
        """The alarm of a state, if it has one; its text describes the state."""
        if state.alarmed_at is None:
            return None
        wealth, detail = amount(state.peak_log_wealth), self._detail(state)
        return Alarm(monitor=self.kind, at=state.alarmed_at, wealth=wealth, delta=state.delta, detail=detail)

    def _update(self, take: Taking[State], key: str | None = None, within: float | None = None) -> State:
        # The bet depends on the state before it: two updates at once would lose one.
        with self._lock:
            after = self._keeper.change(lambda state: take(self._adopted(state)), key, within, self.alarm_of)
        if after.alarmed and not self._reported:
            self._report()
        return after

    def _report(self) -> None:
        """Report an alarm that was not reported yet."""
        if self._on_alarm is None or (alarm := self.alarm) is None:
            return
        with self._lock:
            # Taken and set in one step, so that two threads cannot both report; the listener runs outside the lock.
            reported, self._reported = self._reported, True
        if reported:
            return
        try:
            self._on_alarm(alarm)
        # BaseException: a listener that was interrupted may not have acted on the alarm either.
        except BaseException:
            self._reported = False
            raise

    def _adopted(self, state: State) -> State:
        """A kept state, if it belongs to a monitor with the settings of this one."""
        raise NotImplementedError

    def _detail(self, state: State) -> str:
        """Text of the alarm: the finding, and the next step."""
        raise NotImplementedError


def check_unit(name: str, value: float) -> None:
    """Refuse a value that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")


def parse_state(text: str, kind: type[State], where: str) -> State:
    """A state from its JSON.

    Raises:
        UsageError: It cannot be read, belongs to another monitor, or is of another version.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: cannot be read as a monitor state ({error}). Start a new monitor.") from error
    if isinstance(content, dict):
        check_version(content.get("format"), _FORMAT, where, "start a new monitor")
    try:
        return kind.from_stored(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {problem_of(error)} (not a {kind.__name__}). Start a new monitor.") from error
