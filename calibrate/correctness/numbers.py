"""Numbers as people and models write them; shared with the `numeric` judge."""

from __future__ import annotations

from guardrail.judges.numbers import Number, parse_number

__all__ = ["Number", "parse_number"]
