"""What a correctness rule is: it decides whether an answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from guardrail.specs import CorrectnessSpec

from ..data.progress import Progress
from ..data.questions import Question

__all__ = ["BatchRule", "CorrectnessRule", "Label"]


@dataclass(frozen=True, slots=True)
class Label:
    """Whether an answer is right, or why that cannot be told.

    Attributes:
        correct: True, False, or None when it cannot be told.
        detail: Why not, in words.
    """

    correct: bool | None
    detail: str = ""


class CorrectnessRule(Protocol):
    """Decides whether an answer is right."""

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
