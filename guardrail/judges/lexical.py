"""Judges that compare words: exact (normalised) and token-F1 with number and negation guards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import UsageError
from .base import JudgeSpec
from .marks import ends_in_mark, is_operator
from .normalise import marked_words, normalise, word_tuple

__all__ = ["ExactJudge", "TokenF1Judge", "guards_hold", "token_f1"]

_NUMBER = re.compile(
    r"(?P<sign>(?<!\w)-)?(?:(?P<whole>\d+)(?:\.(?P<part>\d+))?|\.(?P<bare>\d+))(?:e(?P<power>[-+]?\d{1,9})(?!\w))?"
)
_BARE = re.compile(r"[\W_]+")
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "neither", "nor", "without", "cannot", "false", "nobody", "nothing", "nowhere"}
)


def token_f1(answer: str, reference: str) -> float:
    """Token-F1 of two answers: harmonic mean of precision and recall over normalised words, with multiplicity.

    F1 = 2 P R / (P + R), P = |common| / |answer|, R = |common| / |reference|; in [0, 1], symmetric. Two answers
    without words score 1 when equal, else 0. Source: SQuAD evaluation (Rajpurkar et al. 2016), whose CoQA variant
    differs only in the article list. Marks are no words: F1 of "C++" and "C#" is 1.
    """
    ours, theirs = word_tuple(answer), word_tuple(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


@dataclass(frozen=True, slots=True)
class ExactJudge:
    """Two answers are the same iff their normalised strings are equal. Free, and hard to beat on short answers."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="exact", version=2, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of normalised strings; the question plays no part."""
        return [normalise(a) == normalise(b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class TokenF1Judge:
    """Two answers are the same iff token-F1 >= threshold and both guards hold.

    Guards, because word overlap is blind to what matters most: the numbers in both answers are the same (as a
    multiset, digit by digit: "1.0" = "1", "1,000" = "1000"), so are the marks that `normalise` keeps, and both or
    neither contain a negation. A mark on one side only tells answers apart too ("$50" / "50", "C" / "C++"): that costs
    an answer at most. Only "=" is left out, for "x = 5" says no other than "5". Antonyms ("increases" / "decreases")
    are *not* caught: use an NLI or chat-model judge where they occur.

    Attributes:
        threshold: Smallest F1 that counts as the same, in (0, 1]. Declared before calibration, part of the artifact.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.5.")

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="token_f1", version=2, params={"threshold": self.threshold})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Overlap of words behind the two guards; the question plays no part."""
        return [self._same(a, b) for a, b in pairs]

    def _same(self, a: str, b: str) -> bool:
        if normalise(a) == normalise(b):
            return True
        return guards_hold(a, b) and token_f1(a, b) >= self.threshold


def guards_hold(a: str, b: str) -> bool:
    """Whether two answers have the same numbers and marks (as multisets) and both or neither contain a negation.

    An equivalence relation, and the same for all answers that `normalise` makes one.
    """
    return _guarded(a) == _guarded(b)


@lru_cache(maxsize=4096)
def _guarded(text: str) -> tuple[tuple[str, ...], bool]:
    """Numbers and marked words of a text, sorted, and whether it holds a negation."""
    found = marked_words(text)
    signs: list[str] = []
    for i, word in enumerate(found):
        if word.isalpha():
            continue
        if is_operator(word):
            signs += [word + _exact(found[i + 1] if i + 1 < len(found) else "")] if word != "=" else []
        else:
            signs += _signs(word)
    return tuple(sorted(signs)), any(_BARE.sub("", word) in _NEGATIONS for word in found)


@lru_cache(maxsize=8192)
def _signs(word: str) -> tuple[str, ...]:
    """What must be the same of a word with digits or marks: its numbers, or all of it."""
    if (_NUMBER.match(word) or word[0].isalnum()) and not ends_in_mark(word):  # "5", "-5", "5km", "b12"
        return tuple(_exact(number[0]) for number in _NUMBER.finditer(word))
    return (_exact(word),)  # "c++", "$50", "50%", "-x"


def _exact(word: str) -> str:
    """A word with its numbers as sign, digits and power of ten: "1.0" and "1" become "1e0". No float: digits count."""
    return _NUMBER.sub(_canonical, word)


def _canonical(number: re.Match[str]) -> str:
    whole, part = _ascii(number["whole"] or ""), _ascii(number["part"] or number["bare"] or "")
    digits = (whole + part).lstrip("0")
    if not digits:
        return "0e0"
    power = int(number["power"] or 0) - len(part) + len(digits) - len(digits.rstrip("0"))
    return f"{number['sign'] or ''}{digits.rstrip('0')}e{power}"


def _ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)
