"""The betting of both monitors: one step of the jumper, and the state it leaves."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ..types import Frozen

__all__ = ["FORMAT", "JUMPS", "BettingState", "amount", "even", "jump"]

FORMAT = 1
"""Version of the layout of every monitor's state."""
JUMPS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Rates at which money is redistributed over the bets before each bet; the rates start with equal shares.
Without jumps every bet loses its money during a long quiet period, and a late change would be detected late."""

_SPREAD = np.array(JUMPS)[:, None]
_KEPT = 1 - _SPREAD


def jump(capital: NDArray[np.float64], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """One step of the composite jumper: spread a share of the money over all bets, then bet.

    Capital_{r,b} <- ((1 - r) Capital_{r,b} + (r / B) sum_b' Capital_{r,b'}) * gain_b for every jump rate r and bet b.

    Args:
        capital: Money by jump rate and bet, shape (..., R, B).
        gains: What a unit of money in each bet becomes, shape (..., B) or (B,); >= 0, expectation <= 1 under the null.

    Returns:
        The money after the bet, same shape as ``capital``. Its sum is the wealth.
    """
    spread = _KEPT * capital + _SPREAD * capital.mean(axis=-1, keepdims=True)
    # Spread before the bet: every bet then has money at a change that comes after a long quiet period.
    return np.asarray(spread * gains[..., None, :], dtype=np.float64)


@cache
def _mix(bets: int) -> NDArray[np.float64]:
    """`jump` without gains as a matrix over all money in a row, which is faster for a single stream."""
    each = len(JUMPS) * bets
    units = np.eye(each).reshape(each, len(JUMPS), bets)
    return np.ascontiguousarray(jump(units, np.ones(bets)).reshape(each, each).T)


def even(bets: int) -> tuple[tuple[float, ...], ...]:
    """Money divided equally over jump rates and bets."""
    return ((1 / (bets * len(JUMPS)),) * bets,) * len(JUMPS)


def amount(log_wealth: float) -> float:
    """The wealth; infinity if it exceeds what a float can hold."""
    return math.exp(log_wealth) if log_wealth < 700 else math.inf  # exp overflows a float above 709


class BettingState(Frozen):
    """What the states of all monitors have in common. Plain JSON."""

    BETS: ClassVar[tuple[float, ...]]
    """The bets of the monitor, over which the money is divided."""

    format: int = FORMAT
    """Version of this layout."""
    delta: float
    """Probability of ever raising a false alarm."""
    n: int = 0
    """Updates so far."""
    log_wealth: float = 0.0
    """Natural logarithm of the betting wealth; starts at 0."""
    peak_log_wealth: float = 0.0
    """Its largest value so far."""
    shares: tuple[tuple[float, ...], ...]
    """The share of the wealth in each jump rate and bet; sums to 1."""
    alarmed_at: int | None = None
    """Update at which the wealth first reached 1/delta; None before that. The monitor keeps its alarm."""

    @model_validator(mode="after")
    def _of_a_monitor(self) -> Self:
        """Refuse a state that no monitor can reach: a damaged file must not raise the wealth or clear an alarm."""
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
        if self.n < 0 or not all(map(math.isfinite, (self.log_wealth, self.peak_log_wealth))):
            raise ValueError(
                f"n = {self.n}, wealth e^{self.log_wealth}, peak e^{self.peak_log_wealth} cannot be reached"
            )
        if [len(row) for row in self.shares] != [len(self.BETS)] * len(JUMPS):
            raise ValueError(f"shares must be {len(JUMPS)} rows of {len(self.BETS)}")
        money = [share for row in self.shares for share in row]
        if not (all(share >= 0 for share in money) and abs(sum(money) - 1) < 1e-6):
            raise ValueError("shares must be at least 0 and sum to 1")
        if self.alarmed_at is not None and not 1 <= self.alarmed_at <= self.n:
            raise ValueError(f"an alarm at update {self.alarmed_at} of {self.n} cannot be reached")
        # A file without its alarm would let the guard go on as if nothing had been found.
        if self.alarmed_at is None and self.peak_log_wealth >= -math.log(self.delta):
            raise ValueError("the wealth has reached 1/delta, but the state has no alarm")
        return self

    @property
    def wealth(self) -> float:
        """The betting wealth."""
        return amount(self.log_wealth)

    @property
    def alarmed(self) -> bool:
        """Whether the wealth has ever reached 1/delta."""
        return self.alarmed_at is not None

    def bet(self, gains: NDArray[np.float64]) -> tuple[dict[str, Any], list[float]]:
        """Bet once or several times, one after another.

        Args:
            gains: The amount that a unit of money in each bet becomes, by time and bet; shape (T, B).

        Returns:
            The fields that change, and the log-wealth after each bet.
        """
        capital = np.array(self.shares).ravel()
        log_wealth, peak = self.log_wealth, self.peak_log_wealth
        line, path, alarmed_at = -math.log(self.delta), list[float](), None
        mix = _mix(len(self.BETS))
        mixed = np.empty_like(mix)  # written again for each bet: to make arrays took half of the time
        for n, row in enumerate(np.tile(gains, len(JUMPS)), start=self.n + 1):
            # Not `@`, whose rounding depends on the processor.
            np.add.reduce(np.multiply(mix, capital, out=mixed), axis=1, out=capital)
            np.multiply(capital, row, out=capital)
            total = np.add.reduce(capital)
            # Shares and log-wealth apart: the money itself would leave the range of a float in a long stream.
            np.divide(capital, total, out=capital)
            log_wealth += math.log(total)
            peak = max(peak, log_wealth)
            # Checked after every bet, not at the end: Ville's inequality is about the wealth ever reaching the line.
            if alarmed_at is None and log_wealth >= line:
                alarmed_at = n
            path.append(log_wealth)
        changed = {
            "n": self.n + len(path),
            "log_wealth": log_wealth,
            "peak_log_wealth": peak,
            "shares": tuple(tuple(row) for row in capital.reshape(len(JUMPS), -1).tolist()),
            "alarmed_at": alarmed_at if self.alarmed_at is None else self.alarmed_at,
        }
        return changed, path
