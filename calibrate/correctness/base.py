"""Correctness rules, which decide whether an answer is right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from guardrail.specs import CorrectnessSpec

from ..data.progress import Progress, silent
from ..data.questions import Question


@dataclass(frozen=True, slots=True)
class Label:
    """The verdict on an answer, or why that cannot be decided.

    Attributes:
        correct: True, False, or None when it cannot be decided.
        detail: Why not, in words.
    """

    correct: bool | None
    detail: str = ""


class CorrectnessRule(ABC):
    """Decides whether an answer is right. A subclass defines ``spec`` and ``label``, and states what it reads."""

    __slots__ = ()

    reads_tool_calls: ClassVar[bool] = False
    """True if it is given an answer's tool calls as JSON, not the text beside them."""
    compares_words: ClassVar[bool] = False
    """True if it compares words, and misses which of them matter in JSON or in a tool call."""

    @property
    @abstractmethod
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters: what the artifact stores."""

    @abstractmethod
    def label(self, answer: str, question: Question) -> Label:
        """Label one answer. ``question`` has at least one reference."""

    def label_all(self, items: Sequence[tuple[str, Question]], progress: Progress = silent) -> list[Label]:
        """Label answers, in order; a rule that asks a model is faster on many at once."""
        return [self.label(answer, question) for answer, question in items]
