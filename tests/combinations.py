"""Ranks for combinations of scores in tests."""

from __future__ import annotations

from collections.abc import Iterable

from guardrail.uncertainty.combine import Ranks
from guardrail.uncertainty.training import Training

__all__ = ["ranks_of"]


def ranks_of(*columns: Iterable[float]) -> Ranks:
    """Ranks among these scores, one column for each ranked part."""
    scores = tuple(tuple(sorted(float(value) for value in column)) for column in columns)
    return Ranks(scores=scores, questions=Training(ids=(), questions=()))
