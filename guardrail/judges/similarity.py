"""Similarities rate how alike two answers are: what graph estimators build on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..specs import JudgeSpec
from .base import Comparer, Item, Judge, by_question, rating
from .words import agree, normalise, own_words, read

__all__ = ["GuardedJaccard", "Jaccard", "JudgeSimilarity", "RougeL", "Similarity", "from_judge"]


class Similarity(Comparer):
    """Rates how alike two answers are.

    A subclass defines ``spec`` and one of ``similarity`` and ``compare``; each is the default of the other.
    Similarity must be symmetric: if it asks a directed question (entailment), it averages both directions itself.
    """

    __slots__ = ()

    role = "similarity"

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Ratings of the answers of each pair, as answers to ``question``.

        Returns:
            One number in [0, 1] for each pair, in order, 1 for the same; None without a rating (the score is then
            unmeasured).
        """
        return list(self.compare([(question, a, b) for a, b in pairs]))

    def compare(self, items: Sequence[Item]) -> Sequence[float | None]:
        """Ratings of pairs of several questions at once, each (question, a, b)."""
        return by_question(items, self.similarity)

    @staticmethod
    def read(answer: float) -> float:
        """A rating, a number in [0, 1]."""
        return rating(answer)


def jaccard(answer: str, reference: str) -> float:
    """Jaccard similarity of the sets of words: |A and B| / |A or B|, in [0, 1], symmetric.

    Order and multiplicity of words do not count. Texts without words score 1 if equal, else 0.
    """
    return _overlap(read(answer).words, read(reference).words, answer, reference)


def _overlap(ours: Sequence[str], theirs: Sequence[str], a: str, b: str) -> float:
    if not ours or not theirs:
        return float(normalise(a) == normalise(b))
    return len({*ours} & {*theirs}) / len({*ours, *theirs})


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F1 of words: 2 LCS / (|A| + |B|), LCS the longest common subsequence. In [0, 1], symmetric.

    Texts without words score 1 if equal, else 0. Source: Lin 2004 with beta = 1. Difference: words as in
    `normalise` (articles dropped, numbers kept whole), no stemming.
    """
    ours, theirs = read(answer).words, read(reference).words
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return 2 * _common_subsequence(ours, theirs) / (len(ours) + len(theirs))


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence, with one bit for each word of ``ours``.

    Source: Hyyro 2004, "Bit-parallel LCS-length". The rows of the usual table differ by 0 or 1 from one column to the
    next; the zero bits of ``row`` are the ones.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(ours):
        # Python's integers have any length, so one addition advances a whole row of the table.
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(ours)) - 1
    row = full
    for word in theirs:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & full
    return len(ours) - row.bit_count()


@dataclass(frozen=True, slots=True)
class Jaccard(Similarity):
    """Similarity of two answers is the Jaccard similarity of their words; blind to marks, numbers and negation."""

    is_slow = False

    spec = JudgeSpec(name="jaccard", version=5, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of word sets; the question plays no part."""
        return [jaccard(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class GuardedJaccard(Similarity):
    """Jaccard similarity of the words that two answers add to the question, or 0 if a guard fails.

    Guards: the same numbers, signs that are not prose ("C++" is not "C#") and words that change others ("not").
    Antonyms and paraphrases without common words are not understood. An answer without own words
    is like its equal only.
    """

    is_slow = False

    spec = JudgeSpec(name="guarded_jaccard", version=8, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of own words behind the guards."""
        words_of = {text: own_words(question, text) for pair in pairs for text in pair}
        return [_overlap(words_of[a], words_of[b], a, b) if agree(a, b) else 0.0 for a, b in pairs]


@dataclass(frozen=True, slots=True)
class RougeL(Similarity):
    """Similarity of two answers is the ROUGE-L F1 of their words; blind to marks, numbers and negation."""

    is_slow = False

    spec = JudgeSpec(name="rouge_l", version=5, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Longest common subsequence of words; the question plays no part."""
        return [rouge_l(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class JudgeSimilarity(Similarity):
    """1 if a judge calls two answers the same, 0 if it does not, None if it gives no verdict.

    Attributes:
        judge: The judge. Its spec is part of this spec.
    """

    judge: Judge

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="from_judge", version=1, params={"judge": self.judge.spec.model_dump()})

    @property
    def is_slow(self) -> bool:
        """The value of the judge."""
        return self.judge.is_slow

    @property
    def judges_tool_calls(self) -> bool:
        """The value of the judge."""
        return self.judge.judges_tool_calls

    def identity(self, text: str) -> str:
        """The value of the judge."""
        return self.judge.identity(text)

    def compare(self, items: Sequence[Item]) -> list[float | None]:
        """The judge's verdicts as numbers."""
        return [None if same is None else float(same) for same in self.judge.compare(items)]


def from_judge(judge: Judge) -> JudgeSimilarity:
    """A judge as a similarity: 1.0 for the same, 0.0 for not."""
    return JudgeSimilarity(judge)
