"""The vote of the samples: the most frequent answer, as imported files and guards take it for the primary answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..types import Sample, SampleSet
from .text import normalise

__all__ = ["majority", "with_majority"]


_NUMBER = re.compile(r"\+?(-?(?!0[0-9])[0-9]+)(?:\.([0-9]+))?")
"""A number as its digits: floats would merge long numbers that differ in the last digit. "007" is a name, not 7."""


def majority(samples: Sequence[Sample]) -> int | None:
    """Return the place of the most frequent sample, the earliest on a tie; None without samples.

    Texts are equal if their normal forms are, and 18 is 18.0; tool calls if their canonical forms are. Calibration and
    guards both call this function, so that a guard gives out what was calibrated.
    """
    if not samples:
        return None
    forms = [_form(sample) for sample in samples]
    # A counter keeps the order of insertion, so the earliest of the most frequent forms comes first.
    return forms.index(Counter(forms).most_common(1)[0][0])


def with_majority(drawn: SampleSet) -> SampleSet:
    """The set with the vote of its samples as primary answer; all stay samples."""
    place = majority(drawn.samples)
    return drawn.model_copy(update={"primary": None if place is None else drawn.samples[place]})


def _form(sample: Sample) -> str:
    if sample.tool_calls:
        return sample.comparable
    form = normalise(sample.text)
    number = _NUMBER.fullmatch(form)
    if number is None:
        return form
    whole, decimals = number[1], (number[2] or "").rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole
