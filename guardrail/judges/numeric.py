"""A judge that compares the numbers that answers end with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import JudgeSpec
from .normalise import normalise
from .numbers import parse_number

__all__ = ["NumericJudge"]

_TOLERANCE = 1e-9
"""Largest relative difference that counts as equal. Another value raises the version."""


@dataclass(frozen=True, slots=True)
class NumericJudge:
    """Two answers are the same iff the last number of each has the same value, within 1e-9 relative (rounding only).

    Scale is read: "50%" = "0.5" = "1/2", "1,000" = "1000", "1 1/2" = "1.5", "2e3" = "2000". Words are not ("half",
    "two thousand"), nor are units ("5 km" and "5 m" are the same here) or negations. An answer with a number never
    equals one without; two answers without a number are the same iff their normalised strings are equal.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="numeric", version=1, params={})

    def identity(self, text: str) -> str:
        """The text itself: normalising would drop the "%" of "50%" and the "/" of "1/2"."""
        return text.strip()

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the last numbers; the question plays no part."""
        return [self._same(a, b) for a, b in pairs]

    def _same(self, a: str, b: str) -> bool:
        ours, theirs = parse_number(a), parse_number(b)
        if ours is None or theirs is None:
            return ours is None and theirs is None and normalise(a) == normalise(b)
        return math.isclose(ours.value, theirs.value, rel_tol=_TOLERANCE)
