"""The base classes of judges, similarities and entailment models: each compares two answers to a question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from ..specs import JudgeSpec
from .words import unspaced

__all__ = ["Comparer", "Entailment", "EntailmentScores", "EqualityJudge", "Item", "Judge", "Role", "by_question"]
__all__ += ["rating"]

Value = TypeVar("Value")
Role = Literal["judge", "similarity", "entailment"]
"""What a score asks about pairs of texts; the field of `EstimatorSpec` that stores it."""
Item = tuple[str, str, str]
"""(question, a, b): two texts as answers to a question. An empty question means that there is none."""


class Comparer(ABC):
    """The facts that judges, similarities and entailment models state: a `spec`, and others that have safe defaults."""

    __slots__ = ()

    role: ClassVar[Role]
    compares_words: ClassVar[bool] = False
    """True if it compares words, and misses which of them matter in JSON or in a tool call."""

    @property
    @abstractmethod
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""

    @abstractmethod
    def compare(self, items: Sequence[Item]) -> Sequence[Any]:
        """Verdicts, ratings or scores of several questions at once: one for each item, in order; None without one."""

    @staticmethod
    @abstractmethod
    def read(answer: Any) -> bool | float:
        """An answer as scores read it.

        Raises:
            ValueError: It is not one.
        """

    @property
    def is_slow(self) -> bool:
        """True if asking takes noticeable time: async callers then measure in a thread, and answers are worth caching.

        Default: True. A class states otherwise with ``is_slow = False``, also for its subclasses.
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

    A subclass defines ``spec`` and one of ``equivalent`` and ``compare``; each is the default of the other.
    Equivalence must be symmetric: a judge that asks a directed question (entailment) asks it both ways itself.
    """

    __slots__ = ()

    role = "judge"

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Verdicts on pairs: whether the answers of each mean the same as answers to ``question``.

        Returns:
            One verdict for each pair, in order; None without a verdict (the score is then unmeasured).
        """
        return list(self.compare([(question, a, b) for a, b in pairs]))

    def compare(self, items: Sequence[Item]) -> Sequence[bool | None]:
        """Verdicts on pairs of several questions at once, each (question, a, b)."""
        return by_question(items, self.equivalent)

    @staticmethod
    def read(answer: Any) -> bool:
        """A verdict, True or False."""
        # Truthiness is not enough: a judge that returns "no" or a probability would call every pair the same.
        if not isinstance(answer, bool) and getattr(answer, "dtype", None) != "bool":  # numpy's are not Python's
            raise ValueError(f"a verdict must be True, False or None, got a {type(answer).__name__}")
        return bool(answer)


class EqualityJudge(Judge):
    """Two answers are the same iff their keys are equal: a subclass defines ``spec`` and ``identity``.

    Example:
        >>> class FirstLetter(EqualityJudge):
        ...     is_slow = False
        ...     spec = JudgeSpec(name="first_letter", version=1, params={})
        ...
        ...     def identity(self, text: str) -> str:
        ...         return text[:1].casefold()
        >>> FirstLetter().compare([("Capital of France?", "Paris", "paris, France")])
        [True]
    """

    __slots__ = ()

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


class Entailment(Comparer):
    """Says whether a premise entails or contradicts a hypothesis: directed, unlike a `Judge`.

    A subclass defines ``spec`` and ``compare``.
    """

    __slots__ = ()

    role = "entailment"

    @abstractmethod
    def compare(self, items: Sequence[Item]) -> Sequence[EntailmentScores | None]:
        """Scores of each (question, premise, hypothesis), in order; None without scores (then unmeasured)."""

    @staticmethod
    def read(answer: EntailmentScores) -> float:
        """P(contradiction) / (P(contradiction) + P(entailment))."""
        # A model with two labels cannot tell contradiction from unrelated, and 0 would mean certain.
        if answer.contradiction is None:
            raise ValueError("the model has no label for a contradiction; use one with three labels")
        total = rating(answer.contradiction) + rating(answer.entailment)
        # Everything is neutral: the ratio does not exist, and 0 would count as no contradiction at all.
        if total <= 0:
            raise ValueError("neither entailment nor contradiction has any probability")
        return answer.contradiction / total


def rating(value: float) -> float:
    """A number in [0, 1] as a float; raises ValueError for any other."""
    # Written so that NaN, which compares false with everything, is refused too.
    if not 0 <= value <= 1:
        raise ValueError(f"a similarity must be in [0, 1], got {value}")
    return float(value)


def by_question(items: Sequence[Item], ask: Callable[[str, list[tuple[str, str]]], Sequence[Value]]) -> list[Value]:
    """Answers to items of several questions, in order, from a function that takes one question at a time.

    Raises:
        ValueError: The number of answers is not the number of pairs.
    """
    places: dict[str, list[int]] = {}
    for index, (question, _, _) in enumerate(items):
        places.setdefault(question, []).append(index)
    answer_at: dict[int, Value] = {}
    for question, indices in places.items():
        answers = ask(question, [items[index][1:] for index in indices])
        if len(answers) != len(indices):  # a missing answer would shift all later verdicts to other pairs
            raise ValueError(f"{len(answers)} answers for {len(indices)} pairs")
        answer_at.update(zip(indices, answers, strict=True))
    return [answer_at[index] for index in range(len(items))]
