"""Correctness rules: whether the primary answer is right, given the accepted answers.

A rule is fixed before calibration and stored with its parameters: "at most 10 % wrong" means wrong *by this rule*.
Rules err; read some labels before you trust a threshold. An answer that a rule cannot decide counts as wrong until a
person or a model labels it.
"""

from __future__ import annotations

from .base import CorrectnessRule, Label
from .chat_judge import ChatLabelJudge
from .registry import available_rules, default_rule, label_file, label_records, make_rule
from .rules import Contains, Exact, JsonValues, Numeric, Option, OwnRule, TokenF1, ToolCalls
from .stated import Stated

__all__ = [
    "ChatLabelJudge",
    "Contains",
    "CorrectnessRule",
    "Exact",
    "JsonValues",
    "Label",
    "Numeric",
    "Option",
    "OwnRule",
    "Stated",
    "TokenF1",
    "ToolCalls",
    "available_rules",
    "default_rule",
    "label_file",
    "label_records",
    "make_rule",
]
