"""The report: one HTML file that says what the gate does, shows it, and says what it does not promise."""

from ..thresholds.registry import compared_rules as default_rules
from .page import compare_rules, parts_of, write_report

__all__ = ["compare_rules", "default_rules", "parts_of", "write_report"]
