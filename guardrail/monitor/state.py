"""The common part of all monitors: the bets, the state that they leave, and the alarm.

Money that starts at 1 bets against a promise. While the promise holds no bet has a positive expected gain, so the money
is a non-negative supermartingale, and by Ville's inequality it ever reaches 1/delta with probability at most delta.
"""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..describe import ANSWERS, CALLS
from ..errors import UsageError
from ..files import check_version, problem_of
from ..notebook import percent
from ..types import Frozen

__all__ = ["STAKES", "Alarm", "Bet", "BettingState", "MonitorKind", "check_unit", "jump", "money"]

STAKES = (0.0, 0.025, 0.08, 0.2, 0.5)
"""Bets as fractions of the largest safe one, which cannot lose everything; 0 keeps the money."""
MIXED = 0.002
"""Share of the money that is spread over all bets before each bet. Without it every bet loses its money during a long
quiet period, and a late change would be detected late."""
_FORMAT = 1
MonitorKind = Literal["risk", "drift", "canary"]
"""Subject of a test: the error rate of answers, the drift of scores, or that of the scores of known questions."""


class Alarm(Frozen):
    """An alarm of a monitor, in numbers; `detail` makes the words."""

    monitor: MonitorKind
    """The monitor that raised it."""
    at: int
    """Number of updates at which it was raised."""
    wealth: float
    """The betting wealth then; the alarm line is 1/delta."""
    delta: float
    """Upper bound on the probability of a false alarm over the whole life of the monitor."""
    calls: bool = False
    """Whether an agent's calls of a tool are judged, not answers to questions."""
    alpha: float | None = None
    """Risk: the promised error rate."""
    estimate: tuple[float, float, float] | None = None
    """Risk: the error rate among audits, with 95 % bounds."""
    less_certain: bool | None = None
    """Drift: whether the latest scores are less certain than at calibration, or more certain."""
    rounds: int | None = None
    """Canary: rounds so far, with those of the baseline."""

    @property
    def detail(self) -> str:
        """The finding, and the next step."""
        nouns, odds = CALLS if self.calls else ANSWERS, f"(false alarm probability {self.delta:g})"
        if self.monitor == "canary":
            return (
                "The canary's questions are no longer answered as certainly as in their first rounds: "
                f"{self.at} scores in {self.rounds} rounds refute it {odds}. The model or its server changed, so the "
                "calibrated guarantee may no longer apply: look at the provider's notices, audit accepted "
                f"{nouns.many}, and calibrate again."
            )
        if self.monitor == "drift":
            made = "Calls are made" if self.calls else "Questions are answered"
            return (
                f"{made} {'less' if self.less_certain else 'more'} certainly than at calibration: {self.at} scores "
                f"refute that they are alike {odds}. The calibrated guarantee no longer applies: look at recent "
                f"{nouns.asked}, audit accepted {nouns.many}, and calibrate again on {nouns.asked} like them."
            )
        audits = ""
        if self.estimate is not None:
            rate, low, high = map(percent, self.estimate)
            audits = f" Audits suggest {rate} (bounds {low} to {high})."
        return (
            f"The error rate among accepted {nouns.many} exceeds the promised {percent(self.alpha)}: {self.at} audits "
            f"refute it {odds}.{audits} Hold {nouns.many} back or use a stricter threshold, and calibrate again on "
            f"recent {nouns.asked}."
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """The alarm as JSON, without its words."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def shown(self) -> dict[str, Any]:
        """The alarm as JSON for other programs, with its words."""
        return {**self.numbers, "detail": self.detail}


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


def money(log_wealth: float) -> float:
    """The wealth; infinity if it exceeds what a float can hold."""
    return math.exp(log_wealth) if log_wealth < 700 else math.inf  # exp overflows a float above 709


class BettingState(Frozen):
    """The common part of the states of all monitors. Plain JSON; `guardrail.review.Monitors` keeps it."""

    kind: ClassVar[MonitorKind]
    SETTINGS: ClassVar[tuple[str, ...]]
    """Fields that do not change: another value makes another monitor."""

    format: int = _FORMAT
    """Version of this layout."""
    delta: float
    """Probability of ever raising a false alarm."""
    calls: bool = False
    """Whether an agent's calls of a tool are judged; for the words of an alarm."""
    n: int = 0
    """Updates so far."""
    log_wealth: float = 0.0
    """Natural logarithm of the betting wealth; starts at 0."""
    shares: tuple[float, ...]
    """The share of the wealth in each bet; sums to 1."""
    alarm: Alarm | None = None
    """The alarm of the update at which the wealth first reached 1/delta; it stays."""

    @classmethod
    def read(cls, text: str, where: str) -> Self:
        """A state from its JSON.

        Raises:
            UsageError: It cannot be read, belongs to another monitor, or is of another version.
        """
        try:
            content = json.loads(text)
            if isinstance(content, dict):
                check_version(content.get("format"), _FORMAT, where, "start a new monitor")
            return cls.from_stored(content)
        except ValidationError as error:
            raise UsageError(f"{where}: {problem_of(error)} (not a {cls.__name__}). Start a new monitor.") from error
        except ValueError as error:
            raise UsageError(f"{where}: cannot be read as a monitor state ({error}). Start a new monitor.") from error

    def bet(self, gains: NDArray[np.float64], **changed: Any) -> Self:
        """The state after one bet.

        Args:
            gains: What a unit of money in each bet becomes, shape (B,).
            changed: Other fields that change.
        """
        capital = jump(np.array(self.shares), gains)
        total = capital.sum()
        # Shares and log-wealth apart: the money itself would leave the range of a float in a long stream.
        log_wealth, shares = self.log_wealth + math.log(total), tuple((capital / total).tolist())
        after = self.model_copy(update={"n": self.n + 1, "log_wealth": log_wealth, "shares": shares, **changed})
        if self.alarm is not None or log_wealth < -math.log(self.delta):
            return after
        common = {"monitor": self.kind, "at": after.n, "wealth": money(log_wealth), "delta": self.delta}
        return after.model_copy(update={"alarm": Alarm(**common, calls=self.calls, **after.finding())})

    def finding(self) -> dict[str, Any]:
        """The words of an alarm of this state."""
        raise NotImplementedError


def check_unit(name: str, value: float) -> None:
    """Refuse a value that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")
