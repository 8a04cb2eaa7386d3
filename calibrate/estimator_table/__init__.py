"""Every estimator on recorded outputs of real models, as one table: ``python -m calibrate.estimator_table``."""

from __future__ import annotations

from .figures import Figures, Interval, measure_figures
from .sources import Source, sources

__all__ = ["Figures", "Interval", "Source", "measure_figures", "sources"]
