"""Uncertainty estimators: pure functions over a `SampleSet`, higher = less certain."""

from __future__ import annotations

from ..specs import EstimatorSpec
from ..types import Missing
from .base import Estimator, Evidence, Needs
from .combine import rank_mean, then, ties
from .comparing import Clusters, cluster
from .measure import measure, measure_stream
from .plan import plan_for, unmet_needs
from .registry import from_spec, list_estimators, make_estimator
from .scorer import Scorer, scorer

__all__ = [
    "Clusters",
    "Estimator",
    "EstimatorSpec",
    "Evidence",
    "Missing",
    "Needs",
    "Scorer",
    "cluster",
    "from_spec",
    "list_estimators",
    "make_estimator",
    "measure",
    "measure_stream",
    "plan_for",
    "rank_mean",
    "scorer",
    "then",
    "ties",
    "unmet_needs",
]
