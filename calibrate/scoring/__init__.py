"""From records to scores: estimators by name, scoring of record files."""

from __future__ import annotations

from .compute import score_records
from .names import parse_estimator
from .scores import arrays

__all__ = ["arrays", "parse_estimator", "score_records"]
