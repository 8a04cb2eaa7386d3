"""Evaluation of rules and estimators: repeated splits, audits, plans, tables."""
