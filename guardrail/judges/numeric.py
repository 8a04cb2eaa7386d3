"""A judge that compares the numbers that answers end with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import JudgeSpec
from .normalise import normalise
from .number_reading import commands, figures, parse_number
from .numbers import same_number

__all__ = ["NumericJudge", "same_figures"]


@dataclass(frozen=True, slots=True)
class NumericJudge:
    r"""Two answers are the same iff they end with the same number, as `parse_number` and `same_number` have it.

    Exact: whole numbers are equal or not; others may differ by 1e-9 relative (and at most 0.001), for rounding. Scale
    is read: "50%" = "0.5" = "1/2", "1,000" = "1000", "1 1/2" = "1.5", "2e3" = "2000" = "2 thousand". So are units and
    currencies: "5 km" = "5000 m", but not "5 m", and "$5" is not "5 euros". A number without a unit has the one the
    question implies: "5" = "5 km". Words are not read ("five", "about"). An unknown word after a number is a unit of
    its own where it is written like one ("5 IU" is not "5 mg"); what is counted is none of its business ("5 apples" =
    "5 pears").

    What cannot be read without guessing (dates, times, ranges, bounds, lists, sums, decimal commas, leading zeros, a
    number inside a formula: "\sqrt{2}", "5 squared", "half of 10") is no number. An answer with a number never equals
    one without; two answers without one are the same iff their normalised strings, their words with digits and their
    LaTeX commands are equal.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="numeric", version=3, params={})

    def identity(self, text: str) -> str:
        """The text itself: normalising would drop the "%" of "50%" and the "/" of "1/2"."""
        return text.strip()

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the numbers they end with; the question plays no part."""
        return [self._same(a, b) for a, b in pairs]

    def _same(self, a: str, b: str) -> bool:
        ours, theirs = parse_number(a), parse_number(b)
        if ours is None or theirs is None:
            return ours is None and theirs is None and same_figures(a, b)
        return same_number(ours, theirs)


def same_figures(a: str, b: str) -> bool:
    """Whether two texts without a readable number are the same: normalised strings, words with digits, commands."""
    return normalise(a) == normalise(b) and figures(a) == figures(b) and commands(a) == commands(b)
