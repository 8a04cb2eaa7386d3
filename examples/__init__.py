"""Worked examples that ship with the project; none of them is imported by the package."""
