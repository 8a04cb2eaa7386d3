"""What a judge is: it decides whether two answers to a question mean the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from ..specs import JudgeSpec

__all__ = ["Entailment", "EntailmentScores", "Item", "Judge", "by_question", "judge_batch"]

Value = TypeVar("Value")
Item = tuple[str, str, str]
"""(question, a, b): two texts as answers to a question. Question "" means: there is none, prepend nothing."""


@runtime_checkable
class Judge(Protocol):
    """Decides equivalence for a batch of pairs.

    Equivalence must be symmetric: a judge that asks a directed question (entailment) asks it both ways itself.

    Answers with equal `normalise` strings are one before a judge is asked. A judge that tells such strings apart
    ("50%" and "50") has a method ``identity(text) -> str`` besides, which is used in place of `normalise`.

    Optional members:
        equivalent_batch(items: Sequence[Item]) -> list[bool | None]: Pairs of several questions at once, each
            (question, a, b). Used in place of ``equivalent`` where it is there.
        judges_tool_calls: bool: True where the judge knows what tool calls do, e.g. by their observations. All others
            never see canonical tool calls, which are the same only when their JSON is.
    """

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        ...

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Whether the answers of each pair mean the same as answers to ``question``.

        Returns:
            One verdict a pair, in order; None where none could be reached (the score is then unmeasured).
        """
        ...


@dataclass(frozen=True, slots=True)
class EntailmentScores:
    """What an entailment model says about a premise and a hypothesis: probabilities; all there are sum to 1.

    Attributes:
        entailment: The premise entails the hypothesis.
        neutral: Neither. None where the model has no such label.
        contradiction: The premise contradicts the hypothesis. None where the model has no such label.
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
        """Scores of each (question, premise, hypothesis), in order; None where there are none (then unmeasured)."""
        ...


def by_question(items: Sequence[Item], ask: Callable[[str, list[tuple[str, str]]], Sequence[Value]]) -> list[Value]:
    """Answers to items of several questions from something that takes one question at a time, in the order of items.

    Raises:
        ValueError: Not one answer a pair.
    """
    places: dict[str, list[int]] = {}
    for place, (question, _, _) in enumerate(items):
        places.setdefault(question, []).append(place)
    found: dict[int, Value] = {}
    for question, own in places.items():
        answers = ask(question, [items[place][1:] for place in own])
        found.update(zip(own, answers, strict=True))
    return [found[place] for place in range(len(items))]


def judge_batch(judge: Judge, items: Sequence[Item]) -> list[bool | None]:
    """Verdicts of a judge on pairs of several questions: in one batch where it takes one, else question by question."""
    batch: Callable[[Sequence[Item]], list[bool | None]] | None = getattr(judge, "equivalent_batch", None)
    return batch(items) if batch is not None else by_question(items, judge.equivalent)
