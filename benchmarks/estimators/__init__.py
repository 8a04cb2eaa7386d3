"""Every estimator on recorded outputs of real models, as one table: ``python -m benchmarks.estimators``."""

from __future__ import annotations

from benchmarks.estimators.figures import Figures, Interval, measure_figures
from benchmarks.estimators.sources import Source, sources

__all__ = ["Figures", "Interval", "Source", "measure_figures", "sources"]
