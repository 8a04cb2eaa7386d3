"""Correctness rules, which decide whether an answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from guardrail.specs import CorrectnessSpec

from ..data.progress import Progress
from ..data.questions import Question

__all__ = ["BatchRule", "CorrectnessRule", "Label", "rule_fact"]


@dataclass(frozen=True, slots=True)
class Label:
    """Whether an answer is right, or why that cannot be decided.

    Attributes:
        correct: True, False, or None when it cannot be decided.
        detail: Why not, in words.
    """

    correct: bool | None
    detail: str = ""


class CorrectnessRule(Protocol):
    """Decides whether an answer is right.

    A class may state two facts about its rule; both are False where they are missing (`rule_fact`):

    * ``reads_tool_calls``: it is given an answer's tool calls as JSON, not the text beside them.
    * ``compares_words``: it compares words, and misses which of them matter in JSON or in a tool call.
    """

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters: what the artifact stores."""
        ...

    def label(self, answer: str, question: Question) -> Label:
        """Label one answer. ``question`` has at least one reference."""
        ...


@runtime_checkable
class BatchRule(CorrectnessRule, Protocol):
    """A rule that is faster on many answers at once, because it asks a model."""

    def label_all(self, items: Sequence[tuple[str, Question]], progress: Progress) -> list[Label]:
        """Label answers, in order. Every question has at least one reference."""
        ...


def rule_fact(rule: object, fact: Literal["reads_tool_calls", "compares_words"]) -> bool:
    """Whether a rule or judge, or its class, states a fact about itself; see `CorrectnessRule`."""
    return bool(getattr(rule, fact, False))
