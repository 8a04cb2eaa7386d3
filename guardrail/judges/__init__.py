"""Judges: whether two answers mean the same, or how alike they are. The light ones live here."""

from __future__ import annotations

from .base import Entailment, EntailmentScores, Item, Judge, JudgeSpec
from .json_value import JsonJudge
from .lexical import ExactJudge, TokenF1Judge, token_f1
from .normalise import is_refusal, normalise, words
from .numeric import NumericJudge
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
from .tool_call import ToolCallJudge, canonical_calls, is_canonical_call

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
