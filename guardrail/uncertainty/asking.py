"""What has to be asked about the pieces of answers, and about the sentences of one: the steps of a measurement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..judges import normalise
from ..types import SampleSet, Unmeasured
from .base import Level, Missing
from .clustering import Steps
from .relevance import Piece, pieces

__all__ = ["all_pieces", "contradictions", "relevance_of"]


def all_pieces(drawn: SampleSet, level: Level) -> tuple[tuple[Piece, ...], ...] | Missing:
    """The pieces of every sample, or why one of them has none."""
    found = []
    for sample in drawn.samples:
        if sample.tool_calls:
            return Missing(Unmeasured.NO_LOGPROBS, "a tool call has no words whose log-probabilities could be weighed")
        own = pieces(sample, level)
        if isinstance(own, Missing):
            return own
        found.append(own)
    return tuple(found)


def relevance_of(
    answers: Sequence[str], own: Sequence[Sequence[Piece]], similarity: object
) -> Steps[float, tuple[tuple[float, ...], ...]]:
    """Similarity of each answer to itself without each of its pieces.

    It is 0 where nothing is left, and 1 where what is left is the same string to the similarity (`clustering.fold`);
    neither is asked.
    """
    identity = getattr(similarity, "identity", normalise)
    known: dict[tuple[str, str], float] = {}
    asked: dict[tuple[str, str], None] = {}
    for answer, parts in zip(answers, own, strict=True):
        itself = identity(answer)
        for piece in parts:
            pair = (answer, piece.without)
            if not piece.without.strip():
                known[pair] = 0.0
            elif identity(piece.without) == itself:
                known[pair] = 1.0
            else:
                asked[pair] = None
    rated = yield list(asked)
    for pair, value in zip(asked, rated, strict=True):
        if value is None:
            return None
        known[pair] = value
    return tuple(
        tuple(known[answer, piece.without] for piece in parts) for answer, parts in zip(answers, own, strict=True)
    )


def contradictions(hypotheses: Sequence[str], premises: Sequence[str]) -> Steps[float, NDArray[np.float64]]:
    """How far each premise contradicts each hypothesis, shape (hypotheses, premises)."""
    pairs = [(premise, hypothesis) for hypothesis in hypotheses for premise in premises]
    found = yield pairs
    if any(value is None for value in found):
        return None
    return np.array(found, dtype=np.float64).reshape(len(hypotheses), len(premises))
