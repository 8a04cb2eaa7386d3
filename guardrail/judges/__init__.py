"""Judges: whether two answers mean the same, or how alike they are. The light ones live here."""

from __future__ import annotations

from ..specs import JudgeSpec
from ..types import canonical_calls
from .base import Entailment, EntailmentScores, Item, Judge
from .json_value import JsonJudge
from .numbers import NumericJudge
from .registry import available, available_entailments, default_judge, make, make_entailment
from .similarity import (
    GuardedJaccard,
    Jaccard,
    JudgeSimilarity,
    RougeL,
    Similarity,
    available_similarities,
    from_judge,
    make_similarity,
)
from .text import ExactJudge, TokenF1Judge, is_refusal, normalise, token_f1, words
from .tool_call import ToolCallJudge, is_canonical_call

__all__ = [
    "Entailment",
    "EntailmentScores",
    "ExactJudge",
    "GuardedJaccard",
    "Item",
    "Jaccard",
    "JsonJudge",
    "Judge",
    "JudgeSimilarity",
    "JudgeSpec",
    "NumericJudge",
    "RougeL",
    "Similarity",
    "TokenF1Judge",
    "ToolCallJudge",
    "available",
    "available_entailments",
    "available_similarities",
    "canonical_calls",
    "default_judge",
    "from_judge",
    "is_canonical_call",
    "is_refusal",
    "make",
    "make_entailment",
    "make_similarity",
    "normalise",
    "token_f1",
    "words",
]
