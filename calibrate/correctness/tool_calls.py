"""A rule for agents: the proposed tool calls are the reference's."""

from __future__ import annotations

from typing import Any

from guardrail.artifact import CorrectnessSpec
from guardrail.judges import ToolCallJudge, normalise
from guardrail.judges.tool_call import read_calls

from ..datasets import Question
from .base import Label

__all__ = ["ToolCalls"]


class ToolCalls:
    """Right iff the tool calls are those of a reference, as `ToolCallJudge` with the same options compares them.

    A reference is a text, or calls as JSON: ``{"name": ..., "arguments": {...}}`` or a list of such. An answer without
    calls is right iff a reference has none either and the normalised texts are equal; a call where a text was right is
    wrong, and the other way round.

    Args:
        **options: Options of `ToolCallJudge`.

    Raises:
        UsageError: An option that cannot be read.
    """

    def __init__(self, **options: Any) -> None:
        self._judge = ToolCallJudge(**options)

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        judged = self._judge.spec
        return CorrectnessSpec(name="tool_call", version=judged.version, params=dict(judged.params))

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        return Label(any(self._same(answer, reference) for reference in question.references))

    def _same(self, answer: str, reference: str) -> bool:
        ours, theirs = read_calls(answer), read_calls(reference)
        if ours is None or theirs is None:
            return ours is None and theirs is None and normalise(answer) == normalise(reference)
        return self._judge.identity(answer) == self._judge.identity(reference)
