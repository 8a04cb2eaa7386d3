"""How alike two answers are, as a number: what graph estimators build on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..errors import UsageError
from .base import Judge, JudgeSpec
from .lexical import guards_hold
from .normalise import normalise, words
from .registry import make

__all__ = [
    "GuardedJaccard",
    "Jaccard",
    "JudgeSimilarity",
    "RougeL",
    "Similarity",
    "available_similarities",
    "from_judge",
    "jaccard",
    "make_similarity",
    "rouge_l",
]


@runtime_checkable
class Similarity(Protocol):
    """Says how alike the answers of each pair are.

    Similarity must be symmetric: one that asks a directed question (entailment) averages both directions itself. As
    with judges, answers with equal `normalise` strings (or ``identity`` strings) are one before it is asked.
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
    ours, theirs = set(words(answer)), set(words(reference))
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return len(ours & theirs) / len(ours | theirs)


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F1 of normalised words: 2 LCS / (|A| + |B|), LCS the longest common subsequence. In [0, 1], symmetric.

    Texts without words score 1 when equal, else 0. Source: Lin 2004 with beta = 1. Difference: words as in
    `normalise` (articles dropped, numbers kept whole), no stemming.
    """
    ours, theirs = words(answer), words(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    above = [0] * (len(theirs) + 1)
    for word in ours:
        row = [0]
        for j, other in enumerate(theirs):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        above = row
    return 2 * above[-1] / (len(ours) + len(theirs))


@dataclass(frozen=True, slots=True)
class Jaccard:
    """Similarity of two answers is the Jaccard similarity of their words; blind to numbers and negation."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="jaccard", version=1, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of word sets; the question plays no part."""
        return [jaccard(a, b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class GuardedJaccard:
    """Jaccard similarity of words, or 0 where the guards of `TokenF1Judge` fail.

    Guards: the same numbers, and both or neither contain a negation. Antonyms and paraphrases without common words are
    not understood.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="guarded_jaccard", version=1, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """Overlap of word sets behind the guards; the question plays no part."""
        return [jaccard(a, b) if guards_hold(a, b) else 0.0 for a, b in pairs]


@dataclass(frozen=True, slots=True)
class RougeL:
    """Similarity of two answers is the ROUGE-L F1 of their words; blind to numbers and negation."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="rouge_l", version=1, params={})

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

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        """The judge's verdicts as numbers."""
        return [None if same is None else float(same) for same in self.judge.equivalent(question, pairs)]


def from_judge(judge: Judge) -> JudgeSimilarity:
    """A judge as a similarity: 1.0 for the same, 0.0 for not."""
    return JudgeSimilarity(judge)


def _remade(judge: dict[str, Any]) -> JudgeSimilarity:
    stored = JudgeSpec.model_validate(judge)
    return JudgeSimilarity(make(stored.name, **stored.params))


_SIMILARITIES: dict[str, Callable[..., Similarity]] = {
    "from_judge": _remade,
    "guarded_jaccard": GuardedJaccard,
    "jaccard": Jaccard,
    "rouge_l": RougeL,
}


def available_similarities() -> tuple[str, ...]:
    """Names of the similarities that can be made by name, sorted."""
    return tuple(sorted(_SIMILARITIES))


def make_similarity(name: str, **params: Any) -> Similarity:
    """Make a similarity by name, with the parameters of its spec.

    Raises:
        UsageError: No similarity of that name, or parameters that it does not take.
    """
    if name not in _SIMILARITIES:
        raise UsageError(f"no similarity named {name!r}; choose one of {', '.join(available_similarities())}")
    try:
        return _SIMILARITIES[name](**params)
    except (TypeError, ValueError) as error:
        raise UsageError(f"similarity {name!r} does not take the parameters {params}: {error}") from error
