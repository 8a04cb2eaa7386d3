"""Uncertainty estimators: pure functions over a `SampleSet`, higher = less certain."""

from __future__ import annotations

from ..specs import Clustering, EstimatorSpec, Support
from ..types import Missing
from .base import Estimator, Evidence, Needs
from .clustering import Clusters, cluster
from .graph import similarity_matrix
from .measure import measure, measure_all, measure_many, measure_stream
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
