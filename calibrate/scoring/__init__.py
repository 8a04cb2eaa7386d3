"""From records to scores: estimators by name, scoring of record files."""

from __future__ import annotations

from .names import parse_estimator
from .scores import arrays, score_records

__all__ = ["arrays", "parse_estimator", "score_records"]
