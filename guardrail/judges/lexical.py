"""Judges that compare words: exact (normalised) and token-F1 with number and negation guards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import UsageError
from .base import JudgeSpec
from .normalise import normalise, word_tuple

__all__ = ["ExactJudge", "TokenF1Judge", "guards_hold", "token_f1"]

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "neither", "nor", "without", "cannot", "false", "nobody", "nothing", "nowhere"}
)


def token_f1(answer: str, reference: str) -> float:
    """Token-F1 of two answers: harmonic mean of precision and recall over normalised words, with multiplicity.

    F1 = 2 P R / (P + R), P = |common| / |answer|, R = |common| / |reference|; in [0, 1], symmetric. Two answers
    without words score 1 when equal, else 0. Source: SQuAD evaluation (Rajpurkar et al. 2016), whose CoQA variant
    differs only in the article list.
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
        return JudgeSpec(name="exact", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of normalised strings; the question plays no part."""
        return [normalise(a) == normalise(b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class TokenF1Judge:
    """Two answers are the same iff token-F1 >= threshold and both guards hold.

    Guards, because word overlap is blind to what matters most: the numbers in both answers are the same (as a
    multiset of values, "1,000" = "1000"), and both or neither contain a negation. Antonyms ("increases" / "decreases")
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
        return JudgeSpec(name="token_f1", version=1, params={"threshold": self.threshold})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Overlap of words behind the two guards; the question plays no part."""
        return [self._same(a, b) for a, b in pairs]

    def _same(self, a: str, b: str) -> bool:
        if normalise(a) == normalise(b):
            return True
        return guards_hold(a, b) and token_f1(a, b) >= self.threshold


def guards_hold(a: str, b: str) -> bool:
    """Whether two answers have the same numbers (as a multiset of values) and both or neither contain a negation."""
    return _guarded(a) == _guarded(b)


@lru_cache(maxsize=4096)
def _guarded(text: str) -> tuple[tuple[float, ...], bool]:
    """Numbers of a text, ascending, and whether it holds a negation."""
    return _numbers(text), _negated(text)


def _numbers(text: str) -> tuple[float, ...]:
    found = [word for word in word_tuple(text) if word[0] == "-" or word[0].isdigit()]
    return tuple(sorted(float(word) for word in found if _NUMBER.fullmatch(word))) if found else ()


def _negated(text: str) -> bool:
    return not _NEGATIONS.isdisjoint(word_tuple(text))
