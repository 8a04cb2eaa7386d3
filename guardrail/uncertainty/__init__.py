"""Uncertainty estimators: pure functions over a `SampleSet`, higher = less certain."""

from __future__ import annotations

from .base import Estimator, EstimatorSpec, Evidence, Missing, Needs, Support
from .clustering import Clustering, Clusters, cluster
from .graph import similarity_matrix
from .measure import answer_text, measure, measure_all, measure_many, measure_stream
from .registry import available, from_spec, make

__all__ = [
    "Clustering",
    "Clusters",
    "Estimator",
    "EstimatorSpec",
    "Evidence",
    "Missing",
    "Needs",
    "Support",
    "answer_text",
    "available",
    "cluster",
    "from_spec",
    "make",
    "measure",
    "measure_all",
    "measure_many",
    "measure_stream",
    "similarity_matrix",
]
