"""Numbers as people and models write them; shared with the `numeric` judge."""

from __future__ import annotations

from guardrail.judges.number_reading import parse_number
from guardrail.judges.numbers import Number

__all__ = ["Number", "parse_number"]
