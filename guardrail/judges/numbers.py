"""Numbers with their units, and when two of them are the same."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from .units import PERCENT, ratios

__all__ = ["ROUNDING", "Number", "may_join", "same_number"]

ROUNDING = Fraction(1, 10**9)
"""Largest relative difference of two numbers that count as equal, at least one of which has decimals. Another value
raises the version of the judge."""
_LEAST = Fraction(1, 1000)
"""Largest absolute one: two prices that differ by a cent are never equal, however large."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text, exactly.

    Attributes:
        value: Its value as written, scale read: 0.5 for "50%", 5,000,000 for "5 million km". What it is compared by
            with a number that has no unit.
        dimension: What its unit measures, e.g. "length" or "USD"; None without a unit.
        size: Size of the unit in the dimension's base unit; 1 without one, and for percentages.
    """

    value: Fraction
    dimension: str | None = None
    size: Fraction = Fraction(1)

    @property
    def percent(self) -> bool:
        """Whether it was written as a percentage."""
        return self.dimension == PERCENT[0]

    @property
    def amount(self) -> Fraction:
        """Value in the base unit of its dimension: 5000 for "5 km"."""
        return self.value * self.size


def same_number(a: Number, b: Number, rounding: Fraction = ROUNDING) -> bool:
    """Whether two numbers are equal: symmetric, but through numbers without a unit not transitive (5 km, 5, 5 m).

    Both with a unit: same dimension and equal amounts. One without: its unit is implied by the question, so the values
    as written. Whole numbers are compared exactly; others up to ``rounding`` relative, and never more than 0.001.
    """
    if a.dimension is None or b.dimension is None:
        x, y = a.value, b.value
    elif a.dimension == b.dimension:
        x, y = a.amount, b.amount
    else:
        return False
    if x == y or a.value.denominator == b.value.denominator == 1:
        return x == y
    return abs(x - y) <= min(rounding * max(abs(x), abs(y)), _LEAST)


def may_join(a: Number, b: Number, further: int) -> bool:
    """Whether at most ``further`` other numbers could form a chain of `same_number` between two numbers.

    Besides rounding there is one way: 5 = 5 km = 5000 m = 5000. That takes three steps and changes the value as written
    by a ratio of two units of one dimension; each end that has a unit itself saves a step. Never narrower than the
    truth: where two such changes fit, all numbers of one sign count as joinable.
    """
    if (a.value > 0, a.value < 0) != (b.value > 0, b.value < 0):
        return False
    if a.value == b.value:
        return True
    changes = (further + 1 + (a.dimension is not None) + (b.dimension is not None)) // 3
    if changes > 1:
        return True
    ratio, slack = a.value / b.value, 2 * ROUNDING * (further + 2)
    low, high = _float(ratio * (1 - slack)), _float(ratio * (1 + slack))
    if changes == 0:
        return low <= 1 <= high
    known = _ratios()
    at = bisect_left(known, low)
    return at < len(known) and known[at] <= high


def _float(ratio: Fraction) -> float:
    try:
        return float(ratio)
    except OverflowError:
        return float("inf")


@lru_cache(maxsize=1)
def _ratios() -> list[float]:
    """Ratios of units, sorted; their rounding is far below the slack."""
    return sorted(map(float, ratios()))
