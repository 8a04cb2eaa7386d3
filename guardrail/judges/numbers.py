"""Numbers as people and models write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["Number", "parse_number"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text.

    Attributes:
        value: Its value; 0.5 for "50%".
        percent: Whether it was written as a percentage.
    """

    value: float
    percent: bool = False


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<sign>[-+\u2212])?\s?[$€£]?(?:(?P<whole>\d+)\s+)?(?P<top>{_DIGITS})"
    rf"(?:\s?/\s?(?P<bottom>{_DIGITS})|(?P<exponent>[eE][-+]?\d+)(?!\w))?\s?(?P<percent>%|percent\b)?"
)


def parse_number(text: str) -> Number | None:
    """The last number in a text, or None. "3/4" is 0.75, "1 1/2" is 1.5, "50%" is 0.5 and flagged as a percentage."""
    found = None
    for match in _NUMBER.finditer(text):
        found = _read_number(match) or found
    return found


def _read_number(match: re.Match[str]) -> Number | None:
    value = float(match["top"].replace(",", "") + (match["exponent"] or ""))
    if match["bottom"]:
        bottom = float(match["bottom"].replace(",", ""))
        if bottom == 0:
            return None
        value = float(match["whole"] or 0) + value / bottom
    if match["sign"] in ("-", "\u2212"):
        value = -value
    if not math.isfinite(value):
        return None
    percent = match["percent"] is not None
    return Number(value / 100 if percent else value, percent)
