"""How well rules and estimators do: repeated splits, audits, plans, tables."""
