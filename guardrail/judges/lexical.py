"""Judges that compare words: equal normal forms, and the words that an answer adds to its question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError
from ..specs import JudgeSpec
from .base import Judge
from .text import CHANGING, has_digit, normalise, own_words, read

__all__ = ["ExactJudge", "TextJudge"]


@dataclass(frozen=True, slots=True)
class ExactJudge(Judge):
    """Two answers are the same iff their normal forms are equal; see `guardrail.judges.text.normalise`.

    Free, and hard to beat on labels, formulas and code.
    """

    is_slow = False
    compares_words = True

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="exact", version=5, params={})

    def identity(self, text: str) -> str:
        """The normal form: answers with equal ones are the same."""
        return normalise(text)

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of normal forms; the question plays no part."""
        return [normalise(a) == normalise(b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class TextJudge(Judge):
    """Two answers are the same iff the longer one has enough of the shorter one's own words.

    An answer's own words are those that are neither function words nor in the question. With A the fewer and B the more
    of them, the answers are the same iff |A and B| / |A| >= ``threshold`` and nothing tells them apart:

    * Numbers of A are those of B that A has, in the same order; an answer of numbers only has all numbers of the other.
    * A word that changes what others say (`CHANGING`: "not", "or", "million") and a single letter ("option A") is in
      both or in neither.
    * A text with signs that are not prose (formulas, code, lists in brackets), and a text without own words, equals
      only its own normal form (`normalise`).

    The judge knows no synonyms and does not read the order of words: "Ann beat Bob" and "Bob beat Ann" are the same.

    Attributes:
        threshold: Smallest share of the shorter answer's own words, in (0, 1]. Part of the artifact.

    Raises:
        UsageError: ``threshold`` is not in (0, 1].
    """

    threshold: float = 0.6

    is_slow = False
    compares_words = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.6.")

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="text", version=1, params={"threshold": self.threshold})

    def identity(self, text: str) -> str:
        """The normal form: answers with equal ones are the same."""
        return normalise(text)

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Compare the answers' own words; each answer is read once."""
        own = {text: _OwnWords.of(question, text) for text in {text for pair in pairs for text in pair}}
        return [own[a].is_like(own[b], self.threshold) for a, b in pairs]


class _OwnWords(NamedTuple):
    normal: str
    names: frozenset[str]
    numbers: list[str]
    others: frozenset[str]
    """Words that both answers or neither must have: those of `CHANGING` and single letters."""

    @classmethod
    def of(cls, question: str, text: str) -> _OwnWords:
        own = own_words(question, text) if not read(text).marks else []
        numbers = [word for word in own if has_digit(word)]
        others = frozenset(word for word in own if word.casefold() in CHANGING or (len(word) == 1 and word.isalpha()))
        return cls(normalise(text), frozenset(own).difference(numbers, others), numbers, others)

    def is_like(self, other: _OwnWords, threshold: float) -> bool:
        if self.normal == other.normal:
            return True
        few, many = sorted((self, other), key=lambda own: (len(own.names), len(own.numbers)))
        if not (few.names or few.numbers):
            return bool(few.others) and few[1:] == many[1:]
        return (
            few.others == many.others
            and few.numbers == [number for number in many.numbers if not few.names or number in few.numbers]
            and len(few.names & many.names) >= threshold * len(few.names)
        )
