"""Judges that compare words: equal normalised strings, and token F1 behind guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..specs import JudgeSpec
from .base import BatchJudge
from .numbers import leads_conflict, parse_number
from .text import apart, guards_hold, is_echo, is_refusal, normalise, orders_agree, overlap

__all__ = ["ExactJudge", "TokenF1Judge"]


@dataclass(frozen=True, slots=True)
class ExactJudge(BatchJudge):
    """Two answers are the same iff their normalised strings are equal, or both are refusals.

    Free, and hard to beat on short answers, formulas and code; see `guardrail.judges.text.normalise`.
    """

    is_slow = False
    compares_words = True

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="exact", version=4, params={})

    def identity(self, text: str) -> str:
        """The normalised string: equal ones are the same answer."""
        return normalise(text)

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of normalised strings; the question plays no part."""
        return [_identical(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class TokenF1Judge(BatchJudge):
    """Two answers are the same iff they share enough content words and nothing else tells them apart.

    Token-F1 of their content words, less those of the question (`overlap`), is at least ``threshold``, and the guards
    hold: the same numbers (digit by digit: "1.0" = "1", "1,000" = "1000"), letters that stand alone and marks, and both
    or neither a negation ("except Tom" / "Tom") or a refusal. Nor may each have a number in words or Roman numerals
    that the other lacks ("Henry VIII" / "Henry VII"), or a word before its only number ("buy 5 shares" / "sell 5
    shares"). Numbers in another order ("1, 2" / "2, 1") need a word of their own each ("5 apples, 3 pears").
    Words of hedges ("hard to say", "my best guess") that both use do not make them alike.
    An answer that only repeats the question ("The capital of Eritrea is Eritrea.") is at most the same as another such
    answer. A mark on one side only tells answers apart too ("$50" / "50", "C" / "C++"): that costs an answer at most.
    Only "=" does not count, because "x = 5" says the same as "5". Antonyms ("increases" / "decreases")
    are *not* caught, nor are names that share a word ("John Smith" / "Jane Smith"): use an NLI or chat-model judge if
    they occur.

    Attributes:
        threshold: Smallest F1 that counts as the same, in (0, 1]. Declared before calibration, part of the artifact.
    """

    threshold: float = 0.5

    is_slow = False
    compares_words = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.5.")

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="token_f1", version=7, params={"threshold": self.threshold})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Overlap of content words behind the guards; words of the question count only where no others are left."""
        return [self._same(question, a, b) for a, b in pairs]

    def _same(self, question: str, a: str, b: str) -> bool:
        if _identical(a, b):
            return True
        # The guards come first: no overlap of words outweighs another number or a negation.
        alike = is_refusal(a) == is_refusal(b) and guards_hold(a, b) and not apart(a, b)
        alike = alike and orders_agree(a, b) and not _numbers_conflict(a, b)
        # An echo has no words of its own to compare: by the question's words it would equal every whole sentence.
        alike = alike and is_echo(question, a) == is_echo(question, b)
        return alike and overlap(question, a, b) >= self.threshold


def _numbers_conflict(a: str, b: str) -> bool:
    """Whether both answers state a number, and each says something before it that the other does not."""
    ours, theirs = parse_number(a), parse_number(b)
    return ours is not None and theirs is not None and leads_conflict(ours, theirs)


def _identical(a: str, b: str) -> bool:
    return normalise(a) == normalise(b) or (is_refusal(a) and is_refusal(b))
