"""The report: one HTML file with the verdict on a gate, its figures and the limits of its promise."""

from .comparison import compare_rules
from .page import Report, write_report

__all__ = ["Report", "compare_rules", "write_report"]
