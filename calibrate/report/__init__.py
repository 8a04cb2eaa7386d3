"""The report: one HTML file with the verdict on a gate, its figures and the limits of its promise."""

from .page import Report, compare_rules, write_report

__all__ = ["Report", "compare_rules", "write_report"]
