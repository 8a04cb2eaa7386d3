"""How alike two answers are, as a number: what graph estimators build on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..specs import JudgeSpec
from .base import Item, Judge, judge_batch
from .registry import Registry, is_light, make
from .text import guards_hold, normalise, word_tuple

__all__ = [
    "GuardedJaccard",
    "Jaccard",
    "JudgeSimilarity",
    "RougeL",
    "Similarity",
    "available_similarities",
    "from_judge",
    "is_light_similarity",
    "jaccard",
    "make_similarity",
    "rouge_l",
]


@runtime_checkable
class Similarity(Protocol):
    """Says how alike the answers of each pair are.

    Similarity must be symmetric: one that asks a directed question (entailment) averages both directions itself. As
    with judges, answers with equal `normalise` strings (or ``identity`` strings) are one before it is asked.

    Optional member: similarity_batch(items: Sequence[Item]) -> list[float | None], pairs of several questions at once,
    each (question, a, b), used in place of ``similarity`` where it is there.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        ...

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """How alike the answers of each pair are as answers to ``question``.

        Returns:
            One number in [0, 1] a pair, in order, 1 for the same; None where none could be reached (the score is then
            unmeasured).
        """
        ...


def jaccard(answer: str, reference: str) -> float:
    """Jaccard similarity of the sets of normalised words: |A and B| / |A or B|, in [0, 1], symmetric.

    Order and multiplicity of words play no part. Texts without words score 1 when equal, else 0.
    """
    ours, theirs = set(word_tuple(answer)), set(word_tuple(reference))
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return len(ours & theirs) / len(ours | theirs)


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F1 of normalised words: 2 LCS / (|A| + |B|), LCS the longest common subsequence. In [0, 1], symmetric.

    Texts without words score 1 when equal, else 0. Source: Lin 2004 with beta = 1. Difference: words as in
    `normalise` (articles dropped, numbers kept whole), no stemming.
    """
    ours, theirs = word_tuple(answer), word_tuple(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return 2 * _common_subsequence(ours, theirs) / (len(ours) + len(theirs))


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence, a bit a word of ``ours`` (Hyyro 2004, "Bit-parallel LCS-length").

    The rows of the usual table differ by 0 or 1 from one column to the next; the zero bits of ``row`` are the ones.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(ours):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(ours)) - 1
    row = full
    for word in theirs:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & full
    return len(ours) - row.bit_count()


@dataclass(frozen=True, slots=True)
class Jaccard:
    """Similarity of two answers is the Jaccard similarity of their words; blind to marks, numbers and negation."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="jaccard", version=2, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of word sets; the question plays no part."""
        return [jaccard(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class GuardedJaccard:
    """Jaccard similarity of words, or 0 where the guards of `TokenF1Judge` fail.

    Guards: the same numbers and marks ("C++" is not "C#"), and both or neither contain a negation. Antonyms and
    paraphrases without common words are not understood.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="guarded_jaccard", version=2, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of word sets behind the guards; the question plays no part."""
        return [jaccard(a, b) if guards_hold(a, b) else 0.0 for a, b in pairs]


@dataclass(frozen=True, slots=True)
class RougeL:
    """Similarity of two answers is the ROUGE-L F1 of their words; blind to marks, numbers and negation."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="rouge_l", version=2, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Longest common subsequence of words; the question plays no part."""
        return [rouge_l(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class JudgeSimilarity:
    """1 where a judge calls two answers the same, 0 where it does not, None where it gives no verdict.

    Attributes:
        judge: The judge. Its spec is part of this spec.
    """

    judge: Judge

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="from_judge", version=1, params={"judge": self.judge.spec.model_dump()})

    def identity(self, text: str) -> str:
        """What the judge itself takes for the same string."""
        identity: Callable[[str], str] = getattr(self.judge, "identity", normalise)
        return identity(text)

    @property
    def judges_tool_calls(self) -> bool:
        """Whether the judge knows what tool calls do."""
        return getattr(self.judge, "judges_tool_calls", False) is True

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """The judge's verdicts as numbers."""
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        """The judge's verdicts as numbers, for several questions at once."""
        return [None if same is None else float(same) for same in judge_batch(self.judge, items)]


def from_judge(judge: Judge) -> JudgeSimilarity:
    """A judge as a similarity: 1.0 for the same, 0.0 for not."""
    return JudgeSimilarity(judge)


def _remade(judge: dict[str, Any]) -> JudgeSimilarity:
    stored = JudgeSpec.model_validate(judge)
    return JudgeSimilarity(make(stored.name, **stored.params))


_SIMILARITIES: Registry[Similarity] = Registry(
    "similarity",
    "acrc_guardrail.similarities",
    {"from_judge": _remade, "guarded_jaccard": GuardedJaccard, "jaccard": Jaccard, "rouge_l": RougeL},
)


def available_similarities() -> tuple[str, ...]:
    """Names of the similarities that can be made by name, sorted. Not all of their packages need be installed."""
    return _SIMILARITIES.available()


def make_similarity(name: str, **params: Any) -> Similarity:
    """Make a similarity by name, with the parameters of its spec.

    Raises:
        UsageError: No similarity of that name, or parameters that it does not take.
        MissingDependencyError: The package that it needs is not installed.
    """
    return _SIMILARITIES.make(name, **params)


def is_light_similarity(similarity: JudgeSpec) -> bool:
    """Whether the similarity needs no model: asking it is cheaper than looking a rating up."""
    if similarity.name == "from_judge":
        return is_light(str(similarity.params["judge"]["name"]))
    return _SIMILARITIES.is_light(similarity.name)
