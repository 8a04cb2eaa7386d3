"""The base classes of judges, similarities and entailment models: each compares two answers to a question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from ..specs import JudgeSpec
from .words import unspaced

__all__ = ["Comparer", "Entailment", "EntailmentScores", "EqualityJudge", "Item", "Judge", "by_question"]

Value = TypeVar("Value")
Item = tuple[str, str, str]
"""(question, a, b): two texts as answers to a question. An empty question means that there is none."""


class Comparer(ABC):
    """The facts that judges and similarities state: a `spec`, and others that have safe defaults.

    ``is_slow`` holds for the class that states it. A subclass must state it again: it may ask a model where its base
    class does not.
    """

    __slots__ = ()

    compares_words: ClassVar[bool] = False
    """True if it compares words, and misses which of them matter in JSON or in a tool call."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # vars and not getattr: an inherited value is the very thing that must not count.
        if "is_slow" not in vars(cls):
            cls.is_slow = True  # type: ignore[assignment]

    @property
    @abstractmethod
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""

    @property
    def is_slow(self) -> bool:
        """True if asking takes noticeable time: async callers then measure in a thread, and answers are worth caching.

        Default: True. A class states otherwise with ``is_slow = False``.
        """
        return True

    @property
    def judges_tool_calls(self) -> bool:
        """True if it knows what tool calls do, e.g. by their observations. Default: False.

        Otherwise it never sees canonical tool calls: two of them are the same only if their JSON is equal.
        """
        return False

    def left_out(self, answer: str) -> tuple[str, ...]:
        """Names of the parts of an answer that it never compares, so that no verdict is about them. Default: none."""
        return ()

    def identity(self, text: str) -> str:
        """Key of a text: answers with equal keys are one answer before anything is compared. Default: the text.

        White space does not count. Override it only for an equivalence relation that needs no judgement.
        """
        return unspaced(text)


class Judge(Comparer):
    """Decides whether two answers mean the same.

    A subclass defines ``spec`` and one of ``equivalent`` and ``equivalent_batch``; each is the default of the other.
    Equivalence must be symmetric: a judge that asks a directed question (entailment) asks it both ways itself.
    """

    __slots__ = ()

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Verdicts on pairs: whether the answers of each mean the same as answers to ``question``.

        Returns:
            One verdict for each pair, in order; None without a verdict (the score is then unmeasured).
        """
        return self.equivalent_batch([(question, a, b) for a, b in pairs])

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        """Verdicts on pairs of several questions at once, each (question, a, b)."""
        return by_question(items, self.equivalent)


class EqualityJudge(Judge):
    """Two answers are the same iff their keys are equal: a subclass defines ``spec`` and ``identity``.

    Example:
        >>> class FirstLetter(EqualityJudge):
        ...     is_slow = False
        ...     spec = JudgeSpec(name="first_letter", version=1, params={})
        ...
        ...     def identity(self, text: str) -> str:
        ...         return text[:1].casefold()
        >>> FirstLetter().equivalent_batch([("Capital of France?", "Paris", "paris, France")])
        [True]
    """

    __slots__ = ()

    is_slow = False

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of keys; the question plays no part."""
        return [self.identity(a) == self.identity(b) for a, b in pairs]


@dataclass(frozen=True, slots=True)
class EntailmentScores:
    """Probabilities of an entailment model for a premise and a hypothesis. The probabilities that it gives sum to 1.

    Attributes:
        entailment: The premise entails the hypothesis.
        neutral: Neither of the two. None if the model lacks this label.
        contradiction: The premise contradicts the hypothesis. None if the model lacks this label.
    """

    entailment: float
    neutral: float | None = None
    contradiction: float | None = None


@runtime_checkable
class Entailment(Protocol):
    """Says whether a premise entails or contradicts a hypothesis: directed, unlike a `Judge`."""

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        ...

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        """Scores of each (question, premise, hypothesis), in order; None without scores (then unmeasured)."""
        ...


def by_question(items: Sequence[Item], ask: Callable[[str, list[tuple[str, str]]], Sequence[Value]]) -> list[Value]:
    """Answers to items of several questions, in order, from a function that takes one question at a time.

    Raises:
        ValueError: The number of answers is not the number of pairs.
    """
    places: dict[str, list[int]] = {}
    for place, (question, _, _) in enumerate(items):
        places.setdefault(question, []).append(place)
    answer_at: dict[int, Value] = {}
    for question, own in places.items():
        answers = ask(question, [items[place][1:] for place in own])
        if len(answers) != len(own):  # a missing answer would shift all later verdicts to other pairs
            raise ValueError(f"{len(answers)} answers for {len(own)} pairs")
        answer_at.update(zip(own, answers, strict=True))
    return [answer_at[place] for place in range(len(items))]
