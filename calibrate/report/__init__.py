"""The report: one HTML file with the verdict on a gate, its figures and the limits of its promise."""

from ..thresholds.registry import compared_rules as default_rules
from .page import compare_rules, parts_of, write_report

__all__ = ["compare_rules", "default_rules", "parts_of", "write_report"]
