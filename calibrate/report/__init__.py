"""The report: one HTML file that says what the gate does, shows it, and says what it does not promise."""

from .page import compare_rules, write_report

__all__ = ["compare_rules", "write_report"]
