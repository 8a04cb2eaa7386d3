"""Uncertainty estimators: pure functions over a `SampleSet`, higher = less certain."""

from __future__ import annotations

from ..specs import Clustering, EstimatorSpec
from ..types import Missing, Sample
from .base import Estimator, Evidence, Needs, PartialEvidence
from .clustering import Clusters, cluster
from .graph import similarity_matrix
from .measure import measure, measure_all, measure_many, measure_stream
from .plan import plan_for
from .registry import from_spec, list_estimators, make_estimator

# Former names; the documentation of earlier versions uses them.
make = make_estimator
available = list_estimators


def answer_text(sample: Sample) -> str:
    """Former name of `Sample.comparable`."""
    return sample.comparable


__all__ = [
    "Clustering",
    "Clusters",
    "Estimator",
    "EstimatorSpec",
    "Evidence",
    "Missing",
    "Needs",
    "PartialEvidence",
    "answer_text",
    "available",
    "cluster",
    "from_spec",
    "list_estimators",
    "make",
    "make_estimator",
    "measure",
    "measure_all",
    "measure_many",
    "measure_stream",
    "plan_for",
    "similarity_matrix",
]
