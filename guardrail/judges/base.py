"""What a judge is: it decides whether two answers to a question mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..types import Frozen

__all__ = ["Judge", "JudgeSpec"]


class JudgeSpec(Frozen):
    """What an artifact stores about a judge; another spec at run time is a mismatch."""

    name: str
    """Name of the judge."""
    version: int
    """Raised by any change that can move a verdict."""
    params: dict[str, Any]
    """Parameters, e.g. thresholds, model and revision."""


@runtime_checkable
class Judge(Protocol):
    """Decides equivalence for a batch of pairs.

    Equivalence must be symmetric: a judge that asks a directed question (entailment) asks it both ways itself.

    Answers with equal `normalise` strings are one before a judge is asked. A judge that tells such strings apart
    ("50%" and "50") has a method ``identity(text) -> str`` besides, which is used in place of `normalise`.
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
