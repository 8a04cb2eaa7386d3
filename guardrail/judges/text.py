"""Judges that compare words: equal normal forms, and the words that an answer adds to its question; and the vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..specs import JudgeSpec
from ..types import Sample, SampleSet
from .base import EqualityJudge, Judge
from .words import CHANGING, asked_words, has_digit, normalise, own_words, read

__all__ = ["ExactJudge", "TextJudge", "distinct_answers", "majority", "with_majority"]


@dataclass(frozen=True, slots=True)
class ExactJudge(EqualityJudge):
    """Two answers are the same iff their normal forms are equal; see `guardrail.judges.words.normalise`.

    Free, and hard to beat on labels, formulas and code.
    """

    is_slow = False
    compares_words = True

    spec = JudgeSpec(name="exact", version=5, params={})

    def identity(self, text: str) -> str:
        """The normal form: answers with equal ones are the same."""
        return normalise(text)


@dataclass(frozen=True, slots=True)
class TextJudge(Judge):
    """Two answers are the same iff the longer one has enough of the shorter one's own words.

    An answer's own words are those that are neither function words nor in the question. Two answers are the same iff

    * they have the same numbers, single letters ("option A") and words that change what others say (`CHANGING`: "not",
      "or", "million"), in the same order; numbers may be missing from one of the answers, as a detail;
    * and of the other words, A the fewer and B the more of them: |A and B| / |A| >= ``threshold``. Without any in A,
      a number must be what they share, or B must have none either;
    * and not each of them names a number of the question that the other does not: which one is the answer then.

    A text with signs that are not prose (formulas, code, lists in brackets), and a text without own words, equals only
    its own normal form (`normalise`).

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
        words_of = {text: _OwnWords(question, text) for text in {text for pair in pairs for text in pair}}
        return [words_of[a].is_like(words_of[b], self.threshold) for a, b in pairs]


class _OwnWords:
    """The own words of an answer: numbers, words that change others, and the rest."""

    def __init__(self, question: str, text: str) -> None:
        words = own_words(question, text) if not read(text).marks else []
        self.normal = normalise(text)
        self.numbers = [word for word in words if has_digit(word)]
        self.changing = [word for word in words if word.casefold() in CHANGING or (len(word) == 1 and word.isalpha())]
        self.asked_numbers = frozenset(filter(has_digit, read(text).words)) & asked_words(question)
        self.names = frozenset(words).difference(self.numbers, self.changing)

    def is_like(self, other: _OwnWords, threshold: float) -> bool:
        if self.normal == other.normal:
            return True
        chosen, others = sorted((self.asked_numbers, other.asked_numbers), key=len)
        if self.changing != other.changing or not chosen <= others:
            return False
        fewest = min(len(self.names), len(other.names))
        if not fewest:
            return self.numbers == other.numbers and bool(self.numbers or (self.changing and self.names == other.names))
        details = self.numbers == other.numbers or not (self.numbers and other.numbers)
        return details and len(self.names & other.names) >= threshold * fewest


# -- The vote of the samples -------------------------------------------------------------------------------------------


def distinct_answers(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Distinct texts by their normal form with their counts, most frequent first; each in its first wording."""
    forms = [normalise(text) for text in texts]
    # Reversed, because the last entry of a dict wins: the first wording is to stay.
    first_wording = dict(zip(reversed(forms), reversed(texts), strict=True))
    return [(first_wording[form], count) for form, count in Counter(forms).most_common()]


def majority(samples: Sequence[Sample]) -> int | None:
    """Return the place of the most frequent sample, the earliest on a tie; None without samples.

    Texts are equal if their normal forms are, tool calls if their canonical forms are. Calibration and guards both call
    this function, so that a guard gives out what was calibrated.
    """
    if not samples:
        return None
    forms = [sample.comparable if sample.tool_calls else normalise(sample.text) for sample in samples]
    # A counter keeps the order of insertion, so the earliest of the most frequent forms comes first.
    return forms.index(Counter(forms).most_common(1)[0][0])


def with_majority(drawn: SampleSet) -> SampleSet:
    """The set with the vote of its samples as primary answer; all stay samples."""
    index = majority(drawn.samples)
    return drawn.model_copy(update={"primary": None if index is None else drawn.samples[index]})
