"""The vote of the samples: the most frequent answer, as imported files and guards take it for the primary answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..types import Sample, SampleSet
from .text import normalise

__all__ = ["distinct_answers", "majority", "with_majority"]


def distinct_answers(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Distinct texts by their normal form with their counts, most frequent first; each in its first wording."""
    forms = [normalise(text) for text in texts]
    # Reversed, because the last entry of a dict wins: the first wording is to stay.
    first_wording = dict(zip(reversed(forms), reversed(texts), strict=True))
    return [(first_wording[form], count) for form, count in Counter(forms).most_common()]


def majority(samples: Sequence[Sample]) -> int | None:
    """Return the place of the most frequent sample, the earliest on a tie; None without samples.

    Texts are equal if their normal forms are, tool calls if their canonical forms are. Calibration and guards both call
    this function, so that a guard gives out what was calibrated.
    """
    if not samples:
        return None
    forms = [sample.comparable if sample.tool_calls else normalise(sample.text) for sample in samples]
    # A counter keeps the order of insertion, so the earliest of the most frequent forms comes first.
    return forms.index(Counter(forms).most_common(1)[0][0])


def with_majority(drawn: SampleSet) -> SampleSet:
    """The set with the vote of its samples as primary answer; all stay samples."""
    place = majority(drawn.samples)
    return drawn.model_copy(update={"primary": None if place is None else drawn.samples[place]})
