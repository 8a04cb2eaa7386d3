"""Labels that people give in a terminal, and the check that no question is labelled both ways."""

from __future__ import annotations

from .contradictions import contradictions, refuse_contradictions

__all__ = ["contradictions", "refuse_contradictions"]
