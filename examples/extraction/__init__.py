"""Invoices into fields: each field is kept or held back by itself, and people decide about the rest."""
