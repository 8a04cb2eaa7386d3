"""Judges: whether two answers mean the same, or how alike they are. Judges that read a model are in `integrations`."""

from __future__ import annotations

from ..specs import JudgeSpec
from ..types import canonical_calls
from .base import Entailment, EntailmentScores, EqualityJudge, Item, Judge
from .json_value import JsonJudge
from .numbers import NumericJudge
from .registry import (
    default_judge,
    list_judges,
    list_similarities,
    make_entailment,
    make_judge,
    make_similarity,
)
from .similarity import GuardedJaccard, Jaccard, JudgeSimilarity, RougeL, Similarity, from_judge
from .text import ExactJudge, TextJudge, distinct_answers, majority, with_majority
from .tool_call import ToolCallJudge, is_canonical_call
from .words import is_refusal, normalise

__all__ = [
    "Entailment",
    "EntailmentScores",
    "EqualityJudge",
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
    "TextJudge",
    "ToolCallJudge",
    "canonical_calls",
    "default_judge",
    "distinct_answers",
    "from_judge",
    "is_canonical_call",
    "is_refusal",
    "list_judges",
    "list_similarities",
    "majority",
    "make_entailment",
    "make_judge",
    "make_similarity",
    "normalise",
    "with_majority",
]
